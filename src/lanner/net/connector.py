"""The connecting end: a socket to one broker, with as many requests in flight as the caller likes.

`open_connection` gives a link that has said HELLO. A request is a future, found again by its correlation id; nothing
waits for anything else. When the socket goes, every unanswered future fails with ConnectionLost, and the link is over:
whether and where to connect again is the client's business.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from lanner import limits
from lanner.errors import ConnectionLost, LannerError
from lanner.net.link import Link
from lanner.net.waiters import Waiters
from lanner.wire.connection import ClientConnection, Reply
from lanner.wire.messages import AnswerT, Asked, Command, Control, Empty, HelloReply, PeerHello, Poll, Polled, Settled
from lanner.wire.states import State

CONNECT_TIMEOUT_MS: Final = 10_000


class PollInFlight(NamedTuple):
    """A POLL that was sent: the outcome of the settles it carried (None without any), and its own reply."""

    settled: asyncio.Future[Reply[Settled]] | None
    polled: asyncio.Future[Reply[Polled]]


class ClientLink(Link):
    """One connection to a broker. Made by `open_connection`."""

    _connection: ClientConnection

    def __init__(
        self, address: str, *, client: str, token: str, idle_ping_ms: int = 0, peer: PeerHello | None = None
    ) -> None:
        super().__init__(ClientConnection())
        self.address = address
        self.on_orphan: Callable[[Reply[Control]], None] | None = None  # gets replies that nobody waits for any more
        self.opened: asyncio.Future[HelloReply] = self._loop.create_future()
        self._greeting = (client, token, peer)
        # The connection takes only the answer that belongs to a request; which that is, is typed where it is asked.
        self._waiting: dict[int, asyncio.Future[Reply[Any]]] = {}
        self._settling: dict[int, asyncio.Future[Reply[Settled]]] = {}
        self._drained = Waiters()
        self._ping_seconds = idle_ping_ms / 1_000
        self._ping_timer: asyncio.TimerHandle | None = None
        self._heard = True

    # ------------------------------------------------------------------ asking

    @property
    def hello_reply(self) -> HelloReply:
        """What the broker said of itself."""
        reply = self._connection.hello_reply
        assert reply is not None, "open_connection gives links that are open"
        return reply

    @property
    def is_open(self) -> bool:
        return self._connection.state is State.OPEN and not self.is_closing

    @property
    def unanswered(self) -> int:
        return self._connection.unanswered

    def request(
        self, command: Command, control: Asked[AnswerT], bulk: Sequence[bytes | memoryview] = (), caller: str = ""
    ) -> asyncio.Future[Reply[AnswerT]]:
        """Ask. The future gives the reply or raises what the broker reported; it may be cancelled at any time.

        A `caller` is named where a broker passes on what somebody else asked it."""
        if not self.is_open:
            raise self._loss()
        correlation = self._connection.request(command, control, bulk, caller)
        future: asyncio.Future[Reply[AnswerT]] = self._loop.create_future()
        self._waiting[correlation] = future
        if not self._flush_due:
            self.flush_soon()
        return future

    def tell(self, command: Command, control: Control, bulk: Sequence[bytes | memoryview] = ()) -> None:
        """Say something that is never answered; it leaves with everything else that is said in this turn."""
        if not self.is_open:
            raise self._loss()
        self._connection.tell(command, control, bulk)
        if not self._flush_due:
            self.flush_soon()

    @property
    def unsent_bytes(self) -> int:
        """What was said and is not with the socket yet."""
        return self._connection.outgoing_bytes

    def poll(self, control: Poll) -> PollInFlight:
        """Ask for leases, with the settles that ride on it."""
        if not self.is_open:
            raise self._loss()
        correlation = self._connection.request(Command.POLL, control)
        polled: asyncio.Future[Reply[Polled]] = self._loop.create_future()
        self._waiting[correlation] = polled
        settled: asyncio.Future[Reply[Settled]] | None = None
        if control.settles:
            settled = self._settling[correlation] = self._loop.create_future()
        self.flush_soon()
        return PollInFlight(settled, polled)

    async def drain(self) -> None:
        """Wait while the socket takes nothing more."""
        while not self._writable and not self.is_closing:
            await self._drained.wait()

    async def close(self) -> None:
        """Write what was asked, then close."""
        self.hang_up()
        await asyncio.shield(self.closed)

    # ------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connection.hello(*self._greeting)
        self._flush()

    def pause_writing(self) -> None:
        # A broker that reads slowly must still be heard, so reading goes on.
        self._writable = False
        if not self._hanging_up:
            self._watch_stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._drained.wake_all()

    def data_received(self, data: bytes) -> None:
        self._heard = True
        connection = self._connection
        greeting = connection.state is State.GREETING
        for event in connection.receive(data):
            if type(event) is Reply:
                self._answered(event)
            else:
                self._failed(*event)
        if connection.is_closed:
            self._fail_all()
            self.hang_up()
        elif greeting and connection.hello_reply is not None and not self.opened.done():
            self.opened.set_result(connection.hello_reply)
            self._ping_later()

    def _lost(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._fail_all()
        self._drained.wake_all()

    # ------------------------------------------------------------------ futures

    def _answered(self, reply: Reply[Any]) -> None:
        if reply.command is Command.SETTLE and reply.correlation in self._settling:
            future: asyncio.Future[Reply[Any]] = self._settling.pop(reply.correlation)
        else:
            future = self._waiting.pop(reply.correlation)
        if not future.done():
            future.set_result(reply)
        elif self.on_orphan is not None:
            self.on_orphan(reply)

    def _failed(self, correlation: int, error: LannerError) -> None:
        for futures in (self._settling, self._waiting):
            future = futures.pop(correlation, None)
            if future is not None and not future.done():
                future.set_exception(error)

    def _fail_all(self) -> None:
        unanswered = [*self._settling.values(), *self._waiting.values()]
        self._settling.clear()
        self._waiting.clear()
        waiting: list[asyncio.Future[Any]] = [self.opened, *unanswered]
        for future in waiting:
            if not future.done():
                future.set_exception(self._loss())
                future.exception()  # a caller that still awaits it is told; if there is none, that is no news

    def _loss(self) -> LannerError:
        """Why nothing can be asked any more, as an error of its own for each who asks."""
        failure = self._connection.failure
        if failure is None:
            return ConnectionLost(f"the connection to {self.address} is closed", address=self.address)
        return type(failure)(f"{self.address}: {failure.message}", **failure.details)

    # ------------------------------------------------------------------ a broker that went silent

    def _ping_later(self) -> None:
        if self._ping_seconds:
            self._heard = False
            self._ping_timer = self._loop.call_later(self._ping_seconds, self._ping)

    def _ping(self) -> None:
        """Silence for one interval: ask. Silence for a second one, although asked: the broker is gone."""
        if self._heard:
            self._ping_later()
            return
        if not self.is_open:
            return
        self._heard = False
        self._waiting[self._connection.request(Command.PING, Empty())] = self._loop.create_future()
        self.flush_soon()
        self._ping_timer = self._loop.call_later(self._ping_seconds, self._judge_silence)

    def _judge_silence(self) -> None:
        if self._heard:
            self._ping_later()
        else:
            self.abort(ConnectionLost(f"the broker has been silent for {2 * self._ping_seconds:g} s"))


async def open_connection(
    host: str,
    port: int,
    *,
    client: str = "",
    token: str = "",
    ssl_context: ssl.SSLContext | None = None,
    timeout_ms: int = CONNECT_TIMEOUT_MS,
    idle_ping_ms: int = 0,
    peer: PeerHello | None = None,
    silent_ms_max: int = 0,
) -> ClientLink:
    """Connect and say HELLO. Raises ConnectionLost when there is no broker, else what the broker refused it with."""
    address = f"{host}:{port}"
    loop = asyncio.get_running_loop()
    link: ClientLink | None = None
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            _, link = await loop.create_connection(
                lambda: ClientLink(address, client=client, token=token, idle_ping_ms=idle_ping_ms, peer=peer),
                host,
                port,
                ssl=ssl_context,
            )
            await asyncio.shield(link.opened)
            if silent_ms_max:
                link.expect_progress(silent_ms_max)
    except TimeoutError:
        if link is not None:
            link.abort(ConnectionLost("no answer to HELLO"))
        raise ConnectionLost(f"{address} did not answer within {timeout_ms} ms", address=address) from None
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise ConnectionLost(f"could not connect to {address}: {reason}", address=address) from problem
    except BaseException:
        if link is not None:
            link.abort(ConnectionLost("the attempt was given up"))
        raise
    return link


__all__ = ["ClientLink", "PollInFlight", "open_connection"]

assert limits.CONNECTION_STALL_MS > CONNECT_TIMEOUT_MS
