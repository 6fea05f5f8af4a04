"""Questions to partitions, and polls over several of them.

A *poll over several partitions* is claimed by one partition's decision at a time. Each step goes to the partition
with the most urgent deliverable lane, and takes from it only what is at least as urgent as the best of the others,
so that strict priority holds over the partitions of one broker too. A poll that finds nothing watches its partitions
and looks again when one of them says that something became deliverable; nothing spins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lanner import limits
from lanner.broker.calls import LeasedBatch, Range
from lanner.broker.delivery import DecodedBatches
from lanner.broker.node import Node
from lanner.broker.publishing import Router
from lanner.broker.replica import WAIT, Replica
from lanner.errors import LannerError
from lanner.model import GroupKind
from lanner.partition import APPEND_PREFIX_BYTES, BatchRef, MakeGroup, Poll, Release

_INLINE_MESSAGES_MAX = 16  # so few are cut out of a decoded batch faster than a thread can be asked to
_WASTED_BYTES_MAX = 64 * limits.KIB  # sending so much in vain costs less than cutting more than a few messages out
_POLLERS_MAX = 10_000  # of whom the latest sequence is remembered; the others are looked up
_STEPS_MAX = 16  # how many decisions one poll may be made of


class Polling:
    """Asks partitions on behalf of callers, and lets callers wait for news."""

    def __init__(self, node: Node, router: Router) -> None:
        self._node = node
        self._engine = node.engine
        self._loop = asyncio.get_running_loop()
        self._router = router
        self._first_sequence = node.now_ms() << 10
        self._decoded = DecodedBatches()
        self._latest: dict[tuple[int, str, str], int] = {}
        self._waiters: set[asyncio.Future[None]] = set()

    def _may_repeat(self, poller: tuple[int, str, str], sequence: int) -> bool:
        """Whether this poll may have been answered before: its poller is new here, or its sequence is not."""
        latest = self._latest.pop(poller, None)
        self._latest[poller] = sequence
        if len(self._latest) > _POLLERS_MAX:
            del self._latest[next(iter(self._latest))]
        return latest is None or sequence <= latest

    def _anonymous_sequence(self) -> int:
        """A sequence for a poll that names none, so that it is never taken for the repetition of another."""
        return self._first_sequence + self._router.turn()

    def wake_all(self) -> None:
        """Let everybody who waits look again, and find that the broker drains."""
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_result(None)

    async def ask(self, replica: Replica, request: Any) -> tuple[Any, int]:
        """Put a question to a partition; its answer and the index of the decision behind it."""
        future: asyncio.Future[tuple[Any, int]] = self._loop.create_future()

        def answered(answer: Any, index: int) -> None:
            if not future.done():
                future.set_result((answer, index))
            elif isinstance(request, Poll) and answer is not WAIT and not isinstance(answer, LannerError):
                # Whoever asked has gone while it was decided.
                token = index if answer.token is None else answer.token
                self._loop.call_soon(self.give_back, request, [(0, replica, token, answer)])

        self._engine.ask(replica.set_id, request, answered)
        self._node.kick()
        answer, index = await future
        if isinstance(answer, LannerError):
            raise answer
        return answer, index

    async def lease(self, replicas: list[tuple[int, Replica]], request: Poll) -> tuple[list[Any], bool]:
        """Lease from one partition after the other, the most urgent first, until the poll is full."""
        await self._make_group(replicas, request)
        if request.sequence < 0:
            request = request._replace(sequence=self._anonymous_sequence())
        elif self._may_repeat((replicas[0][1].set_id, request.group, request.member), request.sequence):
            leased = await self._lease_again(replicas, request)
            if leased:
                return leased, False
        leased = []
        limited = False
        messages_left, bytes_left = request.max_messages, request.max_bytes
        open_replicas = list(replicas)
        sequence = request.sequence * _STEPS_MAX
        for step in range(_STEPS_MAX):
            place, min_lane = self._most_urgent(open_replicas, request.group)
            if place is None or messages_left <= 0 or bytes_left <= 0:
                break
            partition, replica = open_replicas[place]
            wanted = request._replace(
                sequence=sequence + step, max_messages=messages_left, max_bytes=bytes_left, min_lane=min_lane
            )
            try:
                answer, index = await self.ask(replica, wanted)
            except BaseException:
                self.give_back(request, leased)
                raise
            if answer is WAIT or not answer.leases:
                limited = limited or (answer is not WAIT and answer.limited)
                del open_replicas[place]
                continue
            limited = limited or answer.limited
            leased.append((partition, replica, index, answer))
            messages_left -= sum(lease.count for lease in answer.leases)
            bytes_left -= sum(lease.ref.size * lease.count // lease.ref.count for lease in answer.leases)
        return leased, limited

    def give_back(self, request: Poll, leased: list[Any]) -> None:
        """Release, without counting a delivery, what was leased for a caller who will never hear of it."""
        if request.auto_ack:
            return
        for _, replica, token, answer in leased:
            items = [(token, lease.first_offset, lease.count, 0, -1, "") for lease in answer.leases]
            if items and not replica.closed:
                self._engine.ask(replica.set_id, Release(request.group, items), lambda *_: None)
                self._node.kick()

    async def _lease_again(self, replicas: list[tuple[int, Replica]], request: Poll) -> list[Any]:
        """What this very poll was given before, where its reply was lost: the same leases, as far as they live."""
        leased: list[Any] = []
        first = request.sequence * _STEPS_MAX
        for partition, replica in replicas:
            for sequence in range(first, first + _STEPS_MAX):
                if replica.partition.has_polled(request.group, request.member, sequence):
                    answer, index = await self.ask(replica, request._replace(sequence=sequence))
                    if answer is not WAIT and answer.leases:
                        token = index if answer.token is None else answer.token
                        leased.append((partition, replica, token, answer))
        return leased

    async def _make_group(self, replicas: list[tuple[int, Replica]], request: Poll) -> None:
        """A group begins on all its partitions at once: what is appended from now on is new to it everywhere."""
        missing = [replica for _, replica in replicas if not replica.partition.has_group(request.group)]
        if missing:
            make = MakeGroup(request.group, GroupKind.QUEUE, request.start)
            await asyncio.gather(*(self.ask(replica, make) for replica in missing))

    def _most_urgent(self, replicas: list[tuple[int, Replica]], group: str) -> tuple[int | None, int]:
        """Which of these to ask next, and the lane below which another one has something more urgent."""
        now_ms = self._node.now_ms()
        turn, count = self._router.turn(), len(replicas)
        ranked = []
        for place, (_, replica) in enumerate(replicas):
            lane = replica.partition.best_lane(group, now_ms)
            if lane is not None:
                ranked.append((lane, replica.free, (place + turn) % count, place))
        if not ranked:
            return None, 0
        ranked.sort(reverse=True)
        others = ranked[1][0] if len(ranked) > 1 else 0
        return ranked[0][3], others

    async def something_deliverable(self, replicas: Sequence[Replica], seconds: float) -> None:
        """Sleep until one of these partitions has news, the time is over, or the broker drains."""
        waiter: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        timer = self._loop.call_later(seconds, wake)
        self._waiters.add(waiter)
        for replica in replicas:
            replica.watchers.add(wake)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)
            for replica in replicas:
                replica.watchers.discard(wake)

    async def read(self, leased: list[Any]) -> list[LeasedBatch]:
        """The bytes behind leases, batch by batch, in the order of urgency in which they were leased."""
        grouped: list[tuple[int, int, int, Any, list[Range]]] = []
        wanted: list[tuple[int, int]] = []
        for partition, replica, token, answer in leased:
            last_base = -1
            for lease in answer.leases:
                item = Range(lease.first_offset, lease.count, lease.attempt)
                if lease.ref.base_offset == last_base:
                    grouped[-1][4].append(item)
                    continue
                last_base = lease.ref.base_offset
                grouped.append((partition, token, answer.deadline_ms, lease.ref, [item]))
                wanted.append((replica.set_id, lease.ref.index))
        payloads = await self._node.payloads(wanted)
        batches: list[LeasedBatch] = []
        cold: list[tuple[int, tuple[int, int]]] = []
        for (partition, token, deadline_ms, ref, ranges), payload, key in zip(grouped, payloads, wanted, strict=True):
            if payload is None:
                continue  # retention took it between the decision and the read
            data: bytes | memoryview = memoryview(payload)[APPEND_PREFIX_BYTES:]
            leased_batch = LeasedBatch(
                partition, token, ref.base_offset, ref.append_ms, deadline_ms, ref.lane, data, ranges
            )
            count = sum(item.count for item in ranges)
            if _is_small_part(count, ref):
                if count <= _INLINE_MESSAGES_MAX and self._decoded.get(key) is not None:
                    leased_batch = leased_batch._replace(data=self._decoded.extract(key, leased_batch))
                else:
                    cold.append((len(batches), key))
            batches.append(leased_batch)
        if cold:
            parts = await self._node.in_reader(
                lambda: [self._decoded.extract(key, batches[place]) for place, key in cold]
            )
            for (place, _), data in zip(cold, parts, strict=True):
                batches[place] = batches[place]._replace(data=data)
        return batches


def _is_small_part(count: int, ref: BatchRef) -> bool:
    """Whether an extract of so many messages is cheaper, for both ends, than the whole batch."""
    if count * 2 >= ref.count:
        return False
    return count <= _INLINE_MESSAGES_MAX or ref.size * (ref.count - count) // ref.count > _WASTED_BYTES_MAX
