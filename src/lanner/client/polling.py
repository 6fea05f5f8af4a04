"""How a consumer asks for leases: one long poll where one broker leads everything, else the most urgent broker first.

It knows members, numbers and priorities; it refuses to know what a message is or what becomes of it.

Rules:
- Where several brokers lead the topic's partitions, each is first asked for the most urgent lane it has something in
  (GLANCE, which leases nothing). The most urgent is polled, and only for what is at least as urgent as the best of
  the others; then the next, while there is room. Among equals it is each one's turn.
- A glance that waits at a broker says that there is nothing: that broker is not asked again until it answers.
- Every poll has a number. One whose answer was lost is repeated under its number, at the leader of those partitions by
  then, so that its leases come back instead of running out.
- A topic that is not there is waited for: it is created where topics create themselves, and the wait ends without
  messages where they do not. So workers may start before the first publish, and outlive a topic that is made anew.
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

from lanner.client.brokers import Brokers
from lanner.client.routing import Routing
from lanner.client.session import Outcome, Session
from lanner.client.settling import Piece, SettleQueue
from lanner.errors import (
    ConnectionLost,
    LannerError,
    NotFoundError,
    NotLeader,
    PartitionNotFound,
    ServiceUnavailable,
    TopicNotFound,
)
from lanner.wire.connection import Reply
from lanner.wire.messages import Command, Glance, Poll, Polled

_log: Final = logging.getLogger("lanner.client")

ROUND_MS: Final = 30_000  # a wait without end is asked in rounds of this
_ROUND_SEVERAL_MS: Final = 5_000  # where leaders may move meanwhile
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5
_CONNECTING_S: Final = 1.0
_PATIENCE_S: Final = 0.5  # with a broker that keeps the others waiting
_GLANCE_MS: Final = 5_000  # how long a broker may take for a look
_LOST_KEPT_S: Final = 60.0  # leases that nobody heard of have mostly run out by then
_STEPS_MAX: Final = 64
_NO_TOPIC_S: Final = 0.25  # between two looks for a topic that is not there

Leaders = dict[Session, list[int]]


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


class _Lost:
    """A poll whose answer did not come: its number, and the partitions that may hold leases for it."""

    __slots__ = ("max_messages", "partitions", "sequence", "since")

    def __init__(self, sequence: int, partitions: list[int], max_messages: int, since: float) -> None:
        self.sequence = sequence
        self.partitions = partitions
        self.max_messages = max_messages
        self.since = since


class Poller:
    """The polls of one consumer, one at a time."""

    def __init__(
        self,
        brokers: Brokers,
        routing: Routing,
        settles: SettleQueue,
        wanted: Wanted,
        unwanted: Callable[[Reply], None],
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
        self._watched: dict[Session, tuple[int, ...]] = {}  # where a glance waits, and for which partitions
        self._seen: dict[Session, tuple[tuple[int, ...], int]] = {}  # what such a glance has just told
        self._news: asyncio.Future[None] | None = None
        self._missed = False
        self._trouble: LannerError | None = None  # why something could not be asked in this round

    async def poll(self, max_messages: int, wait_ms: int) -> list[Reply]:
        """Replies with leases, the most urgent first; none (or empty ones) when the wait is over."""
        deadline = self._loop.time() + wait_ms / 1000
        give_up = deadline + self._brokers.timeout_ms / 1000
        pause_s = _PAUSE_S
        self._seen.clear()  # told while nobody listened: it may be old
        while True:
            self._check_open()
            everybody = await self._leaders()
            replies: list[Reply] = []
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
                await self._watch(leaders, min(deadline - now, _ROUND_SEVERAL_MS / 1000))

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
            route = self._routing.known(topic) or await self._routing.route(topic, create=True)
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

    async def _ask_around(self, leaders: Leaders, max_messages: int, deadline: float, replies: list[Reply]) -> Leaders:
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

    async def _poll_one(self, leaders: Leaders, max_messages: int, wait_ms: int, replies: list[Reply]) -> None:
        """One broker leads everything: it keeps the order of urgency by itself, and waits."""
        ((session, partitions),) = leaders.items()
        round_ms = _ROUND_SEVERAL_MS if self._brokers.are_several else ROUND_MS
        reply = await self._ask(session, self._next(), partitions, max_messages, min(wait_ms, round_ms), rides=True)
        if reply is not None:
            replies.append(reply)

    async def _poll_several(self, leaders: Leaders, max_messages: int, replies: list[Reply]) -> None:
        urgent = await self._glance(leaders)
        bytes_left = self._wanted.max_bytes
        for _ in range(_STEPS_MAX):
            if not urgent or max_messages <= 0 or bytes_left <= 0:
                break
            session = self._most_urgent(urgent)
            others = max((urgent[other] for other in urgent if other is not session), default=0)
            reply = await self._ask(
                session,
                self._next(),
                leaders[session],
                max_messages,
                0,
                min_priority=others,
                max_bytes=bytes_left,
                patient=not replies or self._wanted.auto_ack,
            )
            del urgent[session]
            if reply is None:
                continue
            replies.append(reply)
            polled: Polled = reply.control
            if polled.batches:
                max_messages -= sum(one.count for batch in polled.batches for one in batch.ranges)
                bytes_left -= len(reply.bulk)
                if 0 <= polled.priority < others:
                    # Left for later because others had better. What came in meanwhile waits for the next round: while
                    # messages keep coming, this one would never end.
                    urgent[session] = polled.priority

    def _most_urgent(self, urgent: dict[Session, int]) -> Session:
        """Among equals it is each one's turn, so that none starves."""
        best = max(urgent.values())
        equals = sorted((session for session in urgent if urgent[session] == best), key=lambda one: one.node_id)
        self._turn += 1
        return equals[self._turn % len(equals)]

    async def _poll_lost(self, leaders: Leaders, wait_ms: int, replies: list[Reply]) -> set[int]:
        """Repeat what was lost under its number, where its partitions are led now; which have answered."""
        answered: set[int] = set()
        everything = {partition for partitions in leaders.values() for partition in partitions}
        for lost in list(self._lost):
            self._lost.remove(lost)
            if self._loop.time() - lost.since > _LOST_KEPT_S:
                continue
            led, orphans = self._routing.by_leader(self._wanted.topic, lost.partitions)
            if orphans:
                self._note_lost(lost.sequence, orphans, lost.max_messages, lost.since)
            whole = len(led) == 1 and len(leaders) == 1 and set(lost.partitions) >= everything
            left = lost.max_messages
            for session, partitions in led.items():
                reply = await self._ask(
                    session,
                    lost.sequence,
                    partitions,
                    max(1, left),
                    wait_ms if whole else 0,
                    since=lost.since,
                )
                if reply is not None:
                    replies.append(reply)
                    answered.update(partitions)
                    left -= sum(one.count for batch in reply.control.batches for one in batch.ranges)
        return answered

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    async def _ask(
        self,
        session: Session,
        sequence: int,
        partitions: list[int],
        max_messages: int,
        wait_ms: int,
        *,
        min_priority: int = 0,
        max_bytes: int | None = None,
        rides: bool = False,
        since: float | None = None,
        patient: bool = True,
    ) -> Reply | None:
        """One numbered poll. None: it failed for now, and is noted among the lost if it may have taken effect."""
        await session.wait_until_tried(self._loop.time() + _CONNECTING_S)
        pieces = self._settles.take() if rides else []
        wanted = self._wanted
        control = Poll(
            group=wanted.group,
            topic=wanted.topic,
            member=wanted.member,
            sequence=sequence,
            partitions=partitions if self._brokers.are_several else wanted.partitions,
            max_messages=max_messages,
            max_bytes=wanted.max_bytes if max_bytes is None else max_bytes,
            wait_ms=wait_ms,
            lease_ms=wanted.lease_ms,
            auto_ack=wanted.auto_ack,
            start=wanted.start,
            settles=[item for piece in pieces for item in piece.items],
            min_priority=min_priority,
        )
        outcome = await self._answer(session, control, pieces, None if patient else _PATIENCE_S)
        if not isinstance(outcome, LannerError):
            return outcome
        self._failed(session, partitions, outcome)
        if isinstance(self._trouble, TopicNotFound):
            return None
        self._note_lost(sequence, partitions, max_messages, self._loop.time() if since is None else since)
        return None

    async def _answer(self, session: Session, control: Poll, pieces: list[Piece], patience_s: float | None) -> Outcome:
        answer: asyncio.Future[Outcome] = self._loop.create_future()

        def polled(outcome: Outcome) -> None:
            if not answer.done():
                answer.set_result(outcome)
            elif answer.cancelled() and not isinstance(outcome, LannerError):
                self._unwanted(outcome)

        session.poll(
            control,
            polled,
            lambda outcome: self._settles.answered(pieces, session, outcome),
            self._brokers.timeout_ms + control.wait_ms,
        )
        if patience_s is not None:
            # Past that the poll counts as lost: it is repeated, and that brings the same leases.
            self._loop.call_later(patience_s, _answer, answer, _slow(session))
        return await answer  # cancelled with the call that waits: nobody repeats it, and what it brings is given back

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
        for partition in partitions:
            self._routing.failed(self._wanted.topic, partition, session, error)
        self._trouble = error

    def _miss_topic(self, error: LannerError) -> None:
        """There is no such topic at present, nor are there leases in it."""
        self._trouble = error if isinstance(error, TopicNotFound) else TopicNotFound(error.message)
        self._lost.clear()
        if not self._missed:
            self._missed = True
            _log.warning("%s; waiting for it", self._trouble.message)

    def _note_lost(self, sequence: int, partitions: list[int], max_messages: int, since: float) -> None:
        self._lost.append(_Lost(sequence, partitions, max_messages, since))

    # ------------------------------------------------------------------ glancing

    async def _glance(self, leaders: Leaders) -> dict[Session, int]:
        """The most urgent lane of each broker that has something."""
        urgent: dict[Session, int] = {}
        asked: dict[Session, asyncio.Future[Outcome]] = {}
        for session, partitions in leaders.items():
            key = tuple(partitions)
            seen = self._seen.pop(session, None)
            if seen is not None and seen[0] == key:
                urgent[session] = seen[1]
            elif self._watched.get(session) != key:
                asked[session] = self._loop.create_future()
                session.call(Command.GLANCE, self._look(key, 0), (), partial(_answer, asked[session]), _GLANCE_MS)
        if asked:
            await asyncio.wait(asked.values(), timeout=_PATIENCE_S)
        for session, future in asked.items():
            outcome = future.result() if future.done() else _slow(session)
            if isinstance(outcome, LannerError):
                self._failed(session, leaders[session], outcome)
            elif outcome.control.priority >= 0:
                urgent[session] = outcome.control.priority
        return urgent

    async def _watch(self, leaders: Leaders, seconds: float) -> None:
        """Let every broker say when it has something; return at the first that does, or when the time is over."""
        self._news = self._loop.create_future()
        for session, partitions in leaders.items():
            key = tuple(partitions)
            if len(leaders) > 1 and self._watched.get(session) != key and session.is_up:
                self._watched[session] = key
                session.call(
                    Command.GLANCE,
                    self._look(key, _ROUND_SEVERAL_MS),
                    (),
                    lambda outcome, session=session, key=key: self._told(session, key, outcome),  # type: ignore[misc]
                    _ROUND_SEVERAL_MS + _GLANCE_MS,
                )
        self._routing.on_change.append(self._moved)
        self._brokers.on_up.append(self._reached)
        try:
            await asyncio.wait([self._news], timeout=seconds)
        finally:
            self._routing.on_change.remove(self._moved)
            self._brokers.on_up.remove(self._reached)
            self._news = None

    def _look(self, partitions: tuple[int, ...], wait_ms: int) -> Glance:
        return Glance(self._wanted.group, self._wanted.topic, list(partitions), wait_ms, self._wanted.start)

    def _told(self, session: Session, key: tuple[int, ...], outcome: Outcome) -> None:
        """A glance that waited is answered."""
        if self._watched.get(session) != key:
            return  # its partitions are others by now
        del self._watched[session]
        if isinstance(outcome, LannerError):
            for partition in key:
                self._routing.failed(self._wanted.topic, partition, session, outcome)
        elif outcome.control.priority >= 0:
            self._seen[session] = key, outcome.control.priority
        self.wake()

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


def _answer(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():  # the caller may have been cancelled
        future.set_result(outcome)


def _has_leases(replies: Sequence[Reply]) -> bool:
    return any(reply.control.batches for reply in replies)


def _slow(session: Session) -> LannerError:
    return ServiceUnavailable(f"broker {session.node_id} takes long to answer")
