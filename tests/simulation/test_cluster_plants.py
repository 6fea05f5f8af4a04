"""Every bug that it takes several brokers to have is caught by the simulated cluster, each by a recorded seed."""

from __future__ import annotations

import pytest

from lanner.testing.cluster_simulation import CLUSTER_EVENTS
from lanner.testing.planted import catches
from lanner.testing.planted_cluster import CLUSTER_PLANTS
from lanner.testing.sim_cluster import size_of
from lanner.testing.simulate import Job, run

RECORDED = {  # seeds of which at least one catches the planted bug
    "double-vote": (13, 16, 19, 29),
    "shorter-log-elected": (5, 4, 8, 10),
    "vote-before-sync": (0, 1),
    "vote-lost-on-restart": (0, 2, 3),
    "older-term-committed": (5, 1, 6, 7, 9),
    "committed-entries-truncated": (11, 17, 23),
    "ack-before-followers-sync": (0, 1),
    "stale-leader-decides": (0, 8, 22),
    "membership-changed-early": (25, 1, 7, 9),
    "wiped-voter-votes": (28, 11),
    "snapshot-forgets-membership": (0, 1, 2, 3),
    "decision-before-noop": (0, 1),
    "snapshot-of-two-moments": (1, 4, 10),
    "half-built-install": (0, 1, 2, 3, 5),
    "heartbeats-behind-disk": (4, 14, 18, 23),
    "damaged-replica-leads": (6,),
    "damage-not-reported": (3,),
    "closed-leader-believed": (6436,),
    "told-of-founders-only": (28, 11),
    "unknown-record-skipped": (22, 31),
    "hung-disk-leads": (4, 14, 18, 23),
}


def test_every_planted_bug_has_a_recorded_seed() -> None:
    assert set(RECORDED) == set(CLUSTER_PLANTS)
    assert len(CLUSTER_PLANTS) >= 11


@pytest.mark.parametrize("name", CLUSTER_PLANTS)
def test_a_planted_bug_is_caught_by_its_recorded_seeds(name: str) -> None:
    """The first that fails must fail for the right reason."""
    outcomes = (run(Job(seed, CLUSTER_EVENTS, name, size_of(seed))) for seed in RECORDED[name])
    found = next((outcome for outcome in outcomes if outcome.violations), None)
    assert found is not None, "none of its seeds fails: record others with `make sim PLANT=...`"
    assert catches(name, found.violations), [str(violation) for violation in found.violations[:5]]


def test_a_cluster_that_ignores_the_checksums_of_rows_is_caught() -> None:
    outcome = run(Job(21, CLUSTER_EVENTS, "row-checksum-ignored", size_of(21)))
    assert catches("row-checksum-ignored", outcome.violations), [str(one) for one in outcome.violations[:5]]


@pytest.mark.parametrize("nodes", [3, 5])
def test_a_seed_runs_to_the_same_end_every_time(nodes: int) -> None:
    first, second = (run(Job(6, 1_500, "", nodes)) for _ in range(2))
    assert first == second
    assert first.digest != run(Job(7, 1_500, "", nodes)).digest
