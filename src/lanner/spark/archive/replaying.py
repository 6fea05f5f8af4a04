"""`lanner replay`: messages of an archive or a topic into a topic, with their keys, headers and priorities.

Spark's tasks publish, each some partitions, every partition in offset order (`publishing`). Where source and target
have the same number of partitions a message keeps its own; else its key decides anew.

A replay has an id. Under it every message is published once, however often the replay is cut off and repeated: the
brokers remember, for each partition of the source, up to which offset it was published. The id counts together with
what is replayed (topic, starts, condition, target), so that another replay under the same id is another one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from lanner import limits, sync
from lanner.errors import NotFoundError, PartitionNotFound, TopicNotFound, ValidationError
from lanner.model import check_name
from lanner.spark.archive import lanes
from lanner.spark.archive.auditing import Told, nothing_told
from lanner.spark.archive.files import COLUMNS, TIMES, frame_of
from lanner.spark.archive.planning import progress_of
from lanner.spark.archive.publishing import Publication, Published, publisher
from lanner.spark.archive.ranges import Range
from lanner.spark.archive.shelf import open_shelf
from lanner.spark.archive.store import Store
from lanner.spark.archive.topics import held_topics, topic_frame

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

    replay_id: str
    messages: int  # published by this run
    expired: int  # left out, because nobody would get them any more
    resumed: bool  # an earlier run under the same id had published some
    partitions_kept: bool
    seconds: float


def new_replay_id() -> str:
    return secrets.token_hex(6)


def checked_replay_id(given: str) -> str:
    if len(check_name(given, "replay id")) > limits.REPLAY_ID_LENGTH_MAX:
        raise ValidationError(f"a replay id has at most {limits.REPLAY_ID_LENGTH_MAX} characters", field="id")
    return given


def replay(
    spark: SparkSession,
    source: Source,
    servers: str,
    target: str,
    *,
    replay_id: str | None = None,
    rate: float | None = None,
    expired_too: bool = False,
    tell: Told = nothing_told,
    clock: Callable[[], float] = time.time,
) -> Replayed:
    """Publish what the source has into the target, which is made with as many partitions when it is not there.

    Under the same replay id nothing is published twice: a run goes on where the one before it ended.
    """
    began = time.monotonic()
    name = new_replay_id() if replay_id is None else checked_replay_id(replay_id)
    found = _found(spark, source)
    if source.where is not None:
        spark.createDataFrame([], COLUMNS).where(source.where)  # what is no condition must not leave a topic behind
    there = _target(servers, target, found.partitions)
    keeps = there.partitions == found.partitions
    tasks = max(1, min(found.partitions, spark.sparkContext.defaultParallelism))
    publication = Publication(
        servers,
        target,
        name,
        _work(source, found.incarnation, target, there.incarnation),
        None if keeps else there.partitions,
        None if rate is None else rate / tasks,
        int(clock() * 1000),
        expired_too,
    )
    spans = found.spans if replay_id is None else _left(publication, found.spans)
    frame, total = found.frame(spans), sum(end - start for start, end in spans.values())
    if source.where is not None:
        frame, total = frame.where(source.where), 0
    columns = [sql.unix_millis(name).alias(name) if name in TIMES else sql.col(name) for name in lanes.SCHEMA.names]
    ordered = frame.select(*columns).repartition(tasks, "partition").sortWithinPartitions("partition", "offset")
    with _Watch(servers, target, total, tell):
        results: list[Published] = ordered.rdd.mapPartitions(publisher(publication)).collect()
    return Replayed(
        name,
        sum(one.messages for one in results),
        sum(one.expired for one in results),
        spans != found.spans or any(one.resumed for one in results),
        keeps,
        time.monotonic() - began,
    )


class _Found(NamedTuple):
    """What there is to replay."""

    incarnation: int
    partitions: int
    spans: Mapping[int, Range]
    frame: Callable[[Mapping[int, Range]], DataFrame]


def _found(spark: SparkSession, source: Source) -> _Found:
    if source.path is None:
        held = held_topics(source.servers, [source.topic])[source.topic]
        bounds = {number: (one.first_offset, one.end_offset) for number, one in held.partitions.items()}

        def of_topic(spans: Mapping[int, Range]) -> DataFrame:
            return topic_frame(spark, source.servers, source.topic, spans)

        return _Found(held.incarnation, max(bounds, default=0) + 1, _narrowed(source, bounds), of_topic)
    store = Store(open_shelf(spark, source.path))
    manifest = store.load()
    if source.topic not in manifest.topics:
        known = ", ".join(sorted(manifest.topics)) or "nothing"
        raise NotFoundError(f"the archive at {store.shelf.root} has no topic {source.topic!r}; it has {known}")
    archived = manifest.topics[source.topic]
    progress = {number: progress_of(manifest, source.topic, number) for number in archived.partitions}
    bounds = {number: (one.start, one.next) for number, one in progress.items() if one is not None}

    def of_archive(spans: Mapping[int, Range]) -> DataFrame:
        return _within(frame_of(spark, store.shelf, manifest.files_of(source.topic)), spans)

    return _Found(archived.incarnation, max(bounds, default=0) + 1, _narrowed(source, bounds), of_archive)


def _narrowed(source: Source, bounds: Mapping[int, Range]) -> dict[int, Range]:
    """What of these offsets the source asks for."""
    unknown = sorted({*source.start, *source.end} - set(bounds))
    if unknown:
        known = ", ".join(map(str, sorted(bounds))) or "none"
        raise PartitionNotFound(
            f"there is no partition {unknown[0]} of {source.topic} to begin or end in; there are {known}",
            topic=source.topic,
            partition=unknown[0],
        )
    spans = {}
    for number, (first, end) in bounds.items():
        start, stop = max(first, source.start.get(number, first)), min(end, source.end.get(number, end))
        spans[number] = (start, max(start, stop))
    return spans


def _work(source: Source, incarnation: int, target: str, target_incarnation: int) -> str:
    """What is replayed where, as a short digest. Not the ends: a replay may go on with what came later."""
    start = sorted(source.start.items())
    names = [source.topic, incarnation, start, source.where, target, target_incarnation]
    return hashlib.blake2b(json.dumps(names).encode(), digest_size=6).hexdigest()


def _left(publication: Publication, spans: Mapping[int, Range]) -> dict[int, Range]:
    """Without what an earlier run has published: the tasks know it too, this only spares the reading."""
    left = dict(spans)
    with sync.connect(publication.servers, client_name="lanner-replay") as queue:
        for number, (start, end) in spans.items():
            with suppress(NotFoundError):
                committed = queue.admin.transaction(publication.transaction(number)).committed
                reached = max((last for _, last in committed), default=start)
                left[number] = (min(max(start, reached), end), end)
    return left


def _within(frame: DataFrame, spans: Mapping[int, Range]) -> DataFrame:
    wanted = sql.lit(False)
    for number, (start, end) in spans.items():
        wanted = wanted | ((sql.col("partition") == number) & sql.col("offset").between(start, end - 1))
    return frame.where(wanted)


class _There(NamedTuple):
    incarnation: int
    partitions: int


def _target(servers: str, target: str, partitions: int) -> _There:
    """The topic to publish into; it is made where there is none."""
    with sync.connect(servers, client_name="lanner-replay") as queue:
        try:
            described = queue.admin.describe(target)
        except TopicNotFound:
            described = queue.admin.create_topic(target, partitions=partitions)
    return _There(described.incarnation, len(described.partitions))


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
