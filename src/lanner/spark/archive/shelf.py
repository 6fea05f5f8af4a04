"""Where an archive's files lie: a folder of this machine, or any file system that Spark's Java knows.

Spark writes and reads the data files; what is done here is the little that must be exact: moving a finished file to its
name, and putting a manifest in place so that no reader ever sees half of one. How depends on the file system:

- this machine: the bytes are synced under another name, then linked to the right one, which fails where it is taken;
- one that renames in one step (HDFS and its like): written under another name, then renamed;
- any other (object stores): written under its own name, which appears there when it is complete. Should it not, the
  checksum inside tells, and the version before it counts.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path
from typing import Any, Final, Protocol

from pyspark.sql import SparkSession

from lanner.errors import ConflictError, NotSupported, StorageFailed, ValidationError

RENAMES_AT_ONCE: Final = frozenset({"file", "hdfs", "webhdfs", "viewfs", "abfs", "abfss", "ofs", "o3fs"})
_GLOB: Final = frozenset("*?[]{}\\")


class Shelf(Protocol):
    """A folder. Names are relative to it, with slashes between."""

    root: str  # as Spark takes it
    renames_at_once: bool

    def names(self, folder: str) -> list[str]:
        """What lies directly in a folder; nothing when there is no such folder."""
        ...

    def read(self, name: str) -> bytes: ...

    def put_new(self, name: str, data: bytes) -> None:
        """Put a whole file in place; ConflictError when the name is taken."""
        ...

    def move(self, source: str, target: str) -> None:
        """Give a file another name; what has that name is replaced."""
        ...

    def delete(self, name: str) -> None:
        """A file, or a folder with everything in it. One that is not there is no error."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        ...


def open_shelf(spark: SparkSession, path: str) -> Shelf:
    """The shelf at a path, as Spark understands the path: without a scheme it is on Spark's default file system."""
    if not path.strip() or _GLOB & set(path):
        raise ValidationError(
            f"{path!r} cannot be an archive's path: Spark takes the characters * ? [ ] {{ }} \\ for patterns",
            field="path",
        )
    java = getattr(spark, "_jvm", None)
    if java is None:
        raise NotSupported("an archive needs a session with its own Java: a Spark Connect session has none")
    given = java.org.apache.hadoop.fs.Path(path)
    files = given.getFileSystem(spark._jsc.hadoopConfiguration())
    place = files.makeQualified(given).toUri()
    if place.getScheme() == "file":
        return LocalShelf(Path(place.getPath()))
    return HadoopShelf(java, files, str(files.makeQualified(given)), place.getScheme() in RENAMES_AT_ONCE)


class LocalShelf:
    """A folder of this machine."""

    renames_at_once = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = f"file://{folder}"

    def names(self, folder: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.listdir(self._folder / folder)
        return []

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def put_new(self, name: str, data: bytes) -> None:
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with beside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(beside, target)
        except FileExistsError:
            raise _taken(name) from None
        finally:
            beside.unlink(missing_ok=True)
        _sync_folder(target.parent)

    def move(self, source: str, target: str) -> None:
        there = self._folder / target
        there.parent.mkdir(parents=True, exist_ok=True)
        with (self._folder / source).open("rb") as file:
            os.fsync(file.fileno())
        os.replace(self._folder / source, there)
        _sync_folder(there.parent)

    def delete(self, name: str) -> None:
        path = self._folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def size(self, name: str) -> int | None:
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / name).stat().st_size
        return None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HadoopShelf:
    """A folder of a file system that Spark's Java knows."""

    def __init__(self, java: Any, files: Any, root: str, renames_at_once: bool) -> None:
        self._java = java
        self._files = files
        self.root = root.rstrip("/")
        self.renames_at_once = renames_at_once

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(f"{self.root}/{name}")

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        if not self._files.exists(path):
            return []
        return [one.getPath().getName() for one in self._files.listStatus(path)]

    def read(self, name: str) -> bytes:
        stream = self._files.open(self._path(name))
        try:
            return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def put_new(self, name: str, data: bytes) -> None:
        target = self._path(name)
        if self._files.exists(target):
            raise _taken(name)
        if not self.renames_at_once:
            self._write(target, data)
            return
        folder, _, last = name.rpartition("/")
        beside = self._path(f"{folder}/.{last}.{secrets.token_hex(4)}")
        self._write(beside, data)
        if not self._files.rename(beside, target):
            self._files.delete(beside, False)
            raise _taken(name)

    def _write(self, path: Any, data: bytes) -> None:
        stream = self._files.create(path, False)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def move(self, source: str, target: str) -> None:
        there = self._path(target)
        self._files.mkdirs(there.getParent())
        self._files.delete(there, False)  # a rename does not replace; no manifest names a file that is moved to yet
        if not self._files.rename(self._path(source), there):
            raise StorageFailed(f"{source} could not be renamed to {target} below {self.root}")

    def delete(self, name: str) -> None:
        self._files.delete(self._path(name), True)

    def size(self, name: str) -> int | None:
        path = self._path(name)
        return int(self._files.getFileStatus(path).getLen()) if self._files.exists(path) else None


def _taken(name: str) -> ConflictError:
    return ConflictError(
        f"{name} is there already: another run works on the same archive. Let one run at a time do that, and try again"
    )
