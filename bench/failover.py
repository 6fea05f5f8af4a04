"""How long publishing stands still: a leader dies, a follower dies, a broker is told to stop.

A client in a process of its own publishes to every partition, one message after the other, and notes when each was
acknowledged; its own retries and re-routing are part of the figure. Brokers are killed one after the other, each only
when the one before is back and has caught up.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from bisect import bisect_right
from pathlib import Path

import lanner
from bench import load
from bench.cluster import PARTITIONS, cluster, fresh_topic
from bench.figures import Figure, percentile
from bench.floors import scratch
from bench.processes import workers
from lanner.errors import LannerError
from lanner.testing.cluster_process import ClusterProcess

KILLS = int(os.environ.get("BENCH_KILLS", "24"))
HAND_OVERS = max(3, KILLS // 4)
SETTLE_SECONDS = 1.0
WATCHED_SECONDS = 6.0  # after each fault, before the broker comes back

Seen = list[list[tuple[float, float]]]
Fault = tuple[float, list[int], int]  # when, who led each partition, whom it hit


def measure() -> list[Figure]:
    with scratch() as folder, cluster() as brokers, workers(1) as pool:
        topic, stop = fresh_topic(brokers.address), Path(folder) / "stop"
        probing = pool.submit(load.probe, brokers.address, topic, PARTITIONS, str(stop))
        killed: list[Fault] = []
        stopped: list[Fault] = []
        try:
            for number in range(KILLS):
                killed.append(_hit(brokers, topic, 1 + number % 3, graceful=False))
            for number in range(HAND_OVERS):
                stopped.append(_hit(brokers, topic, 1 + number % 3, graceful=True))
        finally:
            stop.touch()
        seen = probing.result()
    return _figures(seen, killed, stopped)


def _come_to_rest(brokers: ClusterProcess, topic: str) -> list[int]:
    """Wait until every broker is up, has caught up, and leads what it should; who leads what."""

    def at_rest() -> bool:
        try:
            with lanner.sync.connect(brokers.address) as queue:
                (found,) = [one for one in queue.admin.cluster().topics if one.name == topic]
        except (LannerError, ValueError):
            return False
        leaders = [brokers.number_of(partition.leader) for partition in found.partitions]
        return sorted(leaders) == [1, 2, 3]

    with contextlib.suppress(AssertionError):  # measured all the same: the present leader is hit
        brokers.until(at_rest, 15.0, "leaders are not spread")
    time.sleep(SETTLE_SECONDS)
    return brokers.leaders(topic)


def _hit(brokers: ClusterProcess, topic: str, number: int, *, graceful: bool) -> Fault:
    leaders = _come_to_rest(brokers, topic)
    at = time.monotonic()
    if graceful:
        brokers.stop(number)
    else:
        brokers.kill(number)
    time.sleep(max(0.0, at + WATCHED_SECONDS - time.monotonic()))  # time enough to see the pause end
    brokers.restart(number)
    return at, leaders, number


def _pause_after(rows: list[tuple[float, float]], at: float) -> float:
    """Seconds from a fault to the first acknowledgement that was not on its way already."""
    answers = [answered for _, answered in rows]
    place = bisect_right(answers, at + 0.02)
    return answers[place] - at if place < len(answers) else float("inf")


def _gap_after(rows: list[tuple[float, float]], at: float, seconds: float = WATCHED_SECONDS) -> float:
    """The longest time between two acknowledgements in the seconds after a fault."""
    answers = [answered for _, answered in rows]
    first, last = bisect_right(answers, at), bisect_right(answers, at + seconds)
    around = answers[max(0, first - 1) : last + 1]
    return max((later - earlier for earlier, later in itertools.pairwise(around)), default=float("inf"))


def _figures(seen: Seen, killed: list[Fault], stopped: list[Fault]) -> list[Figure]:
    leader_deaths = [
        max(_pause_after(seen[partition], at) for partition, leader in enumerate(leaders) if leader == number)
        for at, leaders, number in killed
        if number in leaders
    ]
    follower_deaths = [
        1_000 * _gap_after(seen[partition], at)
        for at, leaders, number in killed
        for partition, leader in enumerate(leaders)
        if leader != number
    ]
    hand_overs = [
        1_000 * max(_gap_after(seen[partition], at) for partition, leader in enumerate(leaders) if leader == number)
        for at, leaders, number in stopped
        if number in leaders
    ]
    note = f"{len(leader_deaths)} kills; worst {max(leader_deaths, default=0):.2f} s"
    figures = [
        Figure("leader killed, publishing resumes, p50", percentile(leader_deaths, 50), "s", 2.5, note=note),
        Figure("leader killed, publishing resumes, p99", percentile(leader_deaths, 99), "s", 5.0),
        Figure("follower killed, pause, p50", percentile(follower_deaths, 50), "ms"),
        Figure("follower killed, pause, worst", max(follower_deaths, default=0.0), "ms", 250.0),
        Figure("hand-over at SIGTERM, pause, p50", percentile(hand_overs, 50), "ms"),
        Figure("hand-over at SIGTERM, pause, worst", max(hand_overs, default=0.0), "ms", 500.0),
    ]
    return [Figure(one.name, one.value, one.unit, one.goal, note=one.note, lower_is_better=True) for one in figures]
