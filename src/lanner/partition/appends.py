"""Applying what carries a batch: appends, which are stored at once, and stages, which wait for an outcome.

Fixed rules: sequence, dedup, offsets and lane places of appends, the numbers of stages. A stage is known by its attempt
and its number: one that comes again gets its first answer, whatever has become of it, as long as its attempt is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from lanner import limits
from lanner.errors import (
    LannerError,
    MalformedBatch,
    Overloaded,
    SequenceGap,
    StageExpired,
    UnknownRecord,
    UnsupportedVersion,
    ValidationError,
)
from lanner.limits import BATCH_MESSAGES_MAX, TIME_MS_MAX
from lanner.model import LANES, TopicSettings
from lanner.partition import records
from lanner.partition.batches import NOT_PLACED, BatchRef
from lanner.partition.producers import SentBatch
from lanner.partition.requests import Appended, Outcome, Staged
from lanner.partition.staging import StagedBatch
from lanner.partition.state import State

_NOTHING: Final[tuple[tuple[int, tuple[int, ...] | None, int], ...]] = ()
_FORGETTING_MS: Final = 100  # ids beyond their window are forgotten with the next decisions


class Described(Protocol):
    """What storing a batch takes."""

    @property
    def count(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def deliver_at_ms(self) -> int: ...
    @property
    def expires_at_ms(self) -> int: ...


class HeaderLike(Described, Protocol):
    """What a partition needs to know of a batch."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def dedup_id(self) -> bytes: ...


def apply_append(state: State, index: int, payload: bytes, header_of: Callable[[memoryview], HeaderLike]) -> Outcome:
    try:
        append_ms = records.decode_append(payload)
        header = _read_header(payload, header_of)
        if append_ms > state.machine_ms:
            state.machine_ms = append_ms
        repeated = _find_repeat(state, header)
    except UnknownRecord:
        raise
    except LannerError as error:
        return Outcome(error, False, _NOTHING, False)
    if repeated is not None:
        return Outcome(repeated, False, _NOTHING, False)
    ref = store(state, index, len(payload) - records.batch_start(payload), header)
    if header.producer_id:
        _note_producer(state, header, ref.base_offset, ref.count, ref.append_ms)
    if header.dedup_id:
        state.dedup.note(bytes(header.dedup_id), ref.base_offset, ref.count, ref.append_ms)
    appended = Appended(ref.base_offset, ref.count, ref.append_ms, False)
    return Outcome(appended, True, _NOTHING, ref.lane_base != NOT_PLACED)


def _read_header(payload: bytes, header_of: Callable[[memoryview], HeaderLike]) -> HeaderLike:
    try:
        header = header_of(memoryview(payload)[records.batch_start(payload) :])
    except UnsupportedVersion as error:  # a door lets no such batch in, unless its release knows it
        raise UnknownRecord(f"the log holds a batch that is not known here: {error.message}") from None
    except LannerError:
        raise
    except Exception as error:  # whatever a reader of foreign bytes may raise: it is in the log, and must not stop it
        raise MalformedBatch(f"the batch's header does not decode: {error}") from None
    if not 0 < header.count <= BATCH_MESSAGES_MAX:
        raise MalformedBatch(f"the batch says it has {header.count} messages", field="count")
    if not 0 <= header.priority < LANES:
        raise MalformedBatch(f"the batch has priority {header.priority}", field="priority")
    if not (0 <= header.deliver_at_ms <= TIME_MS_MAX and 0 <= header.expires_at_ms <= TIME_MS_MAX):
        raise MalformedBatch("the batch has a time that is not one", field="deliver_at_ms")
    return header


def _find_repeat(state: State, header: HeaderLike) -> Appended | None:
    if header.producer_id:
        if header.sequence < 0:
            raise MalformedBatch("a batch with a producer id needs a sequence", field="sequence")
        sent = state.producers.find_duplicate(
            header.producer_id, header.producer_epoch, header.priority, header.sequence, state.machine_ms
        )
        if sent is not None:
            return Appended(sent.base_offset, sent.count or header.count, sent.append_ms, True)
    if header.dedup_id:
        known = state.dedup.get(bytes(header.dedup_id))
        if known is not None:
            _note_producer(state, header, known.base_offset, known.count, known.append_ms)
            return Appended(known.base_offset, known.count, known.append_ms, True)
    return None


def _note_producer(state: State, header: HeaderLike, base_offset: int, count: int, append_ms: int) -> None:
    if header.producer_id:
        batch = SentBatch(header.sequence, base_offset, count, append_ms)
        state.producers.note(header.producer_id, header.producer_epoch, header.priority, batch, state.machine_ms)


def store(state: State, index: int, size: int, header: Described) -> BatchRef:
    """Give a batch its offsets, and its places unless it is delayed."""
    base_offset = state.end_offset
    count = header.count
    lane = header.priority
    now_ms = state.machine_ms
    deliver_at_ms = header.deliver_at_ms
    if deliver_at_ms > now_ms:
        lane_base = NOT_PLACED
        state.delayed.put(base_offset, deliver_at_ms)
    else:
        lane_base = state.lanes[lane].append(base_offset, count)
    expires_at_ms = header.expires_at_ms
    if expires_at_ms:
        state.expiring_count += 1
    ref = BatchRef(base_offset, count, index, size, lane, lane_base, now_ms, deliver_at_ms, expires_at_ms)
    state.batches.append(ref)
    state.end_offset = base_offset + count
    state.stored_bytes += size
    state.batch_count += 1
    return ref


def check_dedup(state: State, dedup_id: bytes, settings: TopicSettings, now_ms: int) -> None:
    """Raise what forbids a leader to propose a batch with this dedup id now. A known one gets its first answer.

    What is in flight is not counted: the bound is on memory, and some thousands beyond it are no harm.
    """
    known = state.dedup
    if not dedup_id or len(known) < limits.DEDUP_IDS_PER_PARTITION_MAX or known.get(dedup_id) is not None:
        return
    first_ms = known.first_append_ms()
    due_ms = 0 if first_ms is None else first_ms + settings.dedup_window_ms - now_ms
    raise Overloaded(
        f"the partition remembers {len(known)} dedup ids of the last {settings.dedup_window_ms} ms, and may remember "
        f"{limits.DEDUP_IDS_PER_PARTITION_MAX}: publish more slowly, lower the topic's dedup_window_ms, or spread the "
        "messages over more partitions",
        retry_after_ms=max(due_ms, _FORGETTING_MS),
        setting="dedup_window_ms",
    )


# ------------------------------------------------------------------ stages


def apply_stage(state: State, index: int, payload: bytes, header_of: Callable[[memoryview], HeaderLike]) -> Outcome:
    try:
        append_ms, note = records.decode_stage(payload)
        header = _read_header(payload, header_of)
        if append_ms > state.machine_ms:
            state.machine_ms = append_ms
        repeated = _find_stage(state, note, header)
    except UnknownRecord:
        raise
    except LannerError as error:
        return Outcome(error, False, _NOTHING, False)
    if repeated is not None:
        return Outcome(repeated, False, _NOTHING, False)
    size = len(payload) - records.batch_start(payload)
    batch = StagedBatch(index, size, header.count, header.priority, header.deliver_at_ms, header.expires_at_ms)
    state.stages.add(note, batch, state.machine_ms)
    return Outcome(Staged(note.number, header.count, False), True, _NOTHING, False)


def _find_stage(state: State, note: records.StageNote, header: HeaderLike) -> Staged | None:
    """The first answer of a stage that comes again; None for the next new one; raises for any other."""
    if header.producer_id or header.dedup_id:
        raise ValidationError(
            "a staged batch is known by its attempt and number; leave out its producer id and dedup id", field="batch"
        )
    attempt = state.stages.attempts.get(note.attempt)
    if attempt is None:
        if note.number:
            raise StageExpired(
                f"stage {note.number} came, but the ones before it are gone; stage all of it anew, as another attempt",
                attempts=[note.attempt],
            )
        return None
    if not attempt.has_head(note):
        raise ValidationError(
            "this attempt has staged for another transaction, owner, sequence, task or hold; use a new attempt",
            field="attempt",
        )
    expected = attempt.stages
    if note.number < expected:
        return Staged(note.number, attempt.count_of(note.number), True)
    if attempt.token:
        raise StageExpired("the attempt is being committed; stage under a new one", attempts=[note.attempt])
    if note.number > expected:
        raise SequenceGap(
            f"stage {note.number} of this attempt came, but {expected} is next; send that first", expected=expected
        )
    return None
