"""Queue use: poll, settle, release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lanner import limits
from lanner.broker.calls import (
    Delivered,
    Identity,
    PollResult,
    SettleItem,
    SettleResult,
)
from lanner.broker.checks import check_poll, check_settle
from lanner.broker.delivery import messages_of
from lanner.broker.desk import Desk
from lanner.errors import ValidationError
from lanner.model import check_name
from lanner.partition import Poll, Release, Settle


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
    ) -> PollResult:
        """Lease messages, the most urgent first; waits for up to wait_ms when there are none."""
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        check_poll(member, sequence, max_messages, max_bytes, wait_ms, lease_ms, start)
        request = Poll(
            group=group,
            member=member,
            sequence=sequence,
            max_messages=max_messages,
            max_bytes=max_bytes,
            lease_ms=None if lease_ms < 0 else lease_ms,
            auto_ack=auto_ack,
            start=start,
        )
        deadline = self._loop.time() + wait_ms / 1_000
        while True:
            replicas = self._replicas(self._topic(topic), partitions)  # anew each time: topics grow, and go
            leased, limited = await self._polling.lease(replicas, request)
            if leased:
                try:
                    return PollResult(await self._polling.read(leased), limited)
                except BaseException:
                    self._polling.give_back(request, leased)
                    raise
            left = deadline - self._loop.time()
            if left <= 0 or self._draining:
                return PollResult((), limited)
            await self._polling.something_deliverable([replica for _, replica in replicas], left)

    async def poll_messages(self, identity: Identity, **wanted: Any) -> list[Delivered]:
        """A poll, decoded: for doors whose callers cannot read batches."""
        result = await self.poll(identity, **wanted)
        return messages_of(wanted["topic"], result.batches)

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
            self._replica(found, item.partition)
            by_partition.setdefault(item.partition, []).append(place)
        results: list[SettleResult] = [SettleResult(0, 0)] * len(items)

        async def settle_in(partition: int, places: list[int]) -> None:
            request = kind(group, [tuple(items[place])[1:] for place in places])
            answers, _ = await self._polling.ask(self._replica(found, partition), request)
            for place, (code, count) in zip(places, answers, strict=True):
                results[place] = SettleResult(code, count)

        if len(by_partition) == 1:
            await settle_in(*next(iter(by_partition.items())))
        else:
            await asyncio.gather(*(settle_in(partition, places) for partition, places in by_partition.items()))
        return results
