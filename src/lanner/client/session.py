"""A session with one broker: one connection, reopened when it is lost, and a deadline on everything asked.

It knows addresses, deadlines and backoff. It refuses to know what a request means and that there are other brokers;
whether something may be asked again, and where, is for the caller to say.

Rules:
- `call` never repeats a request. When the connection ends, each one in flight gets `ConnectionLost`; its detail
  `sent` is False when the request surely never left.
- Every request has a deadline. One sweep looks after all of them; there is no timer per request.
- While the session is open a lost connection is reopened in the background, with backoff.
- A broker that leaves requests unanswered is asked whether it is still there, where another could serve instead
  (`probes`); when it does not answer that either, the connection is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic

from lanner import limits
from lanner.client.arguments import check_timeout_ms
from lanner.errors import (
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    ServiceUnavailable,
    ValidationError,
)
from lanner.net.backoff import FIRST_S, MOST_S, Backoff
from lanner.net.connector import ClientLink, PollInFlight, open_connection
from lanner.net.waiters import Waiters, answer_to
from lanner.wire.connection import Reply
from lanner.wire.messages import AnswerT, Asked, Command, Empty, Poll, Polled, Settled

DEFAULT_PORT: Final = 7400
TIMEOUT_MS: Final = 30_000
RECONNECT_S_MAX: Final = MOST_S
_PING_MS: Final = 10_000
_SWEEP_S: Final = 0.25
_PROBE_EACH_S: Final = 0.5  # while something that was asked is not answered
_SUSPECT_S: Final = 0.5  # without an answer to the probe: others are asked first
_SILENT_S: Final = 2.0  # and by then the connection is given up

Address = tuple[str, int]
Outcome = Reply[AnswerT] | LannerError
Callback = Callable[[Outcome[AnswerT]], None]

SCHEME: Final = "lanner://"


def parse_addresses(text: str | Iterable[str]) -> list[Address]:
    """HOST:PORT or lanner://HOST:PORT, several with commas between or as a list; the port may be left out."""
    addresses = []
    if not isinstance(text, str):
        several = list(text) if isinstance(text, Iterable) else [text]
        if not all(isinstance(one, str) for one in several):
            raise ValidationError(
                f"address is {text!r}: give HOST:PORT, such as localhost:{DEFAULT_PORT}, or a list of these",
                field="address",
            )
        text = ",".join(several)
    for part in text.split(","):
        given = part.strip().removeprefix(SCHEME).rstrip("/")
        scheme, separator, _ = given.partition("://")
        if separator:
            raise ValidationError(
                f"address {given!r} begins with {scheme}://, and this is no web address: give HOST:PORT of the native "
                f"door, such as localhost:{DEFAULT_PORT}; `lanner up` prints it beside that of REST",
                field="address",
            )
        host, colon, port = given.rpartition(":")
        if not colon or given.endswith("]"):
            host, port = given, str(DEFAULT_PORT)
        if not host or not port.isdigit() or not 0 < int(port) <= 65_535:
            raise ValidationError(
                f"address {given!r} is not valid: give HOST:PORT, such as localhost:{DEFAULT_PORT}", field="address"
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses


class _Asked(Generic[AnswerT]):
    """A request in flight, until its future or its deadline answers it."""

    __slots__ = ("asked", "callback", "deadline", "future", "link")

    def __init__(
        self,
        link: ClientLink,
        future: asyncio.Future[Reply[AnswerT]],
        callback: Callback[AnswerT],
        deadline: float,
        asked: dict[_Asked[Any], None],
    ) -> None:
        self.link = link
        self.future = future
        self.callback = callback
        self.deadline = deadline
        self.asked = asked

    def answered(self, future: asyncio.Future[Reply[AnswerT]]) -> None:
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
    """One broker, under one of its addresses."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        client_name: str = "",
        token: str | None = None,
        timeout_ms: float = TIMEOUT_MS,
        node_id: str = "",
    ) -> None:
        self.addresses = list(addresses)
        self.timeout_ms = check_timeout_ms(timeout_ms)
        self.node_id = node_id  # who is expected to answer, or did
        self.probes = False
        self.reconnects = 0
        self.used_at = 0.0
        self.on_change: Callable[[Session], None] | None = None  # it is up, or it is not, or still is not
        self.accepts: Callable[[Session, str], bool] | None = None  # another broker answers there: is that right?
        self._client_name = client_name
        self._token = token or ""
        self._link: ClientLink | None = None
        self._asked: dict[_Asked[Any], None] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._watching: asyncio.Task[None] | None = None
        self._tried = Waiters()  # for it to be up, or not to be
        self._last_failure: LannerError | None = None
        self._inflight_max = limits.CONNECTION_INFLIGHT_MAX
        self._hurried = asyncio.Event()  # since the last attempt to connect began
        self._probe: asyncio.Future[Reply[Empty]] | None = None
        self._probed_at = 0.0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop

    # ------------------------------------------------------------------ opening and closing

    @property
    def is_up(self) -> bool:
        return self._link is not None and self._link.is_open

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_failing(self) -> bool:
        """The last attempt to connect failed."""
        return self._last_failure is not None and not self.is_up

    @property
    def is_suspect(self) -> bool:
        """It owes an answer that takes no time."""
        probe = self._probe
        return probe is not None and not probe.done() and self._loop.time() - self._probed_at > _SUSPECT_S

    @property
    def is_idle(self) -> bool:
        return not self._asked

    @property
    def failure(self) -> LannerError:
        """Why there is no connection."""
        where = ", ".join(f"{host}:{port}" for host, port in self.addresses)
        why = f": {self._last_failure.message}" if self._last_failure is not None else ""
        return ConnectionLost(f"there is no connection to {where}{why}", sent=False)

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
        self._watching = self._loop.create_task(self._watch())

    def start(self) -> None:
        """Connect in the background, and go on trying."""
        self._loop = asyncio.get_running_loop()
        self.used_at = self._loop.time()
        self._watching = self._loop.create_task(self._watch())

    async def _connect(self) -> None:
        failure: LannerError = ServiceUnavailable()
        for address in list(self.addresses):
            host, port = address
            try:
                link = await open_connection(
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
                continue
            except LannerError as error:
                failure = error
                continue
            if self._take_over(link):
                self.addresses.sort(key=lambda one: one != address)  # what worked is tried first the next time
                self._notify()
                return
            failure = ServiceUnavailable(f"{host}:{port} is another broker now", address=f"{host}:{port}")
            await link.close()
        self._last_failure = failure
        raise failure

    def _take_over(self, link: ClientLink) -> bool:
        answered = link.hello_reply.node_id
        if self.node_id not in ("", answered) and self.accepts is not None and not self.accepts(self, answered):
            return False
        self.node_id = answered
        self._link = link
        self._last_failure = None
        self._inflight_max = min(limits.CONNECTION_INFLIGHT_MAX, link.hello_reply.inflight_max)
        return True

    def _notify(self) -> None:
        self._tried.wake_all()
        if self.on_change is not None and not self._closed:
            self.on_change(self)

    async def _watch(self) -> None:
        """Reopen the connection whenever it is lost, until the session is closed."""
        while True:
            if self._link is not None:
                await asyncio.shield(self._link.closed)
                self.reconnects += 1
                self._notify()
            backoff = Backoff(FIRST_S, RECONNECT_S_MAX)
            while not self.is_up:
                self._hurried.clear()
                try:
                    await self._connect()
                except LannerError:
                    self._notify()
                    pause_s = backoff.pause_s()
                    await asyncio.sleep(min(pause_s, FIRST_S))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause_s - FIRST_S):
                            await self._hurried.wait()

    def hurry(self) -> None:
        """Others say that the broker is there: try again without waiting longer."""
        self._hurried.set()

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
        self._notify()

    # ------------------------------------------------------------------ asking

    def call(
        self,
        command: Command,
        control: Asked[AnswerT],
        bulk: Sequence[bytes | memoryview],
        callback: Callback[AnswerT],
        timeout_ms: float | None = None,
    ) -> None:
        """Ask now. The callback gets the reply or the error; at once when there is no connection."""
        link = self._link
        if link is None or not link.is_open:
            callback(self.failure)
            return
        try:
            future = link.request(command, control, bulk)
        except LannerError as error:  # it does not fit into a frame
            callback(error)
            return
        except (OverflowError, UnicodeEncodeError) as error:
            callback(ValidationError(f"the request holds what cannot be sent: {error}"))
            return
        self._expect(link, future, callback, timeout_ms)

    def poll(self, control: Poll, polled: Callback[Polled], settled: Callback[Settled], timeout_ms: float) -> None:
        """Ask for leases. The settles that ride on it are answered to `settled`, before and apart."""
        link = self._link
        if link is None or not link.is_open:
            if control.settles:
                settled(self.failure)
            polled(self.failure)
            return
        flight: PollInFlight = link.poll(control)
        if flight.settled is not None:
            self._expect(link, flight.settled, settled, None)
        self._expect(link, flight.polled, polled, timeout_ms)

    def _expect(
        self,
        link: ClientLink,
        future: asyncio.Future[Reply[AnswerT]],
        callback: Callback[AnswerT],
        timeout_ms: float | None,
    ) -> None:
        self.used_at = self._loop.time()
        deadline = self.used_at + (self.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        asked = _Asked(link, future, callback, deadline, self._asked)
        self._asked[asked] = None
        future.add_done_callback(asked.answered)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    async def ask(self, command: Command, control: Asked[AnswerT], timeout_ms: float | None = None) -> Outcome[AnswerT]:
        """Ask once and wait for what comes of it."""
        future: asyncio.Future[Outcome[AnswerT]] = self._loop.create_future()
        self.call(command, control, (), answer_to(future), timeout_ms)
        return await future

    async def wait_until_tried(self, deadline: float) -> None:
        """Return once connected, or once that has failed."""
        while not self.is_up and not self.is_failing and not self._closed and self._loop.time() < deadline:
            await self._tried.wait(deadline - self._loop.time())

    # ------------------------------------------------------------------ what is overdue

    def _sweep(self) -> None:
        self._sweeper = None
        now = self._loop.time()
        for asked in [asked for asked in self._asked if asked.deadline <= now]:
            if self._asked.pop(asked, asked) is None:
                asked.future.cancel()
                asked.callback(DeadlineExceeded("the broker did not answer in time; the request may still take effect"))
        if self._asked:
            if self.probes:
                self._judge_silence(now)
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def _judge_silence(self, now: float) -> None:
        """Requests may wait long for good reasons; a broker that is there answers a PING at once."""
        link = self._link
        if link is None or not link.is_open:
            return
        if self._probe is not None and not self._probe.done():
            if now - self._probed_at > _SILENT_S:
                link.abort(ConnectionLost("the broker went silent"))
        elif now - self._probed_at > _PROBE_EACH_S:
            self._probe, self._probed_at = link.request(Command.PING, Empty()), now
            self._probe.add_done_callback(_observe)


def _observe(future: asyncio.Future[Reply[Empty]]) -> None:
    """Whether a probe failed is seen by the connection that ended."""
    if not future.cancelled():
        future.exception()
