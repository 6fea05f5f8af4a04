from __future__ import annotations

from random import Random

import pytest

from lanner.errors import StorageDamaged
from lanner.ledger import (
    CommitItem,
    EntryIn,
    FileState,
    Ledger,
    Save,
    perform,
    perform_preparation,
    read_entry,
)
from lanner.ledger.records import file_of
from lanner.ledger.rows import JOURNAL_KEY
from lanner.storage import MemoryFiles, MemoryTable
from lanner.testing.disk import SimDisk
from tests.unit.ledger.miniature import Miniature, payload_of

SEGMENT = 4_096


class Desk:
    """A ledger in memory and the calls that a shell makes on it."""

    def __init__(self) -> None:
        self.files, self.table = MemoryFiles(), MemoryTable()
        self.ledger = self.recovered()

    def recovered(self) -> Ledger:
        return Ledger.recover(self.files, self.table, random_bytes=Random(1).randbytes, segment_bytes=SEGMENT)

    def commit(self, *items: CommitItem) -> None:
        commit = self.ledger.begin_commit(items)
        perform(commit, self.files)
        self.ledger.commit_synced(commit)

    def append(self, set_id: int, *payloads: bytes, term: int = 1) -> None:
        first = self.ledger.state(set_id).last_index + 1
        self.commit(CommitItem(set_id, None, [EntryIn(first + n, term, 1, data) for n, data in enumerate(payloads)]))

    def save(self, **applied: int) -> Save:
        save = self.ledger.begin_save()
        for name, index in applied.items():
            save.add_set(int(name[1:]), index, {})
        self.table.commit(save.puts)
        self.ledger.saved(save)
        return save

    def drop(self) -> list[int]:
        dropped = self.ledger.droppable()
        for file_id in dropped:
            self.files.remove(file_id)
            self.ledger.dropped(file_id)
        return dropped


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    made.ledger.add_set(1)
    return made


def test_which_replica_a_log_belongs_to_is_known_from_the_first_commit_on() -> None:
    desk = Desk()
    desk.ledger.add_set(1)
    desk.ledger.add_set(2, 9)
    desk.commit()
    assert {set_id: state.replica_id for set_id, state in desk.recovered().sets().items()} == {1: 1, 2: 9}
    desk.save()
    again = desk.recovered()
    assert {set_id: state.replica_id for set_id, state in again.sets().items()} == {1: 1, 2: 9}
    assert (again.state(2).term, again.state(2).vote) == (0, 0)
    desk.ledger.remove_set(2)
    desk.ledger.add_set(2, 11)
    desk.commit()
    assert desk.recovered().state(2).replica_id == 11


def test_a_new_ledger_is_empty_and_leaves_a_mark_in_the_table() -> None:
    desk = Desk()
    assert desk.ledger.sets() == {}
    assert desk.table.get(JOURNAL_KEY) is not None
    assert desk.files.list() == []
    assert (desk.ledger.live_bytes, desk.ledger.file_bytes, desk.ledger.unsaved_bytes) == (0, 0, 0)
    assert desk.recovered().sets() == {}


def test_a_journal_without_its_table_is_refused(desk: Desk) -> None:
    desk.append(1, b"x")
    with pytest.raises(StorageDamaged, match="table is empty"):
        Ledger.recover(desk.files, MemoryTable(), random_bytes=bytes)


def test_looking_at_nothing_read_only_writes_nothing() -> None:
    table = MemoryTable()
    assert Ledger.recover(MemoryFiles(), table, random_bytes=bytes, read_only=True).sets() == {}
    assert table.get(JOURNAL_KEY) is None


def test_entries_count_once_their_commit_is_synced_and_can_be_located_before(desk: Desk) -> None:
    desk.append(1, b"one")
    commit = desk.ledger.begin_commit([CommitItem(1, (7, 8), [EntryIn(2, 7, 5, b"two")])])
    assert desk.ledger.state(1).last_index == 1
    assert (desk.ledger.term(1, 2), desk.ledger.entry(1, 2).kind) == (7, 5)
    assert desk.ledger.locate(1, 1).length == 3
    perform(commit, desk.files)
    desk.ledger.commit_synced(commit)
    state = desk.ledger.state(1)
    assert (state.term, state.vote, state.last_index, state.last_term) == (7, 8, 2, 7)
    assert read_entry(desk.files, desk.ledger.locate(1, 2)) == b"two"
    assert desk.ledger.sets()[1] == state


def test_ranges_of_entries_are_bounded_by_bytes_but_never_empty(desk: Desk) -> None:
    desk.append(1, b"a" * 10, b"b" * 10, b"c" * 10)
    assert [stored.index for stored in desk.ledger.entries(1, 1, 3, 20)] == [1, 2]
    assert [stored.index for stored in desk.ledger.entries(1, 2, 3, 1)] == [2]
    assert [stored.index for stored in desk.ledger.entries(1, 1, 3, 100)] == [1, 2, 3]


def test_a_set_is_durable_with_the_next_commit_and_gone_with_another(desk: Desk) -> None:
    assert desk.ledger.has_changes
    desk.commit()
    assert not desk.ledger.has_changes
    assert list(desk.recovered().sets()) == [1]
    desk.ledger.remove_set(1)
    assert list(desk.recovered().sets()) == [1]
    desk.commit()
    assert list(desk.recovered().sets()) == []
    with pytest.raises(KeyError):
        desk.ledger.locate(1, 1)


def test_a_commit_that_is_refused_keeps_the_changes_for_the_next(desk: Desk) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        desk.ledger.begin_commit([CommitItem(1, None, [EntryIn(5, 1, 1, b"")])])
    assert desk.ledger.has_changes
    desk.commit()
    assert list(desk.recovered().sets()) == [1]


def test_a_set_removed_while_its_commit_is_in_flight_stays_removed(desk: Desk) -> None:
    desk.append(1, b"one")
    commit = desk.ledger.begin_commit([CommitItem(1, (2, 2), [EntryIn(2, 1, 1, b"two")])])
    desk.ledger.remove_set(1)
    perform(commit, desk.files)
    desk.ledger.commit_synced(commit)
    desk.commit()
    assert desk.ledger.live_bytes == 0
    assert desk.recovered().sets() == {}
    desk.ledger.check()


def test_a_set_with_votes_only_is_remembered(desk: Desk) -> None:
    desk.commit(CommitItem(1, (3, 2), []))
    assert (desk.recovered().state(1).term, desk.recovered().state(1).vote) == (3, 2)
    desk.save()
    again = desk.recovered()
    assert (again.state(1).term, again.state(1).vote, again.recovery.records) == (3, 2, 0)


def test_a_restart_replays_only_what_was_not_saved(desk: Desk) -> None:
    desk.append(1, b"one")
    desk.append(1, b"two")
    assert desk.ledger.unsaved_bytes > 0
    desk.save(_1=2)
    assert (desk.ledger.unsaved_bytes, desk.ledger.saved_position) == (0, desk.ledger.journal_position)
    desk.append(1, b"three")
    again = desk.recovered()
    assert (again.recovery.records, again.state(1).last_index, again.state(1).saved_index) == (1, 3, 2)
    assert again.unsaved_bytes == desk.ledger.unsaved_bytes > 0
    again.check()


def test_a_save_never_holds_what_a_sync_has_not_covered(desk: Desk) -> None:
    desk.append(1, b"one")
    commit = desk.ledger.begin_commit([CommitItem(1, (9, 9), [EntryIn(2, 1, 1, b"two")])])
    desk.save(_1=1)
    assert desk.recovered().state(1).last_index == 1, "the commit in flight was never written"
    perform(commit, desk.files)
    desk.ledger.commit_synced(commit)
    assert desk.recovered().state(1).last_index == 2


def test_saves_come_one_at_a_time_and_end_as_themselves(desk: Desk) -> None:
    save = desk.ledger.begin_save()
    with pytest.raises(RuntimeError, match="one at a time"):
        desk.ledger.begin_save()
    desk.ledger.saved(save)
    with pytest.raises(RuntimeError, match="not the one"):
        desk.ledger.saved(save)


def test_a_set_removed_while_it_is_saved_is_taken_away_by_the_next_save(desk: Desk) -> None:
    desk.append(1, b"one")
    save = desk.ledger.begin_save()
    save.add_set(1, 1, {b"row": b"x"})
    desk.ledger.remove_set(1)
    desk.commit()
    desk.table.commit(save.puts)
    desk.ledger.saved(save)
    assert desk.ledger.save_needed
    desk.save()
    assert [key for key, _ in desk.table.scan(b"a", b"\xff") if key[:1] not in (b"g", b"j", b"v")] == []
    assert desk.recovered().sets() == {}


def test_the_rows_of_a_machine_are_served_while_they_are_saved(desk: Desk) -> None:
    desk.append(1, b"one")
    rows = desk.ledger.rows(1)
    save = desk.ledger.begin_save()
    save.add_set(1, 1, {b"k": b"v"})
    assert rows.get(b"k") == b"v"
    desk.table.commit(save.puts)
    desk.ledger.saved(save)
    assert rows.get(b"k") == b"v"
    assert list(desk.recovered().rows(1).scan(b"", b"z")) == [(b"k", b"v")]


def test_only_what_is_saved_can_be_compacted(desk: Desk) -> None:
    desk.append(1, b"one", b"two")
    with pytest.raises(ValueError, match="cannot be compacted"):
        desk.ledger.compact(1, 1)
    desk.save(_1=1)
    desk.ledger.compact(1, 1)
    with pytest.raises(KeyError):
        desk.ledger.locate(1, 1)
    assert desk.ledger.term(1, 1) == 1
    assert desk.recovered().state(1).compacted_index == 0, "until the next save"
    desk.save()
    assert desk.recovered().state(1).compacted_index == 1


def test_a_save_is_needed_until_nothing_is_left_to_write(desk: Desk) -> None:
    desk.append(1, b"one")
    assert desk.ledger.save_needed
    desk.save(_1=1)
    assert not desk.ledger.save_needed
    desk.ledger.keep(1, 1)
    assert desk.ledger.save_needed


def test_a_dead_segment_is_dropped_by_a_save_and_deleted_after_it(desk: Desk) -> None:
    for _ in range(20):
        desk.append(1, b"x" * 900)
    count = len(desk.files.list())
    assert count > 4
    desk.save(_1=20)
    desk.ledger.compact(1, 20)
    assert desk.ledger.droppable() == []
    save = desk.ledger.begin_save()
    assert desk.ledger.droppable() == []
    desk.table.commit(save.puts)
    desk.ledger.saved(save)
    assert len(desk.drop()) == count - 1
    assert [file_id for file_id, _ in desk.files.list()] == [file_of(desk.ledger.journal_position)]
    desk.save()
    assert not desk.ledger.save_needed
    again = desk.recovered()
    assert again.state(1).last_index == 20
    assert len(again.files()) == 1


def test_files_that_the_table_calls_dropped_are_deleted_at_the_next_start(desk: Desk) -> None:
    for _ in range(20):
        desk.append(1, b"x" * 900)
    desk.save(_1=20)
    desk.ledger.compact(1, 20)
    desk.save()
    dropped = desk.ledger.droppable()
    again = desk.recovered()
    assert again.recovery.files_deleted == len(dropped) > 3
    assert not {file_id for file_id, _ in desk.files.list()}.intersection(dropped)


def test_a_file_that_nobody_knows_is_left_alone(desk: Desk) -> None:
    for _ in range(20):
        desk.append(1, b"x" * 900)
    desk.save(_1=20)
    desk.ledger.compact(1, 20)
    desk.save()
    gone = desk.drop()[0]
    desk.save()
    desk.files.create(gone, 100, b"a stranger")
    again = desk.recovered()
    assert again.recovery.files_unknown == (gone,)
    assert gone in dict(desk.files.list())


def test_a_missing_file_with_entries_in_it_is_refused_by_name(desk: Desk) -> None:
    for _ in range(10):
        desk.append(1, b"x" * 900)
    desk.save(_1=10)
    desk.files.remove(1)
    with pytest.raises(StorageDamaged, match="file 1 is missing"):
        desk.recovered()


def test_a_missing_file_without_entries_is_forgotten(desk: Desk) -> None:
    for _ in range(10):
        desk.append(1, b"x" * 900)
    desk.ledger.prepare()
    desk.save(_1=10)
    desk.ledger.compact(1, 10)
    save = desk.ledger.begin_save()
    puts = {key: row for key, row in save.puts.items() if not key.startswith(b"g")}
    desk.table.commit(puts)
    desk.files.remove(1)
    assert 1 not in desk.recovered().files()


def test_a_segment_is_prepared_and_used_and_one_passed_over_goes(desk: Desk) -> None:
    first = desk.ledger.prepare()
    assert first is not None
    perform_preparation(first, desk.files)
    desk.ledger.prepared(first)
    desk.append(1, b"x")
    assert file_of(desk.ledger.journal_position) == first.file
    second = desk.ledger.prepare()
    assert second is not None
    desk.ledger.preparation_failed(second)
    third = desk.ledger.prepare()
    assert third is not None
    desk.append(1, b"y" * 4_000)
    perform_preparation(third, desk.files)
    desk.ledger.prepared(third)
    assert desk.ledger.files()[third.file].state is FileState.SEALED
    desk.save(_1=2)
    assert desk.drop() == [third.file]


def test_sizes_are_those_of_the_files(desk: Desk) -> None:
    desk.append(1, b"x" * 3_000)
    desk.append(1, b"x" * 3_000)
    desk.save(_1=2)
    desk.files.truncate(1, 3_500)
    again = desk.recovered()
    assert again.files()[1].size == 3_500


def test_a_set_that_the_machine_left_behind_in_a_save_repeats_what_it_did() -> None:
    """A save may leave a set out: after a crash its machine repeats its steps over entries that are gone already."""
    broker = Miniature(SimDisk(), Random(2))
    broker.commit([], added=[1])
    steps = [
        payload_of(keep=True, body=b"a" * 100),
        payload_of(keep=True, body=b"b" * 100),
        payload_of(part=[(1, 50)], body=b""),
        payload_of(release=[1], body=b""),
        payload_of(release=[2], body=b""),
    ]
    broker.commit([CommitItem(1, None, [broker.entry(1, n + 1, 1, data) for n, data in enumerate(steps)])])
    broker.apply(1, 2)
    broker.save()
    broker.apply(1, 3)
    broker.save([])
    broker.disk.crash(Random(1))
    broker.restart()
    assert broker.replicas[1].machine.wanted == {}


def test_ten_thousand_entries_in_few_rows() -> None:
    desk = Desk()
    desk.ledger.add_set(1)
    for _ in range(10):
        desk.append(1, *[b"x"] * 1_000)
    desk.save(_1=10_000)
    assert sum(key.startswith(b"e") for key, _ in desk.table.scan(b"", b"\xff")) == 40
    again = desk.recovered()
    assert read_entry(desk.files, again.locate(1, 9_999)) == b"x"
