"""Three brokers in one process, over memory: what replication costs without sockets and disks.

Every message is encoded and decoded on its way. A round of the busy part publishes some batches to each partition and
lets commits (which cost nothing here), messages and answers run until all is quiet. The idle part is one tick of one
broker that has a replica of each of 500 sets and leads a third of them: with heartbeats, and at rest.

Run: python -m bench.engines [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import time
from unittest.mock import patch

from bench.figures import Figure, print_figures
from lanner import batch, limits
from lanner.broker.replicas import quiescence
from lanner.partition import encode_append
from lanner.raft import Message
from lanner.storage import MemoryFiles
from lanner.testing.flock import Broker, Flock

SEGMENT_BYTES = 64 << 20


class NoFiles(MemoryFiles):
    """Journal files that keep nothing: what is measured is everything but the disk."""

    def write(self, file_id: int, offset: int, buffers: object) -> None:
        pass


class Trio(Flock):
    def __init__(self, partitions: int) -> None:
        self.messages = 0
        super().__init__(files=NoFiles, cache_bytes=64 * limits.MIB, segment_bytes=SEGMENT_BYTES)
        self.coordinating = False
        self.sets = self.create_topic("load", partitions)

    def carry(self, sender: Broker, set_id: int, message: Message) -> None:
        self.messages += 1
        super().carry(sender, set_id, message)

    @property
    def commits(self) -> int:
        return sum(broker.engine.commits for broker in self.up())


def busy(size: int, at_once: int, partitions: int, seconds: float) -> tuple[float, str]:
    """Batches a second of CPU of all three brokers together; and how many messages and commits one took."""
    trio = Trio(partitions)
    leaders = {set_id: trio.leader_of(set_id) for set_id in trio.sets}
    payload = encode_append(0, batch.encode([b"x" * size]))
    done = 0

    def told(_result: object) -> None:
        nonlocal done
        done += 1

    messages, commits = trio.messages, trio.commits
    gc.collect()
    started = time.process_time()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for set_id, broker in leaders.items():
            assert broker is not None
            for _ in range(at_once):
                broker.engine.propose(set_id, payload, told)
        trio.settle()
        if any(one.engine.ledger.unsaved_bytes > 64 << 20 for one in trio.up()):
            for broker in trio.up():
                broker.save()
    spent = time.process_time() - started
    messages, commits = trio.messages - messages, trio.commits - commits
    return done / spent, f"{messages / done:.2f} messages and {commits / done:.2f} commits for one batch"


def idle(partitions: int, ticks: int, *, rest: bool) -> float:
    """Milliseconds of CPU for a tick of one broker."""
    with patch.object(quiescence, "QUIESCE_TICKS", quiescence.QUIESCE_TICKS if rest else 1 << 60):
        trio = Trio(partitions)
        for _ in range(60):
            trio.pass_time()
        started = time.process_time()
        for _ in range(ticks):
            trio.pass_time()
        return 1_000 * (time.process_time() - started) / ticks / len(trio.brokers)


CASES: tuple[tuple[str, int, int, int], ...] = (
    ("60 KB, 4 at once to 3 partitions", 60_000, 4, 3),
    ("60 KB, 1 at once to 1 partition", 60_000, 1, 1),
    ("100 B, 16 at once to 3 partitions", 100, 16, 3),
    ("100 B, 1 at once to 1 partition", 100, 1, 1),
)


def measure(seconds: float = 2.0) -> list[Figure]:
    figures = []
    for label, size, at_once, partitions in CASES:
        rate, note = busy(size, at_once, partitions, seconds)
        figures.append(Figure(f"three engines, {label}", rate, "batches/s of CPU", note=note))
    for label, rest in (("heartbeats on", False), ("at rest", True)):
        spent = idle(500, 60, rest=rest)
        goal = 2.0 if rest else None
        figures.append(Figure(f"one tick with 500 idle sets, {label}", spent, "ms CPU", goal, lower_is_better=True))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--profile", type=int, default=-1, help="profile this case instead")
    arguments = parser.parse_args()
    if arguments.profile >= 0:
        _, size, at_once, partitions = CASES[arguments.profile]
        with cProfile.Profile() as profile:
            print(busy(size, at_once, partitions, arguments.seconds))
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    else:
        print_figures(measure(arguments.seconds), "engines")


if __name__ == "__main__":
    main()
