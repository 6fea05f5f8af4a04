"""A listening socket, accepted from by ourselves.

The loops have ways of their own when a process is out of file descriptors: one closes the listening socket for good,
the other fills the log. Here accepting waits, says so once, and goes on when there are some again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from lanner.net.seats import REFUSALS_MAX, Seats

log = logging.getLogger("lanner.net")

_BACKLOG: Final = 1_024
_PER_TURN_MAX: Final = 64
_WAIT_SECONDS: Final = 0.5
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Takes an address, and later lets connections in."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        seats: Seats,
        *,
        ssl_context: ssl.SSLContext | None = None,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> None:
        self._make_protocol = make_protocol
        self._seats = seats
        self._ssl = ssl_context
        self._wait_seconds = wait_seconds
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._opening: set[asyncio.Task[object]] = set()
        self._waiting: asyncio.TimerHandle | None = None
        self._said = False

    async def bind(self, host: str, port: int) -> tuple[str, int]:
        """Take the address, so that no other process does; nobody can connect yet. Raises OSError."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listening = socket.socket(family, kind, protocol)
                self._sockets.append(listening)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(address)
        except OSError:
            self.close()
            raise
        name = self._sockets[0].getsockname()
        return str(name[0]), int(name[1])

    def accept(self) -> None:
        """Let them in. Raises OSError when another process has come to listen there first."""
        for listening in self._sockets:
            listening.listen(_BACKLOG)
        self._watch()

    def close(self) -> None:
        """Nobody can connect any more."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._unwatch()
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()
        for task in self._opening:
            task.cancel()

    def _watch(self) -> None:
        self._waiting = None
        for listening in self._sockets:
            self._loop.add_reader(listening, self._take, listening)

    def _unwatch(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)

    def _take(self, listening: socket.socket) -> None:
        """Accept those that wait, a few at a turn of the loop."""
        for _ in range(_PER_TURN_MAX):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._wait(error)
                    return
                continue  # that one has gone again
            if self._said:
                self._said = False
                log.warning("connections are accepted again")
            if self._seats.is_full and self._seats.refusing >= REFUSALS_MAX:
                self._seats.refuse()
                accepted.close()
                continue
            self._open(accepted)

    def _open(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opening = self._loop.create_task(self._hand_over(accepted))
        self._opening.add(opening)
        opening.add_done_callback(partial(self._opened, accepted))

    def _opened(self, accepted: socket.socket, opening: asyncio.Task[object]) -> None:
        self._opening.discard(opening)
        if opening.cancelled():
            accepted.close()  # a task that is cancelled before it begins closes nothing itself

    async def _hand_over(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, accepted, ssl=self._ssl)
        except OSError as error:  # it has gone again, or failed the handshake
            log.debug("a connection did not open: %s", error)
            accepted.close()
        except BaseException:
            accepted.close()
            raise

    def _wait(self, error: OSError) -> None:
        """Out of descriptors: those that wait stay in the system's queue for a moment."""
        if not self._said:
            self._said = True
            log.error("no new connection can be accepted for the moment: %s (see ulimit -n)", error.strerror)
        self._unwatch()
        self._waiting = self._loop.call_later(self._wait_seconds, self._watch)


__all__ = ["Acceptor"]
