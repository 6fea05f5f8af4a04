"""Rewriting: copying what is live out of files that are mostly dead, so that they can be deleted.

A rewrite takes turns between a thread, which reads and writes files, and the loop, which owns the index:

    rewrite = ledger.plan_rewrite(file)
    while not rewrite.done:
        rewrite.read(files)                 thread: the headers of some entries
        rewrite.choose(ledger)              loop:   which of them are still wanted
        rewrite.write(files, transform)     thread: copy those, verified, and sync
    ledger.rewritten(rewrite)               loop

Each round is bounded, and what a round copied counts from the next turn in the loop on: it is durable by then, so a
save may point to it at any time. A stop anywhere is safe: the table calls the target *building* before it exists, and
no longer building in the same commit that first points to it; the source goes only after a save in which nothing
points to it. A rewrite may be given up after any round (`rewritten` settles what was copied).

Entries of which only a part is wanted are handed to `transform(set_id, payload, kept)`, which returns that part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from lanner.errors import StorageDamaged
from lanner.ledger.chunk import Part
from lanner.ledger.ports import Files
from lanner.ledger.records import (
    ENTRY,
    HEADER_BYTES,
    RECORD_END,
    FileKind,
    Location,
    RecordReader,
    encode_file_header,
    encode_head,
    head_bytes,
    position_at,
    read_entries,
    read_entry,
    record_bytes,
)
from lanner.ledger.replay import read_header
from lanner.ledger.setlog import SetLog

ROUND_ENTRIES_MAX: Final = 1_000
ROUND_BYTES_MAX: Final = 4 << 20

_HEAD_WINDOW_BYTES: Final = 1 << 16

Transform = Callable[[int, bytes, bytes], bytes]


class Index(Protocol):
    """What a rewrite asks of the ledger."""

    def log_of(self, set_id: int, generation: int) -> SetLog | None:
        """The log, if it is still of this generation."""

    def target_used(self, file_id: int, size: int) -> None:
        """Entries are about to point to the target, which is this large now."""


class _Found(NamedTuple):
    """An entry that stands in the source."""

    set_id: int
    generation: int
    index: int  # type: ignore[assignment]
    term: int
    kind: int
    location: Location
    part: Part | None = None


class Rewrite:
    """One rewrite. Which method runs where is said in the module; they are never run at the same time."""

    def __init__(self, sources: list[tuple[int, int]], target: int, salt: int, live_bytes: int) -> None:
        self.sources = tuple(file_id for file_id, _ in sources)
        self.target = target
        self.created = False
        self.size = HEADER_BYTES
        self.damaged: list[tuple[int, int, StorageDamaged]] = []  # (set, index) of what was left where it is
        self.copied_entries = 0
        self.copied_bytes = 0
        self._waiting = list(sources)
        self._salt = salt
        self._reader: RecordReader | None = None
        self._offset = HEADER_BYTES
        self._reserved = HEADER_BYTES + live_bytes
        self._found: list[_Found] = []
        self._chosen: list[_Found] = []
        self._moved: list[tuple[_Found, Location]] = []

    @property
    def done(self) -> bool:
        """Everything was read, and nothing waits to be chosen or written."""
        return not (self._waiting or self._reader or self._found or self._chosen)

    # -------------------------------------------------------------- thread

    def read(self, files: Files) -> int:
        """Gather the headers of the next entries, as many as one turn in the loop can judge; the bytes looked at."""
        total = 0
        while len(self._found) < ROUND_ENTRIES_MAX and total < ROUND_BYTES_MAX:
            reader = self._reader or self._next_source(files)
            if reader is None:
                break
            record = reader.head_at(self._offset)
            if record is None:  # the end of what was written
                self._reader = None
                continue
            for set_id, generation, run in record.runs():
                for place, index in enumerate(range(run.first_index, run.first_index + len(run.offsets))):
                    location = Location(run.file, run.offsets[place], run.lengths[place], run.crcs[place])
                    self._found.append(_Found(set_id, generation, index, run.terms[place], run.kinds[place], location))
            total += record.payload_offset - self._offset
            self._offset = record.end_offset
        return total

    def _next_source(self, files: Files) -> RecordReader | None:
        while self._waiting:
            file_id, size = self._waiting.pop(0)
            header = read_header(files, file_id)
            if header is not None:
                self._offset = HEADER_BYTES
                self._reader = RecordReader(files, file_id, size, header.salt, _HEAD_WINDOW_BYTES)
                return self._reader
        return None

    def write(self, files: Files, transform: Transform) -> int:
        """Copy what was chosen; the bytes written. After StorageFull it may be repeated, or the rewrite given up."""
        written = 0
        while self._chosen:
            part = self._chosen[: _bounded(self._chosen)]
            written += self._copy(files, transform, part)
            del self._chosen[: len(part)]
        if self.created and not (self._waiting or self._reader) and self.size < self._reserved:
            files.truncate(self.target, self.size)
            files.sync(self.target)
            self._reserved = self.size
        return written

    def _copy(self, files: Files, transform: Transform, chosen: Sequence[_Found]) -> int:
        """One record in the target."""
        entries: list[tuple[_Found, bytes, int]] = []
        for found, payload in zip(chosen, self._payloads(files, chosen), strict=True):
            if payload is not None:
                if found.part is not None:
                    payload = transform(found.set_id, payload, found.part.kept)
                entries.append((found, payload, crc32c(payload)))
        if not entries:
            return 0
        headers = [
            ENTRY.pack(found.set_id, found.index, found.term, found.generation, len(payload), crc, found.kind)
            for found, payload, crc in entries
        ]
        start, payload_bytes = self.size, sum(len(payload) for _, payload, _ in entries)
        end = start + record_bytes(head_bytes(0, 0, len(headers)), payload_bytes)
        if not self.created:
            self._reserved = max(self._reserved, end)
            header = encode_file_header(FileKind.KEPT, self._salt, self.target, self._reserved)
            files.create(self.target, self._reserved, header)
            self.created = True
        position = position_at(self.target, start)
        head = encode_head(FileKind.KEPT, self._salt, position, position, payload_bytes, (), (), headers)
        files.write(self.target, start, [head, *(payload for _, payload, _ in entries), RECORD_END])
        files.sync(self.target)
        offset = start + len(head)
        for found, payload, crc in entries:
            self._moved.append((found, Location(self.target, offset, len(payload), crc)))
            offset += len(payload)
        self.size = end
        self._reserved = max(self._reserved, end)
        self.copied_entries += len(entries)
        self.copied_bytes += payload_bytes
        return end - start

    def _payloads(self, files: Files, chosen: Sequence[_Found]) -> Sequence[bytes | None]:
        """The payloads, verified; None for those that are damaged, which stay where they are."""
        try:
            return read_entries(files, [found.location for found in chosen])
        except StorageDamaged:
            return [self._payload_unless_damaged(files, found) for found in chosen]

    def _payload_unless_damaged(self, files: Files, found: _Found) -> bytes | None:
        try:
            return read_entry(files, found.location)
        except StorageDamaged as error:
            self.damaged.append((found.set_id, found.index, error))
            return None

    # -------------------------------------------------------------- loop

    def choose(self, ledger: Index) -> None:
        """Judge what was read: copied is what an index still points to. What the last round copied counts from here."""
        self.settle(ledger)
        for found in self._found:
            log = ledger.log_of(found.set_id, found.generation)
            place = None if log is None else log.find(found.index)
            if log is None or place is None:
                continue
            chunk, slot = place
            if chunk.files[slot] == found.location.file and chunk.offsets[slot] == found.location.offset:
                self._chosen.append(found._replace(part=log.wanted_part(found.index, chunk, slot)))
        self._found = []

    def settle(self, ledger: Index) -> None:
        """Point the index to what was copied."""
        if not self._moved:
            return
        ledger.target_used(self.target, self.size)
        for found, location in self._moved:
            log = ledger.log_of(found.set_id, found.generation)
            if log is not None:
                log.move(found.index, found.location, location, found.part)
        self._moved = []


def _bounded(chosen: Sequence[_Found]) -> int:
    """How many of the chosen one record takes: as many as fit the bound, at least one."""
    total = 0
    for place, found in enumerate(chosen):
        total += found.location.length
        if place and total > ROUND_BYTES_MAX:
            return place
    return len(chosen)
