"""Every bug on purpose in staged publish is caught by a simulation, each by a recorded seed in which writers stage."""

from __future__ import annotations

import pytest

from lanner.testing.cluster_simulation import CLUSTER_EVENTS
from lanner.testing.planted import catches
from lanner.testing.planted_staged import STAGED_CLUSTER_PLANTS, STAGED_PLANTS
from lanner.testing.sim_cluster import size_of
from lanner.testing.simulate import Job, run
from lanner.testing.simulator import EVENTS
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
    "older-metadata-acted-on": 5,
    "outcome-lost": 5,
    "one-vote-short": 5,
    "stages-not-saved": 5,
}


def test_every_planted_bug_has_a_recorded_seed() -> None:
    assert set(RECORDED) == set(STAGED_PLANTS)
    assert set(RECORDED_OF_CLUSTERS) >= set(STAGED_CLUSTER_PLANTS)
    assert all(map(takes_part, [*RECORDED.values(), *RECORDED_OF_CLUSTERS.values()]))


@pytest.mark.parametrize("name", STAGED_PLANTS)
def test_a_planted_bug_is_caught_by_its_recorded_seed(name: str) -> None:
    outcome = run(Job(RECORDED[name], EVENTS, name))
    assert catches(name, outcome.violations), [str(violation) for violation in outcome.violations[:5]]


@pytest.mark.parametrize("name", RECORDED_OF_CLUSTERS)
def test_a_planted_bug_is_caught_by_its_recorded_cluster(name: str) -> None:
    seed = RECORDED_OF_CLUSTERS[name]
    outcome = run(Job(seed, CLUSTER_EVENTS, name, size_of(seed)))
    assert catches(name, outcome.violations), [str(violation) for violation in outcome.violations[:5]]


@pytest.mark.parametrize("seed", sorted(set(RECORDED.values())))
def test_without_the_bug_the_same_seed_breaks_no_rule_and_meets_every_fate_of_a_commit(seed: int) -> None:
    outcome = run(Job(seed, EVENTS, ""))
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:5]]
    for fate in ("commits", "aborts", "repeated", "fenced", "claims", "late_calls"):
        assert outcome.totals[f"staged_{fate}"], fate


@pytest.mark.parametrize("seed", sorted(set(RECORDED_OF_CLUSTERS.values())))
def test_without_the_bug_the_same_cluster_breaks_no_rule(seed: int) -> None:
    outcome = run(Job(seed, CLUSTER_EVENTS, "", size_of(seed)))
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:5]]
    for fate in ("commits", "aborts", "repeated", "lags", "late_rounds"):
        assert outcome.totals[f"staged_{fate}"], fate
