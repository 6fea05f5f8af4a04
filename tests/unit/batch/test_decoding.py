"""Bytes that no encoder wrote are refused, with the name of the field that gave them away."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import lz4.block
import msgspec
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from lanner import batch, limits
from lanner.batch import Codec
from lanner.errors import MalformedBatch

FULL: dict[str, Any] = {
    "values": [b"one" * 9, b"", b"three"],
    "keys": [b"k", None, b""],
    "headers": [{"trace": b"1"}, None, {"a": b"", "b": b"2"}],
    "timestamps": [1, 2, 3],
    "dedup_id": b"same",
    "producer_id": 7,
    "sequence": 3,
}
# The fields of the header as docs/protocol.md has them: where they lie, and how.
FIELDS = {
    "magic": (0, "<3s"),
    "version": (3, "<B"),
    "length": (8, "<I"),
    "count": (12, "<I"),
    "flags": (16, "<H"),
    "priority": (18, "<B"),
    "encoding": (19, "<B"),
    "codec": (20, "<B"),
    "dedup_id": (21, "<B"),
    "reserved": (22, "<H"),
    "producer_id": (24, "<q"),
    "sequence": (32, "<q"),
    "deliver_at_ms": (40, "<q"),
    "expires_at_ms": (48, "<q"),
    "raw_length": (60, "<I"),
}


def sealed(data: bytes | bytearray) -> bytes:
    """These bytes under a checksum that fits: only what the checksum cannot tell is left to find."""
    whole = bytearray(data)
    struct.pack_into("<I", whole, 8, len(whole))
    struct.pack_into("<I", whole, 4, crc32c(bytes(whole[8:])))
    return bytes(whole)


def with_field(data: bytes, name: str, value: Any) -> bytes:
    whole = bytearray(data)
    place, layout = FIELDS[name]
    struct.pack_into(layout, whole, place, value)
    struct.pack_into("<I", whole, 4, crc32c(bytes(whole[8:])))
    return bytes(whole)


def with_body(data: bytes, change: Callable[[bytearray], object], codec: Codec = Codec.NONE) -> bytes:
    """An uncompressed batch with a changed body, its lengths and checksum made to fit."""
    header = batch.read_header(data)
    start = header.length - header.raw_length
    body = bytearray(data[start:])
    change(body)
    whole = bytearray(data[:start])
    struct.pack_into("<I", whole, 60, len(body))
    if codec is Codec.LZ4:
        body = bytearray(lz4.block.compress(bytes(body), store_size=False))
    struct.pack_into("<B", whole, 20, codec)
    return sealed(whole + body)


def refused_field(data: bytes) -> str:
    with pytest.raises(MalformedBatch) as caught:
        batch.decode(data)
    field = caught.value.details["field"]
    assert field in caught.value.message
    return str(field)


@pytest.mark.parametrize("codec", Codec)
def test_every_flipped_bit_is_found(codec: Codec) -> None:
    data = batch.encode(**FULL, codec=codec)
    assert batch.read_header(data).codec is codec
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(MalformedBatch):
                batch.decode(flipped)


@pytest.mark.parametrize("codec", Codec)
def test_every_truncation_is_found(codec: Codec) -> None:
    data = batch.encode(**FULL, codec=codec)
    for length in range(len(data)):
        with pytest.raises(MalformedBatch):
            batch.decode(data[:length])
        if length >= batch.HEADER_BYTES:
            with pytest.raises(MalformedBatch):  # also when length and checksum were made to fit
                batch.decode(sealed(data[:length]))


def test_bytes_behind_the_batch_are_found() -> None:
    data = batch.encode(**FULL)
    assert refused_field(data + b"\0") == "length"
    assert refused_field(sealed(data + bytes(8))) == "raw_length"


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBatch):
        batch.decode(data)


@given(st.binary(min_size=60, max_size=300), st.sampled_from([1, 2, 3]), st.integers(0, 31), st.sampled_from(Codec))
def test_arbitrary_columns_under_a_sound_header_are_refused_or_sound(
    rest: bytes, count: int, flags: int, codec: Codec
) -> None:
    front = struct.pack("<3sBIIIHBBBBHqqqqII", b"LNB", 1, 0, 0, count, flags, 4, 0, codec, 0, 0, 0, -1, 0, 0, 0, 0)
    columns = 8 * ((count + 1) // 2) * (2 if flags & batch.FLAG_EXTRACT else 1) + (
        8 * count if flags & batch.FLAG_KEYS else 0
    )
    whole = bytearray(front + rest)
    struct.pack_into("<I", whole, 60, max(len(rest) - columns, 0))
    data = sealed(whole)
    try:
        decoded = batch.decode(data)
    except MalformedBatch:
        return
    assert len(decoded.values()) == len(decoded.keys()) == len(decoded.headers()) == count


WRONG_FIELDS: list[tuple[str, Any]] = [
    ("magic", b"LNC"),
    ("version", 2),
    ("count", 0),
    ("count", limits.BATCH_MESSAGES_MAX + 1),
    ("count", 2**32 - 1),
    ("flags", 32),
    ("flags", 0x8000),
    ("flags", batch.FLAG_NULL_KEYS),
    ("priority", 10),
    ("encoding", 1),
    ("codec", 3),
    ("dedup_id", limits.DEDUP_ID_BYTES_MAX + 1),
    ("reserved", 1),
    ("producer_id", -1),
    ("producer_id", limits.OFFSET_MAX + 1),
    ("sequence", -2),
    ("sequence", limits.OFFSET_MAX + 1),
    ("deliver_at_ms", -1),
    ("deliver_at_ms", limits.TIME_MS_MAX + 1),
    ("expires_at_ms", -1),
    ("expires_at_ms", limits.TIME_MS_MAX + 1),
    ("length", 0),
    ("length", 2**32 - 1),
    ("raw_length", 0),
    ("raw_length", 2**32 - 1),
]


@pytest.mark.parametrize(("field", "value"), WRONG_FIELDS)
def test_a_header_field_out_of_its_bounds_is_named(field: str, value: Any) -> None:
    data = with_field(batch.encode([b"value"]), field, value)
    with pytest.raises(MalformedBatch) as caught:
        batch.read_header(data)
    assert caught.value.details["field"] == field


def test_a_raw_length_that_is_not_what_lies_there_is_refused() -> None:
    data = batch.encode([b"value"])
    assert refused_field(with_field(data, "raw_length", batch.read_header(data).raw_length + 8)) == "raw_length"


def test_a_header_needs_its_bytes() -> None:
    data = batch.encode([b"value"])
    for offset in (-1, len(data) - 63, len(data), len(data) + 5):
        with pytest.raises(MalformedBatch) as caught:
            batch.read_header(data, offset)
        assert caught.value.details["field"] == "header"


def test_padding_must_be_zero() -> None:
    data = bytearray(batch.encode([b"value"], dedup_id=b"abc"))
    data[64 + 3] = 1
    assert refused_field(sealed(data)) == "dedup_id"


def patched(place: int, layout: str, value: int) -> Callable[[bytearray], object]:
    return lambda body: struct.pack_into(layout, body, place, value)


BODY = batch.encode([b"one", b"two"])  # offsets 0, 3, 6, padded to 16 bytes; then 6 bytes, padded to 8


@pytest.mark.parametrize(
    "change",
    [
        patched(0, "<i", 1),
        patched(0, "<i", -1),
        patched(4, "<i", 7),
        patched(4, "<i", -3),
        patched(8, "<i", 2**31 - 1),
        patched(8, "<i", 100),
        patched(12, "<i", 1),
        patched(22, "<B", 1),
    ],
)
def test_offsets_that_do_not_fit_their_bytes_are_refused(change: Callable[[bytearray], object]) -> None:
    assert batch.decode(with_body(BODY, lambda body: None)).values() == [b"one", b"two"]
    assert refused_field(with_body(BODY, change)) == "values"


def test_offsets_inside_a_compressed_body_are_checked_too() -> None:
    data = batch.encode([b"one", b"two", b"x" * 2_000])
    assert refused_field(with_body(data, patched(4, "<i", 2**30), Codec.LZ4)) == "values"


def test_a_value_longer_than_a_message_may_be_is_refused() -> None:
    def lengthen(body: bytearray) -> None:
        struct.pack_into("<i", body, 4, limits.MESSAGE_BYTES_MAX + 1)

    data = batch.encode([bytes(limits.MESSAGE_BYTES_MAX), bytes(8)])
    assert refused_field(with_body(data, lengthen)) == "values"


@pytest.mark.parametrize("bits", [0b000, 0b111, 0b1011])
def test_a_validity_bitmap_that_says_nothing_or_too_much_is_refused(bits: int) -> None:
    data = batch.encode([b"", b"", b""], keys=[None, b"", b"key"])
    validity_start = 16  # behind the four offsets of the empty values
    assert refused_field(with_body(data, patched(validity_start, "<Q", bits))) == "keys"


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\xc1",
        b"\xff" * 4,
        msgspec.msgpack.encode(["a", b"b"]),
        msgspec.msgpack.encode({"a": "text"}),
        msgspec.msgpack.encode({b"a": b"b"}),
        msgspec.msgpack.encode({"a": b"b"}) + b"\0",
        b"\x81\xa1\xff\xc4\x00",  # a name that is not UTF-8
        b"\xdf\xff\xff\xff\xff",  # four billion entries
        b"\x81\xa1a\xc6\xff\xff\xff\xff",  # a value of four GiB
        b"\x91" * 3_000,
        msgspec.msgpack.encode({str(n): b"" for n in range(limits.HEADER_COUNT_MAX + 1)}),
    ],
)
def test_headers_that_are_not_a_map_of_text_to_bytes_are_refused(blob: bytes) -> None:
    data = batch.encode([b""], headers=[{"h": b"x"}])

    def replace(body: bytearray) -> None:
        del body[8:]  # behind the offsets of the empty value
        body += struct.pack("<ii", 0, len(blob)) + blob + bytes(-len(blob) % 8)

    assert refused_field(with_body(data, replace)) == "headers"


def test_headers_that_are_not_asked_for_are_not_looked_at() -> None:
    data = batch.encode([b"a", b"b"], headers=[{"h": b"x"}, {"h": b"y"}])

    def replace(body: bytearray) -> None:
        body[body.rindex(b"\xa1h")] = 0xC1  # of the second message: no byte of msgpack

    spoilt = with_body(data, replace)
    assert refused_field(spoilt) == "headers"
    assert batch.never_decodes(spoilt)
    decoded = batch.decode(spoilt, headers=False)
    assert decoded.values() == [b"a", b"b"]
    assert batch.decode(batch.extract(spoilt, [0])).headers() == [{"h": b"x"}]
    with pytest.raises(MalformedBatch, match="headers: those of message 1"):
        decoded.headers()


@pytest.mark.parametrize("positions", [(1, 1), (2, 1), (0, limits.BATCH_MESSAGES_MAX)])
def test_positions_must_rise_and_have_a_bound(positions: tuple[int, int]) -> None:
    data = bytearray(batch.extract(batch.encode([b"a", b"b", b"c"]), [0, 2]))
    struct.pack_into("<II", data, 64, *positions)
    assert refused_field(sealed(data)) == "positions"


@pytest.mark.parametrize("time_ms", [limits.TIME_MS_MAX + 1, -limits.TIME_MS_MAX - 1])
def test_a_timestamp_out_of_range_is_refused(time_ms: int) -> None:
    data = batch.encode([b""], timestamps=[5])
    assert refused_field(with_body(data, patched(8, "<q", time_ms))) == "timestamps"


# ------------------------------------------------------------------ compressed bodies


def compressed_as(codec: Codec, stored: bytes, raw_length: int) -> bytes:
    """A batch of one message whose body is these bytes."""
    plain = batch.encode([b"value"])
    front = bytearray(plain[: 64 + 8])
    struct.pack_into("<B", front, 20, codec)
    struct.pack_into("<I", front, 60, raw_length)
    return sealed(bytes(front) + stored)


def zstd_bomb(raw_length: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(raw_length))


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_compressed_body_of_rubbish_is_refused(codec: Codec) -> None:
    assert refused_field(compressed_as(codec, b"\xff" * 20, 100)) == "body"


def test_a_body_that_unfolds_into_less_than_it_says_is_refused() -> None:
    stored = lz4.block.compress(bytes(64), store_size=False)
    assert refused_field(compressed_as(Codec.LZ4, stored, 72)) == "raw_length"


def test_a_body_that_would_unfold_into_more_than_it_says_is_refused() -> None:
    stored = lz4.block.compress(bytes(64 * limits.MIB), store_size=False)[:4_000]
    assert refused_field(compressed_as(Codec.LZ4, stored, 4_096)) == "body"
    assert refused_field(compressed_as(Codec.ZSTD, zstd_bomb(64 * limits.MIB), 4 * limits.MIB - 200)) == "body"


def test_a_zstd_frame_that_hides_its_size_or_wants_a_huge_window_is_refused() -> None:
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64))
    assert refused_field(compressed_as(Codec.ZSTD, hidden, 64)) == "body"
    # A frame header by hand: no single segment, content size of 4 bytes, a window of 128 MiB.
    wide = b"\x28\xb5\x2f\xfd" + bytes([0b1000_0000, 17 << 3]) + struct.pack("<I", 64) + b"\x01\x00\x00"
    assert refused_field(compressed_as(Codec.ZSTD, wide, 64)) == "body"


def test_bytes_behind_a_zstd_frame_are_refused() -> None:
    stored = zstandard.ZstdCompressor().compress(bytes(4_000)) + b"more"
    assert refused_field(compressed_as(Codec.ZSTD, stored, 4_000)) == "body"


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_bomb_takes_no_more_memory_than_a_batch_may(codec: Codec) -> None:
    bomb = zstd_bomb(2**30) if codec is Codec.ZSTD else b"\x1f\x00\x01\x00" + b"\xff" * 30_000 + b"\x00"
    data = compressed_as(codec, bomb, limits.BATCH_BYTES_MAX - 100)
    tracemalloc.start()
    try:
        assert refused_field(data) in ("body", "raw_length")
        assert tracemalloc.get_traced_memory()[1] < 3 * limits.BATCH_BYTES_MAX
    finally:
        tracemalloc.stop()


def test_a_raw_length_beyond_a_batch_is_refused_before_anything_unfolds() -> None:
    assert refused_field(compressed_as(Codec.LZ4, b"\xff" * 20, limits.BATCH_BYTES_MAX)) == "raw_length"
