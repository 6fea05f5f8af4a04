"""Some messages of a batch under the producer's own checksums."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from lanner import batch, limits
from lanner.batch import Codec
from lanner.errors import MalformedBatch, ValidationError

COUNT = 12
SAMPLE: dict[str, Any] = {
    "values": [b"value %d " % number * (number % 4) for number in range(COUNT)],
    "keys": [None if number % 3 == 0 else b"key %d" % (number % 5) for number in range(COUNT)],
    "headers": [{"n": b"%d" % number} if number % 2 else None for number in range(COUNT)],
    "timestamps": [1_000 - number for number in range(COUNT)],
    "priority": 9,
    "producer_id": 5,
    "producer_epoch": 2,
    "sequence": 77,
    "deliver_at_ms": 123,
    "expires_at_ms": 456,
    "dedup_id": b"once",
}
POSITIONS = st.sets(st.integers(0, COUNT - 1), min_size=1).map(sorted)


def assert_is_extract_of(data: bytes, positions: list[int], sample: dict[str, Any]) -> None:
    decoded = batch.decode(data)
    decoded.verify_messages()
    assert decoded.header.is_extract
    assert decoded.positions is not None
    assert list(decoded.positions) == positions
    column = decoded.position_column()
    assert column is not None
    assert (column.format, column.tolist()) == ("I", positions)
    assert decoded.values() == [sample["values"][position] for position in positions]
    assert decoded.keys() == [sample["keys"][position] for position in positions]
    assert decoded.headers() == [sample["headers"][position] or {} for position in positions]
    assert decoded.timestamps() == [sample["timestamps"][position] for position in positions]
    original = batch.decode(batch.encode(**sample))
    checksums = original.message_checksums()
    assert decoded.message_checksums().tolist() == [checksums[position] for position in positions]
    same = ("priority", "producer_id", "producer_epoch", "sequence", "deliver_at_ms", "expires_at_ms", "dedup_id")
    assert [getattr(decoded.header, name) for name in same] == [sample[name] for name in same]


@given(POSITIONS, st.sampled_from(Codec))
def test_an_extract_holds_the_chosen_messages_and_all_that_belongs_to_them(positions: list[int], codec: Codec) -> None:
    data = batch.encode(**SAMPLE, codec=codec)
    assert_is_extract_of(batch.extract(data, positions), positions, SAMPLE)


@given(st.data(), POSITIONS, st.sampled_from(Codec))
def test_an_extract_of_an_extract_is_one_of_the_original(draw: st.DataObject, outer: list[int], codec: Codec) -> None:
    inner = sorted(draw.draw(st.sets(st.sampled_from(outer), min_size=1)))
    data = batch.extract(batch.encode(**SAMPLE, codec=codec), outer)
    again = batch.extract(data, inner)
    assert_is_extract_of(again, inner, SAMPLE)


def test_an_extract_of_a_compressed_batch_stays_compressed_where_it_helps() -> None:
    values = [b"again and again and again " * 20] * 50
    data = batch.encode(values, codec=Codec.ZSTD)
    extract = batch.extract(data, range(0, 50, 2))
    assert batch.read_header(extract).codec is Codec.ZSTD
    assert batch.decode(extract).values() == values[::2]


def test_an_extract_of_plain_values_has_no_other_columns() -> None:
    extract = batch.decode(batch.extract(batch.encode([b"a", b"b"]), [1]))
    assert (extract.values(), extract.keys(), extract.headers(), extract.timestamps()) == ([b"b"], [None], [{}], None)


def test_an_extract_of_a_full_batch_fits_although_it_is_larger_than_a_batch_may_be() -> None:
    count = limits.BATCH_MESSAGES_MAX
    room = limits.BATCH_BYTES_MAX - len(batch.encode([b""] * count))
    values = [b"x" * 42] * count
    values[0] = b"x" * (42 + (room - 42 * count) // 8 * 8)
    data = batch.encode(values)
    assert limits.BATCH_BYTES_MAX - 16 < len(data) <= limits.BATCH_BYTES_MAX
    extract = batch.extract(data, range(count))
    assert len(extract) > limits.BATCH_BYTES_MAX
    assert batch.decode(extract).count == count
    assert len(batch.extract(extract, range(count))) == len(extract)


@pytest.mark.parametrize(
    "positions", [[], [3, 3], [4, 2], [COUNT], [-1], [2**40], [1.5], ["1"], list(range(COUNT + 1))]
)
def test_positions_that_are_not_rising_places_of_the_batch_are_refused(positions: list[Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        batch.extract(batch.encode(**SAMPLE), positions)
    assert caught.value.details["field"] == "positions"
    assert not isinstance(caught.value, MalformedBatch)


def test_a_position_that_an_extract_does_not_hold_is_refused() -> None:
    extract = batch.extract(batch.encode(**SAMPLE), [2, 4, 6])
    for position in (0, 3, 7):
        with pytest.raises(ValidationError, match=f"no message at {position}"):
            batch.extract(extract, [4, position] if position > 4 else [position])


def test_a_message_that_is_not_what_its_producer_sent_is_found() -> None:
    extract = bytearray(batch.extract(batch.encode([b"first", b"second"], keys=[b"k1", b"k2"]), [0, 1]))
    place = extract.index(b"second")
    extract[place] ^= 1
    struct.pack_into("<I", extract, 4, crc32c(bytes(extract[8:])))  # as a faulty broker would
    decoded = batch.decode(extract)
    with pytest.raises(MalformedBatch, match="message 1") as caught:
        decoded.verify_messages()
    assert caught.value.details["field"] == "checksums"
