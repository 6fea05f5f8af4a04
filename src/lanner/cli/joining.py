"""A broker that is started here to join a cluster: `lanner up --join` as a child, watched until it is active."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer

from lanner.cli.dev_folder import HOST
from lanner.cli.local_brokers import end_with_parent
from lanner.cli.screen import EXIT_REMOVED, Screen
from lanner.errors import LannerError, ServiceUnavailable, ValidationError
from lanner.wire.cluster import ClusterDescription

_LOOK_SECONDS: Final = 0.25
_STOP_SECONDS: Final = 20.0
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Wish(NamedTuple):
    """What was asked for; empty: choose."""

    data: str
    name: str
    native: str
    http: str
    advertise: str
    rack: str
    grpc: str


async def run(screen: Screen, servers: str, wish: Wish) -> None:
    """Start it, show how it joins, and stay until it ends or is told to."""
    from lanner.client import connect

    async with connect(servers, client_name="lanner-cli") as queue:
        known = await queue.admin.describe_cluster()
        wish = completed(wish, known, servers)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        child = _start(wish, entrance(known, servers))
        try:
            _tell_start(screen, wish, child.pid)
            shown = ""
            while child.poll() is None and not stop.is_set():
                state = shown if shown == "active" else await _state(queue, wish)
                if state != shown:
                    _tell_state(screen, wish, state, child.pid)
                shown = state
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await stop.wait()
        finally:
            ended = child.poll()
            await _end(child)
    if ended == EXIT_REMOVED:
        name = wish.name or "The broker"
        screen.say(f"{name} was removed from the cluster and has ended; its data can go.", {"event": "removed"})
        return
    if ended is not None:
        raise ServiceUnavailable(f"{wish.name or 'the broker'} ended with code {ended}; what it said last is above")
    screen.say("Stopped; everything acknowledged is on disk.", {"event": "stopped"})


def entrance(known: ClusterDescription, servers: str) -> str:
    """Where to ask for entry: the brokers that are alive, at the addresses by which brokers know them."""
    alive = [broker.addresses["native"] for broker in known.brokers if broker.alive and "native" in broker.addresses]
    return ",".join(alive) or servers


def _start(wish: Wish, join: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(wish, join),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    )


async def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    deadline = asyncio.get_running_loop().time() + _STOP_SECONDS
    while child.poll() is None:
        if asyncio.get_running_loop().time() > deadline:
            child.kill()
        await asyncio.sleep(0.05)


def completed(wish: Wish, known: ClusterDescription, servers: str) -> Wish:
    """The wish with everything chosen that was left open."""
    names = {broker.name for broker in known.brokers}
    name = wish.name or next(f"node-{number}" for number in range(1, len(names) + 2) if f"node-{number}" not in names)
    data = wish.data or f"data-{name}"
    if (Path(data) / "identity.json").exists():
        name = wish.name  # it has one, and keeps it
    remote = [part for part in servers.split(",") if part.strip().rpartition(":")[0].strip("[]") not in _LOCAL]
    if not wish.native and not wish.advertise and len(remote) == len(servers.split(",")):
        raise ValidationError(
            "the cluster is on other machines, so they must be able to reach this broker: give --native HOST:PORT with "
            "an address of this machine",
            field="native",
        )
    native = wish.native or f"{HOST}:{_free_port()}"
    http = wish.http or f"{HOST}:{_free_port()}"
    return wish._replace(data=data, name=name, native=native, http=http, grpc=wish.grpc or f"{HOST}:{_free_port()}")


def command(wish: Wish, join: str) -> list[str]:
    words = [sys.executable, "-m", "lanner.cli", "up", "--data", wish.data, "--native", wish.native]
    words += ["--http", wish.http, "--grpc", wish.grpc, "--join", join]
    for flag, value in (("--name", wish.name), ("--advertise", wish.advertise), ("--rack", wish.rack)):
        words += [flag, value] if value else []
    return words


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


async def _state(queue: Any, wish: Wish) -> str:
    """What the cluster says of the broker in this folder."""
    try:
        node_id = json.loads((Path(wish.data) / "identity.json").read_bytes())["node_id"]
    except (OSError, ValueError, KeyError):
        return "starting"
    try:
        known: ClusterDescription = await queue.admin.describe_cluster()
    except LannerError as error:
        return f"unknown ({error.message})"
    return next((broker.state for broker in known.brokers if broker.node_id == node_id), "asking to join")


def _tell_start(screen: Screen, wish: Wish, pid: int) -> None:
    if screen.as_json:
        screen.document({"event": "starting", "pid": pid, **_described(wish)})
        return
    screen.facts(
        {
            "broker": wish.name or "as it was called",
            "process": str(pid),
            "data": os.path.normpath(wish.data),
            "native": wish.native,
            "REST": f"http://{wish.http}",
            "gRPC": wish.grpc,
        }
    )


def _tell_state(screen: Screen, wish: Wish, state: str, pid: int) -> None:
    if screen.as_json:
        event = {"active": "ready"}.get(state, "joining")
        screen.document({"event": event, "state": state, "pid": pid, **_described(wish)})
    elif state == "active":
        typer.secho(f"{wish.name or 'It'} is active: new topics use it.", fg="green", bold=True)
        typer.echo("To give it replicas of the topics there are: lanner cluster rebalance")
        again = f"lanner up --data {wish.data} --native {wish.native} --http {wish.http} --grpc {wish.grpc}"
        typer.echo(f"Ctrl-C stops it. To start it again: {again}")
    else:
        typer.echo(f"{state} ...")


def _described(wish: Wish) -> dict[str, str]:
    doors = {"native": wish.native, "http": f"http://{wish.http}", "grpc": wish.grpc}
    return {"name": wish.name, **doors, "data": wish.data}
