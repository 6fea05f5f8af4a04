"""kill -9 in the middle of publishing and consuming, again and again, on a real disk."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import lanner
from lanner.testing.process import BrokerProcess
from lanner.testing.workload import Stored, Workload, broken_promises, read_everything

PARTITIONS = 3
SHORT_LOOPS = 10
SETTINGS = {"segment_bytes": 1 << 20, "disk_reserve_bytes": 0}


async def drained(broker: BrokerProcess, workload: Workload, seconds: float = 60.0) -> None:
    """Wait until the group has settled everything."""
    ends = asyncio.get_running_loop().time() + seconds
    async with lanner.connect(broker.native) as queue:
        while True:
            state = await queue.admin.group(workload.topic, workload.group)
            if sum(part.ready + part.leased + part.waiting for part in state.partitions) == 0:
                return
            assert asyncio.get_running_loop().time() < ends, f"the group never came to rest: {state}"
            await asyncio.sleep(0.1)


async def test_kill_nine_in_the_middle_of_everything_breaks_no_promise(
    tmp_path: Path, chaos: bool, request: pytest.FixtureRequest
) -> None:
    loops = int(request.config.getoption("--chaos-loops")) if chaos else SHORT_LOOPS
    rng = random.Random(7)
    broker = BrokerProcess(tmp_path / "data", settings=SETTINGS).start()
    try:
        async with lanner.connect(broker.native) as queue:
            await queue.admin.create_topic("orders", partitions=PARTITIONS, lease_ms=1_000, max_deliveries=1_000)
        workload = Workload(broker.native, "orders", partitions=PARTITIONS)
        workload.start()
        for _ in range(loops):
            await asyncio.sleep(0.15 + 0.25 * rng.random())
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        await asyncio.sleep(0.3)
        await workload.stop_publishing()
        await drained(broker, workload)
        await workload.stop_consuming()
        found = await read_everything(broker.native, "orders")
    finally:
        broker.kill()
    record = workload.record
    print(
        f"{loops} kills: {len(record.acknowledged)} acknowledged, {len(record.unknown)} unknown, "
        f"{len(record.handed)} handed out, {len(record.settled)} settled, failures {dict(record.failures)}"
    )
    assert broken_promises(record, found) == []
    assert {(one.partition, one.offset) for one in found} == {(one.partition, one.offset) for one in record.handed}
    assert len(record.acknowledged) > 50 * loops


def test_the_judge_of_kills_sees_each_broken_promise() -> None:
    workload = Workload("nowhere:1", "orders", partitions=1)
    record = workload.record
    first, second = Stored(0, 0, b"0-0", 4), Stored(0, 1, b"0-1", 4)
    record.acknowledged += [first, second]
    assert broken_promises(record, [first, second]) == []
    assert "lost" in broken_promises(record, [first])[0]
    assert any("twice" in one for one in broken_promises(record, [first, second, Stored(0, 2, b"0-1", 4)]))
    assert any("never published" in one for one in broken_promises(record, [first, second, Stored(0, 2, b"0-9", 4)]))
    swapped = [Stored(0, 0, b"0-1", 4), Stored(0, 1, b"0-0", 4)]
    assert any("out of order" in one for one in broken_promises(record, swapped))
