"""Polls over several brokers, the most urgent first.

All brokers are glanced at in parallel: what is the most urgent that each has? The one with the best is polled first,
and only for what is at least as urgent as the next best; then the next, until the poll is full. While there is nothing
anywhere, a long glance waits at every broker, and the first news ends it. A glance leases nothing, so a caller who
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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lanner import limits
from lanner.broker.desks.calls import Delivered, Identity, LeasedBatch, PollResult, SettleItem
from lanner.broker.desks.fitting import FRAME_ROOM_BYTES, Room, reply_bytes_max
from lanner.broker.desks.unpacking import Unpacking
from lanner.broker.forwarding.settles import ForwardedSettles
from lanner.broker.forwarding.spreading import DEADLINE_MS, UNANSWERED
from lanner.broker.forwarding.watches import Watches
from lanner.calls.urgency import Ask, Urgency
from lanner.cluster import Topic
from lanner.errors import LannerError, NotLeader
from lanner.model import LANES

if TYPE_CHECKING:
    from lanner.broker.desks.desk import Desk
    from lanner.broker.desks.routes import Routes
    from lanner.broker.node import Node

log = logging.getLogger("lanner.broker")

_ACK: Final = 1
_GLANCE_MS: Final = 2_000  # a broker that does not say what it has within this is left out of the round
_POLL_MS: Final = 5_000
_ROUND_SECONDS: Final = 2.0  # so often a poll that waits looks who leads now
_PAUSE_SECONDS_MIN: Final = 0.03
_PAUSE_SECONDS_MAX: Final = 0.5
_STEPS_MAX: Final = 32
_POLLERS_MAX: Final = 10_000


class _Wanted(NamedTuple):
    """One poll, as it was asked."""

    identity: Identity
    topic: str
    group: str
    member: str
    sequence: int
    max_messages: int
    max_bytes: int
    lease_ms: int
    auto_ack: bool
    start: str
    min_priority: int


class _Unheard(NamedTuple):
    """A poll whose answer was lost: what it leased is found again under its sequence."""

    sequence: int
    partitions: Sequence[int]


class _Taken:
    """What a poll has so far."""

    def __init__(self, wanted: _Wanted) -> None:
        self.wanted = wanted
        self.batches: list[LeasedBatch] = []
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

    def add(self, result: PollResult) -> list[LeasedBatch]:
        """Take what a broker gave, as far as it fits into the reply; what does not is to be given back."""
        self.limited = self.limited or result.limited
        for place, item in enumerate(result.batches):
            size = len(item.data)
            if not self._room.has(size) and not self._room.is_empty:
                self.bytes_left = 0
                return list(result.batches[place:])
            self._room.take(size)
            self.batches.append(item)
            self.messages_left -= sum(part.count for part in item.ranges)
            self.bytes_left -= size
        return []


class _Patience:
    """How long a poll waits, and how long it puts up with partitions that nobody serves."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ends: float) -> None:
        self._loop = loop
        self._ends = ends
        self._missing_since: float | None = None
        self._pause = _PAUSE_SECONDS_MIN

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
        self._pause = min(2 * self._pause, _PAUSE_SECONDS_MAX)
        await asyncio.sleep(min(self._pause, max(0.0, self._ends - self._loop.time())))

    @property
    def pause_seconds(self) -> float:
        """How long to sleep at most before the next round."""
        left = max(0.0, self._ends - self._loop.time())
        if self._missing_since is None:
            return min(left, _ROUND_SECONDS)
        self._pause = min(2 * self._pause, _PAUSE_SECONDS_MAX)
        return self._pause


class ForwardedPolls(ForwardedSettles):
    """What workers call, on any broker."""

    def __init__(self, service: Desk, node: Node, routes: Routes) -> None:
        super().__init__(service, node, routes)
        self._member = f"door-{secrets.token_hex(8)}"
        self._sequences = itertools.count()
        self._turns = itertools.count()
        self._latest: dict[tuple[str, str, str], int] = {}
        self._watches = Watches(self.at)
        self._sleepers: set[asyncio.Future[int]] = set()
        self._unpacking = Unpacking(self, node)

    async def poll_messages(self, identity: Identity, **wanted: Any) -> list[Delivered]:
        """A poll, decoded: for doors whose callers cannot read batches."""
        return await self._unpacking.poll(identity, **wanted)

    async def poll(
        self,
        identity: Identity,
        *,
        topic: str,
        group: str,
        member: str,
        sequence: int = -1,
        partitions: Sequence[int] | None = None,
        max_messages: int = 500,
        max_bytes: int = limits.MIB,
        wait_ms: int = 0,
        lease_ms: int = -1,
        auto_ack: bool = False,
        start: str = "earliest",
        min_priority: int = 0,
    ) -> PollResult:
        """Lease messages, the most urgent first; waits for up to wait_ms when there are none."""
        ends = self._loop.time() + wait_ms / 1_000
        found = await self.find_topic(topic)
        wanted = _Wanted(
            identity, topic, group, member, sequence, max_messages, max_bytes, lease_ms, auto_ack, start, min_priority
        )
        try:  # everything is led here: the service does it better
            result: PollResult = await self._service.poll(
                identity, **_fields(wanted), partitions=partitions, wait_ms=wait_ms
            )
            return result
        except NotLeader:
            pass
        taken = _Taken(wanted)
        taken.may_repeat = sequence >= 0 and self._may_repeat((topic, group, member), sequence)
        return await self._poll_everywhere(found, partitions, taken, ends)

    def _may_repeat(self, poller: tuple[str, str, str], sequence: int) -> bool:
        """Whether this poll may have been answered before: its poller is new here, or its sequence is not."""
        latest = self._latest.pop(poller, None)
        self._latest[poller] = sequence
        if len(self._latest) > _POLLERS_MAX:
            del self._latest[next(iter(self._latest))]
        return latest is None or sequence <= latest

    async def _poll_everywhere(
        self, topic: Topic, partitions: Sequence[int] | None, taken: _Taken, ends: float
    ) -> PollResult:
        patience = _Patience(self._loop, ends)
        try:
            while True:
                chosen = self._service.check_partitions(topic, partitions)
                missing = await self._take(topic, chosen, taken)
                if taken.batches or self._service.draining or patience.is_over(missing):
                    return PollResult(taken.batches, taken.limited, taken.priority)
                if taken.promised:
                    await patience.pause()  # there is something that cannot be had now, such as at outstanding_max
                await self._news(topic, chosen, taken.wanted, patience)
                topic = await self.find_topic(taken.wanted.topic)  # anew each time: topics grow, and go
        except BaseException:
            self._release_later(taken.wanted, taken.batches)
            raise

    # ------------------------------------------------------------------ taking

    async def _take(self, topic: Topic, partitions: Sequence[int], taken: _Taken) -> LannerError | None:
        """Take what there is, the best first; the error that kept some partitions out of it, if any."""
        missing = await self._repeat(topic, taken)
        places = self.placed(topic, partitions)
        unserved = places.pop("", None)
        if unserved:
            missing = self._routes.not_leader(topic, unserved[0])
        wanted = taken.wanted
        urgency: Urgency[str] = Urgency(taken.messages_left, taken.bytes_left, _STEPS_MAX, wanted.min_priority)
        repeating = taken.may_repeat
        if repeating:
            # It may be the repetition of one whose leases no glance shows: everybody is asked.
            taken.may_repeat = False
            for node_id in places:
                urgency.see(node_id, LANES - 1)
        else:
            for node_id, (lane, error) in zip(places, await self._glances(places, wanted), strict=True):
                missing = error or missing
                urgency.see(node_id, lane, next(self._turns) % len(places))
        taken.promised = urgency.left >= wanted.min_priority and not repeating
        while not taken.full and (ask := urgency.next()) is not None:
            if repeating:
                ask = ask._replace(min_priority=wanted.min_priority)
            try:
                result = await self._poll_at(ask, places[ask.place], taken)
            except UNANSWERED as error:
                missing = error
                urgency.took(ask, 0, 0)
                continue
            before = taken.messages_left, taken.bytes_left
            left_out = taken.add(result)
            self._release_later(wanted, left_out)
            left = max([result.priority, *(item.priority for item in left_out)])
            size = before[1] - taken.bytes_left
            urgency.took(ask, before[0] - taken.messages_left, size, left, again=wanted.sequence < 0)
        taken.priority = urgency.left
        return missing

    async def _glances(self, places: dict[str, list[int]], wanted: _Wanted) -> list[tuple[int, LannerError | None]]:
        """The best lane of each broker, -1 for none; and what kept it from saying so."""

        async def glance(node_id: str, mine: list[int]) -> tuple[int, LannerError | None]:
            try:
                lane: int = await self.at(node_id, _GLANCE_MS).glance(
                    wanted.identity, wanted.topic, wanted.group, mine, 0, wanted.start
                )
                return lane, None
            except UNANSWERED as error:
                return -1, error

        return await self.together(glance(node_id, mine) for node_id, mine in places.items())

    async def _poll_at(self, ask: Ask[str], mine: Sequence[int], taken: _Taken) -> PollResult:
        """One short poll at one broker. It goes on when the caller goes, and gives back what it brought."""
        wanted = taken.wanted
        own = wanted.sequence < 0 and not wanted.auto_ack
        asked = wanted._replace(
            member=self._member if own else wanted.member,
            sequence=next(self._sequences) if own else wanted.sequence,
            max_messages=ask.max_messages,
            max_bytes=ask.max_bytes,
            min_priority=ask.min_priority,
        )
        return await self._poll_once(ask.place, mine, asked, taken)

    async def _poll_once(self, node_id: str, mine: Sequence[int], asked: _Wanted, taken: _Taken) -> PollResult:
        polling = self.spawn(
            self.at(node_id, _POLL_MS).poll(asked.identity, **_fields(asked), partitions=mine, wait_ms=0)
        )
        try:
            result: PollResult = await asyncio.shield(polling)
            return result
        except asyncio.CancelledError:
            polling.add_done_callback(lambda task: self._unclaimed(asked, task))
            raise
        except UNANSWERED:
            if not asked.auto_ack and asked.sequence >= 0:
                taken.unheard.append(_Unheard(asked.sequence, mine))
            raise

    async def _repeat(self, topic: Topic, taken: _Taken) -> LannerError | None:
        """Ask again for what was leased under a sequence whose answer was lost, at the present leader."""
        unheard, taken.unheard = taken.unheard, []
        wanted = taken.wanted
        missing: LannerError | None = None
        for sequence, partitions in unheard:
            member = wanted.member if sequence == wanted.sequence else self._member
            places = self.placed(topic, partitions)
            unserved = places.pop("", None)
            if unserved:
                taken.unheard.append(_Unheard(sequence, unserved))
            for node_id, mine in places.items():
                if taken.full:
                    return missing
                asked = wanted._replace(
                    member=member, sequence=sequence, max_messages=taken.messages_left, max_bytes=taken.bytes_left
                )
                try:
                    self._release_later(asked, taken.add(await self._poll_once(node_id, mine, asked, taken)))
                except UNANSWERED as error:
                    missing = error
        return missing

    # ------------------------------------------------------------------ waiting

    async def glance(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int] | None = None,
        wait_ms: int = 0,
        start: str = "earliest",
    ) -> int:
        """The most urgent lane with something for the group on any broker, leasing nothing; -1: there is none."""
        patience = _Patience(self._loop, self._loop.time() + wait_ms / 1_000)
        wanted = _Wanted(identity, topic, group, "glance", -1, 1, 1, -1, False, start, 0)
        while True:
            found = await self.find_topic(topic)
            chosen = self._service.check_partitions(found, partitions)
            places = self.placed(found, chosen)
            unserved = places.pop("", None)
            missing: LannerError | None = self._routes.not_leader(found, unserved[0]) if unserved else None
            lanes = await self._glances(places, wanted)
            best = max((lane for lane, _ in lanes), default=-1)
            missing = next((error for _, error in lanes if error is not None), missing)
            if best >= 0 or self._service.draining or patience.is_over(missing):
                return best
            await self._news(found, chosen, wanted, patience)

    async def _news(self, topic: Topic, partitions: Sequence[int], wanted: _Wanted, patience: _Patience) -> None:
        """Sleep until some broker has something, the time is over, or it is worth asking the missing ones again."""
        places = self.placed(topic, partitions)
        places.pop("", None)
        seconds = patience.pause_seconds
        if not places:
            await asyncio.sleep(seconds)
            return
        wait_ms = min(max(1, int(seconds * 1_000)), limits.POLL_WAIT_MS_MAX)
        own: list[asyncio.Future[int]] = []
        watched: list[asyncio.Future[int]] = []
        drained: asyncio.Future[int] = self._loop.create_future()
        for node_id, mine in places.items():
            if node_id == self.node_id:
                glance = self._service.glance(wanted.identity, wanted.topic, wanted.group, mine, wait_ms, wanted.start)
                own.append(asyncio.ensure_future(glance))
            else:
                watched.append(self._watches.join(node_id, wanted.identity, wanted.topic, wanted.group, mine))
        self._sleepers.add(drained)
        try:
            sleeping = [*own, *watched, drained]
            done, _ = await asyncio.wait(sleeping, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            problems = [error for one in done if (error := one.exception()) is not None]
            problem = problems[0] if problems else None
            if isinstance(problem, UNANSWERED):
                await asyncio.sleep(_PAUSE_SECONDS_MIN)  # leadership is on its way; do not ask again at once
            elif problem is not None:
                raise problem
        finally:
            self._sleepers.discard(drained)
            for one in [*own, *watched]:
                one.cancel()
            await asyncio.gather(*own, return_exceptions=True)

    def wake_all(self) -> None:
        """Let everybody who waits look again, and find that the broker drains."""
        for sleeper in list(self._sleepers):
            if not sleeper.done():
                sleeper.set_result(-1)

    # ------------------------------------------------------------------ giving back

    def _unclaimed(self, asked: _Wanted, polling: asyncio.Task[PollResult]) -> None:
        if not polling.cancelled() and polling.exception() is None:
            self._release_later(asked, polling.result().batches)

    def _release_later(self, wanted: _Wanted, batches: Sequence[LeasedBatch]) -> None:
        """Leases that nobody will see go back at once, without counting a delivery."""
        items = [
            SettleItem(item.partition, item.token, part.first_offset, part.count, _ACK)
            for item in batches
            for part in item.ranges
        ]
        if items and not wanted.auto_ack:
            self.spawn(self._release(wanted, items))

    async def _release(self, wanted: _Wanted, items: Sequence[SettleItem]) -> None:
        try:
            await self.release(wanted.identity, wanted.topic, wanted.group, items)
        except LannerError as error:
            log.info("leases that nobody saw could not be released: %s", error)  # they end by themselves


def _fields(wanted: _Wanted) -> dict[str, Any]:
    fields = wanted._asdict()
    del fields["identity"]
    return fields
