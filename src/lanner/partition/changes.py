"""Applying: with `appends`, the only code that changes a partition.

Appends and stages run fixed rules; a decision's facts are carried out one after the other. No policy, no setting and no
clock is consulted here, so every replica that applies the same entries has the same rows. A fact about something that
is no longer there is without effect: appends may come between a decision and its application, and nothing may ever stop
a log from being applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lanner.errors import LannerError, UnknownRecord
from lanner.model import GroupKind
from lanner.partition import records
from lanner.partition.appends import store
from lanner.partition.batches import NOT_PLACED, BatchRef
from lanner.partition.groups import Group
from lanner.partition.kept import kept_size
from lanner.partition.leases import runs_of
from lanner.partition.places import LaneProgress, Standing
from lanner.partition.records import mask_of
from lanner.partition.requests import Outcome, Prepared
from lanner.partition.staging import StagedBatch
from lanner.partition.state import State

_NOTHING: Final[tuple[tuple[int, tuple[int, ...] | None, int], ...]] = ()


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
            group.committed, group.metadata = fact.offset, b""
            return
        bounded = [min(max(at, lane.first), lane.end) for at, lane in zip(fact.nexts, self.state.lanes, strict=False)]
        group.seek(fact.offset, bounded)
        self.deliverable = True

    def fence(self, fact: records.Fenced) -> None:
        group = self._group(fact.group)
        if group is not None:
            group.fence = max(group.fence, (fact.number, fact.grant))

    def note_commit(self, fact: records.CommitNoted) -> None:
        group = self._group(fact.group)
        if group is not None:
            group.metadata = fact.metadata

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

    def skip(self, fact: records.Skipped) -> None:
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
            if group.dead_numbers.end >= 0:
                self.deliverable = True  # to those who read the dead letters as a stream
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

    def number_dead(self, fact: records.DeadNumbered) -> None:
        group = self._group(fact.group)
        if group is not None:
            group.number_dead()

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
            self.state.producers.forget(producer_id, active_ms, fact.refused_until_ms)

    def forget_dedup(self, fact: records.DedupForgotten) -> None:
        self.state.dedup.forget(fact.until_ms)

    # ---- stages

    def prepare_stages(self, fact: records.StagesPrepared) -> None:
        stages = self.state.stages
        stages.metadata_index = max(stages.metadata_index, fact.metadata_index)
        if fact.token in stages.prepared or not fact.manifest:
            return
        if stages.missing(fact.transaction, fact.owner, fact.sequence, fact.manifest):
            return  # something was staged to one of them since: the try ends at its deadline
        manifest = tuple(fact.manifest)
        stages.prepare(
            fact.token, Prepared(fact.transaction, fact.owner, fact.sequence, manifest, 0, self.now_ms, 0, 0)
        )

    def publish_stages(self, fact: records.StagesPublished) -> None:
        for batch in self._deal(fact):
            ref = store(self.state, batch.index, batch.size, batch)
            self.deliverable = self.deliverable or ref.lane_base != NOT_PLACED

    def withdraw_stages(self, fact: records.StagesWithdrawn) -> None:
        self.released += [(batch.index, None, 0) for batch in self._deal(fact)]

    def _deal(self, fact: records.StagesPublished | records.StagesWithdrawn) -> list[StagedBatch]:
        stages = self.state.stages
        stages.metadata_index = max(stages.metadata_index, fact.metadata_index)
        prepared = stages.prepared.get(fact.token)
        if prepared is None or prepared.dealt != fact.first:
            return []
        return stages.deal(fact.token, fact.count)

    def drop_stages(self, fact: records.StagesDropped) -> None:
        for attempt, active_ms in fact.attempts:
            self.released += [(index, None, 0) for index in self.state.stages.drop(attempt, active_ms, self.now_ms)]

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
    records.Skipped: _Changes.skip,
    records.Acked: _Changes.ack,
    records.Nacked: _Changes.nack,
    records.Died: _Changes.die,
    records.Extended: _Changes.extend,
    records.Released: _Changes.release,
    records.LeaseEnded: _Changes.end_lease,
    records.WaitOver: _Changes.end_wait,
    records.Redriven: _Changes.redrive,
    records.Discarded: _Changes.discard,
    records.DeadNumbered: _Changes.number_dead,
    records.Fenced: _Changes.fence,
    records.CommitNoted: _Changes.note_commit,
    records.DelayOver: _Changes.end_delay,
    records.Trimmed: _Changes.trim,
    records.ProducersForgotten: _Changes.forget_producers,
    records.DedupForgotten: _Changes.forget_dedup,
    records.StagesPrepared: _Changes.prepare_stages,
    records.StagesPublished: _Changes.publish_stages,
    records.StagesWithdrawn: _Changes.withdraw_stages,
    records.StagesDropped: _Changes.drop_stages,
}
