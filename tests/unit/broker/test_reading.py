"""Payloads for those who read: from memory, from the journal, and what happens where the journal is damaged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from lanner.broker import reading
from lanner.broker.reading import Reading
from lanner.errors import NotLeader, StorageDamaged

MEMORY, DISK, GONE, ROTTEN = (3, 1), (3, 2), (3, 3), (3, 4)
DAMAGED = StorageDamaged("entry 4 of set 3 does not match its checksum")


class Damages:
    def __init__(self) -> None:
        self.sets: dict[int, Any] = {}

    def note(self, set_id: int, index: int, error: StorageDamaged) -> None:
        self.sets.setdefault(set_id, {})[index] = error

    def holds(self, set_id: int, index: int) -> bool:
        return index in self.sets.get(set_id, {})


def locate(set_id: int, index: int) -> tuple[int, int]:
    if (set_id, index) == GONE:
        raise KeyError(index)
    return set_id, index


def bench(monkeypatch: pytest.MonkeyPatch, *, has_peers: bool) -> Any:
    payloads: dict[Any, Any] = {DISK: b"disk", ROTTEN: DAMAGED}
    monkeypatch.setattr(reading, "_read_or_none", lambda files, location: payloads[location])
    return SimpleNamespace(
        payload_from_memory=lambda set_id, index: b"memory" if (set_id, index) == MEMORY else None,
        ledger=SimpleNamespace(locate=locate),
        damages=Damages(),
        replicas={3: SimpleNamespace(has_peers=has_peers)},
    )


async def test_what_is_not_in_memory_comes_from_the_journal_and_what_retention_took_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine: Any = bench(monkeypatch, has_peers=True)
    files: Any = None
    with ThreadPoolExecutor(1) as readers:
        found = await Reading(engine, files, readers).payloads([MEMORY, DISK, GONE])
    assert found == [b"memory", b"disk", None]


@pytest.mark.parametrize("has_peers", [True, False])
async def test_damage_is_noted_and_left_to_other_copies_where_there_are_any(
    monkeypatch: pytest.MonkeyPatch, has_peers: bool
) -> None:
    engine: Any = bench(monkeypatch, has_peers=has_peers)
    files: Any = None
    with ThreadPoolExecutor(1) as readers:
        reader = Reading(engine, files, readers)
        if has_peers:
            with pytest.raises(NotLeader, match="this broker's copy is damaged there"):
                await reader.payloads([DISK, ROTTEN])
        else:
            assert await reader.payloads([DISK, ROTTEN]) == [b"disk", None]
        assert engine.damages.holds(*ROTTEN)
        assert await reader.payloads([GONE]) == [None], "what is gone is not damaged"
