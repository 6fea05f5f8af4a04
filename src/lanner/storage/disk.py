"""The ports on a real disk: journal files with positioned reads and writes, and LMDB for the table.

Errors are translated here and nowhere above: no room is `StorageFull`, and the same call may be made again; a sync
that failed, or a write that failed for any other reason, is `StorageFailed`. After that the kernel may have thrown
the unwritten pages away and call the next sync a success, so nothing is retried: the adapter refuses every call.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import lmdb

from lanner import limits
from lanner.errors import StorageDamaged, StorageFailed, StorageFull
from lanner.ledger.ports import FileMissing

IOV_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX")) if os.sysconf("SC_IOV_MAX") > 0 else 16
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
SCAN_ROWS: Final = 1_000
FULL_BYTES: Final = 16 << 20  # with less than this free, a failed save is taken for a full disk
MAP_BYTES: Final = (1 << 40, 1 << 38, 1 << 36, 1 << 34)

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)
_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_NAME: Final = re.compile(r"([0-9]{12})\.journal\Z")


def _open_files() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits.OPEN_FILES_WANTED if soft == resource.RLIM_INFINITY else soft


class _Handle:
    """An open file. It closes when the last one who uses it lets go, so a reader is never left with another's file."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class DiskFiles:
    """Numbered files in one directory."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._folder = _Handle(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self._handles: OrderedDict[int, _Handle] = OrderedDict()
        self._open_files_max = limits.storage_files_for(_open_files())
        self._lock = threading.Lock()
        self._failure: str | None = None
        # Who made a file may have been killed before its name was durable.
        self._sync(self._folder, str(self._directory), os.fsync)

    def list(self) -> list[tuple[int, int]]:
        self._refuse_after_failure()
        found = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                match = _NAME.match(entry.name)
                if match:
                    found.append((int(match[1]), entry.stat().st_size))
        return sorted(found)

    def create(self, file_id: int, size: int, header: bytes) -> None:
        self._refuse_after_failure()
        path = self._path(file_id)
        with self._lock:
            self._handles.pop(file_id, None)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with self._lock:
                handle = self._open_path(path, flags)
            _reserve(handle.descriptor, max(size, len(header)))
            _write_all(handle.descriptor, 0, [header])
        except OSError as error:
            with suppress(OSError):
                path.unlink()
            raise self._translated(error, f"creating {path.name}") from error
        self._sync(handle, path.name, os.fsync)
        self._sync(self._folder, str(self._directory), os.fsync)
        with self._lock:
            self._remember(file_id, handle)

    def write(self, file_id: int, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        self._refuse_after_failure()
        handle = self._open(file_id)
        try:
            _write_all(handle.descriptor, offset, buffers)
        except OSError as error:
            raise self._translated(error, f"writing to {self._path(file_id).name}") from error

    def sync(self, file_id: int) -> None:
        self._refuse_after_failure()
        self._sync(self._open(file_id), self._path(file_id).name, os.fdatasync)

    def read(self, file_id: int, offset: int, length: int) -> bytes:
        self._refuse_after_failure()
        handle = self._open(file_id)
        try:
            data = os.pread(handle.descriptor, length, offset)
            if len(data) == length or not data:
                return data
            pieces = [data]  # a short read happens at the end of the file, or when a signal came
            while data and (done := sum(map(len, pieces))) < length:
                data = os.pread(handle.descriptor, length - done, offset + done)
                pieces.append(data)
            return b"".join(pieces)
        except OSError as error:
            raise self._translated(error, f"reading {self._path(file_id).name}") from error

    def next_data(self, file_id: int, offset: int) -> int | None:
        # What was reserved and never written is no data: a start need not read a hundred megabytes of zeros. Pages
        # that reading ahead brought in would count as data, so they are let go first.
        self._refuse_after_failure()
        handle = self._open(file_id)
        try:
            os.posix_fadvise(handle.descriptor, offset - offset % _PAGE_BYTES, 0, os.POSIX_FADV_DONTNEED)
            return os.lseek(handle.descriptor, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno in _UNSUPPORTED:
                return offset
            raise self._translated(error, f"reading {self._path(file_id).name}") from error

    def truncate(self, file_id: int, size: int) -> None:
        self._refuse_after_failure()
        handle = self._open(file_id)
        try:
            os.ftruncate(handle.descriptor, size)
        except OSError as error:
            raise self._translated(error, f"cutting {self._path(file_id).name}") from error

    def remove(self, file_id: int) -> None:
        self._refuse_after_failure()
        with self._lock:
            self._handles.pop(file_id, None)
        try:
            self._path(file_id).unlink(missing_ok=True)
        except OSError as error:
            raise self._translated(error, f"removing {self._path(file_id).name}") from error
        # Without this a file could be back after a power loss, when no row of the table knows it any more.
        self._sync(self._folder, str(self._directory), os.fsync)

    def free_bytes(self) -> tuple[int, int]:
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def close(self) -> None:
        self._failure = self._failure or "the files are closed"
        with self._lock:
            self._handles.clear()

    def _path(self, file_id: int) -> Path:
        return self._directory / f"{file_id:012d}.journal"

    def _open(self, file_id: int) -> _Handle:
        with self._lock:
            handle = self._handles.get(file_id)
            if handle is not None:
                self._handles.move_to_end(file_id)
                return handle
            try:
                handle = self._open_path(self._path(file_id), os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                raise FileMissing(f"file {file_id} does not exist") from None
            except OSError as error:
                raise self._translated(error, f"opening {self._path(file_id).name}") from error
            self._remember(file_id, handle)
            return handle

    def _open_path(self, path: Path, flags: int) -> _Handle:
        """Open it; a process that has run out of descriptors lets go of files that nobody uses at the moment."""
        try:
            return _Handle(os.open(path, flags, 0o640))
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR or not self._handles:
                raise
            self._handles.clear()
            return _Handle(os.open(path, flags, 0o640))

    def _remember(self, file_id: int, handle: _Handle) -> None:
        self._handles[file_id] = handle
        while len(self._handles) > self._open_files_max:
            self._handles.popitem(last=False)

    def _sync(self, handle: _Handle, name: str, call: Any) -> None:
        try:
            call(handle.descriptor)
        except OSError as error:
            raise self._failed(f"syncing {name}", error) from error

    def _translated(self, error: OSError, doing: str) -> StorageFull | StorageFailed:
        if error.errno in _NO_ROOM:
            return StorageFull(f"{doing}: {error.strerror}; free some space on the disk of {self._directory}")
        return self._failed(doing, error)

    def _failed(self, doing: str, error: OSError) -> StorageFailed:
        self._failure = (
            f"{doing} failed: {error.strerror}; nobody knows what the disk has kept, so the broker stops. "
            "Check the disk, then start the broker again"
        )
        return StorageFailed(self._failure)

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise StorageFailed(self._failure)


def _reserve(descriptor: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        os.ftruncate(descriptor, size)  # this file system cannot reserve: writes may find the disk full later


def _write_all(descriptor: int, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
    """Write the buffers one behind the other, whatever the system's bounds on one call are."""
    waiting = list(buffers)
    if len(waiting) > IOV_MAX:
        step = -(-len(waiting) // IOV_MAX)
        waiting = [b"".join(waiting[first : first + step]) for first in range(0, len(waiting), step)]
    while waiting:
        written = os.pwritev(descriptor, waiting, offset)
        offset += written
        done = 0
        while done < len(waiting) and written >= len(waiting[done]):
            written -= len(waiting[done])
            done += 1
        del waiting[:done]
        if waiting and written:
            waiting[0] = memoryview(waiting[0])[written:]


class LmdbTable:
    """Rows in LMDB. Every transaction is short, and every row is copied before it ends."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._failure: str | None = None
        try:
            self._environment = _open_environment(self._directory)
        except lmdb.Error as error:
            code = getattr(error, "code", 0)
            if code <= 0 or code == errno.EIO:  # below 0: LMDB found something wrong, not the system
                raise self._unreadable(error) from error
            raise OSError(code, os.strerror(code), str(directory)) from error
        if self._is_cut():
            self._environment.close()
            raise StorageDamaged(f"the table in {directory} cannot be read: its file is shorter than what it holds")

    def get(self, key: bytes) -> bytes | None:
        self._refuse_after_failure()
        try:
            with self._environment.begin(buffers=False) as transaction:
                return transaction.get(key)
        except lmdb.Error as error:
            raise self._unreadable(error) from error

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows in order; each thousand come from one moment, and no transaction stays open between them."""
        while True:
            rows = self._rows(start, stop)
            yield from rows
            if len(rows) < SCAN_ROWS:
                return
            start = rows[-1][0] + b"\x00"

    def _rows(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        self._refuse_after_failure()
        rows: list[tuple[bytes, bytes]] = []
        try:
            with self._environment.begin(buffers=False) as transaction, transaction.cursor() as cursor:
                if not cursor.set_range(start):
                    return rows
                for key, value in cursor.iternext(keys=True, values=True):
                    if key >= stop or len(rows) == SCAN_ROWS:
                        break
                    rows.append((key, value))
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        return rows

    def commit(self, puts: Mapping[bytes, bytes | None]) -> None:
        self._refuse_after_failure()
        try:
            with self._environment.begin(write=True) as transaction:
                for key in sorted(puts):
                    value = puts[key]
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, value)
        except lmdb.Error as error:
            raise self._translated(error, sum(len(value or b"") for value in puts.values())) from error

    def close(self) -> None:
        self._failure = self._failure or "the table is closed"
        self._environment.close()

    def _translated(self, error: lmdb.Error, size: int) -> StorageFull | StorageFailed:
        if isinstance(error, lmdb.MapFullError) or getattr(error, "code", 0) in _NO_ROOM or self._is_full(size):
            return StorageFull(f"saving: {error}; free some space on the disk of {self._directory}")
        self._failure = (
            f"saving failed: {error}; nobody knows what the disk has kept, so the broker stops. "
            "Check the disk, then start the broker again"
        )
        return StorageFailed(self._failure)

    def _unreadable(self, error: lmdb.Error) -> StorageDamaged:
        return StorageDamaged(f"the table in {self._directory} cannot be read: {error}")

    def _is_cut(self) -> bool:
        """Whether the file is too short for the pages in use. To read one that is missing would kill the process."""
        found = self._environment.stat()
        pages = 2 + found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
        return found["entries"] > 0 and (self._directory / "data.mdb").stat().st_size < pages * int(found["psize"])

    def _is_full(self, size: int) -> bool:
        """LMDB calls a write that the disk cut short for lack of room an input/output error. The next commit starts
        again from the last durable one and writes every page anew, so repeating it is safe."""
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize < max(FULL_BYTES, 2 * size)

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise StorageFailed(self._failure)


def _open_environment(directory: Path) -> lmdb.Environment:
    """The environment, with the largest map that the address space takes; a map takes no room until it is used."""
    directory.mkdir(parents=True, exist_ok=True)
    for map_bytes in MAP_BYTES[:-1]:
        with suppress(lmdb.MemoryError):
            return _open_with_map(directory, map_bytes)
    return _open_with_map(directory, MAP_BYTES[-1])


def _open_with_map(directory: Path, map_bytes: int) -> lmdb.Environment:
    # lib_version is given because the package carries two file formats and its default may move.
    return lmdb.open(str(directory), map_size=map_bytes, max_dbs=0, max_readers=512, readahead=False, lib_version=0)
