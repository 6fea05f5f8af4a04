"""Clients that reach three brokers only through a proxy, over every door, while brokers and proxies die."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

import lanner
from lanner import batch
from lanner.errors import LannerError, NotSupported
from lanner.net.connector import open_connection
from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.process import HOST, BrokerProcess
from lanner.testing.proxy_process import ProxyProcess
from lanner.testing.workload import Workload
from lanner.wire.messages import (
    Command,
    Empty,
    Fetch,
    LeasedRange,
    OpenProducer,
    Poll,
    Polled,
    Publish,
    Settle,
    SettleItem,
)
from tests.brokers import SMALL_SEGMENTS, running_cluster, shared_cluster
from tests.grpc_client import Service

__all__ = ["running_cluster", "shared_cluster"]

PARTITIONS = 3
RESUME_SECONDS = 30.0
PROTOS = Path(__file__).parents[2] / "proto"


@pytest.fixture
def proxy(cluster: ClusterProcess) -> Iterator[ProxyProcess]:
    with ProxyProcess(cluster.folder, cluster.address) as process:
        yield process


@pytest.fixture
def second(cluster: ClusterProcess) -> Iterator[ProxyProcess]:
    with ProxyProcess(cluster.folder, cluster.address) as process:
        yield process


class KeptOpen:
    """One connection of each kind, each used again and again, so that a dropped one is noticed."""

    def __init__(self, proxy: ProxyProcess, topic: str) -> None:
        self._topic = topic
        self._rest = http.client.HTTPConnection(proxy.host, proxy.http_port, timeout=30)
        self._rest.connect()
        self._rest.auto_open = 0  # a connection that was dropped is not made anew
        self._native = socket.create_connection((proxy.host, proxy.native_port), timeout=30)
        self._channel = grpc.insecure_channel(proxy.grpc)
        self._queue = Service(self._channel, PROTOS, "lanner/v1/queue.proto", "lanner.v1.Queue")
        self._stream = self._queue.Subscribe(topic=topic, group="watchers", timeout=120)
        self._numbers = iter(range(1_000_000))

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        text = None if body is None else json.dumps(body)
        self._rest.request(method, path, text, {"content-type": "application/json"} if text else {})
        with self._rest.getresponse() as reply:
            return reply.status, json.loads(reply.read() or b"null")

    def use(self) -> None:
        """Publish over REST, see it come by the gRPC stream, and settle it."""
        value = f"kept-{next(self._numbers)}"
        status, told = self.request("POST", f"/v1/topics/{self._topic}/messages", {"messages": [{"value": value}]})
        assert status == 200, told
        while True:
            found = next(self._stream).messages
            leases = [
                {"partition": one.message.partition, "offset": one.message.offset, "token": one.token} for one in found
            ]
            self._queue.Ack(topic=self._topic, group="watchers", leases=leases, timeout=60)
            if any(one.message.value == value.encode() for one in found):
                return

    def close(self) -> None:
        self._stream.cancel()
        self._channel.close()
        self._rest.close()
        self._native.close()


async def test_a_client_stays_with_the_proxy_and_finds_everything_there(proxy: ProxyProcess) -> None:
    async with lanner.connect(proxy.native) as queue:
        await queue.admin.create_topic("tour", partitions=3)
        for number in range(30):
            await queue.publish("tour", f"{number}", priority=number % 10)
        seen = []
        async with queue.consumer("tour", group="workers") as consumer:
            async for message in consumer:
                seen.append(int(message.value))
                await message.ack()
                if len(seen) == 30:
                    break
        assert sorted(seen) == list(range(30))
        async with queue.reader("tour", start="earliest", until_end=True) as reader:
            assert sorted([int(message.value) async for message in reader]) == list(range(30))
        (address,) = {session.addresses[0] for session in queue._brokers._sessions.values()}
        assert address == (proxy.host, proxy.native_port)
        assert len((await queue.admin.cluster()).brokers) == 1, "clients are told of the proxy alone"
        described = await queue.admin.describe_cluster()
        assert sorted(one.name for one in described.brokers) == ["broker-1", "broker-2", "broker-3"]


async def test_operators_are_told_the_same_through_the_proxy(cluster: ClusterProcess, proxy: ProxyProcess) -> None:
    async with lanner.connect(proxy.native) as queue:
        await queue.admin.create_topic("told", partitions=3)
        await queue.publish("told", "one")

    def told(*words: str, servers: str) -> Any:
        command = [sys.executable, "-m", "lanner.cli", *words, "--json", "-s", servers]
        return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)

    def listed(servers: str) -> Any:
        (row,) = [row for row in told("topic", "list", servers=servers)["topics"] if row["name"] == "told"]
        return row

    truth = listed(cluster.address)
    assert truth["replicas"] == 3 and sum(truth["leaders"].values()) == 3
    assert listed(proxy.native) == truth
    assert told("topic", "show", "told", servers=proxy.native) == told("topic", "show", "told", servers=cluster.address)
    async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
        found = (await http.get(f"{proxy.url}/topics/told/partitions")).json()["partitions"]
    assert {one["leaderName"] for one in found} <= {"broker-1", "broker-2", "broker-3"}
    assert {len(one["replicas"]) for one in found} == {3}


async def test_what_callers_of_a_proxy_hold_is_counted_at_the_brokers(
    cluster: ClusterProcess, proxy: ProxyProcess
) -> None:
    async with lanner.connect(cluster.address) as queue:
        await queue.admin.create_topic("held", partitions=3)
        await queue.publish_many("held", [b"x"] * 9)
        async with httpx.AsyncClient(base_url=proxy.url, trust_env=False, timeout=30) as http:
            answer = await http.post("/v1/topics/held/groups/web/poll", json={"max_messages": 9, "wait_ms": 10_000})
            got = len(answer.json()["messages"])
            assert got
            listed = await queue.admin.clients(group="web")
            assert sum(use.leased for one in listed.clients for use in one.uses if use.group == "web") == got


async def test_a_commit_over_partitions_of_several_brokers_passes_through(proxy: ProxyProcess) -> None:
    async with lanner.connect(proxy.native) as queue:
        await queue.admin.create_topic("bundles", partitions=6)
        numbers = itertools.count()
        async with queue.transaction("bundler", "test", next(numbers)) as transaction:
            for number in range(60):
                await transaction.publish("bundles", f"{number}", partition=number % 6)
        async with queue.reader("bundles", start="earliest", until_end=True) as reader:
            assert sorted([int(message.value) async for message in reader]) == list(range(60))
        with pytest.raises(LannerError):
            async with queue.transaction("bundler", "test", next(numbers)) as transaction:
                await transaction.publish("bundles", "never", partition=1)
                raise NotSupported("the work failed")
        assert sum(one.end_offset for one in await queue.admin.offsets("bundles")) == 60


async def test_any_broker_may_die_under_load_and_no_connection_of_a_client_does(
    cluster: ClusterProcess, proxy: ProxyProcess
) -> None:
    workload = Workload(proxy.native, "fire", partitions=PARTITIONS, urls=[proxy.url], pause_seconds=0.01)
    await workload.make_topic()
    async with lanner.connect(proxy.native) as queue:
        await queue.admin.create_topic("kept", partitions=3)
        kept = KeptOpen(proxy, "kept")
        workload.start(3, 2, rest_publishers=3, rest_consumers=1)
        try:
            await workload.until_published(RESUME_SECONDS)
            await asyncio.to_thread(kept.use)
            for number in cluster.brokers:
                workload.disturb()
                await asyncio.to_thread(cluster.kill, number)
                await workload.until_published(RESUME_SECONDS)
                await asyncio.to_thread(kept.use)
                await queue.publish("kept", "native")
                await asyncio.to_thread(cluster.restart, number)
                workload.calm()
            broken = await workload.finish()
            reconnects = [session.reconnects for session in queue._brokers._sessions.values()]
        finally:
            await workload.close()
            kept.close()
    print(f"{workload.acknowledged} acknowledged, failures {dict(workload.failures)}")
    assert broken == []
    assert reconnects == [0]
    lost = {what for what in workload.failures if "Connection" in what or "RemoteDisconnected" in what}
    assert not lost, workload.failures
    assert workload.acknowledged > 100


async def test_two_proxies_serve_one_group_and_one_of_them_dies(
    cluster: ClusterProcess, proxy: ProxyProcess, second: ProxyProcess
) -> None:
    """Half of the workers begin at each; all know both."""
    workload = Workload(f"{proxy.native},{second.native}", "pair", partitions=PARTITIONS, pause_seconds=0.01)
    await workload.make_topic()
    workload.start(4, 4)
    try:
        await workload.until_published(RESUME_SECONDS)
        for one in (proxy, second):
            workload.disturb()
            await asyncio.to_thread(one.kill)
            await workload.until_published(RESUME_SECONDS)
            await asyncio.to_thread(one.start)
            workload.calm()
        broken = await workload.finish()
    finally:
        await workload.close()
    print(f"{workload.acknowledged} acknowledged, failures {dict(workload.failures)}")
    assert broken == []


async def test_members_of_one_group_keep_their_places_when_they_change_proxies(
    proxy: ProxyProcess, second: ProxyProcess
) -> None:
    """Each knows both proxies; the one that serves them dies between two heartbeats."""
    address = f"{proxy.native},{second.native}"
    seen: dict[str, list[str]] = {"a": [], "b": []}

    async def work(name: str) -> None:
        options: Any = {"assignor": "sticky", "session_ms": 10_000}
        async with (
            lanner.connect(address) as queue,
            queue.consumer("shared-out", group="members", **options) as consumer,
        ):
            async for message in consumer:
                seen[name].append(message.value.decode())
                await message.ack()

    async with lanner.connect(address) as queue:
        await queue.admin.create_topic("shared-out", partitions=6)
        workers = [asyncio.create_task(work(name)) for name in seen]
        try:
            before = await _settled(queue)
            for first, dies in ((0, proxy), (60, second)):
                for number in range(first, first + 60):
                    await queue.publish("shared-out", f"{number}", partition=number % 6)
                await _until(lambda first=first: len(seen["a"]) + len(seen["b"]) >= first + 60, 60)
                await asyncio.to_thread(dies.kill)
                await asyncio.to_thread(dies.start)
            after = await _settled(queue)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(map(int, seen["a"] + seen["b"])) == list(range(120)), "each once"
    assert all(len(values) == 60 for values in seen.values()), "each its own half"
    assert after == before


async def _settled(queue: lanner.Queue) -> dict[str, list[Any]]:
    """What each of two members holds, once they have everything."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        with suppress(LannerError):
            found = await queue.admin.group_members("members")
            if (found.state, found.count, found.unowned) == ("settled", 2, 0):
                return {member.member_id: member.held for member in found.members}
        await asyncio.sleep(0.05)
    raise AssertionError("the group never came to rest")


async def test_a_poll_that_is_repeated_through_another_proxy_brings_the_same_leases(
    proxy: ProxyProcess, second: ProxyProcess
) -> None:
    """Its member and number say whose it is, so that a client may change proxies while its answer is on the way."""
    async with lanner.connect(proxy.native) as queue:
        await queue.admin.create_topic("again", partitions=3)
        for number in range(30):
            await queue.publish("again", f"{number}", partition=number % 3)
    poll = Poll("g", "again", "me", 0, [0, 1, 2], max_messages=12)
    answers = []
    for one in (proxy, second, proxy):
        link = await open_connection(one.host, one.native_port)
        polled = (await link.request(Command.POLL, poll)).control
        answers.append(sorted((part.partition, part.token, str(part.ranges)) for part in polled.batches))
        await link.close()
    assert sum(part.count for part in _leased(polled)) == 12
    assert answers[1:] == answers[:1] * 2
    link = await open_connection(second.host, second.native_port)
    following = (await link.request(Command.POLL, Poll("g", "again", "me", 1, [0, 1, 2], max_messages=100))).control
    assert sum(part.count for part in _leased(following)) == 18, "the next number brings what is left"
    items = [
        SettleItem(one.partition, one.token, part.first_offset, part.count, 1)
        for found in (polled, following)
        for one in found.batches
        for part in one.ranges
    ]
    settled = (await link.request(Command.SETTLE, Settle("g", "again", items))).control
    assert [item.code for item in settled.items] == [0] * len(items)
    await link.close()


def _leased(polled: Polled) -> list[LeasedRange]:
    return [part for one in polled.batches for part in one.ranges]


async def test_a_batch_that_is_repeated_through_another_proxy_is_stored_once(
    cluster: ClusterProcess, proxy: ProxyProcess, second: ProxyProcess
) -> None:
    async with lanner.connect(proxy.native) as queue:
        await queue.admin.create_topic("once", partitions=1)
    link = await open_connection(proxy.host, proxy.native_port)
    producer_id = (await link.request(Command.OPEN_PRODUCER, OpenProducer())).control.producer_id
    data = [batch.encode([b"%d" % number], producer_id=producer_id, sequence=number) for number in range(5)]
    first = [link.request(Command.PUBLISH, Publish("once", 0), [one]) for one in data]
    offsets = [(await reply).control.base_offset for reply in first]
    assert offsets == [0, 1, 2, 3, 4]
    await link.close()
    link = await open_connection(second.host, second.native_port)
    leader = await asyncio.to_thread(cluster.leader, "once")
    await asyncio.to_thread(cluster.kill, leader)
    again = [link.request(Command.PUBLISH, Publish("once", 0), [one]) for one in data]
    found = [(await reply).control for reply in again]
    assert [(one.base_offset, one.duplicate) for one in found] == [(offset, True) for offset in offsets]
    await link.close()
    await asyncio.to_thread(cluster.restart, leader)


async def test_a_broker_that_stands_still_is_left_behind(cluster: ClusterProcess, proxy: ProxyProcess) -> None:
    async with lanner.connect(proxy.native) as queue:
        await queue.admin.create_topic("still", partitions=1)
        await queue.publish("still", "before")
        leader = await asyncio.to_thread(cluster.leader, "still")
        await asyncio.to_thread(cluster.pause, leader)
        try:
            await queue.publish("still", "after")
            async with queue.consumer("still", group="g") as consumer:
                found = []
                while len(found) < 2:
                    batch = await consumer.poll(10, wait_ms=5_000)
                    found += [message.value for message in batch]
                    await asyncio.gather(*(message.ack() for message in batch))
            assert sorted(found) == [b"after", b"before"]
        finally:
            await asyncio.to_thread(cluster.resume, leader)


async def test_a_client_that_does_not_read_costs_little_memory_and_stops_nobody(proxy: ProxyProcess) -> None:
    """It asks for much and takes nothing: the proxy's memory does not grow by what it asked for."""
    async with lanner.connect(proxy.native) as queue:
        await queue.admin.create_topic("much", partitions=1)
        await queue.publish_many("much", [bytes(100_000)] * 100)
        before = proxy.anonymous_bytes()
        link = await open_connection(proxy.host, proxy.native_port)
        assert link._transport is not None
        link._transport.pause_reading()
        for _ in range(900):
            link.request(Command.FETCH, Fetch("much", 0, 0, 4 << 20)).add_done_callback(_observe)
        await asyncio.sleep(0)
        for number in range(50):
            await asyncio.wait_for(queue.publish("much", f"{number}"), 30)
        grown = proxy.anonymous_bytes() - before
        link.abort(lanner.errors.ConnectionLost("done"))
    print(f"grown by {grown / (1 << 20):.0f} MiB")
    assert grown < 600 << 20, "nine hundred replies of four megabytes would be 3.6 GB"


def _observe(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


async def test_a_proxy_waits_for_brokers_and_says_so(cluster: ClusterProcess, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "late", settings={"disk_reserve_bytes": 0, "segment_bytes": 4 << 20})
    proxy = ProxyProcess(tmp_path, f"{HOST}:{broker.native_port}")
    proxy.launch()
    try:
        await _until(lambda: proxy.status_of("/healthz") == 200)
        assert proxy.status_of("/readyz") == 503
        await _until(lambda: "no broker at" in proxy.log_tail())
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(proxy.wait_ready)
        async with lanner.connect(proxy.native) as queue:
            await queue.publish("late", "here")
        broker.kill()
        await _until(lambda: proxy.status_of("/readyz") == 503)
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(proxy.wait_ready)
        assert await asyncio.to_thread(proxy.stop) == 0
        assert "The proxy is up." in proxy.log_path.read_text()
        assert "Stopped" in proxy.log_path.read_text()
    finally:
        proxy.kill()
        broker.kill()


async def _until(condition: Any, seconds: float = 30.0) -> None:
    ends = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < ends, "it never came to that"
        await asyncio.sleep(0.05)


async def test_a_broker_that_came_later_is_found(tmp_path: Path) -> None:
    with (
        ClusterProcess(tmp_path / "growing", 1, settings=SMALL_SEGMENTS) as cluster,
        ProxyProcess(tmp_path, cluster.address) as proxy,
    ):
        async with lanner.connect(proxy.native) as queue:
            await queue.admin.create_topic("moved", partitions=1, replication=1)
            await queue.publish("moved", "before")
            number = await asyncio.to_thread(cluster.add)
            await queue.admin.move("moved", 0, "broker-1", f"broker-{number}")
            leader = await asyncio.to_thread(cluster.leader, "moved", 0, other_than=1)
            assert leader == number
            assert (await queue.publish("moved", "after")).offset == 1


async def test_a_proxy_that_stops_answers_what_waits(cluster: ClusterProcess, proxy: ProxyProcess) -> None:
    async with lanner.connect(proxy.native, timeout_ms=2_000) as queue:
        await queue.admin.create_topic("ending", partitions=2)
        link = await open_connection(proxy.host, proxy.native_port)
        polling = link.request(Command.POLL, Poll("g", "ending", "m", 0, wait_ms=60_000))
        await queue.publish("ending", "one", partition=1)
        assert (await polling).control.batches
        waiting = link.request(Command.POLL, Poll("g", "ending", "m", 1, wait_ms=60_000))
        await link.request(Command.PING, Empty())
        assert await asyncio.to_thread(proxy.stop) == 0
        assert (await waiting).control.batches == [], "the wait ended, and nobody was cut off"
