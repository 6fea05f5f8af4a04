"""Reading an archive back: through its manifest, so that every message is there once."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from lanner.errors import NotFoundError
from lanner.spark.archive.files import frame_of
from lanner.spark.archive.shelf import open_shelf
from lanner.spark.archive.store import Store


def read_archive(
    spark: SparkSession, path: str, topics: Sequence[str] | str | None = None, *, version: int | None = None
) -> DataFrame:
    """The messages of an archive, as `format("lanner")` with headers gives them.

    By default all topics, in the newest version. An older version can be read as long as its files are there: those
    that a compaction merged stay for its grace time.
    """
    store = Store(open_shelf(spark, path))
    manifest = store.load(version)
    chosen = None if topics is None else {topics} if isinstance(topics, str) else set(topics)
    if chosen is not None and (unknown := sorted(chosen - set(manifest.topics))):
        known = ", ".join(sorted(manifest.topics)) or "nothing"
        raise NotFoundError(f"the archive at {store.shelf.root} has no topic {unknown[0]!r}; it has {known}")
    return frame_of(spark, store.shelf, [one for one in manifest.files if chosen is None or one.topic in chosen])
