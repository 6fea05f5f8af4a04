"""`lanner bench`: a quick load on a topic of its own, to see what this machine and this broker do together."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers
from lanner.cli.screen import Screen, bytes_text, count_text

if TYPE_CHECKING:
    from lanner.cli.load import Figure
    from lanner.client import Queue


def bench(
    count: Annotated[int, typer.Option("--messages", "-n", min=100, help="How many messages.")] = 200_000,
    size: Annotated[int, typer.Option("--size", min=1, max=1 << 20, help="Bytes of each.")] = 100,
    batch: Annotated[int, typer.Option("--batch", min=1, max=10_000, help="Messages of one call.")] = 1_000,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the topic there afterwards.")] = False,
    servers: Servers = SERVERS_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Measure publishing, consuming and reading against a running broker."""
    screen = Screen(as_json)
    topic = f"bench-{secrets.token_hex(4)}"

    async def work(queue: Queue) -> list[Figure]:
        from lanner.cli import load

        await queue.admin.create_topic(topic, partitions=3)
        try:
            return [
                await load.publish(queue, topic, count, size, batch),
                await load.publish_singly(queue, topic, max(100, count // 40), size),
                await load.read(queue, topic),
                await load.consume(queue, topic, batch),
            ]
        finally:
            if not keep:
                await queue.admin.delete_topic(topic)

    _show(screen, screen.with_queue(servers, work), size, batch)


def _show(screen: Screen, figures: list[Figure], size: int, batch: int) -> None:
    if screen.as_json:
        rows: list[dict[str, Any]] = [
            {
                "what": figure.what,
                "messages": figure.messages,
                "seconds": round(figure.seconds, 4),
                "rate": round(figure.rate),
            }
            for figure in figures
        ]
        screen.document({"size": size, "batch": batch, "results": rows})
        return
    screen.table(
        ["", "messages", "seconds", "messages/s", "payload/s"],
        [
            (
                figure.what,
                figure.messages,
                f"{figure.seconds:.2f}",
                count_text(figure.rate),
                bytes_text(figure.rate * size),
            )
            for figure in figures
        ],
        title=f"{size} bytes a message; every acknowledged one was on disk",
    )
