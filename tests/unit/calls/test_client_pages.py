"""Pages of clients from several brokers become one, in order, without a gap and bounded."""

from __future__ import annotations

import pytest

from lanner import limits
from lanner.calls.client_pages import clients_merge, cut_name, holders_elsewhere, passed_on, polled_for, with_holdings
from lanner.wire.members import ClientList, ClientState, ClientUse, ListClients


def state(node_id: str, number: int, door: str = "native", *uses: ClientUse, client: str = "") -> ClientState:
    return ClientState(node_id, node_id.upper(), number, door, "h:1", client, 0, 0, list(uses))


def places(page: ClientList) -> list[tuple[str, int]]:
    return [(client.node_id, client.number) for client in page.clients]


def test_brokers_follow_each_other_by_node_id() -> None:
    answers = {"b": ClientList([state("b", 1)]), "a": ClientList([state("a", 4), state("a", 9)])}
    page = clients_merge(ListClients(), answers, ["C"])
    assert places(page) == [("a", 4), ("a", 9), ("b", 1)] and page.next is None and page.missing == ["C"]


def test_a_page_that_is_full_says_where_it_ends() -> None:
    answers = {"a": ClientList([state("a", 1), state("a", 2)]), "b": ClientList([state("b", 1)])}
    page = clients_merge(ListClients(limit=2), answers, [])
    assert places(page) == [("a", 1), ("a", 2)] and page.next == ("a", 2)


def test_a_page_of_exactly_the_limit_is_the_last() -> None:
    page = clients_merge(ListClients(limit=1), {"a": ClientList([state("a", 1)]), "b": ClientList([])}, [])
    assert places(page) == [("a", 1)] and page.next is None


def test_where_a_broker_had_more_to_tell_the_next_one_waits() -> None:
    answers = {"a": ClientList([state("a", 1)], ("a", 1)), "b": ClientList([state("b", 1)])}
    page = clients_merge(ListClients(), answers, [])
    assert places(page) == [("a", 1)] and page.next == ("a", 1), "else the rest of a would never be told"


def test_a_page_is_bounded_by_its_bytes() -> None:
    wide = "x" * limits.NAME_LENGTH_MAX
    answers = {"a": ClientList([state("a", number, client=wide) for number in range(1, 1_001)])}
    page = clients_merge(ListClients(limit=1_000), answers, [])
    assert 0 < len(page.clients) < 1_000 and page.next == places(page)[-1]


def test_what_other_doors_hold_is_asked_and_summed_over_brokers() -> None:
    use = ClientUse("g", "orders", "rest-1", leased=1, until_ms=5)
    page = ClientList([state("a", 1, "rest", use), state("a", 2, "native", ClientUse("g", "orders", "m", leased=7))])
    holders = holders_elsewhere(page)
    assert holders == [("g", "orders", "rest-1")]
    counted = with_holdings(page, holders, [[(1, 5)], [(3, 9)], []])
    assert [(use.leased, use.until_ms) for client in counted.clients for use in client.uses] == [(4, 9), (7, 0)]
    uncounted = with_holdings(page, holders, [[(-1, 0)], [(3, 9)]])
    assert uncounted.clients[0].uses[0].leased == -1, "a part must not pass for the whole"


@pytest.mark.parametrize("member", ["m", "", "rest-1/2", "m" * limits.MEMBER_LENGTH_MAX])
def test_a_lease_that_a_forwarder_took_is_known_by_whom_it_was_for(member: str) -> None:
    name = passed_on("0123456789abcdef", member)
    assert len(name) <= limits.MEMBER_LENGTH_MAX and name != member
    assert polled_for(name) == cut_name(member) == polled_for(member)
    assert polled_for("door-keeper") == "door-keeper", "a member may be called what it likes"


def test_only_so_many_holders_are_asked_for() -> None:
    uses = [ClientUse("g", "orders", f"m{number}") for number in range(limits.CLIENT_HOLDERS_MAX + 1)]
    page = ClientList([state("a", 1, "rest", *uses)])
    assert len(holders_elsewhere(page)) == limits.CLIENT_HOLDERS_MAX
