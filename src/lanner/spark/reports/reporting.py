"""Counting the figures of a report with Spark, in one pass over the messages, and writing them down.

Percentiles are Spark's approximate ones. Times are whole milliseconds since 1970 throughout, so that no time zone has a
say in it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow
from pyarrow import parquet
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from lanner.errors import NotFoundError
from lanner.spark.archive.reading import read_archive
from lanner.spark.archive.topics import held_topics, topic_frame
from lanner.spark.reports.figures import Figures, Report, assembled, check_window, good_window_ms
from lanner.spark.reports.page import page

PAGE: Final = "report.html"
TABLE: Final = "report.parquet"
_ACCURACY: Final = 1_000
_LOOK_SECONDS: Final = 0.3
_WHOLE: Final = ("start_ms", "priority", "messages", "bytes", "size_p50", "size_p99", "size_max", "timed", "ahead")
_LATENCIES: Final = ("latency_ms_p50", "latency_ms_p99", "latency_ms_max")

Told = Callable[[str, int, int], None]  # what is being done, how far it is, how far it will go


class Written(NamedTuple):
    """Where a report lies."""

    page: Path
    table: Path


def source_frame(
    spark: SparkSession, servers: str, topic: str, path: str | None = None, where: str | None = None
) -> DataFrame:
    """The messages of a topic, or of an archive of it."""
    if path is not None:
        frame = read_archive(spark, path, topic)
    else:
        held = held_topics(servers, [topic])[topic].partitions
        spans = {number: (one.first_offset, one.end_offset) for number, one in held.items()}
        frame = topic_frame(spark, servers, topic, spans)
    return frame if where is None else frame.where(where)


def report(spark: SparkSession, frame: DataFrame, source: str, *, window_ms: int | None, tell: Told) -> Report:
    """The figures of these messages. Without a window, one is chosen that suits the time between first and last."""
    sent = sql.unix_millis("producer_timestamp")
    narrow = frame.select(
        sql.unix_millis("timestamp").alias("at"),
        "priority",
        sql.length("value").cast("bigint").alias("size"),
        (sql.unix_millis("timestamp") - sent).alias("late"),
    ).persist()
    try:
        with _Watch(spark, tell, "read"):
            first_ms, last_ms = narrow.agg(sql.min("at"), sql.max("at")).collect()[0]
        if first_ms is None:
            raise NotFoundError(f"{source} has no messages to report on")
        chosen = good_window_ms(first_ms, last_ms) if window_ms is None else check_window(window_ms, first_ms, last_ms)
        with _Watch(spark, tell, "count"):
            rows = _counted(narrow, chosen).collect()
    finally:
        narrow.unpersist()
    return assembled(source, first_ms, last_ms, chosen, (Figures(*row) for row in rows))


def _counted(narrow: DataFrame, window_ms: int) -> DataFrame:
    """By window and priority, by each alone, and as a whole: null stands for all."""
    start = (sql.floor(sql.col("at") / sql.lit(window_ms)) * window_ms).cast("bigint")
    sizes, latencies = _percentiles("size"), _percentiles("late")
    return (
        narrow.withColumn("start_ms", start)
        .cube("start_ms", "priority")
        .agg(
            sql.count("*").alias("messages"),
            sql.sum("size").alias("bytes"),
            sizes[0].alias("size_p50"),
            sizes[1].alias("size_p99"),
            sql.max("size").alias("size_max"),
            sql.count("late").alias("timed"),
            sql.count(sql.when(sql.col("late") < 0, 1)).alias("ahead"),
            latencies[0].alias("latency_ms_p50"),
            latencies[1].alias("latency_ms_p99"),
            sql.max("late").alias("latency_ms_max"),
        )
        .select(*Figures._fields)
    )


def _percentiles(name: str) -> list[Column]:
    return [sql.percentile_approx(name, share, _ACCURACY) for share in (0.5, 0.99)]


def write(made: Report, folder: Path) -> Written:
    """The page, and the figures by window and priority as a table; what was there under these names is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    written = Written(folder / PAGE, folder / TABLE)
    _replace(written.page, lambda beside: beside.write_text(page(made), encoding="utf-8"))
    _replace(written.table, lambda beside: parquet.write_table(_table(made), beside))
    return written


def _table(made: Report) -> Any:
    columns = {name: [getattr(one, name) for one in made.cells] for name in (*_WHOLE, *_LATENCIES)}
    arrays = {name: pyarrow.array(values, pyarrow.int64()) for name, values in columns.items()}
    starts = arrays.pop("start_ms").cast(pyarrow.timestamp("ms", tz="UTC"))
    lengths = pyarrow.array([made.window_ms] * len(made.cells), pyarrow.int64())
    return pyarrow.table({"window_start": starts, "window_ms": lengths, **arrays})


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


class _Watch:
    """Looks at Spark's tasks while it works, and tells how many are done."""

    def __init__(self, spark: SparkSession, tell: Told, what: str) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._tell = tell
        self._what = what
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self._tell(self._what, 0, 0)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            stages = [self._tracker.getStageInfo(number) for number in self._tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                done, total = sum(one.numCompletedTasks for one in known), sum(one.numTasks for one in known)
                self._tell(self._what, done, total)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
