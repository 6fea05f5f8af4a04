"""A session with the broker: one connection, reopened when it is lost, and a deadline on everything asked.

It knows addresses, deadlines and backoff. It refuses to know what a request means; whether one may be asked again is
for the caller to say.

Rules:
- `call` never repeats a request. When the connection ends, each one in flight gets `ConnectionLost`; its detail
  `sent` is False when the request surely never left.
- Every request has a deadline. One sweep looks after all of them; there is no timer per request.
- While the session is open a lost connection is reopened in the background, with backoff.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from lanner import limits
from lanner.errors import (
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    Overloaded,
    ServiceUnavailable,
    ValidationError,
)
from lanner.net.connector import ClientLink, PollInFlight, open_connection
from lanner.wire.connection import Reply
from lanner.wire.messages import Command, Control, Poll

DEFAULT_PORT: Final = 7400
TIMEOUT_MS: Final = 30_000
_PING_MS: Final = 10_000
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 2.0
_SWEEP_S: Final = 0.25

Outcome = Reply | LannerError
Callback = Callable[[Outcome], None]
ControlT = TypeVar("ControlT", bound=Control)


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """HOST:PORT, or several with commas between; the port may be left out."""
    addresses = []
    for part in text.split(","):
        given = part.strip()
        host, colon, port = given.rpartition(":")
        if not colon or given.endswith("]"):
            host, port = given, str(DEFAULT_PORT)
        if not host or not port.isdigit() or not 0 < int(port) <= 65_535:
            raise ValidationError(
                f"address {given!r} is not valid: give HOST:PORT, such as localhost:{DEFAULT_PORT}", field="address"
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses


class _Asked:
    """A request in flight, until its future or its deadline answers it."""

    __slots__ = ("asked", "callback", "deadline", "future", "link")

    def __init__(
        self,
        link: ClientLink,
        future: asyncio.Future[Reply],
        callback: Callback,
        deadline: float,
        asked: dict[_Asked, None],
    ) -> None:
        self.link = link
        self.future = future
        self.callback = callback
        self.deadline = deadline
        self.asked = asked

    def answered(self, future: asyncio.Future[Reply]) -> None:
        if self.asked.pop(self, self) is self:
            return  # the deadline came first
        if future.cancelled():
            self.callback(ConnectionLost("the connection was closed on this side"))
            return
        error = future.exception()
        if error is None:
            self.callback(future.result())
        elif isinstance(error, LannerError) and (error.retryable or self.link.is_open):
            self.callback(error)
        else:  # the reason why the connection ended is no answer to this request: it may have taken effect
            self.callback(ConnectionLost(f"the connection ended before the answer came: {error}"))


class Session:
    """One broker at a time, whichever of the addresses answers."""

    def __init__(
        self, address: str, *, client_name: str = "", token: str | None = None, timeout_ms: float = TIMEOUT_MS
    ) -> None:
        if not 0 < timeout_ms <= limits.DELAY_MS_MAX:
            raise ValidationError(f"timeout_ms is {timeout_ms!r}: give milliseconds above 0", field="timeout_ms")
        self.addresses = parse_addresses(address)
        self.timeout_ms = timeout_ms
        self.reconnects = 0
        self.on_up: list[Callable[[], None]] = []
        self._client_name = client_name
        self._token = token or ""
        self._link: ClientLink | None = None
        self._asked: dict[_Asked, None] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._up_waiters: list[asyncio.Future[None]] = []
        self._last_failure: LannerError | None = None
        self._inflight_max = limits.CONNECTION_INFLIGHT_MAX
        self._opened = False
        self._closed = False
        self._loop: asyncio.AbstractEventLoop

    # ------------------------------------------------------------------ opening and closing

    @property
    def is_up(self) -> bool:
        return self._link is not None and self._link.is_open

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise when nothing can be asked, and say why."""
        if self._closed:
            raise ServiceUnavailable("the connection was closed on this side: open a new one with lanner.connect")
        if not self._opened:
            raise ServiceUnavailable("not connected yet: use `async with lanner.connect(...)`, or await it")

    @property
    def room(self) -> int:
        """How many more requests may be in flight; 0 while the socket takes no more bytes."""
        link = self._link
        if link is None or not link.is_open or not link.is_writable:
            return 0
        return self._inflight_max - link.unanswered

    async def open(self) -> None:
        """Connect, or say why that is not possible. Each address is tried once."""
        self._loop = asyncio.get_running_loop()
        await self._connect()
        self._opened = True
        self._watching = self._loop.create_task(self._watch())

    async def _connect(self) -> None:
        failure: LannerError = ServiceUnavailable()
        for host, port in self.addresses:
            try:
                self._link = await open_connection(
                    host,
                    port,
                    client=self._client_name,
                    token=self._token,
                    timeout_ms=round(min(self.timeout_ms, limits.HELLO_DEADLINE_MS)),
                    idle_ping_ms=_PING_MS,
                )
            except ConnectionLost as error:
                failure = ServiceUnavailable(
                    f"{error.message}; start a broker with `lanner up`, or check the address", address=f"{host}:{port}"
                )
            except LannerError as error:
                failure = error
            else:
                self._inflight_max = min(limits.CONNECTION_INFLIGHT_MAX, self._link.hello_reply.inflight_max)
                self._notify_up()
                return
        self._last_failure = failure
        raise failure

    def _notify_up(self) -> None:
        for waiter in self._up_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._up_waiters.clear()
        for notify in list(self.on_up):
            notify()

    async def _watch(self) -> None:
        """Reopen the connection whenever it is lost, until the session is closed."""
        while self._link is not None:
            await asyncio.shield(self._link.closed)
            pause_s = _PAUSE_S
            while not self.is_up:
                try:
                    await self._connect()
                except LannerError:
                    await asyncio.sleep(pause_s * (0.5 + random.random()))
                    pause_s = min(_PAUSE_S_MAX, pause_s * 2)
            self.reconnects += 1

    async def close(self) -> None:
        """Hang up; whatever is still in flight fails."""
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for waiter in self._up_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._up_waiters.clear()

    # ------------------------------------------------------------------ asking

    def call(
        self,
        command: Command,
        control: Control,
        bulk: Sequence[bytes | memoryview],
        callback: Callback,
        timeout_ms: float | None = None,
    ) -> None:
        """Ask now. The callback gets the reply or the error; at once when there is no connection."""
        link = self._link
        if link is None or not link.is_open:
            callback(self._not_sent())
            return
        try:
            future = link.request(command, control, bulk)
        except LannerError as error:  # it does not fit into a frame
            callback(error)
            return
        self._expect(link, future, callback, timeout_ms)

    def poll(self, control: Poll, polled: Callback, settled: Callback, timeout_ms: float) -> None:
        """Ask for leases. The settles that ride on it are answered to `settled`, before and apart."""
        link = self._link
        if link is None or not link.is_open:
            if control.settles:
                settled(self._not_sent())
            polled(self._not_sent())
            return
        flight: PollInFlight = link.poll(control)
        if flight.settled is not None:
            self._expect(link, flight.settled, settled, None)
        self._expect(link, flight.polled, polled, timeout_ms)

    def _expect(
        self, link: ClientLink, future: asyncio.Future[Reply], callback: Callback, timeout_ms: float | None
    ) -> None:
        deadline = self._loop.time() + (self.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        asked = _Asked(link, future, callback, deadline, self._asked)
        self._asked[asked] = None
        future.add_done_callback(asked.answered)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def _not_sent(self) -> LannerError:
        where = ", ".join(f"{host}:{port}" for host, port in self.addresses)
        why = f": {self._last_failure.message}" if self._last_failure is not None else ""
        return ConnectionLost(f"there is no connection to {where}{why}", sent=False)

    async def request(
        self,
        command: Command,
        control: Control,
        kind: type[ControlT],
        *,
        timeout_ms: float | None = None,
        repeatable: bool = True,
    ) -> tuple[ControlT, memoryview]:
        """Ask and wait. What is `repeatable` is asked again, until the deadline, where a retry can help."""
        self.check_open()
        deadline = self._loop.time() + (self.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        pause_s = _PAUSE_S
        while True:
            await self.wait_until_up(deadline)
            outcome = await self._ask_once(command, control, (deadline - self._loop.time()) * 1000)
            if not isinstance(outcome, LannerError):
                assert isinstance(outcome.control, kind)
                return outcome.control, outcome.bulk
            without_effect = isinstance(outcome, Overloaded) or outcome.details.get("sent") is False
            if not outcome.retryable or isinstance(outcome, DeadlineExceeded) or not (repeatable or without_effect):
                raise outcome
            pause_s = max(pause_s, (outcome.retry_after_ms or 0) / 1000)
            if self._closed or self._loop.time() + pause_s >= deadline:
                raise outcome
            await asyncio.sleep(pause_s)
            pause_s = min(_PAUSE_S_MAX, pause_s * 2)

    async def _ask_once(self, command: Command, control: Control, timeout_ms: float) -> Outcome:
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def answered(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        self.call(command, control, (), answered, timeout_ms)
        return await future

    async def wait_until_up(self, deadline: float) -> None:
        """Return once connected; past the deadline raise why that is not so."""
        while not self.is_up:
            self.check_open()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._up_waiters.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                raise self._not_sent() from None

    def _sweep(self) -> None:
        self._sweeper = None
        now = self._loop.time()
        for asked in [asked for asked in self._asked if asked.deadline <= now]:
            if self._asked.pop(asked, asked) is None:
                asked.future.cancel()
                asked.callback(DeadlineExceeded("the broker did not answer in time; the request may still take effect"))
        if self._asked:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
