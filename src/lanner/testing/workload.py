"""Publishers and consumers that write down what they were told, while somebody kills the broker under them.

What they write is a history, the same that the simulator writes, and the same judges read it. A call that ended
without an answer is `unknown`: it may have taken effect or not, and both are right. The client repeats calls by itself
where that is safe, so a refusal that it reports may be of the second attempt; settles that were refused are therefore
written down as unknown too.

Each publisher owns one partition and one priority and numbers its messages, so that order can be judged from values.
With several brokers, faults are spans instead of moments (a broker is away, a link is cut): whatever was asked while
one lasted may have been asked twice, and what a dead leader had written may take effect later.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

import lanner
from lanner.errors import LannerError, LeaseLost
from lanner.testing.checkers import judge
from lanner.testing.history import (
    Crashed,
    Ended,
    Event,
    Handed,
    History,
    Polled,
    Published,
    Rules,
    Settled,
    Status,
    Stored,
)
from lanner.testing.rest_workers import RestWorkers

_RETRY_SECONDS = 0.02
_POLL_MESSAGES = 20


class Workload:
    """Some publishers and consumers of one topic; they go on through every failure until told to stop."""

    def __init__(
        self,
        address: str,
        topic: str,
        *,
        partitions: int,
        lease_ms: int = 1_000,
        urls: Sequence[str] = (),
        pause_seconds: float = 0.0,
        replication: int = 0,
        settles_known: bool = True,
    ) -> None:
        """`urls`: brokers' REST doors, for workers that come that way. `pause_seconds`: between two publishes.
        `settles_known`: brokers know a settle that is asked again, so one that is answered LeaseLost had no effect."""
        self.address = address
        self.urls = list(urls)
        self.pause_seconds = pause_seconds
        self.replication = replication
        self.settles_known = settles_known
        self.consumer_options: dict[str, Any] = {}  # beside the group and the lease
        self.topic = topic
        self.partitions = partitions
        self.group = "workers"
        self.lease_ms = lease_ms
        self.history = History({partition: Rules(max_deliveries=1_000) for partition in range(partitions)})
        self.failures: Counter[str] = Counter()
        self.acknowledged_at: list[float] = []  # when publishes were answered, to see the pauses
        self._disturbed_since: float | None = None
        self._disturbed_until = -1.0
        self._publishing = self._consuming = True
        self._publishers: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []

    async def make_topic(self) -> None:
        async with lanner.connect(self.address) as queue:
            wanted: dict[str, Any] = {"replication": self.replication} if self.replication else {}
            await queue.admin.create_topic(
                self.topic, partitions=self.partitions, lease_ms=self.lease_ms, max_deliveries=1_000, **wanted
            )

    def start(
        self, publishers: int = 4, consumers: int = 2, *, rest_publishers: int = 0, rest_consumers: int = 0
    ) -> None:
        loop = asyncio.get_running_loop()
        self._publishers = [loop.create_task(self._publish(number)) for number in range(publishers)]
        self._consumers = [loop.create_task(self._consume()) for _ in range(consumers)]
        rest = RestWorkers(self)
        last = publishers + rest_publishers
        self._publishers += [loop.create_task(rest.publish(number)) for number in range(publishers, last)]
        self._consumers += [loop.create_task(rest.consume(number)) for number in range(rest_consumers)]

    @property
    def publishing(self) -> bool:
        return self._publishing

    @property
    def consuming(self) -> bool:
        return self._consuming

    def crashed(self) -> None:
        """To be told when the broker has been killed, before it is started again."""
        self.history.add(Crashed(_now()))

    def disturb(self) -> None:
        """To be told before something is done to one of several brokers, or to what connects them."""
        self._disturbed_since = _now()

    def calm(self) -> None:
        """To be told when all is well again."""
        self._disturbed_since = None
        self._disturbed_until = _now()

    def was_disturbed(self, since: float) -> bool:
        """Whether something was broken at any time from then on."""
        if self._disturbed_since is not None or since <= self._disturbed_until:
            return True
        return any(since <= crash.called for crash in self.history.of_kind(Crashed))

    async def stop_publishing(self) -> None:
        self._publishing = False
        await asyncio.gather(*self._publishers)

    async def stop_consuming(self) -> None:
        self.leave()
        await self.until_left()

    def leave(self) -> None:
        """Have the consumers finish what they have in hand and leave."""
        self._consuming = False

    async def until_left(self) -> None:
        await asyncio.gather(*self._consumers)

    async def until_published(self, timeout_seconds: float = 30.0) -> float:
        """Wait until every partition has acknowledged something that was sent from now on; how long that took."""
        began, seen, missing = _now(), len(self.history.events), set(range(self.partitions))
        while missing:
            if _now() - began > timeout_seconds:
                raise AssertionError(f"nothing is acknowledged in {sorted(missing)} for {timeout_seconds} s")
            await asyncio.sleep(_RETRY_SECONDS / 2)
            for event in itertools.islice(self.history.events, seen, None):
                if isinstance(event, Published) and event.status is Status.OK and event.called >= began:
                    missing.discard(event.partition)
            seen = len(self.history.events)
        return _now() - began

    async def until_drained(self, timeout_seconds: float = 60.0) -> None:
        """Wait until the group has settled everything."""
        ends, state = _now() + timeout_seconds, None
        async with lanner.connect(self.address) as queue:
            while _now() < ends:
                state = await queue.admin.group(self.topic, self.group)
                if sum(part.ready + part.leased + part.waiting for part in state.partitions) == 0:
                    return
                await asyncio.sleep(0.1)
        raise AssertionError(f"the group never came to rest: {state}")

    async def finish(self, timeout_seconds: float = 60.0) -> list[str]:
        """Stop publishing, let the consumers take what is left, and say which promises were broken."""
        await self.stop_publishing()
        await self.until_drained(timeout_seconds)
        await self.stop_consuming()
        return await self.broken_promises(drained=True)

    def cancel(self) -> None:
        """End at once, whatever is under way."""
        for task in (*self._publishers, *self._consumers):
            task.cancel()

    async def close(self) -> None:
        """End at once, and wait until every worker has hung up."""
        self.cancel()
        await asyncio.gather(*self._publishers, *self._consumers, return_exceptions=True)

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged."""
        return sum(len(event.values) for event in self.history.of_kind(Published) if event.status is Status.OK)

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
                        if self.pause_seconds:
                            await asyncio.sleep(self.pause_seconds)
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
            self.note_published(called, values, partition, priority)
            raise
        self.note_published(called, values, first.partition, priority, first.offset, first.timestamp_ms)

    def note_published(
        self,
        called: float,
        values: tuple[str, ...],
        partition: int,
        priority: int,
        offset: int = -1,
        append_ms: int = 0,
    ) -> None:
        """Offset -1: nobody knows what became of it."""
        if offset < 0:
            self.history.add(Published(called, None, Status.UNKNOWN, partition, -1, values, priority))
            return
        returned = _now()
        self.acknowledged_at.append(returned)
        self.history.add(
            Published(called, returned, Status.OK, partition, offset, values, priority, append_ms=append_ms)
        )

    # ------------------------------------------------------------------ consuming

    async def _consume(self) -> None:
        while self._consuming:
            try:
                async with (
                    lanner.connect(self.address) as queue,
                    queue.consumer(
                        self.topic, group=self.group, lease_ms=self.lease_ms, **self.consumer_options
                    ) as consumer,
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
            self.note_unheard(called)
            raise
        if self.was_disturbed(called):
            # The client asked again after the crash. What the broker had decided before it, nobody heard of.
            self.note_unheard(called)
        self._note_polled(called, batch)
        await self.work()
        called = _now()
        parts = [part for part in batch.parts for _ in range(part.count)]
        acks = [(message, part.token, message.ack()) for message, part in zip(batch, parts, strict=True)]
        for message, token, settling in acks:
            failure = ""
            try:
                await settling
            except LannerError as error:
                failure = type(error).__name__
                self.failures[f"ack: {failure}"] += 1
            self.note_acked(called, failure, message.partition, token, message.offset)

    async def work(self) -> None:
        """What a consumer does with messages, before it acks them."""

    def note_acked(self, called: float, failure: str, partition: int, token: int, offset: int) -> None:
        """`failure`: the name of the error, or nothing. A message whose lease was lost must be delivered again, or the
        judges miss it in the end."""
        status = Status.UNKNOWN if failure else Status.OK
        lost = failure == LeaseLost.__name__ and self.settles_known
        if lost:
            status = Status.FAILED
        returned = None if status is Status.UNKNOWN else _now()
        self.history.add(Settled(called, returned, status, self.group, partition, token, (offset,), "ack", lost=lost))

    def note_unheard(self, called: float) -> None:
        for partition in range(self.partitions):
            self.history.add(Polled(called, None, Status.UNKNOWN, self.group, partition))

    def _note_polled(self, called: float, batch: lanner.MessageBatch) -> None:
        leases: dict[tuple[int, int, int], list[Handed]] = {}
        for part in batch.parts:
            leases.setdefault((part.partition, part.token, part.deadline_ms), []).extend(
                Handed(offset, part.values[place].decode(), part.priority, part.attempt(place))
                for place, offset in enumerate(part.offsets)
            )
        self.note_leases(called, leases)

    def note_leases(self, called: float, leases: Mapping[tuple[int, int, int], Sequence[Handed]]) -> None:
        """One event for each partition and token; a lease is as long as we asked, so its end tells when it began."""
        returned = _now()
        for (partition, token, deadline_ms), messages in leases.items():
            decided_ms = deadline_ms - self.lease_ms
            self.history.add(
                Polled(
                    called,
                    returned,
                    Status.OK,
                    self.group,
                    partition,
                    tuple(messages),
                    token,
                    decided_ms,
                    deadline_ms,
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
        unknown = {
            value for one in self.history.of_kind(Published) if one.status is not Status.OK for value in one.values
        }
        for stored in (stored for _, _, stored in held.values()):
            # Of a publish that was never answered nobody knows when it takes effect, where several brokers repeat it.
            wrong += order_broken([one for one in stored if not self.urls or one.value not in unknown])
        return wrong

    def longest_pause(self, since: float = 0.0) -> float:
        """The longest time without an acknowledged publish."""
        moments = sorted(moment for moment in self.acknowledged_at if moment >= since)
        return max((later - earlier for earlier, later in itertools.pairwise(moments)), default=0.0)


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
    decision in the log, so who has heard a higher one knows that all lower ones had been decided by then: each
    poll counts as returned when the first of those was heard.
    """
    polls = [event for event in history.of_kind(Polled) if event.status is Status.OK]
    polls.sort(key=_decision, reverse=True)
    earliest: dict[int, float] = {}
    ordered: list[Event] = []
    for poll in polls:
        returned = min(poll.returned, earliest.get(poll.partition, poll.returned))
        earliest[poll.partition] = returned
        ordered.append(replace(poll, called=min(poll.called, returned), returned=returned))
    rest = [event for event in history.events if not isinstance(event, Polled) or event.status is not Status.OK]
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
