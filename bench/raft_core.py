"""The Raft core alone: three nodes in one process, every message encoded and decoded on its way.

A pump is a round of the driver's loop: propose, then let readies, writes (which cost nothing here) and messages run
until all is quiet. The idle part ticks the leaders of 500 replica sets, as one broker would, with every heartbeat of
theirs and every answer to them encoded and decoded, and then the same sets at rest.

Run: python bench/raft_core.py [--seconds N] [--sets N]
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections import deque

from lanner.raft import Config, Entry, HardState, Message, RaftNode, Restored, Role, decode_message, encode_message

VOTERS = frozenset({1, 2, 3})


class NoDisk:
    """Everything asked for must still be in memory."""

    def entries(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        raise AssertionError(f"entries {first} to {last} were asked of the disk")

    def term(self, index: int) -> int:
        raise AssertionError(f"the term of {index} was asked of the disk")


class Trio:
    """One replica set of three."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        restored = Restored(HardState(0, 0), VOTERS)
        self.nodes = {voter: RaftNode(Config(voter), restored, NoDisk(), rng) for voter in sorted(VOTERS)}
        self.frames: deque[bytes] = deque()
        self.applied = 0
        self.leader = self.nodes[1]
        self.leader.campaign()
        self.pump()
        assert self.leader.role is Role.LEADER

    def pump(self) -> None:
        nodes, frames = self.nodes, self.frames
        busy: list[RaftNode] = list(nodes.values())
        while busy:
            for node in busy:
                while node.has_ready():
                    self.take(node)
            busy = []
            while frames:
                message = decode_message(frames.popleft())
                node = nodes[message.receiver]
                node.step(message)
                if node not in busy:
                    busy.append(node)

    def take(self, node: RaftNode) -> None:
        ready = node.ready()
        for message in ready.messages:
            self.frames.append(b"".join(encode_message(message)))
        node.advance(ready)
        if ready.committed:
            node.applied(ready.committed[-1].index)
            if node is self.leader:
                self.applied += len(ready.committed)


def proposals(size: int, at_once: int, seconds: float) -> float:
    trio = Trio(1)
    payload = b"x" * size
    trio.applied = 0
    started = time.perf_counter()
    until = started + seconds
    while time.perf_counter() < until:
        for _ in range(at_once):
            trio.leader.propose(payload)
        trio.pump()
    elapsed = time.perf_counter() - started
    assert all(node.applied_index == trio.leader.last_index for node in trio.nodes.values())
    return trio.applied / elapsed


def idle_ticks(count: int, ticks: int, *, resting: bool) -> float:
    """Milliseconds of CPU for one tick of a broker that leads a third of its sets and follows in the rest."""
    trios = [Trio(seed) for seed in range(count)]
    for trio in trios:
        for _ in range(4):  # a heartbeat, so that everybody knows what everybody knows
            for node in trio.nodes.values():
                node.tick()
            trio.pump()
        assert all(node.idle for node in trio.nodes.values())
    spent = 0.0
    for _ in range(ticks):
        for number, trio in enumerate(trios):
            here = trio.nodes[1 + number % 3]
            for node in trio.nodes.values():
                if node is not here:
                    node.tick()
            started = time.process_time()
            if not resting or not here.idle:
                here.tick()
            spent += time.process_time() - started
            spent += exchange(trio, here)
    return 1_000 * spent / ticks


def exchange(trio: Trio, here: RaftNode) -> float:
    """Let messages run; the seconds that the one broker of interest spent on them."""
    spent = 0.0
    sent: list[Message] = []
    busy = True
    while busy:
        busy = False
        for node in trio.nodes.values():
            started = time.process_time()
            frames = []
            while node.has_ready():
                busy = True
                ready = node.ready()
                frames += [b"".join(encode_message(message)) for message in ready.messages]
                node.advance(ready)
            if node is here:
                spent += time.process_time() - started
            for frame in frames:
                receiver = trio.nodes[decode_message(frame).receiver]
                started = time.process_time()
                message = decode_message(frame)
                receiver.step(message)
                if receiver is here:
                    spent += time.process_time() - started
                sent.append(message)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--sets", type=int, default=500)
    arguments = parser.parse_args()
    gc.freeze()
    for label, size, at_once, floor in (
        ("1 KB, 16 a pump", 1_024, 16, 50_000),
        ("1 KB, 1 a pump", 1_024, 1, 10_000),
        ("64 KB, 16 a pump", 65_536, 16, 10_000),
    ):
        rate = proposals(size, at_once, arguments.seconds)
        print(f"{label:<20} {rate:>10,.0f} proposals/s   (at least {floor:,})")
    for label, resting in (("heartbeats on", False), ("at rest", True)):
        spent = idle_ticks(arguments.sets, 30, resting=resting)
        print(f"{arguments.sets} idle sets, {label:<14} {spent:>6.2f} ms of CPU a tick   (at most 2)")


if __name__ == "__main__":
    main()
