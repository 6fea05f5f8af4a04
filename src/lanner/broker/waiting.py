"""Waiting for what commits, messages or time may bring about: a condition is looked at whenever something may have
changed, and given up when the broker fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lanner.errors import DeadlineExceeded, LannerError
from lanner.net.waiters import Waiters


class Waiting:
    """The callers on one broker that wait for a condition."""

    def __init__(self, failed: asyncio.Future[LannerError]) -> None:
        self._failed = failed
        self._waiters = Waiters()

    def wake(self) -> None:
        """Have every caller look at its condition again: something may have changed."""
        self._waiters.wake_all()

    async def until(self, condition: Callable[[], bool], timeout_ms: int | None = None) -> None:
        """Return when the condition holds; DeadlineExceeded when it does not in time, and why the broker failed."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1_000):
                while not condition():
                    if self._failed.done():
                        raise self._failed.result()
                    await self._waiters.wait()
        except TimeoutError:
            raise DeadlineExceeded() from None


__all__ = ["Waiting"]
