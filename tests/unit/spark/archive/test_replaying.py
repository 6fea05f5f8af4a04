"""How the rows of a replay are cut, and how fast they may go."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner.spark.archive.replaying import Pace, Run, runs


def test_rows_are_cut_where_the_partition_or_the_priority_changes_and_stay_in_order() -> None:
    found = list(runs([0, 0, 0, 1, 1, 1], [5, 5, 9, 9, 9, 5], 100))
    assert found == [Run(0, 5, 0, 2), Run(0, 9, 2, 3), Run(1, 9, 3, 5), Run(1, 5, 5, 6)]


def test_without_partitions_only_the_priority_counts_and_long_runs_are_divided() -> None:
    assert list(runs(None, [5] * 5 + [1], 2)) == [
        Run(None, 5, 0, 2),
        Run(None, 5, 2, 4),
        Run(None, 5, 4, 5),
        Run(None, 1, 5, 6),
    ]
    assert list(runs(None, [], 2)) == []


def test_a_pace_waits_as_long_as_its_rate_asks_and_never_less_than_nothing() -> None:
    pace = Pace(100, began=50.0)
    assert pace.wait_seconds(10, now=50.04) == pytest.approx(0.06)
    assert pace.wait_seconds(10, now=50.5) == 0
    assert pace.wait_seconds(60, now=50.5) == pytest.approx(0.3)
