"""`lanner group`: list, show, members, alter, evict, seek, drop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanner.cli import parsing
from lanner.cli.member_table import heading, show_members
from lanner.cli.options import SERVERS_DEFAULT, AsJson, Group, Servers, Topic, Yes
from lanner.cli.screen import Screen, age_text, harmless, plain
from lanner.errors import GroupNotFound, MemberUnknown, NotSupported

if TYPE_CHECKING:
    from lanner.client import Queue
    from lanner.wire.administration import GroupDescription
    from lanner.wire.members import GroupMembers, MemberState

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Consumer groups: list, show, members, alter, evict, seek, drop."
)


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
    """Show how a group stands on each partition, and whether it has members."""
    screen = Screen(as_json)

    async def work(queue: Queue) -> tuple[GroupDescription, GroupMembers | None]:
        return await queue.admin.group(topic, group), await _members_of(queue, group)

    found, members = screen.with_queue(servers, work)
    if as_json:
        screen.document({**described(found), "members": None if members is None else _membership(members)})
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
    if members is not None:
        typer.echo(heading(members))
        typer.echo(f"Who they are: lanner group members {group}")


@app.command("members")
def members_of(group: Group, servers: Servers = SERVERS_DEFAULT, as_json: AsJson = False) -> None:
    """Show who is a member of a group: what each holds, and what it is to give up, to whom.

    \b
    held      partitions that the member owns; idle: none
    revoked   partitions that it still has in hand, and who follows once it has given them up
    heard     how long ago the group heard of it, at the broker under home
    """
    screen = Screen(as_json)
    found = screen.with_queue(servers, lambda queue: _members(queue, group))
    if as_json:
        screen.document(plain(found))
    else:
        show_members(screen, found)


@app.command("alter")
def alter(
    group: Group,
    assignor: Annotated[
        str | None,
        typer.Option("--assignor", help="sticky, range, round_robin, or shared: everybody polls everything."),
    ] = None,
    session_ms: Annotated[
        int | None,
        typer.Option("--session-ms", min=1, help="Silent for so long, a member is none any more. For those that join."),
    ] = None,
    revoke_ms: Annotated[
        int | None,
        typer.Option("--revoke-ms", min=1, help="So long may a member take to give a partition up."),
    ] = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Change how a group with members shares its partitions. What is not given stays."""
    screen = Screen(as_json)
    given = {"assignor": assignor, "session_ms": session_ms, "revoke_ms": revoke_ms}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        raise typer.BadParameter("give at least one of --assignor, --session-ms and --revoke-ms")

    async def work(queue: Queue) -> GroupMembers:
        try:
            await queue.admin.alter_group(group, assignor=assignor, session_ms=session_ms, revoke_ms=revoke_ms)
        except GroupNotFound as error:
            raise _never_had_members(group) from error
        return await queue.admin.group_members(group, limit=1)

    found = screen.with_queue(servers, work)
    screen.say(
        f"{heading(found)}; a session has {found.session_ms:,} ms, a revoked partition {found.revoke_ms:,} ms.",
        {"group": group, **_membership(found)},
    )


@app.command("evict")
def evict(
    group: Group,
    member: Annotated[
        str, typer.Argument(help="The member's id or the beginning of it, or its instance.", metavar="MEMBER")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why: shown among the group's rebalances.")] = "",
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Have a member be none any more: others get its partitions. A process that still runs joins again."""
    screen = Screen(as_json)

    async def work(queue: Queue) -> MemberState:
        found = _chosen(await _members(queue, group), member)
        await queue.admin.evict_member(group, found.member_id, reason=reason)
        return found

    found = screen.with_queue(servers, work)
    held = sum(one.last - one.first + 1 for one in found.held) + len(found.revoked)
    partitions = "1 partition goes" if held == 1 else f"{held:,} partitions go"
    screen.say(
        harmless(f"Evicted {found.member_id} ({found.instance or found.client or 'no name'}): {partitions} to others."),
        {"group": group, "evicted": found.member_id, "instance": found.instance, "partitions": held},
    )


@app.command("seek")
def seek(
    topic: Topic,
    group: Group,
    to: Annotated[str | None, typer.Option("--to", help="earliest or latest.")] = None,
    at: Annotated[str | None, typer.Option("--time", help="2026-01-31T12:00:00 (UTC), or milliseconds.")] = None,
    offset: Annotated[list[str] | None, typer.Option("--offset", help="PARTITION=OFFSET; may be repeated.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also while the group has members: they go on from there.")
    ] = False,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Move a group, back or forth. Its leases there end. While it has members, say --force."""
    screen = Screen(as_json)
    if sum(bool(choice) for choice in (to, at, offset)) != 1:
        raise typer.BadParameter("give exactly one of --to, --time and --offset")
    where: dict[str, Any] = {"to": to}
    if at is not None:
        where = {"time": parsing.moment(at)}
    elif offset:
        where = {"offsets": parsing.offsets(offset)}
    screen.with_queue(servers, lambda queue: queue.admin.seek(topic, group, force=force, **where))
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


async def _members(queue: Queue, group: str) -> GroupMembers:
    try:
        return await queue.admin.group_members(group)
    except GroupNotFound as error:
        raise _never_had_members(group) from error


async def _members_of(queue: Queue, group: str) -> GroupMembers | None:
    """How a group's members stand; None: it has never had any, or the brokers do not know of members yet."""
    try:
        return await queue.admin.group_members(group, limit=1)
    except (GroupNotFound, NotSupported):
        return None


def _never_had_members(group: str) -> GroupNotFound:
    return GroupNotFound(
        f"group {group!r} has never had members: consumers that use it, if there are any, share every partition and "
        f"join nothing. `lanner client list --group {group}` shows who they are; with `lanner consume TOPIC "
        f"--group {group} --assignor sticky` a consumer joins",
        group=group,
    )


def _chosen(group: GroupMembers, named: str) -> MemberState:
    """The member of this id or instance, or the only one whose id begins so."""
    named = named.removesuffix("…")
    for found in (
        [one for one in group.members if one.member_id == named],
        [one for one in group.members if named and one.instance == named],
        [one for one in group.members if named and one.member_id.startswith(named)],
    ):
        if len(found) == 1:
            return found[0]
        if found:
            raise MemberUnknown(
                f"{len(found)} members of group {group.group!r} have ids that begin with {named!r}: give more of it",
                group=group.group,
            )
    raise MemberUnknown(
        f"group {group.group!r} has no member {named!r}: see `lanner group members {group.group}`", group=group.group
    )


def _membership(group: GroupMembers) -> dict[str, Any]:
    names = ("assignor", "generation", "count", "state", "unowned", "session_ms", "revoke_ms")
    return {name: getattr(group, name) for name in names}


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
