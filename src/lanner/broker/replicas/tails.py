"""Tails: how much of the saved logs is kept for peers that are behind.

A log may be compacted up to its saved index. A set without peers is, at once. A set with peers keeps what those that
answer still need, and the latest entries in any case, for one that is away for a moment; all of that within one budget
of bytes for the broker. Beyond the budget the sets whose tails are the oldest on disk give theirs up first: a peer that
needed it gets a snapshot. What lies behind a snapshot on its way stays, within a bound of its own.

Compaction moves from mark to mark: each save of a set leaves one, with the bytes since the one before. So choosing
costs nothing per entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lanner import limits
from lanner.broker.replicas.replica import Replica
from lanner.broker.replicas.snapshots import SnapshotSender
from lanner.ledger import Ledger

TAIL_ENTRIES: Final = 10_000
TAIL_BYTES_MAX: Final = 256 * limits.MIB
PINNED_BYTES_MAX: Final = 4 * limits.GIB


@dataclass(slots=True)
class _Tail:
    replica: Replica
    marked_index: int
    size: int = 0
    marks: deque[tuple[int, int]] = field(default_factory=deque)  # (index, bytes since the mark before)


class Tails:
    """The saved entries that are kept for peers, over all sets."""

    def __init__(
        self, ledger: Ledger, sending: SnapshotSender, entries: int, bytes_max: int, pinned_bytes_max: int
    ) -> None:
        self._ledger = ledger
        self._sending = sending
        self._entries = entries
        self._bytes_max = bytes_max
        self._pinned_bytes_max = pinned_bytes_max
        self._tails: dict[int, _Tail] = {}
        self.size = 0

    def saved(self, replica: Replica, index: int) -> None:
        """A save holds the set up to this index."""
        tail = self._tails.get(replica.set_id)
        if tail is None or tail.replica is not replica:
            self.forget(replica.set_id)
            tail = self._tails[replica.set_id] = _Tail(replica, replica.node.compacted_index)
        if index > tail.marked_index:
            size = self._ledger.size(replica.set_id, tail.marked_index + 1, index)
            tail.marks.append((index, size))
            tail.marked_index = index
            tail.size += size
            self.size += size

    def forget(self, set_id: int) -> None:
        """The set is gone, or its log began anew."""
        tail = self._tails.pop(set_id, None)
        if tail is not None:
            self.size -= tail.size

    def choose(self) -> Iterator[tuple[Replica, int]]:
        """The sets to compact, and up to where; the ledger must be told before the next one is asked for."""
        for set_id, tail in self._tails.items():
            pin = self._sending.pin(set_id)
            if pin is not None and tail.size > self._pinned_bytes_max:
                self._sending.give_up(set_id)
            bound = min(self._bound(set_id), self._needed(tail))
            if tail.marks and tail.marks[0][0] <= bound:
                yield tail.replica, self._cut(tail, bound)
        if self.size > self._bytes_max:
            for tail in sorted((tail for tail in self._tails.values() if tail.marks), key=self._age):
                bound = self._bound(tail.replica.set_id)
                if self.size > self._bytes_max and tail.marks[0][0] <= bound:
                    yield tail.replica, self._cut(tail, bound)

    def _bound(self, set_id: int) -> int:
        """Up to where the set may be compacted whatever its peers need."""
        pin = self._sending.pin(set_id)
        return self._tails[set_id].marked_index if pin is None else pin

    def _needed(self, tail: _Tail) -> int:
        """Up to where nobody is known to need the log."""
        leadership = tail.replica.node.leadership
        answered = [] if leadership is None else [one.match_index for one in leadership.progress.values() if one.heard]
        return min([tail.marked_index - self._entries, *answered])

    def _age(self, tail: _Tail) -> tuple[int, int]:
        location = self._ledger.locate(tail.replica.set_id, tail.replica.node.compacted_index + 1)
        return location.file, location.offset

    def _cut(self, tail: _Tail, bound: int) -> int:
        index = 0
        while tail.marks and tail.marks[0][0] <= bound:
            index, size = tail.marks.popleft()
            tail.size -= size
            self.size -= size
        return index
