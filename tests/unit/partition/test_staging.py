from __future__ import annotations

from typing import Any

import pytest

from lanner import features, limits
from lanner.errors import (
    MalformedBatch,
    NotSupported,
    Overloaded,
    SequenceGap,
    ServiceUnavailable,
    StageExpired,
    TopicFull,
    ValidationError,
)
from lanner.partition import (
    WAIT,
    DropStages,
    Partition,
    Poll,
    Prepare,
    PublishStages,
    Staged,
    StageNote,
    Tick,
    WithdrawStages,
    encode_stage,
    records,
    stage_decisions,
    staging,
)


def named(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def manifest(*lines: tuple[int, str, int]) -> list[tuple[int, bytes, int]]:
    return [(task, named(name), stages) for task, name, stages in lines]


def prepare(bench: Any, token: int, *lines: tuple[int, str, int], seen: int | None = None, **more: Any) -> Any:
    values = {"transaction": "t", "owner": "o", "sequence": 1, **more}
    request = Prepare(token=token, manifest=manifest(*lines), metadata_index=token if seen is None else seen, **values)
    return bench.ask(request)[0]


def publish(bench: Any, token: int, seen: int) -> Any:
    return bench.ask(PublishStages(token, seen))[0]


def withdraw(bench: Any, token: int, seen: int) -> Any:
    return bench.ask(WithdrawStages(token, seen))[0]


# ------------------------------------------------------------------ stages come


def test_a_staged_batch_shows_nowhere(bench: Any) -> None:
    assert bench.stage("a", 0, count=3) == Staged(0, 3, False)
    partition = bench.partition
    assert partition.end_offset == 0 and partition.batch_count == 0 and partition.stored_bytes == 0
    assert bench.poll() is WAIT and partition.batches_from(0, 1_000) == []
    assert partition.staged_bytes > 0 and partition.attempts_of("t", "o") == [named("a")]


def test_a_stage_that_comes_again_gets_its_first_answer_and_is_not_kept(bench: Any) -> None:
    bench.stage("a", 0, count=3)
    bench.stage("a", 1, count=2)
    before = bench.partition.staged_bytes
    assert bench.stage("a", 0, count=3) == Staged(0, 3, True)
    assert bench.partition.staged_bytes == before and len(bench.live) == 2


def test_stages_come_without_a_gap_from_the_first(bench: Any) -> None:
    assert isinstance(bench.stage("a", 1), StageExpired)
    bench.stage("a", 0)
    assert isinstance(bench.stage("a", 2), SequenceGap)
    assert not bench.live.keys() - {2}


def test_a_late_stage_does_not_begin_an_attempt_that_is_gone(bench: Any) -> None:
    bench.stage("a", 0)
    bench.stage("a", 1)
    assert bench.ask(DropStages([named("a")])) == [1]
    assert isinstance(bench.stage("a", 1), StageExpired)


@pytest.mark.parametrize(
    "other", [{"transaction": "u"}, {"owner": "p"}, {"sequence": 2}, {"task": 1}, {"hold_ms": 1}], ids=str
)
def test_an_attempt_belongs_to_one_task_of_one_piece_of_work(bench: Any, other: dict[str, Any]) -> None:
    bench.stage("a", 0)
    assert isinstance(bench.stage("a", 1, **other), ValidationError)


@pytest.mark.parametrize("header", [{"producer_id": 1}, {"dedup_id": b"d"}], ids=str)
def test_a_staged_batch_has_no_second_name(bench: Any, header: dict[str, Any]) -> None:
    assert isinstance(bench.stage("a", 0, **header), ValidationError)
    assert not bench.live


@pytest.mark.parametrize(
    "payload",
    [
        encode_stage(1, StageNote("t", "o", 1, 0, named("a"), 0, 1), b"\xc1 garbage"),
        b"\x03\x01" + (8).to_bytes(2, "little") + bytes(4) + bytes(8) + b"\xc1" * 8,
        b"\x03\x01",
        encode_stage(1, StageNote("t", "o", 1, 0, b"short", 0, 1), b"x"),
    ],
    ids=["batch", "note", "prefix", "attempt"],
)
def test_a_stage_that_does_not_decode_is_answered_and_leaves_nothing(bench: Any, payload: bytes) -> None:
    assert isinstance(bench.apply(payload).result, MalformedBatch)
    assert not bench.live and not bench.partition.staged_bytes


def test_the_batch_of_a_stage_begins_on_a_multiple_of_eight(bench: Any) -> None:
    for length in range(1, 9):
        note = StageNote("t" * length, "o", 1, 0, named("a"), 0, 1)
        payload = encode_stage(7, note, b"the batch")
        start = records.batch_start(payload)
        assert start % 8 == 0 and payload[start:] == b"the batch"
        assert records.decode_stage(payload) == (7, note)


# ------------------------------------------------------------------ expiry


def test_stages_that_nobody_prepares_expire(bench: Any) -> None:
    bench.stage("a", 0, hold_ms=500)
    bench.wait(400)
    bench.stage("a", 1, hold_ms=500)
    bench.wait(499)
    assert bench.ask(Tick()) == [None] and len(bench.live) == 2, "its hold counts from its latest stage"
    bench.wait(1)
    assert bench.partition.next_due_ms(bench.settings, bench.now_ms) == bench.now_ms
    bench.ask(Tick())
    assert not bench.live and bench.partition.staged_bytes == 0
    assert bench.partition.next_due_ms(bench.settings, bench.now_ms) is None
    assert bench.partition.stages_gone == (2, 0)


def test_prepared_stages_do_not_expire(bench: Any) -> None:
    bench.stage("a", 0, hold_ms=500)
    assert prepare(bench, 5, (0, "a", 1)) is None
    bench.wait(10_000_000)
    bench.ask(Tick())
    assert publish(bench, 5, 6) == 0 and bench.partition.end_offset == 1


def test_an_expiry_that_was_decided_spares_what_was_staged_to_since(bench: Any) -> None:
    bench.stage("a", 0, hold_ms=500)
    bench.wait(500)
    bench.ask(Tick(), between=lambda: bench.stage("a", 1, hold_ms=500))
    assert len(bench.live) == 2 and bench.partition.staged_bytes > 0


def test_a_prepare_and_the_expiry_of_the_same_moment_agree(bench: Any) -> None:
    bench.stage("a", 0, hold_ms=500)
    bench.wait(500)
    assert prepare(bench, 5, (0, "a", 1)) is None
    assert bench.partition.prepared()[5].stages == 1 and bench.partition.prepared_bytes > 0


def test_dropping_is_bounded_by_decision_and_goes_on_at_once(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_decisions, "DROPPED_MAX", 2)
    for number in range(5):
        bench.stage(f"a{number}", 0, hold_ms=10)
    bench.wait(10)
    for left in (3, 1, 0):
        assert bench.partition.next_due_ms(bench.settings, bench.now_ms) == bench.now_ms
        bench.ask(Tick())
        assert len(bench.live) == left


# ------------------------------------------------------------------ prepare


def test_prepare_holds_exactly_what_is_here(bench: Any) -> None:
    bench.stage("a", 0)
    bench.stage("b", 0, task=1)
    staged = bench.partition.staged_bytes
    assert prepare(bench, 5, (0, "a", 1), (1, "b", 1)) is None
    assert (bench.partition.staged_bytes, bench.partition.prepared_bytes) == (0, staged)
    held = bench.partition.prepared()[5]
    assert (held.transaction, held.owner, held.sequence, held.dealt, held.stages) == ("t", "o", 1, 0, 2)
    assert bench.partition.metadata_index == 5


def test_prepare_again_is_yes_again_and_another_manifest_is_refused(bench: Any) -> None:
    bench.stage("a", 0)
    bench.stage("b", 0, task=1)
    prepare(bench, 5, (0, "a", 1))
    entries = len(bench.log)
    assert prepare(bench, 5, (0, "a", 1)) is None and len(bench.log) == entries
    assert isinstance(prepare(bench, 5, (0, "a", 1), (1, "b", 1)), ValidationError)


@pytest.mark.parametrize(
    "line",
    [(0, "x", 1), (0, "a", 1), (0, "a", 3), (1, "a", 2)],
    ids=["another attempt", "fewer stages", "more stages", "another task"],
)
def test_prepare_is_refused_unless_everything_is_here_as_it_says(bench: Any, line: tuple[int, str, int]) -> None:
    bench.stage("a", 0)
    bench.stage("a", 1)
    refused = prepare(bench, 5, line)
    assert isinstance(refused, StageExpired) and refused.details["attempts"] == [named(line[1])]
    assert not bench.partition.prepared()


@pytest.mark.parametrize("other", [{"transaction": "u"}, {"owner": "p"}, {"sequence": 2}], ids=str)
def test_stages_of_other_work_cannot_be_prepared(bench: Any, other: dict[str, Any]) -> None:
    bench.stage("a", 0)
    assert isinstance(prepare(bench, 5, (0, "a", 1), **other), StageExpired)


def test_two_tries_cannot_hold_one_attempt_not_even_in_one_pass(bench: Any) -> None:
    bench.stage("a", 0)
    first = Prepare(5, "t", "o", 1, manifest((0, "a", 1)), 6)
    answers = bench.ask(first, first._replace(token=6))
    assert answers[0] is None and isinstance(answers[1], StageExpired)
    assert isinstance(prepare(bench, 7, (0, "a", 1)), StageExpired)


@pytest.mark.parametrize(
    "lines",
    [[], [(1, "a", 1), (0, "b", 1)], [(0, "a", 1), (0, "b", 1)], [(0, "a", 1), (1, "a", 1)], [(0, "a", 0)]],
    ids=["empty", "order", "task twice", "attempt twice", "no stages"],
)
def test_a_manifest_that_cannot_be_one_is_refused(bench: Any, lines: list[tuple[int, str, int]]) -> None:
    bench.stage("a", 0)
    bench.stage("b", 0, task=1)
    assert isinstance(prepare(bench, 5, *lines), ValidationError)


def test_a_stage_that_comes_between_a_prepare_and_its_application_undoes_it(bench: Any) -> None:
    bench.stage("a", 0)
    bench.ask(Prepare(5, "t", "o", 1, manifest((0, "a", 1)), 5), between=lambda: bench.stage("a", 1))
    assert not bench.partition.prepared() and bench.partition.metadata_index == 5


def test_nothing_is_staged_to_a_prepared_attempt(bench: Any) -> None:
    bench.stage("a", 0)
    prepare(bench, 5, (0, "a", 1))
    assert isinstance(bench.stage("a", 1), StageExpired)
    assert bench.stage("a", 0) == Staged(0, 1, True)


def test_prepared_attempts_are_not_dropped(bench: Any) -> None:
    bench.stage("a", 0)
    prepare(bench, 5, (0, "a", 1))
    assert bench.ask(DropStages([named("a")])) == [0]
    assert publish(bench, 5, 6) == 0 and bench.partition.end_offset == 1


# ------------------------------------------------------------------ publishing


def test_published_stages_get_offsets_and_time_in_the_order_of_tasks_and_numbers(bench: Any) -> None:
    bench.stage("b", 0, task=1, count=2)
    bench.stage("a", 0, count=3)
    bench.append(count=1)
    bench.stage("a", 1, count=1)
    prepare(bench, 5, (0, "a", 2), (1, "b", 1))
    bench.wait(5_000)
    assert publish(bench, 5, 6) == 0
    refs = bench.partition.batches_from(0, 10_000)
    assert [(ref.base_offset, ref.count, ref.index) for ref in refs] == [(0, 1, 3), (1, 3, 2), (4, 1, 4), (5, 2, 1)]
    assert {ref.append_ms for ref in refs[1:]} == {bench.now_ms}
    assert not bench.partition.prepared() and bench.partition.prepared_bytes == 0
    assert bench.outcome.deliverable


def test_many_stages_are_published_in_parts_that_each_happen_once(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_decisions, "DEALT_MAX", 2)
    monkeypatch.setattr(staging, "CHUNK_STAGES", 2)
    for number in range(3):
        bench.stage("a", number)
        bench.stage("b", number, task=1)
    prepare(bench, 5, (0, "a", 3), (1, "b", 3))
    first = bench.decide(PublishStages(5, 6)).record
    assert first is not None
    bench.apply(first)
    assert (bench.partition.prepared()[5].dealt, bench.partition.end_offset) == (2, 2)
    bench.apply(first)  # as an earlier leader's decision that comes late would
    assert bench.partition.end_offset == 2
    bench.save()
    bench.restart()
    assert bench.ask(PublishStages(5, 6), PublishStages(5, 6)) == [2, 2], "one part a decision"
    assert publish(bench, 5, 6) == 0 and bench.partition.end_offset == 6
    assert publish(bench, 5, 6) == 0 and bench.partition.end_offset == 6
    assert [ref.index for ref in bench.partition.batches_from(0, 10_000)] == [1, 3, 5, 2, 4, 6]
    bench.save()
    bench.restart()


def test_a_poll_of_the_same_pass_takes_nothing_less_urgent_than_what_is_published(bench: Any) -> None:
    bench.poll()
    bench.append(priority=4)
    bench.stage("a", 0, priority=9)
    prepare(bench, 5, (0, "a", 1))
    answers = bench.ask(PublishStages(5, 6), Poll("g", "m", 99, 1))
    assert answers[1] is WAIT
    (lease,) = bench.poll().leases[:1]
    assert lease.ref.lane == 9


def test_delay_and_expiry_are_judged_at_publication(bench: Any) -> None:
    now_ms = bench.now_ms
    bench.stage("a", 0, deliver_at_ms=now_ms + 100)
    bench.stage("a", 1, deliver_at_ms=now_ms + 10_000)
    bench.stage("a", 2, expires_at_ms=now_ms + 500)
    prepare(bench, 5, (0, "a", 3))
    bench.wait(1_000)
    publish(bench, 5, 6)
    assert [lease.first_offset for lease in bench.poll().leases] == [0], "over, still delayed, expired"
    bench.wait(9_000)
    bench.ask(Tick())
    assert [lease.first_offset for lease in bench.poll().leases] == [1]


def test_losers_of_the_published_sequence_go_with_its_last_part(bench: Any) -> None:
    bench.stage("a", 0)
    bench.stage("loser", 0)
    bench.stage("older", 0, sequence=0)
    bench.stage("next", 0, sequence=2)
    bench.stage("other", 0, owner="p")
    prepare(bench, 5, (0, "a", 1))
    publish(bench, 5, 6)
    assert bench.partition.attempts_of("t", "o") == [named("next")]
    assert bench.partition.attempts_of("t", "p") == [named("other")]


def test_what_is_prepared_is_published_whatever_the_settings_say_by_then(make_bench: Any) -> None:
    bench = make_bench(max_bytes=10_000)
    bench.stage("a", 0, filling=bytes(500))
    prepare(bench, 5, (0, "a", 1))
    bench.settings = bench.settings.changed({"max_bytes": 1, "staged_bytes_max": 0})
    assert publish(bench, 5, 6) == 0 and bench.partition.end_offset == 1


# ------------------------------------------------------------------ withdrawing


def test_an_aborted_try_leaves_nothing(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_decisions, "DEALT_MAX", 2)
    for number in range(3):
        bench.stage("a", number)
    prepare(bench, 5, (0, "a", 3))
    assert withdraw(bench, 5, 6) == 1
    assert withdraw(bench, 5, 6) == 0 and not bench.live
    assert bench.partition.end_offset == 0 and not bench.partition.prepared() and not bench.partition.prepared_bytes
    assert withdraw(bench, 5, 6) == 0


def test_withdrawing_makes_no_loser_of_other_attempts(bench: Any) -> None:
    bench.stage("a", 0)
    bench.stage("again", 0)
    prepare(bench, 5, (0, "a", 1))
    withdraw(bench, 5, 6)
    assert prepare(bench, 7, (0, "again", 1)) is None


# ------------------------------------------------------------------ metadata


def test_a_partition_never_acts_on_older_metadata_than_before(bench: Any) -> None:
    """Late repeats of STAGE and PREPARE at a leader whose copy is older must not publish a finished try again."""
    bench.stage("a", 0)
    prepare(bench, 5, (0, "a", 1), seen=5)
    publish(bench, 5, 6)
    bench.stage("a", 0)
    assert isinstance(prepare(bench, 5, (0, "a", 1), seen=5), ServiceUnavailable)
    assert not bench.partition.prepared() and bench.partition.metadata_index == 6


def test_older_metadata_neither_publishes_nor_withdraws(bench: Any) -> None:
    bench.stage("a", 0)
    bench.stage("b", 0)
    prepare(bench, 5, (0, "a", 1))
    prepare(bench, 9, (0, "b", 1))
    assert isinstance(publish(bench, 5, 8), ServiceUnavailable)
    assert isinstance(withdraw(bench, 9, 8), ServiceUnavailable)
    assert len(bench.partition.prepared()) == 2


def test_metadata_that_is_older_than_the_try_cannot_know_that_it_ended(bench: Any) -> None:
    bench.stage("a", 0)
    assert isinstance(prepare(bench, 5, (0, "a", 1), seen=4), ServiceUnavailable)
    prepare(bench, 5, (0, "a", 1))
    state = bench.partition._state.stages
    state.metadata_index = 0  # even if nothing else told it
    assert isinstance(withdraw(bench, 5, 4), ServiceUnavailable)
    state.metadata_index = 5


def test_requests_of_one_pass_see_each_others_metadata(bench: Any) -> None:
    bench.stage("a", 0)
    bench.stage("b", 0)
    prepare(bench, 5, (0, "a", 1))
    late = Prepare(6, "t", "o", 1, manifest((0, "b", 1)), 6)
    answers = bench.ask(PublishStages(5, 8), late)
    assert answers[0] == 0 and isinstance(answers[1], ServiceUnavailable)


def test_the_metadata_seen_survives_a_restart_and_a_snapshot(bench: Any) -> None:
    bench.stage("a", 0)
    bench.stage("b", 0, hold_ms=77)
    prepare(bench, 5, (0, "a", 1), seen=8)
    bench.save()
    bench.restart()
    assert bench.partition.metadata_index == 8 and bench.partition.prepared()[5].stages == 1
    rows = type(bench.rows)(bench.partition.all_rows())
    copy = Partition(rows, bench.partition._header_of)
    copy.check()
    assert copy.all_rows() == bench.partition.all_rows()
    assert copy.next_due_ms(bench.settings, bench.now_ms) == bench.now_ms + 77
    decided = copy.decide([PublishStages(5, 8)], bench.settings, bench.now_ms, features.HIGHEST)
    assert decided.answers == [0] and decided.record is not None
    assert [index for index, _, _ in copy.apply(copy.applied_index + 1, decided.record).released] == [2], "the loser"
    assert copy.end_offset == 1


# ------------------------------------------------------------------ bounds


def check(bench: Any, name: str, number: int, size: int, level: int = features.HIGHEST, **more: Any) -> None:
    values: dict[str, Any] = {"transaction": "t", "owner": "o", "sequence": 1, "task": 0, "hold_ms": 60_000, **more}
    note = StageNote(attempt=named(name), number=number, **values)
    bench.partition.check_stage(note, size, bench.settings, level)


def test_below_the_level_nothing_is_staged_or_prepared_and_the_way_out_is_named(bench: Any) -> None:
    with pytest.raises(NotSupported, match="lanner cluster upgrade"):
        check(bench, "a", 0, 10, features.STAGES - 1)
    bench.stage("a", 0)
    bench.feature_level = features.STAGES - 1
    assert isinstance(prepare(bench, 5, (0, "a", 1)), NotSupported)
    assert isinstance(bench.ask(DropStages([named("a")]))[0], NotSupported)


def test_staged_and_prepared_bytes_share_a_bound_that_the_error_names(make_bench: Any) -> None:
    bench = make_bench(staged_bytes_max=1_000)
    bench.stage("a", 0, filling=bytes(600))
    check(bench, "b", 0, 300)
    prepare(bench, 5, (0, "a", 1))
    with pytest.raises(TopicFull, match="staged_bytes_max is 1000"):
        check(bench, "b", 0, 400)
    check(bench, "a", 0, 600)  # it is here: its first answer
    publish(bench, 5, 6)
    check(bench, "b", 0, 400)


def test_a_topic_that_rejects_counts_what_is_staged_when_it_is_staged_and_prepared(make_bench: Any) -> None:
    bench = make_bench(max_bytes=1_000)
    bench.stage("a", 0, filling=bytes(500))
    with pytest.raises(TopicFull):
        check(bench, "b", 0, 600)
    bench.append(filling=bytes(600))
    assert isinstance(prepare(bench, 5, (0, "a", 1)), TopicFull)
    bench.settings = bench.settings.changed({"full_policy": "drop_oldest"})
    check(bench, "b", 0, 600)
    assert prepare(bench, 5, (0, "a", 1)) is None


def test_attempts_and_stages_are_counted_before_they_come(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ATTEMPTS_PER_PARTITION_MAX", 2)
    monkeypatch.setattr(limits, "STAGES_PER_ATTEMPT_MAX", 2)
    monkeypatch.setattr(limits, "STAGES_PER_PARTITION_MAX", 3)
    bench.stage("a", 0)
    bench.stage("b", 0)
    with pytest.raises(Overloaded, match="2 attempts"):
        check(bench, "c", 0, 1)
    check(bench, "a", 1, 1)
    bench.stage("a", 1)
    with pytest.raises(ValidationError, match="2 stages"):
        check(bench, "a", 2, 1)
    with pytest.raises(Overloaded, match="3 stages"):
        check(bench, "b", 1, 1)


@pytest.mark.parametrize(
    "more", [{"transaction": "a/b"}, {"owner": ""}, {"sequence": -1}, {"task": -1}, {"hold_ms": 0}], ids=str
)
def test_a_note_that_may_not_be_one_is_refused_before_it_reaches_the_log(bench: Any, more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        check(bench, "a", 0, 10, **more)


def test_a_manifest_is_bounded(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.stage("a", 0)
    bench.stage("b", 0, task=1)
    monkeypatch.setattr(stage_decisions, "PREPARED_MAX", 1)
    assert isinstance(prepare(bench, 5, (0, "a", 1), (1, "b", 1)), Overloaded)
    monkeypatch.setattr(limits, "MANIFEST_STAGES_MAX", 1)
    assert isinstance(prepare(bench, 5, (0, "a", 1), (1, "b", 1)), ValidationError)
    monkeypatch.setattr(limits, "MANIFEST_ATTEMPTS_MAX", 1)
    assert isinstance(prepare(bench, 5, (0, "a", 1), (1, "b", 1)), ValidationError)
