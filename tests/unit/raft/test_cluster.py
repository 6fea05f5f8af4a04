"""Whole replica sets, from one seed each: faults with every invariant after every step, then convergence."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.raft.cluster import Cluster
from tests.unit.raft.planted import PLANTS, complaint

STEPS = 5_000
SEEDS_MAX = 300
RECORDED = {
    "double_vote": 1,
    "lost_vote_on_restart": 3,
    "vote_before_it_is_durable": 0,
    "vote_for_a_shorter_log": 0,
    "candidate_that_asks_before_its_vote_is_durable": 0,
    "commit_of_an_older_term": 12,
    "truncation_of_committed_entries": 0,
    "ack_before_the_followers_sync": 0,
    "ack_of_entries_that_were_replaced": 20,
    "read_from_a_stale_leader": 1,
    "read_before_the_own_term_committed": 0,
    "membership_change_before_the_own_term_committed": 0,
    "wiped_voter_that_votes": 2,
    "snapshot_that_forgets_the_membership": 0,
    "restart_that_forgets_a_membership": 0,
}


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("start", [0, *(pytest.param(start, marks=pytest.mark.slow) for start in range(5, 30, 5))])
def test_a_replica_set_keeps_every_promise_whatever_happens_and_converges(voters: int, start: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(start, start + 5):
        cluster = Cluster(seed, voters)
        cluster.run(STEPS)
        cluster.converge()
        total.update(cluster.facts)
    rare = [
        name
        for name in (
            "elections",
            "crashes",
            "splits",
            "changes",
            "transfers",
            "snapshots",
            "installs",
            "wipes",
        )
        if total[name] < 1
    ]
    assert rare == [], total


def test_a_life_is_the_same_each_time_it_is_lived() -> None:
    lives = []
    for _ in range(2):
        cluster = Cluster(77, 3)
        cluster.run(2_000)
        lives.append((cluster.facts, cluster.witness.digests))
    assert lives[0] == lives[1]


def test_without_faults_a_set_elects_once_and_keeps_its_leader() -> None:
    cluster = Cluster(3, 5, faults=False)
    for _ in range(200):
        cluster.tick()
        cluster.settle()
        cluster.propose()
    assert len(cluster.leaders()) == 1
    assert len(cluster.witness.leaders) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_caught_by_its_recorded_seed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the core moves the moment at which chance strikes; then another seed within the bound must do."""
    PLANTS[name](monkeypatch)
    caught_by = next((seed for seed in (RECORDED[name], *range(SEEDS_MAX)) if complaint(seed, STEPS)), None)
    assert caught_by is not None
