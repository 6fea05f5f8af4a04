"""Power loss: the file system under the data directory is shut down without flushing, in the middle of the load.

The data directory lies on an ext4 image in a file. EXT4_IOC_SHUTDOWN with the flag NOLOGFLUSH drops everything that
was not made durable, exactly as a pulled plug would. What was acknowledged must be there when it is mounted again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lanner.errors import StorageDamaged
from lanner.testing.process import BrokerNeverReady, BrokerProcess
from lanner.testing.workload import Workload

IMAGE_BYTES = 512 << 20
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
PARTITIONS = 3
SETTINGS = {"segment_bytes": 4 << 20, "disk_reserve_bytes": 0}


class PulledPlug:
    """An ext4 file system in a file that can lose its power."""

    def __init__(self, folder: Path) -> None:
        self.image = folder / "disk.img"
        self.folder = folder / "disk"
        self._mounted = False

    def make(self) -> None:
        self.folder.mkdir()
        with self.image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self.image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.folder))
        self._mounted = True

    def unmount(self) -> None:
        if self._mounted:
            _run("umount", str(self.folder))
            self._mounted = False

    def pull(self) -> None:
        """From here on nothing reaches the disk any more."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PulledPlug]:
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4") or not shutil.which("mount"):
        pytest.skip("power loss needs root, mkfs.ext4 and loop mounts; without them it cannot be shown here")
    plug = PulledPlug(tmp_path)
    try:
        plug.make()
    except OSError as error:
        pytest.skip(f"loop mounts are not allowed here: {error}")
    try:
        yield plug
    finally:
        plug.unmount()


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
