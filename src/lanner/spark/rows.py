"""From the record batches that Spark hands out to the columns of message batches.

Columns are judged by their types once, before the first row. Rows are divided by what a batch of messages shares
(topic, partition, priority, deliver_at, expires_at) with Arrow's own functions; where all rows share it, nothing is
divided. Rows of a key go to its partition: each different key is hashed once for each record batch. The bytes of values
and keys become objects only for the checksum that every message has, in one call for a whole column; into a batch they
are copied as they lie. JSON and headers
are made row by row.

It knows Arrow; it refuses to know Spark, sockets and options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow
from pyarrow import compute, types

from lanner import limits
from lanner.batch import Laid, partition_for_key
from lanner.errors import ValidationError
from lanner.model import LANES, PRIORITY_NORMAL

VALUE, KEY, TOPIC, PARTITION, PRIORITY = "value", "key", "topic", "partition", "priority"
HEADERS, DELIVER_AT, EXPIRES_AT = "headers", "deliver_at", "expires_at"
COLUMNS: Final = (VALUE, KEY, TOPIC, PARTITION, PRIORITY, HEADERS, DELIVER_AT, EXPIRES_AT)
PIECE_BYTES: Final = 512 * limits.KIB
PIECE_ROWS: Final = 10_000
ANY: Final = -1  # a partition: whichever is next
_SHARED: Final = (TOPIC, PARTITION, PRIORITY, DELIVER_AT, EXPIRES_AT)
_ROW: Final = "row"
_encode_json: Final = msgspec.json.Encoder().encode


class Piece(NamedTuple):
    """Messages that travel in one batch."""

    topic: str
    partition: int  # ANY: whichever is next
    priority: int
    deliver_at_ms: int
    expires_at_ms: int
    values: list[bytes]
    keys: list[bytes | None] | None
    headers: list[dict[str, bytes] | None] | None
    timestamps: list[int] | None = None  # the producers' own


def check_columns(kinds: Mapping[str, Any], topic: str, value_format: str) -> None:
    """Refuse columns that a message does not have, or whose types cannot be meant."""
    unknown = [name for name in kinds if name not in COLUMNS]
    if unknown:
        _refuse(unknown[0], f"there is no such column of a message; there are {', '.join(COLUMNS)}")
    if VALUE not in kinds:
        _refuse(VALUE, "it is missing: every message has a value")
    if not topic and TOPIC not in kinds:
        _refuse(TOPIC, "say where to write: the option topic, or a column topic")
    _check_value(kinds[VALUE], value_format)
    for name, fits, wanted in (
        (KEY, lambda kind: _is_bytes(kind) or _is_text(kind), "binary or string"),
        (TOPIC, _is_text, "string"),
        (PARTITION, types.is_integer, "a whole number"),
        (PRIORITY, types.is_integer, "a whole number from 0 to 9"),
        (DELIVER_AT, types.is_timestamp, "timestamp"),
        (EXPIRES_AT, types.is_timestamp, "timestamp"),
        (HEADERS, _is_headers, "array of struct(key string, value binary), or map of string to binary"),
    ):
        if name in kinds and not fits(kinds[name]) and not types.is_null(kinds[name]):
            _refuse(name, f"it is {kinds[name]}; give {wanted}")


def _check_value(kind: Any, value_format: str) -> None:
    if value_format == "json":
        return
    wanted = {"bytes": _is_bytes(kind), "text": _is_text(kind), "": _is_bytes(kind) or _is_text(kind)}
    if not wanted[value_format]:
        known = {"bytes": "binary", "text": "string"}.get(value_format, "binary or string")
        _refuse(VALUE, f'it is {kind}; give {known}, or say .option("valueFormat", "json")')


def _is_bytes(kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_headers(kind: Any) -> bool:
    if types.is_map(kind):
        return _is_text(kind.key_type) and _is_bytes(kind.item_type)
    if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return set(fields) == {KEY, VALUE} and _is_text(fields[KEY]) and _is_bytes(fields[VALUE])


def pieces(record_batch: Any, topic: str, value_format: str, partitions_of: Callable[[str], int]) -> Iterator[Piece]:
    """The rows of a record batch as messages, cut so that each piece fits into a batch."""
    rows = record_batch.num_rows
    if not rows:
        return
    columns = {name: record_batch.column(name) for name in record_batch.schema.names}
    values = _values(columns[VALUE], value_format)
    keys = _keys(columns.get(KEY))
    shared = _shared(columns, topic, keys, rows, partitions_of)
    headers = columns.get(HEADERS)
    if headers is not None and headers.null_count == rows:
        headers = None
    for place, chosen in _divided(shared, rows):
        yield from cut(place, *(_taken(column, chosen) for column in (values, keys, headers)))


def _values(column: Any, value_format: str) -> Any:
    if column.null_count:
        _refuse(VALUE, "it is null in a row: every message has a value")
    if value_format == "json":
        maps = "strict" if _keys_are_names(column.type) else None
        return pyarrow.array([_encode_json(row) for row in column.to_pylist(maps_as_pydicts=maps)], pyarrow.binary())
    return _as_bytes(column)


def _keys_are_names(kind: Any) -> bool:
    """Whether JSON can name the keys of every map in it; else maps stay lists of pairs."""
    if types.is_map(kind) and (types.is_nested(kind.key_type) or types.is_boolean(kind.key_type)):
        return False
    inner = (kind.field(number).type for number in range(kind.num_fields)) if types.is_nested(kind) else ()
    return all(map(_keys_are_names, inner))


def _as_bytes(column: Any) -> Any:
    if types.is_string(column.type):
        return column.cast(pyarrow.binary())  # the same buffers
    return column.cast(pyarrow.large_binary()) if types.is_large_string(column.type) else column


def _keys(column: Any | None) -> Any | None:
    if column is None or column.null_count == len(column):
        return None
    return _as_bytes(column)


def _shared(
    columns: Mapping[str, Any], topic: str, keys: Any | None, rows: int, partitions_of: Callable[[str], int]
) -> dict[str, Any]:
    """What batches share, for each row; plain where all rows have the same."""
    found: dict[str, Any] = {TOPIC: topic or _topics(columns[TOPIC])}
    found[PRIORITY] = _numbers(columns.get(PRIORITY), PRIORITY_NORMAL, PRIORITY, LANES - 1)
    found[DELIVER_AT] = _moments(columns.get(DELIVER_AT), DELIVER_AT)
    found[EXPIRES_AT] = _moments(columns.get(EXPIRES_AT), EXPIRES_AT)
    given = _numbers(columns.get(PARTITION), ANY, PARTITION, limits.PARTITIONS_MAX - 1)
    found[PARTITION] = given if keys is None else _by_key(keys, found[TOPIC], given, rows, partitions_of)
    return found


def _topics(column: Any) -> Any:
    if column.null_count:
        _refuse(TOPIC, "it is null in a row: say where to write it, or give the option topic")
    return _plain(column)


def _numbers(column: Any | None, default: int, name: str, highest: int) -> Any:
    if column is None or column.null_count == len(column):
        return default
    bounds = compute.min_max(column).as_py()
    if bounds["min"] < 0 or bounds["max"] > highest:
        wrong = bounds["min"] if bounds["min"] < 0 else bounds["max"]
        _refuse(name, f"it is {wrong} in a row; give 0 to {highest}")
    return _plain(compute.fill_null(column.cast(pyarrow.int64()), default))


def _moments(column: Any | None, name: str) -> Any:
    """Milliseconds since 1970; 0 where there is none."""
    if column is None or column.null_count == len(column):
        return 0
    moments = column.cast(pyarrow.timestamp("ms", tz=column.type.tz), safe=False).cast(pyarrow.int64())
    if compute.min(moments).as_py() < 0:
        _refuse(name, "it is before 1970 in a row")
    return _plain(compute.fill_null(moments, 0))


def _plain(column: Any) -> Any:
    """The one value that all rows have, or the column."""
    first = column[0]
    return first.as_py() if compute.all(compute.equal(column, first)).as_py() else column


def _by_key(keys: Any, topics: Any, given: Any, rows: int, partitions_of: Callable[[str], int]) -> Any:
    """The partition of each row: the one given, or that of its key, or any."""
    if isinstance(topics, str):
        chosen = partitions_by_key(keys, partitions_of(topics))
    else:
        chosen = pyarrow.nulls(rows, pyarrow.int64())
        for one in topics.unique().to_pylist():
            chosen = compute.if_else(compute.equal(topics, one), partitions_by_key(keys, partitions_of(one)), chosen)
    chosen = compute.fill_null(chosen, ANY)
    if isinstance(given, int):
        return _plain(chosen) if given == ANY else given
    return _plain(compute.if_else(compute.equal(given, ANY), chosen, given))


def partitions_by_key(keys: Any, partitions: int) -> Any:
    """The partition of each key; null where there is none."""
    if partitions == 1:
        return compute.if_else(compute.is_valid(keys), 0, pyarrow.scalar(None, pyarrow.int64()))
    encoded = keys.dictionary_encode()
    places = [partition_for_key(key, partitions) for key in encoded.dictionary.to_pylist()]
    return pyarrow.array(places, pyarrow.int64()).take(encoded.indices)


@cache
def _counted(count: int) -> Any:
    """0, 1, 2, …; made once for all record batches of about a size."""
    return pyarrow.array(range(count), pyarrow.int64())


def _divided(shared: Mapping[str, Any], rows: int) -> Iterator[tuple[tuple[Any, ...], Any | None]]:
    """The rows by what they share, in their order; None: all of them."""
    varied = [name for name in _SHARED if not isinstance(shared[name], str | int)]
    if not varied:
        yield tuple(shared[name] for name in _SHARED), None
        return
    table = pyarrow.table(
        {**{name: shared[name] for name in varied}, _ROW: _counted(1 << rows.bit_length()).slice(0, rows)}
    )
    grouped = table.group_by(varied, use_threads=False).aggregate([(_ROW, "list")])
    chosen = grouped.column(f"{_ROW}_list").combine_chunks()
    for number, group in enumerate(grouped.select(varied).to_pylist()):
        yield tuple(group.get(name, shared[name]) for name in _SHARED), chosen[number].values


def _taken(column: Any | None, chosen: Any | None) -> Any | None:
    return column if column is None or chosen is None else column.take(chosen)


def cut(
    place: tuple[Any, ...], values: Any, keys: Any | None, headers: Any | None, timestamps: Any | None = None
) -> Iterator[Piece]:
    """Rows of one place, as columns, cut so that each piece fits into a batch.

    Halve until it fits: the sizes of columns are known without looking at their rows.
    """
    waiting = [(0, len(values))]
    while waiting:
        start, count = waiting.pop()
        mine = [None if column is None else column.slice(start, count) for column in (values, keys, headers)]
        size = sum(column.nbytes for column in mine if column is not None)
        if count > 1 and (size > PIECE_BYTES or count > PIECE_ROWS):
            half = count // 2
            waiting += [(start + half, count - half), (start, half)]
            continue
        topic, partition, priority, deliver_at_ms, expires_at_ms = place
        own_values, own_keys, own_headers = mine
        assert own_values is not None, "every message has a value"
        yield Piece(
            topic,
            partition,
            priority,
            deliver_at_ms,
            expires_at_ms,
            _items(own_values),
            None if own_keys is None else _items(own_keys),
            None if own_headers is None else [_header_map(row) for row in own_headers.to_pylist()],
            None if timestamps is None else timestamps.slice(start, count).to_pylist(),
        )


def _items(column: Any) -> list[Any]:
    """The bytes of each row, and where they lie: so a batch takes the column as it is."""
    if column.null_count or not types.is_binary(column.type):
        return list(column.to_pylist())
    _, offsets, data = column.buffers()
    bounds = pyarrow.Array.from_buffers(pyarrow.int32(), len(column) + 1, [None, offsets], offset=column.offset)
    first, last = bounds[0].as_py(), bounds[-1].as_py()
    bounds = compute.subtract(bounds, pyarrow.scalar(first, pyarrow.int32()))  # a column of its own, from 0
    own = memoryview(bounds.buffers()[1])[: 4 * len(bounds)]
    return Laid(column.to_pylist(), own, b"" if data is None else memoryview(data)[first:last])


def _header_map(row: Any) -> dict[str, bytes] | None:
    if not row:
        return None
    pairs = row if isinstance(row[0], tuple) else [(pair[KEY], pair[VALUE]) for pair in row if pair is not None]
    return {name: b"" if value is None else value for name, value in pairs}


def _refuse(column: str, why: str) -> None:
    raise ValidationError(f"column {column}: {why}", field=column)
