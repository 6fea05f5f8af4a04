"""A report's page shows its figures, loads nothing, and is whole."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner import limits
from lanner.errors import ValidationError
from lanner.spark.reports.figures import Figures, Report, assembled, check_window, good_window_ms
from lanner.spark.reports.page import page

START_MS = 1_767_268_800_000
SVG = "{http://www.w3.org/2000/svg}"


def figures(start: int | None, priority: int | None, messages: int, late: int | None = None) -> Figures:
    timed = messages if late is not None else 0
    most = None if late is None else 2 * late
    return Figures(start, priority, messages, 100 * messages, 90, 190, 200, timed, 0, late, most, most)


def report(late: int | None = None, source: str = "orders") -> Report:
    """Ten messages of priority 4 and two of 9 in the first minute, three of 9 in the third."""
    cells = [(0, 4, 10), (0, 9, 2), (2, 9, 3)]
    rows = [figures(START_MS + 60_000 * minute, priority, count, late) for minute, priority, count in cells]
    rows += [figures(START_MS + 60_000 * minute, None, count, late) for minute, count in ((0, 12), (2, 3))]
    rows += [figures(None, 4, 10, late), figures(None, 9, 5, late), figures(None, None, 15, late)]
    return assembled(source, START_MS + 500, START_MS + 150_000, 60_000, rows)


def plots(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)]


def test_windows_in_which_nothing_came_are_on_the_axis_and_the_figures_are_told_apart() -> None:
    made = report()
    assert list(made.starts) == [START_MS, START_MS + 60_000, START_MS + 120_000]
    assert [one.priority for one in made.by_priority] == [4, 9]
    assert (made.total.messages, len(made.by_window), len(made.cells)) == (15, 2, 3)
    assert made.as_json()["priorities"][1] == {"priority": 9, "messages": 5, "bytes": 500, "latency_ms": None}


def test_bars_stand_upon_each_other_and_are_as_high_as_their_rates() -> None:
    bars = plots(page(report()))[0].findall(f"{SVG}rect")
    assert [bar.findtext(f"{SVG}title", "") for bar in bars] == [
        "2026-01-01 12:00:00, priority 4: 0.167",
        "2026-01-01 12:00:00, priority 9: 0.033",
        "2026-01-01 12:02:00, priority 9: 0.05",
    ]
    lower, upper, later = [(float(bar.attrib["y"]), float(bar.attrib["height"])) for bar in bars]
    assert upper[0] + upper[1] == pytest.approx(lower[0], abs=0.02)
    assert lower[1] == pytest.approx(5 * upper[1], abs=0.1)
    assert later[0] + later[1] == pytest.approx(lower[0] + lower[1], abs=0.02)  # both stand on the axis


def test_a_line_is_broken_where_a_window_has_no_value() -> None:
    drawn = plots(page(report(late=40)))
    assert len(drawn) == 4
    assert [len(one.findall(f"{SVG}circle")) for one in drawn[2:]] == [4, 4]
    assert drawn[3].findall(f"{SVG}polyline") == []  # the first and the third window are no neighbours
    assert "Of 15 messages that carry their producer's time" in page(report(late=40))


def test_without_times_of_producers_the_page_says_so_and_shows_no_latency() -> None:
    text = page(report())
    assert len(plots(text)) == 3
    assert "no producer sent its time" in text


def test_a_page_needs_nothing_from_elsewhere_and_takes_nothing_for_markup() -> None:
    text = page(report(late=1, source="<script>alert(1)</script>"))
    assert "<script" not in text
    assert re.findall(r"(?:src|href|url|@import)\b", text) == []
    assert set(re.findall(r"https?://[^\"']*", text)) == {"http://www.w3.org/2000/svg"}
    assert text.count("<tr>") == 4  # names, two priorities, all


def test_a_window_is_chosen_by_the_time_that_is_covered_and_too_many_are_refused() -> None:
    assert good_window_ms(0, 0) == 1_000
    assert good_window_ms(0, 3_600_000) == 60_000
    for days in (1, 30, 400, 10_000):
        assert days * 86_400_000 // good_window_ms(0, days * 86_400_000) <= 120
    assert check_window(1_000, 0, 1_000 * limits.REPORT_WINDOWS_MAX - 1) == 1_000
    with pytest.raises(ValidationError, match="choose larger ones"):
        check_window(1_000, 0, 1_000 * limits.REPORT_WINDOWS_MAX)
    with pytest.raises(ValidationError):
        check_window(0, 0, 1)
