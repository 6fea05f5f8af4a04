"""Manifests on a shelf: the newest whole version counts, and two runs never write the same one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from lanner import limits
from lanner.errors import ConflictError, NotFoundError, StorageDamaged
from lanner.spark.archive import manifest as manifests
from lanner.spark.archive.manifest import Manifest
from lanner.spark.archive.shelf import LocalShelf
from lanner.spark.archive.store import Store


def numbered(version: int) -> Manifest:
    return Manifest(version=version, written_ms=version)


def test_the_newest_version_counts_and_old_ones_go(tmp_path: Path) -> None:
    store = Store(LocalShelf(tmp_path))
    assert store.load_or_begin() == Manifest()
    for version in range(1, limits.ARCHIVE_VERSIONS_KEPT + 5):
        store.save(numbered(version))
    assert store.load() == numbered(limits.ARCHIVE_VERSIONS_KEPT + 4)
    assert store.load(version=10) == numbered(10)
    assert len(list((tmp_path / manifests.FOLDER).iterdir())) == limits.ARCHIVE_VERSIONS_KEPT
    with pytest.raises(NotFoundError, match="has no version 1"):
        store.load(version=1)


def test_a_version_that_another_run_wrote_meanwhile_is_a_conflict_and_stays(tmp_path: Path) -> None:
    store = Store(LocalShelf(tmp_path))
    store.save(numbered(1))
    with pytest.raises(ConflictError, match="one run at a time"):
        Store(LocalShelf(tmp_path)).save(Manifest(version=1, written_ms=99))
    assert store.load() == numbered(1)
    assert [path.name for path in (tmp_path / manifests.FOLDER).iterdir()] == ["manifest-0000000001.json"]


def test_where_nothing_is_archived_the_error_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="lanner archive TOPIC"):
        Store(LocalShelf(tmp_path)).load()


def test_half_a_manifest_is_passed_over_only_where_a_writer_can_leave_one(tmp_path: Path) -> None:
    shelf = LocalShelf(tmp_path)
    store = Store(shelf)
    store.save(numbered(1))
    (tmp_path / manifests.FOLDER / manifests.file_name(2)).write_bytes(manifests.encode(numbered(2))[:-5])
    with pytest.raises(StorageDamaged, match="Delete it to go back"):
        store.load()
    shelf.renames_at_once = False
    assert store.load() == Manifest(version=2, written_ms=1)  # the next one written is version 3
    (tmp_path / manifests.FOLDER / manifests.file_name(1)).write_bytes(b"")
    with pytest.raises(StorageDamaged):
        store.load()


def test_a_file_is_moved_over_the_one_that_has_its_name(tmp_path: Path) -> None:
    shelf = LocalShelf(tmp_path)
    for text in ("first", "second"):
        (tmp_path / "staged").write_text(text)
        shelf.move("staged", "deep/inside/file")
    assert (tmp_path / "deep/inside/file").read_text() == "second"
    assert shelf.size("deep/inside/file") == 6
    assert shelf.size("staged") is None
    shelf.delete("deep")
    assert shelf.names("deep") == []
