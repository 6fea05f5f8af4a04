"""`lanner proxy`: all doors of a cluster behind one address, in this process, until it is told to stop."""

from __future__ import annotations

import logging
import shutil
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lanner import limits
from lanner.cli.config import Config
from lanner.cli.options import SERVERS_DEFAULT, AsJson, Servers
from lanner.cli.screen import Screen
from lanner.cli.up import (
    AllowOrigin,
    BodyDeadline,
    ConnectionsMax,
    ControlBytesMax,
    FrameDeadline,
    UnfinishedBytesMax,
    blamed,
    listed,
    shown,
    warn_of_unread,
)
from lanner.errors import ValidationError

if TYPE_CHECKING:
    from lanner.proxy.server import ProxyServer
    from lanner.proxy.settings import ProxySettings

Native = Annotated[str, typer.Option(envvar="LANNER_PROXY_NATIVE", help="The native protocol, HOST:PORT; empty: off.")]
Http = Annotated[str, typer.Option("--http", "--rest", envvar="LANNER_PROXY_HTTP", help="REST, HOST:PORT; empty: off.")]
Grpc = Annotated[str, typer.Option(envvar="LANNER_PROXY_GRPC", help="gRPC, HOST:PORT; empty: off.")]
Name = Annotated[
    str, typer.Option(envvar="LANNER_PROXY_NAME", help="Under which brokers see the connections of this proxy.")
]
Advertise = Annotated[
    str,
    typer.Option(
        envvar="LANNER_PROXY_ADVERTISE", help="HOST:PORT where clients reach the native door; empty: as bound."
    ),
]
_FIELDS: Final = {"allow_origin": "allow_origins"}
_NO_SETTINGS: Final = frozenset({"config", "as_json"})


def proxy(
    context: typer.Context,
    servers: Servers = SERVERS_DEFAULT,
    native: Native = "127.0.0.1:7500",
    http: Http = "127.0.0.1:8090",
    grpc: Grpc = "127.0.0.1:8010",
    name: Name = "proxy",
    advertise: Advertise = "",
    allow_origin: AllowOrigin = "",
    connections_max: ConnectionsMax = limits.CONNECTIONS_MAX,
    unfinished_bytes_max: UnfinishedBytesMax = limits.UNFINISHED_BYTES_MAX,
    frame_deadline_ms: FrameDeadline = limits.FRAME_DEADLINE_MS,
    body_deadline_ms: BodyDeadline = limits.BODY_DEADLINE_MS,
    control_bytes_max: ControlBytesMax = limits.CONTROLS_BYTES_MAX,
    config: Config = "",
    as_json: AsJson = False,
) -> None:
    """Run a proxy until Ctrl-C: all doors of a cluster behind one address, for clients that can reach no broker.

    It holds no data; start as many as you like. Flags win over LANNER_* environment variables, and those over --config.
    Port 0 picks a free port.

    \b
    Example: lanner proxy --servers broker1:7400,broker2:7400,broker3:7400 --native 0.0.0.0:7500
    """
    screen = Screen(as_json)
    screen.need("server", "lanner proxy")

    def work() -> None:
        from lanner.net.loop import run
        from lanner.proxy.server import serve

        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
        settings = settings_of(context)
        warn_of_unread(context)
        try:
            run(serve(settings, lambda server: _tell(screen, server)))
        except ValidationError as error:
            raise blamed(context, error, _FIELDS) from error

    screen.guard(work)
    screen.say("Stopped; the brokers have everything that was acknowledged.", {"event": "stopped"})


def settings_of(context: typer.Context) -> ProxySettings:
    """The settings that the options of a command say; a refused one is blamed on the place that it was given at."""
    from lanner.proxy.settings import ProxySettings

    given: dict[str, Any] = {
        _FIELDS.get(name, name): listed(value) if name == "allow_origin" else value
        for name, value in context.params.items()
        if name not in _NO_SETTINGS
    }
    try:
        return ProxySettings(**given)
    except ValidationError as error:
        raise blamed(context, error, _FIELDS) from error


def _tell(screen: Screen, server: ProxyServer) -> None:
    addresses = {door: server.address(door) for door in ("native", "http", "grpc")}
    doors = {door: None if address is None else shown(address) for door, address in addresses.items()}
    url = f"http://{doors['http']}" if doors["http"] else None
    brokers = server.settings.servers
    if screen.as_json:
        who = {"servers": brokers, "node_id": server.service.node_id, "cluster_id": server.service.cluster_id}
        screen.document({"event": "ready", **doors, "http": url, **who})
        return
    typer.secho("The proxy is up.", fg="green", bold=True)
    screen.facts(
        {
            "brokers": brokers,
            "native": doors["native"] or "off",
            "REST": url or "off",
            "docs": f"{url}/docs" if url else "off",
            "gRPC": doors["grpc"] or "off",
        }
    )
    if doors["native"]:
        program = "lanner" if shutil.which("lanner") else sys.argv[0]
        typer.echo("\nTry, in another terminal:")
        typer.secho(f"  {program} publish orders 'refund RF001' --priority high -s {doors['native']}", fg="cyan")
        typer.secho(f"  {program} consume orders --group billing -s {doors['native']}", fg="cyan")
    typer.echo("\nCtrl-C stops it; it holds nothing.")
