"""Tasks that wait for something that other code brings about, woken one by one or all at once.

Rules. A task that is cancelled or runs out of time leaves no trace. One that was woken alone and is cancelled before it
runs passes its turn on, so that no turn is lost. To be woken is only a hint to look again: what a task waits for may be
gone when it runs, so it waits in a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

Result = TypeVar("Result")


class _End(Enum):
    """How a wait ends."""

    ALONE = "woken alone"
    WITH_ALL = "woken with all others"
    TIME_OUT = "the time ran out"


class Waiters:
    """The tasks that wait for one thing, in the order in which they came."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[_End]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait to be woken; False when the time ran out first."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[_End] = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(max(0.0, timeout_s), answer_to(waiter), _End.TIME_OUT)
        self._waiting.append(waiter)
        try:
            return await waiter is not _End.TIME_OUT
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result() is _End.ALONE:
                self.wake_one()  # it was this one's turn
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def wake_one(self) -> None:
        """Wake the task that has waited longest."""
        while self._waiting:
            waiter = self._waiting.pop(0)
            if not waiter.done():
                waiter.set_result(_End.ALONE)
                return

    def wake_all(self) -> None:
        """Wake every task that waits now."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(_End.WITH_ALL)


def answer_to(future: asyncio.Future[Result]) -> Callable[[Result], None]:
    """Return a callback that answers a future, unless its caller has given up by then."""

    def answer(result: Result) -> None:
        if not future.done():
            future.set_result(result)

    return answer
