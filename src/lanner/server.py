"""A whole broker in one object: the node, its service and the doors in front of it. `lanner up` runs one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Protocol

from lanner.api.native import NativeDoor
from lanner.broker.node import Node
from lanner.broker.service import Service
from lanner.broker.settings import BrokerSettings, parse_address
from lanner.errors import LannerError, ValidationError

_SWITCH_SECONDS = 0.0005  # a busy loop must not keep the writer thread waiting for longer


class Door(Protocol):
    """What the server needs of a door."""

    async def start(self, host: str, port: int) -> tuple[str, int]: ...
    async def stop(self, drain_ms: int) -> None: ...


class Server:
    """One broker, from opening its data directory to closing it."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.native_address: tuple[str, int] | None = None
        self.http_address: tuple[str, int] | None = None
        self.node = Node(settings)
        self.service: Service
        self._opened = False
        self._doors: list[Door] = []
        self._stopped = False

    async def start(self) -> None:
        """Recover, open the doors, find the place in the cluster, and wait until everything here is led."""
        try:
            await self.open()
            await self.node.until_ready()
        except BaseException:
            await self.stop()
            raise

    async def open(self) -> None:
        """Everything but the waiting: the doors are open, and callers are told to come back until it is ready."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        await self.node.open()
        self._opened = True
        self.service = Service(self.node)
        # Other brokers come through the native door, so it opens before there is a cluster.
        self.native_address = await self._open("native", lambda service: NativeDoor(service, intake=self.node.intake))
        if self.settings.http:
            from lanner.api.rest import RestDoor  # the web framework costs time and memory: only when wanted

            self.http_address = await self._open("http", RestDoor)
        await self.node.join(self.service.addresses)

    async def _open(self, name: str, kind: Callable[[Service], Door]) -> tuple[str, int] | None:
        """Open one door at the address that the settings give it; where it listens now."""
        address = parse_address(getattr(self.settings, name), name)
        if address is None:
            return None
        door = kind(self.service)
        try:
            bound = await door.start(*address)
        except OSError as error:
            host, port = address
            raise ValidationError(
                f"cannot listen on {host}:{port} ({os.strerror(error.errno or 0)}): stop what listens there, or choose "
                f"another address with --{name} HOST:PORT",
                field=name,
            ) from error
        self.service.addresses[name] = bound
        self._doors.append(door)
        return bound

    async def stop(self) -> None:
        """Hand over, refuse new work, answer what is in flight, save, close. A second call does nothing."""
        if self._stopped or not self._opened:
            return
        self._stopped = True
        await self.node.hand_over(self.settings.hand_over_ms)
        self.service.drain()
        await asyncio.gather(*(door.stop(self.settings.drain_ms) for door in self._doors), return_exceptions=True)
        await self.node.stop()

    async def failed(self) -> LannerError:
        """Waits until the environment fails the broker (a write that could not be made durable); the reason."""
        return await asyncio.shield(self.node.failed)


async def serve(settings: BrokerSettings, started: Callable[[Server], None]) -> LannerError | None:
    """Run a broker until SIGTERM or SIGINT, or until it fails; the failure, if that is what ended it."""
    server = Server(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopped = loop.create_task(stop.wait())
    starting = loop.create_task(server.start())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # it may wait for others for a long time
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return None
    starting.result()
    started(server)
    failure = loop.create_task(server.failed())
    done, pending = await asyncio.wait({failure, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await server.stop()
    return failure.result() if failure in done else None
