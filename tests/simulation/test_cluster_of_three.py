"""Whole clusters of three from seeds: no rule is broken, and each kind of trouble was met."""

from __future__ import annotations

import pytest

from lanner.testing.cluster_simulation import CLUSTER_EVENTS
from lanner.testing.simulate import Job, run
from tests.simulation.cluster_seeds import check_seeds

SEEDS = range(0, 80, 2)


def test_forty_seeds_of_three_brokers_break_no_rule_and_meet_every_trouble(
    record_property: pytest.RecordProperty,
) -> None:
    record_property("totals", check_seeds(SEEDS, 3))


@pytest.mark.parametrize(
    ("seed", "nodes"),
    [
        (2410, 3),  # a row rots of a copy that was replaced after the save
        (2864, 3),  # everything seems to be at rest while the begin of a try is on its way
        (3151, 5),  # the metadata's leader does not know yet that a copy is being replaced
        (6454, 3),  # the simulator looks for an entry that may rot while a commit discards one
        (7129, 5),  # a second copy is damaged between the report of the first and its replacement
        (7549, 5),  # a rotten entry is let go, and comes back with a crash
    ],
)
def test_a_seed_that_was_judged_wrongly_breaks_no_rule(seed: int, nodes: int) -> None:
    outcome = run(Job(seed, CLUSTER_EVENTS, "", nodes))
    assert not outcome.violations, [str(violation) for violation in outcome.violations[:5]]
