from __future__ import annotations

import pytest

from lanner.raft import Entry, EntryKind, HardState, Restored
from lanner.raft.log import Tail
from tests.unit.raft.storage import StoredLog


def make_tail() -> Tail:
    """Compacted to 2 (term 1), 3 and 4 only on disk (term 2), 5 and 6 in memory (term 3)."""
    log = StoredLog()
    log.stored = {index: Entry(index, 2, EntryKind.NORMAL, b"disk") for index in (3, 4)}
    restored = Restored(
        HardState(3, 1), frozenset({1}), compacted_index=2, compacted_term=1, last_index=4, last_term=2, applied_index=2
    )
    tail = Tail(restored, log)
    tail.append(3, EntryKind.NORMAL, b"memory")
    tail.append(3, EntryKind.NORMAL, b"memory!")
    return tail


def test_the_term_of_an_index_is_known_wherever_the_entry_lies() -> None:
    tail = make_tail()
    assert [tail.term(index) for index in range(2, 7)] == [1, 2, 2, 3, 3]


@pytest.mark.parametrize("index", [1, 7])
def test_the_term_of_an_index_outside_the_log_is_refused(index: int) -> None:
    with pytest.raises(KeyError, match="the log holds 3 to 6"):
        make_tail().term(index)


def test_entries_are_handed_out_to_be_stored_once() -> None:
    tail = make_tail()
    assert [entry.index for entry in tail.hand_out()] == [5, 6]
    assert tail.hand_out() == []


def test_delivery_goes_from_disk_to_memory_without_a_gap_and_forgets_what_is_done() -> None:
    tail = make_tail()
    tail.hand_out()
    tail.durable_index = 6
    assert [entry.index for entry in tail.deliver(6, 1_000)] == [3, 4]
    assert tail.size(5, 6) == 13
    assert [entry.index for entry in tail.deliver(5, 1_000)] == [5]
    assert [entry.index for entry in tail.deliver(6, 1_000)] == [6]
    assert tail.deliver(6, 1_000) == []
    assert tail.size(5, 6) == 0
