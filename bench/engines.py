"""Three engines with their stewards in one process, over memory: what replication costs without sockets and disks.

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
from random import Random

from bench.figures import Figure, print_figures
from lanner import batch
from lanner.broker.replicas import quiescence
from lanner.broker.replicas.engine import CLUSTER_SET, Engine, Seat
from lanner.broker.steward import Steward
from lanner.cluster import Registration, encode_create_topic, encode_found_cluster
from lanner.ledger import Commit, Ledger
from lanner.model import TopicSettings
from lanner.partition import encode_append
from lanner.raft import decode_message, encode_message
from lanner.storage import MemoryFiles, MemoryTable

NAMES = ("a", "b", "c")
NODES = dict(enumerate(NAMES, start=1))
VOTERS = frozenset(NODES)
SEGMENT_BYTES = 64 << 20


class NoFiles(MemoryFiles):
    """Journal files that keep nothing: what is measured is everything but the disk."""

    def write(self, file_id: int, offset: int, buffers: object) -> None:
        pass


class Broker:
    def __init__(self, number: int, name: str) -> None:
        rng = Random(number)
        files, self.table = NoFiles(), MemoryTable()
        ledger = Ledger.recover(files, self.table, random_bytes=rng.randbytes, segment_bytes=SEGMENT_BYTES)
        self.engine = Engine(ledger, files, rng=rng, now_ms=lambda: 1_000_000)
        self.steward = Steward(self.engine, name, Seat(number, VOTERS), NODES)
        self.steward.open_metadata()
        self.commits = 0
        self.messages = 0

    def save(self) -> None:
        job = self.engine.begin_save()
        if job is not None:
            while self.engine.save_step(job):
                pass
            self.table.commit(job.puts)
            self.engine.saved(job)

    def work(self) -> list[tuple[str, int, bytes]]:
        """One turn: a commit if there is one, and what is to be sent."""
        engine, steward = self.engine, self.steward
        commit: Commit | None = engine.pump()
        if commit is not None:
            self.commits += 1
            engine.committed(commit)
        steward.follow()
        frames = []
        for set_id, message in engine.take_messages():
            node_id = steward.route(set_id, message.receiver)
            assert node_id is not None
            frames.append((node_id, set_id, b"".join(encode_message(message))))
        self.messages += len(frames)
        return frames

    def hear(self, frames: list[tuple[int, bytes]]) -> None:
        step = self.engine.step
        for set_id, frame in frames:
            step(set_id, decode_message(frame))

    def tick(self) -> None:
        self.engine.tick()
        self.steward.tick(lambda _node_id: True)


class Trio:
    def __init__(self, partitions: int) -> None:
        self.brokers = {name: Broker(number, name) for number, name in NODES.items()}
        founders = [Registration(name, name, {"native": "h:1"}) for name in NAMES]
        self.brokers["a"].engine.replicas[CLUSTER_SET].node.campaign()
        self.brokers["a"].engine.wake(CLUSTER_SET)
        self.settle()
        leader = self.brokers["a"].engine
        wanted = TopicSettings(partitions=partitions, replication=3)
        leader.propose(CLUSTER_SET, encode_found_cluster("bench", founders, 0), lambda _result: None)
        leader.propose(CLUSTER_SET, encode_create_topic("load", wanted, 0), lambda _result: None)
        self.settle()
        self.sets = leader.cluster.topics["load"].set_ids
        while not all(any(one.engine.replicas[set_id].leads for one in self.all()) for set_id in self.sets):
            self.tick()

    def all(self) -> list[Broker]:
        return list(self.brokers.values())

    def tick(self) -> None:
        for broker in self.all():
            broker.tick()
        self.settle()

    def settle(self) -> None:
        while True:
            mail: dict[str, list[tuple[int, bytes]]] = {name: [] for name in NAMES}
            for broker in self.all():
                for name, set_id, frame in broker.work():
                    mail[name].append((set_id, frame))
            if not any(mail.values()) and not any(not one.steward.settled for one in self.all()):
                return
            for name, frames in mail.items():
                self.brokers[name].hear(frames)

    def reset(self) -> None:
        for broker in self.all():
            broker.commits = broker.messages = 0


def busy(size: int, at_once: int, partitions: int, seconds: float) -> tuple[float, str]:
    """Batches a second of CPU of all three brokers together; and how many messages and commits one took."""
    trio = Trio(partitions)
    leaders = {set_id: next(one for one in trio.all() if one.engine.replicas[set_id].leads) for set_id in trio.sets}
    payload = encode_append(0, batch.encode([b"x" * size]))
    done = 0

    def told(_result: object) -> None:
        nonlocal done
        done += 1

    trio.reset()
    gc.collect()
    started = time.process_time()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for set_id, broker in leaders.items():
            for _ in range(at_once):
                broker.engine.propose(set_id, payload, told)
        trio.settle()
        if any(one.engine.ledger.unsaved_bytes > 64 << 20 for one in trio.all()):
            for broker in trio.all():
                broker.save()
    spent = time.process_time() - started
    messages, commits = (sum(getattr(one, what) for one in trio.all()) for what in ("messages", "commits"))
    return done / spent, f"{messages / done:.2f} messages and {commits / done:.2f} commits for one batch"


def idle(partitions: int, ticks: int, *, rest: bool) -> float:
    """Milliseconds of CPU for a tick of one broker."""
    before = quiescence.QUIESCE_TICKS
    quiescence.QUIESCE_TICKS = before if rest else 1 << 60  # type: ignore[misc]
    try:
        trio = Trio(partitions)
        for _ in range(60):
            trio.tick()
        started = time.process_time()
        for _ in range(ticks):
            trio.tick()
        return 1_000 * (time.process_time() - started) / ticks / len(NAMES)
    finally:
        quiescence.QUIESCE_TICKS = before  # type: ignore[misc]


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
