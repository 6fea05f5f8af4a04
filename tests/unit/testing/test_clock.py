from __future__ import annotations

import pytest

from lanner.testing.clock import START_MS, SimClock


def test_time_passes_only_when_told_to() -> None:
    clock = SimClock()
    assert clock.now_ms() == clock.now_ms() == START_MS
    clock.advance(5)
    assert (clock.now_ms(), clock.elapsed_ms) == (START_MS + 5, 5)


def test_time_does_not_pass_backwards() -> None:
    with pytest.raises(ValueError, match="one direction"):
        SimClock().advance(-1)


def test_the_wall_clock_jumps_and_the_elapsed_time_does_not() -> None:
    clock = SimClock(1_000)
    clock.advance(10)
    clock.jump(-500)
    assert (clock.now_ms(), clock.elapsed_ms) == (510, 10)
    clock.jump(-10_000)
    assert clock.now_ms() == 1
