"""Publishers and consumers that write down what they were told, while somebody kills the broker under them.

What they write is a history, the same that the simulator writes, and the same judges read it. A call that ended
without an answer is `unknown`: it may have taken effect or not, and both are right. The client repeats calls by itself
where that is safe, so a refusal that it reports may be of the second attempt; settles that were refused are therefore
written down as unknown too.

Each publisher owns one partition and one priority and numbers its messages, so that order can be judged from values.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import lanner
from lanner.errors import LannerError
from lanner.testing.checkers import judge
from lanner.testing.history import (
    Crashed,
    Ended,
    Event,
    Fate,
    Handed,
    History,
    Polled,
    Published,
    Rules,
    Settled,
    Stored,
)

_RETRY_SECONDS = 0.02
_POLL_MESSAGES = 20


class Workload:
    """Some publishers and consumers of one topic; they go on through every failure until told to stop."""

    def __init__(self, address: str, topic: str, *, partitions: int, lease_ms: int = 1_000) -> None:
        self.address = address
        self.topic = topic
        self.partitions = partitions
        self.group = "workers"
        self.lease_ms = lease_ms
        self.history = History({partition: Rules(max_deliveries=1_000) for partition in range(partitions)})
        self.failures: Counter[str] = Counter()
        self._publishing = self._consuming = True
        self._publishers: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []

    async def make_topic(self) -> None:
        async with lanner.connect(self.address) as queue:
            await queue.admin.create_topic(
                self.topic, partitions=self.partitions, lease_ms=self.lease_ms, max_deliveries=1_000
            )

    def start(self, publishers: int = 4, consumers: int = 2) -> None:
        loop = asyncio.get_running_loop()
        self._publishers = [loop.create_task(self._publish(number)) for number in range(publishers)]
        self._consumers = [loop.create_task(self._consume()) for _ in range(consumers)]

    def crashed(self) -> None:
        """To be told when the broker has been killed, before it is started again."""
        self.history.add(Crashed(_now()))

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

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged."""
        return sum(len(event.values) for event in self.history.of_kind(Published) if event.fate is Fate.OK)

    # ------------------------------------------------------------------ publishing

    async def _publish(self, publisher: int) -> None:
        partition, priority = publisher % self.partitions, (publisher * 5) % 10
        number = 0
        while self._publishing:
            try:
                async with lanner.connect(self.address) as queue:
                    while self._publishing:
                        count = 1 + number % 7  # one by one and in batches, in turns
                        values = tuple(f"{publisher}-{number + step}" for step in range(count))
                        number += count
                        await self._publish_values(queue, values, partition, priority)
            except (LannerError, OSError) as error:
                self.failures[f"publish: {type(error).__name__}"] += 1
                await asyncio.sleep(_RETRY_SECONDS)

    async def _publish_values(
        self, queue: lanner.Queue, values: tuple[str, ...], partition: int, priority: int
    ) -> None:
        called = _now()
        try:
            receipts = await queue.publish_many(self.topic, values, partition=partition, priority=priority)
            first = receipts[0]
        except BaseException:
            self.history.add(Published(called, None, Fate.UNKNOWN, partition, -1, values, priority))
            raise
        stamp = first.timestamp_ms
        self.history.add(
            Published(called, _now(), Fate.OK, first.partition, first.offset, values, priority, append_ms=stamp)
        )

    # ------------------------------------------------------------------ consuming

    async def _consume(self) -> None:
        while self._consuming:
            try:
                async with (
                    lanner.connect(self.address) as queue,
                    queue.consumer(self.topic, group=self.group, lease_ms=self.lease_ms) as consumer,
                ):
                    while self._consuming:
                        await self._consume_some(consumer)
            except (LannerError, OSError) as error:
                self.failures[f"consume: {type(error).__name__}"] += 1
                await asyncio.sleep(_RETRY_SECONDS)

    async def _consume_some(self, consumer: lanner.Consumer) -> None:
        called = _now()
        try:
            batch = await consumer.poll(_POLL_MESSAGES, wait_ms=200)
        except BaseException:
            self._note_unheard(called)
            raise
        if any(called <= crash.called for crash in self.history.of_kind(Crashed)):
            # The client asked again after the crash. What the broker had decided before it, nobody heard of.
            self._note_unheard(called)
        self._note_polled(called, batch)
        called = _now()
        parts = [part for part in batch.parts for _ in range(part.count)]
        acks = [(message, part.token, message.ack()) for message, part in zip(batch, parts, strict=True)]
        for message, token, settling in acks:
            fate = Fate.OK
            try:
                await settling
            except LannerError as error:
                self.failures[f"ack: {type(error).__name__}"] += 1
                fate = Fate.UNKNOWN
            returned = _now() if fate is Fate.OK else None
            offsets = (message.offset,)
            self.history.add(Settled(called, returned, fate, self.group, message.partition, token, offsets, "ack"))

    def _note_unheard(self, called: float) -> None:
        for partition in range(self.partitions):
            self.history.add(Polled(called, None, Fate.UNKNOWN, self.group, partition))

    def _note_polled(self, called: float, batch: lanner.MessageBatch) -> None:
        """One event for each partition and token; a lease is as long as we asked, so its end tells when it began."""
        returned = _now()
        leases: dict[tuple[int, int, int], list[Handed]] = {}
        for part in batch.parts:
            leases.setdefault((part.partition, part.token, part.deadline_ms), []).extend(
                Handed(offset, part.values[place].decode(), part.priority, part.attempt(place))
                for place, offset in enumerate(part.offsets)
            )
        for (partition, token, deadline_ms), messages in leases.items():
            decided_ms = deadline_ms - self.lease_ms
            self.history.add(
                Polled(
                    called, returned, Fate.OK, self.group, partition, tuple(messages), token, decided_ms, deadline_ms
                )
            )

    # ------------------------------------------------------------------ the end

    async def broken_promises(self, *, drained: bool) -> list[str]:
        """Read everything back and let the judges compare it with what was promised; empty when all is well."""
        called = _now()
        groups = (self.group,) if drained else ()
        held = await read_everything(self.address, self.topic)
        for partition, (first, end, stored) in held.items():
            now_ms = time.time_ns() // 1_000_000
            self.history.add(Ended(called, _now(), partition, first, end, tuple(stored), now_ms, groups))
        wrong = [str(violation) for violation in judge(in_order_of_decision(self.history))]
        for stored in (stored for _, _, stored in held.values()):
            wrong += order_broken(stored)
        return wrong


async def read_everything(address: str, topic: str) -> dict[int, tuple[int, int, list[Stored]]]:
    """All that a topic holds, as a stream: first offset, end offset and messages of each partition."""
    async with lanner.connect(address) as queue:
        bounds = {one.partition: one for one in await queue.admin.offsets(topic)}
        found: dict[int, list[Stored]] = {partition: [] for partition in bounds}
        async with queue.reader(topic, start="earliest", until_end=True) as reader:
            async for message in reader:
                found[message.partition].append(Stored(message.offset, message.value.decode(), message.priority))
    return {partition: (one.first_offset, one.end_offset, found[partition]) for partition, one in bounds.items()}


def in_order_of_decision(history: History) -> History:
    """The same history with polls in the order in which they were decided.

    Two members poll at once, and the answer that was decided first may be heard last. A token is the place of its
    decision in the log, so whoever has heard a higher one knows that all lower ones had been decided by then: each
    poll counts as returned when the first of those was heard.
    """
    polls = [event for event in history.of_kind(Polled) if event.fate is Fate.OK]
    polls.sort(key=_decision, reverse=True)
    earliest: dict[int, float] = {}
    ordered: list[Event] = []
    for poll in polls:
        returned = min(poll.returned, earliest.get(poll.partition, poll.returned))
        earliest[poll.partition] = returned
        ordered.append(replace(poll, called=min(poll.called, returned), returned=returned))
    rest = [event for event in history.events if not isinstance(event, Polled) or event.fate is not Fate.OK]
    return History(history.rules, [*reversed(ordered), *rest])


def _decision(poll: Polled) -> tuple[int, int, int, int]:
    """Where a poll stands among the others; of those that one decision answered, the more urgent and older first."""
    top = max(message.priority for message in poll.messages)
    first = min(message.offset for message in poll.messages if message.priority == top)
    return poll.partition, poll.token, -top, first


def order_broken(stored: Sequence[Stored]) -> list[str]:
    """Each publisher's messages must lie in the order it sent them."""
    last: dict[str, int] = {}
    wrong = []
    for one in sorted(stored):
        publisher, _, number = one.value.partition("-")
        if int(number) < last.get(publisher, -1):
            wrong.append(f"out of order: {one} after {last[publisher]}")
        last[publisher] = int(number)
    return wrong


def _now() -> float:
    return time.monotonic()
