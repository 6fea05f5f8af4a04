"""`lanner archive`: topics into Parquet files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers
from lanner.cli.progress import Bar
from lanner.cli.screen import Screen, bytes_text, count_text
from lanner.cli.sparking import MASTER_DEFAULT, Conf, Master, Package, with_spark

if TYPE_CHECKING:
    from lanner.spark import SparkSession
    from lanner.spark.archive.archiving import Archiver, Stepped

ArchivePath = Annotated[
    str, typer.Option("--path", help="The archive: a folder, or an address that Spark knows, such as hdfs://…")
]
_MINUTE_MS = 60_000
_YEAR_S = 365 * 86_400


def archive(
    path: ArchivePath,
    topics: Annotated[list[str] | None, typer.Argument(help="Topics to archive.", metavar="TOPIC...")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is published, until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, max=_YEAR_S, help="With --follow: seconds between two looks.")
    ] = 10,
    group: Annotated[
        str | None, typer.Option("--group", help="Tell the brokers the progress under this name, as a stream group.")
    ] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Merge small files afterwards.")] = False,
    grace_minutes: Annotated[
        float,
        typer.Option(
            "--grace-minutes", min=0, max=_YEAR_S / 60, help="Merged files stay so long for those who read them."
        ),
    ] = 60,
    step_messages: Annotated[
        int, typer.Option("--step-messages", min=1, max=10_000_000, help="Of one partition, in one step.")
    ] = 250_000,
    master: Master = MASTER_DEFAULT,
    conf: Conf = None,
    package: Package = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Copy topics into Parquet files, by topic, date and hour. Run it again to go on where it stopped.

    \b
    Example: lanner archive orders --path ./archive
    Example: lanner archive --path ./archive --compact
    """
    screen = Screen(as_json)
    if not topics and not compact:
        screen.fail("name topics to archive, or say --compact", kind="UsageError", code=2)

    def work(spark: SparkSession) -> None:
        from lanner.spark.archive.archiving import Archiver

        if topics:
            run = Archiver(spark, servers, path, topics, group=group, step_messages=step_messages)
            _archive(screen, run, every if follow else None)
        if compact:
            _compact(screen, spark, path, int(grace_minutes * _MINUTE_MS))

    with_spark(screen, master, conf, package, work)


def _archive(screen: Screen, run: Archiver, every: float | None) -> None:
    """Once, or again and again with so many seconds between."""
    last: Stepped | None = None
    began = time.monotonic()
    try:
        with Bar(screen, "archive") as bar:
            while True:
                looked = time.monotonic()
                for stepped in run.run():
                    bar.show(stepped.messages, stepped.messages + stepped.lag, note=bytes_text(stepped.bytes))
                    if every is not None and screen.as_json and last != stepped:
                        screen.document(_document(stepped, began))
                    last = stepped
                if every is None:
                    break
                time.sleep(max(0.0, looked + every - time.monotonic()))
    finally:
        if last is not None and not (every is not None and screen.as_json):
            screen.say(_sentence(last, began), _document(last, began))


def _document(stepped: Stepped, began: float) -> dict[str, object]:
    return {**stepped._asdict(), "seconds": round(time.monotonic() - began, 3)}


def _sentence(stepped: Stepped, began: float) -> str:
    seconds = max(time.monotonic() - began, 1e-6)
    holes = f", {count_text(stepped.holes)} offsets were gone" if stepped.holes else ""
    return (
        f"Archived {count_text(stepped.messages)} messages in {count_text(stepped.files)} files "
        f"({bytes_text(stepped.bytes)}{holes}) in {seconds:.1f} s; {count_text(stepped.lag)} are behind."
    )


def _strays(count: int) -> str:
    return f" Found {count_text(count)} of steps that were cut off; they go after the grace time." if count else ""


def _compact(screen: Screen, spark: SparkSession, path: str, grace_ms: int) -> None:
    from lanner.spark.archive.compaction import Compactor

    with Bar(screen, "compact") as bar:
        for last in Compactor(spark, path, grace_ms=grace_ms).run():
            bar.show(last.merged, last.merged + last.left)
    screen.say(
        f"Merged {count_text(last.merged)} small files into {count_text(last.made)}; "
        f"deleted {count_text(last.deleted)} old ones.{_strays(last.strays)}",
        last._asdict(),
    )
