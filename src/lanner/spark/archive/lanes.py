"""The rows of a replay, from record batches to the batches that are staged: in chunks, and by lane inside each.

Rows come by source partition and in the order of their offsets. A chunk is some neighbours of one partition, bounded in
rows and bytes: it is published as a whole. Inside a chunk the rows of each lane (a partition and a priority of the
target) go together, in their order. That is the order that Lanner promises; and a topic whose priorities alternate from
message to message makes a few large batches instead of thousands of small ones. A lane is cut where messages cannot
share a batch: where a delay or an expiry changes, and where producers begin, or cease, to send their time.

It knows Arrow; it refuses to know Spark, sockets and time: now is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow
from pyarrow import compute

from lanner.spark.rows import ANY, Piece, cut, partitions_by_key

_PAIR: Final = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
SCHEMA: Final = pyarrow.schema(
    [
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("partition", pyarrow.int64()),
        ("offset", pyarrow.int64()),
        ("priority", pyarrow.int64()),
        ("headers", pyarrow.list_(_PAIR)),
        ("producer_timestamp", pyarrow.int64()),  # moments in milliseconds since 1970, null where there is none
        ("deliver_at", pyarrow.int64()),
        ("expires_at", pyarrow.int64()),
    ]
)
_LANE: Final = ("partition", "priority")
_SHARED: Final = (*_LANE, "deliver_at", "expires_at", "timed")  # what the messages of a batch have in common
_ROW: Final = "row"


class Lanes(NamedTuple):
    """The rows of a chunk in the order in which they are staged, and where runs that share a batch begin."""

    rows: Any
    shared: Any
    starts: list[int]
    order: Any


def chunks(record_batches: Iterable[Any], rows_max: int, bytes_max: int) -> Iterator[tuple[int, Any]]:
    """Source partitions with some of their rows, as tables, in the order in which they come."""
    held: list[Any] = []
    rows = size = 0
    current = -1
    for record_batch in record_batches:
        for partition, piece in _by_partition(record_batch):
            if held and partition != current:
                yield current, _table(held)
                held, rows, size = [], 0, 0
            current = partition
            while piece.num_rows:
                taken = piece.slice(0, rows_max - rows)
                while taken.num_rows > 1 and taken.nbytes > bytes_max:
                    taken = taken.slice(0, taken.num_rows // 2)
                piece = piece.slice(taken.num_rows)
                held.append(taken)
                rows += taken.num_rows
                size += taken.nbytes
                if rows >= rows_max or size >= bytes_max:
                    yield current, _table(held)
                    held, rows, size = [], 0, 0
    if held:
        yield current, _table(held)


def _by_partition(record_batch: Any) -> Iterator[tuple[int, Any]]:
    """Rows that stand together and are of one partition."""
    if not record_batch.num_rows:
        return
    encoded = compute.run_end_encode(record_batch.column("partition"))
    start = 0
    for end, partition in zip(encoded.run_ends.to_pylist(), encoded.values.to_pylist(), strict=True):
        yield partition, record_batch.slice(start, end - start)
        start = end


def _table(record_batches: list[Any]) -> Any:
    return pyarrow.Table.from_batches(record_batches).combine_chunks()


def without_expired(rows: Any, now_ms: int) -> Any:
    """Only what has not expired."""
    return rows.filter(compute.fill_null(compute.greater(rows["expires_at"], now_ms), True))


def by_lane(rows: Any, now_ms: int, partitions: int | None) -> Lanes:
    """The rows of a chunk by lane. Without a number of partitions each keeps its own; else its key decides."""
    shared = pyarrow.table(
        {
            "partition": _targets(rows, partitions),
            "priority": rows["priority"].combine_chunks(),
            "deliver_at": _to_come(rows["deliver_at"], now_ms),
            "expires_at": _to_come(rows["expires_at"], now_ms),
            "timed": compute.is_valid(rows["producer_timestamp"].combine_chunks()),
            _ROW: pyarrow.array(range(rows.num_rows), pyarrow.int64()),
        }
    )
    order = compute.sort_indices(shared, sort_keys=[(name, "ascending") for name in (*_LANE, _ROW)])
    shared = shared.take(order)
    starts = [0]
    if rows.num_rows > 1:
        changes = None
        for name in _SHARED:
            column = shared[name].combine_chunks()
            differs = compute.not_equal(column.slice(1), column.slice(0, rows.num_rows - 1))
            changes = differs if changes is None else compute.or_(changes, differs)
        starts += [place + 1 for place in compute.indices_nonzero(changes).to_pylist()]
    return Lanes(rows, shared, starts, order)


def _targets(rows: Any, partitions: int | None) -> Any:
    if partitions is None:
        return rows["partition"].combine_chunks()
    return compute.fill_null(partitions_by_key(rows["key"].combine_chunks(), partitions), ANY)


def _to_come(column: Any, now_ms: int) -> Any:
    """Moments that are still to come; 0 for those that are over, and where there was none."""
    moments = compute.fill_null(column.combine_chunks(), 0)
    return compute.if_else(compute.greater(moments, now_ms), moments, 0)


def pieces(lanes: Lanes, topic: str) -> Iterator[Piece]:
    """The batches of a chunk, in the order in which they are staged."""
    rows = lanes.rows
    values, keys, headers = (rows[name].combine_chunks() for name in ("value", "key", "headers"))
    times = rows["producer_timestamp"].combine_chunks()
    for start, end in pairwise([*lanes.starts, rows.num_rows]):
        partition, priority, deliver_at_ms, expires_at_ms, timed = (
            lanes.shared[name][start].as_py() for name in _SHARED
        )
        chosen = lanes.order.slice(start, end - start)
        own_keys, own_headers = keys.take(chosen), headers.take(chosen)
        yield from cut(
            (topic, partition, priority, deliver_at_ms, expires_at_ms),
            values.take(chosen),
            None if own_keys.null_count == len(own_keys) else own_keys,
            None if own_headers.null_count == len(own_headers) else own_headers,
            times.take(chosen) if timed else None,
        )
