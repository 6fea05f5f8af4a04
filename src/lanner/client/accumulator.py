"""What a producer holds: messages on their way into batches, batches on their way to the broker, and their outcome.

It knows lanes, sizes, sequences and what each error means for what was sent. It refuses to know sockets, tasks and
clocks: `now_ms` comes in, batches to send and failures to report go out, and the shell around it acts.

Rules:
- A pending batch becomes one batch: one topic, partition, priority, delivery time, expiry and dedup id.
- A sequence is given when a batch is first sent, per (partition, priority), and never changes while the outcome of that
  sending is unknown. At most as many batches of a lane are in flight as the broker remembers results, so a repeated
  one is always recognised.
- After a failure the lane first waits for the answers to everything it sent, then judges all of it at once and sends
  what remains again in order: order within a lane holds, whatever fails.
- A batch that was refused for certain leaves its sequence to the next one. When the outcome of a batch cannot be known
  any more (its deadline passed, the broker forgot the producer), the lane goes on under a new producer id, and
  the messages concerned are reported as unknown, never silently repeated.
- Memory is bounded: `buffered_bytes` counts every message until its outcome is known.
- Where a lane's batches go, and whether there is room there, is asked for each lane apart (`Room`): a broker that is
  away, or full, holds up its own lanes only. They are `held_up` until the shell says that something has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from lanner import limits
from lanner.batch import Codec, encode
from lanner.client.pending import (
    Failed,
    Identity,
    PendingBatch,
    ProducerLane,
    Taken,
    final_error,
    identity_is_lost,
    is_worth_repeating,
    may_have_taken_effect,
)
from lanner.errors import DeadlineExceeded, LannerError, NotLeader, ProducerFenced
from lanner.net.backoff import Backoff

_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
_RETRY_AFTER_MS_MAX: Final = 10_000
UNNUMBERED_INFLIGHT_MAX: Final = 64
MESSAGE_OVERHEAD_BYTES: Final = 16  # what a message takes in a batch beside its own bytes, rounded up


class Chance(Protocol):
    def random(self) -> float: ...


class Room(Protocol):
    """How much may be sent where a lane's batches go."""

    def left(self, lane: ProducerLane) -> int: ...
    def use(self, lane: ProducerLane, count: int) -> None: ...


class Accumulator:
    """One mutator per event: `add`, `take`, `acknowledged`, `failed`, `expire`. Each returns what the shell must do."""

    def __init__(
        self,
        *,
        rng: Chance,
        linger_ms: float = 0,
        batch_bytes: int = 128 * limits.KIB,
        batch_messages: int = 1_000,
        buffer_bytes_max: int = 32 * limits.MIB,
        inflight_max: int = limits.PRODUCER_RESULTS_KEPT,
        timeout_ms: float = 30_000,
        codec: Codec = Codec.NONE,
        idempotent: bool = True,
        stamp: Callable[[float], int] | None = None,
    ) -> None:
        self.linger_ms = linger_ms
        self.batch_bytes = batch_bytes
        self.batch_messages = batch_messages
        self.buffer_bytes_max = buffer_bytes_max
        self.inflight_max = inflight_max
        self.timeout_ms = timeout_ms
        self.codec = codec
        self.idempotent = idempotent
        self.stamp = stamp  # the wall clock at a moment of `now_ms`; None: messages carry no time
        self.identity: Identity | None = None
        self.buffered_bytes = 0
        self.batches = 0  # whose outcome is not known yet
        self._backoff = partial(Backoff, _PAUSE_S, _PAUSE_S_MAX, rng.random)
        self._lanes: dict[tuple[str, int, int, bool], ProducerLane] = {}
        self._active: dict[ProducerLane, None] = {}  # lanes with something to send, in the order they got it
        self._waiting_identity = False

    # ------------------------------------------------------------------ filling

    @property
    def full(self) -> bool:
        return self.buffered_bytes >= self.buffer_bytes_max

    @property
    def needs_identity(self) -> bool:
        """Something waits to be sent that needs a producer id, and there is none."""
        return self.identity is None and self._waiting_identity

    def lane(self, topic: str, partition: int, priority: int, sequenced: bool = True) -> ProducerLane:
        key = (topic, partition, priority, sequenced)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = ProducerLane(
                topic, partition, priority, sequenced and self.idempotent, self._backoff()
            )
        return lane

    def add(
        self,
        lane: ProducerLane,
        value: bytes,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        now_ms: float,
        deliver_at_ms: int = 0,
        expires_at_ms: int = 0,
    ) -> PendingBatch:
        """Put one message into the open batch of its kind; its position is the last one of the batch returned."""
        size = len(value) + MESSAGE_OVERHEAD_BYTES
        if key is not None or headers:
            size += side_bytes(key, headers)
        kind = (deliver_at_ms, expires_at_ms)
        batch = lane.opened.get(kind)
        if batch is None or batch.size + size > self.batch_bytes:
            if batch is not None:
                lane.sealed.append(lane.opened.pop(kind))
            batch = lane.opened[kind] = PendingBatch(lane, now_ms, deliver_at_ms, expires_at_ms)
            self.batches += 1
            self._active[lane] = None
        values = batch.values
        assert isinstance(values, list)
        if key is not None or batch.keys is not None:
            _extend_column(batch, "keys", len(values), key)
        if headers or batch.headers is not None:
            _extend_column(batch, "headers", len(values), headers)
        values.append(value)
        batch.size += size
        self.buffered_bytes += size
        if len(values) >= self.batch_messages:
            lane.sealed.append(lane.opened.pop(kind))
        return batch

    def add_sealed(
        self,
        lane: ProducerLane,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Mapping[str, bytes] | None] | None,
        size: int,
        now_ms: float,
        deliver_at_ms: int = 0,
        expires_at_ms: int = 0,
        dedup_id: bytes = b"",
    ) -> PendingBatch:
        """Columns that are one batch as they stand. What was added to the lane before goes before."""
        self._seal(lane)
        batch = PendingBatch(lane, now_ms, deliver_at_ms, expires_at_ms, dedup_id)
        batch.values, batch.keys, batch.headers, batch.size = values, keys, headers, size
        lane.sealed.append(batch)
        self.batches += 1
        self.buffered_bytes += size
        self._active[lane] = None
        return batch

    def seal_all(self) -> None:
        """Stop lingering: whatever is held may go now."""
        for lane in self._active:
            self._seal(lane)

    def _seal(self, lane: ProducerLane) -> None:
        lane.sealed.extend(lane.opened.values())
        lane.opened.clear()

    # ------------------------------------------------------------------ sending

    def take(self, now_ms: float, room: Room) -> Taken:
        """The batches to send now, in order, encoded and numbered; and those that cannot be encoded."""
        taken = Taken([], [])
        self._waiting_identity = False
        for lane in list(self._active):
            lane.held_up = False
            if now_ms < lane.retry_at_ms or (lane.resend and lane.unanswered):
                continue
            left = room.left(lane)
            if left <= 0:
                lane.held_up = True
                continue
            before = len(taken.batches)
            if lane.resend:
                lane.resend = False
                for batch in lane.flight:
                    batch.attempts += 1
                lane.unanswered = len(lane.flight)
                taken.batches.extend(lane.flight)
            if not self._take_fresh(lane, now_ms, before + left, taken):
                self._active.pop(lane, None)
            if len(taken.batches) > before:
                room.use(lane, len(taken.batches) - before)
        return taken

    def _take_fresh(self, lane: ProducerLane, now_ms: float, count_max: int, taken: Taken) -> bool:
        """Send what the lane's window allows. Returns whether the lane has to be looked at again by itself."""
        while lane.sealed or lane.opened:
            if len(lane.flight) >= self._window(lane):
                return True
            if not lane.sealed:
                kind, batch = next(iter(lane.opened.items()))
                if now_ms < batch.born_ms + self.linger_ms:
                    return True
                lane.sealed.append(lane.opened.pop(kind))
            if len(taken.batches) >= count_max:
                lane.held_up = True
                return True
            if lane.sequenced and lane.identity is None:
                if self.identity is None:
                    self._waiting_identity = True
                    return True
                lane.identity, lane.sequence = self.identity, 0
            batch = lane.sealed.popleft()
            try:
                self._number(batch)
            except LannerError as error:
                batch.error = error
                self._settle(batch)
                taken.refused.append(Failed(batch, error))
                continue
            batch.attempts += 1
            lane.flight.append(batch)
            lane.unanswered += 1
            taken.batches.append(batch)
        return False

    def _window(self, lane: ProducerLane) -> int:
        """How many batches may be in flight: without numbers nothing has to be remembered of them."""
        return self.inflight_max if lane.sequenced else UNNUMBERED_INFLIGHT_MAX

    def _number(self, batch: PendingBatch) -> None:
        lane = batch.lane
        identity = lane.identity if lane.sequenced else None
        sequence = -1 if identity is None else lane.sequence
        times = None if self.stamp is None else [self.stamp(batch.born_ms)] * len(batch.values)
        batch.data = encode(
            batch.values,
            keys=batch.keys,
            headers=batch.headers,
            timestamps=times,
            priority=lane.priority,
            codec=self.codec,
            producer_id=0 if identity is None else identity.producer_id,
            producer_epoch=0 if identity is None else identity.epoch,
            sequence=sequence,
            deliver_at_ms=batch.deliver_at_ms,
            expires_at_ms=batch.expires_at_ms,
            dedup_id=batch.dedup_id,
        )
        batch.sequence = sequence
        lane.sequence += 1  # only now: what could not be encoded has taken no number

    def next_due_ms(self, now_ms: float) -> float | None:
        """When `take` may have something to do without a further event; None: only an event brings it on."""
        due: float | None = None
        for lane in self._active:
            if lane.held_up:
                continue
            if lane.resend:
                moment = lane.retry_at_ms if not lane.unanswered else now_ms + self.timeout_ms
            elif len(lane.flight) >= self._window(lane):
                continue
            elif lane.sealed:
                moment = lane.retry_at_ms
            else:
                moment = min((one.born_ms + self.linger_ms for one in lane.opened.values()), default=now_ms)
                moment = max(moment, lane.retry_at_ms)
            due = moment if due is None else min(due, moment)
        return due

    # ------------------------------------------------------------------ what became of it

    def acknowledged(
        self, batch: PendingBatch, base_offset: int, timestamp_ms: int, duplicate: bool, now_ms: float
    ) -> list[Failed]:
        """The broker has it. Its lane may now send more, or judge what failed around it."""
        lane = batch.lane
        lane.unanswered -= 1
        lane.flight.remove(batch)
        lane.backoff.reset()
        batch.base_offset = base_offset
        batch.timestamp_ms = timestamp_ms
        batch.duplicate = duplicate
        batch.error = None
        self._settle(batch)
        if lane.resend and not lane.unanswered:
            return self._judge(lane, now_ms)
        if lane.sealed or lane.opened:
            self._active[lane] = None
        return []

    def failed(
        self, batch: PendingBatch, error: LannerError, now_ms: float, *, sent: bool = True, elsewhere: bool = False
    ) -> list[Failed]:
        """The sending failed. Returns every batch that has failed for good by it; the rest is sent again.

        `elsewhere`: it is known who would take it, so the first repetition need not wait.
        """
        lane = batch.lane
        lane.unanswered -= 1
        batch.error = error
        if sent and may_have_taken_effect(error):
            batch.uncertain = True
        if not lane.resend:
            lane.resend = True
            at_once = elsewhere and lane.backoff.is_fresh
            pause_ms = lane.backoff.pause_s() * 1_000
            lane.retry_at_ms = 0.0 if at_once else now_ms + pause_ms
        if error.retry_after_ms is not None and not isinstance(error, NotLeader):  # a leader is looked for meanwhile
            lane.retry_at_ms = max(lane.retry_at_ms, now_ms + min(error.retry_after_ms, _RETRY_AFTER_MS_MAX))
        self._active[lane] = None
        return [] if lane.unanswered else self._judge(lane, now_ms)

    def _judge(self, lane: ProducerLane, now_ms: float) -> list[Failed]:
        """Everything the lane sent is answered: decide what is sent again, what fails, and under which numbers."""
        too_old_ms = now_ms - self.timeout_ms
        flight = [batch for batch in lane.flight if batch.error is not None]
        assert len(flight) == len(lane.flight)
        if lane.sequenced and identity_is_lost(flight, too_old_ms):
            failures = self._start_anew(lane, too_old_ms)
        else:
            failures = self._keep_what_may_be_repeated(lane, too_old_ms)
        for failure in failures:
            failure.batch.error = failure.error
            self._settle(failure.batch)
        lane.resend = bool(lane.flight)
        if not lane.resend:
            if failures:
                lane.retry_at_ms = 0.0  # the rest of the lane has not failed: it need not wait
            if not (lane.sealed or lane.opened):
                self._active.pop(lane, None)
        return failures

    def _keep_what_may_be_repeated(self, lane: ProducerLane, too_old_ms: float) -> list[Failed]:
        failures: list[Failed] = []
        kept: list[PendingBatch] = []
        renumbered: list[PendingBatch] = []
        free_sequence = -1
        for batch in lane.flight:
            assert batch.error is not None
            repeatable = is_worth_repeating(batch.error) and (
                lane.sequenced or batch.dedup_id != b"" or not batch.uncertain
            )
            if not repeatable or batch.born_ms <= too_old_ms:
                failures.append(Failed(batch, final_error(batch)))
                if lane.sequenced and free_sequence < 0:
                    free_sequence = batch.sequence
            elif free_sequence >= 0:
                renumbered.append(batch)  # it cannot have taken effect: the one before it never did
            else:
                kept.append(batch)
        lane.flight = kept
        if free_sequence >= 0:
            lane.sequence = free_sequence
            self._return(lane, renumbered)
        return failures

    def _start_anew(self, lane: ProducerLane, too_old_ms: float) -> list[Failed]:
        """The numbering is lost. What surely had no effect goes out again under a new producer id."""
        failures: list[Failed] = []
        again: list[PendingBatch] = []
        for batch in lane.flight:
            assert batch.error is not None
            if batch.uncertain or batch.born_ms <= too_old_ms:
                failures.append(Failed(batch, final_error(batch)))
            elif isinstance(batch.error, ProducerFenced) or is_worth_repeating(batch.error):
                again.append(batch)
            else:
                failures.append(Failed(batch, batch.error))
        if self.identity == lane.identity:
            self.identity = None
        lane.identity = None
        lane.flight = []
        self._return(lane, again)
        return failures

    def _return(self, lane: ProducerLane, batches: list[PendingBatch]) -> None:
        for batch in batches:
            batch.sequence, batch.data, batch.error, batch.uncertain = -1, None, None, False
        lane.sealed.extendleft(reversed(batches))
        if batches:
            self._active[lane] = None

    @property
    def is_held_up(self) -> bool:
        """Whether something waits for room where it goes."""
        return any(lane.held_up for lane in self._active)

    def expire(self, now_ms: float) -> list[Failed]:
        """What is not under way and has waited too long."""
        too_old_ms = now_ms - self.timeout_ms
        failures = []
        for lane in list(self._active):
            if lane.resend and not lane.unanswered and lane.flight[0].born_ms <= too_old_ms:
                failures += self._judge(lane, now_ms)
            overdue = [batch for batch in lane.sealed if batch.born_ms <= too_old_ms]
            overdue += [batch for batch in lane.opened.values() if batch.born_ms <= too_old_ms]
            for batch in overdue:
                if batch in lane.sealed:
                    lane.sealed.remove(batch)
                else:
                    del lane.opened[batch.deliver_at_ms, batch.expires_at_ms]
                error = DeadlineExceeded("the broker could not be reached in time; the message was not sent")
                batch.error = error
                self._settle(batch)
                failures.append(Failed(batch, error))
        return failures

    def abandon(self, error: LannerError) -> list[Failed]:
        """The producer ends: everything still held has failed."""
        failures = []
        for lane in self._lanes.values():
            held = [*lane.flight, *lane.sealed, *lane.opened.values()]
            lane.flight, lane.unanswered, lane.resend = [], 0, False
            lane.sealed.clear()
            lane.opened.clear()
            for batch in held:
                batch.error = error
                self._settle(batch)
                failures.append(Failed(batch, error))
        self._active.clear()
        return failures

    def wake(self, concerned: Callable[[ProducerLane], bool]) -> None:
        """A broker can be reached again, or another leads: what waited there for a retry need not wait longer."""
        for lane in self._active:
            if concerned(lane):
                lane.retry_at_ms = 0.0
                lane.backoff.reset()

    def _settle(self, batch: PendingBatch) -> None:
        batch.settled = True
        batch.data = None
        self.batches -= 1
        self.buffered_bytes -= batch.size


def side_bytes(key: bytes | None, headers: Mapping[str, bytes] | None) -> int:
    """What a message's key and headers take in a batch, at most."""
    size = 0 if key is None else len(key) + MESSAGE_OVERHEAD_BYTES
    if headers:
        # A name may take up to four bytes for each of its characters.
        size += 4 * sum(map(len, headers)) + sum(map(len, headers.values())) + 10 * len(headers)
    return size


def _extend_column(batch: PendingBatch, name: str, count: int, item: Any) -> None:
    """Append to a column that exists only once one message needs it."""
    column = getattr(batch, name)
    if column is None:
        column = [None] * count
        setattr(batch, name, column)
    column.append(item)
