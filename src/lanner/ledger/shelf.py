"""The shelf: which chunks are in memory.

A chunk that changed since the last save stays until a save holds it; one that a save is writing stays until that save
is done; of the rest only the most recently used stay, and the table serves the others. So memory follows what is
being written, never the length of the logs.

A save may take in thousands of chunks, more than one turn of the loop has time to encode. So they are taken at one
moment and encoded bit by bit; one that is about to change before its turn has come is encoded first, as it was.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final

from lanner.ledger.chunk import Chunk
from lanner.ledger.ports import Table
from lanner.ledger.rows import chunk_key, chunk_range, numbers_in_key

CLEAN_CHUNKS_MAX: Final = 2_048

ChunkKey = tuple[int, int, int]


class Shelf:
    """Chunks by (set, generation, number). Ask for a chunk each time: one that was let go is another object later."""

    def __init__(self, table: Table, clean_max: int = CLEAN_CHUNKS_MAX) -> None:
        self._table = table
        self._clean_max = clean_max
        self._resident: dict[ChunkKey, Chunk] = {}
        self._clean: OrderedDict[ChunkKey, None] = OrderedDict()
        self._dirty: dict[ChunkKey, Chunk] = {}
        self._taken: dict[ChunkKey, Chunk] = {}  # not encoded yet
        self._puts: dict[bytes, bytes | None] = {}  # where they go

    @property
    def resident(self) -> int:
        return len(self._resident)

    @property
    def has_dirty(self) -> bool:
        return bool(self._dirty)

    def find(self, key: ChunkKey) -> Chunk | None:
        """The chunk, fetched from the table when it is not here."""
        chunk = self._resident.get(key)
        if chunk is not None:
            if key in self._clean:
                self._clean.move_to_end(key)
            return chunk
        row = self._table.get(chunk_key(key))
        if row is None:
            return None
        chunk = Chunk.decode(key, row)
        self._resident[key] = chunk
        self._clean[key] = None
        self._let_go()
        return chunk

    def next_chunk(self, key: ChunkKey) -> Chunk | None:
        """The chunk of the same log with this number or the next higher one."""
        chunk = self.find(key)
        if chunk is not None:
            return chunk
        set_id, generation, number = key
        row, _ = next(self._table.scan(chunk_key(key), chunk_range(set_id, generation)[1]), (None, None))
        numbers = [found[2] for found in self._resident if found[:2] == (set_id, generation) and found[2] >= number]
        if row is not None:
            numbers.append(numbers_in_key(row)[2])
        return self.find((set_id, generation, min(numbers))) if numbers else None

    def open(self, key: ChunkKey) -> Chunk:
        """The chunk, to be changed: found or new."""
        chunk = self._resident.get(key) or self.find(key)
        if chunk is None:
            chunk = Chunk(key)
            self._resident[key] = chunk
        if not chunk.dirty:
            self.touch(chunk)
        return chunk

    def touch(self, chunk: Chunk) -> None:
        """The chunk is about to change: hold it until a save has it."""
        if not chunk.dirty:
            if chunk.key in self._taken:
                self._encode(chunk.key)
            chunk.dirty = True
            self._dirty[chunk.key] = chunk
            self._clean.pop(chunk.key, None)

    def take_dirty(self, puts: dict[bytes, bytes | None]) -> list[Chunk]:
        """Everything that changed; the caller gives it back with `settle` once it is saved.

        Their rows appear in `puts` as `encode_some` gets to them, and show this moment whenever that is.
        """
        assert not self._taken, "the save before this one was never written"
        self._taken, self._dirty = self._dirty, {}
        self._puts = puts
        taken = list(self._taken.values())
        for chunk in taken:
            chunk.dirty = False
        return taken

    def encode_some(self, count: int) -> bool:
        """Encode as many of the chunks that were taken; whether some are left."""
        for key in list(islice(self._taken, count)):
            self._encode(key)
        return bool(self._taken)

    def _encode(self, key: ChunkKey) -> None:
        chunk = self._taken.pop(key)
        self._puts[chunk_key(key)] = None if chunk.is_empty else chunk.encode()

    def settle(self, chunks: list[Chunk]) -> None:
        """These are in the table as they were taken; those that have not changed again may be let go."""
        for chunk in chunks:
            if chunk.dirty or self._resident.get(chunk.key) is not chunk:
                continue
            if chunk.is_empty:
                del self._resident[chunk.key]
            else:
                self._clean[chunk.key] = None
        self._let_go()

    def forget(self, set_id: int, generation: int) -> None:
        """The set is gone: so are its chunks."""
        for key in [key for key in self._resident if key[0] == set_id and key[1] == generation]:
            if key in self._taken:
                self._encode(key)
            self._resident.pop(key).dirty = False
            self._dirty.pop(key, None)
            self._clean.pop(key, None)

    def numbers(self, set_id: int, generation: int) -> list[int]:
        """Which chunks a set has, in memory or in the table."""
        rows = {numbers_in_key(key)[2] for key, _ in self._table.scan(*chunk_range(set_id, generation))}
        return sorted(rows | {key[2] for key in self._resident if key[:2] == (set_id, generation)})

    def _let_go(self) -> None:
        while len(self._clean) > self._clean_max:
            key, _ = self._clean.popitem(last=False)
            del self._resident[key]
