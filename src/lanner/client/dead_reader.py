"""The dead letters of a group as a stream, in the order in which they died on each partition.

Each death has a number, per partition. A reader hands out letter after letter and knows the number to go on at
(`positions`): given back as `start` it goes on there, whatever broker leads by then. A message that was redriven and
died again comes again. One that was redriven or discarded before it was read is a hole, and reported.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lanner import limits
from lanner.batch import Batch, decode
from lanner.client.arguments import check_wait_ms, partition_list
from lanner.client.brokers import Brokers
from lanner.client.leaders import Leaders
from lanner.client.routing import Routing, choose_partition
from lanner.errors import GroupNotFound, ServiceUnavailable, ValidationError
from lanner.model import Message, check_name
from lanner.wire.dead import DeadBatch, FetchDead, FetchedDead

HOLES_KEPT: Final = 1_000
_WAIT_MS: Final = 10_000

DeadStart = str | Mapping[int, int]


class DeadHole(NamedTuple):
    """Deaths first_number .. next_number - 1 were redriven or discarded before they were read."""

    partition: int
    first_number: int
    next_number: int

    @property
    def size(self) -> int:
        return self.next_number - self.first_number


class DeadLetter(NamedTuple):
    """A message that died, and how. Its number is its place in the order of deaths on its partition."""

    message: Message | None  # None: its bytes cannot be read any more
    partition: int
    number: int
    offset: int
    priority: int
    attempts: int
    reason: str
    died_ms: int


class DeadLetters:
    """Dead letters that were published in one batch, as columns, in the order in which they died."""

    def __init__(self, topic: str, partition: int, stored: DeadBatch, data: memoryview) -> None:
        self.topic = topic
        self.partition = partition
        self.priority = stored.priority
        self.timestamp_ms = stored.append_ms
        self.runs = stored.runs
        self.count = sum(run.count for run in stored.runs)
        self.next_number = stored.runs[-1].number + stored.runs[-1].count
        self.batch: Batch | None = None  # with as many rows as there are letters; None: it cannot be read any more
        if stored.size:
            self.batch = decode(data)
            self.batch.verify_messages()

    def __len__(self) -> int:
        return self.count

    def offsets(self) -> list[int]:
        return [run.first_offset + at for run in self.runs for at in range(run.count)]

    def numbers(self) -> list[int]:
        return [run.number + at for run in self.runs for at in range(run.count)]

    def letters(self) -> Iterator[DeadLetter]:
        messages = self._messages()
        for run in self.runs:
            for at in range(run.count):
                yield DeadLetter(
                    next(messages, None),
                    self.partition,
                    run.number + at,
                    run.first_offset + at,
                    self.priority,
                    run.attempts,
                    run.reason,
                    run.died_ms,
                )

    def _messages(self) -> Iterator[Message]:
        batch = self.batch
        if batch is None:
            return
        values, keys, headers, timestamps = batch.values(), batch.keys(), batch.headers(), batch.timestamps()
        attempts = [run.attempts for run in self.runs for _ in range(run.count)]
        for place, offset in enumerate(self.offsets()):
            yield Message(
                self.topic,
                self.partition,
                offset,
                values[place],
                keys[place],
                headers[place],
                self.priority,
                self.timestamp_ms,
                None if timestamps is None else timestamps[place],
                batch.header.deliver_at_ms,
                batch.header.expires_at_ms,
                attempts[place],
            )


def read_dead_page(topic: str, partition: int, fetched: FetchedDead, bulk: memoryview) -> list[DeadLetters]:
    """The letters of one FETCH_DEAD."""
    found: list[DeadLetters] = []
    start = 0
    for stored in fetched.batches:
        found.append(DeadLetters(topic, partition, stored, bulk[start : start + stored.size]))
        start += stored.size
    return found


class DeadLetterReader:
    """Use it as `async with queue.dead_letter_reader(...) as reader`, then `async for letter in reader`."""

    def __init__(
        self,
        brokers: Brokers,
        routing: Routing,
        topic: str,
        group: str,
        *,
        partitions: Sequence[int] | int | None = None,
        start: DeadStart = "earliest",
        until_end: bool = False,
        page_bytes: int = limits.MIB,
        on_hole: Callable[[DeadHole], None] | None = None,
    ) -> None:
        self.topic = check_name(topic, "topic")
        self.group = check_name(group, "group")
        self.holes: deque[DeadHole] = deque(maxlen=HOLES_KEPT)
        self._routing = routing
        self._leaders = Leaders(brokers, routing)
        self._timeout_ms = brokers.timeout_ms
        self._chosen = partition_list(partitions)
        self._start = start
        self._until_end = until_end
        self._page_bytes = page_bytes
        self._on_hole = on_hole
        self._positions: dict[int, int] = {}
        self._ends: dict[int, int] = {}  # of partitions that are read up to there and no further
        self._group_ids: dict[int, int] = {}
        self._incarnation = 0
        self._fetches: dict[asyncio.Task[tuple[FetchedDead, memoryview]], int] = {}
        self._letters: deque[DeadLetters] = deque()
        self._in_hand: Iterator[DeadLetter] = iter(())
        self._opened = False
        self._closed = False

    async def open(self) -> None:
        """Find out where to begin. Done by `async with`, or by the first read."""
        route = await self._routing.route(self.topic)
        self._incarnation = route.incarnation
        chosen = list(range(route.partitions)) if self._chosen is None else list(self._chosen)
        for partition in chosen:
            choose_partition(route, partition, None, b"")
        bounds = await asyncio.gather(*(self._fetch(partition, 0, letters=0, wait_ms=0) for partition in chosen))
        if not any(fetched.group_id for fetched, _ in bounds):
            raise GroupNotFound(f"the group {self.group!r} does not exist on {self.topic!r}", group=self.group)
        for partition, (fetched, _) in zip(chosen, bounds, strict=True):
            self._group_ids[partition] = fetched.group_id
            self._positions[partition] = self._first(partition, fetched)
            self._ends[partition] = fetched.end_number
        self._opened = True

    def _first(self, partition: int, bounds: FetchedDead) -> int:
        if isinstance(self._start, Mapping):
            number = self._start.get(partition, bounds.first_number)
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= limits.OFFSET_MAX:
                raise ValidationError(f"number {number!r} is not valid: give a whole number from 0", field="start")
            return number
        if self._start == "earliest":
            return bounds.first_number
        if self._start == "latest":
            return bounds.end_number
        raise ValidationError(
            f"start is {self._start!r}: give earliest, latest, or numbers by partition", field="start"
        )

    async def _fetch(
        self, partition: int, number: int, *, letters: int, wait_ms: int
    ) -> tuple[FetchedDead, memoryview]:
        asked = FetchDead(
            self.topic,
            partition,
            self.group,
            number,
            letters,
            self._page_bytes,
            wait_ms,
            self._incarnation,
            self._group_ids.get(partition, 0),
        )
        timeout_ms = self._timeout_ms + wait_ms
        return await self._leaders.request(self.topic, partition, asked, timeout_ms=timeout_ms)

    # ------------------------------------------------------------------ reading

    async def read_batch(self, wait_ms: float | None = None) -> DeadLetters | None:
        """The next letters, as columns. None: the wait is over, or (`until_end`) everything is read."""
        if wait_ms is not None:
            check_wait_ms(wait_ms)
        if not self._opened:
            await self.open()
        loop = asyncio.get_running_loop()
        deadline = None if wait_ms is None else loop.time() + wait_ms / 1_000
        while not self._letters:
            if self._closed:
                raise ServiceUnavailable("the reader is closed")
            self._ask_ahead()
            if not self._fetches:
                return None
            left = None if deadline is None else max(0.0, deadline - loop.time())
            done, _ = await asyncio.wait(self._fetches, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._take(self._fetches.pop(task), *task.result())
            if not done and not self._letters:
                return None
        found = self._letters.popleft()
        self._positions[found.partition] = found.next_number
        return found

    def _ask_ahead(self) -> None:
        """One page of each partition is under way, or in hand."""
        asked = set(self._fetches.values())
        for partition, number in self._positions.items():
            finished = self._until_end and number >= self._ends[partition]
            if partition not in asked and not finished:
                wait_ms = 0 if self._until_end else _WAIT_MS
                fetch = self._fetch(partition, number, letters=limits.LIST_ITEMS_MAX, wait_ms=wait_ms)
                self._fetches[asyncio.get_running_loop().create_task(fetch)] = partition

    def _take(self, partition: int, fetched: FetchedDead, bulk: memoryview) -> None:
        self._group_ids[partition] = fetched.group_id
        found = read_dead_page(self.topic, partition, fetched, bulk)
        if found:
            found[-1].next_number = fetched.next_number  # the hole behind it is passed with it
            self._letters.extend(found)
        else:
            self._positions[partition] = max(self._positions[partition], fetched.next_number)
        for first, following in fetched.holes:
            hole = DeadHole(partition, first, following)
            self.holes.append(hole)
            if self._on_hole is not None:
                self._on_hole(hole)

    async def read_batches(self) -> AsyncIterator[DeadLetters]:
        while (found := await self.read_batch()) is not None:
            yield found

    def __aiter__(self) -> DeadLetterReader:
        return self

    async def __anext__(self) -> DeadLetter:
        while (letter := next(self._in_hand, None)) is None:
            found = await self.read_batch()
            if found is None:
                raise StopAsyncIteration
            self._in_hand = found.letters()
        return letter

    def positions(self) -> dict[int, int]:
        """The next number of each partition; a batch that was begun counts as read. Give it back as `start`."""
        return dict(self._positions)

    # ------------------------------------------------------------------ leaving

    async def close(self) -> None:
        self._closed = True
        for task in self._fetches:
            task.cancel()
        await asyncio.gather(*self._fetches, return_exceptions=True)
        self._fetches.clear()

    async def __aenter__(self) -> DeadLetterReader:
        if not self._opened:
            await self.open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        await self.close()
