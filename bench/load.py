"""What the clients do in a benchmark. Each function here runs in a process of its own and returns what it saw.

They use the public client only, as any program would. Times are of CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import uvloop

import lanner
from lanner import batch
from lanner.net.connector import ClientLink, open_connection
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


def fill(address: str, topic: str, count: int, batch_messages: int) -> None:
    """Publish so many messages, rounded up to whole batches."""
    values = messages(batch_messages)
    with lanner.sync.connect(address) as queue:
        for _ in range(-(-count // batch_messages)):
            queue.publish_many(topic, values)


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


class Leaders:
    """A connection to the leader of each partition, below the client's batching and routing."""

    def __init__(self, links: list[ClientLink], topic: str) -> None:
        self._links = links
        self._controls = [Publish(topic, partition) for partition in range(len(links))]

    @classmethod
    async def of(cls, address: str, topic: str) -> Leaders:
        async with lanner.connect(address) as queue:
            known = await queue.admin.cluster()
        brokers = {broker.node_id: (broker.host, broker.port) for broker in known.brokers}
        (found,) = [one for one in known.topics if one.name == topic]
        links: dict[str, ClientLink] = {}
        for partition in found.partitions:
            if partition.leader not in links:
                links[partition.leader] = await open_connection(*brokers[partition.leader])
        return cls([links[partition.leader] for partition in found.partitions], topic)

    def publish(self, partition: int, data: bytes) -> asyncio.Future[Reply]:
        return self._links[partition].request(Command.PUBLISH, self._controls[partition], [data])

    async def close(self) -> None:
        for link in set(self._links):
            await link.close()


def publish_single(address: str, topic: str, partitions: int, in_flight: int, seconds: float) -> Span:
    """One message a request, so many at once. Below the producer, which would put them into one batch."""

    async def run() -> Span:
        (value,) = messages(1)
        leaders = await Leaders.of(address, topic)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        count = left = asked = 0

        def ask() -> None:
            nonlocal left, asked
            left += 1
            asked += 1
            leaders.publish(asked % partitions, batch.encode([value])).add_done_callback(answered)

        def answered(future: asyncio.Future[Reply]) -> None:
            nonlocal count, left
            left -= 1
            error = future.exception()
            if error is not None:
                if not done.done():
                    done.set_exception(error)
            elif time.monotonic() < ends:
                count += 1
                ask()
            elif left == 0 and not done.done():
                done.set_result(None)

        began = time.monotonic()
        ends = began + seconds
        for _ in range(in_flight):
            ask()
        await done
        await leaders.close()
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
        leaders = await Leaders.of(address, topic)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            began = time.monotonic()
            await asyncio.gather(*(leaders.publish(partition, data) for partition in range(partitions)))
            took.append((time.monotonic() - began) * 1e3)
        await leaders.close()
        return took[2:]

    return uvloop.run(run())


# ------------------------------------------------------------------ for long


class Flow(NamedTuple):
    """What a client of a long run did: how much in each second, and how long single publishes took."""

    count: int
    seconds: float
    by_second: list[int]
    took_ms: list[float]


def publish_for_long(address: str, topic: str, per_second: int, seconds: float) -> Flow:
    """One `publish()` a message at a fixed rate; the client puts what is on its way at once into batches.

    At most a second's worth is on its way: a cluster that cannot keep up shows as a lower rate, not as memory.
    """

    async def run() -> Flow:
        value = b"v" * MESSAGE_BYTES
        by_second: list[int] = []
        took: list[float] = []
        done = 0
        async with lanner.connect(address) as queue:
            waiting: set[asyncio.Task[None]] = set()

            async def one() -> None:
                nonlocal done
                await queue.publish(topic, value)
                done += 1

            async def timed() -> None:
                called = time.monotonic()
                await one()
                took.append((time.monotonic() - called) * 1e3)

            began = time.monotonic()
            sent = last = 0
            while (now := time.monotonic()) < began + seconds:
                due = min(int((now - began) * per_second), sent + per_second - len(waiting))
                for number in range(sent, due):
                    task = asyncio.ensure_future(one() if number % 100 else timed())
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                sent = max(sent, due)
                if now - began >= len(by_second) + 1:
                    by_second.append(done - last)
                    last = done
                await asyncio.sleep(0.005)
            await asyncio.gather(*waiting)
            return Flow(done, time.monotonic() - began, by_second, took)

    return uvloop.run(run())


def consume_for_long(address: str, topic: str, group: str, stop: str) -> Flow:
    """Poll and ack until a file of that name is there, and then until nothing comes any more."""
    stopped = functools.partial(os.path.exists, stop)

    async def run() -> Flow:
        seen, empty, by_second = 0, 0, [0]
        began = time.monotonic()
        async with lanner.connect(address) as queue, queue.consumer(topic, group=group) as consumer:
            while True:
                leased = await consumer.poll(2_000, wait_ms=500)
                empty = 0 if leased or not stopped() else empty + 1
                if empty > 3:
                    return Flow(seen, time.monotonic() - began, by_second, [])
                if leased:
                    consumer.ack(leased)
                seen += len(leased)
                by_second += [0] * (int(time.monotonic() - began) + 1 - len(by_second))
                by_second[-1] += len(leased)

    return uvloop.run(run())


def probe(address: str, topic: str, partitions: int, stop: str) -> list[list[tuple[float, float]]]:
    """One publisher for each partition, one message after the other until a file of that name is there: when each was
    sent and when it was acknowledged. The client's own retries are part of what is measured."""

    async def run() -> list[list[tuple[float, float]]]:
        seen: list[list[tuple[float, float]]] = [[] for _ in range(partitions)]
        async with lanner.connect(address, timeout_ms=60_000) as queue:
            stopped = functools.partial(os.path.exists, stop)

            async def one(partition: int) -> None:
                while not stopped():
                    called = time.monotonic()
                    try:
                        await queue.publish(topic, b"v" * MESSAGE_BYTES, partition=partition)
                    except lanner.LannerError:
                        await asyncio.sleep(0.01)
                        continue
                    seen[partition].append((called, time.monotonic()))
                    await asyncio.sleep(0.005)

            await asyncio.gather(*(one(partition) for partition in range(partitions)))
        return seen

    return uvloop.run(run())
