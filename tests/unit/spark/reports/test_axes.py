"""Numbers and moments as people read them on an axis."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner.spark.reports import axes

DAY_MS = 86_400_000
NOON_MS = 1_767_268_800_000  # 2026-01-01 12:00


def test_ticks_are_round_begin_at_nothing_and_reach_the_highest_value() -> None:
    assert axes.round_ticks(0) == [0, 1]
    assert axes.round_ticks(100) == [0, 20, 40, 60, 80, 100]
    assert axes.round_ticks(7) == [0, 2, 4, 6, 8]
    assert axes.round_ticks(0.3) == pytest.approx([0, 0.1, 0.2, 0.3])
    for highest in (1e-3, 0.7, 3, 42, 999, 123_456, 9.9e9):
        ticks = axes.round_ticks(highest)
        assert 3 <= len(ticks) <= 7
        assert ticks[-2] < highest <= ticks[-1] * 1.000001


@pytest.mark.parametrize("span_ms", [10_000, 3_600_000, 5 * 3_600_000, DAY_MS, 40 * DAY_MS, 3_000 * DAY_MS])
def test_moments_on_an_axis_are_few_round_and_within(span_ms: int) -> None:
    found = axes.time_ticks(NOON_MS, NOON_MS + span_ms)
    assert 2 <= len(found) <= 9
    assert all(NOON_MS <= one <= NOON_MS + span_ms for one in found)
    assert len({axes.moment_text(one, span_ms) for one in found}) == len(found)  # no two look alike


def test_values_are_written_short_with_their_unit() -> None:
    assert [axes.NUMBERS.text(value) for value in (0, 0.25, 7, 950, 1_234, 35_000_000)] == [
        "0", "0.25", "7", "950", "1.23k", "35M",
    ]  # fmt: skip
    assert [axes.BYTES.text(value) for value in (0, 900, 2_048, 5 << 20)] == ["0 B", "900 B", "2 KiB", "5 MiB"]
    assert [axes.MILLISECONDS.text(value) for value in (0, 12, 1_500, 90_000)] == ["0 ms", "12 ms", "1.5 s", "1.5 min"]
    assert [axes.BYTES.text(tick) for tick in axes.BYTES.ticks(3_300)] == ["0 B", "1 KiB", "2 KiB", "3 KiB", "4 KiB"]
    assert [axes.duration_text(value) for value in (1_000, 300_000, DAY_MS, 1_500)] == [
        "1 second", "5 minutes", "1 day", "1500 milliseconds",
    ]  # fmt: skip
