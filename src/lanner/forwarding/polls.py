"""Polls over several brokers, the most urgent first.

All brokers are asked in parallel for the best priority that each has. The one with the best is polled first, and only
for what is at least as urgent as the next best, equals together; then the next, until the poll is full. While there is
nothing anywhere, such a question waits at every broker, and the first news ends it. It leases nothing, so a caller who
goes away meanwhile leaves nothing behind.

- A poll never waits at a broker: it takes what is there. So it is short, and runs to its end even if its caller goes;
  what it leased then is released, uncounted.
- A poll whose answer was lost is repeated under its own member and sequence, at the present leader: the same leases
  come back.
- What was taken at one broker is returned, whatever happens at the others.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from lanner import limits
from lanner.calls import Answer, Identity
from lanner.calls.client_pages import passed_on
from lanner.calls.merging import Room
from lanner.calls.urgency import NOTHING, Ask, Urgency, most_of
from lanner.errors import LannerError, NotLeader
from lanner.forwarding.asking import DEADLINE_MS, UNANSWERED, Asking
from lanner.forwarding.checks import check_number, chosen_partitions
from lanner.forwarding.fitting import FRAME_ROOM_BYTES, reply_bytes_max
from lanner.forwarding.ports import Here, Hops, KnownTopic, Map
from lanner.forwarding.watches import Watches
from lanner.model import LANES
from lanner.net.backoff import Backoff
from lanner.wire.messages import BestPriority, BestPriorityFound, Poll, Polled, PolledBatch, Release, SettleItem

log = logging.getLogger("lanner.forwarding")

_ACK: Final = 1
_BEST_PRIORITY_MS: Final = 2_000  # a broker that does not say what it has within this is left out of the round
_POLL_MS: Final = 5_000
_ROUND_SECONDS: Final = 2.0  # so often a poll that waits looks who leads now
_PAUSE_SECONDS_MIN: Final = 0.03
_PAUSE_SECONDS_MAX: Final = 0.5
_STEPS_MAX: Final = 32
_POLLERS_MAX: Final = 10_000


Piece = tuple[PolledBatch, bytes | memoryview]  # a batch, and its bytes


class _Unheard(NamedTuple):
    """A poll whose answer was lost: what it leased is found again under its sequence."""

    sequence: int
    partitions: Sequence[int]


class _Taken:
    """What a poll has so far."""

    def __init__(self, identity: Identity, wanted: Poll) -> None:
        self.identity = identity
        self.wanted = wanted
        self.batches: list[Piece] = []
        self.limited = False
        self.priority = -1
        self.messages_left = wanted.max_messages
        self.bytes_left = wanted.max_bytes
        self.unheard: list[_Unheard] = []
        self.may_repeat = False
        self.promised = False  # somebody said there was something
        self._room = Room(FRAME_ROOM_BYTES if wanted.auto_ack else reply_bytes_max(wanted.max_bytes))

    @property
    def full(self) -> bool:
        if self.wanted.auto_ack and self._room.left_bytes < limits.POLL_BYTES_MAX:
            return True  # what is taken for good must fit, and a broker may give as much as that
        return self.messages_left <= 0 or self.bytes_left <= 0

    def add(self, result: Answer[Polled]) -> list[Piece]:
        """Take what a broker gave, as far as it fits into the reply; what does not is to be given back."""
        self.limited = self.limited or result.control.limited
        pieces = pieces_of(result)
        for place, (item, data) in enumerate(pieces):
            size = len(data)
            if not self._room.has(size) and not self._room.is_empty:
                self.bytes_left = 0
                return pieces[place:]
            self._room.take(size)
            self.batches.append((item, data))
            self.messages_left -= sum(part.count for part in item.ranges)
            self.bytes_left -= size
        return []


class _Patience:
    """How long a poll waits, and how long it puts up with partitions that nobody serves."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ends: float) -> None:
        self._loop = loop
        self._ends = ends
        self._missing_since: float | None = None
        self._backoff = Backoff(2 * _PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX)

    def is_over(self, missing: LannerError | None) -> bool:
        """Whether to answer now. What could not be asked may hold something: then the time goes on, to a deadline."""
        now = self._loop.time()
        if missing is None:
            self._missing_since = None
            return now >= self._ends
        if self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since >= DEADLINE_MS / 1_000 and now >= self._ends:
            raise missing
        return False

    async def pause(self) -> None:
        """Do not come back at once."""
        await asyncio.sleep(min(self._backoff.pause_s(), max(0.0, self._ends - self._loop.time())))

    @property
    def pause_seconds(self) -> float:
        """How long to sleep at most before the next round."""
        left = max(0.0, self._ends - self._loop.time())
        if self._missing_since is None:
            return min(left, _ROUND_SECONDS)
        return self._backoff.pause_s()


class ForwardedPolls(Asking):
    """What workers call, on any broker."""

    def __init__(self, here: Here, map_: Map, hops: Hops) -> None:
        super().__init__(here, map_, hops)
        self._member = secrets.token_hex(8)  # which numbers the polls that come without a number
        self._sequences = itertools.count()
        self._turns = itertools.count()
        self._latest: dict[tuple[str, str, str], int] = {}
        self._watches = Watches(lambda node_id, call: self.serve_at(node_id, here.own, call))
        self._sleepers: set[asyncio.Future[int]] = set()

    async def poll(self, identity: Identity, call: Poll) -> Answer[Polled]:
        """Lease messages, the most urgent first; waits for up to wait_ms when there are none."""
        ends = self._loop.time() + call.wait_ms / 1_000
        found = await self.find_topic(call.topic)
        answer = await self.poll_in_one_place(identity, found, call)
        if answer is not None:
            return answer
        taken = _Taken(identity, replace(call, wait_ms=0))  # a poll never waits at a broker
        poller = (call.topic, call.group, call.member)
        taken.may_repeat = call.sequence >= 0 and self._poll_may_repeat(poller, call.sequence)
        return await self._poll_everywhere(found, call.partitions, taken, ends)

    async def poll_in_one_place(self, identity: Identity, topic: KnownTopic, call: Poll) -> Answer[Polled] | None:
        """Poll where everything is led here: the desk does it better. None: it is not."""
        try:
            return await self._here.handle(call)
        except NotLeader:
            return None

    def _poll_may_repeat(self, poller: tuple[str, str, str], sequence: int) -> bool:
        """Whether this poll may have been answered before: its poller is new here, or its sequence is not."""
        latest = self._latest.pop(poller, None)
        self._latest[poller] = sequence
        if len(self._latest) > _POLLERS_MAX:
            del self._latest[next(iter(self._latest))]
        return latest is None or sequence <= latest

    async def _poll_everywhere(
        self, topic: KnownTopic, partitions: Sequence[int] | None, taken: _Taken, ends: float
    ) -> Answer[Polled]:
        patience = _Patience(self._loop, ends)
        try:
            while True:
                chosen = chosen_partitions(topic, partitions)
                missing = await self._take(topic, chosen, taken)
                if taken.batches or self._here.draining or patience.is_over(missing):
                    return self._answer(taken)
                if taken.promised:
                    await patience.pause()  # there is something that cannot be had now, such as at outstanding_max
                await self._news(topic, chosen, taken.wanted, patience)
                topic = await self.find_topic(taken.wanted.topic)  # anew each time: topics grow, and go
        except BaseException:
            self._release_later(taken.wanted, taken.batches)
            raise

    def _answer(self, taken: _Taken) -> Answer[Polled]:
        unheard = partial(self._release_later, taken.wanted, taken.batches)
        return Answer(
            Polled([item for item, _ in taken.batches], taken.limited, taken.priority),
            [data for _, data in taken.batches],
            None if taken.wanted.auto_ack else unheard,
        )

    # ------------------------------------------------------------------ taking

    async def _take(self, topic: KnownTopic, partitions: Sequence[int], taken: _Taken) -> LannerError | None:
        """Take what there is, the best first; the error that kept some partitions out of it, if any."""
        missing = await self._repeat(topic, taken)
        places = self.placed(topic, partitions)
        unserved = places.pop("", None)
        if unserved:
            missing = self._map.not_leader(topic, unserved[0])
        wanted = taken.wanted
        urgency: Urgency[str] = Urgency(taken.messages_left, taken.bytes_left, _STEPS_MAX, wanted.min_priority)
        repeating, alone = taken.may_repeat, len(places) == 1
        if repeating or alone:
            # It may be the repetition of one whose leases BEST_PRIORITY does not show: everybody is asked. A broker
            # that leads everything is, too: there is nothing to compare it with.
            taken.may_repeat = False
            for node_id in places:
                urgency.see(node_id, LANES - 1)
        else:
            for node_id, (best, error) in zip(
                places, await self._best_priorities(taken.identity, places, wanted), strict=True
            ):
                missing = error or missing
                urgency.see(node_id, best.priority, next(self._turns) % len(places), most_of(best.messages))
        taken.promised = urgency.left >= wanted.min_priority and not repeating and not alone
        while not taken.full and (asks := list(iter(urgency.next, None))):
            if repeating or alone:
                asks = [ask._replace(min_priority=wanted.min_priority) for ask in asks]
            try:
                failed = await self.together(self._take_from(ask, places[ask.place], taken, urgency) for ask in asks)
            except LannerError:
                if taken.batches:
                    break  # such as a member that has lost the partitions there; its next poll is told
                raise
            missing = next((error for errors in failed for error in errors), missing)
        taken.priority = urgency.left
        if alone and not repeating:
            taken.promised = taken.limited or urgency.left >= wanted.min_priority
        return missing

    async def _take_from(
        self, ask: Ask[str], mine: list[int], taken: _Taken, urgency: Urgency[str]
    ) -> list[LannerError]:
        """Poll one broker and take what it gives; the error, if any, that left it without an answer."""
        try:
            result = await self._poll_at(ask, mine, taken)
        except UNANSWERED as error:
            urgency.took(ask, 0, 0)
            return [error]
        messages_left, bytes_left = taken.messages_left, taken.bytes_left
        left_out = taken.add(result)
        self._release_later(taken.wanted, left_out)
        left = max([result.control.priority, *(item.priority for item, _ in left_out)])
        messages, size = messages_left - taken.messages_left, bytes_left - taken.bytes_left
        urgency.took(ask, messages, size, left, again=taken.wanted.sequence < 0)
        return []

    async def _best_priorities(
        self, identity: Identity, places: dict[str, list[int]], wanted: Poll | BestPriority
    ) -> list[tuple[BestPriorityFound, LannerError | None]]:
        """The best that each broker has; and what kept it from saying so."""

        async def best_priority(node_id: str, mine: list[int]) -> tuple[BestPriorityFound, LannerError | None]:
            try:
                call = BestPriority(wanted.group, wanted.topic, mine, 0, wanted.start)
                return (await self.serve_at(node_id, identity, call, timeout_ms=_BEST_PRIORITY_MS)).control, None
            except UNANSWERED as error:
                return BestPriorityFound(NOTHING), error

        return await self.together(best_priority(node_id, mine) for node_id, mine in places.items())

    async def _poll_at(self, ask: Ask[str], mine: list[int], taken: _Taken) -> Answer[Polled]:
        """One short poll at one broker. It goes on when the caller goes, and gives back what it brought."""
        wanted = taken.wanted
        own = wanted.sequence < 0 and not wanted.auto_ack
        asked = replace(
            wanted,
            partitions=mine,
            member=passed_on(self._member, wanted.member) if own else wanted.member,
            sequence=next(self._sequences) if own else wanted.sequence,
            max_messages=ask.max_messages,
            max_bytes=ask.max_bytes,
            min_priority=ask.min_priority,
        )
        return await self._poll_once(ask.place, asked, taken)

    async def _poll_once(self, node_id: str, asked: Poll, taken: _Taken) -> Answer[Polled]:
        polling = self.spawn(self.serve_at(node_id, taken.identity, asked, timeout_ms=_POLL_MS))
        try:
            return await asyncio.shield(polling)
        except asyncio.CancelledError:
            polling.add_done_callback(lambda task: self._unclaimed(asked, task))
            raise
        except UNANSWERED:
            if not asked.auto_ack and asked.sequence >= 0:
                taken.unheard.append(_Unheard(asked.sequence, asked.partitions or ()))
            raise

    async def _repeat(self, topic: KnownTopic, taken: _Taken) -> LannerError | None:
        """Ask again for what was leased under a sequence whose answer was lost, at the present leader."""
        unheard, taken.unheard = taken.unheard, []
        wanted = taken.wanted
        missing: LannerError | None = None
        for sequence, partitions in unheard:
            member = wanted.member if sequence == wanted.sequence else passed_on(self._member, wanted.member)
            places = self.placed(topic, partitions)
            unserved = places.pop("", None)
            if unserved:
                taken.unheard.append(_Unheard(sequence, unserved))
            for node_id, mine in places.items():
                if taken.full:
                    return missing
                asked = replace(
                    wanted,
                    partitions=mine,
                    member=member,
                    sequence=sequence,
                    max_messages=taken.messages_left,
                    max_bytes=taken.bytes_left,
                )
                try:
                    self._release_later(asked, taken.add(await self._poll_once(node_id, asked, taken)))
                except UNANSWERED as error:
                    missing = error
                except LannerError:
                    if not taken.batches:
                        raise
        return missing

    # ------------------------------------------------------------------ waiting

    async def best_priority(self, identity: Identity, call: BestPriority) -> Answer[BestPriorityFound]:
        """The most urgent lane with something for the group on any broker, leasing nothing; -1: there is none."""
        check_number("wait_ms", call.wait_ms, 0, limits.POLL_WAIT_MS_MAX)
        patience = _Patience(self._loop, self._loop.time() + call.wait_ms / 1_000)
        while True:
            topic = await self.find_topic(call.topic)
            chosen = chosen_partitions(topic, call.partitions)
            places = self.placed(topic, chosen)
            unserved = places.pop("", None)
            missing: LannerError | None = self._map.not_leader(topic, unserved[0]) if unserved else None
            seen = await self._best_priorities(identity, places, call)
            best = max((found.priority for found, _ in seen), default=NOTHING)
            missing = next((error for _, error in seen if error is not None), missing)
            if best >= 0 or self._here.draining or patience.is_over(missing):
                return Answer(BestPriorityFound(best))
            await self._news(topic, chosen, call, patience)

    async def _news(
        self, topic: KnownTopic, partitions: Sequence[int], wanted: Poll | BestPriority, patience: _Patience
    ) -> None:
        """Sleep until some broker has something, the time is over, or it is worth asking the missing ones again."""
        places = self.placed(topic, partitions)
        places.pop("", None)
        seconds = patience.pause_seconds
        if not places:
            await asyncio.sleep(seconds)
            return
        wait_ms = min(max(1, int(seconds * 1_000)), limits.POLL_WAIT_MS_MAX)
        own: list[asyncio.Future[Answer[BestPriorityFound]]] = []
        watched: list[asyncio.Future[int]] = []
        drained: asyncio.Future[int] = self._loop.create_future()
        for node_id, mine in places.items():
            if node_id == self._map.node_id:
                call = BestPriority(wanted.group, wanted.topic, mine, wait_ms, wanted.start)
                own.append(asyncio.ensure_future(self._here.handle(call)))
            else:
                watched.append(self._watches.join(node_id, wanted.topic, wanted.group, mine))
        waiting: list[asyncio.Future[Answer[BestPriorityFound]] | asyncio.Future[int]] = [*own, *watched]
        self._sleepers.add(drained)
        try:
            done, _ = await asyncio.wait([*waiting, drained], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            problems = [error for one in done if (error := one.exception()) is not None]
            problem = problems[0] if problems else None
            if isinstance(problem, UNANSWERED):
                await asyncio.sleep(_PAUSE_SECONDS_MIN)  # leadership is on its way; do not ask again at once
            elif problem is not None:
                raise problem
        finally:
            self._sleepers.discard(drained)
            for one in waiting:
                one.cancel()
            await asyncio.gather(*own, return_exceptions=True)

    def wake_all(self) -> None:
        """Let everybody who waits look again, and find that the broker drains."""
        for sleeper in list(self._sleepers):
            if not sleeper.done():
                sleeper.set_result(-1)

    # ------------------------------------------------------------------ giving back

    def _unclaimed(self, asked: Poll, polling: asyncio.Task[Answer[Polled]]) -> None:
        if not polling.cancelled() and polling.exception() is None:
            self._release_later(asked, pieces_of(polling.result()))

    def _release_later(self, wanted: Poll, batches: Sequence[Piece]) -> None:
        """Leases that nobody will see go back at once, without counting a delivery."""
        items = [
            SettleItem(item.partition, item.token, part.first_offset, part.count, _ACK)
            for item, _ in batches
            for part in item.ranges
        ]
        if items and not wanted.auto_ack:
            self.spawn(self._release(wanted, items))

    async def _release(self, wanted: Poll, items: list[SettleItem]) -> None:
        try:
            await self.ask(self._here.own, Release(wanted.group, wanted.topic, items))
        except LannerError as error:
            log.info("leases that nobody saw could not be released: %s", error)  # they end by themselves


def pieces_of(answer: Answer[Polled]) -> list[Piece]:
    return list(zip(answer.control.batches, answer.bulk, strict=True))
