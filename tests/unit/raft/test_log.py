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


def test_a_tail_is_taken_back_from_memory_and_from_disk_and_never_what_was_applied() -> None:
    tail = make_tail()
    tail.hand_out()
    tail.truncate(6)
    assert (tail.last_index, tail.last_term, tail.handed_index) == (5, 3, 5)
    tail.truncate(4)
    assert (tail.last_index, tail.last_term, tail.durable_index) == (3, 2, 3)
    tail.stored()
    assert tail.durable_index == 3
    with pytest.raises(ValueError, match="cannot take back"):
        tail.truncate(2)


def test_entries_that_leave_a_gap_are_refused() -> None:
    with pytest.raises(ValueError, match="does not follow 6"):
        make_tail().extend([Entry(8, 3, EntryKind.NORMAL, b"")])


def test_a_snapshot_replaces_everything_and_voids_what_is_on_its_way() -> None:
    tail = make_tail()
    tail.hand_out()
    tail.restore(40, 9)
    tail.stored()
    assert (tail.compacted_index, tail.last_index, tail.durable_index, tail.term(40)) == (40, 40, 40, 9)
    assert tail.append(9, EntryKind.NORMAL, b"x") == 41


def test_what_peers_need_is_kept_within_a_bound() -> None:
    log = StoredLog()
    tail = Tail(Restored(HardState(0, 0), frozenset({1})), log, kept_bytes_max=25)
    tail.keep(1)
    for _ in range(6):
        tail.append(1, EntryKind.NORMAL, b"x" * 10)
    tail.hand_out()
    tail.stored()
    assert len(tail.deliver(6, 1_000)) == 6
    assert [entry.index for entry in tail.pick(5, 10, 1_000)] == [5, 6]
    assert [entry.index for entry in tail.pick(5, 10, 10)] == [5]
    assert tail.pick(7, 10, 10) == []
    with pytest.raises(KeyError):
        tail.pick(4, 1, 10)
    tail.keep(6)
    assert [entry.index for entry in tail.pick(6, 10, 1_000)] == [6]
    assert (tail.term(5), log.reads) == (1, 1)


def test_two_logs_may_agree_up_to_the_last_entry_that_is_not_of_a_later_term() -> None:
    tail = make_tail()
    assert tail.last_not_after(99, 9) == (6, 3)
    assert tail.last_not_after(6, 2) == (4, 2)
    assert tail.last_not_after(6, 0) == (2, 1)
    assert tail.last_not_after(1, 5) == (1, 0)
