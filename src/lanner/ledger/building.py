"""Building: a set's state as a peer has it, put together beside the set's own under a fresh generation.

A snapshot takes many commits and saves to arrive, and until its last byte is here the set goes on as it was. So what
arrives is stored under a generation that is nobody's yet: recorded first, its entries in ordinary commits, its rows in
ordinary saves. One record then flips the set to it, and the old generation goes the way of a removed set. A stop before
that record discards the build, a stop after it keeps the whole: there is nothing in between.

Generations are never given twice. So nothing that an abandoned build left behind can pass for part of a later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lanner.ledger.chunk import Run
from lanner.ledger.holdings import Holdings
from lanner.ledger.rows import SetState, build_key, encode_set
from lanner.ledger.setlog import SetLog
from lanner.ledger.shelf import Shelf


class BuildItem(NamedTuple):
    """Entries of a generation that is being built: ascending indexes, gaps allowed, none behind the snapshot's."""

    set_id: int
    generation: int
    entries: Sequence[tuple[int, int, int, bytes]]  # as EntryIn


class BuildLog(SetLog):
    """The log of a generation that is being built.

    Its state says what the set's will be, but for `last_index`, which is the last entry that has arrived. All entries
    lie at or before the snapshot's index, and all are wanted.
    """

    __slots__ = ()

    def __init__(self, state: SetState, shelf: Shelf, holdings: Holdings) -> None:
        super().__init__(state, shelf, holdings)
        self.changed = True

    def stand_at(self, index: int, term: int) -> None:
        """The snapshot ends with this entry."""
        state = self.state
        state.compacted_index = state.saved_index = index
        state.compacted_term = term
        self.changed = True

    def fits(self, first_index: int) -> bool:
        return self.state.last_index < first_index <= self.state.compacted_index

    def append(self, run: Run) -> None:
        self._place(run)
        for index in range(run.first_index, run.first_index + len(run.offsets)):
            chunk, slot = self._found(index)
            chunk.wanted[slot] = 1

    def flipped(self, before: SetState) -> SetState:
        """The state of a set that takes this for its log; term, vote and id are the replica's, whatever its log."""
        state = self.state
        return SetState(
            state.set_id,
            state.generation,
            before.term,
            before.vote,
            state.compacted_index,
            state.compacted_term,
            state.saved_index,
            state.compacted_index,
            state.compacted_term,
            before.replica_id,
        )


class Builds:
    """Every generation that is being built, and the rows that say so."""

    def __init__(self, shelf: Shelf, holdings: Holdings) -> None:
        self._shelf = shelf
        self._holdings = holdings
        self._logs: dict[tuple[int, int], BuildLog] = {}
        self._ended: set[tuple[int, int]] = set()  # their rows must go

    def __iter__(self) -> Iterator[BuildLog]:
        return iter(list(self._logs.values()))

    def get(self, set_id: int, generation: int) -> BuildLog | None:
        return self._logs.get((set_id, generation))

    def begin(self, state: SetState) -> BuildLog:
        log = self._logs[state.set_id, state.generation] = BuildLog(state, self._shelf, self._holdings)
        return log

    def end(self, set_id: int, generation: int) -> BuildLog | None:
        """No longer being built: flipped to, or given up."""
        log = self._logs.pop((set_id, generation), None)
        if log is not None:
            self._ended.add((set_id, generation))
        return log

    def of_set(self, set_id: int) -> list[BuildLog]:
        return [log for log in self._logs.values() if log.state.set_id == set_id]

    @property
    def has_changes(self) -> bool:
        return bool(self._ended) or any(log.changed for log in self._logs.values())

    def take_rows(self, puts: dict[bytes, bytes | None]) -> None:
        for set_id, generation in self._ended:
            puts[build_key(set_id, generation)] = None
        self._ended.clear()
        for (set_id, generation), log in self._logs.items():
            if log.changed:
                log.changed = False
                puts[build_key(set_id, generation)] = encode_set(log.state, log.state.saved_index)


def split_runs(entries: Sequence[tuple[int, int, int, bytes]]) -> Iterator[Sequence[tuple[int, int, int, bytes]]]:
    """The entries in parts with neighbouring indexes."""
    start = 0
    for place in range(1, len(entries) + 1):
        if place == len(entries) or entries[place][0] != entries[place - 1][0] + 1:
            yield entries[start:place]
            start = place
