"""Replay: reading the journal back after a stop, and judging what its end means.

One commit is in flight at a time, so every record names as `synced` exactly the end of the record before it. From
that follows how each kind of end is told from the others:

- Nothing valid at x, and the next segment's first record says `synced` = x: the segment was left at x. Replay goes on.
- Nothing valid at x, and a valid record behind it says `synced` > x: x was durable once and no longer is. That is
  *damage*, and replay refuses to go on, because what is missing may have been acknowledged.
- Nothing valid at x, and no valid record behind x in this segment or a later one: the record at x is the last one. If
  some of its sectors were never written, it was being written when the broker stopped, and nobody was told that it
  succeeded. It is a *torn tail* and may be cut. If it was written whole, it is *damage* as well (see `tails`).

A cut is made by writing zeros over everything behind it and syncing them, before anything new is written there: a
stale record can never come back to life behind a shorter new one. And the last record is written again and synced,
because all that replay has seen counts as durable from then on; for the same reason an empty segment in which the
journal is to go on is created again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lanner.errors import StorageDamaged, StorageFull
from lanner.ledger import tails as ledger_tails
from lanner.ledger.ports import Files
from lanner.ledger.records import (
    HEADER_BYTES,
    FileHeader,
    FileKind,
    RecordHead,
    RecordReader,
    decode_file_header,
    encode_file_header,
    file_of,
    offset_of,
    position_at,
    show_position,
)

_ZEROS: Final = bytes(1 << 20)


@dataclass(slots=True)
class Replayed:
    """What replay found: where the journal ends, and what lies behind the end."""

    position: int
    records: int = 0
    bytes: int = 0
    torn_bytes: int = 0
    headers: dict[int, FileHeader] = field(default_factory=dict)
    spare: list[int] = field(default_factory=list)  # segments behind the end: empty, or cut until they were
    last: RecordHead | None = None  # the last record
    unfinished: list[int] = field(default_factory=list)  # files whose creation was interrupted: nothing is in them


def read_header(files: Files, file_id: int) -> FileHeader | None:
    return decode_file_header(files.read(file_id, 0, HEADER_BYTES), file_id)


def replay(
    files: Files,
    segments: Sequence[tuple[int, int]],
    start: int,
    apply: Callable[[RecordHead], None],
    *,
    cut: bool = True,
) -> Replayed:
    """Hand every record from the position on to `apply`, in order; cut a torn tail and make the rest durable, unless
    told not to.

    StorageDamaged if something was durable and no longer is; nothing is cut then.
    """
    result = Replayed(start)
    readers = _open_segments(files, segments, result)
    if file_of(start) not in readers and offset_of(start) != HEADER_BYTES:
        raise StorageDamaged(
            f"replay must start at {show_position(start)}, but that file is missing",
            file=file_of(start),
        )
    behind: list[RecordReader] = []
    for file_id, reader in sorted(readers.items()):
        if file_id < file_of(start):
            continue
        if file_id == file_of(start):
            _replay_segment(reader, offset_of(start), result, apply)
            continue
        if not _follows(reader, result.position):
            behind.append(reader)
            continue
        behind.clear()  # empty segments that were passed over
        _replay_segment(reader, HEADER_BYTES, result, apply)
    _check_headers_of_unfinished(files, dict(segments), result)
    _cut_tail(files, readers.get(file_of(result.position)), behind, result, cut=cut)
    if cut and result.last is not None:
        _write_again(files, result.last)
    return result


def _open_segments(files: Files, segments: Sequence[tuple[int, int]], result: Replayed) -> dict[int, RecordReader]:
    readers = {}
    for file_id, size in segments:
        header = read_header(files, file_id)
        if header is None:
            result.unfinished.append(file_id)
        elif header.kind is FileKind.JOURNAL:
            result.headers[file_id] = header
            readers[file_id] = RecordReader(files, file_id, size, header.salt)
    return readers


def _follows(reader: RecordReader, end: int) -> bool:
    """Whether the segment continues the journal that ends here; damage if it knows of more than was found."""
    record = reader.head_at(HEADER_BYTES)
    whole = record is not None and reader.payloads_match(record)
    if record is not None and whole and record.synced == end:
        return True
    _refuse_proof(reader, HEADER_BYTES, end, None if whole else position_at(reader.file_id, HEADER_BYTES))
    return False


def _replay_segment(reader: RecordReader, offset: int, result: Replayed, apply: Callable[[RecordHead], None]) -> None:
    while True:
        record = reader.head_at(offset)
        if record is None or not reader.payloads_match(record):
            break
        apply(record)
        result.records += 1
        result.last = record
        result.bytes += record.end_offset - offset
        offset = record.end_offset
    result.position = position_at(reader.file_id, offset)
    _refuse_proof(reader, offset, result.position)


def _refuse_proof(reader: RecordReader, offset: int, end: int, broken: int | None = None) -> None:
    """Damage, if a record behind the end knows that more than the end was durable.

    It is reported where the journal ends, or, when the record proves that too, where another broken record stands.
    """
    for record in reader.heads_from(offset):
        if record.synced > end:
            raise _damaged(end if broken is None or record.synced <= broken else broken, record)


def _check_headers_of_unfinished(files: Files, sizes: dict[int, int], result: Replayed) -> None:
    """A header is durable before anything is written behind it: without one, the file must be empty."""
    for file_id in result.unfinished:
        reader = RecordReader(files, file_id, sizes[file_id], 0)
        if reader.data_end(HEADER_BYTES) > HEADER_BYTES:
            raise StorageDamaged(
                f"the header of file {file_id} does not match its checksum, and the file is not empty",
                file=file_id,
                offset=0,
            )


def _cut_tail(
    files: Files, last: RecordReader | None, behind: Sequence[RecordReader], result: Replayed, *, cut: bool
) -> None:
    """Zero what lies behind the end, in its segment and in those after it, if a crash left it there."""
    tails = [(reader, HEADER_BYTES) for reader in behind]
    if last is not None:
        tails.insert(0, (last, offset_of(result.position)))
    for reader, offset in tails:
        if ledger_tails.judge(reader, offset) is ledger_tails.Tail.DAMAGED:
            raise _damaged_tail(position_at(reader.file_id, offset))
    for reader, offset in tails:
        end = reader.data_end(offset)
        result.torn_bytes += end - offset
        if cut and end > offset:
            _write_zeros(files, reader.file_id, offset, end)
    result.spare = [reader.file_id for reader in behind]


def _write_again(files: Files, record: RecordHead) -> None:
    """Make the last record durable: what was read may only be in the system's cache.

    The process may have ended before its sync, or because that failed; then the pages count as clean, and a sync alone
    would do nothing. Every record before it was durable when it was begun.
    """
    file_id, offset = file_of(record.position), offset_of(record.position)
    files.write(file_id, offset, [files.read(file_id, offset, record.end_offset - offset)])
    files.sync(file_id)


def create_again(files: Files, header: FileHeader) -> bool:
    """Make an empty segment durable, its name too; False: there is no room for it any more.

    The process may have ended before the syncs of its creation, or because one of them failed. Where a record was
    replayed, the creation had ended well.
    """
    file_id, size = header.file_id, header.size
    try:
        files.create(file_id, size, encode_file_header(FileKind.JOURNAL, header.salt, file_id, size))
    except StorageFull:
        return False
    return True


def _write_zeros(files: Files, file_id: int, start: int, end: int) -> None:
    while start < end:
        length = min(end - start, len(_ZEROS))
        files.write(file_id, start, [_ZEROS[:length]])
        start += length
    files.sync(file_id)


def _damaged(end: int, proof: RecordHead) -> StorageDamaged:
    return StorageDamaged(
        f"the journal is damaged at {show_position(end)}: no valid record stands there, but the record at "
        f"{show_position(proof.position)} was written when the journal was durable up to "
        f"{show_position(proof.synced)}",
        file=file_of(end),
        offset=offset_of(end),
    )


def _damaged_tail(position: int) -> StorageDamaged:
    return StorageDamaged(
        f"the journal is damaged at {show_position(position)}: its last record was written whole, and does not match "
        "its checksum",
        file=file_of(position),
        offset=offset_of(position),
    )
