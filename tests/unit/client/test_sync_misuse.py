"""The blocking client, used from several threads, and closed more than once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import lanner
from lanner.batch import encode
from lanner.errors import ServiceUnavailable
from lanner.wire.messages import (
    Command,
    Fetch,
    Fetched,
    FetchedBatch,
    LeasedRange,
    OffsetsReply,
    PartitionOffsets,
    Polled,
    PolledBatch,
)

COUNT = 2_000


async def apart(work: Callable[[], Any]) -> Any:
    """Run what blocks while the scripted broker answers on this loop."""
    async with asyncio.timeout(20):
        return await asyncio.to_thread(work)


def by_four_threads(take: Callable[[], Any]) -> list[int]:
    """The offsets of everything, each taken by one of four threads, which interrupt each other as often as can be."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            return sorted(message.offset for message in threads.map(lambda _: take(), range(COUNT)))
    finally:
        sys.setswitchinterval(interval)


async def test_threads_that_iterate_one_consumer_share_its_messages(broker: Any) -> None:
    data = encode([b"x", b"y"])
    bases = iter(range(0, 4 * COUNT, 2))

    def poll(control: Any, request: Any) -> Any:
        base = next(bases)
        return Polled([PolledBatch(0, 5, base, 77, 9_999, 4, len(data), [LeasedRange(base, 2, 1)])]), [data]

    broker.answers[Command.POLL] = poll

    def work() -> list[int]:
        with lanner.sync.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
            return by_four_threads(lambda: next(consumer))

    assert await apart(work) == list(range(COUNT))


async def test_threads_that_iterate_one_reader_share_its_messages(broker: Any) -> None:
    data = encode([b"x", b"y"])

    def page(control: Fetch, request: Any) -> Any:
        if control.offset >= COUNT:
            return None
        bases = range(control.offset, control.offset + 8, 2)
        return Fetched(0, COUNT, bases[-1] + 2, [FetchedBatch(base, 2, 77, len(data)) for base in bases], 1), [data] * 4

    broker.answers[Command.OFFSETS] = lambda control, request: OffsetsReply([PartitionOffsets(0, 0, COUNT, 20)], 1)
    broker.answers[Command.FETCH] = page

    def work() -> list[int]:
        with lanner.sync.connect(broker.address) as queue, queue.reader("t") as reader:
            return by_four_threads(lambda: next(reader))

    assert await apart(work) == list(range(COUNT))


async def test_a_connection_may_be_closed_more_than_once(broker: Any) -> None:
    ends: list[str] = []

    def work() -> None:
        with lanner.sync.connect(broker.address) as queue:
            queue.on_close(lambda: ends.append("end"))
            queue.publish("t", b"x")
            queue.close()
            with pytest.raises(ServiceUnavailable, match="was closed"):
                queue.publish("t", b"y")
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda _: queue.close(), range(4)))

    await apart(work)
    assert ends == ["end"]
