"""The reader: pages ahead, seeks, retries and ends, against a scripted broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lanner
from lanner.batch import encode
from lanner.errors import (
    GroupExpired,
    MalformedBatch,
    OffsetOutOfRange,
    Overloaded,
    PartitionNotFound,
    ServiceUnavailable,
    ValidationError,
)
from lanner.wire.messages import (
    Command,
    CommittedReply,
    Fetch,
    Fetched,
    FetchedBatch,
    OffsetsReply,
    PartitionOffsets,
)

END = 30


def log(control: Fetch, request: Any) -> Any:
    """A log of 30 messages in batches of 10, one batch a page; at its end there is silence."""
    if control.offset >= END:
        return None
    base = control.offset // 10 * 10
    data = encode([b"%d" % number for number in range(base, base + 10)])
    return Fetched(0, END, base + 10, [FetchedBatch(base, 10, 77, len(data))], 1), [data]


@pytest.fixture(autouse=True)
def holds_a_log(broker: Any) -> None:
    broker.answers[Command.FETCH] = log
    broker.answers[Command.OFFSETS] = lambda control, request: OffsetsReply(
        [PartitionOffsets(number, 0, END, 20) for number in range(broker.partitions)], 1
    )


async def test_everything_is_read_in_order_and_then_it_ends(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue, queue.reader("t", until_end=True) as reader:
        assert [message.value async for message in reader] == [b"%d" % number for number in range(END)]
        assert reader.positions() == {0: END}
        assert (reader.missing, list(reader.holes)) == (0, [])
    assert [control.offset for control in broker.of(Command.FETCH)] == [0, 10, 20]


async def test_a_page_is_fetched_ahead_and_no_more_than_that(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue, queue.reader("t") as reader:
        await reader.read_batch()
        await asyncio.sleep(0.05)
        assert len(broker.of(Command.FETCH)) <= 3


async def test_several_partitions_are_read_side_by_side(broker: Any) -> None:
    broker.partitions = 3
    async with lanner.connect(broker.address) as queue, queue.reader("t", until_end=True) as reader:
        found = [batch async for batch in reader.read_batches()]
    assert sorted((batch.partition, batch.first_offset) for batch in found) == [
        (partition, base) for partition in range(3) for base in (0, 10, 20)
    ]
    assert {control.partition for control in broker.of(Command.FETCH)[:3]} == {0, 1, 2}


async def test_positions_follow_message_by_message_so_that_a_commit_is_exact(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue, queue.reader("t", start={0: 4}, group="g") as reader:
        broker.answers[Command.COMMITTED] = lambda control, request: CommittedReply({})
        assert (await anext(reader)).offset == 4
        assert (await anext(reader)).offset == 5
        await reader.commit()
        await reader.commit({0: 1})
    assert [control.offsets for control in broker.of(Command.COMMIT)] == [{0: 6}, {0: 1}]


@pytest.fixture(autouse=True)
def has_no_commits(broker: Any) -> None:
    broker.answers[Command.COMMITTED] = lambda control, request: CommittedReply({})


async def test_a_commit_of_the_group_wins_over_the_start(broker: Any) -> None:
    broker.answers[Command.COMMITTED] = lambda control, request: CommittedReply({0: 25})
    async with lanner.connect(broker.address) as queue, queue.reader("t", start=3, group="g") as reader:
        assert (await anext(reader)).offset == 25


async def test_a_group_that_is_to_go_on_where_it_committed_and_has_not_is_an_error_that_names_both_ways(
    broker: Any,
) -> None:
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(GroupExpired, match=r'start="earliest".*start="latest"'):
            await queue.reader("t", start="committed", group="g").open()
        with pytest.raises(ValidationError, match="no group"):
            await queue.reader("t", start="committed").open()
        broker.answers[Command.COMMITTED] = lambda control, request: CommittedReply({0: 25})
        async with queue.reader("t", start="committed", group="g") as reader:
            assert (await anext(reader)).offset == 25
            await reader.seek("earliest")
            await reader.seek("committed")
            assert (await anext(reader)).offset == 25


async def test_a_commit_says_where_the_group_has_committed_before(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue, queue.reader("t", group="g") as reader:
        await reader.commit({0: 1})
        await reader.commit({0: 2})
        assert [control.known for control in broker.of(Command.COMMIT)] == [None, [0]]
        broker.answers[Command.COMMIT] = lambda control, request: GroupExpired("it is gone")
        with pytest.raises(GroupExpired):
            await reader.commit({0: 3})


async def test_a_seek_drops_what_was_read_ahead(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue, queue.reader("t") as reader:
        assert (await anext(reader)).offset == 0
        await reader.seek({0: 25})
        assert (await anext(reader)).offset == 25
        await reader.seek("earliest")
        assert (await anext(reader)).offset == 0
        assert await reader.lag() == {0: END - 1}
        with pytest.raises(ValidationError, match="partition 9 is not read here"):
            await reader.seek({9: 0})


async def test_a_fetch_that_fails_for_now_is_repeated(broker: Any) -> None:
    trouble = iter([Overloaded(), broker.HANG_UP])
    broker.answers[Command.FETCH] = lambda control, request: next(trouble, None) or log(control, request)
    async with lanner.connect(broker.address) as queue, queue.reader("t", until_end=True) as reader:
        assert len([message async for message in reader]) == END


async def test_a_fetch_that_fails_for_good_is_raised(broker: Any) -> None:
    broker.answers[Command.FETCH] = lambda control, request: OffsetOutOfRange("beyond the end")
    async with lanner.connect(broker.address) as queue, queue.reader("t", start=99) as reader:
        with pytest.raises(OffsetOutOfRange, match="beyond"):
            await reader.read_batch()


async def test_holes_are_counted_once_and_passed(broker: Any) -> None:
    def holed(control: Fetch, request: Any) -> Any:
        if control.offset < 20:  # everything before the last batch is gone
            return Fetched(20, END, 20, [], 1)
        return log(control, request)

    broker.answers[Command.FETCH] = holed
    noticed: list[lanner.Hole] = []
    options: dict[str, Any] = {"until_end": True, "on_hole": noticed.append}
    async with lanner.connect(broker.address) as queue, queue.reader("t", **options) as reader:
        assert [message.offset async for message in reader] == list(range(20, END))
    assert noticed == [lanner.Hole(0, 0, 20)] == list(reader.holes)
    assert reader.missing == 20


async def test_a_page_that_arrives_broken_is_fetched_anew(broker: Any) -> None:
    def broken(control: Fetch, request: Any) -> Any:
        broker.answers[Command.FETCH] = log
        fetched, (data,) = log(control, request)
        return fetched, [data[:-1] + b"\xff"]

    broker.answers[Command.FETCH] = broken
    async with lanner.connect(broker.address) as queue, queue.reader("t", until_end=True) as reader:
        with pytest.raises(MalformedBatch):
            await reader.read_batch()
        assert [message.offset async for message in reader] == list(range(END))
        assert reader.missing == 0


async def test_a_wait_without_news_gives_nothing_and_loses_nothing(broker: Any) -> None:
    waiting: list[Any] = []
    async with lanner.connect(broker.address) as queue, queue.reader("t", start="latest") as reader:
        broker.answers[Command.FETCH] = lambda control, request: waiting.append(request)
        assert await reader.read_batch(wait_ms=20) is None
        data = encode([b"new"])
        broker.links[0].reply(waiting[0], Fetched(0, END + 1, END + 1, [FetchedBatch(END, 1, 1, len(data))], 1), [data])
        batch = await reader.read_batch(wait_ms=2_000)
        assert batch is not None
        assert batch.values() == [b"new"]


async def test_a_reader_that_is_closed_cannot_be_entered_again(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        async with queue.reader("t") as reader:
            assert await reader.read_batch() is not None
        for again in (reader.open(), reader.__aenter__(), reader.read_batch()):
            with pytest.raises(ServiceUnavailable, match="closed, and cannot be opened again: make a new one"):
                await again


async def test_a_reader_that_is_closed_while_it_opens_leaves_nothing_behind(broker: Any) -> None:
    asked: list[Any] = []
    broker.answers[Command.OFFSETS] = lambda control, request: asked.append(request)
    async with lanner.connect(broker.address) as queue:
        reader = queue.reader("t")
        opening = asyncio.create_task(reader.open())
        await broker.until(lambda: bool(asked))
        await reader.close()
        broker.links[0].reply(asked[0], OffsetsReply([PartitionOffsets(0, 0, END, 20)], 1))
        with pytest.raises(ServiceUnavailable, match="closed"):
            await opening
        assert queue._routing.on_change == []


async def test_bad_starts_and_partitions_are_refused(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(PartitionNotFound):
            await queue.reader("t", partitions=[7]).open()
        for start in ("yesterday", -1, {0: -5}):
            with pytest.raises(ValidationError):
                await queue.reader("t", start=start).open()
        reader = queue.reader("t")
        with pytest.raises(ValidationError, match="no group"):
            await reader.commit()
        assert (await anext(reader)).offset == 0  # opens by itself
        reading = asyncio.ensure_future(queue.reader("t", start="latest").read_batch())
        await asyncio.sleep(0.02)
        reading.cancel()
        await reader.close()
        with pytest.raises(ServiceUnavailable, match="closed"):
            while True:
                await reader.read_batch()
