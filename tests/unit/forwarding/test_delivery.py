"""Leased batches come out as exactly the messages leased."""

from __future__ import annotations

from lanner import batch
from lanner.forwarding import delivery
from lanner.forwarding.delivery import DecodedBatches, positions_of
from lanner.forwarding.values import Delivered, LeasedBatch, Range

DATA = batch.encode(
    [b"v0", b"v1", b"v2", b"v3"],
    keys=[b"k0", None, b"", b"k3"],
    headers=[None, {"a": b"1"}, None, None],
    timestamps=[10, 11, 12, 13],
    priority=7,
)


def leased(data: bytes, *ranges: Range) -> LeasedBatch:
    return LeasedBatch(2, 55, 100, 1_000, 9_000, 7, data, list(ranges))


def messages_of(topic: str, item: LeasedBatch) -> list[Delivered]:
    return delivery.messages_of(topic, item, batch.decode(item.data))


def test_only_the_leased_ranges_come_out() -> None:
    delivered = messages_of("orders", leased(DATA, Range(101, 1, 1), Range(103, 1, 3)))
    assert [(item.message.offset, item.message.value, item.message.attempt) for item in delivered] == [
        (101, b"v1", 1),
        (103, b"v3", 3),
    ]
    first = delivered[0]
    assert (first.token, first.deadline_ms) == (55, 9_000)
    assert first.message.id == "orders/2/101"
    assert (first.message.key, dict(first.message.headers)) == (None, {"a": b"1"})
    assert (first.message.priority, first.message.timestamp_ms, first.message.producer_timestamp_ms) == (7, 1_000, 11)


def test_an_extract_holds_just_what_was_leased_and_reads_the_same() -> None:
    whole = leased(DATA, Range(102, 2, 1))
    part = DecodedBatches().extract((1, 1), whole)
    assert len(part) < len(DATA)
    assert messages_of("orders", whole._replace(data=part)) == messages_of("orders", whole)


def test_what_an_extract_no_longer_holds_is_left_out() -> None:
    part = batch.extract(DATA, [1])
    delivered = messages_of("orders", leased(part, Range(100, 4, 1)))
    assert [item.message.offset for item in delivered] == [101]


def test_a_batch_that_does_not_decode_is_handed_on_as_it_is() -> None:
    assert DecodedBatches().extract((1, 1), leased(b"rubbish", Range(100, 1, 1))) == b"rubbish"


def test_positions_are_those_of_the_batch_and_rise() -> None:
    assert positions_of(leased(DATA, Range(103, 1, 1), Range(100, 2, 1))) == [0, 1, 3]


def test_a_batch_is_decoded_once_and_the_oldest_leave_when_the_bound_is_reached() -> None:
    cache = DecodedBatches(bytes_max=2 * len(DATA))
    for index in (1, 2):
        cache.extract((7, index), leased(DATA, Range(100, 1, 1)))
    first = cache.get((7, 1))
    assert first is not None
    cache.extract((7, 1), leased(b"not looked at", Range(101, 1, 1)))
    cache.extract((7, 3), leased(DATA, Range(100, 1, 1)))
    assert cache.get((7, 1)) is first
    assert cache.get((7, 2)) is None
    cache.put((7, 1), first)
    assert cache.get((7, 3)) is not None
