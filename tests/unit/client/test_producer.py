"""The producer's shell: what leaves, when, and what callers hear."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lanner
from lanner.batch import decode
from lanner.errors import (
    ConnectionLost,
    DeadlineExceeded,
    Overloaded,
    ProducerUnknown,
    SequenceGap,
    ServiceUnavailable,
    TopicNotFound,
    ValidationError,
)
from lanner.wire.messages import Command, MetadataReply, Published, TopicInfo


def sequences(broker: Any) -> list[tuple[int, int]]:
    """(producer id, sequence) of everything published, as it arrived."""
    headers = [decode(request.bulk).header for request in broker.requests if request.command is Command.PUBLISH]
    return [(header.producer_id, header.sequence) for header in headers]


def counts(broker: Any) -> list[int]:
    return [decode(request.bulk).count for request in broker.requests if request.command is Command.PUBLISH]


async def test_what_gathers_while_a_request_is_under_way_travels_together(broker: Any) -> None:
    waiting: list[Any] = []
    broker.answers[Command.PUBLISH] = lambda control, request: waiting.append(request)
    async with lanner.connect(broker.address) as queue:
        publishing = [asyncio.ensure_future(queue.publish("t", b"%d" % number)) for number in range(5)]
        await broker.until(lambda: len(waiting) == 1)
        assert counts(broker) == [5]
        broker.answers.clear()
        broker.links[0].reply(waiting[0], Published(100, 1, 5))
        receipts = await asyncio.gather(*publishing)
    assert [receipt.offset for receipt in receipts] == [100, 101, 102, 103, 104]


async def test_no_more_than_five_of_a_lane_are_in_flight(broker: Any) -> None:
    waiting: list[Any] = []
    broker.answers[Command.PUBLISH] = lambda control, request: waiting.append(request)
    async with lanner.connect(broker.address) as queue:
        producer = queue.producer(linger_ms=0, batch_messages=1)
        sendings = [await producer.send("t", b"x") for _ in range(8)]
        await broker.until(lambda: len(waiting) == 5)
        await asyncio.sleep(0.02)
        assert len(waiting) == 5
        broker.answers.clear()
        for number, request in enumerate(waiting):
            broker.links[0].reply(request, Published(number, 1, 1))
        for sending in sendings:
            await sending
    assert sequences(broker) == [(1, number) for number in range(8)]


async def test_a_lost_connection_sends_the_same_batches_again(broker: Any) -> None:
    hangs = iter([True])
    broker.answers[Command.PUBLISH] = lambda control, request: (
        broker.HANG_UP if next(hangs, False) else Published(0, 1, 1, True)
    )
    async with lanner.connect(broker.address) as queue:
        receipt = await queue.publish("t", b"x")
    assert receipt.duplicate
    first, second = (bytes(request.bulk) for request in broker.requests if request.command is Command.PUBLISH)
    assert first == second


async def test_a_forgotten_producer_goes_on_under_a_new_id(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        await queue.publish("t", b"a")
        refusals = iter([ProducerUnknown()])
        broker.answers[Command.PUBLISH] = lambda control, request: next(refusals, Published(1, 1, 1))
        assert (await queue.publish("t", b"b")).offset == 1
    assert sequences(broker) == [(1, 0), (1, 1), (2, 0)]


async def test_a_gap_is_filled_by_sending_in_order(broker: Any) -> None:
    refusals = iter([Overloaded(), SequenceGap(), SequenceGap()])
    broker.answers[Command.PUBLISH] = lambda control, request: next(refusals, Published(0, 1, 1))
    async with lanner.connect(broker.address) as queue, queue.producer(linger_ms=0, batch_messages=1) as producer:
        for _ in range(3):
            await producer.send("t", b"x")
    assert sequences(broker) == [(1, 0), (1, 1), (1, 2)] * 2


async def test_an_unknown_fate_is_reported_as_such(broker: Any) -> None:
    broker.answers[Command.PUBLISH] = lambda control, request: None
    async with lanner.connect(broker.address, timeout_ms=200) as queue:
        with pytest.raises(DeadlineExceeded, match="not known whether"):
            await queue.publish("t", b"x")


async def test_a_missing_topic_is_told_to_the_sender(broker: Any) -> None:
    broker.answers[Command.METADATA] = lambda control, request: MetadataReply(
        "c", [], [TopicInfo("t", 0, [], {}, TopicNotFound.code)]
    )
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(TopicNotFound, match="create it first"):
            await queue.publish("t", b"x")
        with pytest.raises(TopicNotFound):
            await queue.publish_many("t", [b"x"])


async def test_a_topic_that_vanishes_is_looked_up_again(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        await queue.publish("t", b"a")
        broker.answers[Command.PUBLISH] = lambda control, request: TopicNotFound()
        with pytest.raises(TopicNotFound):
            await queue.publish("t", b"b")
        broker.answers.clear()
        await queue.publish("t", b"c")
    assert len(broker.of(Command.METADATA)) == 2


async def test_errors_of_many_are_raised_together_or_returned_singly(broker: Any) -> None:
    outcomes = iter([Published(0, 1, 2), ValidationError("no"), Published(2, 1, 1)])
    broker.answers[Command.PUBLISH] = lambda control, request: next(outcomes, Published(9, 1, 1))
    async with lanner.connect(broker.address) as queue:
        producer = queue.producer(batch_messages=2, idempotent=False)
        values = [b"a", b"b", b"c", b"d", b"e"]
        receipts = await producer.publish_many("t", values, return_errors=True)
        assert [isinstance(outcome, ValidationError) for outcome in receipts.outcomes()] == [
            False,
            False,
            True,
            True,
            False,
        ]
        assert receipts.failed == 2
        with pytest.raises(ValidationError, match="no"):
            receipts[2]
        assert [receipt.offset for receipt in receipts[0:2]] == [0, 1]
        outcomes = iter([Published(0, 1, 2), ValidationError("no"), Published(2, 1, 1)])
        with pytest.raises(ValidationError, match="2 of 5 messages failed: no"):
            await producer.publish_many("t", values)
    assert sequences(broker)[0] == (0, -1)


async def test_keys_choose_partitions_and_columns_must_match(broker: Any) -> None:
    broker.partitions = 4
    async with lanner.connect(broker.address) as queue:
        await queue.publish_many("t", [b"%d" % n for n in range(40)], keys=[f"k{n % 8}" for n in range(40)])
        chosen = {control.partition for control in broker.of(Command.PUBLISH)}
        assert len(chosen) > 1
        await queue.publish("t", b"x", key="k1")
        await queue.publish("t", b"x", dedup_id="k1")
        first, second = broker.of(Command.PUBLISH)[-2:]
        assert first.partition == second.partition
        with pytest.raises(ValidationError, match="keys has 1 entries for 2"):
            await queue.publish_many("t", [b"a", b"b"], keys=[b"k"])
        with pytest.raises(ValidationError, match="empty"):
            await queue.publish_many("t", [])


async def test_batches_stay_small_also_when_keys_and_headers_are_what_is_large(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        keys = ["k" * 60_000] * 200
        receipts = await queue.publish_many("t", [b"x"] * 200, keys=keys, headers=[{"h": bytes(30_000)}] * 200)
        assert receipts.failed == 0
        await asyncio.gather(*(queue.publish("t", b"x", key="k" * 60_000) for _ in range(200)))
    assert all(len(request.bulk) < 400_000 for request in broker.requests if request.command is Command.PUBLISH)
    assert sum(counts(broker)) == 400


async def test_room_comes_back_as_fates_become_known(broker: Any) -> None:
    waiting: list[Any] = []
    broker.answers[Command.PUBLISH] = lambda control, request: waiting.append(request)
    async with lanner.connect(broker.address) as queue:
        producer = queue.producer(linger_ms=1_000, buffer_bytes_max=500)
        while not producer.full:
            await producer.send("t", bytes(100))
        blocked = asyncio.ensure_future(producer.send("t", bytes(100)))
        await broker.until(lambda: len(waiting) == 1)
        assert not blocked.done()
        broker.answers.clear()
        broker.links[0].reply(waiting[0], Published(0, 1, 5))
        await blocked
        await producer.close()
        assert producer.is_closed


async def test_a_cancelled_waiter_does_not_take_the_others_with_it(broker: Any) -> None:
    waiting: list[Any] = []
    broker.answers[Command.PUBLISH] = lambda control, request: waiting.append(request)
    async with lanner.connect(broker.address) as queue:
        one, two = (asyncio.ensure_future(queue.publish("t", b"x")) for _ in range(2))
        await broker.until(lambda: len(waiting) == 1)
        one.cancel()
        await asyncio.sleep(0)
        broker.answers.clear()
        broker.links[0].reply(waiting[0], Published(0, 1, 2))
        assert (await two).offset == 1
        assert one.cancelled()


async def test_leaving_by_cancellation_abandons_and_tells(broker: Any) -> None:
    broker.answers[Command.PUBLISH] = lambda control, request: None
    async with lanner.connect(broker.address) as queue:
        producer = queue.producer(linger_ms=0)
        sending = await producer.send("t", b"x")
        producer.abandon()
        with pytest.raises(ServiceUnavailable, match="closed before the broker confirmed"):
            await sending
        with pytest.raises(ServiceUnavailable, match="make a new one"):
            await producer.send("t", b"y")


async def test_what_cannot_be_opened_yet_waits_for_the_producer_id(broker: Any) -> None:
    opening = iter([ConnectionLost("not now"), Overloaded()])
    default = broker.default
    broker.answers[Command.OPEN_PRODUCER] = lambda control, request: next(opening, None) or default(request)
    async with lanner.connect(broker.address) as queue:
        assert (await queue.publish("t", b"x")).offset == 0


async def test_waiting_for_the_broker_is_not_a_busy_loop(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.answers[Command.OPEN_PRODUCER] = lambda control, request: None
    turns = 0
    pump = lanner.Producer._pump

    def counted(producer: lanner.Producer) -> None:
        nonlocal turns
        turns += 1
        pump(producer)

    monkeypatch.setattr(lanner.Producer, "_pump", counted)
    async with lanner.connect(broker.address) as queue:
        publishing = asyncio.ensure_future(queue.publish("t", b"x"))
        await asyncio.sleep(0.6)
        assert 1 <= turns <= 6
        publishing.cancel()
        await queue.close(flush=False)


async def test_a_queue_that_is_not_open_says_so() -> None:
    queue = lanner.connect("localhost:7400")
    for use in (
        lambda: queue.publish("t", b"x"),
        lambda: queue.publish_many("t", [b"x"]),
        lambda: queue.admin.ping(),
    ):
        with pytest.raises(ServiceUnavailable, match="not connected yet"):
            await use()
    with pytest.raises(ServiceUnavailable, match="not connected yet"):
        queue.consumer("t", "g")


async def test_leaving_with_the_broker_away_does_not_hide_what_was_lost(broker: Any) -> None:
    with pytest.raises(DeadlineExceeded, match="not sent"):
        async with lanner.connect(broker.address, timeout_ms=300) as queue:
            producer = queue.producer()
            await producer.publish("t", b"a")
            await broker.stop()
            await broker.until(lambda: not queue.is_connected)
            await producer.send("t", b"b")


async def test_leaving_by_an_error_with_the_broker_away_does_not_wait(broker: Any) -> None:
    began = asyncio.get_running_loop().time()
    with pytest.raises(KeyError):
        async with lanner.connect(broker.address, timeout_ms=20_000) as queue:
            producer = queue.producer()
            await producer.publish("t", b"a")
            await broker.stop()
            await broker.until(lambda: not queue.is_connected)
            await producer.send("t", b"b")
            raise KeyError("mine")
    assert asyncio.get_running_loop().time() - began < 5


@pytest.mark.parametrize(
    ("options", "message"),
    [({"codec": "gzip"}, "codec"), ({"linger_ms": -1}, "linger_ms"), ({"batch_messages": 0}, "batch_messages")],
)
async def test_options_out_of_bounds_are_refused(broker: Any, options: dict[str, Any], message: str) -> None:
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(ValidationError, match=message):
            queue.producer(**options)
