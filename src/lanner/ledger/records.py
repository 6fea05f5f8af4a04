"""The bytes of the journal: file headers, records, entries; and nothing of who may write them when.

A *file* opens with a header that names its kind, id and a random salt. A *record* is one commit:

    header   magic, version, kind, position, synced, payload length, counts, crc of the header, crc of header and head
    head     set changes, votes, entry headers (fixed sizes, so the counts give the length)
    payloads one behind the other, in the order of the entry headers
    end      one byte that is not zero

Both crcs are seeded with the file's salt; each entry header holds the crc of its own payload. So one entry can be
verified alone, a record can be verified without being held in memory, and bytes that a client chose can never pass for
a record: the client does not know the salt. The header's own crc says whether its lengths can be trusted when something
else of the record does not match; the byte at the end makes sure that no record ends with zeros, which would look like
a sector that was never written (see `tails`).

That is version 2. Version 1, which the first release wrote, has zeros for the header's crc and no end. It is read for
as long as there are files with it, and never written.

A *position* is (file id << 32) | offset: ordered over all files, because ids only grow. `synced` is the position that
was durable when the record was written. All numbers are little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import accumulate, groupby
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from lanner.errors import StorageDamaged
from lanner.ledger.chunk import Run
from lanner.ledger.ports import Files

FILE_VERSION: Final = 1
RECORD_VERSION: Final = 2
FILE_MAGIC: Final = b"LANNERJ\x00"
RECORD_MAGIC: Final = b"\xb5LRC"
HEADER_BYTES: Final = 64
OFFSET_BITS: Final = 32
OFFSET_MAX: Final = (1 << OFFSET_BITS) - 1

_FILE: Final = Struct("<8sHHIQQI28x")  # magic, version, kind, salt, file id, size, crc
_FILE_CHECKED: Final = 32
_RECORD: Final = Struct("<4sBBHQQIIII")  # magic, version, kind, 0, position, synced, payload, changes, votes, entries
_CRCS: Final = Struct("<II")  # of the header as far as here; of all of the header before this, and the head
_CRC: Final = Struct("<I")
RECORD_CHECKED: Final = _RECORD.size + _CRC.size
RECORD_HEADER_BYTES: Final = _RECORD.size + _CRCS.size
RECORD_END: Final = b"\xb5"
CHANGE: Final = Struct("<QIB3x")  # set, generation, change
VOTE: Final = Struct("<QQQI4x")  # set, term, vote, generation
ENTRY: Final = Struct("<QQQIIIB3x")  # set, index, term, generation, length, crc, kind
ENTRY_HEADER_BYTES: Final = ENTRY.size
READ_BYTES_MAX: Final = 1 << 20
_ZEROS: Final = bytes(READ_BYTES_MAX)

assert _FILE.size == HEADER_BYTES
assert RECORD_HEADER_BYTES == 48
assert all(RECORD_END)


class FileKind(IntEnum):
    """What a file holds: the journal itself, or entries that outlived their segment. Only the former is replayed."""

    JOURNAL = 1
    KEPT = 2


class Change(IntEnum):
    """What a record says of a replica set as a whole."""

    ADDED = 1  # a vote in term 0 says as which replica; none: the first
    REMOVED = 2
    BUILDING = 3  # a generation begins; a vote of it says which entry its snapshot ends with: (term, index)
    FLIPPED = 4  # from this record on the generation is the set's


class Location(NamedTuple):
    """Where one entry's payload lies."""

    file: int
    offset: int
    length: int
    crc: int


class FileHeader(NamedTuple):
    kind: FileKind
    salt: int
    file_id: int
    size: int


EntryHeader = tuple[int, int, int, int, int, int, int]  # as ENTRY has them


class RecordHead(NamedTuple):
    """A record without its payloads."""

    position: int
    synced: int
    changes: list[tuple[int, int, int]]
    votes: list[tuple[int, int, int, int]]
    entries: list[EntryHeader]
    payload_offset: int
    end_offset: int
    version: int = RECORD_VERSION

    def runs(self) -> Iterator[tuple[int, int, Run]]:
        """The entries by set and generation, with neighbouring indexes in each run."""
        file_id = file_of(self.position)
        offset = self.payload_offset
        for (set_id, generation), group in groupby(self.entries, key=itemgetter(0, 3)):
            entries = list(group)
            if entries[-1][1] - entries[0][1] == len(entries) - 1:
                parts = [entries]
            else:  # the set came more than once
                parts = [[entry] for entry in entries]
            for part in parts:
                _, indexes, terms, _, lengths, crcs, kinds = zip(*part, strict=True)
                *offsets, offset = accumulate(lengths, initial=offset)
                yield set_id, generation, Run(indexes[0], file_id, offsets, lengths, crcs, terms, kinds)


class RecordHeader(NamedTuple):
    """What a record says first. A header of version 1 was not verified: only its head can do that."""

    version: int
    position: int
    synced: int
    payload_bytes: int
    changes: int
    votes: int
    entries: int
    crc: int  # of header and head

    @property
    def payload_offset(self) -> int:
        return offset_of(self.position) + head_bytes(self.changes, self.votes, self.entries)

    @property
    def end_offset(self) -> int:
        return self.payload_offset + self.payload_bytes + (len(RECORD_END) if self.version > 1 else 0)


def position_at(file_id: int, offset: int) -> int:
    return (file_id << OFFSET_BITS) | offset


def file_of(position: int) -> int:
    return position >> OFFSET_BITS


def offset_of(position: int) -> int:
    return position & OFFSET_MAX


def show_position(position: int) -> str:
    return f"file {file_of(position)}, offset {offset_of(position)}"


def encode_file_header(kind: FileKind, salt: int, file_id: int, size: int) -> bytes:
    unchecked = _FILE.pack(FILE_MAGIC, FILE_VERSION, kind, salt, file_id, size, 0)
    return _FILE.pack(FILE_MAGIC, FILE_VERSION, kind, salt, file_id, size, crc32c(unchecked[:_FILE_CHECKED]))


def decode_file_header(data: bytes, file_id: int) -> FileHeader | None:
    """The header, or None when these bytes are not the header of this file in a version that is known."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, kind, salt, named_id, size, crc = _FILE.unpack_from(data)
    if magic != FILE_MAGIC or named_id != file_id or crc != crc32c(data[:_FILE_CHECKED]):
        return None
    if version != FILE_VERSION or kind not in (FileKind.JOURNAL, FileKind.KEPT):
        raise StorageDamaged(
            f"file {file_id} has version {version} and kind {kind}, which this release does not know; "
            "start the release that wrote it",
            file=file_id,
            newer=True,
        )
    return FileHeader(FileKind(kind), salt, named_id, size)


def encode_head(
    kind: FileKind,
    salt: int,
    position: int,
    synced: int,
    payload_bytes: int,
    changes: Sequence[bytes],
    votes: Sequence[bytes],
    entries: Sequence[bytes],
) -> bytes:
    """Header and head of a record; its payloads follow them on disk, and then `RECORD_END`."""
    fields = _RECORD.pack(
        RECORD_MAGIC,
        RECORD_VERSION,
        kind,
        0,
        position,
        synced,
        payload_bytes,
        len(changes),
        len(votes),
        len(entries),
    )
    head = b"".join((*changes, *votes, *entries))
    checked = crc32c(fields, salt)
    crc = crc32c(head, crc32c(_CRC.pack(checked), checked))
    return fields + _CRCS.pack(checked, crc) + head


def head_bytes(changes: int, votes: int, entries: int) -> int:
    """The length of header and head for these counts."""
    return RECORD_HEADER_BYTES + changes * CHANGE.size + votes * VOTE.size + entries * ENTRY.size


def record_bytes(head_size: int, payload_bytes: int) -> int:
    """The length of a record as it is written."""
    return head_size + payload_bytes + len(RECORD_END)


class RecordReader:
    """Reads the records of one file, a window at a time."""

    def __init__(self, files: Files, file_id: int, size: int, salt: int, window_bytes: int = READ_BYTES_MAX) -> None:
        self.file_id = file_id
        self.size = size
        self._files = files
        self._salt = salt
        self._window_bytes = window_bytes
        self._start = 0
        self._window = b""

    def header_at(self, offset: int) -> RecordHeader | None:
        """What the header of the record says that stands here; None when that cannot be trusted.

        Of version 1 it can be trusted only once the head matches: here it is merely not impossible.
        """
        header = self.bytes(offset, RECORD_HEADER_BYTES)
        if len(header) < RECORD_HEADER_BYTES or header[:4] != RECORD_MAGIC:
            return None
        _, version, _, _, position, synced, payload_bytes, changes, votes, entries = _RECORD.unpack_from(header)
        checked, crc = _CRCS.unpack_from(header, _RECORD.size)
        if position != position_at(self.file_id, offset):
            return None
        if version != 1 and checked != crc32c(header[: _RECORD.size], self._salt):
            return None
        if version > RECORD_VERSION:
            raise StorageDamaged(
                f"the record at {show_position(position)} has version {version}, which this release does not know; "
                "start the release that wrote it",
                file=self.file_id,
                offset=offset,
                newer=True,
            )
        found = RecordHeader(version, position, synced, payload_bytes, changes, votes, entries, crc)
        return None if version == 1 and found.end_offset > self.size else found

    def head_at(self, offset: int) -> RecordHead | None:
        """The record's head if a whole and valid one stands here; its payloads are not looked at."""
        header = self.header_at(offset)
        if header is None or header.end_offset > self.size:
            return None
        checked = self.bytes(offset, RECORD_CHECKED)
        head = self.bytes(offset + RECORD_HEADER_BYTES, header.payload_offset - offset - RECORD_HEADER_BYTES)
        if header.crc != crc32c(head, crc32c(checked, self._salt)):
            return None
        votes_at = header.changes * CHANGE.size
        entries_at = votes_at + header.votes * VOTE.size
        return RecordHead(
            header.position,
            header.synced,
            list(CHANGE.iter_unpack(head[:votes_at])),
            list(VOTE.iter_unpack(head[votes_at:entries_at])),
            list(ENTRY.iter_unpack(head[entries_at:])),
            header.payload_offset,
            header.end_offset,
            header.version,
        )

    def payloads_match(self, record: RecordHead) -> bool:
        """Whether every payload of the record matches its crc, and the record has its end."""
        return next(self.mismatches(record), None) is None

    def mismatches(self, record: RecordHead) -> Iterator[tuple[int, int]]:
        """What behind the record's head does not match: where each such part begins and ends."""
        offset = record.payload_offset
        for _, _, _, _, length, crc, _ in record.entries:
            if crc32c(self.bytes(offset, length)) != crc:
                yield offset, offset + length
            offset += length
        end = b"" if record.version == 1 else RECORD_END
        if offset + len(end) != record.end_offset or self.bytes(offset, len(end)) != end:
            yield offset, record.end_offset

    def heads_from(self, offset: int) -> Iterator[RecordHead]:
        """Every valid record head at or behind the offset, wherever it stands; there is none behind the last byte."""
        end = self.data_end(offset)
        while offset < end:
            block = self._files.read(self.file_id, offset, min(self._window_bytes, end - offset))
            found = block.find(RECORD_MAGIC)
            while found >= 0:
                record = self.head_at(offset + found)
                if record is not None:
                    yield record
                found = block.find(RECORD_MAGIC, found + 1)
            # The magic may straddle two blocks: its first bytes are looked at again.
            offset += max(1, len(block) - len(RECORD_MAGIC) + 1)

    def data_end(self, offset: int) -> int:
        """The end of the last byte at or behind the offset that is not zero; the offset itself when all are."""
        end = offset
        while (found := self._files.next_data(self.file_id, offset)) is not None and found < self.size:
            offset = max(offset, found)
            block = self._files.read(self.file_id, offset, self._window_bytes)
            if not block:
                break
            if block != _ZEROS[: len(block)]:
                end = offset + len(block.rstrip(b"\x00"))
            offset += len(block)
        return end

    def bytes(self, offset: int, length: int) -> bytes:
        """These bytes of the file; fewer at its end."""
        start = offset - self._start
        if start < 0 or start + length > len(self._window):
            self._start = offset
            self._window = self._files.read(self.file_id, offset, max(length, self._window_bytes))
            start = 0
        return self._window[start : start + length]


def read_entry(files: Files, location: Location) -> bytes:
    """One entry's payload, verified. FileMissing when its file went meanwhile: look it up again."""
    payload = files.read(location.file, location.offset, location.length)
    check_payload(payload, location)
    return payload


def read_entries(files: Files, locations: Iterable[Location]) -> list[bytes]:
    """Payloads in the order given; neighbours on disk are fetched by one read."""
    wanted = list(locations)
    payloads: list[bytes] = []
    first = 0
    while first < len(wanted):
        file, start, length, _ = wanted[first]
        stop = first + 1
        end = start + length
        while stop < len(wanted) and wanted[stop].file == file and wanted[stop].offset == end:
            if end + wanted[stop].length - start > READ_BYTES_MAX:
                break
            end += wanted[stop].length
            stop += 1
        block = files.read(file, start, end - start)
        for location in wanted[first:stop]:
            payload = (
                block
                if stop == first + 1
                else block[location.offset - start : location.offset - start + location.length]
            )
            check_payload(payload, location)
            payloads.append(payload)
        first = stop
    return payloads


def check_payload(payload: bytes, location: Location) -> None:
    if len(payload) != location.length or crc32c(payload) != location.crc:
        raise StorageDamaged(
            f"the entry in file {location.file} at offset {location.offset} ({location.length} bytes) does not match "
            "its checksum; where other brokers have copies this one is replaced by itself, else readers are told",
            file=location.file,
            offset=location.offset,
        )
