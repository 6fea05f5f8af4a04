"""Rows of Spark as messages: which batch each goes into, which columns are taken, and which are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the extra 'spark' is not installed")

import pyarrow

from lanner.batch import Laid, encode, partition_for_key
from lanner.errors import ValidationError
from lanner.spark import rows
from lanner.spark.rows import ANY, Piece, check_columns, pieces

HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))


def made(topic: str = "t", value_format: str = "", /, *, partitions: int = 4, **columns: Any) -> list[Piece]:
    given = {"value": [b"a", b"b", b"c"], **columns}
    batch = pyarrow.RecordBatch.from_pydict(given)
    check_columns({field.name: field.type for field in batch.schema}, topic, value_format)
    return list(pieces(batch, topic, value_format, lambda _: partitions))


def test_rows_that_share_everything_are_one_piece() -> None:
    assert made() == [Piece("t", ANY, 4, 0, 0, [b"a", b"b", b"c"], None, None)]


def test_text_is_written_as_utf8_and_anything_as_json() -> None:
    [piece] = made(value=["ä", "", "x"])
    assert piece.values == ["ä".encode(), b"", b"x"]
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    [piece] = made("t", "json", value=[{"id": 1, "at": moment}, {"id": None, "at": None}])
    assert piece.values == [b'{"id":1,"at":"2026-01-02T00:00:00Z"}', b'{"id":null,"at":null}']


def test_a_map_is_an_object_of_json_at_any_depth() -> None:
    """As Spark's own to_json writes it, and from_json reads it."""
    counts = pyarrow.map_(pyarrow.string(), pyarrow.map_(pyarrow.int32(), pyarrow.float64()))
    column = pyarrow.array(
        [{"m": [("a", [(1, 0.5)]), ("b", None)]}, {"m": []}, {"m": None}], pyarrow.struct({"m": counts})
    )
    [piece] = made("t", "json", value=column)
    assert piece.values == [b'{"m":{"a":{"1":0.5},"b":null}}', b'{"m":{}}', b'{"m":null}']
    by_place = pyarrow.map_(pyarrow.struct({"x": pyarrow.int32()}), pyarrow.int32())
    [piece] = made("t", "json", value=pyarrow.array([[({"x": 1}, 2)]], by_place))
    assert piece.values == [b'[[{"x":1},2]]']  # no name of an object can be made of such a key


def test_rows_go_to_the_partition_given_then_to_that_of_their_key() -> None:
    found = made(
        value=[b"0", b"1", b"2", b"3", b"4"],
        key=[b"k1", b"k2", None, b"k1", None],
        partition=pyarrow.array([None, 3, 2, None, None], pyarrow.int32()),
    )
    expected: dict[int, list[bytes]] = {3: [b"1"], 2: [b"2"], ANY: [b"4"]}
    expected.setdefault(partition_for_key(b"k1", 4), []).extend([b"0", b"3"])
    assert {piece.partition: sorted(piece.values) for piece in found} == {
        partition: sorted(values) for partition, values in expected.items()
    }
    keys = {value: key for piece in found for value, key in zip(piece.values, piece.keys or (), strict=True)}
    assert keys == {b"0": b"k1", b"1": b"k2", b"2": None, b"3": b"k1", b"4": None}


def test_the_order_of_rows_is_kept_within_a_piece() -> None:
    numbers = [b"%03d" % number for number in range(500)]
    found = made(value=numbers, priority=[number % 3 for number in range(500)])
    assert [piece.priority for piece in found] == [0, 1, 2]
    assert [piece.values for piece in found] == [numbers[start::3] for start in range(3)]


def test_the_option_topic_wins_over_the_column_and_the_column_divides() -> None:
    topics = ["a", "b", "a"]
    assert [(piece.topic, piece.values) for piece in made("", topic=topics)] == [("a", [b"a", b"c"]), ("b", [b"b"])]
    assert [piece.topic for piece in made("t", topic=topics)] == ["t"]
    assert len(made("", topic=topics, key=[b"x", b"x", b"x"])) == 2


def test_times_are_milliseconds_and_none_is_zero() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)
    times = pyarrow.array([at, None, at], pyarrow.timestamp("us", tz="UTC"))
    found = made(deliver_at=times, expires_at=pyarrow.array([None, None, at], pyarrow.timestamp("us", tz="UTC")))
    ms = 1_767_323_045_678
    assert [(one.deliver_at_ms, one.expires_at_ms, one.values) for one in found] == [
        (ms, 0, [b"a"]),
        (0, 0, [b"b"]),
        (ms, ms, [b"c"]),
    ]


def test_headers_come_as_pairs_or_as_a_map() -> None:
    pairs = pyarrow.array([[{"key": "h", "value": b"1"}, {"key": "e", "value": None}], None, []], HEADERS)
    assert made(headers=pairs)[0].headers == [{"h": b"1", "e": b""}, None, None]
    kind = pyarrow.map_(pyarrow.string(), pyarrow.binary())
    assert made(headers=pyarrow.array([[("h", b"1")], None, []], kind))[0].headers == [{"h": b"1"}, None, None]


@given(
    st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=3)), min_size=1, max_size=30),
    st.integers(0, 29),
)
def test_columns_are_taken_as_they_lie_also_from_the_middle(given_: list[tuple[bytes, bytes]], skip: int) -> None:
    """Spark's record batches begin with their buffers; those that are cut or divided here do not."""
    taken = given_[min(skip, len(given_) - 1) :]
    whole = pyarrow.record_batch(
        {"value": pyarrow.array([value for value, _ in given_]), "key": pyarrow.array([key for _, key in given_])},
        schema=pyarrow.schema([("value", pyarrow.binary()), ("key", pyarrow.binary())]),
    )
    (made,) = pieces(whole.slice(len(given_) - len(taken)), "orders", "", lambda _: 1)
    plain = [value for value, _ in taken], [key for _, key in taken]
    assert isinstance(made.values, Laid) and isinstance(made.keys, Laid)
    assert (made.values, made.keys) == plain
    assert encode(made.values, keys=made.keys) == encode(plain[0], keys=plain[1])


def test_large_record_batches_are_cut_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PIECE_ROWS", 7)
    numbers = [b"%03d" % number for number in range(100)]
    found = made(value=numbers)
    assert [value for piece in found for value in piece.values] == numbers
    assert max(len(piece.values) for piece in found) <= 7
    monkeypatch.setattr(rows, "PIECE_ROWS", 1_000)
    monkeypatch.setattr(rows, "PIECE_BYTES", 1_000)
    sizes = [len(piece.values) for piece in made(value=[b"x" * 300] * 20 + [b"y" * 5_000])]
    assert sum(sizes) == 21
    assert sizes[-1] == 1


@pytest.mark.parametrize(
    ("columns", "topic", "value_format", "problem"),
    [
        ({"colour": ["red"] * 3}, "t", "", "column colour: there is no such column"),
        ({}, "", "", "column topic: say where to write"),
        ({"topic": ["a", None, "a"]}, "", "", "column topic: it is null in a row"),
        ({"value": [b"a", None, b"c"]}, "t", "", "column value: it is null in a row"),
        ({"value": [{"a": 1}] * 3}, "t", "", 'say .option("valueFormat", "json")'),
        ({"value": ["text"] * 3}, "t", "bytes", "give binary"),
        ({"value": [b"bytes"] * 3}, "t", "text", "give string"),
        ({"priority": [0, 10, 1]}, "t", "", "column priority: it is 10 in a row"),
        ({"priority": ["high"] * 3}, "t", "", "column priority: it is string"),
        ({"partition": [-1, 0, 1]}, "t", "", "column partition: it is -1 in a row"),
        ({"key": [1, 2, 3]}, "t", "", "column key: it is int64"),
        ({"deliver_at": [1, 2, 3]}, "t", "", "column deliver_at: it is int64"),
        ({"headers": [["a"]] * 3}, "t", "", "column headers: it is list"),
    ],
)
def test_what_is_no_message_is_refused_by_its_column(
    columns: dict[str, Any], topic: str, value_format: str, problem: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        made(topic, value_format, **columns)
    assert problem in caught.value.message
