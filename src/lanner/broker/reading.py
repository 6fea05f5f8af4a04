"""Cold reads: payloads that memory no longer has, read from the journal in reader threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final, TypeVar

from lanner.broker.replicas.engine import Engine
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
        """The payloads of (set, index) pairs, from memory or the journal; None for one that retention has taken."""
        from_memory = self._engine.payload_from_memory
        found: list[bytes | None] = [from_memory(set_id, index) for set_id, index in wanted]
        for _ in range(_READ_ATTEMPTS):
            cold = [(place, location) for place in _missing(found) if (location := self._locate(wanted[place]))]
            if not cold:
                break
            locations = [location for _, location in cold]
            payloads = await self._loop.run_in_executor(self._readers, _read_all, self._files, locations)
            for (place, _), payload in zip(cold, payloads, strict=True):
                found[place] = payload
        return found

    def _locate(self, wanted: tuple[int, int]) -> Location | None:
        try:
            return self._engine.ledger.locate(*wanted)
        except KeyError:
            return None


def _missing(found: Sequence[bytes | None]) -> list[int]:
    return [place for place, payload in enumerate(found) if payload is None]


def _read_all(files: Files, locations: Sequence[Location]) -> list[bytes | None]:
    return [_read_or_none(files, location) for location in locations]


def _read_or_none(files: Files, location: Location) -> bytes | None:
    """One payload, or None when a rewrite moved it and dropped its file since the look-up: look it up again."""
    try:
        return read_entry(files, location)
    except FileNotFoundError:
        return None
