"""The data source as Spark calls it, with a log that needs no broker."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any, Self

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.datasource import EqualTo, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from lanner import batch
from lanner.errors import OffsetOutOfRange, TopicNotFound, ValidationError
from lanner.spark import source, tasks
from lanner.spark.columns import StoredBatch, arrow_schema
from lanner.spark.log import Missing
from lanner.spark.offsets import Held, Span
from lanner.spark.options import ReadOptions, parse_options
from lanner.spark.source import LannerDataSource
from lanner.spark.tasks import LannerPartition

OPTIONS = {"servers": "localhost:7400", "subscribe": "orders"}


class FakeLog:
    """Two partitions of one topic: the second is empty."""

    opened = 0
    how: tuple[Any, ...] = ()
    hole: Missing | None = None

    def __init__(self, options: ReadOptions) -> None:
        assert options.servers == "localhost:7400"

    def __enter__(self) -> Self:
        FakeLog.opened += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        FakeLog.opened -= 1

    def moments(self, *_: object) -> dict[Any, Any]:
        return {}

    def held(self, topics: list[str]) -> dict[str, dict[int, Held]]:
        if topics != ["orders"]:
            raise TopicNotFound()
        return {"orders": {0: Held(5, 9), 1: Held(0, 0)}}

    def batches(self, span: Span, missing: Any, *how: Any) -> Iterator[StoredBatch]:
        FakeLog.how = how
        if self.hole is not None:
            missing(self.hole)
        yield StoredBatch(4, 1_000, batch.encode([b"4", b"5", b"6"], priority=9))
        yield StoredBatch(7, 1_000, batch.encode([b"7", b"8"], priority=0))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeLog]]:
    for module in (source, tasks):
        monkeypatch.setattr(module, "log_for", FakeLog)
    yield FakeLog
    while tasks._kept:
        tasks._kept.popitem()[1].close()
    assert FakeLog.opened == 0


def reader_for(**options: str) -> source.LannerReader:
    made = LannerDataSource(OPTIONS | options)
    return made.reader(made.schema())


@pytest.mark.parametrize("include_metadata", [False, True])
@pytest.mark.parametrize("include_headers", [False, True])
def test_the_two_schemas_are_one(include_headers: bool, include_metadata: bool) -> None:
    """Spark compares the first record batch with what it derives from its own schema."""
    derived = to_arrow_schema(source.schema(include_headers, include_metadata), timezone="UTC")
    assert derived.equals(arrow_schema(include_headers, include_metadata))


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


def test_a_connection_is_kept_for_the_next_task_and_closed_after_an_error(log: type[FakeLog]) -> None:
    task = LannerPartition(Span("orders", 0, 5, 9))
    for _ in range(2):
        assert list(reader_for().read(task))
        assert log.opened == 1
    given_up = reader_for().read(task)
    next(given_up)
    given_up.close()  # type: ignore[attr-defined]
    assert log.opened == 0


def test_priorities_and_followers_reach_the_log(log: type[FakeLog]) -> None:
    list(reader_for(priorities="1", fromFollowers="true").read(LannerPartition(Span("orders", 0, 5, 9))))
    assert log.how == (2, True)


@pytest.mark.parametrize(
    ("reason", "overtaken", "strict", "lost"),
    [
        ("retention", False, True, True),
        ("retention", True, False, True),
        ("retention", False, False, False),  # a batch read takes what there was
        ("damaged", False, False, True),
    ],
)
def test_a_hole_is_an_error_or_is_passed_by(
    log: type[FakeLog], monkeypatch: pytest.MonkeyPatch, reason: str, overtaken: bool, strict: bool, lost: bool
) -> None:
    task = LannerPartition(Span("orders", 0, 5, 9))
    monkeypatch.setattr(FakeLog, "hole", Missing(task.span, 5, 7, reason, overtaken))
    options = parse_options(OPTIONS)
    if lost:
        with pytest.raises(OffsetOutOfRange, match="orders/0: offsets 5 to 6 cannot be read"):
            list(tasks.read_span(options, task, strict=strict))
    else:
        assert list(tasks.read_span(options, task, strict=strict))
    assert list(tasks.read_span(options._replace(fail_on_data_loss=False), task, strict=strict))


@pytest.mark.usefixtures("log")
def test_a_batch_read_is_cut_into_tasks_and_has_the_columns_asked_for() -> None:
    reader = reader_for(minPartitions="3", includeMetadata="true", includeHeaders="true")
    spans = [task.span for task in reader.partitions() if isinstance(task, LannerPartition)]
    assert [(span.start_offset, span.end_offset) for span in spans] == [(5, 6), (6, 7), (7, 9)]
    (made,) = reader.read(LannerPartition(spans[0]))
    assert made.schema.equals(arrow_schema(True, True))


def test_a_filter_on_priorities_reaches_the_log(log: type[FakeLog]) -> None:
    reader = source.FilteringReader(parse_options(OPTIONS, "batch"))
    reader.pushFilters([EqualTo(("priority",), 3)])
    (task,) = reader.partitions()
    list(reader.read(task))
    assert log.how == (1 << 3, False)


@pytest.mark.usefixtures("log")
def test_filters_are_taken_only_where_spark_pushes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(reader_for()) is source.LannerReader
    monkeypatch.setitem(sys.modules, "pyspark.sql.worker.data_source_pushdown_filters", sys)
    reader = reader_for()
    assert isinstance(reader, source.FilteringReader)
    asked = [EqualTo(("partition",), 1)]
    assert list(reader.pushFilters(list(asked))) == asked  # Spark applies them still
    assert list(reader.partitions()) == []  # partition 1 is empty
    assert type(reader_for(deadLettersOf="w")) is source.LannerReader  # there an offset is no number


@pytest.mark.usefixtures("log")
def test_a_plan_with_nothing_to_read_gives_nothing() -> None:
    reader = reader_for(startingOffsets='{"orders": {"0": 9, "1": 0}}')
    assert list(reader.partitions()) == []
    assert list(reader.read(InputPartition(None))) == []


@pytest.mark.usefixtures("log")
def test_an_unknown_topic_is_an_error_when_the_read_is_planned() -> None:
    with pytest.raises(TopicNotFound):
        reader_for(subscribe="refunds").partitions()


def test_other_columns_than_ours_are_refused() -> None:
    with pytest.raises(ValidationError, match="the columns of lanner are fixed"):
        LannerDataSource(OPTIONS).reader(StructType([StructField("value", StringType())]))


def test_spark_finds_the_source_by_the_name_of_its_module() -> None:
    import pyspark_lanner

    assert pyspark_lanner.DefaultSource is LannerDataSource
