"""The reader of dead letters against a scripted broker: pages, holes, where it goes on, and the blocking form."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lanner
import lanner.sync
from lanner.batch import encode, extract
from lanner.client.dead_reader import DeadHole
from lanner.errors import GroupNotFound, ValidationError
from lanner.wire.dead import DeadBatch, DeadRun, FetchDead, FetchedDead
from lanner.wire.messages import Command

WHOLE = encode([b"a", b"b", b"c", b"d"], keys=[b"k"] * 4, priority=9)
CUT = extract(WHOLE, [1, 3])
RUNS = [DeadRun(1, 11, 1, 5, "bad", 6), DeadRun(2, 13, 1, 2, "worse", 7)]
PAGES = {
    0: (
        [DeadBatch(10, 77, 9, len(CUT), [DeadRun(1, 11, 1, 5, "bad", 6), DeadRun(2, 13, 1, 2, "worse", 7)])],
        [(0, 1)],
        4,
    ),
    4: ([DeadBatch(20, 78, 0, 0, [DeadRun(4, 20, 1, 1, "rotten", 8)])], [], 5),
}


def answer(asked: FetchDead, request: Any) -> Any:
    if asked.max_letters == 0:
        return FetchedDead(1, 5, asked.number, [], [], 1, 3)
    if asked.number >= 5:
        return FetchedDead(1, 5, 5, [], [], 1, 3) if not asked.wait_ms else None
    batches, holes, following = PAGES[0 if asked.number < 4 else 4]
    return FetchedDead(1, 5, following, batches, holes, 1, 3), [CUT] if asked.number < 4 else []


@pytest.fixture(autouse=True)
def has_dead_letters(broker: Any) -> None:
    broker.answers[Command.FETCH_DEAD] = answer


async def test_letters_come_in_order_with_what_is_known_of_them(broker: Any) -> None:
    chosen: Any = {"start": {0: 0}, "until_end": True}
    async with lanner.connect(broker.address) as queue, queue.dead_letter_reader("t", "g", **chosen) as reader:
        letters = [letter async for letter in reader]
        assert reader.positions() == {0: 5} and list(reader.holes) == [DeadHole(0, 0, 1)]
    found = [(one.number, one.offset, one.priority, one.attempts, one.reason, one.died_ms) for one in letters]
    assert found == [(1, 11, 9, 5, "bad", 6), (2, 13, 9, 2, "worse", 7), (4, 20, 0, 1, "rotten", 8)]
    assert [one.message and (one.message.id, one.message.value, one.message.key) for one in letters] == [
        ("t/0/11", b"b", b"k"),
        ("t/0/13", b"d", b"k"),
        None,
    ]
    assert {asked.group_id for asked in broker.of(Command.FETCH_DEAD)[1:]} == {3}


async def test_a_reader_waits_at_the_end_and_a_wait_may_be_bounded(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue, queue.dead_letter_reader("t", "g", start="latest") as reader:
        assert await reader.read_batch(wait_ms=20) is None
        waiting = asyncio.create_task(reader.read_batch())
        await broker.until(lambda: broker.of(Command.FETCH_DEAD)[-1].wait_ms > 0)
        assert not waiting.done()
        waiting.cancel()
        assert reader.positions() == {0: 5}


@pytest.mark.parametrize("start", ["newest", {0: -1}, {0: True}])
async def test_a_start_that_makes_no_sense_is_refused(broker: Any, start: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(ValidationError):
            await queue.dead_letter_reader("t", "g", start=start).open()


async def test_a_group_that_is_on_no_partition_is_an_error(broker: Any) -> None:
    broker.answers[Command.FETCH_DEAD] = lambda asked, request: FetchedDead(0, 0, 0, [], [], 1, 0)
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(GroupNotFound):
            await queue.dead_letter_reader("t", "g").open()


async def test_the_blocking_client_reads_the_same(broker: Any) -> None:
    def read() -> list[int]:
        with (
            lanner.sync.connect(broker.address) as queue,
            queue.dead_letter_reader("t", "g", until_end=True) as reader,
        ):
            return [letter.number for letter in reader]

    assert await asyncio.to_thread(read) == [1, 2, 4]
