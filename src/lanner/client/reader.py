"""The stream reader: stored batches in offset order, over several partitions at once.

For each partition one page is read ahead while another is worked through, so the network never waits for the
application nor the other way round; memory is bounded by that. A page that ends at the end of the log waits there for
more. Retention may take messages before they are read, and a batch may not decode: the reader goes on behind the hole
and reports it. Each partition is read from its leader; one that is added while the reader is at work is read from
its beginning.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from lanner import limits
from lanner.client.brokers import Brokers
from lanner.client.fetching import FOLLOWER_MS, Priorities, Turns, check_lanes, lane_mask
from lanner.client.intake import moment_ms_from
from lanner.client.leaders import Leaders
from lanner.client.options import Start
from lanner.client.routing import Routing, choose_partition
from lanner.client.session import Outcome, Session
from lanner.client.stream import Hole, Page, ReadBatch, read_page
from lanner.errors import GroupExpired, LannerError, NotLeader, ServiceUnavailable, ValidationError
from lanner.model import BEGIN_AGAIN, Message, check_name
from lanner.net.backoff import Backoff
from lanner.net.waiters import Waiters
from lanner.wire.messages import (
    Command,
    Committed,
    CommittedReply,
    Fetch,
    Offsets,
    OffsetsReply,
    PartitionOffsets,
)

_log: Final = logging.getLogger("lanner.client")

COMMITTED: Final = "committed"  # a start: where the group is; an error where it is nowhere
PAGES_AHEAD: Final = 2
HOLES_KEPT: Final = 1_000
_WAIT_MS: Final = 10_000
_PAGE_BYTES_MIN: Final = 64 * limits.KIB


class _Cursor:
    """Where the reader is in one partition, and what it has read ahead."""

    __slots__ = (
        "asked_offset",
        "asking",
        "backoff",
        "decoded_to",
        "generation",
        "pages",
        "partition",
        "position",
        "retry",
        "stop_at",
        "turns",
    )

    def __init__(self, partition: int, position: int, stop_at: int | None) -> None:
        self.partition = partition
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
    def is_finished(self) -> bool:
        return self.stop_at is not None and self.position >= self.stop_at


class Reader:
    """Use it as `async with queue.reader(...) as reader`, then `async for` or `read_batches()`."""

    def __init__(
        self,
        brokers: Brokers,
        routing: Routing,
        topic: str,
        *,
        partitions: Sequence[int] | int | None = None,
        start: Start = "earliest",
        until_end: bool = False,
        group: str | None = None,
        priorities: Priorities | None = None,
        from_followers: bool = False,
        page_bytes: int = limits.MIB,
        buffer_bytes_max: int = 64 * limits.MIB,
        on_hole: Callable[[Hole], None] | None = None,
    ) -> None:
        self.topic = check_name(topic, "topic")
        self.group = None if group is None else check_name(group, "group")
        self.holes: deque[Hole] = deque(maxlen=HOLES_KEPT)
        self.missing = 0  # messages that lie in holes
        self._brokers = brokers
        self._routing = routing
        self._chosen = [partitions] if isinstance(partitions, int) else partitions
        self._start = start
        self._until_end = until_end
        self._lanes = lane_mask(priorities)
        self._from_followers = from_followers
        self._page_bytes = page_bytes
        self._buffer_bytes_max = buffer_bytes_max
        self._on_hole = on_hole
        self._identity = secrets.token_hex(8)  # under which its commits are numbered
        self._commits = itertools.count()
        self._committed_in: set[int] = set()  # partitions
        self._cursors: dict[int, _Cursor] = {}
        self._ready: deque[_Cursor] = deque()  # cursors with a page in hand
        self._batches: deque[ReadBatch] = deque()
        self._in_hand: tuple[ReadBatch, Iterator[Message]] | None = None  # with what is left of its messages
        self._error: LannerError | None = None
        self._news = Waiters()  # for something to hand out, or to raise
        self._growing: asyncio.Task[None] | None = None
        self._incarnation = 0
        self._opened = False
        self._closed = False
        self._loop = asyncio.get_running_loop()

    # ------------------------------------------------------------------ opening

    async def open(self) -> None:
        """Find out where to begin. Done by `async with`, or by the first read."""
        route = await self._routing.route(self.topic)
        self._incarnation = route.incarnation
        chosen = range(route.partitions) if self._chosen is None else self._chosen
        for partition in chosen:
            choose_partition(route, partition, None, b"")
        bounds = await self._bounds(-1)
        committed = await self._committed()
        self._committed_in.update(committed)
        starts = await self._starts(self._start, list(chosen), bounds)
        for partition in chosen:
            position = committed.get(partition, starts[partition])
            stop_at = bounds[partition].end_offset if self._until_end else None
            self._cursors[partition] = _Cursor(partition, position, stop_at)
        self._share_buffer()
        self._opened = True
        self._routing.on_change.append(self._changed)

    def _check_committed(self, partitions: Sequence[int], committed: Mapping[int, int]) -> dict[int, int]:
        if self.group is None:
            raise ValidationError("start is committed, and there is no group that could have", field="start")
        missing = [partition for partition in partitions if partition not in committed]
        if missing:
            raise GroupExpired(
                f"the group {self.group!r} has not committed on {self.topic}/{missing[0]}, or has expired there. "
                f"{BEGIN_AGAIN}",
                group=self.group,
            )
        return {partition: committed[partition] for partition in partitions}

    def _share_buffer(self) -> None:
        share = self._buffer_bytes_max // (PAGES_AHEAD * max(1, len(self._cursors)))
        self._page_bytes = min(self._page_bytes, max(_PAGE_BYTES_MIN, share))

    async def _committed(self) -> dict[int, int]:
        if self.group is None:
            return {}
        request = Committed(self.group, self.topic)
        reply, _ = await self._brokers.request(Command.COMMITTED, request, CommittedReply)
        return reply.offsets

    def _changed(self, topic: str) -> None:
        """Leaders or partitions are others now."""
        if topic != self.topic:
            return
        for cursor in self._cursors.values():
            if cursor.retry is not None:  # who is to be asked may be another by now
                cursor.retry.cancel()
                self._ask_again(cursor, cursor.generation)
        route = self._routing.known(topic)
        if route is None or route.incarnation != self._incarnation or self._chosen is not None or self._until_end:
            return
        if route.partitions > len(self._cursors) and self._growing is None:
            self._growing = self._loop.create_task(self._grow(route.partitions))

    async def _grow(self, partitions: int) -> None:
        """Everything in a partition that was added is new here, unless the group has read in it already."""
        try:
            committed = await self._committed()
            for partition in range(len(self._cursors), partitions):
                self._cursors[partition] = _Cursor(partition, committed.get(partition, 0), None)
            self._share_buffer()
            self._ask_ahead()
        except LannerError as error:
            _log.warning("the new partitions of %s are not read yet: %s", self.topic, error.message)
        finally:
            self._growing = None

    async def _bounds(self, time_ms: int) -> dict[int, PartitionOffsets]:
        reply, _ = await self._brokers.request(Command.OFFSETS, Offsets(self.topic, time_ms), OffsetsReply)
        return {found.partition: found for found in reply.partitions}

    async def _starts(
        self, start: Start, partitions: Sequence[int], bounds: Mapping[int, PartitionOffsets]
    ) -> dict[int, int]:
        """The first offset to read in each partition."""
        if isinstance(start, datetime):
            found = await self._bounds(moment_ms_from(start, "start"))
            return {one: found[one].at_time if found[one].at_time >= 0 else found[one].end_offset for one in partitions}
        if isinstance(start, Mapping):
            return {one: _check_offset(start.get(one, bounds[one].first_offset)) for one in partitions}
        if start == COMMITTED:
            return self._check_committed(partitions, await self._committed())
        if start == "earliest":
            return {one: bounds[one].first_offset for one in partitions}
        if start == "latest":
            return {one: bounds[one].end_offset for one in partitions}
        if isinstance(start, int):
            return dict.fromkeys(partitions, _check_offset(start))
        raise ValidationError(
            f"start is {start!r}: give earliest, latest, committed, an offset, a datetime, or offsets by partition",
            field="start",
        )

    # ------------------------------------------------------------------ reading

    async def read_batch(self, wait_ms: float | None = None) -> ReadBatch | None:
        """The next batch. None: the wait is over, or (`until_end`) everything is read."""
        if not self._opened:
            await self.open()
        deadline = None if wait_ms is None else self._loop.time() + wait_ms / 1000
        while True:
            if self._batches:
                batch = self._batches.popleft()
                self._cursors[batch.partition].position = batch.next_offset
                return batch
            self._check_open()
            if self._ready:
                self._unpack(self._ready.popleft())
                continue
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._until_end and all(cursor.is_finished for cursor in self._cursors.values()):
                return None
            self._ask_ahead()
            if self._ready or self._error is not None:
                continue
            if deadline is not None and self._loop.time() >= deadline:
                return None
            if not await self._news.wait(None if deadline is None else deadline - self._loop.time()):
                return None

    async def read_batches(self) -> AsyncIterator[ReadBatch]:
        """Batch after batch, as columns: the fast way to read."""
        while (batch := await self.read_batch()) is not None:
            yield batch

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Message:
        while (message := self.message_in_hand()) is None:
            batch = await self.read_batch()
            if batch is None:
                raise StopAsyncIteration
            self.take_in_hand(batch)
        return message

    def take_in_hand(self, batch: ReadBatch) -> None:
        """Go through the batch message by message; nothing of it counts as handed out yet."""
        self._cursors[batch.partition].position = batch.first_offset
        self._in_hand = batch, batch.messages()

    def message_in_hand(self) -> Message | None:
        """The next message of the batch in hand, so that a commit is exact; None: that batch is used up."""
        if self._in_hand is None:
            return None
        batch, messages = self._in_hand
        cursor = self._cursors[batch.partition]
        message = next(messages, None)
        if message is None:
            cursor.position = batch.next_offset
            self._in_hand = None
        else:
            cursor.position = message.offset + 1
        return message

    def _unpack(self, cursor: _Cursor) -> None:
        """Decode one page. What is beyond the end asked for is left out."""
        page = cursor.pages.popleft()
        try:
            batches, holes, following = read_page(self.topic, cursor.partition, page, cursor.decoded_to)
        except LannerError:
            cursor.move_to(cursor.decoded_to)  # the next read fetches the page anew
            raise
        cursor.decoded_to = following
        if cursor.stop_at is not None:
            batches = [batch for batch in batches if batch.first_offset < cursor.stop_at]
            holes = [hole for hole in holes if hole.first_offset < cursor.stop_at]
        if batches:
            batches[-1].next_offset = following  # a reader that has it has also passed the hole behind it
            self._batches.extend(batches)
        else:
            cursor.position = following
        for hole in holes:
            self.holes.append(hole)
            self.missing += hole.size
            if self._on_hole is not None:
                self._on_hole(hole)
        self._ask(cursor)

    def _ask_ahead(self) -> None:
        for cursor in self._cursors.values():
            self._ask(cursor)

    def _ask(self, cursor: _Cursor) -> None:
        if cursor.asking or len(cursor.pages) >= PAGES_AHEAD - 1 or self._closed:
            return
        if cursor.stop_at is not None and cursor.asked_offset >= cursor.stop_at:
            return
        cursor.asking = True
        generation = cursor.generation
        self._routing.known(self.topic)  # has it looked at again now and then
        if self._from_followers and cursor.turns.follower(self._loop.time()):
            follower = self._routing.follower(self.topic, cursor.partition)
            if follower is not None:
                self._ask_follower(cursor, generation, follower)
                return
        session = self._routing.leader(self.topic, cursor.partition)
        if session is None:
            self._fetched(cursor, generation, None, NotLeader("nobody leads the partition at present"))
            return
        session.call(
            Command.FETCH,
            self._request(cursor),
            (),
            lambda outcome: self._fetched(cursor, generation, session, outcome),
            self._brokers.timeout_ms + _WAIT_MS,
        )

    def _request(self, cursor: _Cursor, follower: bool = False) -> Fetch:
        return Fetch(
            self.topic,
            cursor.partition,
            cursor.asked_offset,
            self._page_bytes,
            _WAIT_MS,
            self._incarnation,
            self._lanes,
            follower,
        )

    def _ask_follower(self, cursor: _Cursor, generation: int, session: Session) -> None:
        """What goes wrong there is no error: the leader is asked."""

        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, LannerError):
                cursor.turns.failed(self._loop.time())
                self._ask_again(cursor, generation)
            else:
                self._fetched(cursor, generation, session, outcome)

        session.call(Command.FETCH, self._request(cursor, follower=True), (), answered, FOLLOWER_MS)

    def _fetched(self, cursor: _Cursor, generation: int, session: Session | None, outcome: Outcome) -> None:
        if self._closed or generation != cursor.generation:
            return
        if not isinstance(outcome, LannerError):
            cursor.turns.answered(outcome.control, self._loop.time())
            outcome = check_lanes(self._request(cursor), outcome.control) or outcome
        if isinstance(outcome, LannerError):
            elsewhere = self._routing.failed(self.topic, cursor.partition, session, outcome)
            if outcome.retryable and not self._brokers.is_closed:
                at_once = elsewhere and cursor.backoff.is_fresh
                pause_s = cursor.backoff.pause_s()
                if at_once:
                    pause_s = 0.0
                cursor.retry = self._loop.call_later(pause_s, self._ask_again, cursor, generation)
                return
            cursor.asking = False
            self._error = outcome
        else:
            cursor.asking = False
            cursor.backoff.reset()
            page = Page(outcome.control, outcome.bulk)
            moved = page.fetched.next_offset > cursor.asked_offset
            cursor.asked_offset = page.fetched.next_offset
            if page.fetched.batches or moved:
                cursor.pages.append(page)
                self._ready.append(cursor)
            self._ask(cursor)
        if self._ready or self._error:
            self._news.wake_all()

    def _ask_again(self, cursor: _Cursor, generation: int) -> None:
        cursor.retry = None
        if not self._closed and generation == cursor.generation:
            cursor.asking = False
            self._ask(cursor)

    # ------------------------------------------------------------------ moving and committing

    def positions(self) -> dict[int, int]:
        """The next offset of each partition: everything before it was handed out."""
        return {cursor.partition: cursor.position for cursor in self._cursors.values()}

    async def seek(self, start: Start) -> None:
        """Go on from somewhere else; offsets by partition move only those partitions."""
        if not self._opened:
            await self.open()
        moved = list(start) if isinstance(start, Mapping) else list(self._cursors)
        unknown = [partition for partition in moved if partition not in self._cursors]
        if unknown:
            raise ValidationError(f"partition {unknown[0]} is not read here", field="start")
        starts = await self._starts(start, moved, await self._bounds(-1))
        for partition, position in starts.items():
            cursor = self._cursors[partition]
            cursor.position = position
            cursor.move_to(position)
        self._ready = deque(cursor for cursor in self._ready if cursor.partition not in starts)
        self._batches = deque(batch for batch in self._batches if batch.partition not in starts)
        self._in_hand = None

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Remember, under the group's name, how far the application came (by default: all it was handed)."""
        if self.group is None:
            raise ValidationError("this reader has no group: give queue.reader(..., group=...)", field="group")
        chosen = dict(offsets) if offsets is not None else self.positions()
        if chosen:
            leaders = Leaders(self._brokers, self._routing)
            number = next(self._commits)
            await leaders.commit(self.topic, self.group, chosen, self._identity, number, self._committed_in)
            self._committed_in.update(chosen)

    async def lag(self) -> dict[int, int]:
        """How many offsets lie between what was handed out and the end, by partition."""
        bounds = await self._bounds(-1)
        return {one: max(0, bounds[one].end_offset - position) for one, position in self.positions().items()}

    # ------------------------------------------------------------------ leaving

    async def close(self) -> None:
        self._closed = True
        if self._changed in self._routing.on_change:
            self._routing.on_change.remove(self._changed)
        if self._growing is not None:
            self._growing.cancel()
        self._news.wake_all()

    async def __aenter__(self) -> Reader:
        if not self._opened:
            await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ServiceUnavailable("the reader is closed")


def _check_offset(offset: object) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= limits.OFFSET_MAX:
        raise ValidationError(f"offset {offset!r} is not valid: give a whole number from 0", field="offset")
    return offset
