"""The accumulator alone: no loop, no socket, no clock."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lanner.batch import decode
from lanner.client.accumulator import Accumulator
from lanner.client.pending import Identity, PendingBatch, ProducerLane
from lanner.errors import (
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    NotLeader,
    Overloaded,
    ProducerFenced,
    ProducerUnknown,
    SequenceGap,
    ServerError,
    TopicFull,
    ValidationError,
)


class AllTogether:
    """So many batches, whichever lanes they are of."""

    def __init__(self, count_max: int) -> None:
        self._left = count_max

    def left(self, lane: Any) -> int:
        return self._left

    def use(self, lane: Any, count: int) -> None:
        self._left -= count


def accumulator(**options: Any) -> Accumulator:
    held = Accumulator(rng=random.Random(1), **options)
    held.identity = Identity(7, 0)
    return held


def add(held: Accumulator, value: bytes, *, now_ms: float = 0, priority: int = 4, **options: Any) -> PendingBatch:
    lane = held.lane("orders", 0, priority)
    return held.add(lane, value, options.pop("key", None), options.pop("headers", None), now_ms, **options)


def sealed(held: Accumulator, *values: bytes, now_ms: float = 0, dedup_id: bytes = b"") -> PendingBatch:
    lane = held.lane("orders", 0, 4, not dedup_id)
    return held.add_sealed(lane, list(values), None, None, sum(map(len, values)), now_ms, dedup_id=dedup_id)


def take(held: Accumulator, now_ms: float = 0, count_max: int = 100) -> list[PendingBatch]:
    return held.take(now_ms, AllTogether(count_max)).batches


def confirm(held: Accumulator, batch: PendingBatch, offset: int = 0, now_ms: float = 0) -> list[PendingBatch]:
    return [failure.batch for failure in held.acknowledged(batch, offset, 1, False, now_ms)]


def sequences(batches: list[PendingBatch]) -> list[int]:
    return [batch.sequence for batch in batches]


# ------------------------------------------------------------------ batching


def test_messages_of_one_lane_share_a_batch_and_others_do_not() -> None:
    held = accumulator()
    first = add(held, b"a")
    assert add(held, b"b") is first
    assert add(held, b"c", priority=9) is not first
    assert add(held, b"d", deliver_at_ms=500) is not first
    assert add(held, b"e", expires_at_ms=500) is not first
    assert sorted(batch.values for batch in take(held)) == [[b"a", b"b"], [b"c"], [b"d"], [b"e"]]


def test_keys_and_headers_may_come_late_and_leave_gaps() -> None:
    held = accumulator()
    add(held, b"a")
    add(held, b"b", key=b"k")
    add(held, b"c")
    add(held, b"d", headers={"h": b"1"})
    (batch,) = take(held)
    assert batch.data is not None
    found = decode(batch.data)
    assert found.keys() == [None, b"k", None, None]
    assert found.headers() == [{}, {}, {}, {"h": b"1"}]
    assert found.values() == [b"a", b"b", b"c", b"d"]


def test_a_batch_lingers_until_its_time_or_its_size() -> None:
    held = accumulator(linger_ms=5, batch_bytes=200, batch_messages=3)
    add(held, b"a", now_ms=10)
    assert take(held, 10) == []
    assert held.next_due_ms(10) == 15
    assert len(take(held, 15)) == 1
    for value in (b"b", b"c", b"d", b"e"):
        add(held, value, now_ms=20)
    assert [batch.values for batch in take(held, 20)] == [[b"b", b"c", b"d"]]
    add(held, bytes(150), now_ms=20)
    add(held, bytes(150), now_ms=20)
    assert [len(batch.values) for batch in take(held, 20)] == [2]  # the second one did not fit in
    assert [len(batch.values) for batch in take(held, 25)] == [1]


def test_sealing_ends_the_linger() -> None:
    held = accumulator(linger_ms=1_000)
    add(held, b"a")
    assert take(held) == []
    held.seal_all()
    assert len(take(held)) == 1


def test_what_was_added_first_leaves_first_also_before_whole_columns() -> None:
    held = accumulator(linger_ms=1_000)
    add(held, b"a")
    sealed(held, b"b", b"c")
    assert [batch.values for batch in take(held)] == [[b"a"], [b"b", b"c"]]


def test_bytes_are_counted_until_the_outcome_is_known() -> None:
    held = accumulator(buffer_bytes_max=100)
    add(held, bytes(90))
    assert held.full
    (batch,) = take(held)
    assert held.full
    confirm(held, batch)
    assert (held.full, held.buffered_bytes, held.batches) == (False, 0, 0)


def test_a_batch_that_cannot_be_encoded_fails_alone_and_takes_no_number() -> None:
    held = accumulator()
    sealed(held, b"x" * (2 << 20))
    sealed(held, b"fine")
    taken = held.take(0, AllTogether(100))
    assert [type(failure.error).__name__ for failure in taken.refused] == ["MessageTooLarge"]
    assert sequences(taken.batches) == [0]
    assert held.batches == 1


# ------------------------------------------------------------------ numbers and windows


def test_numbers_rise_per_lane_and_no_more_fly_than_the_broker_remembers() -> None:
    held = accumulator()
    for number in range(8):
        sealed(held, b"%d" % number)
    flying = take(held)
    assert sequences(flying) == [0, 1, 2, 3, 4]
    assert take(held) == []
    confirm(held, flying[0])
    assert sequences(take(held)) == [5]
    sealed(held, b"other")
    assert take(held, count_max=0) == []


def test_another_priority_has_numbers_of_its_own() -> None:
    held = accumulator()
    add(held, b"a", priority=1)
    add(held, b"b", priority=2)
    batches = take(held)
    assert sequences(batches) == [0, 0]
    headers = [decode(batch.data).header for batch in batches if batch.data is not None]
    assert [(header.producer_id, header.sequence, header.priority) for header in headers] == [(7, 0, 1), (7, 0, 2)]


def test_nothing_numbered_leaves_without_a_producer_id() -> None:
    held = accumulator()
    held.identity = None
    add(held, b"a")
    assert take(held) == []
    assert held.needs_identity
    held.identity = Identity(8, 0)
    (batch,) = take(held)
    assert not held.needs_identity
    assert batch.data is not None
    assert decode(batch.data).header.producer_id == 8


def test_a_message_with_a_dedup_id_travels_alone_and_without_a_number() -> None:
    held = accumulator()
    held.identity = None
    batch = sealed(held, b"once", dedup_id=b"order-1")
    assert take(held) == [batch]
    assert batch.data is not None
    header = decode(batch.data).header
    assert (header.producer_id, header.sequence, header.dedup_id) == (0, -1, b"order-1")


# ------------------------------------------------------------------ failures


def test_a_lost_connection_repeats_the_same_bytes_under_the_same_numbers_in_order() -> None:
    held = accumulator()
    for number in range(3):
        sealed(held, b"%d" % number)
    flying = take(held)
    before = [batch.data for batch in flying]
    for batch in flying:
        assert held.failed(batch, ConnectionLost(), 0) == []
    assert take(held, 0) == []  # backoff
    due = held.next_due_ms(0)
    assert due is not None
    again = take(held, due)
    assert again == flying
    assert [batch.data for batch in again] == before
    for offset, batch in enumerate(again):
        confirm(held, batch, offset)
    assert [batch.base_offset for batch in flying] == [0, 1, 2]
    assert held.batches == 0


def test_nothing_is_sent_again_before_everything_in_flight_is_answered() -> None:
    held = accumulator()
    for number in range(3):
        sealed(held, b"%d" % number)
    first, second, third = take(held)
    held.failed(first, Overloaded(), 0)
    held.failed(second, SequenceGap(), 0)
    sealed(held, b"later")
    assert take(held, 60_000) == []
    held.failed(third, SequenceGap(), 0)
    assert take(held, 10_000)[:3] == [first, second, third]


def test_a_retry_after_hint_is_kept() -> None:
    held = accumulator()
    sealed(held, b"a")
    (batch,) = take(held)
    held.failed(batch, Overloaded("busy", retry_after_ms=700), 100)
    assert take(held, 799) == []
    assert take(held, 800) == [batch]


def test_a_hint_saves_the_first_pause_and_no_other() -> None:
    held = accumulator()
    sealed(held, b"a")
    (batch,) = take(held)
    held.failed(batch, NotLeader(), 0, elsewhere=True)
    assert take(held, 0) == [batch]
    held.failed(batch, NotLeader(), 0, elsewhere=True)
    assert take(held, 0) == []


def test_without_numbers_only_what_was_refused_before_anything_was_done_is_repeated() -> None:
    held = accumulator(idempotent=False)
    for error, repeated in ((NotLeader(refused=True), True), (NotLeader(), False)):
        sealed(held, b"a")
        (batch,) = take(held, 1_000)
        failures = held.failed(batch, error, 0)
        assert (failures == []) is repeated
        if repeated:
            assert take(held, 1_000) == [batch]
            confirm(held, batch)


def test_lanes_without_room_are_held_up_alone() -> None:
    class Room(AllTogether):
        def left(self, lane: ProducerLane) -> int:
            return 0 if lane.priority == 9 else super().left(lane)

    held = accumulator(timeout_ms=1_000)
    urgent = add(held, b"a", priority=9)
    add(held, b"b")
    assert [batch.values for batch in held.take(0, Room(100)).batches] == [[b"b"]]
    assert held.is_held_up
    assert held.next_due_ms(0) is None  # only an event, or a deadline, changes that
    assert [failure.batch for failure in held.expire(1_000)] == [urgent]


def test_reconnecting_ends_the_backoff() -> None:
    held = accumulator()
    sealed(held, b"a")
    (batch,) = take(held)
    held.failed(batch, ConnectionLost(), 0)
    held.wake(lambda lane: True)
    assert take(held, 0) == [batch]


def test_a_refused_batch_leaves_its_number_to_the_next() -> None:
    held = accumulator()
    for number in range(3):
        sealed(held, b"%d" % number)
    first, second, third = take(held)
    confirm(held, first)
    assert held.failed(second, ValidationError("no"), 0) == []
    failures = held.failed(third, SequenceGap(), 0)
    assert [failure.batch for failure in failures] == [second]
    assert (second.settled, third.settled) == (True, False)
    (again,) = take(held, 0)
    assert again is third
    assert again.sequence == 1
    assert again.data is not None
    assert decode(again.data).header.sequence == 1


def test_what_may_have_been_taken_behind_a_refusal_cannot_have_been_and_takes_the_free_number() -> None:
    """A broker takes no number before the one in front of it."""
    held = accumulator()
    sealed(held, b"a")
    sealed(held, b"b")
    first, second = take(held)
    held.failed(second, ConnectionLost(), 0)
    assert second.uncertain
    assert [failure.batch for failure in held.failed(first, ValidationError("no"), 0)] == [first]
    (again,) = take(held, 10_000)
    assert (again, again.sequence) == (second, 0)


def test_what_may_have_been_taken_behind_one_that_was_refused_only_later_is_not_sent_again() -> None:
    """The first sending of both may have taken effect: under another number the second could be stored twice."""
    held = accumulator()
    sealed(held, b"a")
    sealed(held, b"b")
    first, second = take(held)
    held.failed(first, ConnectionLost(), 0)
    held.failed(second, ConnectionLost(), 0)
    assert take(held, 10_000) == [first, second]
    held.failed(second, ConnectionLost(), 10_000)
    failures = held.failed(first, ValidationError("no"), 10_000)
    assert [failure.batch for failure in failures] == [first, second]
    assert take(held, 60_000) == []


def test_a_late_confirmation_still_lets_the_lane_judge_what_failed() -> None:
    held = accumulator()
    sealed(held, b"a")
    sealed(held, b"b")
    first, second = take(held)
    assert held.failed(second, ValidationError("no"), 0) == []
    assert confirm(held, first) == [second]
    sealed(held, b"c")
    assert sequences(take(held)) == [1]


def test_a_full_topic_rejects_at_once() -> None:
    held = accumulator()
    sealed(held, b"a")
    (batch,) = take(held)
    (failure,) = held.failed(batch, TopicFull(), 0)
    assert isinstance(failure.error, TopicFull)
    sealed(held, b"b")
    assert sequences(take(held)) == [0]


@pytest.mark.parametrize("error", [ProducerUnknown(), ProducerFenced()])
def test_a_forgotten_producer_gets_a_new_id_and_what_was_never_taken_is_sent_again(error: LannerError) -> None:
    held = accumulator()
    sealed(held, b"a")
    sealed(held, b"b")
    first, second = take(held)
    held.failed(first, error, 0)
    assert held.failed(second, SequenceGap(), 0) == []
    assert held.identity is None
    assert take(held, 100) == []
    assert held.needs_identity
    held.identity = Identity(9, 0)
    again = take(held, 100)
    assert again == [first, second]
    assert sequences(again) == [0, 1]
    assert first.data is not None
    assert decode(first.data).header.producer_id == 9


def test_a_producer_that_is_unknown_behind_a_failed_first_batch_is_only_out_of_turn() -> None:
    held = accumulator()
    sealed(held, b"a")
    sealed(held, b"b")
    first, second = take(held)
    held.failed(first, ConnectionLost(), 0)
    assert held.failed(second, ProducerUnknown(), 0) == []
    assert held.identity == Identity(7, 0)
    assert sequences(take(held, 100)) == [0, 1]


def test_a_forgotten_producer_makes_what_may_have_been_taken_an_error() -> None:
    held = accumulator()
    sealed(held, b"a")
    (batch,) = take(held)
    held.failed(batch, ConnectionLost(), 0)
    (again,) = take(held, 1_000)
    (failure,) = held.failed(again, ProducerUnknown(), 1_000)
    assert isinstance(failure.error, DeadlineExceeded)
    assert "not known whether" in failure.error.message
    assert failure.error.details["cause"] == "ProducerUnknown"


def test_a_gap_before_everything_in_flight_means_that_the_numbering_is_lost() -> None:
    held = accumulator()
    sealed(held, b"a")
    (batch,) = take(held)
    confirm(held, batch)
    sealed(held, b"b")
    (second,) = take(held)
    assert held.failed(second, SequenceGap(), 0) == []
    held.identity = Identity(9, 0)
    assert sequences(take(held, 100)) == [0]


def test_an_unknown_fate_at_the_deadline_is_reported_and_never_repeated() -> None:
    held = accumulator(timeout_ms=1_000)
    sealed(held, b"a")
    sealed(held, b"b")
    first, second = take(held)
    held.failed(first, ConnectionLost(), 900)
    held.failed(second, Overloaded(), 900)
    assert take(held, 901) == []
    failures = held.expire(1_001)
    assert [failure.batch for failure in failures] == [first, second]
    assert isinstance(failures[0].error, DeadlineExceeded)
    assert isinstance(failures[1].error, Overloaded)  # this one surely had no effect
    assert held.batches == 0
    sealed(held, b"c", now_ms=1_001)
    assert take(held, 1_001) == []
    held.identity = Identity(9, 0)
    assert sequences(take(held, 1_001)) == [0]


def test_what_was_never_sent_expires_with_the_news_that_it_was_not() -> None:
    held = accumulator(timeout_ms=1_000, linger_ms=5_000)
    sealed(held, b"a")
    add(held, b"b", priority=9)
    assert held.expire(999) == []
    failures = held.expire(1_000)
    assert {failure.batch.values[0] for failure in failures} == {b"a", b"b"}
    assert all("was not sent" in failure.error.message for failure in failures)
    assert held.buffered_bytes == 0


def test_a_request_that_never_left_is_not_uncertain() -> None:
    held = accumulator()
    sealed(held, b"a")
    (batch,) = take(held)
    held.failed(batch, ConnectionLost(), 0, sent=False)
    assert not batch.uncertain


def test_a_server_error_is_repeated_because_the_number_makes_that_safe() -> None:
    held = accumulator()
    sealed(held, b"a")
    (batch,) = take(held)
    assert held.failed(batch, ServerError(), 0) == []
    assert take(held, 1_000) == [batch]


def test_without_numbers_an_uncertain_sending_is_never_repeated() -> None:
    held = accumulator(idempotent=False)
    sealed(held, b"a")
    sealed(held, b"b")
    first, second = take(held)
    held.failed(first, ConnectionLost(), 0)
    failures = held.failed(second, Overloaded(), 0)
    assert [failure.batch for failure in failures] == [first]
    assert take(held, 1_000) == [second]


def test_a_dedup_id_makes_an_uncertain_sending_repeatable() -> None:
    held = accumulator()
    batch = sealed(held, b"once", dedup_id=b"order-1")
    take(held)
    assert held.failed(batch, ConnectionLost(), 0) == []
    assert take(held, 1_000) == [batch]


def test_backoff_grows_and_is_bounded() -> None:
    held = accumulator(timeout_ms=1e9)
    sealed(held, b"a")
    now_ms, pauses = 0.0, []
    for _ in range(12):
        (batch,) = take(held, now_ms)
        held.failed(batch, ConnectionLost(), now_ms)
        due_ms = held.next_due_ms(now_ms)
        assert due_ms is not None
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
    assert pauses[0] < 40
    assert 500 <= pauses[-1] <= 1_500


def test_abandoning_fails_everything_that_is_held() -> None:
    held = accumulator(linger_ms=100)
    sealed(held, b"a")
    take(held)
    sealed(held, b"b")
    add(held, b"c")
    failures = held.abandon(ServerError("over"))
    assert len(failures) == 3
    assert (held.batches, held.buffered_bytes) == (0, 0)


# ------------------------------------------------------------------ against a model


class ModelBroker:
    """Takes batches as a partition does: in sequence, remembering the last results of each producer and lane."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.log: list[bytes] = []
        self.producers: dict[tuple[int, int], dict[int, int]] = {}

    def publish(self, data: bytes) -> tuple[int, bool]:
        found = decode(data)
        key = (found.header.producer_id, found.header.priority)
        sequence = found.header.sequence
        if key not in self.producers and sequence:
            raise ProducerUnknown()
        results = self.producers.setdefault(key, {})
        if sequence in results:
            return results[sequence], True
        if sequence != max(results, default=-1) + 1:
            raise SequenceGap()
        results[sequence] = len(self.log)
        if len(results) > 5:
            del results[min(results)]
        self.log.extend(found.values())
        return results[sequence], False


@pytest.mark.parametrize("seed", range(40))
def test_whatever_fails_each_message_is_stored_once_and_in_order_or_reported(seed: int) -> None:
    rng = random.Random(seed)
    held = Accumulator(rng=rng, batch_messages=3, timeout_ms=400 if seed % 2 else 1e9)
    broker = ModelBroker(rng)
    identities = iter(range(1, 1_000))
    confirmed: list[bytes] = []
    unknown: set[bytes] = set()
    refused: set[bytes] = set()
    now_ms, sent = 0.0, 0
    while sent < 200 or held.batches:
        now_ms += rng.random() * 30
        if sent < 200:
            for _ in range(min(rng.randrange(6), 200 - sent)):
                add(held, b"%04d" % sent, now_ms=now_ms)
                sent += 1
        batches = take(held, now_ms)
        if held.needs_identity:
            held.identity = Identity(next(identities), 0)
        down = rng.random() < 0.2
        for batch in batches:
            data = batch.data
            assert data is not None
            error: LannerError | None = None
            offset, duplicate = -1, False
            fault = rng.random()
            if fault < 0.1:
                error = Overloaded()
            elif fault < 0.13:
                error = ValidationError("refused")
            else:
                try:
                    offset, duplicate = broker.publish(data)
                except (SequenceGap, ProducerUnknown) as refusal:
                    error = refusal
                if down and rng.random() < 0.7:
                    error = ConnectionLost()  # taken perhaps, but the answer is lost
            if error is None:
                failures = held.acknowledged(batch, offset, 0, duplicate, now_ms)
                assert list(batch.values) == broker.log[offset : offset + len(batch.values)]
                confirmed.extend(batch.values)
            else:
                failures = held.failed(batch, error, now_ms)
            for failure in [*failures]:
                (unknown if isinstance(failure.error, DeadlineExceeded) else refused).update(failure.batch.values)
        for failure in held.expire(now_ms):
            (unknown if isinstance(failure.error, DeadlineExceeded) else refused).update(failure.batch.values)
    assert len(broker.log) == len(set(broker.log)), "a message was stored twice"
    assert broker.log == sorted(broker.log), "the order was not kept"
    assert set(confirmed) <= set(broker.log)
    assert not refused & set(broker.log), "a message reported as refused was stored"
    assert set(confirmed) | unknown | refused == {b"%04d" % number for number in range(200)}
    assert held.buffered_bytes == 0


def test_a_batch_carries_the_time_at_which_it_was_begun_also_when_it_is_sent_again() -> None:
    held = accumulator(stamp=lambda moment_ms: 1_800_000_000_000 + int(moment_ms))
    add(held, b"first", now_ms=5)
    add(held, b"second", now_ms=9)
    (batch,) = take(held, now_ms=20)
    assert batch.data is not None
    assert decode(batch.data).timestamps() == [1_800_000_000_005] * 2
    first = batch.data
    held.failed(batch, ConnectionLost(), 30)
    (again,) = take(held, now_ms=10_000)
    assert again.data == first


def test_messages_carry_no_time_unless_it_is_asked_for() -> None:
    held = accumulator()
    add(held, b"value")
    (batch,) = take(held)
    assert batch.data is not None
    assert decode(batch.data).timestamps() is None
