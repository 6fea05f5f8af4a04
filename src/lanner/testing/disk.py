"""A disk that can be trusted to betray: it loses, tears or keeps what was not synced, and everything is repeatable.

`SimDisk` holds one `files` and one `table`, which keep the contract of the ledger's ports. What was synced survives
`crash(rng)`; of what was not, each write is kept, lost, or torn: any subset of its sectors, each whole. A
file whose name was not yet durable may vanish; one that was being removed may be back. The table's commits are atomic
and durable once they return.

Faults are set as attributes and take effect at the next call: `sync_failures`, `capacity_bytes`, `write_room_bytes`,
`table_full`, `delay_ms`, `flip_bit`; `crash_in(n)` pulls the plug in the middle of the n-th operation from now, which
raises `PowerLost` until `crash` is called. `sync_skipped` plants the oldest bug of all: a sync that does nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Final

from lanner.errors import StorageFailed, StorageFull
from lanner.ledger.ports import FileMissing

SECTOR_BYTES: Final = 512


class PowerLost(Exception):
    """The plug was pulled in the middle of this operation; nothing works until `crash` was called."""


@dataclass(slots=True)
class DiskCounts:
    """What happened so far."""

    operations: int = 0
    syncs: int = 0
    commits: int = 0
    crashes: int = 0
    writes_kept: int = 0
    writes_lost: int = 0
    writes_torn: int = 0
    files_vanished: int = 0
    files_returned: int = 0


@dataclass(slots=True)
class _Content:
    """Bytes that grow when they are written; what was reserved but never written reads as zeros."""

    data: bytearray = field(default_factory=bytearray)
    size: int = 0

    def copy(self) -> _Content:
        return _Content(bytearray(self.data), self.size)

    def write(self, offset: int, data: bytes) -> None:
        if len(self.data) < offset:
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self.size = max(self.size, offset + len(data))

    def resize(self, size: int) -> None:
        del self.data[size:]
        self.size = size

    def read(self, offset: int, length: int) -> bytes:
        length = max(0, min(length, self.size - offset))
        return bytes(self.data[offset : offset + length]).ljust(length, b"\x00")


@dataclass(slots=True)
class _Resize:
    size: int


@dataclass(slots=True)
class _Write:
    offset: int
    data: bytes


@dataclass(slots=True)
class _File:
    """A file as its readers see it, as the platter has it, and what lies between."""

    seen: _Content = field(default_factory=_Content)
    durable: _Content = field(default_factory=_Content)
    pending: list[_Write | _Resize] = field(default_factory=list)
    named: bool = False


class SimDisk:
    """One disk. Give its `files` and `table` to a ledger; keep the disk to break it."""

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.write_room_bytes: int | None = None  # no new file, and writes fail in the middle, beyond so many bytes
        self.table_full = False
        self.sync_failures = 0  # so many of the next syncs fail
        self.sync_skipped = False
        self.delay_ms: Callable[[str, int], float] | None = None  # operation, bytes → how long it takes
        self.busy_ms = 0.0
        self.counts = DiskCounts()
        self.files = SimFiles(self)
        self.table = SimTable(self)
        self._content: dict[int, _File] = {}
        self._removed: dict[int, _File] = {}
        self._rows: dict[bytes, bytes] = {}
        self._rows_pending: Mapping[bytes, bytes | None] | None = None
        self._keys: list[bytes] | None = None
        self._crash_in: int | None = None
        self._dark = False
        self._failure: str | None = None

    # ------------------------------------------------------------------ faults

    def crash_in(self, operations: int | None) -> None:
        """Pull the plug in the middle of that operation, counted from 1; None: not at all."""
        self._crash_in = operations

    @property
    def is_off(self) -> bool:
        """It takes nothing more until `crash`."""
        return self._dark or self._failure is not None

    def crash(self, rng: Random) -> None:
        """Lose the power, and come back with what the platter has."""
        self.counts.crashes += 1
        for file_id, file in sorted(self._removed.items()):
            if file_id not in self._content and rng.random() < 0.5:
                self._content[file_id] = file
                self.counts.files_returned += 1
        for file_id, file in sorted(self._content.items()):
            if not file.named and rng.random() < 0.5:
                del self._content[file_id]
                self.counts.files_vanished += 1
                continue
            self._settle(file, rng)
            file.named = True
        if self._rows_pending is not None and rng.random() < 0.5:
            self._put_rows(self._rows_pending)
        self._rows_pending = None
        self._removed.clear()
        self.kill()

    def kill(self) -> None:
        """End the process, not the power: what was written stays written, synced or not."""
        self._dark = False
        self._failure = None
        self._crash_in = None

    def flip_bit(self, file_id: int, offset: int, bit: int = 0) -> None:
        """Damage one bit of a file, as it is now and as the platter has it."""
        file = self._content[file_id]
        for content in (file.seen, file.durable):
            if offset < content.size:
                content.write(offset, bytes([content.read(offset, 1)[0] ^ (1 << bit)]))

    def row_keys(self) -> list[bytes]:
        """The keys of the rows that are durable, in order."""
        return sorted(self._rows)

    def flip_row_bit(self, key: bytes, bit: int) -> bytes:
        """Damage one bit of a row, counted through its key and then its stored value; the key that it has now."""
        row = bytearray(key + self._rows.pop(key))
        row[bit >> 3] ^= 1 << (bit & 7)
        flipped = bytes(row[: len(key)])
        self._rows[flipped] = bytes(row[len(key) :])
        self._keys = None
        return flipped

    def row_bits(self, key: bytes) -> int:
        """How many bits a row has, key and stored value together."""
        return 8 * (len(key) + len(self._rows[key]))

    def snapshot(self) -> SimDisk:
        """Another disk with the same durable bytes, rows and names; nothing is pending on it."""
        other = SimDisk(capacity_bytes=self.capacity_bytes)
        for file_id, file in self._content.items():
            if file.named:
                other._content[file_id] = _File(file.durable.copy(), file.durable.copy(), [], True)
        other._rows = dict(self._rows)
        return other

    def _settle(self, file: _File, rng: Random) -> None:
        """Decide what became of each write that was not synced."""
        for pending in file.pending:
            if isinstance(pending, _Resize):
                if rng.random() < 0.5:
                    file.durable.resize(pending.size)
                continue
            drawn = rng.randrange(3)
            if drawn == 0:
                self.counts.writes_lost += 1
            elif drawn == 1:
                self.counts.writes_kept += 1
                file.durable.write(pending.offset, pending.data)
            else:
                self.counts.writes_torn += 1
                _tear(file.durable, pending, rng)
        file.pending.clear()
        file.seen = file.durable.copy()

    # ------------------------------------------------------------------ what the ports share

    def _begin(self, operation: str, size: int = 0) -> bool:
        """Count an operation; True when the power goes while it runs, and the caller must end with `_lose_power`."""
        if self._dark:
            raise PowerLost("the power is off")
        if self._failure is not None:
            raise StorageFailed(self._failure)
        self.counts.operations += 1
        if self.delay_ms is not None:
            self.busy_ms += self.delay_ms(operation, size)
        if self._crash_in is None:
            return False
        self._crash_in -= 1
        return self._crash_in <= 0

    def _lose_power(self, operation: str) -> PowerLost:
        self._dark = True
        return PowerLost(f"the power went during {operation}")

    def _fail_sync(self, file: _File) -> StorageFailed:
        """A failed sync: the pages count as clean from now on, and are not on the platter."""
        self.sync_failures -= 1
        file.pending.clear()
        self._failure = "a sync failed; nobody knows what the disk has kept"
        return StorageFailed(self._failure)

    @property
    def _used_bytes(self) -> int:
        return sum(file.seen.size for file in self._content.values())

    def _put_rows(self, puts: Mapping[bytes, bytes | None]) -> None:
        for key, value in puts.items():
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = bytes(value)
        self._keys = None


def _tear(content: _Content, write: _Write, rng: Random) -> None:
    """Some sectors of a write reach the platter."""
    start, end = write.offset, write.offset + len(write.data)
    cuts = [start, *range((start // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES), end]
    for low, high in pairwise(cuts):
        if rng.random() < 0.5:
            content.write(low, write.data[low - start : high - start])


class SimFiles:
    """The files of a SimDisk."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def list(self) -> list[tuple[int, int]]:
        self._disk._begin("list")
        return sorted((file_id, file.seen.size) for file_id, file in self._disk._content.items())

    def create(self, file_id: int, size: int, header: bytes) -> None:
        disk = self._disk
        power_goes = disk._begin("create", len(header))
        size = max(size, len(header))
        existing = disk._content.pop(file_id, None)
        room = disk.write_room_bytes
        if disk._used_bytes + size > disk.capacity_bytes or (room is not None and size > room):
            raise StorageFull(f"creating file {file_id}: no room for {size} bytes")
        disk._removed.pop(file_id, None)
        file = disk._content[file_id] = _File(named=existing is not None and existing.named)
        for pending in (_Resize(size), _Write(0, bytes(header))):
            file.pending.append(pending)
            _apply(file.seen, pending)
        if power_goes:
            raise disk._lose_power("create")
        self._sync(file)
        file.named = True

    def write(self, file_id: int, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        disk = self._disk
        data = b"".join(buffers)
        power_goes = disk._begin("write", len(data))
        file = self._file(file_id)
        room = disk.write_room_bytes
        full = room is not None and len(data) > room
        if room is not None:
            disk.write_room_bytes = room - min(room, len(data))
        if full:
            assert room is not None
            data = data[: max(0, (offset + room) // SECTOR_BYTES * SECTOR_BYTES - offset)]  # room ends with a sector
        pending = _Write(offset, data)
        file.pending.append(pending)
        _apply(file.seen, pending)
        if power_goes:
            raise disk._lose_power("write")
        if full:
            raise StorageFull(f"writing to file {file_id}: no room")

    def sync(self, file_id: int) -> None:
        disk = self._disk
        power_goes = disk._begin("sync")
        file = self._file(file_id)
        if power_goes:
            raise disk._lose_power("sync")
        if disk.sync_skipped:
            return
        self._sync(file)

    def _sync(self, file: _File) -> None:
        disk = self._disk
        if disk.sync_failures > 0:
            raise disk._fail_sync(file)
        disk.counts.syncs += 1
        for pending in file.pending:
            _apply(file.durable, pending)
        file.pending.clear()

    def read(self, file_id: int, offset: int, length: int) -> bytes:
        if self._disk._begin("read", length):
            raise self._disk._lose_power("read")
        return self._file(file_id).seen.read(offset, length)

    def next_data(self, file_id: int, offset: int) -> int | None:
        return offset if offset < len(self._file(file_id).seen.data) else None

    def truncate(self, file_id: int, size: int) -> None:
        power_goes = self._disk._begin("truncate")
        file = self._file(file_id)
        pending = _Resize(size)
        file.pending.append(pending)
        _apply(file.seen, pending)
        if power_goes:
            raise self._disk._lose_power("truncate")

    def remove(self, file_id: int) -> None:
        disk = self._disk
        power_goes = disk._begin("remove")
        file = disk._content.pop(file_id, None)
        if power_goes:
            if file is not None and file.named:
                disk._removed[file_id] = file
            raise disk._lose_power("remove")

    def free_bytes(self) -> tuple[int, int]:
        return max(0, self._disk.capacity_bytes - self._disk._used_bytes), self._disk.capacity_bytes

    def close(self) -> None:
        """Nothing to let go of: the disk outlives its users."""

    def _file(self, file_id: int) -> _File:
        file = self._disk._content.get(file_id)
        if file is None:
            raise FileMissing(f"file {file_id} does not exist")
        return file


def _apply(content: _Content, pending: _Write | _Resize) -> None:
    if isinstance(pending, _Resize):
        content.resize(pending.size)
    else:
        content.write(pending.offset, pending.data)


class SimTable:
    """The table of a SimDisk."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def get(self, key: bytes) -> bytes | None:
        if self._disk._begin("get"):
            raise self._disk._lose_power("get")
        return self._disk._rows.get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        disk = self._disk
        if disk._begin("scan"):
            raise disk._lose_power("scan")
        if disk._keys is None:
            disk._keys = sorted(disk._rows)
        keys = disk._keys[bisect_left(disk._keys, start) : bisect_left(disk._keys, stop)]
        return iter([(key, disk._rows[key]) for key in keys])

    def commit(self, puts: Mapping[bytes, bytes | None]) -> None:
        disk = self._disk
        size = 0 if disk.delay_ms is None else sum(len(value or b"") for value in puts.values())
        if disk._begin("commit", size):
            disk._rows_pending = dict(puts)  # either all of it is there afterwards, or nothing
            raise disk._lose_power("commit")
        if disk.table_full:
            raise StorageFull("saving: no room")
        disk.counts.commits += 1
        disk._put_rows(puts)

    def close(self) -> None:
        """Nothing to let go of: the disk outlives its users."""


__all__ = ["SECTOR_BYTES", "DiskCounts", "PowerLost", "SimDisk", "SimFiles", "SimTable"]
