"""What it costs to talk beside a sync, or to wait for it: `python bench/talk_cost.py SRC...`.

Each SRC is the `src` folder of a checkout, such as copies with another `_SOON_SECONDS` in `broker/commits`. They take
turns, a round each, so that a noisy machine treats them alike. Three brokers, one request a publish: the processor time
of all brokers for each request, and how long a caller waits for it. Figures are medians of the rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

ROUNDS = 5
CALLERS = {1: 500, 8: 150, 32: 60}  # how many at once, and requests of each


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure() -> dict[int, tuple[float, float]]:
    """One round: microseconds of processor time and milliseconds of waiting for each request."""
    import lanner
    from lanner.testing.cluster_process import ClusterProcess

    told: dict[int, tuple[float, float]] = {}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="."))
        cluster = stack.enter_context(ClusterProcess(Path(folder)))
        processes = [broker.pid for broker in cluster.brokers.values()]
        queues = [await stack.enter_async_context(lanner.connect(cluster.address)) for _ in range(max(CALLERS))]
        await queues[0].admin.create_topic("orders", partitions=3, replication=3)

        async def publish(queue: lanner.Queue, count: int) -> None:
            for _ in range(count):
                await queue.publish("orders", b"x" * 100)

        await asyncio.gather(*(publish(queue, 5) for queue in queues))
        for callers, count in CALLERS.items():
            used, began = sum(map(processor_seconds, processes)), time.perf_counter()
            await asyncio.gather(*(publish(queue, count) for queue in queues[:callers]))
            ended = time.perf_counter()
            used = sum(map(processor_seconds, processes)) - used
            told[callers] = (used / (callers * count) * 1e6, (ended - began) / count * 1e3)
    return told


def main(sources: Sequence[str]) -> None:
    rounds: dict[str, list[dict[str, tuple[float, float]]]] = {source: [] for source in sources}
    for _ in range(ROUNDS):
        for source in sources:
            environment = {**os.environ, "PYTHONPATH": str(Path(source).resolve())}
            command = [sys.executable, __file__, "--measure"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            rounds[source].append(json.loads(done.stdout))
    for source, told in rounds.items():
        for callers in CALLERS:
            used, waited = (median(one[str(callers)][place] for one in told) for place in (0, 1))
            print(f"{source}: {callers} at once: {used:.0f} µs of the three brokers, {waited:.2f} ms")


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        print(json.dumps(asyncio.run(measure())))
    else:
        main(sys.argv[1:] or ["src"])
