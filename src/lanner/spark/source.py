"""`spark.read.format("lanner")`: the data source that Spark's planner and executors call.

    spark.read.format("lanner").option("servers", "localhost:7400").option("subscribe", "orders").load()

The option and column names are those of Spark's Kafka connector, so that a query moves over by changing its format.
Planning happens once, on the driver's side: options are checked, the offsets of every partition are asked for, and the
read is fixed to what the topics hold at that moment. Each partition of a topic is one task of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
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

from lanner.errors import ValidationError
from lanner.model import check_name
from lanner.spark.columns import gather
from lanner.spark.log import TopicLog
from lanner.spark.offsets import ENDING, STARTING, Bound, Span, parse_bound, resolve

_SERVERS: Final = "servers"
_SUBSCRIBE: Final = "subscribe"
_HEADERS: Final = "includeHeaders"
_KNOWN: Final = (_SERVERS, _SUBSCRIBE, STARTING, ENDING, _HEADERS)
_TRUTH: Final = {"true": True, "false": False}


def schema(include_headers: bool) -> StructType:
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
    return StructType(fields)


class ReadOptions(NamedTuple):
    """The options of a read, checked."""

    servers: str
    topics: tuple[str, ...]
    starting: Bound
    ending: Bound
    include_headers: bool


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Spark does not keep the case of option names, so neither does this."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(options) - {name.lower() for name in _KNOWN})
    if unknown:
        _refuse(unknown[0], f"there is no such option; there are {', '.join(_KNOWN)}")
    topics = tuple(dict.fromkeys(name.strip() for name in _required(options, _SUBSCRIBE, "orders").split(",")))
    truth = options.get(_HEADERS.lower(), "false").strip().lower()
    if truth not in _TRUTH:
        _refuse(_HEADERS, f"it is {truth[:80]!r}; give true or false")
    return ReadOptions(
        _required(options, _SERVERS, "localhost:7400"),
        tuple(check_name(name, "topic") for name in topics),
        parse_bound(STARTING, options.get(STARTING.lower(), "earliest")),
        parse_bound(ENDING, options.get(ENDING.lower(), "latest")),
        _TRUTH[truth],
    )


def _required(options: Mapping[str, str], name: str, example: str) -> str:
    value = options.get(name, "").strip()
    if not value:
        _refuse(name, f'it is missing: say .option("{name}", "{example}")')
    return value


def _refuse(name: str, why: str) -> NoReturn:
    raise ValidationError(f"option {name}: {why}", field=name)


class LannerPartition(InputPartition):
    """One task: a span of one partition of one topic."""

    def __init__(self, span: Span) -> None:
        super().__init__(span)
        self.span = span


class LannerReader(DataSourceReader):
    """Plans a read, then reads a part of it in each task. Pickled in between, so it holds options and nothing else."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with TopicLog(options.servers) as log:
            held = {topic: log.held(topic) for topic in options.topics}
        return [LannerPartition(span) for span in resolve(options.starting, options.ending, held)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, LannerPartition):  # what Spark makes of a plan without partitions
            return
        span = partition.span
        with TopicLog(self._options.servers) as log:
            yield from gather(
                span.topic,
                span.partition,
                log.batches(span),
                span.start_offset,
                span.end_offset,
                include_headers=self._options.include_headers,
            )


class LannerDataSource(DataSource):
    """The format `lanner`."""

    @classmethod
    def name(cls) -> str:
        return "lanner"

    def schema(self) -> StructType:
        return schema(parse_options(self.options).include_headers)

    def reader(self, schema: StructType) -> LannerReader:
        options = parse_options(self.options)
        expected = self.schema()
        if schema != expected:
            raise ValidationError(
                f"the columns of lanner are fixed: leave .schema() away, or give {expected.simpleString()}",
                field="schema",
            )
        return LannerReader(options)
