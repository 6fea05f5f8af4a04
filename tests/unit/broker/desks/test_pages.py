"""Looks and listings: what a page holds, what is read for it, and where the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lanner import batch, limits
from lanner.broker.desks.pages import Pages
from lanner.model import Looked, LookPlace
from lanner.partition import BatchRef, DeadEntry, encode_append
from tests.spoilt import undecodable

SET = 9


class Shelves:
    """A node and a partition at once, as far as pages go: batches of one lane, all of them dead for the group."""

    set_id = SET

    def __init__(self, *batches: bytes) -> None:
        self.batches = batches
        self.refs: list[BatchRef] = []
        base = 0
        for index, data in enumerate(batches):
            count = batch.read_header(data).count
            self.refs.append(BatchRef(base, count, index, len(data), 4, base, 1, 0, 0))
            base += count
        self.read_bytes: list[int] = []  # at each read
        self.working = False
        self.decoded_outside = 0

    @property
    def partition(self) -> Shelves:
        return self

    @property
    def replicas(self) -> list[Any]:
        return [(0, self)]

    def lane_batches(self, lane: int, first_offset: int, limit: int, resume_offset: int = -1) -> list[BatchRef]:
        start = max(first_offset, resume_offset)
        return [ref for ref in self.refs if lane == 4 and ref.base_offset + ref.count > start][:limit]

    def dead_letters(self, group: str, start_offset: int, limit: int) -> list[DeadEntry]:
        offsets = [(ref.base_offset + at, ref) for ref in self.refs for at in range(ref.count)]
        found = [DeadEntry(offset, 4, 5, "why", 7, ref) for offset, ref in offsets if offset >= start_offset]
        return found[:limit]

    async def payloads(self, wanted: Sequence[tuple[int, int]]) -> list[bytes | None]:
        found = [encode_append(1, self.batches[index]) for _, index in wanted]
        self.read_bytes.append(sum(map(len, found)))
        return list(found)

    async def in_reader(self, work: Callable[[], Any]) -> Any:
        self.working = True
        try:
            return work()
        finally:
            self.working = False


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Shelves], Pages]:
    """Pages of these shelves; whatever is decoded outside of a reader thread is noted."""

    def watch(shelves: Shelves) -> Pages:
        decode = batch.decode

        def decode_noted(data: Any) -> batch.Batch:
            shelves.decoded_outside += not shelves.working
            return decode(data)

        monkeypatch.setattr("lanner.batch.decode", decode_noted)
        return Pages(shelves)

    return watch


async def look_through(pages: Pages, shelves: Shelves, max_messages: int, max_bytes: int) -> list[Looked]:
    found: list[Looked] = []
    after: LookPlace | None = None
    while True:
        page = await pages.look("t", shelves.replicas, 0, max_messages, max_bytes, after)
        found.append(page)
        if page.next is None:
            return found
        after = page.next


@pytest.mark.parametrize(("max_messages", "max_bytes"), [(1, 10_000), (3, 10_000), (1_000, 250), (1_000, 1), (5, 450)])
async def test_pages_of_a_look_show_everything_once_in_order(watched: Any, max_messages: int, max_bytes: int) -> None:
    shelves = Shelves(*[batch.encode([b"v" * 100] * 4)] * 3)
    found = await look_through(watched(shelves), shelves, max_messages, max_bytes)
    assert [message.offset for page in found for message in page] == list(range(12))
    for page in found:
        assert len(page) <= max_messages
        assert len(page) <= 1 or sum(len(message.value) for message in page) <= max_bytes
    assert shelves.decoded_outside == 0


async def test_a_look_at_much_reads_little_at_a_time_and_stops_when_its_page_is_full(watched: Any) -> None:
    shelves = Shelves(*[batch.encode([b"L" * limits.MIB] * 3)] * 100)
    page = await watched(shelves).look("t", shelves.replicas, 0, 1_000, limits.LIST_BYTES_MAX, None)
    assert len(page) == 8 and page.next == (4, 0, 8)
    assert max(shelves.read_bytes) <= limits.BATCH_BYTES_MAX
    assert sum(shelves.read_bytes) <= 3 * limits.BATCH_BYTES_MAX
    assert shelves.decoded_outside == 0


async def test_what_a_look_reads_is_bounded_even_when_it_finds_nothing(watched: Any) -> None:
    one = undecodable(1)
    shelves = Shelves(*[one] * 500)
    for place, ref in enumerate(shelves.refs):
        shelves.refs[place] = ref._replace(size=limits.MIB)
    page = await watched(shelves).look("t", shelves.replicas, 0, 1_000, limits.LIST_BYTES_MAX, None)
    assert page == [] and page.next == (4, 0, limits.READ_BYTES_MAX // limits.MIB)
    assert len(shelves.read_bytes) == limits.READ_BYTES_MAX // limits.MIB


async def test_a_batch_that_does_not_decode_is_passed_by(watched: Any) -> None:
    shelves = Shelves(batch.encode([b"a"]), undecodable(2), batch.encode([b"z"]))
    (page,) = await look_through(watched(shelves), shelves, 10, 1_000)
    assert [message.value for message in page] == [b"a", b"z"]
    letters, following = await Pages(shelves).dead_letters(shelves.replicas, "g", 0, 10, None)
    assert [(letter.offset, bool(data)) for letter, data in letters] == [(0, True), (1, False), (2, False), (3, True)]
    assert following is None


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 12, 100])
async def test_pages_of_dead_letters_list_everything_once(watched: Any, limit: int) -> None:
    shelves = Shelves(*[batch.encode([b"v"] * 4)] * 3)
    pages = watched(shelves)
    seen: list[int] = []
    after = None
    while True:
        letters, after = await pages.dead_letters(shelves.replicas, "g", 0, limit, after)
        assert 1 <= len(letters) <= limit
        seen += [letter.offset for letter, _ in letters]
        if after is None:
            break
    assert seen == list(range(12))
    assert shelves.decoded_outside == 0


async def test_dead_letters_count_as_they_unfold(watched: Any) -> None:
    shelves = Shelves(*[batch.encode([bytes(limits.MIB), b"t"], codec=batch.Codec.ZSTD)] * 20)
    letters, following = await watched(shelves).dead_letters(shelves.replicas, "g", 0, 1_000, None)
    assert len(letters) < 20 and following == (0, len(letters))
