"""`lanner replay`: messages of an archive or a topic into a topic, with their keys, headers and priorities.

Spark's tasks publish, each some partitions, every partition in offset order. Batches of different priorities travel on
lanes of their own, so a task waits for one run of equal priority before it sends the next: only so the order of offsets
stays. Where source and target have the same number of partitions a message keeps its own; else its key decides anew.

A task that failed is not tried again by Spark, because it has published already: the replay fails, and says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql

from lanner import sync
from lanner.errors import ConflictError, NotFoundError, TopicNotFound
from lanner.spark.archive.auditing import Told, nothing_told
from lanner.spark.archive.files import frame_of
from lanner.spark.archive.planning import progress_of
from lanner.spark.archive.ranges import Range
from lanner.spark.archive.shelf import open_shelf
from lanner.spark.archive.store import Store
from lanner.spark.archive.topics import held_topics, topic_frame

_ROWS_AT_ONCE: Final = 5_000
_RATE_SLICES: Final = 10  # a second of a bounded rate is sent in so many parts
_WATCH_SECONDS: Final = 0.5


class Source(NamedTuple):
    """What is replayed: a topic, or, with a path, what an archive has of it."""

    servers: str
    topic: str
    path: str | None = None
    start: Mapping[int, int] = {}  # offsets by partition; others from the beginning
    end: Mapping[int, int] = {}  # not including these; others to the end
    where: str | None = None  # a condition in SQL over the columns of a read


class Replayed(NamedTuple):
    """What a replay did."""

    messages: int
    partitions_kept: bool
    seconds: float


class Run(NamedTuple):
    """Neighbours that go together: rows [first, last)."""

    partition: int | None
    priority: int
    first: int
    last: int


def runs(partitions: Sequence[int] | None, priorities: Sequence[int], longest: int) -> Iterator[Run]:
    """Rows in their order, cut wherever the partition or the priority changes, and where a run gets too long."""
    first = 0
    for row in range(1, len(priorities) + 1):
        ends = row == len(priorities) or priorities[row] != priorities[first] or row - first == longest
        if ends or (partitions is not None and partitions[row] != partitions[first]):
            yield Run(None if partitions is None else partitions[first], priorities[first], first, row)
            first = row


class Pace:
    """When the next messages may go, at so many a second."""

    def __init__(self, rate: float, began: float) -> None:
        self._rate = rate
        self._began = began
        self._sent = 0

    def wait_seconds(self, count: int, now: float) -> float:
        """How long to wait before the next message, once these are sent."""
        self._sent += count
        return max(0.0, self._began + self._sent / self._rate - now)


def replay(
    spark: SparkSession,
    source: Source,
    servers: str,
    target: str,
    *,
    rate: float | None = None,
    tell: Told = nothing_told,
) -> Replayed:
    """Publish what the source has into the target, which is made with as many partitions when it is not there."""
    began = time.monotonic()
    frame, partitions, total = _source_frame(spark, source)
    if source.where is not None:
        frame, total = frame.where(source.where), 0
    keeps = _target_partitions(servers, target, partitions) == partitions
    tasks = max(1, min(partitions, spark.sparkContext.defaultParallelism))
    ordered = frame.repartition(tasks, "partition").sortWithinPartitions("partition", "offset")
    publish = publisher(servers, target, keeps=keeps, rate=None if rate is None else rate / tasks)
    with _Watch(servers, target, total, tell):
        published = ordered.rdd.mapPartitions(publish).sum()
    return Replayed(published, keeps, time.monotonic() - began)


def _source_frame(spark: SparkSession, source: Source) -> tuple[DataFrame, int, int]:
    """The messages, the number of partitions, and how many messages that is."""
    spans: dict[int, Range] = {}
    if source.path is None:
        found = held_topics(source.servers, [source.topic])[source.topic].partitions
        bounds = {number: (one.first_offset, one.end_offset) for number, one in found.items()}
    else:
        store = Store(open_shelf(spark, source.path))
        manifest = store.load()
        if source.topic not in manifest.topics:
            known = ", ".join(sorted(manifest.topics)) or "nothing"
            raise NotFoundError(f"the archive at {store.shelf.root} has no topic {source.topic!r}; it has {known}")
        progress = {
            number: progress_of(manifest, source.topic, number) for number in manifest.topics[source.topic].partitions
        }
        bounds = {number: (one.start, one.next) for number, one in progress.items() if one is not None}
    for number, (first, end) in bounds.items():
        start, stop = max(first, source.start.get(number, first)), min(end, source.end.get(number, end))
        spans[number] = (start, max(start, stop))
    if source.path is None:
        frame = topic_frame(spark, source.servers, source.topic, spans)
    else:
        frame = _within(frame_of(spark, store.shelf, manifest.files_of(source.topic)), spans)
    return frame, max(bounds, default=0) + 1, sum(end - start for start, end in spans.values())


def _within(frame: DataFrame, spans: Mapping[int, Range]) -> DataFrame:
    wanted = sql.lit(False)
    for number, (start, end) in spans.items():
        wanted = wanted | ((sql.col("partition") == number) & sql.col("offset").between(start, end - 1))
    return frame.where(wanted)


def _target_partitions(servers: str, target: str, partitions: int) -> int:
    """How many partitions the target has; it is made where there is none."""
    with sync.connect(servers, client_name="lanner-replay") as queue:
        try:
            return len(queue.admin.describe(target).partitions)
        except TopicNotFound:
            return len(queue.admin.create_topic(target, partitions=partitions).partitions)


def publisher(
    servers: str, target: str, *, keeps: bool, rate: float | None
) -> Callable[[Iterable[Row]], Iterator[int]]:
    """What a task does with its rows; Spark sends it to the executors. It gives back how many it published."""

    def publish(rows: Iterable[Row]) -> Iterator[int]:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            raise ConflictError(
                f"a task that publishes into {target} failed after it may have published: it is not repeated, or "
                "messages would be there twice"
            )
        longest = _ROWS_AT_ONCE if rate is None else max(1, int(rate / _RATE_SLICES))
        pace = None if rate is None else Pace(rate, time.monotonic())
        left = iter(rows)
        with sync.connect(servers, client_name="lanner-replay") as queue, queue.producer() as producer:
            while some := list(islice(left, _ROWS_AT_ONCE)):
                partitions = [row["partition"] for row in some] if keeps else None
                for run in runs(partitions, [row["priority"] for row in some], longest):
                    _send(producer, target, some[run.first : run.last], run)
                    if pace is not None:
                        time.sleep(pace.wait_seconds(run.last - run.first, time.monotonic()))
                yield len(some)

    return publish


def _send(producer: sync.Producer, target: str, rows: Sequence[Row], run: Run) -> None:
    headers = [
        None if row["headers"] is None else {name: bytes(value) for name, value in row["headers"]} for row in rows
    ]
    producer.publish_many(
        target,
        [bytes(row["value"]) for row in rows],
        keys=[None if row["key"] is None else bytes(row["key"]) for row in rows],
        headers=headers if any(headers) else None,
        priority=run.priority,
        partition=run.partition,
    )


class _Watch:
    """Looks at the target while Spark works, and tells how much has arrived there."""

    def __init__(self, servers: str, target: str, total: int, tell: Told) -> None:
        self._servers = servers
        self._target = target
        self._total = total
        self._tell = tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._before = self._ends()
        self._thread.start()

    def _ends(self) -> int:
        return sum(
            one.end_offset for one in held_topics(self._servers, [self._target])[self._target].partitions.values()
        )

    def _look(self) -> None:
        while not self._over.wait(_WATCH_SECONDS):
            try:
                self._tell("replay", self._ends() - self._before, self._total)
            except Exception:  # a look that fails is no reason to fail: the work itself will tell
                continue

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
