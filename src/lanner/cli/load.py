"""The load that `lanner bench` puts on a broker."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lanner.cli.screen import count_text

if TYPE_CHECKING:
    from lanner.client import Queue

_CONSUMERS: Final = 4
_IN_FLIGHT: Final = 64
_CALLS_IN_FLIGHT: Final = 8


class Figure(NamedTuple):
    what: str
    messages: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.messages / max(self.seconds, 1e-9)


async def publish(queue: Queue, topic: str, count: int, size: int, batch: int) -> Figure:
    values = [b"x" * size] * batch
    began = time.perf_counter()
    window: set[asyncio.Task[Any]] = set()
    for first in range(0, count, batch):
        chunk = values[: min(batch, count - first)]
        window.add(asyncio.ensure_future(queue.publish_many(topic, chunk)))
        if len(window) >= _CALLS_IN_FLIGHT:
            done, window = await asyncio.wait(window, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    await asyncio.gather(*window)
    return Figure(f"publish, {count_text(batch)} a call", count, time.perf_counter() - began)


async def publish_singly(queue: Queue, topic: str, count: int, size: int) -> Figure:
    value = b"x" * size
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await queue.publish(topic, value)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(_IN_FLIGHT)))
    return Figure(f"publish, one a call, {_IN_FLIGHT} at a time", count, time.perf_counter() - began)


async def read(queue: Queue, topic: str) -> Figure:
    began = time.perf_counter()
    seen = 0
    async with queue.reader(topic, until_end=True) as reader:
        async for read in reader.read_batches():
            seen += len(read.values())
    return Figure("read as a stream", seen, time.perf_counter() - began)


async def consume(queue: Queue, topic: str, batch: int) -> Figure:
    taken = 0

    async def worker() -> None:
        nonlocal taken
        async with queue.consumer(topic, "bench", max_messages=batch) as consumer:
            while got := await consumer.poll(batch, 200):
                taken += len(got)
                await got.ack()

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(_CONSUMERS)))
    seconds = time.perf_counter() - began - 0.2  # the last poll of each waited in vain
    return Figure(f"poll and ack, {_CONSUMERS} consumers", taken, max(seconds, 1e-3))
