"""Polls over several topics: the topic with the most urgent message first; among equals it is each one's turn.

A poll brings messages of one topic. Before it, every leader of every topic is asked for the most urgent lane that it
has something in (BEST_PRIORITY, which leases nothing); the chosen topic is polled only for what is at least as urgent
as the best of the others. A question that waits at a broker says that there is nothing: it is not asked again until
that one answers, so that there is at most one for each topic and broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from lanner.client.routing import Routing
from lanner.client.session import Outcome, Session
from lanner.client.topic_queue import TopicQueue
from lanner.errors import LannerError, NotFoundError
from lanner.net.waiters import answer_to
from lanner.wire.connection import Reply
from lanner.wire.messages import BestPriority, BestPriorityFound, Command, Polled

_ROUND_S: Final = 5.0  # so long a broker is asked to wait
_PATIENCE_S: Final = 0.5  # with a broker that keeps the others waiting
_ANSWER_MS: Final = 5_000
_CONNECTING_S: Final = 1.0
_MISSING_S: Final = 0.25  # between two looks for a topic that is not there, or whose leader is not known


class _Look(NamedTuple):
    queue: TopicQueue
    session: Session
    partitions: tuple[int, ...]


class SeveralTopics:
    """The looks of one consumer, and whose turn it is."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[_Look, asyncio.Future[Outcome[BestPriorityFound]]] = {}
        self._turn = 0
        self._missing = False  # something could not be asked in this round

    async def poll(
        self, queues: Sequence[TopicQueue], max_messages: int, wait_ms: int
    ) -> tuple[TopicQueue, list[Reply[Polled]]] | None:
        """The replies for one of these topics; None when the wait is over."""
        deadline = self._loop.time() + wait_ms / 1000
        urgent = await self._look(queues)
        while True:
            while urgent:
                queue = self._most_urgent(urgent)
                del urgent[queue]
                replies = await queue.poller.poll(max_messages, 0, max(urgent.values(), default=0))
                if any(reply.control.batches for reply in replies):
                    return queue, replies
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                return None
            urgent = await self._wait(queues, min(left_s, _ROUND_S))

    def _most_urgent(self, urgent: dict[TopicQueue, int]) -> TopicQueue:
        best = max(urgent.values())
        equals = sorted((queue for queue in urgent if urgent[queue] == best), key=lambda queue: queue.topic)
        self._turn += 1
        return equals[self._turn % len(equals)]

    async def _look(self, queues: Sequence[TopicQueue]) -> dict[TopicQueue, int]:
        """The most urgent lane of each topic that has something now."""
        asked: dict[_Look, asyncio.Future[Outcome[BestPriorityFound]]] = {}
        for look in await self._looks(queues):
            waiting = self._waiting.get(look)
            if waiting is None:
                asked[look] = self._ask(look, 0)
            elif waiting.done():
                asked[look] = self._waiting.pop(look)
        if asked:
            await asyncio.wait(asked.values(), timeout=_PATIENCE_S)
        return self._urgent(asked)

    async def _wait(self, queues: Sequence[TopicQueue], seconds: float) -> dict[TopicQueue, int]:
        """Wait until some topic has something, or something could not be asked."""
        looks = await self._looks(queues)
        for look in looks:
            if look not in self._waiting:
                self._waiting[look] = self._ask(look, round(_ROUND_S * 1000))
        if self._missing or not looks:
            seconds = min(seconds, _MISSING_S)
        waited = [self._waiting[look] for look in looks]
        if waited:
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(seconds)
        told = {look: self._waiting.pop(look) for look in looks if self._waiting[look].done()}
        urgent = self._urgent(told)
        if told and not urgent and self._missing:
            await asyncio.sleep(min(seconds, _MISSING_S))  # what failed is not asked again at once
        return urgent

    async def _looks(self, queues: Sequence[TopicQueue]) -> list[_Look]:
        """Whom to ask about which partitions; what is not there, or not led, is left out for now."""
        self._missing = False
        looks: list[_Look] = []
        for queue in queues:
            chosen, create = queue.poller.wanted.partitions, queue.poller.wanted.create
            try:
                route = self._routing.known(queue.topic) or await self._routing.route(queue.topic, create=create)
            except NotFoundError:
                self._missing = True
                continue
            led, orphans = self._routing.by_leader(queue.topic, range(route.partitions) if chosen is None else chosen)
            self._missing = self._missing or bool(orphans)
            for session, partitions in led.items():
                await session.wait_until_tried(self._loop.time() + _CONNECTING_S)
                looks.append(_Look(queue, session, tuple(partitions)))
        wanted = set(looks)
        for look in [look for look in self._waiting if look not in wanted]:
            del self._waiting[look]  # its partitions are others by now
        return looks

    def _ask(self, look: _Look, wait_ms: int) -> asyncio.Future[Outcome[BestPriorityFound]]:
        future: asyncio.Future[Outcome[BestPriorityFound]] = self._loop.create_future()
        wanted = look.queue.poller.wanted
        call = BestPriority(wanted.group, wanted.topic, list(look.partitions), wait_ms, wanted.start)
        look.session.call(Command.BEST_PRIORITY, call, (), answer_to(future), wait_ms + _ANSWER_MS)
        return future

    def _urgent(self, asked: dict[_Look, asyncio.Future[Outcome[BestPriorityFound]]]) -> dict[TopicQueue, int]:
        urgent: dict[TopicQueue, int] = {}
        for look, future in asked.items():
            if not future.done():
                self._missing = True
                continue
            outcome = future.result()
            if isinstance(outcome, LannerError):
                self._learn(look, outcome)
            elif outcome.control.priority >= 0:
                urgent[look.queue] = max(urgent.get(look.queue, 0), outcome.control.priority)
        return urgent

    def _learn(self, look: _Look, error: LannerError) -> None:
        self._missing = True
        if isinstance(error, NotFoundError):
            self._routing.forget(look.queue.topic)
        elif not error.retryable:
            raise error
        else:
            for partition in look.partitions:
                self._routing.failed(look.queue.topic, partition, look.session, error)
