"""Rows from memory, and a writer that drops them: what Spark itself costs, to hold Lanner's source and sink against.

The source hands Spark the same Arrow record batches that Lanner's source would make of stored messages; the writer
takes record batches as Lanner's sink does, and does nothing with them. Between the two lies the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

PARTITIONS = 2
NAME = "memory_rows"


class MemoryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The rows of one stored batch, over and over, until there are enough."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        return {"rows": self._rows}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        rows = end["rows"] - start["rows"]
        return [InputPartition(rows // PARTITIONS) for _ in range(PARTITIONS)] if rows else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from lanner import batch
        from lanner.spark.columns import StoredBatch, gather

        values = [b"v" * 100 for _ in range(10_000)]
        (made,) = gather("bench", 0, [StoredBatch(0, 1, batch.encode(values))], 0, len(values))
        for first in range(0, partition.value, len(values)):
            yield made.slice(0, min(len(values), partition.value - first))


class DroppingWriter(DataSourceStreamArrowWriter):
    """Takes everything, keeps nothing."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


class MemorySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        from lanner.spark.source import schema

        return schema(False)

    def streamReader(self, schema: StructType) -> MemoryReader:  # noqa: N802
        return MemoryReader(int(self.options["rows"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DroppingWriter:  # noqa: N802
        return DroppingWriter()
