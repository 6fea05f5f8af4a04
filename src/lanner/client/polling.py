"""How a consumer asks for leases: one long poll where one broker leads everything, else the most urgent broker first.

It knows members, numbers and priorities; it refuses to know what a message is or what becomes of it.

Rules:
- Where several brokers lead the topic's partitions, each is first asked for the most urgent lane it has something in
  (GLANCE, which leases nothing). Which one is polled then, and for what, `calls/urgency` says.
- The first answer with messages is handed out at once. A broker that is silent holds up nobody but its own partitions:
  its poll goes on, and what it brings is for the next call.
- A glance that waits at a broker says that there is nothing: that broker is not asked again until it answers.
- While the application comes back quickly and a broker has no more than was asked for, the next poll waits there
  already (it is asked *ahead*). What it brings is at most one batch older than a fresh look. Where there is more than
  was asked for nothing is asked ahead, because priority counts there.
- All that is asked for, and all that came and was not handed out, is never more than the application asks for at a
  time. What it does not come for soon is given back, uncounted.
- Every poll has a number. One whose answer was lost is repeated under its number, at the leader of those partitions by
  then, so that its leases come back instead of running out.
- A topic that is not there is waited for: it is created where topics create themselves, and the wait ends without
  messages where they do not. So workers may start before the first publish, and outlive a topic that is made anew.
- What cannot be asked is asked again, with pauses, until the deadline; what the others had is handed out meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from lanner.calls.urgency import NOTHING, Ask, Urgency
from lanner.client.brokers import Brokers
from lanner.client.looks import PATIENCE_S, WATCH_MS, Leaders, Looks
from lanner.client.routing import Routing
from lanner.client.session import Outcome, Session
from lanner.client.settling import Piece, SettleQueue
from lanner.errors import (
    ConnectionLost,
    LannerError,
    NotFoundError,
    NotLeader,
    PartitionNotFound,
    TopicNotFound,
)
from lanner.net.backoff import Backoff
from lanner.net.waiters import Waiters
from lanner.wire.connection import Reply
from lanner.wire.messages import Poll, Polled

_log: Final = logging.getLogger("lanner.client")

ROUND_MS: Final = 30_000  # a wait without end is asked in rounds of this
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.5
_CONNECTING_S: Final = 1.0
_LOST_KEPT_S: Final = 60.0  # leases that nobody heard of have mostly run out by then
_STEPS_MAX: Final = 64
_NO_TOPIC_S: Final = 0.25  # between two looks for a topic that is not there
_QUICK_S: Final = 0.05  # an application that comes back within this finds the next poll under way
_AHEAD_MS: Final = 1_000  # how long a poll that was asked ahead waits
_KEPT_S: Final = 0.25  # so long an answer waits for the application


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


class _Lost(NamedTuple):
    """A poll whose answer did not come: its number, and the partitions that may hold leases for it."""

    sequence: int
    partitions: list[int]
    max_messages: int
    since: float


@dataclass(eq=False, slots=True)
class _Flight:
    """A poll that is not answered yet."""

    ask: Ask[Session]
    partitions: list[int]
    sequence: int
    since: float
    ahead: bool  # nobody need wait for it
    landed: asyncio.Future[None]


class Poller:
    """The polls of one consumer, one call at a time."""

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
        self._flights: set[_Flight] = set()
        self._ready: list[tuple[float, Reply]] = []  # when it came; not handed out yet
        self._limited: Reply | None = None  # the latest that had nothing because of a bound
        self._lost: list[_Lost] = []
        self._news = Waiters()
        self._looks = Looks(wanted.topic, wanted.group, wanted.start, self._news, self._failed)
        self._missed = False
        self._trouble: LannerError | None = None  # why something could not be asked in this round
        self._error: LannerError | None = None  # asking again would not help
        self._everybody: Leaders = {}  # in the latest round
        self._max_messages = 0  # of the latest call
        self._ahead = False  # whether the next poll may be asked ahead
        self._handed_out_at = float("-inf")

    async def poll(self, max_messages: int, wait_ms: int) -> list[Reply]:
        """Replies with leases, the most urgent first; none (or an empty one) when the wait is over."""
        now = self._loop.time()
        self._max_messages = max_messages
        self._ahead = now - self._handed_out_at < _QUICK_S and wait_ms > 0 and not self._wanted.auto_ack
        self._looks.forget()
        try:
            replies = await self._poll(max_messages, now + wait_ms / 1000)
        except BaseException:
            self.give_up()
            raise
        if _has_leases(replies):
            self._handed_out_at = self._loop.time()
        return replies

    async def _poll(self, max_messages: int, deadline: float) -> list[Reply]:
        give_up = deadline + self._brokers.timeout_ms / 1000
        backoff = Backoff(_PAUSE_S, _PAUSE_S_MAX)
        while True:
            self._check_open()
            everybody = self._everybody = await self._leaders()
            leaders = await self._ask_around(everybody, max_messages, deadline)
            replies = self._claim(max_messages)
            if replies:
                return replies
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            now = self._loop.time()
            if isinstance(self._trouble, TopicNotFound):
                if now >= deadline:
                    return []
                await self._watch({}, min(_NO_TOPIC_S, deadline - now))
            elif self._trouble is not None:
                await self._pause(self._trouble, leaders, everybody, backoff, give_up)
            elif now >= deadline:
                await self._look_ahead()
                return self._claim(max_messages) or ([] if self._limited is None else [self._limited])
            elif self._limited is not None:
                await asyncio.sleep(_PAUSE_S)  # the broker may answer at once that it must not give more
            elif len(everybody) > 1 or self._flights:
                await self._watch(leaders, min(deadline - now, WATCH_MS / 1000))

    async def _pause(
        self, trouble: LannerError, leaders: Leaders, everybody: Leaders, backoff: Backoff, give_up: float
    ) -> None:
        """Something could not be asked: wait a little before the next round, or raise why there is none."""
        moved = isinstance(trouble, NotLeader)  # then a leader is looked for meanwhile
        wait_s = backoff.pause_s(None if moved else trouble.retry_after_ms)
        left_s = give_up - self._loop.time()
        if not trouble.retryable or wait_s >= left_s or self._brokers.is_closed:
            raise trouble
        back = isinstance(trouble, ConnectionLost) and all(session.is_up for session in everybody)
        if back or self._lost:
            # A broker gives back what it could not hand over. It must notice that first: were the poll repeated
            # before, it would be answered with leases that are about to end.
            await asyncio.sleep(_PAUSE_S)
        if not back:
            await self._watch(leaders, min(wait_s, left_s))

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

    def _without(self, leaders: Leaders, answered: Iterable[int] = ()) -> Leaders:
        """What is to be asked anew: not what has just been answered, nor where an answer is still owed."""
        owed: list[_Lost | _Flight] = [*self._lost, *self._flights]
        done = {*answered, *(partition for one in owed for partition in one.partitions)}
        left = {session: [one for one in partitions if one not in done] for session, partitions in leaders.items()}
        return {session: partitions for session, partitions in left.items() if partitions}

    # ------------------------------------------------------------------ polling

    async def _ask_around(self, everybody: Leaders, max_messages: int, deadline: float) -> Leaders:
        """One round, until something has come or there is nothing more to ask. Who was to be asked anew."""
        self._limited = None
        left_ms = max(0, round((deadline - self._loop.time()) * 1000))
        answered = await self._poll_lost(everybody, left_ms) if self._lost else []
        leaders = self._without(everybody, answered)
        room = max_messages - self._outstanding()
        if not leaders or room <= 0 or (self._ready and len(everybody) == 1):
            await self._landing(flight for flight in self._flights if not flight.ahead)
        elif len(everybody) == 1 and not answered and self._trouble is None:
            # One broker leads everything: it keeps the order of urgency by itself, and waits.
            ((session, partitions),) = leaders.items()
            round_ms = WATCH_MS if self._brokers.are_several else ROUND_MS
            ask = Ask(session, 0, room, self._wanted.max_bytes)
            await self._landing([self._send(ask, partitions, min(left_ms, round_ms), rides=True)])
        else:
            await self._poll_several(leaders, room)
        return leaders

    async def _poll_several(self, leaders: Leaders, room: int) -> None:
        urgency: Urgency[Session] = Urgency(room, self._wanted.max_bytes, _STEPS_MAX)
        self._turn += 1
        lanes = await self._looks.lanes(leaders, _PAUSE_S if self._ready else PATIENCE_S)
        for session, lane in lanes.items():
            urgency.see(session, lane, (list(leaders).index(session) + self._turn) % len(leaders))
        while (ask := urgency.next()) is not None:
            flight = self._send(ask, leaders[ask.place])
            await self._landing([flight], PATIENCE_S)
            if self._ready:
                break  # handed out at once; what is still under way is for the next call
            urgency.took(ask, 0, 0)

    async def _poll_lost(self, leaders: Leaders, wait_ms: int) -> list[int]:
        """Repeat what was lost under its number, where its partitions are led now; which have answered."""
        everything = {partition for partitions in leaders.values() for partition in partitions}
        asked: list[_Flight] = []
        lost_before, self._lost = self._lost, []
        for lost in lost_before:
            if self._loop.time() - lost.since > _LOST_KEPT_S:
                continue
            led, orphans = self._routing.by_leader(self._wanted.topic, lost.partitions)
            if orphans:
                self._lost.append(lost._replace(partitions=orphans))
            whole = len(led) == 1 and len(leaders) == 1 and set(lost.partitions) >= everything
            for session, partitions in led.items():
                ask = Ask(session, 0, lost.max_messages, self._wanted.max_bytes)
                asked.append(self._send(ask, partitions, wait_ms if whole else 0, lost.sequence, lost.since))
                await self._landing(asked[-1:], None if whole else PATIENCE_S)
        return [partition for flight in asked if flight.landed.done() for partition in flight.partitions]

    async def _landing(self, flights: Iterable[_Flight], seconds: float | None = None) -> None:
        """Return when something has come, from wherever, or when all of these have landed, or when the time is over."""
        ends = None if seconds is None else self._loop.time() + seconds
        waiting = [flight.landed for flight in flights]
        while not self._ready and not all(landed.done() for landed in waiting):
            left_s = None if ends is None else ends - self._loop.time()
            if left_s is not None and left_s <= 0:
                return
            await self._news.wait(left_s)
            self._check_open()

    def _send(
        self,
        ask: Ask[Session],
        partitions: list[int],
        wait_ms: int = 0,
        sequence: int | None = None,
        since: float | None = None,
        *,
        rides: bool = False,
        ahead: bool = False,
    ) -> _Flight:
        """Send one numbered poll."""
        if sequence is None:
            self._sequence += 1
        number = self._sequence if sequence is None else sequence
        began = self._loop.time() if since is None else since
        flight = _Flight(ask, partitions, number, began, ahead, self._loop.create_future())
        pieces: list[Piece] = self._settles.take() if rides else []
        wanted = self._wanted
        control = Poll(
            group=wanted.group,
            topic=wanted.topic,
            member=wanted.member,
            sequence=number,
            partitions=partitions if self._brokers.are_several else wanted.partitions,
            max_messages=ask.max_messages,
            max_bytes=ask.max_bytes,
            wait_ms=wait_ms,
            lease_ms=wanted.lease_ms,
            auto_ack=wanted.auto_ack,
            start=wanted.start,
            settles=[item for piece in pieces for item in piece.items],
            min_priority=ask.min_priority,
        )
        self._flights.add(flight)
        ask.place.poll(
            control,
            partial(self._landed, flight),
            lambda outcome: self._settles.answered(pieces, ask.place, outcome),
            self._brokers.timeout_ms + wait_ms,
        )
        return flight

    def _landed(self, flight: _Flight, outcome: Outcome) -> None:
        """A poll is answered, or will never be."""
        if flight not in self._flights:
            if not isinstance(outcome, LannerError):
                self._unwanted(outcome)  # whoever asked has gone
            return
        self._flights.discard(flight)
        if isinstance(outcome, LannerError):
            if self._failed(flight.ask.place, flight.partitions, outcome):
                self._lost.append(_Lost(flight.sequence, flight.partitions, flight.ask.max_messages, flight.since))
        elif outcome.control.batches:
            self._ready.append((self._loop.time(), outcome))
            self._loop.call_later(_KEPT_S, self._give_back_old)
            if self._ahead and not _has_more(flight.ask, outcome):
                self._send_ahead(flight)
        elif outcome.control.limited:
            self._limited = outcome
        flight.landed.set_result(None)
        self.wake()

    def _send_ahead(self, flight: _Flight) -> None:
        """The application will come back soon: let the next poll wait at the broker while it works."""
        shares = max(1, len(self._everybody))
        room = min(self._max_messages // shares, self._max_messages - self._outstanding())
        if room > 0:
            ask = Ask(flight.ask.place, 0, room, self._wanted.max_bytes)
            self._send(ask, flight.partitions, _AHEAD_MS, ahead=True)

    def _outstanding(self) -> int:
        """How many messages may be under way or have come, at most."""
        under_way = sum(flight.ask.max_messages for flight in self._flights)
        return under_way + sum(_count(reply) for _, reply in self._ready)

    # ------------------------------------------------------------------ what has come

    def _claim(self, max_messages: int) -> list[Reply]:
        """What has come, the most urgent first, as far as this call asks for so much."""
        claimed: list[Reply] = []
        kept: list[tuple[float, Reply]] = []
        for came_at, reply in sorted(self._ready, key=lambda one: -one[1].control.batches[0].priority):
            if _count(reply) <= max_messages:
                max_messages -= _count(reply)
                claimed.append(reply)
            else:
                kept.append((came_at, reply))
        self._ready = kept
        if not claimed:  # a smaller call than the one before: what is too large for it must not hide from it
            self._give_back_all()
        return claimed

    def _give_back_old(self) -> None:
        """The application has not come for these: others may have them."""
        old = self._loop.time() - _KEPT_S
        for _, reply in [one for one in self._ready if one[0] <= old]:
            self._unwanted(reply)
        self._ready = [one for one in self._ready if one[0] > old]

    def _give_back_all(self) -> None:
        for _, reply in self._ready:
            self._unwanted(reply)
        self._ready.clear()

    def give_up(self) -> None:
        """The call was cancelled, or the consumer is closed: what is under way is given back when it comes."""
        self._give_back_all()
        for flight in self._flights:
            flight.landed.cancel()
        self._flights.clear()
        self._ahead = False
        self.wake()

    # ------------------------------------------------------------------ trouble

    def _failed(self, session: Session, partitions: Sequence[int], error: LannerError) -> bool:
        """Learn from an error; whether asking again may help."""
        if isinstance(error, NotFoundError):
            self._routing.forget(self._wanted.topic)
        # A topic that was made anew may have fewer partitions than the one that is still remembered.
        fewer = isinstance(error, PartitionNotFound) and self._wanted.partitions is None
        if fewer or isinstance(error, TopicNotFound):
            self._miss_topic(error)
            return False
        if not error.retryable:
            self._error = error
            return False
        for partition in partitions:
            self._routing.failed(self._wanted.topic, partition, session, error)
        self._trouble = error
        return True

    def _miss_topic(self, error: LannerError) -> None:
        """There is no such topic at present, nor are there leases in it."""
        self._trouble = error if isinstance(error, TopicNotFound) else TopicNotFound(error.message)
        self._lost.clear()
        if not self._missed:
            self._missed = True
            _log.warning("%s; waiting for it", self._trouble.message)

    # ------------------------------------------------------------------ glancing

    async def _look_ahead(self) -> None:
        """Nothing came in time: wait for a poll that was asked ahead if its broker has something by now."""
        ahead = {flight.ask.place: flight for flight in self._flights if flight.ahead}
        if ahead:
            lanes = await self._looks.lanes({session: flight.partitions for session, flight in ahead.items()})
            await self._landing([ahead[session] for session, lane in lanes.items() if lane > NOTHING], PATIENCE_S)

    async def _watch(self, leaders: Leaders, seconds: float) -> None:
        """Let every broker say when it has something; return at the first that does, or when the time is over."""
        if self._ready:
            return
        if len(leaders) > 1 or self._flights:
            self._looks.watch(leaders)
        self._routing.on_change.append(self._moved)
        self._brokers.on_up.append(self._reached)
        try:
            await self._news.wait(seconds)
        finally:
            self._routing.on_change.remove(self._moved)
            self._brokers.on_up.remove(self._reached)

    def _moved(self, topic: str) -> None:
        if topic == self._wanted.topic:
            self.wake()

    def _reached(self, session: Session) -> None:
        if self._trouble is not None:
            self.wake()

    def wake(self) -> None:
        """Look again now: there is news, or the consumer is closed."""
        self._news.wake_all()


def _count(reply: Reply) -> int:
    polled: Polled = reply.control
    return sum(one.count for batch in polled.batches for one in batch.ranges)


def _has_leases(replies: Sequence[Reply]) -> bool:
    return any(reply.control.batches for reply in replies)


def _has_more(ask: Ask[Session], reply: Reply) -> bool:
    """Whether more was there than was asked for. What is left and as urgent as that came later."""
    polled: Polled = reply.control
    full = _count(reply) >= ask.max_messages or 2 * len(reply.bulk) >= ask.max_bytes
    return full or polled.limited or NOTHING < polled.priority < ask.min_priority
