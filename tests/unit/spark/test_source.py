"""The data source as Spark calls it, with a log that needs no broker."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, Self

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from lanner import batch
from lanner.errors import TopicNotFound, ValidationError
from lanner.spark import source
from lanner.spark.columns import StoredBatch, arrow_schema
from lanner.spark.offsets import Held, Span
from lanner.spark.source import LannerDataSource, LannerPartition, parse_options

OPTIONS = {"servers": "localhost:7400", "subscribe": "orders"}


class FakeLog:
    """Two partitions of one topic: the second is empty."""

    opened = 0

    def __init__(self, servers: str) -> None:
        assert servers == "localhost:7400"

    def __enter__(self) -> Self:
        FakeLog.opened += 1
        return self

    def __exit__(self, *_: object) -> None:
        FakeLog.opened -= 1

    def held(self, topic: str) -> dict[int, Held]:
        if topic != "orders":
            raise TopicNotFound()
        return {0: Held(5, 9), 1: Held(0, 0)}

    def batches(self, span: Span) -> Iterator[StoredBatch]:
        yield StoredBatch(4, 1_000, batch.encode([b"4", b"5", b"6"], priority=9))
        yield StoredBatch(7, 1_000, batch.encode([b"7", b"8"], priority=0))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeLog]]:
    monkeypatch.setattr(source, "TopicLog", FakeLog)
    yield FakeLog
    assert FakeLog.opened == 0


def reader_for(**options: str) -> source.LannerReader:
    made = LannerDataSource(OPTIONS | options)
    return made.reader(made.schema())


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_two_schemas_are_one(include_headers: bool) -> None:
    """Spark compares the first record batch with what it derives from its own schema."""
    assert to_arrow_schema(source.schema(include_headers), timezone="UTC").equals(arrow_schema(include_headers))


def test_the_columns_are_those_of_the_kafka_connector_and_two_more() -> None:
    made = LannerDataSource(OPTIONS | {"INCLUDEHEADERS": "True"})
    assert made.schema().names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "priority", "headers",
    ]  # fmt: skip
    assert LannerDataSource.name() == "lanner"


@pytest.mark.usefixtures("log")
def test_a_read_is_planned_and_then_read_by_pickled_readers() -> None:
    reader = reader_for()
    (partition,) = reader.partitions()
    assert isinstance(partition, LannerPartition)
    assert partition.span == Span("orders", 0, 5, 9)
    again, its_partition = pickle.loads(pickle.dumps((reader, partition)))
    rows: list[Any] = [row for made in again.read(its_partition) for row in made.to_pylist()]
    assert [(row["offset"], row["value"], row["priority"]) for row in rows] == [
        (5, b"5", 9),
        (6, b"6", 9),
        (7, b"7", 0),
        (8, b"8", 0),
    ]


@pytest.mark.usefixtures("log")
def test_a_plan_with_nothing_to_read_gives_nothing() -> None:
    reader = reader_for(startingOffsets='{"orders": {"0": 9, "1": 0}}')
    assert list(reader.partitions()) == []
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.usefixtures("log")
def test_an_unknown_topic_is_an_error_when_the_read_is_planned() -> None:
    with pytest.raises(TopicNotFound):
        reader_for(subscribe="refunds").partitions()


def test_several_topics_are_named_with_commas() -> None:
    assert parse_options(OPTIONS | {"subscribe": "orders, refunds,orders"}).topics == ("orders", "refunds")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"servers": ""}, r"option servers: it is missing: say \.option\(\"servers\", \"localhost:7400\"\)"),
        ({"subscribe": " "}, "option subscribe: it is missing"),
        ({"subscribe": "orders,,x"}, "topic '' is not valid"),
        ({"subscribe": "a/b"}, "topic 'a/b' is not valid"),
        ({"includeHeaders": "maybe"}, "includeHeaders: it is 'maybe'; give true or false"),
        ({"startingOffset": "earliest"}, "startingoffset: there is no such option; there are servers, subscribe, sta"),
        ({"startingOffsets": "5"}, "startingOffsets: '5' does not map"),
        ({"endingOffsets": "earliest"}, "endingOffsets: a batch read cannot end at the earliest"),
    ],
)
def test_an_option_that_cannot_be_meant_is_named(options: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        LannerDataSource(OPTIONS | options).schema()


def test_other_columns_than_ours_are_refused() -> None:
    with pytest.raises(ValidationError, match="the columns of lanner are fixed"):
        LannerDataSource(OPTIONS).reader(StructType([StructField("value", StringType())]))


def test_spark_finds_the_source_by_the_name_of_its_module() -> None:
    import pyspark_lanner

    assert pyspark_lanner.DefaultSource is LannerDataSource
