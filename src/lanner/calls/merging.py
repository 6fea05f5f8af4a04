"""How a call over several brokers is split, and how their answers become one. Pure: parts in, an answer out.

A page of several brokers comes in the order that one broker would have given. A broker whose page was cut says where it
goes on; what the others have behind that place waits for the next page, or the order would have a gap that nobody could
find again. Of settles, parts come in the order answered: a later one replaces an earlier one about the same partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from lanner import limits
from lanner.calls.asking import Answer
from lanner.calls.rows import CallT, Part
from lanner.errors import BadGateway, LannerError, NotLeader, NotSupported, ServiceUnavailable, ValidationError
from lanner.wire.administration import (
    CountReply,
    DeadLetter,
    DeadLetters,
    DescribeGroup,
    DescribeTopic,
    DiscardDead,
    GroupDescription,
    GroupsReply,
    ListDead,
    ListGroups,
    RedriveDead,
    Seek,
    TopicDescription,
)
from lanner.wire.cluster import PartitionsDescription
from lanner.wire.members import ClaimedPartitions, ClaimPartitions
from lanner.wire.messages import (
    Commit,
    Committed,
    CommittedReply,
    Fetch,
    Fetched,
    Offsets,
    OffsetsReply,
    Peek,
    Peeked,
    PeekedMessage,
    Release,
    Settle,
    Settled,
    SettledItem,
)

# Another broker may answer these calls, or the same one a moment later.
UNANSWERED: Final = (NotLeader, BadGateway, ServiceUnavailable)
_UNANSWERED_CODES: Final = frozenset(kind.code for kind in UNANSWERED)

SettleT = TypeVar("SettleT", Settle, Release)
OneOrManyT = TypeVar("OneOrManyT", Peek, ListDead, RedriveDead, DiscardDead)
LookPlace = tuple[int, int, int]


class Room:
    """How much more goes into a reply."""

    __slots__ = ("is_empty", "left_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.left_bytes = bytes_max
        self.is_empty = True  # nothing has been put in yet

    def has(self, size: int) -> bool:
        return size <= self.left_bytes

    def take(self, size: int) -> None:
        self.left_bytes -= size
        self.is_empty = False


def cut(bulk: memoryview, sizes: Iterable[int]) -> Iterator[memoryview]:
    """The pieces of a reply's bulk; more than it has is the other broker's fault."""
    position = 0
    for size in sizes:
        if not 0 <= size <= len(bulk) - position:
            raise BadGateway("the other broker announced more bytes than it sent")
        yield bulk[position : position + size]
        position += size


# ------------------------------------------------------------------ settles


def settle_partitions(call: Settle | Release) -> Sequence[int]:
    return [item.partition for item in call.items]


def settle_narrow(call: SettleT, mine: Sequence[int]) -> SettleT:
    chosen = frozenset(mine)
    return replace(call, items=[item for item in call.items if item.partition in chosen])


def settle_open(call: Settle | Release, settled: Settled) -> Sequence[int]:
    """The partitions that a broker did not lead, or lost while it decided."""
    pairs = zip(call.items, settled.items, strict=True)
    return list(dict.fromkeys(item.partition for item, result in pairs if result.code in _UNANSWERED_CODES))


def settle_missed(call: Settle | Release, why: Mapping[int, LannerError]) -> Answer[Settled]:
    """Items that nobody took until the deadline say so by their own codes; the others took effect all the same."""
    return Answer(Settled([SettledItem(why[item.partition].code, 0) for item in call.items]))


def settle_merge(call: SettleT, parts: Sequence[Part[SettleT, Settled]]) -> Answer[Settled]:
    by_partition: dict[int, list[SettledItem]] = {}
    for part in parts:
        latest: dict[int, list[SettledItem]] = {}
        for item, result in zip(part.call.items, part.answer.control.items, strict=True):
            latest.setdefault(item.partition, []).append(result)
        by_partition |= latest
    turns = {partition: iter(results) for partition, results in by_partition.items()}
    return Answer(Settled([next(turns[item.partition]) for item in call.items]))


# ------------------------------------------------------------------ streams


def fetch_merge(call: Fetch, parts: Sequence[Part[Fetch, Fetched]]) -> Answer[Fetched]:
    answer = parts[0].answer
    if answer.control.lanes != call.lanes:
        raise NotSupported(
            f"the broker that leads {call.topic}/{call.partition} cannot read some priorities only: upgrade it"
        )
    return answer


def commit_partitions(call: Commit) -> Sequence[int]:
    return list(call.offsets)


def commit_narrow(call: Commit, mine: Sequence[int]) -> Commit:
    metadata = {partition: call.metadata[partition] for partition in mine if partition in call.metadata}
    return replace(call, offsets={partition: call.offsets[partition] for partition in mine}, metadata=metadata)


def commit_identify(call: Commit, name: str, number: int) -> Commit:
    """What is asked again must not undo what came since."""
    return call if call.reader else replace(call, reader=name, sequence=number)


def committed_merge(call: Committed, parts: Sequence[Part[Committed, CommittedReply]]) -> Answer[CommittedReply]:
    offsets = sorted(item for part in parts for item in part.answer.control.offsets.items())
    metadata = sorted(item for part in parts for item in part.answer.control.metadata.items())
    return Answer(CommittedReply(dict(offsets), dict(metadata)))


def claimed_merge(
    call: ClaimPartitions, parts: Sequence[Part[ClaimPartitions, ClaimedPartitions]]
) -> Answer[ClaimedPartitions]:
    found = [one for part in parts for one in part.answer.control.partitions]
    return Answer(ClaimedPartitions(sorted(found, key=lambda one: one.partition)))


def offsets_merge(call: Offsets, parts: Sequence[Part[Offsets, OffsetsReply]]) -> Answer[OffsetsReply]:
    found = sorted((one for part in parts for one in part.answer.control.partitions), key=lambda one: one.partition)
    return Answer(OffsetsReply(found, max(part.answer.control.incarnation for part in parts)))


# ------------------------------------------------------------------ one partition, several, or all


def chosen_partitions(call: Peek | ListDead | RedriveDead | DiscardDead) -> Sequence[int] | None:
    """One partition, or several that the asker knows to be led here; None: all."""
    return call.partitions if call.partition is None else [call.partition]


def dead_partitions(call: RedriveDead | DiscardDead) -> Sequence[int] | None:
    found = chosen_partitions(call)
    if call.offsets is not None and (found is None or len(found) != 1):
        raise ValidationError("offsets need the partition they belong to", field="partition")
    return found


def chosen_narrow(call: OneOrManyT, mine: Sequence[int]) -> OneOrManyT:
    return replace(call, partition=None, partitions=list(mine))


def peek_merge(call: Peek, parts: Sequence[Part[Peek, Peeked]]) -> Answer[Peeked]:
    """The most urgent first, then by partition; each broker gave its own in this order."""
    pages = [part.answer.control for part in parts]
    found = sorted((message for page in pages for message in page.messages), key=_look_order)
    following = min((page.next for page in pages if page.next is not None), key=_place_order, default=None)
    room = Room(min(call.max_bytes, limits.LIST_BYTES_MAX))
    messages: list[PeekedMessage] = []
    for message in found:
        size = len(message.value) + len(message.key or b"") + sum(len(value) for value in message.headers.values())
        if following is not None and _look_order(message) > _place_order(following):
            break
        if len(messages) >= call.max_messages or (not room.has(size) and not room.is_empty):
            following = (message.priority, message.partition, message.offset)
            break
        room.take(size)
        messages.append(message)
    return Answer(Peeked(messages, following))


def _look_order(message: PeekedMessage) -> tuple[int, int]:
    return -message.priority, message.partition


def _place_order(place: LookPlace) -> tuple[int, int]:
    return -place[0], place[1]


def letters_merge(call: ListDead, parts: Sequence[Part[ListDead, DeadLetters]]) -> Answer[DeadLetters]:
    """By partition and offset."""
    pages = [part.answer.control for part in parts]
    found: list[tuple[DeadLetter, bytes | memoryview]] = sorted(
        (pair for part in parts for pair in zip(part.answer.control.letters, part.answer.bulk, strict=True)),
        key=lambda pair: (pair[0].partition, pair[0].offset),
    )
    following = min((page.next for page in pages if page.next is not None), default=None)
    letters: list[DeadLetter] = []
    bulk: list[bytes | memoryview] = []
    room = Room(limits.LIST_BYTES_MAX)
    for letter, data in found:
        place = (letter.partition, letter.offset)
        if following is not None and place >= following:
            break
        if len(letters) >= call.limit or (not room.has(len(data)) and not room.is_empty):
            following = place
            break
        room.take(len(data))
        letters.append(letter)
        bulk.append(data)
    return Answer(DeadLetters(letters, sum(page.total for page in pages), following), bulk)


def count_merge(call: object, parts: Sequence[Part[CallT, CountReply]]) -> Answer[CountReply]:
    return Answer(CountReply(sum(part.answer.control.count for part in parts)))


# ------------------------------------------------------------------ topics and groups


def topic_merge(
    call: DescribeTopic, parts: Sequence[Part[DescribeTopic, TopicDescription]]
) -> Answer[TopicDescription]:
    latest = max((part.answer.control for part in parts), key=lambda one: one.incarnation)
    states = sorted((one for part in parts for one in part.answer.control.partitions), key=lambda one: one.id)
    return Answer(replace(latest, partitions=states))


def groups_merge(call: ListGroups, parts: Sequence[Part[ListGroups, GroupsReply]]) -> Answer[GroupsReply]:
    return Answer(GroupsReply(sorted({name for part in parts for name in part.answer.control.groups})))


def group_merge(
    call: DescribeGroup, parts: Sequence[Part[DescribeGroup, GroupDescription]]
) -> Answer[GroupDescription]:
    states = sorted((one for part in parts for one in part.answer.control.partitions), key=lambda one: one.partition)
    return Answer(GroupDescription(call.topic, call.group, parts[0].answer.control.kind, states))


def seek_partitions(call: Seek) -> Sequence[int] | None:
    return call.partitions if call.offsets is None else list(call.offsets)


def seek_narrow(call: Seek, mine: Sequence[int]) -> Seek:
    if call.offsets is None:
        return replace(call, partitions=list(mine))
    return replace(call, offsets={partition: call.offsets[partition] for partition in mine})


def partitions_merge(seen: PartitionsDescription, told: Mapping[str, PartitionsDescription]) -> PartitionsDescription:
    """Where replicas are, as one broker sees it, with what others alone know, by the node ids of those: how far behind
    the followers of what they lead are, and why their own replicas do not run."""
    lags: dict[tuple[int, int], int] = {}
    stopped: dict[tuple[int, int], str] = {}
    for node_id, report in told.items():
        for row in report.partitions:
            for replica in row.replicas:
                if row.leader == node_id and replica.lag is not None:
                    lags[row.set_id, replica.replica_id] = replica.lag
                if replica.node_id == node_id and replica.stopped:
                    stopped[row.set_id, replica.replica_id] = replica.stopped
    rows = []
    for row in seen.partitions:
        keys = [(row.set_id, replica.replica_id) for replica in row.replicas]
        replicas = [
            replace(replica, lag=lags.get(key, replica.lag), stopped=stopped.get(key, replica.stopped))
            for key, replica in zip(keys, row.replicas, strict=True)
        ]
        rows.append(replace(row, replicas=replicas))
    return PartitionsDescription(rows)
