from __future__ import annotations

import pytest

from lanner.ledger import FileInfo, FileState, Location, SetState
from lanner.ledger.chunk import Part, Run
from lanner.ledger.holdings import Holdings
from lanner.ledger.records import ENTRY_HEADER_BYTES, FileKind
from lanner.ledger.setlog import SetLog
from lanner.ledger.shelf import Shelf
from lanner.storage import MemoryTable

SIZE = 100
HELD = SIZE + ENTRY_HEADER_BYTES


@pytest.fixture
def holdings() -> Holdings:
    made = Holdings(1_000)
    for file_id in (1, 2, 3):
        made.add(FileInfo(file_id, FileKind.JOURNAL, FileState.SEALED, 1_000_000))
    return made


@pytest.fixture
def log(holdings: Holdings) -> SetLog:
    return SetLog(SetState(1, 1), Shelf(MemoryTable()), holdings)


def append(log: SetLog, first: int, count: int, *, file: int = 1, term: int = 1) -> None:
    numbers = range(first, first + count)
    log.append(Run(first, file, [n * SIZE for n in numbers], [SIZE] * count, [0] * count, [term] * count, [1] * count))


def live(log: SetLog, index: int) -> bool:
    return log.find(index) is not None


def test_a_log_grows_over_many_chunks(log: SetLog, holdings: Holdings) -> None:
    append(log, 1, 700)
    append(log, 701, 1, file=2, term=3)
    assert (log.state.last_index, log.state.last_term) == (701, 3)
    assert log.locate(600) == Location(1, 600 * SIZE, SIZE, 0)
    assert log.stored(701)[:3] == (701, 3, 1)
    assert (log.term(700), log.term(701)) == (1, 3)
    assert holdings.share(1, 1, 1) == 700 * HELD
    with pytest.raises(KeyError):
        log.locate(702)


def test_an_entry_at_an_index_discards_what_was_there_and_behind(log: SetLog, holdings: Holdings) -> None:
    append(log, 1, 600)
    log.keep(400)
    append(log, 300, 2, file=2, term=5)
    assert log.state.last_index == 301
    assert (log.term(299), log.term(300), log.term(301)) == (1, 5, 5)
    assert not live(log, 302)
    assert not live(log, 600)
    assert (holdings.share(1, 1, 1), holdings.share(1, 1, 2)) == (299 * HELD, 2 * HELD)


def test_compaction_lets_go_of_what_the_machine_does_not_want(log: SetLog, holdings: Holdings) -> None:
    append(log, 1, 600)
    for index in (5, 300, 599):
        log.keep(index)
    log.compact(550)
    assert [index for index in range(1, 601) if live(log, index)] == [5, 300, *range(551, 601)]
    assert holdings.live_bytes == 52 * HELD
    assert log.term(550) == 1, "the compacted term is remembered"
    log.compact(550)
    log.compact(10)
    assert log.state.compacted_index == 550


def test_whole_chunks_of_dead_and_of_wanted_entries_cost_no_walk(log: SetLog, holdings: Holdings) -> None:
    append(log, 256, 512)
    for index in range(512, 768):
        log.keep(index)
    log.compact(767)
    assert holdings.live_bytes == 256 * HELD
    assert not live(log, 300)
    assert live(log, 512)


def test_compaction_counts_each_file_for_itself(log: SetLog, holdings: Holdings) -> None:
    append(log, 1, 10, file=1)
    append(log, 11, 10, file=2)
    log.compact(15)
    assert (holdings.share(1, 1, 1), holdings.share(1, 1, 2)) == (0, 5 * HELD)
    append(log, 21, 30, file=3)
    log.release(18)
    log.compact(40)
    assert (holdings.share(1, 1, 2), holdings.share(1, 1, 3)) == (0, 10 * HELD)


def test_a_released_entry_goes_at_once_below_compacted_and_else_with_compaction(
    log: SetLog, holdings: Holdings
) -> None:
    append(log, 1, 10)
    log.keep(3)
    log.keep(8)
    log.compact(5)
    log.release(3)
    assert not live(log, 3)
    log.release(3)
    log.release(2)
    log.release(8)
    assert live(log, 8), "Raft may still ask for it"
    log.compact(9)
    assert holdings.live_bytes == HELD


def test_of_an_entry_wanted_in_part_the_rest_is_dead_once_raft_let_go(log: SetLog, holdings: Holdings) -> None:
    append(log, 1, 4)
    log.keep(2)
    log.keep_part(2, Part(b"k", 30))
    assert holdings.live_bytes == 4 * HELD
    log.compact(3)
    assert holdings.live_bytes == HELD + 30 + ENTRY_HEADER_BYTES
    log.keep_part(2, Part(b"k", 10))
    assert holdings.live_bytes == HELD + 10 + ENTRY_HEADER_BYTES
    log.keep_part(2, Part(b"k", 10_000))
    assert holdings.live_bytes == HELD + HELD, "never more than there is"
    log.release(2)
    assert holdings.live_bytes == HELD
    log.keep_part(2, Part(b"k", 5))
    assert holdings.live_bytes == HELD, "what is gone stays gone"


def test_a_wanted_part_above_compacted_can_be_released(log: SetLog, holdings: Holdings) -> None:
    append(log, 1, 2)
    log.keep_part(2, Part(b"k", 30))
    log.release(2)
    log.compact(2)
    assert holdings.live_bytes == 0


def test_keeping_what_is_not_there_is_an_error(log: SetLog) -> None:
    with pytest.raises(KeyError):
        log.keep(7)


def test_keeping_twice_is_keeping_once(log: SetLog, holdings: Holdings) -> None:
    append(log, 1, 1)
    log.keep(1)
    log.keep(1)
    log.compact(1)
    assert holdings.live_bytes == HELD


def test_an_entry_moves_only_from_where_it_was_copied(log: SetLog, holdings: Holdings) -> None:
    append(log, 1, 3)
    log.move(2, Location(2, 2 * SIZE, SIZE, 0), Location(3, 64, SIZE, 9), None)
    log.move(9, Location(1, 9 * SIZE, SIZE, 0), Location(3, 64, SIZE, 9), None)
    assert log.locate(2).file == 1
    log.move(2, Location(1, 2 * SIZE, SIZE, 0), Location(3, 64, SIZE, 9), None)
    assert log.locate(2) == Location(3, 64, SIZE, 9)
    assert (holdings.share(1, 1, 1), holdings.share(1, 1, 3)) == (2 * HELD, HELD)


def test_after_a_part_was_copied_its_size_is_no_longer_an_estimate(log: SetLog, holdings: Holdings) -> None:
    append(log, 1, 2)
    estimate = Part(b"k", 0)
    log.keep_part(1, estimate)
    log.compact(2)
    chunk, slot = log.find(1) or pytest.fail("entry 1 is gone")
    assert log.wanted_part(1, chunk, slot) is estimate
    log.move(1, Location(1, SIZE, SIZE, 0), Location(3, 64, 40, 9), estimate)
    assert holdings.live_bytes == 40 + ENTRY_HEADER_BYTES


def test_a_part_that_shrank_while_it_was_copied_keeps_its_own_estimate(log: SetLog, holdings: Holdings) -> None:
    append(log, 1, 2)
    copied = Part(b"k", 50)
    log.keep_part(1, copied)
    log.compact(2)
    log.keep_part(1, Part(b"", 5))
    log.move(1, Location(1, SIZE, SIZE, 0), Location(3, 64, 60, 9), copied)
    assert holdings.live_bytes == 5 + ENTRY_HEADER_BYTES


def test_raft_gets_the_whole_entry_while_it_may_ask_for_it(log: SetLog) -> None:
    append(log, 1, 2)
    log.keep_part(1, Part(b"k", 0))
    chunk, slot = log.find(1) or pytest.fail("entry 1 is gone")
    assert log.wanted_part(1, chunk, slot) is None


def test_a_run_is_kept_over_the_border_of_two_chunks_and_none_of_it_may_be_missing(
    log: SetLog, holdings: Holdings
) -> None:
    append(log, 1, 600)
    log.keep(200, 520)
    log.keep(300, 310)
    log.keep(9, 8)
    log.compact(599)
    assert [index for index in range(1, 600) if live(log, index)] == list(range(200, 521))
    assert holdings.live_bytes == 322 * HELD
    for first, last in ((521, 521), (199, 201), (600, 601), (601, 601)):
        with pytest.raises(KeyError):
            log.keep(first, last)
