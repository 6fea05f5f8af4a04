"""What the leader may be asked to decide, and what it answers: plain values, in the order of the questions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from lanner.errors import LannerError
from lanner.model import GroupKind
from lanner.partition.batches import BatchRef
from lanner.partition.fences import Fence
from lanner.partition.records import Counted


class SettleKind(IntEnum):
    """As on the wire."""

    ACK = 1
    NACK = 2
    EXTEND = 3
    REJECT = 4


class SettleItem(NamedTuple):
    """A range of one lease's messages and what becomes of it. Any tuple of this shape will do."""

    token: int
    first_offset: int
    count: int  # type: ignore[assignment]
    kind: int = SettleKind.ACK
    delay_ms: int = -1
    reason: str = ""


class Poll(NamedTuple):
    group: str
    member: str
    sequence: int
    max_messages: int = 500
    max_bytes: int = 1 << 20
    lease_ms: int | None = None  # None or -1: the topic's
    auto_ack: bool = False
    start: str = "earliest"
    min_lane: int = 0  # leave less urgent lanes alone: another partition has something more urgent
    fence: Fence | None = None  # what the caller stands for; None: nobody has ever been a member of a group


class Settle(NamedTuple):
    group: str
    items: Sequence[tuple[int, int, int, int, int, str]]


class Release(NamedTuple):
    group: str
    items: Sequence[tuple[int, int, int, int, int, str]]


class CommitOffset(NamedTuple):
    group: str
    offset: int
    reader: str = ""  # whose commits are numbered, rising; empty: each counts as it comes
    sequence: int = -1
    known: bool = False  # the group has committed before: where it is gone, that is an error
    fence: Fence | None = None
    metadata: bytes = b""  # kept with the offset


class Seek(NamedTuple):
    group: str
    offset: int | str  # an offset, "earliest" or "latest"
    fence: Fence | None = None


class Claim(NamedTuple):
    """The first thing that a new owner of a stream's partition does: from then on older ones are refused."""

    group: str
    member: str
    fence: Fence
    start: int | str = "earliest"  # where the group begins, if it is not here yet


class MakeGroup(NamedTuple):
    group: str
    kind: GroupKind | str
    start: int | str = "earliest"  # or "latest", or an offset


class DropGroup(NamedTuple):
    group: str


class Redrive(NamedTuple):
    """Answered with a count. Offsets None: every dead letter, at most DEAD_RANGES_MAX ranges a decision; repeat
    until the count is 0."""

    group: str
    offsets: Sequence[int] | None = None


class Discard(NamedTuple):
    """Answered like Redrive."""

    group: str
    offsets: Sequence[int] | None = None


class NumberDead(NamedTuple):
    """Have the dead letters of a group numbered, so that they can be read as a stream. Once is enough."""

    group: str


class Tick(NamedTuple):
    """Time passed: nothing else is asked."""


class Prepare(NamedTuple):
    """Hold these attempts until the try's outcome. The metadata that the asker saw (metadata_index) calls the token
    open, with this partition in it. Answered None once it is so; the try's first prepare counts, a repeat is the same.

    StageExpired names the attempts that are not here as the manifest says; TopicFull: they would not fit. Of these two
    the conductor should hear as a refusal. ServiceUnavailable: the metadata seen is older than what this partition
    acted on; ask again later. ValidationError: the manifest cannot be one, or is another one than before."""

    token: int
    transaction: str
    owner: str
    sequence: int
    manifest: Sequence[tuple[int, bytes, int]]  # task, attempt, stages; in the order of tasks
    metadata_index: int


class PublishStages(NamedTuple):
    """The metadata seen calls the token committed. Answered with how many stages are left: ask until that is 0. A
    token that is not prepared has none."""

    token: int
    metadata_index: int


class WithdrawStages(NamedTuple):
    """The metadata seen has no such token, and is not older than it. Answered like PublishStages."""

    token: int
    metadata_index: int


class DropStages(NamedTuple):
    """Let go of attempts that nobody will commit; prepared ones stay. Answered with how many went: repeat
    until that is 0, since one decision drops only so many."""

    attempts: Sequence[bytes]


AboutGroup = (
    Poll | Settle | Release | CommitOffset | Seek | Claim | MakeGroup | DropGroup | Redrive | Discard | NumberDead
)
AboutStages = Prepare | PublishStages | WithdrawStages | DropStages
Request = AboutGroup | AboutStages | Tick


class Lease(NamedTuple):
    """Messages of one batch handed out together."""

    ref: BatchRef
    first_offset: int
    count: int  # type: ignore[assignment]
    attempt: int


class PollAnswer(NamedTuple):
    leases: list[Lease]
    deadline_ms: int
    limited: bool
    token: int | None  # None: the index that this decision's record gets


class Claimed(NamedTuple):
    """How far the group has come here, as of the record by which the claim was accepted."""

    offset: int  # the next to read
    committed: bool  # the group has committed; else this is where it began
    metadata: bytes
    sequence: int  # of this member's latest commit; -1: none


class Wait(Enum):
    WAIT = "nothing is deliverable now"


WAIT: Final = Wait.WAIT

Answer = PollAnswer | Claimed | Wait | list[tuple[int, int]] | int | None | LannerError


class Decided(NamedTuple):
    record: bytes | None  # None: nothing to write
    answers: list[Answer]


class Appended(NamedTuple):
    """Where a batch went. A duplicate so old that its place is forgotten has base_offset -1."""

    base_offset: int
    count: int  # type: ignore[assignment]
    append_ms: int
    duplicate: bool


class Staged(NamedTuple):
    """A batch waits for its outcome under this number of its attempt."""

    number: int
    count: int  # type: ignore[assignment]
    duplicate: bool


class Prepared(NamedTuple):
    """Attempts that wait for the outcome of one try."""

    transaction: str
    owner: str
    sequence: int
    manifest: tuple[Counted, ...]
    dealt: int  # how many of its stages are published or withdrawn
    prepared_ms: int
    size: int  # bytes of the stages that are not dealt with
    stages: int  # in all of the manifest


Result = Appended | Staged | LannerError | None


class Outcome(NamedTuple):
    result: Result
    live: bool  # the entry's payload must stay readable
    released: Sequence[tuple[int, tuple[int, ...] | None, int]]  # index, positions still needed (None: none), bytes
    deliverable: bool  # waiting polls should look again


class GroupState(NamedTuple):
    kind: GroupKind
    offset: int
    lag: int
    ready: int
    leased: int
    waiting: int
    dead: int
    depth: dict[int, int]
    oldest_ms: int


class DeadEntry(NamedTuple):
    offset: int
    lane: int
    attempts: int
    reason: str
    died_ms: int
    ref: BatchRef
