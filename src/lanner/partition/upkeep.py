"""What time brings about: leases end, retries come due, delays end, stages expire, retention takes, idle things are
forgotten.

Everything here is bounded per pass and cheap when nothing is due. `next_due_ms` says when a pass would find something,
so that nobody has to look in vain.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from lanner import features
from lanner.limits import PRODUCER_IDLE_MS
from lanner.model import DeadFullPolicy, GroupKind, TopicSettings
from lanner.partition import records, retention, stage_decisions
from lanner.partition.decision_builder import REASON_EXPIRED, DecisionBuilder
from lanner.partition.groups import Group
from lanner.partition.leases import LeaseRecord, Run
from lanner.partition.places import Entry, Standing
from lanner.partition.records import mask_bytes
from lanner.partition.state import State
from lanner.partition.views import GroupView

DUE_RANGES_MAX: Final = 512
DELAYS_MAX: Final = 256
FORGOTTEN_MAX: Final = 1_024
PRODUCERS_MAX: Final = 100_000
OWNED_MS: Final = 60_000  # so often it is looked whether a quiet group still has owners


def run(decision: DecisionBuilder, ticked: bool) -> None:
    state, now_ms = decision.state, decision.now_ms
    due_ms = state.group_due.first_ms()
    if due_ms is not None and due_ms <= now_ms:
        _end_leases_and_waits(decision)
    delay_ms = state.delayed.first_ms()
    if delay_ms is not None and delay_ms <= now_ms:
        _end_delays(decision)
    if state.groups:
        _drop_idle_groups(decision)
    if state.expiring_count and ticked:  # polls pass what has expired by themselves
        _skip_expired(decision)
    stage_decisions.expire(decision)
    retention.trim(decision, ticked)
    _discard_oldest_dead(decision)
    _forget(decision)


# ------------------------------------------------------------------ leases and retries


def _end_leases_and_waits(decision: DecisionBuilder) -> None:
    left = DUE_RANGES_MAX
    for name in decision.state.group_due.until(decision.now_ms, DUE_RANGES_MAX):
        view = decision.view(name)
        if view is None or view.closed or view.made:
            continue
        for token in view.group.deadlines.until(decision.now_ms, left):
            left -= _end_lease(decision, view, view.group.leases[token])
            if left <= 0:
                return
        left -= _end_waits(decision, view, left)
        if left <= 0:
            return


def _end_lease(decision: DecisionBuilder, view: GroupView, lease: LeaseRecord) -> int:
    """End the parts whose deadline has passed; gives back how many segments that touched."""
    name, token = view.group.name, lease.token
    over = 0
    for part in lease.parts:
        if part.deadline_ms <= decision.now_ms:
            over |= part.mask
    over &= view.live_of(lease) & ~view.extended.get(token, 0)
    if not over:
        return 1
    expired = _expired_mask(decision, lease, over)
    if expired:
        decision.facts.append(records.Acked(name, token, mask_bytes(expired)))
        view.outstanding -= expired.bit_count()
    dying = decision.exhausted(lease, over & ~expired)
    if dying:
        decision.number_deaths(view)
        decision.facts.append(records.Died(name, token, mask_bytes(dying), REASON_EXPIRED))
        view.outstanding -= dying.bit_count()
    back = over & ~expired & ~dying
    if back:
        decision.facts.append(records.LeaseEnded(name, token, mask_bytes(back)))
        for run in lease.runs(back):
            view.add_ready(run, run.attempt)
    view.live[token] = view.live_of(lease) & ~over
    return sum(1 for _ in lease.touched(over))


def _expired_mask(decision: DecisionBuilder, lease: LeaseRecord, mask: int) -> int:
    """Which of these messages are past their expiry."""
    state = decision.state
    expired = 0
    if not state.expiring_count:
        return 0
    for run in lease.runs(mask):
        offset, end = run.first_offset, run.first_offset + run.count
        while offset < end:
            ref = state.batch(offset)
            assert ref is not None
            stop = min(end, ref.base_offset + ref.count)
            if 0 < ref.expires_at_ms <= decision.now_ms:
                expired |= lease.mask_between(offset, stop - offset)
            offset = stop
    return expired & mask


def _end_waits(decision: DecisionBuilder, view: GroupView, limit: int) -> int:
    group = view.group
    places = group.due.until(decision.now_ms, limit)
    if not places:
        return 0
    for lane, place in places:
        entry = group.lanes[lane].entry_at(place, Standing.WAITING)
        assert entry is not None
        view.add_ready(_run_of(lane, entry), entry.attempts)
    decision.facts.append(records.WaitOver(group.name, places))
    return len(places)


def _run_of(lane: int, entry: Entry) -> Run:
    return Run(lane, entry.place, entry.count, entry.first_offset, entry.attempts)


# ------------------------------------------------------------------ delays and expiry


def _end_delays(decision: DecisionBuilder) -> None:
    """Delayed batches get their places when this is applied, behind whatever is appended until then. So polls of this
    pass cannot have them, and must not take anything less urgent before them either."""
    bases = decision.state.delayed.until(decision.now_ms, DELAYS_MAX)
    for base_offset in bases:
        ref = decision.state.batches.get(base_offset)
        assert ref is not None
        decision.lowest_lane = max(decision.lowest_lane, ref.lane)
    decision.facts.append(records.DelayOver(bases))


def _expiring_fronts(state: State, group: Group) -> Iterator[tuple[int, int]]:
    """The lanes whose next fresh batch of the group expires, and when."""
    for number, lane in enumerate(state.lanes):
        place = group.lanes[number].next
        if place < lane.end:
            ref = state.batches.get(lane.base_offset_at(place))
            assert ref is not None
            if ref.expires_at_ms:
                yield number, ref.expires_at_ms


def _skip_expired(decision: DecisionBuilder) -> None:
    """Fresh messages at the front of a lane that nobody polls expire too. Those further back do when it is their
    turn."""
    state, left = decision.state, DUE_RANGES_MAX
    for name, group in state.groups.items():
        view = decision.view(name)
        if group.kind is not GroupKind.QUEUE or view is None or view.closed or view.group is not group:
            continue
        ranges: list[tuple[int, int, int]] = []
        for lane, expires_ms in _expiring_fronts(state, group):
            if expires_ms <= decision.now_ms:
                left -= _skip_front(decision, view, lane, ranges, left)
        if ranges:
            decision.facts.append(records.Skipped(name, ranges))
        if left <= 0:
            return


def _skip_front(
    decision: DecisionBuilder, view: GroupView, lane: int, ranges: list[tuple[int, int, int]], limit: int
) -> int:
    place, skipped = view.nexts[lane], 0
    start = place
    for lane_base, base_offset in decision.state.lanes[lane].walk(place):
        ref = decision.state.batches.get(base_offset)
        assert ref is not None
        if not 0 < ref.expires_at_ms <= decision.now_ms or skipped >= limit:
            break
        place = lane_base + ref.count
        skipped += 1
    if place > start:
        ranges.append((lane, start, place - start))
        view.nexts[lane] = place
    return skipped


# ------------------------------------------------------------------ forgetting


def _drop_idle_groups(decision: DecisionBuilder) -> None:
    until_ms = decision.now_ms - decision.settings.group_idle_ms
    for name, group in decision.state.groups.items():
        if group.active_ms > until_ms:
            return
        kept = name in decision.wanted or bool(group.leases) or name in decision.settings.hold_for
        if not kept and name not in decision.owned:
            decision.drop_group(name)


def _discard_oldest_dead(decision: DecisionBuilder) -> None:
    state, settings = decision.state, decision.settings
    excess = state.kept.pinned_bytes - settings.pinned_bytes_max
    if excess <= 0 or settings.dead_full is not DeadFullPolicy.DISCARD_OLDEST:
        return
    for name, lane, place, size in retention.oldest_kept_dead(state):
        view = decision.view(name)
        if view is None or view.closed or view.dead_gone or (lane, place) in view.dead_taken:
            continue
        view.dead_taken.add((lane, place))
        decision.facts.append(records.Discarded(name, [(lane, place, 1)]))
        excess -= size
        if excess <= 0:
            return


def _forget(decision: DecisionBuilder) -> None:
    state, now_ms = decision.state, decision.now_ms
    until_ms = now_ms - PRODUCER_IDLE_MS
    first_ms = state.producers.first_active_ms()
    if first_ms is not None:
        if first_ms <= until_ms:
            decision.facts.append(records.ProducersForgotten(state.producers.idle(until_ms, FORGOTTEN_MAX)))
        elif len(state.producers) > PRODUCERS_MAX:
            excess = min(len(state.producers) - PRODUCERS_MAX, FORGOTTEN_MAX)
            floors = decision.feature_level >= features.PRODUCER_FLOORS
            refused_until_ms = now_ms + PRODUCER_IDLE_MS if floors else 0
            decision.facts.append(records.ProducersForgotten(state.producers.idle(now_ms, excess), refused_until_ms))
    until_ms = now_ms - decision.settings.dedup_window_ms
    first_ms = state.dedup.first_append_ms()
    if first_ms is not None and first_ms <= until_ms:  # never inside their window: at their bound, new ones are refused
        last_ms = state.dedup.last_of_oldest(until_ms, FORGOTTEN_MAX)
        if last_ms is not None:
            decision.facts.append(records.DedupForgotten(last_ms))


# ------------------------------------------------------------------ when


def next_due_ms(state: State, settings: TopicSettings, now_ms: int, owned: Container[str] = ()) -> int | None:
    """When a pass without requests would find something to do; now or earlier: at once."""
    found = [state.group_due.first_ms(), state.delayed.first_ms(), retention.next_due_ms(state, settings, now_ms)]
    found.append(state.stages.expiry.first_ms())
    for group in state.groups.values():
        if group.name in settings.hold_for:
            continue
        idle_ms = group.active_ms + settings.group_idle_ms
        if idle_ms <= now_ms and group.name in owned:
            found.append(now_ms + OWNED_MS)  # members come and go without a word to this partition
            continue
        if not group.leases:
            found.append(idle_ms)
        break
    active_ms = state.producers.first_active_ms()
    if active_ms is not None:
        found.append(now_ms if len(state.producers) > PRODUCERS_MAX else active_ms + PRODUCER_IDLE_MS)
    append_ms = state.dedup.first_append_ms()
    if append_ms is not None:
        found.append(append_ms + settings.dedup_window_ms)
    if state.expiring_count:
        for group in state.groups.values():
            if group.kind is GroupKind.QUEUE:
                found += [expires_ms for _, expires_ms in _expiring_fronts(state, group)]
    if state.kept.pinned_bytes > settings.pinned_bytes_max and settings.dead_full is DeadFullPolicy.DISCARD_OLDEST:
        found += [now_ms for _ in retention.oldest_kept_dead(state)][:1]
    return min((each for each in found if each is not None), default=None)
