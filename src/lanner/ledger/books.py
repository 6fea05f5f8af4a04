"""The books: what the ledger knows of all sets together, as of the last record that counts.

Records change the books in one place, whether they come from a commit that was just synced or from replay; so what a
restart rebuilds is what was there. The books also say which rows a save must write, and take away the rows of sets
that were removed, a bounded number in each save.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lanner.errors import StorageDamaged
from lanner.ledger.building import Builds
from lanner.ledger.chunk import Chunk, Run
from lanner.ledger.holdings import Holdings
from lanner.ledger.ports import Table
from lanner.ledger.records import Change, RecordHead, file_of, offset_of, show_position
from lanner.ledger.rows import (
    SetState,
    decode_bytes,
    decode_file,
    decode_set,
    encode_set,
    numbers_in_key,
    ranges_of_set,
    removed_key,
    set_key,
)
from lanner.ledger.setlog import SetLog
from lanner.ledger.shelf import Shelf

PURGED_ROWS_MAX: Final = 512


class Books:
    """All sets, their logs, and the files these lie in."""

    def __init__(self, table: Table, segment_bytes: int, next_generation: int) -> None:
        self.holdings = Holdings(segment_bytes)
        self.states: dict[int, SetState] = {}
        self.next_generation = next_generation
        self._table = table
        self._shelf = Shelf(table)
        self.builds = Builds(self._shelf, self.holdings)
        self._logs: dict[int, SetLog] = {}
        self._removed: dict[tuple[int, int], None] = {}  # (set, generation) whose rows are not all taken away
        self._rowless: set[int] = set()  # sets whose m row must go

    def load(self) -> None:
        """Everything that the table holds but chunks, which are fetched when they are asked for."""
        for key, row in self._table.scan(b"g", b"h"):
            self.holdings.load(decode_file(key, row))
        for key, row in self._table.scan(b"m", b"n"):
            self._add_log(decode_set(key, row))
        for key, row in self._table.scan(b"n", b"o"):
            self.builds.begin(decode_set(key, row)).changed = False
        for key, _ in self._table.scan(b"x", b"y"):
            set_id, generation = numbers_in_key(key)
            self._removed[set_id, generation] = None
        for key, row in self._table.scan(b"b", b"c"):
            set_id, generation, file_id = numbers_in_key(key)
            if self.log_of(set_id, generation) is not None:
                self.holdings.load_share(set_id, generation, file_id, decode_bytes(key, row))

    # -------------------------------------------------------------- sets

    def log(self, set_id: int) -> SetLog:
        log = self._logs.get(set_id)
        if log is None:
            raise KeyError(f"replica set {set_id} is not in the ledger")
        return log

    def log_of(self, set_id: int, generation: int) -> SetLog | None:
        """The log of a set, if it is still of this generation or is being built under it."""
        log = self._logs.get(set_id)
        if log is not None and log.state.generation == generation:
            return log
        return self.builds.get(set_id, generation)

    def add(self, set_id: int, generation: int, replica_id: int = 1) -> None:
        if set_id in self._logs:
            raise ValueError(f"replica set {set_id} exists already")
        self._add_log(SetState(set_id, generation, replica_id=replica_id)).changed = True
        self._rowless.discard(set_id)
        self.next_generation = max(self.next_generation, generation + 1)

    def remove(self, set_id: int) -> None:
        generation = self.log(set_id).state.generation
        del self._logs[set_id], self.states[set_id]
        self._forget(set_id, generation)
        self._rowless.add(set_id)
        for build in self.builds.of_set(set_id):
            self.discard(set_id, build.state.generation)

    def _forget(self, set_id: int, generation: int) -> None:
        """All that this generation held is free, and its rows go by and by."""
        self._shelf.forget(set_id, generation)
        self.holdings.forget(set_id, generation)
        self._removed[set_id, generation] = None

    # -------------------------------------------------------------- generations that are being built

    def build(self, set_id: int, generation: int, index: int = 0, term: int = 0) -> None:
        self.builds.begin(SetState(set_id, generation)).stand_at(index, term)
        self.next_generation = max(self.next_generation, generation + 1)

    def discard(self, set_id: int, generation: int) -> None:
        """Give a build up."""
        if self.builds.end(set_id, generation) is not None:
            self._forget(set_id, generation)

    def discard_builds(self) -> None:
        """After a start: what was being built is half of something, and nobody will bring the other half."""
        for build in self.builds:
            self.discard(build.state.set_id, build.state.generation)

    def flip(self, set_id: int, generation: int) -> None:
        """The build is the set's log from now on; what the set had is gone. Nothing, if it is that already."""
        build = self.builds.end(set_id, generation)
        old = self._logs.get(set_id)
        if build is None or old is None:
            return
        state = build.flipped(old.state)
        self._forget(set_id, old.state.generation)
        self._add_log(state).changed = True

    def _add_log(self, state: SetState) -> SetLog:
        self.states[state.set_id] = state
        self._logs[state.set_id] = log = SetLog(state, self._shelf, self.holdings)
        return log

    # -------------------------------------------------------------- records

    def vote(self, set_id: int, generation: int, term: int, vote: int) -> None:
        build = self.builds.get(set_id, generation)
        if build is not None:
            build.stand_at(vote, term)
            return
        log = self.log_of(set_id, generation)
        if log is not None:
            if term == 0:  # nobody votes in it: this says which replica the set was added as
                log.state.replica_id = vote
            else:
                log.state.term, log.state.vote = term, vote
            log.changed = True

    def append(self, set_id: int, generation: int, run: Run) -> None:
        log = self.log_of(set_id, generation)
        if log is not None:  # else it was removed meanwhile
            log.append(run)

    def replay(self, record: RecordHead) -> None:
        """One record of the journal, as a restart finds it."""
        for set_id, generation, change in record.changes:
            if change == Change.REMOVED:
                state = self.states.get(set_id)
                if state is not None and state.generation == generation:
                    self.remove(set_id)
            elif generation < self.next_generation:
                continue  # the table knows of it
            elif change == Change.ADDED:
                self.add(set_id, generation)
            elif change == Change.BUILDING:
                self.build(set_id, generation)
        for set_id, term, vote, generation in record.votes:
            self.vote(set_id, generation, term, vote)
        for set_id, generation, run in record.runs():
            log = self.log_of(set_id, generation)
            if log is None:
                continue
            if not log.fits(run.first_index):
                raise StorageDamaged(
                    f"the record at {show_position(record.position)} holds entry {run.first_index} of replica set "
                    f"{set_id}, whose log holds {log.state.compacted_index + 1} to {log.state.last_index}",
                    file=file_of(record.position),
                    offset=offset_of(record.position),
                )
            log.append(run)
        for set_id, generation, change in record.changes:
            if change == Change.FLIPPED:  # what else the record says of the set was said of its old generation
                self.flip(set_id, generation)

    # -------------------------------------------------------------- saving

    @property
    def has_changes(self) -> bool:
        """Whether a save would write anything."""
        return bool(
            self._shelf.has_dirty
            or self.holdings.has_dirty
            or self._removed
            or self._rowless
            or self.builds.has_changes
            or any(log.changed for log in self._logs.values())
        )

    def take_rows(self) -> tuple[dict[bytes, bytes | None], list[Chunk], list[tuple[int, int]]]:
        """The rows that changed; with them the chunks to settle and the removed sets to forget once they are saved.

        The rows of the chunks follow: see `encode_some`.
        """
        puts: dict[bytes, bytes | None] = {}
        chunks = self._shelf.take_dirty(puts)
        purged = self._purge(puts)
        puts.update(self.holdings.take_rows())
        for set_id in self._rowless:
            puts[set_key(set_id)] = None
        self._rowless.clear()
        self.builds.take_rows(puts)
        for set_id, log in self._logs.items():
            if log.changed:
                log.changed = False
                puts[set_key(set_id)] = encode_set(log.state, log.state.saved_index)
        return puts, chunks, purged

    def encode_some(self, count: int) -> bool:
        """Add the rows of so many chunks to what was taken; whether some are left."""
        return self._shelf.encode_some(count)

    def settle(self, chunks: list[Chunk], purged: Iterable[tuple[int, int]]) -> None:
        """What was taken is in the table."""
        self._shelf.settle(chunks)
        for removed in purged:
            self._removed.pop(removed, None)

    def check(self) -> None:
        """Assert that live bytes are what a count of every entry gives (tests and simulators; it reads every row)."""
        counted: dict[tuple[int, int, int], int] = {}
        for log in (*self._logs.values(), *self.builds):
            state = log.state
            numbers = self._shelf.numbers(state.set_id, state.generation)
            for file_id, held in (share for number in numbers for share in log.shares(number)):
                key = (state.set_id, state.generation, file_id)
                counted[key] = counted.get(key, 0) + held
        for log in self._logs.values():
            state = log.state
            assert state.compacted_index <= state.saved_index <= state.last_index, state
            for index in range(state.compacted_index + 1, state.last_index + 1):
                assert log.find(index) is not None, f"entry {index} of set {state.set_id} is missing"
        self.holdings.check(counted)

    def _purge(self, puts: dict[bytes, bytes | None]) -> list[tuple[int, int]]:
        """Take away rows of removed sets; the sets of which nothing is left."""
        room = PURGED_ROWS_MAX
        finished = []
        for set_id, generation in self._removed:
            for start, stop in ranges_of_set(set_id, generation):
                for key, _ in self._table.scan(start, stop):
                    if room == 0:
                        break
                    puts[key] = None
                    room -= 1
            if room > 0:
                puts[removed_key(set_id, generation)] = None
                finished.append((set_id, generation))
            else:
                puts[removed_key(set_id, generation)] = b"\x01"
        return finished
