"""Whole clusters of five from seeds: no rule is broken, and each kind of trouble was met."""

from __future__ import annotations

import pytest

from tests.simulation.cluster_seeds import check_seeds

SEEDS = range(1, 81, 2)


def test_forty_seeds_of_five_brokers_break_no_rule_and_meet_every_trouble(
    record_property: pytest.RecordProperty,
) -> None:
    record_property("totals", check_seeds(SEEDS, 5))
