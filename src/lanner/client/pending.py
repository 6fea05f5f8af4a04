"""What a producer's messages travel in, and what an error means for them.

A pending batch holds what becomes one batch; a lane is one priority of one partition, as one producer fills it. The
questions at the end are the whole of what the client believes about errors: whether a sending may have taken effect,
whether it is worth repeating, whether the numbering of a lane still holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from lanner.errors import (
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    Overloaded,
    ProducerFenced,
    ProducerUnknown,
    SequenceGap,
    ServerError,
    StorageFull,
    TopicFull,
)
from lanner.net.backoff import Backoff
from lanner.net.waiters import Waiters

REFUSED_FOR_CERTAIN: Final = (Overloaded, StorageFull, TopicFull, SequenceGap)  # retryable, surely without effect


class Identity(NamedTuple):
    """The producer id under which batches are numbered."""

    producer_id: int
    epoch: int


class PendingBatch:
    """The messages of one batch as columns, and what is known of their outcome."""

    __slots__ = (
        "attempts",
        "base_offset",
        "born_ms",
        "data",
        "dedup_id",
        "deliver_at_ms",
        "duplicate",
        "error",
        "expires_at_ms",
        "headers",
        "keys",
        "lane",
        "observed",
        "sequence",
        "settled",
        "size",
        "timestamp_ms",
        "uncertain",
        "values",
        "waiters",
    )

    def __init__(
        self, lane: ProducerLane, born_ms: float, deliver_at_ms: int = 0, expires_at_ms: int = 0, dedup_id: bytes = b""
    ) -> None:
        self.lane = lane
        self.born_ms = born_ms
        self.deliver_at_ms = deliver_at_ms
        self.expires_at_ms = expires_at_ms
        self.dedup_id = dedup_id
        self.values: Sequence[bytes] = []
        self.keys: Sequence[bytes | None] | None = None
        self.headers: Sequence[Mapping[str, bytes] | None] | None = None
        self.size = 0
        self.data: bytes | None = None  # encoded at the first sending, kept for the next
        self.sequence = -1
        self.attempts = 0
        self.uncertain = False  # some sending of it may have taken effect
        self.error: LannerError | None = None  # of the last sending; the outcome once settled
        self.settled = False
        self.base_offset = -1
        self.timestamp_ms = 0
        self.duplicate = False
        self.waiters = Waiters()  # for its outcome
        self.observed = False  # somebody looks at its outcome


class ProducerLane:
    """One priority of one partition, as one producer fills it."""

    __slots__ = (
        "backoff",
        "flight",
        "held_up",
        "identity",
        "opened",
        "partition",
        "place",
        "priority",
        "resend",
        "retry_at_ms",
        "sealed",
        "sequence",
        "sequenced",
        "topic",
        "unanswered",
    )

    def __init__(self, topic: str, partition: int, priority: int, sequenced: bool, backoff: Backoff) -> None:
        self.topic = topic
        self.partition = partition
        self.priority = priority
        self.sequenced = sequenced
        self.identity: Identity | None = None  # taken over at the next first sending
        self.sequence = 0  # of the next batch
        self.opened: dict[tuple[int, int], PendingBatch] = {}  # still growing, by (deliver_at_ms, expires_at_ms)
        self.sealed: deque[PendingBatch] = deque()
        self.flight: list[PendingBatch] = []  # sent, outcome unknown, in the order of their sequences
        self.unanswered = 0  # of those: how many still wait for the broker's answer
        self.resend = False  # flight holds batches to send again
        self.retry_at_ms = 0.0
        self.backoff = backoff
        self.held_up = False  # nothing can be sent where it goes, at present
        self.place: Any = None  # where it goes; the shell's, opaque here


class Failed(NamedTuple):
    """A batch that has failed for good, and why."""

    batch: PendingBatch
    error: LannerError


class Taken(NamedTuple):
    """What `take` hands out."""

    batches: list[PendingBatch]
    refused: list[Failed]


def may_have_taken_effect(error: LannerError) -> bool:
    if isinstance(error, REFUSED_FOR_CERTAIN) or error.details.get("refused") is True:
        return False
    return error.retryable or isinstance(error, ServerError) or type(error) is LannerError


def is_worth_repeating(error: LannerError) -> bool:
    """A full topic rejects at once: that is its owner's choice, and waiting is the caller's."""
    if isinstance(error, TopicFull):
        return False
    return error.retryable or type(error) in (ServerError, LannerError, ProducerUnknown)


def identity_is_lost(flight: Sequence[PendingBatch], too_old_ms: float) -> bool:
    for position, batch in enumerate(flight):
        if isinstance(batch.error, ProducerFenced):
            return True
        if position == 0 and isinstance(batch.error, ProducerUnknown | SequenceGap):
            return True  # the broker misses something that it has confirmed; behind a failed one that says nothing
        if batch.uncertain and (batch.born_ms <= too_old_ms or not is_worth_repeating(batch.error or _NO_ERROR)):
            return True
    return False


def final_error(batch: PendingBatch) -> LannerError:
    error = batch.error or _NO_ERROR
    if not batch.uncertain:
        return error
    return DeadlineExceeded(
        f"it is not known whether the broker took these messages: {error.message}",
        cause=error.name,
        topic=batch.lane.topic,
        partition=batch.lane.partition,
    )


_NO_ERROR: Final = ConnectionLost()
