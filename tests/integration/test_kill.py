"""kill -9 in the middle of publishing and consuming, again and again, on a real disk."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import lanner
from lanner.testing.checkers import judge
from lanner.testing.history import Ended, Published, Status, Stored
from lanner.testing.process import BrokerProcess
from lanner.testing.workload import Workload, order_broken

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
    workload = Workload(broker.native, "orders", partitions=PARTITIONS)
    try:
        await workload.make_topic()
        workload.start()
        for _ in range(loops):
            await asyncio.sleep(0.15 + 0.25 * rng.random())
            await asyncio.to_thread(broker.kill)
            workload.crashed()
            await asyncio.to_thread(broker.start)
        await asyncio.sleep(0.3)
        await workload.stop_publishing()
        await drained(broker, workload)
        await workload.stop_consuming()
        broken = await workload.broken_promises(drained=True)
    finally:
        workload.cancel()
        broker.kill()
    print(f"{loops} kills: {workload.acknowledged} messages acknowledged, failures {dict(workload.failures)}")
    assert broken == []
    assert workload.acknowledged > 50 * loops


def told(workload: Workload, *stored: Stored) -> list[str]:
    """What the judges say of two acknowledged messages when this is what is found."""
    history = workload.history
    history.events = [Published(0.0, 1.0, Status.OK, 0, 0, ("0-0", "0-1"), 4)]
    history.add(Ended(2.0, 3.0, 0, 0, len(stored), stored))
    return [str(violation) for violation in judge(history)] + order_broken(stored)


def test_the_judges_of_a_kill_see_each_broken_promise() -> None:
    workload = Workload("nowhere:1", "orders", partitions=1)
    first, second = Stored(0, "0-0", 4), Stored(1, "0-1", 4)
    assert told(workload, first, second) == []
    assert any("lost write" in one for one in told(workload, first))
    assert any("duplicate offset" in one for one in told(workload, first, second, Stored(2, "0-1", 4)))
    assert any("unexpected message" in one for one in told(workload, first, second, Stored(2, "0-9", 4)))
    assert any("out of order" in one for one in told(workload, Stored(0, "0-1", 4), Stored(1, "0-0", 4)))
