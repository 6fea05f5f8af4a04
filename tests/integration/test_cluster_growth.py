"""A cluster that changes under load: a broker joins, one leaves, one comes back after long, one comes back empty."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import lanner
from lanner.errors import LannerError
from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.workload import Workload
from lanner.wire.cluster import ClusterDescription, PlanProgress

PARTITIONS = 6
RESUME_SECONDS = 30.0
SETTINGS = {"segment_bytes": 4 << 20}
MIB = 1 << 20
MIXED_SECONDS = 120.0


async def until(what: str, condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while True:
        try:
            if await condition():
                return
        except LannerError as error:
            what = f"{what} ({error})"
        assert time.monotonic() < ends, f"{what}: not within {seconds} s"
        await asyncio.sleep(0.1)


async def progress_of(
    queue: lanner.Queue, kind: str, seen: list[PlanProgress], node_id: str = ""
) -> tuple[ClusterDescription, PlanProgress | None]:
    """The newest plan of a kind; each step of it that becomes visible is noted."""
    described = await queue.admin.describe_cluster()
    plans = [plan for plan in described.plans if plan.kind == kind and (not node_id or plan.node_id == node_id)]
    plan = max(plans, key=lambda one: one.plan_id, default=None)
    if plan is not None and (not seen or seen[-1] != plan):
        seen.append(plan)
    return described, plan


def held(described: ClusterDescription) -> dict[str, tuple[int, int]]:
    return {broker.name: (broker.replicas, broker.leads) for broker in described.brokers}


async def test_a_fourth_broker_joins_and_the_first_is_drained_under_load(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, settings=SETTINGS) as cluster:
        workload = Workload(
            cluster.address, "orders", partitions=PARTITIONS, urls=cluster.urls, pause_seconds=0.02, replication=3
        )
        await workload.make_topic()
        workload.start(4, 2, rest_publishers=2, rest_consumers=1)
        rebalanced: list[PlanProgress] = []
        drained: list[PlanProgress] = []
        try:
            await workload.until_published(RESUME_SECONDS)
            workload.disturb()  # leaders are handed over, so a poll may be asked twice
            await asyncio.to_thread(cluster.add)
            async with lanner.connect(cluster.address) as queue:

                async def is_taken_in() -> bool:
                    described = await queue.admin.describe_cluster()
                    return [one.state for one in described.brokers if one.name == "broker-4"] == ["active"]

                await until("the fourth broker", is_taken_in, 30.0)
                await queue.admin.rebalance()

                async def is_rebalanced() -> bool:
                    described, plan = await progress_of(queue, "rebalance", rebalanced)
                    assert plan is None or plan.state != "stalled", plan
                    return plan is not None and plan.state == "done" and len(described.brokers) == 4

                await until("the rebalance", is_rebalanced, 60.0)
                await queue.admin.drain("broker-1")
                first = cluster.node_id(1)

                async def is_drained() -> bool:
                    described, plan = await progress_of(queue, "drain", drained, first)
                    assert plan is None or plan.state != "stalled", plan
                    return plan is not None and plan.state == "done" and held(described)["broker-1"] == (0, 0)

                await until("the drain", is_drained, 60.0)

                async def is_even() -> bool:
                    now = held(await queue.admin.describe_cluster())
                    leads = [now[f"broker-{number}"][1] for number in (2, 3, 4)]
                    return sum(leads) == PARTITIONS and max(leads) - min(leads) <= 1

                await until("leaders spread evenly", is_even, 30.0)
                now = held(await queue.admin.describe_cluster())
            # It holds nothing but a copy of the metadata now, and no vote: it must find its way back all the same.
            await asyncio.to_thread(cluster.kill, 1)
            await asyncio.sleep(1.5)
            await asyncio.to_thread(cluster.restart, 1)
            await workload.until_published(RESUME_SECONDS)
            workload.calm()
            broken = await workload.finish()
        finally:
            await workload.close()
    print(f"steps seen: rebalance {_steps(rebalanced)}, drain {_steps(drained)}; held at the end {now}")
    print(f"{workload.acknowledged} acknowledged, longest pause {workload.longest_pause():.2f} s, {workload.failures}")
    assert broken == []
    assert {name: replicas for name, (replicas, _) in now.items()} == {
        "broker-1": 0,
        "broker-2": PARTITIONS,
        "broker-3": PARTITIONS,
        "broker-4": PARTITIONS,
    }
    assert len(drained) > 3 and drained[0].steps_done < drained[-1].steps_done == drained[-1].steps_total


def _steps(seen: list[PlanProgress]) -> str:
    return " ".join(f"{plan.steps_done}/{plan.steps_total}" for plan in seen)


async def test_a_broker_that_was_away_for_long_catches_up_by_snapshot_while_publishing_goes_on(
    tmp_path: Path, chaos: bool
) -> None:
    flow_bytes = 2_000 * MIB if chaos else 48 * MIB
    plants = () if chaos else ("tails:200:4194304",)
    settings = {} if chaos else SETTINGS
    took: list[tuple[float, float]] = []  # when, and how many milliseconds
    with ClusterProcess(tmp_path, settings=settings, plants=plants) as cluster:
        async with lanner.connect(cluster.address) as queue:
            await queue.admin.create_topic("flow", partitions=3, replication=3)
            publishing = True

            async def probe() -> None:
                number = 0
                while publishing:
                    called = time.monotonic()
                    await queue.publish("flow", f"probe-{number}".encode(), priority=9)
                    took.append((called, 1e3 * (time.monotonic() - called)))
                    number += 1
                    await asyncio.sleep(0.005)

            away = 3
            await asyncio.to_thread(cluster.kill, away)
            probing = asyncio.ensure_future(probe())
            values = [b"v" * 10_000] * 50
            for _ in range(flow_bytes // 500_000):
                await queue.publish_many("flow", values)
            await asyncio.sleep(2.0)  # a save, so that the others let go of what they keep
            began = time.monotonic()
            await asyncio.to_thread(cluster.restart, away)

            async def caught_up() -> bool:
                partitions = await queue.admin.describe_partitions("flow")
                followers = [replica for one in partitions for replica in one.replicas if not replica.leads]
                return len(followers) == 6 and all(one.lag is not None and one.lag < 20 for one in followers)

            await until("every replica close behind its leader", caught_up, 300.0 if chaos else 60.0)
            ended = time.monotonic()
            publishing = False
            await probing
            ends = {one.partition: one.end_offset for one in await queue.admin.offsets("flow")}
        during = sorted(ms for at, ms in took if began <= at <= ended)
        before = sorted(ms for at, ms in took if at < began)
        # The proof that it has everything: it and one other are all that is left.
        other = next(number for number in cluster.running if number != away)
        await asyncio.to_thread(cluster.kill, next(n for n in cluster.running if n not in (away, other)))
        counted = await _count(cluster.native_of(away), "flow")
    print(
        f"{flow_bytes / 1e6:.0f} MB away, caught up in {ended - began:.1f} s; publish p99 "
        f"{during[int(0.99 * len(during))]:.1f} ms meanwhile ({before[int(0.99 * len(before))]:.1f} ms before)"
    )
    assert counted == ends
    assert len(during) > 20


async def _count(address: str, topic: str) -> dict[int, int]:
    """Read a topic to its end; messages by partition."""
    counted: Counter[int] = Counter()
    async with (
        lanner.connect(address, timeout_ms=30_000) as queue,
        queue.reader(topic, start="earliest", until_end=True) as reader,
    ):
        async for batch in reader.read_batches():
            counted[batch.partition] += len(batch)
    return dict(counted)


async def test_a_broker_that_comes_back_with_an_empty_disk_joins_anew_and_gets_everything_again(
    tmp_path: Path,
) -> None:
    with ClusterProcess(tmp_path, settings=SETTINGS) as cluster:
        workload = Workload(cluster.address, "orders", partitions=3, urls=cluster.urls, pause_seconds=0.02)
        await workload.make_topic()
        workload.start(3, 1, rest_publishers=1, rest_consumers=1)
        try:
            await workload.until_published(RESUME_SECONDS)
            workload.disturb()
            old = cluster.node_id(2)
            await asyncio.to_thread(cluster.kill, 2)
            await workload.until_published(RESUME_SECONDS)
            await asyncio.to_thread(cluster.wipe, 2)
            await asyncio.to_thread(cluster.restart, 2)
            assert cluster.node_id(2) != old, "the same name, under an id that never voted"
            async with lanner.connect(cluster.address) as queue:

                async def is_rebuilt() -> bool:
                    described = await queue.admin.describe_partitions("orders")
                    fresh = cluster.node_id(2)
                    return all(
                        any(one.node_id == fresh and one.role == "voter" for one in partition.replicas)
                        and not any(one.node_id == old for one in partition.replicas)
                        for partition in described
                    )

                await until("replicas on the new broker", is_rebuilt, 60.0)
            await workload.until_published(RESUME_SECONDS)
            workload.calm()
            broken = await workload.finish()
        finally:
            await workload.close()
    assert broken == []


async def test_plans_and_kills_at_once_break_no_promise(tmp_path: Path, chaos: bool) -> None:
    if not chaos:
        pytest.skip("plans and kills have tests of their own; mixed they run for minutes: `make chaos`")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with ClusterProcess(tmp_path, settings=SETTINGS) as cluster:
        await asyncio.to_thread(cluster.add)
        workload = Workload(
            cluster.address, "orders", partitions=PARTITIONS, urls=cluster.urls, pause_seconds=0.02, replication=3
        )
        await workload.make_topic()
        workload.start(4, 2, rest_publishers=2, rest_consumers=1)
        try:
            await workload.until_published(RESUME_SECONDS)
            workload.disturb()
            async with lanner.connect(cluster.address) as queue:
                ends = time.monotonic() + MIXED_SECONDS
                while time.monotonic() < ends:
                    await _change_something(queue, rng)
                    await asyncio.sleep(rng.uniform(0.0, 1.5))
                    number = rng.choice(cluster.running)
                    await asyncio.to_thread(cluster.kill, number)
                    await asyncio.sleep(rng.uniform(0.0, 3.0))
                    await asyncio.to_thread(cluster.restart, number)
                    print(f"  killed {number}; resumed after {await workload.until_published(RESUME_SECONDS):.2f} s")
                for broker in range(1, 5):
                    await _in_spite_of(queue.admin.undrain(f"broker-{broker}"))
                await _in_spite_of(queue.admin.rebalance())
                await until("all plans", lambda: _at_rest(queue), 60.0)
            await workload.until_published(RESUME_SECONDS)
            workload.calm()
            broken = await workload.finish()
        finally:
            await workload.close()
    print(f"{workload.acknowledged} acknowledged, longest pause {workload.longest_pause():.2f} s, {workload.failures}")
    assert broken == []


async def _change_something(queue: lanner.Queue, rng: random.Random) -> None:
    described = await queue.admin.describe_cluster()
    draining = [broker.name for broker in described.brokers if broker.state == "draining"]
    names = [broker.name for broker in described.brokers]
    partition = rng.choice(await queue.admin.describe_partitions("orders"))
    here = [replica.name for replica in partition.replicas]
    elsewhere = [name for name in names if name not in here]
    kind = rng.choice(["drain", "rebalance", "transfer", "move", "move"]) if not draining else "undrain"
    source, target = rng.choice(here), rng.choice(elsewhere or names)
    print(f"{kind} {partition.partition} {source} {target} {draining}")
    if kind == "rebalance":
        await _in_spite_of(queue.admin.rebalance())
    elif kind == "transfer":
        await _in_spite_of(queue.admin.transfer("orders", partition.partition, source))
    elif kind == "move":
        await _in_spite_of(queue.admin.move("orders", partition.partition, source, target))
    else:
        await _in_spite_of(getattr(queue.admin, kind)(draining[0] if draining else source))


async def _in_spite_of(call: Awaitable[object]) -> None:
    """Some wishes make no sense at the moment, and are refused."""
    try:
        await call
    except LannerError as error:
        print(f"  refused: {error}")


async def _at_rest(queue: lanner.Queue) -> bool:
    described = await queue.admin.describe_cluster()
    running = [plan for plan in described.plans if plan.state == "running"]
    return not running and described.replicas_missing == 0 and sum(one.leads for one in described.brokers) == PARTITIONS
