"""Queue use: poll, settle, release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from lanner import limits
from lanner.broker.desks.calls import (
    Delivered,
    Identity,
    LeasedBatch,
    PollResult,
    SettleItem,
    SettleResult,
)
from lanner.broker.desks.checks import check_number, check_poll, check_settle, check_start
from lanner.broker.desks.desk import Desk
from lanner.broker.desks.fitting import TAKING_LEASE_MS, reply_bytes_max
from lanner.broker.desks.leases import Leased
from lanner.errors import NotLeader, ValidationError
from lanner.model import check_name
from lanner.partition import Poll, Release, Settle

_NOT_LED: Final = SettleResult(NotLeader.code, 0)


class Consumption(Desk):
    """What workers call."""

    async def poll(
        self,
        identity: Identity,
        *,
        topic: str,
        group: str,
        member: str,
        sequence: int = -1,  # of this member, rising; repeated, the same leases come back; -1: never repeated
        partitions: Sequence[int] | None = None,
        max_messages: int = 500,
        max_bytes: int = limits.MIB,
        wait_ms: int = 0,
        lease_ms: int = -1,
        auto_ack: bool = False,
        start: str = "earliest",
        min_priority: int = 0,  # nothing less urgent: another broker has something better
    ) -> PollResult:
        """Lease messages, the most urgent first; waits for up to wait_ms when there are none."""
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        check_poll(member, sequence, max_messages, max_bytes, wait_ms, lease_ms, start, min_priority)
        lease = None if lease_ms < 0 else lease_ms
        if auto_ack:  # leased, read and acked then, so that nothing is acked that cannot be read or sent
            sequence, lease = -1, TAKING_LEASE_MS  # asked again, it takes what comes next
        request = Poll(group, member, sequence, max_messages, max_bytes, lease, False, start, min_priority)
        call = self._polling.called(topic, group, member, sequence)
        deadline = self._loop.time() + wait_ms / 1_000
        while True:
            found = self._topic(topic)  # anew each time: topics grow, and go
            replicas = self._replicas(found, partitions)
            try:
                leased, limited = await self._polling.lease(replicas, request, call)
            except NotLeader:
                raise self._lost_one(found, replicas) from None
            if leased:
                batches, dead = await self._read(request, leased, call, auto_ack)
                if batches or not (dead or auto_ack):
                    return PollResult(batches, limited, self._polling.best_lane(replicas, group), call)
                continue
            left = deadline - self._loop.time()
            if left <= 0 or self._draining:
                return PollResult((), limited, self._polling.best_lane(replicas, group))
            await self._questions.news([replica for _, replica in replicas], left)

    async def _read(
        self, request: Poll, leased: list[Leased], call: int, auto_ack: bool
    ) -> tuple[list[LeasedBatch], int]:
        """The batches of a poll's leases, as far as they fit, and how many messages are dead because of damage."""
        try:
            batches, left_out = await self._leases.read(leased, reply_bytes_max(request.max_bytes))
            if left_out:
                await self._polling.put_back(request, left_out, call)
            dead = 0
            if self._node.engine.damages.sets:
                dead = await self._polling.bury_damaged(request, leased, batches, left_out)
            if auto_ack:
                batches = await self._polling.acknowledge(request, leased, batches)
        except BaseException:
            self._polling.give_back(request, leased, call)
            raise
        return batches, dead

    async def glance(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int] | None = None,
        wait_ms: int = 0,
        start: str = "earliest",
    ) -> int:
        """The most urgent lane with something for the group, leasing nothing; waits while there is none; -1: none."""
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        check_number("wait_ms", wait_ms, 0, limits.POLL_WAIT_MS_MAX)
        check_start(start)
        deadline = self._loop.time() + wait_ms / 1_000
        while True:
            found = self._topic(topic)
            replicas = self._replicas(found, partitions)
            try:
                await self._polling.make_group(replicas, group, start)
            except NotLeader:
                raise self._lost_one(found, replicas) from None
            self._polling.check_kind(replicas, group)
            lane = self._polling.best_lane(replicas, group)
            left = deadline - self._loop.time()
            if lane >= 0 or left <= 0 or self._draining:
                return lane
            await self._questions.news([replica for _, replica in replicas], left)

    def was_repeated(self, group: str, member: str, sequence: int, call: int) -> bool:
        """Whether a poll was asked again after this call of it. Then its leases are not released when the answer to
        this call cannot be sent: the call that was asked again has them."""
        return self._polling.was_repeated(group, member, sequence, call)

    async def poll_messages(self, identity: Identity, **wanted: Any) -> list[Delivered]:
        """A poll, decoded: for doors whose callers cannot read batches."""
        return await self._unpacking.poll(identity, **wanted)

    async def settle(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem]
    ) -> list[SettleResult]:
        """Ack, nack, extend or reject leased messages; each item has its own result."""
        return await self._settle(identity, topic, group, items, Settle)

    async def release(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem]
    ) -> list[SettleResult]:
        """Give back leased messages that nobody saw, without counting a delivery."""
        return await self._settle(identity, topic, group, items, Release)

    async def _settle(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem], kind: Callable[..., Any]
    ) -> list[SettleResult]:
        self._admit(identity, "settle", topic)
        check_name(group, "group")
        if len(items) > limits.SETTLE_RANGES_MAX:
            raise ValidationError(f"{len(items)} ranges in one call; {limits.SETTLE_RANGES_MAX} are allowed")
        found = self._topic(topic)
        by_partition: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            check_settle(item)
            self._check_partition(found, item.partition)
            by_partition.setdefault(item.partition, []).append(place)
        results: list[SettleResult] = [_NOT_LED] * len(items)

        async def settle_in(partition: int, places: list[int]) -> None:
            request = kind(group, [tuple(items[place])[1:] for place in places])
            try:
                answers = await self._ask(found, partition, request)
            except NotLeader:
                return  # those of other partitions take effect all the same
            for place, (code, count) in zip(places, answers, strict=True):
                results[place] = SettleResult(code, count)

        if len(by_partition) == 1:
            await settle_in(*next(iter(by_partition.items())))
        else:
            await asyncio.gather(*(settle_in(partition, places) for partition, places in by_partition.items()))
        return results
