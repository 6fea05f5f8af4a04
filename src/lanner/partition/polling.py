"""Polls: which messages go to whom, strictly by priority.

Lane 9 comes first. In a lane, retries come before fresh messages, each in place order. Nothing of a lower lane is taken
while a higher one has something deliverable. A group that holds `outstanding_max` messages is served retries only. Of
a batch, a message's size is taken as the average; at least one message is served, however large. The bytes are read
after the decision, and what then does not fit is given back. A poll that settles by itself what it gets cannot do
that: it begins a batch only when the reply has room for all of it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from lanner.errors import GroupKindConflict, LannerError, ValidationError
from lanner.limits import MEMBER_LENGTH_MAX, POLL_BYTES_MAX, POLL_MESSAGES_MAX
from lanner.model import LANES, GroupKind
from lanner.partition import records
from lanner.partition.batches import BatchRef
from lanner.partition.decision_builder import DecisionBuilder
from lanner.partition.fences import NO_FENCE, check_fence, leaves_trace
from lanner.partition.places import ROW_PLACES, Entry, split_by_row
from lanner.partition.records import Segment
from lanner.partition.requests import WAIT, Answer, Lease, Poll, PollAnswer
from lanner.partition.views import GroupView

SKIPPED_BATCHES_MAX: Final = 1_024
SEGMENTS_MAX: Final = 20_000  # what all polls of one pass may take together, so that no record grows too large
_TOUCH_MS: Final = 3_600_000
_WITHIN_ROW: Final = ROW_PLACES - 1
_new: Final = tuple.__new__  # thousands of small values a poll: half the cost of calling the class


def answer(decision: DecisionBuilder, poll: Poll) -> Answer:
    try:
        return _answer(decision, poll)
    except LannerError as error:
        return error


def _answer(decision: DecisionBuilder, poll: Poll) -> Answer:
    if not 0 < poll.max_messages <= POLL_MESSAGES_MAX:
        raise ValidationError(f"max_messages is {poll.max_messages}: 1 to {POLL_MESSAGES_MAX}", field="max_messages")
    if len(poll.member) > MEMBER_LENGTH_MAX:
        raise ValidationError(f"the member's name is longer than {MEMBER_LENGTH_MAX}", field="member")
    view = decision.view(poll.group)
    if view is None:
        view = decision.make_group(poll.group, GroupKind.QUEUE, poll.start)
    elif view.group.kind is not GroupKind.QUEUE:
        raise GroupKindConflict(f"{poll.group!r} is a stream group; poll under another name", group=poll.group)
    if view.closed:
        return WAIT
    if decision.segments >= SEGMENTS_MAX:
        decision.facts.append(records.Skipped(poll.group, []))  # says that there is more: look again
        return WAIT
    if not poll.auto_ack:
        repeated = _find_repeat(decision, view, poll)
        if repeated is not None:
            return repeated
    if poll.fence is not None or view.fence != NO_FENCE:
        check_fence(poll.group, view.fence, poll.fence)
    return _Taking(decision, view, poll).take()


def _find_repeat(decision: DecisionBuilder, view: GroupView, poll: Poll) -> PollAnswer | None:
    """What the same poll got before, as far as it is still leased."""
    key = (poll.member, poll.sequence)
    decided = view.polls.get(key)
    if decided is not None:
        return decided
    token = view.group.polls.get(key)
    if token is None:
        return None
    lease = view.group.leases[token]
    live = view.live_of(lease)
    parts = [part for part in lease.parts if (part.member, part.sequence) == key]
    leases: list[Lease] = []
    for part in parts:
        for run in lease.runs(part.mask & live):
            leases += _by_batch(decision, run.first_offset, run.count, run.attempt)
    if not leases:
        return None
    return PollAnswer(leases, min(part.deadline_ms for part in parts), False, token)


def _by_batch(decision: DecisionBuilder, first_offset: int, count: int, attempt: int) -> list[Lease]:
    leases: list[Lease] = []
    while count:
        ref = decision.state.batch(first_offset)
        assert ref is not None, f"offset {first_offset} is leased, but its batch is gone"
        fits = min(count, ref.base_offset + ref.count - first_offset)
        leases.append(Lease(ref, first_offset, fits, attempt))
        first_offset += fits
        count -= fits
    return leases


class _Taking:
    """One poll being served."""

    def __init__(self, decision: DecisionBuilder, view: GroupView, poll: Poll) -> None:
        self.decision = decision
        self.view = view
        self.poll = poll
        self.messages_left = poll.max_messages
        self.bytes_left = poll.max_bytes
        self.whole_bytes_left = (
            POLL_BYTES_MAX if poll.auto_ack else None
        )  # if all of a batch's bytes were in what is taken
        self.room = decision.settings.outstanding_max - view.outstanding
        self.limited = self.room <= 0 and not poll.auto_ack
        self.leases: list[Lease] = []
        self.segments: list[Segment] = []
        self.apart = 0  # a segment is wholly retries or wholly fresh: those before this number do not grow
        self.skipped: list[tuple[int, int, int]] = []

    def take(self) -> Answer:
        decision, view, poll = self.decision, self.view, self.poll
        lanes = decision.state.lanes
        for lane in range(LANES - 1, max(decision.lowest_lane, poll.min_lane) - 1, -1):
            if view.has_ready(lane) and not self._take_retries(lane):
                break
            next_place = max(view.nexts[lane], decision.trims.get(lane, 0))
            if next_place < lanes[lane].end and not self.limited and not self._take_fresh(lane, next_place):
                break
        given = self._give()
        if self.skipped:  # after the leases: they may lie behind what was skipped, never before
            decision.facts.append(records.Skipped(poll.group, self.skipped))
        return given

    def _give(self) -> Answer:
        decision, view, poll = self.decision, self.view, self.poll
        if not self.leases:
            self._touch()
            return PollAnswer([], decision.now_ms, True, None) if self.limited else WAIT
        view.touched = True
        decision.segments += len(self.segments)
        if poll.fence is not None and leaves_trace(view.fence, poll.fence):
            decision.raise_fence(view, poll.fence)
        if poll.auto_ack:
            ranges = [(lane, place, count) for _, lane, place, count, _ in self.segments]
            decision.facts.append(records.Taken(poll.group, ranges))
            return PollAnswer(self.leases, decision.now_ms, False, None)
        deadline_ms = decision.now_ms + decision.lease_ms(poll.lease_ms)
        decision.facts.append(records.Leased(poll.group, poll.member, poll.sequence, deadline_ms, self.segments))
        given = PollAnswer(self.leases, deadline_ms, self.limited, None)
        view.polls[poll.member, poll.sequence] = given
        return given

    def _touch(self) -> None:
        """An empty poll writes nothing, but for a word now and then that the group is not idle."""
        group, view = self.view.group, self.view
        quarter_ms = self.decision.settings.group_idle_ms // 4
        if not view.touched and self.decision.now_ms - group.active_ms > min(quarter_ms, _TOUCH_MS):
            self.decision.facts.append(records.GroupTouched(group.name))
            view.touched = True

    def _fits_bytes(self, ref: BatchRef, count: int) -> int:
        """How many of these messages the byte limit allows: at least one, if it would be the poll's only one."""
        allowed = max(self.bytes_left, 0) * ref.count // ref.size
        return min(count, allowed if self.leases else max(allowed, 1))

    def _begins(self, ref: BatchRef) -> bool:
        """Whether something of this batch may be taken for good: its reply must fit, whatever the messages' sizes."""
        if self.whole_bytes_left is None:
            return True
        if ref.size > self.whole_bytes_left and self.leases:
            return False
        if not self.leases or self.leases[-1].ref is not ref:
            self.whole_bytes_left -= ref.size
        return True

    def _add(self, ref: BatchRef, lane: int, place: int, first_offset: int, count: int, attempt: int) -> None:
        self.leases.append(_new(Lease, (ref, first_offset, count, attempt)))
        segments = self.segments
        within = place & _WITHIN_ROW
        if within + count > ROW_PLACES:
            for at, fits in split_by_row(place, count):
                segments.append(Segment(first_offset + at - place, lane, at, fits, attempt))
            return
        if within and len(segments) > self.apart:
            last_offset, last_lane, last_place, last_count, last_attempt = segments[-1]
            if (
                last_offset + last_count == first_offset
                and last_place + last_count == place
                and last_lane == lane
                and last_attempt == attempt
            ):
                segments[-1] = _new(Segment, (last_offset, lane, last_place, last_count + count, attempt))
                return
        segments.append(_new(Segment, (first_offset, lane, place, count, attempt)))

    def _take_retries(self, lane: int) -> bool:
        """False: the poll is full."""
        view, decision = self.view, self.decision
        self.apart = len(self.segments)
        taken: list[tuple[tuple[int, int], int]] = []
        more = True
        for entry, gone in view.ready_entries(lane):
            start = gone
            while more and gone < entry.count:
                first_offset = entry.first_offset + gone
                ref = decision.state.batch(first_offset)
                assert ref is not None, f"offset {first_offset} waits for a retry, but its batch is gone"
                fits = min(entry.count - gone, ref.base_offset + ref.count - first_offset)
                if 0 < ref.expires_at_ms <= decision.now_ms:
                    self._pass(lane, entry.place + gone, fits)
                    view.outstanding -= fits
                else:
                    wanted, fits = fits, self._retry(ref, lane, entry, gone, fits)
                    more = fits == wanted and self.messages_left > 0
                gone += fits
            if gone > start:
                taken.append(((lane, entry.place), gone))
            if not more:
                break
        view.taken.update(taken)
        return more

    def _retry(self, ref: BatchRef, lane: int, entry: Entry, gone: int, count: int) -> int:
        """Take as many of these messages of one batch as fit; gives back how many."""
        fits = min(count, self.messages_left)
        if fits * ref.size > self.bytes_left * ref.count:
            fits = self._fits_bytes(ref, fits)
        if fits and self._begins(ref):
            self._add(ref, lane, entry.place + gone, entry.first_offset + gone, fits, entry.attempts + 1)
            self.messages_left -= fits
            self.bytes_left -= -(-ref.size * fits // ref.count)
            if self.poll.auto_ack:
                self.view.outstanding -= fits
            return fits
        return 0

    def _take_fresh(self, lane: int, place: int) -> bool:
        """False: the poll is full, or the group holds all it may."""
        view, state = self.view, self.decision.state
        self.apart = len(self.segments)
        start_offset = view.group.start_offset
        room = self.messages_left if self.poll.auto_ack else min(self.room, self.messages_left)
        started, skipped = room, 0
        refs: list[BatchRef] = []
        keys: list[int] = []
        low = high = 0
        for lane_base, base_offset in state.lanes[lane].walk(place):
            if not low <= base_offset < high:
                low, high, keys, refs = state.batches.window(base_offset)
            ref = refs[bisect_left(keys, base_offset)]
            count = ref.count
            if place != lane_base or ref.expires_at_ms or base_offset < start_offset:
                skip = self._skip(ref, place - lane_base, start_offset)
                if lane_base + skip > place:
                    self._pass(lane, place, lane_base + skip - place)
                    place = lane_base + skip
                    skipped += 1
                    if skipped == SKIPPED_BATCHES_MAX:
                        break
                base_offset += skip
                count -= skip
            fits = min(count, room)
            if fits * ref.size > self.bytes_left * ref.count:
                fits = self._fits_bytes(ref, fits)
            if fits and self.whole_bytes_left is not None and not self._begins(ref):
                fits = 0
            if fits:
                self._add(ref, lane, place, base_offset, fits, 1)
                place += fits
                room -= fits
                self.bytes_left -= -(-ref.size * fits // ref.count)
            if fits < count or not room:
                break
        taken = started - room
        self.messages_left -= taken
        if not self.poll.auto_ack:
            self.room -= taken
            view.outstanding += taken
        view.nexts[lane] = place
        return place == state.lanes[lane].end and self.messages_left > 0 and (self.room > 0 or self.poll.auto_ack)

    def _skip(self, ref: BatchRef, skip: int, start_offset: int) -> int:
        """How many of the batch's first messages are not for this group, or no longer."""
        if 0 < ref.expires_at_ms <= self.decision.now_ms:
            return ref.count
        return max(skip, min(ref.count, start_offset - ref.base_offset))

    def _pass(self, lane: int, place: int, count: int) -> None:
        if self.skipped and self.skipped[-1][0] == lane and self.skipped[-1][1] + self.skipped[-1][2] == place:
            place, count = self.skipped[-1][1], self.skipped[-1][2] + count
            self.skipped.pop()
        self.skipped.append((lane, place, count))
