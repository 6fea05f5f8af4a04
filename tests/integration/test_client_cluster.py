"""The client against three real brokers in this process: leaders move, a broker goes and comes back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import lanner
from lanner.broker.settings import BrokerSettings
from lanner.server import Server
from lanner.testing.process import HOST, free_port

TOPIC = "orders"
PARTITIONS = 6


class Trio:
    """Three brokers on ports of their own, which they keep."""

    def __init__(self, folder: Path) -> None:
        self.seeds = tuple(f"{HOST}:{free_port()}" for _ in range(3))
        self.names = ("a", "b", "c")
        self._folder = folder
        self.servers: dict[str, Server] = {}

    def make(self, name: str) -> Server:
        self.servers[name] = Server(
            BrokerSettings(
                data=str(self._folder / name),
                http="",
                native=self.seeds[self.names.index(name)],
                seeds=self.seeds,
                name=name,
                disk_reserve_bytes=0,
            )
        )
        return self.servers[name]

    async def start(self) -> None:
        async with asyncio.timeout(30):
            await asyncio.gather(*(self.make(name).start() for name in self.names))

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self.servers.values()))

    async def restart(self, name: str, away_s: float) -> None:
        await self.servers[name].stop()
        await asyncio.sleep(away_s)
        async with asyncio.timeout(30):
            await self.make(name).start()

    def move(self, partition: int) -> None:
        """Have another broker lead the partition, now."""
        for server in self.servers.values():
            replica = server.node.engine.replicas[server.service.find_topic(TOPIC).set_ids[partition]]
            if replica.leads and not replica.node.transferee:
                others = sorted(replica.node.voters - {replica.node.node_id})
                replica.node.transfer(random.choice(others))
                server.node.engine.wake(replica.set_id)
                server.node.commits.kick()

    @property
    def address(self) -> str:
        return ",".join(self.seeds)


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    trio = Trio(tmp_path)
    await trio.start()
    yield trio
    await trio.stop()


class Traffic:
    """Publishes keyed messages one after the other for each key, and remembers what was confirmed."""

    def __init__(self, queue: lanner.Queue, keys: int, rng: random.Random) -> None:
        self._queue = queue
        self._rng = rng
        self._stopping = False
        self.confirmed: dict[str, list[bytes]] = {f"k{number}": [] for number in range(keys)}
        self.longest_s = 0.0

    async def run(self) -> None:
        await asyncio.gather(*(self._publish(key) for key in self.confirmed))

    async def _publish(self, key: str) -> None:
        loop = asyncio.get_running_loop()
        priority = self._rng.choice([0, 4, 9])  # one for each key: order holds within a lane
        number = 0
        while not self._stopping:
            value = f"{key}:{number}".encode()
            began = loop.time()
            await self._queue.publish(TOPIC, value, key=key, priority=priority)
            self.longest_s = max(self.longest_s, loop.time() - began)
            self.confirmed[key].append(value)
            number += 1
            await asyncio.sleep(0.004)

    def stop(self) -> None:
        self._stopping = True

    @property
    def count(self) -> int:
        return sum(len(values) for values in self.confirmed.values())


class Worker:
    """Takes messages and acks them; what was acked is done."""

    def __init__(self, queue: lanner.Queue) -> None:
        self._queue = queue
        self.acked: Counter[bytes] = Counter()
        self.unsure = 0

    async def run(self) -> None:
        async with self._queue.consumer(TOPIC, "workers", max_messages=50) as consumer:
            while True:
                batch = await consumer.poll(wait_ms=500)
                try:
                    await batch.ack()
                except lanner.LeaseLost:
                    self.unsure += len(batch)  # an earlier sending of the ack may have taken effect
                self.acked.update(batch.values())


async def leaders_of(queue: lanner.Queue) -> list[str]:
    (topic,) = (await queue.admin.cluster()).topics
    return [partition.leader for partition in topic.partitions]


async def storm(trio: Trio, trouble: Callable[[lanner.Queue], Awaitable[None]]) -> Traffic:
    """Publish and consume while there is trouble; then everything confirmed must be there once, in order, and done."""
    rng = random.Random(7)
    async with lanner.connect(trio.address, timeout_ms=20_000) as queue:
        await queue.admin.create_topic(TOPIC, partitions=PARTITIONS)
        traffic = Traffic(queue, 12, rng)
        workers = [Worker(queue), Worker(queue)]
        publishing = asyncio.create_task(traffic.run())
        working = [asyncio.create_task(worker.run()) for worker in workers]
        await trouble(queue)
        traffic.stop()
        async with asyncio.timeout(25):
            await publishing
        expected = {value for values in traffic.confirmed.values() for value in values}
        async with asyncio.timeout(45):
            while not expected <= {value for worker in workers for value in worker.acked}:
                assert not any(task.done() for task in working), [task for task in working if task.done()]
                await asyncio.sleep(0.05)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        stored: dict[str, list[bytes]] = {key: [] for key in traffic.confirmed}
        async with queue.reader(TOPIC, until_end=True) as reader:
            async for message in reader:
                assert message.key is not None
                stored[message.key.decode()].append(message.value)
        assert stored == traffic.confirmed
        unsure = sum(worker.unsure for worker in workers)
        acked = sum((worker.acked for worker in workers), Counter())
        twice = sum(count - 1 for count in acked.values())
        print(
            f"{traffic.count} confirmed, each stored once and in order; {twice} delivered again, {unsure} acks unsure; "
            f"longest publish {traffic.longest_s:.2f} s"
        )
        assert twice <= unsure
        return traffic


async def test_leaders_move_and_every_message_is_stored_once_in_order_and_done(trio: Trio) -> None:
    rng = random.Random(3)
    moved = 0

    async def moves(queue: lanner.Queue) -> None:
        nonlocal moved
        before = await leaders_of(queue)
        for _ in range(20):
            trio.move(rng.randrange(PARTITIONS))
            await asyncio.sleep(0.15)
            after = await leaders_of(queue)
            moved += sum(one != other for one, other in zip(before, after, strict=True))
            before = after

    traffic = await storm(trio, moves)
    print(f"{moved} moves seen")
    assert moved >= 3
    assert traffic.count > 200
    assert traffic.longest_s < 5


async def test_a_broker_goes_and_comes_back_and_nothing_is_lost(trio: Trio) -> None:
    async def rolling(queue: lanner.Queue) -> None:
        await asyncio.sleep(0.5)
        for name in trio.names:
            await trio.restart(name, 0.3)
            await asyncio.sleep(0.5)

    traffic = await storm(trio, rolling)
    assert traffic.count > 300


async def test_high_comes_before_low_over_brokers_and_inversions_are_counted(trio: Trio) -> None:
    async with lanner.connect(trio.address, timeout_ms=20_000) as queue:
        await queue.admin.create_topic(TOPIC, partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            await queue.publish_many(TOPIC, [b"low"] * 80, partition=partition, priority="low")
        confirmed: set[str] = set()  # those that are high
        delivered: set[str] = set()
        polls = inversions = low = high = 0

        async def publish_high() -> None:
            for number in range(120):
                receipt = await queue.publish(TOPIC, b"high", partition=number % PARTITIONS, priority="high")
                confirmed.add(receipt.id)
                await asyncio.sleep(0.002)

        publishing = asyncio.create_task(publish_high())
        async with queue.consumer(TOPIC, "workers", max_messages=5) as consumer:
            while low < PARTITIONS * 80 or high < 120:
                waiting = confirmed - delivered
                batch = await consumer.poll(wait_ms=1_000)
                polls += 1
                urgent = [message.id for message in batch if message.priority == 9]
                low += len(batch) - len(urgent)
                high += len(urgent)
                delivered.update(urgent)
                inversions += bool(waiting - delivered) and len(urgent) < len(batch)
                await batch.ack()
        await publishing
        print(
            f"{polls} polls, {inversions} took something low while something high, confirmed before, waited elsewhere"
        )
        assert inversions <= polls * 0.05
