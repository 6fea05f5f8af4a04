"""The log as the core sees it: a tail in memory over whatever the disk holds.

The tail keeps the entries that are not yet durable or not yet handed out to be applied, and, on a leader, some that its
peers have yet to get; everything older is the disk's business and is read back through `LogReader`. Indexes are dense,
so an entry's place in the list is a subtraction.

A new leader may take entries back that the disk has, or is just being given. What is on its way then counts only
up to the point where the logs parted: `stored` must never call an entry durable that has been replaced since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from lanner.errors import StorageDamaged
from lanner.raft.config import Restored
from lanner.raft.entry import Entry

KEEP_NOTHING: Final = 1 << 63


class LogReader(Protocol):
    """What the core needs of storage: durable entries in (compacted, last]."""

    def entries(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Entries first, first + 1, … up to last, stopping once bytes_max is passed, but at least one."""
        ...

    def term(self, index: int) -> int: ...


class Tail:
    """Indexes of one log, and its latest entries.

    compacted ≤ delivered ≤ durable ≤ handed ≤ last, where `handed` went to the driver to be stored, `durable` is
    known to be on disk and `delivered` was handed out to be applied.
    """

    __slots__ = (
        "_before_term",
        "_first_held",
        "_held",
        "_kept_bytes",
        "_kept_bytes_max",
        "_marks",
        "_reader",
        "compacted_index",
        "compacted_term",
        "delivered_index",
        "durable_index",
        "handed_index",
        "keep_from",
        "last_index",
        "last_term",
        "unreadable_index",
    )

    def __init__(self, restored: Restored, reader: LogReader, kept_bytes_max: int = 0) -> None:
        self._reader = reader
        self._held: list[Entry] = []
        self._first_held = restored.last_index + 1
        self._before_term = restored.last_term  # of the entry before the first held one: what the next append is after
        self._marks: deque[int] = deque()  # for each write on its way: what will be durable once it is done
        self._kept_bytes = 0  # of entries that are held although delivered
        self._kept_bytes_max = kept_bytes_max
        self.keep_from = KEEP_NOTHING  # entries from here on are kept for peers, within the bound
        self.compacted_index = restored.compacted_index
        self.compacted_term = restored.compacted_term
        self.delivered_index = restored.applied_index
        self.durable_index = restored.last_index
        self.handed_index = restored.last_index
        self.last_index = restored.last_index
        self.last_term = restored.last_term
        self.unreadable_index = 0  # of an entry that was to be delivered, and is damaged

    # ------------------------------------------------------------------ growing and shrinking

    def append(self, term: int, kind: int, payload: bytes) -> int:
        index = self.last_index + 1
        self._held.append(Entry(index, term, kind, payload))
        self.last_index = index
        self.last_term = term
        return index

    def extend(self, entries: Sequence[Entry]) -> None:
        """Append entries of a leader, which follow the last one without a gap."""
        if entries[0].index != self.last_index + 1:
            raise ValueError(f"entry {entries[0].index} does not follow {self.last_index}")
        self._held += entries
        self.last_index = entries[-1].index
        self.last_term = entries[-1].term

    def truncate(self, first: int) -> None:
        """Take back everything from `first` on, wherever it has got to."""
        if not self.delivered_index < first <= self.last_index:
            raise ValueError(f"cannot take back {first}: {self.delivered_index} was handed out to be applied")
        last_term = self.term(first - 1)
        if first < self._first_held:
            self._before_term = last_term
        del self._held[max(0, first - self._first_held) :]
        self._first_held = min(self._first_held, first)
        self.last_index, self.last_term = first - 1, last_term
        self.handed_index = min(self.handed_index, first - 1)
        self.durable_index = min(self.durable_index, first - 1)
        self._marks = deque(min(mark, first - 1) for mark in self._marks)

    def restore(self, index: int, term: int) -> None:
        """Begin anew behind a snapshot."""
        self._held = []
        self._first_held = index + 1
        self._before_term = term
        self._kept_bytes = 0
        self._marks = deque(0 for _ in self._marks)
        self.compacted_index = self.delivered_index = self.durable_index = self.handed_index = self.last_index = index
        self.compacted_term = self.last_term = term

    # ------------------------------------------------------------------ to the disk, to the machine, to the peers

    def hand_out(self) -> list[Entry]:
        """The entries that the driver has not been told to store yet."""
        if self.handed_index == self.last_index:
            return []
        entries = self._held[self.handed_index + 1 - self._first_held :]
        self.handed_index = self.last_index
        self._marks.append(self.last_index)
        return entries

    def stored(self) -> None:
        """Note that the oldest write on its way is durable."""
        mark = self._marks.popleft()
        if mark > self.durable_index:
            self.durable_index = mark

    def can_deliver(self, last: int) -> bool:
        """Whether there is something to apply, up to `last`."""
        first = self.delivered_index + 1
        return first <= last and first <= self.durable_index and first != self.unreadable_index

    def deliver(self, last: int, bytes_max: int) -> list[Entry]:
        """The next entries to apply, up to `last`: from disk where memory no longer, or never, had them."""
        first = self.delivered_index + 1
        if first > last:
            return []
        if first < self._first_held:
            try:
                entries = self._reader.entries(first, min(last, self._first_held - 1), bytes_max)
            except StorageDamaged:
                self.unreadable_index = first
                return []  # nothing behind it can be applied here
            self._check_read(entries, first)
            self.delivered_index = entries[-1].index
            return entries
        entries = self._held[first - self._first_held : last + 1 - self._first_held]
        entries = _within(entries, bytes_max)
        self.delivered_index = entries[-1].index
        if self.keep_from <= self.delivered_index:
            self._kept_bytes += sum([len(entry.payload) for entry in entries])
        self._forget()
        return entries

    def pick(self, first: int, count_max: int, bytes_max: int) -> list[Entry]:
        """Entries from `first` on to send to a peer; none when the log ends before it."""
        if first > self.last_index:
            return []
        if first < self._first_held:
            last = min(self._first_held - 1, first + count_max - 1)
            try:
                entries = self._reader.entries(first, last, bytes_max)
            except StorageDamaged:
                return []  # a follower that needs it gets it from a leader whose log is whole
            self._check_read(entries, first)
            return entries
        place = first - self._first_held
        return _within(self._held[place : place + count_max], bytes_max)

    def keep(self, first: int) -> None:
        """Keep the entries from here on for peers; let go of earlier ones once they are delivered."""
        self.keep_from = first
        self._forget()

    # ------------------------------------------------------------------ looking

    def size(self, first: int, last: int) -> int:
        """Bytes of payload in [first, last], all of which must still be in memory."""
        start = self._first_held
        return sum([len(entry.payload) for entry in self._held[first - start : last + 1 - start]])

    def term(self, index: int) -> int:
        if index == self.last_index:
            return self.last_term
        if index == self.compacted_index:
            return self.compacted_term
        if not self.compacted_index < index < self.last_index:
            raise KeyError(f"the log holds {self.compacted_index + 1} to {self.last_index}, not {index}")
        if index >= self._first_held:
            return self._held[index - self._first_held].term
        if index == self._first_held - 1:
            return self._before_term
        return self._reader.term(index)

    def agrees(self, index: int, term: int) -> bool:
        """Whether this log has the entry with that index and term."""
        return self.compacted_index <= index <= self.last_index and self.term(index) == term

    def last_not_after(self, index: int, term: int) -> tuple[int, int]:
        """The highest entry at or before `index` whose term is at most `term`: where two logs may still agree."""
        index = min(index, self.last_index)
        while index > self.compacted_index and self.term(index) > term:
            index -= 1
        return index, self.term(index) if index >= self.compacted_index else 0

    def _forget(self) -> None:
        """Let go of what is delivered (and therefore durable) and not kept for peers."""
        if self.keep_from > self.delivered_index:
            count = self.delivered_index + 1 - self._first_held
            if count > 0:
                self._drop(count)
            self._kept_bytes = 0
            return
        count, first, held = 0, self._first_held, self._held
        last = self.delivered_index
        while first <= last and (first < self.keep_from or self._kept_bytes > self._kept_bytes_max):
            self._kept_bytes -= len(held[count].payload)
            count += 1
            first += 1
        if count:
            self._drop(count)

    def _drop(self, count: int) -> None:
        self._before_term = self._held[count - 1].term
        del self._held[:count]
        self._first_held += count

    @staticmethod
    def _check_read(entries: list[Entry], first: int) -> None:
        """Refuse entries with a gap before any is applied: they would make replicas differ."""
        if not entries or any(entry.index != first + place for place, entry in enumerate(entries)):
            raise ValueError(f"storage did not return the entries from {first} on, in order")


def _within(entries: list[Entry], bytes_max: int) -> list[Entry]:
    """The longest beginning of `entries` that stays within bytes_max, and at least one."""
    total = 0
    for place, entry in enumerate(entries):
        total += len(entry.payload)
        if total > bytes_max:
            return entries[: max(place, 1)]
    return entries
