"""Plots as SVG: stacked bars by priority, and lines, both over time.

Pure: numbers in, text out. Colours of text, axes and background are the page's own (CSS variables), so that a plot is
legible on a light and on a dark page. Whatever a bar or a point stands for is in its <title>, which browsers show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from lanner.spark.reports.axes import Scale, moment_text, time_ticks

WIDTH: Final = 960
HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 16, 14, 34
_DOT_WINDOWS: Final = 80  # with more windows, dots on a line would touch
COLOURS: Final = (
    "#5b6b95", "#3f7fb5", "#2f9bb8", "#27a58b", "#57a85a", "#94a63a", "#c4962c", "#db7c2b", "#d9573a", "#c2334f",
)  # fmt: skip  # from the least to the most urgent


class Line(NamedTuple):
    """Points over time; None where there is nothing to show."""

    name: str
    colour: str
    values: Sequence[float | None]
    dashed: bool = False


class _Frame:
    """Where things are in a plot, and what is drawn around them."""

    def __init__(self, starts: range, highest: float, scale: Scale, title: str) -> None:
        self.starts = starts
        self._first, self._last = starts[0], starts[-1] + starts.step
        self._ticks = scale.ticks(highest)
        self._scale = scale
        self._title = title

    @property
    def step(self) -> float:
        return (WIDTH - _LEFT - _RIGHT) * self.starts.step / (self._last - self._first)

    def x(self, time_ms: int) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (time_ms - self._first) / (self._last - self._first)

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / self._ticks[-1]

    def when(self, start_ms: int) -> str:
        return moment_text(start_ms, self._last - self._first, with_day=True)

    def drawn(self, inner: Sequence[str]) -> str:
        lines = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self._title)}" '
            'xmlns="http://www.w3.org/2000/svg">'
        ]
        for tick in self._ticks:
            y = self.y(tick)
            lines.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            lines.append(
                f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{self._scale.text(tick)}</text>'
            )
        span = self._last - self._first
        for time_ms in time_ticks(self._first, self._last):
            x = self.x(time_ms)
            text = escape(moment_text(time_ms, span))
            anchor = "end" if x > WIDTH - _RIGHT - 20 else "middle"
            lines.append(
                f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{self.y(0):.1f}" y2="{self.y(0) + 5:.1f}"/>'
            )
            lines.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="{anchor}">{text}</text>')
        lines += inner
        y = self.y(0)
        lines.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        return "\n".join([*lines, "</svg>"])


def stacked_bars(starts: range, values: Mapping[int, Mapping[int, float]], scale: Scale, title: str) -> str:
    """For each window the values of the priorities, one upon the other, the most urgent on top."""
    highest = max((sum(found.values()) for found in values.values()), default=0.0)
    frame = _Frame(starts, highest, scale, title)
    width = max(0.4, frame.step - (1 if frame.step > 4 else 0))
    drawn = []
    for start_ms in starts:
        below = 0.0
        for priority, value in sorted(values.get(start_ms, {}).items()):
            top, bottom = frame.y(below + value), frame.y(below)
            below += value
            drawn.append(
                f'<rect x="{frame.x(start_ms):.2f}" y="{top:.2f}" width="{width:.2f}" height="{bottom - top:.2f}" '
                f'fill="{COLOURS[priority]}"><title>{frame.when(start_ms)}, priority {priority}: {scale.text(value)}'
                "</title></rect>"
            )
    return frame.drawn(drawn)


def lines(starts: range, given: Sequence[Line], scale: Scale, title: str) -> str:
    """Lines through the middle of each window, broken where a window has no value."""
    highest = max((value for line in given for value in line.values if value is not None), default=0.0)
    frame = _Frame(starts, highest, scale, title)
    drawn = []
    for line in given:
        points = [
            None if value is None else (frame.x(start_ms) + frame.step / 2, frame.y(max(0.0, value)))
            for start_ms, value in zip(starts, line.values, strict=True)
        ]
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        for run in _runs(points):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            drawn.append(
                f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2" '
                f'stroke-linejoin="round"{dash}/>'
            )
        few = len(starts) <= _DOT_WINDOWS
        for start_ms, point, value in zip(starts, points, line.values, strict=True):
            if point is not None and value is not None:
                radius = 2.5 if few else 1.2
                text = f"{frame.when(start_ms)}, {line.name}: {scale.text(value)}"
                drawn.append(
                    f'<circle cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="{radius}" fill="{line.colour}">'
                    f"<title>{escape(text)}</title></circle>"
                )
    return frame.drawn(drawn)


def _runs(points: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    """Neighbours that are all there, two or more of them."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if len(run) > 1]
