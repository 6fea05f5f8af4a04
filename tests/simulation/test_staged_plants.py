"""Every bug on purpose in staged publish is caught by a simulation, each by a recorded seed in which writers stage."""

from __future__ import annotations

import pytest

from lanner.testing.cluster_simulation import simulate_cluster
from lanner.testing.planted import catches, planted
from lanner.testing.planted_staged import STAGED_CLUSTER_PLANTS, STAGED_PLANTS
from lanner.testing.simulator import simulate
from lanner.testing.staged_traffic import takes_part

RECORDED = {  # a seed of one broker that catches each
    "fence-ignored": 2,
    "claim-leaves-open": 5,
    "replay-published-again": 2,
    "passed-called-committed": 2,
    "outcome-lost": 2,
    "one-vote-short": 2,
    "votes-of-another-try": 5,
    "prepared-stages-expire": 2,
    "aborts-not-withdrawn": 2,
    "published-before-outcome": 2,
    "stages-not-saved": 2,
}

RECORDED_OF_CLUSTERS = {  # and of several: what only they can have, and what a failover or a snapshot brings to light
    "older-metadata-acted-on": 20,
    "outcome-lost": 2,
    "one-vote-short": 2,
    "stages-not-saved": 20,
}


def test_every_planted_bug_has_a_recorded_seed() -> None:
    assert set(RECORDED) == set(STAGED_PLANTS)
    assert set(RECORDED_OF_CLUSTERS) >= set(STAGED_CLUSTER_PLANTS)
    assert all(map(takes_part, [*RECORDED.values(), *RECORDED_OF_CLUSTERS.values()]))


@pytest.mark.parametrize("name", STAGED_PLANTS)
def test_a_planted_bug_is_caught_by_its_recorded_seed(name: str) -> None:
    with planted(name):
        report = simulate(RECORDED[name])
    assert catches(name, report.violations), [str(violation) for violation in report.violations[:5]]


@pytest.mark.parametrize("name", RECORDED_OF_CLUSTERS)
def test_a_planted_bug_is_caught_by_its_recorded_cluster(name: str) -> None:
    with planted(name):
        report = simulate_cluster(RECORDED_OF_CLUSTERS[name])
    assert catches(name, report.violations), [str(violation) for violation in report.violations[:5]]


@pytest.mark.parametrize("seed", sorted(set(RECORDED.values())))
def test_without_the_bug_the_same_seed_breaks_no_rule_and_meets_every_fate_of_a_commit(seed: int) -> None:
    report = simulate(seed)
    assert not report.violations, [str(violation) for violation in report.violations[:5]]
    for fate in ("commits", "aborts", "repeated", "fenced", "claims", "late_calls"):
        assert report.totals[f"staged_{fate}"], fate


@pytest.mark.parametrize("seed", sorted(set(RECORDED_OF_CLUSTERS.values())))
def test_without_the_bug_the_same_cluster_breaks_no_rule(seed: int) -> None:
    report = simulate_cluster(seed)
    assert not report.violations, [str(violation) for violation in report.violations[:5]]
    for fate in ("commits", "aborts", "repeated", "lags", "late_rounds"):
        assert report.totals[f"staged_{fate}"], fate
