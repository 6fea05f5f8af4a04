"""From columns of messages to the bytes of a batch.

Whatever the caller gives is checked here, so that no batch leaves this room that decoding would refuse. The work per
message is done by functions that run in C over whole columns; nothing here loops over messages in Python unless
they have keys or headers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple, NoReturn

import msgspec
from crc32c import crc32c
from xxhash import xxh64_intdigest

from lanner import limits
from lanner.batch.compression import compress
from lanner.batch.header import (
    CHECKED,
    CODECS,
    ENCODING_COLUMNS,
    FLAG_EXTRACT,
    FLAG_HEADERS,
    FLAG_KEYS,
    FLAG_NULL_KEYS,
    FLAG_TIMESTAMPS,
    HEADER_BYTES,
    MAGIC,
    PREFIX,
    VERSION,
    Buffer,
    Codec,
    length_max,
)
from lanner.errors import MessageTooLarge, ValidationError
from lanner.model import PRIORITY_NORMAL, parse_priority

_EPOCH_MAX: Final = 2**32 - 1
PADDING: Final = tuple(bytes(size) for size in range(8))
_LONE: Final = Struct("<IIii")  # checksum, padding, and the two offsets of a column of one
_encode_map: Final = msgspec.msgpack.Encoder().encode


class Laid(list[bytes]):
    """A column whose bytes lie one behind the other already, as a batch wants them: they are taken as they lie."""

    __slots__ = ("data", "offsets")

    def __init__(self, items: Iterable[bytes], offsets: Buffer, data: Buffer) -> None:
        super().__init__(items)
        self.offsets = offsets  # int32, from 0
        self.data = data


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
    plain = keys is None and headers is None and timestamps is None and not dedup_id and codec is Codec.NONE
    if plain and count == 1 and producer_epoch == deliver_at_ms == expires_at_ms == 0:
        lone = _encode_lone(values[0], parse_priority(priority), producer_id, sequence)
        if lone is not None:
            return lone
    check_number("count", count, 1, limits.BATCH_MESSAGES_MAX)
    for name, column in (("keys", keys), ("headers", headers), ("timestamps", timestamps)):
        if column is not None and len(column) != count:
            refuse(name, f"there are {len(column)} for {count} values")
    check_number("producer_id", producer_id, 0, limits.OFFSET_MAX)
    check_number("producer_epoch", producer_epoch, 0, _EPOCH_MAX)
    check_number("sequence", sequence, -1, limits.OFFSET_MAX)
    check_number("deliver_at_ms", deliver_at_ms, 0, limits.TIME_MS_MAX)
    check_number("expires_at_ms", expires_at_ms, 0, limits.TIME_MS_MAX)
    if not isinstance(dedup_id, bytes) or len(dedup_id) > limits.DEDUP_ID_BYTES_MAX:
        refuse("dedup_id", f"it must be bytes, at most {limits.DEDUP_ID_BYTES_MAX} of them")
    if codec not in CODECS:
        refuse("codec", f"{codec!r} is not one of {', '.join(one.name for one in CODECS)}")
    fields = Fields(
        parse_priority(priority),
        Codec(codec),
        producer_id,
        producer_epoch,
        sequence,
        deliver_at_ms,
        expires_at_ms,
        dedup_id,
    )
    blobs = None if headers is None else [_encode_headers(one) for one in headers]
    return assemble(fields, Rows(values, keys, blobs, timestamps), None, None, None)


def _encode_lone(value: bytes, priority: int, producer_id: int, sequence: int) -> bytes | None:
    """What `assemble` makes of a single plain message, in a quarter of the time: requests of one message are common.

    None: something is not as it should be, and the long way says what.
    """
    if not (type(value) is bytes and type(producer_id) is type(sequence) is int):
        return None
    length = len(value)
    if not (
        length <= limits.MESSAGE_BYTES_MAX
        and 0 <= producer_id <= limits.OFFSET_MAX
        and -1 <= sequence <= limits.OFFSET_MAX
    ):
        return None
    tail = _LONE.pack(crc32c(value), 0, 0, length) + value + PADDING[-length % 8]
    checked = CHECKED.pack(
        HEADER_BYTES + len(tail),
        1,
        0,
        priority,
        ENCODING_COLUMNS,
        Codec.NONE,
        0,
        0,
        producer_id,
        sequence,
        0,
        0,
        0,
        len(tail) - 8,
    )
    return PREFIX.pack(MAGIC, VERSION, crc32c(tail, crc32c(checked))) + checked + tail


class Fields(NamedTuple):
    """What a header takes over from the caller, or an extract from its batch."""

    priority: int
    codec: Codec
    producer_id: int
    producer_epoch: int
    sequence: int
    deliver_at_ms: int
    expires_at_ms: int
    dedup_id: bytes


class Rows(NamedTuple):
    """The messages of a batch as parallel columns; an absent column is None."""

    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None
    headers: Sequence[bytes] | None
    timestamps: Sequence[int] | None


def assemble(
    fields: Fields,
    rows: Rows,
    positions: Sequence[int] | None,
    checksums: Sequence[int] | None,
    key_hashes: Sequence[int] | None,
) -> bytes:
    """Lay the columns out. Checksums and hashes that are given are carried over instead of computed."""
    flags = 0
    body = _byte_column("values", rows.values, limits.MESSAGE_BYTES_MAX, MessageTooLarge)
    keys: Sequence[bytes] | None = None
    if rows.keys is not None and (nulls := rows.keys.count(None)) < len(rows.keys):
        flags |= FLAG_KEYS
        keys = rows.keys if isinstance(rows.keys, Laid) else [b"" if key is None else key for key in rows.keys]
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
        checksums = message_checksums(rows.values, keys, blobs)
    front: list[Buffer] = []
    _append_padded(front, fields.dedup_id)
    if positions is not None:
        flags |= FLAG_EXTRACT
        _append_padded(front, array("I", positions).tobytes())
    _append_padded(front, array("I", checksums).tobytes())
    if keys is not None and key_hashes is not None:
        front.append(array("Q", key_hashes).tobytes())
    return _seal(fields, len(rows.values), flags, front, body)


def _seal(fields: Fields, count: int, flags: int, front: list[Buffer], body: list[Buffer]) -> bytes:
    """Compress where it helps, then put the header with its checksum in front."""
    front_size = HEADER_BYTES + sum(map(len, front))
    raw_length = sum(map(len, body))
    bound = length_max(count, flags)
    if front_size + raw_length > bound:
        raise MessageTooLarge(
            f"the batch has {front_size + raw_length} bytes uncompressed; at most {bound} are allowed: split it",
            field="values",
        )
    codec = fields.codec
    body_length = raw_length
    if codec is not Codec.NONE:
        compressed = compress(codec, b"".join(body))
        if len(compressed) < raw_length:
            body, body_length = [compressed], len(compressed)
        else:
            codec = Codec.NONE
    checked = CHECKED.pack(
        front_size + body_length,
        count,
        flags,
        fields.priority,
        ENCODING_COLUMNS,
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
    return b"".join((PREFIX.pack(MAGIC, VERSION, crc), checked, *front, *body))


def _byte_column(name: str, items: Sequence[bytes], item_max: int, too_large: type[ValidationError]) -> list[Buffer]:
    """Offsets and bytes of one column, each followed by its padding."""
    parts: list[Buffer] = []
    if type(items) is Laid and len(items.data) <= item_max:
        assert len(items.offsets) == 4 * len(items) + 4, "offsets of these items"
        _append_padded(parts, items.offsets)
        _append_padded(parts, items.data)
        return parts
    try:
        lengths = list(map(len, items))
        data = b"".join(items)
    except TypeError:
        refuse(name, "each must be bytes")
    if sum(lengths) != len(data):  # something whose items are not bytes, like an array of numbers
        refuse(name, "each must be bytes")
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
    _append_padded(parts, array("i", accumulate(lengths, initial=0)).tobytes())
    _append_padded(parts, data)
    return parts


def _append_padded(parts: list[Buffer], data: Buffer) -> None:
    parts.append(data)
    parts.append(PADDING[-len(data) % 8])


def _validity(keys: Sequence[bytes | None]) -> bytes:
    """Arrow's bitmap: bit i, lowest first, says that key i is not null."""
    bits = "".join("0" if key is None else "1" for key in reversed(keys))
    return int(bits, 2).to_bytes((len(keys) + 7) // 8, "little")


def _timestamp_column(timestamps: Sequence[int]) -> bytes:
    try:
        column = array("q", timestamps)
    except (TypeError, OverflowError):
        refuse("timestamps", "each must be a whole number of milliseconds")
    if min(column) < -limits.TIME_MS_MAX or max(column) > limits.TIME_MS_MAX:
        refuse("timestamps", f"each must lie within ±{limits.TIME_MS_MAX}")
    return column.tobytes()


def message_checksums(
    values: Sequence[bytes], keys: Sequence[bytes] | None, blobs: Sequence[bytes] | None
) -> list[int]:
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
        refuse("headers", f"a message has {len(headers)}; at most {limits.HEADER_COUNT_MAX} are allowed")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, bytes | bytearray | memoryview):
            refuse("headers", f"{name!r} must be text and its value bytes")
    try:
        return _encode_map(headers if isinstance(headers, dict) else dict(headers))
    except UnicodeEncodeError:
        refuse("headers", "a name is not valid Unicode text")


def check_number(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or not low <= value <= high:
        refuse(name, f"{value!r} is not a whole number from {low} to {high}")


def refuse(field: str, why: str) -> NoReturn:
    raise ValidationError(f"{field} cannot be put into a batch: {why}", field=field)
