"""`format("lanner")`: the data source that Spark's planner and executors call.

    spark.read.format("lanner").option("servers", "localhost:7400").option("subscribe", "orders").load()

The option and column names are those of Spark's Kafka connector, so that a query moves over by changing its format.
A batch read is planned once, on the driver's side: options are checked, the offsets of every partition are asked for,
and the read is fixed to what the topics hold at that moment. A streaming read is planned batch by batch (`stream`).
Either way each partition of a topic is one task of Spark, or several.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lanner.errors import LannerError, ValidationError
from lanner.spark.admission import divided
from lanner.spark.dead import log_for
from lanner.spark.filters import Narrowing
from lanner.spark.options import ReadOptions, parse_options
from lanner.spark.planner import plan_batch
from lanner.spark.sink import LannerStreamWriter, LannerWriter, open_stream_writer, open_writer
from lanner.spark.stream import LannerStreamReader
from lanner.spark.tasks import LannerPartition, read_span

_PUSHING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


def schema(include_headers: bool, include_metadata: bool = False, dead_letters: bool = False) -> StructType:
    """The columns of a read."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("priority", IntegerType()),
    ]
    if include_headers:
        pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(pair)))
    if include_metadata:
        fields += [StructField(name, TimestampType()) for name in ("producer_timestamp", "deliver_at", "expires_at")]
        fields.append(StructField("flags", IntegerType()))
    if dead_letters:
        fields += [
            StructField("number", LongType()),
            StructField("attempts", IntegerType()),
            StructField("reason", StringType()),
            StructField("died_at", TimestampType()),
        ]
    return StructType(fields)


class LannerReader(DataSourceReader):
    """Plans a read, then reads a part of it in each task. Pickled in between, so it holds options and nothing else."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return self._planned(Narrowing())

    def _planned(self, narrowing: Narrowing) -> list[InputPartition]:
        lanes = narrowing.lanes(self._options.lanes)
        if lanes is None:
            return []
        self._options = self._options._replace(lanes=lanes)
        with log_for(self._options) as log:
            spans = plan_batch(self._options, log, narrowing)
        return [LannerPartition(span) for span in divided(spans, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_span(self._options, partition, strict=False)


class FilteringReader(LannerReader):
    """Leaves out what the query's filters would throw away."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self._narrowing = Narrowing()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """All of them are given back: Spark applies them still."""
        self._narrowing = self._narrowing.by(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return self._planned(self._narrowing)


def _filters_are_pushed() -> bool:
    """Whether Spark is about to push filters. It does that in a worker of its own, and only where its configuration
    (spark.sql.python.filterPushdown.enabled) says so; elsewhere it refuses a reader that would take them."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING_WORKER in sys.modules or getattr(main, "name", "") == _PUSHING_WORKER


class LannerDataSource(DataSource):
    """The format `lanner`."""

    @classmethod
    def name(cls) -> str:
        return "lanner"

    def schema(self) -> StructType:
        options = parse_options(self.options)
        return schema(options.include_headers, options.include_metadata, bool(options.dead_letters_of))

    def reader(self, schema: StructType) -> LannerReader:
        options = parse_options(self.options, "batch")
        self._check_schema(schema)
        takes_filters = _filters_are_pushed() and not options.dead_letters_of
        return FilteringReader(options) if takes_filters else LannerReader(options)

    def streamReader(self, schema: StructType) -> LannerStreamReader:  # noqa: N802
        try:
            options = parse_options(self.options, "stream")
            self._check_schema(schema)
        except LannerError as error:
            return LannerStreamReader(error)
        return LannerStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> LannerWriter:
        return open_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LannerStreamWriter:  # noqa: N802
        return open_stream_writer(self.options, schema, overwrite)

    def _check_schema(self, schema: StructType) -> None:
        expected = self.schema()
        if schema != expected:
            raise ValidationError(
                f"the columns of lanner are fixed: leave .schema() away, or give {expected.simpleString()}",
                field="schema",
            )
