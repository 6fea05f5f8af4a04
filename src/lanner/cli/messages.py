"""`lanner publish`, `lanner consume`, `lanner peek`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from lanner.cli import parsing
from lanner.cli.options import SERVERS_DEFAULT, AsJson, Partition, Servers, Topic
from lanner.cli.screen import Screen, count_text, harmless, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lanner.cli.outlet import Outlet
    from lanner.client import MessageBatch, Queue, Receipts

_DRAIN_WAIT_MS: Final = 250
_FOLLOW_WAIT_MS: Final = 10_000
_COLOURS: Final = {9: "red", 0: "blue"}


class Shown(Protocol):
    """As much of a message as is printed."""

    @property
    def id(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> bytes: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> Mapping[str, bytes]: ...
    @property
    def priority(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def attempt(self) -> int: ...


def publish(
    topic: Topic,
    values: Annotated[
        list[str] | None, typer.Argument(help="Messages; without any, each line of standard input is one.")
    ] = None,
    priority: Annotated[str, typer.Option("--priority", "-p", help="0 to 9, or low, normal, high.")] = "normal",
    key: Annotated[str | None, typer.Option("--key", "-k", help="Messages of one key keep their order.")] = None,
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="NAME=VALUE; may be repeated.")] = None,
    partition: Partition = None,
    delay_ms: Annotated[int | None, typer.Option("--delay-ms", min=0, help="Deliver only after this.")] = None,
    ttl_ms: Annotated[int | None, typer.Option("--ttl-ms", min=0, help="Do not deliver after this.")] = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Publish messages. Returns once they are on disk.

    \b
    Example: lanner publish orders 'refund RF001' --priority high
    Example: cat events.jsonl | lanner publish events
    """
    screen = Screen(as_json)
    # Bytes of the command line that are no text are bytes of the message.
    headers = {name: os.fsencode(value) for name, value in parsing.pairs(header or (), "--header").items()} or None
    options: dict[str, Any] = {
        "priority": int(priority) if parsing.is_number(priority) else priority,
        "partition": partition,
        "delay_ms": delay_ms,
        "ttl_ms": ttl_ms,
    }

    async def send(queue: Queue, chunk: list[bytes]) -> Receipts:
        keys = None if key is None else [os.fsencode(key)] * len(chunk)
        each = None if headers is None else [headers] * len(chunk)
        return await queue.publish_many(topic, chunk, keys=keys, headers=each, **options)

    if values:
        for receipt in screen.with_queue(servers, lambda queue: send(queue, [os.fsencode(value) for value in values])):
            screen.say(receipt.id, {"id": receipt.id, **receipt._asdict()})
        return
    if sys.stdin.isatty():
        screen.fail("give messages, or pipe lines in: cat file | lanner publish TOPIC", kind="UsageError", code=2)
    began = time.monotonic()
    total = screen.with_queue(servers, lambda queue: _pump(screen, queue, send, began))
    seconds = max(time.monotonic() - began, 1e-6)
    messages = "message" if total == 1 else "messages"
    screen.say(
        f"Published {count_text(total)} {messages} in {seconds:.2f} s ({count_text(total / seconds)} a second).",
        {"published": total, "seconds": round(seconds, 3), "rate": round(total / seconds)},
    )


async def _pump(
    screen: Screen, queue: Queue, send: Callable[[Queue, list[bytes]], Awaitable[Receipts]], began: float
) -> int:
    from lanner.cli.inlet import Inlet

    total = 0
    with _Progress(screen.as_json) as progress:
        async for lines in Inlet(sys.stdin).lines():
            await send(queue, lines)
            total += len(lines)
            progress.show(total, time.monotonic() - began)
    return total


def consume(
    topic: Topic,
    group: Annotated[
        str, typer.Option("--group", "-g", help="The group to consume as; it has its own progress.")
    ] = "cli",
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Settle what was shown, or give it back at the end.")
    ] = True,
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="At most so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until Ctrl-C.")] = False,
    values: Annotated[bool, typer.Option("--values", help="Print only the values.")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="A new group begins at the end, not at the start.")] = False,
    assignor: Annotated[
        str | None,
        typer.Option(
            "--assignor",
            help="Join the group as a member with partitions of its own: sticky, range or round_robin. Without it all "
            "consumers of a group share every partition.",
        ),
    ] = None,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Consume messages, the most urgent first; without --follow until there are no more.

    A message is acknowledged once it was printed; into a pipe, once the program at its other end has taken it. What
    that program did not take goes back at once: `lanner consume orders | head -2` takes two messages.
    """
    from lanner.cli.outlet import Outlet

    screen = Screen(as_json)
    outlet = Outlet(sys.stdout)

    async def work(queue: Queue) -> int:
        shown = 0
        start = "latest" if latest else "earliest"
        async with queue.consumer(topic, group, start=start, auto_extend=True, assignor=assignor) as consumer:
            while count is None or shown < count:
                wanted = 100 if count is None else min(100, count - shown)
                batch = await consumer.poll(wanted, _FOLLOW_WAIT_MS if follow else _DRAIN_WAIT_MS)
                if not batch and not follow:
                    break
                await _hand_over(screen, outlet, batch, values, ack)
                shown += len(batch)
        return shown

    shown = screen.with_queue(servers, work)
    if not shown and not as_json and not values:
        typer.secho(f"Nothing to consume for group {group}.", err=True, dim=True)


async def _hand_over(screen: Screen, outlet: Outlet, batch: MessageBatch, values: bool, ack: bool) -> None:
    """Print messages and ack them. When that is cut short, ack what was taken and leave the rest as not seen."""
    taken = written = 0
    try:
        for message in batch:
            _show(screen, message, values)
            written += 1
            await outlet.passed()
            taken = written
        outlet.flush()
    except BaseException:
        taken = taken if outlet.has_unread else written
        for message in batch[:taken] if ack else ():
            message.ack()
        batch.unseen_from(taken)
        raise
    if ack and batch:
        await batch.ack()


def peek(
    topic: Topic,
    offset: Annotated[int, typer.Option(min=0, help="From this offset on.")] = 0,
    partition: Partition = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=1_000, help="At most so many.")] = 10,
    values: Annotated[bool, typer.Option("--values", help="Print only the values.")] = False,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Look at messages without taking them, the most urgent first."""
    screen = Screen(as_json)

    async def look(queue: Queue) -> int:
        """Page by page: each is bounded in bytes."""
        shown, after = 0, None
        while shown < count:
            page = await queue.admin.peek(topic, count - shown, partition=partition, offset=offset, after=after)
            for message in page:
                _show(screen, message, values)
            shown += len(page)
            after = page.next
            if after is None:
                break
        return shown

    found = screen.with_queue(servers, look)
    if not found and not as_json and not values:
        typer.secho("No messages there.", err=True, dim=True)


def as_document(message: Shown) -> dict[str, Any]:
    """A message as JSON; bytes that are not UTF-8 as base64, as REST does it."""
    value, encoding = text_of(message.value)
    key, key_encoding = text_of(message.key)
    document: dict[str, Any] = {
        "id": message.id,
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "priority": message.priority,
        "timestamp_ms": message.timestamp_ms,
        "attempt": message.attempt,
        "value": value,
    }
    if encoding:
        document["encoding"] = encoding
    if key is not None:
        document["key"] = key
    if key_encoding:
        document["key_encoding"] = key_encoding
    if message.headers:
        document["headers"] = {name: text_of(header)[0] for name, header in message.headers.items()}
    return document


def _show(screen: Screen, message: Shown, values: bool) -> None:
    if screen.as_json:
        screen.document(as_document(message))
        return
    text, _ = text_of(message.value)
    if values:  # as they are, for programs
        sys.stdout.write(f"{harmless(text or '') if sys.stdout.isatty() else text}\n")
        return
    from lanner.model import priority_name

    name = typer.style(f"{priority_name(message.priority)!s:>6}", fg=_COLOURS.get(message.priority))
    retry = typer.style(f" (attempt {message.attempt})", fg="yellow") if message.attempt > 1 else ""
    typer.echo(f"{name}  {typer.style(message.id, dim=True)}{retry}  {harmless(text or '')}")


class _Progress:
    """A counter on the terminal while lines flow in; nothing where nobody watches."""

    def __init__(self, as_json: bool) -> None:
        self._shown = not as_json and sys.stderr.isatty()
        self._progress: Any = None
        self._task: Any = None
        self._total = 0

    def __enter__(self) -> _Progress:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                SpinnerColumn(),
                BarColumn(),
                TextColumn("{task.completed:,.0f} published"),
                TextColumn("{task.fields[rate]}"),  # rich's own speed is None until it has seen two steps
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task("publish", total=None, rate="")
        return self

    def show(self, total: int, seconds: float) -> None:
        self._total = total
        if self._progress is not None:
            rate = f"{count_text(total / max(seconds, 1e-6))} a second"
            self._progress.update(self._task, completed=total, rate=rate)

    def __exit__(self, kind: object, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
            if kind is not None:  # the counter is gone, and how far it came is worth knowing
                self._progress.console.print(f"Stopped; at least {self._total:,} published.", highlight=False)
