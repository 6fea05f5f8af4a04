"""The control parts of the native protocol, one struct each.

A struct travels as a msgpack array in the order of its fields. A later version may add fields at the end, with
defaults: an older peer ignores what it does not know, a newer one fills in what is missing. Fields are never removed
or reordered. Bulk bytes (batches) are not here: they follow the control part, and the structs say how they divide.

What a request may hold is bounded by the types of its fields, so that no number, name or list reaches a broker that
could not be meant. What makes sense beyond that (does the topic exist?) is the service's business.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Final, Generic, TypeVar, dataclass_transform

import msgspec
from msgspec import Meta

from lanner import limits
from lanner.model import LANES, Message
from lanner.wire.commands import Command as Command

PROTOCOL_VERSION: Final = 1
REPLY: Final = 0x80  # a reply carries the command of its request with this bit set
ERROR: Final = 0xFF  # or this, with an ErrorReply

Name = Annotated[str, Meta(max_length=limits.NAME_LENGTH_MAX)]
Id = Annotated[str, Meta(max_length=limits.IDENTITY_LENGTH_MAX)]
Address = Annotated[str, Meta(max_length=limits.ADDRESS_LENGTH_MAX)]
PartitionId = Annotated[int, Meta(ge=0, lt=limits.PARTITIONS_MAX)]
Partitions = Annotated[list[PartitionId], Meta(max_length=limits.POLL_PARTITIONS_MAX)]  # all led where it is asked
Number = Annotated[int, Meta(ge=0, le=limits.OFFSET_MAX)]  # offsets, tokens, counts, times, bytes
NumberOrNone = Annotated[int, Meta(ge=-1, le=limits.OFFSET_MAX)]  # -1: not given
LaneMask = Annotated[int, Meta(ge=0, lt=1 << LANES)]
MetadataByPartition = Annotated[
    dict[PartitionId, Annotated[bytes, Meta(max_length=limits.COMMIT_METADATA_BYTES_MAX)]],
    Meta(max_length=limits.PARTITIONS_MAX),
]
OffsetsByPartition = Annotated[dict[PartitionId, Number], Meta(max_length=limits.PARTITIONS_MAX)]


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _ControlType(msgspec.StructMeta):
    """Tells type checkers what msgspec does anyway: whatever inherits from a frozen struct is frozen."""


class Control(msgspec.Struct, metaclass=_ControlType, array_like=True, frozen=True, gc=False):
    """What every control part is."""


AnswerT = TypeVar("AnswerT", bound=Control)
AnswerT_co = TypeVar("AnswerT_co", bound=Control, covariant=True)


class Asked(Control, Generic[AnswerT_co]):
    """A request that names the struct of its answer."""


class Call(Asked[AnswerT_co], Generic[AnswerT_co]):
    """One that a broker serves for its callers: `class Settle(Call["Settled"])`."""


AnyCall = Call[Control]


class Empty(Asked["Empty"]):
    """A control part with nothing to say (PING, replies that only confirm)."""


class ErrorReply(Control):
    code: int
    message: str
    details: dict[str, Any] = {}


# ------------------------------------------------------------------ session


class PeerHello(Control):
    """A broker that connects to another says who it is; only then are the commands between brokers taken from it."""

    cluster_id: Name
    node_id: Name
    name: Name
    address: Address  # where its own native door is reached
    bulk: bool = False  # entries and snapshots; else heartbeats, votes and calls


class Hello(Control):
    versions: Annotated[list[int], Meta(max_length=100)]
    client: Name = ""
    token: str = ""
    peer: PeerHello | None = None


class HelloReply(Control):
    version: int
    cluster_id: str
    node_id: str
    broker: str  # software and version
    frame_bytes_max: int
    inflight_max: int


class Metadata(Call["MetadataReply"]):
    topics: Annotated[list[Name], Meta(max_length=limits.TOPICS_MAX)] | None = None  # None: every topic
    create: bool = False  # make the missing ones, where the broker allows it


class BrokerInfo(Control):
    node_id: str
    host: str
    port: int
    name: str = ""
    rack: str = ""
    http: str = ""  # HOST:PORT of its REST door; empty: none


class PartitionInfo(Control):
    id: int
    leader: str  # node id; empty while there is none
    replicas: list[str] = []


class TopicInfo(Control):
    name: str
    incarnation: int
    partitions: list[PartitionInfo]
    settings: dict[str, Any] = {}
    error: int = 0  # catalogue code; 0: none


class MetadataReply(Control):
    cluster_id: str
    brokers: list[BrokerInfo]
    topics: list[TopicInfo]
    index: int = 0  # how far this broker has applied the metadata


class OpenProducer(Call["ProducerOpened"]):
    """Give out a producer id that nobody had before."""


class ProducerOpened(Control):
    producer_id: int
    epoch: int = 0


# ------------------------------------------------------------------ data


class Publish(Call["Published"]):
    """Bulk: exactly one encoded batch."""

    topic: Name
    partition: PartitionId
    incarnation: Number = 0  # 0: whatever topic has this name now


class Published(Control):
    base_offset: int
    append_ms: int
    count: int
    duplicate: bool = False
    durability: str = "synced"


class Fetch(Call["Fetched"]):
    topic: Name
    partition: PartitionId
    offset: Number
    max_bytes: Number = 1 << 20
    wait_ms: Number = 0  # wait so long for something at `offset` when it is the end; a follower never waits
    incarnation: Number = 0
    lanes: LaneMask = 0  # bit n: batches of priority n; 0: of every priority
    follower: bool = False  # a follower may answer too, with what it has applied
    group: Name = ""  # of the member that reads
    member_id: Id = ""  # of a member of the group; empty: the caller has not joined it. From feature level 5 on
    number: Number = 0  # of the group, and
    generation: Number = 0  # of the newest view that the member has seen


class FetchedBatch(Control):
    base_offset: int
    count: int  # offsets base_offset .. base_offset + count - 1, also when the bytes are an extract of fewer
    append_ms: int
    size: int  # bytes of this batch in the bulk part


class Fetched(Control):
    """Bulk: the batches one after the other. The first may begin before the offset asked for: skip into it."""

    first_offset: int  # the earliest that the partition still holds
    end_offset: int  # one past the latest
    next_offset: int  # ask for this next; more than the end of the last batch when something was left out behind it
    batches: list[FetchedBatch]
    incarnation: int = 0
    damaged: list[tuple[int, int]] = []  # first and next offset of batches of which no whole copy is left
    lanes: int = 0  # as asked; a broker that does not know of lanes answers 0, and with batches of every priority
    holes: list[tuple[int, int]] = []  # first and next offset of what retention took, of whatever priority it was
    follower: bool = False  # a follower answers: its end_offset is where it ends, and the log may go on
    time_ms: int = 0  # the broker's: a batch is delayed or expired by this; 0: the broker does not say


class SettleKind(IntEnum):
    ACK = 1
    NACK = 2
    EXTEND = 3
    REJECT = 4


class SettleItem(Control):
    partition: PartitionId
    token: Number
    first_offset: Number
    count: Number
    kind: int  # SettleKind
    delay_ms: NumberOrNone = -1  # nack: until the retry; extend: the lease from now on; -1: the topic's own
    reason: Annotated[str, Meta(max_length=limits.REASON_LENGTH_MAX)] = ""


class Settle(Call["Settled"]):
    group: Name
    topic: Name
    items: Annotated[list[SettleItem], Meta(max_length=limits.SETTLE_RANGES_MAX)]
    member_id: Id = ""  # of a member of the group: it is heard of by this


class SettledItem(Control):
    """One per item, in order. count: how many messages it took effect on."""

    code: int  # 0, or a catalogue code (LeaseLost, ...)
    count: int


class Settled(Control):
    items: list[SettledItem]


class Poll(Call["Polled"]):
    """A request for leases. Its settles are decided at once and answered first, by a SETTLE reply frame under the
    same correlation id; the POLL reply follows when there is something, or the wait is over."""

    group: Name
    topic: Name
    member: Annotated[str, Meta(max_length=limits.MEMBER_LENGTH_MAX)]
    sequence: NumberOrNone  # of this member, rising; repeated, the same leases come back; -1: never repeated
    partitions: Partitions | None = None  # None: all
    max_messages: Number = 500
    max_bytes: Number = 1 << 20
    wait_ms: Number = 0
    lease_ms: NumberOrNone = -1  # -1: the topic's
    auto_ack: bool = False  # at most once: settled as it is handed out
    start: Name = "earliest"  # or "latest": where a group that does not exist yet begins
    settles: Annotated[list[SettleItem], Meta(max_length=limits.SETTLE_RANGES_MAX)] = []
    min_priority: Annotated[int, Meta(ge=0, le=9)] = 0  # lease nothing less urgent: another broker has something better
    member_id: Id = ""  # of a member of the group; empty: the caller has not joined it. From feature level 5 on
    number: Number = 0  # of the group, and
    generation: Number = 0  # of the newest view that the member has seen
    incarnation: Number = 0  # of the topic; 0: whatever topic has this name now


class LeasedRange(Control):
    first_offset: int
    count: int
    attempt: int


class PolledBatch(Control):
    """Only the messages in `ranges` are leased; the bytes may hold more (skip them) or be an extract of just these."""

    partition: int
    token: int
    base_offset: int
    append_ms: int
    deadline_ms: int
    priority: int
    size: int
    ranges: list[LeasedRange]


class Polled(Control):
    """Bulk: the batches one after the other."""

    batches: list[PolledBatch]
    limited: bool = False  # the group is at outstanding_max on a partition: only retries are served there
    priority: int = -1  # the most urgent lane that still has something for this group here; -1: none


class BestPriority(Call["BestPriorityFound"]):
    """What is the most urgent lane with something deliverable? Leases nothing; waits while there is none."""

    group: Name
    topic: Name
    partitions: Partitions | None = None
    wait_ms: Number = 0
    start: Name = "earliest"  # a group that does not exist yet begins here


class BestPriorityFound(Control):
    priority: int  # -1: there is nothing
    messages: int = -1  # how many of that priority there may be; -1: it is not said


class Release(Call["Settled"]):
    """Give back, without counting an attempt, what was leased but never seen by the application."""

    group: Name
    topic: Name
    items: Annotated[list[SettleItem], Meta(max_length=limits.SETTLE_RANGES_MAX)]  # kind is ignored


class Peek(Call["Peeked"]):
    """Look without leasing: highest priority first among what is at or after the offset."""

    topic: Name
    partition: PartitionId | None = None
    offset: Number = 0
    max_messages: Number = 1
    max_bytes: Number = 1 << 20
    partitions: Partitions | None = None
    after: tuple[Annotated[int, Meta(ge=0, le=9)], PartitionId, Number] | None = None  # Peeked.next of the last page


class PeekedMessage(Control):
    partition: int
    offset: int
    append_ms: int
    priority: int
    value: bytes
    key: bytes | None = None
    headers: dict[str, bytes] = {}
    producer_timestamp_ms: int | None = None
    deliver_at_ms: int = 0
    expires_at_ms: int = 0

    def of_topic(self, topic: str) -> Message:
        """The same as the SDK and the doors show messages."""
        return Message(
            topic,
            self.partition,
            self.offset,
            self.value,
            self.key,
            self.headers,
            self.priority,
            self.append_ms,
            self.producer_timestamp_ms,
            self.deliver_at_ms,
            self.expires_at_ms,
        )


class Peeked(Control):
    """A look is small and rare, so it travels decoded: no bulk."""

    messages: list[PeekedMessage]
    next: tuple[int, int, int] | None = None  # (priority, partition, offset) of the next page; None: that was all


class Commit(Call["Empty"]):
    group: Name
    topic: Name
    offsets: OffsetsByPartition  # partition → the next offset to read
    reader: Id = ""  # chosen at random, once for each reader; with it a commit that is repeated does nothing
    sequence: NumberOrNone = -1  # of this reader's commits, rising; the same when one is repeated
    known: Partitions | None = None  # where the group has committed before: if it is gone there, that is an error
    member_id: Id = ""  # of a member of the group; empty: the caller has not joined it. From feature level 5 on
    number: Number = 0  # of the group, and
    generation: Number = 0  # of the newest view that the member has seen
    incarnation: Number = 0  # of the topic; 0: whatever topic has this name now
    metadata: MetadataByPartition = {}  # kept with the offset


class Committed(Call["CommittedReply"]):
    group: Name
    topic: Name
    partitions: Partitions | None = None


class CommittedReply(Control):
    offsets: dict[int, int]  # partitions without a commit are absent
    metadata: dict[int, bytes] = {}  # what the commits brought along; absent: nothing


class Offsets(Call["OffsetsReply"]):
    topic: Name
    time_ms: NumberOrNone = -1  # -1: earliest and end only; else also the first offset appended at or after this time
    partitions: Partitions | None = None
    starts: OffsetsByPartition | None = None  # partition → an offset, from which on bytes are counted
    max_bytes: Number = 0  # so many, and so few that a whole batch always fits
    lanes: LaneMask = 0  # bit n: only batches of priority n count; 0: of every priority


class PartitionOffsets(Control):
    partition: int
    first_offset: int
    end_offset: int
    at_time: int = -1
    at_bytes: int = -1  # a fetch from the start up to this offset brings at most max_bytes; -1: not asked, or not known


class OffsetsReply(Control):
    partitions: list[PartitionOffsets]
    incarnation: int = 0
