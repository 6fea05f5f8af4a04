"""The Raft core alone: three nodes in one process, every message encoded and decoded on its way.

A pump is a round of the driver's loop: propose, then let readies, writes (which cost nothing here) and messages run
until all is quiet. The idle part ticks the leaders of 500 replica sets, as one broker would, with every heartbeat of
theirs and every answer to them encoded and decoded, and then the same sets at rest.

glibc gives freed memory back and faults it in again, page by page, which triples the cost of 64 KB payloads. The last
case of that size is measured with freed memory kept (mallopt), as a broker that lives for weeks should have it.

Run: make bench ONLY=raft
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import time
from collections import deque

from bench.figures import Figure, print_figures
from bench.processes import workers
from lanner.raft import Config, Entry, HardState, Message, RaftNode, Restored, Role, decode_message, encode_message

VOTERS = frozenset({1, 2, 3})


class NoDisk:
    """Everything asked for must still be in memory."""

    def entries(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        raise AssertionError(f"entries {first} to {last} were asked of the disk")

    def term(self, index: int) -> int:
        raise AssertionError(f"the term of {index} was asked of the disk")


class Wire:
    """Where the bytes of a message are copied to and decoded from, as a socket's buffers would be."""

    def __init__(self) -> None:
        self.buffer = bytearray(512 * 1024)
        self.view = memoryview(self.buffer)
        self.size = 0

    def put(self, message: Message) -> None:
        place = 0
        for part in encode_message(message):
            self.buffer[place : place + len(part)] = part
            place += len(part)
        self.size = place

    def get(self) -> Message:
        return decode_message(self.view[: self.size])


class Trio:
    """One replica set of three."""

    def __init__(self, seed: int, idle_wires: list[Wire]) -> None:
        rng = random.Random(seed)
        restored = Restored(HardState(0, 0), VOTERS)
        self.nodes = {voter: RaftNode(Config(voter), restored, NoDisk(), rng) for voter in sorted(VOTERS)}
        self.wires: deque[Wire] = deque()
        self.idle_wires = idle_wires
        self.applied = 0
        self.leader = self.nodes[1]
        self.leader.campaign()
        self.pump()
        assert self.leader.role is Role.LEADER

    def pump(self) -> None:
        nodes, wires = self.nodes, self.wires
        busy: list[RaftNode] = list(nodes.values())
        while busy:
            for node in busy:
                while node.has_ready():
                    self.take(node)
            busy = []
            while wires:
                wire = wires.popleft()
                message = wire.get()
                self.idle_wires.append(wire)
                node = nodes[message.receiver]
                node.step(message)
                if node not in busy:
                    busy.append(node)

    def take(self, node: RaftNode) -> None:
        ready = node.ready()
        for message in ready.messages:
            wire = self.idle_wires.pop() if self.idle_wires else Wire()
            wire.put(message)
            self.wires.append(wire)
        node.advance(ready)
        if ready.committed:
            node.applied(ready.committed[-1].index)
            if node is self.leader:
                self.applied += len(ready.committed)


def proposals(size: int, at_once: int, seconds: float) -> tuple[float, float]:
    """Proposals that committed, per second of time and per second of CPU."""
    trio = Trio(1, [])
    payload = b"x" * size
    trio.applied = 0
    started, started_cpu = time.perf_counter(), time.process_time()
    until = started + seconds
    while time.perf_counter() < until:
        for _ in range(at_once):
            trio.leader.propose(payload)
        trio.pump()
    elapsed, elapsed_cpu = time.perf_counter() - started, time.process_time() - started_cpu
    assert all(node.applied_index == trio.leader.last_index for node in trio.nodes.values())
    return trio.applied / elapsed, trio.applied / elapsed_cpu


def idle_ticks(count: int, ticks: int, *, resting: bool) -> float:
    """Milliseconds of CPU for one tick of a broker that leads a third of its sets and follows in the rest."""
    wires: list[Wire] = []
    trios = [Trio(seed, wires) for seed in range(count)]
    here = [trio.nodes[1 + number % 3] for number, trio in enumerate(trios)]
    there = [node for trio, own in zip(trios, here, strict=True) for node in trio.nodes.values() if node is not own]
    place = {id(node): trio.nodes for trio in trios for node in trio.nodes.values()}
    for trio in trios:
        for _ in range(4):  # a heartbeat, so that everybody knows what everybody knows
            for node in trio.nodes.values():
                node.tick()
            trio.pump()
        assert all(node.idle for node in trio.nodes.values())
    spent = 0.0
    for _ in range(ticks):
        started = time.process_time()
        for node in here:
            if not resting or not node.idle:
                node.tick()
        sent = frames_of(here, place)
        spent += time.process_time() - started
        for node in there:
            if not resting or not node.idle:
                node.tick()
        while sent:
            take_in(sent)
            answers = frames_of(there, place)
            started = time.process_time()
            take_in(answers)
            sent = frames_of(here, place)
            spent += time.process_time() - started
    return 1_000 * spent / ticks


Frames = list[tuple[dict[int, RaftNode], bytes]]


def frames_of(nodes: list[RaftNode], place: dict[int, dict[int, RaftNode]]) -> Frames:
    frames: Frames = []
    for node in nodes:
        while node.has_ready():
            ready = node.ready()
            peers = place[id(node)]
            frames += [(peers, b"".join(encode_message(message))) for message in ready.messages]
            node.advance(ready)
    return frames


def take_in(frames: Frames) -> None:
    for peers, frame in frames:
        message = decode_message(frame)
        peers[message.receiver].step(message)


def keep_freed_memory() -> None:
    """M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD of glibc; elsewhere nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((-1, 256 << 20), (-2, 16 << 20), (-3, 32 << 20)):
            mallopt(option, value)


CASES: tuple[tuple[str, int, int, int, bool], ...] = (
    ("1 KB, 16 a pump", 1_024, 16, 50_000, False),
    ("1 KB, 1 a pump", 1_024, 1, 10_000, False),
    ("64 KB, 16 a pump", 65_536, 16, 10_000, False),
    ("64 KB, memory kept", 65_536, 16, 10_000, True),
)


def one_case(size: int, at_once: int, seconds: float, kept: bool) -> tuple[float, float]:
    """In a process of its own: how memory is kept is a matter of the whole process."""
    gc.freeze()
    if kept:
        keep_freed_memory()
    return proposals(size, at_once, seconds)


def measure(seconds: float = 2.0) -> list[Figure]:
    figures = []
    for label, size, at_once, goal, kept in CASES:
        with workers(1) as pool:
            rate, per_cpu = pool.submit(one_case, size, at_once, seconds, kept).result()
        note = f"{per_cpu:,.0f} a second of CPU"
        figures.append(Figure(f"Raft core, {label}", rate, "proposals/s", goal, note=note))
    for label, resting in (("heartbeats on", False), ("at rest", True)):
        spent = idle_ticks(500, 30, resting=resting)
        goal_ms = 2.0 if resting else None
        figures.append(Figure(f"Raft core, 500 idle sets, {label}", spent, "ms CPU", goal_ms, lower_is_better=True))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0)
    print_figures(measure(parser.parse_args().seconds), "raft")


if __name__ == "__main__":
    main()
