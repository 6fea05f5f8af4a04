"""What the acceptance tests share: room for `lanner dev`, and a Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lanner.testing.process import free_port

BROKERS = 5


@pytest.fixture
def dev_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A --port for `lanner dev` from which everything that a few brokers need is free."""
    monkeypatch.setenv("LANNER_DISK_RESERVE", "0")
    return free_port(10 * BROKERS) - 10


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session for all modules that a process runs: starting one takes several seconds."""
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")
    import lanner.spark

    settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": 2}
    session = lanner.spark.session("lanner acceptance", config=settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
