"""How a limit is shared among partitions, and a batch among tasks."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from hypothesis import given
from hypothesis import strategies as st

from lanner.spark.admission import Patience, apportioned, backlog, divided, prorated, shares
from lanner.spark.offsets import Span


def spans(*lengths: int) -> list[Span]:
    return [Span("orders", at, 100, 100 + length) for at, length in enumerate(lengths)]


def test_a_limit_is_shared_by_backlog() -> None:
    assert [span.end_offset - 100 for span in prorated(spans(1_000, 3_000), 100)] == [25, 75]
    assert [span.start_offset for span in prorated(spans(1_000, 3_000), 100)] == [100, 100]


def test_a_small_backlog_is_not_starved_by_a_large_one() -> None:
    taken = prorated(spans(1, 1_000_000), 10)
    assert [span.end_offset - 100 for span in taken] == [1, 9]


def test_a_limit_above_the_backlog_changes_nothing() -> None:
    assert prorated(spans(5, 6), 11) == spans(5, 6)
    assert prorated([], 11) == []


def test_with_a_limit_below_the_number_of_partitions_the_longest_go_first() -> None:
    assert [span.partition for span in prorated(spans(1, 5, 3), 2)] == [1, 2]


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=40), st.integers(1, 10**12))
def test_a_limit_is_never_exceeded_and_always_used_up(lengths: list[int], limit: int) -> None:
    taken = prorated(spans(*lengths), limit)
    assert backlog(taken) == min(limit, sum(lengths))
    assert all(span.end_offset <= 100 + lengths[span.partition] for span in taken)
    if limit >= len(lengths):
        assert len(taken) == len(lengths)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=20), st.integers(0, 60))
def test_tasks_cover_the_same_offsets_once(lengths: list[int], tasks_min: int) -> None:
    parts = divided(spans(*lengths), tasks_min)
    assert len(parts) == max(len(lengths), min(tasks_min, sum(lengths)))
    for whole in spans(*lengths):
        own = [part for part in parts if part.partition == whole.partition]
        assert own[0].start_offset == whole.start_offset
        assert own[-1].end_offset == whole.end_offset
        assert all(one.end_offset == two.start_offset for one, two in pairwise(own))
        assert all(part.start_offset < part.end_offset for part in own)


def test_shares_sum_up_to_the_total() -> None:
    assert apportioned([3, 3, 3], 2) == [1, 1, 0]
    assert apportioned([1, 1], 9) == [1, 1]


def test_patience_waits_for_enough_but_not_for_ever() -> None:
    patience = Patience(10, 1_000)
    assert not patience.is_enough(9, 0)
    assert not patience.is_enough(9, 999)
    assert patience.is_enough(9, 1_000)  # long enough
    assert not patience.is_enough(9, 1_999)
    assert patience.is_enough(10, 1_999)  # enough
    assert not patience.is_enough(1, 2_998)
    assert not patience.is_enough(0, 9_000)  # nothing is never enough


def test_bytes_are_shared_by_backlog_too() -> None:
    assert [share for _, share in shares(spans(1, 3), 400)] == [100, 300]
    assert [share for _, share in shares(spans(1, 10**9), 400)] == [1, 399]
