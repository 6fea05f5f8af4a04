"""Record batches from stored batches: every message once, where it belongs, in the types that Spark compares."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from lanner import batch, limits
from lanner.batch import Codec
from lanner.errors import MalformedBatch
from tests.spoilt import undecodable

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from lanner.spark import columns  # noqa: E402
from lanner.spark.columns import RowGatherer, StoredBatch, gather  # noqa: E402

APPEND_MS = 1_700_000_000_123
APPEND_TIME = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


def rows_of(
    stored: Sequence[StoredBatch], start: int = 0, end: int = 10**6, *, include_headers: bool = False
) -> list[dict[str, Any]]:
    rows = []
    for one in gather("orders", 2, stored, start, end, include_headers=include_headers):
        one.validate(full=True)
        assert one.schema.equals(columns.arrow_schema(include_headers))
        rows += one.to_pylist()
    return rows


def offsets_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_becomes_rows_with_all_that_belongs_to_them(codec: Codec) -> None:
    data = batch.encode(
        [b"one" * 30, b"", b"three" * 30],
        keys=[None, b"", b"key"],
        headers=[{"a": b"1", "b": b"2"}, None, {"c": b""}],
        priority=9,
        codec=codec,
    )
    assert batch.read_header(data).codec is codec
    rows = rows_of([StoredBatch(40, APPEND_MS, data)], include_headers=True)
    shared = {"topic": "orders", "partition": 2, "timestamp": APPEND_TIME, "priority": 9}
    assert rows == [
        shared
        | {
            "key": None,
            "value": b"one" * 30,
            "offset": 40,
            "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}],
        },
        shared | {"key": b"", "value": b"", "offset": 41, "headers": None},
        shared | {"key": b"key", "value": b"three" * 30, "offset": 42, "headers": [{"key": "c", "value": b""}]},
    ]


def test_headers_are_a_column_only_when_asked_for() -> None:
    stored = [StoredBatch(0, APPEND_MS, batch.encode([b"x"], headers=[{"a": b"1"}]))]
    assert "headers" not in rows_of(stored)[0]
    plain = [StoredBatch(0, APPEND_MS, batch.encode([b"x", b"y"]))]
    assert [row["headers"] for row in rows_of(plain, include_headers=True)] == [None, None]


def test_the_first_and_the_last_batch_are_cut_to_the_span() -> None:
    values = [b"%d" % number for number in range(30)]
    keys = [b"k%d" % number if number % 3 else None for number in range(30)]
    stored = [
        StoredBatch(base, APPEND_MS, batch.encode(values[base : base + 10], keys=keys[base : base + 10]))
        for base in (0, 10, 20)
    ]
    rows = rows_of(stored, 7, 23)
    assert offsets_of(rows) == list(range(7, 23))
    assert [row["value"] for row in rows] == values[7:23]
    assert [row["key"] for row in rows] == keys[7:23]


def test_batches_outside_the_span_give_no_rows() -> None:
    stored = [StoredBatch(base, APPEND_MS, batch.encode([b"x"] * 10)) for base in (0, 10, 20)]
    assert offsets_of(rows_of(stored, 10, 20)) == list(range(10, 20))
    assert rows_of(stored, 30, 40) == []
    assert rows_of([]) == []


@given(
    st.sets(st.integers(0, 19), min_size=1),
    st.integers(0, 25),
    st.integers(0, 25),
    st.sampled_from(Codec),
)
def test_an_extract_keeps_the_offsets_of_its_original(kept: set[int], start: int, length: int, codec: Codec) -> None:
    values = [b"value %d" % number for number in range(20)]
    headers = [{"n": b"%d" % number} if number % 2 else None for number in range(20)]
    data = batch.extract(batch.encode(values, headers=headers, codec=codec), sorted(kept))
    rows = rows_of([StoredBatch(100, APPEND_MS, data)], 100 + start, 100 + start + length, include_headers=True)
    expected = [position for position in sorted(kept) if start <= position < start + length]
    assert offsets_of(rows) == [100 + position for position in expected]
    assert [row["value"] for row in rows] == [values[position] for position in expected]
    assert [row["headers"] is None for row in rows] == [position % 2 == 0 for position in expected]


def test_a_message_of_an_extract_that_was_changed_is_found() -> None:
    data = bytearray(batch.extract(batch.encode([b"first", b"second"]), [1]))
    data[data.index(b"second")] ^= 1
    struct.pack_into("<I", data, 4, crc32c(bytes(data[8:])))
    with pytest.raises(MalformedBatch, match="not what its producer sent"):
        rows_of([StoredBatch(0, APPEND_MS, bytes(data))])


def test_damaged_bytes_are_refused() -> None:
    data = bytearray(batch.encode([b"first"]))
    data[-1] ^= 1
    with pytest.raises(MalformedBatch, match="crc"):
        rows_of([StoredBatch(0, APPEND_MS, data)])


def test_what_does_not_decode_is_a_hole_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    stored = [
        StoredBatch(0, APPEND_MS, memoryview(batch.encode([b"a"]))),
        StoredBatch(1, APPEND_MS, memoryview(undecodable(2))),
        StoredBatch(3, APPEND_MS, memoryview(batch.encode([b"z"]))),
    ]
    assert offsets_of(rows_of(stored)) == [0, 3]
    assert "offset 1" in caplog.text


def test_a_batch_whose_offsets_fall_is_a_hole_too(caplog: pytest.LogCaptureFixture) -> None:
    data = bytearray(batch.encode([b"aa", b"b", b"c"]))
    place = data.index(struct.pack("<4i", 0, 2, 3, 4))
    struct.pack_into("<4i", data, place, 0, 3, 2, 4)
    struct.pack_into("<I", data, 4, crc32c(bytes(data[8:])))
    assert rows_of([StoredBatch(7, APPEND_MS, data)]) == []
    assert "do not rise" in caplog.text


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 3), st.booleans(), st.booleans(), st.integers(0, 9)), max_size=8
    )
)
def test_batches_of_every_kind_share_a_record_batch_and_keep_their_rows(
    kinds: list[tuple[int, int, bool, bool, int]],
) -> None:
    """Holes before some, keys in some, extracts among them, each with a time and a priority of its own."""
    stored, expected, base = [], [], 5
    for number, (count, hole, keyed, extracted, priority) in enumerate(kinds):
        base += hole
        keys = [b"k%d" % place for place in range(count)] if keyed else None
        values = [b"%d-%d" % (number, place) for place in range(count)]
        data = batch.encode(values, keys=keys, priority=priority)
        kept = range(0, count, 2) if extracted else range(count)
        stored.append(StoredBatch(base, number, batch.extract(data, kept) if extracted else data))
        for place in kept:
            key = keys[place] if keys else None
            expected.append((base + place, key, values[place], priority, number))
        base += count
    told = [
        (row["offset"], row["key"], row["value"], row["priority"], round(row["timestamp"].timestamp() * 1_000))
        for row in rows_of(stored)
    ]
    assert told == expected


def test_small_batches_are_gathered_and_keep_their_own_times_and_priorities() -> None:
    stored = [
        StoredBatch(number, APPEND_MS + number, batch.encode([b"%d" % number], priority=number % 10))
        for number in range(50)
    ]
    made = list(gather("orders", 2, stored, 0, 50))
    assert len(made) == 1
    rows = made[0].to_pylist()
    assert [row["priority"] for row in rows] == [number % 10 for number in range(50)]
    assert [round(row["timestamp"].timestamp() * 1_000) for row in rows] == [APPEND_MS + n for n in range(50)]
    assert [row["value"] for row in rows] == [b"%d" % number for number in range(50)]


def test_enough_rows_or_bytes_travel_at_once() -> None:
    many = batch.encode([b""] * (columns.ROWS_MIN // 2))
    stored = [StoredBatch(number * columns.ROWS_MIN // 2, APPEND_MS, many) for number in range(5)]
    assert [one.num_rows for one in gather("orders", 2, stored, 0, 10**6)] == [8_192, 8_192, 4_096]
    large = batch.encode([bytes(limits.MESSAGE_BYTES_MAX)] * 2)
    stored = [StoredBatch(number * 2, APPEND_MS, large) for number in range(3)]
    assert [one.num_rows for one in gather("orders", 2, stored, 0, 10**6)] == [2, 2, 2]


def test_a_large_batch_is_wrapped_and_not_copied() -> None:
    data = batch.encode([b"v" * 100] * columns.ROWS_MIN)
    start = pyarrow.py_buffer(data).address
    (made,) = gather("orders", 2, [StoredBatch(0, APPEND_MS, data)], 0, 10**6)
    for buffer in made.column("value").buffers()[1:]:
        assert start <= buffer.address < start + len(data)


def test_a_batch_that_lies_across_a_boundary_of_memory_is_moved() -> None:
    data = batch.encode([b"v" * 100] * 10)
    for shift in range(1, 9):
        cut_out = memoryview(b"x" * shift + data)[shift:]
        gatherer = RowGatherer("orders", 2)
        gatherer.add(StoredBatch(0, APPEND_MS, cut_out), 0, 10)
        made = gatherer.take()
        assert made is not None
        assert all(buffer.address % 8 == 0 for buffer in made.column("value").buffers()[1:2])
        assert made.column("value").to_pylist() == [b"v" * 100] * 10
    assert gatherer.take() is None


@pytest.mark.parametrize("codec", Codec)
def test_metadata_columns_tell_the_times_and_what_groups_do_not_get(codec: Codec) -> None:
    early = batch.encode([b"a" * 99, b"b"], timestamps=[APPEND_MS, -5], expires_at_ms=2_000, codec=codec)
    late = batch.encode([b"c"], deliver_at_ms=9_000)
    stored = [StoredBatch(0, APPEND_MS, early, 3_000), StoredBatch(2, APPEND_MS, late, 3_000)]
    (made,) = gather("orders", 2, stored, 1, 10, include_metadata=True)
    made.validate(full=True)
    assert made.schema.equals(columns.arrow_schema(False, True))
    told = [tuple(row.values())[-4:] for row in made.to_pylist()]
    assert told == [
        (datetime(1969, 12, 31, 23, 59, 59, 995_000, tzinfo=UTC), None, datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), 2),
        (None, datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC), None, 1),
    ]
