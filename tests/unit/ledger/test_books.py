from __future__ import annotations

from collections.abc import Sequence

import pytest

from lanner.errors import StorageDamaged
from lanner.ledger import FileInfo, FileState
from lanner.ledger.books import PURGED_ROWS_MAX, Books
from lanner.ledger.chunk import Run
from lanner.ledger.records import Change, FileKind, RecordHead, position_at
from lanner.ledger.rows import machine_prefix, removed_key, set_key
from lanner.storage import MemoryTable


@pytest.fixture
def table() -> MemoryTable:
    return MemoryTable()


@pytest.fixture
def books(table: MemoryTable) -> Books:
    made = Books(table, 1_000, 1)
    made.holdings.add(FileInfo(1, FileKind.JOURNAL, FileState.OPEN, 1_000_000))
    return made


def run(first: int, count: int) -> Run:
    return Run(first, 1, [64] * count, [10] * count, [0] * count, [1] * count, [1] * count)


def record(
    *,
    changes: Sequence[tuple[int, int, int]] = (),
    votes: Sequence[tuple[int, int, int, int]] = (),
    entries: Sequence[tuple[int, int, int]] = (),
) -> RecordHead:
    """entries: set, generation, index."""
    headers = [(set_id, index, 1, generation, 10, 0, 1) for set_id, generation, index in entries]
    return RecordHead(position_at(1, 64), 0, list(changes), list(votes), headers, 64, 64 + 10 * len(headers))


def save(books: Books, table: MemoryTable) -> None:
    puts, chunks, purged = books.take_rows()
    assert not books.encode_some(1_000)
    table.commit(puts)
    books.settle(chunks, purged)


def loaded(table: MemoryTable) -> Books:
    again = Books(table, 1_000, 1)
    again.load()
    again.check()
    return again


def test_what_was_saved_is_what_is_loaded(books: Books, table: MemoryTable) -> None:
    books.add(1, 1)
    books.add(2, 2)
    books.vote(2, 2, 7, 9)
    books.append(1, 1, run(1, 600))
    books.log(1).keep(3)
    save(books, table)
    assert not books.has_changes
    again = loaded(table)
    assert again.states == books.states
    assert again.holdings.live_bytes == books.holdings.live_bytes
    assert again.log(1).find(600) is not None
    books.check()


def test_a_set_is_added_once_and_asked_for_by_name(books: Books) -> None:
    books.add(1, 5)
    assert books.next_generation == 6
    with pytest.raises(ValueError, match="exists already"):
        books.add(1, 6)
    with pytest.raises(KeyError, match="replica set 9"):
        books.log(9)


def test_entries_and_votes_of_another_generation_are_nobodys(books: Books) -> None:
    books.add(1, 5)
    books.append(1, 4, run(1, 1))
    books.vote(1, 4, 9, 9)
    assert (books.log(1).state.last_index, books.log(1).state.term) == (0, 0)


def test_a_removed_set_takes_all_its_rows_with_it(books: Books, table: MemoryTable) -> None:
    books.add(1, 1)
    books.append(1, 1, run(1, 600))
    save(books, table)
    table.commit({machine_prefix(1, 1) + b"row": b"x"})
    books.remove(1)
    assert books.holdings.live_bytes == 0
    save(books, table)
    assert not books.has_changes
    assert [key for key, _ in table.scan(b"", b"\xff") if key[:1] not in (b"g",)] == []


def test_many_rows_go_a_bounded_number_at_a_time_also_after_a_restart(books: Books, table: MemoryTable) -> None:
    books.add(1, 1)
    books.add(2, 2)
    books.append(2, 2, run(1, 3))
    save(books, table)
    prefix = machine_prefix(1, 1)
    table.commit({prefix + b"%06d" % n: b"x" for n in range(2 * PURGED_ROWS_MAX)})
    books.remove(1)
    puts, chunks, purged = books.take_rows()
    assert not books.encode_some(1_000)
    assert sum(value is None for key, value in puts.items() if key.startswith(b"s")) == PURGED_ROWS_MAX
    table.commit(puts)
    books.settle(chunks, purged)
    assert table.get(removed_key(1, 1)) is not None
    again = loaded(table)
    assert list(again.states) == [2]
    for _ in range(4):
        save(again, table)
    assert list(table.scan(prefix, prefix + b"\xff")) == []
    assert table.get(removed_key(1, 1)) is None
    assert not again.has_changes


def test_a_set_that_is_added_again_is_another_generation_and_inherits_nothing(books: Books, table: MemoryTable) -> None:
    books.add(1, 1)
    books.append(1, 1, run(1, 5))
    save(books, table)
    books.remove(1)
    books.add(1, books.next_generation)
    save(books, table)
    again = loaded(table)
    assert (again.states[1].generation, again.states[1].last_index) == (2, 0)
    assert table.get(set_key(1)) is not None


def test_replay_makes_what_the_commits_made(books: Books) -> None:
    books.replay(
        record(
            changes=[(1, 1, Change.ADDED), (2, 2, Change.ADDED)], votes=[(1, 4, 5, 1)], entries=[(1, 1, 1), (1, 1, 2)]
        )
    )
    assert (books.log(1).state.term, books.log(1).state.vote, books.log(1).state.last_index) == (4, 5, 2)
    books.replay(record(changes=[(1, 1, Change.REMOVED)], entries=[(2, 2, 1)]))
    assert list(books.states) == [2]
    books.check()


def test_replaying_what_the_table_knows_already_changes_nothing(books: Books) -> None:
    books.add(1, 1)
    books.add(2, 2)
    books.remove(2)
    books.replay(
        record(changes=[(1, 1, Change.ADDED), (2, 2, Change.ADDED), (2, 2, Change.REMOVED)], entries=[(2, 2, 1)])
    )
    assert list(books.states) == [1]


def test_a_record_that_does_not_follow_the_log_is_damage(books: Books) -> None:
    books.add(1, 1)
    with pytest.raises(StorageDamaged, match="entry 2 of replica set 1"):
        books.replay(record(entries=[(1, 1, 2)]))


def test_the_check_notices_a_missing_entry(books: Books) -> None:
    books.add(1, 1)
    books.append(1, 1, run(1, 5))
    chunk, slot = books.log(1).find(3) or pytest.fail("entry 3 is gone")
    chunk.clear(slot)
    with pytest.raises(AssertionError):
        books.check()
