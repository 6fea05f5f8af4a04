"""The ports in plain memory: for tests, and for brokers that may forget everything when they stop.

Nothing here can fail and everything is durable at once, as long as the process lives. Rows and bytes are copied in
and out, as a disk would.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence

from lanner.ledger.ports import FileMissing


class MemoryFiles:
    """Files as byte arrays that grow when they are written; what was reserved but never written reads as zeros."""

    def __init__(self, total_bytes: int = 1 << 40) -> None:
        self._total_bytes = total_bytes
        self._contents: dict[int, bytearray] = {}
        self._sizes: dict[int, int] = {}

    def list(self) -> list[tuple[int, int]]:
        return sorted(self._sizes.items())

    def create(self, file_id: int, size: int, header: bytes) -> None:
        self._contents[file_id] = bytearray(header)
        self._sizes[file_id] = max(size, len(header))

    def write(self, file_id: int, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        content = self._content(file_id)
        data = b"".join(buffers)
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data
        self._sizes[file_id] = max(self._sizes[file_id], len(content))

    def sync(self, file_id: int) -> None:
        self._content(file_id)

    def read(self, file_id: int, offset: int, length: int) -> bytes:
        content = self._content(file_id)
        length = max(0, min(length, self._sizes[file_id] - offset))
        return bytes(content[offset : offset + length]).ljust(length, b"\x00")

    def next_data(self, file_id: int, offset: int) -> int | None:
        return offset if offset < len(self._content(file_id)) else None

    def truncate(self, file_id: int, size: int) -> None:
        del self._content(file_id)[size:]
        self._sizes[file_id] = size

    def remove(self, file_id: int) -> None:
        self._contents.pop(file_id, None)
        self._sizes.pop(file_id, None)

    def free_bytes(self) -> tuple[int, int]:
        return max(0, self._total_bytes - sum(self._sizes.values())), self._total_bytes

    def close(self) -> None:
        self._contents.clear()
        self._sizes.clear()

    def _content(self, file_id: int) -> bytearray:
        content = self._contents.get(file_id)
        if content is None:
            raise FileMissing(f"file {file_id} does not exist")
        return content


class MemoryTable:
    """Rows in a dict, with their keys in order beside it."""

    def __init__(self, rows: Mapping[bytes, bytes] | None = None) -> None:
        self._rows: dict[bytes, bytes] = dict(rows or {})
        self._keys: list[bytes] = sorted(self._rows)

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]
        return iter([(key, self._rows[key]) for key in keys])

    def commit(self, puts: Mapping[bytes, bytes | None]) -> None:
        for key, value in puts.items():
            if value is not None:
                if key not in self._rows:
                    insort(self._keys, key)
                self._rows[key] = bytes(value)
            elif self._rows.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def close(self) -> None:
        self._rows.clear()
        self._keys.clear()
