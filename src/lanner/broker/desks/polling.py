"""Polls over several partitions of one broker.

Each step goes to the partition with the most urgent deliverable lane, and takes from it only what is at least as urgent
as the best of the others, so that strict priority holds over the partitions of one broker too. Equals that have little
are asked in one turn, so that their decisions share one commit. A partition that has answered is not asked again for
what came in meanwhile: while messages keep coming, a poll would go on for as many commits as it may, and its first
messages would wait for its last. A poll over several brokers says which lanes the others have something better than
(`min_lane`), and is told what is left here.

What was taken is never lost because another partition failed: a poll that has something returns it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from lanner.broker.desks.fencing import placed
from lanner.broker.desks.fitting import release_of
from lanner.broker.desks.leases import Leased
from lanner.broker.desks.questions import Questions
from lanner.broker.ports import Clock
from lanner.broker.replicas.damage import DAMAGED
from lanner.broker.replicas.engine import Engine
from lanner.broker.replicas.replica import Replica
from lanner.calls.urgency import NOTHING, Ask, Urgency
from lanner.errors import GroupKindConflict, LannerError
from lanner.forwarding.batches import Router
from lanner.forwarding.values import LeasedBatch, Range
from lanner.model import GroupKind
from lanner.partition import Answer, Fence, MakeGroup, Poll, Settle
from lanner.partition.fences import REFUSED
from lanner.partition.requests import PollAnswer, SettleKind

_POLLERS_MAX: Final = 10_000  # of whom the latest sequence is remembered; the others are looked up
_STEPS_MAX: Final = 16  # how many decisions one poll may be made of

Fences = Mapping[int, Fence]  # by partition


class Polling:
    """Leases for polls, the most urgent first."""

    def __init__(self, engine: Engine, clock: Clock, router: Router, questions: Questions) -> None:
        self._engine = engine
        self._clock = clock
        self._router = router
        self._questions = questions
        self._first_sequence = clock.now_ms() << 10
        self._latest: dict[tuple[int, str, str], int] = {}
        self._calls: dict[tuple[str, str, str], tuple[int, int]] = {}  # topic, group, member → latest sequence and call
        self._topics: dict[int, str] = {}  # of the latest calls
        self._numbers = itertools.count(1)

    def called(self, topic: str, group: str, member: str, sequence: int) -> int:
        """A poll begins: a number for this call of it, so that it can be told from a repetition of the same poll."""
        number = next(self._numbers)
        if sequence >= 0:
            self._topics[number] = topic
            self._calls.pop((topic, group, member), None)
            self._calls[topic, group, member] = (sequence, number)
            if len(self._calls) > _POLLERS_MAX:
                del self._calls[next(iter(self._calls))]
            if len(self._topics) > _POLLERS_MAX:
                del self._topics[next(iter(self._topics))]
        return number

    def was_repeated(self, group: str, member: str, sequence: int, call: int) -> bool:
        """Whether the poll was asked again after this call: then its leases are the business of the later one."""
        latest, number = self._calls.get((self._topics.get(call, ""), group, member), (-1, 0))
        return latest == sequence and number > call

    def _may_repeat(self, poller: tuple[int, str, str], sequence: int) -> bool:
        """Whether this poll may have been answered before: its poller is new here, or its sequence is not."""
        latest = self._latest.pop(poller, None)
        self._latest[poller] = sequence
        if len(self._latest) > _POLLERS_MAX:
            del self._latest[next(iter(self._latest))]
        return latest is None or sequence <= latest

    def _anonymous_sequence(self) -> int:
        """A sequence for a poll that names none, so that it is never taken for the repetition of another."""
        return self._first_sequence + self._router.turn()

    async def lease(
        self, replicas: list[tuple[int, Replica]], request: Poll, call: int, fences: Fences | None = None
    ) -> tuple[list[Leased], bool]:
        """Lease from one partition after the other, the most urgent first, until the poll is full.

        `fences`: what the caller stands for on each partition; None: on all of them what the request says."""
        await self.make_group(replicas, request.group, request.start)
        self.check_kind(replicas, request.group)  # on all of them, before anything is leased on one
        if request.sequence < 0:
            request = request._replace(sequence=self._anonymous_sequence())
        elif self._may_repeat((replicas[0][1].set_id, request.group, request.member), request.sequence):
            leased = await self._lease_again(replicas, request, call, fences)
            if leased:
                return leased, False
        return await self._lease_new(dict(replicas), request, call, fences)

    async def lease_refused(self, replicas: list[tuple[int, Replica]], request: Poll, call: int) -> list[Leased]:
        """What a poll that is refused by now was given before, if this is its repetition; nothing new."""
        return await self._lease_again(replicas, request._replace(fence=REFUSED), call, None)

    async def _lease_new(
        self, replicas: dict[int, Replica], request: Poll, call: int, fences: Fences | None
    ) -> tuple[list[Leased], bool]:
        leased: list[Leased] = []
        limited = False
        urgency: Urgency[int] = Urgency(request.max_messages, request.max_bytes, _STEPS_MAX, request.min_lane)
        sequences = itertools.count(request.sequence * _STEPS_MAX)
        unasked = dict(replicas)
        while True:
            self._look(unasked, request.group, urgency)
            asks = list(iter(urgency.next, None))
            if not asks:
                break
            for ask in asks:
                unasked.pop(ask.place, None)
            try:
                answers = await self._ask_together(
                    [(replicas[ask.place], _narrowed(request, ask, next(sequences), fences)) for ask in asks], call
                )
            except BaseException:
                self.give_back(request, leased, call)
                raise
            failed: LannerError | None = None
            for ask, (answer, index) in zip(asks, answers, strict=True):
                if isinstance(answer, LannerError):
                    failed = placed(answer, ask.place)
                    continue
                leases = answer.leases if isinstance(answer, PollAnswer) else []
                limited = limited or (isinstance(answer, PollAnswer) and answer.limited)
                messages = sum(lease.count for lease in leases)
                size = sum(lease.ref.size * lease.count // lease.ref.count for lease in leases)
                replica = replicas[ask.place]
                left, count = self._best(replica, request.group)
                urgency.took(ask, messages, size, left, count)
                if isinstance(answer, PollAnswer) and leases:
                    leased.append(Leased(ask.place, replica, _token_of(answer, index), answer))
            if failed is not None:
                if leased:
                    break
                raise failed
        return leased, limited

    async def _ask_together(self, asked: Sequence[tuple[Replica, Poll]], call: int) -> list[tuple[Answer, int]]:
        """Ask these partitions in one turn, so that one commit holds what they decide; an answer may be an error."""
        futures: list[asyncio.Future[tuple[Answer, int]]] = []
        try:
            for replica, request in asked:
                unheard = partial(self._give_back_one, replica, request, call)
                futures.append(self._questions.put(replica, request, unheard))
            return [await future for future in futures]
        except BaseException:
            for future, (replica, request) in zip(futures, asked, strict=False):
                if not future.cancel() and not future.cancelled():
                    self._give_back_one(replica, request, call, *future.result())
            raise

    def _give_back_one(self, replica: Replica, request: Poll, call: int, answer: Answer, index: int) -> None:
        if isinstance(answer, PollAnswer):
            whole = request._replace(sequence=request.sequence // _STEPS_MAX)
            self.give_back(whole, [Leased(0, replica, _token_of(answer, index), answer)], call)

    def give_back(self, request: Poll, leased: list[Leased], call: int) -> None:
        """Release, without counting a delivery, what was leased for a caller who will never hear of it."""
        if self.was_repeated(request.group, request.member, request.sequence, call):
            return
        for _, replica, token, answer in leased:
            release = release_of(request.group, token, answer.leases)
            if release is not None:
                self._questions.tell(replica, release)

    async def put_back(self, request: Poll, leased: list[Leased], call: int) -> None:
        """The same for what the reply has no room for: done when others can have it."""
        if self.was_repeated(request.group, request.member, request.sequence, call):
            return
        releases = [(one.replica, release_of(request.group, one.token, one.answer.leases)) for one in leased]
        asked = [self._questions.ask(replica, release) for replica, release in releases if release is not None]
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, LannerError):
                raise outcome

    async def bury_damaged(
        self, request: Poll, leased: list[Leased], batches: Sequence[LeasedBatch], left_out: list[Leased]
    ) -> int:
        """Messages that cannot be read any more, because the only copy of their batch is damaged, are dead; how many.

        They would be leased again and again, and nobody would ever see them. What memory could still serve is
        delivered, and what the reply had no room for was put back.
        """
        damages, dead = self._engine.damages, 0
        others = {(one.partition, one.base_offset) for one in batches}
        others |= {(one.partition, lease.ref.base_offset) for one in left_out for lease in one.answer.leases}
        for partition, replica, token, answer in leased:
            gone = [
                lease
                for lease in answer.leases
                if damages.holds(replica.set_id, lease.ref.index) and (partition, lease.ref.base_offset) not in others
            ]
            items = [(token, lease.first_offset, lease.count, SettleKind.REJECT, -1, DAMAGED) for lease in gone]
            dead += sum(lease.count for lease in gone)
            if items:
                await self._questions.ask(replica, Settle(request.group, items))
        return dead

    async def acknowledge(
        self, request: Poll, leased: list[Leased], batches: Sequence[LeasedBatch]
    ) -> list[LeasedBatch]:
        """Ack what is about to be delivered to a caller who wants that done for it; what of it was acked.

        What may not have been acked is not delivered, because somebody else may get it.
        """
        places: dict[int, list[tuple[int, Range]]] = {}
        for place, one in enumerate(batches):
            places.setdefault(one.partition, []).extend((place, covered) for covered in one.ranges)
        acked: list[list[Range]] = [[] for _ in batches]

        async def ack(replica: Replica, ranges: list[tuple[int, Range]]) -> None:
            items = [(batches[place].token, *covered[:2], SettleKind.ACK, -1, "") for place, covered in ranges]
            try:
                results, _ = await self._questions.ask(replica, Settle(request.group, items))
            except LannerError:
                self.give_back(request, [one for one in leased if one.replica is replica], 0)
                return
            assert isinstance(results, list)
            for (place, covered), (code, _) in zip(ranges, results, strict=True):
                if code == 0:
                    acked[place].append(covered)

        replicas = {one.partition: one.replica for one in leased}
        await asyncio.gather(*(ack(replicas[partition], ranges) for partition, ranges in places.items()))
        return [one._replace(ranges=ranges) for one, ranges in zip(batches, acked, strict=True) if ranges]

    async def _lease_again(
        self, replicas: list[tuple[int, Replica]], request: Poll, call: int, fences: Fences | None
    ) -> list[Leased]:
        """What this very poll was given before, where its reply was lost: the same leases, as far as they live."""
        leased: list[Leased] = []
        first = request.sequence * _STEPS_MAX
        for partition, replica in replicas:
            for sequence in range(first, first + _STEPS_MAX):
                if replica.partition.has_polled(request.group, request.member, sequence):
                    fence = request.fence if fences is None else fences[partition]
                    ((answer, index),) = await self._ask_together(
                        [(replica, request._replace(sequence=sequence, fence=fence))], call
                    )
                    if isinstance(answer, LannerError):
                        raise answer
                    if isinstance(answer, PollAnswer) and answer.leases:
                        leased.append(Leased(partition, replica, _token_of(answer, index), answer))
        return leased

    async def make_group(
        self, replicas: list[tuple[int, Replica]], group: str, start: str, kind: GroupKind = GroupKind.QUEUE
    ) -> None:
        """A group begins on all its partitions at once: what is appended from now on is new to it everywhere."""
        missing = [replica for _, replica in replicas if not replica.partition.has_group(group)]
        if missing:
            make = MakeGroup(group, kind, start)
            await asyncio.gather(*(self._questions.ask(replica, make) for replica in missing))

    def best_lane(self, replicas: list[tuple[int, Replica]], group: str) -> int:
        """The most urgent lane with something for the group on these; -1: there is nothing."""
        return self.best(replicas, group)[0]

    def best(self, replicas: list[tuple[int, Replica]], group: str) -> tuple[int, int]:
        """The same, and how many messages of that lane there may be."""
        found = [self._best(replica, group) for _, replica in replicas]
        lane = max(lane for lane, _ in found)
        return lane, sum(count for other, count in found if other == lane)

    def _best(self, replica: Replica, group: str) -> tuple[int, int]:
        """The most urgent lane with something for the group here, and how many messages it may have."""
        lane = replica.partition.best_lane(group, self._clock.now_ms())
        return (NOTHING, 0) if lane is None else (lane, replica.partition.count_in(group, lane))

    def check_kind(self, replicas: list[tuple[int, Replica]], group: str, kind: GroupKind = GroupKind.QUEUE) -> None:
        for _, replica in replicas:
            found = replica.partition.kind_of(group)
            if found is not None and found is not kind:
                raise GroupKindConflict(f"{group!r} is a {found} group; use another name", group=group)

    def _look(self, replicas: Mapping[int, Replica], group: str, urgency: Urgency[int]) -> None:
        """What these partitions have now. Among equals one that is free to decide goes first, then each in its turn."""
        turn, places = self._router.turn(), len(replicas)
        for place, (partition, replica) in enumerate(replicas.items()):
            lane, count = self._best(replica, group)
            urgency.see(partition, lane, replica.free * places + (place + turn) % places, count)


def _narrowed(request: Poll, ask: Ask[int], sequence: int, fences: Fences | None) -> Poll:
    """What of a poll one partition is asked for."""
    return request._replace(
        sequence=sequence,
        max_messages=ask.max_messages,
        max_bytes=ask.max_bytes,
        min_lane=ask.min_priority,
        fence=request.fence if fences is None else fences[ask.place],
    )


def _token_of(answer: PollAnswer, index: int) -> int:
    """A lease is known by the record that made it. A repeated poll is answered from an older one, and writes none: it
    may be repeated without knowing it, at a new leader that applies what the old one had decided only now."""
    return index if answer.token is None else answer.token
