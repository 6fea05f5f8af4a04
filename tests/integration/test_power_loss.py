"""Power loss: the file system under the data directory is shut down without flushing, in the middle of the load.

The data directory lies on an ext4 image in a file, which drops everything that was not made durable, exactly as a
pulled plug would. What was acknowledged must be there when it is mounted again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanner.errors import StorageDamaged
from lanner.testing.plug import PulledPlug
from lanner.testing.process import BrokerNeverReady, BrokerProcess
from lanner.testing.workload import Workload

PARTITIONS = 3
SETTINGS = {"segment_bytes": 4 << 20, "disk_reserve_bytes": 0}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PulledPlug]:
    if not PulledPlug.allowed():
        pytest.skip("power loss needs root, mkfs.ext4 and loop mounts; without them it cannot be shown here")
    plug = PulledPlug(tmp_path)
    try:
        plug.make()
    except OSError as error:
        pytest.skip(f"loop mounts are not allowed here: {error}")
    try:
        yield plug
    finally:
        plug.remove()


async def promises_broken_by_power_loss(disk: PulledPlug, rounds: int, plants: tuple[str, ...] = ()) -> list[str]:
    """Load, pull the plug, bring it back, again and again; what was promised and is not kept."""
    broker = BrokerProcess(disk.folder / "data", settings=SETTINGS, plants=plants)
    broker.log_path = disk.image.with_suffix(".log")  # the log must survive, to be read when something fails
    broker.start()
    workload = Workload(broker.native, "orders", partitions=PARTITIONS)
    try:
        await workload.make_topic()
        workload.start()
        for _ in range(rounds):
            await asyncio.sleep(1.0)
            await asyncio.to_thread(broker.pause)
            disk.pull()
            await asyncio.to_thread(broker.kill)
            workload.crashed()
            await asyncio.to_thread(disk.unmount)
            await asyncio.to_thread(disk.mount)
            await asyncio.to_thread(broker.start)
        await asyncio.sleep(0.3)
        await workload.stop_publishing()
        await workload.stop_consuming()
        assert workload.acknowledged > 100, "too little was published to show anything"
        return await workload.broken_promises(drained=False)
    finally:
        workload.cancel()
        broker.kill()


async def test_power_loss_takes_no_acknowledged_message(disk: PulledPlug, chaos: bool) -> None:
    assert await promises_broken_by_power_loss(disk, rounds=10 if chaos else 3) == []


async def test_a_broker_that_skips_the_sync_is_caught_by_power_loss(disk: PulledPlug) -> None:
    try:
        broken = await promises_broken_by_power_loss(disk, rounds=1, plants=("skip_sync",))
    except (BrokerNeverReady, StorageDamaged) as noticed:
        broken = [f"lost: {noticed}"] if "checksum" in str(noticed) else []
    assert any("lost" in one for one in broken), broken
