"""Power loss of all three brokers at once, each on a disk of its own, in the middle of the load."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.plug import PulledPlug
from lanner.testing.process import BrokerNeverReady
from lanner.testing.workload import Workload

PARTITIONS = 3
RESUME_SECONDS = 30.0
IMAGE_BYTES = 256 << 20
SETTINGS = {"segment_bytes": 4 << 20}


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[PulledPlug]]:
    if not PulledPlug.allowed():
        pytest.skip("power loss needs root, mkfs.ext4 and loop mounts; without them it cannot be shown here")
    plugs = [PulledPlug(tmp_path, f"disk-{number}", IMAGE_BYTES) for number in (1, 2, 3)]
    with contextlib.ExitStack() as stack:
        for plug in plugs:
            try:
                plug.make()
            except OSError as error:
                pytest.skip(f"loop mounts are not allowed here: {error}")
            stack.callback(plug.remove)
        yield plugs


def lose_power(cluster: ClusterProcess, disks: list[PulledPlug]) -> None:
    """All plugs at once, then everything from the beginning."""
    for number in cluster.brokers:
        cluster.pause(number)
    for disk in disks:
        disk.pull()
    for number in cluster.brokers:
        cluster.kill(number)
    for disk in disks:
        disk.unmount()
        disk.mount()
    cluster.start()


async def promises_broken(tmp_path: Path, disks: list[PulledPlug], rounds: int, plants: tuple[str, ...]) -> list[str]:
    cluster = ClusterProcess(tmp_path, settings=SETTINGS, folders=[disk.folder for disk in disks], plants=plants)
    workload = Workload(
        cluster.address, "orders", partitions=PARTITIONS, urls=cluster.urls, pause_seconds=0.002 if plants else 0.01
    )
    try:
        await asyncio.to_thread(cluster.start)
        await workload.make_topic()
        workload.start(3, 1, rest_publishers=3, rest_consumers=1)
        await workload.until_published(RESUME_SECONDS)
        for _ in range(rounds):
            await asyncio.sleep(1.0)
            workload.disturb()
            await asyncio.to_thread(lose_power, cluster, disks)
            await workload.until_published(RESUME_SECONDS)
            workload.calm()
        await workload.stop_publishing()
        await workload.stop_consuming()
        assert workload.acknowledged > 50, "too little was published to show anything"
        broken = await workload.broken_promises(drained=False)
        if broken:
            workload.history.save(tmp_path / "history.jsonl")
        return broken
    finally:
        await workload.close()
        cluster.close()


async def test_power_loss_of_all_brokers_at_once_takes_no_acknowledged_message(
    tmp_path: Path, disks: list[PulledPlug], chaos: bool
) -> None:
    assert await promises_broken(tmp_path, disks, 10 if chaos else 2, ()) == []


async def test_a_cluster_that_skips_its_syncs_is_caught_by_power_loss(
    tmp_path: Path, disks: list[PulledPlug], chaos: bool
) -> None:
    if not chaos:
        pytest.skip("one broker that skips its syncs is caught in every run; three take longer: `make chaos`")
    try:
        broken = await promises_broken(tmp_path, disks, 1, ("skip_sync",))
    except (BrokerNeverReady, AssertionError) as noticed:
        broken = [f"lost: {noticed}"]
    assert any("lost" in one for one in broken), broken
