"""A chunk: where up to 256 neighbouring entries of one log lie, in columns.

Logs hold tens of millions of entries, so their places are not Python objects: a chunk is a handful of arrays (about
26 bytes an entry), and it is one row of the table. A slot is the low byte of an entry's index; file 0 marks a slot
whose entry is gone. The chunk knows nothing of live bytes or of compaction; its owner tells it what to forget.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from lanner.errors import StorageDamaged

CHUNK_BITS: Final = 8
CHUNK_ENTRIES: Final = 1 << CHUNK_BITS
SLOT_MASK: Final = CHUNK_ENTRIES - 1

_VERSION: Final = 1
_DENSE: Final = 1  # between the first slot and the last none is empty: the slots are not listed
_ONE_FILE: Final = 2
_ONE_TERM: Final = 4
_HEAD: Final = Struct("<BBHHB")  # version, flags, entries, parts, first slot
_PART: Final = Struct("<BII")  # slot, size, length of what follows

# Columns are stored as the arrays lie in memory; the format is little-endian.
assert sys.byteorder == "little"
assert array("I").itemsize == 4
assert array("Q").itemsize == 8


class Part(NamedTuple):
    """What of an entry is still wanted: opaque to the ledger, and about how many bytes it will need."""

    kept: bytes
    size: int


class Run(NamedTuple):
    """Entries of one log with neighbouring indexes, and where one commit put them."""

    first_index: int
    file: int
    offsets: Sequence[int]
    lengths: Sequence[int]
    crcs: Sequence[int]
    terms: Sequence[int]
    kinds: Sequence[int]

    def part(self, start: int, stop: int) -> Run:
        return Run(
            self.first_index + start,
            self.file,
            self.offsets[start:stop],
            self.lengths[start:stop],
            self.crcs[start:stop],
            self.terms[start:stop],
            self.kinds[start:stop],
        )


class Chunk:
    """The columns. `wanted` marks the entries that the machine calls live."""

    __slots__ = ("crcs", "dirty", "files", "key", "kinds", "lengths", "offsets", "parts", "terms", "wanted")

    def __init__(self, key: tuple[int, int, int]) -> None:
        self.key = key
        self.dirty = False
        self.files = array("I")
        self.offsets = array("I")
        self.lengths = array("I")
        self.crcs = array("I")
        self.terms = array("Q")
        self.kinds = bytearray()
        self.wanted = bytearray()
        self.parts: dict[int, Part] = {}

    def __len__(self) -> int:
        """One more than the highest slot that was ever filled."""
        return len(self.files)

    def holds(self, slot: int) -> bool:
        return slot < len(self.files) and self.files[slot] != 0

    @property
    def is_empty(self) -> bool:
        return not self.files.tobytes().strip(b"\x00")

    def slots(self) -> list[int]:
        return [slot for slot, file in enumerate(self.files) if file]

    def extend(self, run: Run) -> None:
        """Add the run behind everything that is here."""
        slot = run.first_index & SLOT_MASK
        count = len(run.offsets)
        assert len(self.files) <= slot and slot + count <= CHUNK_ENTRIES
        self._pad(slot)
        self.files.extend([run.file] * count)
        self.offsets.extend(run.offsets)
        self.lengths.extend(run.lengths)
        self.crcs.extend(run.crcs)
        self.terms.extend(run.terms)
        self.kinds.extend(run.kinds)
        self.wanted.extend(bytes(count))

    def cut(self, slot: int) -> None:
        """Forget the slot and all behind it."""
        for column in (self.files, self.offsets, self.lengths, self.crcs, self.terms, self.kinds, self.wanted):
            del column[slot:]
        for parted in [parted for parted in self.parts if parted >= slot]:
            del self.parts[parted]

    def clear(self, slot: int) -> None:
        """Forget one entry."""
        self.files[slot] = 0
        self.wanted[slot] = 0
        self.parts.pop(slot, None)

    def clear_range(self, start: int, stop: int) -> None:
        """Forget a range in which nothing is wanted."""
        self.files[start:stop] = array("I", bytes(4 * (stop - start)))

    def move(self, slot: int, file: int, offset: int, length: int, crc: int) -> None:
        self.files[slot] = file
        self.offsets[slot] = offset
        self.lengths[slot] = length
        self.crcs[slot] = crc

    def encode(self) -> bytes:
        """The row of this chunk; empty slots take no room."""
        slots, first = self._filled()
        if isinstance(slots, slice):
            listed, flags = b"", _DENSE
            files, terms = self.files[slots].tobytes(), self.terms[slots].tobytes()
            offsets, lengths, crcs = self.offsets[slots], self.lengths[slots], self.crcs[slots]
            kinds, wanted = bytes(self.kinds[slots]), bytes(self.wanted[slots])
        else:
            listed, flags = bytes(slots), 0
            files, terms = _pick(self.files, slots).tobytes(), _pick(self.terms, slots).tobytes()
            offsets, lengths, crcs = _pick(self.offsets, slots), _pick(self.lengths, slots), _pick(self.crcs, slots)
            kinds, wanted = bytes(_choose(self.kinds, slots)), bytes(_choose(self.wanted, slots))
        count = len(kinds)
        one_file, one_term = files == files[:4] * count, terms == terms[:8] * count
        flags |= (_ONE_FILE if one_file else 0) | (_ONE_TERM if one_term else 0)
        pieces = [
            _HEAD.pack(_VERSION, flags, count, len(self.parts), first),
            listed,
            files[:4] if one_file else files,
            terms[:8] if one_term else terms,
            offsets.tobytes(),
            lengths.tobytes(),
            crcs.tobytes(),
            kinds,
            wanted,
        ]
        for slot, part in sorted(self.parts.items()):
            pieces.append(_PART.pack(slot, part.size, len(part.kept)))
            pieces.append(part.kept)
        return b"".join(pieces)

    def _filled(self) -> tuple[slice | list[int], int]:
        """Which slots are filled, as a slice if they are neighbours; and the first of them.

        Nearly always all of them lie in one file, from some slot on: that is seen without a look at each.
        """
        data = self.files.tobytes()
        first = (len(data) - len(data.lstrip(b"\x00"))) // 4
        if data[4 * first :] == data[4 * first : 4 * first + 4] * (len(self.files) - first):
            return slice(first, len(self.files)), first
        slots = self.slots()
        first, last = slots[0], slots[-1]
        return (slice(first, last + 1) if len(slots) == last - first + 1 else slots), first

    @classmethod
    def decode(cls, key: tuple[int, int, int], row: bytes) -> Chunk:
        try:
            return cls._decode(key, row)
        except (ValueError, IndexError) as error:
            raise _damaged(key) from error

    @classmethod
    def _decode(cls, key: tuple[int, int, int], row: bytes) -> Chunk:
        if len(row) < _HEAD.size:
            raise _damaged(key)
        version, flags, count, parts, first = _HEAD.unpack_from(row)
        if version != _VERSION or not 0 < count <= CHUNK_ENTRIES - first:
            raise _damaged(key)
        reader = _RowReader(row, _HEAD.size)
        listed = b"" if flags & _DENSE else reader.take(count)
        files = array("I", reader.take(4) * count if flags & _ONE_FILE else reader.take(4 * count))
        terms = array("Q", reader.take(8) * count if flags & _ONE_TERM else reader.take(8 * count))
        offsets, lengths, crcs = (array("I", reader.take(4 * count)) for _ in range(3))
        kinds, wanted = bytearray(reader.take(count)), bytearray(reader.take(count))
        chunk = cls(key)
        if flags & _DENSE:
            chunk._pad(first)
            chunk.files += files
            chunk.offsets += offsets
            chunk.lengths += lengths
            chunk.crcs += crcs
            chunk.terms += terms
            chunk.kinds += kinds
            chunk.wanted += wanted
        else:
            chunk._pad(max(listed) + 1)
            for place, slot in enumerate(listed):
                chunk.move(slot, files[place], offsets[place], lengths[place], crcs[place])
                chunk.terms[slot] = terms[place]
                chunk.kinds[slot] = kinds[place]
                chunk.wanted[slot] = wanted[place]
        for _ in range(parts):
            slot, size, length = _PART.unpack(reader.take(_PART.size))
            chunk.parts[slot] = Part(reader.take(length), size)
        return chunk

    def _pad(self, slot: int) -> None:
        missing = slot - len(self.files)
        if missing > 0:
            for column in (self.files, self.offsets, self.lengths, self.crcs):
                column.frombytes(bytes(4 * missing))
            self.terms.frombytes(bytes(8 * missing))
            self.kinds.extend(bytes(missing))
            self.wanted.extend(bytes(missing))


class _RowReader:
    """Takes bytes off a row; a row that is too short is an error, never a short answer."""

    def __init__(self, row: bytes, offset: int) -> None:
        self._row = row
        self._offset = offset

    def take(self, length: int) -> bytes:
        start = self._offset
        self._offset = start + length
        if self._offset > len(self._row):
            raise ValueError("the row is too short")
        return self._row[start : self._offset]


def _pick(column: array[int], slots: Sequence[int]) -> array[int]:
    return array(column.typecode, [column[slot] for slot in slots])


def _choose(column: bytearray, slots: Iterable[int]) -> list[int]:
    return [column[slot] for slot in slots]


def _damaged(key: tuple[int, int, int]) -> StorageDamaged:
    set_id, generation, number = key
    return StorageDamaged(
        f"the table's row for entries {number << CHUNK_BITS} and up of replica set {set_id} (generation {generation}) "
        "does not decode",
        set_id=set_id,
    )
