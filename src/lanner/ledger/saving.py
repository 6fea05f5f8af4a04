"""A save: everything that changed since the last one, as rows for one commit of the table.

A save is taken in one turn (begin, then `add_set` for every set whose machine applied something since its last save),
so that machine rows, wanted entries and the saved position belong to one moment. Turning the logs' part of it into
bytes may take longer (`encode_some`). While the commit runs elsewhere, the rows on their way are served from here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lanner.ledger.chunk import Chunk
from lanner.ledger.ports import Table
from lanner.ledger.rows import SetState, encode_set, machine_prefix, set_key
from lanner.ledger.seals import SealedRows

CHUNKS_PER_STEP: Final = 64


@dataclass(slots=True)
class Save:
    """Rows on their way into the table. `puts` is what the table's commit takes."""

    position: int
    written_bytes: int
    taken: dict[bytes, bytes | None]
    chunks: list[Chunk]
    dropped: list[int]
    reserved: int
    states: Mapping[int, SetState]
    purged: list[tuple[int, int]] = field(default_factory=list)
    applied: dict[int, tuple[int, int]] = field(default_factory=dict)  # set → generation, applied index
    rows: dict[bytes, dict[bytes, bytes | None]] = field(default_factory=dict)  # by machine prefix
    encode_more: Callable[[int], bool] = field(default=lambda count: False)
    _sorted: dict[bytes, list[bytes]] = field(default_factory=dict)

    @property
    def puts(self) -> Mapping[bytes, bytes | None]:
        """All of it, to be sealed on its way; whatever is not encoded yet is encoded now."""
        while self.encode_some():
            pass
        return SealedRows(self.taken)

    def encode_some(self, count: int = CHUNKS_PER_STEP) -> bool:
        """A bounded part of what is left to encode, in this turn or in a later one; False: nothing is left."""
        return self.encode_more(count)

    def add_set(self, set_id: int, applied_index: int, machine_rows: Mapping[bytes, bytes | None]) -> None:
        """The machine of the set stands at this index, and these rows of it changed since its last save."""
        state = self.states[set_id]
        if not state.saved_index <= applied_index <= state.last_index:
            raise ValueError(
                f"set {set_id} cannot be saved at index {applied_index}: "
                f"it is saved at {state.saved_index} and its log ends at {state.last_index}"
            )
        self.applied[set_id] = (state.generation, applied_index)
        self.taken[set_key(set_id)] = encode_set(state, applied_index)
        prefix = machine_prefix(set_id, state.generation)
        self.rows[prefix] = dict(machine_rows)
        for key, value in machine_rows.items():
            self.taken[prefix + key] = value

    def add_build(self, set_id: int, generation: int, machine_rows: Mapping[bytes, bytes | None]) -> None:
        """Rows of a generation that is being built: nobody reads them before the set was flipped to it."""
        prefix = machine_prefix(set_id, generation)
        for key, value in machine_rows.items():
            self.taken[prefix + key] = value

    def sorted_keys(self, prefix: bytes) -> list[bytes]:
        keys = self._sorted.get(prefix)
        if keys is None:
            keys = self._sorted[prefix] = sorted(self.rows.get(prefix, ()))
        return keys


class Rows:
    """The rows of one set's machine: the table, and over it the save that is on its way."""

    def __init__(self, table: Table, prefix: bytes, saving: Callable[[], Save | None]) -> None:
        self._table = table
        self._prefix = prefix
        self._saving = saving

    def get(self, key: bytes) -> bytes | None:
        save = self._saving()
        if save is not None:
            rows = save.rows.get(self._prefix)
            if rows is not None and key in rows:
                return rows[key]
        return self._table.get(self._prefix + key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows with start <= key < stop, in order."""
        skip = len(self._prefix)
        found = ((key[skip:], value) for key, value in self._table.scan(self._prefix + start, self._prefix + stop))
        save = self._saving()
        if save is None or self._prefix not in save.rows:
            return found
        rows, keys = save.rows[self._prefix], save.sorted_keys(self._prefix)
        waiting = keys[bisect_left(keys, start) : bisect_left(keys, stop)]
        return _overlaid(found, [(key, rows[key]) for key in waiting])


def _overlaid(
    found: Iterator[tuple[bytes, bytes]], over: list[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """Both in key order; where both have a key, the second counts; None there hides the row."""
    place = 0
    for key, value in found:
        while place < len(over) and over[place][0] < key:
            newer_key, newer = over[place]
            place += 1
            if newer is not None:
                yield newer_key, newer
        if place < len(over) and over[place][0] == key:
            newer = over[place][1]
            place += 1
            if newer is not None:
                yield key, newer
        else:
            yield key, value
    for newer_key, newer in over[place:]:
        if newer is not None:
            yield newer_key, newer
