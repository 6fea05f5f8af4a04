"""The brokers as this client knows them, and a session with each one that it needs.

Any one of the addresses given is enough to begin; who else there is comes from METADATA and from hints. It knows who is
reachable and where. It refuses to know topics and who leads what: that is routing's.

Rules:
- A session is opened when somebody first needs that broker, and closed when nobody has for long. With one broker
  there is one connection, under the address given, whatever address the broker gives itself.
- A broker that is not in METADATA any more is forgotten once its connection is idle or lost: an answer that is merely
  old must not hang up on anybody.
- `request` is for what any broker answers. It goes on to another broker when one fails, under one deadline. While one
  answers it stays with that one, so that a client sees what it did before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from typing import Final

from lanner import limits
from lanner.calls import Repeat, row_of
from lanner.client.session import (
    TIMEOUT_MS,
    Address,
    Session,
    parse_addresses,
)
from lanner.errors import (
    BrokerRemoved,
    DeadlineExceeded,
    LannerError,
    Overloaded,
    ServiceUnavailable,
    StorageFailed,
    TransactionBusy,
    ValidationError,
)
from lanner.net.backoff import MOST_S, Backoff
from lanner.net.waiters import Waiters
from lanner.wire.messages import AnswerT, Asked, BrokerInfo, Call, Command

ATTEMPT_MS: Final = 11_000  # for one broker, which may forward; then another is asked
CHANGE_MS: Final = 3_000  # then another broker is asked to change the metadata: the disk of this one may hang
IDLE_S: Final = 300.0
_SWEEP_S: Final = 30.0
_STAGGER_S: Final = 0.5  # an address that does not answer so long is not waited for alone
_SPARE_S: Final = 1.0  # a broker that just failed is given up for another only so long
_ENDS: Final = (BrokerRemoved, StorageFailed)  # the broker that says so ends; the others go on


class Brokers:
    """A pool with at most one session for each broker."""

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        client_name: str = "",
        token: str | None = None,
        timeout_ms: float = TIMEOUT_MS,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.on_up: list[Callable[[Session], None]] = []
        self.on_lost: list[Callable[[Session], None]] = []
        self._seeds = parse_addresses(address)
        self._client_name = client_name
        self._token = token
        self._known: dict[str, Address] = {}  # by node id
        self._sessions: dict[str, Session] = {}  # by node id
        self._home: Session | None = None  # who answered last what any broker answers
        self._reseeding: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._up = Waiters()  # for some broker to be up
        self._opened = False
        self._closed = False
        self._loop: asyncio.AbstractEventLoop
        self._make(self._seeds[0])  # refuses here what makes no sense

    # ------------------------------------------------------------------ opening and closing

    @property
    def is_up(self) -> bool:
        """Whether some broker can be asked."""
        return any(session.is_up for session in self._sessions.values())

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def client_name(self) -> str:
        return self._client_name

    @property
    def are_several(self) -> bool:
        return len(self._known) > 1

    def check_open(self) -> None:
        """Raise when nothing can be asked, and say why."""
        if self._closed:
            raise ServiceUnavailable("the connection was closed on this side: open a new one with lanner.connect")
        if not self._opened:
            raise ServiceUnavailable("not connected yet: use `async with lanner.connect(...)`, or await it")
        if asyncio.get_running_loop() is not self._loop:
            raise ServiceUnavailable(
                "the connection was opened on another event loop: open one on this loop, or use lanner.sync, which may "
                "be called from every thread"
            )

    async def open(self) -> None:
        """Connect to one of the addresses given, or say why that is not possible."""
        if self._opened or self._closed:
            self.check_open()
            return
        self._loop = asyncio.get_running_loop()
        self._adopt(await self._first_reached(random.sample(self._seeds, len(self._seeds))))
        self._opened = True
        self._sweeping = self._loop.create_task(self._sweep())

    async def close(self) -> None:
        """Hang up everywhere; whatever is still in flight fails."""
        self._closed = True
        for task in (self._reseeding, self._sweeping):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        sessions = list(self._sessions.values())
        self._sessions.clear()
        await asyncio.gather(*(session.close() for session in sessions), *self._closing)
        self._up.wake_all()

    async def _first_reached(self, addresses: Sequence[Address]) -> Session:
        """A session with whichever answers first; those later in the list are tried only when needed."""
        failure: LannerError = ServiceUnavailable()
        waiting = list(addresses)
        attempts: dict[asyncio.Task[None], Session] = {}
        try:
            while waiting or attempts:
                if waiting:
                    session = self._make(waiting.pop(0))
                    attempts[self._loop.create_task(session.open())] = session
                pause_s = _STAGGER_S if waiting else None
                done, _ = await asyncio.wait(attempts, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    session = attempts.pop(task)
                    error = task.exception()
                    if error is None:
                        return session
                    if not isinstance(error, LannerError):
                        raise error
                    failure = error
        finally:
            for task, session in attempts.items():
                task.cancel()
                self._close_session(session)
        raise failure

    def _make(self, address: Address, node_id: str = "") -> Session:
        return Session(
            [address],
            client_name=self._client_name,
            token=self._token,
            timeout_ms=self.timeout_ms,
            node_id=node_id,
        )

    def _adopt(self, session: Session) -> None:
        """Take in a session that is up."""
        other = self._sessions.get(session.node_id)
        if other is not None and other is not session:
            self._close_session(other)
        self._sessions[session.node_id] = session
        session.on_change = self._changed
        session.accepts = self._may_be
        session.probes = self.are_several
        self._up.wake_all()

    def _close_session(self, session: Session) -> None:
        session.on_change = None
        task = self._loop.create_task(session.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # ------------------------------------------------------------------ who there is

    def learn(self, infos: Sequence[BrokerInfo]) -> None:
        """The brokers as METADATA tells them."""
        found = {
            info.node_id: (info.host, info.port)
            for info in infos[: limits.BROKERS_MAX]
            if info.host and 0 < info.port <= 65_535
        }
        if found:
            self._known = found
            for node_id, session in list(self._sessions.items()):
                session.probes = self.are_several
                if node_id in found:
                    if self.are_several:
                        _add_address(session, found[node_id])
                elif not session.is_up and len(self._sessions) > 1:
                    self._drop(node_id)

    def learn_one(self, node_id: str, address: str) -> None:
        """A broker named by a hint: the broker that gives it has heard that one, so it is tried again at once."""
        if not address or len(self._known) >= 2 * limits.BROKERS_MAX:
            return
        try:
            self._known[node_id] = parse_addresses(address)[0]
        except ValidationError:
            return
        session = self._sessions.get(node_id)
        if session is not None:
            _add_address(session, self._known[node_id])
            session.hurry()

    def to(self, node_id: str) -> Session | None:
        """The session with this broker, which may still be on its way; None: nobody knows that broker."""
        session = self._sessions.get(node_id)
        if session is not None:
            return session
        address = self._known.get(node_id)
        if self._closed or address is None or not self.are_several:
            # With one broker there is nobody else to mean.
            return next(iter(self._sessions.values()), None) if not self.are_several else None
        session = self._make(address, node_id)
        session.on_change = self._changed
        session.accepts = self._may_be
        session.probes = True
        self._sessions[node_id] = session
        session.start()
        return session

    def any_up(self, avoid: Collection[Session] = ()) -> Session | None:
        """Some broker that can be asked now, one that is not to be avoided if there is one."""
        home = self._home
        if home is not None and home.is_up and home not in avoid and not home.is_suspect:
            return home
        ready = [session for session in self._sessions.values() if session.is_up]
        better = [session for session in ready if session not in avoid and not session.is_suspect]
        return random.choice(better or ready) if ready else None

    def is_failing(self, node_id: str) -> bool:
        """Whether this broker, which others say is there, is out of reach. It is tried again at once."""
        session = self._sessions.get(node_id)
        if session is None or not session.is_failing:
            return False
        session.hurry()
        return True

    def _may_be(self, session: Session, node_id: str) -> bool:
        """Another broker answers at a session's address: right only while it is the only one there is."""
        return len(self._sessions) == 1 and not self.are_several and bool(node_id)

    def _changed(self, session: Session) -> None:
        if session.is_up:
            if self._sessions.get(session.node_id) is not session:
                self._sessions = {one.node_id: one for one in self._sessions.values()}
            self._up.wake_all()
            for notify in list(self.on_up):
                notify(session)
        else:
            for notify in list(self.on_lost):
                notify(session)

    def _drop(self, node_id: str) -> None:
        self._close_session(self._sessions.pop(node_id))

    async def _sweep(self) -> None:
        """Hang up on brokers that are gone from the cluster, or that nobody has needed for long."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = self._loop.time()
            for node_id, session in list(self._sessions.items()):
                gone = bool(self._known) and node_id not in self._known
                unused = now - session.used_at > IDLE_S
                others_up = any(one.is_up for one in self._sessions.values() if one is not session)
                if session.is_idle and others_up and (gone or unused):
                    self._drop(node_id)

    # ------------------------------------------------------------------ asking any that answers

    async def request(
        self,
        call: Asked[AnswerT],
        *,
        timeout_ms: float | None = None,
        attempt_ms: float = ATTEMPT_MS,
    ) -> tuple[AnswerT, memoryview]:
        """Ask any broker and wait. What may be repeated is asked again, until the deadline, where that can help. Each
        broker has twice the time that the one before it had, as all of them may be slow."""
        command, repeatable = _how(call)
        self.check_open()
        deadline = self._loop.time() + (self.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        backoff = Backoff()
        failed: set[Session] = set()
        while True:
            session = await self.reached(deadline, failed)
            left_ms = (deadline - self._loop.time()) * 1000
            bounded = repeatable and self.are_several
            outcome = await session.ask(command, call, min(left_ms, attempt_ms) if bounded else left_ms)
            if not isinstance(outcome, LannerError):
                self._home = session
                return outcome.control, outcome.bulk
            told = outcome.details
            without_effect = isinstance(outcome, Overloaded) or told.get("sent") is False or told.get("refused") is True
            elsewhere = isinstance(outcome, _ENDS) and repeatable and self.are_several
            if not (outcome.retryable or elsewhere) or not (repeatable or without_effect):
                raise outcome
            if isinstance(outcome, DeadlineExceeded) and not bounded:
                raise outcome
            if isinstance(outcome, DeadlineExceeded):
                attempt_ms *= 2
            if not isinstance(outcome, TransactionBusy):  # which every broker would say
                failed.add(session)
            pause_s = backoff.pause_until(deadline, self._loop.time(), outcome.retry_after_ms)
            if self._closed or pause_s is None:
                raise outcome
            await asyncio.sleep(pause_s)

    async def ask(
        self, call: Asked[AnswerT], *, timeout_ms: float | None = None, attempt_ms: float = ATTEMPT_MS
    ) -> AnswerT:
        """The same for an answer without bulk."""
        return (await self.request(call, timeout_ms=timeout_ms, attempt_ms=attempt_ms))[0]

    async def reached(self, deadline: float, avoid: Collection[Session] = ()) -> Session:
        """A broker that is up, if possible another than these; past the deadline raise why there is none."""
        spare_until = min(deadline, self._loop.time() + _SPARE_S)
        while True:
            self.check_open()
            session = self.any_up(avoid)
            now = self._loop.time()
            if session is not None and (session not in avoid or now >= spare_until or not self.are_several):
                return session
            if now >= deadline:
                raise next((one.failure for one in self._sessions.values()), ServiceUnavailable())
            self._seek()
            await self._up.wait((deadline if session is None else spare_until) - now)

    def _seek(self) -> None:
        """Nobody is there to be asked: try everybody, also under the addresses given at the start."""
        for node_id in random.sample(list(self._known), min(5, len(self._known))):
            self.to(node_id)
        tried = {address for session in self._sessions.values() for address in session.addresses}
        missing = [address for address in self._seeds if address not in tried]
        if missing and self._reseeding is None:
            self._reseeding = self._loop.create_task(self._reseed(missing))

    async def _reseed(self, addresses: Sequence[Address]) -> None:
        try:
            self._adopt(await self._first_reached(addresses))
        except LannerError:
            await asyncio.sleep(MOST_S * random.random())
        finally:
            self._reseeding = None


def _how(call: Asked[AnswerT]) -> tuple[Command, bool]:
    """With which command it is asked, and whether again."""
    if not isinstance(call, Call):
        return Command.PING, True
    row = row_of(call)
    return row.command, row.repeat is not Repeat.NEVER and not row.forgive  # that takes the broker that tried


def _add_address(session: Session, address: Address) -> None:
    """Where the broker says it is comes after what has worked."""
    if address not in session.addresses:
        session.addresses = [session.addresses[0], address]
