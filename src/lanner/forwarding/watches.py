"""Questions for the best priority that wait at other brokers, shared by everybody here who waits for the same.

A hundred callers that wait for news of one group cost one request at each broker, not a hundred. A request is never
taken back, because the other broker would go on serving it: it runs to its end, which is never far, and serves those
who have joined meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from lanner.calls import Answer
from lanner.errors import LannerError
from lanner.wire.messages import BestPriority, BestPriorityFound

WATCH_MS: Final = 5_000

_Key = tuple[str, str, str, tuple[int, ...]]


class Watches:
    """What is being waited for at which broker."""

    def __init__(self, serve_at: Callable[[str, BestPriority], Awaitable[Answer[BestPriorityFound]]]) -> None:
        self._serve_at = serve_at
        self._waiters: dict[_Key, set[asyncio.Future[int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, node_id: str, topic: str, group: str, partitions: Sequence[int]) -> asyncio.Future[int]:
        """Done when that broker has something for the group, or cannot say; cancel it when nobody waits any more."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[int] = loop.create_future()
        key = (node_id, topic, group, tuple(partitions))
        waiters = self._waiters.get(key)
        if waiters is None:
            waiters = self._waiters[key] = set()
            task = loop.create_task(self._watch(key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiters.add(waiter)
        waiter.add_done_callback(waiters.discard)
        return waiter

    async def _watch(self, key: _Key) -> None:
        node_id, topic, group, partitions = key
        waiters = self._waiters[key]
        problem: LannerError | None = None
        lane = -1
        try:
            while waiters and lane < 0:
                call = BestPriority(group, topic, list(partitions), WATCH_MS)
                lane = (await self._serve_at(node_id, call)).control.priority
        except LannerError as error:
            problem = error
        finally:
            del self._waiters[key]
        for waiter in list(waiters):
            if waiter.done():
                continue
            if problem is None:
                waiter.set_result(lane)
            else:
                waiter.set_exception(problem)
