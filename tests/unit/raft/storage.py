"""A log on a disk that forgets what was never stored: the smallest storage that a raft driver can have."""

from __future__ import annotations

import random

from lanner.raft import Config, Entry, HardState, RaftNode, Ready, Restored

NODE = 1


class StoredLog:
    """What survives a crash. Entries are kept by index; an entry at i discards what was there from i on."""

    def __init__(self) -> None:
        self.hard_state = HardState(0, 0)
        self.stored: dict[int, Entry] = {}
        self.compacted_index = 0
        self.compacted_term = 0
        self.saved_index = 0
        self.reads = 0

    @property
    def last_index(self) -> int:
        return max(self.stored, default=self.compacted_index)

    def store(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.entries:
            first = ready.entries[0].index
            self.stored = {index: entry for index, entry in self.stored.items() if index < first}
            self.stored.update((entry.index, entry) for entry in ready.entries)

    def entries(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        self.reads += 1
        found: list[Entry] = []
        size = 0
        for index in range(first, last + 1):
            size += len(self.stored[index].payload)
            if found and size > bytes_max:
                break
            found.append(self.stored[index])
        return found

    def term(self, index: int) -> int:
        return self.stored[index].term

    def compact(self, index: int) -> int:
        term = self.compacted_term if index == self.compacted_index else self.stored[index].term
        self.compacted_index, self.compacted_term = index, term
        self.stored = {at: entry for at, entry in self.stored.items() if at > index}
        return term

    def restored(self, learners: frozenset[int] = frozenset()) -> Restored:
        last = self.last_index
        return Restored(
            hard_state=self.hard_state,
            voters=frozenset({NODE}),
            learners=learners,
            compacted_index=self.compacted_index,
            compacted_term=self.compacted_term,
            last_index=last,
            last_term=self.stored[last].term if last in self.stored else self.compacted_term,
            applied_index=self.saved_index,
        )


def make_node(log: StoredLog | None = None, *, learners: frozenset[int] = frozenset(), **config: int) -> RaftNode:
    log = log or StoredLog()
    return RaftNode(Config(NODE, **config), log.restored(learners), log, random.Random(7))


def settle(node: RaftNode, log: StoredLog | None = None) -> list[Entry]:
    """Drive until nothing is left to do; what was applied."""
    applied: list[Entry] = []
    while node.has_ready():
        ready = node.ready()
        if log is not None:
            log.store(ready)
        node.advance(ready)
        applied.extend(ready.committed)
        if ready.committed:
            node.applied(ready.committed[-1].index)
    return applied


def make_leader(log: StoredLog | None = None, **config: int) -> RaftNode:
    log = log or StoredLog()
    node = make_node(log, **config)
    node.campaign()
    settle(node, log)
    return node
