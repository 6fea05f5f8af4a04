"""Three brokers under load, by REST and natively, while brokers are killed and restarted: what was promised is kept."""

from __future__ import annotations

import asyncio
import random
import time

from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.history import Published, Status
from lanner.testing.workload import Workload
from tests.brokers import running_cluster, shared_cluster

__all__ = ["running_cluster", "shared_cluster"]

PARTITIONS = 3
SHORT_KILLS = 3
LONG_SECONDS = 300.0
RESUME_SECONDS = 20.0  # sanity only, on whatever machine this runs; `make bench ONLY=failover` measures


async def loaded(cluster: ClusterProcess, topic: str) -> Workload:
    """A workload that is under way in every partition."""
    workload = Workload(cluster.address, topic, partitions=PARTITIONS, urls=cluster.urls, pause_seconds=0.01)
    await workload.make_topic()
    workload.start(3, 2, rest_publishers=3, rest_consumers=1)
    await workload.until_published(RESUME_SECONDS)
    return workload


async def kill_and_restart(cluster: ClusterProcess, workload: Workload, number: int, away: float) -> float:
    """Kill one broker, wait until every partition takes messages again, start it again; how long that took."""
    workload.disturb()
    await asyncio.to_thread(cluster.kill, number)
    took = await workload.until_published(RESUME_SECONDS)
    await asyncio.sleep(away)
    await asyncio.to_thread(cluster.restart, number)
    workload.calm()
    return took


async def test_kill_nine_of_random_brokers_under_load_breaks_no_promise(cluster: ClusterProcess, chaos: bool) -> None:
    rng = random.Random(11)
    workload = await loaded(cluster, "random-kills")
    pauses: list[float] = []
    ends = time.monotonic() + LONG_SECONDS
    try:
        while (time.monotonic() < ends) if chaos else (len(pauses) < SHORT_KILLS):
            await asyncio.sleep(0.3 + rng.random())
            number = rng.choice(cluster.running)
            pauses.append(await kill_and_restart(cluster, workload, number, away=rng.random()))
        broken = await workload.finish()
    finally:
        await workload.close()
    print(f"{len(pauses)} kills: {workload.acknowledged} messages acknowledged, failures {dict(workload.failures)}")
    print(f"publishing resumed after {', '.join(f'{pause:.2f}' for pause in pauses)} s")
    assert broken == []
    assert workload.acknowledged > 20 * len(pauses)


async def test_two_brokers_of_three_killed_at_once_stop_publishing_and_lose_nothing(cluster: ClusterProcess) -> None:
    workload = await loaded(cluster, "two-of-three")
    try:
        workload.disturb()
        for number in (1, 2):
            await asyncio.to_thread(cluster.kill, number)
        await asyncio.sleep(2.5)  # longer than a leader without its majority stays one
        stopped = workload.acknowledged
        await asyncio.sleep(1.0)
        assert workload.acknowledged == stopped, "a broker alone acknowledged something"
        for number in (1, 2):
            await asyncio.to_thread(cluster.restart, number)
        await workload.until_published(RESUME_SECONDS)
        workload.calm()
        broken = await workload.finish()
    finally:
        await workload.close()
    assert broken == []


async def test_a_rolling_restart_fails_no_operation_after_retry(cluster: ClusterProcess) -> None:
    workload = await loaded(cluster, "rolling")
    try:
        for number in (1, 2, 3):
            workload.disturb()
            assert await asyncio.to_thread(cluster.stop, number) == 0, cluster.brokers[number].log_tail()
            await workload.until_published(RESUME_SECONDS)
            await asyncio.to_thread(cluster.restart, number)
            await workload.until_published(RESUME_SECONDS)
            workload.calm()
        broken = await workload.finish()
    finally:
        await workload.close()
    print(f"failures {dict(workload.failures)}; longest pause {workload.longest_pause():.2f} s")
    assert broken == []
    # The native client retries by itself, and so do REST workers with an Idempotency-Key (the odd ones): at the next
    # broker, when theirs hangs up or says that it stops. Every operation of theirs has an answer.
    native = {what: count for what, count in workload.failures.items() if not what.startswith("REST")}
    assert native.keys() <= {"ack: LeaseLost"}, native  # the lease may end while leadership goes over
    unanswered = [one.values for one in workload.history.of_kind(Published) if one.status is not Status.OK]
    assert [values for values in unanswered if values[0][0] in "01235"] == []


async def test_a_killed_follower_is_hardly_noticed(cluster: ClusterProcess) -> None:
    workload = Workload(cluster.address, "calm", partitions=1, pause_seconds=0.005)
    await workload.make_topic()
    workload.start(2, 1)
    try:
        await workload.until_published(RESUME_SECONDS)
        leader = await asyncio.to_thread(cluster.leader, "calm")
        follower = next(number for number in cluster.running if number != leader)
        workload.disturb()
        since = time.monotonic()
        await asyncio.to_thread(cluster.kill, follower)
        await asyncio.sleep(2.0)
        pause = workload.longest_pause(since)
        await asyncio.to_thread(cluster.restart, follower)
        workload.calm()
        broken = await workload.finish()
    finally:
        await workload.close()
    print(f"longest pause after a follower was killed: {1000 * pause:.0f} ms")
    assert broken == []
    assert 0 < pause < 1.5
