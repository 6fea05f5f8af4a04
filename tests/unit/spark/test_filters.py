"""What a query's filters spare a read, and what they must not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from lanner.spark.filters import Narrowing
from lanner.spark.offsets import Span

SPANS = [Span("orders", partition, 10, 20) for partition in range(4)]
MOMENT = datetime(2026, 1, 2, tzinfo=UTC)
MOMENT_MS = int(MOMENT.timestamp()) * 1_000


def left(*filters: Filter, at: dict[Any, int] | None = None) -> list[tuple[int, int, int]]:
    return [tuple(span[1:4]) for span in Narrowing().by(filters).spans(SPANS, at or {})]


def test_partitions_and_offsets_are_narrowed() -> None:
    partition, offset = ("partition",), ("offset",)
    assert left(EqualTo(partition, 2)) == [(2, 10, 20)]
    assert left(In(partition, (1, 2)), GreaterThan(partition, 1)) == [(2, 10, 20)]
    assert left(EqualTo(partition, 0), GreaterThanOrEqual(offset, 12), LessThan(offset, 15)) == [(0, 12, 15)]
    assert left(EqualTo(partition, 0), GreaterThan(offset, 12), LessThanOrEqual(offset, 15)) == [(0, 13, 16)]
    assert left(EqualTo(offset, 99)) == []
    assert left(LessThan(partition, 0)) == []


def test_what_is_not_understood_narrows_nothing() -> None:
    whole = [tuple(span[1:4]) for span in SPANS]
    for one in (
        IsNotNull(("offset",)),
        Not(EqualTo(("partition",), 2)),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "x"),
        EqualTo(("offset",), None),
        In(("offset",), (1, None)),
        GreaterThan(("timestamp",), datetime(2026, 1, 2)),
    ):
        assert left(one) == whole


def test_times_become_offsets() -> None:
    late = Narrowing().by([GreaterThanOrEqual(("timestamp",), MOMENT)])
    assert [bound.everywhere for bound in late.times()] == [MOMENT_MS]
    at = {("orders", 1, MOMENT_MS): 14}
    assert [tuple(span[1:4]) for span in late.spans(SPANS, at)] == [(1, 14, 20)]  # elsewhere nothing is as late
    early = Narrowing().by([LessThan(("timestamp",), MOMENT)])
    assert [tuple(span[1:4]) for span in early.spans(SPANS[:2], at)] == [(0, 10, 20), (1, 10, 14)]


@pytest.mark.parametrize(
    ("kind", "later_us", "expected_ms"),
    [
        (GreaterThanOrEqual, 0, MOMENT_MS),
        (GreaterThanOrEqual, 1, MOMENT_MS + 1),
        (GreaterThan, 0, MOMENT_MS + 1),
        (LessThan, 0, MOMENT_MS),
        (LessThan, 1, MOMENT_MS + 1),
        (LessThanOrEqual, 0, MOMENT_MS + 1),
        (LessThanOrEqual, 999, MOMENT_MS + 1),
    ],
)
def test_a_time_within_a_millisecond_leaves_nothing_out(kind: Any, later_us: int, expected_ms: int) -> None:
    narrowing = Narrowing().by([kind(("timestamp",), MOMENT + timedelta(microseconds=later_us))])
    assert [bound.everywhere for bound in narrowing.times()] == [expected_ms]


def test_priorities_become_lanes() -> None:
    assert Narrowing().lanes(0) == 0
    assert Narrowing().by([GreaterThan(("priority",), 7)]).lanes(0) == 0b11_0000_0000
    assert Narrowing().by([GreaterThan(("priority",), 7)]).lanes(1 << 8 | 1) == 1 << 8
    assert Narrowing().by([EqualTo(("priority",), 3)]).lanes(1 << 8) is None
    assert Narrowing().by([EqualTo(("priority",), 30)]).lanes(0) is None
