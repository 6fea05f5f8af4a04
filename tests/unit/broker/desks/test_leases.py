"""What is read for a poll, and what of it is remembered for the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lanner import batch, limits
from lanner.broker.desks.leases import Leased, LeaseReader
from lanner.partition import BatchRef, Lease, PollAnswer, encode_append

COUNT = 100
DATA = batch.encode([b"%d" % number for number in range(COUNT)])
KEY = (9, 5)  # of the batch: set and index
BASE = 1_000


class Shelf:
    """A node as far as reading goes: one batch, which retention may have taken."""

    def __init__(self) -> None:
        self.payload: bytes | None = encode_append(1, DATA)
        self.worked = 0  # how often work was done in a reader thread: what is remembered needs none

    async def payloads(self, wanted: Sequence[tuple[int, int]]) -> list[bytes | None]:
        return [self.payload for _ in wanted]

    async def in_reader(self, work: Callable[[], Any]) -> Any:
        self.worked += 1
        return work()


def leases(*ranges: tuple[int, int], data: bytes = DATA, count: int = COUNT, base: int = BASE) -> list[Leased]:
    """Of the batch: so many messages from that place, each."""
    ref = BatchRef(base, count, KEY[1] + base - BASE, len(data), 5, 0, 1, 0, 0)
    found = [Lease(ref, base + place, number, 1) for place, number in ranges]
    replica: Any = SimpleNamespace(set_id=KEY[0])
    return [Leased(0, replica, 77, PollAnswer(found, 2, False, None))]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def reader(shelf: Shelf) -> LeaseReader:
    return LeaseReader(shelf)


async def values(reader: LeaseReader, *ranges: tuple[int, int]) -> list[bytes | None]:
    (leased,), rest = await reader.read(leases(*ranges), limits.MIB)
    assert rest == []
    return batch.decode(leased.data).values()


async def test_a_small_part_is_cut_out_and_most_of_a_batch_goes_whole(reader: LeaseReader) -> None:
    assert await values(reader, (3, 2)) == [b"3", b"4"]
    assert len(await values(reader, (0, 60))) == COUNT


async def test_a_batch_is_remembered_while_something_of_it_is_left(reader: LeaseReader, shelf: Shelf) -> None:
    await values(reader, (0, 1))
    assert shelf.worked == 1
    assert await values(reader, (1, 1)) == [b"1"]
    assert shelf.worked == 1


@pytest.mark.parametrize("last", [(COUNT - 1, 1), (COUNT - 20, 20), (10, COUNT - 10)], ids=["one", "few", "whole"])
async def test_a_batch_is_forgotten_when_its_last_message_was_taken(
    reader: LeaseReader, shelf: Shelf, last: tuple[int, int]
) -> None:
    await values(reader, (0, 1))
    await values(reader, last)
    worked = shelf.worked
    await values(reader, (1, 1))
    assert shelf.worked == worked + 1, "it is decoded anew"


async def test_its_last_message_may_stand_before_others(reader: LeaseReader, shelf: Shelf) -> None:
    await values(reader, (COUNT - 1, 1), (3, 1))
    await values(reader, (4, 1))
    assert shelf.worked == 2


async def test_what_retention_took_is_left_out(reader: LeaseReader, shelf: Shelf) -> None:
    shelf.payload = None
    assert await reader.read(leases((0, 1)), limits.MIB) == ([], [])


# ------------------------------------------------------------------ what fits


class Shelves(Shelf):
    """Batches by index; notes what is read of them."""

    def __init__(self, *batches: bytes) -> None:
        super().__init__()
        self.batches = batches
        self.read: list[int] = []

    async def payloads(self, wanted: Sequence[tuple[int, int]]) -> list[bytes | None]:
        self.read += [index for _, index in wanted]
        return [encode_append(1, self.batches[index]) for _, index in wanted]

    def leased(self, *ranges: tuple[int, int]) -> list[Leased]:
        """So many messages from that place of every batch, under one token."""
        found: list[Lease] = []
        base = 0
        for index, data in enumerate(self.batches):
            count = batch.read_header(data).count
            ref = BatchRef(base, count, index, len(data), 5, 0, 1, 0, 0)
            found += [Lease(ref, base + place, number, 1) for place, number in ranges]
            base += count
        replica: Any = SimpleNamespace(set_id=KEY[0])
        return [Leased(0, replica, 77, PollAnswer(found, 2, False, None))]


def offsets(leased: Sequence[Leased]) -> list[int]:
    return [lease.first_offset + at for one in leased for lease in one.answer.leases for at in range(lease.count)]


MIXED = batch.encode([b"L" * limits.MIB, *[b"t"] * 300])


async def test_a_reply_holds_what_fits_and_the_other_leases_are_handed_back() -> None:
    shelves = Shelves(*[MIXED] * 20)
    found, rest = await LeaseReader(shelves).read(shelves.leased((0, 1)), 3 * limits.MIB)
    assert [item.base_offset for item in found] == [0, 301]
    assert sum(len(item.data) for item in found) <= 3 * limits.MIB
    assert offsets(rest) == [number * 301 for number in range(2, 20)]
    assert {one.token for one in rest} == {77}


async def test_no_more_is_read_than_the_reply_may_need() -> None:
    shelves = Shelves(*[MIXED] * 20)
    await LeaseReader(shelves).read(shelves.leased((0, 1)), limits.MIB)
    assert len(shelves.read) * len(MIXED) <= limits.POLL_BYTES_MAX
    shelves = Shelves(*[MIXED] * 100)
    found, rest = await LeaseReader(shelves).read(shelves.leased((7, 1)), limits.MIB)
    assert len(shelves.read) * len(MIXED) <= limits.READ_BYTES_MAX + limits.POLL_BYTES_MAX
    assert len(found) == len(shelves.read) and len(found) + len(offsets(rest)) == 100


@pytest.mark.parametrize("bytes_max", [1, 1_000, limits.MIB])
async def test_one_message_always_fits(bytes_max: int) -> None:
    shelves = Shelves(MIXED, MIXED)
    found, rest = await LeaseReader(shelves).read(shelves.leased((0, 301)), bytes_max)
    assert [len(value) for item in found for value in batch.decode(item.data).values()] == [limits.MIB]
    assert offsets(rest) == list(range(1, 602))


async def test_a_batch_that_is_too_large_is_cut_in_the_order_in_which_it_was_leased() -> None:
    data = batch.encode([b"%d" % number * 1_000 for number in range(10)])
    shelves = Shelves(data)
    found, rest = await LeaseReader(shelves).read(shelves.leased((8, 2), (1, 5)), 4_000)
    (item,) = found
    assert len(item.data) <= 4_000
    assert [(part.first_offset, part.count) for part in item.ranges] == [(8, 2), (1, 1)]
    assert batch.decode(item.data).positions == [1, 8, 9]
    assert offsets(rest) == [2, 3, 4, 5]


async def test_a_batch_that_does_not_decode_fits_alone() -> None:
    shelves = Shelves(DATA)
    shelves.batches = (DATA[:-1] + b"?",)
    found, rest = await LeaseReader(shelves).read(shelves.leased((0, COUNT)), 10)
    assert [bytes(item.data) for item in found] == [shelves.batches[0]] and rest == []


async def test_what_is_sent_in_vain_is_bounded_for_the_reply_as_a_whole() -> None:
    data = batch.encode([b"v" * 300] * 200)
    shelves = Shelves(*[data] * 100)
    found, rest = await LeaseReader(shelves).read(shelves.leased((0, 20)), limits.MIB)
    assert rest == [], "cut to what was leased, all of it fits"
    assert len(found) == 100


async def test_large_messages_are_cut_out_in_a_reader_thread_even_when_they_are_few() -> None:
    shelves = Shelves(MIXED)
    reader = LeaseReader(shelves)
    await reader.read(shelves.leased((1, 1)), limits.MIB)
    assert shelves.worked == 1
    await reader.read(shelves.leased((0, 1)), 2 * limits.MIB)
    assert shelves.worked == 2
