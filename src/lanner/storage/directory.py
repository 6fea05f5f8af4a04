"""The data directory: whose it is, which version wrote it, and that only one broker uses it.

    identity.json    format, cluster id, node id: written once, before anything else
    founding.json    which cluster it belongs to, and who founded that: written before the first vote
    lock             held by the running broker
    journal/         the files
    table/           LMDB

A directory that is not clearly ours is refused, with the reason and the next step; nothing in it is touched.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lanner.errors import DataDirectoryRefused
from lanner.storage.disk import DiskFiles, LmdbTable

DIRECTORY_FORMAT: Final = 2  # 1: rows of the table without checksums (0.1)
IDENTITY_BYTES_MAX: Final = 4_096
FOUNDING_BYTES_MAX: Final = 1 << 20

_IDENTITY: Final = "identity.json"
_FOUNDING: Final = "founding.json"
_LOCK: Final = "lock"
_ID: Final = re.compile(r"[0-9a-f]{32}\Z")
_OURS: Final = frozenset({_IDENTITY, _IDENTITY + ".new", _LOCK, "lost+found"})


@dataclass(slots=True)
class DataDirectory:
    """An open data directory. Close it to let another broker in."""

    path: Path
    files: DiskFiles
    table: LmdbTable
    node_id: str
    cluster_id: str
    created: bool
    _lock: int

    def read_founding(self) -> bytes | None:
        """What was recorded of the cluster that this directory belongs to; None: nothing yet."""
        try:
            with open(self.path / _FOUNDING, "rb") as file:
                return file.read(FOUNDING_BYTES_MAX + 1)
        except FileNotFoundError:
            return None

    def write_founding(self, data: bytes) -> None:
        """Record it, so that a crash leaves all of it or what was there before."""
        _write_whole(self.path, _FOUNDING, data)

    def close(self) -> None:
        self.files.close()
        self.table.close()
        os.close(self._lock)


def open_directory(path: Path | str, *, cluster_id: str | None = None, node_id: str | None = None) -> DataDirectory:
    """Open a data directory, or make one where there is nothing. Ids that are given must be those it has."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        identity = _read_identity(folder)
        created = identity is None
        if identity is None:
            identity = _make_identity(folder, cluster_id, node_id)
        _check_ids(folder, identity, cluster_id, node_id)
        if identity["format"] != DIRECTORY_FORMAT:  # from here on an older release must not open it
            _write_identity(folder, identity)
        files, table = DiskFiles(folder / "journal"), LmdbTable(folder / "table")
        for part in (folder / "table", folder):  # LMDB syncs its file, not the file's name
            _sync_folder(part)
        return DataDirectory(folder, files, table, identity["node_id"], identity["cluster_id"], created, lock)
    except OSError as error:
        os.close(lock)
        raise _unusable(folder, error) from error
    except BaseException:
        os.close(lock)
        raise


def _unusable(folder: Path, error: OSError) -> DataDirectoryRefused:
    """Return what the system's refusal of a folder, or of a file in it, means to an operator."""
    file = f"{error.filename}: " if error.filename not in (None, str(folder), folder) else ""
    remedy = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "fix its permissions"
    return DataDirectoryRefused(
        f"{folder} cannot be used as a data directory: {file}{error.strerror}; give another with --data, or {remedy}"
    )


def _lock(folder: Path) -> int:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise DataDirectoryRefused(
            f"{folder} is in use by another broker (process {holder or 'unknown'}); stop it first, or give another "
            "directory with --data"
        ) from None
    with suppress(OSError):  # it is only shown to people: a full disk must not keep a broker from starting
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
    return descriptor


def _read_identity(folder: Path) -> dict[str, Any] | None:
    try:
        with open(folder / _IDENTITY, "rb") as file:
            data = file.read(IDENTITY_BYTES_MAX)
    except FileNotFoundError:
        strangers = sorted(entry.name for entry in folder.iterdir() if entry.name not in _OURS)
        if strangers:
            raise DataDirectoryRefused(
                f"{folder} has no {_IDENTITY} but holds {strangers[0]!r}: it is not a data directory, or its identity "
                "was lost; give an empty directory with --data, or restore the file from a backup"
            ) from None
        return None
    try:
        found = json.loads(data)
        if not isinstance(found, dict) or isinstance(found["format"], bool) or not isinstance(found["format"], int):
            raise ValueError
        if found["format"] <= DIRECTORY_FORMAT and not all(
            isinstance(found[name], str) and _ID.match(found[name]) for name in ("cluster_id", "node_id")
        ):
            raise ValueError
    except (ValueError, KeyError):
        raise DataDirectoryRefused(
            f"{folder / _IDENTITY} does not say whose data this is; restore the file from a backup, or, where other "
            "brokers have copies, start with an empty directory to join anew"
        ) from None
    if found["format"] > DIRECTORY_FORMAT:
        raise DataDirectoryRefused(
            f"{folder} was written by a newer version of Lanner (format {found['format']}; this version knows "
            f"{DIRECTORY_FORMAT}); start it with that version"
        )
    return {name: found[name] for name in ("format", "cluster_id", "node_id")}


def _make_identity(folder: Path, cluster_id: str | None, node_id: str | None) -> dict[str, Any]:
    identity = {"cluster_id": cluster_id or secrets.token_hex(16), "node_id": node_id or secrets.token_hex(16)}
    for name, value in identity.items():
        if not _ID.match(value):
            raise DataDirectoryRefused(f"{name} {value[:80]!r} is not valid: it must be 32 lower-case hex digits")
    _write_identity(folder, identity)
    with suppress(PermissionError):  # somebody else's folder is theirs to sync
        _sync_folder(folder.parent)
    return {**identity, "format": DIRECTORY_FORMAT}


def _write_identity(folder: Path, identity: Mapping[str, Any]) -> None:
    """Write it so that a crash leaves all of it, or what was there before."""
    text = json.dumps({**identity, "format": DIRECTORY_FORMAT}, indent=2) + "\n"
    _write_whole(folder, _IDENTITY, text.encode("ascii"))


def _write_whole(folder: Path, name: str, data: bytes) -> None:
    fresh = folder / (name + ".new")
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / name)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_ids(folder: Path, identity: Mapping[str, Any], cluster_id: str | None, node_id: str | None) -> None:
    for name, wanted in (("cluster_id", cluster_id), ("node_id", node_id)):
        if wanted is not None and identity[name] != wanted:
            what = name.removesuffix("_id")
            raise DataDirectoryRefused(
                f"{folder} belongs to {what} {identity[name]}, not to {wanted}; give the directory of that {what} "
                "with --data, or an empty one"
            )
