"""`lanner group members, alter, evict` and `lanner client list`, over the scripted cluster."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from msgspec.structs import replace

import lanner as library
from lanner.testing.terminal import Terminal
from lanner.wire.administration import Seek
from lanner.wire.members import (
    AlterGroup,
    ClientState,
    ClientUse,
    EvictMember,
    GroupMembers,
    HandOver,
    ListClients,
    MemberState,
    PartitionRange,
    RebalanceState,
)
from tests.unit.cli.conftest import FakeCluster
from tests.unit.cli.test_cluster import document, lanner

EVIL = "\x1b]0;title\x07\x1b[2J[red]"
WEB = MemberState(
    "3f9ac01234567890",
    1,
    "web-1",
    "host-a:311",
    "",
    "",
    10_000,
    1_000,
    7_200_000,
    [PartitionRange("orders", 0, 3), PartitionRange("refunds", 1, 1)],
    [HandOver("orders", 4, "77c1aa1234567890", 1_200)],
    "n2",
    400,
)
SECOND = replace(
    WEB, member_id="77c1aa1234567890", number=2, instance="", client="", door="rest", held=[], revoked=[], heard_ms=-1
)
BILLING = GroupMembers(
    "billing",
    7,
    "queue",
    "sticky",
    41,
    10_000,
    60_000,
    "handing over",
    2,
    1,
    [WEB, SECOND],
    [RebalanceState(1_000, "77c1aa12… joined", 2, 8, 310), RebalanceState(90_000, "3f9ac012… left", 1, 8)],
    partitions=8,
)


@pytest.fixture
def billing(cluster: FakeCluster) -> FakeCluster:
    cluster.groups["billing"] = BILLING
    return cluster


def many(count: int) -> GroupMembers:
    members = [
        replace(WEB, member_id=f"{number:016x}"[::-1], number=number, revoked=[], instance="")
        for number in range(1, count + 1)
    ]
    return replace(BILLING, count=count, members=members)


# ------------------------------------------------------------------ members


def test_members_are_shown_with_what_they_hold_and_hand_over(billing: FakeCluster) -> None:
    shown = lanner("group", "members", "billing").stdout
    assert (
        "billing: queue, sticky, generation 41, 2 members, handing over, 1 of 8 partitions have no owner yet" in shown
    )
    web, second = (line for line in shown.splitlines() if line.strip().startswith(("3f9a", "77c1")))
    for told in ("3f9ac012…", "web-1", "host-a:311", "n2", "0.4 s", "2.0 h", "orders/0-3, refunds/1"):
        assert told in web
    assert "orders/4 → 77c1aa12… for 1.2 s" in web
    assert "rest" in second and "idle" in second
    assert "1970-01-01 00:00:01  77c1aa12… joined: 2 of 8 moved in 0.31 s" in shown
    assert "3f9ac012… left: 1 of 8 moved so far" in shown
    assert shown.index("left") < shown.index("joined"), "the latest first"


def test_a_column_that_nobody_fills_is_left_out(billing: FakeCluster) -> None:
    billing.groups["billing"] = replace(BILLING, members=[replace(WEB, instance="", revoked=[])])
    shown = lanner("group", "members", "billing").stdout
    assert "instance" not in shown and "revoked" not in shown and "held" in shown


def test_members_that_share_everything_are_not_called_idle(billing: FakeCluster) -> None:
    billing.groups["billing"] = replace(BILLING, assignor="shared", members=[replace(WEB, held=[], revoked=[])])
    shown = lanner("group", "members", "billing").stdout
    assert "everything" in shown and "idle" not in shown


def test_members_as_json_have_every_field(billing: FakeCluster) -> None:
    found = document("group", "members", "billing")
    assert found["generation"] == 41 and found["members"][0]["held"][0] == {"topic": "orders", "first": 0, "last": 3}
    assert found["members"][0]["revoked"][0]["heir"] == SECOND.member_id and found["rebalances"][1]["took_ms"] == -1


def test_a_group_that_has_no_members_now_says_so(billing: FakeCluster) -> None:
    billing.groups["billing"] = replace(BILLING, members=[], count=0, state="empty", unowned=0)
    shown = lanner("group", "members", "billing").stdout
    assert "0 members, empty" in shown and "Nobody is a member now." in shown


def test_a_group_that_never_had_members_is_an_error_that_says_what_that_means(billing: FakeCluster) -> None:
    done = lanner("group", "members", "audit", code=1)
    assert "GroupNotFound: group 'audit' has never had members" in done.stderr
    assert "lanner client list --group audit" in done.stderr and "--assignor sticky" in done.stderr
    problem = json.loads(lanner("group", "members", "audit", "--json", code=1).stderr)
    assert problem["type"] == "GroupNotFound" and problem["details"] == {"group": "audit"}
    assert "client list" in lanner("group", "alter", "audit", "--assignor", "range", code=1).stderr
    assert "client list" in lanner("group", "evict", "audit", "x", code=1).stderr


def test_ids_are_shown_as_long_as_it_takes_to_tell_them_apart(billing: FakeCluster) -> None:
    twins = [replace(WEB, member_id=f"3f9ac0123456{letter}890", revoked=[]) for letter in "ab"]
    billing.groups["billing"] = replace(BILLING, members=twins)
    shown = lanner("group", "members", "billing").stdout
    assert "3f9ac0123456a…" in shown and "3f9ac0123456b…" in shown


def test_all_pages_are_shown_and_much_is_not_shown_at_length(billing: FakeCluster) -> None:
    group = many(250)
    ranges = [PartitionRange("orders", 2 * number, 2 * number) for number in range(40)]
    billing.groups["billing"] = replace(group, members=[replace(group.members[0], held=ranges), *group.members[1:]])
    shown = lanner("group", "members", "billing").stdout
    assert shown.count("orders/0-3") == 249 and "orders/22 and 28 more" in shown
    assert len(document("group", "members", "billing")["members"]) == 250


def test_names_that_others_chose_do_not_drive_the_terminal(billing: FakeCluster) -> None:
    evil = replace(
        WEB, member_id=EVIL + "1234567890", client=EVIL, instance=EVIL, home=EVIL, held=[PartitionRange(EVIL, 0, 0)]
    )
    billing.groups["billing"] = replace(
        BILLING, group=EVIL, members=[evil], rebalances=[RebalanceState(1_000, EVIL + "\n\x1b[1A", 1, 2, 3)]
    )
    for words in (
        ("group", "members", "billing"),
        ("group", "show", "orders", "billing"),
        ("group", "evict", "billing", EVIL),
    ):
        shown = lanner(*words).stdout
        assert "\x1b" not in shown and "\x07" not in shown
    assert EVIL.encode().decode("unicode_escape") == EVIL and "[red]" in lanner("group", "members", "billing").stdout


def test_a_narrow_terminal_shows_two_hundred_members_one_below_the_other(billing: FakeCluster) -> None:
    billing.groups["billing"] = many(200)
    command = [sys.executable, "-m", "lanner.cli", "group", "members", "billing"]
    with Terminal(command, columns=40) as terminal:
        assert terminal.wait() == 0, terminal.shown
        shown = terminal.shown
    assert "Traceback" not in shown and shown.count("orders/0-3, refunds/1") == 200
    assert all(f"{number:016x}"[::-1][:8] in shown for number in range(1, 201))
    lines = [line for line in shown.splitlines() if line.strip() and not line.startswith("billing:")]
    assert max(map(len, lines)) <= 40, "nothing is wrapped in the middle of a word"
    with Terminal(command, columns=100) as terminal:
        assert terminal.wait() == 0
        rows = [line for line in terminal.shown.splitlines() if "orders/0-3, refunds/1" in line]
    assert len(rows) == 200, "a table, one line each"


# ------------------------------------------------------------------ alter, evict, seek, show


def test_a_group_is_altered_by_what_is_given(billing: FakeCluster) -> None:
    shown = lanner("group", "alter", "billing", "--assignor", "range", "--session-ms", "6000").stdout
    assert billing.altered == [AlterGroup("billing", "range", 6_000, 0)]
    assert "generation 41" in shown and "a session has 10,000 ms, a revoked partition 60,000 ms" in shown
    found = document("group", "alter", "billing", "--revoke-ms", "90000")
    assert billing.altered[1] == AlterGroup("billing", "", 0, 90_000) and found["revoke_ms"] == 60_000
    assert "at least one" in lanner("group", "alter", "billing", code=2).stderr
    assert len(billing.altered) == 2


@pytest.mark.parametrize("named", ["3f9ac01234567890", "3f9ac012…", "3f", "web-1"])
def test_a_member_is_evicted_by_its_id_the_beginning_of_it_or_its_instance(billing: FakeCluster, named: str) -> None:
    shown = lanner("group", "evict", "billing", named, "--reason", "too slow").stdout
    assert billing.evicted == [EvictMember("billing", WEB.member_id, "too slow")]
    assert f"Evicted {WEB.member_id} (web-1): 6 partitions go to others." in shown
    assert document("group", "evict", "billing", named)["evicted"] == WEB.member_id


@pytest.mark.parametrize(
    ("named", "why"), [("nope", "has no member 'nope'"), ("", "has no member ''"), ("…", "has no")]
)
def test_a_member_that_is_not_there_is_not_evicted(billing: FakeCluster, named: str, why: str) -> None:
    done = lanner("group", "evict", "billing", named, code=1)
    assert why in done.stderr and "lanner group members billing" in done.stderr and not billing.evicted


def test_of_two_members_whose_ids_begin_alike_none_is_evicted(billing: FakeCluster) -> None:
    billing.groups["billing"] = replace(BILLING, members=[WEB, replace(SECOND, member_id="3f00")])
    assert "2 members" in lanner("group", "evict", "billing", "3f", code=1).stderr and not billing.evicted


def test_a_seek_says_whether_it_is_by_force(billing: FakeCluster) -> None:
    lanner("group", "seek", "orders", "billing", "--to", "latest")
    lanner("group", "seek", "orders", "billing", "--to", "latest", "--force")
    assert billing.seeks == [Seek("orders", "billing", to="latest"), Seek("orders", "billing", to="latest", force=True)]


def test_show_mentions_members_where_a_group_has_some(billing: FakeCluster) -> None:
    shown = lanner("group", "show", "orders", "billing").stdout
    assert "sticky, generation 41, 2 members" in shown and "lanner group members billing" in shown
    assert document("group", "show", "orders", "billing")["members"]["assignor"] == "sticky"
    assert "members" not in lanner("group", "show", "orders", "audit").stdout
    assert document("group", "show", "orders", "audit")["members"] is None


# ------------------------------------------------------------------ clients


def client(number: int, *uses: ClientUse, **changes: Any) -> ClientState:
    found = ClientState("n", "node-1", number, "native", f"10.0.0.1:{number}", "worker", 1_000, 7_200_000, list(uses))
    return replace(found, **changes)


def test_clients_are_listed_with_their_groups_and_leases(cluster: FakeCluster) -> None:
    cluster.clients = [
        client(1, ClientUse("billing", "orders", "m-1", leased=3, until_ms=7_213_000)),
        client(2, ClientUse("audit", "", "", "3f9a", idle_ms=300_000), door="rest", client=""),
        client(3, ClientUse("audit", "orders", "m", leased=-1)),
        client(4),
    ]
    shown = lanner("client", "list").stdout
    assert "billing on orders as m-1, 3 leased for 12.0 s" in shown, "by the clock of its broker"
    assert "audit, heartbeats as 3f9a, idle for 5.0 m" in shown and "leases not counted" in shown
    assert "10.0.0.1:4" in shown and "node-1" in shown and "2.0 h" in shown
    found = document("client", "list")
    assert found["clients"][0]["uses"][0]["leased"] == 3 and found["missing"] == []


def test_a_member_is_shown_by_its_id_and_its_heartbeats_only_where_it_does_nothing_else(cluster: FakeCluster) -> None:
    cluster.clients = [
        client(1, ClientUse("crew", "", "", "3f9a"), ClientUse("crew", "orders", "name", "3f9a")),
        client(2, ClientUse("crew", "", "", "77c1"), ClientUse("crew", "orders", "name", "3f9a")),
    ]
    shown = lanner("client", "list").stdout
    assert shown.count("crew on orders as 3f9a") == 2 and "name" not in shown
    assert shown.count("heartbeats") == 1 and "crew, heartbeats as 77c1" in shown


def test_only_the_group_that_was_asked_for_is_shown(cluster: FakeCluster) -> None:
    cluster.clients = [client(1, ClientUse("billing", "orders", "m"), ClientUse("audit", "orders", "m"))]
    shown = lanner("client", "list", "--group", "billing").stdout
    assert cluster.asked_clients == [ListClients("billing", None, 1_000)]
    assert "billing on orders" in shown and "audit" not in shown
    cluster.clients = []
    assert "No connected client uses group billing." in lanner("client", "list", "-g", "billing").stdout
    assert "'no way' is not valid" in lanner("client", "list", "-g", "no way", code=1).stderr


def test_all_pages_of_clients_are_listed_and_brokers_that_do_not_answer_named(cluster: FakeCluster) -> None:
    cluster.clients = [client(number) for number in range(1, 1_502)]
    cluster.missing = ["node-2"]
    done = lanner("client", "list")
    assert done.stdout.count("10.0.0.1:") == 1_501 and len(cluster.asked_clients) == 2
    assert "Not listed are the clients of node-2" in done.stderr
    assert document("client", "list")["missing"] == ["node-2"]


def test_what_clients_call_themselves_does_not_drive_the_terminal(cluster: FakeCluster) -> None:
    cluster.clients = [client(1, ClientUse(EVIL, EVIL, EVIL, EVIL), client=EVIL, address=EVIL)]
    cluster.missing = [EVIL]
    done = lanner("client", "list")
    assert "\x1b" not in done.stdout + done.stderr and "\x07" not in done.stdout + done.stderr


def test_clients_fit_a_narrow_terminal(cluster: FakeCluster) -> None:
    cluster.clients = [client(number, ClientUse("billing", "orders", "m-1")) for number in range(1, 4)]
    with Terminal([sys.executable, "-m", "lanner.cli", "client", "list"], columns=40) as terminal:
        assert terminal.wait() == 0
        assert max(map(len, terminal.shown.splitlines())) <= 40
        assert terminal.shown.count("billing on orders as") == 3


# ------------------------------------------------------------------ the same from Python


def test_the_blocking_admin_asks_for_members_and_clients(billing: FakeCluster) -> None:
    billing.clients = [client(1), client(2)]
    with library.sync.connect(billing.address) as queue:
        admin = queue.admin
        assert [one.member_id for one in admin.group_members("billing").members] == [WEB.member_id, SECOND.member_id]
        assert len(admin.group_members("billing", limit=1).members) == 1
        assert admin.alter_group("billing", session_ms=6_000).generation == 42
        admin.evict_member("billing", "id", reason="because")
        page = admin.clients(limit=1)
        assert page.next == ("n", 1) and admin.clients(after=page.next).clients == [client(2)]
    assert billing.altered == [AlterGroup("billing", "", 6_000, 0)]
    assert billing.evicted == [EvictMember("billing", "id", "because")]
