"""A topic's log as an executor reads it: blocking calls over the client, opened where they are used.

Spark pickles readers and sends them to executors, so a `TopicLog` is never part of one: each task opens its own,
after the worker process has been forked, and closes it when it is done. The connection lives in a thread of its own,
so that the next page arrives while Spark is still busy with the last one; memory is bounded by these two pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Self

from lanner import limits
from lanner.client.brokers import Brokers
from lanner.client.leaders import Leaders
from lanner.client.routing import Routing
from lanner.errors import OffsetOutOfRange
from lanner.spark.columns import StoredBatch
from lanner.spark.offsets import Held, Span
from lanner.sync import LoopThread
from lanner.wire.messages import Command, Fetch, Fetched, Offsets, OffsetsReply

PAGE_BYTES: Final = 4 * limits.MIB


class TopicLog:
    """A connection to the brokers, for one task."""

    def __init__(self, servers: str) -> None:
        self._brokers = Brokers(servers, client_name="lanner-spark")
        self._routing = Routing(self._brokers)
        self._leaders = Leaders(self._brokers, self._routing)
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
        try:
            self._thread.call(self._routing.close())
            self._thread.call(self._brokers.close())
        finally:
            self._thread.stop()

    def held(self, topic: str) -> dict[int, Held]:
        """What each partition holds now. An unknown topic is TopicNotFound; it is not created."""
        reply, _ = self._thread.call(self._brokers.request(Command.OFFSETS, Offsets(topic), OffsetsReply))
        return {one.partition: Held(one.first_offset, one.end_offset, reply.incarnation) for one in reply.partitions}

    def batches(self, span: Span) -> Iterator[StoredBatch]:
        """Every batch with messages of the span; the first and the last may reach beyond it.

        What retention takes before it is read is skipped. A topic that was deleted and created again since the read
        was planned is refused by the broker, because the span names its incarnation.
        """
        offset = span.start_offset
        ahead = self._ask(span, offset)
        while offset < span.end_offset:
            fetched, bulk = self._thread.wait(ahead)
            if fetched.next_offset <= offset:  # the broker gave nothing and knows nothing further
                raise OffsetOutOfRange(
                    f"{span.topic}/{span.partition} ends at {fetched.end_offset}; it held offsets up to "
                    f"{span.end_offset} when this read was planned"
                )
            offset = fetched.next_offset
            if offset < span.end_offset:
                ahead = self._ask(span, offset)
            yield from _divided(fetched, bulk, span.end_offset)

    def _ask(self, span: Span, offset: int) -> Future[tuple[Fetched, memoryview]]:
        request = Fetch(span.topic, span.partition, offset, PAGE_BYTES, incarnation=span.incarnation)
        return self._thread.start(self._leaders.request(span.topic, span.partition, Command.FETCH, request, Fetched))


def _divided(fetched: Fetched, bulk: memoryview, end_offset: int) -> Iterator[StoredBatch]:
    """The batches of one page, as far as they begin before the end."""
    place = 0
    for one in fetched.batches:
        if one.base_offset < end_offset:
            yield StoredBatch(one.base_offset, one.append_ms, bulk[place : place + one.size])
        place += one.size
