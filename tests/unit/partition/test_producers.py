from __future__ import annotations

from typing import Any

import pytest

from lanner.errors import ProducerFenced, ProducerUnknown, SequenceGap
from lanner.partition.producers import DEDUP_CHUNK_ENTRIES, DedupIds, Producers, SentBatch


def send(producers: Producers, sequence: int, *, epoch: int = 0, lane: int = 4, now_ms: int = 0) -> SentBatch | None:
    found = producers.find_duplicate(1, epoch, lane, sequence, 0)
    if found is None:
        producers.note(1, epoch, lane, SentBatch(sequence, 100 + sequence, 1, now_ms), now_ms)
    return found


def test_a_repeat_gets_its_first_result() -> None:
    producers = Producers()
    for sequence in range(3):
        assert send(producers, sequence) is None
    assert send(producers, 1) == SentBatch(1, 101, 1, 0)


def test_a_repeat_older_than_the_last_five_is_a_duplicate_of_unknown_place() -> None:
    producers = Producers()
    for sequence in range(8):
        send(producers, sequence)
    assert send(producers, 3) == SentBatch(3, 103, 1, 0)
    assert send(producers, 2) == SentBatch(2, -1, 0, 0)


def test_a_gap_is_refused_and_says_what_is_next() -> None:
    producers = Producers()
    send(producers, 0)
    with pytest.raises(SequenceGap, match="1 is next") as caught:
        send(producers, 2)
    assert caught.value.details["expected"] == 1


def test_a_producer_that_is_not_known_must_start_at_zero() -> None:
    with pytest.raises(ProducerUnknown):
        send(Producers(), 5)


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_again() -> None:
    producers = Producers()
    send(producers, 0, epoch=1)
    with pytest.raises(ProducerFenced):
        send(producers, 1, epoch=0)
    with pytest.raises(SequenceGap):
        send(producers, 1, epoch=2)
    assert send(producers, 0, epoch=2) is None
    assert send(producers, 0, epoch=2) == SentBatch(0, 100, 1, 0)
    with pytest.raises(ProducerFenced):
        send(producers, 1, epoch=1)


def test_each_lane_counts_for_itself() -> None:
    producers = Producers()
    send(producers, 0, lane=4)
    send(producers, 1, lane=4)
    assert send(producers, 0, lane=9) is None
    with pytest.raises(SequenceGap):
        send(producers, 2, lane=9)


def test_the_longest_idle_are_found_first_and_forgotten_only_if_still_idle(empty_rows: Any) -> None:
    producers = Producers()
    for producer_id, now_ms in ((1, 10), (2, 20), (3, 30), (1, 40)):
        producers.note(producer_id, 0, 4, SentBatch(0, 0, 1, now_ms), now_ms)
    assert producers.first_active_ms() == 20
    assert producers.idle(30, 10) == [(2, 20), (3, 30)]
    assert producers.idle(100, 1) == [(2, 20)]
    producers.note(2, 0, 4, SentBatch(1, 0, 1, 50), 50)
    producers.forget(2, 20)
    producers.forget(3, 30)
    producers.forget(9, 0)
    assert len(producers) == 2
    assert producers.first_active_ms() == 40


def test_producers_survive_their_rows(empty_rows: Any) -> None:
    producers = Producers()
    assert producers.first_active_ms() is None
    for sequence in range(7):
        send(producers, sequence, now_ms=sequence)
    producers.note(2, 3, 9, SentBatch(0, 5, 1, 3), 3)
    producers.note(3, 0, 0, SentBatch(0, 5, 1, 1), 1)
    taken: dict[bytes, bytes | None] = {}
    producers.take_dirty(taken)
    empty_rows.put(taken)
    again = Producers()
    again.load(empty_rows)
    assert [each[0] for each in again.idle(100, 10)] == [3, 2, 1]
    assert again.find_duplicate(1, 0, 4, 6, 0) == SentBatch(6, 106, 1, 6)
    rows: dict[bytes, bytes] = {}
    again.all_rows(rows)
    assert rows == dict(empty_rows)
    again.forget(3, 1)
    taken = {}
    again.take_dirty(taken)
    assert list(taken.values()) == [None]


def test_dedup_ids_go_in_the_order_they_came() -> None:
    ids = DedupIds()
    assert ids.first_append_ms() is None and ids.last_of_oldest(10, 10) is None
    for number in range(6):
        ids.note(b"%d" % number, number, 1, number * 10)
    assert ids.first_append_ms() == 0
    assert ids.last_of_oldest(35, 100) == 30
    assert ids.last_of_oldest(35, 2) == 10
    ids.forget(30)
    assert list(ids.ids()) == [b"4", b"5"] and len(ids) == 2
    assert ids.get(b"3") is None
    known = ids.get(b"4")
    assert known is not None and known.base_offset == 4
    ids.forget(1_000)
    assert len(ids) == 0


def test_dedup_ids_share_rows_and_survive_them(empty_rows: Any) -> None:
    ids = DedupIds()
    for number in range(DEDUP_CHUNK_ENTRIES + 10):
        ids.note(b"%d" % number, number, 1, number)
    taken: dict[bytes, bytes | None] = {}
    ids.take_dirty(taken)
    assert len(taken) == 2
    empty_rows.put(taken)
    again = DedupIds()
    again.load(empty_rows, ids.numbered)
    assert list(again.ids()) == list(ids.ids())
    again.forget(DEDUP_CHUNK_ENTRIES)
    ids.forget(DEDUP_CHUNK_ENTRIES)
    rows: dict[bytes, bytes] = {}
    again.all_rows(rows)
    taken = {}
    again.take_dirty(taken)
    assert sorted(value is None for value in taken.values()) == [False, True]
    empty_rows.put(taken)
    assert rows == dict(empty_rows)
