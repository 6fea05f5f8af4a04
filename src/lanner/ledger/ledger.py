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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lanner import limits
from lanner.errors import StorageDamaged
from lanner.ledger.books import Books
from lanner.ledger.building import BuildItem
from lanner.ledger.chunk import Part
from lanner.ledger.conversion import ALL_SEALED, Progress, open_table
from lanner.ledger.damaged import DamagedSet, judge
from lanner.ledger.inspection import inspect
from lanner.ledger.journal import Commit, CommitItem, Journal, Preparation, Segment
from lanner.ledger.ports import Files, Table
from lanner.ledger.records import (
    CHANGE,
    HEADER_BYTES,
    VOTE,
    Change,
    FileKind,
    Location,
    file_of,
    offset_of,
    position_at,
)
from lanner.ledger.replay import Replayed, create_again, replay
from lanner.ledger.rewriting import Rewrite
from lanner.ledger.rows import (
    FORMAT_KEY,
    JOURNAL_KEY,
    FileInfo,
    FileState,
    JournalRow,
    SetState,
    decode_journal,
    encode_journal,
    machine_prefix,
)
from lanner.ledger.saving import Rows, Save
from lanner.ledger.seals import SealedTable
from lanner.ledger.setlog import SetLog, Stored, Wanted

_FIRST: Final = JournalRow(position_at(1, HEADER_BYTES), 1, 1)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a start found. Files that the table does not know are left alone."""

    records: int = 0
    torn_bytes_cut: int = 0
    files: int = 0
    files_deleted: int = 0
    files_unknown: tuple[int, ...] = ()


class Ledger:
    """See the module. Made by `recover`; every other method runs in the loop, and at most reads rows."""

    def __init__(
        self, table: SealedTable, random_bytes: Callable[[int], bytes], segment_bytes: int, stored: JournalRow
    ) -> None:
        self.recovery = Recovery()
        self.unreadable = table.unreadable  # sets of which a row was found damaged by a read; see `close_damaged`
        self._table = table
        self._journal = Journal(random_bytes, segment_bytes, stored.position, stored.next_file)
        self._books = Books(table, segment_bytes, stored.next_generation, table.unchecked)
        self._holdings = self._books.holdings
        self._changes: list[bytes] = []  # sets added, removed and being built, which no commit carries yet
        self._marks: list[bytes] = []  # where the snapshots of the latter end, and which replicas were added
        self._written_file = 0
        self._written_bytes = 0
        self._saved_bytes = 0
        self._saved_position = stored.position
        self._save: Save | None = None
        self._reserved = 0  # a file id that the table calls building: where the next rewrite goes
        self._reserved_saved = 0
        self._rewrite: Rewrite | None = None
        self._unmovable: set[int] = set()  # files that a rewrite could not empty, because they are damaged
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
        close_damaged: bool = False,
        converting: Progress | None = None,
    ) -> Ledger:
        """The ledger as the table has it, and every record of the journal since. The only method that does I/O.

        Damage in the rows of one set is raised, or else only closes that set (`close_damaged`; see `damaged`).
        `converting` is told how far it is, where the table of an older release must be converted first.
        """
        rows = open_table(table, read_only=read_only, progress=converting)
        judged = judge(rows, inspect(rows))
        if not close_damaged:
            for damaged in judged.sets.values():
                raise damaged.error
        row = rows.get(JOURNAL_KEY)
        present = dict(files.list())
        if row is None:
            if present:
                raise StorageDamaged(f"the journal has {len(present)} files, but the table is empty")
            if not read_only:
                rows.commit({JOURNAL_KEY: encode_journal(_FIRST), FORMAT_KEY: ALL_SEALED})
        ledger = cls(rows, random_bytes, segment_bytes, _FIRST if row is None else decode_journal(row))
        ledger._books.load(judged)
        deleted = ledger._delete_leftovers(files, present, read_only=read_only)
        unknown = ledger._holdings.match(present, file_of(ledger._journal.position))
        replayed = ledger._replay(files, present, read_only=read_only)
        ledger._books.discard_builds()
        ledger.recovery = Recovery(replayed.records, replayed.torn_bytes, len(present), deleted, unknown)
        return ledger

    def _delete_leftovers(self, files: Files, present: dict[int, int], *, read_only: bool) -> int:
        """Delete what the table calls building or dropped, and nothing else."""
        deleted = 0
        for info in list(self._holdings.files.values()):
            if info.state in (FileState.BUILDING, FileState.DROPPED):
                if not read_only:
                    files.remove(info.file_id)
                self._holdings.remove(info.file_id)
                deleted += present.pop(info.file_id, None) is not None
        return deleted

    def _replay(self, files: Files, present: dict[int, int], *, read_only: bool) -> Replayed:
        """Replay the journal, and stand at its end, with the segments behind it to go on in."""
        journal, known = self._journal, self._holdings.files
        segments = [
            (file_id, size)
            for file_id, size in sorted(present.items())
            if file_id >= file_of(journal.position) and known[file_id].kind is FileKind.JOURNAL
        ]
        replayed = replay(files, segments, journal.position, self._books.replay, cut=not read_only)
        journal.position = replayed.position
        journal.next_file = max([journal.next_file, *(file_id + 1 for file_id in present)])
        self._written_bytes = replayed.bytes
        writable: set[int] = set()
        current = replayed.headers.get(file_of(replayed.position))
        offset = offset_of(replayed.position)
        if current is not None and (offset > HEADER_BYTES or read_only or create_again(files, current)):
            journal.segment = Segment(current.file_id, current.size, current.salt, offset)
            writable.add(current.file_id)
        spare = replayed.headers[replayed.spare[0]] if replayed.spare else None
        if spare is not None and (read_only or create_again(files, spare)):
            journal.spare = Segment(spare.file_id, spare.size, spare.salt)
            writable.add(spare.file_id)
        for file_id in known:
            self._holdings.mark(file_id, FileState.OPEN if file_id in writable else FileState.SEALED)
        return replayed

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
        return self._journal.position != self._saved_position or self._books.has_changes or bool(self._dead_files())

    def files(self) -> dict[int, FileInfo]:
        """Every file that the ledger knows."""
        return {file_id: replace(info) for file_id, info in self._holdings.files.items()}

    def check(self) -> None:
        """Assert every invariant (tests and simulators: it reads every row)."""
        self._books.check()

    # -------------------------------------------------------------- sets

    def sets(self) -> dict[int, SetState]:
        """Every set, as of the last synced commit."""
        return {set_id: replace(state) for set_id, state in self._books.states.items()}

    def state(self, set_id: int) -> SetState:
        return replace(self._books.log(set_id).state)

    def add_set(self, set_id: int, replica_id: int = 1) -> None:
        """A new, empty set; durable with the next commit, which may carry its first entries."""
        generation = self._books.next_generation
        self._books.add(set_id, generation, replica_id)
        self._changes.append(CHANGE.pack(set_id, generation, Change.ADDED))
        if replica_id != 1:
            self._marks.append(VOTE.pack(set_id, 0, replica_id, generation))

    def remove_set(self, set_id: int) -> None:
        """Forget a set and free all it held; durable with the next commit."""
        removed = self._books.remove(set_id)  # also what is being built, as a flip may be in flight
        self._changes += [CHANGE.pack(set_id, generation, Change.REMOVED) for generation in removed]

    @property
    def damaged(self) -> Mapping[int, DamagedSet]:
        """Sets that are closed, because a row of them is damaged. Only `remove_set` ends that."""
        return self._books.damaged

    def close_damaged(self, set_id: int, error: StorageDamaged, replica_id: int = 0) -> None:
        """A row of the set is damaged: from now on it has no log. Also to say whose log that was, once it is known."""
        known = self._books.damaged.get(set_id)
        state = self._books.states[set_id] if known is None else known
        self._books.close_damaged(DamagedSet(set_id, error, replica_id or state.replica_id, state.generation))

    def log_of(self, set_id: int, generation: int) -> SetLog | None:
        """The log of a set, if it is still of this generation. For rewrites."""
        return self._books.log_of(set_id, generation)

    def begin_build(self, set_id: int, index: int, term: int) -> int:
        """A fresh generation for a snapshot that ends with this entry; recorded by the next commit. See `building`."""
        generation = self._books.next_generation
        self._books.log(set_id)
        self._books.build(set_id, generation, index, term)
        self._changes.append(CHANGE.pack(set_id, generation, Change.BUILDING))
        self._marks.append(VOTE.pack(set_id, term, index, generation))
        return generation

    def abandon_build(self, set_id: int, generation: int) -> None:
        """What was built is freed. A start would discard it, too: nothing need be recorded."""
        self._books.discard(set_id, generation)

    # -------------------------------------------------------------- commits

    @property
    def has_changes(self) -> bool:
        """Whether sets were added or removed, or builds begun, that no commit carries yet."""
        return bool(self._changes)

    def begin_commit(
        self,
        items: Sequence[CommitItem],
        built: Sequence[BuildItem] = (),
        flips: Sequence[tuple[int, int]] = (),
    ) -> Commit:
        """One record of everything given; a set may come more than once. Payloads are not copied.

        With it the sets in `flips` take these generations, whose entries and rows must all be durable, for their own.
        """
        builds = [(self._build_state(item.set_id, item.generation), item.entries) for item in built] if built else ()
        changes = self._changes + [CHANGE.pack(*flip, Change.FLIPPED) for flip in flips] if flips else self._changes
        commit = self._journal.begin(items, self._books.states, changes, self._marks, builds)
        commit.flips = flips
        self._changes, self._marks = [], []
        return commit

    def _build_state(self, set_id: int, generation: int) -> SetState:
        build = self._books.builds.get(set_id, generation)
        if build is None:
            raise KeyError(f"generation {generation} of replica set {set_id} is not being built")
        return build.state

    def commit_synced(self, commit: Commit) -> None:
        """The commit is durable: its entries and votes count."""
        self._journal.synced(commit)
        if commit.file != self._written_file:
            self._enter_segment(commit.file)
        self._written_bytes += commit.size
        for set_id, generation, term, vote in commit.votes:
            self._books.vote(set_id, generation, term, vote)
        for set_id, generation, run in commit.runs:
            self._books.append(set_id, generation, run)
        for set_id, generation, run in commit.built:
            self._books.append(set_id, generation, run)
        for set_id, generation in commit.flips:
            self._books.flip(set_id, generation)

    def _enter_segment(self, file_id: int) -> None:
        """The journal goes on in this segment; those before it are sealed."""
        segment = self._journal.segment
        assert segment is not None
        if file_id not in self._holdings.files:
            self._holdings.add(FileInfo(file_id, FileKind.JOURNAL, FileState.OPEN, segment.size))
        for info in self._holdings.files.values():
            if info.kind is FileKind.JOURNAL and info.state is FileState.OPEN and info.file_id < file_id:
                self._holdings.mark(info.file_id, FileState.SEALED)
        self._written_file = file_id

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
        staged = self._staged(set_id, index)
        return self._books.log(set_id).locate(index) if staged is None else staged.location

    def term(self, set_id: int, index: int) -> int:
        """The entry's term; also that of the compacted index. KeyError when it is gone."""
        staged = self._staged(set_id, index)
        return self._books.log(set_id).term(index) if staged is None else staged.term

    def entry(self, set_id: int, index: int) -> Stored:
        """Term, kind and place of an entry. KeyError when it is gone."""
        return self._staged(set_id, index) or self._books.log(set_id).stored(index)

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

    def size(self, set_id: int, first: int, last: int) -> int:
        """Bytes of payload in [first, last]."""
        return self._books.log(set_id).size(first, last)

    def wanted(self, set_id: int, first: int, last: int, chunks_max: int) -> tuple[list[Wanted], int]:
        """What the set's machine wants of [first, last], some of it, and the index to go on from."""
        return self._books.log(set_id).wanted(first, last, chunks_max)

    def held(self, set_id: int, first: int, chunks_max: int) -> tuple[list[Stored], int]:
        """Every entry of the set that is on disk, some of them, and the index to go on from; 0: these are the last."""
        return self._books.log(set_id).held(first, chunks_max)

    def _staged(self, set_id: int, index: int) -> Stored | None:
        commit = self._journal.in_flight
        return None if commit is None else commit.staged(set_id, index)

    # -------------------------------------------------------------- what is wanted

    def keep(self, set_id: int, first: int, last: int | None = None) -> None:
        """The machine wants this entry, or a run of them, whole: they stay readable after compaction."""
        self._books.log(set_id).keep(first, last)

    def keep_part(self, set_id: int, index: int, kept: bytes, size: int) -> None:
        """Of the entry the machine wants only this; a rewrite copies only this (see `Rewrite.write`)."""
        self._books.log(set_id).keep_part(index, Part(bytes(kept), size))

    def release(self, set_id: int, index: int) -> None:
        """The machine no longer wants the entry."""
        self._books.log(set_id).release(index)

    def compact(self, set_id: int, index: int) -> None:
        """Raft no longer needs the entries up to this one, which must be saved."""
        log = self._books.log(set_id)
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
        puts, chunks, purged = self._books.take_rows()
        position = self._journal.position
        puts[JOURNAL_KEY] = encode_journal(JournalRow(position, self._journal.next_file, self._books.next_generation))
        states, more = self._books.states, self._books.encode_some
        self._save = Save(
            position, self._written_bytes, puts, chunks, dropped, self._reserved, states, purged, encode_more=more
        )
        return self._save

    def saved(self, save: Save) -> None:
        """The table has it: replay starts later now, and files may go."""
        if save is not self._save:
            raise RuntimeError("this save is not the one in flight")
        self._save = None
        self._saved_position = save.position
        self._saved_bytes = save.written_bytes
        self._books.settle(save.chunks, save.purged)
        for set_id, (generation, applied_index) in save.applied.items():
            log = self._books.log_of(set_id, generation)
            if log is not None:
                log.state.saved_index = applied_index
        self._table.written(save.taken)
        self._droppable.extend(save.dropped)
        self._reserved_saved = save.reserved

    def rows(self, set_id: int) -> Rows:
        """The rows of the set's machine."""
        state = self._books.log(set_id).state
        return Rows(self._table, machine_prefix(set_id, state.generation), lambda: self._save)

    # -------------------------------------------------------------- what may go

    def rewrite_candidate(self) -> int | None:
        """The file to rewrite next, while the files hold too much that is dead; None when there is nothing to do."""
        if not self._can_rewrite:
            return None
        return self._holdings.candidate(file_of(self._saved_position), self._unmovable)

    @property
    def _can_rewrite(self) -> bool:
        return self._rewrite is None and self._reserved != 0 and self._reserved == self._reserved_saved

    def plan_rewrite(self, file: int) -> Rewrite:
        """Copy what is live in a file to a kept file. See `rewriting` for the steps; one rewrite at a time."""
        if not self._can_rewrite:
            raise RuntimeError("a rewrite is under way, or no file is reserved for one until the next save")
        beside = [source for source in self._holdings.small_files() if source != file and source not in self._unmovable]
        infos = [self._holdings.files[source] for source in (file, *beside)]
        target, self._reserved = self._reserved, 0
        sources = [(info.file_id, info.size) for info in infos]
        self._rewrite = Rewrite(sources, target, self._journal.new_salt(), sum(info.live for info in infos))
        return self._rewrite

    def rewritten(self, rewrite: Rewrite) -> None:
        """The rewrite is done, or given up: what was copied counts, the rest stays where it is."""
        assert rewrite is self._rewrite
        rewrite.settle(self)
        self._rewrite = None
        if rewrite.done:
            self._unmovable.update(source for source in rewrite.sources if self._holdings.files[source].live)
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
