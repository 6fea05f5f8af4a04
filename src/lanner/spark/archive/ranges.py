"""Sets of offsets as ranges: pairs (start, end) that hold start, start + 1, … up to, not including, end.

Pure. What every function here returns is *tidy*: in order, and none is empty, overlaps or touches another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Every offset that is in any of them."""
    tidy: list[Range] = []
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if tidy and start <= tidy[-1][1]:
            tidy[-1] = (tidy[-1][0], max(end, tidy[-1][1]))
        else:
            tidy.append((start, end))
    return tidy


def doubled(ranges: Iterable[Range]) -> list[Range]:
    """Every offset that is in more than one of them."""
    twice: list[Range] = []
    reached: int | None = None
    for start, end in sorted(ranges):
        if start >= end:
            continue
        if reached is not None and start < reached:
            twice.append((start, min(end, reached)))
        reached = end if reached is None else max(reached, end)
    return joined(twice)


def without(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """Every offset of the first that is not in the second."""
    left: list[Range] = []
    away = joined(taken)
    first = 0  # everything in `away` before this one lies below what is looked at
    for start, end in joined(ranges):
        while first < len(away) and away[first][1] <= start:
            first += 1
        for low, high in away[first:]:
            if low >= end:
                break
            if start < low:
                left.append((start, low))
            start = max(start, high)
        if start < end:
            left.append((start, end))
    return left


def within(ranges: Iterable[Range], start: int, end: int) -> list[Range]:
    """Every offset of them from start up to, not including, end."""
    return joined((max(low, start), min(high, end)) for low, high in ranges)


def both(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """Every offset that is in the first and in the second."""
    tidy = joined(ranges)
    return without(tidy, without(tidy, others))


def count(ranges: Iterable[Range]) -> int:
    """How many offsets a tidy list holds."""
    return sum(end - start for start, end in ranges)


def shown(ranges: Iterable[Range], most: int = 8) -> str:
    """For people: 17, 40-99 and 3 more."""
    listed = list(ranges)
    words = [str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in listed[:most]]
    return ", ".join(words) + (f" and {len(listed) - most} more" if len(listed) > most else "")
