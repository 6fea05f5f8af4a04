"""`lanner replay`: messages of an archive, or of a topic, into a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lanner.cli import parsing
from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers, Topic, Yes
from lanner.cli.progress import Bar
from lanner.cli.screen import Screen, count_text
from lanner.cli.sparking import MASTER_DEFAULT, Conf, Master, Package, need_spark, with_spark

if TYPE_CHECKING:
    from lanner.spark import SparkSession
    from lanner.spark.archive.replaying import Replayed

Where = Annotated[
    str | None, typer.Option("--where", help="Only these, in SQL, such as: priority > 5 and key is not null")
]

ReplayId = Annotated[
    str | None,
    typer.Option("--id", help="The replay's name: repeated under it, it goes on and publishes nothing twice."),
]

ToServers = Annotated[
    str | None, typer.Option("--to-servers", help="Where the other topic is, if elsewhere.", metavar="ADDRESSES")
]


def replay(
    topic: Topic,
    to: Annotated[str, typer.Option("--to", help="The topic to publish into; made when it is not there.")],
    path: Annotated[str | None, typer.Option("--path", help="Read the archive at this path instead.")] = None,
    where: Where = None,
    rate: Annotated[
        float | None, typer.Option("--rate", min=0.1, max=1e9, help="At most so many messages a second.")
    ] = None,
    start: Annotated[
        list[str] | None, typer.Option("--start", help="PARTITION=OFFSET to begin with; may be repeated.")
    ] = None,
    end: Annotated[
        list[str] | None, typer.Option("--end", help="PARTITION=OFFSET to end before; may be repeated.")
    ] = None,
    replay_id: ReplayId = None,
    expired: Annotated[bool, typer.Option("--expired", help="Also what has expired, which then never does.")] = False,
    to_servers: ToServers = None,
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

    need_spark(screen)
    named = replay_id or _new_id(as_json)

    def work(spark: SparkSession) -> Replayed:
        from lanner.spark.archive.replaying import Source, replay

        source = Source(servers, topic, path, parsing.offsets(start or ()), parsing.offsets(end or ()), where)
        with Bar(screen, "replay") as bar:
            return replay(spark, source, target, to, replay_id=named, rate=rate, expired_too=expired, tell=bar.tell)

    done = with_spark(screen, master, conf, package, work)
    screen.say(_sentence(done, to), {**done._asdict(), "seconds": round(done.seconds, 3)})


def _new_id(as_json: bool) -> str:
    """An id of our own; told before the work begins: it is needed when that is cut off."""
    from lanner.spark.archive.replaying import new_replay_id

    made = new_replay_id()
    if not as_json:
        typer.echo(f"Replay {made}: should it be cut off, the same command with --id {made} goes on.")
    return made


def _sentence(done: Replayed, to: str) -> str:
    kept = "in the same partitions and order" if done.partitions_kept else "in partitions by key"
    before = ", after those of an earlier run" if done.resumed else ""
    left_out = f" Left out {count_text(done.expired)} that have expired." if done.expired else ""
    return (
        f"Published {count_text(done.messages)} messages into {to}, {kept}{before}, in {done.seconds:.1f} s.{left_out}"
    )
