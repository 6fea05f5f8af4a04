"""The first 64 bytes of a batch: all that a broker needs to know of it, and the checksum over the rest.

Reading a header copies nothing but the dedup id and computes no checksum, so that a broker can look at every batch
that passes. It refuses whatever no encoder would write; the columns behind it are not its business.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, NoReturn, TypeAlias

from crc32c import crc32c

from lanner import limits
from lanner.errors import MalformedBatch
from lanner.model import LANES

# Columns are arrays in the machine's own byte order; every platform that Lanner runs on is little-endian.
assert sys.byteorder == "little"

Buffer: TypeAlias = bytes | bytearray | memoryview

VERSION: Final = 1
HEADER_BYTES: Final = 64

FLAG_EXTRACT: Final = 1
FLAG_KEYS: Final = 2
FLAG_NULL_KEYS: Final = 4  # some keys are null: a validity bitmap stands before the keys
FLAG_HEADERS: Final = 8
FLAG_TIMESTAMPS: Final = 16
_FLAGS_KNOWN: Final = 31

MAGIC: Final = b"LNB"
ENCODING_COLUMNS: Final = 0
# magic, version, crc | length, count, flags, priority, encoding, codec, dedup length, reserved,
# producer id, sequence, deliver_at, expires_at, producer epoch, raw length
PREFIX: Final = Struct("<3sBI")
CHECKED: Final = Struct("<IIHBBBBHqqqqII")
_HEADER: Final = Struct("<3sBIIIHBBBBHqqqqII")
assert _HEADER.size == HEADER_BYTES == PREFIX.size + CHECKED.size


class Codec(IntEnum):
    """How the body is compressed."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


CODECS: Final = tuple(Codec)


class Header(NamedTuple):
    """What stands in front of a batch. A tuple, because brokers make one for every publish."""

    version: int
    flags: int
    crc: int
    length: int  # of the whole batch, header included
    count: int  # type: ignore[assignment]  # of messages; nobody counts the fields of a header
    priority: int
    encoding: int
    codec: Codec
    producer_id: int  # 0: no producer, no idempotence
    producer_epoch: int
    sequence: int  # -1: none
    deliver_at_ms: int
    expires_at_ms: int
    dedup_id: bytes
    raw_length: int  # of the body, uncompressed

    @property
    def is_extract(self) -> bool:
        return bool(self.flags & FLAG_EXTRACT)


def length_max(count: int, flags: int) -> int:
    """An extract of a full batch may be larger by its positions."""
    return limits.BATCH_BYTES_MAX + (padded(4 * count) if flags & FLAG_EXTRACT else 0)


def padded(length: int) -> int:
    return (length + 7) & ~7


def front_length(count: int, flags: int, dedup_length: int) -> int:
    """Header and uncompressed columns: where the body begins."""
    per_message = padded(4 * count)
    length = HEADER_BYTES + padded(dedup_length) + per_message
    if flags & FLAG_EXTRACT:
        length += per_message
    if flags & FLAG_KEYS:
        length += 8 * count
    return length


def read_header(data: Buffer, offset: int = 0) -> Header:
    """The header of the batch that begins at `offset`: every field within its bounds, the batch within the data.

    The checksum is not computed: this is the broker's hot path. Use `verify` on what comes from outside.
    """
    available = len(data) - offset
    if offset < 0 or available < HEADER_BYTES:
        malformed("header", f"{max(available, 0)} bytes are left and a header has {HEADER_BYTES}")
    fields = _HEADER.unpack_from(data, offset)
    _check_fields(*fields)
    _, version, crc, length, count, flags, priority, encoding, codec, dedup_length, _ = fields[:11]
    producer_id, sequence, deliver_at_ms, expires_at_ms, producer_epoch, raw_length = fields[11:]
    front = front_length(count, flags, dedup_length)
    if not front < length <= available:
        malformed("length", f"{length} does not lie within {front + 1} and the {available} bytes at hand")
    if front + raw_length > length_max(count, flags) or length > front + raw_length:
        malformed("raw_length", f"{raw_length} is not possible for a batch of {length} bytes")
    if codec == 0 and length != front + raw_length:
        malformed("raw_length", f"{raw_length} is not what lies uncompressed in a batch of {length} bytes")
    dedup_start = offset + HEADER_BYTES
    return Header(
        version,
        flags,
        crc,
        length,
        count,
        priority,
        encoding,
        CODECS[codec],
        producer_id,
        producer_epoch,
        sequence,
        deliver_at_ms,
        expires_at_ms,
        bytes(data[dedup_start : dedup_start + dedup_length]) if dedup_length else b"",
        raw_length,
    )


def _check_fields(
    magic: bytes,
    version: int,
    _crc: int,
    _length: int,
    count: int,
    flags: int,
    priority: int,
    encoding: int,
    codec: int,
    dedup_length: int,
    reserved: int,
    producer_id: int,
    sequence: int,
    deliver_at_ms: int,
    expires_at_ms: int,
    _producer_epoch: int,
    _raw_length: int,
) -> None:
    """Each field by itself, in the order in which they lie; what depends on the size of the batch comes after."""
    if magic != MAGIC:
        malformed("magic", "the bytes are not a batch")
    if version != VERSION:
        malformed("version", f"{version} is not known, only {VERSION}")
    if not 1 <= count <= limits.BATCH_MESSAGES_MAX:
        malformed("count", f"{count} does not lie within 1 and {limits.BATCH_MESSAGES_MAX}")
    if flags > _FLAGS_KNOWN or (flags & FLAG_NULL_KEYS and not flags & FLAG_KEYS):
        malformed("flags", f"{flags:#x} is not a set of flags that exists")
    if priority >= LANES:
        malformed("priority", f"{priority} does not lie within 0 and {LANES - 1}")
    if encoding != ENCODING_COLUMNS:
        malformed("encoding", f"{encoding} is not known")
    if codec >= len(CODECS):
        malformed("codec", f"{codec} is not known")
    if dedup_length > limits.DEDUP_ID_BYTES_MAX:
        malformed("dedup_id", f"{dedup_length} bytes are more than {limits.DEDUP_ID_BYTES_MAX}")
    if reserved:
        malformed("reserved", "these bytes must be zero")
    if not 0 <= producer_id <= limits.OFFSET_MAX:
        malformed("producer_id", f"{producer_id} is out of range")
    if not -1 <= sequence <= limits.OFFSET_MAX:
        malformed("sequence", f"{sequence} is out of range")
    if not 0 <= deliver_at_ms <= limits.TIME_MS_MAX:
        malformed("deliver_at_ms", f"{deliver_at_ms} is out of range")
    if not 0 <= expires_at_ms <= limits.TIME_MS_MAX:
        malformed("expires_at_ms", f"{expires_at_ms} is out of range")


def verify(data: Buffer) -> Header:
    """The header of a batch that is exactly these bytes and matches its checksum."""
    header = read_header(data)
    if header.length != len(data):
        malformed("length", f"{header.length}, but there are {len(data)} bytes")
    if crc32c(memoryview(data)[PREFIX.size :]) != header.crc:
        malformed("crc", "the bytes do not match their checksum")
    return header


def malformed(field: str, why: str) -> NoReturn:
    raise MalformedBatch(f"the batch does not decode: {field}: {why}", field=field)
