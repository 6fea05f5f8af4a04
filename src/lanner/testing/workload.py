"""Publishers and consumers that write down what they were told, while somebody kills the broker under them.

The record is of promises: what was acknowledged, where; what was handed out; which acks were confirmed. A call that
ended without an answer is written down as unknown: it may have taken effect or not, and both are right. When the
broker has come to rest, `Findings` compares the record with what the broker holds.

Each publisher owns one partition and one priority and numbers its messages, so that order can be judged from values.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import lanner
from lanner.errors import LannerError

_RETRY_SECONDS = 0.02


class Stored(NamedTuple):
    """A message at its place, as the broker acknowledged it or as it was read back."""

    partition: int
    offset: int
    value: bytes
    priority: int


class Handed(NamedTuple):
    """One delivery to a member of the group."""

    partition: int
    offset: int
    attempt: int
    at: float
    value: bytes
    priority: int


@dataclass
class Record:
    """Everything the clients were told, in the order they heard it."""

    acknowledged: list[Stored] = field(default_factory=list)
    unknown: set[bytes] = field(default_factory=set)
    handed: list[Handed] = field(default_factory=list)
    settled: dict[tuple[int, int], float] = field(default_factory=dict)  # confirmed acks, with the time they were
    failures: Counter[str] = field(default_factory=Counter)


class Workload:
    """Some publishers and consumers of one topic; they go on through every failure until told to stop."""

    def __init__(self, address: str, topic: str, *, partitions: int, group: str = "workers") -> None:
        self.address = address
        self.topic = topic
        self.partitions = partitions
        self.group = group
        self.record = Record()
        self._publishing = True
        self._consuming = True
        self._publishers: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []

    def start(self, publishers: int = 4, consumers: int = 2) -> None:
        loop = asyncio.get_running_loop()
        self._publishers = [loop.create_task(self._publish(number)) for number in range(publishers)]
        self._consumers = [loop.create_task(self._consume()) for _ in range(consumers)]

    async def stop_publishing(self) -> None:
        self._publishing = False
        await asyncio.gather(*self._publishers)

    async def stop_consuming(self) -> None:
        self._consuming = False
        await asyncio.gather(*self._consumers)

    def cancel(self) -> None:
        """End at once, whatever is under way."""
        for task in (*self._publishers, *self._consumers):
            task.cancel()

    async def _publish(self, publisher: int) -> None:
        partition, priority = publisher % self.partitions, (publisher * 5) % 10
        number = 0
        while self._publishing:
            try:
                async with lanner.connect(self.address) as queue:
                    while self._publishing:
                        count = 1 + number % 7  # one by one and in batches, in turns
                        values = [f"{publisher}-{number + step}".encode() for step in range(count)]
                        number += count
                        await self._publish_values(queue, values, partition, priority)
            except (LannerError, OSError) as error:
                self.record.failures[type(error).__name__] += 1
                await asyncio.sleep(_RETRY_SECONDS)

    async def _publish_values(self, queue: lanner.Queue, values: list[bytes], partition: int, priority: int) -> None:
        self.record.unknown.update(values)
        receipts = await queue.publish_many(self.topic, values, partition=partition, priority=priority)
        for value, receipt in zip(values, receipts, strict=True):
            self.record.acknowledged.append(Stored(receipt.partition, receipt.offset, value, priority))
            self.record.unknown.discard(value)

    async def _consume(self) -> None:
        while self._consuming:
            try:
                async with (
                    lanner.connect(self.address) as queue,
                    queue.consumer(self.topic, group=self.group) as consumer,
                ):
                    while self._consuming:
                        await self._consume_some(consumer)
            except (LannerError, OSError) as error:
                self.record.failures[type(error).__name__] += 1
                await asyncio.sleep(_RETRY_SECONDS)

    async def _consume_some(self, consumer: lanner.Consumer) -> None:
        messages = await consumer.poll(20, wait_ms=200)
        now = asyncio.get_running_loop().time()
        for message in messages:
            self.record.handed.append(
                Handed(message.partition, message.offset, message.attempt, now, message.value, message.priority)
            )
        for message in messages:
            await message.ack()
            confirmed = asyncio.get_running_loop().time()
            self.record.settled[message.partition, message.offset] = confirmed


async def read_everything(address: str, topic: str) -> list[Stored]:
    """All that a topic holds, as a stream."""
    found: list[Stored] = []
    async with lanner.connect(address) as queue:
        ends = {state.partition: state.end_offset for state in await queue.admin.offsets(topic)}
        async with queue.reader(topic, start="earliest") as reader:
            left = sum(ends.values())
            while left > 0:
                message = await anext(reader)
                found.append(Stored(message.partition, message.offset, message.value, message.priority))
                left -= 1
    return found


def broken_promises(record: Record, found: Iterable[Stored]) -> list[str]:
    """What the broker promised and did not keep; empty when all is well."""
    held = list(found)
    by_place = {(one.partition, one.offset): one for one in held}
    wrong = []
    if len(by_place) != len(held):
        wrong.append(f"{len(held) - len(by_place)} offsets were read twice")
    for one in record.acknowledged:
        if by_place.get((one.partition, one.offset)) != one:
            wrong.append(f"lost: {one} was acknowledged; there is {by_place.get((one.partition, one.offset))}")
    twice = [value for value, count in Counter(one.value for one in held).items() if count > 1]
    wrong += [f"stored twice: {value!r}" for value in twice]
    known = {one.value for one in record.acknowledged} | record.unknown
    wrong += [f"never published: {one}" for one in held if one.value not in known]
    wrong += _order_broken(held)
    for handed in record.handed:
        settled_at = record.settled.get((handed.partition, handed.offset))
        if settled_at is not None and handed.at > settled_at:
            wrong.append(f"handed out again after its ack was confirmed: {handed}")
        stored = by_place.get((handed.partition, handed.offset))
        if stored is None or stored.value != handed.value:
            wrong.append(f"handed out what is not stored there: {handed}, {stored}")
    return wrong


def _order_broken(held: list[Stored]) -> list[str]:
    """Each publisher's messages must lie in the order it sent them."""
    last: dict[bytes, int] = {}
    wrong = []
    for one in sorted(held, key=lambda stored: (stored.partition, stored.offset)):
        publisher, _, number = one.value.partition(b"-")
        if int(number) < last.get(publisher, -1):
            wrong.append(f"out of order: {one} after {last[publisher]}")
        last[publisher] = int(number)
    return wrong
