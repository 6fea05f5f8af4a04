"""`make bench-spark-kafka`: Lanner beside Spark's own Kafka connector, in one session of Spark, turn by turn.

Both read and write the same rows, with the same plan and one task for each of two partitions. The rows that are written
are made by Spark itself, so neither is helped by where they come from. What differs, and is not evened out:

- Kafka's connector runs inside Spark's Java; Lanner's source and sink run in Python workers beside it.
- A streaming write to Lanner is exactly-once and synced to disk before it counts. Kafka's is at least once, and Kafka
  leaves syncing to the kernel; `kafka, synced` is a topic with flush.messages=1, which syncs each batch.

Latency is from just before a publish to the moment a `foreachBatch` has the message, as in bench.spark; Kafka's
producer is the Java one, without lingering. BENCH_SPARK_MESSAGES, BENCH_ROUNDS and BENCH_LATENCIES as in bench.spark.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import lanner
import lanner.spark
from bench.figures import Figure, keep_figures, percentile, print_figures
from bench.floors import scratch
from bench.kafka import KafkaBroker, NoKafka, connector_jars, kafka_broker
from bench.spark import LATENCIES, MESSAGES, ROUNDS, VALUE_BYTES
from bench.spark_queries import Run, in_turns, latencies_ms, middle, run_query
from bench.spark_rows import PARTITIONS
from lanner.testing.process import BrokerProcess

READ, WRITTEN, SYNCED, LATENCY = "read", "written", "synced", "latency"
_VALUE = f"cast(lpad(cast(value as string), {VALUE_BYTES}, 'v') as binary) as value"


class Lanner:
    """The side of Lanner."""

    name = "lanner"

    def __init__(self, process: BrokerProcess) -> None:
        self.pid = process.pid
        self._queue = lanner.sync.connect(process.native)
        for topic in (READ, WRITTEN, LATENCY):
            self._queue.admin.create_topic(topic, partitions=PARTITIONS)
        self.reading = {"servers": process.native}
        self.writing = {"servers": process.native}

    def publish(self, value: bytes) -> None:
        self._queue.publish(LATENCY, value)

    def close(self) -> None:
        self._queue.close()


class Kafka:
    """The side of Kafka; its Java client is used through Spark's gateway."""

    name = "kafka"

    def __init__(self, spark: SparkSession, broker: KafkaBroker) -> None:
        self.pid = broker.pid
        self._java = spark.sparkContext._jvm
        self._clients = self._java.org.apache.kafka.clients
        self._address = broker.address
        admin = self._clients.admin.AdminClient.create(self._properties())
        for topic in (READ, WRITTEN, SYNCED, LATENCY):
            made = self._clients.admin.NewTopic(topic, PARTITIONS, 1)
            made.configs(self._map({"flush.messages": "1"} if topic == SYNCED else {}))
            admin.createTopics(self._java.java.util.Collections.singleton(made)).all().get()
        admin.close()
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        settings = self._properties(**{"key.serializer": serializer, "value.serializer": serializer, "linger.ms": "0"})
        self._producer = self._clients.producer.KafkaProducer(settings)
        self.reading = {"kafka.bootstrap.servers": broker.address}
        self.writing = {"kafka.bootstrap.servers": broker.address}

    def _map(self, given: dict[str, str]) -> Any:
        made = self._java.java.util.HashMap()
        for name, value in given.items():
            made.put(name, value)
        return made

    def _properties(self, **settings: str) -> Any:
        return self._map({"bootstrap.servers": self._address, **settings})

    def publish(self, value: bytes) -> None:
        self._producer.send(self._clients.producer.ProducerRecord(LATENCY, value)).get()

    def close(self) -> None:
        self._producer.close()


def stream(spark: SparkSession, side: Lanner | Kafka, topic: str, starting: str) -> DataFrame:
    reader = spark.readStream.format(side.name).options(**side.reading)
    return reader.options(subscribe=topic, startingOffsets=starting).load()


def read(spark: SparkSession, side: Lanner | Kafka) -> Run:
    return run_query(spark, stream(spark, side, READ, "earliest"), "noop", {}, rows=MESSAGES, broker=side.pid)


def write(spark: SparkSession, side: Lanner | Kafka, topic: str) -> Run:
    made = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=MESSAGES, numPartitions=PARTITIONS).load()
    options = {**side.writing, "topic": topic}
    return run_query(spark, made.selectExpr(_VALUE), side.name, options, rows=MESSAGES, broker=side.pid)


def fill(spark: SparkSession, side: Lanner | Kafka) -> None:
    rows = spark.range(0, MESSAGES, 1, PARTITIONS).selectExpr("id as value").selectExpr(_VALUE)
    rows.write.format(side.name).options(**side.writing).option("topic", READ).mode("append").save()


def compare(spark: SparkSession, ours: Lanner, theirs: Kafka) -> list[Figure]:
    for side in (ours, theirs):
        fill(spark, side)
    reads = in_turns({side.name: partial(read, spark, side) for side in (ours, theirs)}, ROUNDS)
    writes = in_turns(
        {
            "lanner": partial(write, spark, ours, WRITTEN),
            "kafka": partial(write, spark, theirs, WRITTEN),
            "kafka, synced": partial(write, spark, theirs, SYNCED),
        },
        ROUNDS,
    )
    late: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    for _ in range(ROUNDS):
        for side in (ours, theirs):
            frame = stream(spark, side, LATENCY, "latest")
            late[side.name] += latencies_ms(frame, side.publish, LATENCIES // ROUNDS)
    return [*_rates("read", reads), *_rates("write", writes), *_latencies(late)]


def _rates(what: str, runs: dict[str, list[Run]]) -> list[Figure]:
    note = f"{MESSAGES:,} × {VALUE_BYTES} bytes, {PARTITIONS} partitions, median of {ROUNDS}"
    ours, *others = runs
    found = []
    for other in others:
        theirs = middle(runs[other])
        name = f"spark {what} beside {other}"
        found.append(Figure(name, middle(runs[ours]), "rows/s", goal=theirs, floor=theirs, floor_name=other, note=note))
    for name, several in runs.items():
        megabytes = sum(run.rows for run in several) * VALUE_BYTES / 1e6
        spark_cpu_s, broker_cpu_s = (sum(one) for one in zip(*(run[2:] for run in several), strict=True))
        about = f"of values; the broker {megabytes / broker_cpu_s:,.0f} MB"
        found.append(Figure(f"spark {what}, {name}: a CPU second of Spark", megabytes / spark_cpu_s, "MB", note=about))
    return found


def _latencies(late: dict[str, list[float]]) -> list[Figure]:
    found = []
    for name, of in (("p50", median), ("p99", partial(percentile, percent=99))):
        theirs = of(late["kafka"])
        found.append(
            Figure(
                f"spark latency {name} beside kafka",
                of(late["lanner"]),
                "ms",
                goal=theirs if name == "p50" else None,
                floor=theirs,
                floor_name="kafka",
                note=f"publish → foreachBatch, one at a time, {len(late['lanner'])} messages each",
                lower_is_better=True,
            )
        )
    return found


def main() -> int:
    java = shutil.which("java")
    try:
        if java is None:
            raise NoKafka("there is no java on the PATH to run Kafka's broker with")
        path = ":".join(map(str, connector_jars()))
        with ExitStack() as stack:
            folder = Path(stack.enter_context(scratch()))
            kafka = stack.enter_context(kafka_broker(folder / "kafka", java))
            process = stack.enter_context(BrokerProcess(folder / "data"))
            settings = {"spark.sql.shuffle.partitions": PARTITIONS, "spark.driver.extraClassPath": path}
            spark = lanner.spark.session("bench", master="local[2]", config=settings)
            stack.callback(spark.stop)
            spark.sparkContext.setLogLevel("OFF")
            ours, theirs = Lanner(process), Kafka(spark, kafka)
            stack.callback(ours.close)
            stack.callback(theirs.close)
            figures = compare(spark, ours, theirs)
    except NoKafka as reason:
        print(f"skipped: {reason}")
        return 0
    print_figures(figures, "Spark: Lanner beside the Kafka connector")
    keep_figures(figures)
    return 0 if all(figure.reached is not False for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
