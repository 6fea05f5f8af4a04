"""The brokers, as the proxy reaches them: one connection for what is answered at once, some for what waits.

What waits at a broker (long fetches, heartbeats, looks for news) takes a place on its connection for as long as it
waits, and a broker takes only so many requests of one connection at a time. So it has connections of its own, and
publishes and acks never queue behind it.

- `serve_at` asks one broker once, for a call that somebody above repeats.
- `ask_any` asks whichever broker answers, for what any of them serves. It stays with one while that answers, so that a
  caller sees what it did before; it goes on to another as the call's row allows.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Final

from lanner.calls import Answer, Bulk, Identity, Repeat, Where, row_of
from lanner.calls.merging import cut
from lanner.client.brokers import CHANGE_MS, Brokers
from lanner.client.session import Address, Callback, Outcome, Session
from lanner.errors import (
    BadGateway,
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    NotLeader,
    PartitionNotFound,
    ServiceUnavailable,
    StaleIncarnation,
    TopicNotFound,
)
from lanner.net.backoff import Backoff
from lanner.net.waiters import answer_to
from lanner.proxy.topology import Topology
from lanner.wire.connection import Reply
from lanner.wire.messages import AnswerT, BrokerInfo, Call, Metadata

DEADLINE_MS: Final = 15_000  # for what any broker serves; each of them forwards for up to 10 s
WAITING_POOLS: Final = 4
WAITING_MAX: Final = WAITING_POOLS * 512  # calls that wait at brokers at a time; a broker takes 1,024 per connection
_CONNECTING_S: Final = 2.0
_LOOK_MS: Final = 5_000
OUTDATED: Final = (TopicNotFound, PartitionNotFound, StaleIncarnation)  # the map may be wrong
_ELSEWHERE: Final = (ConnectionLost, DeadlineExceeded, ServiceUnavailable, BadGateway, NotLeader)


class Pool(Brokers):
    """Connections that can begin anew elsewhere."""

    @property
    def _tried(self) -> set[Address]:
        return {address for session in self._sessions.values() for address in session.addresses}

    async def begin_elsewhere(self) -> None:
        """Who was reached tells nothing: have another of the addresses given, if there is one that answers."""
        others = [address for address in self._seeds if address not in self._tried]
        if others:
            await self._begin(random.sample(others, len(others)))

    async def begin_where(self, other: Pool) -> None:
        """Have the broker that another pool has."""
        if not self._tried & other._tried:
            await self._begin(list(other._tried))

    async def _begin(self, addresses: Sequence[Address]) -> None:
        session = await self._first_reached(addresses)
        for node_id in self._sessions.keys() - {session.node_id}:
            self._drop(node_id)
        self._adopt(session)


class ManyBrokers(Pool):
    """The connections for what is answered at once. What these learn of brokers, those for what waits learn too."""

    def __init__(self, address: str, *, client_name: str, timeout_ms: float) -> None:
        super().__init__(address, client_name=client_name, timeout_ms=timeout_ms)
        self.waiting = [
            Pool(address, client_name=f"{client_name}-waiting", timeout_ms=timeout_ms) for _ in range(WAITING_POOLS)
        ]

    async def open(self) -> None:
        if not self.is_up:
            await super().open()
        await asyncio.gather(*(pool.open() for pool in self.waiting if not pool.is_up))

    async def gather_here(self) -> None:
        """Have what waits wait where somebody has answered."""
        await asyncio.gather(*(pool.begin_where(self) for pool in self.waiting))

    async def close(self) -> None:
        await asyncio.gather(super().close(), *(pool.close() for pool in self.waiting))

    def learn(self, infos: Sequence[BrokerInfo]) -> None:
        super().learn(infos)
        for pool in self.waiting:
            pool.learn(infos)

    def learn_one(self, node_id: str, address: str) -> None:
        super().learn_one(node_id, address)
        for pool in self.waiting:
            pool.learn_one(node_id, address)


class Upstream:
    """Asks brokers."""

    def __init__(self, brokers: ManyBrokers, topology: Topology) -> None:
        self._brokers = brokers
        self._topology = topology
        self.own = ""  # the node id under which the proxy answers: it may stand in its own list of brokers
        self._home = ""  # the node id of who answered last what any broker answers
        self._waiting: dict[Brokers, int] = dict.fromkeys(brokers.waiting, 0)
        self.repeated = 0  # calls that were asked again because a broker did not answer
        self._loop = asyncio.get_running_loop()

    @property
    def waiting(self) -> int:
        """How many calls wait at brokers."""
        return sum(self._waiting.values())

    # ------------------------------------------------------------------ one broker, once

    async def serve_at(
        self, node_id: str, identity: Identity, call: Call[AnswerT], bulk: Bulk, timeout_ms: int
    ) -> Answer[AnswerT]:
        row = row_of(call)
        waits_ms = row.waits(call)
        pool = self._pool(waits_ms)
        session = pool.to(node_id)
        if session is None:
            raise self._silence(node_id, "nobody knows its address", refused=True)
        ends = self._loop.time() + timeout_ms / 1_000
        await session.wait_until_tried(min(ends, self._loop.time() + _CONNECTING_S))
        outcome = await self._ask(pool, session, call, bulk, timeout_ms + waits_ms)
        if not isinstance(outcome, LannerError):
            return _answer(call, outcome)
        self._learn_from(call, session, outcome)
        if isinstance(outcome, ConnectionLost | DeadlineExceeded):
            raise self._silence(node_id, outcome.message, refused=outcome.details.get("sent") is False)
        raise outcome

    def _learn_from(self, call: Call[AnswerT], session: Session, error: LannerError) -> None:
        topics = row_of(call).topics(call)
        if not topics:
            return
        if isinstance(error, OUTDATED):
            self._topology.doubt(topics[0])
            return
        partition = error.details.get("partition")
        self._topology.failed(topics[0], partition if isinstance(partition, int) else -1, session, error)

    def _silence(self, node_id: str, why: str, *, refused: bool) -> BadGateway:
        """Return the error that says which broker did not answer."""
        name = self._topology.name_of(node_id)
        details = {"refused": True} if refused else {}
        return BadGateway(f"broker {name} did not answer: {why}", broker=name, node_id=node_id, **details)

    # ------------------------------------------------------------------ any broker

    async def ask_any(self, call: Call[AnswerT], bulk: Bulk = (), timeout_ms: int = DEADLINE_MS) -> Answer[AnswerT]:
        """Have some broker serve a call, or have it served; asked again elsewhere as its row allows."""
        row = row_of(call)
        waits_ms = row.waits(call)
        pool = self._pool(waits_ms)
        ends = self._loop.time() + (timeout_ms + waits_ms) / 1_000
        backoff, failed = Backoff(), set[Session]()
        may_repeat = row.repeat is not Repeat.NEVER
        attempt_ms = CHANGE_MS if may_repeat and row.where is Where.METADATA else timeout_ms + waits_ms
        while True:
            session = await self._reach(pool, ends, failed)
            left_ms = (ends - self._loop.time()) * 1_000
            outcome = await self._ask(pool, session, call, bulk, min(left_ms, attempt_ms))
            if not isinstance(outcome, LannerError):
                self._home = session.node_id
                return _answer(call, outcome)
            details = outcome.details
            without_effect = details.get("sent") is False or details.get("refused") is True
            if not isinstance(outcome, _ELSEWHERE) or not (may_repeat or without_effect):
                raise self._told(session, outcome)
            failed.add(session)
            if self._home == session.node_id:
                self._home = ""
            pause_s = backoff.pause_until(ends, self._loop.time(), outcome.retry_after_ms)
            if pause_s is None:
                raise self._told(session, outcome)
            self.repeated += 1
            await asyncio.sleep(pause_s)

    async def _reach(self, pool: Brokers, ends: float, avoid: set[Session]) -> Session:
        home = pool.to(self._home) if self._home else None
        if home is not None:
            await home.wait_until_tried(min(ends, self._loop.time() + _CONNECTING_S))
            if home.is_up and not home.is_suspect and home not in avoid:
                return home
        try:
            return await pool.reached(ends, avoid)
        except ConnectionLost as error:
            raise ServiceUnavailable(
                f"no broker can be reached: {error.message}; the proxy goes on trying", retry_after_ms=1_000
            ) from error

    def _told(self, session: Session, error: LannerError) -> LannerError:
        """Return the error for the client. Its own connection is fine: what was lost is an answer of a broker."""
        if isinstance(error, ConnectionLost):
            return self._silence(session.node_id, error.message, refused=error.details.get("sent") is False)
        return error

    # ------------------------------------------------------------------ asking

    def _pool(self, waits_ms: int) -> Brokers:
        return min(self._waiting, key=self._waiting.__getitem__) if waits_ms > 0 else self._brokers

    async def _ask(
        self, pool: Brokers, session: Session, call: Call[AnswerT], bulk: Bulk, timeout_ms: float
    ) -> Outcome[AnswerT]:
        if self.own and session.node_id == self.own:  # it would ask itself, and that one itself again
            return ServiceUnavailable("the list of servers names this proxy itself: name brokers", refused=True)
        future: asyncio.Future[Outcome[AnswerT]] = self._loop.create_future()
        tell = answer_to(future)
        if pool in self._waiting:
            tell = self._counted(pool, tell)
        session.call(row_of(call).command, call, bulk, tell, timeout_ms)
        return await future

    def _counted(self, pool: Brokers, tell: Callback[AnswerT]) -> Callback[AnswerT]:
        """Count a call as waiting until it is answered, also when its caller has gone."""
        self._waiting[pool] += 1

        def answered(outcome: Outcome[AnswerT]) -> None:
            self._waiting[pool] -= 1
            tell(outcome)

        return answered

    async def look_around(self) -> LannerError | None:
        """Ask who is there; why nobody answered, or None."""
        asked_at = time.monotonic()
        try:
            reply = (await self.ask_any(Metadata([]), timeout_ms=_LOOK_MS)).control
        except LannerError as error:
            return error
        self._topology.learn(reply, asked_at)
        return None


def _answer(call: Call[AnswerT], reply: Reply[AnswerT]) -> Answer[AnswerT]:
    row = row_of(call)
    return Answer(reply.control, () if row.sizes is None else list(cut(reply.bulk, row.sizes(reply.control))))


__all__ = ["DEADLINE_MS", "OUTDATED", "WAITING_MAX", "ManyBrokers", "Upstream"]
