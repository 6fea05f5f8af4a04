"""A damaged entry of a log: what lies before it is read, what lies behind it is not made up, and it is noted once."""

from __future__ import annotations

import pytest

from lanner.broker.replicas.damage import Damages
from lanner.broker.replicas.logs import JournalLog
from lanner.errors import StorageDamaged
from lanner.ledger import CommitItem, EntryIn, Ledger, perform
from lanner.testing.disk import SimDisk


def test_a_log_is_read_up_to_the_damaged_entry_and_not_beyond() -> None:
    disk = SimDisk()
    ledger = Ledger.recover(disk.files, disk.table, random_bytes=bytes)
    ledger.add_set(1)
    commit = ledger.begin_commit([CommitItem(1, (1, 1), [EntryIn(n, 1, 0, b"entry %d" % n) for n in range(1, 6)])])
    perform(commit, disk.files)
    ledger.commit_synced(commit)
    location = ledger.locate(1, 3)
    disk.flip_bit(location.file, location.offset)
    told: list[tuple[int, int]] = []
    log = JournalLog(ledger, disk.files, 1, lambda set_id, index, _error: told.append((set_id, index)))
    assert [entry.payload for entry in log.entries(1, 5, 1 << 20)] == [b"entry 1", b"entry 2"]
    assert [entry.payload for entry in log.entries(4, 5, 1 << 20)] == [b"entry 4", b"entry 5"]
    with pytest.raises(StorageDamaged):
        log.entries(3, 5, 1 << 20)
    assert told == [(1, 3), (1, 3)]


def test_damage_is_noted_once_and_forgotten_with_its_set() -> None:
    told: list[int] = []
    damages = Damages(lambda set_id, _error: told.append(set_id))
    first, second = StorageDamaged("here"), StorageDamaged("there")
    damages.note(1, 7, first)
    damages.note(1, 7, second)
    damages.note(1, 8, second)
    damages.note(2, 7, second)
    assert told == [1, 1, 2]
    assert (damages.holds(1, 7), damages.holds(1, 9), len(damages), damages.sets[1]) == (True, False, 3, first)
    damages.forget(1)
    assert (damages.holds(1, 7), damages.holds(2, 7), list(damages.sets)) == (False, True, [2])
