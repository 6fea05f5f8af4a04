"""The consumer: leases, settles and what is given back, against a scripted broker."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

import lanner
from lanner import limits
from lanner.batch import encode, extract
from lanner.client.consumer import LEFT_WITHOUT_SETTLING, Pace
from lanner.client.delivery import ranges_of
from lanner.errors import (
    ConnectionLost,
    LeaseLost,
    Overloaded,
    PermissionDenied,
    ServiceUnavailable,
    ValidationError,
)
from lanner.wire.messages import (
    BestPriorityFound,
    Command,
    LeasedRange,
    MetadataReply,
    PartitionInfo,
    Polled,
    PolledBatch,
    Settled,
    SettledItem,
    SettleItem,
    SettleKind,
    TopicInfo,
)
from tests.spoilt import undecodable


def leased(
    data: bytes, *ranges: tuple[int, int], base: int = 0, token: int = 5, attempt: int = 1
) -> tuple[Polled, list[bytes]]:
    found = [LeasedRange(first, count, attempt) for first, count in ranges]
    return Polled([PolledBatch(0, token, base, 77, 9_999, 4, len(data), found)]), [data]


def values(count: int, start: int = 0) -> bytes:
    return encode([b"%d" % number for number in range(start, start + count)])


def one_poll(broker: Any, answer: Any) -> None:
    """This answer to the first poll, then nothing."""
    answers = iter([answer])
    broker.answers[Command.POLL] = lambda control, request: next(answers, Polled([]))


def settled_items(broker: Any) -> list[SettleItem]:
    alone = [item for control in broker.of(Command.SETTLE) for item in control.items]
    return alone + [item for control in broker.of(Command.POLL) for item in control.settles]


# ------------------------------------------------------------------ what a poll brings


async def test_only_what_is_leased_is_handed_out(broker: Any) -> None:
    one_poll(broker, leased(values(10), (2, 2), (7, 1)))
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        batch = await consumer.poll()
        assert [(message.offset, message.value) for message in batch] == [(2, b"2"), (3, b"3"), (7, b"7")]
        await batch.ack()
    assert [(item.first_offset, item.count) for item in settled_items(broker)] == [(2, 2), (7, 1)]


async def test_an_extract_is_found_by_its_positions(broker: Any) -> None:
    data = extract(encode([b"a", b"b", b"c"], keys=[b"x", None, b"z"], timestamps=[1, 2, 3]), [0, 2])
    one_poll(broker, leased(data, (102, 1), base=100))
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        (message,) = await consumer.poll()
        assert (message.offset, message.value, message.key) == (102, b"c", b"z")
        assert (message.producer_timestamp_ms, message.timestamp_ms, message.deadline_ms) == (3, 77, 9_999)
        assert "t/0/102" in repr(message)
        await message.ack()


async def test_ranges_are_taken_in_the_order_they_come_also_from_an_extract(broker: Any) -> None:
    one_poll(broker, leased(extract(values(6), [1, 2, 4]), (4, 1), (1, 2), base=0))
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        batch = await consumer.poll()
        assert [(message.offset, message.value) for message in batch] == [(4, b"4"), (1, b"1"), (2, b"2")]
        await batch.ack()
    assert [(item.first_offset, item.count) for item in settled_items(broker)] == [(4, 1), (1, 2)]


async def test_an_extract_of_just_what_is_leased_is_taken_as_it_is(broker: Any) -> None:
    one_poll(broker, leased(extract(values(6), [1, 2, 4]), (1, 2), (4, 1), base=0))
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        batch = await consumer.poll()
        assert [(message.offset, message.value) for message in batch] == [(1, b"1"), (2, b"2"), (4, b"4")]
        await batch.ack()


@pytest.mark.parametrize(
    "answer",
    [
        leased(values(3)[:-1] + b"\xff", (0, 3)),
        leased(values(3), (2, 5)),
        leased(extract(values(3), [0]), (0, 2)),
    ],
)
async def test_what_is_not_as_its_producer_sent_it_is_returned_and_not_handed_out(broker: Any, answer: Any) -> None:
    one_poll(broker, answer)
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        assert not await consumer.poll(wait_ms=100)
    items = settled_items(broker)
    assert {item.kind for item in items} == {SettleKind.NACK}
    assert items[0].reason.startswith("not usable")


async def test_what_does_not_decode_is_rejected_as_malformed_and_its_neighbours_are_handed_out(broker: Any) -> None:
    bad, good = undecodable(2), values(3)
    batches = [
        PolledBatch(0, 5, 10, 77, 9_999, 4, len(bad), [LeasedRange(10, 2, 1)]),
        PolledBatch(0, 5, 12, 77, 9_999, 4, len(good), [LeasedRange(12, 3, 1)]),
    ]
    one_poll(broker, (Polled(batches), [bad, good]))
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        batch = await consumer.poll()
        assert [message.offset for message in batch] == [12, 13, 14]
        await batch.ack()
    assert [(item.first_offset, item.count, item.kind, item.reason) for item in settled_items(broker)] == [
        (10, 2, SettleKind.REJECT, "malformed"),
        (12, 3, SettleKind.ACK, ""),
    ]


async def test_a_poll_that_lost_its_answer_is_repeated_under_its_number(broker: Any) -> None:
    answers = iter([broker.HANG_UP, Overloaded(), leased(values(1), (0, 1))])
    broker.answers[Command.POLL] = lambda control, request: next(answers, Polled([]))
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g", auto_ack=True) as consumer:
        assert (await consumer.poll(wait_ms=0)).values() == [b"0"]
        assert not await consumer.poll(wait_ms=0)
    assert [control.sequence for control in broker.of(Command.POLL)] == [1, 1, 1, 2]
    assert len({control.member for control in broker.of(Command.POLL)}) == 1


async def test_a_bound_that_is_reached_does_not_make_polls_spin(broker: Any) -> None:
    broker.answers[Command.POLL] = lambda control, request: Polled([], True)
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        batch = await consumer.poll(wait_ms=200)
        assert batch.limited
    assert len(broker.of(Command.POLL)) <= 6


async def test_leases_that_come_for_a_cancelled_poll_are_released(broker: Any) -> None:
    waiting: list[Any] = []
    broker.answers[Command.POLL] = lambda control, request: waiting.append(request)
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        polling = asyncio.ensure_future(consumer.poll(wait_ms=5_000))
        await broker.until(lambda: bool(waiting))
        polling.cancel()
        await asyncio.sleep(0)
        control, bulk = leased(values(4), (0, 4))
        broker.links[0].reply(waiting[0], control, bulk)
        await broker.until(lambda: bool(broker.of(Command.RELEASE)))
    (item,) = broker.of(Command.RELEASE)[0].items
    assert (item.token, item.first_offset, item.count) == (5, 0, 4)


async def test_leases_that_come_after_the_consumer_was_closed_are_released(broker: Any) -> None:
    waiting: list[Any] = []
    broker.answers[Command.POLL] = lambda control, request: waiting.append(request)
    async with lanner.connect(broker.address) as queue:
        consumer = queue.consumer("t", "g")
        polling = asyncio.ensure_future(consumer.poll(wait_ms=5_000))
        await broker.until(lambda: bool(waiting))
        await consumer.close()
        control, bulk = leased(values(4), (0, 4))
        broker.links[0].reply(waiting[0], control, bulk)
        with pytest.raises(ServiceUnavailable, match="closed"):
            await polling
        await broker.until(lambda: bool(broker.of(Command.RELEASE)))


# ------------------------------------------------------------------ settling


async def test_settles_ride_on_a_poll_that_leaves_in_the_same_turn(broker: Any) -> None:
    one_poll(broker, leased(values(2), (0, 2)))
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        batch = await consumer.poll()
        settling = batch.ack()
        await consumer.poll(wait_ms=0)
        await settling
    assert broker.of(Command.SETTLE) == []
    assert [len(control.settles) for control in broker.of(Command.POLL)] == [0, 1]


async def test_settles_go_alone_when_no_poll_is_about_to_leave(broker: Any) -> None:
    one_poll(broker, leased(values(3), (0, 3)))
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        first, second, third = await consumer.poll()
        await asyncio.gather(first.ack(), second.nack(delay_ms=7, reason="later"), third.extend(lease_ms=9))
        await third.reject("never")
    (together, alone) = broker.of(Command.SETTLE)
    assert [(item.kind, item.delay_ms, item.reason) for item in together.items] == [
        (SettleKind.ACK, -1, ""),
        (SettleKind.NACK, 7, "later"),
        (SettleKind.EXTEND, 9, ""),
    ]
    assert [(item.kind, item.reason) for item in alone.items] == [(SettleKind.REJECT, "never")]


async def test_settles_with_long_reasons_do_not_make_a_request_that_brokers_hang_up_on(broker: Any) -> None:
    """A thousand single ones, then a batch in as many ranges."""
    reason = "é" * limits.REASON_LENGTH_MAX
    answers = iter(
        [leased(values(1_200), (0, 1_200)), leased(values(2_400), *((one, 1) for one in range(0, 2_400, 2)))]
    )
    broker.answers[Command.POLL] = lambda control, request: next(answers, Polled([]))
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        await asyncio.gather(*(message.nack(reason=reason) for message in await consumer.poll(2_000)))
        singly = settled_items(broker)
        await (await consumer.poll(2_000)).nack(reason=reason)
    assert sum(item.count for item in singly) == 1_200
    assert sum(item.count for item in settled_items(broker)) == 2_400
    assert len(broker.links) == 1


async def test_a_settle_whose_answer_was_lost_is_sent_again_and_says_what_that_means(broker: Any) -> None:
    one_poll(broker, leased(values(1), (0, 1)))
    answers = iter([broker.HANG_UP, Settled([SettledItem(LeaseLost.code, 0)])])
    broker.answers[Command.SETTLE] = lambda control, request: next(answers)
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        (message,) = await consumer.poll()
        with pytest.raises(LeaseLost, match="or it took effect already"):
            await message.ack()


async def test_a_settle_that_rode_on_a_lost_poll_goes_its_own_way(broker: Any) -> None:
    answers = iter([leased(values(1), (0, 1)), broker.HANG_UP])
    broker.answers[Command.POLL] = lambda control, request: next(answers, Polled([]))
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        batch = await consumer.poll()
        settling = batch.ack()
        assert not await consumer.poll(wait_ms=0)
        await settling
    assert len(broker.of(Command.SETTLE)) == 1


async def test_an_error_that_cannot_be_repeated_is_the_outcome(broker: Any) -> None:
    one_poll(broker, leased(values(1), (0, 1)))
    broker.answers[Command.SETTLE] = lambda control, request: ValidationError("no")
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g") as consumer:
        (message,) = await consumer.poll()
        with pytest.raises(ValidationError, match="no"):
            await message.ack()
        with pytest.raises(ValidationError, match="reason has 1001"):
            message.nack(reason="x" * 1_001)


async def test_a_settle_that_cannot_be_sent_in_time_fails(broker: Any) -> None:
    one_poll(broker, leased(values(1), (0, 1)))
    broker.answers[Command.SETTLE] = lambda control, request: ConnectionLost("again and again")
    async with lanner.connect(broker.address, timeout_ms=250) as queue, queue.consumer("t", "g") as consumer:
        (message,) = await consumer.poll()
        with pytest.raises(ConnectionLost):
            await message.ack()


# ------------------------------------------------------------------ leaving


async def test_a_consumer_that_is_closed_cannot_be_entered_again(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        async with queue.consumer("t", "g") as consumer:
            pass
        await consumer.close()
        for again in (consumer.open(), consumer.__aenter__(), consumer.poll()):
            with pytest.raises(ServiceUnavailable, match=r"the consumer is closed, .*: make a new one"):
                await again


async def test_leaving_releases_the_unseen_and_returns_the_seen(broker: Any) -> None:
    one_poll(broker, leased(values(5), (0, 5)))
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g", prefetch=5) as consumer:
        await (await anext(consumer)).ack()
        seen = await anext(consumer)
    (released,) = broker.of(Command.RELEASE)
    assert [(item.first_offset, item.count) for item in released.items] == [(2, 3)]
    returned = settled_items(broker)[-1]
    assert (returned.first_offset, returned.kind, returned.delay_ms) == (1, SettleKind.NACK, 0)
    assert returned.reason == LEFT_WITHOUT_SETTLING
    with pytest.raises(LeaseLost, match="given back"):
        seen.ack()
    with pytest.raises(ServiceUnavailable, match="closed"):
        await consumer.poll()
    await consumer.close()  # a second time does nothing


async def test_iteration_takes_as_much_as_can_be_handled_soon() -> None:
    pace = Pace(100, None)
    assert pace.size == 1
    pace.started(1, 0.0)
    pace.finished(0.0001)
    assert pace.size == 4
    for _ in range(5):
        pace.started(pace.size, 0.0)
        pace.finished(0.0001 * pace.size)
    assert pace.size == 100
    pace.started(100, 0.0)
    pace.finished(50.0)  # half a second each
    assert pace.size == 1
    fixed = Pace(100, 7)
    fixed.started(7, 0.0)
    fixed.finished(50.0)
    assert fixed.size == 7


async def test_leases_in_hand_are_extended_until_they_are_settled(broker: Any) -> None:
    one_poll(broker, leased(values(3), (0, 3)))
    options: dict[str, Any] = {"lease_ms": 60, "auto_extend": True}
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g", **options) as consumer:
        batch = await consumer.poll()
        await batch[1].ack()
        await broker.until(lambda: sum(item.kind == SettleKind.EXTEND for item in settled_items(broker)) >= 4)
        await batch.ack()
    extended = [item for item in settled_items(broker) if item.kind == SettleKind.EXTEND]
    assert {(item.first_offset, item.count, item.delay_ms) for item in extended} == {(0, 1, 60), (2, 1, 60)}


async def test_a_consumer_that_is_dropped_unclosed_keeps_neither_itself_nor_its_leases(broker: Any) -> None:
    one_poll(broker, leased(values(3), (0, 3)))
    async with lanner.connect(broker.address) as queue:
        consumer = queue.consumer("t", "g", lease_ms=60, auto_extend=True)
        batch = await consumer.poll()
        seen = weakref.ref(consumer)
        del consumer
        gc.collect()
        await broker.until(lambda: len(settled_items(broker)) >= 2)
        assert seen() is not None, "its messages are being worked on"
        await queue.admin.ping()
        del batch
        for _ in range(100):
            await queue.admin.ping()  # answers to extends that were on their way are heard before
            gc.collect()
            if seen() is None:
                break
        assert seen() is None


async def test_leases_of_each_topic_are_extended_in_their_own_time(broker: Any) -> None:
    """Of a topic with long leases something is held first."""
    leases = {"long": 3_600_000, "short": 60}

    def metadata(control: Any, request: Any) -> MetadataReply:
        infos = [TopicInfo(name, 1, [PartitionInfo(0, "n1")], {"lease_ms": leases[name]}) for name in control.topics]
        return MetadataReply("c", [], infos)

    broker.answers[Command.METADATA] = metadata
    broker.answers[Command.BEST_PRIORITY] = lambda control, request: BestPriorityFound(4, 1)
    broker.answers[Command.POLL] = lambda control, request: leased(values(1), (0, 1))
    async with (
        lanner.connect(broker.address) as queue,
        queue.consumer(["long", "short"], "g", auto_extend=True) as consumer,
    ):
        for wanted in ("long", "short"):
            while (batch := await consumer.poll(1))[0].topic != wanted:
                await batch.ack()
            await asyncio.sleep(0.1)
        await broker.until(lambda: any(item.kind == SettleKind.EXTEND for item in settled_items(broker)))


async def test_leases_are_extended_also_after_the_topic_could_not_be_looked_up(broker: Any) -> None:
    one_poll(broker, leased(values(1), (0, 1)))
    broker.answers[Command.METADATA] = lambda control, request: MetadataReply(
        "c", [], [TopicInfo("t", 1, [PartitionInfo(0, "n1")], {"lease_ms": 60})]
    )
    async with lanner.connect(broker.address) as queue, queue.consumer("t", "g", auto_extend=True) as consumer:
        await consumer.poll()
        await broker.until(lambda: len(settled_items(broker)) >= 1)
        broker.answers[Command.METADATA] = lambda control, request: PermissionDenied()
        queue._routing.forget("t")
        await broker.until(lambda: len(settled_items(broker)) >= 4)


def test_offsets_become_runs() -> None:
    assert ranges_of([]) == []
    assert ranges_of([1, 2, 3, 7, 9, 10]) == [(1, 3), (7, 1), (9, 2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_messages": 0}, "max_messages"),
        ({"prefetch": 10_001}, "prefetch"),
        ({"start": "yesterday"}, "earliest or latest"),
        ({"lease_ms": -5}, "lease_ms is -5"),
        ({"lease_ms": "long"}, "lease_ms is 'long'"),
        ({"max_bytes": -1}, "max_bytes is -1"),
        ({"max_bytes": "1"}, "max_bytes is '1'"),
        ({"partitions": []}, "partitions is empty: name at least one"),
        ({"partitions": ["a"]}, "partitions is 'a'"),
        ({"partitions": [-1]}, "partitions is -1"),
        ({"member": "x" * 201}, "give a text of at most 200 characters"),
        ({"member": 5}, "member is 5"),
    ],
)
async def test_options_that_make_no_sense_are_refused(broker: Any, options: dict[str, Any], message: str) -> None:
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(ValidationError, match=message):
            queue.consumer("t", "g", **options)
        consumer = queue.consumer("t", "g")
        with pytest.raises(ValidationError, match="max_messages"):
            await consumer.poll(0)
        for wait_ms in (-1, None, "1"):
            with pytest.raises(ValidationError, match="wait_ms"):
                await consumer.poll(wait_ms=wait_ms)  # type: ignore[arg-type]
