"""Looks at brokers: how urgent is the best that each has for the group? A look (BEST_PRIORITY) leases nothing.

One that does not wait is answered at once. One that waits is answered when there is something: while it is unanswered,
that broker has nothing, and is not asked again. What it says counts for the call that waits then and for no later one,
because by then it may be old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from lanner.calls.urgency import NOTHING, most_of
from lanner.client.session import Outcome, Session
from lanner.errors import LannerError, ServiceUnavailable
from lanner.wire.messages import BestPriority, BestPriorityFound, Command

WATCH_MS: Final = 5_000  # leaders may move meanwhile
PATIENCE_S: Final = 0.5  # with a broker that keeps the others waiting
_ANSWER_MS: Final = 5_000  # how long a broker may take for an answer

Leaders = dict[Session, list[int]]


class Best(NamedTuple):
    """What a broker has: its most urgent lane, and how many messages that may hold."""

    lane: int
    messages: int


class Looks:
    """The looks of one consumer."""

    def __init__(
        self,
        topic: str,
        group: str,
        start: str,
        news: Callable[[], None],
        watch_failed: Callable[[Session, Sequence[int], LannerError], None],
    ) -> None:
        self._topic = topic
        self._group = group
        self.start = start  # where the group begins, should the look make it
        self._news = news  # called when one that waits is answered
        self._watch_failed = watch_failed
        self._loop = asyncio.get_running_loop()
        self._watched: dict[Session, tuple[int, ...]] = {}  # where one waits, and for which partitions
        self._told: dict[Session, tuple[tuple[int, ...], Best]] = {}  # what such a one has just said

    def forget(self) -> None:
        """A new call begins: what was said before may be old."""
        self._told.clear()

    async def best(self, leaders: Leaders) -> tuple[dict[Session, Best], dict[Session, LannerError]]:
        """What each broker has that has something; and why some did not say so."""
        found: dict[Session, Best] = {}
        asked: dict[Session, asyncio.Future[Outcome[BestPriorityFound]]] = {}
        for session, partitions in leaders.items():
            key = tuple(partitions)
            told = self._told.pop(session, None)
            if told is not None and told[0] == key:
                found[session] = told[1]
            elif self._watched.get(session) != key:
                asked[session] = self._loop.create_future()
                self._ask(session, key, 0, partial(_set, asked[session]))
        if asked:
            await asyncio.wait(asked.values(), timeout=PATIENCE_S)
        failed: dict[Session, LannerError] = {}
        for session, future in asked.items():
            outcome = future.result() if future.done() else slow(session)
            if isinstance(outcome, LannerError):
                failed[session] = outcome
            elif outcome.control.priority > NOTHING:
                found[session] = _best(outcome.control)
        return found, failed

    def watch(self, leaders: Leaders) -> None:
        """Let every broker say when it has something."""
        for session, partitions in leaders.items():
            key = tuple(partitions)
            if self._watched.get(session) != key and session.is_up:
                self._watched[session] = key
                self._ask(session, key, WATCH_MS, partial(self._answered, session, key))

    def _ask(
        self,
        session: Session,
        key: tuple[int, ...],
        wait_ms: int,
        answered: Callable[[Outcome[BestPriorityFound]], None],
    ) -> None:
        look = BestPriority(self._group, self._topic, list(key), wait_ms, self.start)
        session.call(Command.BEST_PRIORITY, look, (), answered, wait_ms + _ANSWER_MS)

    def _answered(self, session: Session, key: tuple[int, ...], outcome: Outcome[BestPriorityFound]) -> None:
        if self._watched.get(session) != key:
            return  # its partitions are others by now
        del self._watched[session]
        if isinstance(outcome, LannerError):
            self._watch_failed(session, key, outcome)
        elif outcome.control.priority > NOTHING:
            self._told[session] = key, _best(outcome.control)
        self._news()


def slow(session: Session) -> LannerError:
    return ServiceUnavailable(f"broker {session.node_id} takes long to answer")


def _best(found: BestPriorityFound) -> Best:
    return Best(found.priority, most_of(found.messages))


def _set(future: asyncio.Future[Outcome[BestPriorityFound]], outcome: Outcome[BestPriorityFound]) -> None:
    if not future.done():  # the caller may have been cancelled
        future.set_result(outcome)
