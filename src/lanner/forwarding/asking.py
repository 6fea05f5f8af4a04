"""Any call on any broker: one function over the table. A proxy stands on it too (`ports` says what differs).

A call is checked where it enters. What is served from the metadata is served here, once this broker has heard what the
row says it must; what is asked of partitions goes to their leaders: here, or one hop. Each broker is asked once for all
its partitions, all brokers at the same time. One that turns out not to lead says who does; one that does not answer is
asked again after a pause, until the deadline, unless the row says never. What was answered is never asked twice. At the
deadline the caller is told the truth about what is missing: nobody leads it (NotLeader), or which broker did not answer
(BadGateway).

A few calls are more than a split and a merge: they have ways of their own (`ways`, `polls`).
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from msgspec.structs import replace

from lanner.calls import Answer, Bulk, Fresh, Identity, Part, Repeat, Row, Ways, Where, row_of
from lanner.calls.merging import UNANSWERED as UNANSWERED
from lanner.calls.rows import CallT
from lanner.errors import GroupNotFound, LannerError, NotLeader
from lanner.forwarding.checks import chosen_partitions
from lanner.forwarding.ports import Here, Hops, KnownTopic, Map
from lanner.net.backoff import Backoff
from lanner.wire.messages import AnswerT, Call

Result = TypeVar("Result")

DEADLINE_MS: Final = 10_000
WAITING_MAX: Final = 256  # calls that wait at other brokers: these hold only so many of ours
_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 0.3


class Tries:
    """The tries of one call: pauses that grow, within a deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline_ms: int = DEADLINE_MS) -> None:
        self._loop = loop
        self._ends = loop.time() + deadline_ms / 1_000
        self._backoff = Backoff(_PAUSE_S, _PAUSE_S_MAX)

    @property
    def left_ms(self) -> int:
        return max(0, int((self._ends - self._loop.time()) * 1_000))

    async def pause(self, error: LannerError) -> None:
        """Wait a little before the next try; raise the error when there is no time for one."""
        pause_s = self._backoff.pause_until(self._ends, self._loop.time())
        if pause_s is None:
            raise error
        await asyncio.sleep(pause_s)


class Hints:
    """Who leads, as those said who were asked in vain. Each is believed once: the next answer may be another."""

    def __init__(self) -> None:
        self._leaders: dict[int, str] = {}

    def learn(self, error: LannerError, partitions: Sequence[int]) -> bool:
        """Whether the error says where to ask next, so that there is no need to wait."""
        leader, about = error.details.get("leader"), error.details.get("partition")
        if not isinstance(error, NotLeader) or not isinstance(leader, str) or not leader:
            return False
        if not isinstance(about, int) or about not in partitions:
            return False
        self._leaders[about] = leader
        return True

    def take(self, partition: int) -> str:
        return self._leaders.pop(partition, "")


class _Course(Generic[AnswerT]):
    """What has come of a call over several brokers so far."""

    def __init__(self, row: Row[Call[AnswerT], AnswerT], call: Call[AnswerT]) -> None:
        self.row, self.call = row, call
        self.hints = Hints()
        self.parts: list[Part[Call[AnswerT], AnswerT]] = []
        self.why: dict[int, LannerError] = {}  # what kept partitions from being answered in this round
        self.at_once = True  # whether all of these say where to ask next
        self.asked: set[int] = set()  # in earlier rounds
        self.absent: LannerError | None = None

    def miss(self, partitions: Sequence[int], error: LannerError) -> None:
        """These are to be asked again."""
        self.why.update(dict.fromkeys(partitions, error))
        self.at_once = self.hints.learn(error, partitions) and self.at_once

    def take(
        self, one: Call[AnswerT], partitions: Sequence[int], answer: Answer[AnswerT] | BaseException
    ) -> Sequence[int]:
        """What one broker said; the partitions that it left open."""
        if isinstance(answer, GroupNotFound) and self.row.forgive and not self.asked.isdisjoint(partitions):
            answer = Answer(self.row.answer())  # the attempt that nobody answered did it
        elif isinstance(answer, GroupNotFound) and self.row.absent(self.call):
            self.absent = answer
            return ()
        if isinstance(answer, BaseException):
            raise answer
        self.parts.append(Part(one, answer))
        return () if self.row.left_open is None else self.row.left_open(one, answer.control)


class Asking:
    """The cluster's service, asked in one place."""

    waiting_max = WAITING_MAX

    def __init__(self, here: Here, map_: Map, hops: Hops) -> None:
        self._here = here
        self._map = map_
        self._hops = hops
        self._loop = asyncio.get_running_loop()
        self.forwarded = 0  # calls that another broker was asked to serve
        self.ways: Ways = {}
        self._name = secrets.token_hex(8)  # under which calls without an identity of their own are numbered
        self._numbers = itertools.count()
        self._waiting = 0  # calls that wait at other brokers
        self._background: set[asyncio.Task[object]] = set()

    # ------------------------------------------------------------------ the call itself

    async def ask(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Check who asks, and answer a call from wherever it can be answered."""
        self._here.check(identity, call)
        way = self.ways.get(type(call))
        if way is not None:
            return await way(identity, call)
        row = row_of(call)
        if row.where is Where.LEADERS:
            return await self.ask_leaders(identity, call, bulk)
        await self.hear(row, call)
        return await self.serve_here(identity, call, bulk)

    async def serve_here(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Serve what needs no leader of a partition."""
        return await self._here.handle(call, bulk)

    async def ask_leaders(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Ask every broker that leads some of the partitions, for those, and put their answers together."""
        row = row_of(call)
        await self.hear(row, call)
        topic = self._here.find_topic(row.topics(call)[0])
        partitions = chosen_partitions(topic, row.partitions(call))
        if not partitions:
            return await self.serve_here(identity, call, bulk)  # which says what is wrong with that, if anything is
        if row.identify is not None:
            call = row.identify(call, self._name, next(self._numbers))
        waits = row.waits(call) > 0 and self._leaves(topic, partitions)
        if waits and self._waiting >= self.waiting_max:
            call, waits = replace(call, wait_ms=0), False  # the caller comes again
        self._waiting += waits
        try:
            return row.merge(call, await self._parts(identity, row, topic, partitions, call, bulk))
        finally:
            self._waiting -= waits

    async def _parts(
        self,
        identity: Identity,
        row: Row[Call[AnswerT], AnswerT],
        topic: KnownTopic,
        waiting: Sequence[int],
        call: Call[AnswerT],
        bulk: Bulk,
    ) -> list[Part[Call[AnswerT], AnswerT]]:
        tries, course = Tries(self._loop), _Course(row, call)
        hurried = False  # two brokers that each name the other must not be asked in a circle without a pause
        while waiting:
            places = self.placed(topic, waiting, course.hints)
            course.why = {partition: self._map.not_leader(topic, partition) for partition in places.pop("", ())}
            course.at_once = not course.why
            calls = {node_id: row.narrow(call, mine) for node_id, mine in places.items()}
            answers = await _gathered(
                self.serve_at(node_id, identity, one, bulk, tries.left_ms) for node_id, one in calls.items()
            )
            for one, mine, answer in zip(calls.values(), places.values(), answers, strict=True):
                if isinstance(answer, UNANSWERED) and self._may_repeat(row, answer):
                    course.miss(mine, answer)
                else:
                    for partition in course.take(one, mine, answer):
                        course.miss([partition], self._map.not_leader(topic, partition))
            course.asked.update(waiting)
            waiting = list(course.why)
            hurried = course.at_once and not hurried
            if waiting and not hurried:
                try:
                    await tries.pause(course.why[waiting[-1]])
                except LannerError:
                    if row.missed is None:
                        raise
                    missed = row.narrow(call, waiting)
                    course.parts.append(Part(missed, row.missed(missed, course.why)))
                    break
        if course.absent is not None and not course.parts:
            raise course.absent
        return course.parts

    def _may_repeat(self, row: Row[Call[AnswerT], AnswerT], error: LannerError) -> bool:
        """Whether a call may be asked again that was not answered: what was refused before anything was done always,
        anything else if its row lets it."""
        if self._here.draining and row.missed is None:
            return False
        return row.repeat is not Repeat.NEVER or error.details.get("refused") is True

    async def serve_at(
        self, node_id: str, identity: Identity, call: Call[AnswerT], bulk: Bulk = (), timeout_ms: int = DEADLINE_MS
    ) -> Answer[AnswerT]:
        """Have one broker serve a call: this one, or another."""
        if node_id == self._map.node_id:
            return await self._here.handle(call, bulk)
        self.forwarded += 1
        return await self._hops.serve_at(node_id, identity, call, bulk, min(timeout_ms, DEADLINE_MS))

    # ------------------------------------------------------------------ where

    def placed(self, topic: KnownTopic, partitions: Iterable[int], hints: Hints | None = None) -> dict[str, list[int]]:
        """The partitions by the broker to ask; under the empty name those of which no living leader is known."""
        found: dict[str, list[int]] = {}
        for partition in partitions:
            leader = (hints.take(partition) if hints else "") or self._map.leader_of(topic.set_ids[partition])
            found.setdefault(leader, []).append(partition)
        return found

    def _leaves(self, topic: KnownTopic, partitions: Iterable[int]) -> bool:
        """Whether some of these partitions are led elsewhere; of a proxy all of them are."""
        here, leader_of = self._map.node_id, self._map.leader_of
        return not here or any(leader_of(topic.set_ids[partition]) != here for partition in partitions)

    async def hear(self, row: Row[CallT, AnswerT], call: CallT) -> None:
        """Know as much of the metadata as the row asks for."""
        fresh = row.fresh_of(call)
        if fresh is Fresh.LATEST:
            await self._map.catch_up()
        elif fresh is Fresh.NAMED:
            await self._map.hear_of(row.topics(call))

    async def find_topic(self, name: str) -> KnownTopic:
        await self._map.hear_of([name])
        return self._here.find_topic(name)

    # ------------------------------------------------------------------ several at once

    async def together(self, calls: Iterable[Awaitable[Result]]) -> list[Result]:
        """All at once; the first failure is raised when all have ended."""
        outcomes = await _gathered(calls)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]

    def spawn(self, work: Awaitable[Result]) -> asyncio.Task[Result]:
        """Something that goes on when the caller that asked for it has gone."""
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


async def _gathered(calls: Iterable[Awaitable[Result]]) -> list[Result | BaseException]:
    """What each came to, its answer or its error. One alone needs no task."""
    waiting = list(calls)
    if len(waiting) != 1:
        return await asyncio.gather(*waiting, return_exceptions=True)
    try:
        return [await waiting[0]]
    except Exception as error:
        return [error]
