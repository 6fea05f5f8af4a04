"""Bounds are numbers that make sense together; the relations between them are asserted where they are defined."""

from __future__ import annotations

import re

import pytest

from lanner import limits

NUMBERS = {name: value for name, value in vars(limits).items() if name.isupper() and isinstance(value, int)}


def test_every_bound_is_a_positive_number() -> None:
    assert len(NUMBERS) > 40
    assert all(value > 0 for value in NUMBERS.values())


@pytest.mark.parametrize("name", ["a", "orders", "A.b_c-9", "...", "x" * 200])
def test_a_name_may_have_letters_digits_dots_underscores_and_hyphens(name: str) -> None:
    assert limits.NAME_PATTERN.match(name)


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "é", "a\n", "\n", "x" * 201, "a\0"])
def test_nothing_else_is_a_name(name: str) -> None:
    assert not limits.NAME_PATTERN.match(name)


def test_the_pattern_and_the_number_agree_on_the_longest_name() -> None:
    assert re.findall(r"\{1,(\d+)\}", limits.NAME_PATTERN.pattern) == [str(limits.NAME_LENGTH_MAX)]


def test_times_and_offsets_survive_a_journey_through_json() -> None:
    for bound in (limits.TIME_MS_MAX, limits.OFFSET_MAX):
        assert int(float(bound)) == bound == 2**53 - 1


def test_the_reserve_is_a_small_part_of_a_disk() -> None:
    assert 0 < limits.DISK_RESERVE_FRACTION < 0.5
