"""Looks and listings: what a page holds, what is read for it, and where the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lanner import batch, limits
from lanner.broker.desks.calls import DeadLetterResult, DeadLettersResult
from lanner.broker.desks.pages import Pages
from lanner.broker.forwarding.merging import merged_letters, merged_looks
from lanner.model import Looked, LookPlace, Message
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
        return Pages(shelves)  # type: ignore[arg-type]

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
    letters, following = await Pages(shelves).dead_letters(shelves.replicas, "g", 0, 10, None)  # type: ignore[arg-type]
    assert [(letter.offset, bool(letter.data)) for letter in letters] == [(0, True), (1, False), (2, False), (3, True)]
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
        seen += [letter.offset for letter in letters]
        if after is None:
            break
    assert seen == list(range(12))
    assert shelves.decoded_outside == 0


async def test_dead_letters_count_as_they_unfold(watched: Any) -> None:
    shelves = Shelves(*[batch.encode([bytes(limits.MIB), b"t"], codec=batch.Codec.ZSTD)] * 20)
    letters, following = await watched(shelves).dead_letters(shelves.replicas, "g", 0, 1_000, None)
    assert len(letters) < 20 and following == (0, len(letters))


# ------------------------------------------------------------------ pages of several brokers


def page_of(*found: tuple[int, int, int], following: LookPlace | None = None) -> Looked:
    """(priority, partition, offset) each."""
    page = Looked(Message("t", partition, offset, b"v" * 10, priority=level) for level, partition, offset in found)
    page.next = following
    return page


def shown(page: Looked) -> list[tuple[int, int, int]]:
    return [(message.priority, message.partition, message.offset) for message in page]


def test_what_lies_behind_the_end_of_a_cut_page_waits_for_the_next() -> None:
    cut = page_of((9, 0, 0), (4, 0, 1), following=(4, 0, 2))
    whole = page_of((9, 1, 0), (4, 1, 1), (0, 1, 2))
    merged = merged_looks([whole, cut], 100, 1_000)
    assert shown(merged) == [(9, 0, 0), (9, 1, 0), (4, 0, 1)] and merged.next == (4, 0, 2)


def test_a_merged_look_is_cut_to_what_was_asked_for() -> None:
    pages = [page_of((9, 0, 0), (4, 0, 1)), page_of((9, 1, 0))]
    assert merged_looks(pages, 2, 1_000).next == (4, 0, 1)
    assert merged_looks(pages, 100, 15).next == (9, 1, 0)
    assert merged_looks(pages, 3, 1_000).next is None


def test_merged_letters_go_on_where_the_first_broker_ended() -> None:
    def letters(*places: tuple[int, int]) -> list[DeadLetterResult]:
        return [DeadLetterResult(partition, offset, 4, 5, "", 1, 1, b"x") for partition, offset in places]

    pages = [DeadLettersResult(letters((0, 1), (2, 1)), 9, (2, 5)), DeadLettersResult(letters((1, 1), (3, 1)), 2)]
    merged = merged_letters(pages, 10)
    assert [(one.partition, one.offset) for one in merged.letters] == [(0, 1), (1, 1), (2, 1)]
    assert (merged.total, merged.next) == (11, (2, 5))
    assert merged_letters(pages, 2).next == (2, 1)
    assert merged_letters([], 2).next is None
