"""What doors say to the service and hear back: plain values, the same for every door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lanner.calls import ANONYMOUS as ANONYMOUS
from lanner.calls import Identity as Identity
from lanner.cluster import PartitionRow, Progress
from lanner.model import PRIORITY_NORMAL, Message
from lanner.partition import Appended, HoldState


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message as a door without batches (REST) hands it in."""

    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    priority: int = PRIORITY_NORMAL
    partition: int | None = None
    deliver_at_ms: int = 0
    expires_at_ms: int = 0
    dedup_id: bytes = b""


class Stored(NamedTuple):
    """Where one message went."""

    partition: int
    offset: int
    append_ms: int
    duplicate: bool


class Delivered(NamedTuple):
    """One leased (or taken) message, decoded. `token` settles it, together with its partition and offset."""

    message: Message
    token: int
    deadline_ms: int


class Range(NamedTuple):
    """Leased messages of one batch: offsets first_offset .. first_offset + count - 1."""

    first_offset: int
    count: int  # type: ignore[assignment]
    attempt: int


class LeasedBatch(NamedTuple):
    """Leased messages of one batch with its bytes, as the producer encoded them or as an extract."""

    partition: int
    token: int
    base_offset: int
    append_ms: int
    deadline_ms: int
    priority: int
    data: bytes | memoryview
    ranges: Sequence[Range]


class PollResult(NamedTuple):
    batches: Sequence[LeasedBatch]
    limited: bool
    priority: int = -1  # the most urgent lane that still has something here; -1: none
    call: int = 0  # which call of this poll it answers: a poll may be repeated


class SettleItem(NamedTuple):
    partition: int
    token: int
    first_offset: int
    count: int  # type: ignore[assignment]
    kind: int
    delay_ms: int = -1
    reason: str = ""


class SettleResult(NamedTuple):
    code: int
    count: int  # type: ignore[assignment]


class FetchedBatch(NamedTuple):
    base_offset: int
    count: int  # type: ignore[assignment]
    append_ms: int
    data: bytes | memoryview


class FetchResult(NamedTuple):
    first_offset: int
    end_offset: int
    next_offset: int
    batches: Sequence[FetchedBatch]
    incarnation: int
    damaged: Sequence[tuple[int, int]] = ()  # first and next offset of batches of which no whole copy is left
    lanes: int = 0  # bit n: only batches of priority n were looked for; 0: all
    holes: Sequence[tuple[int, int]] = ()  # first and next offset of what retention took
    follower: bool = False  # a follower answers: end_offset is where it ends, the log may go on
    time_ms: int = 0  # of the broker that read: what is delayed and what has expired


PublishResult = Appended  # where a batch went, as the partition itself says it


class PartitionStateResult(NamedTuple):
    id: int
    leader: str
    first_offset: int
    end_offset: int
    bytes: int
    batches: int
    pinned_bytes: int
    depth: Mapping[int, int]
    holds: Sequence[HoldState] = ()  # groups that retention waits for


class TopicResult(NamedTuple):
    name: str
    incarnation: int
    settings: Mapping[str, object]
    partitions: Sequence[PartitionStateResult]


def age_ms(since_ms: int, now_ms: int) -> int:
    """How long something is there; 0 for nothing, and for what a clock that was set calls the future."""
    return max(0, now_ms - since_ms) if since_ms else 0


class GroupPartitionResult(NamedTuple):
    partition: int
    offset: int
    lag: int
    ready: int
    leased: int
    waiting: int
    dead: int
    depth: Mapping[int, int]
    oldest_ms: int


class GroupResult(NamedTuple):
    topic: str
    group: str
    kind: str
    partitions: Sequence[GroupPartitionResult]


class DeadLetterResult(NamedTuple):
    partition: int
    offset: int
    priority: int
    attempts: int
    reason: str
    died_ms: int
    append_ms: int
    data: bytes  # an extract: a batch of this one message; empty when it cannot be read


DeadPlace = tuple[int, int]  # partition, offset


class DeadLettersResult(NamedTuple):
    letters: Sequence[DeadLetterResult]
    total: int  # of the group, not only of this page
    next: DeadPlace | None = None  # where the next page begins; None: there is nothing more


class OffsetsResult(NamedTuple):
    partition: int
    first_offset: int
    end_offset: int
    at_time: int
    at_bytes: int = -1


class ByteCount(NamedTuple):
    """How far so many bytes from an offset on reach."""

    starts: Mapping[int, int]  # by partition
    max_bytes: int
    lanes: int = 0  # bit n: priority n; 0: all


PlanResult = Progress  # how far a plan is, as the metadata says it
PartitionResult = PartitionRow  # where a partition's replicas are


class ScrubResult(NamedTuple):
    """Of the pass that is under way on this broker; else of the latest one."""

    running: bool
    passes: int
    entries: int
    rows: int
    read_bytes: int
    damaged: int
    expected_bytes: int


class BrokerResult(NamedTuple):
    """One broker, as another one sees it."""

    name: str
    node_id: str
    rack: str
    state: str
    addresses: Mapping[str, str]
    replicas: int
    leads: int
    should_lead: int
    metadata: str
    drain: PlanResult | None
    alive: bool
    scrub: ScrubResult | None = None  # None: it was not asked, or did not answer


class ReplicasReport(NamedTuple):
    """What one broker alone knows of replicas."""

    lags: Mapping[tuple[int, int], int]  # entries behind of the followers of what it leads, by (set, replica)
    stopped: Mapping[tuple[int, str], str]  # why its own replicas do not run, by (set, node id)


class ClusterResult(NamedTuple):
    cluster_id: str
    metadata_leader: str
    feature_level: int
    topics: int
    partitions: int
    replicas: int
    replicas_missing: int
    brokers: Sequence[BrokerResult]
    plans: Sequence[PlanResult]
    time_ahead_ms: int = 0  # of what was decided on the broker that answers, ahead of its wall clock
    feature_level_possible: int = 0
    behind: Sequence[str] = ()
