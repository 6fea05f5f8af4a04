"""The listening end: accepts sockets, sees them through HELLO, and hands typed requests to a session.

A session is what a door makes of one connection. The listener bounds how many there are and how long one may take to
say HELLO; it knows nothing of what the commands do. One piece of bytes can hold thousands of small requests: they are
handed on a few at a time, so that one busy client does not keep the loop from all the others.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from lanner import limits
from lanner.errors import LannerError, RemoteProtocolError, ServiceUnavailable
from lanner.net.acceptor import Acceptor
from lanner.net.clients import address_text
from lanner.net.link import Link, Pause
from lanner.net.seats import Seats
from lanner.net.unfinished import Part, Unfinished
from lanner.wire.connection import Request, ServerConnection
from lanner.wire.messages import Command, Control, Hello, HelloReply, Settled

REQUESTS_PER_TURN_MAX: Final = 64


# HTTP/2 begins with PRI: clients of gRPC say of this answer that the server speaks HTTP/1.
_HTTP_METHODS: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"PATCH ", b"DELETE ", b"OPTIONS ", b"CONNECT ", b"PRI ")
_HELLO: Final = Command.HELLO  # looked up on its class for every request, a member costs as much as a call


class ServerSession(Protocol):
    """What a door makes of one connection. None of these may raise anything but what they name."""

    def greet(self, hello: Hello) -> HelloReply:
        """The answer to HELLO; a LannerError refuses the client."""

    def handle(self, request: Request) -> None:
        """Take on a request; answer it through the link, now or later."""

    def handed_over(self) -> None:
        """Every reply so far is with the socket."""

    def lost(self) -> None:
        """The connection is gone; replies can no longer be sent."""


class ServerLink(Link):
    """One accepted socket."""

    _connection: ServerConnection

    def __init__(self, listener: Listener) -> None:
        super().__init__(ServerConnection(), unsent_bytes_max=listener.unsent_bytes_max, stall_ms=listener.stall_ms)
        self._listener = listener
        self._session: ServerSession | None = None
        self._held: deque[Request] = deque()  # requests whose turn comes next; while there are any, nothing is read
        self._hello_timer: asyncio.TimerHandle | None = None
        self._part: Part | None = None  # the beginning of a frame that is not whole yet
        self._part_number = 0
        self._refused = False
        self._is_first = True  # nothing has come yet
        self._unfinished = listener.unfinished
        self.peer = ""  # HOST:PORT of the other end

    # ------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = address_text(transport.get_extra_info("peername"))
        refusal = self._listener.admit(self)
        if refusal is not None:
            self._refused = True
            self._listener.seats.refusing += 1
            self._connection.end(refusal)
            self.hang_up()
            return
        self._session = self._listener.make_session(self)
        self._hello_timer = self._loop.call_later(self._listener.hello_deadline_ms / 1_000, self._hello_missed)

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        session = self._session
        if session is None:
            return
        if self._is_first:
            self._is_first = False
            if data.startswith(_HTTP_METHODS):
                self._answer_http()
                return
        requests = connection.receive(data)
        if self._held:
            self._held.extend(requests)
        elif len(requests) > REQUESTS_PER_TURN_MAX:
            self._held.extend(requests)
            self.pause_reading(Pause.NEXT_TURN)
            self._next_turn()
        else:
            for request in requests:
                if request.command is _HELLO:
                    self._greet(session, request)
                else:
                    session.handle(request)
        if connection.outgoing_bytes and not self._flush_due:
            self.flush_soon()
        if connection.unfinished_bytes or self._part is not None:
            self._count_unfinished()
        if connection.is_closed:
            self.hang_up()

    def _count_unfinished(self) -> None:
        """Have the listener know what is held of a frame that is not whole, and since when."""
        connection = self._connection
        if self._part is not None and connection.unfinished_number != self._part_number:
            self._end_part()
        size = connection.unfinished_bytes
        if not size:
            self._end_part()
            return
        if self._part is None:
            self._part = self._unfinished.begin(self)
            self._part_number = connection.unfinished_number
            if self._pause:
                self._unfinished.stop(self._part)
        self._unfinished.hold(self._part, size)

    def _end_part(self) -> None:
        if self._part is not None:
            self._unfinished.end(self._part)
            self._part = None

    def pause_reading(self, why: Pause) -> None:
        super().pause_reading(why)
        if self._part is not None:
            self._unfinished.stop(self._part)

    def resume_reading(self, why: Pause) -> None:
        super().resume_reading(why)
        if self._part is not None and not self._pause:
            self._unfinished.resume(self._part)

    def _next_turn(self) -> None:
        """Hand on some of what came in one piece; the rest follows when the others had their turn."""
        held, session = self._held, self._session
        for _ in range(min(len(held), REQUESTS_PER_TURN_MAX)):
            assert session is not None
            session.handle(held.popleft())
        if held:
            self._loop.call_soon(self._next_turn)
        else:
            self.resume_reading(Pause.NEXT_TURN)

    def _lost(self) -> None:
        self._held.clear()
        self._end_part()
        self._end_hello_timer()
        self._listener.forget(self)
        if self._refused:
            self._refused = False
            self._listener.seats.refusing -= 1
        if self._session is not None:
            self._session.lost()

    def _handed_over(self) -> None:
        if self._session is not None:
            self._session.handed_over()

    # ------------------------------------------------------------------ HELLO

    def _greet(self, session: ServerSession, request: Request) -> None:
        self._end_hello_timer()
        if self._connection.is_closed:
            return  # something came behind HELLO that must not, and that was said
        try:
            assert isinstance(request.control, Hello)
            reply = session.greet(request.control)
        except LannerError as error:
            self._connection.refuse(request, error)
        else:
            self._connection.welcome(request, reply)

    def _answer_http(self) -> None:
        """Somebody took this for a web server, and would make nothing of a frame."""
        told = self._listener.told_to_http().encode() + b"\n"
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
        if self._transport is not None:
            self._transport.write(head + b"content-length: %d\r\n\r\n" % len(told) + told)
        self.hang_up()

    def _hello_missed(self) -> None:
        self._hello_timer = None
        self.end(RemoteProtocolError(f"no HELLO came within {self._listener.hello_deadline_ms} ms", expected="HELLO"))

    def _end_hello_timer(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None

    # ------------------------------------------------------------------ what a session calls

    def reply(self, request: Request, control: Control, bulk: Sequence[bytes | memoryview] = ()) -> bool:
        """Answer; False when it can no longer be sent, or does not fit."""
        answered = self._connection.reply(request, control, bulk)
        if not self._flush_due:
            self.flush_soon()
        return answered

    def reply_settles(self, request: Request, settled: Settled) -> bool:
        """Answer the settles that rode on a POLL; its own reply follows later."""
        answered = self._connection.reply_settles(request, settled)
        self.flush_soon()
        return answered

    def fail(self, request: Request, error: LannerError) -> bool:
        """Answer with an error; False when it can no longer be sent."""
        answered = self._connection.fail(request, error)
        self.flush_soon()
        return answered

    def end(self, error: LannerError) -> None:
        """Say why, and hang up."""
        self._connection.end(error)
        self._end_part()
        self.hang_up()

    def count_apart(self, unfinished: Unfinished) -> None:
        """Have what is not whole yet counted there, from now on."""
        self._end_part()
        self._unfinished = unfinished


class Listener:
    """A listening socket and the connections that came through it."""

    def __init__(
        self,
        make_session: Callable[[ServerLink], ServerSession],
        *,
        seats: Seats | None = None,
        hello_deadline_ms: int = limits.HELLO_DEADLINE_MS,
        unsent_bytes_max: int = limits.CONNECTION_UNSENT_BYTES_MAX,
        stall_ms: int = limits.CONNECTION_STALL_MS,
        unfinished: Unfinished | None = None,
        told_to_http: Callable[[], str] = lambda: "This port does not speak HTTP.",
    ) -> None:
        self.told_to_http = told_to_http  # to those who send HTTP here
        self.make_session = make_session
        self.unfinished = Unfinished() if unfinished is None else unfinished  # what callers have not sent whole
        self.seats = Seats() if seats is None else seats  # shared with the other doors
        self.hello_deadline_ms = hello_deadline_ms
        self.unsent_bytes_max = unsent_bytes_max
        self.stall_ms = stall_ms
        self.links: set[ServerLink] = set()
        self._acceptor: Acceptor | None = None
        self._stopping = False

    async def start(
        self, host: str, port: int, *, ssl_context: ssl.SSLContext | None = None, accept: bool = True
    ) -> tuple[str, int]:
        """Listen; the address that it became (port 0 picks a free one). Without `accept` the address is only taken."""
        self._acceptor = Acceptor(lambda: ServerLink(self), self.seats, ssl_context=ssl_context)
        address = await self._acceptor.bind(host, port)
        if accept:
            self._acceptor.accept()
        return address

    async def accept(self) -> None:
        """Let them in, after a start that only took the address."""
        assert self._acceptor is not None, "start comes first"
        self._acceptor.accept()

    def admit(self, link: ServerLink) -> LannerError | None:
        """Count a new connection in, or say why not."""
        if self._stopping:
            return ServiceUnavailable("the broker is stopping")
        if self.seats.is_full:
            return self.seats.refuse()
        self.seats.enter()
        self.links.add(link)
        return None

    def forget(self, link: ServerLink) -> None:
        if link in self.links:
            self.links.discard(link)
            self.seats.leave()

    def stop_accepting(self) -> None:
        self._stopping = True
        if self._acceptor is not None:
            self._acceptor.close()

    async def close(self) -> None:
        """Hang up on everybody; returns when every socket is closed."""
        self.stop_accepting()
        links = list(self.links)
        for link in links:
            link.end(ServiceUnavailable("the broker is stopping"))
        if links:
            _, open_still = await asyncio.wait([link.closed for link in links], timeout=1)
            for link in links:
                if link.closed in open_still:
                    link.abort(ServiceUnavailable("the broker is stopping"))
            if open_still:
                await asyncio.wait(open_still, timeout=1)


__all__ = ["Listener", "ServerLink", "ServerSession"]
