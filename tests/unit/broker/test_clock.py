"""A leader's time: wrong clocks, in a minority, move it by no more than half a second."""

from __future__ import annotations

import pytest

from lanner import limits
from lanner.broker.clock import AHEAD_MS_MAX, LeaderClock

HOUR_MS = 3_600_000
TRUE_MS = 1_700_000_000_000


class Clocks:
    """A leader's clocks, set by hand: one that people can turn, one that only counts."""

    def __init__(self, ahead_ms: int = 0, **others_ahead_ms: int) -> None:
        self.passed_ms = 0
        self.ahead_ms = ahead_ms
        self.leader = LeaderClock(lambda: self.true_ms + self.ahead_ms, lambda: 77 + self.passed_ms)
        self.others_ahead_ms = others_ahead_ms
        self.hear()

    @property
    def true_ms(self) -> int:
        return TRUE_MS + self.passed_ms

    def hear(self) -> None:
        for name, ahead_ms in self.others_ahead_ms.items():
            self.leader.observe(name, self.true_ms + ahead_ms)

    def error_ms(self) -> int:
        return self.leader.now_ms() - self.true_ms


def test_a_broker_that_hears_nobody_goes_by_its_own_clock() -> None:
    assert Clocks(HOUR_MS).error_ms() == HOUR_MS


def test_clocks_that_agree_give_the_own_time() -> None:
    assert Clocks(3, b=-20, c=20).error_ms() == 3


def test_a_leader_an_hour_ahead_goes_half_a_second_ahead_of_the_others() -> None:
    assert Clocks(HOUR_MS, b=0, c=-4).error_ms() == AHEAD_MS_MAX


@pytest.mark.parametrize("wrong_ms", [HOUR_MS, -HOUR_MS])
def test_a_follower_that_is_an_hour_off_changes_nothing(wrong_ms: int) -> None:
    assert Clocks(0, b=wrong_ms, c=0).error_ms() == 0


def test_a_leader_that_is_right_stays_right_when_two_of_three_are_ahead() -> None:
    assert Clocks(0, b=HOUR_MS, c=HOUR_MS).error_ms() == 0


def test_a_leader_that_is_ahead_with_one_of_two_others_goes_no_further_than_that_one() -> None:
    """Two of three are wrong, and nobody can know: this is what cannot be helped."""
    assert Clocks(2 * HOUR_MS, b=HOUR_MS, c=0).error_ms() == HOUR_MS + AHEAD_MS_MAX


def test_a_leader_behind_the_others_goes_by_its_own_clock() -> None:
    assert Clocks(-HOUR_MS, b=0, c=0).error_ms() == -HOUR_MS


def test_of_two_clocks_the_earlier_counts() -> None:
    assert Clocks(HOUR_MS, b=0).error_ms() == AHEAD_MS_MAX


def test_a_jump_of_the_own_clock_does_not_drag_the_others_along() -> None:
    clocks = Clocks(0, b=0, c=0)
    clocks.ahead_ms = HOUR_MS
    assert clocks.error_ms() == AHEAD_MS_MAX


def test_what_was_heard_ages_with_the_steady_clock() -> None:
    clocks = Clocks(HOUR_MS, b=0, c=0)
    clocks.passed_ms = 10_000
    assert clocks.error_ms() == AHEAD_MS_MAX


def test_a_broker_that_is_no_longer_heard_does_not_count() -> None:
    clocks = Clocks(0, b=-HOUR_MS, c=-HOUR_MS)
    assert clocks.error_ms() == AHEAD_MS_MAX - HOUR_MS
    clocks.leader.forget("b")
    clocks.leader.forget("c")
    clocks.leader.forget("nobody")
    assert clocks.error_ms() == 0


def test_the_own_clock_is_one_of_those_that_are_known() -> None:
    assert Clocks().leader.known() == 1
    assert Clocks(0, b=0, c=0).leader.known() == 3


def test_no_more_clocks_are_kept_than_there_may_be_brokers() -> None:
    clock = LeaderClock(lambda: TRUE_MS)
    for number in range(limits.BROKERS_MAX):
        clock.observe(f"b{number}", TRUE_MS)
    for number in range(limits.BROKERS_MAX * 3):
        clock.observe(f"liar{number}", TRUE_MS - HOUR_MS)
    assert clock.now_ms() == TRUE_MS
    clock.observe("b0", TRUE_MS + 1)  # a known one may still speak
    assert clock.now_ms() == TRUE_MS
