"""What `lanner broker scrub` does: one broker after the other, with progress, and one line for each in the end."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import typer

from lanner.cli import watching
from lanner.cli.screen import Screen, bytes_text, count_text, plain

if TYPE_CHECKING:
    from lanner.client import Queue
    from lanner.wire.cluster import BrokerState, ScrubProgress


def run(screen: Screen, servers: str, name: str) -> None:
    told = screen.with_queue(servers, lambda queue: _scrub_each(screen, queue, name))
    if screen.as_json:
        screen.document({"brokers": told})
    if any("error" in one or one["damaged"] for one in told):
        raise typer.Exit(1)


async def _scrub_each(screen: Screen, queue: Queue, name: str) -> list[dict[str, Any]]:
    """What came of each broker; one that cannot be asked is told, and the next one follows."""
    from lanner.errors import LannerError

    told: list[dict[str, Any]] = []
    for broker in await _chosen(queue, name):
        begins = {"broker": broker.name, "node_id": broker.node_id}
        try:
            ended = await _scrub(screen, queue, broker)
        except LannerError as error:
            told.append({**begins, "error": error.name, "message": error.message})
            line = f"{broker.name}: not scrubbed: {error.message}"
        else:
            told.append({**begins, **plain(ended)})
            line = f"{broker.name}: {_outcome(ended)}"
        if not screen.as_json:
            typer.echo(line)
    return told


async def _chosen(queue: Queue, name: str) -> list[BrokerState]:
    from lanner.errors import NotFoundError

    found = await queue.admin.describe_cluster()
    if not name:
        return [broker for broker in found.brokers if broker.state != "lost"]
    broker = watching.broker_of(found, name)
    if broker is None:
        known = ", ".join(one.name for one in found.brokers)
        raise NotFoundError(f"there is no broker {name!r}; there are: {known}", broker=name)
    return [broker]


async def _scrub(screen: Screen, queue: Queue, broker: BrokerState) -> ScrubProgress:
    from lanner.errors import ServiceUnavailable

    found = await queue.admin.scrub(broker.node_id)
    before = found.passes
    with _Bar(screen, f"scrub {broker.name}") as bar:
        while found.running:
            bar.show(found)
            await asyncio.sleep(watching.POLL_SECONDS)
            found = await queue.admin.scrub_progress(broker.node_id)
    if found.passes <= before:
        raise ServiceUnavailable("it was started anew before the pass had ended; scrub it again")
    return found


def _outcome(found: ScrubProgress) -> str:
    damaged = (
        f"{count_text(found.damaged)} {'is' if found.damaged == 1 else 'are'} damaged: see its log and lanner cluster"
    )
    return (
        f"{count_text(found.entries)} entries and {count_text(found.rows)} rows ({bytes_text(found.read_bytes)}) read, "
        f"{damaged if found.damaged else 'nothing is damaged'}"
    )


class _Bar:
    """How far a pass is, for people who look."""

    def __init__(self, screen: Screen, what: str) -> None:
        self._shown = not screen.as_json and sys.stderr.isatty()
        self._what = what
        self._progress: Any = None
        self._task: Any = None

    def __enter__(self) -> _Bar:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task(self._what, total=None)
        return self

    def show(self, found: ScrubProgress) -> None:
        if self._progress is not None:
            total = max(found.expected_bytes, found.read_bytes)  # rows come on top
            self._progress.update(self._task, total=total, completed=found.read_bytes)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
