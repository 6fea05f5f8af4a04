"""The manifest's versions on a shelf: the newest is what counts."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from lanner import limits
from lanner.errors import NotFoundError, StorageDamaged
from lanner.spark.archive import manifest as manifests
from lanner.spark.archive.manifest import Manifest
from lanner.spark.archive.shelf import Shelf

_log: Final = logging.getLogger("lanner.spark")


class Store:
    """Loads and saves manifests."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def load(self, version: int | None = None) -> Manifest:
        """The newest version, or a certain one; NotFoundError where there is no archive."""
        found = self._versions()
        if version is not None and version not in found:
            raise NotFoundError(f"the archive at {self.shelf.root} has no version {version}: it has {found[-20:]}")
        if not found:
            raise NotFoundError(
                f"there is no archive at {self.shelf.root}: make one with lanner archive TOPIC --path ARCHIVE",
                path=self.shelf.root,
            )
        if version is not None:
            return self._decoded(version)
        for number in reversed(found):
            try:
                return msgspec.structs.replace(self._decoded(number), version=found[-1])
            except StorageDamaged as error:
                if self.shelf.renames_at_once or number == found[0]:
                    raise StorageDamaged(
                        f"{error.message}. Delete it to go back to the version before it, then archive and audit",
                        **error.details,
                    ) from error
                _log.warning("%s; the version before it is used", error.message)
        raise AssertionError("unreachable")

    def load_or_begin(self) -> Manifest:
        return self.load() if self._versions() else Manifest()

    def save(self, made: Manifest) -> Manifest:
        """Store the next version; versions that are too old to be of use go."""
        self.shelf.put_new(f"{manifests.FOLDER}/{manifests.file_name(made.version)}", manifests.encode(made))
        for version in self._versions()[: -limits.ARCHIVE_VERSIONS_KEPT]:
            self.shelf.delete(f"{manifests.FOLDER}/{manifests.file_name(version)}")
        return made

    def _decoded(self, version: int) -> Manifest:
        name = f"{manifests.FOLDER}/{manifests.file_name(version)}"
        return manifests.decode(self.shelf.read(name), f"{self.shelf.root}/{name}")

    def _versions(self) -> list[int]:
        found = (manifests.version_of(name) for name in self.shelf.names(manifests.FOLDER))
        return sorted(number for number in found if number is not None)
