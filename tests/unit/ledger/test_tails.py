"""What lies behind the last valid record: torn, and cut; or damaged, and refused. Never the one for the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from random import Random
from struct import pack, unpack

import pytest
from crc32c import crc32c

from lanner.errors import StorageDamaged
from lanner.ledger import CommitItem, EntryIn, Ledger, perform
from lanner.ledger.records import ENTRY, HEADER_BYTES, RecordHead, RecordReader, offset_of, position_at
from lanner.ledger.replay import read_header, replay
from lanner.ledger.tails import SECTOR_BYTES, Tail, judge
from lanner.storage import MemoryFiles, MemoryTable

SECTOR = SECTOR_BYTES
SEGMENT = 24_576
RNG = Random(1)


class Journal:
    """A journal whose last record begins at a place of our choice, and the bytes of that record."""

    def __init__(self, payloads: Sequence[bytes], *, at: int = 400, vote: bool = False, version: int = 2) -> None:
        self.files = MemoryFiles()
        self.ledger = Ledger.recover(
            self.files, MemoryTable(), random_bytes=lambda n: b"\x07" * n, segment_bytes=SEGMENT
        )
        self.ledger.add_set(1)
        start = self.commit([b""])
        empty = self.commit([b""]) - start
        self.commit([b"f" * (at - offset_of(self.ledger.journal_position) - empty)])
        assert offset_of(self.ledger.journal_position) == at
        self.at = at
        self.file = 1
        end = offset_of(self.commit(payloads, vote=vote))
        self.whole = self.files.read(1, at, end - at)
        if version == 1:
            self.files.write(1, at, [bytes(len(self.whole))])
            self.whole = first_version(self.whole, self.files)

    def commit(self, payloads: Sequence[bytes], *, vote: bool = False) -> int:
        first = self.ledger.state(1).last_index + 1
        entries = [EntryIn(index, 1, 1, payload) for index, payload in enumerate(payloads, start=first)]
        commit = self.ledger.begin_commit([CommitItem(1, (1, 1) if vote else None, entries)])
        perform(commit, self.files)
        self.ledger.commit_synced(commit)
        return commit.end

    def start(self, data: bytes) -> tuple[int, int]:
        """How many records a start finds with this in place of the last one, and how many bytes it cuts."""
        self.files.write(self.file, self.at, [data])
        found: list[RecordHead] = []
        result = replay(self.files, self.files.list(), position_at(1, HEADER_BYTES), found.append)
        left = self.files.read(self.file, self.at, len(data))
        assert left == (bytes(len(data)) if result.torn_bytes else data)
        return len(found), result.torn_bytes

    def is_refused(self, data: bytes) -> bool:
        try:
            self.start(data)
        except StorageDamaged as error:
            assert error.details == {"file": self.file, "offset": self.at}
            assert self.files.read(self.file, self.at, len(data)) == data, "nothing is touched"
            return True
        return False

    def pieces(self) -> list[tuple[int, int]]:
        """The parts of the record that lie in one sector each."""
        end = self.at + len(self.whole)
        cuts = [self.at, *range((self.at // SECTOR + 1) * SECTOR, end, SECTOR), end]
        return [(low - self.at, high - self.at) for low, high in pairwise(cuts)]

    def torn(self, written: Iterable[object]) -> bytes:
        """The record as a crash leaves it of which only these sectors arrived."""
        data = bytearray(len(self.whole))
        for (low, high), arrived in zip(self.pieces(), written, strict=True):
            if arrived:
                data[low:high] = self.whole[low:high]
        return bytes(data)


def first_version(record: bytes, files: MemoryFiles) -> bytes:
    """The same record as the first release wrote it: one checksum over header and head, and nothing at the end."""
    header = read_header(files, 1)
    assert header is not None
    fields, head, rest = record[:40], record[48 : 48 + ENTRY.size], record[48 + ENTRY.size : -1]
    fields = fields[:4] + b"\x01" + fields[5:] + pack("<I", 0)
    return fields + pack("<I", crc32c(head, crc32c(fields, header.salt))) + head + rest


def flips(data: bytes) -> Iterator[bytes]:
    for place, bit in product(range(len(data)), range(8)):
        yield data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def filled(size: int, count: int = 1) -> list[bytes]:
    return [RNG.randbytes(size) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("at", [400, 511, 512, 1_000])
@pytest.mark.parametrize("payload_bytes", [8, 608])
def test_no_flipped_bit_of_a_whole_last_record_is_taken_for_a_tear(payload_bytes: int, at: int) -> None:
    """Records of about 100 and 700 bytes, wherever in a sector they begin."""
    journal = Journal(filled(payload_bytes), at=at)
    for broken in flips(journal.whole):
        assert journal.is_refused(broken)
    assert journal.start(journal.whole) == (4, 0)


@pytest.mark.slow
def test_no_flipped_bit_of_a_long_last_record_is_taken_for_a_tear() -> None:
    """20 KB. Only the judgement is made, in place, to have the time for every bit."""
    journal = Journal(filled(20_000))
    header = read_header(journal.files, 1)
    assert header is not None
    data = bytearray(journal.files.read(1, 0, SEGMENT))
    files = InPlace(data)
    for place, bit in product(range(journal.at, journal.at + len(journal.whole)), range(8)):
        data[place] ^= 1 << bit
        assert judge(RecordReader(files, 1, SEGMENT, header.salt), journal.at) is Tail.DAMAGED
        data[place] ^= 1 << bit


class InPlace(MemoryFiles):
    """A file that its owner changes under its readers."""

    def __init__(self, data: bytearray) -> None:
        super().__init__()
        self._data = data

    def read(self, file_id: int, offset: int, length: int) -> bytes:
        return bytes(self._data[offset : offset + length])

    def next_data(self, file_id: int, offset: int) -> int | None:
        return offset if offset < len(self._data) else None


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("at", [400, 450, 466, 500, 511, 512, 1_000])
@pytest.mark.parametrize("payload_bytes", [0, 8, 608, 2_000])
def test_whichever_sectors_are_missing_the_tail_is_torn(payload_bytes: int, at: int, version: int) -> None:
    journal = Journal(filled(payload_bytes), at=at, version=version)
    for written in product((False, True), repeat=len(journal.pieces())):
        assert_cut(journal, journal.torn(written))


@pytest.mark.parametrize("version", [1, 2])
def test_whichever_sectors_of_a_long_record_are_missing_it_is_torn(version: int) -> None:
    journal = Journal(filled(20_000), version=version)
    count = len(journal.pieces())
    for missing in range(count):
        assert_cut(journal, journal.torn(place != missing for place in range(count)))
        assert_cut(journal, journal.torn(place == missing for place in range(count)))
    for _ in range(200):
        assert_cut(journal, journal.torn(RNG.getrandbits(1) for _ in range(count)))


@pytest.mark.parametrize("at", [400, 509])
def test_a_torn_record_may_hold_zeros_of_its_own(at: int) -> None:
    journal = Journal([b"\x00" * 700, b"x" * 300, b"\x00" * 600, b"", b"y" * 10 + b"\x00" * 100], at=at)
    for written in product((False, True), repeat=len(journal.pieces())):
        assert_cut(journal, journal.torn(written))


def assert_cut(journal: Journal, data: bytes) -> None:
    found, cut = journal.start(data)
    if data == journal.whole:  # what is missing are zeros: nothing is
        assert (found, cut) == (4, 0)
    else:
        assert (found, cut) == (3, len(data.rstrip(b"\x00")))


def test_zeros_in_what_matches_are_no_sign_of_a_tear() -> None:
    """Payloads of zeros before and behind the damaged one, and a header and a head that are damaged before them."""
    journal = Journal([bytes(3_000), *filled(100), bytes(3_000)])
    damaged = journal.whole.index(b"\x00" * 3_000 + journal.whole[-3_101:-3_001]) + 3_000
    for place in (*range(0, 48 + 3 * ENTRY.size, 7), damaged, damaged + 99, len(journal.whole) - 1):
        broken = bytearray(journal.whole)
        broken[place] ^= 0x20
        assert journal.is_refused(bytes(broken)), f"byte {place}"


def test_a_record_that_ends_with_zeros_in_a_sector_of_their_own_is_whole() -> None:
    """Such as one that only holds a vote, or a payload that ends with zeros."""
    for at, payloads in ((512 - 48 - 30, []), (512 - 48 - 32, []), (400, [b"x" * 40 + b"\x00" * 60])):
        journal = Journal(payloads, at=at, vote=not payloads)
        for broken in flips(journal.whole):
            assert journal.is_refused(broken)


def test_zeros_within_the_damaged_payload_itself_are_what_is_left_over() -> None:
    """Nothing tells this from a sector that was never written; ADR 0002 says so."""
    journal = Journal([b"x" * 600 + bytes(1_024) + b"x" * 600])
    broken = bytearray(journal.whole)
    broken[100] ^= 1
    assert journal.start(bytes(broken))[0] == 3


def test_a_cut_that_a_crash_interrupts_leaves_a_tail_that_is_torn() -> None:
    journal = Journal(filled(1_500))
    tail = journal.torn(place != 2 for place in range(len(journal.pieces())))
    for erased in product((False, True), repeat=len(journal.pieces())):
        left = bytearray(tail)
        for (low, high), zeroed in zip(journal.pieces(), erased, strict=True):
            if zeroed:
                left[low:high] = bytes(high - low)
        assert_cut(journal, bytes(left))


def test_a_record_of_the_first_release_that_is_damaged_is_refused_as_far_as_its_lengths_can_be_trusted() -> None:
    journal = Journal(filled(608), version=1)
    assert journal.start(journal.whole) == (4, 0)
    counts = range(24, 40)  # nothing but the checksum of the whole head verifies them
    for place in range(len(journal.whole)):
        broken = bytearray(journal.whole)
        broken[place] ^= 0x40
        assert place in counts or journal.is_refused(bytes(broken)), f"byte {place}"


def test_the_first_release_refuses_records_of_this_one_and_cuts_nothing() -> None:
    """It verifies one checksum over header and head before it looks at the version; that one still matches."""
    journal = Journal(filled(100))
    header = read_header(journal.files, 1)
    assert header is not None
    checked, head = journal.whole[:44], journal.whole[48 : 48 + ENTRY.size]
    assert unpack("<I", journal.whole[44:48]) == (crc32c(head, crc32c(checked, header.salt)),)
    assert checked[4] == 2


def test_a_file_that_is_shorter_than_its_last_record_is_torn() -> None:
    journal = Journal(filled(1_500))
    journal.files.truncate(1, journal.at + 700)
    found: list[RecordHead] = []
    result = replay(journal.files, journal.files.list(), position_at(1, HEADER_BYTES), found.append)
    assert (len(found), result.torn_bytes) == (3, 700)
