"""A whole broker in one object: the node, its service and the doors in front of it. `lanner up` runs one."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, Protocol

from lanner import limits
from lanner.api.native import NativeDoor
from lanner.broker.node import Node
from lanner.broker.service import Service
from lanner.broker.settings import BrokerSettings, join_address, parse_address
from lanner.errors import DeadlineExceeded, LannerError, StorageDamaged, StorageFailed, ValidationError
from lanner.net.seats import Seats, open_files_max, raise_open_files
from lanner.net.unfinished import Unfinished

Address = tuple[str, int]
_log: Final = logging.getLogger("lanner.server")
_PATIENCE_MS = 2_000  # so long may a lone broker take to begin before it opens REST to say what it waits for
_SWITCH_SECONDS = 0.0005  # a busy loop must not keep the writer thread waiting for longer


class Door(Protocol):
    """What the server needs of a door."""

    async def stop(self, drain_ms: int) -> None: ...


class Server:
    """One broker, from opening its data directory to closing it."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.native_address: tuple[str, int] | None = None
        self.http_address: tuple[str, int] | None = None
        self.grpc_address: tuple[str, int] | None = None
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
            self.node.keep_registered()
        except BaseException as error:
            await self.stop()
            if isinstance(error, StorageDamaged):
                raise error.at(self.settings.data) from error
            raise

    async def open(self) -> None:
        """Everything but the waiting for others: until it is ready, callers are told to come back.

        Other brokers come through the native door. So it opens before the place in the cluster is found, unless there
        are none: then nobody is let in before everything is there.
        """
        sys.setswitchinterval(_SWITCH_SECONDS)
        node = self.node
        await node.open()
        self._opened = True
        self.service = Service(node.parts())
        settings = self.settings
        unfinished = Unfinished(settings.unfinished_bytes_max, settings.frame_deadline_ms)
        seats = Seats.for_open_files(open_files_max(), settings.connections_max)
        if seats.callers_max < settings.connections_max != limits.CONNECTIONS_MAX:
            _log.warning(
                "connections_max is %d, but beside storage this process may open files for %d only (see ulimit -n)",
                settings.connections_max,
                seats.callers_max,
            )
        native = NativeDoor(
            self.service,
            intake=node.intake,
            unfinished=unfinished,
            between_brokers=unfinished.another(),
            seats=seats,
            control_bytes_max=settings.control_bytes_max,
        )
        self.native_address = await self._open("native", native, native.bind)
        joined = node.joining.needs_nobody
        if joined:
            await node.join(self.service.addresses)
            if node.alone:
                with suppress(DeadlineExceeded):
                    await node.waiting.until(lambda: node.readiness.complete, _PATIENCE_MS)
                if not node.readiness.complete:  # something is missing: /readyz says what
                    await self._open_rest(unfinished, seats)
                await node.until_ready()
        if self.native_address is not None:
            await native.accept()
        await self._open_rest(unfinished, seats)
        await self._open_grpc(unfinished, seats)
        if joined:
            node.identity.introduce(self.service.addresses)
        else:
            await node.join(self.service.addresses)

    async def _open_rest(self, unfinished: Unfinished, seats: Seats) -> None:
        if not self.settings.http or self.http_address is not None:
            return
        from lanner.api.rest import RestDoor  # the web framework costs time and memory: only when wanted

        advertised = parse_address(self.settings.advertise, "advertise")
        names = () if advertised is None else (advertised[0],)
        rest = RestDoor(
            self.service,
            self.settings.allow_origins,
            names,
            unfinished=unfinished,
            seats=seats,
            body_deadline_ms=self.settings.body_deadline_ms,
        )
        self.http_address = await self._open("http", rest, rest.start)

    async def _open_grpc(self, unfinished: Unfinished, seats: Seats) -> None:
        if not self.settings.grpc:
            return
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core writes to the terminal by itself
        from lanner.api.grpc import GrpcDoor  # it costs time and memory: only when wanted

        door = GrpcDoor(self.service, unfinished=unfinished, seats=seats)
        self.grpc_address = await self._open("grpc", door, door.start)

    async def _open(
        self, name: str, door: Door, start: Callable[[str, int], Awaitable[Address]]
    ) -> tuple[str, int] | None:
        """Start one door at the address that the settings give it; where it listens now."""
        address = parse_address(getattr(self.settings, name), name)
        if address is None:
            return None
        try:
            bound = await start(*address)
        except OSError as error:
            host, port = address
            raise ValidationError(
                f"cannot listen on {host}:{port} ({os.strerror(error.errno or 0)}): stop what listens there, or choose "
                f"another address with --{name} HOST:PORT",
                field=name,
            ) from error
        self.service.addresses[name] = bound
        self._doors.append(door)
        if not ip_address(bound[0].partition("%")[0]).is_loopback:
            _log.warning(
                "the %s door listens on %s, beyond this machine, and there are no access rules yet: everyone who can "
                "reach it can read, write and delete everything. Let a firewall choose who can, or give --%s 127.0.0.1",
                name,
                join_address(*bound),
                name,
            )
        return bound

    async def stop(self) -> None:
        """Hand over, refuse new work, answer what is in flight, save, close. A second call does nothing."""
        if self._stopped or not self._opened:
            return
        self._stopped = True
        await self.node.hand_over(self.settings.hand_over_ms)
        self.service.drain()
        # Other brokers come through the native door. It closes last: a broker that hears nobody can send nobody on.
        for door in reversed(self._doors):
            await asyncio.gather(door.stop(self.settings.drain_ms), return_exceptions=True)
        await self.node.stop()

    async def failed(self) -> LannerError:
        """Waits until the environment fails the broker (a write that could not be made durable); the reason."""
        reason = await asyncio.shield(self.node.failed)
        return reason.at(self.settings.data) if isinstance(reason, StorageDamaged) else reason


async def serve(settings: BrokerSettings, started: Callable[[Server], None]) -> LannerError | None:
    """Run a broker until SIGTERM or SIGINT, or until it fails; the failure, if that is what ended it."""
    raise_open_files()
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
        return server.node.hung
    starting.result()
    started(server)
    failure = loop.create_task(server.failed())
    done, pending = await asyncio.wait({failure, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await server.stop()
    return server.node.hung or (failure.result() if failure in done else None)


def leave(failure: LannerError | None) -> None:
    """Call this last, once everything is said: a thread that waits for a disk which hangs keeps Python from ending."""
    if isinstance(failure, StorageFailed) and failure.details.get("hung"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
