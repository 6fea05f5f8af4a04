"""One replica set's log: which entries it has, where they lie, and which of them are still wanted.

An entry is *live* while Raft may ask for it (index > compacted) or the machine wants it. Of an entry that the machine
wants only in part, the rest is dead as soon as Raft has let go. What an entry holds of a file is its payload and its
header; every change of that is told to the holdings at once, so live bytes are never counted by a scan.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lanner.ledger.chunk import CHUNK_BITS, CHUNK_ENTRIES, SLOT_MASK, Chunk, Part, Run
from lanner.ledger.holdings import Holdings
from lanner.ledger.records import ENTRY_HEADER_BYTES, Location
from lanner.ledger.rows import SetState
from lanner.ledger.shelf import Shelf

_WANTED: Final = b"\x01" * CHUNK_ENTRIES


class Stored(NamedTuple):
    """One entry as the ledger knows it."""

    index: int  # type: ignore[assignment]
    term: int
    kind: int
    location: Location


class Wanted(NamedTuple):
    """An entry that the machine wants: whole, or this part of it."""

    stored: Stored
    part: Part | None


class SetLog:
    """The log of one generation of one set. `changed` says that its m row is out of date."""

    __slots__ = ("_holdings", "_shelf", "changed", "state")

    def __init__(self, state: SetState, shelf: Shelf, holdings: Holdings) -> None:
        self.state = state
        self.changed = False
        self._shelf = shelf
        self._holdings = holdings

    # -------------------------------------------------------------- looking up

    def find(self, index: int) -> tuple[Chunk, int] | None:
        """The chunk and slot of an entry that is there."""
        state = self.state
        chunk = self._shelf.find((state.set_id, state.generation, index >> CHUNK_BITS))
        slot = index & SLOT_MASK
        return (chunk, slot) if chunk is not None and chunk.holds(slot) else None

    def stored(self, index: int) -> Stored:
        chunk, slot = self._found(index)
        return Stored(index, chunk.terms[slot], chunk.kinds[slot], _location(chunk, slot))

    def locate(self, index: int) -> Location:
        return _location(*self._found(index))

    def term(self, index: int) -> int:
        state = self.state
        if index == state.last_index:
            return state.last_term
        if index == state.compacted_index:
            return state.compacted_term
        chunk, slot = self._found(index)
        return chunk.terms[slot]

    # -------------------------------------------------------------- growing

    def append(self, run: Run) -> None:
        """Take a run of entries; what the log had from its first index on is gone."""
        if run.first_index <= self.state.last_index:
            self._discard_from(run.first_index)
        self._place(run)

    def fits(self, first_index: int) -> bool:
        """Whether a run may begin here."""
        return self.state.compacted_index < first_index <= self.state.last_index + 1

    def _place(self, run: Run) -> None:
        state = self.state
        first, count = run.first_index, len(run.offsets)
        start = 0
        while start < count:
            index = first + start
            stop = min(count, start + CHUNK_ENTRIES - (index & SLOT_MASK))
            chunk = self._shelf.open((state.set_id, state.generation, index >> CHUNK_BITS))
            chunk.extend(run if start == 0 and stop == count else run.part(start, stop))
            start = stop
        self._credit(run.file, sum(run.lengths) + count * ENTRY_HEADER_BYTES)
        state.last_index = first + count - 1
        state.last_term = run.terms[-1]
        self.changed = True

    def _discard_from(self, first: int) -> None:
        state = self.state
        for number in range(first >> CHUNK_BITS, (state.last_index >> CHUNK_BITS) + 1):
            chunk = self._shelf.open((state.set_id, state.generation, number))
            start = max(first - (number << CHUNK_BITS), 0)
            for slot in range(start, len(chunk)):
                if chunk.files[slot]:
                    self._credit(chunk.files[slot], -self._held(chunk, slot))
            chunk.cut(start)

    # -------------------------------------------------------------- what is wanted

    def keep(self, first: int, last: int | None = None) -> None:
        """The machine wants this entry, or a run of them, whole. None may be missing."""
        last = first if last is None else last
        while first <= last:
            chunk, start = self._found(first)
            stop = min(start + last - first + 1, len(chunk))
            if chunk.files[start:stop].count(0):
                raise KeyError((self.state.set_id, first))
            if chunk.wanted.find(0, start, stop) >= 0:
                self._shelf.touch(chunk)
                chunk.wanted[start:stop] = _WANTED[: stop - start]
            first += stop - start

    def keep_part(self, index: int, part: Part) -> None:
        """The machine wants only this of the entry; one that is gone was released later, in what a restart repeats."""
        found = self.find(index)
        if found is None:
            return
        chunk, slot = found
        self._shelf.touch(chunk)
        before = self._held(chunk, slot)
        chunk.wanted[slot] = 1
        chunk.parts[slot] = part
        self._credit(chunk.files[slot], self._held(chunk, slot) - before)

    def release(self, index: int) -> None:
        """The machine no longer wants the entry; an entry that is gone already stays gone."""
        found = self.find(index)
        if found is None:
            return
        chunk, slot = found
        self._shelf.touch(chunk)
        if index <= self.state.compacted_index:
            self._credit(chunk.files[slot], -self._held(chunk, slot))
            chunk.clear(slot)
        else:
            chunk.wanted[slot] = 0
            chunk.parts.pop(slot, None)

    def compact(self, index: int) -> None:
        """Raft no longer needs the entries up to this one."""
        state = self.state
        first = state.compacted_index + 1
        if index < first:
            return
        term = self.term(index)
        for number in range(first >> CHUNK_BITS, (index >> CHUNK_BITS) + 1):
            chunk = self._shelf.find((state.set_id, state.generation, number))
            if chunk is not None:
                base = number << CHUNK_BITS
                self._compact_chunk(chunk, max(first - base, 0), min(index - base + 1, len(chunk)))
        state.compacted_index = index
        state.compacted_term = term
        self.changed = True

    def _compact_chunk(self, chunk: Chunk, start: int, stop: int) -> None:
        if start >= stop:
            return
        if chunk.wanted.find(0, start, stop) < 0 and not chunk.parts:
            return  # all of it is wanted, whole
        self._shelf.touch(chunk)
        files = chunk.files[start:stop]
        if chunk.wanted.find(1, start, stop) < 0 and files.count(files[0]) == stop - start and files[0]:
            self._credit(files[0], -sum(chunk.lengths[start:stop]) - (stop - start) * ENTRY_HEADER_BYTES)
            chunk.clear_range(start, stop)
            return
        for slot in range(start, stop):
            if not chunk.files[slot]:
                continue
            part = chunk.parts.get(slot)
            if not chunk.wanted[slot]:
                self._credit(chunk.files[slot], -chunk.lengths[slot] - ENTRY_HEADER_BYTES)
                chunk.clear(slot)
            elif part is not None:
                self._credit(chunk.files[slot], min(part.size, chunk.lengths[slot]) - chunk.lengths[slot])

    def size(self, first: int, last: int) -> int:
        """Bytes of payload in [first, last], as far as they are there."""
        total = 0
        for number in range(first >> CHUNK_BITS, (last >> CHUNK_BITS) + 1):
            chunk = self._shelf.find((self.state.set_id, self.state.generation, number))
            if chunk is not None:
                base = number << CHUNK_BITS
                total += sum(chunk.lengths[max(first - base, 0) : last - base + 1])
        return total

    def wanted(self, first: int, last: int, chunks_max: int) -> tuple[list[Wanted], int]:
        """What the machine wants of [first, last], looking at some chunks only; and where to go on."""
        state = self.state
        found: list[Wanted] = []
        number = first >> CHUNK_BITS
        for _ in range(chunks_max):
            chunk = self._shelf.next_chunk((state.set_id, state.generation, number))
            if chunk is None or (base := chunk.key[2] << CHUNK_BITS) > last:
                return found, last + 1
            for slot in chunk.slots():
                if chunk.wanted[slot] and first <= base + slot <= last:
                    stored = Stored(base + slot, chunk.terms[slot], chunk.kinds[slot], _location(chunk, slot))
                    found.append(Wanted(stored, chunk.parts.get(slot)))
            number = chunk.key[2] + 1
        return found, min(number << CHUNK_BITS, last + 1)

    def held(self, first: int, chunks_max: int) -> tuple[list[Stored], int]:
        """The entries that are there from `first` on, of some chunks only; and where to go on, 0 at the end."""
        state = self.state
        found: list[Stored] = []
        number = first >> CHUNK_BITS
        for _ in range(chunks_max):
            chunk = self._shelf.next_chunk((state.set_id, state.generation, number))
            if chunk is None:
                return found, 0
            base = chunk.key[2] << CHUNK_BITS
            for slot in chunk.slots():
                found.append(Stored(base + slot, chunk.terms[slot], chunk.kinds[slot], _location(chunk, slot)))
            number = chunk.key[2] + 1
        return found, number << CHUNK_BITS

    def shares(self, number: int) -> list[tuple[int, int]]:
        """(file, bytes held) of every entry in a chunk."""
        chunk = self._shelf.find((self.state.set_id, self.state.generation, number))
        return [] if chunk is None else [(chunk.files[slot], self._held(chunk, slot)) for slot in chunk.slots()]

    # -------------------------------------------------------------- moving to a kept file

    def wanted_part(self, index: int, chunk: Chunk, slot: int) -> Part | None:
        """What of an entry must be copied: None for all of it."""
        return chunk.parts.get(slot) if index <= self.state.compacted_index else None

    def move(self, index: int, source: Location, target: Location, part: Part | None) -> None:
        """The entry, or this part of it, was copied; nothing happens when it is no longer where it was copied from."""
        found = self.find(index)
        if found is None or (found[0].files[found[1]], found[0].offsets[found[1]]) != (source.file, source.offset):
            return
        chunk, slot = found
        self._shelf.touch(chunk)
        self._credit(chunk.files[slot], -self._held(chunk, slot))
        chunk.move(slot, *target)
        if part is not None and chunk.parts.get(slot) is part:
            chunk.parts[slot] = part._replace(size=target.length)  # no longer an estimate
        self._credit(target.file, self._held(chunk, slot))

    # -------------------------------------------------------------- inside

    def _found(self, index: int) -> tuple[Chunk, int]:
        found = self.find(index)
        if found is None:
            raise KeyError((self.state.set_id, index))
        return found

    def _held(self, chunk: Chunk, slot: int) -> int:
        """What the entry counts for: whole while Raft may ask for it, else what the machine wants of it."""
        length = chunk.lengths[slot]
        part = chunk.parts.get(slot)
        if part is not None and (chunk.key[2] << CHUNK_BITS) + slot <= self.state.compacted_index:
            length = min(part.size, length)
        return length + ENTRY_HEADER_BYTES

    def _credit(self, file_id: int, change: int) -> None:
        if change:
            self._holdings.credit(self.state.set_id, self.state.generation, file_id, change)


def _location(chunk: Chunk, slot: int) -> Location:
    return Location(chunk.files[slot], chunk.offsets[slot], chunk.lengths[slot], chunk.crcs[slot])
