from __future__ import annotations

import pytest

from lanner.ledger import CommitItem, EntryIn, Preparation, SetState
from lanner.ledger.journal import COMMIT_BYTES_MAX, Commit, Journal, perform, perform_preparation
from lanner.ledger.records import HEADER_BYTES, file_of, offset_of, position_at
from lanner.storage import MemoryFiles


def journal(segment_bytes: int = 1_000) -> Journal:
    return Journal(bytes, segment_bytes, position_at(1, HEADER_BYTES), 1)


def entries(first: int, *payloads: bytes) -> list[EntryIn]:
    return [EntryIn(first + place, 3, 1, payload) for place, payload in enumerate(payloads)]


def begin(made: Journal, *payloads: bytes) -> Commit:
    return made.begin([CommitItem(1, None, entries(1, *payloads))] if payloads else [], {1: SetState(1, 1)}, ())


def done(made: Journal, *payloads: bytes) -> Commit:
    commit = begin(made, *payloads)
    made.synced(commit)
    return commit


def test_the_first_commit_creates_the_first_segment() -> None:
    commit = begin(journal(), b"abc")
    assert commit.create is not None
    assert commit.create[:2] == (1, 1_000)
    assert (commit.file, commit.offset, commit.size) == (1, HEADER_BYTES, 48 + 40 + 3 + 1)
    assert commit.end == position_at(1, HEADER_BYTES + commit.size)


def test_payloads_are_handed_on_and_not_copied() -> None:
    payload = b"x" * 500
    assert begin(journal(), payload).buffers[1] is payload


def test_commits_follow_each_other_and_roll_when_there_is_no_room() -> None:
    made = journal()
    first = done(made, b"a" * 400)
    second = done(made, b"b" * 300)
    assert (second.file, second.offset, second.create) == (1, offset_of(first.end), None)
    third = begin(made, b"c" * 400)
    assert third.create is not None
    assert (third.file, third.offset) == (2, HEADER_BYTES)


def test_a_commit_larger_than_a_segment_gets_a_segment_of_its_size() -> None:
    made = journal()
    commit = done(made, b"a" * 5_000)
    assert commit.create is not None
    assert commit.create[1] == HEADER_BYTES + commit.size
    assert done(made, b"b").file == 2


def test_a_commit_beyond_all_bounds_is_refused_and_nothing_has_changed() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return COMMIT_BYTES_MAX

    made = journal()
    with pytest.raises(ValueError, match="too large"):
        begin(made, Huge())
    assert done(made, b"a").file == 1


def test_one_commit_is_in_flight_at_a_time_and_ends_as_itself() -> None:
    made = journal()
    commit = begin(made, b"a")
    with pytest.raises(RuntimeError, match="one at a time"):
        begin(made, b"b")
    made.synced(commit)
    with pytest.raises(RuntimeError, match="not the one"):
        made.synced(commit)


def test_entries_must_be_neighbours_and_fit_the_log() -> None:
    state = SetState(1, 1, compacted_index=3, last_index=5)
    for bad in (entries(3, b"x"), entries(7, b"x"), [*entries(6, b"x"), *entries(8, b"y")]):
        with pytest.raises(ValueError, match=r"does not fit|gap"):
            journal().begin([CommitItem(1, None, bad)], {1: state}, ())
    journal().begin([CommitItem(1, None, entries(4, b"x"))], {1: state}, ())


def test_a_set_may_come_twice_in_one_commit() -> None:
    states = {1: SetState(1, 1, last_index=5), 2: SetState(2, 1)}
    items = [
        CommitItem(1, None, entries(6, b"a", b"b")),
        CommitItem(2, (4, 4), entries(1, b"c")),
        CommitItem(1, None, entries(8, b"d")),
        CommitItem(1, None, entries(8, b"e")),
    ]
    commit = journal().begin(items, states, ())
    assert [(set_id, run.first_index, len(run.offsets)) for set_id, _, run in commit.runs] == [
        (1, 6, 2),
        (2, 1, 1),
        (1, 8, 1),
        (1, 8, 1),
    ]
    assert commit.votes == [(2, 1, 4, 4)]
    last = commit.staged(1, 8)
    assert last is not None
    assert last.location.offset == commit.runs[-1][2].offsets[0]
    middle = commit.staged(1, 7)
    assert middle is None or middle.index == 7


def test_staged_entries_are_found_and_what_they_replace_is_not() -> None:
    states = {1: SetState(1, 1, last_index=9)}
    commit = journal().begin([CommitItem(1, None, entries(5, b"new"))], states, ())
    found = commit.staged(1, 5)
    assert found is not None
    assert (found.term, found.kind, found.location.length) == (3, 1, 3)
    assert commit.staged(1, 4) is None
    assert commit.staged(2, 5) is None
    with pytest.raises(KeyError):
        commit.staged(1, 6)


def test_a_prepared_segment_spares_the_commit_the_creation() -> None:
    made = journal()
    files = MemoryFiles()
    done(made, b"a" * 700)
    preparation = made.prepare()
    assert preparation is not None
    assert made.prepare() is None, "one is on its way"
    perform_preparation(preparation, files)
    assert made.preparation_ended(preparation, created=True)
    assert made.prepare() is None, "one is ready"
    commit = begin(made, b"b" * 700)
    assert (commit.file, commit.create) == (preparation.file, None)
    perform(commit, files)


def test_a_prepared_segment_that_the_journal_has_passed_is_not_used() -> None:
    made = journal()
    preparation = made.prepare()
    assert preparation is not None
    assert done(made, b"a").file == preparation.file + 1
    assert not made.preparation_ended(preparation, created=True)
    assert made.spare is None


def test_a_prepared_segment_that_is_too_small_is_passed_over_for_good() -> None:
    made = journal()
    done(made, b"a")
    preparation = made.prepare()
    assert preparation is not None
    made.preparation_ended(preparation, created=True)
    assert done(made, b"b" * 5_000).file == preparation.file + 1
    assert done(made, b"c").file == preparation.file + 2


def test_a_preparation_that_failed_can_be_tried_again() -> None:
    made = journal()
    preparation = made.prepare()
    assert isinstance(preparation, Preparation)
    assert not made.preparation_ended(preparation, created=False)
    again = made.prepare()
    assert again is not None
    assert again.file > preparation.file


def test_performing_a_commit_again_does_not_create_its_segment_again() -> None:
    made, files = journal(), MemoryFiles()
    commit = begin(made, b"a")
    perform(commit, files)
    files.write(1, 900, [b"mark"])
    perform(commit, files)
    assert files.read(1, 900, 4) == b"mark"
    assert file_of(commit.end) == 1
