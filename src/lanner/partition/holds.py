"""Archive holds: what retention leaves alone because a named group has not read it yet.

A stream group holds what lies at or after its committed offset; one that has never committed holds everything. A queue
group holds what it has not been handed out (what it was handed and has not settled is kept anyway). A group that a hold
names does not expire.

A hold gives way by itself at its bounds: to what is older than `hold_ms_max`, and to the oldest while the partition has
more than `hold_bytes_max` bytes. What retention would keep anyway never goes for that. Where something else runs short
(the topic's `max_bytes`, the broker's disk), `hold_full` says what gives way: publishing (`reject`), or the hold
(`release`), which then ends at nine tenths of `max_bytes`, so that no publish is refused for it.
"""

from __future__ import annotations

from typing import NamedTuple

from lanner.limits import FETCH_BATCHES_LOOKED_AT
from lanner.model import FullPolicy, GroupKind, HoldFullPolicy, TopicSettings
from lanner.partition.batches import BatchRef
from lanner.partition.state import State


class Hold(NamedTuple):
    """What retention leaves alone at present."""

    offset: int  # whatever ends after it
    nexts: tuple[int, ...]  # by lane: whatever ends after this place
    given_way_offset: int  # but nothing that begins before this one
    given_way_ms: int  # nor what is this old, or older

    def keeps(self, ref: BatchRef) -> bool:
        if ref.base_offset < self.given_way_offset or aged_from_ms(ref) <= self.given_way_ms:
            return False
        return ref.base_offset + ref.count > self.offset or ref.lane_base + ref.count > self.nexts[ref.lane]


class HoldState(NamedTuple):
    """How far behind a group is that a hold names, on one partition."""

    group: str
    offset: int  # it has read what lies before
    behind: int  # messages at or after it
    held_bytes: int  # of batches at or after it; of many, estimated


def aged_from_ms(ref: BatchRef) -> int:
    return max(ref.append_ms, ref.deliver_at_ms)


def hold_of(state: State, settings: TopicSettings, now_ms: int) -> Hold | None:
    """The hold on a partition; None: there is none."""
    if not settings.hold_for:
        return None
    offset = state.end_offset
    nexts = [lane.end for lane in state.lanes]
    for name in settings.hold_for:
        group = state.groups.get(name)
        if group is not None and group.kind is GroupKind.QUEUE:
            nexts = [min(place, progress.next) for place, progress in zip(nexts, group.lanes, strict=True)]
        else:
            offset = min(offset, 0 if group is None else max(group.committed, 0))
    given_way_ms = now_ms - settings.hold_ms_max if settings.hold_ms_max else -1
    return Hold(offset, tuple(nexts), _given_way_offset(state, settings), given_way_ms)


def _given_way_offset(state: State, settings: TopicSettings) -> int:
    """What lies before it is the oldest part of a partition that is larger than a hold may make it."""
    bounds = [settings.hold_bytes_max] if settings.hold_bytes_max else []
    if settings.max_bytes and settings.hold_full is HoldFullPolicy.RELEASE:
        bounds.append(settings.max_bytes - settings.max_bytes // 10)
    excess = state.stored_bytes - min(bounds, default=state.stored_bytes)
    if excess <= 0:
        return 0
    offset = 0
    for looked_at, ref in enumerate(state.batches.walk(0)):
        if excess <= 0 or looked_at >= FETCH_BATCHES_LOOKED_AT:
            break
        excess -= ref.size
        offset = ref.base_offset + ref.count
    return offset


def next_way_ms(settings: TopicSettings, ref: BatchRef) -> int | None:
    """When a hold gives way to this batch by age; None: never."""
    return aged_from_ms(ref) + settings.hold_ms_max if settings.hold_ms_max else None


def refuses(state: State, settings: TopicSettings, size: int, now_ms: int) -> bool:
    """Whether so many bytes more have no room because the oldest, which would make it, are held."""
    if not settings.hold_for or settings.hold_full is not HoldFullPolicy.REJECT or not settings.max_bytes:
        return False
    if settings.full_policy is not FullPolicy.DROP_OLDEST or state.stored_bytes + size <= settings.max_bytes:
        return False
    hold, first = hold_of(state, settings, now_ms), state.batches.first()
    return hold is not None and first is not None and hold.keeps(first)


def hold_states(state: State, settings: TopicSettings) -> list[HoldState]:
    found = []
    first = state.batches.first()
    first_offset = state.end_offset if first is None else first.base_offset
    for name in settings.hold_for:
        group = state.groups.get(name)
        if group is not None and group.kind is GroupKind.QUEUE:
            behind = sum(lane.end - progress.next for lane, progress in zip(state.lanes, group.lanes, strict=True))
            offset = state.end_offset if not behind else _lowest_offset(state, [one.next for one in group.lanes])
        else:
            offset = max(first_offset, 0 if group is None else group.committed)
            behind = state.end_offset - offset
        found.append(HoldState(name, offset, behind, _bytes_from(state, offset, first_offset)))
    return found


def _lowest_offset(state: State, nexts: list[int]) -> int:
    """Of what was not handed out yet."""
    offsets = [next(lane.walk(place))[1] for lane, place in zip(state.lanes, nexts, strict=True) if place < lane.end]
    return min(offsets, default=state.end_offset)


def _bytes_from(state: State, offset: int, first_offset: int) -> int:
    """Of the batches at or after an offset: counted where they are few, else by their share of the offsets."""
    if offset <= first_offset:
        return state.stored_bytes
    counted = 0
    for looked_at, ref in enumerate(state.batches.walk(offset)):
        if looked_at >= FETCH_BATCHES_LOOKED_AT:
            return state.stored_bytes * (state.end_offset - offset) // (state.end_offset - first_offset)
        counted += ref.size
    return counted
