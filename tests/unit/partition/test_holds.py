"""Retention waits for groups that a hold names, up to the hold's bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanner.errors import GroupExpired
from lanner.model import TopicSettings
from lanner.partition import CommitOffset, MakeGroup, Poll, Tick, holds
from tests.unit.partition.conftest import Bench

DAY_MS = 24 * 3_600_000


def bases(bench: Any) -> list[int]:
    return [ref.base_offset for ref in bench.partition.batches_from(0, 1 << 30)]


def settle_down(bench: Any) -> None:
    """Do what is due, as often as something is; every tick that is due finds something."""
    for _ in range(50):
        due_ms = bench.partition.next_due_ms(bench.settings, bench.now_ms)
        if due_ms is None or due_ms > bench.now_ms:
            return
        assert bench.decide(Tick()).record is not None, "due, but there is nothing to do"
        bench.ask(Tick())
    raise AssertionError("always something due")


def pass_time(bench: Any, ms: int) -> None:
    bench.wait(ms)
    settle_down(bench)


def test_retention_waits_for_what_a_group_has_committed(make_bench: Any) -> None:
    bench = make_bench(retention_ms=1_000, hold_for=["archive"])
    for priority in (4, 9, 4, 0):
        bench.append(count=5, priority=priority)
    pass_time(bench, 5_000)
    assert bases(bench) == [0, 5, 10, 15], "a group that has never committed holds everything"
    bench.ask(CommitOffset("archive", 12))
    pass_time(bench, 5_000)
    assert bases(bench) == [10, 15], "a batch that is read in part is held"
    bench.ask(CommitOffset("archive", 20))
    pass_time(bench, 5_000)
    assert bases(bench) == []


def test_several_groups_hold_together_and_a_queue_group_holds_what_it_was_not_handed(make_bench: Any) -> None:
    bench = make_bench(retention_ms=1_000, hold_for=["archive", "workers"])
    bench.append(count=2)
    bench.append(count=2)
    bench.ask(MakeGroup("workers", "queue"))
    bench.ask(CommitOffset("archive", 4))
    pass_time(bench, 5_000)
    assert bases(bench) == [0, 2]
    bench.ask(Poll("workers", "m", 1, 2, auto_ack=True))
    pass_time(bench, 5_000)
    assert bases(bench) == [2]


@pytest.mark.parametrize("retention", ["time", "acked"])
def test_a_hold_gives_way_to_what_is_too_old_for_it(make_bench: Any, retention: str) -> None:
    bench = make_bench(retention=retention, retention_ms=1_000, hold_for=["archive"], hold_ms_max=10_000)
    bench.append(count=1)
    bench.ask(Poll("w", "m", 1, 2, auto_ack=True))
    pass_time(bench, 9_999)
    assert bases(bench) == [0]
    pass_time(bench, 2)
    assert bases(bench) == []


def test_a_hold_gives_way_to_the_oldest_of_too_much_and_to_nothing_that_retention_keeps(make_bench: Any) -> None:
    bench = make_bench(retention_ms=60_000, hold_for=["archive"], hold_bytes_max=1)
    for _ in range(3):
        bench.append(count=1)
    size = bench.partition.batches_from(0, 1)[0].size
    pass_time(bench, 50_000)
    assert bases(bench) == [0, 1, 2], "it is not older than retention_ms: the hold has nothing to do with it"
    bench.settings = bench.settings.changed({"hold_bytes_max": 2 * size})
    pass_time(bench, 20_000)
    assert bases(bench) == [1, 2]


def test_a_full_topic_refuses_publishes_or_lets_go_of_what_is_held(make_bench: Any) -> None:
    bench = make_bench(hold_for=["archive"], full_policy="drop_oldest", retention_ms=0)
    for _ in range(20):
        bench.append(count=1)
    size = bench.partition.batches_from(0, 1)[0].size
    bench.settings = bench.settings.changed({"max_bytes": 20 * size})
    assert bench.partition.hold_refuses(bench.settings, 1, bench.now_ms)
    assert not bench.partition.hold_refuses(bench.settings, 0, bench.now_ms)
    bench.append(count=1)
    settle_down(bench)
    assert len(bases(bench)) == 21
    bench.settings = bench.settings.changed({"hold_full": "release"})
    assert not bench.partition.hold_refuses(bench.settings, 1, bench.now_ms)
    settle_down(bench)
    assert bases(bench) == list(range(1, 21))


def test_a_group_that_a_hold_names_does_not_expire_and_others_do(make_bench: Any) -> None:
    bench = make_bench(hold_for=["archive"], group_idle_ms=1_000)
    bench.append(count=3)
    bench.ask(CommitOffset("archive", 2))
    bench.ask(CommitOffset("other", 2))
    pass_time(bench, 30 * DAY_MS)
    assert bench.partition.groups() == ["archive"]
    bench.settings = TopicSettings(group_idle_ms=1_000)
    settle_down(bench)
    assert bench.partition.groups() == []


def test_a_commit_of_a_group_that_expired_meanwhile_names_both_ways_on(make_bench: Any) -> None:
    bench = make_bench(group_idle_ms=1_000)
    bench.append(count=3)
    assert bench.ask(CommitOffset("g", 2, known=False)) == [None]
    assert bench.ask(CommitOffset("g", 3, known=True)) == [None]
    pass_time(bench, 5_000)
    (answer,) = bench.ask(CommitOffset("g", 3, known=True))
    assert isinstance(answer, GroupExpired)
    assert 'start="earliest"' in answer.message and 'start="latest"' in answer.message
    assert bench.partition.groups() == [], "it is not made again behind the reader's back"


def test_who_holds_how_far_behind_and_how_much(make_bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(hold_for=["archive", "workers", "nobody"])
    for _ in range(4):
        bench.append(count=5)
    size = bench.partition.batches_from(0, 1)[0].size
    bench.ask(CommitOffset("archive", 12), MakeGroup("workers", "queue"))
    bench.ask(Poll("workers", "m", 1, 15))
    expected = [("archive", 12, 8, 2 * size), ("workers", 15, 5, size), ("nobody", 0, 20, 4 * size)]
    assert bench.partition.holds(bench.settings) == expected
    monkeypatch.setattr(holds, "FETCH_BATCHES_LOOKED_AT", 1)
    assert bench.partition.holds(bench.settings)[0] == ("archive", 12, 8, 4 * size * 8 // 20), "of many, by share"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["append", "commit", "wait"]), st.integers(0, 30)), max_size=40),
    st.sampled_from([{"retention_ms": 500}, {"retention_bytes": 60}, {"retention_ms": 500, "retention_bytes": 60}]),
)
def test_without_bounds_nothing_goes_before_the_group_has_read_it(
    steps: list[tuple[str, int]], kept: dict[str, int]
) -> None:
    bench = Bench(hold_for=["archive"], **kept)
    read = 0
    appended: list[tuple[int, int]] = []
    for kind, number in steps:
        if kind == "append":
            made = bench.append(count=1 + number % 4, priority=number % 10)
            appended.append((made.base_offset, made.count))
        elif kind == "commit":
            read = max(read, min(number, bench.partition.end_offset))
            bench.ask(CommitOffset("archive", read))
        else:
            pass_time(bench, 100 * number)
        assert set(bases(bench)) >= {base for base, count in appended if base + count > read}
    bench.ask(CommitOffset("archive", bench.partition.end_offset))
    pass_time(bench, 10_000)
    if "retention_ms" in kept:
        assert bases(bench) == [], "what is read goes, once it is old enough"
