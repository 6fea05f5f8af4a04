"""Builds one decision: the facts so far, and each group as they leave it. Settles and what is asked of groups.

The builder reads the state, the topic's settings and the time, and writes facts; it changes nothing. This module knows
the policies of settling: backoff, how many deliveries are enough, whether another message may die.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

from lanner import features
from lanner.errors import (
    DeadLetterNotFound,
    DeadLettersFull,
    GroupExpired,
    GroupKindConflict,
    GroupNotFound,
    LeaseLost,
    NotSupported,
    OffsetOutOfRange,
    ValidationError,
)
from lanner.limits import (
    DELAY_MS_MAX,
    GROUPS_PER_PARTITION_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    REASON_LENGTH_MAX,
    SETTLE_RANGES_MAX,
    TIME_MS_MAX,
)
from lanner.model import BEGIN_AGAIN, DeadFullPolicy, GroupKind, TopicSettings, check_name
from lanner.partition import records
from lanner.partition.fences import Fence, check_fence, check_level, check_metadata
from lanner.partition.groups import Group
from lanner.partition.leases import LeaseRecord, Run
from lanner.partition.places import Standing
from lanner.partition.records import AnyFact, mask_bytes
from lanner.partition.requests import (
    Answer,
    Claim,
    Claimed,
    CommitOffset,
    Decided,
    Discard,
    DropGroup,
    MakeGroup,
    NumberDead,
    Redrive,
    Release,
    Seek,
    Settle,
    SettleKind,
)
from lanner.partition.state import State
from lanner.partition.views import GroupView, StagesView

ACK: Final = int(SettleKind.ACK)
DEAD_RANGES_MAX: Final = 1_000
REASON_DELIVERIES: Final = "max deliveries"
REASON_EXPIRED: Final = "lease expired, max deliveries"
REASON_REJECTED: Final = "rejected"


def backoff_ms(settings: TopicSettings, attempt: int) -> int:
    """How long the retry after this delivery waits: twice as long each time, up to the cap."""
    if settings.backoff_ms == 0:
        return 0
    doublings = min(attempt - 1, 62)
    return min(settings.backoff_ms << doublings, settings.backoff_max_ms)


class DecisionBuilder:
    """Collects the facts of one decision."""

    def __init__(
        self, state: State, settings: TopicSettings, now_ms: int, feature_level: int = features.LOWEST
    ) -> None:
        self.state = state
        self.feature_level = feature_level
        self.identities = feature_level >= features.IDENTITIES  # settles and commits are known when they are repeated
        self.settings = settings
        self.now_ms = min(max(state.machine_ms, now_ms), TIME_MS_MAX)
        self.facts: list[AnyFact] = []
        self.lowest_lane = 0  # polls of this decision take nothing below: something more urgent enters with it
        self.segments = 0  # handed out so far
        self.wanted: set[str] = set()  # groups that some request of this decision names: none of them is idle,
        self.owned: Container[str] = ()  # nor those whose members own the partition, however quiet they are
        self.trims: dict[int, int] = {}  # lane → first place that stays
        self.stages = StagesView(state.stages)
        self._views: dict[str, GroupView | None] = {}
        self._settling: dict[tuple[Callable[..., AnyFact], int, int | str, int], int] = {}

    def finish(self, answers: list[Answer]) -> Decided:
        if not self.facts:
            return Decided(None, answers)
        return Decided(records.encode_decision(self.now_ms, self.state.applied_index, self.facts), answers)

    # ------------------------------------------------------------------ groups

    def view(self, name: str) -> GroupView | None:
        if name in self._views:
            return self._views[name]
        group = self.state.groups.get(name)
        view = self._views[name] = None if group is None else GroupView(group)
        return view

    def queue_view(self, name: str) -> GroupView:
        view = self.view(name)
        if view is None:
            raise GroupNotFound(f"the group {name!r} does not exist on this partition", group=name)
        if view.group.kind is not GroupKind.QUEUE:
            raise GroupKindConflict(f"{name!r} is a stream group; a queue needs another name", group=name)
        return view

    def make_group(self, name: str, kind: GroupKind, start: int | str) -> GroupView:
        state = self.state
        check_name(name, "group")
        made = sum(1 for view in self._views.values() if view is not None and view.made)
        if len(state.groups) + made >= GROUPS_PER_PARTITION_MAX:
            raise ValidationError(
                f"this partition has {GROUPS_PER_PARTITION_MAX} groups, which is the most it may; drop one first"
            )
        offset, nexts = self._places_from(start)
        group = Group(0, name, kind, state.lanes)
        group.start_offset = offset
        for progress, next_place in zip(group.lanes, nexts, strict=True):
            progress.next = next_place
        self.facts.append(records.GroupMade(name, str(kind), offset, nexts))
        view = self._views[name] = GroupView(group, made=True)
        return view

    def _places_from(self, start: int | str) -> tuple[int, list[int]]:
        """The offset that a group begins at, and its first place in each lane."""
        state = self.state
        if start == "earliest":
            return 0, [lane.first for lane in state.lanes]
        if start == "latest":
            return state.end_offset, [lane.end for lane in state.lanes]
        if not isinstance(start, int):
            raise ValidationError(f"{start!r} is no start: give an offset, earliest or latest", field="start")
        if not 0 <= start <= state.end_offset:
            raise OffsetOutOfRange(
                f"the offset {start} lies outside 0 to {state.end_offset}", offset=start, end_offset=state.end_offset
            )
        holder = state.batches.get(start)
        base_offset = start if holder is None else holder.base_offset
        nexts = []
        for lane in state.lanes:
            place, found = lane.place_from(base_offset)
            nexts.append(place + start - base_offset if holder is not None and found == base_offset else place)
        return start, nexts

    # ------------------------------------------------------------------ settles

    def settle(self, request: Settle | Release) -> list[tuple[int, int]]:
        if len(request.items) > SETTLE_RANGES_MAX:
            raise ValidationError(f"{len(request.items)} ranges at once are more than {SETTLE_RANGES_MAX}")
        view = self.queue_view(request.group)
        release = isinstance(request, Release)
        leases, lives = view.group.leases, view.live
        acked: dict[int, int] = {}
        self._settling = {}
        answers: list[tuple[int, int]] = []
        for token, first_offset, count, kind, delay_ms, reason in request.items:
            lease = leases.get(token)
            live = lives.get(token)
            mask = 0
            if lease is not None and count > 0:
                mask = lease.mask_between(first_offset, count) & (lease.live if live is None else live)
            found = mask.bit_count()
            again = 0
            if found < count and self.identities and not release:
                again = view.answered_before(token, kind, first_offset, count)
            code = 0 if 0 < count == found + again else LeaseLost.code
            if lease is not None and mask:
                if release:
                    self._release(view, lease, mask)
                elif kind == ACK:
                    acked[token] = acked.get(token, 0) | mask
                    lives[token] = (lease.live if live is None else live) ^ mask
                    view.note_answer(token, kind, mask)
                else:
                    code, found = self._settle_other(view, lease, mask, kind, delay_ms, reason, code)
            answers.append((code, found + again))
        asked = ACK if self.identities else 0
        for token, mask in acked.items():
            self.facts.append(records.Acked(request.group, token, mask_bytes(mask), asked))
            view.outstanding -= mask.bit_count()
            view.touched = True
        for (make, token, detail, kind), mask in self._settling.items():
            self.facts.append(make(request.group, token, mask_bytes(mask), detail, kind if self.identities else 0))
        return answers

    def _note(self, make: Callable[..., AnyFact], token: int, detail: int | str, kind: int, mask: int) -> None:
        """Settles of one request with the same outcome become one fact, however many ranges they name."""
        key = (make, token, detail, kind)
        self._settling[key] = self._settling.get(key, 0) | mask

    def _release(self, view: GroupView, lease: LeaseRecord, mask: int) -> None:
        self.facts.append(records.Released(view.group.name, lease.token, mask_bytes(mask)))
        for run in lease.runs(mask):
            view.add_ready(run, run.attempt - 1)
        view.settle(lease, mask)

    def _settle_other(
        self, view: GroupView, lease: LeaseRecord, mask: int, kind: int, delay_ms: int, reason: str, code: int
    ) -> tuple[int, int]:
        """What is not an ack: (code, how many it took effect on)."""
        token = lease.token
        if kind == SettleKind.NACK:
            self._nack(view, lease, mask, delay_ms, reason)
            view.note_answer(token, kind, mask)
        elif kind == SettleKind.EXTEND:
            lease_ms = self.lease_ms(delay_ms)
            self._note(records.Extended, token, self.now_ms + lease_ms, kind, mask)
            view.extended[token] = view.extended.get(token, 0) | mask
            view.touched = True
        elif kind == SettleKind.REJECT:
            if not self.dead_have_room():
                return DeadLettersFull.code, 0
            self._die(view, lease, mask, reason or REASON_REJECTED, kind)
            view.note_answer(token, kind, mask)
        else:
            return ValidationError.code, 0
        return code, mask.bit_count()

    def lease_ms(self, asked_ms: int | None) -> int:
        if asked_ms is None or asked_ms < 0:
            return self.settings.lease_ms
        return min(max(asked_ms, LEASE_MS_MIN), LEASE_MS_MAX)

    def dead_have_room(self) -> bool:
        """Whether another message may die. Where the oldest make room, always."""
        if self.settings.dead_full is DeadFullPolicy.DISCARD_OLDEST:
            return True
        return self.state.kept.pinned_bytes < self.settings.pinned_bytes_max

    def _nack(self, view: GroupView, lease: LeaseRecord, mask: int, delay_ms: int, reason: str) -> None:
        dying = self.exhausted(lease, mask)
        if dying:
            self._die(view, lease, dying, reason or REASON_DELIVERIES, SettleKind.NACK)
        waits: dict[int, int] = {}  # delay → mask
        for attempt, part in lease.by_attempt(mask & ~dying).items():
            wait_ms = min(delay_ms, DELAY_MS_MAX) if delay_ms >= 0 else backoff_ms(self.settings, attempt)
            waits[wait_ms] = waits.get(wait_ms, 0) | part
        for wait_ms, part in waits.items():
            self._note(records.Nacked, lease.token, self.now_ms + wait_ms, SettleKind.NACK, part)
            if not wait_ms:
                for run in lease.runs(part):
                    view.add_ready(run, run.attempt)
            view.settle(lease, part)

    def exhausted(self, lease: LeaseRecord, mask: int) -> int:
        """Which of these messages were delivered as often as they may be, and may die now."""
        most = self.settings.max_deliveries
        dying = 0
        for attempt, part in lease.by_attempt(mask).items():
            if attempt >= most:
                dying |= part
        return dying if dying and self.dead_have_room() else 0

    def number_deaths(self, view: GroupView) -> None:
        """Have the deaths of a group numbered from the first on, which costs nothing; older ones wait for a reader."""
        group = view.group
        if (
            self.feature_level >= features.STAGES
            and group.dead_numbers.end < 0
            and not group.dead
            and not view.numbered
        ):
            self.facts.append(records.DeadNumbered(group.name))
            view.numbered = True

    def _die(self, view: GroupView, lease: LeaseRecord, mask: int, reason: str, kind: int) -> None:
        self.number_deaths(view)
        self._note(records.Died, lease.token, reason[:REASON_LENGTH_MAX], kind, mask)
        view.outstanding -= mask.bit_count()
        view.settle(lease, mask)

    # ------------------------------------------------------------------ what is asked of groups

    def commit(self, request: CommitOffset) -> None:
        view = self.view(request.group)
        if view is not None and view.group.kind is not GroupKind.STREAM:
            raise GroupKindConflict(f"{request.group!r} is a queue group; commits need another name")
        if request.metadata:
            check_level(self.feature_level)
            check_metadata(request.metadata)
        if not 0 <= request.offset <= self.state.end_offset:
            raise OffsetOutOfRange(
                f"the offset {request.offset} lies outside 0 to {self.state.end_offset}",
                offset=request.offset,
                end_offset=self.state.end_offset,
            )
        if view is None:
            if request.known:
                raise GroupExpired(
                    f"the group {request.group!r} is gone on this partition: it expired, or was dropped, and how far "
                    f"it had read is forgotten. {BEGIN_AGAIN}",
                    group=request.group,
                )
            view = self.make_group(request.group, GroupKind.STREAM, "earliest")
        check_fence(request.group, view.fence, request.fence)
        if request.fence is not None:
            self.raise_fence(view, request.fence)
        reader, sequence = request.reader, request.sequence
        if not self.identities or not reader or sequence < 0:
            self.facts.append(records.Committed(request.group, request.offset))
        elif sequence <= view.latest_commit(reader):
            return  # it took effect before, or a later one did: it is answered as it was then
        else:
            view.commits[reader] = sequence
            self.facts.append(records.Committed(request.group, request.offset, reader, sequence))
        view.committed, view.metadata = request.offset, request.metadata
        if request.metadata:
            self.facts.append(records.CommitNoted(request.group, request.metadata))

    def claim(self, request: Claim) -> Claimed:
        """Begin to own: what an older owner commits from here on is refused, and this is how far it had come."""
        check_level(self.feature_level)
        view = self.view(request.group)
        if view is None:
            view = self.make_group(request.group, GroupKind.STREAM, request.start)
        elif view.group.kind is not GroupKind.STREAM:
            raise GroupKindConflict(f"{request.group!r} is a queue group: it is polled, not claimed")
        check_fence(request.group, view.fence, request.fence)
        view.fence = request.fence
        self.facts.append(records.Fenced(request.group, *request.fence))
        committed = view.committed >= 0
        offset = view.committed if committed else view.group.start_offset
        return Claimed(offset, committed, view.metadata, view.latest_commit(request.member))

    def raise_fence(self, view: GroupView, fence: Fence) -> None:
        """The record that accepts a call raises the fence to where the call stands."""
        if fence > view.fence:
            check_level(self.feature_level)
            view.fence = fence
            self.facts.append(records.Fenced(view.group.name, *fence))

    def seek(self, request: Seek) -> None:
        view = self.view(request.group)
        if view is None:
            raise GroupNotFound(f"the group {request.group!r} does not exist on this partition", group=request.group)
        check_fence(request.group, view.fence, request.fence)
        offset, nexts = self._places_from(request.offset)
        if request.offset == "earliest" and view.group.kind is GroupKind.STREAM:
            first = self.state.batches.first()
            offset = self.state.end_offset if first is None else first.base_offset
        if request.fence is not None:
            self.raise_fence(view, request.fence)
        self.facts.append(records.Sought(request.group, offset, nexts))
        view.committed, view.metadata = offset, b""
        view.closed = True

    def make(self, request: MakeGroup) -> None:
        try:
            kind = GroupKind(request.kind)
        except ValueError:
            raise ValidationError(f"{request.kind!r} is no kind of group: stream or queue", field="kind") from None
        view = self.view(request.group)
        if view is None:
            self.make_group(request.group, kind, request.start)
        elif view.group.kind is not kind:
            raise GroupKindConflict(f"{request.group!r} is a {view.group.kind} group already", group=request.group)

    def drop(self, request: DropGroup) -> None:
        if self.view(request.group) is None:
            raise GroupNotFound(f"the group {request.group!r} does not exist on this partition", group=request.group)
        self.drop_group(request.group)

    def drop_group(self, name: str) -> None:
        self.facts.append(records.GroupDropped(name))
        self._views[name] = None

    # ------------------------------------------------------------------ dead letters

    def choose_dead(self, request: Redrive | Discard) -> int:
        view = self.queue_view(request.group)
        if view.closed:
            raise DeadLetterNotFound("the group was sought at the same time; list its dead letters again")
        if request.offsets is None:
            ranges = self._all_dead(view)
        else:
            ranges = self._chosen_dead(view, request.offsets)
        if ranges:
            redrive = isinstance(request, Redrive)
            self.facts.append((records.Redriven if redrive else records.Discarded)(request.group, ranges))
            if redrive:
                self._show_redriven(view, ranges)
        return sum(count for _, _, count in ranges)

    def number_dead(self, request: NumberDead) -> None:
        view = self.queue_view(request.group)
        if self.feature_level < features.STAGES:
            raise NotSupported(
                f"dead letters as a stream need feature level {features.STAGES}, and the cluster is at "
                f"{self.feature_level}: upgrade every broker, then run `lanner cluster upgrade`"
            )
        if view.group.dead_numbers.end < 0 and not view.numbered:
            view.numbered = True
            self.facts.append(records.DeadNumbered(request.group))

    def _all_dead(self, view: GroupView) -> list[tuple[int, int, int]]:
        ranges: list[tuple[int, int, int]] = []
        if view.dead_gone:
            return ranges
        for lane, entry in view.group.dead_from(0):
            if len(ranges) >= DEAD_RANGES_MAX:
                break
            if not view.dead_taken:
                ranges.append((lane, entry.place, entry.count))
                continue
            for at in range(entry.place, entry.place + entry.count):
                self._choose(view, ranges, lane, at)
        view.dead_gone = True
        return ranges

    def _chosen_dead(self, view: GroupView, offsets: Sequence[int]) -> list[tuple[int, int, int]]:
        if len(offsets) > SETTLE_RANGES_MAX:
            raise ValidationError(f"{len(offsets)} offsets at once are more than {SETTLE_RANGES_MAX}")
        ranges: list[tuple[int, int, int]] = []
        for offset in offsets:
            for lane, entry in view.group.dead_from(offset):
                if entry.first_offset <= offset and not view.dead_gone:
                    self._choose(view, ranges, lane, entry.place + offset - entry.first_offset)
                break
        if not ranges:
            raise DeadLetterNotFound("none of these offsets is a dead letter of the group", group=view.group.name)
        return ranges

    def _choose(self, view: GroupView, ranges: list[tuple[int, int, int]], lane: int, place: int) -> None:
        if (lane, place) in view.dead_taken:
            return
        view.dead_taken.add((lane, place))
        if ranges and ranges[-1][0] == lane and ranges[-1][1] + ranges[-1][2] == place:
            ranges[-1] = (lane, ranges[-1][1], ranges[-1][2] + 1)
        else:
            ranges.append((lane, place, 1))

    def _show_redriven(self, view: GroupView, ranges: Sequence[tuple[int, int, int]]) -> None:
        for lane, place, count in ranges:
            end = place + count
            while place < end:
                entry = view.group.lanes[lane].entry_at(place, Standing.DEAD)
                assert entry is not None
                stop = min(end, entry.place + entry.count)
                first_offset = entry.first_offset + place - entry.place
                view.add_ready(Run(lane, place, stop - place, first_offset, 0), 0)
                view.outstanding += stop - place
                place = stop
