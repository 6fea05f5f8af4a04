"""How the rows of a replay are cut into chunks and divided by lane."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

import pyarrow

from lanner.batch import partition_for_key
from lanner.spark.archive import lanes
from lanner.spark.rows import ANY, Piece

NOW_MS = 1_000_000


def row(
    offset: int, priority: int = 4, partition: int = 0, key: bytes | None = None, **times: int | None
) -> dict[str, Any]:
    return {
        "key": key,
        "value": b"%d" % offset,
        "partition": partition,
        "offset": offset,
        "priority": priority,
        "headers": None,
        "producer_timestamp": times.get("sent"),
        "deliver_at": times.get("deliver"),
        "expires_at": times.get("expires"),
    }


def record_batch(*rows: dict[str, Any]) -> Any:
    return pyarrow.RecordBatch.from_pylist(list(rows), schema=lanes.SCHEMA)


def cut(rows_max: int, bytes_max: int, *batches: Any) -> list[tuple[int, list[int]]]:
    return [(partition, rows["offset"].to_pylist()) for partition, rows in lanes.chunks(batches, rows_max, bytes_max)]


def made(*rows: dict[str, Any], partitions: int | None = None) -> list[Piece]:
    ((_, table),) = lanes.chunks([record_batch(*rows)], 1_000, 1_000_000)
    return list(lanes.pieces(lanes.by_lane(table, NOW_MS, partitions), "again"))


def test_chunks_are_cut_by_rows_and_where_the_partition_changes_across_record_batches() -> None:
    first = record_batch(row(0), row(1), row(2))
    second = record_batch(row(3), row(0, partition=1), row(1, partition=1))
    assert cut(2, 1_000_000, first, record_batch(), second) == [(0, [0, 1]), (0, [2, 3]), (1, [0, 1])]
    assert cut(100, 1_000_000, first, second) == [(0, [0, 1, 2, 3]), (1, [0, 1])]


def test_chunks_are_bounded_in_bytes_and_a_single_row_always_goes() -> None:
    rows = [row(number) | {"value": b"x" * 1_000} for number in range(8)]
    found = cut(100, 2_500, record_batch(*rows))
    assert [offset for _, offsets in found for offset in offsets] == list(range(8))
    assert max(len(offsets) for _, offsets in found) <= 3
    assert cut(100, 10, record_batch(*rows[:2])) == [(0, [0]), (0, [1])]


def test_alternating_priorities_make_one_batch_each_in_their_order() -> None:
    found = made(*(row(number, priority=number % 3) for number in range(9)))
    assert [(one.partition, one.priority, one.values) for one in found] == [
        (0, 0, [b"0", b"3", b"6"]),
        (0, 1, [b"1", b"4", b"7"]),
        (0, 2, [b"2", b"5", b"8"]),
    ]


def test_a_lane_is_cut_where_its_messages_cannot_share_a_batch_and_keeps_its_order() -> None:
    found = made(
        row(0),
        row(1, expires=NOW_MS + 5),
        row(2, priority=9),
        row(3),
        row(4, deliver=NOW_MS + 7),
        row(5, deliver=NOW_MS + 7),
        row(6, sent=17),
        row(7, sent=18),
    )
    assert [(one.values, one.deliver_at_ms, one.expires_at_ms, one.timestamps) for one in found] == [
        ([b"0"], 0, 0, None),
        ([b"1"], 0, NOW_MS + 5, None),
        ([b"3"], 0, 0, None),
        ([b"4", b"5"], NOW_MS + 7, 0, None),
        ([b"6", b"7"], 0, 0, [17, 18]),
        ([b"2"], 0, 0, None),
    ]


def test_a_delay_that_is_over_is_none_and_what_has_expired_is_told_apart() -> None:
    rows = [row(0, deliver=NOW_MS), row(1, expires=NOW_MS), row(2, expires=NOW_MS + 1), row(3)]
    found = made(*rows)
    assert [(one.values, one.deliver_at_ms, one.expires_at_ms) for one in found] == [
        ([b"0", b"1"], 0, 0),
        ([b"2"], 0, NOW_MS + 1),
        ([b"3"], 0, 0),
    ]
    ((_, table),) = lanes.chunks([record_batch(*rows)], 100, 1_000_000)
    assert lanes.without_expired(table, NOW_MS)["offset"].to_pylist() == [0, 2, 3]


def test_where_keys_decide_messages_without_one_go_anywhere() -> None:
    keys = [b"a", None, b"b", b"a"]
    found = made(*(row(number, key=key) for number, key in enumerate(keys)), partitions=5)
    places = {value: one.partition for one in found for value in one.values}
    assert places == {
        b"%d" % number: ANY if key is None else partition_for_key(key, 5) for number, key in enumerate(keys)
    }
