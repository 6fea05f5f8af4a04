from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lanner.partition.timetable import Timetable


def test_what_is_due_comes_earliest_first() -> None:
    table: Timetable[str] = Timetable()
    for key, time_ms in (("late", 30), ("early", 10), ("middle", 20), ("never", 99)):
        table.put(key, time_ms)
    assert table.until(30, 10) == ["early", "middle", "late"]
    assert table.first_ms() == 10


def test_looking_changes_nothing() -> None:
    table: Timetable[str] = Timetable()
    table.put("a", 1)
    table.put("b", 2)
    assert table.until(5, 1) == ["a"]
    assert table.until(5, 5) == ["a", "b"]
    assert len(table) == 2 and "a" in table


def test_a_key_has_one_time_only() -> None:
    table: Timetable[str] = Timetable()
    table.put("a", 5)
    table.put("a", 50)
    table.put("b", 20)
    assert table.first_ms() == 20
    assert table.until(10, 10) == []
    assert table.until(60, 10) == ["b", "a"]


def test_the_same_time_twice_is_listed_once() -> None:
    table: Timetable[str] = Timetable()
    table.put("other", 1)
    table.put("a", 5)
    table.put("a", 5)
    table.put("a", 7)
    table.put("a", 5)
    assert table.until(9, 10) == ["other", "a"]


def test_an_empty_timetable_has_no_first() -> None:
    table: Timetable[int] = Timetable()
    assert table.first_ms() is None and table.until(10, 10) == []
    table.put(1, 1)
    table.drop(1)
    table.drop(2)
    assert table.first_ms() is None


def test_moving_a_key_for_ever_does_not_fill_the_memory() -> None:
    table: Timetable[int] = Timetable()
    table.put(0, 0)
    for time_ms in range(10_000):
        table.put(1, time_ms + 1)
    assert len(table._heap) < 100


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 20)))), st.integers(0, 20))
def test_it_agrees_with_a_plain_dictionary(steps: list[tuple[int, int | None]], now_ms: int) -> None:
    table: Timetable[int] = Timetable()
    model: dict[int, int] = {}
    for key, time_ms in steps:
        if time_ms is None:
            table.drop(key)
            model.pop(key, None)
        else:
            table.put(key, time_ms)
            model[key] = time_ms
    assert table.times == model
    assert table.first_ms() == min(model.values(), default=None)
    due = sorted((time_ms, key) for key, time_ms in model.items() if time_ms <= now_ms)
    assert table.until(now_ms, 100) == [key for _, key in due]
