"""A generation built beside the set's own, flipped to in one record: all of it or nothing, wherever the power goes."""

from __future__ import annotations

from random import Random

import pytest

from lanner.errors import StorageDamaged
from lanner.ledger import BuildItem, CommitItem, EntryIn, Ledger, perform, read_entry
from lanner.ledger.books import Books
from lanner.ledger.building import split_runs
from lanner.ledger.records import Change, RecordHead, position_at
from lanner.ledger.rows import build_key, machine_prefix, ranges_of_set
from lanner.storage import MemoryTable
from lanner.testing.disk import PowerLost, SimDisk

SET = 7
INDEX, TERM = 700, 3
OLD_ROWS = {b"a": b"old", b"b": b"old"}
NEW_ROWS = {b"a": b"new", b"c": b"new"}
LIVE = {3: b"three", 4: b"four", 300: b"", 699: b"y" * 900}


def entries(first: int, count: int, term: int = 1) -> list[EntryIn]:
    return [EntryIn(index, term, 1, b"%d" % index) for index in range(first, first + count)]


def live(*indexes: int) -> list[EntryIn]:
    return [EntryIn(index, 2, 1, LIVE[index]) for index in indexes]


class Replica:
    """A ledger on a disk that can fail, with one set that has entries, rows and a vote."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.start()

    def start(self) -> None:
        self.ledger = Ledger.recover(
            self.disk.files, self.disk.table, random_bytes=Random(1).randbytes, segment_bytes=4_096
        )

    def commit(
        self,
        items: list[CommitItem] | None = None,
        built: list[BuildItem] | None = None,
        flips: list[tuple[int, int]] | None = None,
    ) -> None:
        commit = self.ledger.begin_commit(items or [], built or [], flips or [])
        perform(commit, self.disk.files)
        self.ledger.commit_synced(commit)

    def save(self, applied: int | None = None, generation: int = 0, rows: dict[bytes, bytes] | None = None) -> None:
        save = self.ledger.begin_save()
        if applied is not None:
            save.add_set(SET, applied, OLD_ROWS)
        if rows is not None:
            save.add_build(SET, generation, rows)
        self.disk.table.commit(save.puts)
        self.ledger.saved(save)
        for file_id in self.ledger.droppable():
            self.disk.files.remove(file_id)
            self.ledger.dropped(file_id)

    def populate(self) -> None:
        self.ledger.add_set(SET)
        self.commit([CommitItem(SET, (2, 9), entries(1, 20))])
        self.ledger.keep(SET, 2)
        self.save(applied=5)
        self.ledger.compact(SET, 5)

    def install(self) -> None:
        """Everything that taking a snapshot does to the disk, with other work between."""
        generation = self.ledger.begin_build(SET, INDEX, TERM)
        self.commit()
        self.commit([CommitItem(SET, None, entries(21, 2))], [BuildItem(SET, generation, live(3, 4))])
        self.save(generation=generation, rows={b"a": b"new"})
        self.commit(built=[BuildItem(SET, generation, live(300, 699))])
        self.save(applied=6, generation=generation, rows={b"c": b"new"})
        self.commit([CommitItem(SET, (5, 1), entries(23, 1))], flips=[(SET, generation)])
        self.commit([CommitItem(SET, None, entries(INDEX + 1, 3, term=5))])
        self.save()
        self.save()

    @property
    def rows(self) -> dict[bytes, bytes]:
        return dict(self.ledger.rows(SET).scan(b"", b"\xff"))

    def read(self, index: int) -> bytes:
        return read_entry(self.disk.files, self.ledger.locate(SET, index))

    def is_old(self) -> bool:
        state = self.ledger.state(SET)
        if state.compacted_index == INDEX:
            return False
        assert self.rows == OLD_ROWS and self.read(2) == b"2"
        assert state.last_index in (20, 22) and [self.read(index) for index in range(6, 21)]
        assert (state.term, state.vote) == (2, 9)
        return True

    def assert_new(self) -> None:
        state = self.ledger.state(SET)
        assert self.rows == NEW_ROWS
        assert {index: self.read(index) for index in LIVE} == LIVE
        assert (state.term, state.vote, state.compacted_term, state.saved_index) == (5, 1, TERM, INDEX)
        assert self.ledger.term(SET, INDEX) == TERM
        with pytest.raises(KeyError):
            self.ledger.locate(SET, 2)

    def assert_only_one_generation_is_left(self) -> None:
        """Nothing of another generation stays in the table once saves had the time to take it away."""
        self.commit([CommitItem(SET, None, entries(self.ledger.state(SET).last_index + 1, 1, term=6))])
        self.save()
        generation = self.ledger.state(SET).generation
        for other in range(1, 10):
            if other != generation:
                found = [row for bounds in ranges_of_set(SET, other) for row in self.disk.table.scan(*bounds)]
                assert found == []
        assert list(self.disk.table.scan(b"n", b"o")) == list(self.disk.table.scan(b"x", b"y")) == []


@pytest.fixture
def replica() -> Replica:
    made = Replica(SimDisk())
    made.populate()
    return made


def test_until_the_flip_the_old_generation_serves_and_from_it_on_the_new_one(replica: Replica) -> None:
    replica.install()
    replica.assert_new()
    state = replica.ledger.state(SET)
    assert state.last_index == INDEX + 3 and replica.read(INDEX + 2) == b"702"
    replica.ledger.check()
    replica.assert_only_one_generation_is_left()


def test_wherever_the_power_goes_all_of_the_snapshot_is_there_or_nothing_of_it() -> None:
    """Crashes inside every single operation of an install, each with several fates of what was not synced."""
    kept = flipped = 0
    for fate in range(4):
        operation = 0
        while True:
            operation += 1
            replica = Replica(SimDisk())
            replica.populate()
            replica.disk.crash_in(operation)
            try:
                replica.install()
                break
            except PowerLost:
                replica.disk.crash(Random(100 * fate + operation))
            replica.start()
            replica.ledger.check()
            if replica.is_old():
                kept += 1
            else:
                flipped += 1
                replica.assert_new()
            replica.save()
            replica.start()
            replica.ledger.check()
            replica.assert_only_one_generation_is_left()
    assert kept > 20 and flipped > 10


def test_a_stop_discards_what_was_half_built_and_its_generation_is_never_given_again(replica: Replica) -> None:
    generation = replica.ledger.begin_build(SET, INDEX, TERM)
    replica.commit(built=[])
    replica.commit(built=[BuildItem(SET, generation, live(3, 4))])
    before = replica.ledger.live_bytes
    replica.save(generation=generation, rows={b"a": b"new"})
    assert replica.disk.table.get(build_key(SET, generation)) is not None
    replica.commit(built=[BuildItem(SET, generation, live(300))])
    replica.start()
    assert replica.is_old()
    assert replica.ledger.live_bytes < before
    assert replica.ledger.begin_build(SET, INDEX, TERM) > generation
    replica.ledger.abandon_build(SET, replica.ledger.begin_build(SET, INDEX, TERM))
    replica.start()
    replica.assert_only_one_generation_is_left()


def test_an_abandoned_build_frees_its_bytes_also_when_a_commit_of_it_is_in_flight(replica: Replica) -> None:
    before = replica.ledger.live_bytes
    generation = replica.ledger.begin_build(SET, INDEX, TERM)
    replica.commit()
    replica.commit(built=[BuildItem(SET, generation, live(3, 4))])
    commit = replica.ledger.begin_commit([], [BuildItem(SET, generation, live(300))], [(SET, generation)])
    replica.ledger.abandon_build(SET, generation)
    perform(commit, replica.disk.files)
    replica.ledger.commit_synced(commit)
    assert replica.ledger.live_bytes == before and replica.is_old()
    replica.ledger.abandon_build(SET, generation)  # once more: nothing
    with pytest.raises(KeyError):
        replica.ledger.begin_commit([], [BuildItem(SET, generation, live(699))])
    replica.assert_only_one_generation_is_left()


@pytest.mark.parametrize("synced_first", [False, True])
def test_a_set_that_is_removed_while_it_flips_stays_removed(replica: Replica, synced_first: bool) -> None:
    generation = replica.ledger.begin_build(SET, INDEX, TERM)
    replica.commit()
    commit = replica.ledger.begin_commit([], (), [(SET, generation)])
    if not synced_first:
        replica.ledger.remove_set(SET)
    perform(commit, replica.disk.files)
    replica.ledger.commit_synced(commit)
    if synced_first:
        replica.ledger.remove_set(SET)
    replica.commit()
    for _ in range(2):
        assert SET not in replica.ledger.sets()
        replica.start()
    replica.save()
    replica.save()
    assert list(replica.disk.table.scan(machine_prefix(SET, 0), machine_prefix(SET, 99))) == []


def test_what_a_build_holds_is_copied_when_its_segment_is_rewritten(replica: Replica) -> None:
    generation = replica.ledger.begin_build(SET, INDEX, TERM)
    replica.commit()
    replica.commit(built=[BuildItem(SET, generation, live(3, 4))])
    source = replica.ledger.begin_commit([CommitItem(SET, None, entries(21, 1))])
    perform(source, replica.disk.files)
    replica.ledger.commit_synced(source)
    while replica.ledger.files()[source.file].state.name == "OPEN":
        last = replica.ledger.state(SET).last_index
        replica.commit([CommitItem(SET, None, [EntryIn(last + 1, 1, 1, b"z" * 500)])])
    replica.save(generation=generation, rows=NEW_ROWS)
    replica.save(generation=generation, rows=NEW_ROWS)
    rewrite = replica.ledger.plan_rewrite(source.file)
    while not rewrite.done:
        rewrite.read(replica.disk.files)
        rewrite.choose(replica.ledger)
        rewrite.write(replica.disk.files, lambda _set_id, payload, _kept: payload)
    replica.ledger.rewritten(rewrite)
    assert replica.ledger.files()[source.file].live == 0
    replica.commit(built=[BuildItem(SET, generation, live(300, 699))], flips=[])
    replica.commit([CommitItem(SET, (5, 1), [])], flips=[(SET, generation)])
    replica.save()
    replica.assert_new()
    replica.ledger.check()


def test_entries_of_a_build_must_come_in_order_and_not_behind_its_end(replica: Replica) -> None:
    generation = replica.ledger.begin_build(SET, INDEX, TERM)
    replica.commit()
    replica.commit(built=[BuildItem(SET, generation, live(4))])
    for wrong in (live(3), live(4), [EntryIn(INDEX + 1, 3, 1, b"")], [*live(300), *live(4)]):
        with pytest.raises(ValueError, match="being built"):
            replica.ledger.begin_commit([], [BuildItem(SET, generation, wrong)])


def test_entries_are_split_where_indexes_are_missing() -> None:
    parts = list(split_runs([*live(3, 4), *live(300)]))
    assert [[entry[0] for entry in part] for part in parts] == [[3, 4], [300]]
    assert list(split_runs([])) == []


def test_a_record_that_does_not_fit_a_build_is_damage() -> None:
    books = Books(MemoryTable(), 4_096, 1)
    books.add(SET, 1)
    books.build(SET, 2, INDEX, TERM)
    head = RecordHead(position_at(1, 64), 0, [], [], [(SET, INDEX + 1, 1, 2, 0, 0, 1)], 64, 64)
    with pytest.raises(StorageDamaged):
        books.replay(head)


def test_a_flip_to_what_the_set_has_already_changes_nothing() -> None:
    books = Books(MemoryTable(), 4_096, 1)
    books.add(SET, 1)
    flip = RecordHead(position_at(1, 64), 0, [(SET, 1, Change.FLIPPED), (SET, 5, Change.FLIPPED)], [], [], 64, 64)
    books.replay(flip)
    assert books.states[SET].generation == 1


def test_what_a_machine_wants_is_found_chunk_by_chunk_wherever_the_chunks_are(replica: Replica) -> None:
    last = replica.ledger.state(SET).last_index
    replica.commit([CommitItem(SET, None, entries(last + 1, 1_500))])
    for index in (7, 600, 601, 1_400):
        replica.ledger.keep(SET, index)
    replica.ledger.keep_part(SET, 601, b"part", 2)
    replica.save(applied=1_200)
    replica.ledger.compact(SET, 1_200)
    replica.save()
    found, following = [], 1
    while following <= 1_200:
        part, following = replica.ledger.wanted(SET, following, 1_200, 1)
        found += part
    assert [(wanted.stored.index, wanted.part and wanted.part.kept) for wanted in found] == [
        (2, None),
        (7, None),
        (600, None),
        (601, b"part"),
    ]
    assert following == 1_201
    assert replica.ledger.size(SET, 1_201, 1_210) == 40
    assert replica.ledger.size(SET, 5_000, 5_001) == 0
