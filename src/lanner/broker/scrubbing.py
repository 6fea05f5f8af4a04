"""Scrubbing: what lies on disk is read now and then, so that damage is found before what is damaged is needed.

A pass reads every entry that is still wanted, set by set, and every row of the table, in small pieces and at a bounded
rate, in the reader threads. What does not match its checksum is noted (`replicas/damage`), as if a caller had met it:
another broker leads, and the copy is replaced. Rows of the table itself and of the metadata cannot be replaced piece by
piece: for those the broker stops, as it would at its next start. A pass that an operator asks for begins at once,
and is faster.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from lanner import limits
from lanner.broker.ports import RunInThread, Spawn
from lanner.broker.replicas.engine import Engine
from lanner.errors import LannerError, StorageDamaged
from lanner.ledger import Files, Stored, read_entry
from lanner.ledger.rows import generation_of_key, set_of_key
from lanner.ledger.seals import TABLE_END, SealedTable, damaged_row, matches, true_key

log = logging.getLogger("lanner.broker")

PIECE_BYTES: Final = 256 * limits.KIB
PIECE_ROWS: Final = 500
CHUNKS_PER_LOOK: Final = 4
PAUSE_SECONDS: Final = 3_600.0  # between the end of a pass and the next one
FIRST_PAUSE_SECONDS: Final = 60.0  # a broker that starts has other things to do


@dataclass(slots=True)
class Pass:
    """How far one pass is, or was in the end."""

    entries: int = 0
    rows: int = 0
    read_bytes: int = 0
    damaged: int = 0
    expected_bytes: int = 0  # of entries, when it began


class Scrubbing:
    """One broker's scrubber."""

    def __init__(
        self,
        engine: Engine,
        files: Files,
        table: SealedTable,
        in_reader: RunInThread,
        bytes_per_second: int,
        fail: Callable[[LannerError], None],
        spawn: Spawn,
    ) -> None:
        self._engine = engine
        self._files = files
        self._table = table
        self._in_reader = in_reader
        self._bytes_per_second = bytes_per_second
        self._fail = fail
        self._spawn = spawn
        self._asked = False  # an operator waits for the present pass
        self.present: Pass | None = None
        self.latest: Pass | None = None
        self.passes = 0
        self.read_bytes = 0

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self._scrub_forever()] if self._bytes_per_second > 0 else []

    async def _scrub_forever(self) -> None:
        await asyncio.sleep(FIRST_PAUSE_SECONDS)
        while True:
            if self.present is None:
                await self.scrub()
            await asyncio.sleep(PAUSE_SECONDS)

    def begin(self) -> None:
        """Begin a pass, unless one is under way, and make it faster: an operator waits for it."""
        self._asked = True
        if self.present is None:
            self._spawn(self._scrub(self._new_pass()))

    async def scrub(self) -> Pass:
        """Read and verify everything once."""
        return await self._scrub(self._new_pass())

    def _new_pass(self) -> Pass:
        self.present = Pass(expected_bytes=self._engine.ledger.live_bytes)
        return self.present

    async def _scrub(self, found: Pass) -> Pass:
        for set_id in self._engine.ledger.sets():
            await self._scrub_entries(set_id, found)
        await self._scrub_rows(found)
        self.present, self.latest, self._asked = None, found, False
        self.passes += 1
        log.info(
            "scrubbed %d entries and %d rows (%d MiB): %d are damaged",
            found.entries,
            found.rows,
            found.read_bytes // limits.MIB,
            found.damaged,
        )
        return found

    # ------------------------------------------------------------------ entries

    async def _scrub_entries(self, set_id: int, found: Pass) -> None:
        ledger, index = self._engine.ledger, 1
        while True:
            try:
                held, index = ledger.held(set_id, index, CHUNKS_PER_LOOK)
            except KeyError:
                return  # the set has gone meanwhile
            for piece in _pieces(held):
                began = time.perf_counter()
                for stored, error in await self._in_reader(partial(_check, self._files, piece)):
                    if self._is_there(set_id, stored):
                        found.damaged += 1
                        self._engine.damages.note(set_id, stored.index, error)
                found.entries += len(piece)
                await self._rest(found, sum(stored.location.length for stored in piece), began)
            if not index:
                return

    def _is_there(self, set_id: int, stored: Stored) -> bool:
        """Whether the entry still lies where it was read: it may have been let go of, or moved."""
        try:
            return self._engine.ledger.locate(set_id, stored.index) == stored.location
        except KeyError:
            return False

    # ------------------------------------------------------------------ rows

    async def _scrub_rows(self, found: Pass) -> None:
        start = b""
        while True:
            began = time.perf_counter()
            rows = await self._in_reader(partial(_rows_from, self._table, start))
            for key, row in rows:
                if not matches(key, row):
                    found.damaged += 1
                    self._row_is_damaged(true_key(key, row))
            found.rows += len(rows)
            await self._rest(found, sum(len(key) + len(row) for key, row in rows), began)
            if len(rows) < PIECE_ROWS:
                return
            start = rows[-1][0] + b"\x00"

    def _row_is_damaged(self, key: bytes) -> None:
        set_id, generation = set_of_key(key), generation_of_key(key)
        if not set_id:  # the table's own, or the metadata's
            self._fail(damaged_row(key))
            return
        state = self._engine.ledger.sets().get(set_id)
        if state is not None and generation in (None, state.generation):
            self._engine.damages.note(set_id, 0, damaged_row(key))

    @property
    def _rate(self) -> int:
        if not self._asked:
            return self._bytes_per_second
        return max(limits.SCRUB_ASKED_FACTOR * self._bytes_per_second, limits.SCRUB_ASKED_BYTES_PER_SECOND)

    async def _rest(self, found: Pass, size: int, began: float) -> None:
        """Sleep so long that the rate is kept: other work comes first."""
        found.read_bytes += size
        self.read_bytes += size
        allowed = size / self._rate if self._rate > 0 else 0.0
        await asyncio.sleep(max(0.0, allowed - (time.perf_counter() - began)))


def _pieces(held: Sequence[Stored]) -> list[list[Stored]]:
    pieces: list[list[Stored]] = []
    size = 0
    for stored in held:
        if not pieces or size + stored.location.length > PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(stored)
        size += stored.location.length
    return pieces


def _rows_from(table: SealedTable, start: bytes) -> list[tuple[bytes, bytes]]:
    """Return some rows, as they are stored; in a reader thread."""
    return list(islice(table.unchecked.scan(start, TABLE_END), PIECE_ROWS))


def _check(files: Files, piece: Sequence[Stored]) -> list[tuple[Stored, StorageDamaged]]:
    """Return the entries that do not match their checksums; in a reader thread."""
    found = []
    for stored in piece:
        try:
            read_entry(files, stored.location)
        except StorageDamaged as error:
            found.append((stored, error))
        except FileNotFoundError:
            continue  # a rewrite has moved it
    return found
