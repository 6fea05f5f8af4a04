"""How a consumer asks for leases: one long poll where one broker leads everything, else the most urgent broker first.

It knows members, numbers and priorities; it refuses to know what a message is or what becomes of it.

Rules:
- Where several brokers lead the topic's partitions, each is first asked for the most urgent lane it has something in
  (`client/looks`). Which are polled then, and for what, `calls/urgency` says: the most urgent, equals together.
- The first that has messages is the last that is asked: they are handed out at once, and what is less urgent waits for
  the next call, which looks anew.
- Nothing is asked for before a call, and nothing is kept after it: what was leased between two calls would be handed
  out by the later one, also where something more urgent has come meanwhile.
- Every poll has a number. One whose answer was lost is repeated under its number, at the leader of those partitions by
  then, so that its leases come back instead of running out.
- A topic that is not there is waited for: it is created where topics create themselves, and the wait ends without
  messages where they do not. So workers may start before the first publish, and outlive a topic that is made anew.
  A topic that the group gave to its member, or a pattern found, is not created: it was there, and was deleted.
- What cannot be asked is asked again, with pauses, until the deadline; what the others had is handed out meanwhile.
  Nobody waits long for a slow broker with leases of another in hand.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from lanner.calls.urgency import Ask, Urgency
from lanner.client.brokers import Brokers
from lanner.client.looks import PATIENCE_S, WATCH_MS, Leaders, Looks, slow
from lanner.client.member_ports import NO_MEMBER, Standing
from lanner.client.routing import Routing
from lanner.client.session import Outcome, Session
from lanner.client.settling import SettleQueue
from lanner.errors import (
    ConnectionLost,
    LannerError,
    NotFoundError,
    NotLeader,
    PartitionNotFound,
    TopicNotFound,
)
from lanner.wire.connection import Reply
from lanner.wire.messages import Poll, Polled

_log: Final = logging.getLogger("lanner.client")

ROUND_MS: Final = 30_000  # a wait without end is asked in rounds of this
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5
_CONNECTING_S: Final = 1.0
_LOST_KEPT_S: Final = 60.0  # leases that nobody heard of have mostly run out by then
_ASKS_MAX: Final = 64
_NO_TOPIC_S: Final = 0.25  # between two looks for a topic that is not there


class Wanted(NamedTuple):
    """What every poll of a consumer says."""

    topic: str
    group: str
    member: str
    partitions: list[int] | None
    max_bytes: int
    lease_ms: int
    auto_ack: bool
    start: str
    standing: Standing = NO_MEMBER
    create: bool = True  # the topic, where topics create themselves


class _Lost(NamedTuple):
    """A poll whose answer did not come: its number, and the partitions that may hold leases for it."""

    sequence: int
    partitions: list[int]
    max_messages: int
    since: float


class _Flight(NamedTuple):
    """A poll that was sent, as it is noted if it is lost."""

    session: Session
    lost: _Lost
    answer: asyncio.Future[Outcome[Polled]]


class Poller:
    """The polls of one consumer, one at a time."""

    def __init__(
        self,
        brokers: Brokers,
        routing: Routing,
        settles: SettleQueue,
        wanted: Wanted,
        unwanted: Callable[[Reply[Polled]], None],
        check_open: Callable[[], None],
    ) -> None:
        self._brokers = brokers
        self._routing = routing
        self._settles = settles
        self._wanted = wanted
        self._unwanted = unwanted  # gets replies that nobody waits for any more
        self._check_open = check_open
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self._turn = random.randrange(1_000)
        self._lost: list[_Lost] = []
        self._looks = Looks(wanted.topic, wanted.group, wanted.start, self.wake, self._learn)
        self._news: asyncio.Future[None] | None = None
        self._missed = False
        self._min_priority = 0  # of the present poll
        self._trouble: LannerError | None = None  # why something could not be asked in this round

    @property
    def wanted(self) -> Wanted:
        return self._wanted

    def want(self, partitions: list[int] | None, standing: Standing, start: str, create: bool) -> None:
        """Poll these partitions from the next request on, as this member."""
        self._wanted = self._wanted._replace(partitions=partitions, standing=standing, start=start, create=create)
        self._looks.start = start

    async def poll(self, max_messages: int, wait_ms: int, min_priority: int = 0) -> list[Reply[Polled]]:
        """Replies with leases, the most urgent first; none (or empty ones) when the wait is over.

        Cancelled, it leaves nothing leased: what still comes is given back. `min_priority`: nothing less urgent.
        """
        self._min_priority = min_priority
        deadline = self._loop.time() + wait_ms / 1000
        give_up = deadline + self._brokers.timeout_ms / 1000
        pause_s = _PAUSE_S
        self._looks.forget()
        while True:
            self._check_open()
            everybody = await self._leaders()
            replies: list[Reply[Polled]] = []
            try:
                leaders = await self._ask_around(everybody, max_messages, deadline, replies)
            except asyncio.CancelledError:
                for reply in replies:
                    self._unwanted(reply)
                raise
            except LannerError:
                if not _has_leases(replies):
                    raise
            if _has_leases(replies):
                return replies
            now = self._loop.time()
            if isinstance(self._trouble, TopicNotFound):
                if now >= deadline:
                    return replies
                await self._watch({}, min(_NO_TOPIC_S, deadline - now))
            elif self._trouble is not None:
                await self._pause(self._trouble, leaders, everybody, pause_s, give_up)
                pause_s = min(_PAUSE_S_MAX, pause_s * 2)
            elif now >= deadline:
                return replies
            elif any(reply.control.limited for reply in replies):
                await asyncio.sleep(_PAUSE_S)  # the broker may answer at once that it must not give more
            elif len(leaders) > 1:
                await self._watch(leaders, min(deadline - now, WATCH_MS / 1000))

    async def _pause(
        self, trouble: LannerError, leaders: Leaders, everybody: Leaders, pause_s: float, give_up: float
    ) -> None:
        """Something could not be asked: wait a little before the next round, or raise why there is none."""
        moved = isinstance(trouble, NotLeader)  # then a leader is looked for meanwhile
        wait_s = max(pause_s, 0 if moved else (trouble.retry_after_ms or 0) / 1000)
        left_s = give_up - self._loop.time()
        if not trouble.retryable or wait_s >= left_s or self._brokers.is_closed:
            raise trouble
        back = isinstance(trouble, ConnectionLost) and all(session.is_up for session in everybody)
        if back or self._lost:
            # A broker gives back what it could not hand over. It must notice that first: were the poll repeated
            # before, it would be answered with leases that are about to end.
            await asyncio.sleep(_PAUSE_S)
        if not back:
            await self._watch(leaders, min(wait_s * (0.5 + random.random()), left_s))

    async def _leaders(self) -> Leaders:
        """Whom to ask for which partitions, in a new round."""
        self._trouble = None
        topic, chosen = self._wanted.topic, self._wanted.partitions
        try:
            route = self._routing.known(topic) or await self._routing.route(topic, create=self._wanted.create)
        except TopicNotFound as error:
            self._miss_topic(error)
            return {}
        leaders, orphans = self._routing.by_leader(topic, range(route.partitions) if chosen is None else chosen)
        if orphans:
            self._trouble = NotLeader(f"nobody leads partition {orphans[0]} of {topic} at present", sent=False)
        for session in leaders:  # what one has that is still being connected to may be the most urgent
            await session.wait_until_tried(self._loop.time() + _CONNECTING_S)
        return leaders

    def _without(self, leaders: Leaders, answered: set[int]) -> Leaders:
        """What is to be asked anew: not what has just been answered, nor where an answer is still owed."""
        done = answered.union(*(lost.partitions for lost in self._lost))
        left = {session: [one for one in partitions if one not in done] for session, partitions in leaders.items()}
        return {session: partitions for session, partitions in left.items() if partitions}

    # ------------------------------------------------------------------ polling

    async def _ask_around(
        self, leaders: Leaders, max_messages: int, deadline: float, replies: list[Reply[Polled]]
    ) -> Leaders:
        """One round; adds to the replies as they come. Who was to be asked anew."""
        left_ms = max(0, round((deadline - self._loop.time()) * 1000))
        if self._lost:
            answered = await self._poll_lost(leaders, left_ms, replies)
            leaders = self._without(leaders, answered)
            if not _has_leases(replies):
                await self._poll_several(leaders, max_messages, replies)
        elif len(leaders) == 1 and self._trouble is None:
            await self._poll_one(leaders, max_messages, left_ms, replies)
        else:
            await self._poll_several(leaders, max_messages, replies)
        return leaders

    async def _poll_one(self, leaders: Leaders, max_messages: int, wait_ms: int, replies: list[Reply[Polled]]) -> None:
        """One broker leads everything: it keeps the order of urgency by itself, and waits."""
        ((session, partitions),) = leaders.items()
        round_ms = WATCH_MS if self._brokers.are_several else ROUND_MS
        ask = Ask(session, self._min_priority, max_messages, self._wanted.max_bytes)
        await self._land([self._send(ask, self._next(), partitions, min(wait_ms, round_ms))], replies)

    async def _poll_several(self, leaders: Leaders, max_messages: int, replies: list[Reply[Polled]]) -> None:
        """Poll the most urgent, equals together; others only while those have had nothing."""
        urgency: Urgency[Session] = Urgency(max_messages, self._wanted.max_bytes, _ASKS_MAX, self._min_priority)
        with self._settles.held():  # they ride on the polls
            best, failed = await self._looks.best(leaders)
            for session, error in failed.items():
                self._failed(session, leaders[session], error)
            self._turn += 1
            for place, session in enumerate(sorted(best, key=lambda one: one.node_id)):  # each in its turn
                urgency.see(session, best[session].lane, (place + self._turn) % len(best), best[session].messages)
            while not _has_leases(replies) and (asks := list(iter(urgency.next, None))):
                flights = [self._send(ask, self._next(), leaders[ask.place], 0) for ask in asks]
                self._settles.flush()
                await self._land(flights, replies)
                for ask in asks:  # the loop goes on only where they gave nothing
                    urgency.took(ask, 0, 0)

    async def _poll_lost(self, leaders: Leaders, wait_ms: int, replies: list[Reply[Polled]]) -> set[int]:
        """Repeat what was lost under its number, where its partitions are led now; which have answered."""
        answered: set[int] = set()
        everything = {partition for partitions in leaders.values() for partition in partitions}
        for lost in list(self._lost):
            self._lost.remove(lost)
            if self._loop.time() - lost.since > _LOST_KEPT_S:
                continue
            led, orphans = self._routing.by_leader(self._wanted.topic, lost.partitions)
            if orphans:
                self._lost.append(lost._replace(partitions=orphans))
            whole = len(led) == 1 and len(leaders) == 1 and set(lost.partitions) >= everything
            left = lost.max_messages
            for session, partitions in led.items():
                await session.wait_until_tried(self._loop.time() + _CONNECTING_S)
                ask = Ask(session, self._min_priority, max(1, left), self._wanted.max_bytes)
                flight = self._send(ask, lost.sequence, partitions, wait_ms if whole else 0, lost.since)
                before = len(replies)
                await self._land([flight], replies)
                for reply in replies[before:]:
                    answered.update(partitions)
                    left -= sum(one.count for batch in reply.control.batches for one in batch.ranges)
        return answered

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _send(
        self, ask: Ask[Session], sequence: int, partitions: list[int], wait_ms: int, since: float | None = None
    ) -> _Flight:
        """Send one numbered poll; settles of that broker's messages ride on it. `since`: a repetition, without them."""
        session = ask.place
        pieces = self._settles.take(session) if since is None else []
        wanted = self._wanted
        control = Poll(
            group=wanted.group,
            topic=wanted.topic,
            member=wanted.member,
            sequence=sequence,
            partitions=partitions if self._brokers.are_several else wanted.partitions,
            max_messages=ask.max_messages,
            max_bytes=ask.max_bytes,
            wait_ms=wait_ms,
            lease_ms=wanted.lease_ms,
            auto_ack=wanted.auto_ack,
            start=wanted.start,
            settles=[item for piece in pieces for item in piece.items],
            min_priority=ask.min_priority,
            member_id=wanted.standing.member_id,
            number=wanted.standing.number,
            generation=wanted.standing.generation,
            incarnation=wanted.standing.incarnation,
        )
        answer: asyncio.Future[Outcome[Polled]] = self._loop.create_future()
        session.poll(
            control,
            partial(self._answered, answer),
            lambda outcome: self._settles.answered(pieces, session, outcome),
            self._brokers.timeout_ms + wait_ms,
        )
        lost = _Lost(sequence, partitions, ask.max_messages, self._loop.time() if since is None else since)
        return _Flight(session, lost, answer)

    def _answered(self, answer: asyncio.Future[Outcome[Polled]], outcome: Outcome[Polled]) -> None:
        if not answer.done():
            answer.set_result(outcome)
        elif answer.cancelled() and not isinstance(outcome, LannerError):
            self._unwanted(outcome)

    async def _land(self, flights: Sequence[_Flight], replies: list[Reply[Polled]]) -> None:
        """Wait for the answers to these, and add the good ones to the replies. The others are noted among the lost, if
        they may have taken effect. Cancelled, nobody repeats them, and what they bring is given back."""
        answers = [flight.answer for flight in flights]
        try:
            await self._wait(answers, replies)
        except asyncio.CancelledError:
            for answer in answers:
                if answer.cancel() or answer.cancelled() or isinstance(outcome := answer.result(), LannerError):
                    continue
                self._unwanted(outcome)  # it had just come
            raise
        failed: list[tuple[_Flight, LannerError]] = []
        for flight in flights:
            if not flight.answer.done():
                flight.answer.set_result(slow(flight.session))  # repeated later, it brings the same leases
            outcome = flight.answer.result()
            if isinstance(outcome, LannerError):
                failed.append((flight, outcome))
            else:
                replies.append(outcome)
        for flight, error in failed:
            self._failed(flight.session, flight.lost.partitions, error)
            if not isinstance(self._trouble, TopicNotFound):
                self._lost.append(flight.lost)

    async def _wait(self, answers: Sequence[asyncio.Future[Outcome[Polled]]], replies: Sequence[Reply[Polled]]) -> None:
        """Wait for all of these, but not for long with leases in hand. What is taken for good must be heard of."""
        waiting: set[asyncio.Future[Outcome[Polled]]] = set(answers)
        while waiting:
            come = [answer.result() for answer in answers if answer.done()]
            in_hand = [*replies, *(one for one in come if not isinstance(one, LannerError))]
            patient = self._wanted.auto_ack or not _has_leases(in_hand)
            done, waiting = await asyncio.wait(
                waiting, timeout=None if patient else PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return

    def _failed(self, session: Session, partitions: Sequence[int], error: LannerError) -> None:
        if isinstance(error, NotFoundError):
            self._routing.forget(self._wanted.topic)
        # A topic that was made anew may have fewer partitions than the one that is still remembered.
        fewer = isinstance(error, PartitionNotFound) and self._wanted.partitions is None
        if fewer or isinstance(error, TopicNotFound):
            self._miss_topic(error)
            return
        if not error.retryable:
            raise error
        self._learn(session, partitions, error)
        self._trouble = error

    def _miss_topic(self, error: LannerError) -> None:
        """There is no such topic at present, nor are there leases in it."""
        self._trouble = error if isinstance(error, TopicNotFound) else TopicNotFound(error.message)
        self._lost.clear()
        if not self._missed:
            self._missed = True
            _log.warning("%s; waiting for it", self._trouble.message)

    # ------------------------------------------------------------------ waiting

    async def _watch(self, leaders: Leaders, seconds: float) -> None:
        """Let every broker say when it has something; return at the first that does, or when the time is over."""
        self._news = self._loop.create_future()
        if len(leaders) > 1:
            self._looks.watch(leaders)
        self._routing.on_change.append(self._moved)
        self._brokers.on_up.append(self._reached)
        try:
            await asyncio.wait([self._news], timeout=seconds)
        finally:
            self._routing.on_change.remove(self._moved)
            self._brokers.on_up.remove(self._reached)
            self._news = None

    def _learn(self, session: Session, partitions: Sequence[int], error: LannerError) -> None:
        for partition in partitions:
            self._routing.failed(self._wanted.topic, partition, session, error)

    def _moved(self, topic: str) -> None:
        if topic == self._wanted.topic:
            self.wake()

    def _reached(self, session: Session) -> None:
        if self._trouble is not None:
            self.wake()

    def wake(self) -> None:
        """Look again now: there is news, or the consumer is closed."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


def _has_leases(replies: Sequence[Reply[Polled]]) -> bool:
    return any(reply.control.batches for reply in replies)
