"""What a query's WHERE spares a batch read: partitions, offsets, times and priorities that it would throw away.

Pure but for Spark's filter classes. A filter only narrows what is read; Spark still applies it to the rows, so one
that is not understood here costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from lanner.limits import OFFSET_MAX, TIME_MS_MAX
from lanner.model import LANES
from lanner.spark.offsets import Bound, Moments, Span

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_COLUMNS: Final[Mapping[str, int]] = {
    "partition": OFFSET_MAX,
    "offset": OFFSET_MAX,
    "timestamp": TIME_MS_MAX * 1_000,
    "priority": LANES - 1,
}


class Range(NamedTuple):
    """Whole numbers from `first` to, not including, `end`."""

    first: int
    end: int

    def __and__(self, other: Range) -> Range:
        return Range(max(self.first, other.first), min(self.end, other.end))


class Narrowing(NamedTuple):
    """What is left to read. Times are microseconds, as Spark compares them."""

    partition: Range = Range(0, OFFSET_MAX)
    offset: Range = Range(0, OFFSET_MAX)
    timestamp: Range = Range(0, TIME_MS_MAX * 1_000)
    priority: Range = Range(0, LANES)

    def by(self, filters: Iterable[Filter]) -> Narrowing:
        """Narrowed further by these, as far as they are understood."""
        found = self
        for one in filters:
            column, limits = _limits(one)
            if limits is not None:
                found = found._replace(**{column: getattr(found, column) & limits})
        return found

    def times(self) -> list[Bound]:
        """The moments whose offsets must be known: the first wanted, and the first not wanted any more."""
        bounds = []
        if self.timestamp.first > 0:
            bounds.append(Bound("timestamp", self._first_ms, {}, True))
        if self.timestamp.end < TIME_MS_MAX * 1_000:
            bounds.append(Bound("timestamp", self._end_ms, {}, True))
        return bounds

    @property
    def _first_ms(self) -> int:
        return -(-self.timestamp.first // 1_000)

    @property
    def _end_ms(self) -> int:
        return max(0, -(-self.timestamp.end // 1_000))

    def lanes(self, chosen: int) -> int | None:
        """Of the lanes chosen (0: all) those wanted, as bits; None: not one."""
        wanted = sum(1 << lane for lane in range(self.priority.first, self.priority.end))
        if chosen:
            wanted &= chosen
        if not wanted:
            return None
        return 0 if wanted == (1 << LANES) - 1 else wanted

    def spans(self, spans: Sequence[Span], at: Moments) -> list[Span]:
        """These spans without what lies outside; `at` knows the first offset at or after each of `times`."""
        found = []
        for span in spans:
            if not self.partition.first <= span.partition < self.partition.end:
                continue
            wanted = Range(span.start_offset, span.end_offset) & self.offset
            if self.timestamp.first > 0:
                first = at.get((span.topic, span.partition, self._first_ms), span.end_offset)
                wanted &= Range(first, span.end_offset)
            if self.timestamp.end < TIME_MS_MAX * 1_000:
                end = at.get((span.topic, span.partition, self._end_ms), span.end_offset)
                wanted &= Range(span.start_offset, end)
            if wanted.first < wanted.end:
                found.append(span._replace(start_offset=wanted.first, end_offset=wanted.end))
        return found


def _limits(one: Filter) -> tuple[str, Range | None]:
    """The column a filter is about, and the range outside of which nothing passes it; None: nobody knows."""
    path: tuple[str, ...] = getattr(one, "attribute", ())
    column = path[0] if len(path) == 1 else ""
    if column not in _COLUMNS:
        return column, None
    above = _COLUMNS[column] + 1
    values = [_whole(column, value) for value in (one.value if isinstance(one, In) else [getattr(one, "value", None)])]
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) != len(values):
        return column, None
    low, high = min(numbers), max(numbers)
    if isinstance(one, EqualTo | In):
        return column, Range(low, high + 1)
    if isinstance(one, GreaterThan):
        return column, Range(low + 1, above)
    if isinstance(one, GreaterThanOrEqual):
        return column, Range(low, above)
    if isinstance(one, LessThan):
        return column, Range(0, high)
    if isinstance(one, LessThanOrEqual):
        return column, Range(0, high + 1)
    return column, None


def _whole(column: str, value: Any) -> int | None:
    if column == "timestamp":
        return (value - _EPOCH) // _MICROSECOND if isinstance(value, datetime) and value.tzinfo is not None else None
    return value if type(value) is int else None
