"""Every call of the table: it has a handler that takes and gives what its row says, the doors that it should, one check
where it enters and one where it is served, and the same answer from a leader and through a follower."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from msgspec.structs import replace

from lanner import batch, features
from lanner.calls import ANONYMOUS, ROWS, Answer, Bulk, Identity, Repeat, Row, Where
from lanner.errors import BadGateway, GroupNotFound, NotLeader, TopicNotFound
from lanner.forwarding.values import NewMessage
from lanner.wire import administration, cluster, dead, members, messages, staging
from lanner.wire.exchanges import EXCHANGES
from lanner.wire.messages import Call, Command, SettleItem
from tests.unit.broker.crews import Crew
from tests.unit.broker.offices import Office, Offices, only, opened

ALICE = Identity("alice", "rest")
API = Path(__file__).resolve().parents[3] / "src" / "lanner" / "api"

# What only clients with batches, offsets or transactions of their own have a use for: the native door alone serves it.
NATIVE_ONLY = {
    Command.STAGE,
    Command.PREPARE,
    Command.DISCARD_STAGES,
    Command.BEGIN,
    Command.END,
    Command.LOOK,
    Command.CLAIM,
    Command.FORGET,
    Command.LIST_TRANSACTIONS,
    Command.FETCH_DEAD,
    Command.OPEN_PRODUCER,
    Command.BEST_PRIORITY,
    Command.SCRUB,
    Command.RELEASE,  # REST gives leases back by itself, when a client does not get them
    Command.PUBLISH,  # REST takes single messages: publish_messages
    Command.MAKE_GROUP,  # the broker that takes a join makes its group
}


async def test_every_row_has_a_handler_and_every_handler_a_row() -> None:
    async with opened("a") as offices:
        assert set(offices["a"].service.handlers) == set(ROWS)


async def test_a_handler_takes_and_gives_what_its_row_says() -> None:
    async with opened("a") as offices:
        for call, handler in offices["a"].service.handlers.items():
            hints = get_type_hints(handler)
            answer = hints.pop("return")
            assert answer == Answer[ROWS[call].answer], handler
            bulk = {"bulk": Bulk} if EXCHANGES[ROWS[call].command].request_bulk else {}
            assert hints == {next(iter(hints)): call, **bulk}, handler


async def test_a_way_of_its_own_takes_who_asks_and_gives_what_its_row_says() -> None:
    async with opened("a") as offices:
        for call, way in offices["a"].service._forwarder.ways.items():
            assert get_type_hints(way) == {"identity": Identity, "call": call, "return": Answer[ROWS[call].answer]}, way


def test_every_call_has_the_doors_that_it_should() -> None:
    """The native door passes every call through (its own test goes over the table); REST names those that it makes."""
    written = "".join(path.read_text(encoding="utf-8") for path in (API / "rest").glob("*.py"))
    made = {row.command for row in ROWS.values() if re.search(rf"\b{row.call.__name__}\(", written)}
    assert made == {row.command for row in ROWS.values()} - NATIVE_ONLY


# ------------------------------------------------------------------ who is checked, where


def checks(offices: Offices) -> list[tuple[str, Identity, Call[Any]]]:
    """What is checked from now on, in order: the broker, who asks, and the call."""
    seen: list[tuple[str, Identity, Call[Any]]] = []
    for name, office in offices.by_name.items():

        def check(identity: Identity, call: Call[Any], name: str = name, check: Any = office.service.check) -> None:
            seen.append((name, identity, call))
            check(identity, call)

        office.service.check = check  # type: ignore[method-assign]
    return seen


async def test_a_call_is_checked_once_where_it_enters_and_once_where_it_is_served() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 1)
        leader = offices.leader(set_ids[0])
        follower = next(office for office in offices.by_name.values() if office is not leader)
        seen = checks(offices)
        await leader.service.ask(ALICE, messages.Offsets("orders"))
        assert [(name, identity) for name, identity, _ in seen] == [(leader.name, ALICE)], "once, not twice"
        seen.clear()
        await follower.service.ask(ALICE, messages.Offsets("orders"))
        told = [(name, identity.name) for name, identity, call in seen if isinstance(call, messages.Offsets)]
        assert told == [(follower.name, "alice"), (leader.name, "alice")], "the same caller, at both ends of the hop"
        seen.clear()
        await follower.service.publish_messages(ALICE, "orders", [NewMessage(b"x")])
        told = [(name, identity.name) for name, identity, call in seen if isinstance(call, messages.Publish)]
        assert told == [(leader.name, "alice")], "the batch that was made of it, where it is stored"


async def test_below_the_level_that_brought_it_no_caller_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 1)
        monkeypatch.setattr(features, "CALLERS", offices["a"].engine.feature_level + 1)
        leader = offices.leader(set_ids[0])
        follower = next(office for office in offices.by_name.values() if office is not leader)
        seen = checks(offices)
        await follower.service.ask(ALICE, messages.Offsets("orders"))
        assert [(name, who.name) for name, who, call in seen if isinstance(call, messages.Offsets)] == [
            (follower.name, "alice"),
            (leader.name, "anonymous"),
        ]


async def test_a_caller_without_a_name_is_refused_before_anything_is_asked() -> None:
    async with opened() as offices:
        offices.topic("orders", 1)
        for office in offices.by_name.values():
            with pytest.raises(Exception, match="names nobody"):
                await office.service.ask(Identity(""), messages.Offsets("orders"))
            assert office.called == []


# ------------------------------------------------------------------ asked again, or not


@pytest.mark.parametrize("kind", [administration.RedriveDead, administration.DiscardDead])
async def test_what_may_not_be_repeated_is_not_after_a_lost_answer(kind: Any) -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader = offices.leader(set_id)
        there = next(office for office in offices.by_name.values() if office is not leader).anywhere
        await there.publish_messages(ANONYMOUS, "orders", [NewMessage(b"%d" % number) for number in range(5)])
        found = await there.poll(ANONYMOUS, topic="orders", group="g", member="m", max_messages=5)
        items = [
            SettleItem(0, one.token, part.first_offset, part.count, 4) for one in found.batches for part in one.ranges
        ]
        await there.settle(ANONYMOUS, "orders", "g", items)
        command = ROWS[kind].command
        assert ROWS[kind].repeat is Repeat.NEVER
        offices.lose = only(command)
        with pytest.raises(BadGateway):
            await there.ask(ANONYMOUS, kind("orders", "g"))
        asked = [one for office in offices.by_name.values() for _, one in office.called if one is command]
        assert len(asked) == 1, "it may have taken effect, and would count what is left only"
        assert (await there.dead_letters(ANONYMOUS, "orders", "g", None, 0, 10)).total == 0


async def test_what_may_not_be_repeated_goes_on_to_the_leader_that_a_refusal_names() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader = offices.leader(set_id)
        first, second = (office for office in offices.by_name.values() if office is not leader)
        await first.anywhere.publish_messages(ANONYMOUS, "orders", [NewMessage(b"x")])
        await first.anywhere.poll(ANONYMOUS, topic="orders", group="g", member="m")
        first.known_leader = lambda set_id: second.node_id
        assert await first.anywhere.redrive(ANONYMOUS, "orders", "g", None, None) == 0
        asked = [node_id for node_id, command in first.called if command is Command.REDRIVE]
        assert asked == [second.node_id, leader.node_id], "nothing was done at the first"


# ------------------------------------------------------------------ the same answer everywhere


def example(row: Row[Any, Any], offices: Offices) -> Call[Any] | None:
    """A call that changes nothing, or the same each time; None: it is tried elsewhere."""
    incarnation = offices["a"].engine.cluster.topics["orders"].incarnation
    found: dict[type[Call[Any]], Call[Any]] = {
        messages.BestPriority: messages.BestPriority("g", "orders"),
        messages.Poll: messages.Poll("empty", "orders", "m", -1, start="latest"),
        messages.Settle: messages.Settle("g", "orders", [SettleItem(number, 1, 0, 1, 1) for number in (2, 0, 1)]),
        messages.Release: messages.Release("g", "orders", [SettleItem(number, 1, 0, 1, 1) for number in (2, 0, 1)]),
        messages.Fetch: messages.Fetch("orders", 1, 0),
        dead.FetchDead: dead.FetchDead("orders", 1, "g"),
        messages.Peek: messages.Peek("orders", max_messages=5),
        messages.Commit: messages.Commit("readers", "orders", {0: 1, 1: 2, 2: 3}, "reader", 7),
        messages.Committed: messages.Committed("readers", "orders"),
        members.ClaimPartitions: members.ClaimPartitions("orders", "crew", "one", 1, 2, incarnation, [0, 1, 2]),
        members.JoinGroup: members.JoinGroup("crew", "stream", "one", ["orders"]),
        members.Heartbeat: members.Heartbeat("crew", "one", 1, 1),
        members.LeaveGroup: members.LeaveGroup("crew", "another"),
        members.ListMembers: members.ListMembers("crew"),
        members.MakeGroup: members.MakeGroup("orders", "made", "stream", "latest"),
        messages.Offsets: messages.Offsets("orders", 0),
        messages.Metadata: messages.Metadata(["orders", "missing"]),
        administration.AlterTopic: administration.AlterTopic("orders", {"lease_ms": 5_000}),
        administration.DescribeTopic: administration.DescribeTopic("orders"),
        administration.ListTopics: administration.ListTopics(),
        administration.ListGroups: administration.ListGroups("orders"),
        administration.DescribeGroup: administration.DescribeGroup("orders", "g"),
        administration.Seek: administration.Seek("orders", "g", to="latest"),
        administration.ListDead: administration.ListDead("orders", "g"),
        administration.RedriveDead: administration.RedriveDead("orders", "g"),
        administration.DiscardDead: administration.DiscardDead("orders", "g"),
        cluster.DescribePartitions: cluster.DescribePartitions("orders"),
        cluster.RaftStatus: cluster.RaftStatus("orders", 1),
        members.ListClients: members.ListClients(),
        staging.Look: staging.Look("billing", b"c" * 16, "nightly", 1),
        staging.ListTransactions: staging.ListTransactions(),
        staging.Forget: staging.Forget([]),
        staging.Claim: staging.Claim("billing", "nightly"),
        staging.End: staging.End("billing", "nightly", b"c" * 16),
        staging.Begin: staging.Begin(
            "billing", "nightly", 1, b"c" * 16, [staging.Participant("orders", incarnation, [0])], 60_000
        ),
    }
    return found.get(row.call)


# These change something each time, or tell what only the broker knows that is asked.
ELSEWHERE = {
    Command.PUBLISH,
    Command.STAGE,
    Command.PREPARE,
    Command.DISCARD_STAGES,
    Command.OPEN_PRODUCER,
    Command.CREATE_TOPIC,
    Command.DELETE_TOPIC,
    Command.DROP_GROUP,
    Command.DESCRIBE_CLUSTER,
    Command.CHANGE_CLUSTER,
    Command.SCRUB,
    Command.ALTER_GROUP,
    Command.EVICT_MEMBER,
}


async def outcome(office: Office, call: Call[Any]) -> Any:
    answer = await office.service.ask(ALICE, call)
    control = answer.control
    if isinstance(control, administration.GroupDescription):  # by the clock
        control = replace(control, partitions=[replace(one, oldest_age_ms=0) for one in control.partitions])
    if isinstance(control, members.ClientList):  # likewise
        control = replace(
            control,
            clients=[
                replace(one, age_ms=0, uses=[replace(use, idle_ms=0) for use in one.uses]) for one in control.clients
            ],
        )
    if isinstance(control, members.MemberView):  # likewise
        control = replace(control, confirmed_ms=0)
    if isinstance(control, members.GroupMembers):  # likewise
        told = [replace(one, joined_age_ms=0, heard_ms=min(one.heard_ms, 0)) for one in control.members]
        control = replace(control, members=told)
    if isinstance(control, messages.Fetched):  # likewise
        control = replace(control, time_ms=0)
    return control, [bytes(piece) for piece in answer.bulk]


async def filled(offices: Offices) -> None:
    offices.topic("orders")
    given = [NewMessage(b"%d" % number, priority=number % 10, partition=number % 3) for number in range(12)]
    there = offices["a"].anywhere
    await there.publish_messages(ANONYMOUS, "orders", given)
    found = await there.poll(ANONYMOUS, topic="orders", group="g", member="m", max_messages=6)
    items = [
        SettleItem(one.partition, one.token, part.first_offset, part.count, 4, reason="bad")
        for one in found.batches
        for part in one.ranges
    ]
    await there.settle(ANONYMOUS, "orders", "g", items)
    crew = Crew(offices.flock, group="crew")
    crew.join("one")
    crew.assign({0: "one", 1: "one", 2: "one"})
    assert crew.seen == (1, 2), "as the examples have it"
    for office in offices.by_name.values():
        office.service.clients.enter("native", "127.0.0.1:1").note(messages.Poll("g", "orders", "m", -1))


@pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if row.command not in ELSEWHERE], ids=lambda row: row.command.name
)
async def test_a_call_answers_the_same_on_every_broker(row: Row[Any, Any]) -> None:
    async with opened() as offices:
        await filled(offices)
        call = example(row, offices)
        assert call is not None, "give it an example, or say why it has none"
        await offices["a"].service.ask(ALICE, call)  # what it changes it has changed now
        told = [await outcome(office, call) for office in offices.by_name.values()]
        assert told[0] == told[1] == told[2]
        if row.where is Where.LEADERS and row.command is not Command.POLL:  # there was nothing to poll for
            passed_on = [
                one for one in offices.by_name.values() if row.command in {command for _, command in one.called}
            ]
            assert len(passed_on) >= 2, "a leader has served it itself, the others have not"


@pytest.mark.parametrize(
    "row", [row for row in ROWS.values() if row.where is Where.LEADERS], ids=lambda row: row.command.name
)
async def test_a_call_about_a_topic_that_is_not_there_says_so_on_every_broker(row: Row[Any, Any]) -> None:
    async with opened() as offices:
        offices.topic("orders", 1)
        field = "topic" if "topic" in row.call.__struct_fields__ else "name"
        call = example(row, offices)
        if call is None:
            return
        for office in offices.by_name.values():
            with pytest.raises(TopicNotFound):
                await office.service.ask(ALICE, replace(call, **{field: "nowhere"}))


async def test_a_batch_and_a_stage_go_to_the_leader_through_any_broker() -> None:
    async with opened() as offices:
        offices.topic("orders", 3)
        for at, office in enumerate(offices.by_name.values()):
            for partition in range(3):
                stored = await office.service.ask(ALICE, messages.Publish("orders", partition), [batch.encode([b"x"])])
                assert stored.control.base_offset == at
                stage = staging.Stage("orders", partition, 0, "t", "o", 1, 0, b"%016d" % at, 0)
                kept = await office.service.ask(ALICE, stage, [batch.encode([b"y"])])
                assert not kept.control.duplicate


async def test_a_group_that_some_brokers_do_not_know_is_found_and_one_that_none_knows_is_not() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await offices["a"].anywhere.publish_messages(ANONYMOUS, "orders", [NewMessage(b"x", partition=1)])
        await offices["b"].anywhere.poll(ANONYMOUS, topic="orders", group="g", member="m", partitions=[1])
        for office in offices.by_name.values():
            told = await office.anywhere.group(ANONYMOUS, "orders", "g")
            assert [state.partition for state in told.partitions] == [1]
            with pytest.raises(GroupNotFound, match="'orders' has no group 'h'"):
                await office.anywhere.group(ANONYMOUS, "orders", "h")
        with pytest.raises(NotLeader):
            await next(office for office in offices.by_name.values() if office is not offices.leader(1)).service.serve(
                ALICE, messages.Offsets("orders")
            )
