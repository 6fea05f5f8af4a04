"""One partition's machine: what the shell drives.

`apply` is the only way to change it, and takes entries of the log in order. `decide` is for the leader: it reads, and
gives back a record to propose and the answers that hold once that record has applied. One decision is in flight at a
time; appends may come between. The rest are reads, and rows for saving.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from lanner import features
from lanner.errors import GroupNotFound, UnknownRecord
from lanner.limits import LIST_ITEMS_MAX
from lanner.model import LANES, GroupKind, TopicSettings
from lanner.partition import appends, changes, decisions, holds, reads, stage_decisions, upkeep
from lanner.partition.appends import HeaderLike
from lanner.partition.batches import BatchRef, Rows
from lanner.partition.dead import DeadStretch, dead_stretch, is_numbered
from lanner.partition.fences import NO_FENCE, Fence
from lanner.partition.groups import Group
from lanner.partition.holds import HoldState
from lanner.partition.invariants import check_state
from lanner.partition.leases import Held
from lanner.partition.reads import Stretch
from lanner.partition.records import APPEND_KIND, DECISION_KIND, STAGE_KIND, StageNote
from lanner.partition.requests import DeadEntry, Decided, GroupState, Outcome, Prepared, Request
from lanner.partition.state import State

_NOTHING: Final = Outcome(None, False, (), False)
_LANES_DOWN: Final = tuple(range(LANES - 1, -1, -1))


class Partition:
    def __init__(self, rows: Rows, header_of: Callable[[memoryview], HeaderLike]) -> None:
        self._state = State(rows)
        self._header_of = header_of

    @property
    def applied_index(self) -> int:
        return self._state.applied_index

    @property
    def machine_ms(self) -> int:
        return self._state.machine_ms

    @property
    def first_offset(self) -> int:
        """The earliest offset that a stream can read."""
        first = self._state.batches.first()
        return self._state.end_offset if first is None else first.base_offset

    @property
    def end_offset(self) -> int:
        return self._state.end_offset

    @property
    def stored_bytes(self) -> int:
        """Of the batches that retention has left; pinned bytes come on top."""
        return self._state.stored_bytes

    @property
    def pinned_bytes(self) -> int:
        return self._state.kept.pinned_bytes

    @property
    def batch_count(self) -> int:
        return self._state.batch_count

    # ------------------------------------------------------------------ stages

    @property
    def staged_bytes(self) -> int:
        """Of stages that no try holds."""
        return self._state.stages.staged_bytes

    @property
    def prepared_bytes(self) -> int:
        """Of stages that wait for the outcome of a try."""
        return self._state.stages.prepared_bytes

    @property
    def stages_gone(self) -> tuple[int, int]:
        """How many stages have expired, and how many were dropped because nobody would commit them, since the load."""
        return self._state.stages.expired, self._state.stages.dropped

    @property
    def metadata_index(self) -> int:
        """The latest metadata that this partition has acted on."""
        return self._state.stages.metadata_index

    def prepared(self) -> Mapping[int, Prepared]:
        """What waits for outcomes, by token."""
        return self._state.stages.prepared

    def attempts_of(self, transaction: str, owner: str) -> list[bytes]:
        return list(self._state.stages.by_writer.get((transaction, owner), ()))

    def check_stage(self, note: StageNote, size: int, settings: TopicSettings, feature_level: int) -> None:
        """Raise what forbids a leader to propose this stage now. One that is here already may always come again."""
        stage_decisions.check_stage(self._state, note, size, settings, feature_level)

    def check_dedup(self, dedup_id: bytes, settings: TopicSettings, now_ms: int) -> None:
        """Raise what forbids a leader to propose a batch with this dedup id now."""
        appends.check_dedup(self._state, dedup_id, settings, now_ms)

    # ------------------------------------------------------------------ the log

    def apply(self, index: int, payload: bytes | None) -> Outcome:
        """Carry out one entry. What cannot be read is answered with an error; UnknownRecord is raised, with nothing
        changed, for a record of a newer release: a replica that skipped it would differ from the others for ever."""
        state = self._state
        before = state.applied_index
        if index <= before:
            return _NOTHING
        state.applied_index = index
        if not payload:
            return _NOTHING
        kind = payload[0]
        try:
            if kind == APPEND_KIND:
                return appends.apply_append(state, index, payload, self._header_of)
            if kind == DECISION_KIND:
                return changes.apply_decision(state, index, payload)
            if kind == STAGE_KIND:
                return appends.apply_stage(state, index, payload, self._header_of)
            raise UnknownRecord(f"the log holds a record of kind {kind}, which is not known here")
        except UnknownRecord:
            state.applied_index = before
            raise

    def decide(
        self,
        requests: Sequence[Request],
        settings: TopicSettings,
        now_ms: int,
        feature_level: int = features.LOWEST,
        owned: Container[str] = (),
    ) -> Decided:
        """The record holds nothing that a broker of this feature level would not know.

        `owned`: groups with members that own this partition. However quiet they are, they are not idle.
        """
        return decisions.decide(self._state, requests, settings, now_ms, feature_level, owned)

    def fence(self, group: str) -> Fence:
        """The highest fence that was accepted of a group; (0, 0): none."""
        found = self._state.groups.get(group)
        return NO_FENCE if found is None else found.fence

    def next_due_ms(self, settings: TopicSettings, now_ms: int, owned: Container[str] = ()) -> int | None:
        return upkeep.next_due_ms(self._state, settings, now_ms, owned)

    def best_lane(self, group: str, now_ms: int) -> int | None:
        """The highest lane with something for the group; a group that does not exist is taken for a new one."""
        state = self._state
        found = state.groups.get(group)
        if found is None:
            return next((lane for lane in _LANES_DOWN if state.lanes[lane].first < state.lanes[lane].end), None)
        due = {lane for lane, _ in found.due.until(now_ms, LANES)}
        for lane in _LANES_DOWN:
            progress = found.lanes[lane]
            if progress.ready_rows or progress.next < state.lanes[lane].end or lane in due:
                return lane
        return None

    def count_in(self, group: str, lane: int) -> int:
        """How many messages of a lane the group may be served now, at most; quick, and so not exact."""
        state = self._state
        found = state.groups.get(group)
        if found is None:
            return state.lanes[lane].end - state.lanes[lane].first
        return state.lanes[lane].end - found.lanes[lane].next + found.ready + found.waiting

    def has_group(self, group: str) -> bool:
        return group in self._state.groups

    def kind_of(self, group: str) -> GroupKind | None:
        """How a group is used; None: it is not there."""
        found = self._state.groups.get(group)
        return None if found is None else found.kind

    def has_polled(self, group: str, member: str, sequence: int) -> bool:
        """Whether this very poll was answered before and some of what it got is still leased."""
        found = self._state.groups.get(group)
        return found is not None and (member, sequence) in found.polls

    # ------------------------------------------------------------------ reads

    def stretch(self, offset: int, bytes_max: int, lanes: int = 0) -> Stretch:
        """What a stream reads from an offset on: batches of these lanes (0: of all), holes, and where to go on."""
        return reads.stretch(self._state, offset, bytes_max, lanes)

    def batches_from(self, offset: int, bytes_max: int) -> list[BatchRef]:
        """Batches in offset order from the one that holds the offset, or the next; at least one if there is any."""
        return reads.stretch(self._state, offset, bytes_max).refs

    def offset_after_bytes(self, offset: int, bytes_max: int, lanes: int = 0) -> int:
        """Up to where a stream of these lanes gets by reading so many bytes from the offset on; one batch always."""
        return reads.offset_after_bytes(self._state, offset, bytes_max, lanes)

    def batch_at(self, offset: int) -> BatchRef | None:
        return self._state.batch(offset)

    def offset_at_time(self, time_ms: int) -> int:
        """The first offset appended at or after this time; the end when there is none."""
        ref = self._state.batches.first_at_time(time_ms)
        return self._state.end_offset if ref is None else ref.base_offset

    def lane_batches(self, lane: int, first_offset: int, limit: int, resume_offset: int = -1) -> list[BatchRef]:
        """Batches of one lane, in place order, that hold something at or after the offset; from the batch of
        `resume_offset` on. Where that one is gone, so is everything before it in the lane."""
        state = self._state
        holder = state.batches.get(first_offset)
        place, _ = state.lanes[lane].place_from(first_offset if holder is None else holder.base_offset)
        resumed = state.batches.get(resume_offset) if resume_offset >= 0 else None
        if resumed is not None and resumed.lane == lane:
            place = max(place, resumed.lane_base)
        found: list[BatchRef] = []
        if place < state.lanes[lane].end:
            for _, base_offset in state.lanes[lane].walk(place):
                ref = state.batches.get(base_offset)
                if ref is not None and ref.base_offset + ref.count > first_offset:
                    found.append(ref)
                if len(found) >= limit:
                    break
        return found

    def holds(self, settings: TopicSettings) -> list[HoldState]:
        """How far behind each group is that retention waits for."""
        return holds.hold_states(self._state, settings)

    def hold_refuses(self, settings: TopicSettings, size: int, now_ms: int) -> bool:
        """Whether a batch of so many bytes has no room because what would make it is held."""
        return holds.refuses(self._state, settings, size, now_ms)

    def groups(self) -> list[str]:
        return sorted(self._state.groups)

    def lane_depths(self) -> dict[int, int]:
        """Messages held by priority; lanes without any are left out."""
        lanes = self._state.lanes
        return {
            lane: lanes[lane].end - lanes[lane].first for lane in _LANES_DOWN if lanes[lane].end > lanes[lane].first
        }

    def describe_group(self, group: str, now_ms: int) -> GroupState:
        found = self._group(group)
        state = self._state
        if found.kind is GroupKind.STREAM:
            offset = max(found.committed, self.first_offset)
            ref = next(state.batches.walk(offset), None) if offset < state.end_offset else None
            oldest_ms = 0 if ref is None else ref.append_ms
            return GroupState(found.kind, max(found.committed, 0), state.end_offset - offset, 0, 0, 0, 0, {}, oldest_ms)
        due = self._due_counts(found, now_ms)
        depth = {}
        for lane in _LANES_DOWN:
            progress = found.lanes[lane]
            count = state.lanes[lane].end - progress.next
            count += sum(entry.count for entry in progress.ready_entries()) + due.get(lane, 0)
            if count:
                depth[lane] = count
        ref, offset = self._oldest_unsettled(found)
        return GroupState(
            kind=found.kind,
            offset=offset,
            lag=sum(depth.values()) - found.ready - sum(due.values()) + found.outstanding,
            ready=sum(depth.values()),
            leased=found.leased,
            waiting=found.waiting - sum(due.values()),
            dead=found.dead,
            depth=depth,
            oldest_ms=0 if ref is None else ref.append_ms,
        )

    def _due_counts(self, group: Group, now_ms: int) -> Counter[int]:
        """Messages whose retry is due, by lane."""
        counts: Counter[int] = Counter()
        for lane, place in group.due.until(now_ms, LIST_ITEMS_MAX):
            counts[lane] += group.lanes[lane].rows[place >> 12].entries[place].count
        return counts

    def _oldest_unsettled(self, group: Group) -> tuple[BatchRef | None, int]:
        """The batch and offset of the lowest message that is neither settled nor dead."""
        best: tuple[BatchRef | None, int] = (None, self._state.end_offset)
        for lane, progress in enumerate(group.lanes):
            place = progress.lowest_unsettled()
            ref = self._batch_of_place(lane, place)
            if ref is not None and ref.base_offset + place - ref.lane_base < best[1]:
                best = (ref, ref.base_offset + place - ref.lane_base)
        return best

    def _batch_of_place(self, lane: int, place: int) -> BatchRef | None:
        state = self._state
        if place >= state.lanes[lane].end:
            return None
        if place >= state.lanes[lane].first:
            return state.batches.get(next(state.lanes[lane].walk(place))[1])
        in_lane = (ref for ref in state.kept if ref.lane == lane)
        return next((ref for ref in in_lane if ref.lane_base <= place < ref.lane_base + ref.count), None)

    def held_by_member(self, group: str) -> dict[str, Held]:
        """What each member of a group holds leased, by the name that it polls under. It looks at every lease."""
        found = self._state.groups.get(group)
        return {} if found is None else found.held_by_member()

    def dead_letters(self, group: str, start_offset: int, limit: int) -> list[DeadEntry]:
        found: list[DeadEntry] = []
        for lane, entry in self._group(group).dead_from(start_offset):
            for at in range(max(0, start_offset - entry.first_offset), entry.count):
                if len(found) >= limit:
                    return found
                offset = entry.first_offset + at
                ref = self._state.batch(offset)
                assert ref is not None
                found.append(DeadEntry(offset, lane, entry.attempts, entry.reason, entry.time_ms, ref))
        return found

    def dead_stretch(self, group: str, number: int, limit: int) -> DeadStretch:
        """The dead letters of a group as a stream, from a number on."""
        return dead_stretch(self._state, group, number, limit)

    def has_unnumbered_dead(self, group: str) -> bool:
        """Whether the group is there and its dead letters have no numbers yet."""
        found = self._state.groups.get(group)
        return found is not None and found.kind is GroupKind.QUEUE and not is_numbered(found)

    def dead_count(self, group: str) -> int:
        return self._group(group).dead

    def committed(self, group: str) -> int | None:
        """A stream group's next offset; None: it has not committed, or is not there."""
        found = self._state.groups.get(group)
        return None if found is None or found.committed < 0 else found.committed

    def commit_metadata(self, group: str) -> bytes:
        """What the latest commit of a stream group brought along; empty: nothing."""
        found = self._state.groups.get(group)
        return b"" if found is None else found.metadata

    def _group(self, name: str) -> Group:
        group = self._state.groups.get(name)
        if group is None:
            raise GroupNotFound(f"the group {name!r} does not exist on this partition", group=name)
        return group

    # ------------------------------------------------------------------ saving

    def take_dirty(self) -> dict[bytes, bytes | None]:
        """The rows that changed since the last call. From now on they are read back through Rows when wanted."""
        return self._state.take_dirty()

    def all_rows(self) -> dict[bytes, bytes]:
        """The whole state, canonical: equal states give equal rows."""
        return self._state.all_rows()

    def check(self) -> None:
        """Assert every invariant. For tests and simulation: it looks at everything."""
        check_state(self._state)
