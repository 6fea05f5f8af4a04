"""What goes into a batch comes out of it, and what may not go in is refused with the name of the field."""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from lanner import batch, limits
from lanner.batch import Codec
from lanner.errors import MessageTooLarge, ValidationError

BYTES = st.binary(max_size=60)
HEADERS = st.none() | st.dictionaries(st.text(max_size=12), BYTES, max_size=4)
TIME = st.integers(0, limits.TIME_MS_MAX)


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, Any]:
    """Anything that `encode` takes."""
    count = draw(st.integers(1, 40))

    def column(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.none() | st.lists(items, min_size=count, max_size=count)

    return {
        "values": draw(st.lists(BYTES, min_size=count, max_size=count)),
        "keys": draw(column(st.none() | BYTES)),
        "headers": draw(column(HEADERS)),
        "timestamps": draw(column(st.integers(-limits.TIME_MS_MAX, limits.TIME_MS_MAX))),
        "priority": draw(st.integers(0, 9)),
        "codec": draw(st.sampled_from(Codec)),
        "producer_id": draw(st.integers(0, limits.OFFSET_MAX)),
        "producer_epoch": draw(st.integers(0, 2**32 - 1)),
        "sequence": draw(st.integers(-1, limits.OFFSET_MAX)),
        "deliver_at_ms": draw(TIME),
        "expires_at_ms": draw(TIME),
        "dedup_id": draw(st.binary(max_size=limits.DEDUP_ID_BYTES_MAX)),
    }


def laid(items: list[bytes]) -> batch.Laid:
    offsets = array("i", accumulate(map(len, items), initial=0)).tobytes()
    return batch.Laid(items, offsets, memoryview(b"".join(items)))


@given(arguments())
def test_columns_that_lie_as_a_batch_wants_them_make_the_same_batch(given_: dict[str, Any]) -> None:
    keys = given_["keys"]
    same = given_ | {"values": laid(given_["values"])}
    if keys is not None and None not in keys:
        same["keys"] = laid(keys)
    assert batch.encode(**same) == batch.encode(**given_)


@pytest.mark.parametrize("size", [limits.MESSAGE_BYTES_MAX // 2 + 1, limits.MESSAGE_BYTES_MAX + 1])
def test_a_laid_column_is_bounded_as_any_other(size: int) -> None:
    values = [bytes(size)] * 2
    if size <= limits.MESSAGE_BYTES_MAX:
        assert batch.encode(laid(values)) == batch.encode(values)
    else:
        with pytest.raises(MessageTooLarge, match=r"values\[0\]"):
            batch.encode(laid(values))


@given(arguments())
def test_everything_that_goes_in_comes_out(given_: dict[str, Any]) -> None:
    values = given_.pop("values")
    data = batch.encode(values, **given_)
    decoded = batch.decode(data)
    count = len(values)
    assert decoded.count == count
    assert decoded.values() == values
    assert decoded.keys() == (given_["keys"] or [None] * count)
    assert decoded.headers() == [one or {} for one in given_["headers"] or [None] * count]
    assert decoded.timestamps() == given_["timestamps"]
    assert decoded.positions is None
    header = decoded.header
    assert header == batch.read_header(data) == batch.verify(data)
    assert not header.is_extract
    for name in (
        "priority",
        "producer_id",
        "producer_epoch",
        "sequence",
        "deliver_at_ms",
        "expires_at_ms",
        "dedup_id",
    ):
        assert getattr(header, name) == given_[name]
    assert header.length == len(data)
    decoded.verify_messages()


@given(arguments())
def test_encoding_is_a_function_of_its_arguments(given_: dict[str, Any]) -> None:
    assert batch.encode(**given_) == batch.encode(**given_)


def test_defaults_are_no_producer_no_times_and_normal_priority() -> None:
    header = batch.read_header(batch.encode([b"value"]))
    assert header.version == batch.VERSION == 1
    assert (header.producer_id, header.producer_epoch, header.sequence) == (0, 0, -1)
    assert (header.deliver_at_ms, header.expires_at_ms, header.dedup_id) == (0, 0, b"")
    assert (header.count, header.priority, header.codec, header.encoding, header.flags) == (1, 4, Codec.NONE, 0, 0)


def test_a_null_key_is_not_an_empty_key() -> None:
    decoded = batch.decode(batch.encode([b"1", b"2", b"3"], keys=[None, b"", b"key"]))
    assert decoded.keys() == [None, b"", b"key"]
    column = decoded.key_column()
    assert column is not None
    assert column[2] == bytes([0b110])
    only_empty = batch.decode(batch.encode([b"1"], keys=[b""]))
    assert only_empty.keys() == [b""]
    assert batch.decode(batch.encode([b"1"], keys=[None])).keys() == [None]


@pytest.mark.parametrize("count", [7, 8, 9, 64, 65])
def test_the_validity_of_the_last_keys_is_kept_at_every_count(count: int) -> None:
    keys = [b"k" if place == 0 else None for place in range(count)]
    assert batch.decode(batch.encode([b""] * count, keys=keys)).keys() == keys
    assert batch.decode(batch.encode([b""] * count, keys=keys[::-1])).keys() == keys[::-1]


def test_columns_that_would_be_empty_are_absent() -> None:
    plain = batch.encode([b"1", b"2"])
    assert batch.encode([b"1", b"2"], keys=[None, None], headers=[None, {}]) == plain
    decoded = batch.decode(plain)
    assert decoded.key_column() is None
    assert decoded.headers_column() is None
    assert decoded.timestamp_column() is decoded.key_hashes() is decoded.position_column() is None


@given(st.binary(max_size=40), st.integers(0, 9), st.integers(0, limits.OFFSET_MAX), st.integers(-1, limits.OFFSET_MAX))
def test_a_single_message_is_encoded_the_same_by_the_short_and_the_long_way(
    value: bytes, priority: int, producer_id: int, sequence: int
) -> None:
    short = batch.encode([value], priority=priority, producer_id=producer_id, sequence=sequence)
    the_long_way = batch.encode([value], keys=[None], priority=priority, producer_id=producer_id, sequence=sequence)
    assert short == the_long_way


def test_the_columns_are_views_that_arrow_can_wrap() -> None:
    data = batch.encode(
        [b"one", b"", b"three"],
        keys=[b"a", b"bc", b""],
        headers=[{"h": b"1"}, None, None],
        timestamps=[5, -6, 7],
        dedup_id=b"id",
    )
    decoded = batch.decode(data)
    offsets, value_bytes = decoded.value_column()
    assert (offsets.format, offsets.tolist(), bytes(value_bytes)) == ("i", [0, 3, 3, 8], b"onethree")
    key_column = decoded.key_column()
    assert key_column is not None
    assert (key_column[0].tolist(), bytes(key_column[1]), key_column[2]) == ([0, 1, 3, 3], b"abc", None)
    headers_column = decoded.headers_column()
    assert headers_column is not None
    assert headers_column[0].tolist()[0] == 0 < headers_column[0].tolist()[1] == len(headers_column[1])
    timestamps = decoded.timestamp_column()
    assert timestamps is not None
    assert (timestamps.format, timestamps.tolist()) == ("q", [5, -6, 7])
    hashes = decoded.key_hashes()
    assert hashes is not None
    assert hashes.tolist() == [xxh64_intdigest(b"a"), xxh64_intdigest(b"bc"), xxh64_intdigest(b"")]
    assert offsets.obj is value_bytes.obj is timestamps.obj is data  # nothing was copied
    # Where each value lies is known only from the bytes: every buffer starts on a boundary of 8.
    assert data.index(b"onethree") % 8 == data.index(b"abc") % 8 == data.index(struct.pack("<qqq", 5, -6, 7)) % 8 == 0


def test_the_checksum_of_a_message_runs_over_value_key_and_headers() -> None:
    decoded = batch.decode(batch.encode([b"value", b"other"], keys=[b"key", None], headers=[{"name": b"x"}, None]))
    headers_column = decoded.headers_column()
    assert headers_column is not None
    blob = bytes(headers_column[1])
    assert decoded.message_checksums().tolist() == [crc32c(b"value" + b"key" + blob), crc32c(b"other")]


def test_the_hash_of_a_null_key_is_zero() -> None:
    hashes = batch.decode(batch.encode([b"", b""], keys=[None, b"k"])).key_hashes()
    assert hashes is not None
    assert hashes.tolist() == [0, xxh64_intdigest(b"k")]


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_body_that_does_not_shrink_is_kept_as_it_is(codec: Codec) -> None:
    header = batch.read_header(batch.encode([b"\x00\x01\x02"], codec=codec))
    assert header.codec is Codec.NONE


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compression_makes_repeated_values_small(codec: Codec) -> None:
    values = [b"the same line again and again"] * 500
    data = batch.encode(values, codec=codec)
    assert batch.read_header(data).codec is codec
    assert len(data) < len(batch.encode(values)) // 3
    assert batch.decode(data).values() == values


def test_a_batch_is_read_out_of_the_middle_of_a_buffer() -> None:
    data = batch.encode([b"here"], dedup_id=b"abc")
    frame = bytearray(b"xx" + data + b"yyy")
    assert batch.read_header(frame, 2) == batch.read_header(data)
    assert batch.decode(memoryview(frame)[2 : 2 + len(data)]).values() == [b"here"]


def test_values_and_headers_may_be_other_buffers() -> None:
    data = batch.encode([memoryview(b"one"), bytearray(b"two")], headers=[MappingProxyType({"a": b"b"}), None])  # type: ignore[list-item]
    assert batch.decode(data).values() == [b"one", b"two"]
    assert batch.decode(data).headers() == [{"a": b"b"}, {}]


def test_the_largest_message_fits_and_one_byte_more_does_not() -> None:
    largest = bytes(limits.MESSAGE_BYTES_MAX)
    data = batch.encode([largest, b"x"], codec=Codec.ZSTD)
    assert batch.decode(data).values() == [largest, b"x"]
    with pytest.raises(MessageTooLarge, match=r"values\[1\] has 1048577 bytes") as caught:
        batch.encode([b"x", largest + b"x"])
    assert caught.value.details["field"] == "values"


def test_a_batch_is_bounded_uncompressed() -> None:
    big = bytes(limits.MESSAGE_BYTES_MAX)
    with pytest.raises(MessageTooLarge, match="split it"):
        batch.encode([big] * 4, codec=Codec.ZSTD)
    with pytest.raises(MessageTooLarge, match="split it"):
        batch.encode([big] * 5, codec=Codec.ZSTD)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("count", {"values": []}),
    ("count", {"values": [b""] * (limits.BATCH_MESSAGES_MAX + 1)}),
    ("values", {"values": ["text"]}),
    ("values", {"values": [b"x", None]}),
    ("values", {"values": [array("i", [1, 2])]}),
    ("keys", {"keys": [b"a", b"b"]}),
    ("keys", {"keys": ["text"]}),
    ("keys", {"keys": [bytes(limits.KEY_BYTES_MAX + 1)]}),
    ("headers", {"headers": []}),
    ("headers", {"headers": [{"name": "text"}]}),
    ("headers", {"headers": [{1: b"x"}]}),
    ("headers", {"headers": [{"\ud800": b"x"}]}),
    ("headers", {"headers": [{str(n): b"" for n in range(limits.HEADER_COUNT_MAX + 1)}]}),
    ("headers", {"headers": [{"name": bytes(limits.HEADERS_BYTES_MAX)}]}),
    ("timestamps", {"timestamps": [1, 2]}),
    ("timestamps", {"timestamps": [1.5]}),
    ("timestamps", {"timestamps": [2**70]}),
    ("timestamps", {"timestamps": [limits.TIME_MS_MAX + 1]}),
    ("timestamps", {"timestamps": [-limits.TIME_MS_MAX - 1]}),
    ("priority", {"priority": 10}),
    ("priority", {"priority": "urgent"}),
    ("codec", {"codec": 7}),
    ("producer_id", {"producer_id": -1}),
    ("producer_epoch", {"producer_epoch": 2**32}),
    ("sequence", {"sequence": -2}),
    ("sequence", {"sequence": 1.5}),
    ("deliver_at_ms", {"deliver_at_ms": -1}),
    ("expires_at_ms", {"expires_at_ms": limits.TIME_MS_MAX + 1}),
    ("dedup_id", {"dedup_id": bytes(limits.DEDUP_ID_BYTES_MAX + 1)}),
    ("dedup_id", {"dedup_id": "text"}),
]


@pytest.mark.parametrize(("field", "given_"), REFUSED)
def test_what_does_not_fit_is_refused_with_the_name_of_the_field(field: str, given_: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        batch.encode(**({"values": [b"value"]} | given_))
    assert caught.value.details["field"] == field
    assert field.split("_")[0] in caught.value.message
