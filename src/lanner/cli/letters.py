"""`lanner dead-letters`: the dead letters of a topic as a table, and redriving some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers, Topic
from lanner.cli.progress import Bar
from lanner.cli.screen import Screen, count_text
from lanner.cli.sparking import MASTER_DEFAULT, Conf, Master, Package, with_spark

if TYPE_CHECKING:
    from lanner.spark import SparkSession
    from lanner.spark.letters import Counted


def dead_letters(
    topic: Topic,
    group: Annotated[list[str] | None, typer.Option("--group", "-g", help="This group only; may be repeated.")] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="Only these, in SQL, such as: reason like 'timeout%' and attempts > 3")
    ] = None,
    redrive: Annotated[bool, typer.Option("--redrive", help="Deliver what is selected again.")] = False,
    master: Master = MASTER_DEFAULT,
    conf: Conf = None,
    package: Package = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Count dead letters by group, reason and hour; redrive those that a condition selects.

    \b
    Example: lanner dead-letters orders
    Example: lanner dead-letters orders --group billing --where "reason = 'timeout'" --redrive
    """
    screen = Screen(as_json)

    def work(spark: SparkSession) -> tuple[list[Counted], int | None]:
        from lanner.spark import letters

        with Bar(screen, "dead letters"):
            found = letters.dead_letters(spark, servers, topic, group or (), where)
            table = letters.counted(found)
            return table, letters.redrive(found, servers, topic) if redrive else None

    table, redriven = with_spark(screen, master, conf, package, work)
    total = sum(one.letters for one in table)
    if as_json:
        screen.document({"total": total, "redriven": redriven, "counts": [one._asdict() for one in table]})
        return
    screen.table(["group", "reason", "hour (UTC)", "letters", "attempts"], table)
    typer.echo(f"{count_text(total)} dead letters." if redriven is None else f"Redrove {count_text(redriven)}.")
