from __future__ import annotations

from typing import Any

import msgspec
import pytest

import lanner.partition
from lanner.errors import GroupNotFound, UnknownRecord
from lanner.model import GroupKind
from lanner.partition import CommitOffset, Tick

NACK, REJECT = 2, 4


def test_the_public_names_are_these() -> None:
    requests = {
        "CommitOffset",
        "Discard",
        "DropGroup",
        "MakeGroup",
        "Poll",
        "Redrive",
        "Release",
        "Seek",
        "Settle",
        "Tick",
    }
    answers = {"Appended", "DeadEntry", "Decided", "GroupState", "Lease", "Outcome", "PollAnswer", "WAIT", "BatchRef"}
    assert requests | answers | {"Partition", "Rows", "encode_append", "encode_stage", "batch_start"} <= set(
        lanner.partition.__all__
    )
    for name in lanner.partition.__all__:
        assert hasattr(lanner.partition, name)


def test_an_entry_is_applied_once(bench: Any) -> None:
    bench.append(count=2)
    outcome = bench.partition.apply(1, bench.log[0])
    assert outcome.result is None and not outcome.live
    assert bench.partition.end_offset == 2


def test_noops_only_move_the_index(bench: Any) -> None:
    assert bench.apply(None).result is None
    assert bench.apply(b"").result is None
    assert bench.partition.applied_index == 2


@pytest.mark.parametrize(
    "payload",
    [
        b"\x77",
        b"\x01\x02" + bytes(14),
        b"\x02\x02" + msgspec.msgpack.encode([1, 0, []]),
        b"\x02\x01" + msgspec.msgpack.encode([1, 0, [[3, "g"], [99, "g", 5]]]),
    ],
    ids=["kind", "append", "decision", "fact"],
)
def test_a_record_of_a_newer_release_stops_the_machine_before_anything_has_changed(bench: Any, payload: bytes) -> None:
    bench.append(count=2)
    partition = bench.partition
    before, rows = partition.applied_index, partition.all_rows()
    for _ in range(2):
        with pytest.raises(UnknownRecord, match="known here"):
            partition.apply(before + 1, payload)
    assert (partition.applied_index, partition.all_rows()) == (before, rows)


def test_an_empty_partition_has_equal_ends(bench: Any) -> None:
    partition = bench.partition
    assert partition.first_offset == partition.end_offset == 0
    assert partition.batches_from(0, 100) == [] and partition.batch_at(0) is None
    assert partition.offset_at_time(5) == 0
    assert partition.lane_depths() == {} and partition.lane_batches(4, 0, 5) == []
    assert partition.best_lane("nobody", 0) is None and partition.stored_bytes == partition.pinned_bytes == 0


def test_batches_are_read_from_the_one_that_holds_the_offset_and_at_least_one(bench: Any) -> None:
    for _ in range(4):
        bench.append(count=5)
    size = bench.partition.batches_from(0, 1)[0].size
    assert [ref.base_offset for ref in bench.partition.batches_from(7, size * 2)] == [5, 10]
    assert [ref.base_offset for ref in bench.partition.batches_from(7, 0)] == [5]
    assert bench.partition.batches_from(20, 100) == []


def test_a_time_finds_its_offset(bench: Any) -> None:
    for _ in range(3):
        bench.append(count=5)
        bench.wait(100)
    assert bench.partition.offset_at_time(1_001) == 5
    assert bench.partition.offset_at_time(1_200) == 10
    assert bench.partition.offset_at_time(1_201) == 15


def test_a_lane_is_read_from_an_offset(bench: Any) -> None:
    for priority in (4, 9, 4, 4):
        bench.append(count=5, priority=priority)
    assert [ref.base_offset for ref in bench.partition.lane_batches(4, 3, 2)] == [0, 10]
    assert [ref.base_offset for ref in bench.partition.lane_batches(4, 7, 9)] == [10, 15]
    assert bench.partition.lane_batches(4, 20, 9) == []
    assert bench.partition.lane_depths() == {9: 5, 4: 15}


def test_a_late_batch_in_a_lane_does_not_hide_the_ones_behind_it(bench: Any) -> None:
    bench.append(deliver_at_ms=1_500)
    bench.append()
    bench.wait(1_000)
    bench.ask(Tick())
    bench.append()
    assert [ref.base_offset for ref in bench.partition.lane_batches(4, 1, 9)] == [1, 2]


def test_the_best_lane_is_the_highest_with_something_deliverable(bench: Any) -> None:
    bench.append(priority=2)
    bench.append(priority=7)
    assert bench.partition.best_lane("nobody", bench.now_ms) == 7
    token = bench.poll(messages=1).token
    assert bench.partition.best_lane("g", bench.now_ms) == 2
    bench.settle((token, 1, 1, NACK, 100))
    assert bench.partition.best_lane("g", bench.now_ms) == 2
    assert bench.partition.best_lane("g", bench.now_ms + 100) == 7
    bench.wait(100)
    bench.ask(Tick())
    assert bench.partition.best_lane("g", bench.now_ms) == 7
    bench.poll()
    assert bench.partition.best_lane("g", bench.now_ms) is None


def test_a_queue_group_is_described(bench: Any) -> None:
    bench.append(count=4)
    bench.wait(50)
    bench.append(count=4, priority=9)
    token = bench.poll(messages=6).token
    bench.settle((token, 4, 2, 1), (token, 6, 1, REJECT), (token, 0, 1, NACK, 500), (token, 7, 1, NACK, 0))
    state = bench.partition.describe_group("g", bench.now_ms)
    assert state.kind is GroupKind.QUEUE
    assert (state.leased, state.waiting, state.dead, state.ready, state.lag) == (1, 1, 1, 3, 5)
    assert state.depth == {9: 1, 4: 2} and state.offset == 0 and state.oldest_ms == 1_000
    later = bench.partition.describe_group("g", bench.now_ms + 500)
    assert (later.waiting, later.ready, later.lag) == (0, 4, 5)
    assert later.depth == {9: 1, 4: 3}


def test_a_group_that_settled_everything_stands_at_the_end(bench: Any) -> None:
    bench.append(count=4)
    bench.poll(auto_ack=True)
    state = bench.partition.describe_group("g", bench.now_ms)
    assert (state.offset, state.lag, state.oldest_ms, state.depth) == (4, 0, 0, {})


def test_a_group_whose_oldest_message_is_only_kept_says_so(make_bench: Any) -> None:
    bench = make_bench(retention_ms=1_000, lease_ms=60_000)
    bench.append(count=1)
    bench.append(count=4)
    token = bench.poll(messages=3).token
    bench.settle((token, 0, 1, REJECT), (token, 1, 1, 1))
    bench.wait(1_000)
    bench.append()
    bench.ask(Tick())
    state = bench.partition.describe_group("g", bench.now_ms)
    assert (state.offset, state.oldest_ms, state.lag) == (2, 1_000, 2)
    assert bench.partition.first_offset == 5


def test_a_stream_group_is_described(bench: Any) -> None:
    bench.append(count=4)
    bench.wait(5)
    bench.append(count=4)
    bench.ask(CommitOffset("s", 5))
    state = bench.partition.describe_group("s", bench.now_ms)
    assert (state.kind, state.offset, state.lag, state.oldest_ms) == (GroupKind.STREAM, 5, 3, 1_005)
    bench.ask(CommitOffset("s", 8))
    assert bench.partition.describe_group("s", bench.now_ms).oldest_ms == 0


def test_dead_letters_are_listed_by_offset_and_limited(bench: Any) -> None:
    bench.append(count=3, priority=1)
    bench.append(count=3, priority=9)
    bench.settle((bench.poll().token, 0, 6, REJECT, -1, "no"))
    letters = bench.partition.dead_letters("g", 1, 4)
    assert [letter.offset for letter in letters] == [1, 2, 3, 4]
    assert [letter.lane for letter in letters] == [1, 1, 9, 9]
    assert letters[0].ref.base_offset == 0 and letters[2].ref.base_offset == 3
    assert bench.partition.dead_count("g") == 6


def test_what_is_asked_of_a_group_that_is_not_there_is_not_found(bench: Any) -> None:
    assert bench.partition.committed("nobody") is None
    bench.poll("queue")
    assert bench.partition.committed("queue") is None
    for ask in (
        lambda: bench.partition.describe_group("nobody", 0),
        lambda: bench.partition.dead_letters("nobody", 0, 1),
        lambda: bench.partition.dead_count("nobody"),
    ):
        with pytest.raises(GroupNotFound, match="nobody"):
            ask()


def test_the_shell_can_ask_whether_a_poll_was_answered_before(bench: Any) -> None:
    bench.append()
    assert not bench.partition.has_group("g") and not bench.partition.has_polled("g", "m", 7)
    token = bench.poll(sequence=7).token
    assert bench.partition.has_group("g") and bench.partition.has_polled("g", "m", 7)
    assert bench.partition.kind_of("g") == "queue" and bench.partition.kind_of("nobody") is None
    bench.settle((token, 0, 1, 1))
    assert not bench.partition.has_polled("g", "m", 7)


def test_groups_are_listed_by_name(bench: Any) -> None:
    for name in ("b", "a", "c"):
        bench.poll(name)
    assert bench.partition.groups() == ["a", "b", "c"]
