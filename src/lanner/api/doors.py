"""All doors of one process, opened with one set of bounds and closed in turn: a broker's, or a proxy's."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Protocol

from lanner import limits
from lanner.api.native import NativeDoor
from lanner.errors import ValidationError
from lanner.net.addresses import join_address, parse_address
from lanner.net.clients import Clients
from lanner.net.seats import Seats, open_files_max
from lanner.net.unfinished import Unfinished

if TYPE_CHECKING:
    from lanner.api.ports import PeerInbox, Service

Address = tuple[str, int]
_log: Final = logging.getLogger("lanner.server")


class DoorSettings(Protocol):
    """What an operator can set about doors; addresses are HOST:PORT, empty keeps a door shut."""

    @property
    def native(self) -> str: ...
    @property
    def http(self) -> str: ...
    @property
    def grpc(self) -> str: ...
    @property
    def advertise(self) -> str: ...
    @property
    def allow_origins(self) -> tuple[str, ...]: ...
    @property
    def connections_max(self) -> int: ...
    @property
    def unfinished_bytes_max(self) -> int: ...
    @property
    def frame_deadline_ms(self) -> int: ...
    @property
    def body_deadline_ms(self) -> int: ...
    @property
    def control_bytes_max(self) -> int: ...


class Door(Protocol):
    """A door that can be closed."""

    async def stop(self, drain_ms: int) -> None: ...


class Doors:
    """The doors to one service, and the addresses that they got."""

    def __init__(
        self,
        service: Service,
        settings: DoorSettings,
        addresses: dict[str, Address],
        clients: Clients | None = None,
    ) -> None:
        self._clients = Clients() if clients is None else clients  # who is connected, by all doors
        self.addresses = addresses  # by the names of the doors
        self._service = service
        self._settings = settings
        self._opened: list[Door] = []
        self._unfinished = Unfinished(settings.unfinished_bytes_max, settings.frame_deadline_ms)
        self._seats = Seats.for_open_files(open_files_max(), settings.connections_max)
        if self._seats.callers_max < settings.connections_max != limits.CONNECTIONS_MAX:
            _log.warning(
                "connections_max is %d, but beside storage this process may open files for %d only (see ulimit -n)",
                settings.connections_max,
                self._seats.callers_max,
            )

    async def bind_native(self, inbox: PeerInbox | None = None) -> NativeDoor:
        """Take the address of the native door, where there is one; nobody is let in yet."""
        native = NativeDoor(
            self._service,
            inbox=inbox,
            unfinished=self._unfinished,
            between_brokers=self._unfinished.another(),
            seats=self._seats,
            control_bytes_max=self._settings.control_bytes_max,
            clients=self._clients,
            rest_address=lambda: join_address(*self.addresses["http"]) if "http" in self.addresses else "",
        )
        await self._open("native", self._settings.native, native, native.bind)
        return native

    async def open_rest(self) -> None:
        """Open the REST door where it is wanted; a second call does nothing."""
        if not self._settings.http or "http" in self.addresses:
            return
        from lanner.api.rest import RestDoor  # the web framework costs time and memory: only when wanted

        advertised = parse_address(self._settings.advertise, "advertise")
        rest = RestDoor(
            self._service,
            self._settings.allow_origins,
            () if advertised is None else (advertised[0],),
            unfinished=self._unfinished,
            seats=self._seats,
            body_deadline_ms=self._settings.body_deadline_ms,
            clients=self._clients,
        )
        await self._open("http", self._settings.http, rest, rest.start)

    async def open_grpc(self) -> None:
        if not self._settings.grpc:
            return
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its core writes to the terminal by itself
        from lanner.api.grpc import GrpcDoor  # it costs time and memory: only when wanted

        door = GrpcDoor(self._service, unfinished=self._unfinished, seats=self._seats, clients=self._clients)
        await self._open("grpc", self._settings.grpc, door, door.start)

    async def _open(self, name: str, text: str, door: Door, start: Callable[[str, int], Awaitable[Address]]) -> None:
        """Start one door at the address that the settings give it."""
        address = parse_address(text, name)
        if address is None:
            return
        try:
            bound = await start(*address)
        except OSError as error:
            host, port = address
            raise ValidationError(
                f"cannot listen on {host}:{port} ({_reason(error)}): "
                f"{'stop what listens there, or ' if error.errno == errno.EADDRINUSE else ''}"
                f"choose another address with --{name} HOST:PORT",
                field=name,
            ) from error
        self.addresses[name] = bound
        self._opened.append(door)
        if not ip_address(bound[0].partition("%")[0]).is_loopback:
            _log.warning(
                "the %s door listens on %s, beyond this machine, and there are no access rules yet: everyone who can "
                "reach it can read, write and delete everything. Let a firewall choose who can, or give --%s 127.0.0.1",
                name,
                join_address(*bound),
                name,
            )

    async def stop(self, drain_ms: int) -> None:
        """Close the doors, the last one first. The native door stays open longest: other brokers come through it, and
        a broker that hears none of them cannot tell callers where to go."""
        for door in reversed(self._opened):
            await asyncio.gather(door.stop(drain_ms), return_exceptions=True)


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine does not have that address"
    return str(error.strerror) if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)


__all__ = ["Doors"]
