"""A consumer's membership: which partitions it polls, and as whom.

Rules:
- A partition is polled from the moment at which the application was told of it. One that is gone is not polled any
  more; what is leased of it may still be settled.
- In a group that is shared every member polls everything that it wants. Which topics its patterns stand for is
  then looked up here, now and then: no view says so.
- A poll that waits is ended when there is something to attend to; what it still brings is given back.
- A refusal that has to do with membership is no error of the application's poll: the views tell what follows.
- A consumer that was dropped without being closed is not heard any more: nobody can poll what it holds.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from lanner.client.assignments import Granted
from lanner.client.brokers import Brokers
from lanner.client.homes import EARLIEST, BrokerHome
from lanner.client.member_ports import Callbacks, Standing
from lanner.client.membership import Membership
from lanner.client.routing import Routing
from lanner.client.subscriptions import Subscription
from lanner.errors import LannerError
from lanner.model import GroupKind
from lanner.wire.administration import ListTopics
from lanner.wire.members import JoinGroup

_log: Final = logging.getLogger("lanner.client")

_TOPICS_S: Final = 5.0  # so often it is looked which topics the patterns stand for
_REFUSED_S: Final = 0.25  # so long the view that explains a refusal is waited for

Result = TypeVar("Result")


class Share(NamedTuple):
    """What to poll of one topic."""

    partitions: list[int] | None  # None: all of them
    standing: Standing
    start: str
    create: bool  # whether it was named: what only a pattern found, or the group gave, is not made anew


class QueueMember:
    """The worker of its membership."""

    def __init__(
        self,
        brokers: Brokers,
        routing: Routing,
        joining: JoinGroup,
        wanted: Subscription,
        callbacks: Callbacks,
    ) -> None:
        self._brokers = brokers
        self._home = BrokerHome(brokers, routing, joining)
        self._start = joining.start
        self._wanted = wanted
        self._held: dict[Granted, None] = {}
        self._names: list[str] = []
        self._named_at = -_TOPICS_S
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[Any]] = set()
        self.membership = Membership(self._home, self, GroupKind.QUEUE, callbacks=callbacks)

    def live_with(self, consumer: object) -> None:
        """Be heard for as long as there is this consumer."""
        weakref.finalize(consumer, _dropped, self._loop, self.membership).atexit = False

    # ------------------------------------------------------------------ what to poll

    async def shares(self) -> dict[str, Share]:
        """What to poll, by topic."""
        if self.membership.shared:
            standing = self.membership.standing()
            return {
                topic: Share(None, standing, self._start, create=topic in self._wanted.topics)
                for topic in await self._all_topics()
            }
        incarnations: dict[str, int] = {}
        for one in self._held:
            incarnations[one.topic] = max(one.incarnation, incarnations.get(one.topic, 0))
        return {topic: self._share(topic, incarnation) for topic, incarnation in incarnations.items()}

    def _share(self, topic: str, incarnation: int) -> Share:
        partition_ids = [one.partition_id for one in self._held if (one.topic, one.incarnation) == (topic, incarnation)]
        late = any(self._home.is_late(partition_id) for partition_id in partition_ids)
        start = EARLIEST if late else self._start
        partitions = sorted({partition for _, partition in partition_ids})
        return Share(partitions, self.membership.standing(incarnation), start, create=False)

    async def _all_topics(self) -> Sequence[str]:
        if not self._wanted.patterns:
            return self._wanted.topics
        if self._loop.time() - self._named_at > _TOPICS_S:
            found = await self._brokers.ask(ListTopics())
            self._names, self._named_at = self._wanted.matching(found.names), self._loop.time()
        return self._names

    # ------------------------------------------------------------------ waiting

    async def unless_interrupted(
        self, work: Coroutine[Any, Any, Result], unwanted: Callable[[Result], None] = lambda result: None
    ) -> Result | None:
        """Do this, unless there is something to attend to first: then None, at once.

        `unwanted` gets what it brought in the very moment in which its caller was cancelled.
        """
        if self.membership.has_news:
            work.close()
            return None
        task = self._loop.create_task(work)
        self._under_way.add(task)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            if task.done() and not task.cancelled() and task.exception() is None:
                unwanted(task.result())
            raise
        finally:
            self._under_way.discard(task)
            task.cancel()
        return None if task.cancelled() else task.result()

    async def refused(self, shares: Mapping[str, Share], error: LannerError) -> None:
        """Draw the consequences of a poll that was refused, and wait for the view; raises what is another matter."""
        topic, partition = error.details.get("topic"), error.details.get("partition")
        if not isinstance(topic, str) or topic not in shares:
            topic = next(iter(shares)) if len(shares) == 1 else None
        standing = next(iter(shares.values())).standing
        asked = [one for one in self._held if one.grant <= standing.generation]
        refused = next((one for one in asked if (one.topic, one.partition) == (topic, partition)), None)
        if not self.membership.refused(standing, refused, error):
            raise error
        await self.unless_interrupted(asyncio.sleep(_REFUSED_S))

    # ------------------------------------------------------------------ the worker

    def begin(self, one: Granted, offset: int) -> None:
        self._held[one] = None

    def pause(self, one: Granted) -> None:
        self._held.pop(one, None)

    def resume(self, one: Granted) -> None:
        self._held[one] = None

    def drop(self, one: Granted) -> None:
        self._held.pop(one, None)

    async def commit(self, given_up: Sequence[Granted]) -> Mapping[Granted, LannerError]:
        return {}  # what is leased is settled by itself

    def interrupt(self) -> None:
        for task in self._under_way:
            task.cancel()


def _dropped(loop: asyncio.AbstractEventLoop, membership: Membership) -> None:
    """In whichever thread garbage is collected."""
    if membership.member_id and not loop.is_closed():
        _log.warning("a consumer was dropped, and not closed: its partitions go to others when its session ends")
        loop.call_soon_threadsafe(membership.abandon)
