"""What is read for a poll, and what of it is remembered for the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lanner import batch
from lanner.broker.desks.leases import LeaseReader
from lanner.partition import APPEND_PREFIX_BYTES

COUNT = 100
DATA = batch.encode([b"%d" % number for number in range(COUNT)])
KEY = (9, 5)  # of the batch: set and index
BASE = 1_000


class Shelf:
    """A node as far as reading goes: one batch, which retention may have taken."""

    def __init__(self) -> None:
        self.payload: bytes | None = b"p" * APPEND_PREFIX_BYTES + DATA

    async def payloads(self, wanted: Sequence[tuple[int, int]]) -> list[bytes | None]:
        return [self.payload for _ in wanted]

    async def in_reader(self, work: Callable[[], Any]) -> Any:
        return work()


def leases(*ranges: tuple[int, int]) -> list[Any]:
    """Of the batch: so many messages from that place, each."""
    ref = SimpleNamespace(base_offset=BASE, index=KEY[1], append_ms=1, lane=5, count=COUNT, size=len(DATA))
    found = [SimpleNamespace(first_offset=BASE + place, count=count, attempt=1, ref=ref) for place, count in ranges]
    return [(0, SimpleNamespace(set_id=KEY[0]), 77, SimpleNamespace(leases=found, deadline_ms=2))]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def reader(shelf: Shelf) -> LeaseReader:
    return LeaseReader(shelf)  # type: ignore[arg-type]


async def values(reader: LeaseReader, *ranges: tuple[int, int]) -> list[bytes | None]:
    (leased,) = await reader.read(leases(*ranges))
    return batch.decode(leased.data).values()


async def test_a_small_part_is_cut_out_and_most_of_a_batch_goes_whole(reader: LeaseReader) -> None:
    assert await values(reader, (3, 2)) == [b"3", b"4"]
    assert len(await values(reader, (0, 60))) == COUNT


async def test_a_batch_is_remembered_while_something_of_it_is_left(reader: LeaseReader) -> None:
    await values(reader, (0, 1))
    remembered = reader._decoded.get(KEY)
    assert remembered is not None
    await values(reader, (1, 1))
    assert reader._decoded.get(KEY) is remembered


@pytest.mark.parametrize("last", [(COUNT - 1, 1), (COUNT - 20, 20), (10, COUNT - 10)], ids=["one", "few", "whole"])
async def test_a_batch_is_forgotten_when_its_last_message_was_taken(reader: LeaseReader, last: tuple[int, int]) -> None:
    await values(reader, (0, 1))
    await values(reader, last)
    assert reader._decoded.get(KEY) is None
    assert reader._decoded._bytes == 0


async def test_its_last_message_may_stand_before_others(reader: LeaseReader) -> None:
    await values(reader, (COUNT - 1, 1), (3, 1))
    assert reader._decoded.get(KEY) is None


async def test_what_retention_took_is_left_out(reader: LeaseReader, shelf: Shelf) -> None:
    shelf.payload = None
    assert await reader.read(leases((0, 1))) == []
