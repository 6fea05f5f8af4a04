"""The manifest from version to version: a repeat changes nothing, a hole has its reason, damage is told."""

from __future__ import annotations

import hashlib

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner.errors import ConflictError, StorageDamaged
from lanner.spark.archive import manifest as manifests
from lanner.spark.archive.manifest import ArchivedFile, Hole, Manifest, PartitionProgress, Planned
from lanner.spark.archive.planning import file_path


def file(
    start: int, end: int, *, partition: int = 0, topic: str = "orders", hours: int = 0, size: int = 10
) -> ArchivedFile:
    path = file_path(topic, partition, hours, start, end - 1)
    return ArchivedFile(path, topic, partition, [(start, end)], end - start, size, "00")


def stepped(manifest: Manifest, start: int, end: int, *files: ArchivedFile, first: int = 0) -> Manifest:
    begun = manifests.begun(manifest, [Planned("orders", 0, start, end, 7)], 1_000)
    return manifests.finished(begun, files, {("orders", 0): first}, 2_000)


def test_a_step_is_two_versions_and_moves_the_partition_on() -> None:
    after = stepped(stepped(Manifest(), 5, 10, file(5, 10)), 10, 20, file(10, 20))
    assert after.version == 4
    assert after.topics["orders"].incarnation == 7
    assert after.topics["orders"].partitions == {0: PartitionProgress(5, 20)}
    assert not after.pending
    assert [one.rows for one in after.files_of("orders")] == [5, 10]


def test_what_no_file_has_is_a_hole_and_retention_takes_only_what_lies_below_the_first_offset() -> None:
    after = stepped(Manifest(), 0, 10, file(4, 6), file(8, 10), first=7)
    assert after.topics["orders"].partitions[0].holes == [
        Hole(0, 4, manifests.RETENTION),
        Hole(6, 7, manifests.RETENTION),
        Hole(7, 8, manifests.UNREADABLE),
    ]


def test_a_file_outside_the_plan_and_an_offset_in_two_files_are_refused() -> None:
    with pytest.raises(AssertionError, match="not planned"):
        stepped(Manifest(), 0, 10, file(5, 11))
    with pytest.raises(AssertionError, match="in two files"):
        stepped(Manifest(), 0, 10, file(0, 6), file(5, 10))


def test_a_version_survives_the_way_to_bytes_and_back() -> None:
    made = stepped(Manifest(), 0, 10, file(0, 10))
    assert manifests.decode(manifests.encode(made), "here") == made


def test_bytes_that_are_cut_or_changed_are_told_as_damage() -> None:
    data = manifests.encode(stepped(Manifest(), 0, 10, file(0, 10)))
    for spoilt in (b"", data[:-1], data[: len(data) // 2], data.replace(b'"rows":10', b'"rows":11')):
        with pytest.raises(StorageDamaged, match="here is not"):
            manifests.decode(spoilt, "here")


def test_a_later_format_is_refused_and_not_called_damaged() -> None:
    data = manifests.encode(Manifest()).replace(b'"format":2', b'"format":3')
    with pytest.raises(ConflictError, match="use a newer release"):
        manifests.decode(data, "here")


def test_a_manifest_of_the_first_format_is_read_and_its_files_have_no_times() -> None:
    named = b'{"path":"a","topic":"t","partition":0,"offsets":[[0,1]],"rows":1,"size":9,"sha256":"00"}'
    body = b'{"version":3,"files":[%s]}' % named
    data = b'{"format":1,"sha256":"%s","manifest":%s}' % (hashlib.sha256(body).hexdigest().encode(), body)
    found = manifests.decode(data, "here")
    assert [(one.path, one.times) for one in found.files] == [("a", False)]
    assert b'"format":2' in manifests.encode(found)


def test_a_file_that_no_version_names_is_a_stray_goes_after_the_grace_time_and_is_none_once_it_is_written_anew() -> (
    None
):
    before = stepped(Manifest(), 0, 10, file(0, 10))
    stray = file(10, 20).path
    assert manifests.strays(before, [file(0, 10).path, stray]) == [stray]
    noticed = manifests.noticed(before, [stray], 5_000)
    assert manifests.strays(noticed, [stray]) == []
    assert manifests.due(noticed, 5_999, 1_000) == []
    assert manifests.due(noticed, 6_000, 1_000) == [stray]
    assert manifests.due(stepped(noticed, 10, 20, file(10, 20)), 6_000, 1_000) == []


def test_merged_files_stay_for_their_grace_time_and_are_then_forgotten() -> None:
    before = stepped(stepped(Manifest(), 0, 10, file(0, 10)), 10, 20, file(10, 20))
    after = manifests.merged(before, [(before.files, file(0, 20))], 5_000)
    assert [one.path for one in after.files] == [file(0, 20).path]
    assert manifests.due(after, 5_999, 1_000) == []
    due = manifests.due(after, 6_000, 1_000)
    assert due == [one.path for one in before.files]
    assert manifests.forgotten(after, due, 6_000).old == []


def test_a_merged_file_that_lost_an_offset_replaces_nothing() -> None:
    before = stepped(stepped(Manifest(), 0, 10, file(0, 10)), 10, 20, file(10, 20))
    with pytest.raises(StorageDamaged, match="nothing changed"):
        manifests.merged(before, [(before.files, file(0, 19))], 5_000)


def test_a_pending_step_of_a_topic_that_is_gone_is_dropped() -> None:
    begun = manifests.begun(Manifest(), [Planned("orders", 0, 0, 9, 7), Planned("events", 0, 0, 9, 8)], 0)
    assert [one.topic for one in manifests.abandoned(begun, ["orders"], 1).pending] == ["events"]


@pytest.mark.parametrize(
    ("name", "version"),
    [("manifest-0000000042.json", 42), (".manifest-0000000042.json.ab12", None), ("manifest-.json", None), ("x", None)],
)
def test_a_version_is_told_from_other_files_by_its_name(name: str, version: int | None) -> None:
    assert manifests.version_of(name) == version
    assert manifests.version_of(manifests.file_name(42)) == 42
