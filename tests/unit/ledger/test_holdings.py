from __future__ import annotations

import pytest

from lanner.errors import StorageDamaged
from lanner.ledger import FileInfo, FileState
from lanner.ledger.holdings import Holdings
from lanner.ledger.records import FileKind
from lanner.ledger.rows import bytes_key, decode_bytes, decode_file, file_key

SEGMENT = 1_000


def holdings(*files: tuple[int, FileKind, int, int]) -> Holdings:
    """(file id, kind, size, live), all sealed."""
    made = Holdings(SEGMENT)
    for file_id, kind, size, live in files:
        made.add(FileInfo(file_id, kind, FileState.SEALED, size))
        if live:
            made.credit(1, 1, file_id, live)
    return made


def test_live_bytes_are_kept_per_set_and_file() -> None:
    made = holdings((1, FileKind.JOURNAL, 1_000, 300), (2, FileKind.JOURNAL, 1_000, 0))
    made.credit(2, 1, 1, 50)
    made.credit(1, 1, 1, -100)
    assert (made.live_bytes, made.files[1].live, made.files[2].live, made.share(1, 1, 1)) == (250, 250, 0, 200)
    made.check({(1, 1, 1): 200, (2, 1, 1): 50})
    with pytest.raises(AssertionError):
        made.check({(1, 1, 1): 200})
    with pytest.raises(AssertionError):
        made.credit(1, 1, 1, -201)


def test_removing_a_set_frees_all_it_held() -> None:
    made = holdings((1, FileKind.JOURNAL, 1_000, 300), (2, FileKind.JOURNAL, 1_000, 200))
    made.credit(2, 1, 1, 50)
    made.take_rows()
    made.credit(1, 1, 1, 5)
    made.forget(1, 1)
    made.forget(7, 7)
    made.check({(2, 1, 1): 50})
    rows = made.take_rows()
    assert bytes_key(1, 1, 1) not in rows, "the set's own rows are taken away with all the others it has"
    row = rows[file_key(1)]
    assert row is not None
    assert decode_file(file_key(1), row).live == 50


def test_rows_are_those_that_changed() -> None:
    made = holdings((1, FileKind.JOURNAL, 1_000, 300), (2, FileKind.KEPT, 10, 0))
    rows = made.take_rows()
    assert set(rows) == {file_key(1), file_key(2), bytes_key(1, 1, 1)}
    row = rows[bytes_key(1, 1, 1)]
    assert row is not None
    assert decode_bytes(bytes_key(1, 1, 1), row) == 300
    assert not made.has_dirty
    made.credit(1, 1, 1, -300)
    made.remove(2)
    made.mark(1, FileState.SEALED)  # as it is
    assert made.take_rows() == {
        file_key(1): b"\x01\x01\x02" + (1_000).to_bytes(8, "little") + bytes(8),
        bytes_key(1, 1, 1): None,
        file_key(2): None,
    }


def test_only_files_that_nothing_needs_are_dead() -> None:
    made = holdings(
        (1, FileKind.JOURNAL, 1_000, 0),
        (2, FileKind.JOURNAL, 1_000, 5),
        (3, FileKind.KEPT, 1_000, 0),
        (4, FileKind.JOURNAL, 1_000, 0),
        (5, FileKind.JOURNAL, 1_000, 0),
        (9, FileKind.KEPT, 1_000, 0),
    )
    made.mark(5, FileState.OPEN)
    assert made.dead_files(position_file=4) == [1, 3, 9], "replay starts in 4"


def test_nothing_is_rewritten_while_there_is_room() -> None:
    made = holdings(*((n, FileKind.JOURNAL, 1_000, 100) for n in range(1, 5)))
    assert made.file_bytes == 4_000 <= 1.5 * 400 + 4 * SEGMENT
    assert made.candidate(99) is None


def test_the_file_with_most_dead_bytes_is_rewritten_first() -> None:
    made = holdings(*((n, FileKind.JOURNAL, 1_000, 100 + (n - 5) ** 2) for n in range(1, 9)))
    assert made.candidate(99) == 5
    assert made.candidate(99, unmovable={5}) in (4, 6)
    assert made.candidate(5) == 4, "only what replay will not need"


def test_files_that_go_by_themselves_are_not_counted() -> None:
    made = holdings(*((n, FileKind.JOURNAL, 1_000, 0) for n in range(1, 9)), (9, FileKind.JOURNAL, 1_000, 100))
    assert made.candidate(99) is None


def test_a_file_that_is_nearly_all_live_is_left_alone() -> None:
    made = holdings(*((n, FileKind.JOURNAL, 1_000, 900) for n in range(1, 3)))
    for n in range(10, 18):
        made.add(FileInfo(n, FileKind.JOURNAL, FileState.OPEN, 1_000))
    assert made.file_bytes > 1.5 * made.live_bytes + 4 * SEGMENT
    assert made.candidate(99) is None


def test_small_kept_files_are_merged_once_they_are_many() -> None:
    few = holdings(*((n, FileKind.KEPT, 100, 50) for n in range(1, 8)))
    assert few.small_files() == []
    many = holdings(*((n, FileKind.KEPT, 100, 50) for n in range(1, 9)), (9, FileKind.KEPT, 500, 50))
    assert many.small_files() == list(range(1, 9))


def test_a_missing_file_is_one_that_a_set_holds_bytes_in() -> None:
    made = holdings((1, FileKind.JOURNAL, 1_000, 0), (2, FileKind.KEPT, 1_000, 5))
    with pytest.raises(StorageDamaged) as caught:
        made.match({}, 1)
    assert caught.value.details["file"] == 2
    assert made.match({2: 1_000}, 3) == ()


def test_loading_counts_what_the_shares_say() -> None:
    made = Holdings(SEGMENT)
    made.load(FileInfo(1, FileKind.JOURNAL, FileState.SEALED, 1_000, live=999))
    made.load_share(1, 1, 1, 40)
    made.load_share(1, 1, 2, 2)
    assert (made.files[1].live, made.live_bytes) == (40, 42)
    assert not made.has_dirty
