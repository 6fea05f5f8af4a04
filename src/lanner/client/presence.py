"""Whether the application of a member is here, asking for messages, or away at work, and since when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from lanner.net.waiters import Waiters


class Presence:
    """Whether one application is here; several of its calls may be under way."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inside = 0  # calls that are under way
        self._away_since = self._loop.time()
        self._came_back = Waiters()

    @property
    def away_s(self) -> float:
        return 0.0 if self._inside else self._loop.time() - self._away_since

    @contextmanager
    def visit(self) -> Iterator[None]:
        """The application is here, and waits for messages."""
        self._inside += 1
        self._came_back.wake_all()
        try:
            yield
        finally:
            self._inside -= 1
            self._away_since = self._loop.time()

    def note_progress(self) -> None:
        """The application took a message that was in hand: it is away from now on only."""
        self._away_since = self._loop.time()

    async def come_back(self) -> None:
        """Wait until the application is here."""
        while not self._inside:
            await self._came_back.wait()
