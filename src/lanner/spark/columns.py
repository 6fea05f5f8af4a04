"""From the columns of message batches to the record batches that Spark takes, without a Python object per message.

The values and keys of a batch already lie as Arrow wants them (`lanner.batch`): their buffers are wrapped, not copied.
What all messages of a batch share (topic, partition, append time, priority) becomes a column by repetition. Only
headers are made message by message, and only when they are asked for. The metadata columns (the producers' own times,
when queue groups get a message and until when) are asked for in the same way.

It knows bytes and Arrow; it refuses to know Spark, sockets and options.

Small batches are gathered until there are enough rows for the trip to the JVM to pay; a large one travels alone and
uncopied. Every batch is verified: its own checksum, or, in an extract, the producer's checksum of each message. One
whose producer sent bytes that do not decode is a hole, and is logged.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
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
    """0, 1, 2, … as far as a batch can reach; made once, sliced and added to ever after."""
    return pyarrow.array(range(limits.BATCH_MESSAGES_MAX), pyarrow.int64())


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
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._offsets: list[Any] = []
        self._headers: list[Any] = []
        self._run_ends: list[int] = []
        self._append_us: list[int] = []
        self._priorities: list[int] = []
        self._producer_times: list[Any] = []
        self._deliver_us: list[int | None] = []
        self._expires_us: list[int | None] = []
        self._flags: list[int] = []

    def add(self, stored: StoredBatch, start_offset: int, end_offset: int) -> None:
        """Take those messages of a batch whose offset lies in [start_offset, end_offset)."""
        try:
            decoded = batch.decode(aligned(stored.data))
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
        self._keys.append(_key_array(decoded).slice(first, count))
        self._offsets.append(_offset_array(decoded, stored.base_offset, first, count))
        if self._include_headers:
            self._headers.append(_header_array(decoded).slice(first, count))
        if self._include_metadata:
            self._producer_times.append(_time_array(decoded).slice(first, count))
        self._rows += count
        self._bytes += len(stored.data)
        self._run_ends.append(self._rows)
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
        rows = self._rows
        columns = [
            _joined(self._keys),
            _joined(self._values),
            pyarrow.repeat(pyarrow.scalar(self._topic, pyarrow.string()), rows),
            pyarrow.repeat(pyarrow.scalar(self._partition, pyarrow.int32()), rows),
            _joined(self._offsets),
            self._runs(self._append_us, TIME),
            self._runs(self._priorities, pyarrow.int32()),
        ]
        if self._include_headers:
            columns.append(_joined(self._headers))
        if self._include_metadata:
            columns += [
                _joined(self._producer_times),
                self._runs(self._deliver_us, TIME),
                self._runs(self._expires_us, TIME),
                self._runs(self._flags, pyarrow.int32()),
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

    def _runs(self, values: Sequence[int | None], kind: Any) -> Any:
        """One value per batch, spread over its rows."""
        if len(values) == 1:
            return pyarrow.repeat(pyarrow.scalar(values[0], kind), self._rows)
        ends = pyarrow.array(self._run_ends, pyarrow.int32())
        return compute.run_end_decode(pyarrow.RunEndEncodedArray.from_arrays(ends, pyarrow.array(values, kind)))


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pyarrow.concat_arrays(arrays)


def aligned(data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    """Arrow wants its numbers on 8-byte boundaries of memory. A batch cut out of a reply may lie anywhere: move it."""
    return data if pyarrow.py_buffer(data).address % 8 == 0 else bytes(data)


def _rows_between(decoded: batch.Batch, start: int, end: int) -> tuple[int, int]:
    """The rows whose position in the original batch lies in [start, end)."""
    if decoded.positions is not None:
        return bisect_left(decoded.positions, start), bisect_left(decoded.positions, end)
    return max(start, 0), min(end, decoded.count)


def _value_array(decoded: batch.Batch) -> Any:
    offsets, data = decoded.value_column()
    buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
    return pyarrow.Array.from_buffers(pyarrow.binary(), decoded.count, buffers)


def _key_array(decoded: batch.Batch) -> Any:
    column = decoded.key_column()
    if column is None:
        return pyarrow.nulls(decoded.count, pyarrow.binary())
    offsets, data, validity = column
    valid = None if validity is None else pyarrow.py_buffer(validity)
    return pyarrow.Array.from_buffers(
        pyarrow.binary(), decoded.count, [valid, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
    )


def _offset_array(decoded: batch.Batch, base_offset: int, first: int, count: int) -> Any:
    column = decoded.position_column()
    if column is None:
        positions = _places().slice(first, count)
    else:
        whole = pyarrow.Array.from_buffers(pyarrow.uint32(), decoded.count, [None, pyarrow.py_buffer(column)])
        positions = whole.slice(first, count).cast(pyarrow.int64())
    return compute.add(positions, pyarrow.scalar(base_offset, pyarrow.int64()))


def _time_array(decoded: batch.Batch) -> Any:
    """The producers' own times; null where they gave none."""
    column = decoded.timestamp_column()
    if column is None:
        return pyarrow.nulls(decoded.count, TIME)
    milliseconds = pyarrow.Array.from_buffers(pyarrow.int64(), decoded.count, [None, pyarrow.py_buffer(column)])
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
