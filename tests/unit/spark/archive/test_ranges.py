"""Ranges of offsets behave like the sets that they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import itertools

from lanner.spark.archive import ranges

lists = some.lists(some.tuples(some.integers(0, 40), some.integers(0, 40)), max_size=8)


def members(found: list[tuple[int, int]]) -> set[int]:
    return {offset for start, end in found for offset in range(start, end)}


def is_tidy(found: list[tuple[int, int]]) -> bool:
    return all(start < end for start, end in found) and all(
        one[1] < other[0] for one, other in itertools.pairwise(found)
    )


@given(lists, lists, some.integers(0, 40), some.integers(0, 40))
def test_every_operation_does_what_the_same_one_on_sets_does(
    one: list[tuple[int, int]], other: list[tuple[int, int]], start: int, end: int
) -> None:
    twice = {offset for offset in range(40) if sum(low <= offset < high for low, high in one) > 1}
    expected = [
        (ranges.joined(one), members(one)),
        (ranges.doubled(one), twice),
        (ranges.without(one, other), members(one) - members(other)),
        (ranges.both(one, other), members(one) & members(other)),
        (ranges.within(one, start, end), members(one) & set(range(start, end))),
    ]
    for found, offsets in expected:
        assert members(found) == offsets
        assert is_tidy(found)
        assert ranges.count(found) == len(offsets)


def test_ranges_are_shown_with_their_last_offset_and_not_all_of_them() -> None:
    assert ranges.shown([(17, 18), (40, 100)]) == "17, 40-99"
    assert ranges.shown([(n, n + 1) for n in range(0, 22, 2)], most=2) == "0, 2 and 9 more"
