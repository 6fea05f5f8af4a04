"""Cold reads: payloads that memory no longer has, read from the journal in reader threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final, TypeVar

from lanner.broker.replicas.engine import Engine
from lanner.errors import NotLeader, StorageDamaged
from lanner.ledger import Files, Location, read_entry

Result = TypeVar("Result")
_READ_ATTEMPTS: Final = 3


class Reading:
    """Reads for one engine; nothing here blocks the loop."""

    def __init__(self, engine: Engine, files: Files, readers: Executor) -> None:
        self._engine = engine
        self._files = files
        self._readers = readers
        self._loop = asyncio.get_running_loop()

    async def in_reader(self, work: Callable[[], Result]) -> Result:
        """Run something that may block on the disk, or on much computing, in a reader thread."""
        return await self._loop.run_in_executor(self._readers, work)

    async def payloads(self, wanted: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Return the payloads of (set, index) pairs, from memory or the journal; None for one that retention has taken.

        None also for a damaged one of which there is no other copy: `engine.damages` knows it then.
        """
        from_memory = self._engine.payload_from_memory
        found: list[bytes | None] = [from_memory(set_id, index) for set_id, index in wanted]
        for _ in range(_READ_ATTEMPTS):
            cold = [(number, location) for number in _missing(found) if (location := self._locate(wanted[number]))]
            if not cold:
                break
            locations = [location for _, location in cold]
            payloads = await self._loop.run_in_executor(self._readers, _read_all, self._files, locations)
            for (number, _), payload in zip(cold, payloads, strict=True):
                if isinstance(payload, StorageDamaged):
                    self._engine.damages.note(*wanted[number], payload)
                else:
                    found[number] = payload
        if self._engine.damages.sets:
            self._leave_to_others(wanted, found)
        return found

    def _leave_to_others(self, wanted: Sequence[tuple[int, int]], found: Sequence[bytes | None]) -> None:
        """Raise NotLeader for what is damaged here and whole elsewhere: the other replicas should be asked."""
        for number in _missing(found):
            set_id, index = wanted[number]
            replica = self._engine.replicas.get(set_id)
            if replica is not None and replica.has_peers and self._engine.damages.holds(set_id, index):
                raise NotLeader("this broker's copy is damaged there; another one is about to lead: ask again")

    def _locate(self, wanted: tuple[int, int]) -> Location | None:
        if self._engine.damages.holds(*wanted):
            return None
        try:
            return self._engine.ledger.locate(*wanted)
        except KeyError:
            return None


def _missing(found: Sequence[bytes | None]) -> list[int]:
    return [number for number, payload in enumerate(found) if payload is None]


def _read_all(files: Files, locations: Sequence[Location]) -> list[bytes | StorageDamaged | None]:
    return [_read_or_none(files, location) for location in locations]


def _read_or_none(files: Files, location: Location) -> bytes | StorageDamaged | None:
    """One payload, or what is wrong with it. None when a rewrite moved it and dropped its file since the look-up."""
    try:
        return read_entry(files, location)
    except FileNotFoundError:
        return None
    except StorageDamaged as error:
        return error
