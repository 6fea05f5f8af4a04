from __future__ import annotations

from lanner.ledger.chunk import Run
from lanner.ledger.rows import chunk_key
from lanner.ledger.shelf import Shelf
from lanner.storage import MemoryTable


def filled(shelf: Shelf, number: int) -> None:
    shelf.open((1, 1, number)).extend(Run(0, 1, [0], [5], [0], [1], [1]))


def save(shelf: Shelf, table: MemoryTable) -> None:
    puts: dict[bytes, bytes | None] = {}
    chunks = shelf.take_dirty(puts)
    assert not shelf.encode_some(1_000)
    table.commit(puts)
    shelf.settle(chunks)


def test_what_changed_stays_however_much_it_is() -> None:
    shelf = Shelf(MemoryTable(), clean_max=2)
    for number in range(10):
        filled(shelf, number)
    assert shelf.resident == 10
    assert shelf.has_dirty


def test_of_what_is_saved_only_the_most_recently_used_stay_and_the_rest_comes_back_from_the_table() -> None:
    table = MemoryTable()
    shelf = Shelf(table, clean_max=2)
    for number in range(5):
        filled(shelf, number)
    save(shelf, table)
    assert shelf.resident == 2
    assert not shelf.has_dirty
    assert shelf.find((1, 1, 3)) is not None  # 3 is now more recent than 4
    again = shelf.find((1, 1, 0))
    assert again is not None
    assert again.lengths[0] == 5
    assert shelf.find((1, 1, 3)) is not None
    assert shelf.resident == 2
    assert shelf.find((1, 1, 99)) is None


def test_a_chunk_that_changes_while_it_is_saved_is_not_let_go() -> None:
    table = MemoryTable()
    shelf = Shelf(table, clean_max=0)
    filled(shelf, 1)
    chunks = shelf.take_dirty({})
    changed = shelf.open((1, 1, 1))
    changed.wanted[0] = 1
    shelf.settle(chunks)
    assert shelf.resident == 1
    assert shelf.take_dirty({}) == [changed]


def test_what_is_encoded_later_shows_the_moment_when_it_was_taken() -> None:
    table = MemoryTable()
    shelf = Shelf(table)
    for number in range(4):
        filled(shelf, number)
    expected = {chunk_key((1, 1, number)): shelf.open((1, 1, number)).encode() for number in range(4)}
    puts: dict[bytes, bytes | None] = {}
    shelf.take_dirty(puts)
    assert puts == {}
    assert shelf.encode_some(1)
    assert len(puts) == 1
    for number in range(3):
        shelf.open((1, 1, number)).clear(0)  # a change, before or after its turn
    assert len(puts) == 3
    shelf.forget(1, 1)
    assert puts == expected
    assert not shelf.encode_some(1)


def test_an_empty_chunk_is_forgotten_once_its_row_is_gone() -> None:
    table = MemoryTable()
    shelf = Shelf(table)
    filled(shelf, 1)
    save(shelf, table)
    chunk = shelf.open((1, 1, 1))
    chunk.clear(0)
    save(shelf, table)
    assert shelf.resident == 0
    assert table.get(chunk_key((1, 1, 1))) is None


def test_a_removed_set_leaves_nothing_even_in_a_save_under_way() -> None:
    table = MemoryTable()
    shelf = Shelf(table)
    filled(shelf, 1)
    saving = shelf.take_dirty({})
    filled_other = shelf.open((2, 1, 0))
    shelf.forget(1, 1)
    shelf.settle(saving)
    assert shelf.resident == 1
    assert shelf.take_dirty({}) == [filled_other]
