"""What must always hold of a partition, looked at from the outside. Slow, thorough, and for tests and simulation."""

from __future__ import annotations

from lanner.model import GroupKind
from lanner.partition.batches import NOT_PLACED, BatchRef
from lanner.partition.groups import Group
from lanner.partition.leases import EXTEND, LeaseRecord
from lanner.partition.places import ROW_PLACES, ROW_SHIFT, Standing
from lanner.partition.state import State


def check_state(state: State) -> None:
    refs = list(state.batches.walk(0))
    _check_batches(state, refs)
    _check_lanes(state, {ref.base_offset: ref for ref in refs})
    for name, group in state.groups.items():
        assert group.name == name
        if group.kind is GroupKind.QUEUE:
            _check_group(state, group)
        due_ms = group.next_due_ms()
        assert state.group_due.times.get(name) == due_ms, f"{name} is listed as due at another time"
    assert set(state.group_due.times) <= set(state.groups)
    _check_kept(state)
    state.stages.check(state.applied_index)
    indexes = [ref.index for ref in [*refs, *state.kept]] + list(state.stages.indexes())
    assert len(set(indexes)) == len(indexes), "an entry is two batches, or staged and published"


def _check_batches(state: State, refs: list[BatchRef]) -> None:
    end = 0
    append_ms = 0
    for ref in refs:
        assert ref.base_offset >= end, "batches overlap"
        assert ref.append_ms >= append_ms, "append times fall"
        assert ref.kept is None and ref.count > 0 and ref.index <= state.applied_index
        end, append_ms = ref.base_offset + ref.count, ref.append_ms
    assert end <= state.end_offset and append_ms <= state.machine_ms
    assert state.batch_count == len(refs)
    assert state.stored_bytes == sum(ref.size for ref in refs)
    expiring = sum(1 for ref in [*refs, *state.kept] if ref.expires_at_ms)
    assert state.expiring_count == expiring, f"{state.expiring_count} batches expire, but {expiring} were found"
    delayed = {ref.base_offset: ref.deliver_at_ms for ref in refs if ref.lane_base == NOT_PLACED}
    assert state.delayed.times == delayed


def _check_lanes(state: State, refs: dict[int, BatchRef]) -> None:
    placed = 0
    for number, lane in enumerate(state.lanes):
        place = lane.first
        for lane_base, base_offset in lane.walk(0):
            ref = refs[base_offset]
            assert (ref.lane, ref.lane_base) == (number, lane_base), "lane and batch index differ"
            assert lane_base == place, "a lane has a hole"
            place += ref.count
            placed += 1
        assert place == lane.end
    assert placed + len(state.delayed) == len(refs), "a batch is in no lane"


def _check_group(state: State, group: Group) -> None:
    standings: dict[tuple[int, int], str] = {}
    counts = {"leased": 0, "waiting": 0, "ready": 0, "dead": 0}
    waiting: dict[tuple[int, int], int] = {}
    dead: dict[int, tuple[int, int]] = {}

    def stand(lane: int, place: int, count: int, first_offset: int, standing: str) -> None:
        counts[standing] += count
        assert place + count <= group.lanes[lane].next, f"{standing} places at or above next"
        for at in range(count):
            assert (lane, place + at) not in standings, f"place {place + at} is {standing} and something else"
            standings[lane, place + at] = standing
            _check_reachable(state, lane, place + at, first_offset + at)

    for token, lease in group.leases.items():
        _check_lease(group, token, lease)
        for run in lease.runs(lease.live):
            stand(run.lane, run.place, run.count, run.first_offset, "leased")
    for lane, progress in enumerate(group.lanes):
        assert state.lanes[lane].first <= progress.next <= state.lanes[lane].end, "next lies outside its lane"
        for entry in progress.entries():
            assert entry.place >> ROW_SHIFT == (entry.place + entry.count - 1) >> ROW_SHIFT
            stand(lane, entry.place, entry.count, entry.first_offset, Standing(entry.standing).name.lower())
            if entry.standing == Standing.WAITING:
                waiting[lane, entry.place] = entry.time_ms
            elif entry.standing == Standing.DEAD:
                dead[entry.first_offset] = (lane, entry.place)
        _check_rows(group, lane, {place for at, place in standings if at == lane})
    assert counts == {"leased": group.leased, "waiting": group.waiting, "ready": group.ready, "dead": group.dead}
    assert group.due.times == waiting
    assert group.dead_places == dead and group.dead_offsets == sorted(dead)
    _check_numbers(group)
    assert not group.freed and not group.ended
    group.memory.check()
    assert not group.memory.entries.keys() & group.leases.keys()
    for token in group.polls.values():
        assert token in group.leases


def _check_numbers(group: Group) -> None:
    """Either no death has a number or all have, each its own, below the end."""
    numbers: list[int] = []
    placed: dict[int, tuple[int, int]] = {}
    for lane, progress in enumerate(group.lanes):
        for entry in progress.entries():
            if entry.standing == Standing.DEAD and group.dead_numbers.end >= 0:
                numbers += range(entry.number, entry.number + entry.count)
                placed[entry.number] = (lane, entry.place)
            else:
                assert entry.number == -1, "numbered, and not dead or not to be numbered"
    assert len(set(numbers)) == len(numbers) and all(0 <= one < group.dead_numbers.end for one in numbers)
    assert group.dead_numbers.items() == placed and len(group.dead_numbers) == len(placed)


def _check_reachable(state: State, lane: int, place: int, offset: int) -> None:
    """A held message is in its batch, or is kept of it."""
    ref = state.batch(offset)
    assert ref is not None, f"offset {offset} is held, but its batch is gone"
    assert ref.lane == lane and ref.lane_base + offset - ref.base_offset == place
    if ref.kept is not None:
        assert offset - ref.base_offset in ref.kept, f"offset {offset} is held, but not kept"


def _check_lease(group: Group, token: int, lease: LeaseRecord) -> None:
    assert lease.token == token and lease.live and lease.parts
    for kind, mask in lease.answered.items():
        assert kind == EXTEND or not mask & lease.live, "settled, and leased all the same"
    union = 0
    for part in lease.parts:
        assert part.mask & lease.live, "a part without a live message"
        assert not part.mask & union, "parts overlap"
        union |= part.mask
    assert not lease.live & ~union, "a live message belongs to no part"
    assert group.deadlines.times[token] == lease.first_deadline_ms()


def _check_rows(group: Group, lane: int, held: set[int]) -> None:
    progress = group.lanes[lane]
    assert progress.row_numbers == sorted(progress.rows)
    assert progress.ready_rows == [number for number in progress.row_numbers if progress.rows[number].ready]
    found: set[int] = set()
    for number, row in progress.rows.items():
        assert row.held, "an empty row stayed"
        assert row.held < 1 << ROW_PLACES
        found |= {(number << ROW_SHIFT) + at for at in range(row.held.bit_length()) if row.held >> at & 1}
    assert found == held, "the bits of a row differ from what is leased, waiting, ready and dead"


def _check_kept(state: State) -> None:
    pinned = 0
    for ref in state.kept:
        assert ref.kept, "a batch is kept for nothing"
        held = 0
        for group in state.groups.values():
            held |= group.lanes[ref.lane].held_mask(ref.lane_base, ref.count)
        assert ref.kept == tuple(at for at in range(ref.count) if held >> at & 1), "kept and held differ"
        assert state.batches.get(ref.base_offset) is None and ref.lane_base + ref.count <= state.lanes[ref.lane].first
        pinned += ref.size * len(ref.kept) // ref.count
    assert pinned == state.kept.pinned_bytes
