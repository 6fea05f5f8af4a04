"""A group of 100 members on 200 partitions of three brokers: how long one that joins or leaves keeps the others busy.

A change is over when each partition has one owner again that works on it. Members are consumers of a queue group, or
readers of a stream group, which commit and release before another begins. All live in one process of their own: what
they cost together is what 100 processes would cost, less their interpreters.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

import lanner
from bench.cluster import cluster, fresh_topic
from bench.figures import Figure, percentile
from bench.processes import workers
from lanner.errors import LannerError

MEMBERS = int(os.environ.get("BENCH_MEMBERS", "100"))
PARTITIONS = 2 * MEMBERS
CHANGES = int(os.environ.get("BENCH_CHANGES", "10"))
PER_SECOND = 200  # messages that are published meanwhile
CONNECTIONS = 10  # the members share so many
GOAL_S = 1.0


class Changes(NamedTuple):
    joins_s: list[float]
    leaves_s: list[float]
    delivered: list[float]  # messages a second while a change was under way, as a share of those that were published


class Group:
    """The members, and who works on what as they see it themselves."""

    def __init__(self, topic: str, kind: str) -> None:
        self.topic, self.kind = topic, kind
        self.members: dict[lanner.Consumer | lanner.Reader, asyncio.Task[None]] = {}
        self.got = 0  # messages
        self._changed = asyncio.Event()

    def _note(self, _: list[lanner.TopicPartition]) -> None:
        self._changed.set()

    async def join(self, queue: lanner.Queue) -> None:
        if self.kind == "queue":
            consumer = queue.consumer(self.topic, group="bench", assignor="sticky", on_assigned=self._note)
            self.members[consumer] = asyncio.create_task(self._consume(consumer))
        else:
            reader = queue.reader(self.topic, group="bench", assignor="sticky", on_assigned=self._note)
            self.members[reader] = asyncio.create_task(self._read(reader))

    async def leave(self) -> None:
        member, task = next(iter(self.members.items()))
        del self.members[member]
        await member.close()
        task.cancel()
        with suppress(LannerError, asyncio.CancelledError):
            await task

    async def _consume(self, consumer: lanner.Consumer) -> None:
        while True:
            batch = await consumer.poll(100, wait_ms=5_000)
            self.got += len(batch)
            if batch:
                batch.ack()

    async def _read(self, reader: lanner.Reader) -> None:
        async for _ in reader:
            self.got += 1

    async def whole(self) -> None:
        """Wait until each partition has one owner that works on it."""
        while True:
            owners = Counter(one for member in self.members for one in member.assignment)
            if len(owners) == PARTITIONS and set(owners.values()) == {1}:
                counts = {len(member.assignment) for member in self.members}
                if max(counts) - min(counts) <= 1:
                    return
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.01)


async def change_members(address: str, topic: str, kind: str) -> Changes:
    found = Changes([], [], [])
    group = Group(topic, kind)
    queues = [await lanner.connect(address) for _ in range(CONNECTIONS)]
    published = 0

    async def publish() -> None:
        nonlocal published
        while True:
            await queues[0].publish_many(topic, [b"x" * 100] * (PER_SECOND // 20))
            published += PER_SECOND // 20
            await asyncio.sleep(0.05)

    publisher = asyncio.create_task(publish())
    try:
        for number in range(MEMBERS):
            await group.join(queues[number % CONNECTIONS])
        await group.whole()
        for _ in range(CHANGES):
            for change, taken in ((group.join(queues[0]), found.joins_s), (group.leave(), found.leaves_s)):
                began, got, sent = time.perf_counter(), group.got, published
                await change
                await group.whole()
                taken.append(time.perf_counter() - began)
                found.delivered.append((group.got - got) / max(1, published - sent))
    finally:
        publisher.cancel()
        for task in group.members.values():
            task.cancel()
        for queue in queues:
            await queue.close()
    return found


def run_changes(address: str, topic: str, kind: str) -> Changes:
    return asyncio.run(change_members(address, topic, kind))


def measure_rebalancing() -> list[Figure]:
    figures = []
    for kind in ("queue", "stream"):
        with cluster() as brokers, workers(1) as pool:
            topic = fresh_topic(brokers.address, PARTITIONS)
            found = pool.submit(run_changes, brokers.address, topic, kind).result()
        for what, taken in (("joins", found.joins_s), ("leaves", found.leaves_s)):
            note = (
                f"longest {max(taken):.2f}; {percentile(found.delivered, 50):.0%} of what was published came meanwhile"
            )
            figures.append(
                Figure(
                    f"one of {MEMBERS} {what} a {kind} group of {PARTITIONS} partitions, p50",
                    percentile(taken, 50),
                    "s",
                    GOAL_S,
                    note=note,
                    lower_is_better=True,
                )
            )
    return figures
