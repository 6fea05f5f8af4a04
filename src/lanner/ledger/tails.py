"""Tails: whether what lies behind the last valid record was left there by a crash, or was durable once.

A disk writes sectors of 512 bytes, aligned in the file, each whole or not at all. A segment is zeros where nothing was
written, and nothing is ever written behind a record that is not durable yet. So of a commit that a crash interrupted
some sectors hold what was written and the others, from where the record begins, hold nothing but zeros.

A record consists of parts that are verified each by itself: header, head, every payload, the end. Whichever part does
not match must, if it was a crash that broke it, reach into a sector of zeros. Then the tail is *torn*. A part that does
not match though all its sectors were written has changed since: that is *damage*, and what was damaged may have been
acknowledged. Zeros in a part that does match prove nothing, as a payload may hold any number of them.

Where the header itself does not match, nothing says where the other parts are, and it alone is judged. A header of
version 1 has no crc of its own, and is judged together with the head.

What this cannot tell: a payload that holds a whole sector of zeros by its own and is damaged elsewhere looks torn. Of
version 1 also: a record that ends with zeros in a sector of their own, and damage in the counts of its header.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from lanner.ledger.records import RECORD_CHECKED, RecordReader

SECTOR_BYTES: Final = 512
_ZEROS: Final = bytes(SECTOR_BYTES)
_WINDOW_BYTES: Final = 1 << 16


class Tail(Enum):
    EMPTY = "empty"  # nothing but zeros
    TORN = "torn"  # a commit that a crash interrupted: nobody was told that it succeeded
    DAMAGED = "damaged"  # it was written whole, and does not match its checksums


def judge(reader: RecordReader, offset: int) -> Tail:
    """What lies at and behind the offset, where no record stands that continues the journal."""
    if reader.data_end(offset) == offset:
        return Tail.EMPTY
    broken = _broken_parts(reader, offset)
    if broken and all(_reaches_zeros(reader, offset, start, stop) for start, stop in broken):
        return Tail.TORN
    return Tail.DAMAGED


def _broken_parts(reader: RecordReader, offset: int) -> list[tuple[int, int]]:
    """Where the parts of the record begin and end that do not match; none: it is whole, and does not belong here."""
    header = reader.header_at(offset)
    if header is None:
        return [(offset, offset + RECORD_CHECKED)]
    record = reader.head_at(offset)
    if record is not None:
        return list(reader.mismatches(record))
    if header.end_offset > reader.size:
        return [(reader.size, header.end_offset)]
    return [(offset + (0 if header.version == 1 else RECORD_CHECKED), header.payload_offset)]


def _reaches_zeros(reader: RecordReader, record: int, start: int, stop: int) -> bool:
    """Whether the part from start to stop reaches into a sector that holds, from the record on, zeros only."""
    sector = start - start % SECTOR_BYTES
    while sector < stop:
        window = reader.bytes(sector, _WINDOW_BYTES)
        for place in range(0, min(_WINDOW_BYTES, stop - sector), SECTOR_BYTES):
            piece = window[max(place, record - sector) : place + SECTOR_BYTES]
            if piece == _ZEROS[: len(piece)]:
                return True
        sector += _WINDOW_BYTES
    return False
