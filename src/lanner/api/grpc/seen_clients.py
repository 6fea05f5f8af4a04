"""The clients of this door, as far as they can be known.

gRPC accepts its connections itself and does not tell when one opens or closes. It tells with each call where that comes
from: a client is there from its first call on, and gone when it has had none for a while. The caller of the call
that is being served stands in a context variable, which each call has for itself: methods need not pass it on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final
from urllib.parse import unquote

from lanner import limits
from lanner.net.clients import Client, Clients

CONNECTION: Final[ContextVar[Client | None]] = ContextVar("lanner.grpc.connection", default=None)
_IDLE_S: Final = limits.GRPC_CLIENT_IDLE_MS / 1_000


class _Seen:
    __slots__ = ("calls", "client", "heard")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.calls = 0  # in hand
        self.heard = 0.0  # when the latest ended, by the loop's clock


class SeenClients:
    """Clients by where they call from, the one that is silent for the longest first."""

    def __init__(self, clients: Clients, count_max: int = limits.CONNECTIONS_MAX) -> None:
        self._clients = clients
        self._count_max = count_max
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._seen)

    def begin(self, peer: str, metadata: Iterable[tuple[str, str | bytes]]) -> Client:
        """Count a call that begins; return the client that makes it."""
        address = address_of(peer)
        seen = self._seen.get(address)
        if seen is None:
            name = next((value for key, value in metadata if key == "user-agent"), "")
            seen = _Seen(self._clients.enter("grpc", address, name if isinstance(name, str) else ""))
            self._seen[address] = seen
            self._bound()
        seen.calls += 1
        self._seen.move_to_end(address)
        return seen.client

    def end(self, client: Client) -> None:
        """Count that a call of this client has ended."""
        seen = self._seen.get(client.address)
        if seen is None or seen.client is not client:
            return  # there were too many
        loop = asyncio.get_running_loop()
        seen.calls -= 1
        seen.heard = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(_IDLE_S, self._sweep)

    def stop(self) -> None:
        """Forget all clients: the door is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for seen in self._seen.values():
            self._clients.leave(seen.client)
        self._seen.clear()

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for address in [one for one, seen in self._seen.items() if not seen.calls and now - seen.heard >= _IDLE_S]:
            self._clients.leave(self._seen.pop(address).client)
        busy = any(not seen.calls for seen in self._seen.values())
        self._timer = asyncio.get_running_loop().call_later(_IDLE_S, self._sweep) if busy else None

    def _bound(self) -> None:
        while len(self._seen) > self._count_max:
            self._clients.leave(self._seen.popitem(last=False)[1].client)


def address_of(peer: str) -> str:
    """HOST:PORT of what gRPC calls ipv4:HOST:PORT, or ipv6:%5BHOST%5D:PORT; anything else as it is."""
    kind, _, rest = peer.partition(":")
    return unquote(rest)[: limits.ADDRESS_LENGTH_MAX] if kind in ("ipv4", "ipv6") else peer[: limits.ADDRESS_LENGTH_MAX]
