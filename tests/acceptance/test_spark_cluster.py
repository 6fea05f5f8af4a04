"""Spark reads from three brokers: a leader that dies in the middle of a read is survived, and followers serve too."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr, udf

import lanner
from lanner.spark.source import LannerDataSource
from lanner.spark.tasks import LannerPartition
from lanner.testing.cluster_process import ClusterProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGES = 30_000
FROM_FOLLOWERS = r'^lanner_fetched_bytes_total\{role="follower"\} (\d+)$'
SIZE = 1_000  # more than one page for each partition


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def expected(cluster: ClusterProcess) -> list[str]:
    names = [f"{number:06d}" for number in range(MESSAGES)]
    with lanner.sync.connect(cluster.address) as queue:
        queue.admin.create_topic("orders", partitions=3, replication=3)
        for first in range(0, MESSAGES, 1_000):
            some = names[first : first + 1_000]
            queue.publish_many("orders", [name.ljust(SIZE) for name in some], keys=some)
    return names


def options(cluster: ClusterProcess) -> dict[str, Any]:
    return {"servers": cluster.address, "subscribe": "orders", "startingOffsets": "earliest"}


def read_from_followers(cluster: ClusterProcess) -> int:
    """Bytes that the brokers have handed out as followers."""
    texts = [urlopen(f"{cluster.url_of(number)}/metrics").read().decode() for number in cluster.brokers]
    return sum(int(count) for text in texts for count in re.findall(FROM_FOLLOWERS, text, re.MULTILINE))


@pytest.mark.parametrize("followers", [False, True])
def test_everything_is_read_from_three_brokers_and_from_followers_where_they_may(
    followers: bool, spark: SparkSession, cluster: ClusterProcess, expected: list[str]
) -> None:
    before = read_from_followers(cluster)
    frame = spark.read.format("lanner").options(**options(cluster), fromFollowers=followers).load()
    found = [row[0] for row in frame.selectExpr("trim(cast(value as string))").collect()]
    assert sorted(found) == expected
    served = read_from_followers(cluster) - before
    assert (served > 0) == followers  # how much depends on the followers: what they have late comes from the leader


def test_a_leader_that_dies_in_the_middle_of_a_task_is_survived(cluster: ClusterProcess, expected: list[str]) -> None:
    """As a task runs: it has taken the first of several pages when the leader dies, and the page after the next is not
    asked for yet."""
    source = LannerDataSource(options(cluster))
    reader = source.reader(source.schema())
    killed = 0
    found: list[str] = []
    for task in reader.partitions():
        for made in reader.read(task):
            found += [value.decode().rstrip() for value in made.column("value").to_pylist()]
            if not killed:
                assert isinstance(task, LannerPartition)
                killed = cluster.leader("orders", task.span.partition)
                cluster.kill(killed)
    assert sorted(found) == expected
    cluster.restart(killed)


def test_a_leader_that_dies_in_the_middle_of_a_stream_is_survived(
    spark: SparkSession, cluster: ClusterProcess, expected: list[str], tmp_path: Path
) -> None:
    """Killed after the second of many batches, so that offsets are asked for and tasks read while nobody leads."""
    found: list[str] = []
    killed: list[int] = []
    seen = itertools.count(1)

    def keep(frame: DataFrame, _: int) -> None:
        found.extend(row[0] for row in frame.selectExpr("trim(cast(value as string))").collect())
        if next(seen) == 2:
            killed.append(cluster.leader("orders", 0))
            cluster.kill(killed[0])

    reader = spark.readStream.format("lanner").options(**options(cluster), maxOffsetsPerTrigger=5_000)
    writer = reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert killed
    assert sorted(found) == expected
    cluster.restart(killed[0])


def test_a_commit_is_given_up_when_it_may_take_no_longer(
    spark: SparkSession, cluster: ClusterProcess, tmp_path: Path
) -> None:
    """A partition's only broker dies when everything is staged, so that it cannot promise to publish. Were there more
    time, it would be back."""
    with lanner.sync.connect(cluster.address) as queue:
        queue.admin.create_topic("alone", partitions=3, replication=1)
        queue.admin.create_topic("everywhere", partitions=1, replication=3)
        metadata = cluster.number_of(queue.admin.describe_cluster().metadata_leader)
    cluster.until(lambda: 0 not in cluster.leaders("alone"), 20, "a partition has no leader")
    leaders = cluster.leaders("alone")
    partition = next(number for number, leader in enumerate(leaders) if leader != metadata)
    killed = tmp_path / "killed"

    def when_killed(number: int) -> str:
        while number and not killed.exists():
            time.sleep(0.02)
        return str(number)

    rows = spark.range(0, 2, 1, 2)
    place = "if(id = 0, 'alone', 'everywhere') as topic", f"if(id = 0, {partition}, 0) as partition"
    frame = rows.select(udf(when_killed, "string", useArrow=False)("id").alias("value"), *map(expr, place))
    writer = frame.write.format("lanner").options(servers=cluster.address, commitTimeout="5s").mode("append")
    status, over = spark.sparkContext.statusTracker(), threading.Event()

    def one_is_staged() -> bool:
        stages = map(status.getStageInfo, status.getActiveStageIds())
        return over.is_set() or any(stage.numCompletedTasks for stage in stages if stage is not None)

    def kill() -> None:
        cluster.until(one_is_staged, 60, "no task has staged its row")
        cluster.kill(leaders[partition])
        killed.touch()
        over.wait(30)
        cluster.restart(leaders[partition])

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        try:
            with pytest.raises(PySparkException, match="TransactionAborted"):
                writer.save()
        finally:
            over.set()
    killing.result()
    everywhere = spark.read.format("lanner").options(servers=cluster.address, subscribe="everywhere").load()
    assert everywhere.count() == 0
