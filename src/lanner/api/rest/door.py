"""The door's socket: uvicorn's HTTP parser in our loop, with bounds on clients that are slow or greedy.

Only uvicorn's protocol is used. Its server would install signal handlers and wake ten times a second; the broker has
its own life cycle and sleeps when nothing happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from lanner import limits
from lanner.api.rest.app import CONNECTION, build_app
from lanner.api.rest.origins import Gate
from lanner.api.rest.problems import answer_to
from lanner.errors import LannerError, RequestTimeout, ValidationError
from lanner.net.acceptor import Acceptor
from lanner.net.clients import Client, Clients, address_text
from lanner.net.seats import Seats
from lanner.net.unfinished import Part, Unfinished

if TYPE_CHECKING:
    from lanner.api.ports import Service

HEAD_DEADLINE_SECONDS: Final = 10.0
HEAD_BYTES_MAX: Final = 64 * limits.KIB
HEAD_BYTES_COUNTED: Final = 4 * limits.KIB  # a head that is larger counts among what is not whole yet
IDLE_SECONDS: Final = 75
WRITE_DEADLINE_SECONDS: Final = 30.0
UNREAD_BYTES_MAX: Final = 256 * limits.MIB
LINGER_SECONDS: Final = 1.0
_REASONS: Final = {400: b"Bad Request", 408: b"Request Timeout", 503: b"Service Unavailable", 429: b"Too Many Requests"}

_log: Final = logging.getLogger("lanner.api.rest.http")
_log.setLevel(logging.ERROR)  # what clients do wrong is told to them, not to the operator


class DoorState(ServerState):
    """What the connections of a door share."""

    def __init__(self, unfinished: Unfinished, seats: Seats, clients: Clients) -> None:
        super().__init__()
        self.seats = seats
        self.clients = clients  # who is connected, by all doors
        self.unfinished = unfinished  # what has not arrived whole yet, over all doors
        self.unread_bytes = 0  # of replies that slow clients have not read yet


class JoiningTransport(asyncio.Transport):
    """Sends the head of a reply together with its body: one system call instead of two, and one packet."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._held = b""
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        elif bytes(data[:9]) == b"HTTP/1.1 " and bytes(data[9:12]) != b"100":
            self._held = bytes(data)
            return
        self._transport.write(data)

    def flush(self) -> None:
        if self._held:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def half_close(self) -> None:
        """Write what is held and close only this half: a socket that closes over unread bytes resets the connection,
        and the reset can overtake the answer. The other half follows when the peer closes, or a moment later."""
        self.flush()
        self.closing = True
        if not self._transport.can_write_eof():  # TLS
            self._transport.close()
            return
        with suppress(OSError):  # the peer was faster
            self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self.closing or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A request's head has a size and a deadline, and so have replies that are not read."""

    head_deadline_seconds = HEAD_DEADLINE_SECONDS
    write_deadline_seconds = WRITE_DEADLINE_SECONDS
    unread_bytes_max = UNREAD_BYTES_MAX
    server_state: DoorState

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = _log
        self._head_bytes = 0
        self._head_part: Part | None = None
        self._in_head = True
        self._is_hanging_up = False  # nothing more is read; what is in hand is answered
        self._entered = False
        self._joining: JoiningTransport
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._lost = False
        self.caller: Client | None = None  # None: it was refused
        self._unsent: list[asyncio.Future[bool]] = []  # who waits until the socket has taken what was written

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = self._joining = JoiningTransport(transport)
        seats = self.server_state.seats
        if seats.is_full_for_callers:
            seats.refusing += 1
            self._refuse(seats.refuse())
            return
        self._entered = True
        seats.enter()
        self.caller = self.server_state.clients.enter("rest", address_text(transport.get_extra_info("peername")))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._entered:
            self.server_state.seats.leave()
        else:
            self.server_state.seats.refusing -= 1
        self._lost = True
        if self.caller is not None:
            self.server_state.clients.leave(self.caller)
        self._tell_handed_over(False)
        self._head_is_over()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._is_hanging_up:
            return
        if self._in_head:
            self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError:
            self.send_400_response("")
        if self._in_head and self._head_bytes > HEAD_BYTES_COUNTED:
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse(ValidationError(f"the request's head exceeds {HEAD_BYTES_MAX} bytes"))
                return
            if self._head_part is None:
                self._head_part = self.server_state.unfinished.begin(self)
            self.server_state.unfinished.hold(self._head_part, self._head_bytes)

    def _parse(self, data: memoryview) -> None:
        """Java's own client offers HTTP/2 with every request. The parser takes what follows such a head for the other
        protocol's, also a body; so it reads the head once more without the offer, which nobody has to accept."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                if self.scope["method"] == "CONNECT":  # for a proxy of HTTP
                    raise httptools.HttpParserError from None
                self.parser.feed_data(self._head_without_offer())

    def _should_upgrade(self) -> bool:
        return True  # so that nothing is begun for a head that is read again

    def _head_without_offer(self) -> bytes:
        lines = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        version = self.scope["http_version"].encode()
        first = b"%s %s HTTP/%s" % (self.scope["method"].encode(), self.url, version)
        return b"\r\n".join([first, *lines, b"\r\n"])

    def end(self, error: LannerError) -> None:
        """The head is not waited for any longer."""
        self._refuse(error)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        self._in_head = True
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        self._head_is_over()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._joining.flush()  # the reply to a HEAD has no body to go with
        super().on_response_complete()
        if not self.transport.is_closing() and not self.pipeline:
            self._in_head = True  # whatever arrives next begins a request; until then the idle deadline runs

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.write_deadline_seconds, self.transport.abort)
            self._unread_bytes = self.transport.get_write_buffer_size()
            self.server_state.unread_bytes += self._unread_bytes
            if self.server_state.unread_bytes > self.unread_bytes_max:
                self.loop.call_soon(self.transport.abort)

    async def handed_over(self) -> bool:
        """Waits until the socket has taken what was written so far; False: the connection was lost before."""
        if self._lost or self._write_timer is None:
            return not self._lost
        waiter: asyncio.Future[bool] = self.loop.create_future()
        self._unsent.append(waiter)
        return await waiter

    def _tell_handed_over(self, taken: bool) -> None:
        for waiter in self._unsent:
            if not waiter.done():
                waiter.set_result(taken)
        self._unsent.clear()

    def resume_writing(self) -> None:
        self._tell_handed_over(True)
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
            self.server_state.unread_bytes -= self._unread_bytes
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP. Where it follows a whole request that is in hand, that one's answer is the last."""
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self.cycle.keep_alive = False
            self._is_hanging_up = True
            return
        self._refuse(ValidationError("this is not an HTTP request"))

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(
            self.head_deadline_seconds, self._refuse, RequestTimeout("the request's head did not arrive in time")
        )

    def _head_is_over(self) -> None:
        if self._head_part is not None:
            self.server_state.unfinished.end(self._head_part)
            self._head_part = None
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: LannerError) -> None:
        """Answer without the application, and close."""
        self._head_is_over()
        if self.transport.is_closing():
            return
        answer = answer_to(error)
        head = (
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            % (
                answer.status,
                _REASONS.get(answer.status, b"Error"),
                len(answer.body),
            )
        )
        self.transport.write(head + answer.body)
        self._joining.half_close()


class RestDoor:
    """Listens for HTTP and serves the application over it."""

    def __init__(
        self,
        service: Service,
        allow_origins: Iterable[str] = (),
        names: Iterable[str] = (),
        *,
        unfinished: Unfinished | None = None,
        seats: Seats | None = None,
        body_deadline_ms: int = limits.BODY_DEADLINE_MS,
        clients: Clients | None = None,
    ) -> None:
        self._service = service
        self._body_deadline_ms = body_deadline_ms
        self._allow_origins = tuple(allow_origins)
        self._names = tuple(names)  # by which others know this broker
        self._unfinished = Unfinished() if unfinished is None else unfinished
        self._seats = Seats() if seats is None else seats
        self._state = DoorState(self._unfinished, self._seats, Clients() if clients is None else clients)
        self._acceptor: Acceptor | None = None

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; where, with the port that port 0 became."""
        gate = Gate(host, allowed=self._allow_origins, names=self._names)
        config = Config(
            build_app(self._service, gate, self._unfinished, self._seats, self._body_deadline_ms),
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
        )
        config.load()

        def connect() -> BoundedProtocol:
            return BoundedProtocol(config=config, server_state=self._state, app_state={})

        self._acceptor = Acceptor(connect, self._seats)
        address = await self._acceptor.bind(host, port)
        self._acceptor.accept()
        return address

    async def stop(self, drain_ms: int = 5_000) -> None:
        """Take no new connection, finish the requests in hand, close."""
        if self._acceptor is None:
            return
        self._acceptor.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=drain_ms / 1_000)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()
        self._acceptor = None
