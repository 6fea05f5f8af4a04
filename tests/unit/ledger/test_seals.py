"""A row is sealed with its key: whatever bit of it flips is found, and nothing loads as another state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lanner.errors import StorageDamaged
from lanner.ledger import Ledger
from lanner.ledger.inspection import inspect
from lanner.ledger.rows import FORMAT_KEY, JOURNAL_KEY, machine_prefix, set_key, set_of_key
from lanner.ledger.seals import TABLE_END, SealedRows, SealedTable, matches, seal, true_key, unseal
from lanner.storage import MemoryTable
from lanner.testing.disk import SimDisk
from lanner.testing.simulator import Simulation


@pytest.fixture(scope="module")
def disk() -> SimDisk:
    """A broker's disk with two topics, groups of both kinds, leases, retries and dead letters, all of it saved."""
    simulation = Simulation(3, events=150)
    simulation.run()
    simulation.broker.finish_work()
    return simulation.broker.disk.snapshot()


def recover(disk: SimDisk) -> Ledger:
    return Ledger.recover(disk.files, disk.table, random_bytes=bytes, read_only=True)


def rows_of(disk: SimDisk, set_id: int | None) -> list[bytes]:
    return [key for key in disk.row_keys() if set_of_key(key) == set_id]


def test_a_row_is_opened_with_the_key_it_was_sealed_with_and_no_other() -> None:
    row = seal(b"key", b"value")
    assert unseal(b"key", row) == b"value"
    assert matches(b"key", row)
    for key, damaged in ((b"kez", row), (b"key", b"w" + row[1:]), (b"key", row[:-1]), (b"key", b""), (b"key", b"abc")):
        assert not matches(key, damaged)
        with pytest.raises(StorageDamaged):
            unseal(key, damaged)


def test_the_error_of_a_row_says_whose_it_is_and_which() -> None:
    with pytest.raises(StorageDamaged, match="replica set 7") as caught:
        unseal(set_key(7), b"nothing of it")
    assert caught.value.details == {"set_id": 7, "key": set_key(7).hex()}
    with pytest.raises(StorageDamaged) as caught:
        unseal(JOURNAL_KEY, b"nothing of it")
    assert caught.value.details == {"key": JOURNAL_KEY.hex()}


def test_a_row_whose_key_has_lost_a_bit_still_says_which_row_it_is() -> None:
    row = seal(set_key(7), b"value")
    for bit in range(8 * len(set_key(7))):
        other = bytearray(set_key(7))
        other[bit >> 3] ^= 1 << (bit & 7)
        assert true_key(bytes(other), row) == set_key(7)
    assert true_key(set_key(7), b"w" + row[1:]) == set_key(7)


def test_rows_are_sealed_on_their_way_and_deletions_stay_deletions() -> None:
    rows = SealedRows({b"a": b"1", b"b": None})
    assert dict(rows) == {b"a": seal(b"a", b"1"), b"b": None}
    assert len(rows) == 2
    table = SealedTable(MemoryTable())
    table.commit({b"a": b"1", b"c": b""})
    assert (table.get(b"a"), table.get(b"b"), list(table.scan(b"a", b"d"))) == (b"1", None, [(b"a", b"1"), (b"c", b"")])
    assert table.unchecked.get(b"a") == seal(b"a", b"1")
    table.close()


@pytest.mark.slow
@pytest.mark.parametrize("which", ["a partition", "the table itself"])
def test_every_flipped_bit_of_a_row_is_found_and_none_loads_as_another_state(disk: SimDisk, which: str) -> None:
    """Values, seals and keys; a partition's rows of every kind, then the journal's, the files' and the marker."""
    set_id = max(filter(None, map(set_of_key, disk.row_keys()))) if which == "a partition" else None
    keys = rows_of(disk, set_id)
    assert {key[:1] for key in keys} == ({b"b", b"e", b"m", b"s"} if set_id else {b"g", b"j", b"v"})
    rows = dict(disk.table.scan(b"", TABLE_END))
    for key in keys:
        for bit in range(8 * len(key + rows[key])):
            table = MemoryTable(rows)
            harmed = bytearray(key + rows[key])
            harmed[bit >> 3] ^= 1 << (bit & 7)
            table.commit({key: None})
            table.commit({bytes(harmed[: len(key)]): bytes(harmed[len(key) :])})
            with pytest.raises(StorageDamaged) as caught:
                Ledger.recover(disk.files, table, random_bytes=bytes, read_only=True)
            assert caught.value.details == ({"set_id": set_id, "key": key.hex()} if set_id else {"key": key.hex()})


def flipped(key: bytes) -> Callable[[SimDisk], object]:
    return lambda disk: disk.flip_row_bit(key, 8 * len(key))


def removed(key: bytes) -> Callable[[SimDisk], object]:
    return lambda disk: disk.table.commit({key: None})


@pytest.mark.parametrize("harm", [removed, flipped])
@pytest.mark.parametrize("key", [FORMAT_KEY, JOURNAL_KEY])
def test_a_table_whose_own_rows_are_gone_is_neither_old_nor_new(
    disk: SimDisk, key: bytes, harm: Callable[[bytes], Callable[[SimDisk], object]]
) -> None:
    copy = disk.snapshot()
    harm(key)(copy)
    with pytest.raises(StorageDamaged):
        recover(copy)


def test_a_set_whose_own_row_is_missing_is_missed(disk: SimDisk) -> None:
    copy = disk.snapshot()
    copy.table.commit({set_key(1): None})
    (flaw,) = inspect(SealedTable(copy.table))
    assert (flaw.key, flaw.stored, flaw.set_id) == (set_key(1), b"", 1)


def test_what_is_read_later_is_verified_then(disk: SimDisk) -> None:
    copy = disk.snapshot()
    ledger = recover(copy)
    rows = ledger.rows(1)
    key = next(one for one in rows_of(copy, 1) if one[:1] == b"s")
    copy.flip_row_bit(key, 8 * len(key))
    with pytest.raises(StorageDamaged):
        rows.get(key[len(machine_prefix(1, 1)) :])
    with pytest.raises(StorageDamaged):
        list(rows.scan(b"", b"\xff"))
