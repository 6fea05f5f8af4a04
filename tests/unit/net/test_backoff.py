"""Pauses between tries: how they grow, what jitter does to them, and when there is no time for another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanner.net.backoff import Backoff


def even() -> float:
    return 0.5


def test_pauses_double_up_to_the_bound_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.1, 0.5, even)
    assert [backoff.pause_s() for _ in range(5)] == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])
    assert not backoff.is_fresh
    backoff.reset()
    assert backoff.is_fresh
    assert backoff.pause_s() == pytest.approx(0.1)


def test_a_peer_may_ask_for_a_longer_pause_and_not_for_a_shorter_one() -> None:
    backoff = Backoff(0.1, 0.5, even)
    assert backoff.pause_s(3_000) == pytest.approx(3.0)
    assert backoff.pause_s(1) == pytest.approx(0.2), "the pauses in between count all the same"
    assert backoff.pause_s(None) == pytest.approx(0.4)


def test_a_pause_that_would_not_end_in_time_is_none() -> None:
    assert Backoff(0.1, 0.5, even).pause_until(10.2, 10.0) == pytest.approx(0.1)
    assert Backoff(0.1, 0.5, even).pause_until(10.1, 10.0) is None
    assert Backoff(0.1, 0.5, even).pause_until(10.2, 10.0, 300) is None


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20))
def test_jitter_takes_or_adds_a_quarter_at_most(chances: list[float]) -> None:
    drawn = iter(chances)
    backoff, plain = Backoff(0.01, 1.0, lambda: next(drawn)), Backoff(0.01, 1.0, even)
    for _ in chances:
        expected = plain.pause_s()
        assert 0.75 * expected <= backoff.pause_s() <= 1.25 * expected
