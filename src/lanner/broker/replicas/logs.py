"""A replica's log as its Raft node may read it: the ledger's index says where, the journal has the bytes."""

from __future__ import annotations

from collections.abc import Callable

from lanner.errors import StorageDamaged
from lanner.ledger import CommitItem, Files, Ledger, read_entries, read_entry
from lanner.raft import Entry, EntryKind, Ready

OnDamage = Callable[[int, int, StorageDamaged], None]
"""Told of a set, an index and what is wrong with the entry there."""


class JournalLog:
    """The entries of one replica set that are on this broker's disk."""

    def __init__(self, ledger: Ledger, files: Files, set_id: int, on_damage: OnDamage) -> None:
        self._ledger, self._files, self._set_id = ledger, files, set_id
        self._on_damage = on_damage

    def term(self, index: int) -> int:
        return self._ledger.term(self._set_id, index)

    def entries(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Entries first..last as far as they fit; only those before a damaged one. StorageDamaged: there are none."""
        stored = self._ledger.entries(self._set_id, first, last, bytes_max)
        try:
            payloads = read_entries(self._files, [entry.location for entry in stored])
        except StorageDamaged:
            payloads = []
            for entry in stored:
                try:
                    payloads.append(read_entry(self._files, entry.location))
                except StorageDamaged as error:
                    self._on_damage(self._set_id, entry.index, error)
                    if not payloads:
                        raise
                    break
        return [
            Entry(first + number, entry.term, entry.kind, payload)
            for number, (entry, payload) in enumerate(zip(stored, payloads, strict=False))
        ]

    def memberships(self, first: int, last: int) -> tuple[Entry, ...]:
        """The entries in [first, last] that change who belongs to the set. Only their bytes are read."""
        stored = (self._ledger.entry(self._set_id, index) for index in range(first, last + 1))
        found = [entry for entry in stored if entry.kind == EntryKind.MEMBERSHIP]
        return tuple(
            Entry(entry.index, entry.term, entry.kind, read_entry(self._files, entry.location)) for entry in found
        )


def commit_item(set_id: int, readies: list[Ready]) -> CommitItem:
    """What several readies of one node store, as one item of a commit."""
    if len(readies) == 1:
        return CommitItem(set_id, readies[0].hard_state, readies[0].entries)
    hard_state = next((ready.hard_state for ready in reversed(readies) if ready.hard_state is not None), None)
    entries: list[Entry] = []
    for ready in readies:
        if entries and ready.entries:
            # A later ready may discard what an earlier one appended: only what is left of it is stored.
            del entries[max(0, ready.entries[0].index - entries[0].index) :]
        entries += ready.entries
    return CommitItem(set_id, hard_state, entries)
