"""`lanner audit`: whether an archive has what its topic has, or one topic what another has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers
from lanner.cli.progress import Bar
from lanner.cli.screen import EXIT_DIFFERENT, Screen, count_text
from lanner.cli.sparking import MASTER_DEFAULT, Conf, Master, Package, with_spark

if TYPE_CHECKING:
    from lanner.spark import SparkSession
    from lanner.spark.archive.verdict import ArchiveVerdict, PartitionLikeness, PartitionVerdict


def audit(
    topics: Annotated[
        list[str] | None, typer.Argument(help="Topics; with --path: all of the archive's.", metavar="TOPIC...")
    ] = None,
    path: Annotated[str | None, typer.Option("--path", help="Judge the archive at this path.")] = None,
    against: Annotated[str | None, typer.Option("--against", help="Compare the topic with this one.")] = None,
    against_servers: Annotated[
        str | None,
        typer.Option("--against-servers", help="Where the other topic is, if elsewhere.", metavar="ADDRESSES"),
    ] = None,
    to_end: Annotated[bool, typer.Option("--to-end", help="What is not archived yet counts as missing.")] = False,
    master: Master = MASTER_DEFAULT,
    conf: Conf = None,
    package: Package = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Check an archive against its topics, or a topic against another. Exit code 0: all is well; 3: it is not.

    \b
    Example: lanner audit --path ./archive
    Example: lanner audit orders --against orders-again
    """
    screen = Screen(as_json)
    if (path is None) == (against is None):
        screen.fail("say either --path ARCHIVE or --against TOPIC", kind="UsageError", code=2)
    if against is not None and (topics is None or len(topics) != 1):
        screen.fail("name one topic to compare: lanner audit TOPIC --against OTHER", kind="UsageError", code=2)

    def work(spark: SparkSession) -> bool:
        from lanner.spark.archive.auditing import Side, audit_archive, audit_topics

        if path is not None:
            with Bar(screen, "audit") as bar:
                judged = audit_archive(spark, servers, path, topics or (), to_end=to_end, tell=bar.tell)
            return _show_archive(screen, judged)
        assert topics is not None and against is not None
        here, there = Side(servers, topics[0]), Side(against_servers or servers, against)
        with Bar(screen, "audit") as bar:
            compared = audit_topics(spark, here, there, tell=bar.tell)
        return _show_topics(screen, here.topic, there.topic, compared)

    if not with_spark(screen, master, conf, package, work):
        raise typer.Exit(EXIT_DIFFERENT)


def _show_archive(screen: Screen, found: list[ArchiveVerdict]) -> bool:
    clean = all(one.is_clean for one in found)
    if screen.as_json:
        screen.document({"complete": clean, "topics": [one.as_json() for one in found]})
        return clean
    from lanner.spark.archive.ranges import count

    screen.table(
        ["partition", "archived", "compared", "missing", "doubled", "different", "holes", "behind"],
        [
            (
                f"{topic.topic}/{one.partition}",
                one.messages,
                one.compared,
                count(one.missing),
                count(one.doubled),
                count([*one.different, *one.beyond]),
                sum(count(spans) for spans in one.holes.values()),
                one.behind,
            )
            for topic in found
            for one in topic.partitions
        ],
    )
    for topic in found:
        for one in topic.partitions:
            _say_partition(topic.topic, one)
        for kind, paths in (("removed", topic.files.removed), ("damaged", topic.files.damaged)):
            for path in sorted(paths):
                typer.echo(f"{kind}: {path}")
    messages = sum(one.messages for topic in found for one in topic.partitions)
    typer.echo(
        f"Complete: {count_text(messages)} messages, every offset exactly once."
        if clean
        else "NOT complete: see the offsets above."
    )
    return clean


def _say_partition(topic: str, one: PartitionVerdict) -> None:
    from lanner.spark.archive.ranges import shown

    faults = {"missing": one.missing, "doubled": one.doubled, "different": one.different}
    faults["beyond the topic's end"] = one.beyond
    for kind, spans in faults.items():
        if spans:
            typer.echo(f"{topic}/{one.partition}: {kind}: {shown(spans)}")
    for reason, spans in one.holes.items():
        if spans:
            typer.echo(f"{topic}/{one.partition}: no fault, {reason}: {shown(spans)}")
    if one.cut:
        typer.echo(f"{topic}/{one.partition}: there is more than is listed")


def _show_topics(screen: Screen, here: str, there: str, found: list[PartitionLikeness]) -> bool:
    clean = all(one.is_clean for one in found)
    if screen.as_json:
        screen.document(
            {"same": clean, "topic": here, "against": there, "partitions": [one.as_json() for one in found]}
        )
        return clean
    screen.table(
        ["partition", here, there, f"only in {here}", f"only in {there}", "order"],
        [
            (
                "all" if one.partition is None else str(one.partition),
                one.messages,
                one.other_messages,
                one.only_here,
                one.only_there,
                one.order,
            )
            for one in found
        ],
    )
    for one in found:
        for place, offset in one.samples[:10]:
            typer.echo(f"for example {place}/{offset}")
    typer.echo(
        f"The same: {count_text(sum(one.messages for one in found))} messages." if clean else "NOT the same: see above."
    )
    return clean
