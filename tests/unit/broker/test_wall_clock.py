"""A wall clock that is set while the broker runs: followed slowly, never back, and told."""

from __future__ import annotations

from random import Random

import pytest

from lanner.broker.wall_clock import PACE, FollowingClock, steady_clock_ms, wall_clock_ms
from lanner.testing.clock import START_MS, SimClock

HOUR_MS = 3_600_000


def followed(clock: SimClock) -> FollowingClock:
    return FollowingClock(clock.now_ms, lambda: clock.elapsed_ms)


def test_a_clock_that_nobody_sets_is_shown_as_it_is() -> None:
    sim = SimClock()
    clock = followed(sim)
    assert clock.now_ms() == START_MS
    for _ in range(100):
        sim.advance(37)
        assert clock.now_ms() == sim.now_ms()


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, 3_000, -3_000])
def test_a_lease_ends_neither_early_nor_late_by_a_step(step_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    sim = SimClock()
    clock = followed(sim)
    lease_ends_ms = clock.now_ms() + 30_000
    sim.jump(step_ms)
    passed_ms = 0
    while clock.now_ms() < lease_ends_ms:
        sim.advance(10)
        passed_ms += 10
    assert 30_000 * (1 - PACE) - 10 <= passed_ms <= 30_000 / (1 - PACE) + 10
    (told,) = caplog.messages
    assert f"was set {'forward' if step_ms > 0 else 'back'} by {abs(step_ms) / 1_000:.1f} s" in told


def test_in_the_end_it_agrees_with_the_wall_clock_again() -> None:
    sim = SimClock()
    clock = followed(sim)
    for step_ms in (3_000, -3_000):
        sim.jump(step_ms)
        clock.now_ms()
        assert abs(clock.behind_ms) == 3_000
        for _ in range(700):
            sim.advance(100)
            clock.now_ms()
        assert clock.now_ms() == sim.now_ms()
        assert clock.behind_ms == 0


def test_it_never_goes_back_and_never_runs_away_whatever_is_set() -> None:
    for seed in range(20):
        rng, sim = Random(seed), SimClock()
        clock = followed(sim)
        before_ms = clock.now_ms()
        for _ in range(500):
            elapsed_ms = rng.choice((0, 0, 1, 7, 400))
            sim.advance(elapsed_ms)
            if rng.random() < 0.1:
                sim.jump(rng.choice((-HOUR_MS, -50, 50, 900, HOUR_MS)))
            now_ms = clock.now_ms()
            assert 0 <= now_ms - before_ms <= elapsed_ms * (1 + PACE) + 1, seed
            before_ms = now_ms


def test_a_clock_that_is_slewed_by_the_system_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    sim = SimClock()
    clock = followed(sim)
    for _ in range(1_000):
        sim.advance(100)
        sim.jump(1)  # 1% fast
        clock.now_ms()
    assert abs(clock.now_ms() - sim.now_ms()) <= 2
    assert caplog.messages == []


def test_the_real_clocks_are_read() -> None:
    clock = FollowingClock()
    assert abs(clock.now_ms() - wall_clock_ms()) < 1_000
    assert steady_clock_ms() <= steady_clock_ms()
