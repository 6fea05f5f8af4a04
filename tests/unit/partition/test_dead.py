"""Dead letters as a stream: numbered in the order of deaths, with holes where they went away again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanner import features
from lanner.errors import GroupKindConflict, GroupNotFound, NotSupported
from lanner.partition import Discard, DropGroup, MakeGroup, NumberDead, Poll, PollAnswer, Redrive, Seek, Settle
from tests.unit.partition.conftest import Bench

REJECT = 4
LETTERS_MAX = 1_000


def die(bench: Any, *offsets: int, reason: str = "bad", group: str = "g") -> None:
    """Lease everything that can be had, reject these, and give the rest back."""
    (answer,) = bench.ask(Poll(group, "m", bench.now_ms, 1_000))
    if not isinstance(answer, PollAnswer):
        return
    leased = [lease.first_offset + at for lease in answer.leases for at in range(lease.count)]
    rejected = [(answer.token, at, 1, REJECT, -1, reason) for at in offsets if at in leased]
    back = [(answer.token, at, 1, 2, 0, "") for at in leased if at not in offsets]
    bench.ask(Settle(group, [*rejected, *back]))


def stream(bench: Any, number: int = 0, limit: int = LETTERS_MAX) -> list[tuple[int, int]]:
    """(number, offset) of what is dead."""
    runs = bench.partition.dead_stretch("g", number, limit).runs
    return [(run.number + at, run.first_offset + at) for run in runs for at in range(run.count)]


@pytest.fixture
def bench(make_bench: Any) -> Any:
    bench = make_bench(max_deliveries=1_000, retention_ms=0)
    bench.append(count=6)
    bench.append(count=4, priority=9)
    bench.ask(MakeGroup("g", "queue"))
    return bench


def test_who_died_below_level_3_comes_first_by_time_then_by_offset(bench: Any) -> None:
    bench.feature_level = features.STAGES - 1
    die(bench, 3)
    bench.wait(10)
    die(bench, 1, 7)
    bench.feature_level = features.STAGES
    assert bench.partition.has_unnumbered_dead("g")
    bench.ask(NumberDead("g"))
    assert not bench.partition.has_unnumbered_dead("g")
    assert stream(bench) == [(0, 3), (1, 1), (2, 7)]
    bench.wait(10)
    die(bench, 0)
    assert stream(bench) == [(0, 3), (1, 1), (2, 7), (3, 0)]
    assert stream(bench, 2, 1) == [(2, 7)]
    bench.restart()
    assert stream(bench, 1) == [(1, 1), (2, 7), (3, 0)]
    assert bench.decide(NumberDead("g")).record is None, "numbered once, numbered for good"


def test_redriven_and_dead_again_comes_again_and_what_went_away_is_a_hole(bench: Any) -> None:
    bench.ask(NumberDead("g"))
    die(bench, 0, 1, 2, 3)
    bench.ask(Redrive("g", [1]))
    bench.ask(Discard("g", [2]))
    found = bench.partition.dead_stretch("g", 0, LETTERS_MAX)
    assert stream(bench) == [(0, 0), (3, 3)] and found.holes == [(1, 3)]
    assert (found.first_number, found.next_number, found.end_number) == (0, 4, 4)
    die(bench, 1, reason="again")
    assert stream(bench, 4) == [(4, 1)]
    assert bench.partition.dead_stretch("g", 4, 1).runs[0].reason == "again"
    bench.ask(Discard("g"))
    gone = bench.partition.dead_stretch("g", 2, LETTERS_MAX)
    assert (gone.runs, gone.holes, gone.next_number, gone.first_number) == ([], [(2, 5)], 5, 5)


def test_a_group_that_is_made_again_has_another_id_and_begins_at_0(bench: Any) -> None:
    bench.ask(NumberDead("g"))
    die(bench, 0)
    before = bench.partition.dead_stretch("g", 0, 1)
    bench.ask(DropGroup("g"))
    assert bench.partition.dead_stretch("g", 0, 1).group_id == 0
    bench.ask(MakeGroup("g", "queue"))
    bench.ask(NumberDead("g"))
    after = bench.partition.dead_stretch("g", 0, 1)
    assert after.end_number == 0 and after.group_id not in (0, before.group_id)


def test_below_level_3_nothing_is_numbered_and_the_rows_are_as_they_were(bench: Any) -> None:
    bench.feature_level = features.STAGES - 1
    die(bench, 0)
    before = bench.partition.all_rows()
    (answer,) = bench.ask(NumberDead("g"))
    assert isinstance(answer, NotSupported) and "lanner cluster upgrade" in answer.message
    assert bench.partition.all_rows() == before
    for row in (row for key, row in before.items() if key[:1] == b"p"):
        assert b"\x97" in row[:3], "an entry has seven fields while nobody has asked for numbers"


def test_from_level_3_on_a_group_numbers_its_deaths_from_the_first_one_on(bench: Any) -> None:
    die(bench, 3)
    die(bench, 1)  # in the same millisecond, a decision later
    assert not bench.partition.has_unnumbered_dead("g")
    assert stream(bench) == [(0, 3), (1, 1)]


def test_only_queue_groups_that_are_there_have_dead_letters(bench: Any) -> None:
    (answer,) = bench.ask(NumberDead("nobody"))
    assert isinstance(answer, GroupNotFound)
    bench.ask(MakeGroup("s", "stream"))
    (answer,) = bench.ask(NumberDead("s"))
    assert isinstance(answer, GroupKindConflict)


_ops = st.lists(
    st.tuples(st.sampled_from(["append", "die", "redrive", "discard", "seek", "save", "wait"]), st.integers(0, 30)),
    max_size=30,
)


@settings(deadline=None)
@given(_ops, st.integers(0, 10), st.integers(1, 5))
def test_the_stream_is_the_order_of_deaths_whatever_happens(
    ops: list[tuple[str, int]], numbered_after: int, page: int
) -> None:
    bench = Bench(max_deliveries=1_000, retention_ms=0, backoff_ms=0)
    bench.feature_level = features.STAGES - 1
    bench.append(count=5)
    bench.ask(MakeGroup("g", "queue"))
    deaths: list[int] = []  # offsets by number, once they are numbered
    for at, (kind, chosen) in enumerate(ops):
        bench.wait(1)
        if at == numbered_after:
            bench.feature_level = features.STAGES
            bench.ask(NumberDead("g"))
            deaths = [offset for _, offset in stream(bench)]
        before = set(alive := dead_offsets(bench))
        if kind == "append":
            bench.append(count=1 + chosen % 4, priority=chosen % 10)
        elif kind == "die":
            die(bench, chosen % max(1, bench.partition.end_offset))
        elif kind in ("redrive", "discard") and alive:
            request = Redrive if kind == "redrive" else Discard
            bench.ask(request("g", [alive[chosen % len(alive)]]))
        elif kind == "seek":
            bench.ask(Seek("g", chosen % (bench.partition.end_offset + 1)))
        elif kind == "save":
            bench.save()
            bench.restart()
        if at >= numbered_after:
            deaths += sorted(set(dead_offsets(bench)) - before)
            check(bench, deaths, page)


def dead_offsets(bench: Any) -> list[int]:
    return [entry.offset for entry in bench.partition.dead_letters("g", 0, LETTERS_MAX)]


def check(bench: Any, deaths: list[int], page: int) -> None:
    """Page by page: what is dead stands under its latest number, and every other number is in a hole."""
    latest = {offset: number for number, offset in enumerate(deaths) if offset in set(dead_offsets(bench))}
    read: dict[int, int] = {}
    missing: list[int] = []
    number = 0
    while number < len(deaths):
        found = bench.partition.dead_stretch("g", number, page)
        assert found.end_number == len(deaths) and number < found.next_number
        for run in found.runs:
            read |= {run.number + at: run.first_offset + at for at in range(run.count)}
        missing += [one for first, following in found.holes for one in range(first, following)]
        number = found.next_number
    assert {offset: number for number, offset in read.items()} == latest
    assert sorted([*read, *missing]) == list(range(len(deaths)))
