"""Random proposals, writes that finish late, crashes between ready and advance, restarts from what was stored."""

from __future__ import annotations

import random
from collections import deque

import pytest

from lanner.errors import NotLeader, Overloaded
from lanner.raft import Entry, RaftNode, Ready, Role
from tests.unit.raft.storage import StoredLog, make_node


class Driver:
    """A driver whose disk is slow, and which remembers across crashes what was ever committed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.log = StoredLog()
        self.committed: dict[int, Entry] = {}
        self.crashes = 0
        self.term_seen = 0
        self.start()

    def start(self) -> None:
        self.node: RaftNode = make_node(self.log, uncommitted_bytes_max=400, committed_bytes_max=100)
        self.in_flight: deque[Ready] = deque()
        self.expected = self.log.saved_index + 1
        assert self.node.term >= self.term_seen
        self.node.campaign()

    def propose(self) -> None:
        try:
            self.node.propose(self.rng.randbytes(self.rng.randrange(60)))
        except Overloaded:
            assert self.node.uncommitted_bytes > 340
        except NotLeader:
            assert self.node.role is not Role.LEADER

    def take(self) -> None:
        """Ask for a ready, apply what it commits, and leave its write on the way to the disk."""
        ready = self.node.ready()
        self.in_flight.append(ready)
        for entry in ready.committed:
            assert entry.index == self.expected, "committed entries come once and in order"
            assert self.log.stored[entry.index] == entry, "committed before it was durable"
            assert self.committed.setdefault(entry.index, entry) == entry, "a committed entry changed"
            self.expected += 1
        if ready.committed:
            self.node.applied(self.expected - 1)

    def finish_write(self) -> None:
        if self.in_flight:
            ready = self.in_flight.popleft()
            self.log.store(ready)
            self.node.advance(ready)

    def save(self) -> None:
        self.log.saved_index = self.rng.randint(self.log.saved_index, self.node.applied_index)
        if self.rng.random() < 0.5:
            to = self.rng.randint(self.log.compacted_index, self.log.saved_index)
            self.node.compacted(to, self.log.compact(to))

    def crash(self) -> None:
        """Some of what was on its way reached the disk, in order; the rest is lost, and so is all memory."""
        self.crashes += 1
        self.term_seen = self.log.hard_state.term
        for _ in range(self.rng.randint(0, len(self.in_flight))):
            self.log.store(self.in_flight.popleft())
        self.start()

    def finish(self) -> None:
        while self.node.has_ready() or self.in_flight:
            if self.node.has_ready():
                self.take()
            self.finish_write()


@pytest.mark.parametrize("seed", range(40))
def test_committed_entries_never_change_whatever_a_crash_loses(seed: int) -> None:
    rng = random.Random(seed)
    driver = Driver(rng)
    steps = (driver.propose, driver.take, driver.finish_write, driver.save, driver.node.tick, driver.crash)
    for _ in range(1_500):
        step = rng.choices(steps, weights=(10, 6, 8, 1, 1, 0.15))[0]
        step() if step != steps[4] else driver.node.tick()
        assert driver.node.commit_index <= driver.node.durable_index <= driver.node.last_index
        assert driver.node.uncommitted_bytes >= 0
    driver.finish()
    assert driver.crashes > 0
    assert driver.node.uncommitted_bytes == 0
    last = driver.node.last_index
    assert sorted(driver.committed) == list(range(1, last + 1)), "everything durable commits in the end"
    assert driver.node.own_term_applied
