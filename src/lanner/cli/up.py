"""`lanner up`: one broker in this process, until it is told to stop."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lanner import limits
from lanner.cli.config import Config, origin_of, unread_variables
from lanner.cli.options import SERVERS_VARIABLE, AsJson
from lanner.cli.screen import EXIT_DAMAGED, EXIT_REMOVED, Screen
from lanner.errors import BrokerRemoved, LannerError, StorageDamaged, ValidationError

if TYPE_CHECKING:
    from lanner.broker.settings import BrokerSettings
    from lanner.server import Server

Data = Annotated[str, typer.Option("--data", "-d", envvar="LANNER_DATA", help="The folder that holds everything.")]
Http = Annotated[str, typer.Option(envvar="LANNER_HTTP", help="REST, HOST:PORT; empty: off.")]
Native = Annotated[str, typer.Option(envvar="LANNER_NATIVE", help="The native protocol, HOST:PORT; empty: off.")]
Grpc = Annotated[str, typer.Option(envvar="LANNER_GRPC", help="gRPC, HOST:PORT; empty: off.")]
AutoCreate = Annotated[
    bool, typer.Option("--auto-create/--no-auto-create", envvar="LANNER_AUTO_CREATE", help="Make topics by publishing.")
]
Partitions = Annotated[
    int, typer.Option(envvar="LANNER_PARTITIONS", min=1, help="Partitions of a topic that does not say.")
]
DiskReserve = Annotated[
    int,
    typer.Option(
        envvar="LANNER_DISK_RESERVE",
        min=-1,
        help="Bytes of the disk to keep free; -1: 5%, at least 1 GiB, on disks under 20 GiB two segments.",
    ),
]

Name = Annotated[
    str, typer.Option(envvar="LANNER_NAME", help="This broker's name; it stays when its disk is replaced.")
]
Rack = Annotated[str, typer.Option(envvar="LANNER_RACK", help="Copies of a partition go to different racks.")]
Seeds = Annotated[
    str,
    typer.Option(
        envvar="LANNER_SEEDS",
        help="Found a cluster: HOST:PORT,HOST:PORT,... of every founder's native door, in the same order everywhere.",
    ),
]
Join = Annotated[
    str,
    typer.Option(
        envvar="LANNER_JOIN",
        help="Enter a running cluster: native HOST:PORT of any broker, or several, comma separated.",
    ),
]
Advertise = Annotated[
    str, typer.Option(envvar="LANNER_ADVERTISE", help="HOST:PORT where others reach the native door; empty: as bound.")
]
AllowOrigin = Annotated[
    str,
    typer.Option(
        envvar="LANNER_ALLOW_ORIGIN",
        help="Web pages that may use REST beside the broker's own: SCHEME://HOST:PORT,...; * is any.",
    ),
]
ConnectionsMax = Annotated[
    int,
    typer.Option(
        envvar="LANNER_CONNECTIONS_MAX",
        help="Connections of callers over all doors; fewer, where the process may not open so many files.",
    ),
]
UnfinishedBytesMax = Annotated[
    int,
    typer.Option(
        envvar="LANNER_UNFINISHED_BYTES_MAX",
        help="Bytes of all requests that are not whole yet; beyond it the slowest is let go.",
    ),
]
FrameDeadline = Annotated[
    int, typer.Option(envvar="LANNER_FRAME_DEADLINE_MS", help="Milliseconds from a request's first byte to its last.")
]
BodyDeadline = Annotated[
    int,
    typer.Option(envvar="LANNER_BODY_DEADLINE_MS", help="Milliseconds for the body of an HTTP request to arrive."),
]
ControlBytesMax = Annotated[
    int,
    typer.Option(
        envvar="LANNER_CONTROL_BYTES_MAX",
        help="Bytes of the control parts of all native requests in hand; beyond it they are refused.",
    ),
]
StopMs = Annotated[
    int,
    typer.Option(
        envvar="LANNER_STOP_MS",
        help="Milliseconds for the disk to take what is in flight when the broker stops; then it ends without it.",
    ),
]
_FIELDS: Final = {  # where the broker's setting has another name than the option
    "auto_create": "auto_create_topics",
    "partitions": "default_partitions",
    "disk_reserve": "disk_reserve_bytes",
    "allow_origin": "allow_origins",
}
_LISTS: Final = frozenset({"seeds", "allow_origin"})
_NO_SETTINGS: Final = frozenset({"config", "as_json"})


def up(
    context: typer.Context,
    data: Data = "data",
    http: Http = "127.0.0.1:8080",
    native: Native = "127.0.0.1:7400",
    grpc: Grpc = "127.0.0.1:8000",
    auto_create: AutoCreate = True,
    partitions: Partitions = 3,
    disk_reserve: DiskReserve = -1,
    name: Name = "",
    rack: Rack = "",
    seeds: Seeds = "",
    join: Join = "",
    advertise: Advertise = "",
    allow_origin: AllowOrigin = "",
    connections_max: ConnectionsMax = limits.CONNECTIONS_MAX,
    unfinished_bytes_max: UnfinishedBytesMax = limits.UNFINISHED_BYTES_MAX,
    frame_deadline_ms: FrameDeadline = limits.FRAME_DEADLINE_MS,
    body_deadline_ms: BodyDeadline = limits.BODY_DEADLINE_MS,
    control_bytes_max: ControlBytesMax = limits.CONTROLS_BYTES_MAX,
    stop_ms: StopMs = 10_000,
    config: Config = "",
    as_json: AsJson = False,
) -> None:
    """Run one broker until Ctrl-C.

    Flags win over LANNER_* environment variables, and those over --config. Port 0 picks a free port.
    """
    screen = Screen(as_json)
    screen.need("server", "lanner up")
    _run(context, screen)


def listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def settings_of(context: typer.Context) -> BrokerSettings:
    """The settings that the options of a command say; a refused one is blamed on the place that it was given at."""
    from lanner.broker.settings import BrokerSettings

    given: dict[str, Any] = {}
    for name, value in context.params.items():
        if name not in _NO_SETTINGS:
            given[_FIELDS.get(name, name)] = listed(value) if name in _LISTS else value
    try:
        return BrokerSettings(**given)
    except ValidationError as error:
        raise blamed(context, error, _FIELDS) from error


def variables_of(context: typer.Context) -> set[str]:
    """The variables that this command or another reads."""
    return {SERVERS_VARIABLE, *(str(parameter.envvar) for parameter in context.command.params if parameter.envvar)}


def warn_of_unread(context: typer.Context) -> None:
    """Say in the log which variables look like settings and are none."""
    for variable, meant in unread_variables(variables_of(context), os.environ):
        if meant:
            logging.warning("the variable %s is not read; did you mean %s?", variable, meant)


def blamed(context: typer.Context, error: ValidationError, fields: Mapping[str, str]) -> ValidationError:
    """The same, with the place that the setting was given at; `fields` are settings that options call otherwise."""
    field = str(error.details.get("field", ""))
    name = next((option for option, setting in fields.items() if setting == field), field)
    origin = origin_of(context, name) if name in context.params else ""
    return ValidationError(f"{origin}: {error.message}", **error.details, origin=origin) if origin else error


def _run(context: typer.Context, screen: Screen) -> None:
    def work() -> LannerError | None:
        from lanner.net.loop import run
        from lanner.server import serve

        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)

        def started(server: Server) -> None:
            _tell(screen, server)

        settings = settings_of(context)
        warn_of_unread(context)
        try:
            return run(serve(settings, started))
        except ValidationError as error:
            raise blamed(context, error, _FIELDS) from error
        except (BrokerRemoved, StorageDamaged) as error:
            return error

    failure = screen.guard(work)
    if isinstance(failure, BrokerRemoved):
        screen.fail(failure.message, kind=failure.name, code=EXIT_REMOVED, **failure.details)
    if isinstance(failure, StorageDamaged):
        screen.fail(failure.message, kind=failure.name, code=EXIT_DAMAGED, **failure.details)
    if failure is not None:
        from lanner.server import leave

        try:
            screen.fail(f"the broker stopped: {failure}", kind=type(failure).__name__)
        finally:
            leave(failure)
    screen.say("Stopped; everything acknowledged is on disk.", {"event": "stopped"})


def _tell(screen: Screen, server: Server) -> None:
    http_url = f"http://{shown(server.http_address)}" if server.http_address else None
    native_address = shown(server.native_address) if server.native_address else None
    grpc_address = shown(server.grpc_address) if server.grpc_address else None
    data, node = server.settings.data, server.node
    if screen.as_json:
        doors = {"http": http_url, "native": native_address, "grpc": grpc_address}
        who = {"name": node.identity.name, "node_id": node.node_id, "cluster_id": node.membership.cluster_id}
        screen.document({"event": "ready", "data": data, **doors, **who})
        return
    typer.secho("Lanner is up.", fg="green", bold=True)
    screen.facts(
        {
            "name": node.identity.name,
            "data": data,
            "native": native_address or "off",
            "REST": http_url or "off",
            "docs": f"{http_url}/docs" if http_url else "off",
            "gRPC": grpc_address or "off",
        }
    )
    if native_address is not None:
        where = "" if native_address == "127.0.0.1:7400" else f" -s {native_address}"
        program = "lanner" if shutil.which("lanner") else sys.argv[0]
        typer.echo("\nTry, in another terminal:")
        typer.secho(f"  {program} publish orders 'refund RF001' --priority high{where}", fg="cyan")
        typer.secho(f"  {program} consume orders --group billing{where}", fg="cyan")
    typer.echo("\nCtrl-C stops it; nothing acknowledged is lost.")


def shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
