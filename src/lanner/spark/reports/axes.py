"""Axes of a plot: round numbers that people read easily, and moments that fit the length of time.

Pure.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final, NamedTuple

_STEPS_MS: Final = tuple(
    seconds * 1_000
    for seconds in (
        *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200),
        *(86_400, 172_800, 604_800, 1_209_600, 2_419_200, 7_257_600, 31_536_000),
    )
)
_DAY_MS: Final = 86_400_000
_MINUTE_MS: Final = 60_000


def round_ticks(highest: float, about: int = 5) -> list[float]:
    """0 and some round numbers above it, the last at least as high as the highest value."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999999)
    return [number * step for number in range(math.ceil(highest / step - 1e-9) + 1)]


def time_ticks(first_ms: int, last_ms: int, about: int = 7) -> list[int]:
    """Round moments (UTC) within a length of time."""
    span = max(1, last_ms - first_ms)
    step = next((one for one in _STEPS_MS if span / one <= about), _STEPS_MS[-1])
    first = -(-first_ms // step) * step
    return list(range(first, last_ms + 1, step))


def moment_text(time_ms: int, span_ms: int, *, with_day: bool = False) -> str:
    """A moment as short as the length of time that it stands in allows."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    if span_ms > 7 * _DAY_MS:
        return f"{moment:%Y-%m-%d}"
    clock = f"{moment:%H:%M:%S}" if span_ms < 10 * _MINUTE_MS else f"{moment:%H:%M}"
    return f"{moment:%Y-%m-%d} {clock}" if with_day else f"{moment:%d %b} {clock}" if span_ms >= _DAY_MS else clock


class Scale(NamedTuple):
    """The units in which a kind of value is written, the largest first, and the smallest one's name."""

    units: tuple[tuple[float, str], ...]
    smallest: str = ""

    def text(self, value: float) -> str:
        """In about three digits: 950, 1.23k, 35M; 2 KiB; 1.5 s."""
        for size, unit in self.units:
            if abs(value) >= size:
                return f"{_short(value / size)}{unit}"
        return f"{_short(value)}{self.smallest}"

    def ticks(self, highest: float) -> list[float]:
        """Ticks that are round in the unit in which the highest is written."""
        size = next((size for size, _ in self.units if highest >= size), 1.0)
        return [size * tick for tick in round_ticks(highest / size)]


NUMBERS: Final = Scale(((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")))
BYTES: Final = Scale(((1 << 40, " TiB"), (1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB")), " B")
MILLISECONDS: Final = Scale(((86_400_000, " d"), (3_600_000, " h"), (60_000, " min"), (1_000, " s")), " ms")


def duration_text(span_ms: int) -> str:
    """A length of time in its largest whole unit: 5 minutes, 1 second."""
    for size, unit in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second")):
        if span_ms % size == 0:
            count = span_ms // size
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{span_ms} milliseconds"


def _short(value: float) -> str:
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 3)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
