"""`lanner up` and `lanner version`."""

from __future__ import annotations

from typing import Annotated

import typer

from lanner.cli.options import AsJson
from lanner.cli.screen import Screen


def up(
    data: Annotated[
        str, typer.Option("--data", "-d", envvar="LANNER_DATA", help="The folder that holds everything.")
    ] = "data",
    http: Annotated[str, typer.Option(envvar="LANNER_HTTP", help="REST, HOST:PORT; empty: off.")] = "127.0.0.1:8080",
    native: Annotated[
        str, typer.Option(envvar="LANNER_NATIVE", help="The native protocol, HOST:PORT; empty: off.")
    ] = "127.0.0.1:7400",
    grpc: Annotated[str, typer.Option(envvar="LANNER_GRPC", help="gRPC, HOST:PORT. Not yet there.")] = "",
    auto_create: Annotated[
        bool,
        typer.Option("--auto-create/--no-auto-create", envvar="LANNER_AUTO_CREATE", help="Make topics by publishing."),
    ] = True,
    partitions: Annotated[
        int, typer.Option(envvar="LANNER_PARTITIONS", min=1, help="Partitions of a topic that does not say.")
    ] = 3,
    disk_reserve: Annotated[
        int,
        typer.Option(
            envvar="LANNER_DISK_RESERVE", help="Bytes of the disk to keep free; -1: the larger of 1 GiB and 5%.", min=-1
        ),
    ] = -1,
    as_json: AsJson = False,
) -> None:
    """Run one broker until Ctrl-C.

    Flags win over LANNER_* environment variables. Port 0 picks a free port.
    """
    screen = Screen(as_json)

    def work() -> Exception | None:
        from lanner.broker.settings import BrokerSettings
        from lanner.net.loop import run
        from lanner.server import Server, serve

        settings = BrokerSettings(
            data=data,
            http=http,
            native=native,
            grpc="",
            auto_create_topics=auto_create,
            default_partitions=partitions,
            disk_reserve_bytes=disk_reserve,
        )

        def started(server: Server) -> None:
            _tell(screen, data, server.http_address, server.native_address, grpc)

        return run(serve(settings, started))

    failure = screen.guard(work)
    if failure is not None:
        screen.fail(f"the broker stopped: {failure}", kind=type(failure).__name__)
    screen.say("Stopped; everything acknowledged is on disk.", {"event": "stopped"})


def version(as_json: AsJson = False) -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    number = installed("lanner")
    Screen(as_json).say(f"lanner {number}", {"version": number})


def _tell(screen: Screen, data: str, http: tuple[str, int] | None, native: tuple[str, int] | None, grpc: str) -> None:
    http_url = f"http://{_shown(http)}" if http else None
    native_address = _shown(native) if native else None
    if screen.as_json:
        screen.document({"event": "ready", "data": data, "http": http_url, "native": native_address, "grpc": None})
        return
    typer.secho("Lanner is up.", fg="green", bold=True)
    screen.facts(
        {
            "data": data,
            "native": native_address or "off",
            "REST": http_url or "off",
            "docs": f"{http_url}/docs" if http_url else "off",
            "gRPC": "not yet: it comes with a later version" if grpc else "off",
        }
    )
    server = "" if native_address in (None, "127.0.0.1:7400") else f" -s {native_address}"
    typer.echo("\nTry, in another terminal:")
    typer.secho(f"  lanner publish orders 'refund RF001' --priority high{server}", fg="cyan")
    typer.secho(f"  lanner consume orders --group billing{server}", fg="cyan")
    typer.echo("\nCtrl-C stops it; nothing acknowledged is lost.")


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
