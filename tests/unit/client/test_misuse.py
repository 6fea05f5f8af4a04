"""What application programmers get wrong: it is refused where it is said, by its name, and costs nothing else."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from typing import Any

import pytest

import lanner
from lanner import limits
from lanner.batch import encode
from lanner.errors import ServiceUnavailable, ValidationError
from lanner.wire.messages import (
    Command,
    CommittedReply,
    Fetch,
    Fetched,
    FetchedBatch,
    LeasedRange,
    OffsetsReply,
    PartitionOffsets,
    Polled,
    PolledBatch,
)


class Number:
    """A whole number of another library."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


@pytest.fixture
async def queue(broker: Any) -> AsyncIterator[lanner.Queue]:
    async with lanner.connect(broker.address) as queue, asyncio.timeout(10):
        yield queue


def leased(base: int, *values: bytes) -> tuple[Polled, list[bytes]]:
    data = encode(list(values))
    ranges = [LeasedRange(base, len(values), 1)]
    return Polled([PolledBatch(0, 5, base, 77, 9_999, 4, len(data), ranges)]), [data]


# ------------------------------------------------------------------ publishing


@pytest.mark.parametrize("partition", [0.5, True, "0"])
async def test_a_partition_that_is_no_number_is_refused_and_the_next_message_still_leaves(
    queue: lanner.Queue, partition: Any
) -> None:
    with pytest.raises(ValidationError, match="partition is"):
        await queue.publish("t", b"x", partition=partition)
    with pytest.raises(ValidationError, match="partition is"):
        await queue.publish_many("t", [b"x"], partition=partition)
    assert (await queue.publish("t", b"y")).partition == 0


@pytest.mark.parametrize("timeout_ms", ["5", 0, -1, float("nan"), True])
async def test_a_producer_refuses_a_timeout_that_is_none(queue: lanner.Queue, timeout_ms: Any) -> None:
    with pytest.raises(ValidationError, match="timeout_ms is"):
        queue.producer(timeout_ms=timeout_ms)


async def test_whole_numbers_of_other_libraries_are_numbers(queue: lanner.Queue, broker: Any) -> None:
    seven: Any = Number(7)
    receipt = await queue.publish("t", b"x", partition=Number(0), priority=seven, delay_ms=seven)  # type: ignore[arg-type]
    assert receipt.partition == 0
    assert type(receipt.partition) is int
    await queue.publish_many("t", [b"x"], priority=seven, ttl_ms=seven, deliver_at=seven)


@pytest.mark.parametrize("text", ["hello", b"hello", bytearray(b"hello"), memoryview(b"hello"), {"a": 1}, None, 5])
async def test_one_value_is_not_taken_for_many(queue: lanner.Queue, text: Any) -> None:
    with pytest.raises(ValidationError, match=r"values is \w+: give a list"):
        await queue.publish_many("t", text)


async def test_columns_beside_the_values_are_lists_too(queue: lanner.Queue) -> None:
    with pytest.raises(ValidationError, match="keys is str: give a list"):
        await queue.publish_many("t", ["a", "b"], keys="kk")
    with pytest.raises(ValidationError, match="headers is dict: give a list"):
        await queue.publish_many("t", ["a"], headers={"a": "b"})  # type: ignore[arg-type]
    assert len(await queue.publish_many("t", ["a", "b"], keys=(key for key in "kl"))) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", [[("a", "b")], "ab", 5])
async def test_headers_that_are_no_map_are_refused(queue: lanner.Queue, headers: Any) -> None:
    with pytest.raises(ValidationError, match="headers is"):
        await queue.publish("t", b"x", headers=headers)


async def test_text_that_utf_8_cannot_hold_is_refused_by_its_name(queue: lanner.Queue) -> None:
    with pytest.raises(ValidationError, match="value is no text"):
        await queue.publish("t", "\ud800")
    with pytest.raises(ValidationError, match="key is no text"):
        await queue.publish("t", b"", key="\ud800")
    with pytest.raises(ValidationError, match="header 'a' is no text"):
        await queue.publish("t", b"", headers={"a": "\ud800"})
    with pytest.raises(ValidationError, match="header's name is no text"):
        await queue.publish("t", b"", headers={"\ud800": "a"})


# ------------------------------------------------------------------ settling


@pytest.mark.parametrize("delay_ms", ["5", 1.5, -5, datetime.timedelta(seconds=5), limits.DELAY_MS_MAX + 1, True])
async def test_a_settle_with_a_delay_that_is_none_is_refused_and_leaves_the_message_in_hand(
    queue: lanner.Queue, broker: Any, delay_ms: Any
) -> None:
    answers = iter([leased(0, b"a", b"b")])
    broker.answers[Command.POLL] = lambda control, request: next(answers, Polled([]))
    async with queue.consumer("t", "g") as consumer:
        batch = await consumer.poll()
        first, second = batch
        good = second.ack()  # in the same turn of the loop: it must not fail with the other
        with pytest.raises(ValidationError, match="delay_ms is"):
            await first.nack(delay_ms)
        with pytest.raises(ValidationError, match="lease_ms is"):
            await first.extend(delay_ms)
        with pytest.raises(ValidationError, match="delay_ms is"):
            await batch.nack(delay_ms)
        await good
        await first.ack()


@pytest.mark.parametrize("reason", [None, 5, "x" * (limits.REASON_LENGTH_MAX + 1)])
async def test_a_reason_that_is_refused_leaves_the_message_in_hand(
    queue: lanner.Queue, broker: Any, reason: Any
) -> None:
    answers = iter([leased(0, b"a", b"b")])
    broker.answers[Command.POLL] = lambda control, request: next(answers, Polled([]))
    async with queue.consumer("t", "g") as consumer:
        batch = await consumer.poll()
        with pytest.raises(ValidationError, match="reason"):
            await batch[0].reject(reason)
        with pytest.raises(ValidationError, match="reason"):
            await batch.reject(reason)
        await batch[0].reject("short")
        await batch.ack()


# ------------------------------------------------------------------ several tasks with one object


async def test_tasks_that_iterate_one_consumer_share_its_messages(queue: lanner.Queue, broker: Any) -> None:
    bases = iter(range(0, 40, 2))
    broker.answers[Command.POLL] = lambda control, request: leased(base := next(bases), b"%d" % base, b"")
    async with queue.consumer("t", "g") as consumer:
        both = await asyncio.gather(anext(consumer), anext(consumer))  # one polls, and the other waits for its turn
        more = [await anext(consumer), await anext(consumer)]
    assert sorted(message.offset for message in [*both, *more]) == [0, 1, 2, 3]


async def test_tasks_that_iterate_one_reader_share_its_messages(queue: lanner.Queue, broker: Any) -> None:
    def page(control: Fetch, request: Any) -> Any:
        if control.offset:
            return None
        data = [encode([b"x", b"y"]) for _ in range(4)]
        return Fetched(0, 8, 8, [FetchedBatch(2 * row, 2, 77, len(one)) for row, one in enumerate(data)], 1), data

    broker.answers[Command.OFFSETS] = lambda control, request: OffsetsReply([PartitionOffsets(0, 0, 8, 20)], 1)
    broker.answers[Command.FETCH] = page
    async with queue.reader("t", until_end=True) as reader:
        both = await asyncio.gather(anext(reader), anext(reader))  # both wait for the first page
        assert reader.positions() == {0: 2}
        rest = [message.offset async for message in reader]
    assert sorted([message.offset for message in both] + rest) == list(range(8))


# ------------------------------------------------------------------ reading


@pytest.mark.parametrize("partitions", [[], "0", ["0"], 0.5, True, [-1], [True]])
async def test_partitions_that_are_none_are_refused(queue: lanner.Queue, partitions: Any) -> None:
    with pytest.raises(ValidationError, match="partition"):
        queue.reader("t", partitions=partitions)
    with pytest.raises(ValidationError, match="partition"):
        queue.consumer("t", "g", partitions=partitions)
    with pytest.raises(ValidationError, match="partition"):
        queue.dead_letter_reader("t", "g", partitions=partitions)


@pytest.mark.parametrize("partitions", [0, [0], range(1), Number(0)])
async def test_a_consumer_keeps_to_its_partitions_however_they_are_said(
    queue: lanner.Queue, broker: Any, partitions: Any
) -> None:
    broker.answers[Command.POLL] = lambda control, request: Polled([])
    async with queue.consumer("t", "g", partitions=partitions) as consumer:
        await consumer.poll(wait_ms=0)
    assert broker.of(Command.POLL)[0].partitions == [0]


async def test_a_generator_of_partitions_is_looked_at_once(queue: lanner.Queue, broker: Any) -> None:
    chosen: Any = (number for number in [0])
    broker.answers[Command.POLL] = lambda control, request: Polled([])
    async with queue.consumer("t", "g", partitions=chosen) as consumer:
        await consumer.poll(wait_ms=0)
    assert broker.of(Command.POLL)[0].partitions == [0]


@pytest.mark.parametrize("offsets", [{"0": 17}, {0: "17"}, {0: 1.5}, {0: -1}, {True: 1}])
async def test_offsets_by_partition_are_refused_that_name_none(queue: lanner.Queue, broker: Any, offsets: Any) -> None:
    broker.answers[Command.OFFSETS] = lambda control, request: OffsetsReply([PartitionOffsets(0, 0, 9, 9)], 1)
    with pytest.raises(ValidationError):
        async with queue.reader("t", start=offsets):
            pass
    broker.answers[Command.COMMITTED] = lambda control, request: CommittedReply({})
    async with queue.reader("t", group="g", until_end=True) as reader:
        with pytest.raises(ValidationError):
            await reader.seek(offsets)
        with pytest.raises(ValidationError):
            await reader.commit(offsets)
    assert not broker.of(Command.COMMIT)


async def test_a_start_in_a_partition_that_the_topic_does_not_have_is_refused(queue: lanner.Queue, broker: Any) -> None:
    broker.answers[Command.OFFSETS] = lambda control, request: OffsetsReply([PartitionOffsets(0, 0, 9, 9)], 1)
    with pytest.raises(lanner.errors.PartitionNotFound, match="t has no partition 3"):
        async with queue.reader("t", start={0: 1, 3: 7}):
            pass


@pytest.mark.parametrize("wait_ms", ["5", float("nan"), -1])
async def test_a_wait_that_is_none_is_refused(queue: lanner.Queue, broker: Any, wait_ms: Any) -> None:
    broker.answers[Command.OFFSETS] = lambda control, request: OffsetsReply([PartitionOffsets(0, 0, 9, 9)], 1)
    async with queue.reader("t") as reader:
        with pytest.raises(ValidationError, match="wait_ms is"):
            await reader.read_batch(wait_ms)


# ------------------------------------------------------------------ connecting


@pytest.mark.parametrize("address", [None, 5, b"localhost:7400", ("127.0.0.1", 7400), []])
def test_an_address_that_is_none_is_refused(address: Any) -> None:
    with pytest.raises(ValidationError, match="address"):
        lanner.connect(address)


@pytest.mark.parametrize("timeout_ms", ["5", None, True])
def test_a_timeout_that_is_no_number_is_refused(timeout_ms: Any) -> None:
    with pytest.raises(ValidationError, match="timeout_ms is"):
        lanner.connect("localhost:7400", timeout_ms=timeout_ms)


async def test_a_publish_after_the_close_blames_the_connection_and_no_producer(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        await queue.publish("t", b"x")
    with pytest.raises(ServiceUnavailable, match="the connection was closed on this side"):
        await queue.publish("t", b"y")
    with pytest.raises(ServiceUnavailable, match="the connection was closed on this side"):
        await queue.publish_many("t", [b"y"])


async def test_a_connection_that_was_closed_is_not_opened_again(broker: Any) -> None:
    queue = await lanner.connect(broker.address)
    await queue.close()
    with pytest.raises(ServiceUnavailable, match="open a new one"):
        await queue.open()


async def test_a_connection_that_is_open_is_opened_once(broker: Any) -> None:
    async with await lanner.connect(broker.address) as queue:
        await queue.admin.ping()
        assert len(broker.links) == 1


async def test_a_connection_is_of_the_loop_that_opened_it(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        await queue.publish("t", b"x")

        def elsewhere() -> None:
            async def use() -> None:
                with pytest.raises(ServiceUnavailable, match="another event loop"):
                    await queue.publish("t", b"y")
                with pytest.raises(ServiceUnavailable, match="another event loop"):
                    queue.consumer("t", "g")
                with pytest.raises(ServiceUnavailable, match="another event loop"):
                    await queue.admin.ping()

            asyncio.run(use())

        await asyncio.to_thread(elsewhere)
