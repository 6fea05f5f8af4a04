"""Setting a data directory's contents aside, so that its broker comes back as one with an empty disk.

Nothing is deleted: what was there is renamed into a folder whose name says when (`aside-20261116T210700Z`). The
directory gets a fresh identity, and `rejoin.json` says under which name and at which addresses to ask the cluster to be
let in again; it is obeyed until the cluster has done so.

A broker must never start with its old identity and an empty journal: it would have forgotten its votes. So the journal
goes last. Until then a start finds it damaged, or without its table, and refuses; `set_aside` made again goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lanner.errors import DataDirectoryRefused
from lanner.storage.directory import (
    FOUNDING_BYTES_MAX,
    _lock,
    _make_identity,
    _read_identity,
    _sync_folder,
    _write_whole,
)

_REJOIN: Final = "rejoin.json"
_MOVED: Final = ("founding.json", "table", "journal")


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Where a broker belongs whose disk was set aside."""

    cluster_id: str
    name: str
    addresses: tuple[str, ...]
    aside: str = ""  # the folder that holds what was here


class LockedDirectory:
    """A data directory that no broker runs in, held so that none starts. Use it as a context."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not (self.path / "identity.json").exists():
            raise DataDirectoryRefused(
                f"{self.path} is not a data directory; give the one that the broker was started with"
            )
        try:
            self._descriptor = _lock(self.path)
        except OSError as error:
            raise DataDirectoryRefused(f"{self.path} cannot be locked: {error.strerror}") from error
        try:
            identity = _read_identity(self.path)
            assert identity is not None
            self.node_id = identity["node_id"]
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> LockedDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read_founding(self) -> bytes | None:
        try:
            return (self.path / "founding.json").read_bytes()[: FOUNDING_BYTES_MAX + 1]
        except FileNotFoundError:
            return None

    def make_aside(self) -> Path:
        """A new folder in the directory, whose name says when."""
        name = datetime.now(UTC).strftime("aside-%Y%m%dT%H%M%SZ")
        for number in range(1_000):
            folder = self.path / (name if number == 0 else f"{name}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            _sync_folder(self.path)
            return folder
        raise DataDirectoryRefused(f"{self.path} holds a thousand folders named {name}")

    def set_aside(self, cluster_id: str, name: str, addresses: Sequence[str]) -> Path:
        """Rename everything that the broker had stored; the folder where it is now."""
        folder = self.make_aside()
        _write_whole(folder, "identity.json", (self.path / "identity.json").read_bytes())
        _write_rejoin(self.path, Rejoin(cluster_id, name, tuple(addresses), folder.name))
        return self.go_on(folder)

    def go_on(self, folder: Path) -> Path:
        """Do what is left to do since `rejoin.json` was written."""
        kept = json.loads((folder / "identity.json").read_bytes())["node_id"]
        if self.node_id == kept:
            self.node_id = _make_identity(self.path, None, None)["node_id"]
        for name in self.left_to_move(folder):
            (self.path / name).rename(folder / name)
            for part in (folder, self.path):
                _sync_folder(part)
        return folder

    def left_to_move(self, folder: Path) -> list[str]:
        """What an interrupted `set_aside` has not renamed; what came into being since is not of that time."""
        return [name for name in _MOVED if (self.path / name).exists() and not (folder / name).exists()]


def read_rejoin(path: Path | str) -> Rejoin | None:
    """Where the broker of this directory is to be let in again; None: nothing was set aside."""
    try:
        data = (Path(path) / _REJOIN).read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(data)
        texts = (found["cluster_id"], found["name"], found["aside"], *found["addresses"])
        if not all(isinstance(text, str) for text in texts):
            raise ValueError
        return Rejoin(found["cluster_id"], found["name"], tuple(found["addresses"]), found["aside"])
    except (ValueError, KeyError, TypeError):
        raise DataDirectoryRefused(
            f"{Path(path) / _REJOIN} does not say which cluster to join: remove it, and start with --join HOST:PORT"
        ) from None


def forget_rejoin(path: Path | str) -> None:
    """The cluster has let the broker in."""
    (Path(path) / _REJOIN).unlink(missing_ok=True)


def _write_rejoin(path: Path, rejoin: Rejoin) -> None:
    _write_whole(path, _REJOIN, json.dumps(asdict(rejoin), indent=2).encode() + b"\n")
