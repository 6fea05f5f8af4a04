"""What only a real disk can do wrong: short writes, errors of the system, descriptors, LMDB's own failures."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lmdb
import pytest

from lanner.errors import StorageDamaged, StorageFailed, StorageFull
from lanner.storage import DiskFiles, LmdbTable
from lanner.storage import disk as module


@pytest.fixture
def files(tmp_path: Path) -> Iterator[DiskFiles]:
    made = DiskFiles(tmp_path / "journal")
    yield made
    made.close()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[LmdbTable]:
    made = LmdbTable(tmp_path / "table")
    yield made
    made.close()


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_files_are_named_by_their_number_and_strangers_are_ignored(files: DiskFiles, tmp_path: Path) -> None:
    files.create(7, 100, b"")
    (tmp_path / "journal" / "notes.txt").write_text("mine")
    (tmp_path / "journal" / "7.journal").write_text("not twelve digits")
    assert files.list() == [(7, 100)]
    assert (tmp_path / "journal" / "000000000007.journal").exists()


def test_a_created_file_takes_its_room_at_once(files: DiskFiles, tmp_path: Path) -> None:
    files.create(1, 1 << 20, b"")
    assert (tmp_path / "journal" / "000000000001.journal").stat().st_blocks * 512 >= 1 << 20


def test_a_file_system_that_cannot_reserve_still_serves(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.EOPNOTSUPP))
    files.create(1, 1_000, b"head")
    assert files.list() == [(1, 1_000)]


def test_a_file_system_that_does_not_know_where_data_is_has_it_looked_for(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.create(1, 1_000, b"head")
    with monkeypatch.context() as patch:
        patch.setattr(os, "lseek", failing(errno.EINVAL))
        assert files.next_data(1, 500) == 500
    with monkeypatch.context() as patch:
        patch.setattr(os, "lseek", failing(errno.EIO))
        with pytest.raises(StorageFailed):
            files.next_data(1, 500)


def test_short_writes_are_continued(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev

    def short(descriptor: int, buffers: Sequence[bytes], offset: int) -> int:
        data = b"".join(buffers)
        return whole(descriptor, [data[:7]], offset)

    files.create(1, 1_000, b"")
    monkeypatch.setattr(os, "pwritev", short)
    files.write(1, 3, [b"abc", b"defghij", b"k" * 20, b"l"])
    assert files.read(1, 3, 31) == b"abcdefghij" + b"k" * 20 + b"l"


def test_short_reads_are_continued(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pread
    files.create(1, 1_000, b"abcdefghijklmnop")
    monkeypatch.setattr(os, "pread", lambda descriptor, length, offset: whole(descriptor, min(length, 5), offset))
    assert files.read(1, 0, 16) == b"abcdefghijklmnop"
    assert files.read(1, 990, 100) == bytes(10)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_in_a_write_is_not_final(files: DiskFiles, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    files.create(1, 1_000, b"")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing(number))
        with pytest.raises(StorageFull, match="free some space"):
            files.write(1, 0, [b"x"])
    files.write(1, 0, [b"x"])
    assert files.read(1, 0, 1) == b"x"


def test_no_room_for_a_new_file_leaves_no_file(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        with pytest.raises(StorageFull):
            files.create(1, 1_000, b"")
    assert files.list() == []
    files.create(1, 1_000, b"")


def test_after_a_failed_sync_everything_is_refused(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.create(1, 1_000, b"")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        with pytest.raises(StorageFailed, match="broker stops"):
            files.sync(1)
    for call in (
        lambda: files.sync(1),
        lambda: files.write(1, 0, [b"x"]),
        lambda: files.read(1, 0, 1),
        lambda: files.create(2, 10, b""),
        lambda: files.truncate(1, 1),
        lambda: files.remove(1),
        files.list,
    ):
        with pytest.raises(StorageFailed, match=r"syncing 000000000001\.journal failed"):
            call()


def test_opening_makes_the_names_of_files_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who made them may have been killed before that."""
    synced: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(_identity(os.fstat(descriptor))))
    DiskFiles(tmp_path).close()
    assert synced == [_identity(tmp_path.stat())]


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


@pytest.mark.parametrize("call", ["fsync", "pwritev", "open"])
def test_any_other_error_in_creating_is_final(files: DiskFiles, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.EIO))
        with pytest.raises(StorageFailed):
            files.create(1, 100, b"head")
    with pytest.raises(StorageFailed):
        files.create(1, 100, b"head")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("pread", lambda files: files.read(1, 0, 1)),
        ("ftruncate", lambda files: files.truncate(1, 1)),
        ("pwritev", lambda files: files.write(1, 0, [b"x"])),
    ],
)
def test_errors_of_the_disk_are_final(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[DiskFiles], None]
) -> None:
    files.create(1, 100, b"head")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing(errno.EIO))
        with pytest.raises(StorageFailed):
            call(files)


def test_a_file_that_cannot_be_opened_or_removed_is_an_error_of_the_disk(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.create(1, 100, b"head")
    monkeypatch.setattr(Path, "unlink", failing(errno.EROFS))
    with pytest.raises(StorageFailed, match="removing"):
        files.remove(1)
    monkeypatch.undo()
    again = DiskFiles(tmp_path / "journal")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(errno.EACCES))
        with pytest.raises(StorageFailed, match="opening"):
            again.read(1, 0, 1)
    again.close()


def test_many_files_need_few_descriptors(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_open_files_max", 4)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 20):
        files.create(number, 10, b"%d" % number)
    assert [files.read(number, 0, 2).rstrip(b"\x00") for number in range(1, 20)] == [b"%d" % n for n in range(1, 20)]
    assert len(os.listdir("/proc/self/fd")) <= before + 5


def test_closed_files_refuse_and_give_their_descriptors_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    files = DiskFiles(tmp_path / "journal")
    files.create(1, 10, b"")
    files.close()
    with pytest.raises(StorageFailed, match="closed"):
        files.read(1, 0, 1)
    del files
    assert len(os.listdir("/proc/self/fd")) == before


# ------------------------------------------------------------------ the table


def test_the_file_format_is_chosen_not_defaulted(table: LmdbTable) -> None:
    assert table._environment.lib_version()[:2] == (0, 9)


def test_rows_are_bytes_that_outlive_the_transaction(table: LmdbTable) -> None:
    table.commit({b"k": b"v"})
    assert type(table.get(b"k")) is bytes
    assert [(type(key), type(value)) for key, value in table.scan(b"", b"z")] == [(bytes, bytes)]


def test_rows_survive_closing(tmp_path: Path) -> None:
    table = LmdbTable(tmp_path / "table")
    table.commit({b"k": b"v"})
    table.close()
    with pytest.raises(StorageFailed, match="closed"):
        table.get(b"k")
    with pytest.raises(StorageFailed, match="closed"):
        list(table.scan(b"", b"z"))
    again = LmdbTable(tmp_path / "table")
    assert again.get(b"k") == b"v"
    again.close()


def test_a_table_that_is_none_or_was_cut_is_damaged(tmp_path: Path) -> None:
    table = LmdbTable(tmp_path / "table")
    table.commit({b"%06d" % number: b"v" * 100 for number in range(10_000)})
    table.close()
    data = (tmp_path / "table" / "data.mdb").read_bytes()
    for rubbish in (b"no table" * 1_000, data[: 16 * 1024], data[: 2 * 4_096]):
        (tmp_path / "table" / "data.mdb").write_bytes(rubbish)
        with pytest.raises(StorageDamaged, match=r"the table in .* cannot be read"):
            LmdbTable(tmp_path / "table")


def test_a_table_that_the_system_refuses_to_open_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "table" / "data.mdb").mkdir(parents=True)
    with pytest.raises(IsADirectoryError) as refusal:
        LmdbTable(tmp_path / "table")
    assert refusal.value.filename == str(tmp_path / "table")


def test_a_full_table_is_not_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAP_BYTES", (1 << 16, 1 << 16))
    table = LmdbTable(tmp_path / "table")
    with pytest.raises(StorageFull, match="free some space"):
        table.commit({b"k%d" % n: b"v" * 1_000 for n in range(200)})
    assert table.get(b"k1") is None, "nothing of it is there"
    table.commit({b"k": b"v"})
    table.close()


class BrokenEnvironment:
    """An environment whose transactions fail as LMDB reports it."""

    def __init__(self, error: lmdb.Error) -> None:
        self._error = error

    def begin(self, **_: object) -> None:
        raise self._error

    def close(self) -> None:
        pass


class CodedError(lmdb.Error):
    """An error of LMDB with its number."""

    def __init__(self, code: int) -> None:
        super().__init__(f"mdb_txn_commit: {os.strerror(code)}")
        self.code = code  # type: ignore[misc]


def test_a_commit_that_fails_is_final_but_not_when_the_disk_is_full(
    table: LmdbTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = table._environment
    table._environment = BrokenEnvironment(CodedError(errno.ENOSPC))  # type: ignore[assignment]
    with pytest.raises(StorageFull):
        table.commit({b"k": b"v"})
    table._environment = BrokenEnvironment(CodedError(errno.EIO))  # type: ignore[assignment]
    with monkeypatch.context() as patch:
        patch.setattr(module, "FULL_BYTES", 1 << 60)  # a write cut short for lack of room is EIO, too
        with pytest.raises(StorageFull):
            table.commit({b"k": b"v"})
    with pytest.raises(StorageFailed, match="broker stops"):
        table.commit({b"k": b"v"})
    table._environment = environment
    with pytest.raises(StorageFailed):
        table.commit({b"k": b"v"})


def test_a_small_address_space_gets_a_smaller_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real = module._open_with_map

    def limited(directory: Path, map_bytes: int) -> lmdb.Environment:
        opened.append(map_bytes)
        if map_bytes > 1 << 36:
            raise lmdb.MemoryError("mdb_env_open", errno.ENOMEM)
        return real(directory, map_bytes)

    monkeypatch.setattr(module, "_open_with_map", limited)
    LmdbTable(tmp_path / "one").close()
    assert opened == [1 << 40, 1 << 38, 1 << 36]
    opened.clear()
    monkeypatch.setattr(module, "MAP_BYTES", (1 << 38, 1 << 20))
    LmdbTable(tmp_path / "two").close()
    assert opened == [1 << 38, 1 << 20]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_storage_gives_up_files_it_does_not_use_when_the_process_has_no_descriptors_left(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for file_id in (1, 2):
        files.create(file_id, 4_096, b"head")
    opened = os.open

    def starved(path: Any, *more: Any, **named: Any) -> int:
        if files._handles:
            raise OSError(number, os.strerror(number))
        return opened(path, *more, **named)

    monkeypatch.setattr(module.os, "open", starved)
    files.create(3, 4_096, b"head")
    files.write(3, 4, [b"more"])
    assert bytes(files.read(1, 0, 4)) == b"head"
