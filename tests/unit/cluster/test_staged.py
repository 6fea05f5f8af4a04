"""Ranges of sequences, and the hashes of names that were forgotten."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lanner.cluster.staged import HASH_BYTES, Hashes, Ranges, added, hash_of, holds

numbers = st.lists(st.integers(0, 40), max_size=40)


def ranges_of(given: list[int], most: int = 100) -> Ranges:
    ranges: Ranges = ()
    for number in given:
        ranges = added(ranges, number, most)
    return ranges


@given(numbers)
def test_ranges_hold_exactly_what_was_added(given: list[int]) -> None:
    ranges = ranges_of(given)
    assert [number for number in range(-1, 43) if holds(ranges, number)] == sorted(set(given))
    assert all(first <= last for first, last in ranges)
    for (_, last), (first, _) in itertools.pairwise(ranges):
        assert last + 1 < first, "neighbours are one range"


def test_of_too_many_ranges_the_lowest_is_dropped() -> None:
    assert ranges_of([0, 2, 4, 6], most=3) == ((2, 2), (4, 4), (6, 6))
    assert ranges_of([0, 1, 2, 3], most=1) == ((0, 3),)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
def test_hashes_remember_names_until_they_are_taken_away(acts: list[tuple[bool, int]]) -> None:
    hashes, model = Hashes(), set()
    for adds, number in acts:
        name = f"name-{number}"
        first = hashes.add(name) if adds else hashes.discard(name)
        (model.add if adds else model.discard)(name)
        assert first == hash_of(name)[0]
        assert len(hashes) == len(model)
    assert all((f"name-{number}" in hashes) == (f"name-{number}" in model) for number in range(31))
    rows = {first: hashes.packed(first) for first in hashes}
    again = Hashes((first, packed) for first, packed in rows.items() if packed is not None)
    assert all(name in again for name in model) and len(again) == len(model)
    assert sum(len(packed or b"") for packed in rows.values()) == HASH_BYTES * len(model)


def test_a_first_byte_that_no_name_has_any_more_has_no_row() -> None:
    hashes = Hashes()
    first = hashes.add("a")
    hashes.discard("a")
    assert hashes.packed(first) is None and list(hashes) == []
    hashes.add("a")
    hashes.add("b")
    assert sorted(hashes.clear()) == sorted({hash_of("a")[0], hash_of("b")[0]})
    assert len(hashes) == 0 and "a" not in hashes
