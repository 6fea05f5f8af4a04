"""Whole runs of the simulator: sixty seeds without a fault of the broker, and every planted bug caught."""

from __future__ import annotations

from collections import Counter

import pytest

from lanner.testing.planted import BROKER_PLANTS, catches
from lanner.testing.simulate import Job, run, run_many
from lanner.testing.simulator import EVENTS, TOTALS

SEEDS = 60
RECORDED = {  # a seed that catches each planted bug, and passes without it
    "skipped-sync": 0,
    "ack-before-commit": 0,
    "retry-loses-priority": 0,
    "lease-granted-twice": 0,
    "stale-lease-accepted": 0,
    "settle-forgotten": 0,
    "commit-repeated": 0,
    "create-by-clock": 0,
    "pinned-dead-letter-removed": 0,
    "saved-point-ahead": 0,
    "live-segment-dropped": 1,
    "row-checksum-ignored": 0,
    "damaged-tail-cut": 0,
    "replay-not-synced": 8,
    "delayed-delivered-early": 1,
    "attempt-not-counted": 0,
    "oversized-reply-kept": 0,
    "clock-believed": 0,
}


def test_sixty_seeds_break_no_rule_and_each_kind_of_trouble_was_met(record_property: pytest.RecordProperty) -> None:
    totals: Counter[str] = Counter()
    events: list[int] = []
    for outcome in run_many([Job(seed, EVENTS, "") for seed in range(SEEDS)], 1):
        again = f"make sim SEED={outcome.seed}"
        assert not outcome.violations, f"{again}: {[str(violation) for violation in outcome.violations[:5]]}"
        totals.update(outcome.totals)
        events.append(outcome.events)
    record_property("totals", f"{SEEDS} seeds: " + ", ".join(f"{name} {totals[name]}" for name in ("events", *TOTALS)))
    assert len(events) == SEEDS
    assert min(events) >= 5_000
    assert {name: totals[name] for name in TOTALS if totals[name] < SEEDS / 10} == {}


def test_every_planted_bug_has_a_recorded_seed() -> None:
    assert set(RECORDED) == set(BROKER_PLANTS)
    assert len(BROKER_PLANTS) >= 8


@pytest.mark.parametrize("name", BROKER_PLANTS)
def test_a_planted_bug_is_caught_by_its_recorded_seed(name: str) -> None:
    outcome = run(Job(RECORDED[name], EVENTS, name))
    assert catches(name, outcome.violations), [str(violation) for violation in outcome.violations[:5]]


def test_a_seed_runs_to_the_same_end_every_time() -> None:
    first, second = (run(Job(11, 1_500, "")) for _ in range(2))
    assert first == second
    assert first.digest != run(Job(12, 1_500, "")).digest


def test_a_seed_runs_to_the_same_end_in_every_process() -> None:
    jobs = [Job(seed, 500, "") for seed in (11, 12, 13)]
    assert sorted(run_many(jobs, 2)) == sorted(run_many(jobs, 1))


def test_a_failing_seed_fails_again_in_the_same_way() -> None:
    outcomes = [run(Job(RECORDED["stale-lease-accepted"], 1_500, "stale-lease-accepted")) for _ in range(2)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].violations
