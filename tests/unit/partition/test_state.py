from __future__ import annotations

from typing import Any

import pytest

from lanner.partition import CommitOffset, DropGroup, Poll, Tick
from lanner.partition.keys import GROUPS, HEADER, LEASES, PLACES
from lanner.partition.state import State


def test_only_what_changed_is_written(bench: Any) -> None:
    bench.append(count=3)
    bench.poll(messages=1)
    bench.ask(CommitOffset("s", 1))
    bench.save()
    assert bench.save() == {}
    bench.ask(CommitOffset("s", 2))
    written = bench.save()
    assert sorted(key[:1] for key in written) == [GROUPS, HEADER]


def test_a_dropped_groups_rows_are_deleted(bench: Any) -> None:
    bench.append(count=3)
    token = bench.poll().token
    bench.settle((token, 0, 1, 4))
    bench.save()
    assert {key[:1] for key in bench.rows} >= {GROUPS, LEASES, PLACES}
    bench.ask(DropGroup("g"))
    deleted = [key[:1] for key, value in bench.save().items() if value is None]
    assert sorted(deleted) == sorted([GROUPS, LEASES, PLACES])
    bench.restart()


def test_a_group_made_and_dropped_between_saves_is_harmless(bench: Any) -> None:
    bench.append()
    bench.ask(CommitOffset("s", 1))
    bench.ask(DropGroup("s"))
    bench.save()
    bench.restart()
    assert bench.partition.groups() == []


def test_everything_comes_back_from_rows(make_bench: Any, offsets_of: Any) -> None:
    bench = make_bench(retention_ms=10_000, lease_ms=500_000, backoff_ms=60_000)
    bench.append(count=4, producer_id=1, sequence=0, dedup_id=b"one")
    bench.append(count=2, priority=9, expires_at_ms=900_000)
    bench.append(count=2, deliver_at_ms=40_000)
    answer = bench.poll(sequence=7)
    bench.settle((answer.token, 0, 1, 2), (answer.token, 1, 1, 4))
    bench.wait(10_000)
    bench.ask(Tick())
    bench.append(count=1)
    bench.ask(CommitOffset("s", 3))
    bench.save()
    bench.restart()
    bench.check()
    assert offsets_of(bench.poll(sequence=7)) == [4, 5, 2, 3]
    assert bench.append(producer_id=1, sequence=0).duplicate and bench.append(dedup_id=b"one").duplicate
    bench.wait(60_000)
    bench.ask(Tick())
    assert offsets_of(bench.poll(sequence=8)) == [0, 6, 7]


def test_the_longest_idle_group_is_still_first_after_loading(bench: Any) -> None:
    for name in ("c", "a", "b"):
        bench.ask(CommitOffset(name, 0))
        bench.wait(10)
    bench.save()
    bench.restart()
    assert list(bench.partition._state.groups) == ["c", "a", "b"]


def test_a_noop_entry_is_saved_too(bench: Any) -> None:
    bench.apply(None)
    assert list(bench.save()) == [HEADER]
    bench.restart()
    assert bench.partition.applied_index == 1


def test_rows_of_another_version_are_refused(bench: Any) -> None:
    bench.append()
    bench.save()
    header = bench.rows[HEADER]
    bench.rows[HEADER] = header[:1] + b"\x09" + header[2:]
    with pytest.raises(AssertionError, match="version 9"):
        State(bench.rows)


def test_a_million_places_of_progress_cost_one_row(bench: Any) -> None:
    bench.thorough = False
    for _ in range(20):
        bench.append(count=60_000)
        for _ in range(6):
            bench.ask(Poll("g", "m", 1, 10_000, 1 << 40, None, True))
    bench.save()
    assert sum(1 for key in bench.rows if key[:1] == PLACES) == 0
    assert bench.partition.describe_group("g", bench.now_ms).lag == 0
