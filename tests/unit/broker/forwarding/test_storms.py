"""Everything at once, from one seed: calls lost on the way there and back, brokers cut off, stopped and started again,
leaders moved; meanwhile callers publish, poll and settle through whichever broker they like."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from lanner import limits
from lanner.calls import ANONYMOUS
from lanner.errors import LannerError
from lanner.forwarding.values import Delivered, NewMessage
from lanner.wire.messages import SettleItem
from tests.unit.broker.offices import Office, Offices, opened

SEEDS = (1, 2, 3)
SECONDS = 2.5
ACK = 1


class Storm:
    """The callers, what they were told, and the trouble they have."""

    def __init__(self, offices: Offices, seed: int) -> None:
        self.offices = offices
        self.random = Random(seed)
        self.over = False
        self.asked: set[bytes] = set()
        self.stored: dict[bytes, tuple[int, int]] = {}
        self.seen: dict[bytes, int] = {}
        self.acked: set[bytes] = set()
        self.failures = 0
        offices.refuse = lambda node_id, command: not self.over and self.random.random() < 0.05
        offices.lose = lambda node_id, command: not self.over and self.random.random() < 0.05

    def any_broker(self) -> Office:
        return self.random.choice([office for office in self.offices.by_name.values() if office.broker.up])

    async def publish(self, worker: int) -> None:
        number = 0
        while not self.over:
            values = [b"%d-%d-%d" % (worker, number, place) for place in range(self.random.randint(1, 5))]
            self.asked.update(values)
            number += 1
            messages = [NewMessage(value, priority=self.random.choice((0, 4, 9))) for value in values]
            try:
                stored = await self.any_broker().anywhere.publish_messages(ANONYMOUS, "orders", messages)
            except LannerError:
                self.failures += 1
                continue
            self.stored.update({value: place[:2] for value, place in zip(values, stored, strict=True)})
            await asyncio.sleep(0.002)

    async def consume(self, worker: int) -> None:
        while not self.over:
            await self.poll_once(f"worker-{worker}")

    async def poll_once(self, member: str) -> int:
        try:
            found = await self.any_broker().anywhere.poll_messages(
                ANONYMOUS, topic="orders", group="g", member=member, max_messages=10, wait_ms=50
            )
            for item in found:
                self.seen[item.message.value] = self.seen.get(item.message.value, 0) + 1
            await self._ack(found)
        except LannerError:
            self.failures += 1
            return 1
        return len(found)

    async def _ack(self, found: list[Delivered]) -> None:
        items = [SettleItem(one.message.partition, one.token, one.message.offset, 1, ACK) for one in found]
        results = await self.any_broker().anywhere.settle(ANONYMOUS, "orders", "g", items)
        for one, result in zip(found, results, strict=True):
            if result.code == 0:
                self.acked.add(one.message.value)

    async def trouble(self) -> None:
        flock = self.offices.flock
        while not self.over:
            await asyncio.sleep(self.random.uniform(0.05, 0.2))
            kind = self.random.choice(("cut", "stop", "transfer"))
            office = self.any_broker()
            if kind == "cut":
                flock.cut.add(office.node_id)
                await asyncio.sleep(self.random.uniform(0.02, 0.2))
                flock.cut.discard(office.node_id)
            elif kind == "stop":
                self.offices.stop(office)
                await asyncio.sleep(self.random.uniform(0.02, 0.2))
                self.offices.restart(office.name)
            else:
                target = self.any_broker().name
                try:
                    await self.any_broker().anywhere.change_cluster(
                        ANONYMOUS, "transfer", topic="orders", partition=self.random.randrange(3), target=target
                    )
                except LannerError:
                    self.failures += 1


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_acknowledged_is_lost_and_nothing_is_stored_twice(seed: int) -> None:
    async with opened() as offices:
        offices.topic("orders", 3, lease_ms=60_000)
        storm = Storm(offices, seed)
        callers = [asyncio.create_task(storm.publish(worker)) for worker in range(4)]
        callers += [asyncio.create_task(storm.consume(worker)) for worker in range(3)]
        callers.append(asyncio.create_task(storm.trouble()))
        await asyncio.sleep(SECONDS)
        storm.over = True
        async with asyncio.timeout(60):
            await asyncio.gather(*callers)
            await drained(storm)
        kept = await everything(offices)
        values = [value for found in kept.values() for value in found]
        assert len(values) == len(set(values)), f"seed {seed}: stored twice"
        assert set(values) <= storm.asked
        for value, (partition, offset) in storm.stored.items():
            assert kept[partition][offset] == value, f"seed {seed}: not where it was said to be"
        assert storm.stored.keys() <= storm.seen.keys(), f"seed {seed}: never handed out"
        assert len(storm.stored) > 50 and storm.acked


async def drained(storm: Storm) -> None:
    """Work until the group has nothing left, leases that nobody holds any more included."""
    while True:
        if await storm.poll_once("the last") == 0:
            group = await storm.any_broker().anywhere.group(ANONYMOUS, "orders", "g")
            if not any(state.lag for state in group.partitions):
                return


async def everything(offices: Offices) -> dict[int, list[bytes]]:
    kept: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for partition, values in kept.items():
        while True:
            seen = await offices["a"].anywhere.peek(
                ANONYMOUS, "orders", [partition], len(values), limits.LIST_ITEMS_MAX
            )
            if not seen:
                break
            values += [message.value for message in sorted(seen, key=lambda message: message.offset)]
    return kept
