"""Holdings: which files there are, and how many of their bytes are still wanted, by whom.

Live bytes are kept per (set, file), so that removing a set frees all it held without looking at its entries. The
rules of what may go are here, too:

- A file in which nothing is live, and which replay will not need, is dropped by the next save; it is deleted only
  after that save is durable.
- While the files exceed one and a half times what is live and four segments, the sealed file with the most dead
  bytes is rewritten. A file's dead bytes include record headers and the unused end of a segment.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from lanner.errors import StorageDamaged
from lanner.ledger.records import FileKind
from lanner.ledger.rows import FileInfo, FileState, bytes_key, encode_bytes, encode_file, file_key

SPARE_SEGMENTS: Final = 4
LIVE_RATIO: Final = 1.5
DEAD_FRACTION_MIN: Final = 8  # less than one eighth dead is not worth copying
SMALL_FILES_MERGED: Final = 8
SMALL_FRACTION: Final = 8  # a kept file below one eighth of a segment is small


class Holdings:
    """Files and live bytes; one place adds, one place subtracts."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self.files: dict[int, FileInfo] = {}
        self.live_bytes = 0
        self._live: dict[tuple[int, int], dict[int, int]] = {}
        self._dirty_files: set[int] = set()
        self._dirty_shares: set[tuple[int, int, int]] = set()
        self._gone_files: list[int] = []

    @property
    def file_bytes(self) -> int:
        return sum(info.size for info in self.files.values())

    @property
    def has_dirty(self) -> bool:
        return bool(self._dirty_files or self._dirty_shares or self._gone_files)

    # -------------------------------------------------------------- files

    def load(self, info: FileInfo) -> None:
        """A file as the table has it; its live bytes come with the shares of the sets."""
        info.live = 0
        self.files[info.file_id] = info

    def add(self, info: FileInfo) -> None:
        self.files[info.file_id] = info
        self._dirty_files.add(info.file_id)

    def mark(self, file_id: int, state: FileState) -> None:
        info = self.files[file_id]
        if info.state is not state:
            info.state = state
            self._dirty_files.add(file_id)

    def resize(self, file_id: int, size: int) -> None:
        self.files[file_id].size = size
        self._dirty_files.add(file_id)

    def remove(self, file_id: int) -> None:
        """The file is deleted; its row goes with the next save."""
        self.files.pop(file_id, None)
        self._dirty_files.discard(file_id)
        self._gone_files.append(file_id)

    # -------------------------------------------------------------- live bytes

    def load_share(self, set_id: int, generation: int, file_id: int, live: int) -> None:
        self._live.setdefault((set_id, generation), {})[file_id] = live
        self.live_bytes += live
        if file_id in self.files:
            self.files[file_id].live += live

    def credit(self, set_id: int, generation: int, file_id: int, change: int) -> None:
        """The set holds this many bytes more, or fewer, in the file."""
        shares = self._live.setdefault((set_id, generation), {})
        share = shares.get(file_id, 0) + change
        assert share >= 0, f"set {set_id} holds {share} bytes in file {file_id}"
        if share:
            shares[file_id] = share
        else:
            del shares[file_id]
        self.files[file_id].live += change
        self.live_bytes += change
        self._dirty_files.add(file_id)
        self._dirty_shares.add((set_id, generation, file_id))

    def forget(self, set_id: int, generation: int) -> None:
        """The set is gone: all it held is dead. Its rows are taken away with the set's other rows."""
        for file_id, live in self._live.pop((set_id, generation), {}).items():
            self.files[file_id].live -= live
            self.live_bytes -= live
            self._dirty_files.add(file_id)
        self._dirty_shares = {share for share in self._dirty_shares if share[:2] != (set_id, generation)}

    def share(self, set_id: int, generation: int, file_id: int) -> int:
        return self._live.get((set_id, generation), {}).get(file_id, 0)

    def shares(self, set_id: int, generation: int) -> dict[int, int]:
        """What the set holds, by file."""
        return dict(self._live.get((set_id, generation), {}))

    def match(self, present: Mapping[int, int], position_file: int) -> tuple[int, ...]:
        """Take the sizes of the files that are there; those that nobody knows and replay will not need."""
        held = {file_id for shares in self._live.values() for file_id in shares}
        missing = sorted(held - present.keys())
        if missing:
            raise StorageDamaged(f"file {missing[0]} is missing, and replica sets have entries in it", file=missing[0])
        for info in list(self.files.values()):
            if info.file_id not in present:
                self.remove(info.file_id)
            elif info.size != present[info.file_id]:
                self.resize(info.file_id, present[info.file_id])
        unknown = []
        for file_id in sorted(present.keys() - self.files.keys()):
            if file_id >= position_file:
                self.add(FileInfo(file_id, FileKind.JOURNAL, FileState.OPEN, present[file_id]))
            else:
                unknown.append(file_id)
        return tuple(unknown)

    # -------------------------------------------------------------- what may go

    def dead_files(self, position_file: int) -> list[int]:
        """Files that nothing points to and that replay from the position will not read."""
        return [
            info.file_id
            for info in self.files.values()
            if info.live == 0
            and info.state is FileState.SEALED
            and (info.kind is FileKind.KEPT or info.file_id < position_file)
        ]

    def candidate(self, position_file: int, unmovable: Container[int] = ()) -> int | None:
        """The file to rewrite next, or None while there is room."""
        going = sum(info.size for info in self.files.values() if info.live == 0 and info.state is not FileState.OPEN)
        if self.file_bytes - going <= LIVE_RATIO * self.live_bytes + SPARE_SEGMENTS * self._segment_bytes:
            return None
        best: FileInfo | None = None
        for info in self.files.values():
            if info.state is not FileState.SEALED or info.live == 0 or info.file_id in unmovable:
                continue
            if info.kind is FileKind.JOURNAL and info.file_id >= position_file:
                continue
            if (info.size - info.live) * DEAD_FRACTION_MIN < info.size:
                continue
            if best is None or info.size - info.live > best.size - best.live:
                best = info
        return None if best is None else best.file_id

    def small_files(self) -> list[int]:
        """Small kept files to rewrite along with another, once they are many, so that files do not pile up."""
        bound = self._segment_bytes // SMALL_FRACTION
        small = [
            info.file_id
            for info in self.files.values()
            if info.kind is FileKind.KEPT and info.state is FileState.SEALED and info.live > 0 and info.size < bound
        ]
        return small if len(small) >= SMALL_FILES_MERGED else []

    def check(self, counted: Mapping[tuple[int, int, int], int]) -> None:
        """Assert that the shares are those that were counted, and that the totals are theirs."""
        shares = {(*owner, file_id): live for owner, held in self._live.items() for file_id, live in held.items()}
        assert shares == counted, f"shares {shares} differ from what was counted, {counted}"
        assert self.live_bytes == sum(counted.values())
        for file_id, info in self.files.items():
            live = sum(held for (_, _, share_file), held in counted.items() if share_file == file_id)
            assert info.live == live, f"file {file_id} holds {live} live bytes, not {info.live}"

    # -------------------------------------------------------------- saving

    def take_rows(self) -> dict[bytes, bytes | None]:
        """The rows that changed."""
        rows: dict[bytes, bytes | None] = {}
        for file_id in self._gone_files:
            rows[file_key(file_id)] = None
        for file_id in self._dirty_files:
            rows[file_key(file_id)] = encode_file(self.files[file_id])
        for set_id, generation, file_id in self._dirty_shares:
            live = self.share(set_id, generation, file_id)
            rows[bytes_key(set_id, generation, file_id)] = encode_bytes(live) if live else None
        self._gone_files.clear()
        self._dirty_files.clear()
        self._dirty_shares.clear()
        return rows
