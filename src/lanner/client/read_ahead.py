"""Pages that are read ahead, for a reader: one for each partition while another is worked through.

So the network never waits for the application, nor the other way round, and memory is bounded by that. A page that ends
at the end of the log waits there for more. Each partition is read from its leader, or, where that is wanted, from a
follower as long as that brings the reader on. What fails and may succeed later is asked again, with pauses.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from lanner import limits
from lanner.client.brokers import Brokers
from lanner.client.fetching import FOLLOWER_MS, Turns, check_lanes
from lanner.client.routing import Routing
from lanner.client.session import Outcome, Session
from lanner.client.stream import Page
from lanner.errors import LannerError, NotLeader, StaleIncarnation
from lanner.model import TopicPartition
from lanner.net.backoff import Backoff
from lanner.net.waiters import Waiters
from lanner.wire.messages import Command, Fetch, Fetched

PAGES_AHEAD: Final = 2
_WAIT_MS: Final = 10_000
_PAGE_BYTES_MIN: Final = 64 * limits.KIB

Caller = tuple[str, str, int, int]  # group, member id, number and generation that it has seen
NO_CALLER: Final[Caller] = ("", "", 0, 0)


class Cursor:
    """Where the reader is in one partition, and what it has read ahead."""

    __slots__ = (
        "asked_offset",
        "asking",
        "backoff",
        "began",
        "committed",
        "decoded_to",
        "generation",
        "incarnation",
        "pages",
        "paused",
        "place",
        "position",
        "retry",
        "stop_at",
        "turns",
    )

    def __init__(self, place: TopicPartition, incarnation: int, position: int, stop_at: int | None) -> None:
        self.place = place
        self.incarnation = incarnation
        self.began = time.monotonic()  # there was such a partition then
        self.committed = position  # what lies before it need not be committed any more
        self.position = position  # of the next message to hand out
        self.decoded_to = position  # what lies before it was handed out, or waits in batches to be
        self.asked_offset = position  # of the next page to ask for
        self.asking = False
        self.pages: deque[Page] = deque()
        self.generation = 0  # raised by a seek: pages asked for before it are dropped
        self.backoff = Backoff()
        self.retry: asyncio.TimerHandle | None = None  # while a fetch that failed waits to be asked again
        self.stop_at = stop_at
        self.turns = Turns()
        self.paused = False  # nothing of it is asked for, or handed out

    def move_to(self, offset: int) -> None:
        """Go on from there; what was read ahead, or is under way, is dropped."""
        self.generation += 1
        self.decoded_to = self.asked_offset = offset
        self.asking = False
        self.pages.clear()
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None

    @property
    def partition(self) -> int:
        return self.place.partition

    @property
    def is_finished(self) -> bool:
        return self.stop_at is not None and self.position >= self.stop_at


class ReadAhead:
    """The cursors of one reader, and the fetches that are under way for them."""

    def __init__(
        self,
        brokers: Brokers,
        routing: Routing,
        *,
        lanes: int,
        from_followers: bool,
        page_bytes: int,
        buffer_bytes_max: int,
    ) -> None:
        self.cursors: dict[TopicPartition, Cursor] = {}
        self.ready: deque[Cursor] = deque()  # cursors with a page in hand
        self.error: LannerError | None = None
        self.news = Waiters()  # for something to hand out, or to raise
        self.closed = False
        self.caller: Callable[[], Caller] = lambda: NO_CALLER
        self.refused: Callable[[Cursor, LannerError], bool] = lambda cursor, error: False  # True: it is dealt with
        self._brokers = brokers
        self._routing = routing
        self._lanes = lanes
        self._from_followers = from_followers
        self._page_bytes = page_bytes
        self._buffer_bytes_max = buffer_bytes_max
        self._loop = asyncio.get_running_loop()

    def read(self, place: TopicPartition, incarnation: int, position: int, stop_at: int | None = None) -> Cursor:
        """Read this partition from there on."""
        cursor = self.cursors[place] = Cursor(place, incarnation, position, stop_at)
        return cursor

    def drop(self, place: TopicPartition) -> None:
        """Do not read this partition any more."""
        cursor = self.cursors.pop(place, None)
        if cursor is not None:
            cursor.paused = True
            cursor.move_to(cursor.position)
            self.ready = deque(one for one in self.ready if one is not cursor)

    def share_buffer(self) -> None:
        share = self._buffer_bytes_max // (PAGES_AHEAD * max(1, len(self.cursors)))
        self._page_bytes = min(self._page_bytes, max(_PAGE_BYTES_MIN, share))

    def ask_ahead(self) -> None:
        for cursor in self.cursors.values():
            self.ask(cursor)

    def ask(self, cursor: Cursor) -> None:
        if cursor.asking or cursor.paused or len(cursor.pages) >= PAGES_AHEAD - 1 or self.closed:
            return
        if cursor.stop_at is not None and cursor.asked_offset >= cursor.stop_at:
            return
        cursor.asking = True
        generation = cursor.generation
        self._routing.known(cursor.place.topic)  # has it looked at again now and then
        if self._from_followers and cursor.turns.follower(self._loop.time()):
            follower = self._routing.follower(*cursor.place)
            if follower is not None:
                self._ask_follower(cursor, generation, follower)
                return
        session = self._routing.leader(*cursor.place)
        if session is None:
            self._fetched(cursor, generation, None, self._why_unled(cursor))
            return
        session.call(
            Command.FETCH,
            self._request(cursor),
            (),
            lambda outcome: self._fetched(cursor, generation, session, outcome),
            self._brokers.timeout_ms + _WAIT_MS,
        )

    def _why_unled(self, cursor: Cursor) -> LannerError:
        if self._routing.is_gone(*cursor.place, cursor.began):
            return StaleIncarnation(
                f"topic {cursor.place.topic!r} was deleted and created again, and has no partition {cursor.partition} "
                "now: make a new reader",
                topic=cursor.place.topic,
            )
        return NotLeader(f"nobody leads {cursor.place} at present")

    def _request(self, cursor: Cursor, follower: bool = False) -> Fetch:
        group, member_id, number, generation = self.caller()
        return Fetch(
            *cursor.place,
            cursor.asked_offset,
            self._page_bytes,
            _WAIT_MS,
            cursor.incarnation,
            self._lanes,
            follower,
            group,
            member_id,
            number,
            generation,
        )

    def _ask_follower(self, cursor: Cursor, generation: int, session: Session) -> None:
        """What goes wrong there is no error: the leader is asked."""

        def answered(outcome: Outcome[Fetched]) -> None:
            if isinstance(outcome, LannerError):
                cursor.turns.failed(self._loop.time())
                self.ask_again(cursor, generation)
            else:
                self._fetched(cursor, generation, session, outcome)

        session.call(Command.FETCH, self._request(cursor, follower=True), (), answered, FOLLOWER_MS)

    def _fetched(self, cursor: Cursor, generation: int, session: Session | None, outcome: Outcome[Fetched]) -> None:
        if self.closed or generation != cursor.generation:
            return
        if not isinstance(outcome, LannerError):
            cursor.turns.answered(outcome.control, self._loop.time())
            outcome = check_lanes(self._request(cursor), outcome.control) or outcome
        if isinstance(outcome, LannerError):
            elsewhere = self._routing.failed(*cursor.place, session, outcome)
            if outcome.retryable and not self._brokers.is_closed:
                at_once = elsewhere and cursor.backoff.is_fresh
                pause_s = cursor.backoff.pause_s()
                if at_once:
                    pause_s = 0.0
                cursor.retry = self._loop.call_later(pause_s, self.ask_again, cursor, generation)
                return
            cursor.asking = False
            if self.refused(cursor, outcome):
                return
            self.error = outcome
        else:
            cursor.asking = False
            cursor.backoff.reset()
            page = Page(outcome.control, outcome.bulk)
            moved = page.fetched.next_offset > cursor.asked_offset
            cursor.asked_offset = page.fetched.next_offset
            if page.fetched.batches or moved:
                cursor.pages.append(page)
                self.ready.append(cursor)
            self.ask(cursor)
        if self.ready or self.error:
            self.news.wake_all()

    def hurry(self, topic: str) -> None:
        """Who is to be asked about this topic may be another by now: ask at once what waits to be asked again."""
        for cursor in self.cursors.values():
            if cursor.place.topic == topic and cursor.retry is not None:
                cursor.retry.cancel()
                self.ask_again(cursor, cursor.generation)

    def ask_again(self, cursor: Cursor, generation: int) -> None:
        cursor.retry = None
        if not self.closed and generation == cursor.generation:
            cursor.asking = False
            self.ask(cursor)
