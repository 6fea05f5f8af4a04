"""`lanner report`: what a topic carried, as a page with plots and as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers, Topic
from lanner.cli.progress import Bar
from lanner.cli.screen import Screen, bytes_text, count_text
from lanner.cli.sparking import MASTER_DEFAULT, Conf, Master, Package, need_spark, with_spark

if TYPE_CHECKING:
    from lanner.spark import SparkSession
    from lanner.spark.reports.figures import Figures, Report
    from lanner.spark.reports.reporting import Written


def report(
    topic: Topic,
    path: Annotated[str | None, typer.Option("--path", help="Read the archive at this path instead.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The folder that gets report.html and report.parquet.")] = Path(
        "report"
    ),
    window: Annotated[
        str | None, typer.Option("--window", help="Such as '1 minute'; by default one that suits the time covered.")
    ] = None,
    where: Annotated[str | None, typer.Option("--where", help="Only these, in SQL, such as: priority > 5")] = None,
    master: Master = MASTER_DEFAULT,
    conf: Conf = None,
    package: Package = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Rates, sizes and latencies of a topic, or of an archive of it, by priority and time.

    \b
    Example: lanner report orders
    Example: lanner report orders --path ./archive --window '1 hour' --out ./orders-report
    """
    screen = Screen(as_json)
    need_spark(screen)
    window_ms = _window_ms(screen, window)
    source = topic if path is None else f"{topic} in the archive {path}"

    def work(spark: SparkSession) -> tuple[Report, Written]:
        from lanner.spark.reports.reporting import report, source_frame, write

        with Bar(screen, "report") as bar:
            frame = source_frame(spark, servers, topic, path, where)
            found = report(spark, frame, source, window_ms=window_ms, tell=bar.tell)
            return found, write(found, out)

    made, written = with_spark(screen, master, conf, package, work)
    if as_json:
        screen.document({**made.as_json(), "page": str(written.page), "table": str(written.table)})
        return
    heads = ["priority", "messages", "bytes", "p50 size", "p99 size", "p50 latency", "p99 latency"]
    screen.table(heads, [_row(one) for one in [*made.by_priority, made.total]])
    windows = f"{count_text(len(made.starts))} windows" if len(made.starts) > 1 else "1 window"
    typer.echo(f"Wrote {written.page} and {written.table}: {count_text(made.total.messages)} messages, {windows}.")


def _window_ms(screen: Screen, given: str | None) -> int | None:
    from lanner.spark.pipelines.plan import duration_ms, is_duration

    if given is None:
        return None
    if not is_duration(given):
        screen.fail(f"--window {given!r}: write a number and a unit, such as '5 minutes'", kind="UsageError", code=2)
    return duration_ms(given)


def _row(one: Figures) -> tuple[str, ...]:
    def late(value: int | None) -> str:
        return "-" if value is None else f"{count_text(value)} ms"

    return (
        "all" if one.priority is None else str(one.priority),
        count_text(one.messages),
        bytes_text(one.bytes),
        bytes_text(one.size_p50),
        bytes_text(one.size_p99),
        late(one.latency_ms_p50),
        late(one.latency_ms_p99),
    )
