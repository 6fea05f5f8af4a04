"""`make bench-spark`: what Spark reads out of a broker, beside what it can take in at all.

The ceiling is the same rows from memory: a data source of our own that hands Spark the same Arrow record batches,
through the same plan, to the same sink, in the same run. The two are interleaved and repeated, because the machine is
shared; what is shown is the median of the rounds. Latency is from just before a publish to the moment a `foreachBatch`
has the message, with the settings that `lanner.spark.session` makes.

BENCH_SPARK_MESSAGES (1,000,000 of 100 bytes), BENCH_ROUNDS (3) and BENCH_LATENCIES (100) make it longer or shorter.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

import lanner
import lanner.spark
from bench import load
from bench.figures import Figure, keep_figures, percentile, print_figures
from bench.floors import scratch
from lanner.testing.process import BrokerProcess

MESSAGES = int(os.environ.get("BENCH_SPARK_MESSAGES", "1000000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
LATENCIES = int(os.environ.get("BENCH_LATENCIES", "100"))
PARTITIONS = 2
BATCH_MESSAGES = 10_000
READ_GOAL = 0.65
PARQUET_GOAL = 0.80
LATENCY_GOAL_MS = 150.0
_PAUSE_S = 0.1


class MemoryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The rows of one stored batch, over and over, until there are enough."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        return {"rows": self._rows}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        rows = end["rows"] - start["rows"]
        return [InputPartition(rows // PARTITIONS) for _ in range(PARTITIONS)] if rows else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from lanner import batch
        from lanner.spark.columns import StoredBatch, gather

        values = [b"v" * 100 for _ in range(10_000)]
        (made,) = gather("bench", 0, [StoredBatch(0, 1, batch.encode(values))], 0, len(values))
        for first in range(0, partition.value, len(values)):
            yield made.slice(0, min(len(values), partition.value - first))


class MemorySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "memory_rows"

    def schema(self) -> StructType:
        from lanner.spark.source import schema

        return schema(False)

    def streamReader(self, schema: StructType) -> MemoryReader:  # noqa: N802
        return MemoryReader(int(self.options["rows"]))


@contextmanager
def filled_broker() -> Iterator[tuple[BrokerProcess, str]]:
    with scratch() as folder, BrokerProcess(Path(folder) / "data") as process:
        values = load.messages(BATCH_MESSAGES)
        with lanner.sync.connect(process.native) as queue:
            queue.admin.create_topic("bench", partitions=PARTITIONS)
            for number in range(MESSAGES // BATCH_MESSAGES):
                queue.publish_many("bench", values, partition=number % PARTITIONS)
        yield process, "bench"


def rows_a_second(spark: SparkSession, source: str, options: Mapping[str, Any], sink: str) -> float:
    """One AvailableNow query from source to sink, measured by Spark itself: its batch, without starting and ending."""
    with tempfile.TemporaryDirectory() as folder:
        frame = spark.readStream.format(source).options(**options).load()
        writer = frame.writeStream.format(sink).option("checkpointLocation", f"{folder}/checkpoint")
        if sink == "parquet":
            writer = writer.option("path", f"{folder}/table")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        (batch,) = [one for one in query.recentProgress if one["numInputRows"]]
        assert batch["numInputRows"] == MESSAGES, batch["numInputRows"]
        return MESSAGES / (batch["durationMs"]["addBatch"] / 1_000)


def throughput(spark: SparkSession, process: BrokerProcess, topic: str, sink: str, goal: float) -> Figure:
    reading = {"servers": process.native, "subscribe": topic, "startingOffsets": "earliest"}
    found: dict[str, list[float]] = {"lanner": [], "memory_rows": []}
    for source, options in (("lanner", reading), ("memory_rows", {"rows": MESSAGES})):
        rows_a_second(spark, source, options, sink)  # the first run compiles, and fills caches
    for _ in range(ROUNDS):
        for source, options in (("lanner", reading), ("memory_rows", {"rows": MESSAGES})):
            found[source].append(rows_a_second(spark, source, options, sink))
    ceiling = median(found["memory_rows"])
    return Figure(
        f"spark stream → {sink}",
        median(found["lanner"]),
        "rows/s",
        goal=goal * ceiling,
        floor=ceiling,
        floor_name="from memory",
        note=f"{MESSAGES:,} × 100 bytes, {PARTITIONS} partitions, median of {ROUNDS}",
    )


def latency(spark: SparkSession, process: BrokerProcess) -> list[Figure]:
    """Publishes one after the other, each once the last one has arrived and Spark waits again."""
    took_ms: list[float] = []
    arrived = threading.Event()

    def note(frame: DataFrame, _: int) -> None:
        now = time.time()
        for row in frame.select("value").collect():
            took_ms.append((now - float(bytes(row[0]))) * 1_000)
            arrived.set()

    with tempfile.TemporaryDirectory() as folder, lanner.sync.connect(process.native) as queue:
        queue.admin.create_topic("latency", partitions=PARTITIONS)
        reader = spark.readStream.format("lanner").option("servers", process.native).option("subscribe", "latency")
        writer = reader.load().writeStream.foreachBatch(note).option("checkpointLocation", folder)
        query = writer.start()
        query.processAllAvailable()
        for _ in range(LATENCIES + 5):
            arrived.clear()
            queue.publish("latency", repr(time.time()))
            assert arrived.wait(30)
            time.sleep(_PAUSE_S)
        query.stop()
    warm = took_ms[5:]
    note_text = f"publish → foreachBatch, one at a time, {len(warm)} messages"
    return [
        Figure("spark latency p50", median(warm), "ms", goal=LATENCY_GOAL_MS, note=note_text, lower_is_better=True),
        Figure("spark latency p99", percentile(warm, 99), "ms", lower_is_better=True),
    ]


def main() -> int:
    settings = {"spark.sql.shuffle.partitions": PARTITIONS}
    spark = lanner.spark.session("bench", master="local[2]", config=settings)
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(MemorySource)
    with filled_broker() as (process, topic):
        figures = latency(spark, process)
        figures.append(throughput(spark, process, topic, "noop", READ_GOAL))
        figures.append(throughput(spark, process, topic, "parquet", PARQUET_GOAL))
    spark.stop()
    print_figures(figures, "Spark")
    keep_figures(figures)
    return 0 if all(figure.reached is not False for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
