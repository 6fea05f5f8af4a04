from __future__ import annotations

import pytest

from lanner.errors import StorageDamaged
from lanner.ledger import FileInfo, FileState, SetState
from lanner.ledger.records import FileKind
from lanner.ledger.rows import (
    JOURNAL_KEY,
    JournalRow,
    bytes_key,
    chunk_key,
    decode_bytes,
    decode_file,
    decode_journal,
    decode_set,
    encode_bytes,
    encode_file,
    encode_journal,
    encode_set,
    file_key,
    machine_prefix,
    numbers_in_key,
    ranges_of_set,
    removed_key,
    set_key,
)


def test_every_row_survives_the_round_trip() -> None:
    state = SetState(4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
    assert decode_set(set_key(4), encode_set(state, 10)) == state
    assert decode_journal(encode_journal(JournalRow(1, 2, 3))) == (1, 2, 3)
    info = FileInfo(9, FileKind.KEPT, FileState.SEALED, 100, 50)
    assert decode_file(file_key(9), encode_file(info)) == info
    assert decode_bytes(bytes_key(1, 2, 3), encode_bytes(77)) == 77


def test_a_set_saved_by_a_release_that_knew_one_broker_is_that_of_the_first_replica() -> None:
    row = encode_set(SetState(4, 5, 6, 7, 8, 9, 10, 11, 12, 13), 10)[:-8]
    assert decode_set(set_key(4), row) == SetState(4, 5, 6, 7, 8, 9, 10, 11, 12, 1)


def test_keys_sort_by_number_and_give_their_numbers_back() -> None:
    assert chunk_key((1, 2, 255)) < chunk_key((1, 2, 256)) < chunk_key((1, 3, 0)) < chunk_key((256, 0, 0))
    assert numbers_in_key(chunk_key((1, 2, 3))) == (1, 2, 3)
    assert numbers_in_key(removed_key(1, 2)) == (1, 2)
    assert numbers_in_key(file_key(8)) == (8,)
    with pytest.raises(StorageDamaged):
        numbers_in_key(b"what")


def test_the_ranges_of_a_set_hold_its_rows_and_no_others() -> None:
    ranges = ranges_of_set(1, 2)

    def owned(key: bytes) -> bool:
        return any(start <= key < stop for start, stop in ranges)

    assert owned(chunk_key((1, 2, 2**64 - 1)))
    assert owned(bytes_key(1, 2, 0))
    assert owned(machine_prefix(1, 2) + b"\xff" * 100)
    assert not owned(chunk_key((1, 3, 0)))
    assert not owned(machine_prefix(2, 2))
    assert not owned(set_key(1))


@pytest.mark.parametrize("row", [b"", b"\x01", encode_journal(JournalRow(1, 2, 3)) + b"x"])
def test_a_row_of_the_wrong_size_is_damage(row: bytes) -> None:
    with pytest.raises(StorageDamaged, match="does not decode"):
        decode_journal(row)


def test_a_row_of_a_later_release_says_so() -> None:
    row = b"\x02" + encode_journal(JournalRow(1, 2, 3))[1:]
    with pytest.raises(StorageDamaged, match="version 2"):
        decode_journal(row)
    assert JOURNAL_KEY == b"j"


def test_a_file_row_with_an_unknown_state_is_damage() -> None:
    row = bytearray(encode_file(FileInfo(9, FileKind.KEPT, FileState.SEALED, 100, 50)))
    row[2] = 99
    with pytest.raises(StorageDamaged):
        decode_file(file_key(9), bytes(row))
