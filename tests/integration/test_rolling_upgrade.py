"""Brokers of older releases are replaced by this release one by one, under load, and their clients go on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import lanner
from lanner import features
from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.process import BrokerProcess
from lanner.testing.workload import Workload

RESUME_SECONDS = 60.0
SETTINGS = {"segment_bytes": 16 << 20, "save_interval_ms": 300}
# commit, level
RELEASES = {
    "0.1.0": ("cd059dd", features.LOWEST),
    "0.2.0": ("f92e91f", features.IDENTITIES),
    "0.3.0": ("ef9119a", features.STAGES),
    "0.4.0": ("b7bbd9d", features.PRODUCER_FLOORS),
    "0.5.0": ("d712e42", features.MEMBERS),
}
REPOSITORY = Path(__file__).parent.parent.parent
OLD_CLIENT = """
import asyncio, sys, lanner

async def main():
    async with lanner.connect(sys.argv[1]) as queue:
        await queue.publish_many("old-clients", [str(number) for number in range(50)])
        seen = []
        async with queue.consumer("old-clients", group="g") as consumer:
            while len(seen) < 50:
                batch = await consumer.poll(50)
                seen += [one.value for one in batch]
                await batch.ack()
        assert sorted(map(int, seen)) == list(range(50)), seen
        assert (await queue.admin.describe_cluster()).cluster_id
    print(lanner.__version__)

asyncio.run(main())
"""


class Release(NamedTuple):
    """An older release, unpacked."""

    name: str
    level: int  # of a cluster that it founded
    source: Path


@pytest.fixture(params=sorted(RELEASES))
def old(request: pytest.FixtureRequest, tmp_path: Path, chaos: bool) -> Release:
    if not chaos:
        pytest.skip("three brokers are upgraded under load for a minute: `make chaos`")
    found = unpacked(request.param, tmp_path)
    assert found is not None, f"this copy of the repository does not have release {request.param}"
    return found


def unpacked(name: str, tmp_path: Path) -> Release | None:
    """The release, unpacked; None: this copy of the repository does not have its commit."""
    commit, level = RELEASES[name]
    folder = tmp_path / f"release-{name}"
    folder.mkdir()
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=REPOSITORY, capture_output=True, check=False)
    if packed.returncode:
        return None
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return Release(name, level, folder / "src")


def old_words(source: Path) -> tuple[str, ...]:
    """What goes before a command to run it with the old release."""
    return ("env", f"PYTHONPATH={source}")


def run_old_client(source: Path, address: str) -> str:
    done = subprocess.run(
        [*old_words(source), sys.executable, "-c", OLD_CLIENT, address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_client_of_the_first_release_works_with_a_broker_of_this_one(tmp_path: Path) -> None:
    first = unpacked("0.1.0", tmp_path)
    if first is None:
        pytest.skip("this copy of the repository does not have the commit of release 0.1.0")
    with BrokerProcess(tmp_path / "data", settings={"disk_reserve_bytes": 0}) as broker:
        assert run_old_client(first.source, broker.native) == "0.1.0"


async def test_three_brokers_are_upgraded_one_by_one_under_load(old: Release, tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path / "cluster", settings=SETTINGS)
    for broker in cluster.brokers.values():
        broker.wrapper = old_words(old.source)
    with cluster:
        workload = Workload(
            cluster.address,
            "orders",
            partitions=3,
            urls=cluster.urls,
            pause_seconds=0.02,
            settles_known=old.level >= features.IDENTITIES,
        )
        await workload.make_topic()
        workload.start(3, 1, rest_publishers=1, rest_consumers=1)
        try:
            await workload.until_published(RESUME_SECONDS)
            workload.disturb()
            for number, broker in cluster.brokers.items():
                await asyncio.to_thread(cluster.kill, number)
                broker.wrapper = ()
                await asyncio.to_thread(cluster.restart, number)
                print(f"broker {number} upgraded; resumed after {await workload.until_published(RESUME_SECONDS):.2f} s")
            assert await asyncio.to_thread(run_old_client, old.source, cluster.address) == old.name
            async with lanner.connect(cluster.address) as queue:
                assert await _level_when_possible(queue) == old.level
            if old.name != "0.1.0":  # which refuses a directory that a later release has used
                await _go_back_and_forth(cluster, workload, old)
            async with lanner.connect(cluster.address) as queue:
                assert await _level_when_possible(queue) == old.level
                assert await queue.admin.upgrade() == features.HIGHEST
            await workload.until_published(RESUME_SECONDS)
            assert await asyncio.to_thread(run_old_client, old.source, cluster.address) == old.name
            workload.calm()
            broken = await workload.finish()
        finally:
            await workload.close()
    print(f"{workload.acknowledged} acknowledged, {workload.failures}")
    assert broken == []


async def _go_back_and_forth(cluster: ClusterProcess, workload: Workload, old: Release) -> None:
    """Start the old release on a directory of this one, while the level still allows it, and then this one again."""
    number, broker = next(iter(cluster.brokers.items()))
    for wrapper in (old_words(old.source), ()):
        await asyncio.to_thread(cluster.kill, number)
        broker.wrapper = wrapper
        await asyncio.to_thread(cluster.restart, number)
        await workload.until_published(RESUME_SECONDS)


async def _level_when_possible(queue: lanner.Queue) -> int:
    """The level, once every broker has said anew what it supports."""
    async with asyncio.timeout(RESUME_SECONDS):
        while True:
            found = await queue.admin.describe_cluster()
            if found.feature_level_possible == features.HIGHEST:
                return found.feature_level
            await asyncio.sleep(0.1)
