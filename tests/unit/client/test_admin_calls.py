"""What `queue.admin` asks of a broker, call by call, what it makes of the answer, and what it refuses to ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import astuple

import lanner
from lanner.batch import encode
from lanner.client.admin import Admin
from lanner.errors import (
    GroupNotFound,
    LannerError,
    NotFoundError,
    ServiceUnavailable,
    TopicExists,
    TransactionBusy,
    ValidationError,
)
from lanner.model import Message
from lanner.wire.administration import (
    AlterTopic,
    CountReply,
    DeadLetter,
    DeadLetters,
    DeleteTopic,
    DescribeTopic,
    DiscardDead,
    DropGroup,
    GroupDescription,
    GroupsReply,
    ListDead,
    ListGroups,
    RedriveDead,
    Seek,
    TopicDescription,
)
from lanner.wire.cluster import (
    ChangeCluster,
    ClusterChanged,
    ClusterDescription,
    DescribePartitions,
    PartitionsDescription,
    PlanProgress,
    RaftStatus,
    RaftStatusReply,
    Scrub,
    ScrubProgress,
)
from lanner.wire.members import (
    AlterGroup,
    ClientList,
    EvictMember,
    GroupAltered,
    GroupMembers,
    ListClients,
    ListMembers,
    MemberState,
)
from lanner.wire.messages import (
    BrokerInfo,
    Call,
    Command,
    Committed,
    CommittedReply,
    Empty,
    MetadataReply,
    Offsets,
    OffsetsReply,
    PartitionOffsets,
    Peek,
    Peeked,
    PeekedMessage,
    TopicInfo,
)
from lanner.wire.staging import (
    CommitPhase,
    CommitState,
    End,
    Forget,
    ListTransactions,
    OpenTry,
    TransactionList,
    TransactionState,
)

TOPIC = TopicDescription("orders", 1, {}, [])
CLUSTER = ClusterDescription("c", "n1", 5, 0, 0, 0, 0, [])
PLAN = PlanProgress(7, "drain", "n1", "running", 0, 1, 0, 1, 1, 0, "")
Ask = Callable[[Admin], Awaitable[Any]]

# What is called, the command and the control part that the broker gets, its answer, and what the caller gets.
CASES: list[tuple[Ask, Command, Call[Any] | Empty, Any, Any]] = [
    (lambda admin: admin.ping(), Command.PING, Empty(), Empty(), None),
    (
        lambda admin: admin.alter_topic("orders", lease_ms=5),
        Command.ALTER_TOPIC,
        AlterTopic("orders", {"lease_ms": 5}),
        TOPIC,
        TOPIC,
    ),
    (lambda admin: admin.delete_topic("orders"), Command.DELETE_TOPIC, DeleteTopic("orders"), Empty(), None),
    (lambda admin: admin.describe("orders"), Command.DESCRIBE_TOPIC, DescribeTopic("orders"), TOPIC, TOPIC),
    (
        lambda admin: admin.offsets("orders", datetime.fromtimestamp(2, UTC)),
        Command.OFFSETS,
        Offsets("orders", 2_000),
        OffsetsReply([PartitionOffsets(0, 1, 2)]),
        [PartitionOffsets(0, 1, 2)],
    ),
    (
        lambda admin: admin.offsets("orders"),
        Command.OFFSETS,
        Offsets("orders", -1),
        OffsetsReply([]),
        [],
    ),
    (
        lambda admin: admin.peek("orders", 2, partition=1, offset=3, after=(4, 1, 2)),
        Command.PEEK,
        Peek("orders", 1, 3, 2, 1 << 20, after=(4, 1, 2)),
        Peeked([PeekedMessage(1, 3, 9, 4, b"v", b"k")], (4, 1, 4)),
        [Message("orders", 1, 3, b"v", b"k", {}, 4, 9)],
    ),
    (lambda admin: admin.groups("orders"), Command.LIST_GROUPS, ListGroups("orders"), GroupsReply(["g"]), ["g"]),
    (lambda admin: admin.drop_group("orders", "g"), Command.DROP_GROUP, DropGroup("orders", "g"), Empty(), None),
    (
        lambda admin: admin.seek("orders", "g", to="latest", force=True),
        Command.SEEK,
        Seek("orders", "g", to="latest", force=True),
        Empty(),
        None,
    ),
    (
        lambda admin: admin.seek("orders", "g", offsets={0: 5}),
        Command.SEEK,
        Seek("orders", "g", {0: 5}),
        Empty(),
        None,
    ),
    (
        lambda admin: admin.seek("orders", "g", time=7),
        Command.SEEK,
        Seek("orders", "g", None, 7),
        Empty(),
        None,
    ),
    (
        lambda admin: admin.committed("orders", "g"),
        Command.COMMITTED,
        Committed("g", "orders"),
        CommittedReply({0: 4}),
        {0: 4},
    ),
    (
        lambda admin: admin.redrive("orders", "g"),
        Command.REDRIVE,
        RedriveDead("orders", "g"),
        CountReply(3),
        3,
    ),
    (
        lambda admin: admin.discard("orders", "g", partition=1, offsets=(2, 3)),
        Command.DISCARD,
        DiscardDead("orders", "g", 1, [2, 3]),
        CountReply(2),
        2,
    ),
    (
        lambda admin: admin.describe_partitions(),
        Command.DESCRIBE_PARTITIONS,
        DescribePartitions(None),
        PartitionsDescription([]),
        [],
    ),
    (
        lambda admin: admin.describe_partitions("orders"),
        Command.DESCRIBE_PARTITIONS,
        DescribePartitions("orders"),
        PartitionsDescription([]),
        [],
    ),
    (
        lambda admin: admin.drain("b1"),
        Command.CHANGE_CLUSTER,
        ChangeCluster("drain", broker="b1"),
        ClusterChanged(PLAN),
        PLAN,
    ),
    (
        lambda admin: admin.undrain("b1"),
        Command.CHANGE_CLUSTER,
        ChangeCluster("undrain", broker="b1"),
        ClusterChanged(),
        None,
    ),
    (
        lambda admin: admin.remove("b1"),
        Command.CHANGE_CLUSTER,
        ChangeCluster("remove", broker="b1"),
        ClusterChanged(PLAN),
        PLAN,
    ),
    (
        lambda admin: admin.rebalance(),
        Command.CHANGE_CLUSTER,
        ChangeCluster("rebalance"),
        ClusterChanged(PLAN),
        PLAN,
    ),
    (
        lambda admin: admin.move("orders", 2, "b1", "b2"),
        Command.CHANGE_CLUSTER,
        ChangeCluster("move", broker="b1", target="b2", topic="orders", partition=2),
        ClusterChanged(PLAN),
        PLAN,
    ),
    (
        lambda admin: admin.transfer("orders", 2, "b2"),
        Command.CHANGE_CLUSTER,
        ChangeCluster("transfer", target="b2", topic="orders", partition=2),
        ClusterChanged(),
        None,
    ),
    (
        lambda admin: admin.cancel(7),
        Command.CHANGE_CLUSTER,
        ChangeCluster("cancel", plan_id=7),
        ClusterChanged(PLAN),
        PLAN,
    ),
    (
        lambda admin: admin.raft_status("orders", 1, "b1"),
        Command.RAFT_STATUS,
        RaftStatus("orders", 1, "b1"),
        RaftStatusReply({"term": 3}),
        {"term": 3},
    ),
    (
        lambda admin: admin.alter_group("g", assignor="range", revoke_ms=9_000),
        Command.ALTER_GROUP,
        AlterGroup("g", "range", 0, 9_000),
        GroupAltered(1, 2),
        GroupAltered(1, 2),
    ),
    (
        lambda admin: admin.evict_member("g", "m1", reason="stuck"),
        Command.EVICT_MEMBER,
        EvictMember("g", "m1", "stuck"),
        Empty(),
        None,
    ),
    (
        lambda admin: admin.clients(group="g", after=("n1", 3), limit=5),
        Command.LIST_CLIENTS,
        ListClients("g", ("n1", 3), 5),
        ClientList([]),
        ClientList([]),
    ),
    (lambda admin: admin.clients(), Command.LIST_CLIENTS, ListClients(), ClientList([]), ClientList([])),
    (
        lambda admin: admin.transactions(open_only=True, after="a", limit=9),
        Command.LIST_TRANSACTIONS,
        ListTransactions("", True, "a", 9),
        TransactionList([]),
        TransactionList([]),
    ),
    (
        lambda admin: admin.clear_forgotten_transactions(),
        Command.FORGET,
        Forget([], hashes=True),
        CountReply(4),
        4,
    ),
]


@pytest.mark.parametrize("case", range(len(CASES)))
async def test_a_call_reaches_the_broker_as_it_was_meant_and_its_answer_the_caller(broker: Any, case: int) -> None:
    ask, command, expected, answer, told = CASES[case]
    broker.answers[command] = lambda control, request: answer
    async with lanner.connect(broker.address) as queue:
        assert await ask(queue.admin) == told
    assert broker.of(command) == [expected]


# ------------------------------------------------------------------ what is refused before it is asked

REFUSED: list[tuple[Ask, str]] = [
    (lambda admin: admin.seek("orders", "g"), "exactly one"),
    (lambda admin: admin.seek("orders", "g", to="latest", time=1), "exactly one"),
    (lambda admin: admin.redrive("orders", "g", offsets=[1]), "say which"),
    (lambda admin: admin.discard("orders", "g", offsets=[1]), "say which"),
    (lambda admin: admin.describe("no way"), "'no way' is not valid"),
    (lambda admin: admin.group("orders", "no way"), "'no way' is not valid"),
    (lambda admin: admin.create_topic("orders", partition=3), "partition"),
    (lambda admin: admin.group_members("no way"), "'no way' is not valid"),
    (lambda admin: admin.clients(group="no way"), "'no way' is not valid"),
    (lambda admin: admin.transaction("no way"), "'no way' is not valid"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
async def test_what_cannot_be_meant_is_refused_before_a_broker_is_asked(broker: Any, case: int) -> None:
    ask, why = REFUSED[case]
    async with lanner.connect(broker.address) as queue:
        before = len(broker.requests)
        with pytest.raises(ValidationError, match=why):
            await ask(queue.admin)
        assert len(broker.requests) == before


# ------------------------------------------------------------------ topics and dead letters


async def test_a_topic_that_is_there_is_described_where_that_is_fine_and_an_error_else(broker: Any) -> None:
    broker.answers[Command.CREATE_TOPIC] = lambda control, request: TopicExists("orders is there")
    broker.answers[Command.DESCRIBE_TOPIC] = lambda control, request: TOPIC
    async with lanner.connect(broker.address) as queue:
        assert await queue.admin.create_topic("orders", exist_ok=True) == TOPIC
        with pytest.raises(TopicExists):
            await queue.admin.create_topic("orders")


async def test_a_topic_is_made_under_an_id_of_its_own(broker: Any) -> None:
    broker.answers[Command.CREATE_TOPIC] = lambda control, request: TOPIC
    async with lanner.connect(broker.address) as queue:
        for _ in range(2):
            assert await queue.admin.create_topic("orders", partitions=3) == TOPIC
    first, second = broker.of(Command.CREATE_TOPIC)
    assert first.settings == {"partitions": 3} and first.create_id != second.create_id


async def test_topics_are_listed_by_name(broker: Any) -> None:
    named = [TopicInfo(name, 1, []) for name in ("refunds", "orders")]
    broker.answers[Command.METADATA] = lambda control, request: MetadataReply("c", [], named)
    async with lanner.connect(broker.address) as queue:
        assert await queue.admin.topics() == ["orders", "refunds"]


async def test_a_group_is_described_with_the_ages_of_its_messages(broker: Any) -> None:
    found = GroupDescription("orders", "g", "queue", [])
    broker.answers[Command.DESCRIBE_GROUP] = lambda control, request: found
    async with lanner.connect(broker.address) as queue:
        assert await queue.admin.group("orders", "g") == found


async def test_a_commit_of_nothing_asks_nobody(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        await queue.admin.commit("orders", "g", {})
        assert broker.of(Command.COMMIT) == []
        await queue.admin.commit("orders", "g", {0: 3})
        await queue.admin.commit("orders", "g", {0: 4})
    first, second = broker.of(Command.COMMIT)
    assert (first.group, first.topic, first.offsets) == ("g", "orders", {0: 3})
    assert first.reader == second.reader and second.sequence == first.sequence + 1


async def test_dead_letters_bring_their_messages_where_these_are_still_there(broker: Any) -> None:
    data = encode([b"lost"], keys=[b"k"], priority=2)
    letters = [DeadLetter(0, 4, 2, 3, "too often", 99, 50, len(data)), DeadLetter(1, 5, 2, 3, "rejected", 98, 51, 0)]
    broker.answers[Command.LIST_DEAD] = lambda control, request: (DeadLetters(letters, 9, (1, 6)), [data])
    async with lanner.connect(broker.address) as queue:
        found = await queue.admin.dead_letters("orders", "g", start_offset=1, limit=2, after=(0, 3))
    assert broker.of(Command.LIST_DEAD) == [ListDead("orders", "g", None, 1, 2, after=(0, 3))]
    assert (found.total, found.next) == (9, (1, 6))
    first, second = found.letters
    assert first.message is not None
    assert (first.message.value, first.message.key, first.message.offset) == (b"lost", b"k", 4)
    assert (first.message.priority, first.message.timestamp_ms, first.message.attempt) == (2, 50, 3)
    assert (second.message, second.reason, second.offset) == (None, "rejected", 5)


async def test_an_upgrade_tells_the_level_that_the_cluster_is_at_then(broker: Any) -> None:
    broker.answers[Command.CHANGE_CLUSTER] = lambda control, request: ClusterChanged()
    broker.answers[Command.DESCRIBE_CLUSTER] = lambda control, request: CLUSTER
    async with lanner.connect(broker.address) as queue:
        assert await queue.admin.upgrade() == 5


# ------------------------------------------------------------------ what one broker alone can answer


def known_brokers(broker: Any, *brokers: BrokerInfo) -> None:
    broker.answers[Command.METADATA] = lambda control, request: MetadataReply("c", list(brokers), [])


async def test_the_broker_itself_is_asked_to_read_its_disk(broker: Any) -> None:
    host, _, port = broker.address.partition(":")
    known_brokers(broker, BrokerInfo("n1", host, int(port), "b1"))
    progress = ScrubProgress(True, 0, 1, 2, 3, 0)
    broker.answers[Command.SCRUB] = lambda control, request: progress
    async with lanner.connect(broker.address) as queue:
        assert await queue.admin.scrub("b1") == progress
        assert await queue.admin.scrub_progress("n1") == progress
        broker.answers[Command.SCRUB] = lambda control, request: ServiceUnavailable("it is stopping")
        with pytest.raises(ServiceUnavailable, match="it is stopping"):
            await queue.admin.scrub("b1")
    assert [astuple(one) for one in broker.of(Command.SCRUB)] == [(True,), (False,), (True,)]
    assert isinstance(broker.of(Command.SCRUB)[0], Scrub)


async def test_a_broker_that_nobody_knows_is_not_asked(broker: Any) -> None:
    host, _, port = broker.address.partition(":")
    known_brokers(broker, BrokerInfo("n1", host, int(port), "b1"))
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(NotFoundError, match="there is no broker 'b9'; there are: b1"):
            await queue.admin.scrub("b9")


# ------------------------------------------------------------------ members


def member(number: int) -> MemberState:
    return MemberState(f"m{number}", number, "", "", "", "", 30_000, 1, 1, [], [])


@pytest.mark.parametrize(("limit", "shown", "asked"), [(250, 230, [0, 100, 200]), (150, 150, [0, 100]), (1, 1, [0])])
async def test_members_are_listed_page_by_page_up_to_a_limit(
    broker: Any, limit: int, shown: int, asked: list[int]
) -> None:
    def page(control: Any, request: Any) -> GroupMembers:
        last = min(230, control.after + control.limit)
        members = [member(number) for number in range(control.after + 1, last + 1)]
        following = last if last < 230 else 0
        return GroupMembers("g", 1, "queue", "sticky", 2, 30_000, 9_000, "settled", 230, 0, members, next=following)

    broker.answers[Command.LIST_MEMBERS] = page
    async with lanner.connect(broker.address) as queue:
        found = await queue.admin.group_members("g", limit=limit)
    assert [one.number for one in found.members] == list(range(1, shown + 1))
    assert [one.after for one in broker.of(Command.LIST_MEMBERS)] == asked
    assert isinstance(broker.of(Command.LIST_MEMBERS)[0], ListMembers)


async def test_a_group_without_members_is_an_error(broker: Any) -> None:
    broker.answers[Command.LIST_MEMBERS] = lambda control, request: GroupNotFound("no such group")
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(GroupNotFound):
            await queue.admin.group_members("g")


# ------------------------------------------------------------------ transactions that are stuck

COMMIT_ID = b"c" * 16


def transaction(phase: CommitPhase | None) -> TransactionState:
    begun = None if phase is None else OpenTry(77, 5, COMMIT_ID, int(phase), 1, 2, 0, 3)
    return TransactionState("billing", "nightly", False, 1, [(0, 4)], [], begun)


def stuck(broker: Any, *rows: TransactionState) -> None:
    broker.answers[Command.LIST_TRANSACTIONS] = lambda control, request: TransactionList(list(rows))
    broker.answers[Command.END] = lambda control, request: CommitState(CommitPhase.ABORTED, 77, "operator")


async def test_a_try_that_is_not_decided_is_aborted_in_the_name_of_its_owner(broker: Any) -> None:
    stuck(broker, transaction(CommitPhase.PREPARING))
    async with lanner.connect(broker.address) as queue:
        assert (await queue.admin.abort_transaction("billing")).phase == CommitPhase.ABORTED
    assert broker.of(Command.END) == [End("billing", "nightly", COMMIT_ID)]


async def test_a_try_that_is_committed_is_not_aborted(broker: Any) -> None:
    stuck(broker, transaction(CommitPhase.COMMITTED))
    async with lanner.connect(broker.address) as queue:
        assert await queue.admin.abort_transaction("billing") == CommitState(CommitPhase.COMMITTED, 77)
    assert broker.of(Command.END) == []


@pytest.mark.parametrize(
    ("rows", "ask", "error", "why"),
    [
        ((), lambda admin: admin.transaction("billing"), NotFoundError, "there is no transaction 'billing'"),
        ((transaction(None),), lambda admin: admin.abort_transaction("billing"), NotFoundError, "no commit under way"),
        (
            (transaction(CommitPhase.PREPARING),),
            lambda admin: admin.forget_transaction("billing"),
            TransactionBusy,
            "abort it, or wait",
        ),
        ((transaction(None),), lambda admin: admin.forget_transaction("billing"), TransactionBusy, "a moment ago"),
    ],
)
async def test_what_cannot_be_done_about_a_transaction_is_said(
    broker: Any, rows: tuple[TransactionState, ...], ask: Ask, error: type[LannerError], why: str
) -> None:
    stuck(broker, *rows)
    broker.answers[Command.FORGET] = lambda control, request: CountReply(0)
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(error, match=why):
            await ask(queue.admin)


async def test_a_transaction_at_rest_is_forgotten(broker: Any) -> None:
    stuck(broker, transaction(None))
    broker.answers[Command.FORGET] = lambda control, request: CountReply(1)
    async with lanner.connect(broker.address) as queue:
        assert await queue.admin.transaction("billing") == transaction(None)
        await queue.admin.forget_transaction("billing")
    assert broker.of(Command.FORGET) == [Forget(["billing"])]
