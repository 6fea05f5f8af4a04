"""From the bytes of a batch to its messages: checked columns first, Python objects only when they are asked for.

A `Batch` that exists is sound: checksum, offsets that rise, lengths within their bounds, nothing left over. The maps of
headers cost more to check than all the rest; callers that do not read them ask for no check (`headers=False`). A batch
keeps views into the bytes it was made from.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from lanner import limits
from lanner.batch.compression import decompress
from lanner.batch.encoding import PADDING, Fields, Rows, assemble, message_checksums, refuse
from lanner.batch.header import (
    FLAG_EXTRACT,
    FLAG_HEADERS,
    FLAG_KEYS,
    FLAG_NULL_KEYS,
    FLAG_TIMESTAMPS,
    HEADER_BYTES,
    Buffer,
    Codec,
    Header,
    front_length,
    malformed,
    padded,
    verify,
)
from lanner.errors import MalformedBatch

# Whether int32 offsets never fall and stay within the bytes: where there is a faster way than a list of numbers.
Rises = Callable[[memoryview, memoryview], bool]

_FALLING: Final = "the offsets do not rise from 0"
_decode_map: Final = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class _Cursor:
    """Walks over buffers that lie one after the other, each padded to 8 bytes."""

    __slots__ = ("_place", "_view")

    def __init__(self, view: memoryview, place: int) -> None:
        self._view = view
        self._place = place

    def take(self, field: str, length: int) -> memoryview:
        start = self._place
        end = start + length
        padded_end = start + padded(length)
        view = self._view
        if padded_end > len(view):
            malformed(field, f"{length} bytes are wanted and {len(view) - start} are left")
        if padded_end != end and view[end:padded_end] != PADDING[padded_end - end]:
            malformed(field, "the padding behind it is not zero")
        self._place = padded_end
        return view[start:end]

    def finish(self) -> None:
        if self._place != len(self._view):
            malformed("raw_length", f"{len(self._view) - self._place} bytes lie behind the last column")


class _Column:
    """A checked column of byte strings."""

    __slots__ = ("_bounds", "data", "offsets")

    def __init__(self, offsets: memoryview, data: memoryview) -> None:
        self.offsets = offsets  # int32
        self.data = data
        self._bounds: list[int] | None = None

    @property
    def bounds(self) -> list[int]:
        """The offsets as numbers."""
        if self._bounds is None:
            self._bounds = self.offsets.tolist()
        return self._bounds

    def rises(self) -> bool:
        bounds = self.bounds
        return bounds == sorted(bounds)  # sorting what is sorted is the cheapest scan there is

    def items(self) -> list[bytes]:
        data = bytes(self.data)
        return [data[start:end] for start, end in pairwise(self.bounds)]

    def items_at(self, rows: Sequence[int]) -> list[bytes]:
        data, bounds = self.data, self.bounds
        return [bytes(data[bounds[row] : bounds[row + 1]]) for row in rows]


def _read_column(cursor: _Cursor, field: str, count: int, item_max: int, rises: Rises | None) -> _Column:
    offsets = cursor.take(field, 4 * count + 4).cast("i")
    size = offsets[count]
    if offsets[0] != 0 or size < 0:
        malformed(field, _FALLING)
    column = _Column(offsets, cursor.take(field, size))
    if not (column.rises() if rises is None else rises(offsets, column.data)):
        malformed(field, _FALLING)
    if size > item_max and max(end - start for start, end in pairwise(column.bounds)) > item_max:
        malformed(field, f"one is longer than {item_max} bytes")
    return column


def _read_validity(cursor: _Cursor, count: int) -> bytes:
    validity = bytes(cursor.take("keys", (count + 7) // 8))
    bits = int.from_bytes(validity, "little")
    if bits >> count or not 0 < bits.bit_count() < count:
        malformed("keys", "the validity bitmap does not fit the count, or says that all or no keys are null")
    return validity


def _read_timestamps(cursor: _Cursor, count: int) -> memoryview:
    timestamps = cursor.take("timestamps", 8 * count).cast("q")
    times = timestamps.tolist()
    if min(times) < -limits.TIME_MS_MAX or max(times) > limits.TIME_MS_MAX:
        malformed("timestamps", f"one does not lie within ±{limits.TIME_MS_MAX}")
    return timestamps


def _decode_headers(column: _Column) -> list[dict[str, bytes]]:
    decoded: list[dict[str, bytes]] = []
    for blob in column.items():
        try:
            headers = _decode_map(blob) if blob else {}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            malformed("headers", f"those of message {len(decoded)} are not a map of text to bytes")
        if len(headers) > limits.HEADER_COUNT_MAX:
            malformed("headers", f"message {len(decoded)} has more than {limits.HEADER_COUNT_MAX}")
        decoded.append(headers)
    return decoded


def _body(header: Header, view: memoryview) -> tuple[memoryview, int]:
    """The raw body: a view, and where in it the body begins."""
    start = front_length(header.count, header.flags, len(header.dedup_id))
    if header.codec is Codec.NONE:
        return view, start
    return memoryview(decompress(header.codec, view[start:], header.raw_length)), 0


class Batch:
    """A decoded batch: checked columns, from which values are made when they are asked for."""

    __slots__ = (
        "_checksums",
        "_header_column",
        "_header_maps",
        "_key_column",
        "_key_hashes",
        "_position_column",
        "_timestamps",
        "_validity",
        "_value_column",
        "count",
        "header",
        "positions",
    )

    def __init__(self, header: Header, view: memoryview, rises: Rises | None = None) -> None:
        count = header.count
        flags = header.flags
        self.header = header
        self.count = count
        front = _Cursor(view, HEADER_BYTES)
        front.take("dedup_id", len(header.dedup_id))
        self.positions: Sequence[int] | None = None
        self._position_column: memoryview | None = None
        if flags & FLAG_EXTRACT:
            self._position_column = front.take("positions", 4 * count).cast("I")
            self.positions = _checked_positions(self._position_column)
        self._checksums = front.take("checksums", 4 * count).cast("I")
        self._key_hashes = front.take("key_hashes", 8 * count).cast("Q") if flags & FLAG_KEYS else None
        body = _Cursor(*_body(header, view))
        self._value_column = _read_column(body, "values", count, limits.MESSAGE_BYTES_MAX, rises)
        self._key_column: _Column | None = None
        self._validity: bytes | None = None
        if flags & FLAG_KEYS:
            if flags & FLAG_NULL_KEYS:
                self._validity = _read_validity(body, count)
            self._key_column = _read_column(body, "keys", count, limits.KEY_BYTES_MAX, rises)
        self._header_column: _Column | None = None
        self._header_maps: list[dict[str, bytes]] | None = None
        if flags & FLAG_HEADERS:
            self._header_column = _read_column(body, "headers", count, limits.HEADERS_BYTES_MAX, rises)
            if not self._header_column.data:
                malformed("headers", "no message has any: the column must be absent")
        self._timestamps: memoryview | None = None
        if flags & FLAG_TIMESTAMPS:
            self._timestamps = _read_timestamps(body, count)
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

    def sizes(self) -> list[int]:
        """The bytes of each message: its value, key and encoded headers."""
        columns = [one for one in (self._value_column, self._key_column, self._header_column) if one is not None]
        lengths = [[end - start for start, end in pairwise(column.bounds)] for column in columns]
        return lengths[0] if len(lengths) == 1 else [sum(row) for row in zip(*lengths, strict=True)]

    def headers(self) -> list[dict[str, bytes]]:
        """The headers of each message. They are checked when they are first asked for."""
        if self._header_column is None:
            return [{} for _ in range(self.count)]
        if self._header_maps is None:
            self._header_maps = _decode_headers(self._header_column)
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

    def position_column(self) -> memoryview | None:
        """uint32, the positions of an extract; None: 0 to count - 1."""
        return self._position_column

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
        found = message_checksums(self.values(), keys, blobs)
        expected = self._checksums.tolist()
        if found != expected:
            place = next(place for place, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
            malformed("checksums", f"message {place} is not what its producer sent")

    def extract(self, positions: Sequence[int]) -> bytes:
        """Some of these messages as a batch of their own, under the producer's checksums.

        `positions` are places in the original batch, rising; so an extract of an extract is one of the original.
        """
        rows = self._rows_at(positions)
        header = self.header
        fields = Fields(
            header.priority,
            header.codec,
            header.producer_id,
            header.producer_epoch,
            header.sequence,
            header.deliver_at_ms,
            header.expires_at_ms,
            header.dedup_id,
        )
        hashes, times = self._key_hashes, self._timestamps
        chosen = Rows(
            self._value_column.items_at(rows),
            None if self._key_column is None else self._keys_at(self._key_column, rows),
            None if self._header_column is None else self._header_column.items_at(rows),
            None if times is None else [times[row] for row in rows],
        )
        checksums = [self._checksums[row] for row in rows]
        return assemble(fields, chosen, positions, checksums, None if hashes is None else [hashes[row] for row in rows])

    def _keys_at(self, column: _Column, rows: Sequence[int]) -> list[bytes | None]:
        keys: list[bytes | None] = [*column.items_at(rows)]
        if (validity := self._validity) is not None:
            for place, row in enumerate(rows):
                if not validity[row >> 3] >> (row & 7) & 1:
                    keys[place] = None
        return keys

    def _rows_at(self, positions: Sequence[int]) -> list[int]:
        """Where the messages of these original positions are in this batch. Costs nothing for those not asked for."""
        try:
            wanted = array("I", positions).tolist()
        except (TypeError, OverflowError):
            refuse("positions", "each must be a whole number from 0")
        if not wanted or wanted != sorted(set(wanted)):
            refuse("positions", "they must rise, and there must be one")
        if self.positions is None:
            if wanted[-1] >= self.count:
                refuse("positions", f"the batch has no message at {wanted[-1]}")
            return wanted
        rows = [bisect_left(self.positions, position) for position in wanted]
        for position, row in zip(wanted, rows, strict=True):
            if row == self.count or self.positions[row] != position:
                refuse("positions", f"the batch has no message at {position}")
        return rows


def _checked_positions(column: memoryview) -> list[int]:
    positions: list[int] = column.tolist()
    if positions[-1] >= limits.BATCH_MESSAGES_MAX or any(first >= second for first, second in pairwise(positions)):
        malformed("positions", f"they do not rise, or reach {limits.BATCH_MESSAGES_MAX}")
    return positions


def decode(data: Buffer, rises: Rises | None = None, *, headers: bool = True) -> Batch:
    """A batch whose checksum and structure are sound. Its views share memory with `data`.

    Without `headers` their maps are neither made nor checked until they are asked for.
    """
    header = verify(data)
    decoded = Batch(header, memoryview(data), rises)
    if headers and header.flags & FLAG_HEADERS:
        decoded.headers()
    return decoded


def never_decodes(data: Buffer) -> bool:
    """Whether these are the bytes that a producer sent, and no batch all the same: to ask for them again is in vain."""
    try:
        header = verify(data)
    except MalformedBatch:
        return False  # something happened to them on the way, and another copy may be sound
    try:
        Batch(header, memoryview(data)).headers()
    except MalformedBatch:
        return True
    return False


def extract(data: Buffer, positions: Sequence[int]) -> bytes:
    """Some messages of an encoded batch; see `Batch.extract`."""
    return decode(data, headers=False).extract(positions)
