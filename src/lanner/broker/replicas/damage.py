"""Damage: saved entries on this disk that do not match their checksums any more.

An entry that is read and found damaged is noted here: by a caller's read, a snapshot or the scrubber. Each
place is logged once. A set with damage goes on as it was, because its votes and its log still count; but it should be
led from a broker whose copy is whole, and this copy should be replaced (see `steward`). A set that has no other copy
serves what it can: readers are told of a hole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lanner.errors import StorageDamaged

log = logging.getLogger("lanner.broker")

DAMAGED = "damaged"  # the reason of holes and dead letters


class Damages:
    """What was found so far, by set and index."""

    def __init__(self, *told: Callable[[int, StorageDamaged], None]) -> None:
        self.told = list(told)  # of each place that is new
        self._entries: dict[tuple[int, int], StorageDamaged] = {}
        self.sets: dict[int, StorageDamaged] = {}  # the first that was found in each

    def __len__(self) -> int:
        return len(self._entries)

    def holds(self, set_id: int, index: int) -> bool:
        return (set_id, index) in self._entries

    def note(self, set_id: int, index: int, error: StorageDamaged) -> None:
        """This entry of the set does not match its checksum; 0: a row of it does not."""
        if (set_id, index) in self._entries:
            return
        self._entries[set_id, index] = error
        self.sets.setdefault(set_id, error)
        what = f"entry {index}" if index else "a row of the table"
        log.error("%s of replica set %d is damaged: %s", what, set_id, error.message)
        for tell in self.told:
            tell(set_id, error)

    def forget(self, set_id: int) -> None:
        """The set is gone from this disk."""
        if self.sets.pop(set_id, None) is not None:
            self._entries = {key: error for key, error in self._entries.items() if key[0] != set_id}


__all__ = ["DAMAGED", "Damages"]
