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
from lanner.ledger.damaged import DamagedSet, Judged, generations_of
from lanner.ledger.holdings import Holdings
from lanner.ledger.ports import Table
from lanner.ledger.records import Change, RecordHead, file_of, offset_of, show_position
from lanner.ledger.rows import (
    SetState,
    build_key,
    damaged_key,
    decode_bytes,
    decode_file,
    decode_set,
    encode_damaged,
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

    def __init__(self, table: Table, segment_bytes: int, next_generation: int, raw: Table | None = None) -> None:
        self.holdings = Holdings(segment_bytes)
        self.states: dict[int, SetState] = {}
        self.next_generation = next_generation
        self._table = table
        self._raw = table if raw is None else raw  # rows as they are stored, where only keys matter
        self._shelf = Shelf(table)
        self.builds = Builds(self._shelf, self.holdings)
        self._logs: dict[int, SetLog] = {}
        self._removed: dict[tuple[int, int], None] = {}  # (set, generation) whose rows are not all taken away
        self._rowless: set[int] = set()  # sets whose m row must go
        self.damaged: dict[int, DamagedSet] = {}
        self._damaged_news: set[int] = set()  # sets whose q row must be written, or go
        self._strays: list[bytes] = []  # keys whose rows must go

    def load(self, judged: Judged | None = None) -> None:
        """Everything that the table holds but chunks, which are fetched when they are asked for.

        Sets that were judged damaged have no log, but what they hold in files stays until they are removed.
        """
        if judged is not None:
            self.damaged, self._strays = judged.sets, judged.strays
            self._damaged_news.update(judged.sets)
            self._removed.update(dict.fromkeys(judged.gone))
        for key, row in self._table.scan(b"g", b"h"):
            self.holdings.load(decode_file(key, row))
        for key, row in self._table.scan(b"m", b"n"):
            if numbers_in_key(key)[0] not in self.damaged:
                self._add_log(decode_set(key, row))
        for key, row in self._table.scan(b"n", b"o"):
            if numbers_in_key(key)[0] not in self.damaged:
                self.builds.begin(decode_set(key, row)).changed = False
        for key, _ in self._table.scan(b"x", b"y"):
            set_id, generation = numbers_in_key(key)
            self._removed[set_id, generation] = None
        for key, row in self._table.scan(b"b", b"c"):
            set_id, generation, file_id = numbers_in_key(key)
            damaged = self.damaged.get(set_id)
            if self.log_of(set_id, generation) is not None or (damaged and damaged.generation == generation):
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

    def remove(self, set_id: int) -> list[int]:
        """Forget a set and free all it held; its generation, and those that were being built."""
        if set_id in self.damaged:
            return self._remove_damaged(set_id)
        removed = [self.log(set_id).state.generation]
        del self._logs[set_id], self.states[set_id]
        self._forget(set_id, removed[0])
        self._rowless.add(set_id)
        for build in self.builds.of_set(set_id):
            removed.append(build.state.generation)
            self.discard(set_id, build.state.generation)
        return removed

    def _remove_damaged(self, set_id: int) -> list[int]:
        generation = self.damaged.pop(set_id).generation
        self._damaged_news.add(set_id)
        self._rowless.add(set_id)
        for held in {generation, *generations_of(self._raw, set_id)} - {0}:
            self._forget(set_id, held)
            self._strays.append(build_key(set_id, held))
        return [generation]

    def close_damaged(self, damaged: DamagedSet) -> None:
        """The set has no log any more, and never will have again under this generation. What it holds stays."""
        set_id = damaged.set_id
        if self._logs.pop(set_id, None) is not None:
            self._shelf.forget(set_id, self.states.pop(set_id).generation)
            for build in self.builds.of_set(set_id):
                self.discard(set_id, build.state.generation)
        self.damaged[set_id] = damaged
        self._damaged_news.add(set_id)

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
        """Entries that are durable. Where the row that says what lies before them is damaged, the set is closed."""
        log = self.log_of(set_id, generation)
        if log is None:  # it was removed meanwhile
            return
        try:
            log.append(run)
        except StorageDamaged as error:
            if not set_id:
                raise
            state = self.states[set_id]
            self.close_damaged(DamagedSet(set_id, error, state.replica_id, state.generation))

    def replay(self, record: RecordHead) -> None:
        """One record of the journal, as a restart finds it."""
        for set_id, generation, change in record.changes:
            known = self.damaged.get(set_id) or self.states.get(set_id)
            if change == Change.REMOVED:
                if known is not None and known.generation == generation:
                    self.remove(set_id)
            elif generation < self.next_generation:
                continue  # the table knows of it
            elif change == Change.ADDED:
                if set_id in self.damaged:
                    self.remove(set_id)  # that it was is not said where its generation was not known
                self.add(set_id, generation)
            elif change == Change.BUILDING:
                if set_id in self.damaged:
                    self.next_generation = generation + 1
                else:
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
            or self._damaged_news
            or self._strays
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
        puts.update(dict.fromkeys(self._strays))
        self._strays.clear()
        for set_id in self._damaged_news:
            damaged = self.damaged.get(set_id)
            noted = None if damaged is None else encode_damaged(damaged.generation, damaged.replica_id)
            puts[damaged_key(set_id)] = noted
        self._damaged_news.clear()
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
        assert not self.damaged.keys() & self._logs.keys(), "a set that is closed has no log"
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
        for damaged in self.damaged.values():
            owner = (damaged.set_id, damaged.generation)
            counted |= {(*owner, file_id): held for file_id, held in self.holdings.shares(*owner).items()}
        self.holdings.check(counted)

    def _purge(self, puts: dict[bytes, bytes | None]) -> list[tuple[int, int]]:
        """Take away rows of removed sets; the sets of which nothing is left."""
        room = PURGED_ROWS_MAX
        finished = []
        for set_id, generation in self._removed:
            for start, stop in ranges_of_set(set_id, generation):
                for key, _ in self._raw.scan(start, stop):
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
