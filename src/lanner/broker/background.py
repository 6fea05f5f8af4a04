"""The tasks that run beside everything else while a broker runs. An error in one is logged; some are vital."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from lanner.broker.ports import Fail

log = logging.getLogger("lanner.broker")


class Background:
    """One broker's tasks."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work as a task; log what it raises."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def spawn_vital(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work without which the broker would only seem to be alive: what it raises ends the broker."""
        self.spawn(self._guard(work))

    async def _guard(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except Exception as problem:
            self._fail(problem)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())

    async def cancel(self) -> None:
        """Cancel every task, and wait until it has ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


__all__ = ["Background"]
