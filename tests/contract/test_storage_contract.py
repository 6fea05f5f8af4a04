"""One suite for every adapter of the ledger's ports: disk, memory, and the simulated disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from lanner.ledger import (
    CommitItem,
    EntryIn,
    FileMissing,
    Files,
    Ledger,
    Table,
    perform,
    perform_preparation,
    read_entries,
)
from lanner.storage import DiskFiles, LmdbTable, MemoryFiles, MemoryTable
from lanner.testing.disk import SimDisk


@pytest.fixture(params=["disk", "memory", "simulated"])
def ports(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Files, Table]]:
    files: Files
    table: Table
    if request.param == "disk":
        files, table = DiskFiles(tmp_path / "journal"), LmdbTable(tmp_path / "table")
    elif request.param == "memory":
        files, table = MemoryFiles(), MemoryTable()
    else:
        disk = SimDisk()
        files, table = disk.files, disk.table
    yield files, table
    files.close()
    table.close()


@pytest.fixture
def files(ports: tuple[Files, Table]) -> Files:
    return ports[0]


@pytest.fixture
def table(ports: tuple[Files, Table]) -> Table:
    return ports[1]


# ------------------------------------------------------------------ files


def test_a_created_file_has_its_size_its_header_and_zeros(files: Files) -> None:
    files.create(12, 10_000, b"header")
    files.create(3, 100, b"x")
    assert files.list() == [(3, 100), (12, 10_000)]
    assert files.read(12, 0, 10) == b"header\x00\x00\x00\x00"
    assert files.read(12, 9_990, 100) == bytes(10), "shorter at the end"
    assert files.read(12, 10_000, 5) == b""
    assert files.read(12, 20_000, 5) == b""


def test_a_header_larger_than_the_size_makes_the_size(files: Files) -> None:
    files.create(1, 0, b"header")
    assert files.list() == [(1, 6)]


def test_creating_again_starts_from_nothing(files: Files) -> None:
    files.create(1, 100, b"one")
    files.write(1, 50, [b"left over"])
    files.create(1, 60, b"two")
    assert files.list() == [(1, 60)]
    assert files.read(1, 0, 60) == b"two" + bytes(57)


def test_buffers_land_one_behind_the_other(files: Files) -> None:
    files.create(1, 1_000, b"")
    files.write(1, 10, [b"ab", b"", memoryview(b"cdef")[1:3], b"g"])
    files.sync(1)
    assert files.read(1, 9, 7) == b"\x00abdeg\x00"


def test_thousands_of_buffers_go_in_one_call(files: Files) -> None:
    files.create(1, 100_000, b"")
    buffers = [b"%05d" % number for number in range(5_000)]
    files.write(1, 64, buffers)
    assert files.read(1, 64, 25_000) == b"".join(buffers)


def test_a_write_beyond_the_end_makes_the_file_longer(files: Files) -> None:
    files.create(1, 10, b"")
    files.write(1, 20, [b"x"])
    assert files.list() == [(1, 21)]
    assert files.read(1, 0, 100) == bytes(20) + b"x"


def test_a_file_can_be_cut(files: Files) -> None:
    files.create(1, 100, b"abcdef")
    files.truncate(1, 3)
    files.sync(1)
    assert files.list() == [(1, 3)]
    assert files.read(1, 0, 10) == b"abc"


def test_a_removed_file_is_gone_and_removing_it_again_is_no_error(files: Files) -> None:
    files.create(1, 100, b"abc")
    files.remove(1)
    files.remove(1)
    assert files.list() == []
    for call in (
        lambda: files.read(1, 0, 3),
        lambda: files.write(1, 0, [b"x"]),
        lambda: files.sync(1),
        lambda: files.truncate(1, 0),
    ):
        with pytest.raises(FileMissing):
            call()


def test_the_room_on_the_disk_is_known(files: Files) -> None:
    free, total = files.free_bytes()
    assert 0 < free <= total


def test_readers_in_other_threads_see_whole_writes_that_are_done(files: Files) -> None:
    files.create(1, 100_000, b"")
    for number in range(100):
        files.write(1, number * 100, [bytes([number]) * 100])
    wrong: list[int] = []

    def read() -> None:
        for number in range(100):
            if files.read(1, number * 100, 100) != bytes([number]) * 100:
                wrong.append(number)

    threads = [Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(100, 200):
        files.write(1, number * 100, [bytes([number]) * 100])
        files.sync(1)
    for thread in threads:
        thread.join()
    assert wrong == []


# ------------------------------------------------------------------ table


def test_rows_are_put_replaced_and_deleted_together(table: Table) -> None:
    table.commit({b"a": b"1", b"b": b"2", b"c": b""})
    table.commit({b"a": b"9", b"b": None, b"missing": None})
    assert (table.get(b"a"), table.get(b"b"), table.get(b"c"), table.get(b"d")) == (b"9", None, b"", None)
    table.commit({})


def test_a_scan_is_in_the_order_of_bytes_and_ends_before_its_stop(table: Table) -> None:
    table.commit({key: key * 2 for key in (b"b", b"a\xff", b"a", b"\x00", b"c", b"ba")})
    assert list(table.scan(b"a", b"c")) == [(b"a", b"aa"), (b"a\xff", b"a\xffa\xff"), (b"b", b"bb"), (b"ba", b"baba")]
    assert list(table.scan(b"d", b"z")) == []
    assert list(table.scan(b"b", b"b")) == []


def test_a_long_scan_gives_every_row_once(table: Table) -> None:
    table.commit({b"%06d" % number: b"v" for number in range(2_500)})
    assert [int(key) for key, _ in table.scan(b"000010", b"002490")] == list(range(10, 2_490))


def test_a_row_stays_what_it_was_when_the_table_changes(table: Table) -> None:
    table.commit({b"a": b"x" * 5_000})
    row = table.get(b"a")
    scanned = table.scan(b"a", b"b")
    for number in range(20):
        table.commit({b"a": bytes([number]) * 5_000, b"b%d" % number: b"y" * 5_000})
    assert row == b"x" * 5_000
    assert [key for key, _ in scanned] == [b"a"]


# ------------------------------------------------------------------ the ledger over both


def test_a_ledger_commits_saves_rewrites_and_recovers_on_every_storage(files: Files, table: Table) -> None:
    segment_bytes = 32_768
    rng = Random(4)

    def recovered() -> Ledger:
        return Ledger.recover(files, table, random_bytes=rng.randbytes, segment_bytes=segment_bytes)

    ledger = recovered()
    ledger.add_set(1)
    payloads = {index: rng.randbytes(rng.randint(0, 2_000)) for index in range(1, 401)}
    for first in range(1, 401, 10):
        entries = [EntryIn(index, 1, 1, payloads[index]) for index in range(first, first + 10)]
        commit = ledger.begin_commit([CommitItem(1, (1, 1), entries)])
        perform(commit, files)
        ledger.commit_synced(commit)
        for index in range(first, first + 10, 5):
            ledger.keep(1, index)
        if preparation := ledger.prepare():
            perform_preparation(preparation, files)
            ledger.prepared(preparation)
        save = ledger.begin_save()
        save.add_set(1, first + 9, {b"applied": b"%d" % (first + 9)})
        table.commit(save.puts)
        ledger.saved(save)
        ledger.compact(1, first + 9)
        if (candidate := ledger.rewrite_candidate()) is not None:
            rewrite = ledger.plan_rewrite(candidate)
            while not rewrite.done:
                rewrite.read(files)
                rewrite.choose(ledger)
                rewrite.write(files, lambda set_id, payload, kept: payload)
            ledger.rewritten(rewrite)
        for file_id in ledger.droppable():
            files.remove(file_id)
            ledger.dropped(file_id)
    again = recovered()
    again.check()
    wanted = range(1, 401, 5)
    assert read_entries(files, [again.locate(1, index) for index in wanted]) == [payloads[index] for index in wanted]
    assert again.rows(1).get(b"applied") == b"400"
    assert sum(size for _, size in files.list()) <= 1.5 * again.live_bytes + 6 * segment_bytes


def test_data_behind_an_offset_is_found_and_nothing_else_is_looked_for(files: Files) -> None:
    files.create(1, 4 << 20, b"header")
    files.write(1, 2 << 20, [b"x" * 100])
    files.sync(1)
    found = files.next_data(1, 100_000)
    assert found is not None and found <= 2 << 20
    found = files.next_data(1, 2 << 20)
    assert found == 2 << 20
    files.read(1, 3 << 20, 1 << 20)  # looking at what is reserved does not make it data
    behind = files.next_data(1, (3 << 20) + 1)
    assert behind is None or files.read(1, behind, 1 << 20).strip(b"\x00") == b""
