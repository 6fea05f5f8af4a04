"""Spark writes topics through a real broker: all rows of a batch or none, and each batch once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

import lanner
from lanner.testing.process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("write") / "data", settings={"disk_reserve_bytes": 0}) as process:
        yield process


@pytest.fixture(scope="module")
def queue(broker: BrokerProcess) -> Iterator[Any]:
    with lanner.sync.connect(broker.native) as queue:
        yield queue


@pytest.fixture
def topic(queue: Any) -> str:
    name = f"topic-{next(_numbers)}"
    queue.admin.create_topic(name, partitions=3)
    return name


def messages(queue: Any, topic: str) -> list[Any]:
    with queue.reader(topic, until_end=True) as reader:
        return list(reader)


def values(queue: Any, topic: str) -> list[bytes]:
    return sorted(message.value for message in messages(queue, topic))


def write(frame: DataFrame, broker: BrokerProcess, **options: Any) -> None:
    frame.write.format("lanner").option("servers", broker.native).options(**options).mode("append").save()


def numbers(*found: int) -> list[bytes]:
    return sorted(b"%d" % number for number in found)


# ------------------------------------------------------------------ batch


def test_a_batch_write_puts_every_column_where_it_belongs(
    spark: SparkSession, broker: BrokerProcess, queue: Any, topic: str
) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    rows = [
        (b"one", b"k1", None, 9, [("h", b"1")], at, None),
        (b"two", None, 2, None, None, None, datetime(2100, 1, 1, tzinfo=UTC)),
        (b"three", b"k1", None, 9, None, None, None),
    ]
    shape = (
        "value binary, key binary, partition int, priority int, headers array<struct<key:string,value:binary>>, "
        "deliver_at timestamp, expires_at timestamp"
    )
    write(spark.createDataFrame(rows, shape).coalesce(1), broker, topic=topic)
    found = {message.value: message for message in messages(queue, topic)}
    assert set(found) == {b"one", b"two", b"three"}
    one, two, three = (found[value] for value in (b"one", b"two", b"three"))
    assert (one.key, one.priority, dict(one.headers), one.deliver_at_ms) == (b"k1", 9, {"h": b"1"}, 1_767_312_000_000)
    assert (two.key, two.priority, two.partition, two.expires_at_ms) == (None, 4, 2, 4_102_444_800_000)
    assert three.partition == one.partition


def test_text_and_structs_are_encoded_and_the_topic_may_be_a_column(
    spark: SparkSession, broker: BrokerProcess, queue: Any, topic: str
) -> None:
    queue.admin.create_topic(topic + "-b")
    frame = spark.createDataFrame([("x", topic), ("y", topic + "-b")], "value string, topic string")
    write(frame, broker)
    assert (values(queue, topic), values(queue, topic + "-b")) == ([b"x"], [b"y"])
    write(spark.range(2).selectExpr("struct(id, 'a' as name) as value"), broker, topic=topic, valueFormat="json")
    assert values(queue, topic) == [b"x", b'{"id":0,"name":"a"}', b'{"id":1,"name":"a"}']


@pytest.mark.parametrize(
    ("select", "options", "problem"),
    [
        ("id as value", {}, "valueFormat"),
        ("cast(id as string) as value; id as colour", {}, "column colour"),
        ("cast(id as string) as value", {"topic": "nowhere"}, "nowhere"),
        ("cast(id as string) as value", {"acks": "all"}, "option acks"),
    ],
)
def test_what_cannot_be_written_is_an_error_that_names_it(
    spark: SparkSession, broker: BrokerProcess, topic: str, select: str, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(PySparkException, match=problem):
        write(spark.range(2).selectExpr(*select.split("; ")), broker, **{"topic": topic, **options})


def test_a_job_that_fails_shows_nothing(spark: SparkSession, broker: BrokerProcess, queue: Any, topic: str) -> None:
    frame = spark.range(0, 100, 1, 2)
    failing = "if(id = 99, raise_error('planted'), cast(id as string)) as value"
    with pytest.raises(PySparkException, match="planted"):
        write(frame.selectExpr(failing), broker, topic=topic)
    assert values(queue, topic) == []
    write(frame.selectExpr("cast(id as string) as value"), broker, topic=topic)
    assert values(queue, topic) == numbers(*range(100))


def test_a_batch_write_under_a_name_is_done_once(
    spark: SparkSession, broker: BrokerProcess, queue: Any, topic: str
) -> None:
    for turn in range(3):
        frame = spark.range(turn * 10, turn * 10 + 5).selectExpr("cast(id as string) as value")
        write(frame, broker, topic=topic, transactionalId=topic, transactionSequence=min(turn, 1))
    assert values(queue, topic) == numbers(*range(5), *range(10, 15))


def test_batches_are_compressed_with_the_codec_that_was_chosen(
    spark: SparkSession, broker: BrokerProcess, queue: Any, topic: str
) -> None:
    frame = spark.range(0, 1_000, 1, 1).selectExpr("repeat(cast(id as string), 400) as value")
    write(frame, broker, topic=topic, codec="zstd")
    found = messages(queue, topic)
    assert len(found) == 1_000
    stored = sum(part.bytes for part in queue.admin.describe(topic).partitions)
    assert 0 < stored < sum(len(message.value) for message in found) / 10


def test_rows_that_wait_for_the_others_longer_than_they_may_are_not_written(
    spark: SparkSession, broker: BrokerProcess, queue: Any, topic: str
) -> None:
    """The second task is done when the broker says that what the first one staged is gone."""
    metrics = f"{broker.url}/metrics"

    def after_expiry(number: int) -> str:
        ends = time.monotonic() + 20
        while number and "lanner_transactions_stages_expired_total 0\n" in urlopen(metrics).read().decode():
            if time.monotonic() > ends:
                break
            time.sleep(0.02)
        return str(number)

    value = udf(after_expiry, "string", useArrow=False)("id").alias("value")
    with pytest.raises(PySparkException, match="StageExpired"):
        write(spark.range(0, 2, 1, 2).select(value), broker, topic=topic, stageTimeout="1s")
    assert values(queue, topic) == []


def test_an_empty_frame_is_committed_too(spark: SparkSession, broker: BrokerProcess, queue: Any, topic: str) -> None:
    frame = spark.range(0).selectExpr("cast(id as string) as value")
    write(frame, broker, topic=topic, transactionalId=topic, transactionSequence=0)
    assert values(queue, topic) == []


# ------------------------------------------------------------------ streaming


def stream(
    spark: SparkSession, broker: BrokerProcess, source: Path, checkpoint: Path, select: str, **options: Any
) -> None:
    """Write what is new in a folder of text files, and end."""
    frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source)).selectExpr(select)
    writer = frame.writeStream.format("lanner").option("servers", broker.native).options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def feed(folder: Path, *found: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{found[0]:06d}.txt").write_text("".join(f"{number}\n" for number in found))


def forget_commits(checkpoint: Path, batch_id: int) -> None:
    """As if the driver had died after the sink's commit and before Spark noted it."""
    for name in (str(batch_id), f".{batch_id}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_a_streaming_write_goes_on_and_a_replayed_batch_is_written_once(
    spark: SparkSession, broker: BrokerProcess, queue: Any, topic: str, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    feed(source, 1, 2, 3)
    feed(source, 4, 5)
    stream(spark, broker, source, checkpoint, "value", topic=topic)
    assert values(queue, topic) == numbers(1, 2, 3, 4, 5)
    forget_commits(checkpoint, 1)
    feed(source, 6)
    # The replayed batch is not the same bytes in the same order: it is the same work all the same.
    stream(spark, broker, source, checkpoint, "concat(value, cast(rand() as string)) as value", topic=topic)
    found = values(queue, topic)
    assert found[:5] == numbers(1, 2, 3, 4, 5)
    assert len(found) == 6
    assert found[5].startswith(b"6")


def test_a_lost_checkpoint_under_the_same_transactional_id_is_refused(
    spark: SparkSession, broker: BrokerProcess, queue: Any, topic: str, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    feed(source, 1, 2)
    stream(spark, broker, source, tmp_path / "first", "value", topic=topic, transactionalId=topic)
    with pytest.raises(PySparkException, match="FenceConflict"):
        stream(spark, broker, source, tmp_path / "second", "value", topic=topic, transactionalId=topic)
    assert values(queue, topic) == numbers(1, 2)


def test_rows_in_any_order_after_a_shuffle_are_written_once(
    spark: SparkSession, broker: BrokerProcess, queue: Any, topic: str, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for start in range(0, 60, 20):
        feed(source, *range(start, start + 20))
    for turn in range(3):
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
        writer = frame.repartition(2 + turn).writeStream.format("lanner").option("servers", broker.native)
        query = writer.options(topic=topic, checkpointLocation=str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        forget_commits(checkpoint, 2)
    assert values(queue, topic) == numbers(*range(60))


def test_a_batch_that_foreach_batch_writes_under_a_name_shows_once_when_it_is_replayed(
    spark: SparkSession, broker: BrokerProcess, queue: Any, topic: str, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    batches: list[int] = []

    def write_batch(found: DataFrame, batch_id: int) -> None:
        batches.append(batch_id)
        lines = found.selectExpr("concat(value, ' is there ', count, ' times') as value")
        write(lines, broker, topic=topic, transactionalId=topic, transactionSequence=batch_id)

    def run() -> None:
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
        writer = frame.groupBy("value").count().writeStream.outputMode("update").foreachBatch(write_batch)
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    feed(source, 1, 1, 2)
    feed(source, 2, 3)
    run()
    shown = sorted([b"1 is there 2 times", b"2 is there 1 times", b"2 is there 2 times", b"3 is there 1 times"])
    assert (batches, values(queue, topic)) == ([0, 1], shown)
    forget_commits(checkpoint, 1)
    feed(source, 4)
    run()
    assert batches == [0, 1, 1, 2], "the second batch was written again"
    assert values(queue, topic) == [*shown, b"4 is there 1 times"]
