"""`make bench-spark`: what Spark reads out of a broker and writes into one, beside what it can take at all.

The ceiling is the same rows from memory, through the same plan, to the same sink, in the same run; for Lanner's own
sink it is a writer that drops them (see spark_rows). They are interleaved and repeated, because the machine is shared;
what is shown is the median of the rounds. The long runs give the memory of Python workers, which must not grow with the
rows, and the processor time for a megabyte, which is what sizing needs. Latency is with the settings that
`lanner.spark.session` makes.

BENCH_SPARK_MESSAGES (1,000,000 of 100 bytes), BENCH_SPARK_LONG (10,000,000; 0 leaves the long runs out), BENCH_ROUNDS
(3) and BENCH_LATENCIES (100) make it longer or shorter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession

import lanner
import lanner.spark
from bench import load, spark_rows
from bench.figures import Figure, keep_figures, percentile, print_figures
from bench.floors import scratch
from bench.spark_queries import Run, in_turns, latencies_ms, middle, run_query, watched_workers
from bench.spark_rows import PARTITIONS
from lanner.testing.process import BrokerProcess

MESSAGES = int(os.environ.get("BENCH_SPARK_MESSAGES", "1000000"))
LONG = int(os.environ.get("BENCH_SPARK_LONG", "10000000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
LATENCIES = int(os.environ.get("BENCH_LATENCIES", "100"))
BATCH_MESSAGES = 10_000
VALUE_BYTES = 100
READ_GOAL = 0.65
PARQUET_GOAL = 0.80
SINK_GOAL = 0.60
LATENCY_GOAL_MS = 150.0
MEMORY_GOAL = 1.10
_MB = 1_000_000


@contextmanager
def filled_broker() -> Iterator[BrokerProcess]:
    """A broker with a topic `bench` of as many messages as are read, and `long`."""
    with scratch() as folder, BrokerProcess(Path(folder) / "data") as process:
        values = load.messages(BATCH_MESSAGES)
        with lanner.sync.connect(process.native) as queue:
            for topic, messages in (("bench", MESSAGES), ("long", LONG), ("written", 0)):
                queue.admin.create_topic(topic, partitions=PARTITIONS)
                for number in range(messages // BATCH_MESSAGES):
                    queue.publish_many(topic, values, partition=number % PARTITIONS)
        yield process


class Bench:
    """The queries that are measured."""

    def __init__(self, spark: SparkSession, process: BrokerProcess) -> None:
        self._spark = spark
        self._process = process

    def _read(self, topic: str) -> DataFrame:
        stream = self._spark.readStream.format("lanner").option("servers", self._process.native)
        return stream.options(subscribe=topic, startingOffsets="earliest").load()

    def _memory(self, rows: int) -> DataFrame:
        return self._spark.readStream.format(spark_rows.NAME).option("rows", rows).load()

    def read(self, sink: str, topic: str = "bench", rows: int = MESSAGES) -> Run:
        return run_query(self._spark, self._read(topic), sink, {}, rows=rows, broker=self._process.pid)

    def read_memory(self, sink: str) -> Run:
        return run_query(self._spark, self._memory(MESSAGES), sink, {}, rows=MESSAGES, broker=None)

    def write(self, sink: str, rows: int = MESSAGES) -> Run:
        options = {"servers": self._process.native, "topic": "written"} if sink == "lanner" else {}
        frame = self._memory(rows).select("value")
        return run_query(self._spark, frame, sink, options, rows=rows, broker=self._process.pid)

    def beside_ceiling(self) -> list[Figure]:
        found = []
        for sink, goal in (("noop", READ_GOAL), ("parquet", PARQUET_GOAL)):
            runs = {"lanner": partial(self.read, sink), "memory": partial(self.read_memory, sink)}
            found.append(_share(f"spark stream → {sink}", in_turns(runs, ROUNDS), goal, "from memory"))
        runs = {"lanner": partial(self.write, "lanner"), "memory": partial(self.write, spark_rows.NAME)}
        found.append(_share("spark stream → lanner", in_turns(runs, ROUNDS), SINK_GOAL, "dropped"))
        return found

    def latency(self) -> list[Figure]:
        with lanner.sync.connect(self._process.native) as queue:
            queue.admin.create_topic("latency", partitions=PARTITIONS)
            stream = self._spark.readStream.format("lanner").options(servers=self._process.native, subscribe="latency")
            took_ms = latencies_ms(stream.load(), partial(queue.publish, "latency"), LATENCIES)
        note = f"publish → foreachBatch, one at a time, {len(took_ms)} messages"
        half, most = median(took_ms), percentile(took_ms, 99)
        return [
            Figure("spark latency p50", half, "ms", goal=LATENCY_GOAL_MS, note=note, lower_is_better=True),
            Figure("spark latency p99", most, "ms", lower_is_better=True),
        ]

    def long_runs(self) -> list[Figure]:
        found = []
        for name, short, long in (
            ("read", partial(self.read, "noop"), partial(self.read, "noop", "long", LONG)),
            ("write", partial(self.write, "lanner"), partial(self.write, "lanner", LONG)),
        ):
            with watched_workers(self._spark) as at_first:
                short()
            with watched_workers(self._spark) as at_last:
                run = long()
            found += [
                Figure(
                    f"spark worker memory, {name} of {LONG:,}",
                    at_last.bytes / _MB,
                    "MB",
                    goal=at_first.bytes / _MB * MEMORY_GOAL,
                    floor=at_first.bytes / _MB,
                    floor_name=f"at {MESSAGES:,}",
                    lower_is_better=True,
                    note="resident, the largest Python worker",
                ),
                *_sizes(name, run),
            ]
        return found


def _share(name: str, found: dict[str, list[Run]], goal: float, against: str) -> Figure:
    ceiling = middle(found["memory"])
    note = f"{MESSAGES:,} × {VALUE_BYTES} bytes, {PARTITIONS} partitions, median of {ROUNDS}"
    measured = middle(found["lanner"])
    return Figure(name, measured, "rows/s", goal=goal * ceiling, floor=ceiling, floor_name=against, note=note)


def _sizes(name: str, run: Run) -> list[Figure]:
    """By processor time, so that what else the machine does matters little."""
    megabytes = run.rows * VALUE_BYTES / _MB
    note = f"of values, in a {name} of {run.rows:,} × {VALUE_BYTES} bytes"
    return [
        Figure(f"spark {name}: each core of Spark", megabytes / run.spark_cpu_s, "MB/s", note=note),
        Figure(f"spark {name}: each core of the broker", megabytes / run.broker_cpu_s, "MB/s", note=note),
    ]


def main() -> int:
    settings = {"spark.sql.shuffle.partitions": PARTITIONS}
    spark = lanner.spark.session("bench", master="local[2]", config=settings)
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(spark_rows.MemorySource)
    with filled_broker() as process:
        bench = Bench(spark, process)
        figures = bench.latency() + bench.beside_ceiling()
        if LONG:
            figures += bench.long_runs()
    spark.stop()
    print_figures(figures, "Spark")
    keep_figures(figures)
    return 0 if all(figure.reached is not False for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
