"""Looks at brokers: how urgent is the best that each has for the group? A look (GLANCE) leases nothing.

A look that does not wait is answered at once; one that waits is answered when there is something, so while it is
unanswered that broker has nothing and is not asked again. One look a broker is under way at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from lanner.calls.urgency import NOTHING
from lanner.client.session import Outcome, Session
from lanner.errors import LannerError, ServiceUnavailable
from lanner.net.waiters import Waiters
from lanner.wire.messages import Command, Glance

Leaders = dict[Session, list[int]]

WATCH_MS: Final = 5_000  # leaders may move meanwhile
PATIENCE_S: Final = 0.5  # with a broker that keeps the others waiting
_LOOK_MS: Final = 5_000  # how long a broker may take for an answer


class _Look(NamedTuple):
    """A look that is not answered yet."""

    partitions: tuple[int, ...]
    waits: bool


class Looks:
    """The looks of one consumer."""

    def __init__(
        self,
        topic: str,
        group: str,
        start: str,
        news: Waiters,
        failed: Callable[[Session, Sequence[int], LannerError], object],
    ) -> None:
        self._topic = topic
        self._group = group
        self._start = start
        self._news = news  # woken by every answer
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._asked: dict[Session, _Look] = {}
        self._told: dict[Session, tuple[tuple[int, ...], int]] = {}

    def forget(self) -> None:
        """What was told while nobody listened may be old."""
        self._told.clear()

    def watch(self, leaders: Leaders) -> None:
        """Let every broker say when it has something."""
        for session, partitions in leaders.items():
            if session.is_up and not self._is_asked(session, partitions):
                self._ask(session, partitions, WATCH_MS)

    async def lanes(self, leaders: Leaders, patience_s: float = PATIENCE_S) -> dict[Session, int]:
        """The most urgent lane of each broker that has something. A broker that is silent is waited for once."""
        ends = self._loop.time() + patience_s
        asked = []
        for session, partitions in leaders.items():
            if session not in self._told and not self._is_asked(session, partitions):
                self._ask(session, partitions, 0)
                asked.append(session)
        while any(session in self._asked for session in asked) and self._loop.time() < ends:
            await self._news.wait(ends - self._loop.time())
        for session in leaders:
            if session in self._asked and not self._asked[session].waits:
                error = ServiceUnavailable(f"broker {session.node_id} takes long to answer")
                self._failed(session, leaders[session], error)
        told = {session: self._told.pop(session, ((), NOTHING)) for session in leaders}
        return {session: lane for session, (key, lane) in told.items() if key == tuple(leaders[session])}

    def _is_asked(self, session: Session, partitions: Sequence[int]) -> bool:
        look = self._asked.get(session)
        return look is not None and look.partitions == tuple(partitions)

    def _ask(self, session: Session, partitions: Sequence[int], wait_ms: int) -> None:
        look = self._asked[session] = _Look(tuple(partitions), wait_ms > 0)
        control = Glance(self._group, self._topic, list(partitions), wait_ms, self._start)
        session.call(Command.GLANCE, control, (), partial(self._answered, session, look), wait_ms + _LOOK_MS)

    def _answered(self, session: Session, look: _Look, outcome: Outcome) -> None:
        if self._asked.get(session) is not look:
            return  # its partitions are others by now
        del self._asked[session]
        if isinstance(outcome, LannerError):
            self._failed(session, look.partitions, outcome)
        elif outcome.control.priority > NOTHING or not look.waits:
            self._told[session] = look.partitions, outcome.control.priority
        self._news.wake_all()
