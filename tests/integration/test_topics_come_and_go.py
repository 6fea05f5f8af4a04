"""Workers that start before their topic, and those whose topic goes away under them, over a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

import lanner
from lanner.broker.settings import BrokerSettings
from lanner.errors import LeaseLost, StaleIncarnation, TopicNotFound
from lanner.server import Server

POLL = "/v1/topics/orders/groups/workers/poll"


@pytest.fixture(params=[True, False], ids=["topics create themselves", "topics are created"])
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    settings = BrokerSettings(
        data=str(tmp_path / "data"),
        http="127.0.0.1:0",
        native="127.0.0.1:0",
        disk_reserve_bytes=0,
        auto_create_topics=request.param,
    )
    server = Server(settings)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def queue(server: Server) -> AsyncIterator[lanner.Queue]:
    assert server.native_address is not None
    async with lanner.connect("{}:{}".format(*server.native_address), timeout_ms=10_000) as queue:
        yield queue


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    assert server.http_address is not None
    async with httpx.AsyncClient(base_url="http://{}:{}".format(*server.http_address), timeout=20) as http:
        yield http


async def publish(queue: lanner.Queue, server: Server, value: bytes) -> None:
    if not server.settings.auto_create_topics:
        await queue.admin.create_topic("orders", partitions=1)
    await queue.publish("orders", value)


async def first(consumer: lanner.Consumer) -> bytes:
    async for message in consumer:
        await message.ack()
        return message.value
    raise AssertionError("a consumer that iterates never ends")


async def test_a_worker_waits_for_its_topic_and_for_the_next_one_of_its_name(
    server: Server, queue: lanner.Queue
) -> None:
    async with queue.consumer("orders", "workers") as consumer:
        for value in (b"before", b"after it was deleted"):
            waiting = asyncio.ensure_future(first(consumer))
            assert not (await asyncio.wait([waiting], timeout=0.3))[0]
            await publish(queue, server, value)
            assert await asyncio.wait_for(waiting, 10) == value
            await queue.admin.delete_topic("orders")


async def test_a_topic_that_is_deleted_while_a_poll_waits(server: Server, queue: lanner.Queue) -> None:
    await publish(queue, server, b"first")
    async with queue.consumer("orders", "workers") as consumer:
        assert await first(consumer) == b"first"
        waiting = asyncio.ensure_future(first(consumer))
        assert not (await asyncio.wait([waiting], timeout=0.3))[0]
        await queue.admin.delete_topic("orders")
        assert not (await asyncio.wait([waiting], timeout=0.3))[0]
        await publish(queue, server, b"second")
        assert await asyncio.wait_for(waiting, 10) == b"second"


async def test_a_poll_before_the_topic_brings_nothing(server: Server, queue: lanner.Queue) -> None:
    async with queue.consumer("orders", "workers") as consumer:
        assert len(await consumer.poll(10, wait_ms=0)) == 0
        assert len(await consumer.poll(10, wait_ms=150)) == 0


async def test_a_poll_over_rest_waits_for_the_topic(
    server: Server, queue: lanner.Queue, http: httpx.AsyncClient
) -> None:
    waiting = asyncio.ensure_future(http.post(POLL, json={"wait_ms": 10_000}))
    assert not (await asyncio.wait([waiting], timeout=0.3))[0]
    await publish(queue, server, b"x")
    reply = await waiting
    assert [message["value"] for message in reply.json()["messages"]] == ["x"]

    waiting = asyncio.ensure_future(http.post(POLL, json={"wait_ms": 10_000}))
    await asyncio.wait([waiting], timeout=0.3)
    await queue.admin.delete_topic("orders")
    assert not (await asyncio.wait([waiting], timeout=0.3))[0]
    await publish(queue, server, b"y")
    assert [message["value"] for message in (await waiting).json()["messages"]] == ["y"]


async def test_a_poll_over_rest_that_does_not_wait(server: Server, http: httpx.AsyncClient) -> None:
    reply = await http.post(POLL, json={})
    assert reply.status_code == (200 if server.settings.auto_create_topics else 404)


@pytest.mark.parametrize(
    "path",
    [
        "/topic/orders/consume?consumerID=me",
        "/topic/orders/peek",
        "/topics/orders/partitions",
        "/raft/stats?topic=orders",
        "/v1/topics/orders",
        "/v1/topics/orders/offsets",
        "/v1/topics/orders/groups",
        "/v1/topics/orders/groups/workers",
        "/v1/topics/orders/partitions/0/messages?wait_ms=50",
    ],
)
async def test_a_get_never_creates(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path)).status_code == 404
    assert (await http.get("/topics")).json() == {"topics": []}


async def test_a_stream_reader_is_told_that_its_topic_is_gone_or_another(server: Server, queue: lanner.Queue) -> None:
    await queue.admin.create_topic("orders", partitions=1)
    await queue.publish("orders", b"x")
    with pytest.raises(TopicNotFound):
        async with queue.reader("missing"):
            pass
    async with queue.reader("orders") as reader:
        assert (await reader.read_batch(5_000)).values() == [b"x"]
        waiting = asyncio.ensure_future(reader.read_batch(10_000))
        assert not (await asyncio.wait([waiting], timeout=0.3))[0]
        await queue.admin.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            await waiting
        await queue.admin.create_topic("orders", partitions=1)
        await queue.publish("orders", b"y")
        with pytest.raises(StaleIncarnation):
            await reader.read_batch(10_000)
        await queue.admin.delete_topic("orders")
    assert await queue.admin.topics() == []


async def test_what_was_leased_of_a_partition_that_is_gone_is_lost_at_once_and_costs_no_other_settle(
    server: Server, queue: lanner.Queue
) -> None:
    await queue.admin.create_topic("jobs", partitions=4)
    await queue.publish("jobs", b"old", partition=3)
    async with queue.consumer("jobs", "g", auto_extend=True) as consumer:
        (old,) = await consumer.poll(1)
        await queue.admin.delete_topic("jobs")
        await queue.admin.create_topic("jobs", partitions=1)
        await queue.publish("jobs", b"new")
        (new,) = await consumer.poll(1, wait_ms=10_000)
        settles = [old.ack(), new.ack()]  # they leave together
        with pytest.raises(LeaseLost, match="no partition 3 now"):
            await settles[0]
        await settles[1]
    async with queue.consumer("jobs", "g") as consumer:
        assert not await consumer.poll(wait_ms=100)
