"""The two ports that the ledger acts through: numbered files, and an ordered table.

The ledger decides which bytes go where; an adapter of these ports puts them there. Both sides of each call are small
enough to be kept by a disk, by plain memory and by a simulated disk that loses what was not synced. The rules that
every adapter keeps (one contract suite runs over all of them):

- `create` returns when the file, its header and its name in the directory are durable; `sync` when every write before
  it is. A write that was not synced may be lost, kept, or kept in part.
- A full disk is `StorageFull` and changes nothing that was durable: the same call may be made again. A failed sync is
  `StorageFailed` and final: nobody knows what the disk kept, so the adapter refuses everything from then on.
- `Table.commit` is atomic and durable when it returns. Rows come back as copies, never as views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol


class FileMissing(FileNotFoundError):
    """A file was removed between looking a place up and reading it; look the place up again."""


class Files(Protocol):
    """Numbered files, written once from front to back."""

    def list(self) -> list[tuple[int, int]]:
        """Every file as (file id, size), in order of ids."""

    def create(self, file_id: int, size: int, header: bytes) -> None:
        """Reserve the size, write the header, sync the file and its directory. Repeating it after an error is safe."""

    def write(self, file_id: int, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        """Write the buffers one behind the other from the offset on."""

    def sync(self, file_id: int) -> None:
        """Make everything written so far durable."""

    def read(self, file_id: int, offset: int, length: int) -> bytes:
        """At most length bytes, fewer at the end of the file; callable from any thread. FileMissing when it is gone."""

    def next_data(self, file_id: int, offset: int) -> int | None:
        """Where a byte other than zero may stand, at or behind the offset (perhaps too early); None: nowhere."""

    def truncate(self, file_id: int, size: int) -> None:
        """Cut the file; durable with its next sync."""

    def remove(self, file_id: int) -> None:
        """Take the file's name away, durably; a file that is gone already is no error. Those who read it may go on."""

    def free_bytes(self) -> tuple[int, int]:
        """(free, total) bytes of the disk."""

    def close(self) -> None:
        """Let go of everything; nothing may be called afterwards."""


class Table(Protocol):
    """An ordered map of bytes to bytes."""

    def get(self, key: bytes) -> bytes | None:
        """The row, or None."""

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows with start <= key < stop, in order."""

    def commit(self, puts: Mapping[bytes, bytes | None]) -> None:
        """Write and delete (None) rows in one durable transaction."""

    def close(self) -> None:
        """Let go of everything; nothing may be called afterwards."""
