"""Queue use: poll, settle, release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from lanner import limits, partition
from lanner.broker.desks.desk import Desk
from lanner.broker.desks.fencing import REFUSALS
from lanner.broker.desks.leases import Leased
from lanner.broker.replicas.replica import Replica
from lanner.calls import Answer
from lanner.cluster import Topic
from lanner.errors import NotLeader, PartitionNotFound, ValidationError
from lanner.forwarding.checks import check_number, check_partition, check_poll, check_settle, check_start
from lanner.forwarding.fitting import TAKING_LEASE_MS, reply_bytes_max
from lanner.forwarding.values import LeasedBatch
from lanner.model import check_name
from lanner.wire.messages import (
    BestPriority,
    BestPriorityFound,
    LeasedRange,
    Poll,
    Polled,
    PolledBatch,
    Release,
    Settle,
    Settled,
    SettledItem,
)

_NOT_LED: Final = SettledItem(NotLeader.code, 0)
_NOT_THERE: Final = SettledItem(PartitionNotFound.code, 0)


class Consumption(Desk):
    """What workers call."""

    async def poll(self, call: Poll) -> Answer[Polled]:
        """Lease messages, the most urgent first; waits for up to wait_ms when there are none."""
        check_name(call.group, "group")
        check_poll(call)
        sequence, lease = call.sequence, None if call.lease_ms < 0 else call.lease_ms
        if call.auto_ack:  # leased, read and acked then, so that nothing is acked that cannot be read or sent
            sequence, lease = -1, TAKING_LEASE_MS  # asked again, it takes what comes next
        request = partition.Poll(
            call.group,
            call.member,
            sequence,
            call.max_messages,
            call.max_bytes,
            lease,
            False,
            call.start,
            call.min_priority,
        )
        number = self._polling.called(call.topic, call.group, call.member, sequence)
        if call.member_id:
            self._fencing.hear(call.group, call.member_id)
        deadline = self._loop.time() + call.wait_ms / 1_000
        while True:
            found = self._topic(call.topic, call.incarnation)  # anew each time: topics grow, and go
            outside = self._fencing.outside()  # and this: groups change
            fenced = bool(call.member_id) or (outside is not None and self._fencing.concerns(call.group))
            replicas = self._replicas(found, call.partitions)
            try:
                if fenced:
                    leased, limited = await self._lease_fenced(found, replicas, call, request, number)
                else:
                    if outside != request.fence:
                        request = request._replace(fence=outside)
                    leased, limited = await self._polling.lease(replicas, request, number)
            except NotLeader:
                raise self._lost_one(found, replicas) from None
            if leased:
                batches, dead = await self._read(request, leased, number, call.auto_ack)
                if batches or not (dead or call.auto_ack):
                    priority = self._polling.best_lane(replicas, call.group)
                    unheard = partial(self._polling.give_back, request, leased, number)
                    return polled(batches, limited, priority, None if call.auto_ack else unheard)
                continue
            left = deadline - self._loop.time()
            if left <= 0 or self._readiness.draining:
                return Answer(Polled([], limited, self._polling.best_lane(replicas, call.group)))
            with self._fencing.present(call.group, call.member_id):
                await self._questions.news([replica for _, replica in replicas], left, call.group if fenced else "")

    async def _lease_fenced(
        self, topic: Topic, replicas: list[tuple[int, Replica]], call: Poll, request: partition.Poll, number: int
    ) -> tuple[list[Leased], bool]:
        """Lease as what the caller stands for now. A poll that is repeated has its leases back, whatever that is."""
        try:
            fences = await self._fencing.fences(call, topic, replicas)
        except REFUSALS:
            leased = await self._polling.lease_refused(replicas, request, number) if request.sequence >= 0 else []
            if not leased:
                raise
            return leased, False
        return await self._polling.lease(replicas, request, number, fences)

    async def _read(
        self, request: partition.Poll, leased: list[Leased], call: int, auto_ack: bool
    ) -> tuple[list[LeasedBatch], int]:
        """The batches of a poll's leases, as far as they fit, and how many messages are dead because of damage."""
        try:
            batches, left_out = await self._leases.read(leased, reply_bytes_max(request.max_bytes))
            if left_out:
                await self._polling.put_back(request, left_out, call)
            dead = 0
            if self._engine.damages.sets:
                dead = await self._polling.bury_damaged(request, leased, batches, left_out)
            if auto_ack:
                batches = await self._polling.acknowledge(request, leased, batches)
        except BaseException:
            self._polling.give_back(request, leased, call)
            raise
        return batches, dead

    async def best_priority(self, call: BestPriority) -> Answer[BestPriorityFound]:
        """The most urgent lane with something for the group, leasing nothing; waits while there is none."""
        check_name(call.group, "group")
        check_number("wait_ms", call.wait_ms, 0, limits.POLL_WAIT_MS_MAX)
        check_start(call.start)
        deadline = self._loop.time() + call.wait_ms / 1_000
        while True:
            found = self._topic(call.topic)
            replicas = self._replicas(found, call.partitions)
            try:
                await self._polling.make_group(replicas, call.group, call.start)
            except NotLeader:
                raise self._lost_one(found, replicas) from None
            self._polling.check_kind(replicas, call.group)
            lane, count = self._polling.best(replicas, call.group)
            left = deadline - self._loop.time()
            if lane >= 0 or left <= 0 or self._readiness.draining:
                return Answer(BestPriorityFound(lane, count))
            await self._questions.news([replica for _, replica in replicas], left)

    async def settle(self, call: Settle) -> Answer[Settled]:
        """Ack, nack, extend or reject leased messages; each item has its own result."""
        return await self._settle(call, partition.Settle)

    async def release(self, call: Release) -> Answer[Settled]:
        """Give back leased messages that nobody saw, without counting a delivery."""
        return await self._settle(call, partition.Release)

    async def _settle(
        self, call: Settle | Release, kind: type[partition.Settle] | type[partition.Release]
    ) -> Answer[Settled]:
        check_name(call.group, "group")
        if isinstance(call, Settle):
            self._fencing.hear(call.group, call.member_id)  # and no more: the token of a lease is a fence of its own
        items = call.items
        if len(items) > limits.SETTLE_RANGES_MAX:
            raise ValidationError(f"{len(items)} ranges in one call; {limits.SETTLE_RANGES_MAX} are allowed")
        found = self._topic(call.topic)
        by_partition: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            check_settle(item)
            by_partition.setdefault(item.partition, []).append(place)
        results = [_NOT_LED] * len(items)
        gone = [number for number in by_partition if not 0 <= number < len(found.set_ids)]
        if gone and len(gone) == len(by_partition):
            check_partition(found, gone[0])
        for number in gone:  # of a topic that was made anew, perhaps; the others take effect all the same
            for place in by_partition.pop(number):
                results[place] = _NOT_THERE

        async def settle_in(number: int, places: list[int]) -> None:
            request = kind(call.group, [structs.astuple(items[place])[1:] for place in places])
            try:
                answers = await self._ask(found, number, request)
            except NotLeader:
                return  # those of other partitions take effect all the same
            assert isinstance(answers, list)
            for place, (code, count) in zip(places, answers, strict=True):
                results[place] = SettledItem(code, count)

        if len(by_partition) == 1:
            await settle_in(*next(iter(by_partition.items())))
        else:
            await asyncio.gather(*(settle_in(number, places) for number, places in by_partition.items()))
        return Answer(Settled(results))


def polled(
    batches: Sequence[LeasedBatch], limited: bool, priority: int, unheard: Callable[[], None] | None
) -> Answer[Polled]:
    """The answer to a poll, as it travels."""
    shown = [
        PolledBatch(
            one.partition,
            one.token,
            one.base_offset,
            one.append_ms,
            one.deadline_ms,
            one.priority,
            len(one.data),
            [LeasedRange(*covered) for covered in one.ranges],
        )
        for one in batches
    ]
    return Answer(Polled(shown, limited, priority), [one.data for one in batches], unheard)
