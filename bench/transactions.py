"""Transactions over three partitions of three brokers: how long a commit takes, and how many there are a second.

A commit is three commits of replicated logs in a row until it is decided (begun, prepared, outcome), and one more until
it shows. So it is held against a plain publish to the same brokers, measured in the same rounds.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import NamedTuple

import lanner
from bench.cluster import PARTITIONS, ROUNDS, SECONDS, cluster, fresh_topic
from bench.figures import Figure, percentile
from bench.processes import workers

IDS = (1, 10, 100)
VALUE = bytes(100)


class Commits(NamedTuple):
    """What one round of transactions came to."""

    decided_ms: list[float]  # from the call of commit until it is known to be committed
    visible_ms: list[float]  # until every partition is known to show it, of those that waited for that
    rate: float  # transactions a second, staging included


def publish_one_by_one(address: str, topic: str, seconds: float) -> list[float]:
    """How long each of some publishes took, one after the other, in milliseconds."""

    async def work() -> list[float]:
        taken = []
        async with lanner.connect(address) as queue:
            ends = time.perf_counter() + seconds
            while (began := time.perf_counter()) < ends:
                await queue.publish(topic, VALUE, partition=len(taken) % PARTITIONS)
                taken.append((time.perf_counter() - began) * 1_000)
        return taken

    return asyncio.run(work())


def commit_for(address: str, topic: str, ids: int, prefix: str, seconds: float) -> Commits:
    """Writers with a transaction each, one commit after the other; every tenth waits until it shows."""
    decided: list[float] = []
    visible: list[float] = []

    async def write(queue: lanner.Queue, name: str, ends: float) -> int:
        sequence = 0
        while time.perf_counter() < ends:
            writer = await queue.stage(name, "bench", sequence)
            for partition in range(PARTITIONS):
                await writer.publish(topic, VALUE, partition=partition)
            staged = await writer.finish()
            shows = sequence % 10 == 9
            began = time.perf_counter()
            await queue.commit_staged(name, "bench", sequence, [staged], wait="visible" if shows else "decided")
            (visible if shows else decided).append((time.perf_counter() - began) * 1_000)
            sequence += 1
        return sequence

    async def work() -> float:
        async with lanner.connect(address) as queue:
            began = time.perf_counter()
            writers = [write(queue, f"{prefix}-{number}", began + seconds) for number in range(ids)]
            count = sum(await asyncio.gather(*writers))
            return count / (time.perf_counter() - began)

    rate = asyncio.run(work())
    return Commits(decided, visible, rate)


def measure_transactions() -> list[Figure]:
    figures = []
    rounds: dict[int, list[Commits]] = {ids: [] for ids in IDS}
    publishes: list[float] = []
    with cluster() as brokers, workers(1) as pool:
        topic = fresh_topic(brokers.address)
        for number in range(ROUNDS):
            publishes += pool.submit(publish_one_by_one, brokers.address, topic, SECONDS / 2).result()
            for ids in IDS:
                arguments = (brokers.address, topic, ids, f"round-{number}-{ids}", SECONDS)
                rounds[ids].append(pool.submit(commit_for, *arguments).result())
    floor = percentile(publishes, 50)
    for ids, found in rounds.items():
        what = f"{ids} at a time, {PARTITIONS} partitions"
        decided = [taken for one in found for taken in one.decided_ms]
        visible = [taken for one in found for taken in one.visible_ms]
        note = f"p99 {percentile(decided, 99):.1f}"
        figures += [
            Figure(
                f"commit, {what}", percentile(decided, 50), "ms", None, floor, "a publish", note, lower_is_better=True
            ),
            Figure(
                f"commit until it shows, {what}",
                percentile(visible, 50),
                "ms",
                None,
                floor,
                "a publish",
                lower_is_better=True,
            ),
            Figure(f"transactions, {what}", median(one.rate for one in found), "a second"),
        ]
    return figures
