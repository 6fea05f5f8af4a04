"""The batch format: how messages lie in bytes from a producer to a consumer.

A batch is made once, by the producer. Brokers store and forward its bytes as they are: what a producer checksummed is
what a consumer verifies. So nothing that a broker decides (offsets, append time) is in here; it travels beside it.

Layout, little-endian, every buffer on an 8-byte boundary counted from the start of the batch, padding is zero:

    header        64 bytes, see _HEADER; the crc32c covers everything behind it
    dedup_id      as many bytes as the header says
    positions     u32[count]     extracts only: each message's place in its original batch, rising
    checksums     u32[count]     crc32c of value, key and headers of each message, as its producer computed it
    key_hashes    u64[count]     xxh64 of each key, 0 for a null key; only with keys
    body          the columns below, raw or compressed as one piece (then it is as long as the rest of the batch)
        values        i32[count+1] offsets, bytes
        keys          [validity bitmap, lowest bit first, a zero is a null key], offsets, bytes
        headers       offsets, bytes: per message a msgpack map of text to binary, or nothing
        timestamps    i64[count], the producers' own, in ms

A column that would be empty is absent, and a flag says so. Offsets, validity and bytes are laid out as Arrow has them,
so that a reader can wrap them without touching a message.

An *extract* is some of the messages of a batch under a new batch checksum. It is made by a broker, so a consumer
trusts the per-message checksums in it, which are the producer's: `Batch.verify_messages`.

Rules. A length or count is compared with its bound before anything is allocated or sliced from it; a batch may not
be larger than `limits.BATCH_BYTES_MAX` *uncompressed* either, so a small body cannot unfold into a big one. Every
refusal is a `MalformedBatch` that names the field. The views handed out share memory with the bytes that were
decoded: whoever decodes a buffer must not write to it afterwards.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from operator import index as whole_number
from struct import Struct
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import lz4.block
import msgspec
import zstandard
from crc32c import crc32c
from xxhash import xxh64_intdigest

from lanner import limits
from lanner.errors import MalformedBatch, MessageTooLarge, ValidationError
from lanner.model import LANES, PRIORITY_NORMAL, parse_priority

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

_MAGIC: Final = b"LNB"
_ENCODING_COLUMNS: Final = 0
# magic, version, crc | length, count, flags, priority, encoding, codec, dedup length, reserved,
# producer id, sequence, deliver_at, expires_at, producer epoch, raw length
_PREFIX: Final = Struct("<3sBI")
_CHECKED: Final = Struct("<IIHBBBBHqqqqII")
_HEADER: Final = Struct("<3sBIIIHBBBBHqqqqII")
assert _HEADER.size == HEADER_BYTES == _PREFIX.size + _CHECKED.size

_PADDING: Final = tuple(bytes(size) for size in range(8))
_EPOCH_MAX: Final = 2**32 - 1
_ZSTD_WINDOW_BYTES_MAX: Final = 8 * limits.MIB
_encode_map: Final = msgspec.msgpack.Encoder().encode
_decode_map: Final = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class Codec(IntEnum):
    """How the body is compressed."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


_CODECS: Final = tuple(Codec)


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


# ------------------------------------------------------------------ encoding


def encode(
    values: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Mapping[str, bytes] | None] | None = None,
    timestamps: Sequence[int] | None = None,
    priority: int | str = PRIORITY_NORMAL,
    codec: Codec = Codec.NONE,
    producer_id: int = 0,
    producer_epoch: int = 0,
    sequence: int = -1,
    deliver_at_ms: int = 0,
    expires_at_ms: int = 0,
    dedup_id: bytes = b"",
) -> bytes:
    """One batch of these messages; the columns run in parallel. Raises ValidationError or MessageTooLarge."""
    count = len(values)
    _check_number("count", count, 1, limits.BATCH_MESSAGES_MAX)
    for name, column in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
        if column is not None and len(column) != count:
            _refuse(name, f"there are {len(column)} for {count} values")
    _check_number("producer_id", producer_id, 0, limits.OFFSET_MAX)
    _check_number("producer_epoch", producer_epoch, 0, _EPOCH_MAX)
    _check_number("sequence", sequence, -1, limits.OFFSET_MAX)
    _check_number("deliver_at_ms", deliver_at_ms, 0, limits.TIME_MS_MAX)
    _check_number("expires_at_ms", expires_at_ms, 0, limits.TIME_MS_MAX)
    if len(dedup_id) > limits.DEDUP_ID_BYTES_MAX:
        _refuse("dedup_id", f"it has {len(dedup_id)} bytes; at most {limits.DEDUP_ID_BYTES_MAX} are allowed")
    fields = _Fields(
        parse_priority(priority),
        Codec(codec),
        producer_id,
        producer_epoch,
        sequence,
        deliver_at_ms,
        expires_at_ms,
        bytes(dedup_id),
    )
    blobs = None if headers is None else [_encode_headers(one) for one in headers]
    return _assemble(fields, _Rows(values, keys, blobs, timestamps), None, None, None)


class _Fields(NamedTuple):
    """What a header takes over from the caller, or an extract from its batch."""

    priority: int
    codec: Codec
    producer_id: int
    producer_epoch: int
    sequence: int
    deliver_at_ms: int
    expires_at_ms: int
    dedup_id: bytes


class _Rows(NamedTuple):
    """The messages of a batch as parallel columns; an absent column is None."""

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None
    headers: Sequence[bytes] | None
    timestamps: Sequence[int] | None


def _assemble(
    fields: _Fields,
    rows: _Rows,
    positions: Sequence[int] | None,
    checksums: Sequence[int] | None,
    key_hashes: Sequence[int] | None,
) -> bytes:
    """Lay the columns out. Checksums and hashes that are given are carried over instead of computed."""
    flags = 0
    body = _byte_column("values", rows.values, limits.MESSAGE_BYTES_MAX, MessageTooLarge)
    keys: list[bytes] | None = None
    if rows.keys is not None and (nulls := rows.keys.count(None)) < len(rows.keys):
        flags |= FLAG_KEYS
        keys = [b"" if key is None else key for key in rows.keys]
        if nulls:
            flags |= FLAG_NULL_KEYS
            _append_padded(body, _validity(rows.keys))
        body += _byte_column("keys", keys, limits.KEY_BYTES_MAX, ValidationError)
        if key_hashes is None:
            key_hashes = [0 if key is None else xxh64_intdigest(key) for key in rows.keys]
    blobs = rows.headers if rows.headers is not None and any(rows.headers) else None
    if blobs is not None:
        flags |= FLAG_HEADERS
        body += _byte_column("headers", blobs, limits.HEADERS_BYTES_MAX, ValidationError)
    if rows.timestamps is not None:
        flags |= FLAG_TIMESTAMPS
        body.append(_timestamp_column(rows.timestamps))
    if checksums is None:
        checksums = _checksums(rows.values, keys, blobs)
    front: list[bytes] = []
    _append_padded(front, fields.dedup_id)
    if positions is not None:
        flags |= FLAG_EXTRACT
        _append_padded(front, array("I", positions).tobytes())
    _append_padded(front, array("I", checksums).tobytes())
    if keys is not None and key_hashes is not None:
        front.append(array("Q", key_hashes).tobytes())
    return _seal(fields, len(rows.values), flags, front, body)


def _seal(fields: _Fields, count: int, flags: int, front: list[bytes], body: list[bytes]) -> bytes:
    """Compress where it helps, then put the header with its checksum in front."""
    front_length = HEADER_BYTES + sum(map(len, front))
    raw_length = sum(map(len, body))
    bound = _length_max(count, flags)
    if front_length + raw_length > bound:
        raise MessageTooLarge(
            f"the batch has {front_length + raw_length} bytes uncompressed; at most {bound} are allowed: split it",
            field="values",
        )
    codec = fields.codec
    body_length = raw_length
    if codec is not Codec.NONE:
        compressed = _COMPRESS[codec](b"".join(body))
        if len(compressed) < raw_length:
            body, body_length = [compressed], len(compressed)
        else:
            codec = Codec.NONE
    checked = _CHECKED.pack(
        front_length + body_length,
        count,
        flags,
        fields.priority,
        _ENCODING_COLUMNS,
        codec,
        len(fields.dedup_id),
        0,
        fields.producer_id,
        fields.sequence,
        fields.deliver_at_ms,
        fields.expires_at_ms,
        fields.producer_epoch,
        raw_length,
    )
    crc = crc32c(checked)
    for part in front:
        crc = crc32c(part, crc)
    for part in body:
        crc = crc32c(part, crc)
    return b"".join((_PREFIX.pack(_MAGIC, VERSION, crc), checked, *front, *body))


def _byte_column(name: str, items: Sequence[bytes], item_max: int, too_large: type[ValidationError]) -> list[bytes]:
    """Offsets and bytes of one column, each followed by its padding."""
    try:
        lengths = list(map(len, items))
        data = b"".join(items)
    except TypeError:
        _refuse(name, "each must be bytes")
    if len(data) > item_max:  # else no single one can be too large
        longest = max(lengths)
        if longest > item_max:
            place = lengths.index(longest)
            raise too_large(f"{name}[{place}] has {longest} bytes; at most {item_max} are allowed", field=name)
        if len(data) > limits.BATCH_BYTES_MAX:
            raise MessageTooLarge(
                f"the {name} have {len(data)} bytes together; a batch may have {limits.BATCH_BYTES_MAX}: split it",
                field=name,
            )
    parts: list[bytes] = []
    _append_padded(parts, array("i", accumulate(lengths, initial=0)).tobytes())
    _append_padded(parts, data)
    return parts


def _append_padded(parts: list[bytes], data: bytes) -> None:
    parts.append(data)
    parts.append(_PADDING[-len(data) % 8])


def _validity(keys: Sequence[bytes | None]) -> bytes:
    """Arrow's bitmap: bit i, lowest first, says that key i is not null."""
    bits = "".join("0" if key is None else "1" for key in reversed(keys))
    return int(bits, 2).to_bytes((len(keys) + 7) // 8, "little")


def _timestamp_column(timestamps: Sequence[int]) -> bytes:
    try:
        column = array("q", timestamps)
    except (TypeError, OverflowError):
        _refuse("timestamps", "each must be a whole number of milliseconds")
    if min(column) < -limits.TIME_MS_MAX or max(column) > limits.TIME_MS_MAX:
        _refuse("timestamps", f"each must lie within ±{limits.TIME_MS_MAX}")
    return column.tobytes()


def _checksums(values: Sequence[bytes], keys: Sequence[bytes] | None, blobs: Sequence[bytes] | None) -> list[int]:
    """Per message: over the value, continued over the key, continued over the headers. Absent parts are empty."""
    checksums: Iterable[int] = map(crc32c, values)
    if keys is not None:
        checksums = map(crc32c, keys, checksums)
    if blobs is not None:
        checksums = map(crc32c, blobs, checksums)
    return list(checksums)


def _encode_headers(headers: Mapping[str, bytes] | None) -> bytes:
    if not headers:
        return b""
    if len(headers) > limits.HEADER_COUNT_MAX:
        _refuse("headers", f"a message has {len(headers)}; at most {limits.HEADER_COUNT_MAX} are allowed")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, bytes | bytearray | memoryview):
            _refuse("headers", f"{name!r} must be text and its value bytes")
    try:
        return _encode_map(headers if isinstance(headers, dict) else dict(headers))
    except UnicodeEncodeError:
        _refuse("headers", "a name is not valid Unicode text")


def _check_number(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        _refuse(name, f"{value} does not lie within {low} and {high}")


def _refuse(field: str, why: str) -> NoReturn:
    raise ValidationError(f"{field} cannot be put into a batch: {why}", field=field)


def _compress_lz4(raw: bytes) -> bytes:
    return bytes(lz4.block.compress(raw, store_size=False))


def _compress_zstd(raw: bytes) -> bytes:
    # A compressor belongs to one thread at a time, and extracts are made in several: each call has its own.
    return zstandard.ZstdCompressor(level=3, write_content_size=True).compress(raw)


_COMPRESS: Final[Mapping[Codec, Callable[[bytes], bytes]]] = {Codec.LZ4: _compress_lz4, Codec.ZSTD: _compress_zstd}


# ------------------------------------------------------------------ the header


def _length_max(count: int, flags: int) -> int:
    """An extract of a full batch may be larger by its positions."""
    return limits.BATCH_BYTES_MAX + (_padded(4 * count) if flags & FLAG_EXTRACT else 0)


def _padded(length: int) -> int:
    return (length + 7) & ~7


def _front_length(count: int, flags: int, dedup_length: int) -> int:
    """Header and uncompressed columns: where the body begins."""
    per_message = _padded(4 * count)
    length = HEADER_BYTES + _padded(dedup_length) + per_message
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
        _malformed("header", f"{max(available, 0)} bytes are left and a header has {HEADER_BYTES}")
    (
        magic,
        version,
        crc,
        length,
        count,
        flags,
        priority,
        encoding,
        codec,
        dedup_length,
        reserved,
        producer_id,
        sequence,
        deliver_at_ms,
        expires_at_ms,
        producer_epoch,
        raw_length,
    ) = _HEADER.unpack_from(data, offset)
    if magic != _MAGIC:
        _malformed("magic", "the bytes are not a batch")
    if version != VERSION:
        _malformed("version", f"{version} is not known, only {VERSION}")
    if not 1 <= count <= limits.BATCH_MESSAGES_MAX:
        _malformed("count", f"{count} does not lie within 1 and {limits.BATCH_MESSAGES_MAX}")
    if flags > _FLAGS_KNOWN or (flags & FLAG_NULL_KEYS and not flags & FLAG_KEYS):
        _malformed("flags", f"{flags:#x} is not a set of flags that exists")
    if priority >= LANES:
        _malformed("priority", f"{priority} does not lie within 0 and {LANES - 1}")
    if encoding != _ENCODING_COLUMNS:
        _malformed("encoding", f"{encoding} is not known")
    if codec >= len(_CODECS):
        _malformed("codec", f"{codec} is not known")
    if dedup_length > limits.DEDUP_ID_BYTES_MAX:
        _malformed("dedup_id", f"{dedup_length} bytes are more than {limits.DEDUP_ID_BYTES_MAX}")
    if reserved:
        _malformed("reserved", "these bytes must be zero")
    if not 0 <= producer_id <= limits.OFFSET_MAX:
        _malformed("producer_id", f"{producer_id} is out of range")
    if not -1 <= sequence <= limits.OFFSET_MAX:
        _malformed("sequence", f"{sequence} is out of range")
    if not 0 <= deliver_at_ms <= limits.TIME_MS_MAX:
        _malformed("deliver_at_ms", f"{deliver_at_ms} is out of range")
    if not 0 <= expires_at_ms <= limits.TIME_MS_MAX:
        _malformed("expires_at_ms", f"{expires_at_ms} is out of range")
    front_length = _front_length(count, flags, dedup_length)
    if not front_length < length <= available:
        _malformed("length", f"{length} does not lie within {front_length + 1} and the {available} bytes at hand")
    if front_length + raw_length > _length_max(count, flags) or length > front_length + raw_length:
        _malformed("raw_length", f"{raw_length} is not possible for a batch of {length} bytes")
    if codec == 0 and length != front_length + raw_length:
        _malformed("raw_length", f"{raw_length} is not what lies uncompressed in a batch of {length} bytes")
    dedup_start = offset + HEADER_BYTES
    return Header(
        version,
        flags,
        crc,
        length,
        count,
        priority,
        encoding,
        _CODECS[codec],
        producer_id,
        producer_epoch,
        sequence,
        deliver_at_ms,
        expires_at_ms,
        bytes(data[dedup_start : dedup_start + dedup_length]) if dedup_length else b"",
        raw_length,
    )


def verify(data: Buffer) -> Header:
    """The header of a batch that is exactly these bytes and matches its checksum."""
    header = read_header(data)
    if header.length != len(data):
        _malformed("length", f"{header.length}, but there are {len(data)} bytes")
    if crc32c(memoryview(data)[_PREFIX.size :]) != header.crc:
        _malformed("crc", "the bytes do not match their checksum")
    return header


def _malformed(field: str, why: str) -> NoReturn:
    raise MalformedBatch(f"the batch does not decode: {field}: {why}", field=field)


# ------------------------------------------------------------------ decoding


class _Cursor:
    """Walks over buffers that lie one after the other, each padded to 8 bytes."""

    __slots__ = ("_place", "_view")

    def __init__(self, view: memoryview, place: int) -> None:
        self._view = view
        self._place = place

    def take(self, field: str, length: int) -> memoryview:
        start = self._place
        end = start + length
        padded_end = start + _padded(length)
        view = self._view
        if padded_end > len(view):
            _malformed(field, f"{length} bytes are wanted and {len(view) - start} are left")
        if padded_end != end and view[end:padded_end] != _PADDING[padded_end - end]:
            _malformed(field, "the padding behind it is not zero")
        self._place = padded_end
        return view[start:end]

    def finish(self) -> None:
        if self._place != len(self._view):
            _malformed("raw_length", f"{len(self._view) - self._place} bytes lie behind the last column")


class _Column(NamedTuple):
    """A checked column of byte strings."""

    offsets: memoryview  # int32
    data: memoryview
    bounds: list[int]  # the offsets as numbers

    def items(self) -> list[bytes]:
        data = bytes(self.data)
        return [data[start:end] for start, end in pairwise(self.bounds)]


def _read_column(cursor: _Cursor, field: str, count: int, item_max: int) -> _Column:
    offsets = cursor.take(field, 4 * count + 4).cast("i")
    bounds = offsets.tolist()
    if bounds[0] != 0 or bounds != sorted(bounds):  # sorting what is sorted is the cheapest scan there is
        _malformed(field, "the offsets do not rise from 0")
    size = bounds[-1]
    if size > item_max and max(end - start for start, end in pairwise(bounds)) > item_max:
        _malformed(field, f"one is longer than {item_max} bytes")
    return _Column(offsets, cursor.take(field, size), bounds)


def _read_validity(cursor: _Cursor, count: int) -> bytes:
    validity = bytes(cursor.take("keys", (count + 7) // 8))
    bits = int.from_bytes(validity, "little")
    if bits >> count or not 0 < bits.bit_count() < count:
        _malformed("keys", "the validity bitmap does not fit the count, or says that all or no keys are null")
    return validity


def _decode_headers(column: _Column) -> list[dict[str, bytes]]:
    decoded: list[dict[str, bytes]] = []
    for blob in column.items():
        try:
            headers = _decode_map(blob) if blob else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _malformed("headers", f"those of message {len(decoded)} are not a map of text to bytes")
        if len(headers) > limits.HEADER_COUNT_MAX:
            _malformed("headers", f"message {len(decoded)} has more than {limits.HEADER_COUNT_MAX}")
        decoded.append(headers)
    return decoded


def _body(header: Header, view: memoryview) -> tuple[memoryview, int]:
    """The raw body and where it begins in that view."""
    start = _front_length(header.count, header.flags, len(header.dedup_id))
    if header.codec is Codec.NONE:
        return view, start
    stored = view[start:]
    raw_length = header.raw_length
    try:
        if header.codec is Codec.LZ4:
            raw = lz4.block.decompress(stored, uncompressed_size=raw_length)
        else:
            # A zstd frame carries a size of its own, which the decompressor would allocate: compare it first.
            parameters = zstandard.get_frame_parameters(stored)
            if parameters.content_size != raw_length or parameters.window_size > _ZSTD_WINDOW_BYTES_MAX:
                _malformed("body", f"the compressed frame does not say that it holds {raw_length} bytes")
            raw = zstandard.ZstdDecompressor().decompress(stored, raw_length, allow_extra_data=False)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError):
        _malformed("body", "it does not decompress")
    if len(raw) != raw_length:
        _malformed("raw_length", f"{raw_length}, but the body unfolds into {len(raw)} bytes")
    return memoryview(raw), 0


class Batch:
    """A decoded batch: checked columns, from which values are made when they are asked for."""

    __slots__ = (
        "_checksums",
        "_header_column",
        "_header_maps",
        "_key_column",
        "_key_hashes",
        "_timestamps",
        "_validity",
        "_value_column",
        "count",
        "header",
        "positions",
    )

    def __init__(self, header: Header, view: memoryview) -> None:
        count = header.count
        flags = header.flags
        self.header = header
        self.count = count
        front = _Cursor(view, HEADER_BYTES)
        front.take("dedup_id", len(header.dedup_id))
        self.positions: Sequence[int] | None = None
        if flags & FLAG_EXTRACT:
            self.positions = _read_positions(front, count)
        self._checksums = front.take("checksums", 4 * count).cast("I")
        self._key_hashes = front.take("key_hashes", 8 * count).cast("Q") if flags & FLAG_KEYS else None
        body = _Cursor(*_body(header, view))
        self._value_column = _read_column(body, "values", count, limits.MESSAGE_BYTES_MAX)
        self._key_column: _Column | None = None
        self._validity: bytes | None = None
        if flags & FLAG_KEYS:
            if flags & FLAG_NULL_KEYS:
                self._validity = _read_validity(body, count)
            self._key_column = _read_column(body, "keys", count, limits.KEY_BYTES_MAX)
        self._header_column: _Column | None = None
        self._header_maps: list[dict[str, bytes]] | None = None
        if flags & FLAG_HEADERS:
            self._header_column = _read_column(body, "headers", count, limits.HEADERS_BYTES_MAX)
            self._header_maps = _decode_headers(self._header_column)
        self._timestamps: memoryview | None = None
        if flags & FLAG_TIMESTAMPS:
            self._timestamps = body.take("timestamps", 8 * count).cast("q")
        body.finish()

    def values(self) -> list[bytes]:
        return self._value_column.items()

    def keys(self) -> list[bytes | None]:
        column = self._key_column
        if column is None:
            return [None] * self.count
        keys: list[bytes | None] = [*column.items()]
        if self._validity is not None:
            # format() writes the highest bit first; a leading one keeps the zeros of the last keys.
            bits = format(int.from_bytes(self._validity, "little") | 1 << self.count, "b")
            for place, bit in enumerate(reversed(bits[1:])):
                if bit == "0":
                    keys[place] = None
        return keys

    def headers(self) -> list[dict[str, bytes]]:
        if self._header_maps is None:
            return [{} for _ in range(self.count)]
        return self._header_maps

    def timestamps(self) -> list[int] | None:
        return None if self._timestamps is None else self._timestamps.tolist()

    def value_column(self) -> tuple[memoryview, memoryview]:
        """int32 offsets, bytes."""
        return self._value_column.offsets, self._value_column.data

    def key_column(self) -> tuple[memoryview, memoryview, bytes | None] | None:
        """int32 offsets, bytes, and the validity bitmap when some are null; None: every key is null."""
        column = self._key_column
        return None if column is None else (column.offsets, column.data, self._validity)

    def headers_column(self) -> tuple[memoryview, memoryview] | None:
        """int32 offsets, bytes of the encoded maps; None: no message has headers."""
        column = self._header_column
        return None if column is None else (column.offsets, column.data)

    def timestamp_column(self) -> memoryview | None:
        """int64, the producers' own times."""
        return self._timestamps

    def key_hashes(self) -> memoryview | None:
        """uint64, 0 where the key is null; None: every key is null."""
        return self._key_hashes

    def message_checksums(self) -> memoryview:
        """uint32, as the producer computed them."""
        return self._checksums

    def verify_messages(self) -> None:
        """Compare each message with the producer's own checksum of it."""
        keys = None if self._key_column is None else self._key_column.items()
        blobs = None if self._header_column is None else self._header_column.items()
        found = _checksums(self.values(), keys, blobs)
        expected = self._checksums.tolist()
        if found != expected:
            place = next(place for place, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
            _malformed("checksums", f"message {place} is not what its producer sent")

    def extract(self, positions: Sequence[int]) -> bytes:
        """Some of these messages as a batch of their own, under the producer's checksums.

        `positions` are places in the original batch, rising; so an extract of an extract is one of the original.
        """
        rows = self._rows_at(positions)
        header = self.header
        fields = _Fields(
            header.priority,
            header.codec,
            header.producer_id,
            header.producer_epoch,
            header.sequence,
            header.deliver_at_ms,
            header.expires_at_ms,
            header.dedup_id,
        )
        values = self._value_column.items()
        keys = None if self._key_column is None else self.keys()
        blobs = None if self._header_column is None else self._header_column.items()
        chosen = _Rows(
            [values[row] for row in rows],
            None if keys is None else [keys[row] for row in rows],
            None if blobs is None else [blobs[row] for row in rows],
            None if self._timestamps is None else [self._timestamps[row] for row in rows],
        )
        checksums = [self._checksums[row] for row in rows]
        hashes = None if self._key_hashes is None else [self._key_hashes[row] for row in rows]
        return _assemble(fields, chosen, positions, checksums, hashes)

    def _rows_at(self, positions: Sequence[int]) -> Sequence[int]:
        """Where the messages of these original positions are in this batch."""
        _check_number("positions", len(positions), 1, self.count)
        if any(first >= second for first, second in pairwise(positions)):
            _refuse("positions", "they must rise")
        present = range(self.count) if self.positions is None else self.positions
        place_of: Mapping[Any, int] = {position: row for row, position in enumerate(present)}
        try:
            return [place_of[whole_number(position)] for position in positions]
        except KeyError as missing:
            _refuse("positions", f"the batch has no message at {missing.args[0]}")


def _read_positions(cursor: _Cursor, count: int) -> list[int]:
    positions = cursor.take("positions", 4 * count).cast("I").tolist()
    if positions[-1] >= limits.BATCH_MESSAGES_MAX or any(first >= second for first, second in pairwise(positions)):
        _malformed("positions", f"they do not rise, or reach {limits.BATCH_MESSAGES_MAX}")
    return positions


def decode(data: Buffer) -> Batch:
    """A batch whose checksum and structure are sound. Its views share memory with `data`."""
    return Batch(verify(data), memoryview(data))


def extract(data: Buffer, positions: Sequence[int]) -> bytes:
    """Some messages of an encoded batch; see `Batch.extract`."""
    return decode(data).extract(positions)


# ------------------------------------------------------------------ choosing a partition


def partition_for_key(key: bytes, partitions: int) -> int:
    """Where messages of this key go: jump consistent hash (Lamping and Veach, 2014) of xxh64(key).

    When a topic grows from n to m partitions a key stays or moves to one of the new ones; (m - n) / m of them move.
    """
    return partition_for_hash(xxh64_intdigest(key), partitions)


def partition_for_hash(key_hash: int, partitions: int) -> int:
    """The same from a hash that is known already, such as the batch's own column of them."""
    _check_number("partitions", partitions, 1, limits.PARTITIONS_MAX)
    state = key_hash
    chosen = candidate = 0
    while candidate < partitions:
        chosen = candidate
        state = (state * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        candidate = int((chosen + 1) * (2**31 / ((state >> 33) + 1)))
    return chosen
