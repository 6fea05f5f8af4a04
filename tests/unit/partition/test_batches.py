from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lanner.partition import batches
from lanner.partition.batches import NOT_PLACED, BatchIndex, BatchRef, LaneIndex


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "CHUNK_ENTRIES_MAX", 4)
    monkeypatch.setattr(batches, "CLEAN_CHUNKS_MAX", 2)


def filled(rows: Any, make_ref: Callable[..., BatchRef], bases: range) -> BatchIndex:
    index = BatchIndex(rows)
    for base in bases:
        index.append(make_ref(base, bases.step))
    return index


def save(index: Any, rows: Any) -> dict[bytes, bytes | None]:
    taken: dict[bytes, bytes | None] = {}
    index.take_dirty(taken)
    rows.put(taken)
    return taken


# ------------------------------------------------------------------ by offset


def test_a_batch_is_found_by_any_of_its_offsets(empty_rows: Any, make_ref: Any) -> None:
    index = filled(empty_rows, make_ref, range(0, 100, 10))
    for offset in (0, 9, 10, 55, 99):
        found = index.get(offset)
        assert found is not None and found.base_offset == offset // 10 * 10
    assert index.get(100) is None and index.get(-1) is None


def test_an_empty_index_has_nothing(empty_rows: Any) -> None:
    index = BatchIndex(empty_rows)
    assert index.get(0) is None and index.first() is None and index.first_at_time(0) is None
    assert list(index.walk(0)) == []


def test_only_a_few_clean_chunks_stay_in_memory(empty_rows: Any, make_ref: Any) -> None:
    index = filled(empty_rows, make_ref, range(0, 400, 10))
    save(index, empty_rows)
    for offset in range(0, 400, 10):
        found = index.get(offset)
        assert found is not None and found.base_offset == offset
        assert index.in_memory <= batches.CLEAN_CHUNKS_MAX


def test_a_loaded_index_is_the_saved_one(empty_rows: Any, make_ref: Any) -> None:
    index = filled(empty_rows, make_ref, range(0, 100, 10))
    save(index, empty_rows)
    again = BatchIndex(empty_rows)
    assert again.load() == []
    assert list(again.walk(0)) == list(index.walk(0))


def test_loading_finds_the_batches_that_wait_for_their_time(empty_rows: Any, make_ref: Any) -> None:
    index = filled(empty_rows, make_ref, range(0, 80, 10))
    late = make_ref(80, 10, lane_base=NOT_PLACED, deliver_at_ms=500)
    index.append(late)
    save(index, empty_rows)
    again = BatchIndex(empty_rows)
    assert again.load() == [late]


def test_only_changed_chunks_are_written(empty_rows: Any, make_ref: Any) -> None:
    index = filled(empty_rows, make_ref, range(0, 100, 10))
    assert len(save(index, empty_rows)) == 3
    assert save(index, empty_rows) == {}
    index.append(make_ref(100, 10))
    assert len(save(index, empty_rows)) == 1
    ref = index.get(5)
    assert ref is not None
    index.replace(ref._replace(lane_base=77))
    [row] = save(index, empty_rows).values()
    assert row is not None and index.get(0) == ref._replace(lane_base=77)


def test_a_chunk_without_batches_is_deleted(empty_rows: Any, make_ref: Any) -> None:
    index = filled(empty_rows, make_ref, range(0, 80, 10))
    save(index, empty_rows)
    for base in (0, 10, 30, 20):
        index.discard(base)
    assert list(save(index, empty_rows).values()) == [None]
    first = index.first()
    assert first is not None and first.base_offset == 40
    assert index.get(15) is None


def test_walking_skips_holes(empty_rows: Any, make_ref: Any) -> None:
    index = filled(empty_rows, make_ref, range(0, 100, 10))
    for base in (0, 20, 30, 70):
        index.discard(base)
    assert [ref.base_offset for ref in index.walk(0)] == [10, 40, 50, 60, 80, 90]
    assert [ref.base_offset for ref in index.walk(25)] == [40, 50, 60, 80, 90]
    assert [ref.base_offset for ref in index.walk(65)] == [60, 80, 90]
    assert [ref.base_offset for ref in index.walk(75)] == [80, 90]
    assert index.get(5) is None and index.get(25) is None


def test_a_time_finds_the_first_batch_appended_then_or_later(empty_rows: Any, make_ref: Any) -> None:
    index = filled(empty_rows, make_ref, range(0, 100, 10))
    for time_ms, base in ((0, 0), (1, 10), (40, 40), (41, 50), (90, 90)):
        found = index.first_at_time(time_ms)
        assert found is not None and found.base_offset == base
    assert index.first_at_time(91) is None


def test_a_window_covers_a_chunk_and_says_where_it_ends(empty_rows: Any, make_ref: Any) -> None:
    index = filled(empty_rows, make_ref, range(0, 80, 10))
    low, high, keys, refs = index.window(15)
    assert (low, high) == (0, 40) and keys == [0, 10, 20, 30] and refs[1].base_offset == 10
    low, high, *_ = index.window(79)
    assert low == 40 and high > 10**12


# ------------------------------------------------------------------ by place


def lane_of(rows: Any, *bases: int, count: int = 10) -> LaneIndex:
    lane = LaneIndex(rows, 4)
    for base in bases:
        lane.append(base, count)
    return lane


def test_places_are_dense_whatever_the_offsets(empty_rows: Any) -> None:
    lane = LaneIndex(empty_rows, 9)
    assert [lane.append(base, 3) for base in (0, 50, 90)] == [0, 3, 6]
    assert lane.end == 9
    assert list(lane.walk(0)) == [(0, 0), (3, 50), (6, 90)]
    assert list(lane.walk(5)) == [(3, 50), (6, 90)]


def test_an_offset_finds_its_place_also_behind_a_late_batch(empty_rows: Any) -> None:
    """Batches 5 and 6 were delayed: they come after higher offsets."""
    lane = lane_of(empty_rows, 10, 20, 30, 40, 5, 50, 6, 60, 70)
    assert lane.place_from(0) == (0, 10)
    assert lane.place_from(20) == (10, 20)
    assert lane.place_from(41) == (50, 50)
    assert lane.place_from(55) == (70, 60)
    assert lane.place_from(71) == (lane.end, -1)


def test_an_empty_lane_has_no_place_for_any_offset(empty_rows: Any) -> None:
    lane = LaneIndex(empty_rows, 0)
    assert lane.place_from(0) == (0, -1) and list(lane.walk(0)) == [] and lane.first_end() == 0


def test_trimming_forgets_whole_batches(empty_rows: Any) -> None:
    lane = lane_of(empty_rows, *range(0, 100, 10))
    assert lane.trim(0) == []
    assert lane.trim(20) == [0, 10]
    assert lane.first == 20 and lane.first_end() == 30
    assert lane.trim(80) == [20, 30, 40, 50, 60, 70]
    assert list(lane.walk(0)) == [(80, 80), (90, 90)]
    assert lane.trim(100) == [80, 90] and lane.first == lane.end == 100
    assert lane.append(200, 5) == 100


def test_the_first_batch_ends_where_the_next_chunk_begins(empty_rows: Any) -> None:
    lane = lane_of(empty_rows, *range(0, 50, 10))
    lane.trim(30)
    assert lane.first_end() == 40
    lane.trim(40)
    assert lane.first_end() == lane.end == 50


def test_a_loaded_lane_is_the_saved_one(empty_rows: Any) -> None:
    lane = lane_of(empty_rows, 10, 20, 30, 40, 5, 50, 6, 60, 70)
    save(lane, empty_rows)
    again = LaneIndex(empty_rows, 4)
    again.first, again.end, again.highest_offset = lane.first, lane.end, lane.highest_offset
    again.load()
    assert list(again.walk(0)) == list(lane.walk(0))
    assert again.place_from(55) == lane.place_from(55)
    rows: dict[bytes, bytes] = {}
    again.all_rows(rows)
    assert rows == dict(empty_rows)


def test_lanes_do_not_see_each_other(empty_rows: Any) -> None:
    save(lane_of(empty_rows, 1, 2), empty_rows)
    other = LaneIndex(empty_rows, 5)
    other.load()
    assert other.starts == []


def test_a_chunk_whose_row_is_missing_is_damage_and_said_so(empty_rows: Any, make_ref: Any) -> None:
    index = filled(empty_rows, make_ref, range(0, 400, 10))
    save(index, empty_rows)
    empty_rows.clear()
    with pytest.raises(AssertionError, match="has no row"):
        list(index.walk(0))
