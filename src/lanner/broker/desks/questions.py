"""Questions to partitions, and waiting for their news.

A question goes to a partition that is led here and comes back with the decision behind its answer. When leadership
is lost meanwhile, everybody who waits is woken and told so; a caller that asks again is sent to the right broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from lanner.broker.ports import Kick
from lanner.broker.replicas.engine import Engine
from lanner.broker.replicas.replica import OnAnswer, Replica
from lanner.errors import LannerError
from lanner.net.waiters import Waiters
from lanner.partition import Answer, Request


class Questions:
    """Asks partitions on behalf of callers, and lets callers wait for news."""

    def __init__(self, engine: Engine, kick: Kick) -> None:
        self._engine = engine
        self._kick = kick
        self._loop = asyncio.get_running_loop()
        self._waiters: set[Waiters] = set()
        self._in_groups: dict[str, set[Waiters]] = {}  # those that wait as members

    async def ask(self, replica: Replica, request: Request) -> tuple[Answer, int]:
        """Put a question to a partition; its answer and the index of the decision behind it."""
        answer, index = await self.put(replica, request)
        if isinstance(answer, LannerError):
            raise answer
        return answer, index

    def put(
        self, replica: Replica, request: Request, when_unheard: OnAnswer | None = None
    ) -> asyncio.Future[tuple[Answer, int]]:
        """The same without waiting; the answer may be an error.

        `when_unheard` gets a good answer when the caller has gone while it was decided.
        """
        future: asyncio.Future[tuple[Answer, int]] = self._loop.create_future()

        def answered(answer: Answer, index: int) -> None:
            if not future.done():
                future.set_result((answer, index))
            elif when_unheard is not None and not isinstance(answer, LannerError):
                self._loop.call_soon(when_unheard, answer, index)

        self._engine.ask(replica.set_id, request, answered)
        self._kick()
        return future

    def tell(self, replica: Replica, request: Request) -> None:
        """Ask without caring for the answer."""
        if not replica.closed:
            self._engine.ask(replica.set_id, request, lambda *_: None)
            self._kick()

    async def news(self, replicas: Sequence[Replica], seconds: float, group: str = "") -> None:
        """Sleep until one of these partitions has something new, the time is over, or the broker drains; also until
        the group changes, if one is named: the partitions may be another member's then."""
        waiter = Waiters()
        self._waiters.add(waiter)
        if group:
            self._in_groups.setdefault(group, set()).add(waiter)
        for replica in replicas:
            replica.watchers.add(waiter.wake_all)
        try:
            await waiter.wait(seconds)
        finally:
            self._waiters.discard(waiter)
            for replica in replicas:
                replica.watchers.discard(waiter.wake_all)
            if group:
                self._in_groups[group].discard(waiter)
                if not self._in_groups[group]:
                    del self._in_groups[group]

    def wake_groups(self, names: Iterable[str]) -> None:
        """Let the members of these groups look again: in this broker's copy of the metadata they have changed."""
        for name in names:
            for waiter in self._in_groups.get(name, ()):
                waiter.wake_all()

    def wake_all(self) -> None:
        """Let everybody who waits look again, and find that the broker drains."""
        for waiter in self._waiters:
            waiter.wake_all()
