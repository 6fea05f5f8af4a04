"""What a broker takes before anybody uses it: time to be ready, memory, idle work.

An empty broker; one that comes back with gigabytes of log; one with a thousand idle partitions. Memory is RssAnon: the
table is a mapped file, and what the kernel keeps of it is the kernel's.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import lanner
from bench import load
from bench.figures import Figure
from bench.floors import scratch
from lanner.testing.process import BrokerProcess

MB = 1_000_000
LOG_BYTES = int(os.environ.get("BENCH_LOG_GB", "5")) * 1_000 * MB
PARTITIONS = 1_000
VALUE_BYTES = 4_000
IDLE_SECONDS = 10.0


def _less(name: str, value: float, unit: str, goal: float, note: str = "") -> Figure:
    return Figure(name, value, unit, goal, note=note, lower_is_better=True)


def _settle(process: BrokerProcess, seconds: float = 3.0) -> float:
    """Let it come to rest, then watch it idle: the share of one core it takes."""
    time.sleep(seconds)
    before = process.cpu_seconds()
    time.sleep(IDLE_SECONDS)
    return (process.cpu_seconds() - before) / IDLE_SECONDS


def _empty(folder: Path) -> list[Figure]:
    with BrokerProcess(folder / "empty") as process:
        first = process.ready_seconds
        core = _settle(process)
        memory = process.anonymous_bytes()
        process.stop()
    return [
        _less("empty broker, ready", first, "s", 1.5),
        _less("empty broker, RssAnon", memory / MB, "MB", 80),
        Figure("empty broker, idle", 100 * core, "% of a core", lower_is_better=True),
    ]


def _large(folder: Path) -> list[Figure]:
    process = BrokerProcess(folder / "large")
    process.start()
    values = load.messages(250, VALUE_BYTES)
    with lanner.sync.connect(process.native) as queue:
        queue.admin.create_topic("large", partitions=3)
        for _ in range(LOG_BYTES // (len(values) * VALUE_BYTES)):
            queue.publish_many("large", values)
    on_disk = process.disk_bytes()
    process.kill()
    process.start(timeout_seconds=120)
    figures = [
        _less(f"restart after kill -9 with {on_disk / 1e9:.1f} GB of log, ready", process.ready_seconds, "s", 5.0),
        Figure("… RssAnon then", process.anonymous_bytes() / MB, "MB", lower_is_better=True),
    ]
    process.kill()
    return figures


def _wide(folder: Path) -> list[Figure]:
    process = BrokerProcess(folder / "wide")
    process.start()
    with lanner.sync.connect(process.native) as queue:
        queue.admin.create_topic("wide", partitions=PARTITIONS)
    time.sleep(2.0)
    process.stop()
    process.start(timeout_seconds=120)
    core = _settle(process)
    figures = [
        _less("1,000 idle partitions, ready", process.ready_seconds, "s", 10.0),
        _less("1,000 idle partitions, idle", 100 * core, "% of a core", 10.0),
        _less("1,000 idle partitions, RssAnon", process.anonymous_bytes() / MB, "MB", 300),
    ]
    process.kill()
    return figures


def measure() -> list[Figure]:
    with scratch() as folder:
        return [figure for part in (_empty, _large, _wide) for figure in part(Path(folder))]
