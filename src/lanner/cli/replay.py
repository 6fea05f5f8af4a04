"""`lanner replay`: messages of an archive, or of a topic, into a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lanner.cli import parsing
from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers, Topic, Yes
from lanner.cli.progress import Bar
from lanner.cli.screen import Screen, count_text
from lanner.cli.sparking import MASTER_DEFAULT, Conf, Master, Package, with_spark

if TYPE_CHECKING:
    from lanner.spark import SparkSession
    from lanner.spark.archive.replaying import Replayed


def replay(
    topic: Topic,
    to: Annotated[str, typer.Option("--to", help="The topic to publish into; made when it is not there.")],
    path: Annotated[str | None, typer.Option("--path", help="Read the archive at this path instead.")] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="Only these, in SQL, such as: priority > 5 and key is not null")
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.1, help="At most so many messages a second.")] = None,
    start: Annotated[
        list[str] | None, typer.Option("--start", help="PARTITION=OFFSET to begin with; may be repeated.")
    ] = None,
    end: Annotated[
        list[str] | None, typer.Option("--end", help="PARTITION=OFFSET to end before; may be repeated.")
    ] = None,
    replay_id: Annotated[
        str | None,
        typer.Option(
            "--id", help="The replay's name: repeated under it, a replay goes on, and publishes nothing twice."
        ),
    ] = None,
    expired: Annotated[bool, typer.Option("--expired", help="Also what has expired, which then never does.")] = False,
    to_servers: Annotated[
        str | None, typer.Option("--to-servers", help="Where the other topic is, if elsewhere.", metavar="ADDRESSES")
    ] = None,
    yes: Yes = False,
    master: Master = MASTER_DEFAULT,
    conf: Conf = None,
    package: Package = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Publish messages again, with their keys, headers and priorities, in their order.

    \b
    Example: lanner replay orders --to orders-again --path ./archive
    Example: lanner replay orders --to orders-again --id monday --rate 1000
    Example: lanner replay orders --to refunds --where "cast(key as string) like 'refund%'"
    """
    screen = Screen(as_json)
    target = to_servers or servers
    if to == topic and target == servers:
        screen.confirm(f"Publish what {topic} had into {topic} itself, so that it is there twice?", yes)

    def work(spark: SparkSession) -> Replayed:
        from lanner.spark.archive.replaying import Source, new_replay_id, replay

        name = replay_id
        if name is None:
            name = new_replay_id()
            if not as_json:
                typer.echo(f"Replay {name}: should it be cut off, the same command with --id {name} goes on.")
        source = Source(servers, topic, path, parsing.offsets(start or ()), parsing.offsets(end or ()), where)
        with Bar(screen, "replay") as bar:
            return replay(spark, source, target, to, replay_id=name, rate=rate, expired_too=expired, tell=bar.tell)

    done = with_spark(screen, master, conf, package, work)
    kept = "in the same partitions and order" if done.partitions_kept else "in partitions by key"
    before = ", after those of an earlier run" if done.resumed else ""
    left_out = f" Left out {count_text(done.expired)} that have expired." if done.expired else ""
    screen.say(
        f"Published {count_text(done.messages)} messages into {to}, {kept}{before}, in {done.seconds:.1f} s.{left_out}",
        {**done._asdict(), "seconds": round(done.seconds, 3)},
    )
