"""Seals: a checksum over the key and the value of every row of the table.

A row is stored as its value and four bytes behind it, the crc32c of key and value. It is made when a save is written
and verified whenever a row is read, so that no flipped bit can load as another state. Everything above this module
speaks of plain rows, everything below stores sealed ones.

A flipped bit in a *key* puts a row where nobody looks for it. It is found when the whole table is read (`inspection`),
and as the seal covers the key, it says which row that was: `true_key`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Final

from crc32c import crc32c

from lanner.errors import StorageDamaged
from lanner.ledger.ports import Table
from lanner.ledger.rows import FORMAT_KEY, JOURNAL_KEY, set_of_key

SEAL_BYTES: Final = 4
TABLE_END: Final = b"\xff"  # behind every key
_SEAL: Final = Struct("<I")


def seal(key: bytes, value: bytes) -> bytes:
    """The value as it is stored under this key."""
    return value + _SEAL.pack(crc32c(value, crc32c(key)))


def matches(key: bytes, row: bytes) -> bool:
    """Whether this is what was stored under this key."""
    size = len(row) - SEAL_BYTES
    return size >= 0 and row[size:] == _SEAL.pack(crc32c(row[:size], crc32c(key)))


def unseal(key: bytes, row: bytes) -> bytes:
    """The value of a row. StorageDamaged, which names set and key, when it is not what was stored."""
    if not matches(key, row):
        raise damaged_row(key)
    return row[:-SEAL_BYTES]


def true_key(key: bytes, row: bytes) -> bytes:
    """The key of a row that does not match its seal: another one, if a single bit of it has flipped."""
    for place in range(len(key)):
        for bit in range(8):
            other = key[:place] + bytes([key[place] ^ (1 << bit)]) + key[place + 1 :]
            if matches(other, row):
                return other
    return key


def damaged_row(key: bytes) -> StorageDamaged:
    set_id = set_of_key(key)
    if not set_id:  # the table's own, or the metadata's
        return StorageDamaged(f"the table's row {key.hex()} does not match its checksum", key=key.hex())
    return StorageDamaged(
        f"the table's row {key.hex()} of replica set {set_id} does not match its checksum", set_id=set_id, key=key.hex()
    )


class SealedRows(Mapping[bytes, "bytes | None"]):
    """Rows on their way into the table. Each is sealed when the table takes it, which is done in a thread."""

    def __init__(self, rows: Mapping[bytes, bytes | None]) -> None:
        self._rows = rows

    def __getitem__(self, key: bytes) -> bytes | None:
        value = self._rows[key]
        return None if value is None else seal(key, value)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class SealedTable:
    """A table of sealed rows, read and written as if they were plain.

    Rows behind `plain_after` are plain: a table of an older release that must not be written to.
    """

    def __init__(self, table: Table, plain_after: bytes | None = None) -> None:
        self.unchecked = table
        self._plain_after = plain_after
        self._hidden: set[bytes] = set()
        self.unreadable: dict[int, StorageDamaged] = {}  # sets of which a row was read and found damaged

    def hide(self, keys: Iterable[bytes]) -> None:
        """Rows that are damaged, and whose damage is known: read as if they were not there, until they are written."""
        self._hidden.update(keys)

    def written(self, keys: Iterable[bytes]) -> None:
        """What stands there now was written after the damage."""
        if self._hidden:
            self._hidden.difference_update(keys)

    def get(self, key: bytes) -> bytes | None:
        row = self.unchecked.get(key)
        return None if row is None or key in self._hidden else self._open(key, row)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, row in self.unchecked.scan(start, stop):
            if key not in self._hidden:
                yield key, self._open(key, row)

    def commit(self, puts: Mapping[bytes, bytes | None]) -> None:
        self.unchecked.commit(SealedRows(puts))

    def close(self) -> None:
        self.unchecked.close()

    def is_sealed(self, key: bytes) -> bool:
        after = self._plain_after
        return after is None or key <= after or (after != b"" and key in (JOURNAL_KEY, FORMAT_KEY))

    def _open(self, key: bytes, row: bytes) -> bytes:
        if not self.is_sealed(key):
            return row
        try:
            return unseal(key, row)
        except StorageDamaged as error:
            if "set_id" in error.details:
                self.unreadable[error.details["set_id"]] = error
            raise
