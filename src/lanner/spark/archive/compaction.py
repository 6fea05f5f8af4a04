"""Merging the small files of an archive, and deleting what is of no use any more.

A merged file takes the place of its parts in one version of the manifest. The parts stay for a grace time, because
an older version may still be read. Files that no version names, and never will (strays of a step that was cut off), are
found by looking, and go after the same time. Checksums are compared before anything is merged, so that damage is never
given a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession

from lanner import limits
from lanner.errors import ConflictError, StorageDamaged
from lanner.spark.archive import files as parquet
from lanner.spark.archive import manifest as manifests
from lanner.spark.archive.auditing import check_files
from lanner.spark.archive.manifest import ArchivedFile, Manifest
from lanner.spark.archive.planning import folder_of, plan_merges
from lanner.spark.archive.shelf import open_shelf
from lanner.spark.archive.store import Store

_GROUPS_AT_ONCE: Final = 32


class Compacted(NamedTuple):
    """How far a compaction has come."""

    version: int
    merged: int  # files that were merged away
    made: int  # files that took their place
    left: int  # files yet to be merged
    deleted: int  # old files whose time was over
    strays: int = 0  # files found that no step names; they are old from now on


class Compactor:
    """Works on one archive."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        *,
        grace_ms: int = limits.ARCHIVE_GRACE_MS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._spark = spark
        self._grace_ms = grace_ms
        self._clock = clock
        self.store = Store(open_shelf(spark, path))

    def run(self) -> Iterator[Compacted]:
        """Merge, then delete what is old enough. Yields after each."""
        manifest = self.store.load()
        if manifest.pending:
            raise ConflictError(
                "a step of this archive was not finished: run lanner archive once more, then compact",
                path=self.store.shelf.root,
            )
        groups = plan_merges(manifest.files)
        merged = made = 0
        for first in range(0, len(groups), _GROUPS_AT_ONCE):
            some = groups[first : first + _GROUPS_AT_ONCE]
            manifest = self._merge(manifest, some)
            merged += sum(len(group) for group in some)
            made += len(some)
            left = sum(len(group) for group in groups[first + _GROUPS_AT_ONCE :])
            yield Compacted(manifest.version, merged, made, left, 0)
        strays = manifests.strays(manifest, self._present())
        if strays:
            manifest = self.store.save(manifests.noticed(manifest, strays, self._now_ms()))
        manifest, deleted = self._delete_old(manifest)
        yield Compacted(manifest.version, merged, made, 0, deleted, len(strays))

    def _present(self) -> Iterator[str]:
        """Every data file that is there, and what is left of staging folders."""
        shelf = self.store.shelf
        for name in shelf.names(manifests.FOLDER):
            if name.startswith(parquet.STAGING):
                yield f"{manifests.FOLDER}/{name}"
        folders = [name for name in shelf.names("") if name.startswith("topic=")]
        for level in ("date=", "hour=", ""):
            inner = [f"{folder}/{name}" for folder in folders for name in shelf.names(folder) if name.startswith(level)]
            folders = inner
        yield from (
            path for path in folders if path.endswith(".parquet") and not path.rpartition("/")[2].startswith(".")
        )

    def _merge(self, manifest: Manifest, groups: Sequence[Sequence[ArchivedFile]]) -> Manifest:
        state = check_files(self._spark, self.store, [one for group in groups for one in group])
        if wrong := sorted(state.removed | state.damaged):
            raise StorageDamaged(
                f"{wrong[0]} is {'gone' if wrong[0] in state.removed else 'damaged'}, and {len(wrong) - 1} more are; "
                "nothing was merged. lanner audit names the offsets",
                files=wrong,
            )
        with parquet.staging(self.store.shelf) as folder:
            measured = []
            # Files of one partition and hour fill several groups only where they are many: each then has a folder.
            for number, layer in enumerate(_layers(groups)):
                inner = f"{folder}/{number}"
                frames = [parquet.frame_of(self._spark, self.store.shelf, group).coalesce(1) for group in layer]
                parquet.write(reduce(DataFrame.unionByName, frames), self.store.shelf, inner)
                measured += parquet.measure(self._spark, self.store.shelf, inner)
            named = {one.path for one in manifest.files}
            for one in measured:
                assert parquet.path_of(one) not in named, "a merged file has the name of one of its parts"
            placed = parquet.place(self.store.shelf, measured)
        return self.store.save(manifests.merged(manifest, _paired(groups, placed), self._now_ms()))

    def _delete_old(self, manifest: Manifest) -> tuple[Manifest, int]:
        due = manifests.due(manifest, self._now_ms(), self._grace_ms)
        for path in due:
            self.store.shelf.delete(path)
        if due:
            manifest = self.store.save(manifests.forgotten(manifest, due, self._now_ms()))
        return manifest, len(due)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def _place(one: ArchivedFile) -> tuple[str, int]:
    return folder_of(one.path), one.partition


def _layers(groups: Sequence[Sequence[ArchivedFile]]) -> list[list[Sequence[ArchivedFile]]]:
    """The groups, divided so that no two of a division make files of the same partition and hour."""
    layers: list[dict[tuple[str, int], Sequence[ArchivedFile]]] = []
    for group in groups:
        for layer in layers:
            if _place(group[0]) not in layer:
                layer[_place(group[0])] = group
                break
        else:
            layers.append({_place(group[0]): group})
    return [list(layer.values()) for layer in layers]


def _paired(
    groups: Sequence[Sequence[ArchivedFile]], placed: Sequence[ArchivedFile]
) -> list[tuple[Sequence[ArchivedFile], ArchivedFile]]:
    """Each group with the file that it became."""
    by_start = {(*_place(one), one.offsets[0][0]): one for one in placed}
    pairs = []
    for group in groups:
        whole = by_start.pop((*_place(group[0]), group[0].offsets[0][0]), None)
        if whole is None:
            raise StorageDamaged(
                f"merging {group[0].path} and {len(group) - 1} more gave no file; nothing was replaced"
            )
        pairs.append((group, msgspec.structs.replace(whole, times=group[0].times)))
    return pairs
