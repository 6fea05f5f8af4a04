"""Each invariant is broken on purpose: a check that cannot fail is a defect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lanner.partition.batches import BatchRef
from lanner.partition.leases import Part
from lanner.partition.places import Entry, Standing


def _lose_a_count(state: Any) -> None:
    state.groups["g"].leased -= 1


def _lease_twice(state: Any) -> None:
    state.groups["g"].lanes[4].add(Entry(3, 1, 3, 1, Standing.READY))
    state.groups["g"].ready += 1


def _hold_a_settled_place(state: Any) -> None:
    state.groups["g"].lanes[4].hold(2, 1)


def _forget_a_held_place(state: Any) -> None:
    state.groups["g"].lanes[4].let_go(3, 1)


def _move_next_back(state: Any) -> None:
    state.groups["g"].lanes[4].next = 2


def _move_next_beyond(state: Any) -> None:
    state.groups["g"].lanes[4].next = 99


def _misplace_a_batch(state: Any) -> None:
    ref = state.batches.get(9)
    state.batches.replace(ref._replace(lane_base=ref.lane_base + 1))


def _miscount_bytes(state: Any) -> None:
    state.stored_bytes += 1


def _miscount_batches(state: Any) -> None:
    state.batch_count += 1


def _forget_a_delay(state: Any) -> None:
    state.delayed.drop(12)


def _forget_a_deadline(state: Any) -> None:
    state.group_due.drop("g")


def _lose_a_part(state: Any) -> None:
    lease = next(iter(state.groups["g"].leases.values()))
    lease.parts = [part._replace(mask=part.mask & 0b1000) for part in lease.parts]


def _overlap_parts(state: Any) -> None:
    lease = next(iter(state.groups["g"].leases.values()))
    lease.parts.append(Part(lease.live, lease.parts[0].deadline_ms, "x", 1))


def _keep_for_nothing(state: Any) -> None:
    for ref in list(state.kept):
        state.kept.put(ref._replace(kept=()))


def _keep_too_little(state: Any) -> None:
    for ref in list(state.kept):
        state.kept.put(ref._replace(kept=ref.kept[:1]))


def _drop_a_pinned_batch(state: Any) -> None:
    for ref in list(state.kept):
        state.kept.remove(ref)


def _forget_that_one_is_dead(state: Any) -> None:
    state.groups["g"].dead_offsets.clear()


def _leave_something_freed(state: Any) -> None:
    state.groups["g"].freed.append((0, 1))


def _remember_a_poll_too_long(state: Any) -> None:
    state.groups["g"].polls["x", 1] = 12345


def _miscount_pinned_bytes(state: Any) -> None:
    state.kept.pinned_bytes += 1


def _lose_the_expiring(state: Any) -> None:
    state.expiring_count += 1


_BREAKS = (
    _lose_a_count,
    _lease_twice,
    _hold_a_settled_place,
    _forget_a_held_place,
    _move_next_back,
    _move_next_beyond,
    _misplace_a_batch,
    _miscount_bytes,
    _miscount_batches,
    _forget_a_delay,
    _forget_a_deadline,
    _lose_a_part,
    _overlap_parts,
    _keep_for_nothing,
    _keep_too_little,
    _drop_a_pinned_batch,
    _forget_that_one_is_dead,
    _leave_something_freed,
    _remember_a_poll_too_long,
    _miscount_pinned_bytes,
    _lose_the_expiring,
)


@pytest.mark.parametrize("damage", _BREAKS)
def test_every_kind_of_damage_is_seen(make_bench: Any, damage: Callable[[Any], None]) -> None:
    bench = make_bench(retention_ms=1_000, lease_ms=100_000)
    bench.append(count=8)
    token = bench.poll(messages=6).token
    bench.settle((token, 0, 3, 1), (token, 4, 1, 4))
    bench.wait(1_000)
    bench.append()
    bench.append(count=3)
    bench.append(deliver_at_ms=9_000)
    bench.ask()
    assert len(bench.partition._state.kept) == 1
    bench.check()
    damage(bench.partition._state)
    with pytest.raises((AssertionError, KeyError)):
        bench.partition.check()


def test_a_reference_is_what_it_says() -> None:
    assert BatchRef._fields[:5] == ("base_offset", "count", "index", "size", "lane")
