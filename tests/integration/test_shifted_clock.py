"""A real broker whose wall clock is set while it runs: leases neither end early nor stand still, and it says so.

The clock of that one process is shifted by a small library (`shift_clock.c`), which is built here; where there is no C
compiler the test is skipped. What the unit tests say of `wall_clock` is thereby seen with the system's own clock.
"""

from __future__ import annotations

import asyncio
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import lanner
from lanner.testing.process import BrokerProcess

HOUR_MS = 3_600_000
SECONDS = 30.0
SOURCE = Path(__file__).parent / "shift_clock.c"


class Clock:
    """The wall clock of the processes that run under `wrapper`."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self.path, library = folder / "shift", folder / "shift_clock.so"
        self.set_ms(0)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)], check=True)
        self.wrapper = ("env", f"LD_PRELOAD={library}", f"SHIFT_CLOCK_FILE={self.path}")

    def set_ms(self, shift_ms: int) -> None:
        """Set it to so much ahead of the machine's. The file stays the same one: it is mapped."""
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.write(struct.pack("=q", shift_ms * 1_000_000))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("there is no C compiler, or no LD_PRELOAD, to shift the clock of one process")
    return Clock(tmp_path, compiler)


async def until_said(broker: BrokerProcess, words: str) -> None:
    async with asyncio.timeout(SECONDS):
        while words not in broker.log_tail():
            await asyncio.sleep(0.02)


async def test_the_clock_is_set_forward_and_back_while_a_broker_runs_and_before_it_starts(
    tmp_path: Path, clock: Clock
) -> None:
    settings = {"disk_reserve_bytes": 0, "drain_ms": 200}
    with BrokerProcess(tmp_path / "data", settings=settings, wrapper=clock.wrapper) as broker:
        async with await lanner.connect(broker.native) as queue:
            await queue.admin.create_topic("orders", partitions=1, backoff_ms=0, lease_ms=600_000)
            await queue.publish("orders", b"leased for long")
            async with queue.consumer("orders", group="slow", auto_extend=False) as slow:
                assert [one.value for one in await slow.poll(1)] == [b"leased for long"]
                clock.set_ms(HOUR_MS)
                await queue.publish("orders", b"after the step")
                await until_said(broker, "the wall clock was set forward by 3600")
                async with queue.consumer("orders", group="slow") as other:
                    found = await other.poll(10)
                    assert [one.value for one in found] == [b"after the step"], "an hour has not passed"
                    await found.ack()
                clock.set_ms(-HOUR_MS)
                await queue.publish("orders", b"after the step back")
                await until_said(broker, "the wall clock was set back by")
                async with queue.consumer("orders", group="slow", lease_ms=200, auto_extend=False) as other:
                    first = await other.poll(10)
                    assert [one.value for one in first] == [b"after the step back"]
                    async with asyncio.timeout(SECONDS):  # its lease ends, although the clock shows an hour ago
                        again = await other.poll(10, 20_000)
                    assert [(one.value, one.attempt) for one in again] == [(b"after the step back", 2)]
                    await again.ack()
        await asyncio.to_thread(broker.stop)
        broker.start()  # a restart takes the time at once: an hour before what is in its log
        async with httpx.AsyncClient(trust_env=False) as http:
            ahead_ms = (await http.get(f"{broker.url}/v1/cluster")).json()["time_ahead_ms"]
        assert HOUR_MS - 60_000 < ahead_ms < HOUR_MS + 120_000
        assert broker.stop() == 0
