"""Every offset that an archive claims is judged once, and what is no fault is told apart."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner.spark.archive.manifest import RETENTION, ArchivedFile, Hole, PartitionProgress
from lanner.spark.archive.planning import Held
from lanner.spark.archive.ranges import Range
from lanner.spark.archive.verdict import Compared, Files, PartitionVerdict, judge, never_archived

PROGRESS = PartitionProgress(10, 100, [Hole(10, 20, RETENTION)])
FILES = [
    ArchivedFile("a", "orders", 0, [(20, 50)], 30, 1, ""),
    ArchivedFile("b", "orders", 0, [(50, 60), (61, 100)], 49, 1, ""),
    ArchivedFile("c", "orders", 0, [(60, 61)], 1, 1, ""),
]
HELD = Held(30, 120)


def verdict(
    removed: str = "",
    damaged: str = "",
    found: dict[str, list[Range]] | None = None,
    files: list[ArchivedFile] = FILES,
    held: Held = HELD,
    to_end: bool = False,
) -> PartitionVerdict:
    state = Files(len(files), frozenset(removed), frozenset(damaged))
    return judge(0, PROGRESS, held, files, state, Compared(found or {}), to_end=to_end)


def test_an_archive_as_it_was_written_is_clean() -> None:
    clean = verdict()
    assert clean.is_clean
    assert (clean.messages, clean.compared, clean.behind) == (80, 70, 20)
    assert clean.holes == {RETENTION: [(10, 20)]}


def test_a_removed_file_gives_exactly_its_offsets_as_missing() -> None:
    found = verdict(removed="b", found={"missing": [(50, 60), (61, 100)]})
    assert not found.is_clean
    assert found.missing == [(50, 60), (61, 100)]
    assert found.different == found.doubled == []


def test_a_damaged_file_gives_its_offsets_as_different_and_not_as_missing_too() -> None:
    found = verdict(damaged="c", found={"missing": [(60, 61)]})
    assert found.different == [(60, 61)]
    assert found.missing == []
    assert not found.is_clean


def test_a_removed_file_is_missed_also_where_the_topic_no_longer_has_its_offsets() -> None:
    assert verdict(removed="a", held=Held(110, 120)).missing == [(20, 50)]


def test_an_offset_in_no_file_and_in_no_hole_is_missing() -> None:
    assert verdict(files=FILES[:2], held=Held(110, 120)).missing == [(60, 61)]


def test_what_the_topic_gives_in_a_hole_of_the_archive_is_missing_and_no_hole() -> None:
    found = verdict(found={"missing": [(15, 16)]}, held=Held(0, 120))
    assert found.missing == [(15, 16)]
    assert found.holes[RETENTION] == [(10, 15), (16, 20)]


def test_an_offset_in_two_files_is_doubled() -> None:
    twice = [*FILES, ArchivedFile("d", "orders", 0, [(40, 45)], 5, 1, "")]
    assert verdict(files=twice).doubled == [(40, 45)]


def test_other_bytes_are_different_and_what_the_topic_lost_since_is_no_fault() -> None:
    found = verdict(found={"different": [(33, 34)], "unmatched": [(30, 32)]})
    assert found.different == [(33, 34)]
    assert found.compared == 68
    assert verdict(found={"unmatched": [(30, 32)]}).is_clean


def test_a_topic_that_ends_before_the_archive_is_a_fault() -> None:
    assert verdict(held=Held(30, 90)).beyond == [(90, 100)]
    assert not verdict(held=Held(30, 90)).is_clean


def test_what_is_not_archived_yet_is_missing_only_when_asked_for() -> None:
    assert verdict(to_end=True).missing == [(100, 120)]
    assert never_archived(1, HELD, to_end=False).is_clean
    assert never_archived(1, HELD, to_end=True).missing == [(30, 120)]


def test_a_list_that_was_cut_is_never_clean() -> None:
    state = Files(3, frozenset(), frozenset())
    assert not judge(0, PROGRESS, HELD, FILES, state, Compared({}, frozenset({"missing"}))).is_clean
