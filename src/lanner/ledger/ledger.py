"""The ledger: how the logs of all replica sets of one broker lie in one journal and one table.

It decides and never acts. A commit goes

    commit = ledger.begin_commit(items)     in the loop: positions, checksums, one record
    perform(commit, files)                  in the writer thread: one write, one sync
    ledger.commit_synced(commit)            in the loop: the entries count from now on

and a save

    save = ledger.begin_save(); save.add_set(...)    in the loop, in one turn
    table.commit(save.puts)                          in a thread
    ledger.saved(save)                               in the loop

One commit and one save are in flight at a time, each independent of the other: the index changes only when a commit
is synced, so a save never sees what a crash could still take. The journal is the truth and the table a view of it
that is some records behind; `recover` replays those.

The ledger knows no machine, no clock and no thread. It is told what is wanted (`keep`, `keep_part`, `release`,
`compact`) and says what may go (`rewrite_candidate`, `droppable`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lanner import limits
from lanner.errors import StorageDamaged
from lanner.ledger.chunk import Part, Run
from lanner.ledger.holdings import Holdings
from lanner.ledger.journal import Commit, CommitItem, Journal, Preparation, Segment
from lanner.ledger.ports import Files, Table
from lanner.ledger.records import (
    CHANGE,
    HEADER_BYTES,
    Change,
    FileHeader,
    FileKind,
    Location,
    RecordHead,
    file_of,
    offset_of,
    position_at,
    show_position,
)
from lanner.ledger.replay import Replayed, replay
from lanner.ledger.rewriting import Rewrite
from lanner.ledger.rows import (
    JOURNAL_KEY,
    FileInfo,
    FileState,
    JournalRow,
    SetState,
    chunk_key,
    decode_bytes,
    decode_file,
    decode_journal,
    decode_set,
    encode_journal,
    encode_set,
    machine_prefix,
    numbers_in_key,
    ranges_of_set,
    removed_key,
    set_key,
)
from lanner.ledger.saving import Rows, Save
from lanner.ledger.setlog import SetLog, Stored
from lanner.ledger.shelf import Shelf

PURGED_ROWS_MAX: Final = 512
_FIRST: Final = JournalRow(position_at(1, HEADER_BYTES), 1, 1)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a start found."""

    records: int = 0
    torn_bytes_cut: int = 0
    files: int = 0
    files_deleted: int = 0


class Ledger:
    """See the module. Made by `recover`; every other method runs in the loop, and at most reads rows."""

    def __init__(
        self, table: Table, random_bytes: Callable[[int], bytes], segment_bytes: int, stored: JournalRow
    ) -> None:
        self.recovery = Recovery()
        self._table = table
        self._journal = Journal(random_bytes, segment_bytes, stored.position, stored.next_file)
        self._shelf = Shelf(table)
        self._holdings = Holdings(segment_bytes)
        self._logs: dict[int, SetLog] = {}
        self._states: dict[int, SetState] = {}  # the logs' own states
        self._removed: dict[tuple[int, int], None] = {}  # (set, generation) whose rows are not yet taken away
        self._removed_sets: set[int] = set()  # m rows to delete
        self._changes: list[bytes] = []
        self._next_generation = stored.next_generation
        self._saved_position = stored.position
        self._save: Save | None = None
        self._written_bytes = 0
        self._saved_bytes = 0
        self._reserved = 0  # a file id that the table calls building: where the next rewrite goes
        self._reserved_saved = 0
        self._rewrite: Rewrite | None = None
        self._last_file = 0
        self._droppable: list[int] = []

    # -------------------------------------------------------------- recovery

    @classmethod
    def recover(
        cls,
        files: Files,
        table: Table,
        *,
        random_bytes: Callable[[int], bytes],
        segment_bytes: int = limits.SEGMENT_BYTES,
        read_only: bool = False,
    ) -> Ledger:
        """The ledger as the table has it, and every record of the journal since. The only method that does I/O."""
        row = table.get(JOURNAL_KEY)
        present = files.list()
        if row is None:
            if present:
                raise StorageDamaged(
                    f"the journal has {len(present)} files, but the table is empty; restore the data directory from a "
                    "backup, or let this broker rejoin from its peers under an empty directory"
                )
            if not read_only:
                table.commit({JOURNAL_KEY: encode_journal(_FIRST)})
        ledger = cls(table, random_bytes, segment_bytes, _FIRST if row is None else decode_journal(row))
        ledger._load_rows()
        deleted = ledger._delete_leftovers(files, present, read_only=read_only)
        present = [(file_id, size) for file_id, size in present if file_id not in deleted]
        replayed = ledger._replay(files, present, read_only=read_only)
        ledger.recovery = Recovery(replayed.records, replayed.torn_bytes, len(present), len(deleted))
        return ledger

    def _load_rows(self) -> None:
        for key, row in self._table.scan(b"g", b"h"):
            self._holdings.load(decode_file(key, row))
        for key, row in self._table.scan(b"m", b"n"):
            state = decode_set(key, row)
            self._logs[state.set_id] = SetLog(state, self._shelf, self._holdings)
            self._states[state.set_id] = state
        for key, _ in self._table.scan(b"x", b"y"):
            set_id, generation = numbers_in_key(key)
            self._removed[set_id, generation] = None
        for key, row in self._table.scan(b"b", b"c"):
            set_id, generation, file_id = numbers_in_key(key)
            if (set_id, generation) not in self._removed:
                self._holdings.load_share(set_id, generation, file_id, decode_bytes(key, row))

    def _delete_leftovers(self, files: Files, present: Sequence[tuple[int, int]], *, read_only: bool) -> set[int]:
        """Delete what the table calls building or dropped, and nothing else."""
        going = [
            info.file_id
            for info in self._holdings.files.values()
            if info.state in (FileState.BUILDING, FileState.DROPPED)
        ]
        for file_id in going:
            if not read_only:
                files.remove(file_id)
            self._holdings.remove(file_id)
        return {file_id for file_id, _ in present}.intersection(going)

    def _replay(self, files: Files, present: Sequence[tuple[int, int]], *, read_only: bool) -> Replayed:
        missing = self._holdings.missing_files(file_id for file_id, _ in present)
        if missing:
            raise StorageDamaged(
                f"file {missing[0]} is missing, and replica sets have entries in it; restore the data directory from a "
                "backup, or let this broker rejoin from its peers",
                file=missing[0],
            )
        known = self._holdings.files
        segments = [
            (file_id, size)
            for file_id, size in present
            if (file_id not in known or known[file_id].kind is FileKind.JOURNAL)
            and file_id >= file_of(self._journal.position)
        ]
        self._journal.next_file = max([self._journal.next_file, *(file_id + 1 for file_id, _ in present)])
        for file_id, size in segments:
            if file_id not in known:
                self._holdings.add(FileInfo(file_id, FileKind.JOURNAL, FileState.OPEN, size))
        replayed = replay(files, segments, self._journal.position, self._apply, cut=not read_only)
        self._continue_at(replayed)
        return replayed

    def _continue_at(self, replayed: Replayed) -> None:
        """Stand at the journal's end, with the segments behind it to go on in."""
        journal, known = self._journal, self._holdings.files
        journal.position = replayed.position
        current = replayed.headers.get(file_of(replayed.position))
        if current is not None:
            journal.segment = Segment(current.file_id, current.size, current.salt, offset_of(replayed.position))
        writable = {file_of(replayed.position)}
        if replayed.spare:
            spare = replayed.headers[replayed.spare[0]]
            journal.spare = Segment(spare.file_id, spare.size, spare.salt)
            writable.add(spare.file_id)
        for info in list(known.values()):
            self._holdings.mark(info.file_id, FileState.OPEN if info.file_id in writable else FileState.SEALED)

    def _apply(self, record: RecordHead, header: FileHeader) -> None:
        """One record of the journal, as replay finds it."""
        for set_id, generation, change in record.changes:
            log = self.log_of(set_id, generation)
            if change == Change.ADDED and log is None:
                if set_id in self._logs:
                    self._remove_log(set_id)
                self._add_log(set_id, generation)
                self._next_generation = max(self._next_generation, generation + 1)
            elif change == Change.REMOVED and log is not None:
                self._remove_log(set_id)
        for set_id, term, vote, generation in record.votes:
            log = self.log_of(set_id, generation)
            if log is not None:
                log.state.term, log.state.vote = term, vote
                log.changed = True
        offset = record.payload_offset
        for entry in record.entries:
            log = self.log_of(entry.set_id, entry.generation)
            if log is not None and entry.index > log.state.compacted_index:
                if entry.index > log.state.last_index + 1:
                    raise StorageDamaged(
                        f"the record at {show_position(record.position)} holds entry {entry.index} of replica set "
                        f"{entry.set_id}, whose log ends at {log.state.last_index}; restore the data directory from a "
                        "backup, or let this broker rejoin from its peers",
                        file=header.file_id,
                        offset=offset_of(record.position),
                    )
                place = (offset,), (entry.length,), (entry.crc,), (entry.term,), (entry.kind,)
                log.append(Run(entry.index, header.file_id, *place))
            offset += entry.length
        self._written_bytes += record.end_offset - offset_of(record.position)

    # -------------------------------------------------------------- figures

    @property
    def live_bytes(self) -> int:
        return self._holdings.live_bytes

    @property
    def file_bytes(self) -> int:
        return self._holdings.file_bytes

    @property
    def journal_position(self) -> int:
        """Where the next record goes: (file id << 32) | offset."""
        return self._journal.position

    @property
    def saved_position(self) -> int:
        """Where replay would start."""
        return self._saved_position

    @property
    def unsaved_bytes(self) -> int:
        """How much of the journal was written since the last save that is done."""
        return self._written_bytes - self._saved_bytes

    @property
    def save_needed(self) -> bool:
        """Whether a save would write anything, leaving the machines aside."""
        return bool(
            self._journal.position != self._saved_position
            or self._shelf.has_dirty
            or self._holdings.has_dirty
            or self._removed
            or self._dead_files()
            or any(log.changed for log in self._logs.values())
        )

    def files(self) -> dict[int, FileInfo]:
        """Every file that the ledger knows."""
        return {file_id: replace(info) for file_id, info in self._holdings.files.items()}

    # -------------------------------------------------------------- sets

    def sets(self) -> dict[int, SetState]:
        """Every set, as of the last synced commit."""
        return {set_id: replace(log.state) for set_id, log in self._logs.items()}

    def state(self, set_id: int) -> SetState:
        return replace(self._log(set_id).state)

    def add_set(self, set_id: int) -> None:
        """A new, empty set; durable with the next commit, which may carry its first entries."""
        if set_id in self._logs:
            raise ValueError(f"replica set {set_id} exists already")
        generation = self._next_generation
        self._next_generation += 1
        self._add_log(set_id, generation)
        self._changes.append(CHANGE.pack(set_id, generation, Change.ADDED))

    def remove_set(self, set_id: int) -> None:
        """Forget a set and free all it held; durable with the next commit."""
        generation = self._log(set_id).state.generation
        self._remove_log(set_id)
        self._changes.append(CHANGE.pack(set_id, generation, Change.REMOVED))

    def _add_log(self, set_id: int, generation: int) -> None:
        state = SetState(set_id, generation)
        self._logs[set_id] = log = SetLog(state, self._shelf, self._holdings)
        self._states[set_id] = state
        log.changed = True
        self._removed_sets.discard(set_id)

    def _remove_log(self, set_id: int) -> None:
        generation = self._logs.pop(set_id).state.generation
        del self._states[set_id]
        self._shelf.forget(set_id, generation)
        self._holdings.forget(set_id, generation)
        self._removed[set_id, generation] = None
        self._removed_sets.add(set_id)

    def log_of(self, set_id: int, generation: int) -> SetLog | None:
        """The log of a set, if it is still of this generation."""
        log = self._logs.get(set_id)
        return log if log is not None and log.state.generation == generation else None

    def _log(self, set_id: int) -> SetLog:
        log = self._logs.get(set_id)
        if log is None:
            raise KeyError(f"replica set {set_id} is not in the ledger")
        return log

    # -------------------------------------------------------------- commits

    @property
    def has_changes(self) -> bool:
        """Whether sets were added or removed that no commit carries yet."""
        return bool(self._changes)

    def begin_commit(self, items: Sequence[CommitItem]) -> Commit:
        """One record of everything given; a set may come more than once. Payloads are not copied."""
        commit = self._journal.begin(items, self._states, self._changes)
        self._changes = []
        return commit

    def commit_synced(self, commit: Commit) -> None:
        """The commit is durable: its entries and votes count."""
        self._journal.synced(commit)
        if commit.file not in self._holdings.files or self._last_file != commit.file:
            self._enter_segment(commit.file)
        self._written_bytes += commit.size
        for set_id, generation, term, vote in commit.votes:
            log = self.log_of(set_id, generation)
            if log is not None:
                log.state.term, log.state.vote = term, vote
                log.changed = True
        for set_id, generation, run in commit.runs:
            log = self.log_of(set_id, generation)
            if log is not None:  # else it was removed meanwhile
                log.append(run)

    def _enter_segment(self, file_id: int) -> None:
        """The journal goes on in this segment; those before it are sealed."""
        segment = self._journal.segment
        assert segment is not None
        if file_id not in self._holdings.files:
            self._holdings.add(FileInfo(file_id, FileKind.JOURNAL, FileState.OPEN, segment.size))
        for info in list(self._holdings.files.values()):
            if info.kind is FileKind.JOURNAL and info.state is FileState.OPEN and info.file_id < file_id:
                self._holdings.mark(info.file_id, FileState.SEALED)
        self._last_file = file_id

    def prepare(self) -> Preparation | None:
        """A segment to create ahead of time (`perform_preparation`), so that no commit waits for it; None when one
        is ready or on its way. Worth asking after each commit."""
        return self._journal.prepare()

    def prepared(self, preparation: Preparation) -> None:
        """The segment exists. One that the journal has passed meanwhile is never used, and goes with the next save."""
        used = self._journal.preparation_ended(preparation, created=True)
        state = FileState.OPEN if used else FileState.SEALED
        self._holdings.add(FileInfo(preparation.file, FileKind.JOURNAL, state, preparation.size))

    def preparation_failed(self, preparation: Preparation) -> None:
        """The segment could not be created (the disk is full): ask `prepare` again later."""
        self._journal.preparation_ended(preparation, created=False)

    # -------------------------------------------------------------- reads

    def locate(self, set_id: int, index: int) -> Location:
        """Where the entry's payload lies, also while its commit is in flight. KeyError when it is gone."""
        return self.entry(set_id, index).location

    def term(self, set_id: int, index: int) -> int:
        """The entry's term; also that of the compacted index. KeyError when it is gone."""
        staged = self._staged(set_id, index)
        return self._log(set_id).term(index) if staged is None else staged.term

    def kind(self, set_id: int, index: int) -> int:
        return self.entry(set_id, index).kind

    def entry(self, set_id: int, index: int) -> Stored:
        """Term, kind and place of an entry. KeyError when it is gone."""
        return self._staged(set_id, index) or self._log(set_id).stored(index)

    def entries(self, set_id: int, first: int, last: int, bytes_max: int) -> list[Stored]:
        """Entries first..last as far as their payloads fit the bound; at least one."""
        found: list[Stored] = []
        total = 0
        for index in range(first, last + 1):
            stored = self.entry(set_id, index)
            total += stored.location.length
            if found and total > bytes_max:
                break
            found.append(stored)
        return found

    def _staged(self, set_id: int, index: int) -> Stored | None:
        commit = self._journal.in_flight
        return None if commit is None else commit.staged(set_id, index)

    # -------------------------------------------------------------- what is wanted

    def keep(self, set_id: int, index: int) -> None:
        """The machine wants the entry: it stays readable after compaction."""
        self._log(set_id).keep(index)

    def keep_part(self, set_id: int, index: int, kept: bytes, size: int) -> None:
        """Of the entry the machine wants only this; a rewrite copies only this (see `Rewrite.write`)."""
        self._log(set_id).keep_part(index, Part(bytes(kept), size))

    def release(self, set_id: int, index: int) -> None:
        """The machine no longer wants the entry."""
        self._log(set_id).release(index)

    def compact(self, set_id: int, index: int) -> None:
        """Raft no longer needs the entries up to this one, which must be saved."""
        log = self._log(set_id)
        if index > log.state.saved_index:
            raise ValueError(f"set {set_id} is saved up to {log.state.saved_index}: it cannot be compacted to {index}")
        log.compact(index)

    # -------------------------------------------------------------- saves

    def begin_save(self) -> Save:
        """Everything that changed and is durable in the journal. Call `add_set` on it in the same turn."""
        if self._save is not None:
            raise RuntimeError("a save is in flight: one at a time")
        dropped = self._dead_files()
        for file_id in dropped:
            self._holdings.mark(file_id, FileState.DROPPED)
        if self._reserved == 0:
            self._reserved = self._journal.new_file()
            self._holdings.add(FileInfo(self._reserved, FileKind.KEPT, FileState.BUILDING, 0))
        chunks = self._shelf.take_dirty()
        puts: dict[bytes, bytes | None] = {
            chunk_key(chunk.key): None if chunk.is_empty else chunk.encode() for chunk in chunks
        }
        purged = self._purge(puts)
        puts.update(self._holdings.take_rows())
        for set_id in self._removed_sets:
            puts[set_key(set_id)] = None
        self._removed_sets.clear()
        for set_id, log in self._logs.items():
            if log.changed:
                log.changed = False
                puts[set_key(set_id)] = encode_set(log.state, log.state.saved_index)
        puts[JOURNAL_KEY] = encode_journal(
            JournalRow(self._journal.position, self._journal.next_file, self._next_generation)
        )
        self._save = Save(
            self._journal.position, self._written_bytes, puts, chunks, dropped, self._reserved, self._states, purged
        )
        return self._save

    def _purge(self, puts: dict[bytes, bytes | None]) -> list[tuple[int, int]]:
        """Take away rows of removed sets, a bounded number at a time; the sets of which nothing is left."""
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

    def saved(self, save: Save) -> None:
        """The table has it: replay starts later now, and files may go."""
        if save is not self._save:
            raise RuntimeError("this save is not the one in flight")
        self._save = None
        self._saved_position = save.position
        self._saved_bytes = save.written_bytes
        self._shelf.settle(save.chunks)
        for set_id, (generation, applied_index) in save.applied.items():
            log = self.log_of(set_id, generation)
            if log is not None:
                log.state.saved_index = applied_index
        for purged in save.purged:
            self._removed.pop(purged, None)
        self._droppable.extend(save.dropped)
        self._reserved_saved = save.reserved

    def rows(self, set_id: int) -> Rows:
        """The rows of the set's machine."""
        state = self._log(set_id).state
        return Rows(self._table, machine_prefix(set_id, state.generation), lambda: self._save)

    # -------------------------------------------------------------- what may go

    def rewrite_candidate(self) -> int | None:
        """The file to rewrite next, while the files hold too much that is dead; None when there is nothing to do."""
        return self._holdings.candidate(file_of(self._saved_position)) if self._can_rewrite else None

    @property
    def _can_rewrite(self) -> bool:
        return self._rewrite is None and self._reserved != 0 and self._reserved == self._reserved_saved

    def plan_rewrite(self, file: int) -> Rewrite:
        """Copy what is live in a file to a kept file. See `rewriting` for the steps; one rewrite at a time."""
        if not self._can_rewrite:
            raise RuntimeError("a rewrite is under way, or no file is reserved for one until the next save")
        infos = [self._holdings.files[source] for source in (file, *self._holdings.small_files(file))]
        target, self._reserved = self._reserved, 0
        sources = [(info.file_id, info.size) for info in infos]
        self._rewrite = Rewrite(sources, target, self._journal.new_salt(), sum(info.live for info in infos))
        return self._rewrite

    def rewritten(self, rewrite: Rewrite) -> None:
        """The rewrite is done, or given up: what was copied counts, the rest stays where it is."""
        assert rewrite is self._rewrite
        rewrite.settle(self)
        self._rewrite = None
        self._holdings.mark(rewrite.target, FileState.SEALED)

    def target_used(self, file_id: int, size: int) -> None:
        """The target of the rewrite is no longer only being built: the next save points to it."""
        self._holdings.mark(file_id, FileState.OPEN)
        self._holdings.resize(file_id, size)

    def _dead_files(self) -> list[int]:
        """Files that may go with the next save: not those that a rewrite is reading or writing."""
        busy = () if self._rewrite is None else self._rewrite.sources
        return [
            file_id for file_id in self._holdings.dead_files(file_of(self._journal.position)) if file_id not in busy
        ]

    def droppable(self) -> list[int]:
        """Files that may be deleted: a durable save calls them dropped. Tell `dropped` for each."""
        return list(self._droppable)

    def dropped(self, file: int) -> None:
        """The file is deleted."""
        self._droppable.remove(file)
        self._holdings.remove(file)
