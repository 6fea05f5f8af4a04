"""Real brokers over disks that sync slowly, or never again: nobody is deposed for it, and publishing goes on."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lanner
from lanner.broker.pace import SLOW_SYNC_MS
from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.process import BrokerProcess

PARTITIONS = 3
RESUME_SECONDS = 60.0  # sanity only; the long form prints and judges what was measured
SHORT_SECONDS, LONG_SECONDS = 6.0, 60.0


class Paced(ClusterProcess):
    """Three brokers whose syncs can be slowed down while they run."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for number, broker in self.brokers.items():
            broker.plants = (f"pace_sync:{self._pace_of(number)}",)

    def _pace_of(self, number: int) -> Path:
        return self.folder / f"pace-{number}"

    def pace(self, number: int, pace: str) -> None:
        """So many milliseconds for every sync from the next one on; "hang": for ever."""
        other = self.folder / "pace-next"
        other.write_text(pace, encoding="ascii")
        other.rename(self._pace_of(number))

    def terms(self, topic: str) -> dict[int, int]:
        """The highest term of every partition that any broker knows."""
        found: dict[int, int] = {}
        for number in self.running:
            for partition in range(PARTITIONS):
                status, raft = self.get(number, f"/raft/stats?topic={topic}&partitionID={partition}")
                assert status == 200, raft
                found[partition] = max(found.get(partition, 0), int(raft["term"]))
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Paced]:
    paced = Paced(tmp_path)
    with paced:
        yield paced


async def publish_for(queue: lanner.Queue, topic: str, seconds: float) -> list[float]:
    """How long each publish took, one after the other."""
    took: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        await queue.publish(topic, b"x", partition=len(took) % PARTITIONS)
        took.append(time.monotonic() - began)
    return took


async def evenly_led(queue: lanner.Queue) -> None:
    """Until every broker leads what it should: a hand-over that is still to come would raise a term."""
    async with asyncio.timeout(30):
        while any(one.leads != one.should_lead for one in (await queue.admin.describe_cluster()).brokers):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("pace_ms", [600, 1_200, 2_500])  # the last is a slow disk: but no other one is faster
async def test_slow_disks_depose_nobody_and_publishes_keep_their_pace(
    cluster: Paced, chaos: bool, pace_ms: int
) -> None:
    if pace_ms > SLOW_SYNC_MS and not chaos:
        pytest.skip("with syncs of 2.5 s it takes a minute to see something: `make chaos`")
    async with await lanner.connect(cluster.address) as queue:
        await queue.admin.create_topic("slow", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            await queue.publish("slow", b"first", partition=partition)
        await evenly_led(queue)
        before = await asyncio.to_thread(cluster.terms, "slow")
        for number in cluster.brokers:
            cluster.pace(number, str(pace_ms))
        took = await publish_for(queue, "slow", LONG_SECONDS if chaos else SHORT_SECONDS)
        after = await asyncio.to_thread(cluster.terms, "slow")
    assert len(before) == PARTITIONS and after == before
    assert took
    print(f"syncs of {pace_ms} ms: {len(took)} publishes, median {statistics.median(took):.2f} s, terms as before")
    if chaos:
        assert statistics.median(took) < 2.2 * pace_ms / 1_000  # the sync under way, and the next


async def test_publishing_resumes_when_one_disk_hangs_for_good(cluster: Paced, chaos: bool) -> None:
    async with await lanner.connect(cluster.address) as queue, await lanner.connect(cluster.address) as other:
        await queue.admin.create_topic("hung", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            await queue.publish("hung", b"first", partition=partition)
        hung = await asyncio.to_thread(cluster.leader, "hung", 0)
        cluster.pace(hung, "hang")
        began = time.monotonic()
        receipts = await asyncio.wait_for(
            asyncio.gather(*(queue.publish("hung", b"in flight", partition=0) for _ in range(5))), RESUME_SECONDS
        )
        in_flight = time.monotonic() - began
        await asyncio.wait_for(other.publish("hung", b"another", partition=0), RESUME_SECONDS)
        resumed = time.monotonic() - began
        assert len({receipt.offset for receipt in receipts}) == 5
        successor = await asyncio.to_thread(cluster.leader, "hung", 0, other_than=hung)
        assert successor != hung
        status, told = await asyncio.to_thread(cluster.get, hung, "/readyz")
        assert status == 503 and "disk slow" in str(told)
    assert "disk slow" in cluster.brokers[hung].log_tail()
    print(f"a disk hung: answered in flight after {in_flight:.1f} s, another client after {resumed:.1f} s")
    if chaos:
        assert resumed < 5


async def test_a_broker_whose_disk_hangs_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """Whatever waits for the disk was never acknowledged, so nothing is lost by leaving it."""
    pace = tmp_path / "pace"
    settings = {"stop_ms": 1_000, "drain_ms": 500, "hand_over_ms": 500}
    with BrokerProcess(tmp_path / "data", settings=settings, plants=(f"pace_sync:{pace}",)) as broker:
        async with await lanner.connect(broker.native) as queue:
            await queue.publish("orders", b"stored")
            pace.write_text("hang", encoding="ascii")
            in_flight = asyncio.create_task(queue.publish("orders", b"never stored"))
            while "disk slow" not in broker.log_tail():
                await asyncio.sleep(0.05)
            assert not in_flight.done()
            code = await asyncio.to_thread(broker.stop, 30.0)
            assert code == 1, broker.log_tail()
            assert "the disk has not answered for 1 s" in broker.log_tail()
            assert not in_flight.done() or in_flight.exception() is not None, "it was never acknowledged"
            in_flight.cancel()
            await asyncio.gather(in_flight, return_exceptions=True)
            pace.unlink()
            broker.start()  # else the client waits for it until its timeout, with what it could not send
            async with queue.reader("orders", start="earliest", until_end=True) as reader:
                assert b"stored" in [message.value async for message in reader]
        assert broker.stop() == 0
