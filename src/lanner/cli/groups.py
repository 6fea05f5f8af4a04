"""`lanner group`: list, show, seek, drop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanner.cli import parsing
from lanner.cli.options import SERVERS_DEFAULT, AsJson, Group, Servers, Topic, Yes
from lanner.cli.screen import Screen, age_text, plain

if TYPE_CHECKING:
    from lanner.client import Queue
    from lanner.wire.administration import GroupDescription

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Consumer groups: list, show, seek, drop.")


@app.command("list")
def list_all(
    topic: Annotated[str | None, typer.Argument(help="Only of this topic.", metavar="[TOPIC]")] = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List groups with their lag: a topic's, or those of all topics."""
    screen = Screen(as_json)

    async def work(queue: Queue) -> list[GroupDescription]:
        topics = await queue.admin.topics() if topic is None else [topic]
        return [await queue.admin.group(one, name) for one in topics for name in await queue.admin.groups(one)]

    found = screen.with_queue(servers, work)
    if as_json:
        told = {} if topic is None else {"topic": topic}
        screen.document({**told, "groups": [described(group) for group in found]})
    elif not found:
        none = "There are no groups yet" if topic is None else f"{topic} has no groups yet"
        typer.echo(f"{none}. Consume as one: lanner consume {topic or 'orders'} --group billing")
    else:
        screen.table(
            ["topic", "group", "kind", "lag", "ready", "leased", "waiting", "dead", "oldest"],
            [(group.topic, group.group, group.kind, *_sums(group).values(), _oldest(group)) for group in found],
        )


@app.command("show")
def show(topic: Topic, group: Group, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Show how a group stands on each partition."""
    screen = Screen(as_json)
    found = screen.with_queue(servers, lambda queue: queue.admin.group(topic, group))
    if as_json:
        screen.document(described(found))
        return
    screen.table(
        ["partition", "offset", "lag", "ready", "leased", "waiting", "dead", "ready by priority"],
        [
            (
                part.partition,
                part.offset,
                part.lag,
                part.ready,
                part.leased,
                part.waiting,
                part.dead,
                " ".join(f"{priority}:{count}" for priority, count in sorted(part.depth.items(), reverse=True)) or "-",
            )
            for part in found.partitions
        ],
        title=f"{found.group} on {found.topic} ({found.kind}), oldest unsettled: {_oldest(found)}",
    )


@app.command("seek")
def seek(
    topic: Topic,
    group: Group,
    to: Annotated[str | None, typer.Option("--to", help="earliest or latest.")] = None,
    at: Annotated[str | None, typer.Option("--time", help="2026-01-31T12:00:00 (UTC), or milliseconds.")] = None,
    offset: Annotated[list[str] | None, typer.Option("--offset", help="PARTITION=OFFSET; may be repeated.")] = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Move a group, back or forth. Its leases there end."""
    screen = Screen(as_json)
    if sum(bool(choice) for choice in (to, at, offset)) != 1:
        raise typer.BadParameter("give exactly one of --to, --time and --offset")
    where: dict[str, Any] = {"to": to}
    if at is not None:
        where = {"time": parsing.moment(at)}
    elif offset:
        where = {"offsets": parsing.offsets(offset)}
    screen.with_queue(servers, lambda queue: queue.admin.seek(topic, group, **where))
    screen.say(f"Moved {group} on {topic}.", {"topic": topic, "group": group, **where})


@app.command("drop")
def drop(
    topic: Topic, group: Group, yes: Yes = False, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False
) -> None:
    """Forget a group and its progress."""
    screen = Screen(as_json)
    screen.confirm(f"Forget {group} on {topic} with its progress and its dead letters?", yes)
    screen.with_queue(servers, lambda queue: queue.admin.drop_group(topic, group))
    screen.say(f"Dropped {group}.", {"dropped": group, "topic": topic})


def described(group: GroupDescription) -> dict[str, Any]:
    return {
        "topic": group.topic,
        "group": group.group,
        "kind": group.kind,
        **_sums(group),
        "oldest_age_ms": group.oldest_age_ms,
        "partitions": plain(group.partitions),
    }


def _sums(group: GroupDescription) -> dict[str, int]:
    return {
        name: sum(getattr(part, name) for part in group.partitions)
        for name in ("lag", "ready", "leased", "waiting", "dead")
    }


def _oldest(group: GroupDescription) -> str:
    return age_text(group.oldest_age_ms / 1000)
