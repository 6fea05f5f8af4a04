"""From the columns of message batches to the record batches that Spark takes, without a Python object per message.

The values and keys of a batch already lie as Arrow wants them (`lanner.batch`): their buffers are wrapped, not copied.
What all messages of a batch share (topic, partition, append time, priority) becomes a column by repetition. Numbers
are repeated as bytes and the topic's column is kept for the next record batch, because Arrow's own ways to repeat cost
more than all the rest. Only headers are made message by message, and only when they are asked for. The metadata
columns (the producers' own times, when queue groups get a message and until when) are asked for in the same way.

It knows bytes and Arrow; it refuses to know Spark, sockets and options.

Small batches are gathered until there are enough rows for the trip to the JVM to pay; a large one travels alone and
uncopied. Every batch is verified: its own checksum, or, in an extract, the producer's checksum of each message. One
whose producer sent bytes that do not decode is a hole, and is logged.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import pyarrow
from pyarrow import compute

from lanner import batch, limits
from lanner.errors import MalformedBatch
from lanner.model import message_flags

_log: Final = logging.getLogger("lanner.spark")

ROWS_MIN: Final = 8_192  # a record batch of fewer waits for more
BYTES_MIN: Final = 2 * limits.MIB  # or until it holds this much

TIME: Final = pyarrow.timestamp("us", tz="UTC")
_HEADER: Final = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
_HEADERS: Final = pyarrow.list_(pyarrow.field("element", _HEADER))


class StoredBatch(NamedTuple):
    """A batch as a broker hands it out: what it assigned, and the producer's bytes."""

    base_offset: int
    append_ms: int
    data: bytes | bytearray | memoryview
    read_ms: int = 0  # the broker's time when it was read: what is delayed and what has expired


@cache
def arrow_schema(include_headers: bool, include_metadata: bool = False) -> Any:
    """The columns, exactly as Spark derives them from `source.schema`: it compares."""
    fields = [
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("timestamp", TIME),
        ("priority", pyarrow.int32()),
    ]
    if include_headers:
        fields.append(("headers", _HEADERS))
    if include_metadata:
        fields += [
            ("producer_timestamp", TIME),
            ("deliver_at", TIME),
            ("expires_at", TIME),
            ("flags", pyarrow.int32()),
        ]
    return pyarrow.schema(fields)


@cache
def _places() -> Any:
    """0, 1, 2, … as far as a record batch can reach; made once, sliced and added to ever after."""
    return pyarrow.array(range(ROWS_MIN + limits.BATCH_MESSAGES_MAX), pyarrow.int64())


@lru_cache(maxsize=8)
def _named(topic: str, rows: int) -> Any:
    return pyarrow.repeat(pyarrow.scalar(topic, pyarrow.string()), rows)


def _topic_array(topic: str, rows: int) -> Any:
    """The beginning of a column that is kept, of the next power of two."""
    return _named(topic, 1 << (rows - 1).bit_length()).slice(0, rows)


def spread(values: Sequence[int | str | None], counts: Sequence[int], kind: Any) -> Any:
    """Each value so many times, one after the other."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) < len(values):
        repeats = (
            pyarrow.repeat(pyarrow.scalar(value, kind), count) for value, count in zip(values, counts, strict=True)
        )
        return _joined(list(repeats))
    width = kind.bit_width // 8
    column = b"".join(
        [
            value.to_bytes(width, sys.byteorder, signed=True) * count
            for value, count in zip(numbers, counts, strict=True)
        ]
    )
    return pyarrow.Array.from_buffers(kind, len(column) // width, [None, pyarrow.py_buffer(column)])


class RowGatherer:
    """Collects the batches of one partition and gives them back as record batches."""

    def __init__(
        self, topic: str, partition: int, *, include_headers: bool = False, include_metadata: bool = False
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._include_headers = include_headers
        self._include_metadata = include_metadata
        self._clear()

    def _clear(self) -> None:
        self._rows = 0
        self._bytes = 0
        self._counts: list[int] = []  # rows of each batch, as are the lists that follow
        self._keys: list[Any | None] = []  # None: a batch without keys
        self._values: list[Any] = []
        self._offsets: list[Any] = []  # of a whole batch its first one, of an extract an array
        self._headers: list[Any] = []
        self._append_us: list[int] = []
        self._priorities: list[int] = []
        self._producer_times: list[Any] = []
        self._deliver_us: list[int | None] = []
        self._expires_us: list[int | None] = []
        self._flags: list[int] = []

    def add(self, stored: StoredBatch, start_offset: int, end_offset: int) -> None:
        """Take those messages of a batch whose offset lies in [start_offset, end_offset)."""
        try:
            decoded = batch.decode(stored.data, rises, headers=self._include_headers)
        except MalformedBatch as error:
            if not batch.never_decodes(stored.data):
                raise
            _log.warning("the batch at offset %d is left out: %s", stored.base_offset, error.message)
            return
        if decoded.header.is_extract:
            decoded.verify_messages()
        first, last = _rows_between(decoded, start_offset - stored.base_offset, end_offset - stored.base_offset)
        self._take_rows(decoded, stored, first, last - first)

    def _take_rows(self, decoded: batch.Batch, stored: StoredBatch, first: int, count: int) -> None:
        if count <= 0:
            return
        self._values.append(_value_array(decoded).slice(first, count))
        self._keys.append(_key_array(decoded, first, count))
        self._offsets.append(_offset_array(decoded, stored.base_offset, first, count))
        if self._include_headers:
            self._headers.append(_header_array(decoded).slice(first, count))
        if self._include_metadata:
            self._producer_times.append(_time_array(decoded).slice(first, count))
        self._rows += count
        self._bytes += len(stored.data)
        self._counts.append(count)
        self._append_us.append(stored.append_ms * 1_000)
        header = decoded.header
        self._priorities.append(header.priority)
        self._deliver_us.append(header.deliver_at_ms * 1_000 or None)
        self._expires_us.append(header.expires_at_ms * 1_000 or None)
        self._flags.append(message_flags(header.deliver_at_ms, header.expires_at_ms, stored.read_ms))

    @property
    def is_enough(self) -> bool:
        return self._rows >= ROWS_MIN or self._bytes >= BYTES_MIN

    def take(self) -> Any | None:
        """Everything collected as one record batch; None when there is nothing."""
        if not self._rows:
            return None
        columns = [
            _key_column(self._keys, self._counts),
            _joined(self._values),
            _topic_array(self._topic, self._rows),
            spread([self._partition], [self._rows], pyarrow.int32()),
            _offset_column(self._offsets, self._counts),
            spread(self._append_us, self._counts, TIME),
            spread(self._priorities, self._counts, pyarrow.int32()),
        ]
        if self._include_headers:
            columns.append(_joined(self._headers))
        if self._include_metadata:
            columns += [
                _joined(self._producer_times),
                spread(self._deliver_us, self._counts, TIME),
                spread(self._expires_us, self._counts, TIME),
                spread(self._flags, self._counts, pyarrow.int32()),
            ]
        fields = list(arrow_schema(self._include_headers, self._include_metadata))
        for field, column in self._more_columns():
            fields.append(field)
            columns.append(column)
        self._clear()
        return pyarrow.RecordBatch.from_arrays(columns, schema=pyarrow.schema(fields))

    def _more_columns(self) -> list[tuple[Any, Any]]:
        """Fields and columns of a reader that has more to tell."""
        return []


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pyarrow.concat_arrays(arrays)


def _numbers(column: memoryview) -> Any:
    """A buffer of numbers. Arrow wants them on 8-byte boundaries of memory, and a batch cut out of a reply may lie
    anywhere: then they are moved, and what they count stays where it is."""
    buffer = pyarrow.py_buffer(column)
    return buffer if buffer.address % 8 == 0 else pyarrow.py_buffer(bytes(column))


def rises(offsets: memoryview, data: memoryview) -> bool:
    buffers = [None, _numbers(offsets), pyarrow.py_buffer(data)]
    try:
        pyarrow.Array.from_buffers(pyarrow.binary(), len(offsets) - 1, buffers).validate(full=True)
    except pyarrow.ArrowInvalid:
        return False
    return True


def _rows_between(decoded: batch.Batch, start: int, end: int) -> tuple[int, int]:
    """The rows whose position in the original batch lies in [start, end)."""
    if decoded.positions is not None:
        return bisect_left(decoded.positions, start), bisect_left(decoded.positions, end)
    return max(start, 0), min(end, decoded.count)


def _value_array(decoded: batch.Batch) -> Any:
    offsets, data = decoded.value_column()
    buffers = [None, _numbers(offsets), pyarrow.py_buffer(data)]
    return pyarrow.Array.from_buffers(pyarrow.binary(), decoded.count, buffers)


def _key_array(decoded: batch.Batch, first: int, count: int) -> Any | None:
    column = decoded.key_column()
    if column is None:
        return None
    offsets, data, validity = column
    valid = None if validity is None else pyarrow.py_buffer(validity)
    buffers = [valid, _numbers(offsets), pyarrow.py_buffer(data)]
    return pyarrow.Array.from_buffers(pyarrow.binary(), decoded.count, buffers).slice(first, count)


def _key_column(arrays: Sequence[Any | None], counts: Sequence[int]) -> Any:
    if all(array is None for array in arrays):
        return pyarrow.nulls(sum(counts), pyarrow.binary())
    parts = zip(arrays, counts, strict=True)
    return _joined([pyarrow.nulls(count, pyarrow.binary()) if array is None else array for array, count in parts])


def _offset_array(decoded: batch.Batch, base_offset: int, first: int, count: int) -> Any:
    """The offsets of an extract; of a whole batch they follow each other, and the first one says them all."""
    column = decoded.position_column()
    if column is None:
        return base_offset + first
    whole = pyarrow.Array.from_buffers(pyarrow.uint32(), decoded.count, [None, _numbers(column)])
    return compute.add(whole.slice(first, count).cast(pyarrow.int64()), pyarrow.scalar(base_offset, pyarrow.int64()))


def _offset_column(offsets: Sequence[Any], counts: Sequence[int]) -> Any:
    """Whole batches that lie one behind the other become one range."""
    parts: list[Any] = []
    start = end = -1  # of the range that is not in `parts` yet

    def counted() -> Any:
        return compute.add(_places().slice(0, end - start), pyarrow.scalar(start, pyarrow.int64()))

    for first, count in zip(offsets, counts, strict=True):
        if isinstance(first, int) and first == end:
            end += count
            continue
        if start >= 0:
            parts.append(counted())
        start, end = (first, first + count) if isinstance(first, int) else (-1, -1)
        if start < 0:
            parts.append(first)
    if start >= 0:
        parts.append(counted())
    return _joined(parts)


def _time_array(decoded: batch.Batch) -> Any:
    """The producers' own times; null where they gave none."""
    column = decoded.timestamp_column()
    if column is None:
        return pyarrow.nulls(decoded.count, TIME)
    milliseconds = pyarrow.Array.from_buffers(pyarrow.int64(), decoded.count, [None, _numbers(column)])
    return compute.multiply(milliseconds, pyarrow.scalar(1_000, pyarrow.int64())).cast(TIME)


def _header_array(decoded: batch.Batch) -> Any:
    """A list of (key, value) per message, null where it has none, as Spark's Kafka connector has it."""
    if decoded.headers_column() is None:
        return pyarrow.nulls(decoded.count, _HEADERS)
    headers = decoded.headers()
    starts: list[int | None] = []
    total = 0
    for one in headers:
        starts.append(total if one else None)
        total += len(one)
    pairs = pyarrow.StructArray.from_arrays(
        [
            pyarrow.array([name for one in headers for name in one], pyarrow.string()),
            pyarrow.array([value for one in headers for value in one.values()], pyarrow.binary()),
        ],
        fields=list(_HEADER),
    )
    return pyarrow.ListArray.from_arrays(pyarrow.array([*starts, total], pyarrow.int32()), pairs, type=_HEADERS)


def gather(
    topic: str,
    partition: int,
    stored: Iterable[StoredBatch],
    start_offset: int,
    end_offset: int,
    *,
    include_headers: bool = False,
    include_metadata: bool = False,
) -> Iterator[Any]:
    """The record batches of [start_offset, end_offset) of a partition, from the batches that hold them."""
    gatherer = RowGatherer(topic, partition, include_headers=include_headers, include_metadata=include_metadata)
    for one in stored:
        gatherer.add(one, start_offset, end_offset)
        if gatherer.is_enough:
            yield gatherer.take()
    rest = gatherer.take()
    if rest is not None:
        yield rest
