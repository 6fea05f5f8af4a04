"""A damaged entry of a log: what lies before it is read, what lies behind it is not made up, and it is noted once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lanner.broker.replicas.damage import Damages
from lanner.broker.replicas.logs import JournalLog
from lanner.broker.saving import Saving
from lanner.broker.settings import BrokerSettings
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


async def test_a_rewrite_that_passes_over_a_damaged_entry_notes_it() -> None:
    """It stays where it is, and a reader may need it long before the scrubber comes by."""
    rotten = StorageDamaged("rotten")
    rewrite = SimpleNamespace(done=True, damaged=[(1, 7, rotten), (2, 3, rotten)])
    candidates: list[int | None] = [4, None]
    ledger = SimpleNamespace(
        rewrite_candidate=lambda: candidates.pop(0),
        plan_rewrite=lambda file_id: rewrite,
        rewritten=lambda done: None,
    )
    engine = SimpleNamespace(
        ledger=ledger, damages=Damages(), replicas={1: object()}, begin_save=lambda: None, files=SimpleNamespace()
    )
    directory = SimpleNamespace(files=SimpleNamespace(free_bytes=lambda: (1 << 40, 1 << 40)), table=None)
    given = cast(Any, (engine, directory, BrokerSettings(data="unused")))
    saving = Saving(*given, saver=cast(Any, None), readers=cast(Any, None), fail=lambda error: None)
    await asyncio.wait_for(saving._rewrite(), 10)
    assert engine.damages.holds(1, 7)
    assert not engine.damages.holds(2, 3), "it is not here any more"
