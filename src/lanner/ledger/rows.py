"""The rows of the table: their keys, their bytes, and nothing of when they change.

    j                    → the saved position P, and the next ids that may be given away
    m/set                → generation, term, vote, compacted, saved, last, replica id (absent in rows of older releases)
    e/set/gen/chunk      → where up to 256 entries lie (see chunk)
    b/set/gen/file       → live bytes of the set in the file
    g/file               → kind, state, size, live bytes of the file
    s/set/gen/key        → a row of the set's machine
    n/set/gen            → a generation that is being built: as m, its last index being what has arrived
    x/set/gen            → the set is gone; its rows are being taken away
    q/set                → the set is closed, as a row of it was damaged: generation, replica id (see damaged)
    v                    → that all rows are sealed, or how far (see conversion)

Keys are big-endian, so that ranges scan in order. Every row opens with a version, and ends with a checksum over key
and value (see seals).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

from lanner.errors import StorageDamaged
from lanner.ledger.ports import Table
from lanner.ledger.records import FileKind

_VERSION: Final = 1
_JOURNAL: Final = Struct("<BQQQ")
_SET: Final = Struct("<BIQQQQQQQQ")
_SET_BEFORE: Final = Struct("<BIQQQQQQQ")  # when a broker was alone, and so always replica 1
_FILE: Final = Struct("<BBBQQ")
_BYTES: Final = Struct("<BQ")
_DAMAGED: Final = Struct("<BQQ")
_SET_KEY: Final = Struct(">cQ")
_GENERATION_KEY: Final = Struct(">cQI")
_NUMBER_KEY: Final = Struct(">cQIQ")

JOURNAL_KEY: Final = b"j"
FORMAT_KEY: Final = b"v"
JOURNAL_ROW_BYTES: Final = _JOURNAL.size
OWNER_BYTES: Final = _GENERATION_KEY.size  # so much of a key says which set and generation a row belongs to
_KINDS_OF_SETS: Final = frozenset(b"mebsnxq")


class FileState(IntEnum):
    """Where a file is in its life. Only what is building or dropped may be deleted when a broker starts."""

    OPEN = 1
    SEALED = 2
    BUILDING = 3
    DROPPED = 4


@dataclass(slots=True)
class SetState:
    """What the ledger knows of one replica set."""

    set_id: int
    generation: int
    term: int = 0
    vote: int = 0
    compacted_index: int = 0
    compacted_term: int = 0
    saved_index: int = 0
    last_index: int = 0
    last_term: int = 0
    replica_id: int = 1  # whose votes and answers these are: a log is never taken for that of another replica


class JournalRow(NamedTuple):
    position: int
    next_file: int
    next_generation: int


@dataclass(slots=True)
class FileInfo:
    """One file; `live` counts entry headers too, so that a file of small entries does not look dead."""

    file_id: int
    kind: FileKind
    state: FileState
    size: int
    live: int = 0


def set_key(set_id: int) -> bytes:
    return _SET_KEY.pack(b"m", set_id)


def file_key(file_id: int) -> bytes:
    return _SET_KEY.pack(b"g", file_id)


def chunk_key(key: tuple[int, int, int]) -> bytes:
    return _NUMBER_KEY.pack(b"e", *key)


def bytes_key(set_id: int, generation: int, file_id: int) -> bytes:
    return _NUMBER_KEY.pack(b"b", set_id, generation, file_id)


def machine_prefix(set_id: int, generation: int) -> bytes:
    return _GENERATION_KEY.pack(b"s", set_id, generation)


def build_key(set_id: int, generation: int) -> bytes:
    return _GENERATION_KEY.pack(b"n", set_id, generation)


def removed_key(set_id: int, generation: int) -> bytes:
    return _GENERATION_KEY.pack(b"x", set_id, generation)


def damaged_key(set_id: int) -> bytes:
    return _SET_KEY.pack(b"q", set_id)


def chunk_range(set_id: int, generation: int) -> tuple[bytes, bytes]:
    return _GENERATION_KEY.pack(b"e", set_id, generation), _GENERATION_KEY.pack(b"e", set_id, generation + 1)


def ranges_of_set(set_id: int, generation: int) -> list[tuple[bytes, bytes]]:
    """Every range of keys that belongs to one generation of a set."""
    return [
        (_GENERATION_KEY.pack(kind, set_id, generation), _GENERATION_KEY.pack(kind, set_id, generation + 1))
        for kind in (b"e", b"b", b"s")
    ]


def numbers_in_key(key: bytes) -> tuple[int, ...]:
    """The numbers of a key, whichever of the kinds it is."""
    layout = {_SET_KEY.size: _SET_KEY, _GENERATION_KEY.size: _GENERATION_KEY, _NUMBER_KEY.size: _NUMBER_KEY}.get(
        len(key)
    )
    if layout is None:
        raise _damaged(key)
    return layout.unpack(key)[1:]


def set_of_key(key: bytes) -> int | None:
    """The replica set that a row belongs to; None: to the table itself."""
    if len(key) < _SET_KEY.size or key[0] not in _KINDS_OF_SETS:
        return None
    return int(_SET_KEY.unpack_from(key)[1])


def generation_of_key(key: bytes) -> int | None:
    """The generation that a row of a set belongs to; None: to the set itself."""
    if key[:1] in (b"m", b"q") or len(key) < _GENERATION_KEY.size:
        return None
    return int(_GENERATION_KEY.unpack_from(key)[2])


def owners(table: Table, kind: bytes, set_id: int) -> Iterator[int]:
    """The generations of a set that have rows of this kind. Only keys are looked at, one of each generation."""
    start = _SET_KEY.pack(kind, set_id)
    stop = start + bytes([0xFF] * (OWNER_BYTES - _SET_KEY.size))
    while (key := next((key for key, _ in table.scan(start, stop) if len(key) >= OWNER_BYTES), None)) is not None:
        generation = int(_GENERATION_KEY.unpack_from(key)[2])
        yield generation
        start = _GENERATION_KEY.pack(kind, set_id, generation + 1)


def encode_journal(row: JournalRow) -> bytes:
    return _JOURNAL.pack(_VERSION, *row)


def decode_journal(data: bytes) -> JournalRow:
    return JournalRow._make(_unpack(_JOURNAL, JOURNAL_KEY, data))


def encode_set(state: SetState, saved_index: int) -> bytes:
    return _SET.pack(
        _VERSION,
        state.generation,
        state.term,
        state.vote,
        state.compacted_index,
        state.compacted_term,
        saved_index,
        state.last_index,
        state.last_term,
        state.replica_id,
    )


def decode_set(key: bytes, data: bytes) -> SetState:
    """The row of a set, or of a generation that is being built."""
    layout = _SET_BEFORE if len(data) == _SET_BEFORE.size else _SET
    return SetState(numbers_in_key(key)[0], *_unpack(layout, key, data))


def encode_damaged(generation: int, replica_id: int) -> bytes:
    return _DAMAGED.pack(_VERSION, generation, replica_id)


def decode_damaged(key: bytes, data: bytes) -> tuple[int, int, int]:
    """Set, generation and replica id."""
    generation, replica_id = _unpack(_DAMAGED, key, data)
    return numbers_in_key(key)[0], generation, replica_id


def encode_file(info: FileInfo) -> bytes:
    return _FILE.pack(_VERSION, info.kind, info.state, info.size, info.live)


def decode_file(key: bytes, data: bytes) -> FileInfo:
    kind, state, size, live = _unpack(_FILE, key, data)
    try:
        return FileInfo(numbers_in_key(key)[0], FileKind(kind), FileState(state), size, live)
    except ValueError:
        raise _damaged(key) from None


def encode_bytes(live: int) -> bytes:
    return _BYTES.pack(_VERSION, live)


def decode_bytes(key: bytes, data: bytes) -> int:
    return int(_unpack(_BYTES, key, data)[0])


def _unpack(layout: Struct, key: bytes, data: bytes) -> tuple[int, ...]:
    try:
        version, *numbers = layout.unpack(data)
    except StructError:
        raise _damaged(key) from None
    if version != _VERSION:
        raise StorageDamaged(
            f"the table's row {key.hex()} has version {version}, which this release does not know; "
            "start the release that wrote it",
            newer=True,
        )
    return tuple(numbers)


def _damaged(key: bytes) -> StorageDamaged:
    set_id = set_of_key(key)
    whose = {"set_id": set_id} if set_id else {}
    return StorageDamaged(f"the table's row {key.hex()} does not decode", **whose)
