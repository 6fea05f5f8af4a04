"""Every bug that it takes several brokers to have is caught by the simulated cluster, each by a recorded seed."""

from __future__ import annotations

import pytest

from lanner.testing.cluster_simulation import simulate_cluster
from lanner.testing.planted import catches, planted
from lanner.testing.planted_cluster import CLUSTER_PLANTS
from lanner.testing.simulate import Job, run

RECORDED = {  # a seed that catches each planted bug, and passes without it
    "double-vote": 8,
    "vote-lost-on-restart": 0,
    "older-term-committed": 3,
    "committed-entries-truncated": 4,
    "ack-before-followers-sync": 0,
    "stale-leader-decides": 2,
    "membership-changed-early": 21,
    "wiped-voter-votes": 2,
    "snapshot-forgets-membership": 2,
    "decision-before-noop": 2,
    "half-built-install": 0,
}


def test_every_planted_bug_has_a_recorded_seed() -> None:
    assert set(RECORDED) == set(CLUSTER_PLANTS)
    assert len(CLUSTER_PLANTS) >= 11


@pytest.mark.parametrize("name", CLUSTER_PLANTS)
def test_a_planted_bug_is_caught_by_its_recorded_seed(name: str) -> None:
    with planted(name):
        report = simulate_cluster(RECORDED[name])
    assert catches(name, report.violations), [str(violation) for violation in report.violations[:5]]


@pytest.mark.parametrize("seed", sorted(set(RECORDED.values())))
def test_a_recorded_seed_passes_without_the_bug(seed: int) -> None:
    assert simulate_cluster(seed).violations == []


@pytest.mark.parametrize("nodes", [3, 5])
def test_a_seed_runs_to_the_same_end_every_time(nodes: int) -> None:
    first, second = (run(Job(6, 1_500, "", nodes)) for _ in range(2))
    assert first == second
    assert first.digest != run(Job(7, 1_500, "", nodes)).digest
