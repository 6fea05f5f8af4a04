"""`lanner dev`: a cluster on this machine, until it is told to stop."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lanner.cli.options import AsJson
from lanner.cli.screen import Screen
from lanner.errors import DataDirectoryRefused

if TYPE_CHECKING:
    from lanner.cli.local_brokers import Child
    from lanner.wire.cluster import ClusterDescription

_PATIENCE_SECONDS = 20.0

Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes", "-n", min=1, max=9, help="How many brokers.", show_default="3, or as many as the folder has"
    ),
]
Data = Annotated[Path, typer.Option("--data", "-d", help="The folder that holds everything.")]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        min=1,
        max=65_523,
        help="Broker n listens on PORT+10n (native), PORT+10n+1 (REST) and PORT+10n+2 (gRPC).",
        show_default="7400, or what the folder has",
    ),
]
Restart = Annotated[bool, typer.Option("--restart", help="Start a broker that died again.")]


def dev(
    nodes: Nodes = None,
    data: Data = Path("dev-data"),
    port: Port = None,
    restart: Restart = False,
    as_json: AsJson = False,
) -> None:
    """Run a cluster of several brokers on this machine until Ctrl-C.

    The same folder starts again with everything in it; with more --nodes than before the new ones join. A broker that
    dies is reported, and left dead unless --restart is given: kill one and see what happens.

    With --json every event is one line: starting, ready (addresses and process ids), died, restarted, removed,
    stopping, stopped. Settings of the brokers come from LANNER_* variables, as for `lanner up`.

    \b
    Example: lanner dev
    Example: lanner dev --nodes 5 --data /tmp/five --port 9000
    """
    import asyncio

    screen = Screen(as_json)
    screen.need("server", "lanner dev")

    async def work() -> None:
        from lanner.cli.dev_folder import lock_folder, open_folder
        from lanner.cli.local_brokers import LocalBrokers

        try:
            lock_folder(data)
            folder = open_folder(data, nodes, port)
        except OSError as error:
            raise DataDirectoryRefused(
                f"{data} cannot be used as a data directory: {error.strerror}; give another with --data"
            ) from error
        brokers = LocalBrokers(folder, Narrator(screen), restart)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, brokers.stop)
        await brokers.run()

    screen.guard(lambda: asyncio.run(work()))


class Narrator:
    """Says what happens."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._began = time.monotonic()
        self._status: Any = None
        self._shown = ""
        self._warned = False
        self._ready = False

    def starting(self, children: Sequence[Child]) -> None:
        if self._screen.as_json:
            self._event("starting", brokers=[_described(child) for child in children])
            return
        self._quiet()
        self._screen.table(
            ["broker", "process", "native", "REST", "gRPC", "log"],
            [
                (
                    child.broker.name,
                    str(child.pid),
                    child.broker.native,
                    f"http://{child.broker.http}",
                    child.broker.grpc,
                    child.broker.log,
                )
                for child in children
            ],
        )

    def waiting(self, children: Sequence[Child]) -> None:
        if self._screen.as_json:
            return
        text = ", ".join(f"{child.broker.name} {child.state}" for child in children)
        if sys.stdout.isatty():
            if self._status is None:
                self._status = self._screen.console.status("")
                self._status.start()
            self._status.update(f"{text}  ({time.monotonic() - self._began:.0f} s)")
        elif text != self._shown:
            typer.echo(text)
        self._shown = text
        if not self._warned and time.monotonic() - self._began > _PATIENCE_SECONDS:
            self._warned = True
            self._quiet()
            for child in children:
                if child.state != "ready":
                    self._say(f"{child.broker.name} is not ready yet; the end of {child.broker.log}:", "yellow")
                    typer.echo("\n".join(f"  {line}" for line in child.broker.log_tail(5)))

    def ready(self, children: Sequence[Child], seen: ClusterDescription) -> None:
        self._ready = True
        servers = ",".join(child.broker.native for child in children)
        if self._screen.as_json:
            self._event(
                "ready",
                cluster_id=seen.cluster_id,
                servers=servers,
                brokers=[_described(child) for child in children],
            )
            return
        self._quiet()
        self._say(f"Ready after {time.monotonic() - self._began:.1f} s.", "green", bold=True)
        program = "lanner" if shutil.which("lanner") else sys.argv[0]
        typer.echo("\nTry, in another terminal:")
        typer.secho(f"  export LANNER_SERVERS={servers}", fg="cyan")
        typer.secho(f"  {program} publish orders 'refund RF001' --priority high", fg="cyan")
        typer.secho(f"  {program} consume orders --group billing", fg="cyan")
        typer.secho(f"  {program} cluster", fg="cyan")
        typer.echo(f"\nKill one and see: kill -9 {children[0].pid}. Ctrl-C stops all; nothing acknowledged is lost.")

    def died(self, child: Child, restart_seconds: float | None) -> None:
        if self._screen.as_json:
            details = {"ending": child.ending, "restart_seconds": restart_seconds, "log_tail": child.broker.log_tail()}
            self._event("died", **_described(child), **details)
            return
        self._quiet()
        self._say(
            f"{child.broker.name} (process {child.pid}) died: {child.ending}. The end of {child.broker.log}:", "red"
        )
        typer.echo("\n".join(f"  {line}" for line in child.broker.log_tail()))
        if restart_seconds is None:
            typer.echo(
                "The others go on. To bring it back: Ctrl-C and the same command again, or begin with --restart."
            )
        else:
            typer.echo(f"It starts again in {restart_seconds:.0f} s.")

    def restarted(self, child: Child) -> None:
        if self._screen.as_json:
            self._event("restarted", **_described(child))
        else:
            self._say(f"{child.broker.name} runs again, as process {child.pid}.", "green")

    def removed(self, child: Child) -> None:
        if self._screen.as_json:
            self._event("removed", **_described(child))
        else:
            text = (
                f"{child.broker.name} was removed from the cluster and is stopped; {child.broker.data} can be deleted."
            )
            self._say(text, "yellow")

    def stopping(self) -> None:
        if self._screen.as_json:
            self._event("stopping")
        else:
            self._quiet()
            typer.echo("\nStopping; Ctrl-C again does not wait.")

    def stopped(self, killed: Sequence[Child]) -> None:
        names = [child.broker.name for child in killed]
        if self._screen.as_json:
            self._event("stopped", killed=names)
            return
        self._quiet()
        if names:
            self._say(f"Killed, because they did not end in time: {', '.join(names)}.", "yellow")
        if self._ready:
            typer.echo("Stopped; everything acknowledged is on disk. The same command starts it again.")

    def _event(self, event: str, **details: Any) -> None:
        self._screen.document({"event": event, **details})

    def _say(self, text: str, colour: str, bold: bool | None = None) -> None:
        typer.secho(text, fg=colour, bold=bold)

    def _quiet(self) -> None:
        """End the line that moves, so that others can be written."""
        if self._status is not None:
            self._status.stop()
            self._status = None


def _described(child: Child) -> dict[str, Any]:
    broker = child.broker
    return {
        "name": broker.name,
        "pid": child.pid,
        "native": broker.native,
        "http": f"http://{broker.http}",
        "grpc": broker.grpc,
        "data": str(broker.data),
        "log": str(broker.log),
    }
