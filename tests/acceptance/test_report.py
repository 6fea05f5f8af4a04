"""`lanner report` and its pipeline, with a real Spark and a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from pyarrow import parquet
from pyspark.sql import SparkSession

import lanner
from lanner.errors import NotFoundError
from lanner.spark.archive.archiving import Archiver
from lanner.spark.pipelines.example import example_text
from lanner.spark.pipelines.meaning import validate
from lanner.spark.pipelines.running import Runner
from lanner.spark.reports.reporting import report, source_frame, write
from lanner.testing.process import BrokerProcess
from tests.brokers import blocking_queue, broker_process

__all__ = ["blocking_queue", "broker_process"]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LANNER = [sys.executable, "-m", "lanner.cli"]


@pytest.fixture(scope="module")
def orders(queue: lanner.sync.Queue) -> str:
    """300 messages of priority 4 with 10 bytes, 100 of priority 9 with 1,000 bytes, sent a minute before."""
    queue.admin.create_topic("orders", partitions=2)
    queue.publish_many("orders", [b"x" * 10] * 300)
    writer = queue.stage("orders-timed", "test", 0)
    sent = [int(time.time() * 1000) - 60_000] * 100
    writer.stage_rows("orders", 1, 9, 0, 0, [b"y" * 1_000] * 100, None, None, sent)
    queue.commit_staged("orders-timed", "test", 0, [writer.finish()])
    return "orders"


def test_a_topic_and_its_archive_give_the_same_figures_as_a_page_and_a_table(
    spark: SparkSession, broker: BrokerProcess, orders: str, tmp_path: Path
) -> None:
    told: list[str] = []

    def made(path: str | None) -> Any:
        frame = source_frame(spark, broker.native, orders, path)
        return report(spark, frame, orders, window_ms=None, tell=lambda what, done, total: told.append(what))

    found = made(None)
    assert {(one.priority, one.messages, one.bytes, one.size_p99) for one in found.by_priority} == {
        (4, 300, 3_000, 10),
        (9, 100, 100_000, 1_000),
    }
    assert (found.total.messages, found.total.timed, found.total.ahead) == (400, 100, 0)
    assert found.by_priority[0].latency_ms_p50 is None
    assert 60_000 <= found.by_priority[1].latency_ms_p50 <= found.total.latency_ms_max < 120_000
    assert sum(one.messages for one in found.cells) == sum(one.messages for one in found.by_window) == 400
    assert {"read", "count"} <= set(told)
    *_, _ = Archiver(spark, broker.native, str(tmp_path / "archive"), [orders]).run()
    assert made(str(tmp_path / "archive")) == found
    written = write(found, tmp_path / "out")
    table = parquet.read_table(written.table).to_pylist()
    assert [(row["priority"], row["messages"]) for row in table] == [
        (one.priority, one.messages) for one in found.cells
    ]
    assert table[0]["window_start"].timestamp() * 1000 == found.starts[0]
    assert "From producer to append" in written.page.read_text()
    frame = source_frame(spark, broker.native, orders, None, "priority = 7")
    with pytest.raises(NotFoundError, match="no messages to report on"):
        report(spark, frame, orders, window_ms=None, tell=lambda *_: None)


def test_the_command_tells_programs_what_it_found_and_refuses_what_it_cannot_show(
    broker: BrokerProcess, orders: str, tmp_path: Path
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*LANNER, "report", orders, "--servers", broker.native, "--json", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)

    done = run("--window", "1 hour", "--where", "priority = 9")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["messages"], document["window_ms"], document["page"]) == (100, 3_600_000, "report/report.html")
    assert (tmp_path / document["table"]).exists()
    done = run("--window", "soon")
    assert done.returncode == 2
    assert "such as '5 minutes'" in json.loads(done.stderr)["message"]


def test_the_shipped_pipeline_writes_windows_that_are_over(
    spark: SparkSession, broker: BrokerProcess, queue: lanner.sync.Queue, orders: str, tmp_path: Path
) -> None:
    text = (
        example_text("report")
        .replace("localhost:7400", broker.native)
        .replace("every: 10 seconds", "available_now: true")
    )
    text = text.replace("'1 minute'", "'100 milliseconds'").replace("delay: 10 seconds", "delay: 1 millisecond")
    pipeline, mistakes = validate(text, lambda _: None)
    assert pipeline is not None, mistakes
    for _ in range(2):  # what comes later ends the windows before it
        runner = Runner(spark, pipeline, tmp_path / "report.yaml")
        assert runner.run(lambda _: None), runner.status
        queue.publish_many("orders", [b"later"] * 2)
    rows = spark.read.parquet(str(tmp_path / "report")).where("priority = 9").collect()
    assert sum(row["messages"] for row in rows) == sum(row["timed"] for row in rows) == 100
    assert all(60_000 <= row["latency_ms_p50"] < 120_000 for row in rows)
