"""Rows that an older release left without checksums are sealed once, wherever that is interrupted."""

from __future__ import annotations

from random import Random

import pytest

from lanner.errors import StorageDamaged, StorageFull
from lanner.ledger import Ledger, conversion
from lanner.ledger.conversion import open_table
from lanner.ledger.rows import FORMAT_KEY, JOURNAL_KEY
from lanner.ledger.seals import SEAL_BYTES, TABLE_END, SealedTable, seal
from lanner.testing.disk import PowerLost, SimDisk
from lanner.testing.simulator import Simulation


@pytest.fixture(scope="module")
def converted() -> SimDisk:
    simulation = Simulation(3, events=500)
    simulation.run()
    simulation.broker.finish_work()
    return simulation.broker.disk.snapshot()


def made_by_an_older_release(disk: SimDisk) -> SimDisk:
    old = disk.snapshot()
    rows = {key: row[:-SEAL_BYTES] for key, row in old.table.scan(b"", TABLE_END)}
    old.table.commit({**rows, FORMAT_KEY: None})
    return old


def rows_in(disk: SimDisk) -> dict[bytes, bytes]:
    return dict(disk.table.scan(b"", TABLE_END))


def test_an_old_table_is_converted_and_shows_what_it_showed(converted: SimDisk) -> None:
    old = made_by_an_older_release(converted)
    told: list[tuple[int, int]] = []
    ledger = Ledger.recover(
        old.files, old.table, random_bytes=bytes, converting=lambda done, total: told.append((done, total))
    )
    assert rows_in(old) == rows_in(converted)
    assert ledger.sets() == Ledger.recover(converted.files, converted.table, random_bytes=bytes, read_only=True).sets()
    assert told[-1] == (len(rows_in(converted)) - 2, len(rows_in(converted)) - 2)


def test_a_table_is_converted_once(converted: SimDisk) -> None:
    copy = converted.snapshot()
    told: list[int] = []
    open_table(copy.table, progress=lambda done, _total: told.append(done))
    assert (told, rows_in(copy)) == ([], rows_in(converted))


def test_an_old_table_that_is_only_looked_at_stays_as_it_is(converted: SimDisk) -> None:
    old = made_by_an_older_release(converted)
    before = rows_in(old)
    sets = Ledger.recover(old.files, old.table, random_bytes=bytes, read_only=True).sets()
    assert sets == Ledger.recover(converted.files, converted.table, random_bytes=bytes, read_only=True).sets()
    assert rows_in(old) == before


def test_a_conversion_that_is_interrupted_anywhere_goes_on_where_it_was(
    converted: SimDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power goes at every operation in turn; half of the time what was being committed is there."""
    monkeypatch.setattr(conversion, "ROWS_PER_COMMIT", 7)
    wanted, operation, interrupted = rows_in(converted), 0, 0
    while True:
        operation += 1
        old, rng = made_by_an_older_release(converted), Random(operation)
        old.crash_in(operation)
        try:
            open_table(old.table)
        except PowerLost:
            old.crash(rng)
            interrupted += FORMAT_KEY in old.row_keys()
            looked_at = open_table(old.table, read_only=True)
            plain = {key: value for key, value in looked_at.scan(b"", TABLE_END) if key != FORMAT_KEY}
            assert plain == {key: row[:-SEAL_BYTES] for key, row in wanted.items() if key != FORMAT_KEY}
            open_table(old.table)
            assert rows_in(old) == wanted
        else:
            break
    assert interrupted > 5


def test_a_full_disk_stops_a_conversion_and_nothing_is_lost(converted: SimDisk) -> None:
    old = made_by_an_older_release(converted)
    old.table_full = True
    with pytest.raises(StorageFull):
        open_table(old.table)
    old.table_full = False
    open_table(old.table)
    assert rows_in(old) == rows_in(converted)


def test_a_version_that_is_not_known_is_refused() -> None:
    table = SimDisk().table
    SealedTable(table).commit({FORMAT_KEY: b"\x09", JOURNAL_KEY: bytes(25)})
    with pytest.raises(StorageDamaged, match="does not know"):
        open_table(table)
    assert seal(FORMAT_KEY, b"\x09") == table.get(FORMAT_KEY)
