from __future__ import annotations

from typing import Any

import pytest

from lanner.errors import GroupKindConflict, ValidationError
from lanner.limits import MEMBER_LENGTH_MAX, MIB, POLL_BYTES_MAX, POLL_MESSAGES_MAX
from lanner.partition import WAIT, CommitOffset, Poll, Seek, polling
from lanner.partition.places import ROW_PLACES


def test_the_most_urgent_lane_comes_first(bench: Any, offsets_of: Any) -> None:
    bench.append(count=2, priority=0)
    bench.append(count=2, priority=9)
    bench.append(count=2, priority=4)
    assert offsets_of(bench.poll(messages=5)) == [2, 3, 4, 5, 0]
    assert offsets_of(bench.poll(messages=5)) == [1]
    assert bench.poll() is WAIT


def test_an_empty_poll_writes_nothing_once_the_group_exists(bench: Any) -> None:
    assert bench.poll() is WAIT
    decided = bench.decide(Poll("g", "m", 2))
    assert decided.record is None and decided.answers == [WAIT]


def test_a_retry_goes_before_newer_messages_of_its_lane_and_after_higher_lanes(bench: Any, offsets_of: Any) -> None:
    bench.append(count=4)
    first = bench.poll(messages=2)
    bench.settle((first.token, 1, 1, 2, 0))
    bench.append(count=1, priority=9)
    answer = bench.poll(messages=10)
    assert offsets_of(answer) == [4, 1, 2, 3]
    assert [lease.attempt for lease in answer.leases] == [1, 2, 1]


def test_retries_are_served_in_place_order(bench: Any, offsets_of: Any) -> None:
    bench.append(count=6)
    token = bench.poll().token
    for offset in (4, 1, 3):
        bench.settle((token, offset, 1, 2, 0))
    assert offsets_of(bench.poll(messages=2)) == [1, 3]
    assert offsets_of(bench.poll(messages=2)) == [4]


def test_a_retried_range_is_taken_in_parts(bench: Any, offsets_of: Any) -> None:
    bench.append(count=6)
    bench.settle((bench.poll().token, 0, 6, 2, 0))
    assert offsets_of(bench.poll(messages=4)) == [0, 1, 2, 3]
    assert offsets_of(bench.poll(messages=4)) == [4, 5]


def test_polls_of_one_pass_see_what_earlier_ones_took(bench: Any, offsets_of: Any) -> None:
    bench.append(count=5)
    bench.settle((bench.poll(messages=3).token, 0, 3, 2, 0))
    answers = bench.ask(*(Poll("g", f"member-{number}", 1, 2) for number in range(4)))
    assert [offsets_of(answer) for answer in answers[:3]] == [[0, 1], [2, 3], [4]]
    assert answers[3] is WAIT
    assert len({answer.token for answer in answers[:3]}) == 1


def test_a_pass_hands_out_a_bounded_number_of_segments_and_says_that_there_is_more(
    bench: Any, offsets_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "SEGMENTS_MAX", 2)
    for priority in (9, 6, 3, 0):
        bench.append(priority=priority)
    answers = bench.ask(*(Poll("g", f"member-{number}", 1, 2) for number in range(3)))
    assert [offsets_of(answers[0]), *answers[1:]] == [[0, 1], WAIT, WAIT]
    assert bench.outcome.deliverable
    assert offsets_of(bench.poll()) == [2, 3]


def test_a_repeated_poll_gets_the_same_leases(bench: Any, offsets_of: Any) -> None:
    bench.append(count=3)
    bench.append(count=3)
    first = bench.poll(sequence=7)
    again = bench.poll(sequence=7)
    assert again == first
    bench.settle((first.token, 1, 2, 1))
    assert offsets_of(bench.poll(sequence=7)) == [0, 3, 4, 5]
    assert bench.poll(sequence=7, member="other") is WAIT


def test_a_poll_repeated_within_one_pass_gets_the_same_leases(bench: Any) -> None:
    bench.append(count=3)
    first, again = bench.ask(Poll("g", "m", 1, 2), Poll("g", "m", 1, 2))
    assert first == again and len(first.leases) == 1


def test_a_repeated_poll_whose_leases_are_settled_gets_new_messages(bench: Any, offsets_of: Any) -> None:
    bench.append(count=2)
    first = bench.poll(sequence=7)
    bench.settle((first.token, 0, 2, 1))
    bench.append(count=1)
    assert offsets_of(bench.poll(sequence=7)) == [2]


def test_a_repeated_poll_in_the_pass_that_settles_it_gets_new_messages(bench: Any, offsets_of: Any) -> None:
    from lanner.partition import Settle

    bench.append(count=3)
    first = bench.poll(sequence=7, messages=2)
    _, answer = bench.ask(Settle("g", [(first.token, 0, 2, 1, -1, "")]), Poll("g", "m", 7, 2))
    assert offsets_of(answer) == [2]


def test_a_repeat_after_a_partial_extension_tells_the_earliest_deadline(bench: Any, offsets_of: Any) -> None:
    bench.append(count=4)
    first = bench.poll(sequence=7)
    bench.settle((first.token, 0, 2, 3, 600_000))
    again = bench.poll(sequence=7)
    assert sorted(offsets_of(again)) == [0, 1, 2, 3] and again.deadline_ms == first.deadline_ms


def test_an_auto_acked_poll_leaves_no_lease(bench: Any, offsets_of: Any) -> None:
    bench.append(count=5)
    bench.settle((bench.poll(messages=2).token, 0, 2, 2, 0))
    assert offsets_of(bench.poll(auto_ack=True, messages=4)) == [0, 1, 2, 3]
    state = bench.partition.describe_group("g", bench.now_ms)
    assert (state.leased, state.ready, state.lag) == (0, 1, 1)
    assert offsets_of(bench.poll(auto_ack=True)) == [4]


def test_at_least_one_message_is_served_however_large(bench: Any, offsets_of: Any) -> None:
    bench.append(count=2, filling=bytes(10_000))
    bench.append(count=1)
    assert offsets_of(bench.poll(max_bytes=10)) == [0]
    bench.settle((bench.poll(max_bytes=10, sequence=99).token, 1, 1, 2, 0))
    assert offsets_of(bench.poll(max_bytes=10)) == [1]


def test_the_byte_limit_cuts_a_batch_and_ends_the_poll(bench: Any, offsets_of: Any) -> None:
    bench.append(count=10, filling=bytes(980))
    bench.append(count=1, priority=0)
    answer = bench.poll(max_bytes=350)
    assert offsets_of(answer) == [0, 1, 2]
    bench.settle((answer.token, 0, 3, 2, 0))
    assert offsets_of(bench.poll(max_bytes=250)) == [0, 1]


def test_at_the_bound_only_retries_are_served(make_bench: Any, offsets_of: Any) -> None:
    bench = make_bench(outstanding_max=3)
    bench.append(count=10)
    first = bench.poll()
    assert offsets_of(first) == [0, 1, 2] and not first.limited
    full = bench.poll()
    assert full.limited and full.leases == []
    bench.settle((first.token, 1, 1, 2, 0))
    retries = bench.poll()
    assert offsets_of(retries) == [1] and retries.limited
    bench.settle((first.token, 0, 1, 1))
    assert bench.outcome.deliverable
    assert offsets_of(bench.poll()) == [3]
    assert offsets_of(bench.poll(auto_ack=True, messages=2)) == [4, 5]


def test_an_auto_acked_poll_begins_no_batch_whose_bytes_might_not_fit(bench: Any, offsets_of: Any) -> None:
    """Most of a batch may be in the one message that is taken: what is settled at once cannot be given back."""
    size = 3 * MIB
    for _ in range(4):
        bench.append(count=100, filling=b"x" * size)
    token = bench.poll(messages=400, max_bytes=100 * size).token
    for number in range(4):
        bench.settle((token, number * 100, 1, 2, 0), (token, number * 100 + 1, 99))
    assert offsets_of(bench.poll(auto_ack=True)) == [0, 100], "two of three megabytes go into eight, three do not"
    assert offsets_of(bench.poll(messages=1)) == [200]
    assert offsets_of(bench.poll(auto_ack=True)) == [300]
    bench.append(count=100, filling=b"x" * (POLL_BYTES_MAX + 1))
    assert len(offsets_of(bench.poll(auto_ack=True, messages=100, max_bytes=100 * size))) == 100, "one always fits"


def test_an_auto_acked_poll_is_not_bound_by_what_the_group_holds(make_bench: Any, offsets_of: Any) -> None:
    bench = make_bench(outstanding_max=1)
    bench.append(count=2, priority=9)
    bench.append(count=2, priority=0)
    bench.poll(messages=1)
    assert offsets_of(bench.poll(auto_ack=True)) == [1, 2, 3]


def test_lanes_below_the_wanted_one_are_left_alone(bench: Any, offsets_of: Any) -> None:
    bench.append(priority=2)
    bench.append(priority=6)
    assert offsets_of(bench.poll(min_lane=3)) == [1]


def test_a_lease_spans_rows_of_places(bench: Any, offsets_of: Any) -> None:
    bench.thorough = False
    bench.append(count=ROW_PLACES - 2)
    bench.append(count=6)
    bench.append(count=6)
    answer = bench.poll(messages=ROW_PLACES + 4)
    assert offsets_of(answer) == list(range(ROW_PLACES + 4))
    bench.check()
    assert bench.settle((answer.token, ROW_PLACES - 3, 5, 2, 0)) == [(0, 5)]
    bench.check()
    assert offsets_of(bench.poll(messages=4)) == list(range(ROW_PLACES - 3, ROW_PLACES + 1))
    bench.check()


def test_expired_messages_are_skipped(bench: Any, offsets_of: Any) -> None:
    bench.append(count=3, expires_at_ms=1_500)
    bench.append(count=1)
    bench.append(count=2, expires_at_ms=1_400)
    bench.append(count=1)
    bench.wait(1_000)
    assert offsets_of(bench.poll()) == [3, 6]
    assert bench.partition.describe_group("g", bench.now_ms).lag == 2


def test_an_expired_retry_is_settled(bench: Any, offsets_of: Any) -> None:
    bench.append(count=2, expires_at_ms=1_500)
    bench.append(count=1)
    bench.settle((bench.poll(messages=2).token, 0, 2, 2, 0))
    bench.wait(1_000)
    assert offsets_of(bench.poll()) == [2]
    assert bench.partition.describe_group("g", bench.now_ms).lag == 1


def test_passing_over_a_flood_of_expired_batches_is_bounded(
    make_bench: Any, offsets_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "SKIPPED_BATCHES_MAX", 3)
    monkeypatch.setattr("lanner.partition.upkeep.DUE_RANGES_MAX", 1)
    bench = make_bench()
    for _ in range(8):
        bench.append(expires_at_ms=1_100)
    bench.append()
    bench.poll("other")
    bench.wait(1_000)
    assert bench.poll() is WAIT
    assert bench.outcome.deliverable
    for _ in range(10):
        answer = bench.poll()
        if answer is not WAIT:
            break
    assert offsets_of(answer) == [8]


def test_what_was_appended_before_a_latest_group_is_not_delivered_even_when_its_delay_ends_later(
    bench: Any, offsets_of: Any
) -> None:
    bench.append(deliver_at_ms=2_000)
    bench.append()
    assert bench.poll(start="latest") is WAIT
    bench.append()
    bench.wait(1_500)
    bench.ask()
    assert offsets_of(bench.poll()) == [2]
    assert bench.poll() is WAIT
    assert offsets_of(bench.poll("earliest-group")) == [1, 2, 0]


def test_a_sought_group_waits_for_the_next_pass(bench: Any, offsets_of: Any) -> None:
    bench.append(count=2)
    bench.poll()
    _, answer = bench.ask(Seek("g", 0), Poll("g", "m", 50))
    assert answer is WAIT and bench.outcome.deliverable
    assert offsets_of(bench.poll(sequence=51)) == [0, 1]


def test_bad_polls_are_answered_with_an_error_each(bench: Any) -> None:
    bench.ask(CommitOffset("stream", 0))
    answers = bench.ask(
        Poll("g", "m", 1, 0),
        Poll("g", "m", 1, POLL_MESSAGES_MAX + 1),
        Poll("g", "m" * (MEMBER_LENGTH_MAX + 1), 1),
        Poll("..", "m", 1),
        Poll("g", "m", 1, start="sometime"),
        Poll("stream", "m", 1),
    )
    assert [type(answer) for answer in answers] == [ValidationError] * 5 + [GroupKindConflict]


def test_a_polling_group_says_now_and_then_that_it_is_not_idle(make_bench: Any) -> None:
    bench = make_bench(group_idle_ms=4_000)
    bench.poll()
    bench.wait(900)
    assert bench.decide(Poll("g", "m", 9)).record is None
    bench.wait(200)
    assert bench.decide(Poll("g", "m", 9), Poll("g", "m", 10)).record is not None
    for _ in range(8):
        bench.poll()
        bench.wait(1_500)
    assert bench.partition.groups() == ["g"]


def test_the_lease_lasts_as_asked_within_bounds(bench: Any) -> None:
    bench.append(count=4)
    assert bench.poll(messages=1).deadline_ms == bench.now_ms + bench.settings.lease_ms
    assert bench.poll(messages=1, lease_ms=-1).deadline_ms == bench.now_ms + bench.settings.lease_ms
    assert bench.poll(messages=1, lease_ms=5_000).deadline_ms == bench.now_ms + 5_000
    assert bench.poll(messages=1, lease_ms=0).deadline_ms == bench.now_ms + 10
