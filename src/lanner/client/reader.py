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
from lanner.client.arguments import check_bound, check_wait_ms, moment_ms_from, offset_map, partition_list
from lanner.client.brokers import Brokers
from lanner.client.fetching import Priorities, lane_mask
from lanner.client.leaders import Leaders
from lanner.client.member_settings import NO_MEMBERSHIP, MemberSettings
from lanner.client.options import Start
from lanner.client.read_ahead import Cursor, ReadAhead
from lanner.client.routing import Routing, choose_partition
from lanner.client.stream import Hole, ReadBatch, read_page
from lanner.errors import GroupExpired, LannerError, PartitionNotFound, ServiceUnavailable, ValidationError
from lanner.model import BEGIN_AGAIN, Message, TopicPartition, check_name
from lanner.wire.messages import (
    Committed,
    Offsets,
    PartitionOffsets,
)

_log: Final = logging.getLogger("lanner.client")

COMMITTED: Final = "committed"  # a start: where the group is; an error where it is nowhere
HOLES_KEPT: Final = 1_000


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
        check_bound("page_bytes", page_bytes, 1, limits.FETCH_BYTES_MAX)
        check_bound("buffer_bytes_max", buffer_bytes_max, 1, limits.OFFSET_MAX)
        self.topic = topic
        self.group = None if group is None else check_name(group, "group")
        self.holes: deque[Hole] = deque(maxlen=HOLES_KEPT)
        self.missing = 0  # messages that lie in holes
        self._brokers = brokers
        self._routing = routing
        self._chosen = partition_list(partitions)
        self._start = start
        self._until_end = until_end
        self._ahead = ReadAhead(
            brokers,
            routing,
            lanes=lane_mask(priorities),
            from_followers=from_followers,
            page_bytes=page_bytes,
            buffer_bytes_max=buffer_bytes_max,
        )
        self._on_hole = on_hole
        self._identity = secrets.token_hex(8)  # under which its commits are numbered
        self._commits = itertools.count()
        self._committed_in: set[int] = set()  # partitions
        self._batches: deque[ReadBatch] = deque()
        self._in_hand: tuple[Cursor, ReadBatch, Iterator[Message]] | None = None  # with what is left of its messages
        self._taking = asyncio.Lock()
        self._incarnation = 0
        self._growing: asyncio.Task[None] | None = None
        self._opened = False
        self._closed = False
        self._loop = asyncio.get_running_loop()

    # ------------------------------------------------------------------ opening

    async def open(self) -> None:
        """Find out where to begin. Done by `async with`, or by the first read."""
        self._check_open()
        route = await self._routing.route(self.topic)
        self._incarnation = route.incarnation
        chosen = range(route.partitions) if self._chosen is None else self._chosen
        for partition in chosen:
            choose_partition(route, partition, None, b"")
        bounds = await self._bounds(-1)
        committed = await self._committed()
        self._committed_in.update(committed)
        starts = await self._starts(self._start, list(chosen), bounds)
        self._check_open()  # it may have been closed meanwhile
        for partition in chosen:
            position = committed.get(partition, starts[partition])
            stop_at = bounds[partition].end_offset if self._until_end else None
            self._ahead.read(self._place(partition), self._incarnation, position, stop_at)
        self._ahead.share_buffer()
        self._opened = True
        self._routing.on_change.append(self._changed)

    def _place(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

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

    async def _committed(self) -> dict[int, int]:
        if self.group is None:
            return {}
        request = Committed(self.group, self.topic)
        return (await self._brokers.ask(request)).offsets

    def _changed(self, topic: str) -> None:
        """Leaders or partitions are others now."""
        self._ahead.hurry(topic)
        if topic != self.topic:
            return
        route = self._routing.known(topic)
        if route is None or route.incarnation != self._incarnation or self._chosen is not None or self._until_end:
            return
        if route.partitions > len(self._ahead.cursors) and self._growing is None:
            self._growing = self._loop.create_task(self._grow(route.partitions))

    async def _grow(self, partitions: int) -> None:
        """Everything in a partition that was added is new here, unless the group has read in it already."""
        try:
            committed = await self._committed()
            for partition in range(len(self._ahead.cursors), partitions):
                self._ahead.read(self._place(partition), self._incarnation, committed.get(partition, 0))
            self._ahead.share_buffer()
            self._ahead.ask_ahead()
        except LannerError as error:
            _log.warning("the new partitions of %s are not read yet: %s", self.topic, error.message)
        finally:
            self._growing = None

    async def _bounds(self, time_ms: int) -> dict[int, PartitionOffsets]:
        reply = await self._brokers.ask(Offsets(self.topic, time_ms))
        return {found.partition: found for found in reply.partitions}

    async def _starts(
        self, start: Start, partitions: Sequence[int], bounds: Mapping[int, PartitionOffsets]
    ) -> dict[int, int]:
        """The first offset to read in each partition."""
        if isinstance(start, datetime):
            found = await self._bounds(moment_ms_from(start, "start"))
            return {one: found[one].at_time if found[one].at_time >= 0 else found[one].end_offset for one in partitions}
        if isinstance(start, Mapping):
            given = offset_map(start, "start")
            for one in given:
                if one not in bounds:
                    raise PartitionNotFound(
                        f"{self.topic} has no partition {one}: there are {len(bounds)}, counted from 0",
                        topic=self.topic,
                        partition=one,
                    )
            return {one: given.get(one, bounds[one].first_offset) for one in partitions}
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
        if wait_ms is not None:
            check_wait_ms(wait_ms)
        if not self._opened:
            await self.open()
        deadline = None if wait_ms is None else self._loop.time() + wait_ms / 1000
        while True:
            if self.needs_attention:
                return None
            if self._batches:
                batch = self._batches.popleft()
                self._cursor_of(batch).position = batch.next_offset
                return batch
            self._check_open()
            if self._ahead.ready:
                self._unpack(self._ahead.ready.popleft())
                continue
            if self._ahead.error is not None:
                error, self._ahead.error = self._ahead.error, None
                raise error
            if self._until_end and all(cursor.is_finished for cursor in self._ahead.cursors.values()):
                return None
            self._ahead.ask_ahead()
            if self._ahead.ready or self._ahead.error is not None:
                continue
            if deadline is not None and self._loop.time() >= deadline:
                return None
            if not await self._ahead.news.wait(None if deadline is None else deadline - self._loop.time()):
                return None

    @property
    def needs_attention(self) -> bool:
        """Whether something is to be done before anything more is handed out: see `attend`."""
        return False

    async def attend(self) -> None:
        """Do what must be done first; only members of a group have something to do."""

    def _cursor_of(self, batch: ReadBatch) -> Cursor:
        return self._ahead.cursors[TopicPartition(batch.topic, batch.partition)]

    async def read_batches(self) -> AsyncIterator[ReadBatch]:
        """Batch after batch, as columns: the fast way to read."""
        while (batch := await self.read_batch()) is not None:
            yield batch

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Message:
        while True:
            if self.needs_attention:
                await self.attend()
            message = self.message_in_hand()
            if message is not None:
                return message
            if not await self.take_next_in_hand():
                raise StopAsyncIteration

    def take_in_hand(self, batch: ReadBatch) -> None:
        """Go through the batch message by message; nothing of it counts as handed out yet."""
        cursor = self._cursor_of(batch)
        cursor.position = batch.first_offset
        self._in_hand = cursor, batch, batch.messages()

    async def take_next_in_hand(self) -> bool:
        """Take the next batch in hand, unless one is; False: everything is read."""
        async with self._taking:  # of several tasks that wait, the others find what the first one took
            if self._in_hand is None:
                batch = await self.read_batch()
                if batch is None:
                    return False
                self.take_in_hand(batch)
            return True

    def message_in_hand(self) -> Message | None:
        """The next message of the batch in hand, so that a commit is exact; None: that batch is used up, or waits."""
        if self._in_hand is None:
            return None
        cursor, batch, messages = self._in_hand
        if cursor.paused:  # it may not be for this reader any more
            return None
        message = next(messages, None)
        if message is None:
            cursor.position = batch.next_offset
            self._in_hand = None
        else:
            cursor.position = message.offset + 1
        return message

    def _unpack(self, cursor: Cursor) -> None:
        """Decode one page. What is beyond the end asked for is left out."""
        page = cursor.pages.popleft()
        try:
            batches, holes, following = read_page(*cursor.place, page, cursor.decoded_to)
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
        self._ahead.ask(cursor)

    # ------------------------------------------------------------------ moving and committing

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read here."""
        return sorted(self._ahead.cursors)

    @property
    def generation(self) -> int:
        """Of the group, as its member last saw it; 0: it is no member."""
        return 0

    def positions(self) -> dict[int, int]:
        """The next offset of each partition: everything before it was handed out."""
        return {cursor.partition: cursor.position for cursor in self._ahead.cursors.values()}

    async def seek(self, start: Start) -> None:
        """Go on from somewhere else; offsets by partition move only those partitions."""
        if not self._opened:
            await self.open()
        read = self.positions()
        moved = list(offset_map(start, "start")) if isinstance(start, Mapping) else list(read)
        unknown = [partition for partition in moved if partition not in read]
        if unknown:
            raise ValidationError(f"partition {unknown[0]} is not read here", field="start")
        starts = await self._starts(start, moved, await self._bounds(-1))
        for partition, position in starts.items():
            cursor = self._ahead.cursors[self._place(partition)]
            cursor.position = position
            cursor.move_to(position)
        self._ahead.ready = deque(cursor for cursor in self._ahead.ready if cursor.partition not in starts)
        self._batches = deque(batch for batch in self._batches if batch.partition not in starts)
        self._in_hand = None

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Remember, under the group's name, how far the application came (by default: all it was handed)."""
        if self.group is None:
            raise ValidationError("this reader has no group: give queue.reader(..., group=...)", field="group")
        chosen = self.positions() if offsets is None else offset_map(offsets, "offsets")
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

    async def close(self, *, keep: bool = False) -> None:
        """Read no more. `keep` means something to members of a group only."""
        self._closed = self._ahead.closed = True
        if self._changed in self._routing.on_change:
            self._routing.on_change.remove(self._changed)
        if self._growing is not None:
            self._growing.cancel()
        self._ahead.news.wake_all()

    async def __aenter__(self) -> Reader:
        self._check_open()
        if not self._opened:
            await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ServiceUnavailable("the reader is closed, and cannot be opened again: make a new one")


def check_one_topic(topic: object, settings: MemberSettings) -> str:
    """What a reader reads that is no member of a group."""
    if isinstance(topic, str) and not set(topic) & {"*", "?"}:
        if settings != NO_MEMBERSHIP:
            given = [name for name, value in settings._asdict().items() if value != getattr(NO_MEMBERSHIP, name)]
            raise ValidationError(
                f'{given[0]} is for readers that are members of a group: give assignor="sticky" too, and a group',
                field=given[0],
            )
        return check_name(topic, "topic")
    raise ValidationError(
        f"topic is {topic!r}: a reader takes one topic, or, as a member of a group, several and patterns: "
        'give assignor="sticky" and a group',
        field="topic",
    )


def _check_offset(offset: object) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= limits.OFFSET_MAX:
        raise ValidationError(f"offset {offset!r} is not valid: give a whole number from 0", field="offset")
    return offset
