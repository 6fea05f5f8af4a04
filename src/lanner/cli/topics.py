"""`lanner topic`: create, list, show, set, delete."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from lanner.cli import parsing
from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers, Topic, Yes
from lanner.cli.screen import Screen, bytes_text, coloured, count_text
from lanner.errors import LannerError

if TYPE_CHECKING:
    from lanner.client import Queue
    from lanner.wire.administration import TopicDescription
    from lanner.wire.messages import MetadataReply, TopicInfo

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Topics: create, list, show, set, delete.")
_PATIENCE_SECONDS: Final = 5.0  # for one topic whose leaders may be away
_ASKED_AT_ONCE: Final = 8
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
    count = len(known.partitions)
    screen.say(f"Created {known.name} with {count} partition{'' if count == 1 else 's'}.", described(known))


@app.command("list")
def list_all(servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """List the topics: what they hold, how far their groups are behind, who leads them."""
    screen = Screen(as_json)
    rows = screen.with_queue(servers, _rows)
    if as_json:
        screen.document({"topics": rows})
    elif not rows:
        typer.echo("No topics yet. Make one: lanner topic create orders")
    else:
        screen.table(
            ["topic", "messages", "bytes", "lag", "partitions", "replicas", "led by"],
            [
                (
                    row["name"],
                    _known(row["messages"], count_text),
                    _known(row["bytes"], bytes_text),
                    " ".join(f"{group}:{count_text(lag)}" for group, lag in row["lag"].items()) or "-",
                    row["partitions"],
                    _known(row["replicas"], str),
                    _leaders_text(row),
                )
                for row in rows
            ],
        )


async def _rows(queue: Queue) -> list[dict[str, Any]]:
    import asyncio

    known = await queue.admin.cluster()
    places = await _places(queue, known.topics, broker_names(known))
    rows = [_listed(topic, places) for topic in sorted(known.topics, key=lambda topic: topic.name)]
    asking = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def ask(row: dict[str, Any]) -> None:
        # A list is of use also while some of it cannot be asked, and nobody waits for that for long.
        with contextlib.suppress(LannerError, TimeoutError):
            async with asking, asyncio.timeout(_PATIENCE_SECONDS):
                found = await queue.admin.describe(row["name"])
                row["messages"] = sum(sum(part.depth.values()) for part in found.partitions)
                row["bytes"] = sum(part.bytes for part in found.partitions)
                for name in await queue.admin.groups(row["name"]):
                    group = await queue.admin.group(row["name"], name)
                    row["lag"][name] = sum(part.lag for part in group.partitions)

    await asyncio.gather(*map(ask, rows))
    return rows


class Places(NamedTuple):
    """Who leads and who has a copy, by topic and partition; what nobody told is left out."""

    names: dict[str, str]  # of brokers, by node id
    leaders: dict[tuple[str, int], str]  # empty: none
    replicas: dict[tuple[str, int], list[str]]


async def _places(queue: Queue, found: Sequence[TopicInfo], names: dict[str, str], topic: str | None = None) -> Places:
    """A proxy says that it leads everything, and tells of no replicas: then the brokers behind it are asked."""
    import asyncio

    parts = [(info.name, part) for info in found for part in info.partitions]
    if all(part.replicas for _, part in parts):
        leaders = {(name, part.id): part.leader for name, part in parts}
        return Places(names, leaders, {(name, part.id): part.replicas for name, part in parts})
    places = Places(names, {}, {})
    with contextlib.suppress(LannerError, TimeoutError):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            for row in await queue.admin.describe_partitions(topic):
                places.leaders[row.topic, row.partition] = row.leader
                places.replicas[row.topic, row.partition] = [one.node_id for one in row.replicas]
                names.update({one.node_id: one.name or one.node_id[:8] for one in row.replicas})
    return places


def _known(value: int | None, text: Callable[[int], str]) -> Any:
    return coloured("unknown", "red") if value is None else text(value)


def _listed(topic: TopicInfo, places: Places) -> dict[str, Any]:
    leaders: dict[str, int] = {}
    for part in topic.partitions:
        if leader := places.leaders.get((topic.name, part.id)):
            name = places.names.get(leader, leader)
            leaders[name] = leaders.get(name, 0) + 1
    told = [places.replicas.get((topic.name, part.id)) for part in topic.partitions]
    return {
        "name": topic.name,
        "partitions": len(topic.partitions),
        "replicas": None if None in told else max((len(one or ()) or 1 for one in told), default=0),
        "leaders": dict(sorted(leaders.items())),
        "leaderless": sum(not places.leaders.get((topic.name, part.id), part.leader) for part in topic.partitions),
        "messages": None,
        "bytes": None,
        "lag": {},
    }


def _leaders_text(row: dict[str, Any]) -> Any:
    if row["leaderless"]:
        return coloured(f"{row['leaderless']} partitions have no leader", "red")
    if not row["leaders"]:
        return coloured("unknown", "red")
    return " ".join(f"{name}:{count}" for name, count in row["leaders"].items())


@app.command("describe", hidden=True)
@app.command("show")
def show(topic: Topic, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Show a topic's settings and partitions, who leads them and who has copies."""
    screen = Screen(as_json)

    async def work(queue: Queue) -> tuple[TopicDescription, Places]:
        known, cluster = await queue.admin.describe(topic), await queue.admin.cluster()
        found = [one for one in cluster.topics if one.name == topic]
        return known, await _places(queue, found, broker_names(cluster), topic)

    known, (names, _, replicas) = screen.with_queue(servers, work)
    if as_json:
        document = described(known)
        for part in document["partitions"]:
            holders = replicas.get((topic, part["id"]))
            part["leader_name"] = names.get(part["leader"], "")
            part["replicas"] = None if holders is None else [names.get(node_id, node_id) for node_id in holders]
        screen.document(document)
        return
    screen.facts({name: _plain(value) for name, value in known.settings.items()})
    screen.table(
        ["partition", "leader", "replicas", "first offset", "end offset", "messages", "bytes", "by priority"],
        [
            (
                part.id,
                names.get(part.leader, part.leader[:8]) if part.leader else coloured("none", "red"),
                _holders_text(replicas.get((topic, part.id)), names),
                part.first_offset,
                part.end_offset,
                sum(part.depth.values()),
                bytes_text(part.bytes),
                " ".join(f"{priority}:{count}" for priority, count in sorted(part.depth.items(), reverse=True)) or "-",
            )
            for part in known.partitions
        ],
    )
    holds = [(part.id, hold) for part in known.partitions for hold in part.holds]
    if holds:
        screen.table(
            ["partition", "held for", "offset", "behind", "held"],
            [(part, hold.group, hold.offset, hold.behind, bytes_text(hold.held_bytes)) for part, hold in holds],
        )


def _plain(value: Any) -> Any:
    """A setting as it is given on the command line."""
    return ",".join(value) or "-" if isinstance(value, list) else value


def broker_names(metadata: MetadataReply) -> dict[str, str]:
    return {broker.node_id: broker.name or broker.node_id[:8] for broker in metadata.brokers}


def _holders_text(holders: list[str] | None, names: dict[str, str]) -> Any:
    if holders is None:
        return coloured("unknown", "red")
    return " ".join(names.get(node_id, node_id[:8]) for node_id in holders) or "-"


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
    changed = ", ".join(f"{name} = {_plain(known.settings.get(name))}" for name in given)
    more = ". Replicas are made and moved meanwhile; see: lanner cluster" if "replication" in given else ""
    screen.say(f"{known.name}: {changed}{more}", described(known))


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
                "holds": [
                    {"group": one.group, "offset": one.offset, "behind": one.behind, "held_bytes": one.held_bytes}
                    for one in part.holds
                ],
            }
            for part in known.partitions
        ],
    }
