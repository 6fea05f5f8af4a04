"""Retention: which lanes' batches may go, and up to where.

By age and by bytes the oldest go first, whatever their lane. With `acked`, a lane's batches go as soon as every queue
group has passed them and every stream group has committed past them; a lane that starves holds back no other. What a
group still holds in a batch that goes is kept when the trim is applied (see `kept`). A topic that drops the oldest at
`max_bytes` is trimmed like one that is kept by bytes.

Nothing goes that is held for a group (see `holds`). Age counts from the latest of append and deliver_at. Trims come at
most once a second, unless the last one stopped only because it had done enough for one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace, merge
from typing import Final

from lanner.model import FullPolicy, GroupKind, Retention, TopicSettings
from lanner.partition import records
from lanner.partition.batches import BatchRef, LaneIndex
from lanner.partition.decision_builder import DecisionBuilder
from lanner.partition.groups import Group
from lanner.partition.holds import Hold, aged_from_ms, hold_of, next_way_ms
from lanner.partition.places import Entry
from lanner.partition.state import State

TRIM_BATCHES_MAX: Final = 1_024
HELD_BATCH_COST: Final = 4  # what is held in a batch has to be noted: that counts as so many plain batches
TRIM_INTERVAL_MS: Final = 1_000
UNSETTLED_BATCHES_LEFT: Final = 64  # with `acked`: so many passed batches of a lane may wait for their last settle
DEAD_LOOKED_AT_MAX: Final = 1_024


def trim(decision: DecisionBuilder, ticked: bool) -> None:
    """Write what may go now as one fact. What is acked is only looked for on a tick: it takes a walk, and a caller that
    polls should not pay for it each time."""
    state, settings, now_ms = decision.state, decision.settings, decision.now_ms
    if not state.batch_count or not is_time(state, settings, now_ms):
        return
    bounds = dict(decision.trims)
    left = TRIM_BATCHES_MAX
    hold = hold_of(state, settings, now_ms)
    if settings.retention is Retention.ACKED:
        if ticked:
            left = _trim_acked(state, bounds, left, hold)
    elif settings.retention_ms:
        left = _trim_aged(state, now_ms - settings.retention_ms, bounds, left, hold)
    bytes_max = byte_limit(settings)
    if bytes_max and left > 0:
        left = _trim_bytes(state, bytes_max, bounds, left, hold)
    if bounds:
        decision.trims = bounds
        decision.facts.append(records.Trimmed(sorted(bounds.items()), left <= 0))


def is_time(state: State, settings: TopicSettings, now_ms: int) -> bool:
    bytes_max = byte_limit(settings)
    if state.trim_more or (bytes_max and state.stored_bytes > bytes_max):
        return True
    return now_ms >= state.trimmed_ms + TRIM_INTERVAL_MS


def byte_limit(settings: TopicSettings) -> int:
    """The bytes beyond which the oldest batches go; 0: none."""
    kept = settings.retention_bytes if settings.retention is Retention.TIME else 0
    if settings.full_policy is FullPolicy.DROP_OLDEST and settings.max_bytes:
        return min(kept, settings.max_bytes) if kept else settings.max_bytes
    return kept


def _front(state: State, lane: LaneIndex, place: int, hold: Hold | None = None) -> Iterator[BatchRef]:
    """The batches of a lane from a place on, up to the first that is held."""
    if place < lane.end:
        for _, base_offset in lane.walk(place):
            ref = state.batches.get(base_offset)
            assert ref is not None
            if hold is not None and hold.keeps(ref):
                return
            yield ref


def _trim_aged(state: State, until_ms: int, bounds: dict[int, int], left: int, hold: Hold | None) -> int:
    if not _oldest_is_aged(state, until_ms):
        return left
    for number, lane in enumerate(state.lanes):
        for ref in _front(state, lane, lane.first, hold):
            if aged_from_ms(ref) > until_ms or left <= 0:
                break
            bounds[number] = ref.lane_base + ref.count
            left -= 1
    return left


def _oldest_is_aged(state: State, until_ms: int) -> bool:
    """Append times rise with offsets, so one look is enough to know that nothing has aged."""
    first = state.batches.first()
    return first is not None and first.append_ms <= until_ms


def _trim_bytes(state: State, bytes_max: int, bounds: dict[int, int], left: int, hold: Hold | None) -> int:
    """The oldest go until the rest fits: of the batches that stand first in their lanes, always the one with the lowest
    offset. A batch that waits for its time stays, and one that waited is only as old as what stands before it."""
    excess = state.stored_bytes - bytes_max
    fronts: list[tuple[int, int, BatchRef, Iterator[BatchRef]]] = []
    for number, lane in enumerate(state.lanes):
        batches = _front(state, lane, lane.first, hold)
        ref = next(batches, None)
        while ref is not None and ref.lane_base < bounds.get(number, 0):  # goes already
            excess -= ref.size
            ref = next(batches, None)
        if ref is not None:
            fronts.append((ref.base_offset, number, ref, batches))
    heapify(fronts)
    while fronts and excess > 0 and left > 0:
        _, number, ref, batches = fronts[0]
        bounds[number] = ref.lane_base + ref.count
        excess -= ref.size
        left -= 1
        following = next(batches, None)
        if following is None:
            heappop(fronts)
        else:
            heapreplace(fronts, (following.base_offset, number, following, batches))
    return left


# ------------------------------------------------------------------ acked


def _passed(state: State, number: int) -> tuple[int, int, int]:
    """Of a lane: the first place that some queue group has not passed, the first that some has not settled, and the
    lowest offset that some stream group has not committed past."""
    next_place = floor = state.lanes[number].end
    committed = state.end_offset
    for group in state.groups.values():
        if group.kind is GroupKind.QUEUE:
            progress = group.lanes[number]
            next_place = min(next_place, progress.next)
            floor = min(floor, progress.floor())
        else:
            committed = min(committed, max(group.committed, 0))
    return next_place, floor, committed


def _trim_acked(state: State, bounds: dict[int, int], left: int, hold: Hold | None) -> int:
    if not state.groups:
        return left
    for number, lane in enumerate(state.lanes):
        if lane.first < lane.end and _front_is_passed(state, number):
            left = _trim_acked_lane(state, number, bounds, left, hold)
    return left


def _front_is_passed(state: State, number: int) -> bool:
    """Whether every queue group has passed the lane's first batch: what most lanes fail, cheaply."""
    end = state.lanes[number].first_end()
    return all(group.lanes[number].next >= end for group in state.groups.values() if group.kind is GroupKind.QUEUE)


def _trim_acked_lane(state: State, number: int, bounds: dict[int, int], left: int, hold: Hold | None) -> int:
    """Settled batches go at once. Those in which something is still held wait a little, for most will be settled soon:
    only the last few of those passed are spared."""
    lane = state.lanes[number]
    next_place, floor, committed = _passed(state, number)
    if floor < lane.first_end() and next_place - lane.first <= UNSETTLED_BATCHES_LEFT:
        return left  # nothing is settled, and fewer batches are passed than may wait
    passed: list[int] = []  # the ends of batches that are passed, but not settled
    for ref in _front(state, lane, lane.first, hold):
        end = ref.lane_base + ref.count
        if end > next_place or ref.base_offset + ref.count > committed or left <= 0:
            break
        if end <= floor:
            bounds[number] = end
            left -= 1
            continue
        passed.append(end)
        if len(passed) > UNSETTLED_BATCHES_LEFT:
            bounds[number] = passed[len(passed) - 1 - UNSETTLED_BATCHES_LEFT]
            left -= HELD_BATCH_COST
    return left


# ------------------------------------------------------------------ when, and what makes room


def next_due_ms(state: State, settings: TopicSettings, now_ms: int) -> int | None:
    if not state.batch_count:
        return None
    if state.trim_more:
        return now_ms
    found: list[int] = []
    bytes_max = byte_limit(settings)
    hold = hold_of(state, settings, now_ms)
    if bytes_max and state.stored_bytes > bytes_max:
        found += _due_by_bytes(state, settings, now_ms, hold)
    again_ms = state.trimmed_ms + TRIM_INTERVAL_MS
    if settings.retention is Retention.ACKED:
        if state.groups:
            bounds: dict[int, int] = {}
            _trim_acked(state, bounds, 1, hold)
            if bounds:
                found.append(again_ms)
            elif hold is not None:
                found += [max(due_ms, again_ms) for due_ms in _due_by_way(state, settings, now_ms, hold)]
    elif settings.retention_ms:
        first = state.batches.first()
        if first is not None and first.append_ms + settings.retention_ms > now_ms:
            return min([*found, max(first.append_ms + settings.retention_ms, again_ms)])
        for lane in state.lanes:
            for ref in _front(state, lane, lane.first):
                due_ms = aged_from_ms(ref) + settings.retention_ms
                if hold is not None and hold.keeps(ref):
                    way_ms = next_way_ms(settings, ref)
                    if way_ms is None:
                        break  # a commit, or a batch that makes it too large, brings another look
                    due_ms = max(due_ms, way_ms)
                found.append(max(due_ms, again_ms))
                break
    return min(found, default=None)


def _due_by_bytes(state: State, settings: TopicSettings, now_ms: int, hold: Hold | None) -> list[int]:
    """Now, where a lane has a batch in front that may go; else when its hold gives way."""
    if any(True for lane in state.lanes for _ in _front(state, lane, lane.first, hold)):
        return [now_ms]
    return [] if hold is None else _due_by_way(state, settings, now_ms, hold)


def _due_by_way(state: State, settings: TopicSettings, now_ms: int, hold: Hold) -> list[int]:
    """When the hold gives way by age to what stands first in a lane."""
    found = []
    for lane in state.lanes:
        for ref in _front(state, lane, lane.first):
            way_ms = next_way_ms(settings, ref)
            if hold.keeps(ref) and way_ms is not None and way_ms > now_ms:
                found.append(way_ms)
            break
    return found


def oldest_kept_dead(state: State) -> Iterator[tuple[str, int, int, int]]:
    """(group, lane, place, bytes) of dead messages that pin what retention has passed, the oldest first."""
    streams = [_dead_of(group) for group in state.groups.values() if group.dead]
    for looked_at, (first_offset, name, lane, entry) in enumerate(merge(*streams, key=lambda each: each[0])):
        if looked_at >= DEAD_LOOKED_AT_MAX:
            return
        for at in range(entry.count):
            ref = state.kept.get(first_offset + at)
            if ref is not None:
                yield name, lane, entry.place + at, max(ref.size // ref.count, 1)


def _dead_of(group: Group) -> Iterator[tuple[int, str, int, Entry]]:
    for lane, entry in group.dead_from(0):
        yield entry.first_offset, group.name, lane, entry
