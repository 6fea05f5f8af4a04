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

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from lanner.ledger.chunk import Part
from lanner.ledger.ports import Files
from lanner.ledger.records import (
    ENTRY,
    HEADER_BYTES,
    FileKind,
    Location,
    RecordReader,
    encode_file_header,
    encode_head,
    head_bytes,
    position_at,
    read_entries,
)
from lanner.ledger.replay import read_header
from lanner.ledger.setlog import SetLog

ROUND_ENTRIES_MAX: Final = 1_000
ROUND_BYTES_MAX: Final = 4 << 20

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
        self.size = 0
        self.copied_entries = 0
        self.copied_bytes = 0
        self._waiting = list(sources)
        self._salt = salt
        self._reader: RecordReader | None = None
        self._offset = HEADER_BYTES
        # Live bytes count each entry's header; a round adds one record header, and may hold few entries.
        self._reserve = HEADER_BYTES + live_bytes
        self._end = HEADER_BYTES
        self._found: list[_Found] = []
        self._chosen: list[_Found] = []
        self._moved: list[tuple[_Found, Location]] = []

    @property
    def done(self) -> bool:
        """Everything was read, and nothing waits to be chosen or written."""
        return not (self._waiting or self._reader or self._found or self._chosen)

    # -------------------------------------------------------------- thread

    def read(self, files: Files) -> None:
        """Gather the headers of the next entries, as many as one turn in the loop can judge."""
        total = 0
        while len(self._found) < ROUND_ENTRIES_MAX and total < ROUND_BYTES_MAX:
            if self._reader is None:
                if not self._waiting:
                    return
                file_id, size = self._waiting.pop(0)
                header = read_header(files, file_id)
                self._reader = None if header is None else RecordReader(files, file_id, size, header.salt, 1 << 16)
                self._offset = HEADER_BYTES
                continue
            record = self._reader.head_at(self._offset)
            if record is None:
                self._reader = None
                continue
            offset = record.payload_offset
            for entry in record.entries:
                location = Location(self._reader.file_id, offset, entry.length, entry.crc)
                self._found.append(
                    _Found(entry.set_id, entry.generation, entry.index, entry.term, entry.kind, location)
                )
                offset += entry.length
            total += offset - self._offset
            self._offset = record.end_offset

    def write(self, files: Files, transform: Transform) -> None:
        """Copy what was chosen. After StorageFull it may be repeated, or the rewrite given up."""
        if not self._chosen:
            return
        payloads = read_entries(files, [found.location for found in self._chosen])
        for place, found in enumerate(self._chosen):
            if found.part is not None:
                payloads[place] = transform(found.set_id, payloads[place], found.part.kept)
        crcs = [crc32c(payload) for payload in payloads]
        headers = [
            ENTRY.pack(found.set_id, found.index, found.term, found.generation, len(payload), crc, found.kind)
            for found, payload, crc in zip(self._chosen, payloads, crcs, strict=True)
        ]
        payload_bytes = sum(map(len, payloads))
        end = self._end + head_bytes(0, 0, len(headers)) + payload_bytes
        if not self.created:
            size = max(self._reserve, end)
            files.create(self.target, size, encode_file_header(FileKind.KEPT, self._salt, self.target, size))
            self.created = True
        position = position_at(self.target, self._end)
        head = encode_head(FileKind.KEPT, self._salt, position, position, payload_bytes, (), (), headers)
        files.write(self.target, self._end, [head, *payloads])
        files.sync(self.target)
        offset = self._end + len(head)
        for found, payload, crc in zip(self._chosen, payloads, crcs, strict=True):
            self._moved.append((found, Location(self.target, offset, len(payload), crc)))
            offset += len(payload)
        self._end = self.size = end
        self.copied_entries += len(payloads)
        self.copied_bytes += payload_bytes
        self._chosen = []

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
                log.move(found.index, found.location[:2], location)
        self._moved = []
