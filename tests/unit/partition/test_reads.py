"""A stream read: every offset it covers is in a batch, in a batch of another lane, or in a hole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanner.partition import Tick, reads
from lanner.partition.records import Trimmed, encode_decision
from tests.unit.partition.conftest import Bench

Steps = list[tuple[int, int] | int]


def made(steps: Steps) -> Bench:
    """Appends (lane, messages), and trims of the first batch of a lane."""
    bench = Bench(retention_ms=0)
    for step in steps:
        if isinstance(step, tuple):
            bench.append(priority=step[0], count=step[1])
            continue
        lane = bench.partition._state.lanes[step]
        if lane.first < lane.end:
            fact = Trimmed([(step, lane.first_end())], False)
            bench.apply(encode_decision(bench.now_ms, len(bench.log), [fact]))
    return bench


steps = st.lists(st.one_of(st.tuples(st.integers(0, 9), st.integers(1, 4)), st.integers(0, 9)), max_size=25)


@given(steps, st.integers(0, 1_023), st.integers(0, 3), st.integers(0, 300), st.integers(1, 6))
def test_a_read_accounts_for_every_offset_and_comes_to_the_end(
    taken: Steps, lanes: int, offset: int, bytes_max: int, looked_at: int
) -> None:
    bench = made(taken)
    held = {
        at: ref
        for ref in bench.partition._state.batches.walk(0)
        for at in range(ref.base_offset, ref.base_offset + ref.count)
    }
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "FETCH_BATCHES_LOOKED_AT", looked_at)
        end = bench.partition.end_offset
        while offset < end:
            stretch = bench.partition.stretch(offset, bytes_max, lanes)
            assert offset < stretch.next_offset <= end, "the read does not go on"
            missing = {at for first, following in stretch.holes for at in range(first, following)}
            given_out = {at for ref in stretch.refs for at in range(ref.base_offset, ref.base_offset + ref.count)}
            for at in range(offset, stretch.next_offset):
                wanted = at in held and (not lanes or lanes >> held[at].lane & 1)
                assert (at in missing) == (at not in held), f"{at} is a hole, or is none"
                assert (at in given_out) == wanted
            assert sum(ref.size for ref in stretch.refs[1:]) <= max(bytes_max, 0)
            found += [ref.base_offset for ref in stretch.refs]
            offset = stretch.next_offset
    assert found == sorted(set(found))


def test_what_retention_took_at_the_very_end_is_a_hole_up_to_the_end(make_bench: Any) -> None:
    bench = make_bench(retention="acked")
    bench.append(count=1, priority=0)
    bench.append(count=2, priority=9)
    bench.poll(messages=2, auto_ack=True)
    bench.wait(1_001)
    bench.ask(Tick())
    assert [ref.base_offset for ref in bench.partition.batches_from(0, 1 << 20)] == [0]
    assert bench.partition.stretch(1, 1 << 20) == ([], [(1, 3)], 3)


@given(steps, st.integers(0, 1_023), st.integers(0, 40), st.integers(0, 600))
def test_so_many_bytes_reach_as_far_as_reading_them_does(taken: Steps, lanes: int, offset: int, bytes_max: int) -> None:
    bench = made(taken)
    reached = bench.partition.offset_after_bytes(offset, bytes_max, lanes)
    stretch = bench.partition.stretch(offset, bytes_max, lanes)
    between = [ref for ref in stretch.refs if ref.base_offset < reached]
    assert reached >= offset and between == stretch.refs
    if offset < bench.partition.end_offset:
        assert reached <= bench.partition.end_offset
        assert bench.partition.stretch(offset, 1 << 20, lanes).refs[: len(between)] == between
        assert sum(ref.size for ref in between[1:]) <= bytes_max


def test_a_count_of_bytes_looks_at_so_many_batches_only(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "FETCH_BATCHES_LOOKED_AT", 3)
    bench = make_bench()
    for _ in range(5):
        bench.append(count=2)
    assert bench.partition.offset_after_bytes(0, 1 << 20) == 6
    assert bench.partition.offset_after_bytes(6, 1 << 20) == 10
