from __future__ import annotations

import pytest

from lanner.errors import StorageDamaged
from lanner.ledger import Location, read_entries, read_entry
from lanner.ledger.records import (
    CHANGE,
    ENTRY,
    HEADER_BYTES,
    RECORD_END,
    RECORD_MAGIC,
    VOTE,
    Change,
    FileKind,
    RecordReader,
    crc32c,
    decode_file_header,
    encode_file_header,
    encode_head,
    file_of,
    offset_of,
    position_at,
    show_position,
)
from lanner.storage import MemoryFiles

SALT = 77


def file_with(*records: bytes, size: int = 4_096) -> MemoryFiles:
    files = MemoryFiles()
    files.create(3, size, encode_file_header(FileKind.JOURNAL, SALT, 3, size))
    files.write(3, HEADER_BYTES, list(records))
    return files


def record(offset: int, payloads: list[bytes], *, set_id: int = 1, first: int = 1, salt: int = SALT) -> bytes:
    position = position_at(3, offset)
    headers = [
        ENTRY.pack(set_id, first + place, 5, 2, len(payload), crc32c(payload), 1)
        for place, payload in enumerate(payloads)
    ]
    changes = [CHANGE.pack(1, 2, Change.ADDED)]
    votes = [VOTE.pack(1, 5, 9, 2)]
    size = sum(map(len, payloads))
    return (
        encode_head(FileKind.JOURNAL, salt, position, position, size, changes, votes, headers)
        + b"".join(payloads)
        + RECORD_END
    )


def test_a_position_is_ordered_by_file_and_then_by_offset() -> None:
    assert position_at(1, 4_000_000_000) < position_at(2, 0)
    assert (file_of(position_at(7, 9)), offset_of(position_at(7, 9))) == (7, 9)
    assert show_position(position_at(7, 9)) == "file 7, offset 9"


def test_a_file_header_survives_the_round_trip_and_belongs_to_one_file() -> None:
    data = encode_file_header(FileKind.KEPT, SALT, 3, 4_096)
    header = decode_file_header(data, 3)
    assert header is not None
    assert header == (FileKind.KEPT, SALT, 3, 4_096)
    assert decode_file_header(data, 4) is None
    assert decode_file_header(data[:-1], 3) is None


def test_no_flipped_bit_of_a_file_header_goes_unseen() -> None:
    data = encode_file_header(FileKind.JOURNAL, SALT, 3, 4_096)
    for place in range(36):
        broken = bytearray(data)
        broken[place] ^= 1
        assert decode_file_header(bytes(broken), 3) is None


@pytest.mark.parametrize(("place", "value"), [(8, 2), (10, 9)])
def test_a_file_of_a_later_release_is_refused_by_name(place: int, value: int) -> None:
    data = bytearray(encode_file_header(FileKind.JOURNAL, SALT, 3, 4_096))
    data[place] = value
    data[32:36] = crc32c(bytes(data[:32])).to_bytes(4, "little")
    with pytest.raises(StorageDamaged, match="does not know"):
        decode_file_header(bytes(data), 3)


def test_a_record_gives_back_what_was_put_in() -> None:
    files = file_with(record(HEADER_BYTES, [b"one", b"", b"three"]))
    reader = RecordReader(files, 3, 4_096, SALT)
    head = reader.head_at(HEADER_BYTES)
    assert head is not None
    assert head.changes == [(1, 2, Change.ADDED)]
    assert head.votes == [(1, 5, 9, 2)]
    assert [entry[1] for entry in head.entries] == [1, 2, 3]
    assert reader.payloads_match(head)
    ((set_id, generation, run),) = head.runs()
    assert (set_id, generation, run.first_index, run.file) == (1, 2, 1, 3)
    places = [Location(3, *place) for place in zip(run.offsets, run.lengths, run.crcs, strict=True)]
    assert read_entries(files, places) == [b"one", b"", b"three"]


def test_a_set_that_comes_twice_in_a_record_is_read_as_runs_of_neighbours() -> None:
    position = position_at(3, HEADER_BYTES)
    headers = [ENTRY.pack(1, index, 1, 1, 0, 0, 1) for index in (5, 6, 5)]
    files = file_with(encode_head(FileKind.JOURNAL, SALT, position, position, 0, (), (), headers))
    head = RecordReader(files, 3, 4_096, SALT).head_at(HEADER_BYTES)
    assert head is not None
    assert [run.first_index for _, _, run in head.runs()] == [5, 6, 5]


def test_no_flipped_bit_of_a_record_goes_unseen() -> None:
    whole = record(HEADER_BYTES, [b"payload", b"another"])
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 0x10
        reader = RecordReader(file_with(bytes(broken)), 3, 4_096, SALT)
        head = reader.head_at(HEADER_BYTES)
        assert head is None or not reader.payloads_match(head), f"byte {place}"


def test_a_record_is_valid_only_in_its_place_and_under_its_salt() -> None:
    moved = record(HEADER_BYTES + 8, [b"payload"])
    assert RecordReader(file_with(moved), 3, 4_096, SALT).head_at(HEADER_BYTES) is None
    foreign = record(HEADER_BYTES, [b"payload"], salt=SALT + 1)
    assert RecordReader(file_with(foreign), 3, 4_096, SALT).head_at(HEADER_BYTES) is None


def test_a_length_beyond_the_file_is_not_believed() -> None:
    position = position_at(3, HEADER_BYTES)
    huge = encode_head(FileKind.JOURNAL, SALT, position, position, 0xFFFF_FFFF, (), (), ())
    assert RecordReader(file_with(huge), 3, 4_096, SALT).head_at(HEADER_BYTES) is None


def test_a_record_that_lists_fewer_bytes_than_it_claims_does_not_match() -> None:
    position = position_at(3, HEADER_BYTES)
    longer = encode_head(FileKind.JOURNAL, SALT, position, position, 10, (), (), ())
    reader = RecordReader(file_with(longer), 3, 4_096, SALT)
    head = reader.head_at(HEADER_BYTES)
    assert head is not None
    assert not reader.payloads_match(head)


def test_a_record_of_a_later_release_is_refused_by_name() -> None:
    data = bytearray(record(HEADER_BYTES, []))
    data[4] = 9
    data[40:44] = crc32c(bytes(data[:40]), SALT).to_bytes(4, "little")
    crc = crc32c(bytes(data[48:]), crc32c(bytes(data[:44]), SALT))
    data[44:48] = crc.to_bytes(4, "little")
    with pytest.raises(StorageDamaged, match="version 9"):
        RecordReader(file_with(bytes(data)), 3, 4_096, SALT).head_at(HEADER_BYTES)


@pytest.mark.parametrize("window_bytes", [16, 61, 4_096])
def test_records_are_found_behind_garbage_wherever_the_windows_end(window_bytes: int) -> None:
    garbage = RECORD_MAGIC + b"\x01" * 37
    first = record(HEADER_BYTES + len(garbage), [b"x" * 50])
    second = record(HEADER_BYTES + len(garbage) + len(first), [b"y"], first=2)
    reader = RecordReader(file_with(garbage, first, second), 3, 4_096, SALT, window_bytes)
    found = [offset_of(head.position) for head in reader.heads_from(HEADER_BYTES)]
    assert found == [HEADER_BYTES + len(garbage), HEADER_BYTES + len(garbage) + len(first)]
    assert reader.data_end(HEADER_BYTES) == HEADER_BYTES + len(garbage) + len(first) + len(second)


def test_a_file_of_zeros_has_no_data_and_a_file_cut_short_ends_where_it_ends() -> None:
    files = file_with()
    assert RecordReader(files, 3, 4_096, SALT).data_end(HEADER_BYTES) == HEADER_BYTES
    files.truncate(3, 100)
    assert RecordReader(files, 3, 4_096, SALT).data_end(HEADER_BYTES) == HEADER_BYTES
    assert RecordReader(files, 3, 4_096, SALT).head_at(90) is None


def test_a_damaged_entry_is_reported_with_its_place_and_a_next_step() -> None:
    files = file_with(b"abc")
    with pytest.raises(StorageDamaged, match=r"file 3 at offset 64.*replaced by itself"):
        read_entry(files, Location(3, HEADER_BYTES, 3, crc32c(b"abd")))
    with pytest.raises(StorageDamaged):
        read_entry(files, Location(3, 4_094, 3, crc32c(b"")))
    assert read_entry(files, Location(3, HEADER_BYTES, 3, crc32c(b"abc"))) == b"abc"


def test_neighbours_are_read_at_once_but_never_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanner.ledger.records.READ_BYTES_MAX", 5)
    files = file_with(b"aabbccdd")
    reads: list[tuple[int, int]] = []
    read = files.read

    def counted(file_id: int, offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return read(file_id, offset, length)

    monkeypatch.setattr(files, "read", counted)
    places = [Location(3, HEADER_BYTES + 2 * n, 2, crc32c(bytes([97 + n]) * 2)) for n in range(4)]
    assert read_entries(files, [*places, places[0]]) == [b"aa", b"bb", b"cc", b"dd", b"aa"]
    assert reads == [(64, 4), (68, 4), (64, 2)]
