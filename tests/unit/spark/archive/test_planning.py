"""What a step reads, what its files are called and what is merged."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner import limits
from lanner.errors import StaleIncarnation
from lanner.spark.archive.manifest import ArchivedFile, Manifest, PartitionProgress, Planned, TopicProgress
from lanner.spark.archive.planning import Held, HeldTopic, file_path, plan_merges, plan_step


def planned(manifest: Manifest, held: dict[int, Held], messages_max: int = 100) -> list[Planned]:
    ends = {("orders", number): one.end_offset for number, one in held.items()}
    return plan_step(manifest, {"orders": HeldTopic(7, held)}, ends, messages_max)


def reached(**partitions: int) -> Manifest:
    progress = {int(name[1:]): PartitionProgress(0, offset) for name, offset in partitions.items()}
    return Manifest(topics={"orders": TopicProgress(7, progress)})


def test_a_partition_begins_at_what_it_holds_and_goes_on_where_it_was() -> None:
    held = {0: Held(5, 1_000), 1: Held(0, 30), 2: Held(0, 0)}
    assert planned(reached(p1=20), held) == [Planned("orders", 0, 5, 105, 7), Planned("orders", 1, 20, 30, 7)]


def test_what_retention_took_is_part_of_the_step_however_much_it_was() -> None:
    assert planned(reached(p0=10), {0: Held(900, 950)}) == [Planned("orders", 0, 10, 900, 7)]


def test_large_messages_make_a_step_of_fewer() -> None:
    held = {0: Held(0, 1_000, bytes=1_000 * limits.ARCHIVE_STEP_BYTES // 4), 1: Held(0, 4, bytes=2**40)}
    assert [one.end for one in planned(Manifest(), held)] == [4, 1]


def test_a_topic_that_was_made_again_is_refused() -> None:
    with pytest.raises(StaleIncarnation, match="under another path"):
        plan_step(reached(p0=1), {"orders": HeldTopic(8, {0: Held(0, 9)})}, {("orders", 0): 9})


def test_nothing_is_planned_when_everything_is_archived() -> None:
    assert planned(reached(p0=30), {0: Held(5, 30)}) == []


def test_a_file_is_named_by_its_hour_its_partition_and_its_offsets() -> None:
    path = file_path("orders", 3, 498_455, 17, 99)
    assert path == "topic=orders/date=2026-11-11/hour=23/00003-00000000000000000017-00000000000000000099.parquet"


def file(start: int, end: int, hours: int = 0, partition: int = 0, size: int = 1) -> ArchivedFile:
    path = file_path("orders", partition, hours, start, end - 1)
    return ArchivedFile(path, "orders", partition, [(start, end)], end - start, size, "")


def test_small_files_of_one_partition_and_hour_are_merged_in_offset_order() -> None:
    files = [file(20, 30), file(0, 10), file(10, 20), file(0, 9, partition=1), file(30, 40, hours=1), file(9, 19, 0, 1)]
    assert plan_merges(files) == [
        [file(0, 10), file(10, 20), file(20, 30)],
        [file(0, 9, partition=1), file(9, 19, 0, 1)],
    ]


def test_a_merged_file_stays_below_its_bound_and_large_files_stay_alone() -> None:
    almost = limits.ARCHIVE_SMALL_BYTES - 1
    each = limits.ARCHIVE_FILE_BYTES // almost
    files = [file(n, n + 1, size=almost) for n in range(2 * each)] + [file(99, 100, size=limits.ARCHIVE_SMALL_BYTES)]
    assert [len(group) for group in plan_merges(files)] == [each, each]
    assert plan_merges([file(0, 1), file(1, 2, hours=1)]) == []
