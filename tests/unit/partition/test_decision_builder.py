from __future__ import annotations

from typing import Any

import pytest

from lanner import limits
from lanner.errors import (
    DeadLetterNotFound,
    DeadLettersFull,
    GroupKindConflict,
    GroupNotFound,
    LeaseLost,
    OffsetOutOfRange,
    ValidationError,
)
from lanner.model import TopicSettings
from lanner.partition import (
    WAIT,
    CommitOffset,
    Discard,
    DropGroup,
    MakeGroup,
    Poll,
    Redrive,
    Release,
    Seek,
    Settle,
    decision_builder,
)
from lanner.partition.decision_builder import backoff_ms

ACK, NACK, EXTEND, REJECT = 1, 2, 3, 4
LOST = LeaseLost.code


# ------------------------------------------------------------------ settles


def test_an_ack_settles_for_good(bench: Any) -> None:
    bench.append(count=5)
    token = bench.poll().token
    assert bench.settle((token, 0, 3, ACK)) == [(0, 3)]
    assert bench.settle((token, 2, 3, NACK)) == [(LOST, 2)]
    assert bench.settle((token, 0, 5, NACK)) == [(LOST, 2)]
    state = bench.partition.describe_group("g", bench.now_ms)
    assert (state.lag, state.waiting) == (2, 2)


def test_two_settles_of_one_message_in_one_pass_take_effect_once(bench: Any) -> None:
    bench.append(count=2)
    token = bench.poll().token
    both = [
        (token, 0, 1, ACK, -1, ""),
        (token, 0, 1, NACK, 0, ""),
        (token, 1, 1, NACK, 0, ""),
        (token, 1, 1, ACK, -1, ""),
    ]
    [answer] = bench.ask(Settle("g", both))
    assert answer == [(0, 1), (LOST, 0), (0, 1), (LOST, 0)]


def test_an_old_token_cannot_settle_a_message_that_was_leased_again(bench: Any, offsets_of: Any) -> None:
    bench.append(count=1)
    old = bench.poll().token
    bench.wait(bench.settings.lease_ms)
    new = bench.poll()
    assert offsets_of(new) == [0] and new.leases[0].attempt == 2
    assert bench.settle((old, 0, 1, ACK)) == [(LOST, 0)]
    assert bench.settle((new.token, 0, 1, ACK)) == [(0, 1)]


def test_a_settle_of_nothing_or_of_what_was_never_leased_is_lost(bench: Any) -> None:
    bench.append(count=2)
    token = bench.poll(messages=1).token
    assert bench.settle((token, 1, 1), (token, 0, 0), (token, -5, 2), (999, 0, 1)) == [(LOST, 0)] * 4


def test_a_settle_comes_before_the_expiry_of_the_same_moment(bench: Any) -> None:
    bench.append()
    token = bench.poll().token
    bench.wait(bench.settings.lease_ms + 5)
    assert bench.settle((token, 0, 1, ACK)) == [(0, 1)]
    assert bench.poll() is WAIT


def test_a_nack_waits_for_the_backoff_of_its_attempt(make_bench: Any) -> None:
    bench = make_bench(backoff_ms=100, backoff_max_ms=300, max_deliveries=10)
    bench.append()
    for wait_ms in (100, 200, 300, 300):
        bench.settle((bench.poll().token, 0, 1, NACK))
        bench.wait(wait_ms - 1)
        assert bench.poll() is WAIT
        bench.wait(1)


def test_backoff_is_bounded_and_may_be_nothing() -> None:
    settings = TopicSettings(backoff_ms=1_000, backoff_max_ms=60_000)
    assert [backoff_ms(settings, attempt) for attempt in (1, 2, 7, 1_000)] == [1_000, 2_000, 60_000, 60_000]
    assert backoff_ms(TopicSettings(backoff_ms=0), 5) == 0


def test_a_nack_delay_of_the_callers_own_wins(bench: Any, offsets_of: Any) -> None:
    bench.append(count=2)
    token = bench.poll().token
    bench.settle((token, 0, 1, NACK, 0), (token, 1, 1, NACK, 10))
    assert offsets_of(bench.poll()) == [0]
    bench.wait(10)
    assert offsets_of(bench.poll()) == [1]


def test_what_was_nacked_without_delay_is_served_in_the_same_pass(bench: Any, offsets_of: Any) -> None:
    bench.append(count=1)
    token = bench.poll().token
    _, answer = bench.ask(Settle("g", [(token, 0, 1, NACK, 0, "")]), Poll("g", "n", 1))
    assert offsets_of(answer) == [0] and answer.leases[0].attempt == 2


def test_after_the_last_delivery_a_nack_makes_dead(make_bench: Any) -> None:
    bench = make_bench(max_deliveries=2, backoff_ms=0)
    bench.append(count=2)
    bench.settle((bench.poll().token, 0, 2, NACK))
    bench.settle((bench.poll().token, 0, 1, NACK, -1, "no such customer"), (len(bench.log), 1, 1, NACK))
    letters = bench.partition.dead_letters("g", 0, 10)
    assert [(letter.offset, letter.attempts, letter.reason) for letter in letters] == [
        (0, 2, "no such customer"),
        (1, 2, "max deliveries"),
    ]
    assert bench.poll() is WAIT


def test_messages_of_one_nack_share_no_fate(make_bench: Any, offsets_of: Any) -> None:
    """One was delivered as often as it may be, one twice, one once: dead, long wait, short wait."""
    bench = make_bench(max_deliveries=3, backoff_ms=100)
    bench.append(count=3)
    bench.settle((bench.poll(messages=1).token, 0, 1, NACK, 0))
    bench.settle((bench.poll(messages=2).token, 0, 2, NACK, 0))
    answer = bench.poll()
    assert offsets_of(answer) == [0, 1, 2]
    bench.settle((answer.token, 0, 3, NACK))
    assert bench.partition.dead_count("g") == 1
    bench.wait(100)
    assert offsets_of(bench.poll()) == [2]
    bench.wait(100)
    assert offsets_of(bench.poll()) == [1]


def test_a_rejected_message_is_dead_at_once_with_its_reason(bench: Any) -> None:
    bench.append(count=3)
    token = bench.poll().token
    assert bench.settle((token, 0, 1, REJECT), (token, 1, 1, REJECT, -1, "x" * 5_000)) == [(0, 1), (0, 1)]
    first, second = bench.partition.dead_letters("g", 0, 10)
    assert first.reason == "rejected" and first.attempts == 1 and first.died_ms == bench.now_ms
    assert len(second.reason) == limits.REASON_LENGTH_MAX


def test_extending_moves_only_what_was_named(bench: Any, offsets_of: Any) -> None:
    bench.append(count=4)
    token = bench.poll(lease_ms=1_000).token
    assert bench.settle((token, 1, 2, EXTEND, 5_000)) == [(0, 2)]
    bench.wait(1_000)
    assert offsets_of(bench.poll()) == [0, 3]
    assert bench.settle((token, 0, 4, ACK)) == [(LOST, 2)]


def test_extending_without_a_time_takes_the_topics_lease_and_in_the_last_moment_is_not_too_late(bench: Any) -> None:
    bench.append(count=2)
    token = bench.poll(lease_ms=1_000).token
    bench.wait(1_000)
    bench.settle((token, 0, 2, EXTEND))
    bench.wait(bench.settings.lease_ms - 1)
    assert bench.poll() is WAIT
    bench.wait(1)
    assert bench.poll().leases[0].attempt == 2


def test_an_unknown_kind_of_settle_has_no_effect(bench: Any) -> None:
    bench.append()
    token = bench.poll().token
    assert bench.settle((token, 0, 1, 9)) == [(ValidationError.code, 0)]
    assert bench.settle((token, 0, 1, ACK)) == [(0, 1)]


def test_released_messages_come_back_as_if_never_delivered(bench: Any, offsets_of: Any) -> None:
    bench.append(count=3)
    token = bench.poll(messages=2).token
    released, answer = bench.ask(Release("g", [(token, 0, 2, 1, -1, "")]), Poll("g", "n", 1))
    assert released == [(0, 2)]
    assert offsets_of(answer) == [0, 1, 2]
    assert {lease.attempt for lease in answer.leases} == {1}
    [again] = bench.ask(Release("g", [(token, 0, 2, 1, -1, "")]))
    assert again == [(LOST, 0)]


def test_settles_need_a_queue_group_and_a_bounded_list(bench: Any) -> None:
    bench.ask(CommitOffset("s", 0))
    too_many = [(1, 0, 1, 1, -1, "")] * (limits.SETTLE_RANGES_MAX + 1)
    answers = bench.ask(Settle("nobody", []), Settle("s", []), Settle("s", too_many))
    assert [type(answer) for answer in answers] == [GroupNotFound, GroupKindConflict, ValidationError]


# ------------------------------------------------------------------ the bound on what is pinned


def pinned(make_bench: Any, **settings: Any) -> Any:
    """A bench whose first batch is trimmed, with one dead message of it pinned."""
    bench = make_bench(retention_ms=1_000, **settings)
    bench.append(count=2, filling=bytes(100))
    bench.settle((bench.poll().token, 0, 1, REJECT))
    bench.append(count=2)
    bench.wait(1_500)
    bench.append(count=3, filling=bytes(100))
    bench.ask()
    return bench


def test_where_dead_letters_are_full_a_reject_is_refused(make_bench: Any) -> None:
    bench = pinned(make_bench, dead_full="reject", pinned_bytes_max=1_000_000)
    assert bench.partition.pinned_bytes > 0
    bench.settings = TopicSettings(retention_ms=1_000, dead_full="reject", pinned_bytes_max=10, max_deliveries=1)
    answer = bench.poll(messages=2)
    assert bench.settle((answer.token, answer.leases[0].first_offset, 1, REJECT)) == [(DeadLettersFull.code, 0)]
    last = answer.leases[-1]
    bench.settle((answer.token, last.first_offset, last.count, NACK, 0))
    assert bench.partition.dead_count("g") == 1
    assert bench.poll(messages=1).leases[0].attempt == 2


# ------------------------------------------------------------------ groups


def test_a_group_keeps_its_kind(bench: Any) -> None:
    bench.append()
    bench.ask(MakeGroup("q", "queue"), MakeGroup("s", "stream"))
    answers = bench.ask(
        MakeGroup("q", "queue"),
        MakeGroup("q", "stream"),
        CommitOffset("q", 0),
        MakeGroup("x", "heap"),
        Poll("s", "m", 1),
    )
    assert answers[0] is None
    assert [type(answer) for answer in answers[1:]] == [
        GroupKindConflict,
        GroupKindConflict,
        ValidationError,
        GroupKindConflict,
    ]


def test_a_commit_makes_a_stream_group_and_may_go_back(bench: Any) -> None:
    bench.append(count=5)
    assert bench.ask(CommitOffset("s", 4)) == [None]
    assert bench.partition.committed("s") == 4
    bench.ask(CommitOffset("s", 2))
    assert bench.partition.committed("s") == 2
    answers = bench.ask(CommitOffset("s", 6), CommitOffset("s", -1))
    assert [type(answer) for answer in answers] == [OffsetOutOfRange] * 2


def test_a_group_may_start_at_an_offset_inside_a_batch(bench: Any, offsets_of: Any) -> None:
    for priority in (4, 9, 4):
        bench.append(count=10, priority=priority)
    bench.ask(MakeGroup("g", "queue", 15))
    assert offsets_of(bench.poll()) == [*range(15, 20), *range(20, 30)]
    answers = bench.ask(MakeGroup("h", "queue", 31), MakeGroup("h", "queue", "soon"))
    assert [type(answer) for answer in answers] == [OffsetOutOfRange, ValidationError]


def test_seeking_back_delivers_again_as_fresh_and_ends_the_leases(bench: Any, offsets_of: Any) -> None:
    bench.append(count=4)
    bench.append(count=4, priority=9)
    token = bench.poll().token
    bench.settle((token, 0, 1, ACK), (token, 1, 1, NACK, 10_000), (token, 2, 1, REJECT), (token, 4, 1, NACK, 0))
    bench.ask(Seek("g", 1))
    assert bench.settle((token, 3, 1, ACK)) == [(LOST, 0)]
    answer = bench.poll()
    assert offsets_of(answer) == [4, 5, 6, 7, 1, 2, 3]
    assert {lease.attempt for lease in answer.leases} == {1}
    assert bench.partition.dead_count("g") == 0


def test_seeking_forward_settles_what_is_behind_but_the_dead_stay(bench: Any, offsets_of: Any) -> None:
    bench.append(count=8)
    token = bench.poll(messages=4).token
    bench.settle((token, 0, 1, REJECT), (token, 1, 1, NACK, 0))
    bench.ask(Seek("g", 6))
    assert offsets_of(bench.poll()) == [6, 7]
    assert [letter.offset for letter in bench.partition.dead_letters("g", 0, 9)] == [0]
    bench.ask(Seek("g", "latest"))
    assert bench.poll() is WAIT
    bench.append()
    assert offsets_of(bench.poll()) == [8]
    bench.ask(Seek("g", "earliest"))
    assert offsets_of(bench.poll()) == list(range(9))


def test_seeking_back_does_not_lose_what_only_a_pin_keeps(make_bench: Any, offsets_of: Any) -> None:
    bench = make_bench(retention_ms=1_000, lease_ms=600_000)
    bench.append(count=3)
    token = bench.poll(messages=2).token
    bench.settle((token, 1, 1, NACK, 500_000))
    bench.wait(2_000)
    bench.ask()
    assert bench.partition.batch_count == 0
    bench.append()
    bench.ask(Seek("g", 1))
    answer = bench.poll()
    assert offsets_of(answer) == [1, 3]
    assert [lease.attempt for lease in answer.leases] == [1, 1]


def test_what_only_a_pin_keeps_is_not_delivered_too_often_because_of_a_seek(make_bench: Any, offsets_of: Any) -> None:
    bench = make_bench(retention_ms=1_000, lease_ms=600_000, max_deliveries=2)
    bench.append(count=2)
    token = bench.poll().token
    bench.settle((token, 0, 2, NACK, 0))
    assert {lease.attempt for lease in bench.poll().leases} == {2}
    bench.wait(2_000)
    bench.ask()
    assert bench.partition.batch_count == 0
    bench.ask(Seek("g", 0))
    again = bench.poll()
    assert (offsets_of(again), {lease.attempt for lease in again.leases}) == ([0, 1], {1})
    bench.settle((again.token, 0, 2, NACK, 0))
    last = bench.poll()
    assert (offsets_of(last), {lease.attempt for lease in last.leases}) == ([0, 1], {2})
    bench.settle((last.token, 0, 2, NACK, 0))
    assert bench.poll() is WAIT
    assert bench.partition.dead_count("g") == 2


def test_a_stream_group_seeks_its_offset(bench: Any) -> None:
    bench.append(count=4)
    bench.ask(CommitOffset("s", 4))
    bench.ask(Seek("s", "earliest"))
    assert bench.partition.committed("s") == 0
    bench.ask(Seek("s", "latest"))
    assert bench.partition.committed("s") == 4
    bench.ask(Seek("s", 3))
    assert bench.partition.committed("s") == 3


def test_the_earliest_of_an_empty_stream_is_its_end(make_bench: Any) -> None:
    bench = make_bench(retention_ms=1_000)
    bench.append(count=4)
    bench.ask(CommitOffset("s", 0))
    bench.wait(2_000)
    bench.ask()
    bench.ask(Seek("s", "earliest"))
    assert bench.partition.committed("s") == 4


def test_a_dropped_group_is_gone_with_all_it_held(bench: Any, offsets_of: Any) -> None:
    bench.append(count=3)
    token = bench.poll().token
    dropped, answer = bench.ask(DropGroup("g"), Poll("g", "m", 50))
    assert dropped is None and offsets_of(answer) == [0, 1, 2]
    assert bench.settle((token, 0, 3, ACK)) == [(LOST, 0)]
    bench.ask(DropGroup("g"))
    assert bench.partition.groups() == []
    answers = bench.ask(DropGroup("g"), Seek("g", 0))
    assert [type(answer) for answer in answers] == [GroupNotFound] * 2


def test_groups_are_bounded(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_builder, "GROUPS_PER_PARTITION_MAX", 2)
    answers = bench.ask(MakeGroup("a", "queue"), MakeGroup("b", "queue"), MakeGroup("c", "queue"))
    assert answers[:2] == [None, None] and isinstance(answers[2], ValidationError)
    assert isinstance(bench.poll("d"), ValidationError)


# ------------------------------------------------------------------ dead letters


def with_dead(bench: Any, count: int = 6) -> Any:
    bench.append(count=count)
    bench.settle((bench.poll().token, 0, count, REJECT))
    return bench


def test_redriven_messages_come_back_as_new_with_their_priority(bench: Any, offsets_of: Any) -> None:
    bench.append(count=2, priority=9)
    bench.append(count=2, priority=1)
    bench.settle((bench.poll().token, 0, 4, REJECT))
    bench.append(count=1, priority=4)
    redriven, answer = bench.ask(Redrive("g"), Poll("g", "m", 50))
    assert redriven == 4
    assert offsets_of(answer) == [0, 1, 4, 2, 3]
    assert {lease.attempt for lease in answer.leases} == {1}


def test_chosen_dead_letters_leave_from_the_middle(bench: Any, offsets_of: Any) -> None:
    with_dead(bench)
    assert bench.ask(Redrive("g", [2, 3, 99])) == [2]
    assert [letter.offset for letter in bench.partition.dead_letters("g", 0, 10)] == [0, 1, 4, 5]
    assert bench.ask(Discard("g", [5])) == [1]
    assert [letter.offset for letter in bench.partition.dead_letters("g", 1, 10)] == [1, 4]
    assert [letter.offset for letter in bench.partition.dead_letters("g", 2, 10)] == [4]
    assert offsets_of(bench.poll()) == [2, 3]
    assert bench.ask(Discard("g")) == [3]
    assert bench.partition.dead_count("g") == 0
    assert bench.ask(Discard("g")) == [0]


def test_a_dead_letter_is_taken_once_a_pass(bench: Any) -> None:
    with_dead(bench, 3)
    answers = bench.ask(Redrive("g", [1]), Discard("g", [1]), Discard("g"), Redrive("g"))
    assert answers[0] == 1 and isinstance(answers[1], DeadLetterNotFound)
    assert answers[2:] == [2, 0]


def test_offsets_that_are_not_dead_are_not_found(bench: Any) -> None:
    with_dead(bench, 2)
    answers = bench.ask(Redrive("g", [7]), Discard("nobody"), Seek("g", 0), Redrive("g"))
    assert [type(answer) for answer in answers] == [DeadLetterNotFound, GroupNotFound, type(None), DeadLetterNotFound]


def test_redriving_everything_is_bounded_per_decision(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_builder, "DEAD_RANGES_MAX", 2)
    bench.append(count=10)
    token = bench.poll().token
    bench.settle(*((token, offset, 1, REJECT) for offset in (0, 2, 4, 6, 8)))
    assert [bench.ask(Redrive("g"))[0] for _ in range(4)] == [2, 2, 1, 0]


def test_too_many_chosen_dead_letters_are_refused(bench: Any) -> None:
    with_dead(bench, 2)
    [answer] = bench.ask(Redrive("g", [0] * (limits.SETTLE_RANGES_MAX + 1)))
    assert isinstance(answer, ValidationError)


def test_what_was_redriven_as_a_whole_cannot_be_chosen_again_in_the_pass(bench: Any) -> None:
    with_dead(bench, 2)
    answers = bench.ask(Redrive("g"), Discard("g", [1]), Discard("g"))
    assert answers[0] == 2 and isinstance(answers[1], DeadLetterNotFound) and answers[2] == 0


def test_many_nacks_of_one_request_become_one_fact(bench: Any) -> None:
    from lanner.partition import records

    bench.append(count=50)
    token = bench.poll().token
    bench.settle(*((token, offset, 1, NACK, 500) for offset in range(0, 50, 2)))
    assert len(records.decode_decision(bench.log[-1]).facts) == 1
    assert bench.partition.describe_group("g", bench.now_ms).waiting == 25
