"""How calls are split over brokers and their answers put together, without a broker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lanner.calls import Answer, Part, row_of
from lanner.calls.merging import (
    Room,
    commit_identify,
    cut,
    dead_partitions,
    fetch_merge,
    letters_merge,
    partitions_merge,
    peek_merge,
    settle_merge,
    settle_missed,
    settle_narrow,
    settle_open,
    topic_merge,
)
from lanner.errors import BadGateway, NotLeader, NotSupported, ServiceUnavailable, ValidationError
from lanner.wire.administration import (
    CountReply,
    DeadLetter,
    DeadLetters,
    DescribeGroup,
    DescribeTopic,
    DiscardDead,
    GroupDescription,
    GroupPartition,
    GroupsReply,
    ListDead,
    ListGroups,
    PartitionState,
    RedriveDead,
    Seek,
    TopicDescription,
)
from lanner.wire.cluster import PartitionReplicas, PartitionsDescription, ReplicaState
from lanner.wire.messages import (
    Commit,
    Committed,
    CommittedReply,
    Fetch,
    Fetched,
    Offsets,
    OffsetsReply,
    PartitionOffsets,
    Peek,
    Peeked,
    PeekedMessage,
    Settle,
    Settled,
    SettledItem,
    SettleItem,
)


def settle(*partitions: int) -> Settle:
    return Settle("g", "t", [SettleItem(number, 7, place, 1, 1) for place, number in enumerate(partitions)])


def test_settles_are_split_by_partition_and_their_results_come_back_in_order() -> None:
    call = settle(0, 1, 0, 2, 1)
    first, second = settle_narrow(call, [0, 2]), settle_narrow(call, [1])
    assert [item.first_offset for item in first.items] == [0, 2, 3]
    parts = [
        Part(second, Answer(Settled([SettledItem(0, 11), SettledItem(0, 14)]))),
        Part(first, Answer(Settled([SettledItem(0, 10), SettledItem(0, 12), SettledItem(0, 13)]))),
    ]
    assert [item.count for item in settle_merge(call, parts).control.items] == [10, 11, 12, 13, 14]


def test_of_settles_that_were_asked_again_the_later_answer_counts() -> None:
    call = settle(0, 1)
    parts = [
        Part(call, Answer(Settled([SettledItem(0, 1), SettledItem(NotLeader.code, 0)]))),
        Part(settle_narrow(call, [1]), Answer(Settled([SettledItem(0, 1)]))),
    ]
    assert settle_open(call, parts[0].answer.control) == [1]
    assert settle_merge(call, parts).control == Settled([SettledItem(0, 1)] * 2)


def test_settles_that_nobody_took_say_each_why() -> None:
    missed = settle_missed(settle(0, 1, 0), {0: NotLeader(), 1: BadGateway()})
    assert [item.code for item in missed.control.items] == [NotLeader.code, BadGateway.code, NotLeader.code]
    assert settle_open(settle(3), Settled([SettledItem(ServiceUnavailable.code, 0)])) == [3]


def test_the_bulk_of_a_reply_is_cut_and_never_beyond_its_end() -> None:
    bulk = memoryview(b"onetwo")
    assert [bytes(piece) for piece in cut(bulk, [3, 0, 3])] == [b"one", b"", b"two"]
    for sizes in ([7], [3, 4], [-1]):
        with pytest.raises(BadGateway):
            list(cut(bulk, sizes))


def test_a_room_takes_what_fits() -> None:
    room = Room(10)
    assert room.is_empty and room.has(10) and not room.has(11)
    room.take(4)
    assert not room.is_empty and room.left_bytes == 6


def test_a_broker_that_knows_no_lanes_is_told_from_one_that_does() -> None:
    call = Fetch("t", 0, 0, lanes=3)
    known = Answer(Fetched(0, 0, 0, [], lanes=3))
    assert fetch_merge(call, [Part(call, known)]) is known
    with pytest.raises(NotSupported, match="upgrade"):
        fetch_merge(call, [Part(call, Answer(Fetched(0, 0, 0, [])))])


def test_a_commit_is_narrowed_and_gets_an_identity_only_when_it_has_none() -> None:
    row, call = row_of(Commit("g", "t", {})), Commit("g", "t", {0: 5, 1: 6, 2: 7})
    assert list(row.partitions(call) or ()) == [0, 1, 2]
    assert row.narrow(call, [0, 2]) == Commit("g", "t", {0: 5, 2: 7})
    assert commit_identify(call, "door", 4) == Commit("g", "t", {0: 5, 1: 6, 2: 7}, "door", 4)
    own = Commit("g", "t", {0: 5}, "reader", 1)
    assert commit_identify(own, "door", 4) is own


def test_a_seek_by_offsets_keeps_them_and_any_other_names_its_partitions() -> None:
    row = row_of(Seek("t", "g"))
    by_offset, to_end = Seek("t", "g", {0: 1, 1: 2}), Seek("t", "g", to="latest")
    assert list(row.partitions(by_offset) or ()) == [0, 1] and row.partitions(to_end) is None
    assert row.narrow(by_offset, [1]) == Seek("t", "g", {1: 2})
    assert row.narrow(to_end, [1]) == Seek("t", "g", to="latest", partitions=[1])
    assert not row.absent(by_offset) and row.absent(to_end)


@pytest.mark.parametrize("kind", [RedriveDead, DiscardDead])
def test_offsets_of_dead_letters_belong_to_one_partition(kind: type[RedriveDead] | type[DiscardDead]) -> None:
    assert dead_partitions(kind("t", "g", 3, [1])) == [3]
    assert dead_partitions(kind("t", "g", None, [1], [3])) == [3]
    assert dead_partitions(kind("t", "g")) is None
    for call in (kind("t", "g", None, [1]), kind("t", "g", None, [1], [0, 1])):
        with pytest.raises(ValidationError, match="partition they belong to"):
            dead_partitions(call)
    row = row_of(kind("t", "g"))
    assert row.narrow(kind("t", "g", 3, [1]), [3]) == kind("t", "g", None, [1], [3])
    call = kind("t", "g")
    assert row.merge(call, [Part(call, Answer(CountReply(2))), Part(call, Answer(CountReply(3)))]).control.count == 5


def looked(*places: tuple[int, int], following: tuple[int, int, int] | None = None) -> Part[Peek, Peeked]:
    shown = [PeekedMessage(partition, 0, 1, priority, b"12345") for priority, partition in places]
    return Part(Peek("t"), Answer(Peeked(shown, following)))


def peeked(parts: Sequence[Part[Peek, Peeked]], messages: int, size: int) -> Peeked:
    return peek_merge(Peek("t", None, 0, messages, size), parts).control


def test_merged_looks_go_on_where_the_first_broker_ended() -> None:
    parts = [looked((9, 0), (4, 0), following=(4, 0, 7)), looked((9, 1), (4, 1), (0, 1))]
    merged = peeked(parts, 100, 1_000)
    assert [(one.priority, one.partition) for one in merged.messages] == [(9, 0), (9, 1), (4, 0)]
    assert merged.next == (4, 0, 7), "what the second has behind that place waits for the next page"


def test_merged_looks_are_bounded_by_messages_and_bytes_and_one_always_fits() -> None:
    parts = [looked((9, 0), (4, 0)), looked((9, 1))]
    assert peeked(parts, 2, 1_000).next == (4, 0, 0)
    assert len(peeked(parts, 100, 12).messages) == 2
    assert len(peeked(parts, 100, 1).messages) == 1
    assert peeked(parts, 3, 1_000).next is None


def letters(
    *places: tuple[int, int], total: int = 0, following: tuple[int, int] | None = None
) -> Part[ListDead, DeadLetters]:
    found = [DeadLetter(partition, offset, 4, 5, "", 1, 1, 1) for partition, offset in places]
    return Part(ListDead("t", "g"), Answer(DeadLetters(found, total, following), [b"x"] * len(found)))


def test_merged_letters_go_on_where_the_first_broker_ended() -> None:
    parts = [letters((0, 1), (2, 1), total=9, following=(2, 5)), letters((1, 1), (3, 1), total=2)]
    merged = letters_merge(ListDead("t", "g", limit=10), parts)
    assert [(one.partition, one.offset) for one in merged.control.letters] == [(0, 1), (1, 1), (2, 1)]
    assert (merged.control.total, merged.control.next, list(merged.bulk)) == (11, (2, 5), [b"x"] * 3)
    assert letters_merge(ListDead("t", "g", limit=2), parts).control.next == (2, 1)


def test_what_brokers_say_of_their_partitions_comes_in_the_order_of_these() -> None:
    offsets = Offsets("t")
    found = row_of(offsets).merge(
        offsets,
        [
            Part(offsets, Answer(OffsetsReply([PartitionOffsets(2, 0, 5)], 3))),
            Part(offsets, Answer(OffsetsReply([PartitionOffsets(0, 1, 6)], 4))),
        ],
    )
    assert found.control == OffsetsReply([PartitionOffsets(0, 1, 6), PartitionOffsets(2, 0, 5)], 4)
    committed = Committed("g", "t")
    merged = row_of(committed).merge(
        committed,
        [Part(committed, Answer(CommittedReply({2: 1}))), Part(committed, Answer(CommittedReply({0: 4})))],
    )
    assert list(merged.control.offsets.items()) == [(0, 4), (2, 1)]
    groups = ListGroups("t")
    names = row_of(groups).merge(
        groups, [Part(groups, Answer(GroupsReply(["b", "a"]))), Part(groups, Answer(GroupsReply(["b"])))]
    )
    assert names.control.groups == ["a", "b"]


def test_a_topic_and_a_group_are_described_by_all_their_leaders() -> None:
    topic = DescribeTopic("t")
    old = TopicDescription("t", 1, {"lease_ms": 1}, [PartitionState(1, "b", 0, 0, 0, 0, 0)])
    new = TopicDescription("t", 2, {"lease_ms": 2}, [PartitionState(0, "a", 0, 0, 0, 0, 0)])
    merged = topic_merge(topic, [Part(topic, Answer(old)), Part(topic, Answer(new))]).control
    assert (merged.incarnation, merged.settings) == (2, {"lease_ms": 2})
    assert [state.leader for state in merged.partitions] == ["a", "b"]
    group = DescribeGroup("t", "g")
    states = [GroupPartition(number, 0, 0, 0, 0, 0, 0) for number in (1, 0)]
    parts = [Part(group, Answer(GroupDescription("t", "g", "queue", [state]))) for state in states]
    assert row_of(group).merge(group, parts).control == GroupDescription("t", "g", "queue", states[::-1])


def test_what_others_alone_know_of_replicas_is_put_into_what_one_broker_sees() -> None:
    def described(lag: int | None, stopped: str = "", leader: str = "b") -> PartitionsDescription:
        replicas = [
            ReplicaState(1, "a", "a", "voter", False, False, lag),
            ReplicaState(2, "b", "b", "voter", True, True, None, "", stopped),
        ]
        return PartitionsDescription([PartitionReplicas(5, "t", 0, leader, 2, replicas)])

    merged = partitions_merge(described(None), {"b": described(17, "broken"), "c": described(99)})
    told = merged.partitions[0].replicas
    assert [one.lag for one in told] == [17, None], "who does not lead knows nothing of lags"
    assert [one.stopped for one in told] == ["", "broken"]
    assert partitions_merge(described(3), {}) == described(3)
