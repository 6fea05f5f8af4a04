"""Pages of a log: batches, extracts, and the holes between."""

from __future__ import annotations

import msgspec
import pytest

from lanner.batch import encode, extract
from lanner.client.stream import Hole, Page, ReadBatch, read_page
from lanner.errors import MalformedBatch
from lanner.wire.messages import Fetched, FetchedBatch
from tests.spoilt import undecodable


def page(*batches: tuple[int, int, bytes], next_offset: int) -> Page:
    """Batches as (base offset, offsets covered, bytes)."""
    stored = [FetchedBatch(base, count, 77, len(data)) for base, count, data in batches]
    bulk = b"".join(data for _, _, data in batches)
    return Page(Fetched(0, 1_000, next_offset, stored), memoryview(bulk))


def whole(*values: bytes) -> bytes:
    return encode(list(values), priority=7)


def test_a_page_is_read_from_the_offset_asked_for() -> None:
    found, holes, following = read_page(
        "t", 0, page((0, 2, whole(b"a", b"b")), (2, 3, whole(b"c", b"d", b"e")), next_offset=5), 3
    )
    assert [(batch.values(), list(batch.offsets)) for batch in found] == [([b"d", b"e"], [3, 4])]
    assert holes == []
    assert following == 5


def test_offsets_that_are_gone_are_holes_before_between_in_and_after() -> None:
    kept = extract(whole(b"a", b"b", b"c", b"d", b"e"), [1, 3])
    found, holes, following = read_page("t", 4, page((10, 5, kept), (20, 1, whole(b"z")), next_offset=30), 7)
    assert [(batch.values(), list(batch.offsets)) for batch in found] == [([b"b", b"d"], [11, 13]), ([b"z"], [20])]
    assert holes == [Hole(4, 7, 11), Hole(4, 12, 13), Hole(4, 14, 15), Hole(4, 15, 20), Hole(4, 21, 30)]
    assert sum(hole.size for hole in holes) + 3 == 30 - 7
    assert following == 30


def test_an_extract_is_entered_in_the_middle() -> None:
    kept = extract(whole(b"a", b"b", b"c", b"d"), [0, 2])
    found, holes, _ = read_page("t", 0, page((0, 4, kept), next_offset=4), 1)
    assert found[0].values() == [b"c"]
    assert holes == [Hole(0, 1, 2), Hole(0, 3, 4)]


def test_an_extract_with_nothing_left_to_read_is_all_hole() -> None:
    kept = extract(whole(b"a", b"b"), [0])
    found, holes, following = read_page("t", 0, page((0, 2, kept), next_offset=2), 1)
    assert found == []
    assert holes == [Hole(0, 1, 2)]
    assert following == 2


def test_messages_carry_everything_that_the_batch_says() -> None:
    data = encode(
        [b"a", b"b"],
        keys=[b"k", None],
        headers=[None, {"h": b"1"}],
        timestamps=[5, 6],
        priority=9,
        deliver_at_ms=100,
        expires_at_ms=200,
    )
    batch = ReadBatch("t", 3, FetchedBatch(10, 2, 77, len(data)), memoryview(data), 11)
    (message,) = batch.messages()
    assert (message.id, message.value, message.key, message.headers) == ("t/3/11", b"b", None, {"h": b"1"})
    assert (message.priority, message.timestamp_ms, message.producer_timestamp_ms) == (9, 77, 6)
    assert (message.deliver_at_ms, message.expires_at_ms) == (100, 200) == (batch.deliver_at_ms, batch.expires_at_ms)
    assert (len(batch), batch.priority, batch.keys(), batch.timestamps()) == (1, 9, [None], [6])
    assert "t/3" in repr(batch)


def test_a_flipped_bit_is_noticed() -> None:
    data = bytearray(whole(b"a", b"b"))
    data[-9] ^= 1
    with pytest.raises(MalformedBatch):
        read_page("t", 0, page((0, 2, bytes(data)), next_offset=2), 0)


def test_what_does_not_decode_is_a_hole_that_says_so() -> None:
    pages = page((0, 1, whole(b"a")), (3, 2, undecodable(2)), (5, 1, whole(b"z")), next_offset=6)
    found, holes, following = read_page("t", 0, pages, 0)
    assert [batch.values() for batch in found] == [[b"a"], [b"z"]]
    assert holes == [Hole(0, 1, 3, "retention"), Hole(0, 3, 5, "malformed")] and following == 6
    assert read_page("t", 0, pages, 4)[1] == [Hole(0, 4, 5, "malformed")]


def test_a_batch_that_does_not_fit_its_offsets_is_refused() -> None:
    with pytest.raises(MalformedBatch, match="2 messages where 3 are announced"):
        read_page("t", 0, page((0, 3, whole(b"a", b"b")), next_offset=3), 0)
    with pytest.raises(MalformedBatch, match="outside"):
        read_page("t", 0, page((0, 1, extract(whole(b"a", b"b"), [1])), next_offset=1), 0)


def test_between_some_priorities_only_what_the_broker_calls_a_hole_is_one() -> None:
    kept = extract(whole(b"a", b"b", b"c"), [1])
    fetched = page((10, 3, kept), (20, 1, whole(b"z")), next_offset=30)
    told = msgspec.structs.replace(
        fetched.fetched, lanes=1 << 7, holes=[(5, 8), (14, 16), (25, 30)], damaged=[(17, 18)]
    )
    found, told_holes, following = read_page("t", 0, fetched._replace(fetched=told), 6)
    assert [list(batch.offsets) for batch in found] == [[11], [20]]
    assert told_holes == [
        Hole(0, 6, 8),
        Hole(0, 10, 11),
        Hole(0, 12, 13),
        Hole(0, 14, 16),
        Hole(0, 17, 18, "damaged"),
        Hole(0, 25, 30),
    ]
    assert following == 30


@pytest.mark.parametrize(
    ("deliver_at_ms", "expires_at_ms", "delayed", "expired"),
    [(0, 0, False, False), (1_001, 0, True, False), (1_000, 1_001, False, False), (0, 1_000, False, True)],
)
def test_messages_that_queues_do_not_get_are_flagged_by_the_brokers_time(
    deliver_at_ms: int, expires_at_ms: int, delayed: bool, expired: bool
) -> None:
    data = encode([b"a"], deliver_at_ms=deliver_at_ms, expires_at_ms=expires_at_ms)
    fetched = page((0, 1, data), next_offset=1)
    (batch,), _, _ = read_page(
        "t", 0, fetched._replace(fetched=msgspec.structs.replace(fetched.fetched, time_ms=1_000)), 0
    )
    (message,) = batch.messages()
    assert (batch.is_delayed, batch.is_expired) == (delayed, expired) == (message.is_delayed, message.is_expired)


def test_a_broker_that_does_not_tell_its_time_is_taken_to_have_ours() -> None:
    data = encode([b"a"], deliver_at_ms=2**52, expires_at_ms=2**52)
    (batch,), _, _ = read_page("t", 0, page((0, 1, data), next_offset=1), 0)
    assert batch.is_delayed and not batch.is_expired
