"""The log as the core sees it: a tail in memory over whatever the disk holds.

The tail keeps the entries that are not yet durable or not yet handed out to be applied; everything older is the
disk's business and is read back through `LogReader` when a restart makes it necessary. Indexes are dense, so an
entry's place in the list is a subtraction.
"""

from __future__ import annotations

from typing import Protocol

from lanner.raft.config import Restored
from lanner.raft.entry import Entry


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
        "_first_held",
        "_held",
        "_reader",
        "compacted_index",
        "compacted_term",
        "delivered_index",
        "durable_index",
        "handed_index",
        "last_index",
        "last_term",
    )

    def __init__(self, restored: Restored, reader: LogReader) -> None:
        self._reader = reader
        self._held: list[Entry] = []
        self._first_held = restored.last_index + 1
        self.compacted_index = restored.compacted_index
        self.compacted_term = restored.compacted_term
        self.delivered_index = restored.applied_index
        self.durable_index = restored.last_index
        self.handed_index = restored.last_index
        self.last_index = restored.last_index
        self.last_term = restored.last_term

    def append(self, term: int, kind: int, payload: bytes) -> int:
        index = self.last_index + 1
        self._held.append(Entry(index, term, kind, payload))
        self.last_index = index
        self.last_term = term
        return index

    def hand_out(self) -> list[Entry]:
        """The entries that the driver has not been told to store yet."""
        if self.handed_index == self.last_index:
            return []
        entries = self._held[self.handed_index + 1 - self._first_held :]
        self.handed_index = self.last_index
        return entries

    def deliver(self, last: int, bytes_max: int) -> list[Entry]:
        """The next entries to apply, up to `last`: from disk where memory no longer, or never, had them."""
        first = self.delivered_index + 1
        if first > last:
            return []
        if first < self._first_held:
            entries = self._reader.entries(first, min(last, self._first_held - 1), bytes_max)
            self._check_read(entries, first)
        else:
            entries = self._held[first - self._first_held : last + 1 - self._first_held]
            entries = _within(entries, bytes_max)
        self.delivered_index = entries[-1].index
        self._forget()
        return entries

    def size(self, first: int, last: int) -> int:
        """Bytes of payload in [first, last], all of which must still be in memory."""
        start = self._first_held
        return sum(len(entry.payload) for entry in self._held[first - start : last + 1 - start])

    def term(self, index: int) -> int:
        if index == self.last_index:
            return self.last_term
        if index == self.compacted_index:
            return self.compacted_term
        if not self.compacted_index < index < self.last_index:
            raise KeyError(f"the log holds {self.compacted_index + 1} to {self.last_index}, not {index}")
        if index >= self._first_held:
            return self._held[index - self._first_held].term
        return self._reader.term(index)

    def _forget(self) -> None:
        """Let go of what is both durable and delivered (delivered implies durable)."""
        count = self.delivered_index + 1 - self._first_held
        if count > 0:
            del self._held[:count]
            self._first_held += count

    @staticmethod
    def _check_read(entries: list[Entry], first: int) -> None:
        """A reader that skips an entry would make replicas differ: refuse before anything is applied."""
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
