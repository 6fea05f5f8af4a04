"""The streaming source as Spark calls it, with a log that needs no broker."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

from lanner.errors import ValidationError
from lanner.spark import stream
from lanner.spark.offsets import Held, Span
from lanner.spark.planner import SHARED_WAIT_MS, WAIT_MS
from lanner.spark.source import LannerDataSource
from lanner.spark.stream import LannerStreamReader
from lanner.spark.tasks import LannerPartition


class MemoryLog:
    """One topic with one partition."""

    opened = 0
    waits_ms: ClassVar[list[int]] = []

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

    def news(self, _: object, wait_ms: int, lanes: int) -> None:
        MemoryLog.waits_ms.append(wait_ms)


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


def test_an_idle_source_waits_shortly_once_batches_of_others_are_committed() -> None:
    reader = reader_for()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    MemoryLog.waits_ms.clear()
    for committed in (start, end):
        reader.commit(committed)
        reader.latestOffset(end, ReadAllAvailable())
    assert MemoryLog.waits_ms == [WAIT_MS] * 2
    reader.commit(end)  # with a batch that this source had nothing for
    reader.latestOffset(end, ReadAllAvailable())
    reader.latestOffset(end, ReadAllAvailable())
    reader.stop()
    assert MemoryLog.waits_ms == [WAIT_MS, WAIT_MS, SHARED_WAIT_MS]


def test_what_only_a_stream_refuses_is_raised_by_its_first_call() -> None:
    """Raised by `streamReader`, it would be followed by an UnboundLocalError of Spark's own."""
    for reader in (made := reader_for(endingOffsets="latest"), pickle.loads(pickle.dumps(made))):
        for call in (reader.getDefaultReadLimit, reader.initialOffset, reader.prepareForTriggerAvailableNow):
            with pytest.raises(ValidationError, match="endingOffsets"):
                call()
        reader.stop()


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
