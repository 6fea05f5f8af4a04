"""The streaming source as Spark calls it, with a log that needs no broker."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from lanner.spark import stream
from lanner.spark.offsets import Held, Span
from lanner.spark.source import LannerDataSource
from lanner.spark.stream import LannerStreamReader
from lanner.spark.tasks import LannerPartition


class MemoryLog:
    """One topic with one partition."""

    opened = 0

    def __init__(self, _: object) -> None:
        self.end_offset = 20

    def __enter__(self) -> MemoryLog:
        MemoryLog.opened += 1
        return self

    def close(self) -> None:
        MemoryLog.opened -= 1

    def held(self, names: list[str], *, missing_ok: bool = False) -> dict[str, dict[int, Held]]:
        return {name: {0: Held(0, self.end_offset, 7)} for name in names}

    def moments(self, *_: object) -> dict[Any, int]:
        return {}

    def reach(self, spans: list[tuple[Span, int]], _: int) -> list[Span]:
        return [span._replace(end_offset=span.start_offset + size // 10) for span, size in spans]

    def news(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "log_for", MemoryLog)


def reader_for(**options: str) -> LannerStreamReader:
    named = {"servers": "localhost:7400", "subscribe": "orders", "startingOffsets": "earliest"}
    source = LannerDataSource(named | options)
    return source.streamReader(source.schema())


def end_of(reader: LannerStreamReader, limit: ReadLimit) -> int:
    written = reader.latestOffset(reader.initialOffset(), limit)
    reader.stop()
    end: int = written["topics"]["orders"]["offsets"]["0"]
    return end


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "60"}, ReadMaxBytes(60)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "60", "maxOffsetsPerTrigger": "5"}, ReadMaxRows(5)),
    ],
)
def test_spark_is_told_the_limit_of_the_options(options: dict[str, str], limit: ReadLimit) -> None:
    assert reader_for(**options).getDefaultReadLimit() == limit


@pytest.mark.parametrize(
    ("options", "limit", "end"),
    [
        ({}, ReadAllAvailable(), 20),
        ({}, ReadMaxRows(4), 4),
        ({"maxOffsetsPerTrigger": "5"}, ReadMaxRows(4), 4),
        ({"maxOffsetsPerTrigger": "5"}, ReadAllAvailable(), 20),
        ({"maxBytesPerTrigger": "60"}, ReadMaxBytes(60), 6),
        ({"maxBytesPerTrigger": "60", "maxOffsetsPerTrigger": "9"}, ReadMaxRows(9), 6),
        ({"minOffsetsPerTrigger": "30"}, ReadMinRows(30), 0),
        ({"minOffsetsPerTrigger": "30"}, ReadAllAvailable(), 20),
    ],
)
def test_the_limit_that_spark_gives_is_kept(options: dict[str, str], limit: ReadLimit, end: int) -> None:
    assert end_of(reader_for(**options), limit) == end


def test_a_batch_is_planned_without_asking_anybody() -> None:
    reader = reader_for(minPartitions="2")
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.stop()
    fresh = reader_for(minPartitions="2")
    parts = fresh.partitions(start, end)
    assert [part.span for part in parts if isinstance(part, LannerPartition)] == [
        Span("orders", 0, 0, 10, 7),
        Span("orders", 0, 10, 20, 7),
    ]
    assert list(fresh.partitions(end, end)) == []
    assert MemoryLog.opened == 0


def test_a_reader_that_was_not_used_yet_is_pickled() -> None:
    again = pickle.loads(pickle.dumps(reader_for()))
    assert again.getDefaultReadLimit() == ReadAllAvailable()
    again.stop()


def test_the_latest_offset_is_reported_with_the_servers() -> None:
    reader = reader_for()
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(3))
    reported = reader.reportLatestOffset()
    reader.stop()
    assert reported is not None
    assert reported["servers"] == "localhost:7400"
    assert reported["topics"]["orders"]["offsets"] == {"0": 20}
    assert MemoryLog.opened == 0
