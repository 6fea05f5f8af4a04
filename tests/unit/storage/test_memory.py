from __future__ import annotations

from lanner.storage import MemoryFiles, MemoryTable


def test_memory_has_the_room_it_was_given() -> None:
    files = MemoryFiles(total_bytes=1_000)
    files.create(1, 400, b"")
    assert files.free_bytes() == (600, 1_000)
    files.create(2, 900, b"")
    assert files.free_bytes() == (0, 1_000)


def test_what_is_closed_is_forgotten() -> None:
    files, table = MemoryFiles(), MemoryTable({b"a": b"1"})
    files.create(1, 400, b"")
    files.close()
    table.close()
    assert files.list() == []
    assert list(table.scan(b"", b"z")) == []


def test_reserved_bytes_take_no_memory_until_they_are_written() -> None:
    files = MemoryFiles()
    files.create(1, 1 << 35, b"head")
    assert files.read(1, 1 << 34, 4) == bytes(4)


def test_a_table_keeps_copies() -> None:
    value = bytearray(b"one")
    table = MemoryTable()
    table.commit({b"k": value})
    value[:] = b"two"
    assert table.get(b"k") == b"one"
