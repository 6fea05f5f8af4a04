"""`spark.readStream.format("lanner")`: what Spark calls for a streaming query.

Spark makes this object in two places: once in a process beside the driver, where offsets are asked for, and once for
the tasks, which only read. It holds options; the planner, with its connection, is made when it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from lanner.errors import LannerError
from lanner.spark.admission import divided
from lanner.spark.dead import log_for
from lanner.spark.options import ReadOptions
from lanner.spark.planner import StreamPlanner
from lanner.spark.progress import from_json, spans_between
from lanner.spark.tasks import LannerPartition, read_span


class LannerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's source."""

    def __init__(self, options: ReadOptions | LannerError) -> None:
        self._given = options
        self._opened: StreamPlanner | None = None
        self._committed: dict[str, Any] | None = None

    @property
    def _options(self) -> ReadOptions:
        """What is wrong with the options is raised here: raised while this object is made, it would be hidden by an
        UnboundLocalError of Spark's own."""
        if isinstance(self._given, LannerError):
            raise self._given
        return self._given

    @property
    def _planner(self) -> StreamPlanner:
        if self._opened is None:
            self._opened = StreamPlanner(self._options, log_for(self._options).__enter__())
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planner.begin()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark knows one limit at a time; where there are several, the others are kept here."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.min_offsets is None else ReadMinRows(options.min_offsets)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Spark says by ReadAllAvailable that no limit holds; else ours do, and the one it gives."""
        options = self._options
        all_of_it = isinstance(limit, ReadAllAvailable)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_offsets
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes
        return self._planner.next_end(
            start, None if all_of_it else rows_max, None if all_of_it else bytes_max, all_of_it=all_of_it
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        latest = self._planner.latest()
        return None if latest is None else latest | {"servers": self._options.servers}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Nothing is asked here: a batch is the difference of two offsets, also after a restart."""
        if start == end and self._opened is not None:
            self._opened.note_others()
        dead = self._options.dead_letters_of
        spans = spans_between(from_json(start, dead), from_json(end, dead))
        return [LannerPartition(span) for span in divided(spans, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_span(self._options, partition, strict=True)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark commits all sources of a query with every batch, also those that had nothing for it."""
        if end == self._committed:
            self._planner.note_others()
        self._committed = end
        self._planner.publish(from_json(end, self._options.dead_letters_of))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
