"""What the leader may be asked to decide, and what it answers: plain values, in the order of the questions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from lanner.errors import LannerError
from lanner.model import GroupKind
from lanner.partition.batches import BatchRef


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


class Seek(NamedTuple):
    group: str
    offset: int | str  # an offset, "earliest" or "latest"


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


class Tick(NamedTuple):
    """Time passed: nothing else is asked."""


Request = Poll | Settle | Release | CommitOffset | Seek | MakeGroup | DropGroup | Redrive | Discard | Tick


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


class Wait(Enum):
    WAIT = "nothing is deliverable now"


WAIT: Final = Wait.WAIT

Answer = PollAnswer | Wait | list[tuple[int, int]] | int | None | LannerError


class Decided(NamedTuple):
    record: bytes | None  # None: nothing to write
    answers: list[Answer]


class Appended(NamedTuple):
    """Where a batch went. A duplicate so old that its place is forgotten has base_offset -1."""

    base_offset: int
    count: int  # type: ignore[assignment]
    append_ms: int
    duplicate: bool


class Outcome(NamedTuple):
    result: Appended | LannerError | None
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
