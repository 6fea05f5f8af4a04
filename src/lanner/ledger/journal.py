"""The journal's writing end: which segment the next record goes to, and the record's bytes.

A commit is one record, one write, one sync. Segments are never reused; ids only grow, so positions do. The next
segment can be prepared ahead of time, so that the commit that needs it does not wait for the disk to make room. A
prepared segment that the journal has passed (a larger one was needed at once) is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from crc32c import crc32c

from lanner.ledger.building import split_runs
from lanner.ledger.chunk import Run
from lanner.ledger.ports import Files
from lanner.ledger.records import (
    ENTRY,
    HEADER_BYTES,
    RECORD_END,
    VOTE,
    FileKind,
    Location,
    encode_file_header,
    encode_head,
    head_bytes,
    offset_of,
    position_at,
    record_bytes,
)
from lanner.ledger.rows import SetState
from lanner.ledger.setlog import Stored

COMMIT_BYTES_MAX: Final = 1 << 30


class EntryIn(NamedTuple):
    """An entry to be stored."""

    index: int  # type: ignore[assignment]
    term: int
    kind: int
    payload: bytes


class CommitItem(NamedTuple):
    """What one set wants durable: a new (term, vote), entries with neighbouring indexes, or both."""

    set_id: int
    hard_state: tuple[int, int] | None
    entries: Sequence[tuple[int, int, int, bytes]]  # as EntryIn, or any tuple of its shape


class Preparation(NamedTuple):
    """A segment to be created ahead of time."""

    file: int
    size: int
    header: bytes
    salt: int


@dataclass(slots=True)
class Segment:
    """A segment that can be written, and how far it is filled."""

    file_id: int
    size: int
    salt: int
    offset: int = HEADER_BYTES


@dataclass(slots=True)
class Commit:
    """One record on its way to the journal. `perform` may be repeated after StorageFull."""

    create: tuple[int, int, bytes] | None
    file: int
    offset: int
    buffers: list[bytes | memoryview]
    size: int
    end: int
    runs: list[tuple[int, int, Run]] = field(default_factory=list)  # set, generation, entries
    votes: list[tuple[int, int, int, int]] = field(default_factory=list)  # set, generation, term, vote
    built: list[tuple[int, int, Run]] = field(default_factory=list)  # as runs, of generations that are being built
    flips: Sequence[tuple[int, int]] = ()  # set, generation

    def staged(self, set_id: int, index: int) -> Stored | None:
        """The entry, if this commit carries it. KeyError if this commit discards it."""
        for staged_set, _, run in reversed(self.runs):
            if staged_set == set_id and index >= run.first_index:
                place = index - run.first_index
                if place >= len(run.offsets):
                    raise KeyError((set_id, index))
                location = Location(run.file, run.offsets[place], run.lengths[place], run.crcs[place])
                return Stored(index, run.terms[place], run.kinds[place], location)
        return None


def perform(commit: Commit, files: Files) -> None:
    """Make a commit durable. What the writer thread runs; after StorageFull the same commit may be performed again."""
    if commit.create is not None:
        files.create(*commit.create)
        commit.create = None
    files.write(commit.file, commit.offset, commit.buffers)
    files.sync(commit.file)


def perform_preparation(preparation: Preparation, files: Files) -> None:
    """Create a segment ahead of time, in any thread; then tell the ledger `prepared`."""
    files.create(preparation.file, preparation.size, preparation.header)


class Journal:
    """Positions and segments. One commit is in flight at a time."""

    def __init__(self, random_bytes: Callable[[int], bytes], segment_bytes: int, position: int, next_file: int) -> None:
        self.position = position
        self.next_file = next_file
        self.segment: Segment | None = None
        self.spare: Segment | None = None
        self.in_flight: Commit | None = None
        self._preparing: Preparation | None = None
        self._random_bytes = random_bytes
        self._segment_bytes = segment_bytes

    def new_file(self) -> int:
        """An id that no file has or ever had."""
        file_id = self.next_file
        self.next_file += 1
        return file_id

    def new_salt(self) -> int:
        return int.from_bytes(self._random_bytes(4), "little")

    def begin(
        self,
        items: Sequence[CommitItem],
        states: Mapping[int, SetState],
        changes: Sequence[bytes],
        marks: Sequence[bytes] = (),
        built: Sequence[tuple[SetState, Sequence[tuple[int, int, int, bytes]]]] = (),
    ) -> Commit:
        """One record of everything given. Payloads are handed on as they are, not copied. `marks` are votes of
        generations that are being built, `built` their entries."""
        if self.in_flight is not None:
            raise RuntimeError("a commit is in flight: one at a time")
        votes = list(marks)
        staged_votes: list[tuple[int, int, int, int]] = []
        columns = _Columns()
        for set_id, hard_state, entries in items:
            state = states[set_id]
            if hard_state is not None:
                votes.append(VOTE.pack(set_id, *hard_state, state.generation))
                staged_votes.append((set_id, state.generation, *hard_state))
            if entries:
                columns.add(state, entries)
        own = columns.run_count
        for state, entries in built:
            columns.add_built(state, entries)
        payload_bytes = sum(columns.lengths)
        head_size = head_bytes(len(changes), len(votes), len(columns.headers))
        size = record_bytes(head_size, payload_bytes)
        segment, create = self._place(size)
        position = position_at(segment.file_id, segment.offset)
        head = encode_head(
            FileKind.JOURNAL, segment.salt, position, self.position, payload_bytes, changes, votes, columns.headers
        )
        self.segment = segment
        runs = columns.runs(segment.file_id, segment.offset + head_size)
        self.in_flight = Commit(
            create,
            segment.file_id,
            segment.offset,
            [head, *columns.payloads, RECORD_END],
            size,
            position + size,
            runs[:own],
            staged_votes,
            runs[own:],
        )
        return self.in_flight

    def synced(self, commit: Commit) -> None:
        if commit is not self.in_flight:
            raise RuntimeError("this commit is not the one in flight")
        assert self.segment is not None and self.segment.file_id == commit.file
        self.in_flight = None
        self.segment.offset = offset_of(commit.end)
        self.position = commit.end

    def _place(self, size: int) -> tuple[Segment, tuple[int, int, bytes] | None]:
        """The segment that a record of this size goes to, and how to create it when it is not there yet."""
        if size > COMMIT_BYTES_MAX:
            raise ValueError(f"a commit of {size} bytes is too large: commit at most {COMMIT_BYTES_MAX} at a time")
        if self.segment is not None and self.segment.offset + size <= self.segment.size:
            return self.segment, None
        spare, self.spare = self.spare, None  # taken, or passed over for good
        if spare is not None and spare.offset + size <= spare.size:
            return spare, None
        made = self._new_segment(max(self._segment_bytes, HEADER_BYTES + size))
        return Segment(made.file, made.size, made.salt), (made.file, made.size, made.header)

    def _new_segment(self, size: int) -> Preparation:
        file_id, salt = self.new_file(), self.new_salt()
        return Preparation(file_id, size, encode_file_header(FileKind.JOURNAL, salt, file_id, size), salt)

    def prepare(self) -> Preparation | None:
        """A segment to create ahead of time; None when one is ready or on its way."""
        if self.spare is not None or self._preparing is not None:
            return None
        self._preparing = self._new_segment(self._segment_bytes)
        return self._preparing

    def preparation_ended(self, preparation: Preparation, *, created: bool) -> bool:
        """Whether the segment will be used."""
        assert preparation is self._preparing
        self._preparing = None
        if not created or (self.segment is not None and preparation.file < self.segment.file_id):
            return False
        self.spare = Segment(preparation.file, preparation.size, preparation.salt)
        return True


class _Columns:
    """The entries of a commit, taken apart."""

    __slots__ = ("_starts", "crcs", "headers", "kinds", "lengths", "payloads", "terms")

    def __init__(self) -> None:
        self.headers: list[bytes] = []
        self.payloads: list[bytes | memoryview] = []
        self.lengths: list[int] = []
        self.crcs: list[int] = []
        self.terms: list[int] = []
        self.kinds: list[int] = []
        self._starts: list[tuple[int, SetState, int]] = []  # place, set, first index

    def add(self, state: SetState, entries: Sequence[tuple[int, int, int, bytes]]) -> None:
        """Take the entries of one set."""
        first = entries[0][0]
        if not state.compacted_index < first <= self._last_index(state) + 1:
            raise ValueError(
                f"set {state.set_id} holds entries {state.compacted_index + 1} to {state.last_index}: "
                f"an entry at {first} does not fit"
            )
        self._take(state, entries)

    @property
    def run_count(self) -> int:
        return len(self._starts)

    def add_built(self, state: SetState, entries: Sequence[tuple[int, int, int, bytes]]) -> None:
        """Take entries of a generation that is being built, which may have gaps."""
        last = state.last_index
        for part in split_runs(entries):
            if not last < part[0][0] <= part[-1][0] <= state.compacted_index:
                raise ValueError(
                    f"set {state.set_id} is being built up to {state.compacted_index} and has {last}: "
                    f"entries {part[0][0]} to {part[-1][0]} do not fit"
                )
            last = part[-1][0]
            self._take(state, part)

    def _take(self, state: SetState, entries: Sequence[tuple[int, int, int, bytes]]) -> None:
        """The hot loop: everything in it is paid per entry."""
        first = expected = entries[0][0]
        self._starts.append((len(self.headers), state, first))
        pack, set_id, generation = ENTRY.pack, state.set_id, state.generation
        headers, payloads, lengths = self.headers, self.payloads, self.lengths
        crcs, terms, kinds = self.crcs, self.terms, self.kinds
        for index, term, kind, payload in entries:
            if index != expected:
                raise ValueError(f"the entries of set {set_id} have a gap at index {expected}")
            expected += 1
            length = len(payload)
            crc = crc32c(payload)
            headers.append(pack(set_id, index, term, generation, length, crc, kind))
            payloads.append(payload)
            lengths.append(length)
            crcs.append(crc)
            terms.append(term)
            kinds.append(kind)

    def runs(self, file_id: int, offset: int) -> list[tuple[int, int, Run]]:
        offsets = list(accumulate(self.lengths, initial=offset))
        stops = [start for start, _, _ in self._starts[1:]] + [len(self.lengths)]
        return [
            (
                state.set_id,
                state.generation,
                Run(
                    first,
                    file_id,
                    offsets[start:stop],
                    self.lengths[start:stop],
                    self.crcs[start:stop],
                    self.terms[start:stop],
                    self.kinds[start:stop],
                ),
            )
            for (start, state, first), stop in zip(self._starts, stops, strict=False)
        ]

    def _last_index(self, state: SetState) -> int:
        """Where the set's log ends, with what this commit carries for it already."""
        for place in range(len(self._starts) - 1, -1, -1):
            start, staged, first = self._starts[place]
            if staged is state:
                stop = self._starts[place + 1][0] if place + 1 < len(self._starts) else len(self.headers)
                return first + stop - start - 1
        return state.last_index
