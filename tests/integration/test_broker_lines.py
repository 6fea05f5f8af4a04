"""What goes over the lines between real brokers: snapshots, hand-overs, clocks; full disks stop none of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lanner import batch
from lanner.broker.node import Node, wall_clock_ms
from lanner.broker.replicas.engine import Engine
from lanner.broker.settings import BrokerSettings
from lanner.calls import ANONYMOUS
from lanner.cluster import encode_create_topic
from lanner.errors import StorageFull
from lanner.model import TopicSettings
from lanner.server import Server
from lanner.testing.process import free_port
from tests.callers import Here

SECONDS = 30.0
HOUR_MS = 3_600_000


class Three:
    """Three brokers in this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        self.servers: dict[int, Server] = {}

    def make(self, number: int) -> Server:
        self.servers[number] = Server(
            BrokerSettings(
                data=str(self._path / str(number)),
                http="",
                native=self._addresses[number],
                seeds=tuple(self._addresses),
                name=f"broker{number}",
                disk_reserve_bytes=0,
                drain_ms=500,
                save_interval_ms=50,
            )
        )
        return self.servers[number]

    async def start(self, *servers: Server) -> None:
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(server.start() for server in servers))

    async def make_topic(self) -> None:
        settings = TopicSettings(partitions=1, replication=3)
        await self.servers[0].node.proposals.propose(encode_create_topic("orders", settings, 1))
        await self.until(
            lambda: all(server.node.readiness.complete and 1 in server.node.engine.replicas for server in self.running)
        )

    @property
    def running(self) -> list[Server]:
        return list(self.servers.values())

    async def leader(self) -> int:
        """The number of the broker that leads the topic's partition."""
        await self.until(lambda: any(self.leads(number) for number in self.servers))
        return next(number for number in self.servers if self.leads(number))

    def leads(self, number: int) -> bool:
        replica = self.servers[number].node.engine.replicas.get(1)
        return replica is not None and replica.leads

    async def publish(self, number: int, values: list[bytes]) -> None:
        await Here(self.servers[number].service).publish(ANONYMOUS, "orders", 0, batch.encode(values))

    def ends(self) -> list[int]:
        return [server.node.engine.replicas[1].partition.end_offset for server in self.running]

    async def until(self, condition: object) -> None:
        assert callable(condition)
        async with asyncio.timeout(SECONDS):
            while not condition():
                await asyncio.sleep(0.02)


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    three = Three(tmp_path)
    yield three
    for server in three.running:
        await server.stop()


async def test_a_broker_that_is_far_behind_catches_up_by_a_snapshot_while_publishing_goes_on(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Engine.__init__.__kwdefaults__, "tail_entries", 5)
    monkeypatch.setitem(Engine.__init__.__kwdefaults__, "tail_bytes_max", 100_000)
    await three.start(*(three.make(number) for number in range(3)))
    await three.make_topic()
    leader = await three.leader()
    away = (leader + 1) % 3
    await three.servers.pop(away).stop()
    for number in range(60):
        await three.publish(leader, [b"%d" % number * 1_000] * 20)
    node = three.servers[leader].node
    await three.until(lambda: node.engine.replicas[1].node.compacted_index > 30)
    await three.start(three.make(away))
    await three.publish(leader, [b"meanwhile"])
    await three.until(lambda: three.ends() == [1_201] * 3)
    assert node.engine.sending.completed >= 1
    assert three.servers[away].node.engine.installs.completed >= 1


async def test_a_broker_that_stops_hands_over_before_its_door_closes(three: Three) -> None:
    await three.start(*(three.make(number) for number in range(3)))
    await three.make_topic()
    leader = await three.leader()
    stopping = three.servers.pop(leader)
    started = asyncio.get_running_loop().time()
    await stopping.node.hand_over(2_000)
    took = asyncio.get_running_loop().time() - started
    assert took < 1.0, "handing over is no election timeout"
    assert not stopping.node.steward.led()
    successor = await three.leader()
    await three.publish(successor, [b"on"])
    await stopping.stop()


async def test_brokers_that_all_stop_at_once_do_not_wait_for_each_other(three: Three) -> None:
    await three.start(*(three.make(number) for number in range(3)))
    await three.make_topic()
    servers = three.running
    three.servers.clear()
    started = asyncio.get_running_loop().time()
    await asyncio.gather(*(server.stop() for server in servers))
    assert asyncio.get_running_loop().time() - started < 2.0, "less than anybody would wait for a successor"


async def test_a_full_disk_refuses_publishes_at_the_leader_and_replication_goes_on(three: Three) -> None:
    await three.start(*(three.make(number) for number in range(3)))
    await three.make_topic()
    leader = await three.leader()
    follower = (leader + 1) % 3
    three.servers[follower].node.saving.room.is_full = True
    await three.publish(leader, [b"a"])
    await three.until(lambda: three.ends() == [1, 1, 1])
    three.servers[leader].node.saving.room.is_full = True
    with pytest.raises(StorageFull):
        await three.publish(leader, [b"b"])
    assert three.leads(leader)


async def test_a_clock_one_hour_ahead_moves_no_leaders_time(three: Three) -> None:
    servers = [three.make(number) for number in range(3)]
    servers[0].node = Node(servers[0].settings, now_ms=lambda: wall_clock_ms() + HOUR_MS)
    await three.start(*servers)
    ahead = servers[0].node
    await three.until(lambda: ahead.clock.now_ms() < wall_clock_ms() + 1_000)
    assert ahead.own_clock.now_ms() > wall_clock_ms() + HOUR_MS - 1_000
    assert abs(servers[1].node.clock.now_ms() - wall_clock_ms()) < 1_000
