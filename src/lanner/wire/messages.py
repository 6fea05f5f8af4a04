"""The control parts of the native protocol, one struct each.

A struct travels as a msgpack array in the order of its fields. A later version may add fields at the end, with
defaults: an older peer ignores what it does not know, a newer one fills in what is missing. Fields are never removed
or reordered. Bulk bytes (batches) are not here: they follow the control part, and the structs say how they divide.

What a request may hold is bounded by the types of its fields, so that no number, name or list reaches a broker that
could not be meant. What makes sense beyond that (does the topic exist?) is the service's business.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, Final, dataclass_transform

import msgspec
from msgspec import Meta

from lanner import limits

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
OffsetsByPartition = Annotated[dict[PartitionId, Number], Meta(max_length=limits.PARTITIONS_MAX)]


class Command(IntEnum):
    HELLO = 0x01
    PING = 0x02
    METADATA = 0x03
    OPEN_PRODUCER = 0x04
    PUBLISH = 0x10
    FETCH = 0x11
    POLL = 0x12
    SETTLE = 0x13
    COMMIT = 0x14
    COMMITTED = 0x15
    PEEK = 0x16
    OFFSETS = 0x17
    RELEASE = 0x18
    GLANCE = 0x19
    CREATE_TOPIC = 0x20
    DELETE_TOPIC = 0x21
    ALTER_TOPIC = 0x22
    DESCRIBE_TOPIC = 0x23
    LIST_GROUPS = 0x30
    DESCRIBE_GROUP = 0x31
    DROP_GROUP = 0x32
    SEEK = 0x33
    LIST_DEAD = 0x40
    REDRIVE = 0x41
    DISCARD = 0x42
    DESCRIBE_CLUSTER = 0x50
    DESCRIBE_PARTITIONS = 0x51
    CHANGE_CLUSTER = 0x52
    RAFT_STATUS = 0x53
    SCRUB = 0x54
    PEER_INFO = 0x60  # from here on: brokers among themselves
    PROPOSE = 0x61
    RAFT = 0x62
    SNAPSHOT = 0x63
    PULSE = 0x64


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _ControlType(msgspec.StructMeta):
    """Tells type checkers what msgspec does anyway: whatever inherits from a frozen struct is frozen."""


class Control(msgspec.Struct, metaclass=_ControlType, array_like=True, frozen=True, gc=False):
    """What every control part is."""


class Empty(Control):
    """A control part with nothing to say (PING, OPEN_PRODUCER, replies that only confirm)."""


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


class Metadata(Control):
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


class ProducerOpened(Control):
    producer_id: int
    epoch: int = 0


# ------------------------------------------------------------------ data


class Publish(Control):
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


class Fetch(Control):
    topic: Name
    partition: PartitionId
    offset: Number
    max_bytes: Number = 1 << 20
    wait_ms: Number = 0  # wait so long for something at `offset` when it is the end
    incarnation: Number = 0


class FetchedBatch(Control):
    base_offset: int
    count: int  # offsets base_offset .. base_offset + count - 1, also when the bytes are an extract of fewer
    append_ms: int
    size: int  # bytes of this batch in the bulk part


class Fetched(Control):
    """Bulk: the batches one after the other. The first may begin before the offset asked for: skip into it."""

    first_offset: int  # the earliest that the partition still holds
    end_offset: int  # one past the latest
    next_offset: int  # ask for this next; more than the end of the last batch when retention made a hole
    batches: list[FetchedBatch]
    incarnation: int = 0
    damaged: list[tuple[int, int]] = []  # first and next offset of batches of which no whole copy is left


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


class Settle(Control):
    group: Name
    topic: Name
    items: Annotated[list[SettleItem], Meta(max_length=limits.SETTLE_RANGES_MAX)]


class SettledItem(Control):
    """One per item, in order. count: how many messages it took effect on."""

    code: int  # 0, or a catalogue code (LeaseLost, ...)
    count: int


class Settled(Control):
    items: list[SettledItem]


class Poll(Control):
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


class Glance(Control):
    """What is the most urgent lane with something deliverable? Leases nothing; waits while there is none."""

    group: Name
    topic: Name
    partitions: Partitions | None = None
    wait_ms: Number = 0
    start: Name = "earliest"  # a group that does not exist yet begins here


class Glanced(Control):
    priority: int  # -1: there is nothing


class Release(Control):
    """Give back, without counting an attempt, what was leased but never seen by the application."""

    group: Name
    topic: Name
    items: Annotated[list[SettleItem], Meta(max_length=limits.SETTLE_RANGES_MAX)]  # kind is ignored


class Peek(Control):
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


class Peeked(Control):
    """A look is small and rare, so it travels decoded: no bulk."""

    messages: list[PeekedMessage]
    next: tuple[int, int, int] | None = None  # (priority, partition, offset) of the next page; None: that was all


class Commit(Control):
    group: Name
    topic: Name
    offsets: OffsetsByPartition  # partition → the next offset to read
    reader: Id = ""  # chosen at random, once for each reader; with it a commit that is repeated does nothing
    sequence: NumberOrNone = -1  # of this reader's commits, rising; the same when one is repeated


class Committed(Control):
    group: Name
    topic: Name
    partitions: Partitions | None = None


class CommittedReply(Control):
    offsets: dict[int, int]  # partitions without a commit are absent


class Offsets(Control):
    topic: Name
    time_ms: NumberOrNone = -1  # -1: earliest and end only; else also the first offset appended at or after this time
    partitions: Partitions | None = None


class PartitionOffsets(Control):
    partition: int
    first_offset: int
    end_offset: int
    at_time: int = -1


class OffsetsReply(Control):
    partitions: list[PartitionOffsets]
    incarnation: int = 0


# ------------------------------------------------------------------ administration


class CreateTopic(Control):
    name: Name
    settings: dict[str, Any] = {}
    create_id: Id = ""  # chosen at random, and given again when this is repeated: then it gets its first answer


class AlterTopic(Control):
    name: Name
    settings: dict[str, Any]


class TopicName(Control):
    """DELETE_TOPIC, DESCRIBE_TOPIC, LIST_GROUPS."""

    name: Name
    partitions: Partitions | None = None


class PartitionState(Control):
    id: int
    leader: str
    first_offset: int
    end_offset: int
    bytes: int
    batches: int
    pinned_bytes: int
    depth: dict[int, int] = {}  # messages held, by priority


class TopicDescription(Control):
    name: str
    incarnation: int
    settings: dict[str, Any]
    partitions: list[PartitionState]


class GroupName(Control):
    """DESCRIBE_GROUP, DROP_GROUP."""

    topic: Name
    group: Name
    partitions: Partitions | None = None


class GroupsReply(Control):
    groups: list[str]


class GroupPartition(Control):
    partition: int
    offset: int  # stream: the committed offset; queue: the lowest offset that is not settled
    lag: int  # messages not settled (queue) or not yet committed (stream)
    ready: int
    leased: int
    waiting: int  # for a retry
    dead: int
    depth: dict[int, int] = {}  # ready and never delivered, by priority
    oldest_ms: int = 0  # append time of the oldest unsettled message; 0: none


class GroupDescription(Control):
    topic: str
    group: str
    kind: str
    partitions: list[GroupPartition]


class Seek(Control):
    """Exactly one of offsets, time_ms, to ("earliest" | "latest")."""

    topic: Name
    group: Name
    offsets: OffsetsByPartition | None = None
    time_ms: Number | None = None
    to: Name | None = None
    partitions: Partitions | None = None


class ListDead(Control):
    topic: Name
    group: Name
    partition: PartitionId | None = None
    start_offset: Number = 0
    limit: Number = 100
    partitions: Partitions | None = None
    after: tuple[PartitionId, Number] | None = None  # DeadLetters.next of the last page


class DeadLetter(Control):
    partition: int
    offset: int
    priority: int
    attempts: int
    reason: str
    died_ms: int
    append_ms: int
    size: int  # of its extract in the bulk part (a batch of one message); 0 when the bytes are not sent


class DeadLetters(Control):
    """Bulk: the extracts one after the other."""

    letters: list[DeadLetter]
    total: int
    next: tuple[int, int] | None = None  # (partition, offset) of the next page; None: that was all


class DeadChoice(Control):
    """REDRIVE, DISCARD. offsets None: every dead letter of the group (or of the partition)."""

    topic: Name
    group: Name
    partition: PartitionId | None = None
    offsets: Annotated[list[Number], Meta(max_length=limits.SETTLE_RANGES_MAX)] | None = None
    partitions: Partitions | None = None


class CountReply(Control):
    count: int
