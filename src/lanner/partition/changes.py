"""Applying: the only code that changes a partition.

An append runs fixed rules (sequence, dedup, offsets, lane places); a decision's facts are carried out one after the
other. No policy, no setting and no clock is consulted here, so every replica that applies the same entries has the same
rows. A fact about something that is no longer there is without effect: appends may come between a decision and its
application, and nothing may ever stop a log from being applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from lanner.errors import LannerError, MalformedBatch, UnknownRecord, UnsupportedVersion
from lanner.limits import BATCH_MESSAGES_MAX, TIME_MS_MAX
from lanner.model import LANES, GroupKind
from lanner.partition import records
from lanner.partition.batches import NOT_PLACED, BatchRef
from lanner.partition.groups import Group
from lanner.partition.kept import kept_size
from lanner.partition.leases import runs_of
from lanner.partition.places import LaneProgress, Standing
from lanner.partition.producers import SentBatch
from lanner.partition.records import mask_of
from lanner.partition.requests import Appended, Outcome
from lanner.partition.state import State


class HeaderLike(Protocol):
    """What a partition needs to know of a batch."""

    @property
    def count(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def deliver_at_ms(self) -> int: ...
    @property
    def expires_at_ms(self) -> int: ...
    @property
    def dedup_id(self) -> bytes: ...


_NOTHING: Final[tuple[tuple[int, tuple[int, ...] | None, int], ...]] = ()


# ------------------------------------------------------------------ appends


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
    return _store(state, index, len(payload) - records.APPEND_PREFIX_BYTES, header)


def _read_header(payload: bytes, header_of: Callable[[memoryview], HeaderLike]) -> HeaderLike:
    try:
        header = header_of(memoryview(payload)[records.APPEND_PREFIX_BYTES :])
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
            header.producer_id, header.producer_epoch, header.priority, header.sequence
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


def _store(state: State, index: int, size: int, header: HeaderLike) -> Outcome:
    base_offset = state.end_offset
    count = header.count
    lane = header.priority
    now_ms = state.machine_ms
    deliver_at_ms = header.deliver_at_ms
    delayed = deliver_at_ms > now_ms
    if delayed:
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
    if header.producer_id:
        _note_producer(state, header, base_offset, count, now_ms)
    if header.dedup_id:
        state.dedup.note(bytes(header.dedup_id), base_offset, count, now_ms)
    return Outcome(Appended(base_offset, count, now_ms, False), True, _NOTHING, not delayed)


# ------------------------------------------------------------------ decisions


def apply_decision(state: State, index: int, payload: bytes) -> Outcome:
    try:
        decision = records.decode_decision(payload)
    except UnknownRecord:
        raise
    except LannerError as error:
        return Outcome(error, False, _NOTHING, False)
    if decision.now_ms > state.machine_ms:
        state.machine_ms = decision.now_ms
    changes = _Changes(state, index)
    for fact in decision.facts:
        _HANDLERS[type(fact)](changes, fact)
    changes.finish()
    return Outcome(None, False, changes.released, changes.deliverable)


class _Changes:
    """One decision being applied: what it touched, and what it set free."""

    def __init__(self, state: State, index: int) -> None:
        self.state = state
        self.index = index
        self.now_ms = state.machine_ms
        self.released: list[tuple[int, tuple[int, ...] | None, int]] = []
        self.deliverable = False
        self._touched: dict[str, Group] = {}
        self._changed: dict[str, Group] = {}
        self._freed: list[tuple[int, int]] = []

    def _group(self, name: str) -> Group | None:
        """The group a fact is about; it counts as used."""
        group = self._touched.get(name)
        if group is None:
            group = self.state.groups.get(name)
            if group is not None:
                self._touched[name] = group
        return group

    def _moved(self, name: str) -> Group | None:
        """The same for facts that time brought about: nobody used the group."""
        group = self.state.groups.get(name)
        if group is not None:
            self._changed[name] = group
            self.deliverable = True
        return group

    def finish(self) -> None:
        state = self.state
        for group in self._touched.values():
            state.touch(group, self.now_ms)
            self._collect(group)
        for group in self._changed.values():
            state.changed(group)
            self._collect(group)
        if self._freed:
            self._shrink_kept()

    def _collect(self, group: Group) -> None:
        if group.freed:
            self._freed += group.freed
            group.freed = []
        if group.ended:
            for lease in group.ended:
                group.memory.remember(lease, self.now_ms)
            group.ended = []

    # ---- groups

    def make_group(self, fact: records.GroupMade) -> None:
        state = self.state
        if fact.group in state.groups:
            return
        kind = GroupKind.STREAM if fact.kind == GroupKind.STREAM else GroupKind.QUEUE
        group = Group(state.next_group_id, fact.group, kind, state.lanes)
        state.next_group_id += 1
        group.start_offset = fact.start_offset
        for lane, progress, next_place in zip(state.lanes, group.lanes, fact.nexts, strict=False):
            progress.next = min(max(next_place, lane.first), lane.end)
        state.groups[fact.group] = group
        self._touched[fact.group] = group

    def drop_group(self, fact: records.GroupDropped) -> None:
        group = self.state.groups.get(fact.group)
        if group is None:
            return
        self._touched.pop(fact.group, None)
        self._changed.pop(fact.group, None)
        self._collect(group)
        self.state.forget_group(group)
        for ref in self.state.kept:
            if group.lanes[ref.lane].held_mask(ref.lane_base, ref.count):
                self._freed.append((ref.base_offset, ref.count))

    def touch_group(self, fact: records.GroupTouched) -> None:
        self._group(fact.group)

    def commit(self, fact: records.Committed) -> None:
        group = self._group(fact.group)
        if group is not None:
            group.commit(fact.offset, fact.reader, fact.sequence)

    def seek(self, fact: records.Sought) -> None:
        group = self._group(fact.group)
        if group is None:
            return
        if group.kind is GroupKind.STREAM:
            group.committed = fact.offset
            return
        bounded = [min(max(at, lane.first), lane.end) for at, lane in zip(fact.nexts, self.state.lanes, strict=False)]
        group.seek(fact.offset, bounded)
        self.deliverable = True

    # ---- deliveries

    def lease(self, fact: records.Leased) -> None:
        group = self._group(fact.group)
        if group is not None and fact.segments:
            group.lease(self.index, fact.segments, fact.deadline_ms, fact.member, fact.sequence)

    def take(self, fact: records.Taken) -> None:
        group = self._group(fact.group)
        if group is not None:
            for lane, place, count in fact.ranges:
                group.take(lane, place, count)

    def pass_over(self, fact: records.Passed) -> None:
        group = self._moved(fact.group)
        if group is not None:
            for lane, place, count in fact.ranges:
                group.take(lane, place, count)

    def ack(self, fact: records.Acked) -> None:
        group = self._group(fact.group)
        if group is not None:
            group.ack(fact.token, mask_of(fact.mask), fact.asked)
            self._room_made(group)

    def _room_made(self, group: Group) -> None:
        """A poll may have waited only because the group held all it may."""
        if not self.deliverable:
            lanes = self.state.lanes
            self.deliverable = any(progress.next < lane.end for progress, lane in zip(group.lanes, lanes, strict=True))

    def nack(self, fact: records.Nacked) -> None:
        group = self._group(fact.group)
        if group is None:
            return
        if fact.due_ms > self.now_ms:
            group.give_back(fact.token, mask_of(fact.mask), Standing.WAITING, fact.due_ms, "", False, fact.asked)
        else:
            group.give_back(fact.token, mask_of(fact.mask), Standing.READY, 0, "", False, fact.asked)
            self.deliverable = True

    def die(self, fact: records.Died) -> None:
        group = self._group(fact.group)
        if group is not None:
            mask = mask_of(fact.mask)
            group.give_back(fact.token, mask, Standing.DEAD, self.now_ms, fact.reason, False, fact.asked)
            self._room_made(group)

    def extend(self, fact: records.Extended) -> None:
        group = self._group(fact.group)
        if group is not None:
            group.extend(fact.token, mask_of(fact.mask), fact.deadline_ms, fact.asked)

    def release(self, fact: records.Released) -> None:
        group = self._group(fact.group)
        if group is not None:
            group.give_back(fact.token, mask_of(fact.mask), Standing.READY, 0, "", uncount=True)
            self.deliverable = True

    def end_lease(self, fact: records.LeaseEnded) -> None:
        group = self._moved(fact.group)
        if group is not None:
            group.give_back(fact.token, mask_of(fact.mask), Standing.READY, 0, "", uncount=False)

    def end_wait(self, fact: records.WaitOver) -> None:
        group = self._moved(fact.group)
        if group is not None:
            for lane, place in fact.places:
                group.end_wait(lane, place)

    def redrive(self, fact: records.Redriven) -> None:
        group = self._group(fact.group)
        if group is not None:
            for lane, place, count in fact.ranges:
                group.cut_dead(lane, place, count, redrive=True)
            self.deliverable = True

    def discard(self, fact: records.Discarded) -> None:
        group = self._group(fact.group)
        if group is not None:
            for lane, place, count in fact.ranges:
                group.cut_dead(lane, place, count, redrive=False)

    # ---- the log

    def end_delay(self, fact: records.DelayOver) -> None:
        state = self.state
        for base_offset in fact.base_offsets:
            ref = state.batches.get(base_offset)
            if ref is None or ref.lane_base != NOT_PLACED or ref.base_offset != base_offset:
                continue
            lane_base = state.lanes[ref.lane].append(base_offset, ref.count)
            state.batches.replace(ref._replace(lane_base=lane_base))
            state.delayed.drop(base_offset)
            self.deliverable = True

    def trim(self, fact: records.Trimmed) -> None:
        state = self.state
        for lane_number, bound in fact.bounds:
            lane = state.lanes[lane_number]
            bound = min(bound, lane.end)
            holders = self._holders(lane_number)
            for base_offset in lane.trim(bound):
                ref = state.batches.get(base_offset)
                assert ref is not None
                state.batches.discard(base_offset)
                state.stored_bytes -= ref.size
                state.batch_count -= 1
                self._keep_held(ref, holders)
            for group in state.groups.values():
                progress = group.lanes[lane_number]
                if progress.next < bound and group.kind is GroupKind.QUEUE:
                    progress.next = bound
                    self._changed[group.name] = group
        state.trimmed_ms = self.now_ms
        state.trim_more = fact.more

    def forget_producers(self, fact: records.ProducersForgotten) -> None:
        for producer_id, active_ms in fact.producers:
            self.state.producers.forget(producer_id, active_ms)

    def forget_dedup(self, fact: records.DedupForgotten) -> None:
        self.state.dedup.forget(fact.until_ms)

    # ---- kept batches

    def _holders(self, lane: int) -> list[LaneProgress]:
        """The progress of those groups that hold anything in the lane."""
        return [group.lanes[lane] for group in self.state.groups.values() if group.lanes[lane].row_numbers]

    def _keep_held(self, ref: BatchRef, holders: list[LaneProgress]) -> None:
        """Retention passed this batch: keep what groups hold in it, or let it go."""
        state = self.state
        held = 0
        for progress in holders:
            held |= progress.held_mask(ref.lane_base, ref.count)
        if held:
            kept = tuple(at for first, count in runs_of(held) for at in range(first, first + count))
            if kept != ref.kept:
                ref = ref._replace(kept=kept)
                state.kept.put(ref)
                self.released.append((ref.index, kept, kept_size(ref)))
            return
        if ref.kept is not None:
            state.kept.remove(ref)
        if ref.expires_at_ms:
            state.expiring_count -= 1
        self.released.append((ref.index, None, 0))

    def _shrink_kept(self) -> None:
        affected: dict[int, BatchRef] = {}
        for first_offset, count in self._freed:
            for ref in self.state.kept.between(first_offset, count):
                affected[ref.base_offset] = ref
        for ref in affected.values():
            self._keep_held(ref, self._holders(ref.lane))


_HANDLERS: Final[dict[type, Callable[[_Changes, Any], None]]] = {
    records.GroupMade: _Changes.make_group,
    records.GroupDropped: _Changes.drop_group,
    records.GroupTouched: _Changes.touch_group,
    records.Committed: _Changes.commit,
    records.Sought: _Changes.seek,
    records.Leased: _Changes.lease,
    records.Taken: _Changes.take,
    records.Passed: _Changes.pass_over,
    records.Acked: _Changes.ack,
    records.Nacked: _Changes.nack,
    records.Died: _Changes.die,
    records.Extended: _Changes.extend,
    records.Released: _Changes.release,
    records.LeaseEnded: _Changes.end_lease,
    records.WaitOver: _Changes.end_wait,
    records.Redriven: _Changes.redrive,
    records.Discarded: _Changes.discard,
    records.DelayOver: _Changes.end_delay,
    records.Trimmed: _Changes.trim,
    records.ProducersForgotten: _Changes.forget_producers,
    records.DedupForgotten: _Changes.forget_dedup,
}
