"""LIST_CLIENTS on brokers whose doors have entered clients: pages over all of them, gaps named, leases counted."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from lanner import features, limits
from lanner.broker.desks import clients as desk
from lanner.broker.desks.clients import _Looks
from lanner.calls import ANONYMOUS, Identity
from lanner.errors import NotSupported
from lanner.forwarding.values import NewMessage
from lanner.wire.members import ClientList, ListClients
from lanner.wire.messages import Poll
from tests.unit.broker.offices import Offices, opened


async def listed(offices: Offices, broker: str = "a", **wanted: Any) -> ClientList:
    return (await offices[broker].service.ask(ANONYMOUS, ListClients(**wanted))).control


def connected(offices: Offices, broker: str, door: str = "native", name: str = "worker") -> Identity:
    """Somebody who is connected to a broker."""
    client = offices[broker].service.clients.enter(door, "10.0.0.1:5", name)
    return Identity("anonymous", door, client)


async def test_pages_go_over_all_brokers_without_gap_or_double_from_whichever_is_asked() -> None:
    async with opened() as offices:
        for broker in "aaabcc":
            connected(offices, broker)
        whole = await listed(offices)
        assert [(one.broker, one.number) for one in whole.clients] == [
            ("a", 1),
            ("a", 2),
            ("a", 3),
            ("b", 1),
            ("c", 1),
            ("c", 2),
        ]
        assert not whole.missing and whole.next is None
        for broker, limit in ("a", 1), ("a", 2), ("b", 2), ("c", 3):
            found, after = [], None
            while True:
                page = await listed(offices, broker, after=after, limit=limit)
                assert len(page.clients) <= limit
                found += page.clients
                after = page.next
                if after is None:
                    break
            assert [replace(one, age_ms=0) for one in found] == [replace(one, age_ms=0) for one in whole.clients]


async def test_a_broker_that_does_not_answer_is_named_and_the_others_are_listed() -> None:
    async with opened() as offices:
        for broker in "abc":
            connected(offices, broker)
        offices.refuse = lambda node_id, command: node_id == offices["b"].node_id
        page = await listed(offices)
        assert [one.broker for one in page.clients] == ["a", "c"] and page.missing == ["b"]
        offices.refuse = lambda node_id, command: False
        offices.stop(offices["c"])
        offices.flock.until(lambda: not offices["a"].is_alive(offices["c"].node_id))
        page = await listed(offices)
        assert [one.broker for one in page.clients] == ["a", "b"] and page.missing == ["c"]


async def test_who_uses_which_group_is_noted_where_the_call_enters_and_nowhere_else() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await offices["a"].service.ask(connected(offices, "a"), Poll("billing", "orders", "m", -1))
        connected(offices, "b")
        (mine, other) = (await listed(offices)).clients
        assert [(use.group, use.topic, use.member) for use in mine.uses] == [("billing", "orders", "m")]
        assert not other.uses, "the poll came to it from another broker"
        assert [one.broker for one in (await listed(offices, group="billing")).clients] == ["a"]
        assert not (await listed(offices, group="bill")).clients


async def test_what_a_native_client_holds_is_counted_where_its_broker_leads() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 3)
        await offices["a"].anywhere.publish_messages(
            ANONYMOUS, "orders", [NewMessage(b"x", partition=number % 3) for number in range(9)]
        )
        for partition in (0, 1):
            leader = offices.leader(set_ids[partition])
            who = connected(offices, leader.name)
            await leader.service.serve(who, Poll("g", "orders", "m", -1, [partition], max_messages=2 + partition))
        uses = [use for one in (await listed(offices)).clients for use in one.uses]
        assert sorted(use.leased for use in uses) == [2, 3]
        assert all(use.until_ms > offices.flock.now_ms for use in uses)


async def test_what_a_caller_of_another_door_holds_is_counted_on_all_brokers() -> None:
    async with opened() as offices:
        offices.topic("orders", 3)
        await offices["a"].anywhere.publish_messages(
            ANONYMOUS, "orders", [NewMessage(b"x", partition=number % 3) for number in range(9)]
        )
        await offices["a"].service.ask(connected(offices, "a", "rest"), Poll("g", "orders", "r", -1, max_messages=100))
        for broker in "abc":
            (one,) = (await listed(offices, broker)).clients
            (use,) = one.uses
            assert use.leased == 9 and use.until_ms > 0, "three partitions are led on three brokers"


async def test_a_page_that_would_take_too_many_looks_says_what_was_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        await offices["a"].anywhere.publish_messages(ANONYMOUS, "orders", [NewMessage(b"x")] * 4)
        for group in "gh":
            await offices["a"].service.ask(connected(offices, "a"), Poll(group, "orders", "m", -1, max_messages=3))
        monkeypatch.setattr(limits, "CLIENT_LEASES_LOOKED_AT", 1)
        uses = [use for one in (await listed(offices)).clients for use in one.uses]
        assert sorted(use.leased for use in uses) == [-1, 3]


async def test_a_page_is_bounded_by_its_bytes_and_the_next_goes_on() -> None:
    async with opened("a") as offices:
        clients = offices["a"].service.clients
        for _ in range(40):
            one = clients.enter("native", "h:1", "é" * limits.NAME_LENGTH_MAX)
            for number in range(limits.CLIENT_USES_MAX):
                one.note(Poll(f"{number}".ljust(200, "g"), "t" * 200, "m" * 200, -1))
        page = await listed(offices, limit=1_000)
        assert 0 < len(page.clients) < 40 and page.next == (page.clients[-1].node_id, page.clients[-1].number)
        rest = await listed(offices, limit=1_000, after=page.next)
        assert rest.clients[0].number == page.clients[-1].number + 1


async def test_others_have_their_turn_while_much_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    async def sleep(seconds: float) -> None:
        turns.append(seconds)

    monkeypatch.setattr(desk.asyncio, "sleep", sleep)
    looks = _Looks()
    await looks.look(1)
    assert not turns
    await looks.look(desk._LOOKS_PER_TURN)
    assert turns == [0]


async def test_before_every_broker_knows_it_the_call_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened("a") as offices:
        monkeypatch.setattr(features, "MEMBERS", offices["a"].engine.feature_level + 1)
        with pytest.raises(NotSupported, match="lanner cluster upgrade"):
            await listed(offices)
