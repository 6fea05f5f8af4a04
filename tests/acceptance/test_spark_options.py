"""Each option of a batch read, and those that choose columns and lanes, do what they say, through a real broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import lanner
from lanner.testing.process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("options") / "data"
    with BrokerProcess(folder, settings={"disk_reserve_bytes": 0}) as process:
        yield process


@pytest.fixture(scope="module")
def queue(broker: BrokerProcess) -> Iterator[Any]:
    with lanner.sync.connect(broker.native) as connected:
        yield connected


@pytest.fixture(scope="module")
def later_ms(queue: Any) -> int:
    """Topic `orders`: "early 0" to "early 2", one in each partition; then, at least a millisecond later and urgent,
    "late 0" to "late 2". When the first of these was appended."""
    queue.admin.create_topic("orders", partitions=3)
    early = [queue.publish("orders", f"early {number}", partition=number, priority=1) for number in range(3)]
    queue.admin.create_topic("orders-clock", partitions=1)
    after = max(receipt.timestamp_ms for receipt in early)
    while queue.publish("orders-clock", b"tick").timestamp_ms <= after:
        pass
    late = [queue.publish("orders", f"late {number}", partition=number, priority=8) for number in range(3)]
    found: int = late[0].timestamp_ms
    assert found > after
    return found


def frame_of(spark: SparkSession, broker: BrokerProcess, **options: Any) -> DataFrame:
    chosen = {} if {"subscribePattern", "assign"} & set(options) else {"subscribe": "orders"}
    given = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in options.items()}
    return spark.read.format("lanner").option("servers", broker.native).options(**chosen, **given).load()


def values(frame: DataFrame) -> list[str]:
    return sorted(row[0] for row in frame.selectExpr("cast(value as string)").collect())


EARLY = ["early 0", "early 1", "early 2"]
LATE = ["late 0", "late 1", "late 2"]


def test_a_batch_read_goes_from_one_time_to_another(spark: SparkSession, broker: BrokerProcess, later_ms: int) -> None:
    assert values(frame_of(spark, broker, startingTimestamp=later_ms)) == LATE
    assert values(frame_of(spark, broker, endingTimestamp=later_ms)) == EARLY
    times = {"orders": {"0": later_ms, "1": 0, "2": 0}}
    assert values(frame_of(spark, broker, startingOffsetsByTimestamp=times)) == ["early 1", "early 2", *LATE]
    assert values(frame_of(spark, broker, endingOffsetsByTimestamp=times)) == ["early 0"]


def test_a_start_after_everything_is_an_error_unless_the_latest_will_do(
    spark: SparkSession, broker: BrokerProcess, later_ms: int
) -> None:
    future = later_ms + 3_600_000
    with pytest.raises(AnalysisException, match="nothing was appended to orders/0 at or after"):
        frame_of(spark, broker, startingTimestamp=future).count()
    late = frame_of(spark, broker, startingTimestamp=future, startingOffsetsByTimestampStrategy="latest")
    assert late.count() == 0


def test_topics_are_chosen_by_pattern_or_partition_by_partition(
    spark: SparkSession, broker: BrokerProcess, later_ms: int
) -> None:
    assert values(frame_of(spark, broker, subscribePattern="ord.rs")) == EARLY + LATE
    assert values(frame_of(spark, broker, assign={"orders": [1]})) == ["early 1", "late 1"]
    with pytest.raises(AnalysisException, match="orders has no partition 7"):
        frame_of(spark, broker, assign={"orders": [7]}).count()


def test_a_batch_read_has_as_many_tasks_as_are_asked_for(
    spark: SparkSession, broker: BrokerProcess, later_ms: int
) -> None:
    frame = frame_of(spark, broker, minPartitions=5)
    assert frame.rdd.getNumPartitions() == 5
    assert values(frame) == EARLY + LATE


def test_only_some_priorities_are_read(spark: SparkSession, broker: BrokerProcess, later_ms: int) -> None:
    assert values(frame_of(spark, broker, priorities="5-9")) == LATE
    assert values(frame_of(spark, broker, priorities="1")) == EARLY
    assert values(frame_of(spark, broker, priorities="high")) == []


def test_followers_may_be_asked_where_there_are_none(spark: SparkSession, broker: BrokerProcess, later_ms: int) -> None:
    assert values(frame_of(spark, broker, fromFollowers="true")) == EARLY + LATE


@pytest.mark.parametrize(
    ("condition", "expected", "tasks"),
    [
        ("partition = 1", ["early 1", "late 1"], 1),
        ("partition in (0, 2) and partition > 1", ["early 2", "late 2"], 1),
        ("offset >= 1", LATE, 3),
        ("offset < 1 and partition < 2", ["early 0", "early 1"], 2),
        ("priority = 8 and partition = 0", ["late 0"], 1),
        ("priority > 8", [], 3),
        ("priority > 9", [], 1),
        ("timestamp >= timestamp_millis({later_ms}) and partition = 2", ["late 2"], 1),
        ("timestamp < timestamp_millis({later_ms}) and partition = 2", ["early 2"], 1),
        ("timestamp > timestamp_millis({later_ms} + 3600000)", [], 1),
        ("partition = 1 or offset = 0", ["early 0", "early 1", "early 2", "late 1"], 3),
        ("value = cast('late 1' as binary)", ["late 1"], 3),
    ],
)
def test_filters_spare_what_they_would_throw_away(
    spark: SparkSession, broker: BrokerProcess, later_ms: int, condition: str, expected: list[str], tasks: int
) -> None:
    where = condition.format(later_ms=later_ms)
    assert values(frame_of(spark, broker).where(where)) == expected  # Spark does not push them
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = frame_of(spark, broker).where(where)
        assert frame.rdd.getNumPartitions() == tasks
        assert values(frame) == expected
        assert values(frame_of(spark, broker)) == EARLY + LATE  # without a filter too
    finally:
        spark.conf.unset(PUSHDOWN)


def test_metadata_columns_tell_what_queue_groups_do_not_get(
    spark: SparkSession, broker: BrokerProcess, queue: Any
) -> None:
    queue.admin.create_topic("timed", partitions=1)
    queue.publish("timed", "plain")
    queue.publish("timed", "expired", expires_at=1)
    queue.publish("timed", "delayed", delay_ms=3_600_000)
    frame = frame_of(spark, broker, subscribePattern="timed", includeMetadata="true")
    assert frame.dtypes[-4:] == [
        ("producer_timestamp", "timestamp"),
        ("deliver_at", "timestamp"),
        ("expires_at", "timestamp"),
        ("flags", "int"),
    ]
    shown = frame.selectExpr(
        "cast(value as string)", "producer_timestamp", "deliver_at > timestamp", "unix_millis(expires_at)", "flags"
    )
    assert sorted(tuple(row) for row in shown.collect()) == [
        ("delayed", None, True, None, 1),
        ("expired", None, None, 1, 2),
        ("plain", None, None, None, 0),
    ]


def test_the_next_batch_takes_as_many_bytes_as_it_may(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    queue.admin.create_topic("large", partitions=1)
    for number in range(6):
        queue.publish("large", bytes([number]) * 10_000)
    sizes = []
    reader = spark.readStream.format("lanner").option("servers", broker.native)
    options = {"subscribe": "large", "startingOffsets": "earliest", "maxBytesPerTrigger": 25_000}
    writer = reader.options(**options).load().writeStream.option("checkpointLocation", str(tmp_path))
    query = writer.foreachBatch(lambda frame, _: sizes.append(frame.count())).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sizes == [2, 2, 2]


def test_a_stream_reads_only_some_priorities(
    spark: SparkSession, broker: BrokerProcess, later_ms: int, tmp_path: Path
) -> None:
    found: list[list[str]] = []
    reader = spark.readStream.format("lanner").option("servers", broker.native).option("subscribe", "orders")
    frame = reader.options(priorities="8", startingOffsets="earliest", includeMetadata="true").load()
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    writer.foreachBatch(lambda batch, _: found.append(values(batch))).start().awaitTermination()
    assert sorted(itertools.chain.from_iterable(found)) == LATE


def test_dead_letters_are_a_table_and_a_stream(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    queue.admin.create_topic("jobs", partitions=1)
    queue.publish_many("jobs", [f"job {number}" for number in range(5)], priority=7)

    def reject(*wanted: str) -> None:
        with queue.consumer("jobs", "workers", prefetch=10) as consumer:
            for message in consumer.poll(10):
                if message.value.decode() in wanted:
                    message.reject("no such customer")
                else:
                    message.nack(delay_ms=0)

    dead = {"subscribe": "jobs", "deadLettersOf": "workers"}
    reject("job 3")
    reject("job 1")
    reader = spark.read.format("lanner").option("servers", broker.native).options(**dead)
    frame = reader.load()
    assert frame.dtypes[-4:] == [
        ("number", "bigint"), ("attempts", "int"), ("reason", "string"), ("died_at", "timestamp"),
    ]  # fmt: skip
    shown = "cast(value as string)", "number", "offset", "priority", "reason", "died_at >= timestamp"
    table = [tuple(row) for row in frame.selectExpr(*shown).orderBy("number").collect()]
    assert table == [
        ("job 3", 0, 3, 7, "no such customer", True),
        ("job 1", 1, 1, 7, "no such customer", True),
    ]
    with pytest.raises(AnalysisException, match="there is no group 'nobody' on 'jobs'"):
        reader.option("deadLettersOf", "nobody").load().count()

    found: list[list[str]] = []

    def run() -> list[str]:
        found.clear()
        stream = spark.readStream.format("lanner").option("servers", broker.native).options(**dead)
        writer = stream.option("startingOffsets", "earliest").load().writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path))
        writer.foreachBatch(lambda batch, _: found.append(values(batch))).start().awaitTermination()
        return sorted(itertools.chain.from_iterable(found))

    assert run() == ["job 1", "job 3"]
    queue.admin.redrive("jobs", "workers", partition=0, offsets=[3])
    reject("job 3", "job 4")
    assert run() == ["job 3", "job 4"]  # redriven and dead again, it comes again
    reject("job 0")
    queue.admin.discard("jobs", "workers", partition=0, offsets=[0])
    assert run() == []  # a hole, and no loss


def test_contradicting_options_are_named(spark: SparkSession, broker: BrokerProcess, later_ms: int) -> None:
    with pytest.raises(AnalysisException, match="startingOffsets: it contradicts startingTimestamp"):
        frame_of(spark, broker, startingOffsets="earliest", startingTimestamp=5)
    with pytest.raises(AnalysisException, match="group: it is for streaming reads"):
        frame_of(spark, broker, group="g").count()
