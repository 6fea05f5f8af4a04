from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lanner.partition.places import ROW_PLACES, Entry, LaneProgress, Standing, split_by_row

READY, WAITING, DEAD = Standing.READY, Standing.WAITING, Standing.DEAD


def entry(place: int, count: int = 1, standing: Standing = READY) -> Entry:
    return Entry(place, count, 1_000 + place, 1, standing)


def test_a_range_is_split_where_rows_end() -> None:
    assert list(split_by_row(ROW_PLACES - 2, 5)) == [(ROW_PLACES - 2, 2), (ROW_PLACES, 3)]
    assert list(split_by_row(0, 3)) == [(0, 3)]
    assert list(split_by_row(7, 0)) == []


def test_holding_and_letting_go_leaves_nothing() -> None:
    progress = LaneProgress(10)
    progress.hold(0, 10)
    assert progress.floor() == 0 and progress.held_mask(0, 12) == 0b1111111111
    progress.let_go(0, 0b11)
    assert progress.floor() == 2 == progress.lowest_held()
    progress.let_go(2, 0b11111111)
    assert progress.floor() == 10 and not progress.rows and progress.lowest_held() is None
    progress.let_go(2, 1)
    assert not progress.rows


def test_a_held_mask_crosses_rows() -> None:
    progress = LaneProgress()
    progress.hold(ROW_PLACES - 1, 1)
    progress.hold(2 * ROW_PLACES, 2)
    mask = progress.held_mask(ROW_PLACES - 2, ROW_PLACES + 4)
    assert mask == 0b10 | (0b11 << (ROW_PLACES + 2))
    assert LaneProgress().held_mask(0, 100) == 0


def test_ready_entries_come_in_place_order_across_rows() -> None:
    progress = LaneProgress()
    for place in (9_000, 5, 100, 4_100):
        progress.add(entry(place))
    assert [each.place for each in progress.ready_entries()] == [5, 100, 4_100, 9_000]
    assert progress.ready_rows == [0, 1, 2]


def test_cutting_takes_the_middle_and_leaves_the_ends() -> None:
    progress = LaneProgress()
    progress.add(entry(10, 10))
    [piece] = progress.cut(13, 4, READY)
    assert piece == entry(13, 4)
    assert list(progress.ready_entries()) == [entry(10, 3), entry(17, 3)]
    assert progress.held_mask(10, 10) == 0b1111111111


def test_cutting_spans_entries_and_skips_what_is_of_another_standing() -> None:
    progress = LaneProgress()
    progress.add(entry(0, 2))
    progress.add(entry(2, 2, DEAD))
    progress.add(entry(4, 2))
    progress.add(entry(ROW_PLACES, 1))
    assert progress.cut(0, ROW_PLACES + 10, READY) == [entry(0, 2), entry(4, 2), entry(ROW_PLACES, 1)]
    assert list(progress.entries()) == [entry(2, 2, DEAD)]
    assert progress.ready_rows == []


def test_an_entry_that_a_senseless_record_puts_in_the_place_of_another_is_listed_alone() -> None:
    progress = LaneProgress()
    progress.add(entry(3, 2))
    progress.add(entry(3, 1, Standing.DEAD))
    assert progress.entry_at(3, Standing.READY) is None
    assert progress.cut(0, 10, Standing.READY) == [] == list(progress.ready_entries())
    assert progress.cut(0, 10, Standing.DEAD) == [entry(3, 1, Standing.DEAD)]


def test_a_waiting_entry_is_found_by_its_first_place_only() -> None:
    progress = LaneProgress()
    progress.add(entry(5, 3, WAITING))
    assert progress.entry_at(5, WAITING) == entry(5, 3, WAITING)
    assert progress.entry_at(6, WAITING) is None
    assert progress.entry_at(5, READY) is None
    assert progress.entry_at(10_000, READY) is None
    progress.add(entry(1, 1))
    assert progress.entry_at(1, WAITING) is None
    assert progress.entry_at(0, READY) is None and progress.entry_at(2, READY) is None


def test_the_dead_hold_the_floor_but_are_not_unsettled() -> None:
    progress = LaneProgress(20)
    progress.add(entry(3, 2, DEAD))
    assert progress.floor() == 3
    assert progress.lowest_unsettled() == 20
    progress.hold(7, 1)
    assert progress.lowest_unsettled() == 7


def test_a_row_is_loaded_as_it_was_stored() -> None:
    progress = LaneProgress()
    for each in (entry(9, 2, DEAD), entry(3), entry(5, 2, WAITING)):
        progress.add(each)
    again = LaneProgress()
    again.load_row(progress.rows[0].encode())
    assert list(again.entries()) == list(progress.entries())
    assert again.rows[0].encode() == progress.rows[0].encode()


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60), st.integers(1, 8)), max_size=30))
def test_cutting_agrees_with_a_set_of_places(steps: list[tuple[bool, int, int]]) -> None:
    progress = LaneProgress()
    ready: set[int] = set()
    for add, place, count in steps:
        wanted = set(range(place, place + count))
        if add:
            if not wanted & ready:
                progress.add(entry(place, count))
                ready |= wanted
        else:
            pieces = progress.cut(place, count, READY)
            assert {each.place + at for each in pieces for at in range(each.count)} == wanted & ready
            for piece in pieces:
                assert piece.first_offset == 1_000 + piece.place
                progress.let_go(piece.place, (1 << piece.count) - 1)
            ready -= wanted
    assert {each.place + at for each in progress.ready_entries() for at in range(each.count)} == ready
    assert progress.lowest_held() == min(ready, default=None)
