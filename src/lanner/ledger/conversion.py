"""Conversion: the rows of a release that did not seal them (0.1) are sealed, once, when a broker starts.

It goes through the table in order of keys, a bounded number of rows in each commit. The same commit says how far it
has come (the row `v`), so a stop anywhere loses nothing, and no row is sealed twice. The journal's row goes first:
where it is sealed and the row `v` is missing, that is damage and not an old table.

    v    → version, whether all rows are sealed, and if not, the last key that is
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from lanner.errors import StorageDamaged
from lanner.ledger.ports import Table
from lanner.ledger.rows import FORMAT_KEY, JOURNAL_KEY, JOURNAL_ROW_BYTES
from lanner.ledger.seals import SEAL_BYTES, TABLE_END, SealedTable, damaged_row, seal, unseal

ROWS_PER_COMMIT: Final = 2_000
BYTES_PER_COMMIT: Final = 4 << 20
_VERSION: Final = 1
_FLAGS_BYTES: Final = 2

Progress = Callable[[int, int], None]
"""Told how many rows are converted, and of how many."""

ALL_SEALED: Final = bytes((_VERSION, 1))


def open_table(table: Table, *, read_only: bool = False, progress: Progress | None = None) -> SealedTable:
    """The table with all its rows sealed; an old one is converted first, unless it is only to be read."""
    sealed_up_to = _sealed_up_to(table)
    if sealed_up_to is None:
        return SealedTable(table)
    if read_only:
        return SealedTable(table, plain_after=sealed_up_to)
    _convert(table, sealed_up_to, progress or _silent)
    return SealedTable(table)


def _convert(table: Table, sealed_up_to: bytes, progress: Progress) -> None:
    total = sum(1 for _ in _plain_rows(table, sealed_up_to))
    puts: dict[bytes, bytes | None] = {}
    size = 0
    if not sealed_up_to:
        journal = table.get(JOURNAL_KEY)
        assert journal is not None, "that is how an old table is known"
        puts[JOURNAL_KEY] = seal(JOURNAL_KEY, journal)
    for done, (key, value) in enumerate(_plain_rows(table, sealed_up_to), start=1):
        puts[key] = seal(key, value)
        size += len(value)
        if len(puts) >= ROWS_PER_COMMIT or size >= BYTES_PER_COMMIT:
            puts[FORMAT_KEY] = seal(FORMAT_KEY, bytes((_VERSION, 0)) + key)
            table.commit(puts)
            progress(done, total)
            puts, size = {}, 0
    puts[FORMAT_KEY] = seal(FORMAT_KEY, ALL_SEALED)
    table.commit(puts)
    progress(total, total)


def _plain_rows(table: Table, sealed_up_to: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows that are not sealed yet; what is sealed or written meanwhile lies before them."""
    start = sealed_up_to + b"\x00" if sealed_up_to else b""
    for key, value in table.scan(start, TABLE_END):
        if key not in (JOURNAL_KEY, FORMAT_KEY):
            yield key, value


def _sealed_up_to(table: Table) -> bytes | None:
    """The last key that is sealed; None: all are, or there is nothing yet."""
    row = table.get(FORMAT_KEY)
    if row is None:
        journal = table.get(JOURNAL_KEY)
        if journal is not None and len(journal) == JOURNAL_ROW_BYTES + SEAL_BYTES:
            raise damaged_row(FORMAT_KEY)
        return None if journal is None else b""
    value = unseal(FORMAT_KEY, row)
    if len(value) < _FLAGS_BYTES or value[0] != _VERSION:
        raise StorageDamaged(
            f"the table's format is {value.hex()}, which this release does not know; start the release that wrote it",
            newer=True,
        )
    return None if value == ALL_SEALED else value[_FLAGS_BYTES:]


def _silent(done: int, total: int) -> None:
    """Nobody is told."""
