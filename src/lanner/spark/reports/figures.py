"""The figures of a report: how many messages, how large, how late, for each window of time and each priority.

Pure. A window is named by the millisecond at which it begins. `None` as a window or as a priority stands for all of
them: percentiles cannot be added up, so those of a whole are figures of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from lanner import limits
from lanner.errors import ValidationError

WINDOWS_MS: Final = tuple(
    seconds * 1_000
    for seconds in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 604_800)
)  # what suits, when none is asked for
_WINDOWS_GOOD: Final = 120


class Figures(NamedTuple):
    """What one priority carried in one window."""

    start_ms: int | None
    priority: int | None
    messages: int
    bytes: int  # of values
    size_p50: int
    size_p99: int
    size_max: int
    timed: int  # of them with a time of their producer; what follows is about these
    ahead: int  # of these: with a time after their append, by a clock that is ahead
    latency_ms_p50: int | None
    latency_ms_p99: int | None
    latency_ms_max: int | None


class Report(NamedTuple):
    """Everything that a report tells."""

    source: str  # a topic, or a topic of an archive, in words
    first_ms: int  # the first append
    last_ms: int
    window_ms: int
    total: Figures
    by_priority: list[Figures]
    by_window: list[Figures]
    cells: list[Figures]  # by window and priority; none where there was nothing

    @property
    def starts(self) -> range:
        """Every window, also those in which nothing came."""
        first = self.first_ms // self.window_ms * self.window_ms
        return range(first, self.last_ms + 1, self.window_ms)

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "first_ms": self.first_ms,
            "last_ms": self.last_ms,
            "window_ms": self.window_ms,
            "windows": len(self.starts),
            "messages": self.total.messages,
            "bytes": self.total.bytes,
            "timed": self.total.timed,
            "latency_ms": _latency(self.total),
            "priorities": [
                {"priority": one.priority, "messages": one.messages, "bytes": one.bytes, "latency_ms": _latency(one)}
                for one in self.by_priority
            ],
        }


def _latency(one: Figures) -> dict[str, int | None] | None:
    if not one.timed:
        return None
    return {"p50": one.latency_ms_p50, "p99": one.latency_ms_p99, "max": one.latency_ms_max}


def good_window_ms(first_ms: int, last_ms: int) -> int:
    """The smallest of the usual windows that divides this time into not too many."""
    for window_ms in WINDOWS_MS:
        if (last_ms - first_ms) // window_ms < _WINDOWS_GOOD:
            return window_ms
    return WINDOWS_MS[-1] * -(-(last_ms - first_ms + 1) // (WINDOWS_MS[-1] * _WINDOWS_GOOD))


def check_window(window_ms: int, first_ms: int, last_ms: int) -> int:
    """The window, when it does not make more of them than a page can show."""
    count = (last_ms - first_ms) // max(1, window_ms) + 1
    if window_ms < 1 or count > limits.REPORT_WINDOWS_MAX:
        raise ValidationError(
            f"{count:,} windows are more than a page can show ({limits.REPORT_WINDOWS_MAX:,}): choose larger ones, or "
            "leave --window away",
            field="window",
        )
    return window_ms


def assembled(source: str, first_ms: int, last_ms: int, window_ms: int, rows: Iterable[Figures]) -> Report:
    """A report from its figures, in whatever order they come."""
    found = sorted(rows, key=lambda one: (one.start_ms or 0, one.priority or 0))
    (total,) = [one for one in found if one.start_ms is None and one.priority is None]
    return Report(
        source,
        first_ms,
        last_ms,
        window_ms,
        total,
        [one for one in found if one.start_ms is None and one.priority is not None],
        [one for one in found if one.start_ms is not None and one.priority is None],
        [one for one in found if one.start_ms is not None and one.priority is not None],
    )
