"""A topic's log as an executor reads it: blocking calls over the client, opened where they are used.

Spark pickles readers and sends them to executors, so a `TopicLog` is never part of one: each task opens its own,
after the worker process has been forked, and closes it when it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from lanner import limits
from lanner.client.session import Session
from lanner.errors import OffsetOutOfRange
from lanner.spark.columns import StoredBatch
from lanner.spark.offsets import Held, Span
from lanner.wire.messages import Command, Fetch, Fetched, Offsets, OffsetsReply

FETCH_BYTES: Final = 4 * limits.MIB


class TopicLog:
    """A connection to the brokers, for one thread."""

    def __init__(self, servers: str, *, timeout_ms: float = 30_000) -> None:
        self._session = Session(servers, client_name="lanner-spark", timeout_ms=timeout_ms)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        try:
            self._runner.run(self._session.open())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._runner.run(self._session.close())
        finally:
            self._runner.close()

    def held(self, topic: str) -> dict[int, Held]:
        """What each partition holds now. An unknown topic is TopicNotFound; it is not created."""
        reply, _ = self._runner.run(self._session.request(Command.OFFSETS, Offsets(topic), OffsetsReply))
        return {one.partition: Held(one.first_offset, one.end_offset, reply.incarnation) for one in reply.partitions}

    def batches(self, span: Span) -> Iterator[StoredBatch]:
        """Every batch with messages of the span; the first and the last may reach beyond it.

        What retention takes before it is read is skipped. A topic that was deleted and created again since the read
        was planned is refused by the broker, because the span names its incarnation.
        """
        offset = span.start_offset
        while offset < span.end_offset:
            ask = Fetch(span.topic, span.partition, offset, FETCH_BYTES, incarnation=span.incarnation)
            fetched, bulk = self._runner.run(self._session.request(Command.FETCH, ask, Fetched))
            place = 0
            for one in fetched.batches:
                if one.base_offset >= span.end_offset:
                    return
                yield StoredBatch(one.base_offset, one.append_ms, bulk[place : place + one.size])
                place += one.size
            if fetched.next_offset <= offset:  # the broker gave nothing and knows nothing further
                raise OffsetOutOfRange(
                    f"{span.topic}/{span.partition} ends at {fetched.end_offset}; it held offsets up to "
                    f"{span.end_offset} when this read was planned"
                )
            offset = fetched.next_offset
