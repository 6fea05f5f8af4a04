"""The page of a report: one HTML file with everything inside, which loads nothing and runs nothing.

Pure: a report in, text out.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Final

from lanner.model import PRIORITY_NAMES
from lanner.spark.reports.axes import BYTES, MILLISECONDS, NUMBERS, Scale, duration_text, moment_text
from lanner.spark.reports.figures import Figures, Report
from lanner.spark.reports.plots import COLOURS, Line, lines, stacked_bars

_HALF, _MOST = "#3f7fb5", "#d9573a"
_STYLE: Final = """
:root { color-scheme: light dark; --page: #ffffff; --card: #f6f7f9; --text: #1d2430; --dim: #5a6474; --line: #d9dde3; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --card: #1d2229; --text: #e6e9ee; --dim: #a0a9b6; --line: #39414d; }
}
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem; background: var(--page); color: var(--text);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
p { margin: .3rem 0; color: var(--dim); }
.facts { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.2rem 0; padding: 0; list-style: none; }
.facts li { background: var(--card); border-radius: .5rem; padding: .6rem .9rem; color: var(--dim); font-size: .85rem; }
.facts b { display: block; color: var(--text); font-size: 1.25rem; }
svg { display: block; width: 100%; height: auto; margin-top: .4rem; }
.grid { stroke: var(--line); stroke-width: 1; }
.axis { stroke: var(--dim); stroke-width: 1; }
.tick { fill: var(--dim); font: 12px system-ui, sans-serif; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; color: var(--dim); }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; margin-right: .35rem;
            vertical-align: -.05rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--dim); font-weight: 600; }
"""


def page(report: Report) -> str:
    """The whole page."""
    span = report.last_ms - report.first_ms
    first, last = (moment_text(moment, span, with_day=True) for moment in (report.first_ms, report.last_ms))
    parts = [
        f"<h1>{escape(report.source)}</h1>",
        f"<p>From {first} to {last} (UTC), in windows of {duration_text(report.window_ms)}. "
        "The first and the last window are not whole.</p>",
        _facts(report),
        _section("Messages a second", _legend(report), _rates(report, lambda one: one.messages, NUMBERS, "messages")),
        _section("Bytes of values a second", _legend(report), _rates(report, lambda one: one.bytes, BYTES, "bytes")),
        _section("Size of a value", _two("half are smaller", "99% are smaller"), _sizes(report)),
        _latency(report),
        _table(report),
    ]
    title = escape(f"Report of {report.source}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _facts(report: Report) -> str:
    total = report.total
    seconds = max(1.0, (report.last_ms - report.first_ms) / 1000)
    facts = [
        (f"{total.messages:,}", "messages"),
        (NUMBERS.text(total.messages / seconds), "messages a second, on average"),
        (BYTES.text(total.bytes), "in values"),
        (BYTES.text(total.size_p50), "half of the values are smaller"),
    ]
    if total.latency_ms_p50 is not None and total.latency_ms_p99 is not None:
        facts.append((MILLISECONDS.text(total.latency_ms_p50), "from producer to append: half take less"))
        facts.append((MILLISECONDS.text(total.latency_ms_p99), "99% take less"))
    listed = "".join(f"<li><b>{value}</b>{name}</li>" for value, name in facts)
    return f'<ul class="facts">{listed}</ul>'


def _section(title: str, legend: str, plot: str) -> str:
    return f"<h2>{title}</h2>\n{legend}\n{plot}"


def _legend(report: Report) -> str:
    items = [(COLOURS[one.priority or 0], priority_text(one.priority or 0)) for one in report.by_priority]
    return _key(items)


def _two(half: str, most: str) -> str:
    return _key([(_HALF, half), (_MOST, most)])


def _key(items: list[tuple[str, str]]) -> str:
    inner = "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for colour, name in items)
    return f'<div class="legend">{inner}</div>'


def priority_text(priority: int) -> str:
    names = {number: name for name, number in PRIORITY_NAMES.items()}
    return f"priority {priority} ({names[priority]})" if priority in names else f"priority {priority}"


def _rates(report: Report, what: Callable[[Figures], int], scale: Scale, name: str) -> str:
    seconds = report.window_ms / 1000
    values: dict[int, dict[int, float]] = {}
    for one in report.cells:
        values.setdefault(one.start_ms or 0, {})[one.priority or 0] = what(one) / seconds
    return stacked_bars(report.starts, values, scale, f"{name} a second over time, by priority")


def _sizes(report: Report) -> str:
    found = {one.start_ms: one for one in report.by_window}
    half = [found[start].size_p50 if start in found else None for start in report.starts]
    most = [found[start].size_p99 if start in found else None for start in report.starts]
    given = [Line("half are smaller", _HALF, half), Line("99% are smaller", _MOST, most)]
    return lines(report.starts, given, BYTES, "sizes of values over time")


def _latency(report: Report) -> str:
    title = "From producer to append"
    if not report.total.timed:
        return f"<h2>{title}</h2>\n<p>Not known: no producer sent its time with these messages.</p>"
    found = {one.start_ms: one for one in report.by_window}
    half = [found[start].latency_ms_p50 if start in found else None for start in report.starts]
    most = [found[start].latency_ms_p99 if start in found else None for start in report.starts]
    given = [Line("half arrive sooner", _HALF, half), Line("99% arrive sooner", _MOST, most)]
    plot = lines(report.starts, given, MILLISECONDS, "time from producer to append, over time")
    note = f"<p>Of {report.total.timed:,} messages that carry their producer's time"
    if report.total.ahead:
        note += f"; {report.total.ahead:,} of them were sent after they arrived, by a clock that is ahead"
    return _section(title, _two("half arrive sooner", "99% arrive sooner") + f"\n{note}.</p>", plot)


def _table(report: Report) -> str:
    heads = ["priority", "messages", "share", "bytes", "half smaller", "99% smaller", "largest"]
    timed = report.total.timed > 0
    heads += ["half sooner", "99% sooner", "latest"] if timed else []
    rows = []
    for one in [*report.by_priority, report.total]:
        name = "all" if one.priority is None else priority_text(one.priority).removeprefix("priority ")
        cells = [name, f"{one.messages:,}", f"{100 * one.messages / report.total.messages:.1f}%", BYTES.text(one.bytes)]
        cells += [BYTES.text(size) for size in (one.size_p50, one.size_p99, one.size_max)]
        if timed:
            latencies = (one.latency_ms_p50, one.latency_ms_p99, one.latency_ms_max)
            cells += ["-" if late is None else MILLISECONDS.text(late) for late in latencies]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<h2>By priority</h2>\n<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
