"""Three brokers on one machine, every acknowledged message synced on two of them, beside what the disk does for three.

Three brokers share the disk and the cores, so their floor is three writers at once. Figures for one broker come from
the same run, interleaved, because a share of something measured on another day says nothing.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median

import lanner
from bench import load
from bench.figures import Figure, percentile
from bench.floors import journal_floor, scratch
from bench.processes import workers
from lanner import batch
from lanner.testing.cluster_process import ClusterProcess
from lanner.testing.process import BrokerProcess

ROUNDS = 3
SECONDS = float(os.environ.get("BENCH_SECONDS", "4"))
FLOOR_SECONDS = SECONDS / 2
BATCH_MESSAGES = 600
BATCHES_IN_FLIGHT = 16
PARTITIONS = 3
IDLE_SETS = 500
TICK_MS = 50
SOAK_PER_SECOND = 30_000  # offered: a fifth more than the goal, so that the goal can be reached and missed
SOAK_GOAL_PER_MINUTE = 1_500_000
MB = 1_000_000

_names = itertools.count(1)


@contextmanager
def cluster(size: int = 3) -> Iterator[ClusterProcess]:
    """Fresh brokers with the settings they ship with, on the disk of the working tree."""
    with scratch() as folder, ClusterProcess(Path(folder), size) as started:
        yield started


def fresh_topic(address: str, partitions: int = PARTITIONS, replication: int = 3) -> str:
    name = f"bench-{next(_names)}"
    with lanner.sync.connect(address) as queue:
        queue.admin.create_topic(name, partitions=partitions, replication=replication)
    return name


def commits_since(broker: BrokerProcess, before: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """How often the broker wrote its journal and how much: of the thread that wrote the most bytes."""
    delta = [
        (size - before.get(thread, (0, 0))[1], calls - before.get(thread, (0, 0))[0])
        for thread, (calls, size) in broker.write_calls().items()
        if thread != broker.pid
    ]
    size, calls = max(delta)
    return max(1, calls), size


def floors_at_once(chunk: bytes, at_a_time: int) -> float:
    """Chunks a second of one of three writers that work at once, each with its own file."""
    with scratch() as folder, workers(3) as pool:
        folders = [Path(folder) / str(number) for number in range(3)]
        for one in folders:
            one.mkdir()
        writing = [pool.submit(journal_floor, one, chunk, at_a_time, FLOOR_SECONDS) for one in folders]
        return mean(one.result()[0] for one in writing)


def measure_batched() -> list[Figure]:
    """Batches of 600 × 100 bytes from one producer; beside one broker and three floor writers."""
    chunk = batch.encode(load.messages(BATCH_MESSAGES))
    three, one, floor, grouped, cost = [], [], [], [], []
    with cluster() as brokers, cluster(1) as single, workers(1) as pool:
        topic, alone = fresh_topic(brokers.address), fresh_topic(single.address, replication=1)
        for _ in range(ROUNDS):
            before = {number: broker.write_calls() for number, broker in brokers.brokers.items()}
            cpu = sum(broker.cpu_seconds() for broker in brokers.brokers.values())
            arguments = (brokers.address, topic, BATCH_MESSAGES, BATCHES_IN_FLIGHT, SECONDS)
            span = pool.submit(load.publish_batched, *arguments).result()
            three.append(span.rate)
            cost.append(1e6 * (sum(b.cpu_seconds() for b in brokers.brokers.values()) - cpu) / span.count)
            commits = [commits_since(brokers.brokers[number], calls)[0] for number, calls in before.items()]
            grouped.append(span.count / BATCH_MESSAGES / mean(commits))
            arguments = (single.address, alone, BATCH_MESSAGES, BATCHES_IN_FLIGHT, SECONDS)
            one.append(pool.submit(load.publish_batched, *arguments).result().rate)
            floor.append(floors_at_once(chunk, max(1, round(grouped[-1]))) * BATCH_MESSAGES)
    rate, bytes_each = median(three), len(chunk) / BATCH_MESSAGES
    note = (
        f"{rate * bytes_each / MB:.0f} MB/s; {median(grouped):.1f} batches a commit; {median(cost):.2f} µs of CPU each"
    )
    return [
        Figure("3 brokers, batched, fsync", rate, "msg/s", 0.5 * median(floor), median(floor), "of 3 writers", note),
        Figure("… against one broker", rate, "msg/s", 0.25 * median(one), median(one), "one broker"),
    ]


def measure_single() -> list[Figure]:
    """One message a request, 64 in flight, to the leader."""
    chunk = batch.encode(load.messages(1))
    rates, floor, grouped = [], [], []
    with cluster() as brokers, workers(1) as pool:
        topic = fresh_topic(brokers.address)
        for _ in range(ROUNDS):
            before = {number: broker.write_calls() for number, broker in brokers.brokers.items()}
            span = pool.submit(load.publish_single, brokers.address, topic, PARTITIONS, 64, SECONDS).result()
            rates.append(span.rate)
            commits = [commits_since(brokers.brokers[number], calls)[0] for number, calls in before.items()]
            grouped.append(span.count / mean(commits))
            floor.append(floors_at_once(chunk, max(1, round(grouped[-1]))))
    note = f"{median(grouped):.1f} requests a commit"
    return [
        Figure(
            "3 brokers, one a request, 64 in flight", median(rates), "msg/s", 8_000, median(floor), "of 3 writers", note
        )
    ]


def measure_latency() -> list[Figure]:
    """1,000 messages a second offered, whatever the brokers do; a consumer in another process."""
    rate, seconds = 1_000, 2.5 * SECONDS
    published: list[float] = []
    arrived: list[float] = []
    with cluster() as brokers, workers(2) as pool:
        for _ in range(2):
            topic, count = fresh_topic(brokers.address), int(rate * seconds)
            consumer = pool.submit(load.consume_latency, brokers.address, topic, "latency", count, seconds + 5)
            time.sleep(0.5)
            published += pool.submit(load.publish_at_rate, brokers.address, topic, rate, seconds).result()
            arrived += consumer.result()
        with scratch() as folder:
            _, syncs = journal_floor(Path(folder), b"v" * 300, 1, 2.0)
    p50, p99 = percentile(syncs, 50), percentile(syncs, 99)
    return [
        Figure("3 brokers at 1,000/s, p50", percentile(published, 50), "ms", 4.0, p50, "sync", "", True),
        Figure("3 brokers at 1,000/s, p99", percentile(published, 99), "ms", 15.0, p99, "sync", "", True),
        Figure("… to a consumer, p50", percentile(arrived, 50), "ms", None, p50, "sync", "", True),
        Figure("… to a consumer, p99", percentile(arrived, 99), "ms", None, p99, "sync", "", True),
    ]


def measure_idle() -> list[Figure]:
    """500 replica sets on each broker with nothing to do: what a tick of 50 ms costs each of them."""
    seconds = 2.5 * SECONDS
    with cluster() as brokers:
        fresh_topic(brokers.address, partitions=IDLE_SETS)
        time.sleep(10.0)  # elections, first entries, saves; then they come to rest
        before = {number: broker.cpu_seconds() for number, broker in brokers.brokers.items()}
        time.sleep(seconds)
        spent = [broker.cpu_seconds() - before[number] for number, broker in brokers.brokers.items()]
        memory = max(broker.anonymous_bytes() for broker in brokers.brokers.values())
    each = [1_000 * one / (seconds * 1_000 / TICK_MS) for one in spent]
    note = f"brokers: {', '.join(f'{one:.2f}' for one in each)}; RssAnon {memory / MB:.0f} MB"
    return [Figure("500 idle replica sets, a tick", max(each), "ms CPU", 2.0, note=note, lower_is_better=True)]


# ------------------------------------------------------------------ the long run


def measure_soak() -> list[Figure]:
    """At least 1.5M messages a minute, one `publish()` each, consumed and acked meanwhile; memory must stay flat."""
    seconds = float(os.environ.get("BENCH_SOAK_SECONDS", "600"))
    warm = min(60.0, seconds / 4)
    memory: dict[int, list[tuple[float, int]]] = {1: [], 2: [], 3: []}
    with scratch() as folder, cluster() as brokers, workers(2) as pool:
        topic, stop = fresh_topic(brokers.address), Path(folder) / "stop"
        with lanner.sync.connect(brokers.address) as queue:
            queue.admin.alter_topic(topic, retention="acked")
        began = time.monotonic()
        consuming = pool.submit(load.consume_for_long, brokers.address, topic, "soak", str(stop))
        publishing = pool.submit(load.publish_for_long, brokers.address, topic, SOAK_PER_SECOND, seconds)
        while not publishing.done():
            for number, broker in brokers.brokers.items():
                memory[number].append((time.monotonic() - began, broker.anonymous_bytes()))
            time.sleep(1.0)
        stop.touch()
        published, consumed = publishing.result(), consuming.result()
        with lanner.sync.connect(brokers.address) as queue:
            parts = queue.admin.group(topic, "soak").partitions
        settled = published.count - sum(part.ready + part.leased + part.waiting for part in parts)
        disk = max(broker.disk_bytes() for broker in brokers.brokers.values())
    growths = [_growth([size for at, size in sizes if at >= warm]) for sizes in memory.values()]
    peak = max(size for sizes in memory.values() for _, size in sizes)
    slowest = min(_minutes(published.by_second), default=0.0)
    per_minute = 60 * published.count / published.seconds
    note = f"{seconds:.0f} s; {per_minute:,.0f} on average; {disk / MB:,.0f} MB on disk at the end"
    spread = f"by broker: {', '.join(f'{100 * one:.0f}%' for one in growths)}; peak {peak / MB:.0f} MB"
    handed = f"{consumed.count:,} deliveries for {published.count:,} messages"
    took = f"p50 {percentile(published.took_ms, 50):.1f} ms"
    return [
        Figure("soak, published, slowest minute", slowest, "messages", SOAK_GOAL_PER_MINUTE, note=note),
        Figure("soak, consumed and acked", 100 * settled / published.count, "% of them", 100.0, note=handed),
        Figure("soak, RssAnon grew by", 100 * max(growths), "%", 10.0, note=spread, lower_is_better=True),
        Figure("soak, publish p99", percentile(published.took_ms, 99), "ms", note=took, lower_is_better=True),
    ]


def _growth(sizes: list[int]) -> float:
    """How much a level rose from its first tenth to its last: single samples wobble with garbage collection."""
    part = max(1, len(sizes) // 10)
    return median(sizes[-part:]) / median(sizes[:part]) - 1.0 if sizes else 0.0


def _minutes(by_second: list[int]) -> list[float]:
    """Each whole minute's messages; of a short run, its rate for a minute."""
    if len(by_second) < 60:
        return [60 * mean(by_second)] if by_second else []
    return [float(sum(by_second[first : first + 60])) for first in range(0, len(by_second) - 59, 60)]
