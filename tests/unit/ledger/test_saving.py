from __future__ import annotations

import pytest

from lanner.ledger import Save, SetState
from lanner.ledger.rows import decode_set, machine_prefix, set_key
from lanner.ledger.saving import Rows
from lanner.ledger.seals import seal, unseal
from lanner.storage import MemoryTable

PREFIX = machine_prefix(1, 1)


def save_of(state: SetState) -> Save:
    return Save(0, 0, {}, [], [], 0, {state.set_id: state})


def test_a_save_writes_the_machines_rows_under_the_sets_prefix_and_the_index_it_stands_at() -> None:
    save = save_of(SetState(1, 1, saved_index=2, last_index=9))
    save.add_set(1, 5, {b"a": b"1", b"b": None})
    assert save.puts[PREFIX + b"a"] == seal(PREFIX + b"a", b"1")
    assert save.puts[PREFIX + b"b"] is None
    row = save.puts[set_key(1)]
    assert row is not None
    assert decode_set(set_key(1), unseal(set_key(1), row)).saved_index == 5


@pytest.mark.parametrize("index", [1, 10])
def test_a_machine_can_neither_go_back_nor_be_ahead_of_its_log(index: int) -> None:
    with pytest.raises(ValueError, match="cannot be saved"):
        save_of(SetState(1, 1, saved_index=2, last_index=9)).add_set(1, index, {})


def test_rows_come_from_the_save_on_its_way_and_else_from_the_table() -> None:
    table = MemoryTable({PREFIX + b"a": b"old", PREFIX + b"b": b"old", PREFIX + b"d": b"old", b"z": b"other"})
    saving: list[Save] = []
    rows = Rows(table, PREFIX, lambda: saving[0] if saving else None)
    assert rows.get(b"a") == b"old"
    assert list(rows.scan(b"", b"\xff")) == [(b"a", b"old"), (b"b", b"old"), (b"d", b"old")]
    save = save_of(SetState(1, 1, last_index=9))
    saving.append(save)
    assert list(rows.scan(b"b", b"c")) == [(b"b", b"old")]
    save.add_set(1, 5, {b"0": b"new", b"a": b"new", b"b": None, b"c": b"new", b"c1": None, b"e": b"new", b"f": None})
    assert (rows.get(b"a"), rows.get(b"b"), rows.get(b"d"), rows.get(b"x")) == (b"new", None, b"old", None)
    assert list(rows.scan(b"", b"\xff")) == [
        (b"0", b"new"),
        (b"a", b"new"),
        (b"c", b"new"),
        (b"d", b"old"),
        (b"e", b"new"),
    ]
    assert list(rows.scan(b"a", b"d")) == [(b"a", b"new"), (b"c", b"new")]


def test_a_save_without_rows_of_a_set_changes_nothing_for_it() -> None:
    table = MemoryTable({PREFIX + b"a": b"old"})
    save = save_of(SetState(2, 2, last_index=9))
    save.add_set(2, 5, {b"a": b"theirs"})
    rows = Rows(table, PREFIX, lambda: save)
    assert rows.get(b"a") == b"old"
    assert list(rows.scan(b"", b"b")) == [(b"a", b"old")]
    assert save.sorted_keys(PREFIX) == []
