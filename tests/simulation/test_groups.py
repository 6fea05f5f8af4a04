"""Members that join, leave, die and fall silent, from seeds: every rule holds, and every planted bug is caught."""

from __future__ import annotations

from collections import Counter

import pytest

from lanner.testing.group_simulation import GroupSimulation
from lanner.testing.planted_groups import GROUP_PLANTS, QUEUE_GROUP_PLANTS
from lanner.testing.queue_group_simulation import QueueGroupSimulation

SEEDS = 60
MET = (  # each at least once in ten seeds
    "assignments",
    "claims",
    "commits",
    "elections",
    "evictions",
    "fenced",
    "forced",
    "forgotten",
    "joins",
    "kills",
    "late",
    "leaves",
    "lost",
    "releases",
    "resets",
    "sleeps",
    "transfers",
)
RECORDED = {
    "claim-without-fence": 2,
    "commit-without-order": 4,
    "dead-heir-kept": 0,
    "dead-member-kept": 0,
    "fenced-not-released": 4,
    "grant-before-release": 5,
    "grant-renewed": 0,
    "needless-move": 0,
    "new-leader-impatient": 0,
    "no-fence": 2,
    "number-given-twice": 84,
    "old-assignment-applied": 1,
    "old-generation-accepted": 237,
    "old-view-believed": 0,
    "release-without-grant": 3,
    "released-before-answer": 0,
    "released-grant-used": 3,
    "reset-undone": 4,
    "seek-without-fence": 2,
    "takeover-keeps-grants": 1,
    "unowned-forgotten": 33,
    "unstable-assignment": 0,
}


QUEUE_RECORDED = {
    "poll-unchecked": 3,
    "poll-without-fence": 3,
    "queue-dead-kept": 0,
    "queue-move-needless": 0,
    "shared-with-owners": 0,
}
QUEUE_MET = ("assignments", "evictions", "fenced", "joins", "kills", "leases", "leaves", "lost", "sleeps", "switches")


@pytest.mark.parametrize(("kind", "met"), [(GroupSimulation, MET), (QueueGroupSimulation, QUEUE_MET)])
def test_every_seed_keeps_every_rule_and_meets_what_it_should(
    kind: type[GroupSimulation], met: tuple[str, ...]
) -> None:
    totals: Counter[str] = Counter()
    for seed in range(SEEDS):
        simulation = kind(seed)
        assert simulation.run() == [], f"seed {seed}"
        totals += simulation.counts
    assert {name: totals[name] for name in met if totals[name] < SEEDS / 10} == {}


def test_a_seed_always_runs_to_the_same_end() -> None:
    first, second = GroupSimulation(7), GroupSimulation(7)
    first.run()
    second.run()
    assert first.history == second.history and len(first.history) > 100


def test_every_planted_bug_has_a_recorded_seed() -> None:
    assert set(RECORDED) == set(GROUP_PLANTS)
    assert set(QUEUE_RECORDED) == set(QUEUE_GROUP_PLANTS)


@pytest.mark.parametrize("name", sorted(RECORDED | QUEUE_RECORDED))
def test_a_planted_bug_is_caught_by_its_recorded_seed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant = (GROUP_PLANTS | QUEUE_GROUP_PLANTS)[name]
    kind = GroupSimulation if name in RECORDED else QueueGroupSimulation
    plant.put(monkeypatch.setattr)
    rules = {violation.rule for violation in kind((RECORDED | QUEUE_RECORDED)[name]).run()}
    assert rules & set(plant.caught_by), f"only {sorted(rules)} were broken"


@pytest.mark.parametrize("seed", sorted(set(RECORDED.values())))
def test_without_the_bug_the_same_seed_breaks_no_rule(seed: int) -> None:
    assert GroupSimulation(seed).run() == []
    assert QueueGroupSimulation(seed).run() == []
