"""A call over the partitions of a topic, wherever they are led: asked where each is, put together, repeated where
somebody did not answer.

Each broker is asked once for all its partitions, all brokers at the same time. One that turns out not to lead says who
does; one that does not answer is asked again after a pause, until the deadline. What was answered is never asked twice.
At the deadline the caller is told the truth about what is missing: nobody leads it (NotLeader), or which broker did not
answer (BadGateway).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from lanner.broker.desks.desk import Desk
from lanner.broker.desks.routes import Routes
from lanner.broker.forwarding.remote import RemoteService
from lanner.broker.node import Node
from lanner.cluster import METADATA_SET, Topic
from lanner.errors import BadGateway, DeadlineExceeded, GroupNotFound, LannerError, NotLeader, ServiceUnavailable

Result = TypeVar("Result")

DEADLINE_MS: Final = 10_000
_BACKOFF_SECONDS_MIN: Final = 0.02
_BACKOFF_SECONDS_MAX: Final = 0.3
_CATCH_UP_MS: Final = 1_000
# Another broker may answer these calls, or this one may a moment later.
UNANSWERED: Final = (NotLeader, BadGateway, ServiceUnavailable)


class Backoff:
    """Pauses that grow, within a deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline_ms: int = DEADLINE_MS) -> None:
        self._loop = loop
        self._ends = loop.time() + deadline_ms / 1_000
        self._pause = _BACKOFF_SECONDS_MIN

    @property
    def left_ms(self) -> int:
        return max(0, int((self._ends - self._loop.time()) * 1_000))

    async def pause(self, error: LannerError) -> None:
        """Wait a little before the next attempt; raises the error when there is no time for one."""
        if self._loop.time() + self._pause >= self._ends:
            raise error
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _BACKOFF_SECONDS_MAX)


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


async def _made(call: Callable[[Any, list[int]], Awaitable[Result]], service: Any, partitions: list[int]) -> Result:
    """What a call raises at once counts as its answer, too."""
    return await call(service, partitions)


class Spreading:
    """What every forwarded call needs: the partitions by leader, one hop, another attempt."""

    def __init__(self, service: Desk, node: Node, routes: Routes) -> None:
        self._service: Any = service  # the same calls as a RemoteService's
        self._node = node
        self._routes = routes
        self._loop = asyncio.get_running_loop()
        self.node_id = node.node_id
        self.forwarded = 0  # calls that another broker was asked to serve
        self._background: set[asyncio.Task[Any]] = set()

    # ------------------------------------------------------------------ where

    def at(self, node_id: str, timeout_ms: int = DEADLINE_MS) -> Any:
        """The service of a broker, this one or another."""
        if node_id == self._node.node_id:
            return self._service
        timeout_ms = min(timeout_ms, DEADLINE_MS)
        self.forwarded += 1
        return RemoteService(self._node.peers, node_id, self._routes.name_of(node_id), timeout_ms)

    def placed(self, topic: Topic, partitions: Iterable[int], hints: Hints | None = None) -> dict[str, list[int]]:
        """The partitions by the broker to ask; under the empty name those of which no living leader is known."""
        found: dict[str, list[int]] = {}
        for partition in partitions:
            leader = (hints.take(partition) if hints else "") or self._routes.leader_of(topic.set_ids[partition])
            found.setdefault(leader, []).append(partition)
        return found

    async def find_topic(self, name: str) -> Topic:
        """The topic; one that this broker has not heard of may have been made a moment ago, elsewhere."""
        self._service.check_serving()
        if name not in self._node.engine.cluster.topics:
            await self.catch_up()
        found: Topic = self._service.find_topic(name)
        return found

    async def catch_up(self) -> None:
        """Know what the metadata's leader knew when this was called; go on with what is known if it does not answer."""
        self._service.check_serving()
        leader = self._routes.leader_of(METADATA_SET)
        if leader in ("", self._node.node_id):
            return
        try:
            index = await self.at(leader, _CATCH_UP_MS).applied_index()
            if self._node.engine.cluster.applied_index < index:
                await self._node.until(lambda: self._node.engine.cluster.applied_index >= index, _CATCH_UP_MS)
        except (BadGateway, DeadlineExceeded, ServiceUnavailable):
            return

    # ------------------------------------------------------------------ the call itself

    async def spread(
        self,
        name: str,
        partitions: Sequence[int] | None,
        call: Callable[[Any, list[int]], Awaitable[Result]],
    ) -> list[Result]:
        """Call every broker that leads some of these partitions, for those; what each answered."""
        topic = await self.find_topic(name)
        waiting = self._service.check_partitions(topic, partitions)
        backoff, hints = Backoff(self._loop), Hints()
        results: list[Result] = []
        hurried = False  # two brokers that each name the other must not be asked in a circle without a pause
        while waiting:
            places = self.placed(topic, waiting, hints)
            unserved = places.pop("", [])
            error: LannerError | None = self._routes.not_leader(topic, unserved[0]) if unserved else None
            answers = await asyncio.gather(
                *(_made(call, self.at(node_id, backoff.left_ms), mine) for node_id, mine in places.items()),
                return_exceptions=True,
            )
            waiting, at_once = unserved, True
            for mine, answer in zip(places.values(), answers, strict=True):
                if isinstance(answer, UNANSWERED) and not self._service.draining:
                    waiting = waiting + mine
                    at_once = hints.learn(answer, mine) and at_once
                    error = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    results.append(answer)
            hurried = at_once and not unserved and not hurried
            if waiting and error is not None and not hurried:
                await backoff.pause(error)
        return results

    async def spread_over_groups(
        self,
        name: str,
        group: str,
        partitions: Sequence[int] | None,
        call: Callable[[Any, list[int]], Awaitable[Result]],
    ) -> list[Result]:
        """The same for a call about a group, which need not be known to every broker, but to one of them."""

        async def known(service: Any, mine: list[int]) -> Result | None:
            try:
                return await call(service, mine)
            except GroupNotFound:
                return None

        answers = await self.spread(name, partitions, known)
        found = [answer for answer in answers if answer is not None]
        if not found:
            raise GroupNotFound(f"topic {name!r} has no group {group!r}", topic=name, group=group)
        return found

    async def together(self, calls: Iterable[Awaitable[Result]]) -> list[Result]:
        """All at once; the first failure is raised when all have ended."""

        async def attempt(call: Awaitable[Result]) -> tuple[Result, None] | tuple[None, Exception]:
            try:
                return await call, None
            except Exception as error:  # told apart from an error that the call returns as its result
                return None, error

        outcomes = await asyncio.gather(*map(attempt, calls))
        for _, error in outcomes:
            if error is not None:
                raise error
        return [answer for answer, _ in outcomes]  # type: ignore[misc]

    # ------------------------------------------------------------------ what goes on without its caller

    def spawn(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Something that goes on when the caller that asked for it has gone."""
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
