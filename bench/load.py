"""What the clients do in a benchmark. Each function here runs in a process of its own and returns what it saw.

They use the public client only, as any program would. Times are of CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import uvloop

import lanner
from lanner import batch
from lanner.client.session import Session
from lanner.wire.connection import Reply
from lanner.wire.messages import Command, Publish

MESSAGE_BYTES = 100


class Span(NamedTuple):
    """How many messages from when to when."""

    count: int
    began: float
    ended: float

    @property
    def rate(self) -> float:
        return self.count / (self.ended - self.began)


def together(spans: list[Span]) -> float:
    """Messages a second of several clients at once."""
    return sum(span.count for span in spans) / (max(s.ended for s in spans) - min(s.began for s in spans))


def messages(count: int, size: int = MESSAGE_BYTES) -> list[bytes]:
    return [f"{number:010d}".encode().ljust(size, b"v") for number in range(count)]


async def _side_by_side(count: int, step: Callable[[], Awaitable[int]], seconds: float) -> Span:
    """Keep `count` calls of `step` in flight for some seconds."""
    total = 0
    began = time.monotonic()
    ends = began + seconds

    async def one() -> None:
        nonlocal total
        while time.monotonic() < ends:
            done = await step()
            total += done

    await asyncio.gather(*(one() for _ in range(count)))
    return Span(total, began, time.monotonic())


# ------------------------------------------------------------------ publishing


def publish_batched(address: str, topic: str, batch_messages: int, in_flight: int, seconds: float) -> Span:
    """Whole batches, encoded by column, several on their way at once."""

    async def run() -> Span:
        values = messages(batch_messages)
        async with lanner.connect(address) as queue:

            async def step() -> int:
                await queue.publish_many(topic, values)
                return len(values)

            await step()
            return await _side_by_side(in_flight, step, seconds)

    return uvloop.run(run())


def publish_through_producer(address: str, topic: str, seconds: float) -> Span:
    """Message by message into a producer that batches by itself."""

    async def run() -> Span:
        values = messages(1_000)
        async with lanner.connect(address) as queue, queue.producer(linger_ms=5) as producer:
            total = 0
            began = time.monotonic()
            while time.monotonic() < began + seconds:
                for value in values:
                    await producer.send(topic, value)
                total += len(values)
            await producer.flush()
            return Span(total, began, time.monotonic())

    return uvloop.run(run())


def publish_single(address: str, topic: str, partitions: int, in_flight: int, seconds: float) -> Span:
    """One message a request, so many at once. Below the producer, which would put them into one batch."""

    async def run() -> Span:
        (value,) = messages(1)
        session = Session(address)
        await session.open()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        controls = [Publish(topic, partition) for partition in range(partitions)]
        count = left = 0

        def ask() -> None:
            nonlocal left
            left += 1
            control = controls[(count + left) % partitions]
            session.call(Command.PUBLISH, control, [batch.encode([value])], answered)

        def answered(outcome: Reply | lanner.LannerError) -> None:
            nonlocal count, left
            left -= 1
            if isinstance(outcome, lanner.LannerError):
                done.set_exception(outcome)
            elif time.monotonic() < ends:
                count += 1
                ask()
            elif left == 0:
                done.set_result(None)

        began = time.monotonic()
        ends = began + seconds
        for _ in range(in_flight):
            ask()
        await done
        await session.close()
        return Span(count, began, time.monotonic())

    return uvloop.run(run())


def publish_at_rate(address: str, topic: str, per_second: int, seconds: float) -> list[float]:
    """Publish at a fixed rate, whatever the answers do, and return each publish's latency in milliseconds.

    The latency counts from when the message was due, so a stall is charged to every message that waited for it.
    """

    async def run() -> list[float]:
        took: list[float] = []
        async with lanner.connect(address) as queue:
            await queue.publish(topic, b"warm")
            loop = asyncio.get_running_loop()
            waiting: set[asyncio.Task[None]] = set()

            async def one(due: float) -> None:
                await queue.publish(topic, str(due).encode().ljust(MESSAGE_BYTES))
                took.append((time.monotonic() - due) * 1e3)

            def begin(due: float) -> None:
                task = loop.create_task(one(due))
                waiting.add(task)
                task.add_done_callback(waiting.discard)

            def pace() -> None:
                # A thread that sleeps: the loop's timers are a millisecond coarse, and waiting in a circle would take
                # a core away from the broker.
                began = time.monotonic()
                for number in range(int(per_second * seconds)):
                    due = began + number / per_second
                    time.sleep(max(0.0, due - time.monotonic()))
                    loop.call_soon_threadsafe(begin, due)

            await asyncio.to_thread(pace)
            await asyncio.gather(*waiting)
        return took

    return uvloop.run(run())


# ------------------------------------------------------------------ consuming


def read_stream(address: str, topic: str, count: int) -> Span:
    """Read a topic from its beginning as a stream: every batch verified, every value made."""

    async def run() -> Span:
        seen = 0
        began = time.monotonic()
        async with lanner.connect(address) as queue, queue.reader(topic, start="earliest") as reader:
            async for read in reader.read_batches():
                seen += len(read.values())
                if seen >= count:
                    break
        return Span(seen, began, time.monotonic())

    return uvloop.run(run())


def consume_queue(address: str, topic: str, group: str, at_a_time: int, seconds: float) -> Span:
    """Poll and ack in a group, until nothing comes any more or the time is over."""

    async def run() -> Span:
        seen = 0
        async with lanner.connect(address) as queue, queue.consumer(topic, group=group) as consumer:
            began = ended = time.monotonic()
            while time.monotonic() < began + seconds:
                leased = await consumer.poll(at_a_time, wait_ms=500)
                if not leased:
                    break
                await consumer.ack(leased)
                seen += len(leased)
                ended = time.monotonic()
        return Span(seen, began, ended)

    return uvloop.run(run())


def consume_latency(address: str, topic: str, group: str, count: int, seconds: float) -> list[float]:
    """How long after it was due each message of publish_at_rate arrived, in milliseconds."""

    async def run() -> list[float]:
        took: list[float] = []
        async with lanner.connect(address) as queue, queue.consumer(topic, group=group) as consumer:
            ends = time.monotonic() + seconds
            while len(took) < count and time.monotonic() < ends:
                leased = await consumer.poll(100, wait_ms=500)
                now = time.monotonic()
                for message in leased:
                    if message.value != b"warm":
                        took.append((now - float(message.value)) * 1e3)
                await consumer.ack(leased)
        return took

    return uvloop.run(run())


def read_until(address: str, topic: str, ends: float) -> int:
    """Read the topic again and again until the clock says so: a load that keeps the broker's loop busy."""

    async def run() -> int:
        seen = 0
        async with lanner.connect(address) as queue:
            while time.monotonic() < ends:
                async with queue.reader(topic, start="earliest", until_end=True) as reader:
                    while time.monotonic() < ends and (read := await reader.read_batch()) is not None:
                        seen += len(read)
        return seen

    return uvloop.run(run())


def publish_to_all(address: str, topic: str, partitions: int, value_bytes: int, seconds: float) -> list[float]:
    """One message to every partition at once, again and again; milliseconds until the last one is durable."""

    async def run() -> list[float]:
        took: list[float] = []
        data = batch.encode([b"v" * value_bytes])
        controls = [Publish(topic, partition) for partition in range(partitions)]
        session = Session(address)
        await session.open()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            left = partitions

            def answered(outcome: Reply | lanner.LannerError, done: asyncio.Future[None] = done) -> None:
                nonlocal left
                left -= 1
                if isinstance(outcome, lanner.LannerError) and not done.done():
                    done.set_exception(outcome)
                elif left == 0 and not done.done():
                    done.set_result(None)

            began = time.monotonic()
            for control in controls:
                session.call(Command.PUBLISH, control, [data], answered)
            await done
            took.append((time.monotonic() - began) * 1e3)
        await session.close()
        return took[2:]

    return uvloop.run(run())
