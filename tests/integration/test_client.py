"""The client against a real broker, over real sockets: what an application can rely on."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import lanner
from lanner.errors import (
    GroupKindConflict,
    LeaseLost,
    MessageTooLarge,
    NotFoundError,
    PartitionNotFound,
    ServiceUnavailable,
    TopicExists,
    TopicFull,
    TopicNotFound,
    ValidationError,
)
from tests.brokers import native_address, native_server

__all__ = ["native_address", "native_server"]


@pytest.fixture
async def queue(address: str) -> AsyncIterator[lanner.Queue]:
    async with lanner.connect(address, timeout_ms=10_000) as queue:
        yield queue


class Proxy:
    """A wire that can be cut, and that can lose answers before it is."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.losing_answers = False
        self.connections = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        for source, sink, answers in ((reader, back, False), (there, writer, True)):
            task = asyncio.get_running_loop().create_task(self._copy(source, sink, answers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                if not (answers and self.losing_answers):
                    sink.write(data)
                    await sink.drain()
        sink.close()

    def cut(self) -> None:
        self.losing_answers = False
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()


@pytest.fixture
async def proxy(address: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(address)
    yield proxy
    await proxy.stop()


async def stored_values(queue: lanner.Queue, topic: str) -> list[bytes]:
    async with queue.reader(topic, until_end=True) as reader:
        return [value async for batch in reader.read_batches() for value in batch.values()]


# ------------------------------------------------------------------ publishing


async def test_a_receipt_says_where_the_message_went(queue: lanner.Queue) -> None:
    receipt = await queue.publish("orders", "hello", key="customer-7", headers={"trace": "1"}, priority=7)
    assert receipt.topic == "orders"
    assert receipt.id == f"orders/{receipt.partition}/{receipt.offset}"
    assert not receipt.duplicate
    (found,) = await queue.admin.peek("orders")
    assert (found.value, found.key, found.headers, found.priority) == (b"hello", b"customer-7", {"trace": b"1"}, 7)
    assert (found.partition, found.offset, found.timestamp_ms) == (
        receipt.partition,
        receipt.offset,
        receipt.timestamp_ms,
    )


async def test_a_producer_sends_its_time_when_it_is_asked_to(queue: lanner.Queue) -> None:
    before = time.time_ns() // 1_000_000
    async with queue.producer(timestamps=True) as producer:
        await producer.send("orders", b"timed")
    await queue.publish("orders", b"without")
    after = time.time_ns() // 1_000_000
    async with queue.reader("orders", start="earliest", until_end=True) as reader:
        found = {message.value: message.producer_timestamp_ms async for message in reader}
    sent = found[b"timed"]
    assert sent is not None
    assert before - 1 <= sent <= after + 1
    assert found[b"without"] is None


async def test_many_messages_come_back_with_receipts_in_the_order_given(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("many", partitions=4)
    values = [b"%d" % number for number in range(5_000)]
    keys = [b"k%d" % (number % 17) for number in range(5_000)]
    receipts = await queue.publish_many("many", values, keys=keys, headers=[{"n": value} for value in values])
    assert len(receipts) == 5_000
    stored: dict[tuple[int, int], bytes] = {}
    async with queue.reader("many", until_end=True) as reader:
        async for message in reader:
            assert message.headers == {"n": message.value}
            stored[message.partition, message.offset] = message.value
    assert [stored[receipt.partition, receipt.offset] for receipt in receipts] == values
    for key in set(keys):
        assert len({receipt.partition for receipt, one in zip(receipts, keys, strict=True) if one == key}) == 1


async def test_messages_without_a_key_go_round_the_partitions(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("round", partitions=3)
    used = Counter([(await queue.publish("round", b"x")).partition for _ in range(9)])
    assert used == {0: 3, 1: 3, 2: 3}


async def test_concurrent_publishes_share_requests_and_keep_their_own_fates(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("shared", partitions=1)
    receipts = await asyncio.gather(*(queue.publish("shared", b"%d" % number) for number in range(300)))
    assert sorted(receipt.offset for receipt in receipts) == list(range(300))
    values = await stored_values(queue, "shared")
    assert [values[receipt.offset] for receipt in receipts] == [b"%d" % number for number in range(300)]
    state = (await queue.admin.describe("shared")).partitions[0]
    assert state.batches < 100


async def test_a_bad_message_fails_alone_and_says_why(queue: lanner.Queue) -> None:
    good = asyncio.ensure_future(queue.publish("picky", b"good"))
    with pytest.raises(MessageTooLarge, match="1048576"):
        await queue.publish("picky", bytes(1_048_577))
    with pytest.raises(ValidationError, match="priority"):
        await queue.publish("picky", b"x", priority="urgent")
    with pytest.raises(ValidationError, match="topic"):
        await queue.publish("no/such", b"x")
    with pytest.raises(ValidationError, match="bytes or text"):
        await queue.publish("picky", 7)  # type: ignore[arg-type]
    with pytest.raises(PartitionNotFound, match="no partition 99"):
        await queue.publish("picky", b"x", partition=99)
    assert (await good).offset == 0


async def test_the_same_dedup_id_is_stored_once(queue: lanner.Queue) -> None:
    first = await queue.publish("once", b"a", dedup_id="order-1")
    second = await queue.publish("once", b"a", dedup_id="order-1")
    assert (first.duplicate, second.duplicate) == (False, True)
    assert (first.partition, first.offset) == (second.partition, second.offset)
    assert await stored_values(queue, "once") == [b"a"]


async def test_a_producer_batches_by_priority_and_tells_each_fate(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("made", partitions=2)
    async with queue.producer(linger_ms=20, codec="lz4") as producer:
        sendings = [await producer.send("made", b"%d" % number, priority=number % 3) for number in range(600)]
        assert not sendings[0].done()
        receipts = [await sending for sending in sendings]
    assert len({(receipt.partition, receipt.offset) for receipt in receipts}) == 600
    description = await queue.admin.describe("made")
    assert sum(state.batches for state in description.partitions) <= 12
    assert sum((Counter(state.depth) for state in description.partitions), Counter()) == {0: 200, 1: 200, 2: 200}


async def test_a_producer_holds_no_more_than_its_buffer(queue: lanner.Queue) -> None:
    async with queue.producer(linger_ms=5, buffer_bytes_max=64 * 1024, batch_bytes=8 * 1024) as producer:
        for _ in range(2_000):
            await producer.send("bounded", bytes(100))
            assert producer.buffered_bytes <= 64 * 1024 + 200
        await producer.flush()
        assert producer.buffered_bytes == 0
    assert len(await stored_values(queue, "bounded")) == 2_000


async def test_flush_tells_of_a_failure_that_nobody_awaited(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("gone", partitions=1)
    producer = queue.producer(linger_ms=0)
    await (await producer.send("gone", b"a"))
    await queue.admin.alter_topic("gone", max_bytes=1)
    await producer.send("gone", b"b")
    with pytest.raises(TopicFull):
        await producer.flush()
    await producer.flush()  # told once
    await producer.close()
    with pytest.raises(ServiceUnavailable, match="closed"):
        await producer.send("gone", b"c")


# ------------------------------------------------------------------ connections that end


async def test_a_killed_connection_neither_loses_nor_doubles_a_publish(proxy: Proxy, queue: lanner.Queue) -> None:
    await queue.admin.create_topic("exact", partitions=2)
    rng = random.Random(5)
    through = await proxy.start()
    async with lanner.connect(through, timeout_ms=20_000) as cut_off:
        receipts: list[tuple[bytes, lanner.Receipt]] = []

        async def publish(worker: int) -> None:
            for number in range(60):
                value = b"%d-%d" % (worker, number)
                receipts.append((value, await cut_off.publish("exact", value, partition=worker % 2)))

        workers = [asyncio.ensure_future(publish(worker)) for worker in range(8)]
        for _ in range(6):
            await asyncio.sleep(0.02)
            proxy.losing_answers = rng.random() < 0.7
            await asyncio.sleep(0.005)
            proxy.cut()
        await asyncio.gather(*workers)
    assert proxy.connections >= 3
    values = await stored_values(queue, "exact")
    assert len(values) == 480
    assert len(set(values)) == 480
    for partition in (0, 1):
        async with queue.reader("exact", partitions=partition, until_end=True) as reader:
            stored = {message.offset: message.value async for message in reader}
        for value, receipt in receipts:
            if receipt.partition == partition:
                assert stored[receipt.offset] == value
        for worker in range(partition, 8, 2):
            mine = [value for value in stored.values() if value.startswith(b"%d-" % worker)]
            assert mine == [b"%d-%d" % (worker, number) for number in range(60)]


async def test_a_poll_whose_answer_was_lost_gets_the_same_leases_again(proxy: Proxy, queue: lanner.Queue) -> None:
    await queue.publish_many("again", [b"%d" % number for number in range(20)], partition=0)
    through = await proxy.start()
    async with lanner.connect(through) as cut_off, cut_off.consumer("again", "g") as consumer:
        proxy.losing_answers = True
        polling = asyncio.ensure_future(consumer.poll(20, wait_ms=5_000))
        await asyncio.sleep(0.1)
        proxy.cut()
        batch = await polling
        assert sorted(batch.values()) == sorted(b"%d" % number for number in range(20))
        assert {message.attempt for message in batch} == {1}
        proxy.cut()
        await batch.ack()  # sent again over the next connection
    group = await queue.admin.group("again", "g")
    assert sum(state.lag for state in group.partitions) == 0


async def test_nothing_is_lost_or_comes_back_after_its_ack_over_a_wire_that_keeps_breaking(
    proxy: Proxy, queue: lanner.Queue
) -> None:
    await queue.admin.create_topic("flaky", partitions=2, lease_ms=60_000)
    wanted = {b"%d" % number for number in range(600)}
    await queue.publish_many("flaky", sorted(wanted))
    through = await proxy.start()
    rng = random.Random(11)
    handed: list[bytes] = []
    acked: set[bytes] = set()

    async def cut_now_and_then() -> None:
        while True:
            await asyncio.sleep(0.03)
            proxy.losing_answers = rng.random() < 0.5
            await asyncio.sleep(0.01)
            proxy.cut()

    async with lanner.connect(through, timeout_ms=20_000) as cut_off, cut_off.consumer("flaky", "g") as consumer:
        cutting = asyncio.ensure_future(cut_now_and_then())
        async with asyncio.timeout(60):
            while len(acked) < len(wanted):
                batch = await consumer.poll(23, wait_ms=500)
                assert not acked & set(batch.values())
                handed += batch.values()
                with contextlib.suppress(LeaseLost):  # the answer to the first sending was lost
                    await batch.ack()
                acked.update(batch.values())
        cutting.cancel()
    assert set(handed) == wanted
    assert len(handed) == len(wanted)
    assert sum(state.lag for state in (await queue.admin.group("flaky", "g")).partitions) == 0


async def test_no_broker_is_a_clear_error_that_says_what_to_do() -> None:
    with pytest.raises(ServiceUnavailable, match="lanner up"):
        async with lanner.connect("127.0.0.1:1"):
            pass
    with pytest.raises(ValidationError, match="HOST:PORT"):
        lanner.connect("127.0.0.1:port")


async def test_a_broker_that_is_away_fails_calls_by_their_deadline(proxy: Proxy) -> None:
    through = await proxy.start()
    async with lanner.connect(through, timeout_ms=600) as queue:
        await queue.publish("away", b"a")
        await proxy.stop()
        await asyncio.sleep(0.05)
        began = asyncio.get_running_loop().time()
        with pytest.raises(lanner.LannerError, match=r"reached in time|no connection|not known"):
            await queue.publish("away", b"b")
        with pytest.raises(lanner.LannerError, match="no connection"):
            await queue.admin.ping()
        assert asyncio.get_running_loop().time() - began < 3


# ------------------------------------------------------------------ consuming


async def test_high_comes_before_low_whatever_the_order_of_publishing(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("orders", partitions=1)
    for priority in ("low", "normal", "high", 2, 7):
        await queue.publish("orders", str(priority), priority=priority)
    async with queue.consumer("orders", "billing") as consumer:
        seen = []
        async for message in consumer:
            seen.append(message.text())
            await message.ack()
            if len(seen) == 5:
                break
    assert seen == ["high", "7", "normal", "2", "low"]


async def test_a_thousand_messages_of_all_priorities_in_odd_batches_come_exactly_once(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("mixed", partitions=3)
    rng = random.Random(3)
    wanted = {b"%d" % number: rng.randrange(10) for number in range(1_000)}
    await asyncio.gather(*(queue.publish("mixed", value, priority=priority) for value, priority in wanted.items()))
    seen: list[tuple[bytes, int]] = []
    async with queue.consumer("mixed", "all") as consumer:
        for size in [1, 3, 7, 31, 113] * 40:
            batch = await consumer.poll(size, wait_ms=200)
            assert len(batch) <= size
            seen += [(message.value, message.priority) for message in batch]
            await batch.ack()
            if len(seen) >= 1_000:
                break
        assert not await consumer.poll(10, wait_ms=50)
    assert dict(seen) == wanted
    assert len(seen) == 1_000
    priorities = [priority for _, priority in seen]
    assert priorities == sorted(priorities, reverse=True)


async def test_more_urgent_messages_overtake_what_is_not_in_hand_yet(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("overtake", partitions=1)
    await queue.publish_many("overtake", [b"low"] * 50, priority="low")
    async with queue.consumer("overtake", "g", prefetch=1) as consumer:
        seen = []
        async for message in consumer:
            seen.append(message.value)
            if len(seen) == 3:
                await queue.publish("overtake", b"urgent", priority="high")
            await message.ack()
            if len(seen) == 5:
                break
    assert seen == [b"low", b"low", b"low", b"urgent", b"low"]


async def test_a_poll_after_an_iteration_sees_what_that_had_in_hand(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("turns", partitions=1)
    await queue.publish_many("turns", [b"%d" % number for number in range(10)])
    async with queue.consumer("turns", "g", prefetch=10) as consumer:
        first = await anext(consumer)
        batch = await consumer.poll(10, wait_ms=1_000)
        assert batch.values() == [b"%d" % number for number in range(1, 10)]
        assert {message.attempt for message in batch} == {1}
        await asyncio.gather(first.ack(), batch.ack())


async def test_leaving_the_block_returns_what_was_not_settled_at_once(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("left", partitions=1)
    await queue.publish_many("left", [b"%d" % number for number in range(10)])
    async with queue.consumer("left", "g", prefetch=10) as consumer:
        async for message in consumer:
            if message.value == b"2":
                break
            await message.ack()
    async with queue.consumer("left", "g") as consumer:
        batch = await consumer.poll(100, wait_ms=2_000)
        attempts = {message.value: message.attempt for message in batch}
        await batch.ack()
    # The one it saw has been tried once; those it never saw have not.
    assert attempts == {b"2": 2, **{b"%d" % number: 1 for number in range(3, 10)}}


async def test_settling_after_the_lease_ended_is_lease_lost(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("late", partitions=1, backoff_ms=0)
    await queue.publish("late", b"slow")
    async with queue.consumer("late", "g", lease_ms=50) as slow, queue.consumer("late", "g") as quick:
        (message,) = await slow.poll()
        (again,) = await quick.poll(wait_ms=5_000)
        assert (again.id, again.attempt) == (message.id, 2)
        with pytest.raises(LeaseLost, match="late/0/0"):
            await message.ack()
        await again.ack()
        with pytest.raises(LeaseLost, match="settled already"):
            await again.ack()


async def test_leases_of_what_is_held_are_extended_in_the_background(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("held", partitions=1)
    await queue.publish("held", b"long work")
    async with (
        queue.consumer("held", "g", lease_ms=900, auto_extend=True) as worker,
        queue.consumer("held", "g") as other,
    ):
        (message,) = await worker.poll()
        assert not await other.poll(wait_ms=1_500)
        await message.ack()


async def test_nack_extend_and_reject_do_what_they_say(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("work", partitions=1)
    await queue.publish_many("work", [b"retry", b"extend", b"reject"])
    async with queue.consumer("work", "g", lease_ms=2_000) as consumer:
        retry, extend, reject = await consumer.poll(3)
        await asyncio.gather(
            retry.nack(delay_ms=0, reason="not yet"), extend.extend(lease_ms=60_000), reject.reject("never")
        )
        (again,) = await consumer.poll(10, wait_ms=2_000)
        assert (again.value, again.attempt) == (b"retry", 2)
        await asyncio.gather(again.ack(), extend.ack())
    dead = await queue.admin.dead_letters("work", "g")
    assert dead.total == 1
    (letter,) = dead.letters
    assert letter.message is not None
    assert (letter.message.value, letter.reason, letter.attempts) == (b"reject", "never", 1)
    assert await queue.admin.redrive("work", "g") == 1
    async with queue.consumer("work", "g") as consumer:
        (revived,) = await consumer.poll(wait_ms=2_000)
        assert revived.value == b"reject"
        await revived.reject("really")
    assert await queue.admin.discard("work", "g", partition=0, offsets=[letter.offset]) == 1
    assert (await queue.admin.dead_letters("work", "g")).total == 0


async def test_a_batch_settles_by_ranges_around_what_was_settled_singly(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("ranges", partitions=1)
    await queue.publish_many("ranges", [b"%d" % number for number in range(10)])
    async with queue.consumer("ranges", "g") as consumer:
        batch = await consumer.poll(10)
        await batch[4].nack(delay_ms=0)
        settling = batch.ack()
        await settling
        assert settling.settled_count == 9
        assert not batch.ack().items
        (again,) = await consumer.poll(10, wait_ms=2_000)
        assert again.value == b"4"
        assert batch[-1].value == b"9"
        assert [message.value for message in batch[2:4]] == [b"2", b"3"]
        await again.ack()


async def test_a_settle_rides_on_the_next_poll_and_never_waits_for_it(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("riding", partitions=1)
    await queue.publish("riding", b"a")
    async with queue.consumer("riding", "g") as consumer:
        batch = await consumer.poll()
        settling = batch.ack()  # not awaited: it leaves with the poll below
        polling = asyncio.ensure_future(consumer.poll(wait_ms=5_000))
        async with asyncio.timeout(2):
            await settling
        assert not polling.done()
        await queue.publish("riding", b"b")
        (message,) = await polling
        await message.ack()


async def test_a_cancelled_poll_keeps_nothing(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("cancelled", partitions=1)
    async with queue.consumer("cancelled", "g") as first, queue.consumer("cancelled", "g") as second:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await first.poll(wait_ms=2_000)
        await queue.publish("cancelled", b"x")
        (message,) = await second.poll(wait_ms=3_000)
        assert (message.value, message.attempt) == (b"x", 1)
        await message.ack()


async def test_auto_ack_hands_out_at_most_once(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("gone", partitions=1)
    await queue.publish_many("gone", [b"a", b"b"])
    async with queue.consumer("gone", "g", auto_ack=True) as consumer:
        assert (await consumer.poll(10)).values() == [b"a", b"b"]
    async with queue.consumer("gone", "g") as consumer:
        assert not await consumer.poll(wait_ms=50)


async def test_delayed_and_expiring_messages_keep_their_times(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("timed", partitions=1)
    await queue.publish("timed", b"brief", ttl_ms=1)
    await queue.publish("timed", b"later", delay_ms=300)
    await queue.publish("timed", b"now")
    await asyncio.sleep(0.02)
    async with queue.consumer("timed", "g") as consumer:
        first = await consumer.poll(10, wait_ms=100)
        assert first.values() == [b"now"]
        await first.ack()
        (later,) = await consumer.poll(10, wait_ms=5_000)
        assert later.value == b"later"
        assert later.deliver_at_ms > 0
        await later.ack()
    async with queue.reader("timed", until_end=True) as reader:
        assert [(message.value, message.expires_at_ms > 0) async for message in reader] == [
            (b"brief", True),
            (b"later", False),
            (b"now", False),
        ]


async def test_two_groups_each_get_everything_and_two_members_share(queue: lanner.Queue) -> None:
    await queue.publish_many("news", [b"%d" % number for number in range(30)])
    async with (
        queue.consumer("news", "a") as alone,
        queue.consumer("news", "b") as left,
        queue.consumer("news", "b") as right,
    ):
        everything = []
        while len(everything) < 30:
            batch = await alone.poll(30)
            everything += batch.values()
            await batch.ack()
        shared = []
        while len(shared) < 30:
            for member in (left, right):
                batch = await member.poll(5, wait_ms=100)
                shared += batch.values()
                await batch.ack()
        assert sorted(everything) == sorted(shared)
        assert len(set(shared)) == 30


# ------------------------------------------------------------------ streams


async def test_a_reader_follows_the_log_from_where_it_is_told(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("log", partitions=1)
    for start in (0, 10):
        await queue.publish_many("log", [b"%d" % number for number in range(start, start + 10)])
    async with queue.reader("log", start=13) as reader:
        message = await anext(reader)
        assert (message.value, message.offset) == (b"13", 13)
        await reader.seek({0: 5})
        assert (await anext(reader)).value == b"5"
        await reader.seek("latest")
        reading = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0.05)
        await queue.publish("log", b"20")
        assert (await reading).value == b"20"
        assert reader.positions() == {0: 21}
        assert await reader.lag() == {0: 0}
        assert await reader.read_batch(wait_ms=50) is None


async def test_a_reader_seeks_by_time(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("log", partitions=1)
    await queue.publish("log", b"before")
    await asyncio.sleep(0.03)
    moment = datetime.now(UTC)
    await asyncio.sleep(0.03)
    await queue.publish("log", b"after")
    async with queue.reader("log", start=moment, until_end=True) as reader:
        assert [message.value async for message in reader] == [b"after"]


async def test_a_committed_reader_goes_on_where_it_stopped(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("log", partitions=2)
    await queue.publish_many("log", [b"%d" % number for number in range(100)], partition=0)
    await queue.publish_many("log", [b"x"], partition=1)
    async with queue.reader("log", partitions=[0], group="etl") as reader:
        for _ in range(30):
            await anext(reader)
        await reader.commit()
    assert await queue.admin.committed("log", "etl") == {0: 30}
    async with queue.reader("log", partitions=0, group="etl") as reader:
        assert (await anext(reader)).value == b"30"
    async with queue.consumer("log", "etl") as consumer:
        with pytest.raises(GroupKindConflict):
            await consumer.poll()


async def test_a_reader_reports_the_holes_that_retention_left(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("acked", partitions=1, retention="acked")
    for batch in range(4):
        await queue.publish_many("acked", [b"%d-%d" % (batch, number) for number in range(10)])
    async with queue.consumer("acked", "g", lease_ms=60_000) as consumer:
        batch = await consumer.poll(40)
        kept = [message for message in batch if message.value == b"1-5"]
        await asyncio.gather(*(message.ack() for message in batch if message not in kept and message.value[:1] < b"3"))
        async with asyncio.timeout(10):
            while (await queue.admin.describe("acked")).partitions[0].first_offset == 0:
                await asyncio.sleep(0.05)
        holes: list[lanner.Hole] = []
        async with queue.reader("acked", start=0, until_end=True, on_hole=holes.append) as reader:
            offsets = [message.offset async for message in reader]
        assert offsets[-10:] == list(range(30, 40))
        gone = {offset for hole in holes for offset in range(hole.first_offset, hole.next_offset)}
        assert gone == set(range(40)) - set(offsets)
        assert reader.missing == len(gone) > 0


async def test_an_unknown_topic_is_not_created_by_looking(queue: lanner.Queue) -> None:
    for look in (
        queue.admin.describe("nothing"),
        queue.admin.peek("nothing"),
        queue.reader("nothing").open(),
    ):
        with pytest.raises(TopicNotFound):
            await look
    assert await queue.admin.topics() == []


# ------------------------------------------------------------------ administration


async def test_topics_and_groups_are_managed_with_types(queue: lanner.Queue) -> None:
    made = await queue.admin.create_topic("managed", partitions=2, lease_ms=5_000)
    assert (made.name, len(made.partitions), made.settings["lease_ms"]) == ("managed", 2, 5_000)
    with pytest.raises(TopicExists):
        await queue.admin.create_topic("managed")
    assert (await queue.admin.create_topic("managed", exist_ok=True)).incarnation == made.incarnation
    with pytest.raises(ValidationError, match="'colour' is not a topic setting"):
        await queue.admin.create_topic("other", colour="red")
    assert (await queue.admin.alter_topic("managed", lease_ms=7_000)).settings["lease_ms"] == 7_000
    await queue.publish("managed", b"x", partition=1)
    assert {one.partition: one.end_offset for one in await queue.admin.offsets("managed")} == {0: 0, 1: 1}
    async with queue.consumer("managed", "g") as consumer:
        await (await consumer.poll()).ack()
    assert await queue.admin.groups("managed") == ["g"]
    await queue.admin.seek("managed", "g", to="earliest")
    assert sum(state.lag for state in (await queue.admin.group("managed", "g")).partitions) == 1
    with pytest.raises(ValidationError, match="exactly one"):
        await queue.admin.seek("managed", "g")
    await queue.admin.drop_group("managed", "g")
    assert await queue.admin.groups("managed") == []
    await queue.admin.delete_topic("managed")
    assert await queue.admin.topics() == []
    with pytest.raises(NotFoundError):
        await queue.admin.delete_topic("managed")
    assert (await queue.admin.cluster()).brokers


async def test_a_topic_made_anew_takes_the_same_producer(queue: lanner.Queue) -> None:
    await queue.admin.create_topic("phoenix", partitions=1)
    for _ in range(3):
        await queue.publish("phoenix", b"old")
    await queue.admin.delete_topic("phoenix")
    await queue.admin.create_topic("phoenix", partitions=1)
    assert (await queue.publish("phoenix", b"new")).offset == 0
    assert await stored_values(queue, "phoenix") == [b"new"]


# ------------------------------------------------------------------ blocking, and a broker inside the process


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[lanner.sync.Queue]:
    with lanner.embedded(tmp_path / "inside", disk_reserve_bytes=0) as queue:
        yield queue


def test_the_blocking_client_publishes_consumes_and_reads(embedded: lanner.sync.Queue) -> None:
    queue = embedded
    queue.admin.create_topic("orders", partitions=1)
    assert queue.publish("orders", "one", priority="low").offset == 0
    assert len(queue.publish_many("orders", [b"two", b"three"], priority="high")) == 2
    with queue.producer(linger_ms=1) as producer:
        assert producer.send("orders", b"four").result(10).offset == 3
    with queue.consumer("orders", "g") as consumer:
        seen = []
        for message in consumer:
            seen.append(message.text())
            message.ack()
            if len(seen) == 3:
                break
        assert seen == ["two", "three", "four"]
        batch = consumer.poll()
        batch.nack(delay_ms=0)
        (again,) = consumer.poll(wait_ms=2_000)
        assert again.attempt == 2
        again.extend()
        consumer.ack(again)
        with pytest.raises(LeaseLost):
            again.ack()
    with queue.reader("orders", until_end=True, group="copy") as reader:
        assert [message.value for message in reader] == [b"one", b"two", b"three", b"four"]
        reader.commit()
        assert reader.positions() == {0: 4}
        reader.seek({0: 1})
        assert next(reader).offset == 1
        assert reader.positions() == {0: 2}
        for message in reader:
            assert message.offset == 2
            break
        reader.seek({0: 4})
        assert reader.lag() == {0: 0}
    assert queue.admin.committed("orders", "copy") == {0: 4}
    assert queue.admin.topics() == ["orders"]


def test_leaving_a_blocking_loop_gives_back_what_was_not_settled(embedded: lanner.sync.Queue) -> None:
    embedded.admin.create_topic("left", partitions=1)
    embedded.publish_many("left", [b"a", b"b", b"c"])
    with embedded.consumer("left", "g", prefetch=3) as consumer:
        for message in consumer:
            message.ack()
            break
    with embedded.consumer("left", "g") as consumer:
        batch = consumer.poll(10, wait_ms=2_000)
        assert batch.values() == [b"b", b"c"]
        assert {message.attempt for message in batch} == {1}
        batch.ack()


def test_a_blocking_consumer_or_reader_that_is_closed_cannot_be_entered_again(embedded: lanner.sync.Queue) -> None:
    embedded.admin.create_topic("entered", partitions=1)
    consumer, reader = embedded.consumer("entered", "g"), embedded.reader("entered")
    with consumer, reader:
        pass
    for closed in (consumer, reader):
        with pytest.raises(ServiceUnavailable, match="make a new one"), closed:
            pass


def test_several_threads_share_one_blocking_connection(embedded: lanner.sync.Queue) -> None:
    embedded.admin.create_topic("threads", partitions=2)
    offsets: list[tuple[int, int]] = []

    def work() -> None:
        for _ in range(20):
            receipt = embedded.publish("threads", b"x")
            offsets.append((receipt.partition, receipt.offset))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(offsets)) == 80


def test_what_an_embedded_broker_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    with lanner.embedded(tmp_path / "kept", disk_reserve_bytes=0) as queue:
        queue.publish_many("kept", [b"%d" % number for number in range(100)])
        with pytest.raises(lanner.LannerError, match="in use by another broker"), lanner.embedded(tmp_path / "kept"):
            pass
    with (
        lanner.embedded(tmp_path / "kept", disk_reserve_bytes=0) as queue,
        queue.reader("kept", until_end=True) as reader,
    ):
        assert len(list(reader)) == 100
    with pytest.raises(ServiceUnavailable, match="closed"):
        queue.publish("kept", b"too late")


# ------------------------------------------------------------------ the examples


async def test_the_examples_do_what_they_say(address: str, queue: lanner.Queue) -> None:
    examples = Path(__file__).parents[2] / "examples"

    async def start(name: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-u", examples / name, address, stdout=asyncio.subprocess.PIPE
        )

    async def finish(process: asyncio.subprocess.Process) -> str:
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0
        return output.decode()

    assert "stored 10000 events" in await finish(await start("publish.py"))
    assert (await finish(await start("stream.py"))).startswith("11001 messages")
    assert (await finish(await start("stream.py"))).startswith("0 messages")
    worker = await start("worker.py")
    assert worker.stdout is not None
    first = await asyncio.wait_for(worker.stdout.readline(), 30)
    assert b"priority 9, attempt 1: refund RF001" in first
    worker.terminate()
    await worker.communicate()
