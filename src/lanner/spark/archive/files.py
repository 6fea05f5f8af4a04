"""Parquet files of an archive, as Spark writes, measures and reads them.

Spark chooses the names of the files it writes. So it writes into a staging folder, one inner folder for each file that
is meant; what came out is measured there (offsets, rows, bytes, checksum) and then moved to its name.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from lanner.spark.archive.manifest import FOLDER, ArchivedFile
from lanner.spark.archive.planning import file_path
from lanner.spark.archive.ranges import Range
from lanner.spark.archive.shelf import Shelf
from lanner.spark.source import schema

COLUMNS: Final = StructType(
    [field for field in schema(include_headers=True, include_metadata=True).fields if field.name != "flags"]
)  # older files end with the headers: Spark gives null for what they do not have
STAGING: Final = "staging-"
TIMES: Final = ("producer_timestamp", "deliver_at", "expires_at")
_MARK: Final = "_file"  # which file a row goes to: TOPIC-NUMBER_PARTITION_HOURS, behind a letter so that it stays text


class Target(NamedTuple):
    """What a staged file is meant to be."""

    topic: str
    partition: int
    hours: int


class Measured(NamedTuple):
    """A staged file and what is in it."""

    staged: str
    target: Target
    offsets: list[Range]
    rows: int
    size: int
    sha256: str


def hours_column() -> Column:
    """The hour since 1970 in which a message was appended; no time zone has a say in it."""
    return sql.floor(sql.unix_millis("timestamp") / sql.lit(3_600_000)).cast("bigint")


@contextmanager
def staging(shelf: Shelf) -> Iterator[str]:
    """A folder, below the shelf's, that is gone afterwards."""
    folder = f"{FOLDER}/{STAGING}{secrets.token_hex(6)}"
    try:
        yield folder
    finally:
        shelf.delete(folder)


def write(frame: DataFrame, shelf: Shelf, folder: str) -> None:
    """Stage a frame that has the archive's columns, for the files that its messages' partitions and hours ask for."""
    mark = sql.concat_ws("_", sql.lit("f"), "partition", hours_column(), "topic")
    marked = frame.withColumn(_MARK, mark).sortWithinPartitions(_MARK, "offset")
    with _standard_times(frame.sparkSession):
        marked.write.mode("overwrite").partitionBy(_MARK).parquet(f"{shelf.root}/{folder}")


@contextmanager
def _standard_times(spark: SparkSession) -> Iterator[None]:
    """Spark writes timestamps in a form of its own unless it is told to write those that Parquet defines."""
    name = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(name)
    spark.conf.set(name, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(name, str(before))


def measure(spark: SparkSession, shelf: Shelf, folder: str) -> list[Measured]:
    """What is in each file of a staging folder."""
    if not any(name.startswith(f"{_MARK}=") for name in shelf.names(folder)):
        return []
    root = f"{shelf.root}/{folder}"
    frame = spark.read.schema(StructType([*COLUMNS.fields, StructField(_MARK, StringType())])).parquet(root)
    by_file = [sql.col(_MARK), sql.col("_metadata.file_name").alias("name")]
    counted = frame.groupBy(*by_file).agg(sql.min("offset"), sql.max("offset"), sql.count("*")).collect()
    sums = _checksums(spark.read.format("binaryFile").option("pathGlobFilter", "*.parquet").load(root), by_file)
    islands: dict[tuple[str, str], list[Range]] = {}
    if any(last - first + 1 != rows for _, _, first, last, rows in counted):
        islands = _islands(frame.select(*by_file, "offset"))
    found = []
    for mark, name, first, last, rows in counted:
        size, checksum = sums[mark, name]
        offsets = islands.get((mark, name), [(first, last + 1)])
        staged = f"{folder}/{_MARK}={mark}/{name}"
        found.append(Measured(staged, _target(mark), offsets, rows, size, checksum))
    return found


def _target(mark: str) -> Target:
    _, partition, hours, topic = mark.split("_", 3)
    return Target(topic, int(partition), int(hours))


def _checksums(frame: DataFrame, by_file: Sequence[Column]) -> dict[tuple[str, str], tuple[int, str]]:
    rows = frame.select(*by_file, "length", sql.sha2("content", 256)).collect()
    return {(mark, name): (size, checksum) for mark, name, size, checksum in rows}


def _islands(frame: DataFrame) -> dict[tuple[str, str], list[Range]]:
    """The ranges of offsets of each file, where they are not one."""
    place = sql.row_number().over(Window.partitionBy(_MARK, "name").orderBy("offset"))
    grouped = frame.withColumn("island", sql.col("offset") - place).groupBy(_MARK, "name", "island")
    found: dict[tuple[str, str], list[Range]] = {}
    for mark, name, first, last in (
        grouped.agg(sql.min("offset").alias("first"), sql.max("offset").alias("last"))
        .select(_MARK, "name", "first", "last")
        .orderBy("first")
        .collect()
    ):
        found.setdefault((mark, name), []).append((first, last + 1))
    return found


def path_of(measured: Measured) -> str:
    """The name that a staged file gets."""
    return file_path(*measured.target, measured.offsets[0][0], measured.offsets[-1][1] - 1)


def place(shelf: Shelf, measured: Iterable[Measured]) -> list[ArchivedFile]:
    """Move staged files to their names."""
    placed = []
    for one in measured:
        target = one.target
        path = path_of(one)
        shelf.move(one.staged, path)
        named = (path, target.topic, target.partition, one.offsets, one.rows, one.size, one.sha256)
        placed.append(ArchivedFile(*named, times=True))
    return placed


def frame_of(spark: SparkSession, shelf: Shelf, files: Iterable[ArchivedFile]) -> DataFrame:
    """The messages in these files."""
    paths = [f"{shelf.root}/{one.path}" for one in files]
    return spark.read.schema(COLUMNS).parquet(*paths) if paths else spark.createDataFrame([], COLUMNS)


def checksums(spark: SparkSession, shelf: Shelf, files: Iterable[ArchivedFile]) -> dict[str, str]:
    """The checksum that each of these files has now, by path. All must be there."""
    paths = [f"{shelf.root}/{one.path}" for one in files]
    if not paths:
        return {}
    frame = spark.read.format("binaryFile").load(paths)
    rows: list[Any] = frame.select("path", sql.sha2("content", 256)).collect()
    return {_relative(path): checksum for path, checksum in rows}


def _relative(path: str) -> str:
    """The part of a path below the archive's: the last four names."""
    return "/".join(path.rsplit("/", 4)[1:])
