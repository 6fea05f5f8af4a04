"""`lanner dlq`: list, show, redrive, discard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanner.cli import parsing
from lanner.cli.messages import as_document
from lanner.cli.options import SERVERS_DEFAULT, AsJson, Group, Partition, Servers, Topic, Yes
from lanner.cli.screen import Screen, text_of, time_text

if TYPE_CHECKING:
    from lanner.client import DeadMessage, Queue
    from lanner.client.admin import DeadMessages

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Dead letters: list, show, redrive, discard.")
Ids = Annotated[list[str] | None, typer.Argument(help="PARTITION/OFFSET, such as 0/17.", metavar="ID...")]
All = Annotated[bool, typer.Option("--all", help="Every dead letter of the group.")]
_VALUE_WIDTH = 60


@app.command("list")
def list_all(
    topic: Topic,
    group: Group,
    partition: Partition = None,
    start: Annotated[int, typer.Option(min=0, help="From this offset on.")] = 0,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1_000, help="At most so many.")] = 100,
    after: Annotated[
        str | None, typer.Option(help="Go on where the last list ended.", metavar="PARTITION/OFFSET")
    ] = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List what a group gave up on."""
    screen = Screen(as_json)
    place = None if after is None else parsing.place(after, "--after")
    which: dict[str, Any] = {"partition": partition, "start_offset": start}
    found = screen.with_queue(servers, lambda queue: _gather(queue, topic, group, which, limit, place))
    following = None if found.next is None else "{}/{}".format(*found.next)
    if as_json:
        letters = [described(topic, letter) for letter in found.letters]
        document = {"topic": topic, "group": group, "total": found.total, "messages": letters, "letters": letters}
        screen.document(document if following is None else document | {"next": following})
        return
    if not found.letters:
        typer.echo(f"{group} has no dead letters on {topic}.")
        return
    rows = [
        (
            f"{letter.partition}/{letter.offset}",
            str(letter.priority),
            str(letter.attempts),
            time_text(letter.died_ms),
            letter.reason or "-",
            ((text_of(letter.message.value)[0] or "") if letter.message else "(gone)")[:_VALUE_WIDTH],
        )
        for letter in found.letters
    ]
    screen.table(["id", "priority", "attempts", "died (UTC)", "reason", "value"], rows)
    if following is not None:
        typer.echo(f"{len(found.letters)} of {found.total}; --after {following} shows the next ones.")
    elif found.total > len(found.letters):
        typer.echo(f"{len(found.letters)} of {found.total}.")


async def _gather(
    queue: Queue, topic: str, group: str, which: dict[str, Any], limit: int, after: tuple[int, int] | None
) -> DeadMessages:
    """Page by page, because each is bounded in bytes."""
    found = await queue.admin.dead_letters(topic, group, **which, limit=limit, after=after)
    letters = list(found.letters)
    while found.next is not None and len(letters) < limit:
        found = await queue.admin.dead_letters(topic, group, **which, limit=limit - len(letters), after=found.next)
        letters += found.letters
    return found._replace(letters=letters)


@app.command("show")
def show(
    topic: Topic,
    group: Group,
    letter_id: Annotated[str, typer.Argument(help="PARTITION/OFFSET, such as 0/17.", metavar="ID")],
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show one dead letter whole."""
    screen = Screen(as_json)
    ((partition, (offset,)),) = parsing.message_ids([letter_id]).items()
    found = screen.with_queue(
        servers,
        lambda queue: queue.admin.dead_letters(topic, group, partition=partition, start_offset=offset, limit=1),
    )
    if not found.letters or found.letters[0].offset != offset:
        screen.fail(
            f"{group} has no dead letter {partition}/{offset}; list them with: lanner dlq list {topic} {group}",
            kind="DeadLetterNotFound",
        )
    document = described(topic, found.letters[0])
    if as_json:
        screen.document(document)
    else:
        document["died_ms"] = time_text(document.pop("died_ms"))
        screen.facts({name: str(value) for name, value in document.items()})


@app.command("redrive")
def redrive(
    topic: Topic,
    group: Group,
    ids: Ids = None,
    everything: All = False,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Deliver dead letters again; they keep their priority."""
    screen = Screen(as_json)
    count = _each(screen, servers, ids, everything, lambda queue, **which: queue.admin.redrive(topic, group, **which))
    screen.say(f"Redrove {count}.", {"redriven": count})


@app.command("discard")
def discard(
    topic: Topic,
    group: Group,
    ids: Ids = None,
    everything: All = False,
    yes: Yes = False,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Let go of dead letters for good."""
    screen = Screen(as_json)
    screen.confirm("Discard these dead letters for good?", yes)
    count = _each(screen, servers, ids, everything, lambda queue, **which: queue.admin.discard(topic, group, **which))
    screen.say(f"Discarded {count}.", {"discarded": count})


def described(topic: str, letter: DeadMessage) -> dict[str, Any]:
    document: dict[str, Any] = {"id": f"{topic}/{letter.partition}/{letter.offset}"}
    if letter.message is not None:
        document = as_document(letter.message)
    return document | {
        "partition": letter.partition,
        "offset": letter.offset,
        "priority": letter.priority,
        "attempts": letter.attempts,
        "reason": letter.reason,
        "died_ms": letter.died_ms,
    }


def _each(
    screen: Screen,
    servers: str,
    ids: list[str] | None,
    everything: bool,
    call: Callable[..., Awaitable[int]],
) -> int:
    if bool(ids) == everything:
        raise typer.BadParameter("name dead letters by id, or say --all")
    chosen = parsing.message_ids(ids or ())

    async def work(queue: Queue) -> int:
        if everything:
            return await call(queue)
        return sum([await call(queue, partition=part, offsets=offsets) for part, offsets in chosen.items()])

    return screen.with_queue(servers, work)
