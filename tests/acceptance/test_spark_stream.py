"""Structured Streaming reads topics through a real broker: from where it is told, every message once, also after a
restart; and each option does what it says."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import lanner
from lanner.testing.process import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CHECKPOINT = Path(__file__).resolve().parents[1] / "fixtures" / "spark-checkpoint-0.3.0"

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("stream") / "data"
    with BrokerProcess(folder, settings={"disk_reserve_bytes": 0}) as process:
        yield process


@pytest.fixture(scope="module")
def queue(broker: BrokerProcess) -> Iterator[Any]:
    with lanner.sync.connect(broker.native) as connected:
        yield connected


class Topic:
    """A topic of this test's own, and what was published to it."""

    def __init__(self, queue: Any, partitions: int = 2, name: str = "", **settings: Any) -> None:
        self.name = name or f"topic-{next(_numbers)}"
        self.queue = queue
        self.sent = 0
        queue.admin.create_topic(self.name, partitions=partitions, **settings)

    def publish(self, count: int, **options: Any) -> list[str]:
        values = [f"{self.name} {self.sent + number}" for number in range(count)]
        self.sent += count
        self.queue.publish_many(self.name, values, keys=[f"key {number}" for number in range(count)], **options)
        return values


class Query:
    """A streaming query that keeps what each batch brought."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.batches: list[list[str]] = []
        self.tasks: list[int] = []
        self._reader = spark.readStream.format("lanner").option("servers", broker.native).options(**options)

    def start(self, **trigger: Any) -> StreamingQuery:
        def keep(frame: DataFrame, _: int) -> None:
            rows = frame.selectExpr("cast(value as string)", "spark_partition_id()").collect()
            if rows:  # a query's first batch may have none
                self.batches.append([row[0] for row in rows])
                self.tasks.append(len({row[1] for row in rows}))

        writer = self._reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(self.folder))
        return writer.trigger(**trigger).start() if trigger else writer.start()

    def run(self) -> list[str]:
        """Read what there is now, and end; everything that came."""
        before = len(self.batches)
        self.start(availableNow=True).awaitTermination()
        return sorted(itertools.chain.from_iterable(self.batches[before:]))


def in_turn(queue: Any, topic: str) -> int:
    """Publish "early" to each of three partitions, then, at least a millisecond later, "late". When that began."""
    early = [queue.publish(topic, f"early {number}", partition=number) for number in range(3)]
    clock = Topic(queue, partitions=1)
    while queue.publish(clock.name, b"tick").timestamp_ms <= early[-1].timestamp_ms:
        pass
    late = [queue.publish(topic, f"late {number}", partition=number) for number in range(3)]
    found: int = late[0].timestamp_ms
    assert found > max(receipt.timestamp_ms for receipt in early)
    return found


def await_listeners(spark: SparkSession) -> None:
    """Return when every event of Spark so far was handled."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()


def test_a_query_begins_at_the_latest_and_reads_what_comes(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue)
    topic.publish(5)
    query = Query(spark, broker, tmp_path, subscribe=topic.name)
    running = query.start()
    running.processAllAvailable()
    expected = topic.publish(7)
    running.processAllAvailable()
    running.stop()
    assert sorted(itertools.chain.from_iterable(query.batches)) == sorted(expected)


def test_the_last_word_on_an_option_that_no_stream_has_is_ours(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    query = Query(spark, broker, tmp_path, subscribe=Topic(queue).name, endingOffsets="latest").start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert "option endingOffsets: a streaming read has no end" in str(caught.value)
    assert "UnboundLocalError" not in str(caught.value)


def test_a_query_goes_on_from_its_checkpoint(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue)
    query = Query(spark, broker, tmp_path, subscribe=topic.name, startingOffsets="earliest")
    for count in (9, 4, 6):
        expected = topic.publish(count)
        assert query.run() == sorted(expected)
    assert query.run() == []


def test_a_checkpoint_of_release_0_3_0_is_resumed(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    """As that release wrote it after six messages of topic `t`; only the topic's incarnation is this broker's."""
    topic = Topic(queue, name="t", partitions=1)
    topic.publish(6)
    expected = topic.publish(3)
    incarnation = queue.admin.describe("t").incarnation
    shutil.copytree(CHECKPOINT, tmp_path, dirs_exist_ok=True)
    for kept in (tmp_path / "offsets").iterdir():
        kept.write_text(kept.read_text().replace('"incarnation": 1,', f'"incarnation": {incarnation},'))
    assert Query(spark, broker, tmp_path, subscribe="t").run() == sorted(expected)


def test_the_next_batch_takes_as_much_as_it_may(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue)
    larger, smaller = topic.publish(20, partition=0), topic.publish(5, partition=1)
    options = {"subscribe": topic.name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 10}
    query = Query(spark, broker, tmp_path, **options)
    assert query.run() == sorted(larger + smaller)
    assert [len(batch) for batch in query.batches] == [10, 10, 5]
    assert len(set(query.batches[0]) & set(smaller)) == 2, "its share of the backlog"


def test_a_batch_waits_until_there_is_enough(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 5, "maxTriggerDelay": "1h"}
    query = Query(spark, broker, tmp_path, subscribe=topic.name, **options)
    running = query.start()
    topic.publish(4)
    running.processAllAvailable()
    assert query.batches == []
    topic.publish(1)
    running.processAllAvailable()
    running.stop()
    assert [len(batch) for batch in query.batches] == [5]


def test_a_batch_that_has_waited_long_enough_takes_what_there_is(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue)
    expected = topic.publish(4)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 1_000, "maxTriggerDelay": "300ms"}
    query = Query(spark, broker, tmp_path, subscribe=topic.name, **options)
    running = query.start()
    while not query.batches:
        running.processAllAvailable()
    running.stop()
    assert sorted(query.batches[0]) == sorted(expected)


def test_a_batch_is_cut_into_as_many_tasks_as_are_asked_for(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue)
    expected = topic.publish(50)
    query = Query(spark, broker, tmp_path, subscribe=topic.name, startingOffsets="earliest", minPartitions=5)
    assert query.run() == sorted(expected)
    assert query.tasks == [5]


def test_topics_that_appear_under_a_pattern_are_read_from_their_beginning(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    first = Topic(queue, name="shop-a")
    query = Query(spark, broker, tmp_path, subscribePattern="shop-.")
    first.publish(3)
    assert query.run() == []  # it begins at the latest
    second, other = Topic(queue, name="shop-b"), Topic(queue, name="shop-long")
    expected = first.publish(2) + second.publish(4)
    other.publish(9)
    assert query.run() == sorted(expected)


def test_new_partitions_are_read_from_their_beginning(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue, partitions=1)
    query = Query(spark, broker, tmp_path, subscribe=topic.name)
    assert query.run() == []
    queue.admin.alter_topic(topic.name, partitions=3)
    expected = topic.publish(30)
    assert query.run() == sorted(expected)


def test_some_partitions_are_assigned_and_read_from_a_time_on(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue, partitions=3)
    later_ms = in_turn(queue, topic.name)
    options = {"assign": json.dumps({topic.name: [0, 2]}), "startingTimestamp": later_ms}
    assert Query(spark, broker, tmp_path, **options).run() == ["late 0", "late 2"]


def test_each_partition_is_read_from_a_time_of_its_own_or_the_latest(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue, partitions=3)
    later_ms = in_turn(queue, topic.name)
    times = json.dumps({topic.name: {"0": later_ms, "1": later_ms + 3_600_000, "2": 0}})
    options = {"startingOffsetsByTimestamp": times, "startingOffsetsByTimestampStrategy": "latest"}
    query = Query(spark, broker, tmp_path, subscribe=topic.name, **options)
    assert query.run() == ["early 2", "late 0", "late 2"]


def test_a_topic_created_again_under_the_same_name_is_noticed(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue)
    topic.publish(5)
    query = Query(spark, broker, tmp_path, subscribe=topic.name, startingOffsets="earliest")
    query.run()
    queue.admin.delete_topic(topic.name)
    again = Topic(queue, name=topic.name)
    expected = again.publish(8)
    with pytest.raises(StreamingQueryException, match="deleted and created again under the same name"):
        query.run()
    assert query.batches[1:] == []
    tolerant = Query(spark, broker, tmp_path, subscribe=topic.name, startingOffsets="earliest", failOnDataLoss="false")
    assert tolerant.run() == sorted(expected)


def test_what_was_lost_before_it_was_read_is_noticed(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue, partitions=1, max_bytes=20_000, full_policy="drop_oldest")
    options = {"subscribe": topic.name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2}
    query = Query(spark, broker, tmp_path, **options)
    topic.publish(2)
    query.run()
    for _ in range(10):
        queue.publish(topic.name, b"x" * 5_000)
    while queue.admin.offsets(topic.name)[0].first_offset <= 2:
        pass  # retention comes with the broker's next tick
    with pytest.raises(StreamingQueryException, match="retention took offsets 2 to"):
        query.run()
    tolerant = Query(spark, broker, tmp_path, **options, failOnDataLoss="false")
    found = tolerant.run()
    held = queue.admin.offsets(topic.name)[0]
    assert len(found) == held.end_offset - held.first_offset > 0


def test_a_group_shows_how_far_a_query_is(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue, partitions=1)
    topic.publish(10)
    options = {"startingOffsets": "earliest", "group": "dashboard", "maxOffsetsPerTrigger": 4}
    query = Query(spark, broker, tmp_path, subscribe=topic.name, **options)
    query.run()
    await_listeners(spark)
    assert queue.admin.committed(topic.name, "dashboard") == {0: 10}
    topic.publish(3)
    (part,) = queue.admin.group(topic.name, "dashboard").partitions
    assert part.lag == 3


def test_a_group_is_told_of_the_last_batch_of_a_query_that_is_stopped(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    """Its source is not asked again after that batch: only Spark's own event tells that it is finished."""
    topic = Topic(queue, partitions=1)
    topic.publish(5)
    query = Query(spark, broker, tmp_path, subscribe=topic.name, startingOffsets="earliest", group="stopped")
    running = query.start(processingTime="1 hour")
    while not running.recentProgress:
        running.awaitTermination(0.1)
    await_listeners(spark)
    assert queue.admin.committed(topic.name, "stopped") == {0: 5}
    running.stop()


def test_a_group_keeps_where_the_latest_was(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    """The query ends before its first batch: nothing but the group knows where it was to begin."""
    topic = Topic(queue, partitions=1)
    topic.publish(5)
    assert Query(spark, broker, tmp_path / "a", subscribe=topic.name, group="late").run() == []
    expected = topic.publish(2)
    assert Query(spark, broker, tmp_path / "b", subscribe=topic.name).run() == []
    assert Query(spark, broker, tmp_path / "c", subscribe=topic.name, group="late").run() == sorted(expected)


def test_a_query_whose_group_is_gone_says_what_can_be_done(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue, partitions=1)
    topic.publish(5)
    Query(spark, broker, tmp_path, subscribe=topic.name, startingOffsets="earliest", group="gone").run()
    await_listeners(spark)  # or the last commit makes the group anew
    queue.admin.drop_group(topic.name, "gone")
    expected = topic.publish(1)
    with pytest.raises(StreamingQueryException, match="group 'gone' is gone"):
        Query(spark, broker, tmp_path, subscribe=topic.name, group="gone").run()
    assert Query(spark, broker, tmp_path, subscribe=topic.name, group="another").run() == expected


def test_sparks_own_figures_show_the_lag(
    spark: SparkSession, broker: BrokerProcess, queue: Any, tmp_path: Path
) -> None:
    topic = Topic(queue, partitions=1)
    topic.publish(10)
    query = Query(spark, broker, tmp_path, subscribe=topic.name, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    running = query.start(availableNow=True)
    running.awaitTermination()
    first = running.recentProgress[0]["sources"][0]
    assert json.loads(first["endOffset"])["topics"][topic.name]["offsets"] == {"0": 4}
    assert json.loads(first["latestOffset"])["topics"][topic.name]["offsets"] == {"0": 10}
