"""Questions for the leader of one partition: asked there, and again, and elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lanner.client.brokers import Brokers
from lanner.client.leaders import Leaders
from lanner.client.routing import Routing
from lanner.errors import NotLeader, OffsetOutOfRange, PartitionNotFound, ServiceUnavailable
from lanner.wire.messages import Command, Fetch, Fetched


@pytest.fixture
async def leaders(cluster: Any) -> AsyncIterator[Leaders]:
    for broker in cluster.brokers.values():
        broker.answers[Command.FETCH] = lambda control, request, broker=broker: (
            cluster.not_led(broker, [control.partition]) or Fetched(0, 9, 9, [], 1)
        )
    brokers = Brokers(cluster.address, timeout_ms=2_000)
    await brokers.open()
    routing = Routing(brokers)
    yield Leaders(brokers, routing)
    await routing.close()
    await brokers.close()


async def fetch(leaders: Leaders, partition: int, **options: Any) -> int:
    reply, _ = await leaders.request("t", partition, Fetch("t", partition, 0), **options)
    return reply.end_offset


def asked(cluster: Any) -> list[int]:
    return [len(cluster.of(Command.FETCH)[node_id]) for node_id in ("n1", "n2", "n3")]


async def test_the_leader_is_asked_and_nobody_else(cluster: Any, leaders: Leaders) -> None:
    assert await fetch(leaders, 1) == 9
    assert asked(cluster) == [0, 1, 0]


async def test_a_hint_is_followed_without_a_pause(cluster: Any, leaders: Leaders) -> None:
    for partition in range(3):
        await fetch(leaders, partition)
    cluster.leaders[0] = "n3"
    began = asyncio.get_running_loop().time()
    assert await fetch(leaders, 0) == 9
    assert asyncio.get_running_loop().time() - began < 0.5
    assert asked(cluster) == [2, 1, 2]


async def test_the_next_leader_is_waited_for(cluster: Any, leaders: Leaders) -> None:
    cluster.hints = False
    await fetch(leaders, 1)
    await cluster.brokers["n2"].stop()
    cluster.leaders[1] = ""
    asking = asyncio.ensure_future(fetch(leaders, 1))
    await asyncio.sleep(0.2)
    assert not asking.done()
    cluster.leaders[1] = "n1"
    assert await asking == 9


async def test_without_a_leader_the_deadline_ends_it(cluster: Any, leaders: Leaders) -> None:
    await fetch(leaders, 1)
    cluster.leaders[1] = ""
    with pytest.raises(NotLeader):
        await fetch(leaders, 1, timeout_ms=300)
    with pytest.raises(NotLeader):
        leaders._brokers.timeout_ms = 300
        await leaders.commit("t", "g", {1: 5}, "reader", 0)


async def test_what_a_retry_cannot_mend_is_raised_at_once(cluster: Any, leaders: Leaders) -> None:
    cluster.brokers["n2"].answers[Command.FETCH] = lambda control, request: OffsetOutOfRange()
    with pytest.raises(OffsetOutOfRange):
        await fetch(leaders, 1)
    assert asked(cluster) == [0, 1, 0]
    await leaders._brokers.close()
    with pytest.raises(ServiceUnavailable, match="closed on this side"):
        await fetch(leaders, 1)


async def test_a_partition_that_a_topic_made_anew_does_not_have_is_said_to_be_gone(
    cluster: Any, leaders: Leaders
) -> None:
    leaders._brokers.timeout_ms = 30_000
    await fetch(leaders, 2)
    cluster.leaders, cluster.incarnation = ["n1"], 2
    leaders._routing.refresh("t")
    await cluster.brokers["n1"].until(lambda: leaders._routing.known("t").partitions == 1)  # type: ignore[union-attr]
    async with asyncio.timeout(15):
        with pytest.raises(PartitionNotFound, match="t has no partition 2: it was made anew"):
            await leaders.commit("t", "g", {0: 5, 2: 5}, "reader", 0)
        with pytest.raises(PartitionNotFound):
            await fetch(leaders, 2)
