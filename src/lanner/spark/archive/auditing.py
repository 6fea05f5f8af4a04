"""`lanner audit`: an archive against its topic, offset by offset; or one topic against another.

Spark compares digests of 128 bits instead of messages, so that only these travel between its tasks; what follows from
the differences is decided by `verdict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from lanner import limits
from lanner.errors import NotFoundError
from lanner.spark.archive import files as parquet
from lanner.spark.archive import ranges, verdict
from lanner.spark.archive.manifest import ArchivedFile, Manifest
from lanner.spark.archive.planning import HeldTopic, check_incarnation
from lanner.spark.archive.ranges import Range
from lanner.spark.archive.shelf import open_shelf
from lanner.spark.archive.store import Store
from lanner.spark.archive.topics import again_when_trimmed, held_topics, topic_frame
from lanner.spark.archive.verdict import ArchiveVerdict, Compared, Files, PartitionLikeness, PartitionVerdict

_CONTENT: Final = ("key", "value", "headers", "priority")
_FILES_AT_ONCE: Final = 200
_SAMPLES_MAX: Final = 100
_ALL: Final = -1  # instead of a partition: the whole topic

Told = Callable[[str, int, int], None]  # what is being done, how far it is, how far it will go


def nothing_told(what: str, done: int, total: int) -> None: ...


def digests(names: Sequence[str]) -> list[Column]:
    """Two independent sums over these columns; a null is told from an empty one."""
    flags: list[Column] = [sql.col(name).isNull() for name in names]
    columns: list[Column] = [sql.col(name) for name in names]
    return [
        sql.xxhash64(*flags, *columns).alias("digest"),
        sql.xxhash64(sql.lit(1), *reversed(columns), *flags).alias("digest2"),
    ]


# ------------------------------------------------------------------ an archive against its topic


def audit_archive(
    spark: SparkSession,
    servers: str,
    path: str,
    topics: Sequence[str] = (),
    *,
    to_end: bool = False,
    tell: Told = nothing_told,
) -> list[ArchiveVerdict]:
    """Judge some topics of an archive, or all of them."""
    store = Store(open_shelf(spark, path))
    manifest = store.load()
    chosen = list(dict.fromkeys(topics)) or verdict.topics_of(manifest)
    for topic in chosen:
        if topic not in manifest.topics:
            known = ", ".join(verdict.topics_of(manifest)) or "nothing"
            raise NotFoundError(
                f"the archive at {store.shelf.root} has no topic {topic!r}; it has {known}", topic=topic
            )
    held = held_topics(servers, chosen)
    return [_audit_topic(spark, servers, store, manifest, topic, held[topic], to_end, tell) for topic in chosen]


def _audit_topic(
    spark: SparkSession,
    servers: str,
    store: Store,
    manifest: Manifest,
    topic: str,
    held: HeldTopic,
    to_end: bool,
    tell: Told,
) -> ArchiveVerdict:
    check_incarnation(manifest, topic, held.incarnation)
    state = check_files(spark, store, manifest.files_of(topic), tell)
    whole = [one for one in manifest.files_of(topic) if one.path not in state.removed | state.damaged]
    progress = manifest.topics[topic].partitions
    spans = {
        number: verdict.overlap(progress[number], one) for number, one in held.partitions.items() if number in progress
    }
    tell(f"compare {topic}", 0, 0)
    compared = again_when_trimmed(lambda: _compare(spark, servers, store, topic, whole, spans))
    judged: list[PartitionVerdict] = []
    for number, one in sorted(held.partitions.items()):
        if number not in progress:
            judged.append(verdict.never_archived(number, one, to_end=to_end))
            continue
        mine = manifest.files_of(topic, number)
        found = Compared(
            {kind: spans for (where, kind), spans in compared.items() if where == number},
            frozenset(kind for (where, kind), spans in compared.items() if len(spans) >= limits.AUDIT_RANGES_MAX),
        )
        judged.append(verdict.judge(number, progress[number], one, mine, state, found, to_end=to_end))
    return ArchiveVerdict(topic, state, judged)


def check_files(spark: SparkSession, store: Store, files: Sequence[ArchivedFile], tell: Told = nothing_told) -> Files:
    """Which of these files are gone, and which do not have the bytes that the manifest says."""
    removed, damaged, there = set(), set(), []
    for one in files:
        size = store.shelf.size(one.path)
        if size is None:
            removed.add(one.path)
        elif size != one.size:
            damaged.add(one.path)
        else:
            there.append(one)
    for first in range(0, len(there), _FILES_AT_ONCE):
        tell("check files", first, len(there))
        some = there[first : first + _FILES_AT_ONCE]
        sums = parquet.checksums(spark, store.shelf, some)
        damaged.update(one.path for one in some if sums[one.path] != one.sha256)
    return Files(len(files), frozenset(removed), frozenset(damaged))


def _compare(
    spark: SparkSession,
    servers: str,
    store: Store,
    topic: str,
    files: Iterable[ArchivedFile],
    spans: Mapping[int, Range],
) -> dict[tuple[int, str], list[Range]]:
    """Where archive and topic differ, by partition and kind."""
    wanted = {number: span for number, span in spans.items() if span[0] < span[1]}
    if not wanted:
        return {}
    touched = [one for one in files if one.partition in wanted and ranges.within(one.offsets, *wanted[one.partition])]
    parts = [
        (sql.col("partition") == number) & sql.col("offset").between(start, end - 1)
        for number, (start, end) in wanted.items()
    ]
    wanted_rows = reduce(Column.__or__, parts)
    sides = [_digested(topic_frame(spark, servers, topic, wanted), archived=0, times=True)]
    for times in (True, False):
        mine = [one for one in touched if one.times is times]
        if mine:
            frame = parquet.frame_of(spark, store.shelf, mine).where(wanted_rows)
            sides.append(_digested(frame, archived=1, times=times))
    return _differences(reduce(DataFrame.unionByName, sides))


def _digested(frame: DataFrame, *, archived: int, times: bool) -> DataFrame:
    """What is compared of a message. A file that has no times has no digest of them, which is equal to any."""
    sums = digests((*_CONTENT, "timestamp"))
    of_times = digests(parquet.TIMES)[0] if times else sql.lit(None).cast("bigint")
    return frame.select("partition", "offset", *sums, of_times.alias("times"), sql.lit(archived).alias("archived"))


def _differences(sides: DataFrame) -> dict[tuple[int, str], list[Range]]:
    archived, held = sql.col("archived_times"), sql.col("held_times")
    counted = sides.groupBy("partition", "offset").agg(
        sql.sum("archived").alias("archived_times"),
        sql.sum(1 - sql.col("archived")).alias("held_times"),
        reduce(Column.__or__, [sql.min(name) != sql.max(name) for name in ("digest", "digest2", "times")]).alias(
            "unequal"
        ),
    )
    kind = (
        sql.when(archived > 1, verdict.DOUBLED)
        .when(archived == 0, verdict.MISSING)
        .when(held == 0, verdict.UNMATCHED)
        .when(sql.col("unequal"), verdict.DIFFERENT)
    )
    wrong = counted.select("partition", "offset", kind.alias("kind")).where("kind is not null")
    place = sql.row_number().over(Window.partitionBy("partition", "kind").orderBy("offset"))
    islands = (
        wrong.withColumn("island", sql.col("offset") - place)
        .groupBy("partition", "kind", "island")
        .agg(sql.min("offset").alias("first"), sql.max("offset").alias("last"))
    )
    listed = sql.row_number().over(Window.partitionBy("partition", "kind").orderBy("first"))
    rows = islands.withColumn("listed", listed).where(sql.col("listed") <= limits.AUDIT_RANGES_MAX)
    found: dict[tuple[int, str], list[Range]] = {}
    for partition, name, first, last in rows.select("partition", "kind", "first", "last").orderBy("first").collect():
        found.setdefault((partition, name), []).append((first, last + 1))
    return found


# ------------------------------------------------------------------ a topic against another


class Side(NamedTuple):
    """One of the two."""

    servers: str
    topic: str


def audit_topics(spark: SparkSession, here: Side, there: Side, *, tell: Told = nothing_told) -> list[PartitionLikeness]:
    """Whether two topics have the same messages, partition by partition, and in the same order."""
    held = [held_topics(side.servers, [side.topic])[side.topic].partitions for side in (here, there)]
    by_partition = held[0].keys() == held[1].keys()
    frames = []
    for side, partitions, sign in ((here, held[0], 1), (there, held[1], -1)):
        spans = {number: (one.first_offset, one.end_offset) for number, one in partitions.items()}
        frames.append(_side(topic_frame(spark, side.servers, side.topic, spans), by_partition, sign))
    tell("compare messages", 0, 0)
    found = _likeness(frames[0].unionByName(frames[1]), sorted(held[0]) if by_partition else [_ALL])
    if not by_partition or not all(one.is_clean for one in found):
        return found
    tell("compare order", 0, 0)
    moved = _first_disorder(frames[0], frames[1], ["partition"])
    disorder = _first_disorder(frames[0], frames[1], ["partition", "priority"]) if moved else {}
    return [
        one._replace(
            first_disorder=disorder.get(one.partition or 0),
            order_compared=True,
            priorities_moved=(one.partition or 0) in moved,
        )
        for one in found
    ]


def _side(frame: DataFrame, by_partition: bool, sign: int) -> DataFrame:
    number = sql.col("partition") if by_partition else sql.lit(_ALL)
    return frame.select(
        number.alias("partition"),
        sql.concat_ws("/", "topic", "partition").alias("place"),
        "offset",
        "priority",
        *digests(_CONTENT),
        sql.lit(sign).alias("sign"),
    )


def _likeness(sides: DataFrame, numbers: Sequence[int]) -> list[PartitionLikeness]:
    balance = sql.col("balance")
    balanced = sides.groupBy("partition", "digest", "digest2").agg(
        sql.sum("sign").alias("balance"),
        sql.sum(sql.when(sql.col("sign") > 0, 1).otherwise(0)).alias("here"),
        sql.sum(sql.when(sql.col("sign") < 0, 1).otherwise(0)).alias("there"),
        sql.min(sql.struct("place", "offset")).alias("sample"),
    )
    totals = balanced.groupBy("partition").agg(
        sql.sum("here").alias("here"),
        sql.sum("there").alias("there"),
        sql.sum(sql.greatest(balance, sql.lit(0))).alias("only_here"),
        sql.sum(sql.greatest(-balance, sql.lit(0))).alias("only_there"),
    )
    found = {number: tuple(counts) for number, *counts in totals.collect()}
    samples: dict[int, list[tuple[str, int]]] = {}
    if any(only_here or only_there for _, _, only_here, only_there in found.values()):
        rows = balanced.where(balance != 0).select("partition", "sample.place", "sample.offset")
        for number, place, offset in rows.orderBy("offset").limit(_SAMPLES_MAX).collect():
            samples.setdefault(number, []).append((place, offset))
    alike = []
    for number in numbers:
        here, there, only_here, only_there = found.get(number, (0, 0, 0, 0))
        listed = samples.get(number, [])
        whole = None if number == _ALL else number
        alike.append(PartitionLikeness(whole, here, there, only_here, only_there, listed, None, False))
    return alike


def _first_disorder(here: DataFrame, there: DataFrame, lane: list[str]) -> dict[int, tuple[int, int]]:
    """Of two frames with the same messages, each lane by itself: the offsets of the first ones that are not alike, by
    partition."""
    number = sql.row_number().over(Window.partitionBy(*lane).orderBy("offset"))
    sides = [
        frame.select(
            *lane, number.alias("number"), sql.struct("digest", "digest2").alias(f"digest_{name}"), "offset"
        ).withColumnRenamed("offset", f"offset_{name}")
        for frame, name in ((here, "here"), (there, "there"))
    ]
    unlike = sides[0].join(sides[1], [*lane, "number"]).where("digest_here != digest_there")
    first = unlike.groupBy("partition").agg(sql.min(sql.struct("offset_here", "offset_there")).alias("first"))
    rows = first.select("partition", "first.offset_here", "first.offset_there").collect()
    return {partition: (one, other) for partition, one, other in rows}
