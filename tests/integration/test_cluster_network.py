"""Three brokers on wires that are cut in every way: nothing is lost, doubled or reordered, and no old leader answers.

The brokers stand in network namespaces of their own, or behind proxies where namespaces are not allowed. All tests
share one cluster; each has its own topic, and heals what it broke.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

import lanner
from lanner import batch
from lanner.errors import DeadlineExceeded, LannerError
from lanner.model import PRIORITY_NORMAL
from lanner.net.connector import ClientLink, open_connection
from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.wires import CLIENTS, Wires, cut, isolate
from lanner.testing.workload import Workload
from lanner.wire.connection import Reply
from lanner.wire.messages import Command, Control, Poll, Publish

PARTITIONS = 3
RESUME_SECONDS = 30.0
FAULTS_SECONDS = 180.0
SETTINGS = {"segment_bytes": 4 << 20}
BROKERS = (1, 2, 3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("cluster"), settings=SETTINGS, wires="any") as cluster:
        yield cluster


@pytest.fixture
def wires(cluster: ClusterProcess) -> Iterator[Wires]:
    assert cluster.wires is not None
    yield cluster.wires
    cluster.wires.heal()


@contextlib.asynccontextmanager
async def load(cluster: ClusterProcess, topic: str) -> AsyncIterator[Workload]:
    """Publishers and consumers of every kind; at the end all is healed, everything flows, and no promise is broken."""
    assert cluster.wires is not None
    workload = Workload(cluster.address, topic, partitions=PARTITIONS, urls=cluster.urls, pause_seconds=0.02)
    await workload.make_topic()
    workload.start(3, 2, rest_publishers=3, rest_consumers=1)
    try:
        await workload.until_published(RESUME_SECONDS)
        workload.disturb()
        yield workload
        cluster.wires.heal()
        await workload.until_published(RESUME_SECONDS)
        workload.calm()
        broken = await workload.finish()
        assert broken == []
    finally:
        await workload.close()
    print(f"{topic}: {workload.acknowledged} acknowledged, failures {dict(workload.failures)}")


async def led_elsewhere(cluster: ClusterProcess, topic: str, old: int) -> None:
    """Wait until another broker leads every partition that this one led."""

    def moved() -> bool:
        asked = next(number for number in BROKERS if number != old)
        leaders = cluster.leaders(topic, ask=asked)
        return all(leader not in (0, old) for leader in leaders)

    await asyncio.to_thread(cluster.until, moved, RESUME_SECONDS, f"broker {old} still leads")


async def link_to(cluster: ClusterProcess, number: int) -> ClientLink:
    """A connection to exactly one broker, which repeats and re-routes nothing: a client with old metadata."""
    host, _, port = cluster.native_of(number).rpartition(":")
    return await open_connection(host, int(port))


async def ask(
    link: ClientLink, command: Command, control: Control, bulk: Sequence[bytes] = (), seconds: float = 30.0
) -> Reply | LannerError:
    try:
        async with asyncio.timeout(seconds):
            return await link.request(command, control, bulk)
    except LannerError as error:
        return error
    except TimeoutError:
        return DeadlineExceeded("it said nothing")


async def confirmed_by(cluster: ClusterProcess, number: int, workload: Workload, seconds: float) -> list[str]:
    """What one broker confirms of partition 0 that only a leader may; the workload's history is told of it too."""
    link = await link_to(cluster, number)
    topic, values = workload.topic, (f"99-{time.monotonic_ns()}",)
    called = time.monotonic()
    published, polled = await asyncio.gather(
        ask(link, Command.PUBLISH, Publish(topic, 0), [batch.encode([values[0].encode()])], seconds),
        ask(link, Command.POLL, Poll("strangers", topic, "stranger", 1, [0], 10, 1 << 20, 0), (), seconds),
    )
    await link.close()
    note(workload, called, values, published)
    wrong = [str(one.control) for one in (published,) if not isinstance(one, LannerError)]
    return wrong + [str(one.control) for one in (polled,) if not isinstance(one, LannerError) and one.control.batches]


def note(workload: Workload, called: float, values: tuple[str, ...], outcome: Reply | LannerError) -> None:
    """Whatever was confirmed must be there in the end."""
    offset = -1 if isinstance(outcome, LannerError) else outcome.control.base_offset
    workload.note_published(called, values, 0, PRIORITY_NORMAL, offset)


async def test_a_leader_cut_off_from_the_others_is_replaced_and_confirms_nothing(
    cluster: ClusterProcess, wires: Wires
) -> None:
    async with load(cluster, "cut-off") as workload:
        old = await asyncio.to_thread(cluster.leader, "cut-off", 0)
        isolate(wires, old, BROKERS)  # clients still reach it
        confirmed = await confirmed_by(cluster, old, workload, 4.0)
        await led_elsewhere(cluster, "cut-off", old)
        await workload.until_published(RESUME_SECONDS)
        confirmed += await confirmed_by(cluster, old, workload, 2.0)
    assert confirmed == []


async def test_a_leader_cut_off_from_everybody_is_replaced_and_comes_back_as_a_follower(
    cluster: ClusterProcess, wires: Wires
) -> None:
    async with load(cluster, "alone") as workload:
        old = await asyncio.to_thread(cluster.leader, "alone", 1)
        isolate(wires, old, (CLIENTS, *BROKERS))
        await led_elsewhere(cluster, "alone", old)
        await workload.until_published(RESUME_SECONDS)


async def test_a_chain_in_which_the_ends_do_not_see_each_other_goes_on(cluster: ClusterProcess, wires: Wires) -> None:
    async with load(cluster, "chain") as workload:
        for one, other in ((1, 3), (1, 2), (2, 3)):  # each in turn is the middle
            cut(wires, one, other)
            await asyncio.sleep(1.5)  # longer than it takes to miss a leader
            await workload.until_published(RESUME_SECONDS)
            wires.heal()


async def test_a_ring_in_which_each_is_heard_by_one_neighbour_only_loses_nothing(
    cluster: ClusterProcess, wires: Wires
) -> None:
    async with load(cluster, "ring"):
        for source, target in ((2, 1), (3, 2), (1, 3)):  # what is left: 1 → 2 → 3 → 1
            wires.cut_one_way(source, target)
        await asyncio.sleep(3.0)


@pytest.mark.parametrize("hears", [True, False], ids=["hears", "is-heard"])
async def test_a_leader_that_only_hears_or_is_only_heard_gives_way(
    cluster: ClusterProcess, wires: Wires, hears: bool
) -> None:
    topic = f"one-way-{'hears' if hears else 'heard'}"
    async with load(cluster, topic) as workload:
        old = await asyncio.to_thread(cluster.leader, topic, 0)
        for other in BROKERS:
            if other != old:
                wires.cut_one_way(*((old, other) if hears else (other, old)))
        await led_elsewhere(cluster, topic, old)
        await workload.until_published(RESUME_SECONDS)


async def test_clients_cut_off_from_the_leader_are_served_through_another_broker(
    cluster: ClusterProcess, wires: Wires
) -> None:
    async with load(cluster, "far-leader") as workload:
        leader = await asyncio.to_thread(cluster.leader, "far-leader", 0)
        other = next(number for number in BROKERS if number != leader)
        cut(wires, CLIENTS, leader)
        called = time.monotonic()
        body = {"messages": [{"value": "77-0", "partition": 0, "priority": 9}]}
        path = "/v1/topics/far-leader/messages"
        status, stored = await asyncio.to_thread(cluster.ask, other, "POST", path, body)
        assert status == 200, stored
        offset = stored["messages"][0]["offset"]
        workload.note_published(called, ("77-0",), 0, 9, offset)
        path = f"/v1/topics/far-leader/partitions/0/messages?offset={offset}"
        status, read = await asyncio.to_thread(cluster.get, other, path)
        assert status == 200 and read["messages"][0]["value"] == "77-0"
        with pytest.raises(LannerError):
            async with lanner.connect(cluster.native_of(leader), timeout_ms=1_000) as queue:
                await queue.admin.ping()


async def test_a_paused_leader_that_comes_back_confirms_nothing_it_should_not(
    cluster: ClusterProcess, wires: Wires
) -> None:
    async with load(cluster, "paused") as workload:
        old = await asyncio.to_thread(cluster.leader, "paused", 0)
        link = await link_to(cluster, old)
        cluster.pause(old)
        called = time.monotonic()
        values = [f"98-{number}" for number in range(20)]
        # They wait in its socket: when it goes on, it may still believe that it leads.
        asked = [
            asyncio.ensure_future(ask(link, Command.PUBLISH, Publish("paused", 0), [batch.encode([value.encode()])]))
            for value in values
        ]
        try:
            await led_elsewhere(cluster, "paused", old)
            await workload.until_published(RESUME_SECONDS)
        finally:
            cluster.resume(old)
        for value, outcome in zip(values, await asyncio.gather(*asked), strict=True):
            note(workload, called, (value,), outcome)  # what it confirms must be there in the end
        await link.close()


async def test_faults_of_every_kind_one_after_the_other_break_no_promise(
    cluster: ClusterProcess, wires: Wires, chaos: bool
) -> None:
    if not chaos:
        pytest.skip("each fault has its own test; all of them mixed run for minutes: `make chaos`")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ends = time.monotonic() + FAULTS_SECONDS
    async with load(cluster, f"mixed-{seed}") as workload:
        while time.monotonic() < ends:
            number, other = rng.sample(BROKERS, 2)
            fault = rng.choice(["kill", "pause", "isolate", "cut", "one way", "from clients", "stop", "everybody"])
            print(f"{fault} {number} {other}")
            down = await asyncio.to_thread(begin_fault, cluster, wires, fault, number, other)
            await asyncio.sleep(rng.uniform(0.2, 4.0))
            await asyncio.to_thread(end_fault, cluster, wires, fault, number, down)
            print(f"  resumed after {await workload.until_published(RESUME_SECONDS):.2f} s")
            await asyncio.sleep(rng.uniform(0.0, 1.0))


def begin_fault(cluster: ClusterProcess, wires: Wires, fault: str, number: int, other: int) -> list[int]:
    """Do it; which brokers have to be started again."""
    if fault == "kill":
        cluster.kill(number)
    elif fault == "stop":
        cluster.stop(number)
    elif fault == "everybody":
        for one in BROKERS:
            cluster.kill(one)
        return list(BROKERS)
    elif fault == "pause":
        cluster.pause(number)
    elif fault == "isolate":
        isolate(wires, number, (CLIENTS, *BROKERS))
    elif fault == "cut":
        cut(wires, number, other)
    elif fault == "one way":
        wires.cut_one_way(number, other)
    else:
        cut(wires, CLIENTS, number)
    return [number] if fault in ("kill", "stop") else []


def end_fault(cluster: ClusterProcess, wires: Wires, fault: str, number: int, down: list[int]) -> None:
    if fault == "pause":
        cluster.resume(number)
    wires.heal()
    for one in down:
        cluster.brokers[one].launch()
    for one in down:
        cluster.brokers[one].wait_ready(RESUME_SECONDS)
