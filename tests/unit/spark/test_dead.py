"""Dead letters as rows: which numbers, which messages, and how they died."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow
from pyspark.sql.pandas.types import to_arrow_schema

from lanner import batch
from lanner.spark.columns import arrow_schema
from lanner.spark.dead import FIELDS, DeadGatherer
from lanner.spark.source import schema
from lanner.wire.dead import DeadBatch, DeadRun

WHOLE = batch.encode([b"%d" % number for number in range(10)], keys=[b"k"] * 10)


def letters(*positions: int) -> bytes:
    return batch.extract(WHOLE, list(positions))


def rows(start: int, end: int) -> list[dict[str, Any]]:
    """Of offsets 102, 103 (numbers 5, 6) and 107, 108, 109 (numbers 9, 10, 11)."""
    runs = [DeadRun(5, 102, 2, 3, "poison", 1_000), DeadRun(9, 107, 3, 1, "expired", 2_000)]
    data = letters(2, 3, 7, 8, 9)
    gatherer = DeadGatherer("orders", 1)
    gatherer.add_letters(DeadBatch(100, 500, 8, len(data), runs), memoryview(data), start, end)
    made = gatherer.take()
    if made is None:
        return []
    made.validate(full=True)
    assert made.schema.equals(to_arrow_schema(schema(False, False, True), timezone="UTC"))
    found: list[dict[str, Any]] = made.to_pylist()
    return found


@pytest.mark.parametrize(
    ("start", "end", "numbers", "offsets"),
    [
        (0, 100, [5, 6, 9, 10, 11], [102, 103, 107, 108, 109]),
        (6, 10, [6, 9], [103, 107]),
        (5, 6, [5], [102]),
        (10, 11, [10], [108]),
        (7, 9, [], []),
        (12, 99, [], []),
    ],
)
def test_the_letters_of_a_span_are_taken(start: int, end: int, numbers: list[int], offsets: list[int]) -> None:
    found = rows(start, end)
    assert [row["number"] for row in found] == numbers
    assert [row["offset"] for row in found] == offsets
    assert [row["value"] for row in found] == [b"%d" % (offset - 100) for offset in offsets]


def test_how_they_died_is_told() -> None:
    assert [(row["attempts"], row["reason"], row["died_at"]) for row in rows(6, 10)] == [
        (3, "poison", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (1, "expired", datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)),
    ]


def test_letters_whose_bytes_are_gone_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    gatherer = DeadGatherer("orders", 1)
    gatherer.add_letters(DeadBatch(100, 500, 8, 0, [DeadRun(5, 102, 2, 3, "x", 1)]), memoryview(b""), 0, 9)
    assert gatherer.take() is None
    assert "from offset 102 on cannot be read" in caplog.text


def test_their_columns_come_last() -> None:
    expected = pyarrow.schema([*arrow_schema(True, True), *FIELDS])
    assert to_arrow_schema(schema(True, True, True), timezone="UTC").equals(expected)
