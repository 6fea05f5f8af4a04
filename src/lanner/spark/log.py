"""Topics as Spark's processes reach them: blocking calls over the client, opened where they are used.

Spark pickles readers and sends them to executors, so a `TopicLog` is never part of one: each task opens its own,
after the worker process has been forked, and closes it when it is done. The connection lives in a thread of its own,
so that the next page arrives while Spark is still busy with the last one; memory is bounded by these two pages.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from lanner import limits
from lanner.client.brokers import Brokers
from lanner.client.fetching import Fetches
from lanner.client.leaders import Leaders
from lanner.client.routing import Routing
from lanner.client.stream import DAMAGED, RETENTION
from lanner.errors import LannerError, NotSupported, OffsetOutOfRange, TopicNotFound
from lanner.spark.columns import StoredBatch
from lanner.spark.offsets import Bound, Held, Span
from lanner.sync_thread import LoopThread
from lanner.wire.messages import (
    Committed,
    Fetch,
    Fetched,
    Metadata,
    Offsets,
    OffsetsReply,
)

PAGE_BYTES: Final = 4 * limits.MIB
LOOK_MS: Final = 5_000  # for one question of the planner, which comes again anyway

Result = TypeVar("Result")


class Missing(NamedTuple):
    """Offsets of a span that a read did not get."""

    span: Span
    first_offset: int
    next_offset: int
    reason: str
    overtaken: bool  # the log begins behind it by now


class TopicLog:
    """A connection to the brokers, for one task or for the planner."""

    def __init__(self, servers: str) -> None:
        self._brokers = Brokers(servers, client_name="lanner-spark")
        self._routing = Routing(self._brokers)
        self._leaders = Leaders(self._brokers, self._routing)
        self._fetches = Fetches(self._brokers, self._routing)
        self._identity = secrets.token_hex(8)  # under which its commits are numbered
        self._commits = itertools.count()
        self._thread: LoopThread

    def __enter__(self) -> Self:
        self._thread = LoopThread("lanner-spark")
        try:
            self._thread.call(self._brokers.open())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            self._thread.call(self._routing.close())
            self._thread.call(self._brokers.close())
        finally:
            self._thread.stop()

    # ------------------------------------------------------------------ planning

    def names(self, pattern: str) -> list[str]:
        """The topics whose whole name matches a pattern, sorted."""
        request = self._brokers.request(Metadata(), timeout_ms=LOOK_MS)
        reply, _ = self._thread.call(request)
        matcher = re.compile(pattern)
        return sorted(topic.name for topic in reply.topics if matcher.fullmatch(topic.name))

    def held(self, topics: Iterable[str], *, missing_ok: bool = False) -> dict[str, dict[int, Held]]:
        """What each partition holds now. An unknown topic is TopicNotFound, or left out; it is not created."""
        found: dict[str, dict[int, Held]] = {}
        for topic, reply in self._each((topic, Offsets(topic)) for topic in topics):
            if isinstance(reply, TopicNotFound) and missing_ok:
                continue
            if isinstance(reply, LannerError):
                raise reply
            found[topic] = {
                one.partition: Held(one.first_offset, one.end_offset, reply.incarnation) for one in reply.partitions
            }
        return found

    def moments(self, bound: Bound, topics: Iterable[str]) -> dict[tuple[str, int, int], int]:
        """The first offset at or after each moment that a bound names; absent where there is none yet."""
        found: dict[tuple[str, int, int], int] = {}
        asked = [Offsets(topic, moment) for topic in topics for moment in sorted(bound.times(topic))]
        for request, (topic, reply) in zip(asked, self._each((one.topic, one) for one in asked), strict=True):
            if isinstance(reply, LannerError):
                raise reply
            for one in reply.partitions:
                if 0 <= one.at_time < one.end_offset:
                    found[topic, one.partition, request.time_ms] = one.at_time
        return found

    def _each(self, asked: Iterable[tuple[str, Offsets]]) -> list[tuple[str, OffsetsReply | LannerError]]:
        """Ask all at once."""

        async def one(topic: str, request: Offsets) -> tuple[str, OffsetsReply | LannerError]:
            try:
                reply, _ = await self._brokers.request(request, timeout_ms=LOOK_MS)
            except LannerError as error:
                return topic, error
            return topic, reply

        async def every() -> list[tuple[str, OffsetsReply | LannerError]]:
            return list(await asyncio.gather(*(one(topic, request) for topic, request in asked)))

        return self._thread.call(every())

    def reach(self, spans: Sequence[tuple[Span, int]], lanes: int) -> list[Span]:
        """Each span as far as so many bytes of these lanes go; a whole batch always fits."""
        asked = [
            Offsets(span.topic, -1, [span.partition], {span.partition: span.start_offset}, bytes_max, lanes)
            for span, bytes_max in spans
        ]
        found = []
        for (span, _), (_, reply) in zip(spans, self._each((one.topic, one) for one in asked), strict=True):
            if isinstance(reply, LannerError):
                raise reply
            reached = reply.partitions[0].at_bytes
            if reached < 0:
                raise NotSupported("the brokers cannot count bytes: upgrade them to 0.3.0, or use maxOffsetsPerTrigger")
            found.append(span._replace(end_offset=min(span.end_offset, reached)))
        return found

    def news(self, ends: Iterable[tuple[str, int, int]], wait_ms: int, lanes: int) -> None:
        """Return as soon as one of these partitions (topic, partition, end) has more, or when the wait is over."""

        async def first() -> None:
            waiting = [asyncio.ensure_future(self._await_news(*one, wait_ms, lanes)) for one in ends]
            if not waiting:
                await asyncio.sleep(wait_ms / 1_000)
                return
            done, rest = await asyncio.wait(waiting, timeout=wait_ms / 1_000, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            if all(task.exception() is not None for task in done):
                await asyncio.sleep(min(wait_ms, 50) / 1_000)  # the next call learns what is wrong

        self._thread.call(first())

    async def _await_news(self, topic: str, partition: int, end_offset: int, wait_ms: int, lanes: int) -> None:
        request = Fetch(topic, partition, end_offset, 1, wait_ms, lanes=lanes)
        await self._fetches.fetch(request, timeout_ms=LOOK_MS)

    # ------------------------------------------------------------------ groups

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """A group's next offsets; partitions without a commit are absent."""
        request = self._brokers.request(Committed(group, topic), timeout_ms=LOOK_MS)
        reply, _ = self._thread.call(request)
        return reply.offsets

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set a group's next offsets, and wait until that is durable."""
        self._thread.call(self._commit(group, topic, offsets))

    def start_commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> Future[None]:
        """The same without waiting."""
        return self._thread.start(self._commit(group, topic, offsets))

    def _commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> Coroutine[Any, Any, None]:
        return self._leaders.commit(topic, group, offsets, self._identity, next(self._commits))

    # ------------------------------------------------------------------ reading

    def batches(
        self, span: Span, missing: Callable[[Missing], None], lanes: int = 0, from_followers: bool = False
    ) -> Iterator[StoredBatch]:
        """Every batch with messages of the span; the first and the last may reach beyond it.

        What cannot be read is reported, and passed by if that does not raise. A topic that was deleted and created
        again since the read was planned is refused by the broker, because the span names its incarnation.
        """

        def ask(offset: int) -> Future[tuple[Fetched, memoryview]]:
            incarnation = span.incarnation
            request = Fetch(span.topic, span.partition, offset, PAGE_BYTES, 0, incarnation, lanes, from_followers)
            return self._thread.start(self._fetches.fetch(request))

        offset = span.start_offset
        ahead = ask(offset)
        while offset < span.end_offset:
            fetched, bulk = self._thread.wait(ahead)
            if fetched.next_offset <= offset:  # the broker gave nothing and knows nothing further
                raise OffsetOutOfRange(
                    f"{span.topic}/{span.partition} ends at {fetched.end_offset}; it held offsets up to "
                    f"{span.end_offset} when this read was planned"
                )
            for hole in _holes(span, offset, fetched):
                missing(hole)
            offset = fetched.next_offset
            if offset < span.end_offset:
                ahead = ask(offset)
            yield from _divided(fetched, bulk, span.end_offset)


def _divided(fetched: Fetched, bulk: memoryview, end_offset: int) -> Iterator[StoredBatch]:
    """The batches of one page, as far as they begin before the end."""
    place = 0
    for one in fetched.batches:
        if one.base_offset < end_offset:
            yield StoredBatch(one.base_offset, one.append_ms, bulk[place : place + one.size], fetched.time_ms)
        place += one.size


def _holes(span: Span, position: int, fetched: Fetched) -> Iterator[Missing]:
    """What a page says cannot be read, as far as it belongs to the span.

    Of some priorities only, a gap between batches says nothing; of all, it is what retention took, whether or not the
    broker (of an older release) says so.
    """
    gaps = list(fetched.holes)
    if not fetched.lanes:
        covered = sorted(
            [*((one.base_offset, one.base_offset + one.count) for one in fetched.batches), *fetched.damaged]
        )
        starts = [position, *(end for _, end in covered)]
        gaps = list(zip(starts, [*(base for base, _ in covered), fetched.next_offset], strict=True))
    for reason, holes in ((RETENTION, gaps), (DAMAGED, fetched.damaged)):
        for first, end in holes:
            first_offset, next_offset = max(first, position), min(end, span.end_offset)
            if first_offset < next_offset:
                yield Missing(span, first_offset, next_offset, reason, end <= fetched.first_offset)
