from __future__ import annotations

from typing import Any

import pytest

from lanner import features, limits
from lanner.errors import Overloaded, ProducerUnknown
from lanner.limits import PRODUCER_IDLE_MS
from lanner.model import TopicSettings
from lanner.partition import WAIT, CommitOffset, DropGroup, Poll, Seek, Settle, Tick, upkeep

NACK, REJECT = 2, 4


def due_ms(bench: Any) -> int | None:
    found: int | None = bench.partition.next_due_ms(bench.settings, bench.now_ms)
    return found


# ------------------------------------------------------------------ leases and retries


def test_an_ended_lease_is_redelivered_at_once_and_the_attempt_counts(bench: Any, offsets_of: Any) -> None:
    bench.append(count=3)
    answer = bench.poll(lease_ms=1_000)
    assert due_ms(bench) == answer.deadline_ms
    bench.wait(999)
    assert bench.decide(Tick()).record is None
    bench.wait(1)
    again = bench.poll()
    assert offsets_of(again) == [0, 1, 2] and again.leases[0].attempt == 2


def test_a_tick_makes_ended_leases_ready_and_wakes_polls(bench: Any) -> None:
    bench.append(count=3)
    bench.poll(lease_ms=1_000)
    bench.wait(1_000)
    bench.ask(Tick())
    assert bench.outcome.deliverable
    assert bench.partition.describe_group("g", bench.now_ms).ready == 3


def test_a_lease_that_ends_after_the_last_delivery_makes_dead(make_bench: Any) -> None:
    bench = make_bench(max_deliveries=2, lease_ms=100)
    bench.append(count=2)
    bench.poll()
    bench.wait(100)
    bench.poll()
    bench.wait(100)
    assert bench.poll() is WAIT
    letters = bench.partition.dead_letters("g", 0, 9)
    assert [(letter.offset, letter.attempts, letter.died_ms) for letter in letters] == [
        (0, 2, bench.now_ms),
        (1, 2, bench.now_ms),
    ]
    assert "lease expired" in letters[0].reason


def test_a_message_that_expired_while_leased_is_settled_not_dead(make_bench: Any, offsets_of: Any) -> None:
    bench = make_bench(max_deliveries=1)
    bench.append(count=2, expires_at_ms=1_500)
    bench.append(count=1)
    bench.poll(lease_ms=1_000)
    bench.wait(1_000)
    bench.ask(Tick())
    assert [letter.offset for letter in bench.partition.dead_letters("g", 0, 9)] == [2]
    assert bench.partition.describe_group("g", bench.now_ms).lag == 0


def test_an_extension_in_the_same_pass_saves_the_lease(bench: Any) -> None:
    bench.append(count=2)
    token = bench.poll(lease_ms=1_000).token
    bench.wait(1_000)
    bench.ask(Settle("g", [(token, 0, 2, 3, 5_000, "")]), Tick())
    assert bench.partition.describe_group("g", bench.now_ms).leased == 2


def test_due_work_is_bounded_and_the_rest_is_due_at_once(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "DUE_RANGES_MAX", 2)
    bench.append(count=20)
    for _ in range(5):
        bench.poll(messages=2, lease_ms=1_000)
    token = bench.poll(messages=10).token
    bench.settle(*((token, offset, 1, NACK, 1_000) for offset in range(10, 20, 2)))
    bench.wait(1_000)
    rounds = 0
    while (due := due_ms(bench)) is not None and due <= bench.now_ms:
        bench.ask(Tick())
        rounds += 1
    assert rounds >= 5
    assert bench.partition.describe_group("g", bench.now_ms).ready == 15


def test_groups_that_were_sought_or_dropped_in_the_pass_are_left_alone(bench: Any) -> None:
    bench.append(count=2)
    for group in ("sought", "dropped", "kept"):
        bench.poll(group, lease_ms=1_000)
    bench.wait(1_000)
    bench.ask(Seek("sought", 0), DropGroup("dropped"), Poll("dropped", "m", 1))
    assert bench.partition.describe_group("kept", bench.now_ms).ready == 2
    assert bench.partition.describe_group("sought", bench.now_ms).ready == 2
    assert bench.partition.describe_group("dropped", bench.now_ms).leased == 2


# ------------------------------------------------------------------ delays


def test_a_delayed_batch_is_not_delivered_early_and_enters_at_the_tail_of_its_lane(bench: Any, offsets_of: Any) -> None:
    bench.append(deliver_at_ms=2_000)
    bench.append()
    assert due_ms(bench) == 2_000
    bench.wait(900)
    bench.append()
    bench.wait(99)
    assert offsets_of(bench.poll()) == [1, 2]
    bench.wait(1)
    bench.ask(Tick())
    assert bench.outcome.deliverable
    assert offsets_of(bench.poll()) == [0]


def test_delays_end_in_the_order_of_their_times(bench: Any, offsets_of: Any) -> None:
    for deliver_at_ms in (3_000, 2_000, 2_500):
        bench.append(deliver_at_ms=deliver_at_ms)
    bench.wait(5_000)
    bench.ask(Tick())
    assert offsets_of(bench.poll()) == [1, 2, 0]


def test_nothing_less_urgent_overtakes_a_batch_whose_delay_ends_in_the_pass(bench: Any, offsets_of: Any) -> None:
    bench.append(priority=6, deliver_at_ms=2_000)
    bench.append(priority=4)
    bench.append(priority=9)
    bench.poll("other")
    bench.wait(1_000)
    assert offsets_of(bench.poll()) == [2]
    assert offsets_of(bench.poll()) == [0, 1]


def test_an_append_between_decision_and_application_is_harmless(bench: Any, offsets_of: Any) -> None:
    bench.append(deliver_at_ms=2_000)
    bench.wait(1_000)
    decided = bench.decide(Tick(), Poll("g", "m", 1, start="latest"))
    bench.append()
    bench.apply(decided.record)
    assert offsets_of(bench.poll(sequence=2)) == [1]


def test_ending_delays_is_bounded(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "DELAYS_MAX", 2)
    for _ in range(5):
        bench.append(deliver_at_ms=2_000)
    bench.wait(1_000)
    bench.ask(Tick())
    assert due_ms(bench) == 2_000
    bench.ask(Tick())
    bench.ask(Tick())
    assert due_ms(bench) != 2_000
    assert len(bench.poll().leases) == 5


# ------------------------------------------------------------------ expiry without polls


def test_a_tick_passes_expired_messages_at_the_front(bench: Any) -> None:
    bench.poll()
    bench.ask(CommitOffset("stream", 0))
    bench.append(count=3, expires_at_ms=1_500)
    bench.append(count=2, expires_at_ms=1_400)
    bench.append(count=1)
    assert due_ms(bench) == 1_500
    bench.wait(600)
    bench.ask(Tick())
    assert bench.partition.describe_group("g", bench.now_ms).lag == 1
    assert due_ms(bench) != 1_500


def test_an_expired_front_of_a_sought_group_waits(bench: Any) -> None:
    bench.append(expires_at_ms=1_500)
    bench.poll("other", auto_ack=True)
    bench.ask(Poll("g", "m", 1, start="latest"))
    bench.wait(1_000)
    bench.ask(Seek("g", 0))
    assert bench.partition.describe_group("g", bench.now_ms).lag == 1
    bench.ask(Tick())
    assert bench.partition.describe_group("g", bench.now_ms).lag == 0


# ------------------------------------------------------------------ forgetting


def test_an_idle_group_expires_unless_it_holds_leases(make_bench: Any) -> None:
    bench = make_bench(group_idle_ms=5_000, lease_ms=20_000)
    bench.append(count=2)
    bench.poll("busy", messages=1)
    bench.ask(CommitOffset("idle", 1))
    bench.wait(4_999)
    bench.ask(CommitOffset("later", 1))
    bench.wait(1)
    bench.ask(Tick())
    assert bench.partition.groups() == ["busy", "later"]


def test_the_next_idle_group_is_due_when_its_time_is_over(make_bench: Any) -> None:
    bench = make_bench(group_idle_ms=5_000, retention_ms=0)
    bench.ask(CommitOffset("idle", 0))
    assert due_ms(bench) == bench.now_ms + 5_000
    bench.wait(5_000)
    bench.ask(Tick())
    assert bench.partition.groups() == [] and due_ms(bench) is None


@pytest.mark.parametrize(
    "request_", [Poll("g", "m", 99), CommitOffset("s", 1), Settle("g", [(1, 0, 1, 1, -1, "")]), Seek("g", 0)]
)
def test_a_group_named_in_the_pass_that_would_drop_it_stays(make_bench: Any, request_: Any) -> None:
    """After a long stop of the broker the first to come back must find their groups."""
    bench = make_bench(group_idle_ms=5_000)
    bench.append()
    bench.poll(auto_ack=True)
    bench.ask(CommitOffset("s", 0))
    bench.wait(6_000)
    bench.ask(request_)
    assert bench.partition.groups() == [request_.group]
    if isinstance(request_, Poll):
        assert bench.partition.describe_group("g", bench.now_ms).lag == 0


def test_idle_producers_are_forgotten_by_a_decision(bench: Any) -> None:
    bench.append(producer_id=5, sequence=0)
    bench.wait(PRODUCER_IDLE_MS - 1)
    bench.append(producer_id=6, sequence=0)
    assert bench.append(producer_id=5, sequence=0).duplicate
    assert due_ms(bench) is not None
    bench.wait(1)
    decided = bench.decide(Tick())
    bench.append(producer_id=6, sequence=1)
    bench.apply(decided.record)
    assert not bench.append(producer_id=5, sequence=0).duplicate
    assert bench.append(producer_id=6, sequence=1).duplicate


def test_a_producer_that_publishes_after_the_decision_is_not_forgotten(bench: Any) -> None:
    bench.append(producer_id=5, sequence=0)
    bench.wait(PRODUCER_IDLE_MS)
    decided = bench.decide(Tick())
    bench.append(producer_id=5, sequence=1)
    bench.apply(decided.record)
    assert bench.append(producer_id=5, sequence=1).duplicate


def test_dedup_ids_are_forgotten_after_the_window(make_bench: Any) -> None:
    bench = make_bench(dedup_window_ms=1_000, retention_ms=0)
    first = bench.append(dedup_id=b"a")
    assert due_ms(bench) == bench.now_ms + 1_000
    bench.wait(1_000)
    assert bench.append(dedup_id=b"a") == first._replace(duplicate=True)
    bench.ask(Tick())
    assert not bench.append(dedup_id=b"a").duplicate


def test_memories_are_bounded_in_number_too(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PRODUCERS_MAX", 2)
    bench = make_bench(retention_ms=0)
    for number in range(1, 6):
        bench.wait(1)
        bench.append(producer_id=number, sequence=0)
    assert due_ms(bench) == bench.now_ms
    bench.ask(Tick())
    assert len(bench.partition._state.producers) == 2
    assert due_ms(bench) != bench.now_ms


def test_a_producer_that_was_forgotten_early_is_refused_and_not_stored_again(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PRODUCERS_MAX", 2)
    bench = make_bench(retention_ms=0)
    for number in (1, 2, 3, 5):
        bench.wait(1)
        bench.append(producer_id=number, sequence=0)
    bench.ask(Tick())
    end_offset = bench.partition.end_offset
    for reloaded in (False, True):
        if reloaded:
            bench.restart()
        for forgotten in (1, 2):
            refused = bench.append(producer_id=forgotten, sequence=0)
            assert isinstance(refused, ProducerUnknown), "it may be the repetition of one that is stored"
        assert bench.partition.end_offset == end_offset
        assert bench.append(producer_id=3, sequence=0).duplicate
    assert not bench.append(producer_id=4, sequence=0).duplicate, "above those that were forgotten"
    assert not bench.append(producer_id=6, sequence=0).duplicate
    bench.wait(PRODUCER_IDLE_MS)
    assert not bench.append(producer_id=1, sequence=0).duplicate, "the week for which it would have been known is over"


def test_before_level_4_nothing_is_refused_for_having_been_forgotten(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PRODUCERS_MAX", 1)
    bench = make_bench(retention_ms=0)
    bench.feature_level = features.PRODUCER_FLOORS - 1
    for number in (1, 2):
        bench.wait(1)
        bench.append(producer_id=number, sequence=0)
    bench.ask(Tick())
    assert not bench.append(producer_id=1, sequence=0).duplicate


def test_a_dedup_id_is_never_forgotten_inside_its_window_and_a_new_one_is_refused_at_the_bound(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEDUP_IDS_PER_PARTITION_MAX", 3)
    bench = make_bench(dedup_window_ms=1_000, retention_ms=0)
    partition = bench.partition
    first = bench.append(dedup_id=b"1")
    bench.wait(400)
    for number in range(2, 5):  # the last one was proposed before the others had applied
        partition.check_dedup(b"", bench.settings, bench.now_ms)
        bench.append(dedup_id=b"%d" % number)
    assert due_ms(bench) == bench.now_ms + 600
    bench.ask(Tick())
    assert list(partition._state.dedup.ids()) == [b"1", b"2", b"3", b"4"]
    with pytest.raises(Overloaded, match="dedup_window_ms") as refused:
        partition.check_dedup(b"5", bench.settings, bench.now_ms)
    assert refused.value.retry_after_ms == 600
    partition.check_dedup(b"1", bench.settings, bench.now_ms)  # it gets its first answer
    assert bench.append(dedup_id=b"1") == first._replace(duplicate=True)
    bench.wait(1_000)
    bench.ask(Tick())
    partition.check_dedup(b"5", bench.settings, bench.now_ms)


def test_at_the_bound_the_oldest_ids_whose_window_has_passed_make_room_soon(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEDUP_IDS_PER_PARTITION_MAX", 1)
    bench = make_bench(dedup_window_ms=1_000, retention_ms=0)
    bench.append(dedup_id=b"1")
    bench.wait(5_000)
    with pytest.raises(Overloaded) as refused:
        bench.partition.check_dedup(b"2", bench.settings, bench.now_ms)
    assert refused.value.retry_after_ms == 100


# ------------------------------------------------------------------ making room


def test_the_oldest_dead_make_room_when_too_much_is_pinned(make_bench: Any) -> None:
    bench = make_bench(retention_ms=1_000)
    for _ in range(4):
        bench.append(count=2, filling=bytes(100))
    bench.settle((bench.poll().token, 0, 8, REJECT))
    bench.poll("other", lease_ms=600_000, messages=1)
    bench.wait(1_500)
    bench.ask(Tick())
    pinned_bytes = bench.partition.pinned_bytes
    assert bench.partition.batch_count == 0 and pinned_bytes > 400
    bench.settings = TopicSettings(retention_ms=1_000, pinned_bytes_max=pinned_bytes // 2)
    assert due_ms(bench) == bench.now_ms
    while (due := due_ms(bench)) is not None and due <= bench.now_ms:
        bench.ask(Tick())
    assert bench.partition.pinned_bytes <= pinned_bytes // 2
    left = [letter.offset for letter in bench.partition.dead_letters("g", 0, 9)]
    assert left == list(range(8 - len(left), 8))


def test_pins_that_nobody_may_discard_are_not_due(make_bench: Any) -> None:
    bench = make_bench(retention_ms=1_000, pinned_bytes_max=0)
    bench.append(count=2, filling=bytes(100))
    bench.append(count=2, filling=bytes(100))
    bench.poll(lease_ms=600_000)
    bench.wait(1_500)
    bench.ask(Tick())
    assert bench.partition.pinned_bytes > 0
    assert due_ms(bench) == 601_000
