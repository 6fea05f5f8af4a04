"""When a disk counts as slow, and for how long."""

from __future__ import annotations

from lanner.broker.pace import HAND_OVER_AFTER_MS, SLOW_FOR_MS, SLOW_SYNC_MS, Pace
from lanner.testing.clock import SimClock


def make_pace() -> tuple[Pace, SimClock]:
    clock = SimClock()
    return Pace(lambda: clock.elapsed_ms), clock


def test_a_disk_is_slow_from_when_a_sync_has_lasted_two_seconds() -> None:
    pace, clock = make_pace()
    pace.begin()
    clock.advance(SLOW_SYNC_MS - 1)
    assert not pace.look() and not pace.slow
    clock.advance(1)
    assert pace.look() and pace.slow
    assert not pace.look(), "told once"
    assert pace.sync_ms == SLOW_SYNC_MS


def test_many_syncs_that_are_not_slow_are_not_slow_together() -> None:
    pace, clock = make_pace()
    for _ in range(100):
        pace.begin()
        clock.advance(SLOW_SYNC_MS - 1)
        pace.end()
        assert not pace.look()


def test_a_slow_sync_that_ended_between_two_looks_counts() -> None:
    pace, clock = make_pace()
    pace.begin()
    clock.advance(SLOW_SYNC_MS + 300)
    pace.end()
    assert pace.slow and pace.sync_ms == 0 and pace.longest_ms == SLOW_SYNC_MS + 300


def test_a_disk_stays_slow_until_some_time_passed_without_a_slow_sync() -> None:
    pace, clock = make_pace()
    pace.begin()
    clock.advance(SLOW_SYNC_MS)
    pace.end()
    clock.advance(SLOW_FOR_MS - 1)
    assert not pace.look() and pace.slow
    clock.advance(1)
    assert pace.look() and not pace.slow


def test_a_sync_that_never_ends_stays_slow_for_ever() -> None:
    pace, clock = make_pace()
    pace.begin()
    for _ in range(50):
        clock.advance(SLOW_SYNC_MS)
        pace.look()
    assert pace.slow and pace.should_hand_over


def test_what_is_led_is_handed_over_when_the_others_had_time_to_say_that_theirs_is_slow() -> None:
    pace, clock = make_pace()
    pace.begin()
    clock.advance(SLOW_SYNC_MS)
    pace.look()
    assert not pace.should_hand_over
    clock.advance(HAND_OVER_AFTER_MS)
    assert pace.should_hand_over
