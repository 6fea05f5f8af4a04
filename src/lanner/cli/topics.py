"""`lanner topic`: create, list, show, set, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanner.cli import parsing
from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers, Topic, Yes
from lanner.cli.screen import Screen, bytes_text

if TYPE_CHECKING:
    from lanner.client import Queue
    from lanner.wire.messages import TopicDescription

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Topics: create, list, show, set, delete.")
Settings = Annotated[list[str] | None, typer.Argument(help="Settings, NAME=VALUE.", metavar="NAME=VALUE...")]


@app.command("create")
def create(
    topic: Topic,
    settings: Settings = None,
    partitions: Annotated[int | None, typer.Option("--partitions", "-p", help="How many.")] = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Create a topic.

    \b
    Example: lanner topic create orders -p 6 retention=acked max_deliveries=3
    """
    screen = Screen(as_json)
    given: dict[str, Any] = {**parsing.settings(settings or ())}
    if partitions is not None:
        given["partitions"] = partitions
    known = screen.with_queue(servers, lambda queue: queue.admin.create_topic(topic, **given))
    screen.say(f"Created {known.name} with {len(known.partitions)} partitions.", described(known))


@app.command("list")
def list_all(servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """List the topics."""
    screen = Screen(as_json)

    async def work(queue: Queue) -> list[dict[str, Any]]:
        topics = (await queue.admin.cluster()).topics
        return sorted(
            ({"name": topic.name, "partitions": len(topic.partitions)} for topic in topics),
            key=lambda row: str(row["name"]),
        )

    rows = screen.with_queue(servers, work)
    if as_json:
        screen.document({"topics": rows})
    elif not rows:
        typer.echo("No topics yet. Make one: lanner topic create orders")
    else:
        screen.table(["topic", "partitions"], [(row["name"], row["partitions"]) for row in rows])


@app.command("show")
def show(topic: Topic, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Show a topic's settings and partitions."""
    screen = Screen(as_json)
    known = screen.with_queue(servers, lambda queue: queue.admin.describe(topic))
    if as_json:
        screen.document(described(known))
        return
    screen.facts(known.settings)
    screen.table(
        ["partition", "first offset", "end offset", "messages", "bytes", "by priority"],
        [
            (
                part.id,
                part.first_offset,
                part.end_offset,
                sum(part.depth.values()),
                bytes_text(part.bytes),
                " ".join(f"{priority}:{count}" for priority, count in sorted(part.depth.items(), reverse=True)) or "-",
            )
            for part in known.partitions
        ],
    )


@app.command("set")
def change(
    topic: Topic,
    settings: Annotated[list[str], typer.Argument(help="Settings, NAME=VALUE.", metavar="NAME=VALUE...")],
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change settings; they hold at once."""
    screen = Screen(as_json)
    given = parsing.settings(settings)
    known = screen.with_queue(servers, lambda queue: queue.admin.alter_topic(topic, **given))
    changed = ", ".join(f"{name} = {known.settings.get(name)}" for name in given)
    screen.say(f"{known.name}: {changed}", described(known))


@app.command("delete")
def delete(topic: Topic, yes: Yes = False, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Delete a topic with everything in it."""
    screen = Screen(as_json)
    screen.confirm(f"Delete {topic} with all its messages?", yes)
    screen.with_queue(servers, lambda queue: queue.admin.delete_topic(topic))
    screen.say(f"Deleted {topic}.", {"deleted": topic})


def described(known: TopicDescription) -> dict[str, Any]:
    return {
        "name": known.name,
        "incarnation": known.incarnation,
        "settings": known.settings,
        "partitions": [
            {
                "id": part.id,
                "leader": part.leader,
                "first_offset": part.first_offset,
                "end_offset": part.end_offset,
                "bytes": part.bytes,
                "depth": part.depth,
            }
            for part in known.partitions
        ],
    }
