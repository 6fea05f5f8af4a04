"""Inspection: the whole table is read once when a broker starts, and every row held against its seal.

Most rows are looked up by key or by a range of keys, so a row whose *key* has changed would only seem to be missing,
and with it what it said. Read from end to end the table cannot hide it. What is left over, a row of a set that the
table does not know, shows that the row which would name the set is gone.
"""

from __future__ import annotations

from typing import NamedTuple

from lanner.errors import StorageDamaged
from lanner.ledger.rows import OWNER_BYTES, build_key, generation_of_key, removed_key, set_key, set_of_key
from lanner.ledger.seals import TABLE_END, SealedTable, damaged_row, matches, true_key


class Flaw(NamedTuple):
    """A row that is not what was stored, or is missing."""

    key: bytes  # as it should be
    stored: bytes  # where it lies; empty: it is missing
    set_id: int | None  # None: the table's own
    generation: int | None  # None: of the set itself

    @property
    def error(self) -> StorageDamaged:
        return damaged_row(self.key)


def inspect(table: SealedTable) -> list[Flaw]:
    """Every flaw of the table, in order of where they lie."""
    flaws: list[Flaw] = []
    named: set[bytes] = set()
    held: dict[tuple[int, int], None] = {}  # set and generation of logs and machines that have rows
    owner = b""  # of the row before: rows of one owner lie together, and it is enough to look at the first
    for key, row in table.unchecked.scan(b"", TABLE_END):
        if not matches(key, row) and table.is_sealed(key):
            stored, key = key, true_key(key, row)
            flaws.append(Flaw(key, stored, set_of_key(key), generation_of_key(key)))
        if key[:OWNER_BYTES] == owner:
            continue
        owner = key[:OWNER_BYTES]
        set_id, generation = set_of_key(key), generation_of_key(key)
        if key[:1] in (b"m", b"n", b"x"):
            named.add(key)
        elif set_id is not None and generation is not None:
            held[set_id, generation] = None
    for set_id, generation in held:
        if not named.intersection((set_key(set_id), build_key(set_id, generation), removed_key(set_id, generation))):
            flaws.append(Flaw(set_key(set_id), b"", set_id, None))
    return flaws
