"""A failed query is started again with growing waits, and given up when it gets nowhere."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner.spark.pipelines.plan import Restart
from lanner.spark.pipelines.restarts import Restarts


def test_waits_double_up_to_their_bound_and_the_limit_ends_it() -> None:
    restarts = Restarts(Restart(limit=4, backoff="1 second", backoff_max="3 seconds"))
    assert [restarts.failed(-1, 100.0).restart_at_s for _ in range(5)] == [101, 102, 103, 103, None]
    assert restarts.total == 4


def test_a_completed_batch_begins_the_count_anew() -> None:
    restarts = Restarts(Restart(limit=1, backoff="1 second"))
    assert restarts.failed(3, 0.0).restart_at_s == 1
    assert restarts.failed(4, 0.0).restart_at_s == 1
    assert restarts.failed(4, 0.0).restart_at_s is None


def test_a_limit_of_none_gives_up_at_once() -> None:
    assert Restarts(Restart(limit=0)).failed(7, 0.0).restart_at_s is None
