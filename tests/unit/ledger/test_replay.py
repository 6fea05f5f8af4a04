"""What the end of a journal means: the rule, and every way to break it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from lanner.errors import StorageDamaged, StorageFailed
from lanner.ledger import CommitItem, EntryIn, Ledger, perform, read_entry
from lanner.ledger.records import HEADER_BYTES, RecordHead, file_of, offset_of, position_at
from lanner.ledger.replay import replay
from lanner.testing.disk import SimDisk

SEGMENT = 1_024


class Written:
    """A journal of commits of one entry each, and where each of them lies."""

    def __init__(self, payloads: Sequence[bytes], *, prepared: bool = False) -> None:
        self.disk = SimDisk()
        self.ledger = recovered(self.disk)
        self.ledger.add_set(1)
        self.places: list[tuple[int, int, int]] = []  # file, offset, size
        for payload in payloads:
            self.commit(payload)
        if prepared:
            preparation = self.ledger.prepare()
            assert preparation is not None
            self.disk.files.create(*preparation[:3])

    def commit(self, payload: bytes, *, synced: bool = True) -> None:
        index = self.ledger.state(1).last_index + 1
        commit = self.ledger.begin_commit([CommitItem(1, None, [EntryIn(index, 1, 1, payload)])])
        perform(commit, self.disk.files)
        self.places.append((commit.file, commit.offset, commit.size))
        if synced:
            self.ledger.commit_synced(commit)

    def tear(self) -> None:
        """The last sector of the last record never reached the disk."""
        file, offset, size = self.places[-1]
        first = max(offset, (offset + size - 1) // 512 * 512)
        self.disk.files.write(file, first, [bytes(offset + size - first)])


def recovered(disk: SimDisk) -> Ledger:
    return Ledger.recover(disk.files, disk.table, random_bytes=lambda n: b"\x07" * n, segment_bytes=SEGMENT)


def last_index(disk: SimDisk) -> int:
    sets = recovered(disk).sets()
    return sets[1].last_index if sets else 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("failed", [False, True])
def test_a_record_that_a_start_has_seen_is_durable_from_then_on(failed: bool, seed: int) -> None:
    """The process was killed before the record's sync, or stopped because that failed; then the power goes."""
    written = Written([b"first"])
    commit = written.ledger.begin_commit([CommitItem(1, None, [EntryIn(2, 1, 1, b"second")])])
    written.disk.files.write(commit.file, commit.offset, commit.buffers)
    if failed:
        written.disk.sync_failures = 1
        with pytest.raises(StorageFailed):
            written.disk.files.sync(commit.file)
    written.disk.kill()
    ledger = recovered(written.disk)
    assert ledger.state(1).last_index == 2
    save = ledger.begin_save()
    written.disk.table.commit(save.puts)
    ledger.saved(save)
    written.disk.crash(Random(seed))
    again = recovered(written.disk)
    assert again.state(1).last_index == 2
    assert read_entry(written.disk.files, again.locate(1, 2)) == b"second"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("first", [True, False])
def test_an_empty_segment_that_a_start_has_seen_is_durable_from_then_on(first: bool, seed: int) -> None:
    """The process stopped because a sync of its creation failed; the next one writes there, and then the power goes."""
    written = Written([] if first else [b"first"])
    written.disk.sync_failures = 1
    with pytest.raises(StorageFailed):
        if first:
            written.commit(b"never")
        else:
            preparation = written.ledger.prepare()
            assert preparation is not None
            written.disk.files.create(*preparation[:3])
    written.disk.kill()
    written.ledger = recovered(written.disk)
    if first:
        written.ledger.add_set(1)
    before = written.ledger.state(1).last_index
    for _ in range(4):
        written.commit(b"x" * 400)
    written.disk.crash(Random(seed))
    assert last_index(written.disk) == before + 4


def test_an_empty_segment_for_which_there_is_no_room_any_more_is_not_used() -> None:
    written = Written([b"first"], prepared=True)
    (spare,) = {file_id for file_id, _ in written.disk.files.list()} - {file for file, _, _ in written.places}
    written.disk.kill()
    written.disk.write_room_bytes = 600  # not a segment, but what a start writes again
    written.ledger = recovered(written.disk)
    written.disk.write_room_bytes = None
    for _ in range(4):
        written.commit(b"x" * 400)
    assert spare not in {file for file, _, _ in written.places}
    assert last_index(written.disk) == 5


def test_every_record_is_replayed_in_order_over_all_segments() -> None:
    written = Written([bytes([n]) * 200 for n in range(20)])
    assert len({file for file, _, _ in written.places}) > 4
    again = recovered(written.disk)
    assert again.state(1).last_index == 20
    assert (again.recovery.records, again.recovery.torn_bytes_cut) == (20, 0)
    assert again.journal_position == written.ledger.journal_position


def test_damage_to_the_last_record_is_refused_and_named_and_nothing_is_cut() -> None:
    for place in range(Written([b"one", b"two", b"three"]).places[-1][2]):
        written = Written([b"one", b"two", b"three"])
        file, offset, size = written.places[-1]
        written.disk.flip_bit(file, offset + place)
        before = written.disk.files.read(file, offset, size)
        with pytest.raises(StorageDamaged, match=f"file {file}, offset {offset}: its last record was written whole"):
            recovered(written.disk)
        assert written.disk.files.read(file, offset, size) == before


def test_a_last_record_of_which_a_sector_is_missing_is_cut() -> None:
    written = Written([b"one", b"two" * 200])
    file, offset, size = written.places[-1]
    written.tear()
    assert last_index(written.disk) == 1
    assert written.disk.files.read(file, offset, size) == bytes(size), "the cut is made of zeros"


def test_any_damage_before_the_last_record_is_refused_and_named() -> None:
    size = Written([b"one", b"two", b"three"]).places[0][2]
    for place in range(size):
        written = Written([b"one", b"two", b"three"])
        file, offset, _ = written.places[0]
        written.disk.flip_bit(file, offset + place)
        with pytest.raises(StorageDamaged, match=f"file {file}, offset {offset}") as raised:
            recovered(written.disk)
        assert raised.value.details == {"file": file, "offset": offset}


def test_damage_in_an_earlier_segment_is_refused_because_of_the_later_one() -> None:
    for record in range(8):
        written = Written([bytes([n]) * 200 for n in range(9)])
        file, offset, _ = written.places[record]
        written.disk.flip_bit(file, offset + 100)
        with pytest.raises(StorageDamaged, match=f"file {file}, offset {offset}"):
            recovered(written.disk)


def test_a_missing_segment_in_the_middle_is_refused() -> None:
    written = Written([bytes([n]) * 200 for n in range(12)])
    written.disk.files.remove(2)
    with pytest.raises(StorageDamaged, match="file 1"):
        recovered(written.disk)


def test_zeros_in_place_of_a_durable_record_are_damage_too() -> None:
    written = Written([b"one", b"two", b"three"])
    file, offset, size = written.places[1]
    written.disk.files.write(file, offset, [bytes(size)])
    with pytest.raises(StorageDamaged):
        recovered(written.disk)


def test_a_torn_record_behind_damage_still_proves_the_damage() -> None:
    """The last record's payload never arrived, but its head says how far the journal was durable."""
    written = Written([b"one", b"two" * 50])
    file, offset, _ = written.places[0]
    last_file, last_offset, last_size = written.places[1]
    written.disk.flip_bit(file, offset + 20)
    written.disk.files.write(last_file, last_offset + last_size - 100, [bytes(100)])
    with pytest.raises(StorageDamaged):
        recovered(written.disk)


def test_the_first_record_of_a_new_segment_may_be_torn() -> None:
    written = Written([b"a" * 600, b"b" * 600])
    assert written.places[1][0] == 2
    written.tear()
    again = recovered(written.disk)
    assert again.state(1).last_index == 1
    assert file_of(again.journal_position) == 1, "what fits goes on in the first segment"
    assert written.disk.files.read(2, HEADER_BYTES, 100) == bytes(100)
    commit = again.begin_commit([CommitItem(1, None, [EntryIn(2, 1, 1, b"c" * 600)])])
    assert (commit.file, commit.create) == (2, None), "and what does not, in the one that was emptied"


def test_the_first_record_of_a_new_segment_may_be_damaged() -> None:
    written = Written([b"a" * 600, b"b" * 600])
    written.disk.flip_bit(2, HEADER_BYTES + 300)
    with pytest.raises(StorageDamaged, match="file 2, offset 64"):
        recovered(written.disk)


def test_a_whole_record_that_does_not_follow_is_refused() -> None:
    """It was written when the journal ended elsewhere: nothing that Lanner does leaves it there."""
    written = Written([b"a" * 300, b"b" * 600])
    stale = written.disk.files.read(2, HEADER_BYTES, SEGMENT - HEADER_BYTES)
    written.disk.files.write(2, HEADER_BYTES, [bytes(len(stale))])
    again = recovered(written.disk)
    commit = again.begin_commit([CommitItem(1, None, [EntryIn(2, 1, 1, b"c")])])
    assert commit.file == 1
    perform(commit, written.disk.files)
    written.disk.files.write(2, HEADER_BYTES, [stale])
    with pytest.raises(StorageDamaged, match="file 2, offset 64"):
        recovered(written.disk)


def test_a_first_record_that_is_torn_in_its_payload_with_another_behind_it_is_damage() -> None:
    written = Written([b"a" * 600, b"b" * 300, b"c" * 300])
    file, offset, size = written.places[1]
    assert (file, written.places[2][0]) == (2, 2)
    written.disk.flip_bit(file, offset + size - 1)
    with pytest.raises(StorageDamaged, match="file 2, offset 64"):
        recovered(written.disk)


def test_a_stale_record_behind_a_cut_never_comes_back() -> None:
    """Two commits reach the disk without a sync between them (a disk that lies); the first is torn."""
    written = Written([b"one"])
    first = written.ledger.begin_commit([CommitItem(1, None, [EntryIn(2, 1, 1, b"x" * 600)])])
    perform(first, written.disk.files)
    written.disk.files.write(first.file, first.offset, [bytes(512 - first.offset)])
    assert last_index(written.disk) == 1
    again = recovered(written.disk)
    commit = again.begin_commit([CommitItem(1, None, [EntryIn(2, 1, 1, b"y")])])
    assert commit.offset == first.offset
    perform(commit, written.disk.files)
    third = recovered(written.disk)
    assert third.state(1).last_index == 2
    assert third.recovery.torn_bytes_cut == 0


def test_a_segment_prepared_ahead_is_used_after_a_restart() -> None:
    written = Written([b"a" * 600], prepared=True)
    again = recovered(written.disk)
    commit = again.begin_commit([CommitItem(1, None, [EntryIn(2, 1, 1, b"b" * 600)])])
    assert (commit.file, commit.create) == (2, None)
    perform(commit, written.disk.files)
    again.commit_synced(commit)
    assert last_index(written.disk) == 2


def test_an_empty_segment_that_was_passed_over_is_no_gap() -> None:
    written = Written([b"a" * 600])
    preparation = written.ledger.prepare()
    assert preparation is not None
    written.commit(b"b" * 600)
    assert written.places[-1][0] == preparation.file + 1
    written.disk.files.create(*preparation[:3])
    written.commit(b"c")
    assert last_index(written.disk) == 3


def test_a_file_whose_creation_was_interrupted_is_empty_and_harmless() -> None:
    written = Written([b"a" * 600])
    written.disk.files.create(2, SEGMENT, b"")
    assert last_index(written.disk) == 1
    again = recovered(written.disk)
    commit = again.begin_commit([CommitItem(1, None, [EntryIn(2, 1, 1, b"b" * 600)])])
    assert commit.file == 3, "its id is never used again"


def test_a_file_with_a_broken_header_and_something_in_it_is_damage() -> None:
    written = Written([b"a" * 600, b"b" * 600])
    written.disk.flip_bit(2, 20)
    with pytest.raises(StorageDamaged, match="header of file 2"):
        recovered(written.disk)


def test_replay_must_find_the_file_it_starts_in() -> None:
    disk = SimDisk()
    with pytest.raises(StorageDamaged, match=r"file 7, offset 100.*missing"):
        replay(disk.files, [], position_at(7, 100), lambda record: None)
    assert replay(disk.files, [], position_at(7, HEADER_BYTES), lambda record: None).position == position_at(
        7, HEADER_BYTES
    )


def test_reading_only_neither_cuts_nor_deletes() -> None:
    written = Written([b"one", b"two" * 200])
    file, offset, size = written.places[-1]
    written.disk.files.write(file, offset, [bytes(512 - offset)])
    before = written.disk.files.read(file, offset, size)
    ledger = Ledger.recover(
        written.disk.files, written.disk.table, random_bytes=bytes, segment_bytes=SEGMENT, read_only=True
    )
    assert ledger.state(1).last_index == 1
    assert ledger.recovery.torn_bytes_cut == size
    assert written.disk.files.read(file, offset, size) == before


def test_replay_starts_at_the_position_and_not_before() -> None:
    written = Written([b"one", b"two", b"three"])
    seen: list[RecordHead] = []
    file, offset, _ = written.places[1]
    result = replay(written.disk.files, [(file, SEGMENT)], position_at(file, offset), seen.append)
    assert [offset_of(record.position) for record in seen] == [place[1] for place in written.places[1:]]
    assert result.records == 2
