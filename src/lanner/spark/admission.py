"""How much of a backlog the next batch takes: limits, shared among partitions by how much each has waiting.

Pure: spans in, shorter spans out. A limit is never exceeded; and while it is at least as large as the number of
partitions with a backlog, each of them moves on, so that a small one does not wait behind a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lanner.spark.offsets import Span


def backlog(spans: Sequence[Span]) -> int:
    return sum(span.end_offset - span.start_offset for span in spans)


def prorated(spans: Sequence[Span], rows_max: int) -> list[Span]:
    """The first rows of each span, in proportion to its length, together at most so many."""
    lengths = [span.end_offset - span.start_offset for span in spans]
    if sum(lengths) <= rows_max:
        return list(spans)
    shares = apportioned(lengths, rows_max)
    return [
        span._replace(end_offset=span.start_offset + share) for span, share in zip(spans, shares, strict=True) if share
    ]


def shares(spans: Sequence[Span], amount: int) -> list[tuple[Span, int]]:
    """Each span with its share of an amount (of bytes), in proportion to its length; never nothing."""
    whole = max(1, backlog(spans))
    return [(span, max(1, amount * (span.end_offset - span.start_offset) // whole)) for span in spans]


def apportioned(lengths: Sequence[int], total: int) -> list[int]:
    """Whole numbers in proportion to the lengths, none longer than its length, that sum up to the total or less.

    One each as far as that goes, the longest first; the rest by proportion, what is left over to the largest
    remainders.
    """
    order = sorted(range(len(lengths)), key=lambda at: -lengths[at])
    shares = [0] * len(lengths)
    for at in order[:total]:
        shares[at] = min(1, lengths[at])
    rest = total - sum(shares)
    waiting = [length - share for length, share in zip(lengths, shares, strict=True)]
    whole = sum(waiting)
    if rest <= 0 or whole <= 0:
        return shares
    if whole <= rest:
        return list(lengths)
    for at, length in enumerate(waiting):
        shares[at] += rest * length // whole
    left = total - sum(shares)
    by_remainder = sorted(range(len(lengths)), key=lambda at: -(rest * waiting[at] % whole))
    for at in by_remainder[:left]:
        shares[at] += 1
    return shares


def divided(spans: Sequence[Span], tasks_min: int) -> list[Span]:
    """The same offsets as at least so many tasks, as far as there are enough: long spans are cut in equal parts."""
    if not spans or len(spans) >= tasks_min:
        return list(spans)
    lengths = [span.end_offset - span.start_offset for span in spans]
    parts = []
    for span, length, count in zip(spans, lengths, apportioned(lengths, tasks_min), strict=True):
        cuts = [span.start_offset + length * number // count for number in range(count + 1)]
        parts += [span._replace(start_offset=first, end_offset=last) for first, last in pairwise(cuts)]
    return parts


class Patience:
    """Waits until a minimum has gathered, but not for longer than a while since the last batch."""

    def __init__(self, rows_min: int, delay_ms_max: int) -> None:
        self._rows_min = rows_min
        self._delay_ms_max = delay_ms_max
        self._since_ms: float | None = None

    def is_enough(self, rows: int, now_ms: float) -> bool:
        """Whether to begin a batch of so many rows now. Time runs from the first question, then from each batch."""
        if self._since_ms is None:
            self._since_ms = now_ms
        if not rows:
            return False
        if rows < self._rows_min and now_ms - self._since_ms < self._delay_ms_max:
            return False
        self._since_ms = now_ms
        return True
