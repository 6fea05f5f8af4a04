"""The door's server: gRPC's own, in our loop, with bounds on messages, calls and connections.

gRPC accepts its connections itself, so it gets a share of all that callers may have (`Seats`), and keeps to it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Final

import grpc
from grpc_reflection.v1alpha import reflection

from lanner import limits
from lanner.api.grpc import health, queue_service
from lanner.api.grpc.administration import Administration
from lanner.api.grpc.backing import Backing
from lanner.api.grpc.cluster import Cluster
from lanner.api.grpc.consuming import Consuming
from lanner.api.grpc.generated.lanner.v1 import queue_pb2
from lanner.api.grpc.health import Health
from lanner.api.grpc.members import Members
from lanner.api.grpc.methods import Arrivals, Method, MethodTable
from lanner.api.grpc.publishing import Publishing
from lanner.api.grpc.queue_service import QueueService
from lanner.api.grpc.seen_clients import SeenClients
from lanner.net.clients import Clients
from lanner.net.seats import Seats
from lanner.net.unfinished import Unfinished

if TYPE_CHECKING:
    from lanner.api.ports import Service

LANNER: Final = queue_pb2.DESCRIPTOR.services_by_name["Queue"].full_name
_HANDSHAKE_MS: Final = 10_000
_KEEPALIVE_MS: Final = 10_000
_METADATA_BYTES_MAX: Final = 16 * limits.KIB


def lanner_methods(backing: Backing) -> dict[str, Method]:
    """The methods of `lanner.v1.Queue`."""
    parts = (Publishing(backing), Consuming(backing), Members(backing), Administration(backing), Cluster(backing))
    return {name: method for part in parts for name, method in part.methods().items()}


class GrpcDoor:
    """Listens for gRPC and serves Queue's and Lanner's services over it."""

    def __init__(
        self,
        service: Service,
        *,
        unfinished: Unfinished | None = None,
        seats: Seats | None = None,
        clients: Clients | None = None,
    ) -> None:
        self._backing = Backing(service)
        self._seen = SeenClients(Clients() if clients is None else clients)
        self._arrivals = Arrivals(Unfinished() if unfinished is None else unfinished, self._seen)
        self._seats = Seats() if seats is None else seats
        self._server: grpc.aio.Server | None = None
        self._health = Health(self._backing, (queue_service.SERVICE, LANNER))

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; where, with the port that port 0 became."""
        host = await _address_of(host, port)
        server = grpc.aio.server(
            options=_options(self._seats.lend(limits.GRPC_SEATS_SHARE)), maximum_concurrent_rpcs=limits.GRPC_CALLS_MAX
        )
        services = {
            LANNER: lanner_methods(self._backing),
            queue_service.SERVICE: QueueService(self._backing).methods(),
            health.SERVICE: self._health.methods(),
        }
        server.add_generic_rpc_handlers(
            [MethodTable(name, methods, self._arrivals) for name, methods in services.items()]
        )
        reflection.enable_server_reflection([*services, reflection.SERVICE_NAME], server)
        try:
            port = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError as error:  # gRPC says why in its own log only
            raise _refusal(host, port) from error
        await server.start()
        self._server = server
        return host, port

    async def stop(self, drain_ms: int = 5_000) -> None:
        """End the streams, refuse new ones, finish the calls in hand, close."""
        if self._server is None:
            return
        server, self._server = self._server, None
        self._health.stopping.set()
        self._arrivals.stop()
        clock = asyncio.get_running_loop().time
        ends = clock() + drain_ms / 1_000
        if self._seen:
            await self._arrivals.finish(drain_ms / 1_000)
        await server.stop(max(0.0, ends - clock()))
        self._seen.stop()


def _options(connections_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a second broker at the same address must fail, not share it
        ("grpc.max_receive_message_length", limits.GRPC_REQUEST_BYTES_MAX),
        ("grpc.max_send_message_length", limits.GRPC_RESPONSE_BYTES_MAX),
        ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
        ("grpc.max_concurrent_streams", limits.GRPC_CALLS_PER_CONNECTION_MAX),
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        # A member is heard of while its subscription is open: so a client that cannot be reached must be noticed.
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
    ]


def _refusal(host: str, port: int) -> OSError:
    """Why the system does not let this address be listened at."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        return error
    return OSError(errno.EADDRINUSE, "it was taken a moment ago")


async def _address_of(host: str, port: int) -> str:
    """The address that a host name stands for; gRPC would not say which it took."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return str(found[0][4][0])
