"""The producer over several brokers: batches find their leaders, and nothing is lost, doubled or reordered by it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import lanner
from lanner.batch import decode
from lanner.errors import ConnectionLost, DeadlineExceeded, LannerError, NotLeader, ServiceUnavailable, TopicNotFound
from lanner.wire.messages import Command, MetadataReply, ProducerOpened, Published, TopicInfo


def published(cluster: Any, node_id: str) -> list[tuple[int, int]]:
    """(partition, sequence) of what one broker was asked to take."""
    requests = [one for one in cluster.brokers[node_id].requests if one.command is Command.PUBLISH]
    return [(one.control.partition, decode(one.bulk).header.sequence) for one in requests]


async def test_each_partition_goes_to_its_leader(cluster: Any) -> None:
    async with lanner.connect(cluster.address) as queue:
        await queue.publish_many("t", [b"%d" % n for n in range(60)], keys=[f"k{n}" for n in range(60)])
    for place, node_id in enumerate(("n1", "n2", "n3")):
        assert {partition for partition, _ in published(cluster, node_id)} == {place}


async def test_a_hint_sends_the_same_bytes_to_the_next_leader_at_once(cluster: Any) -> None:
    async with lanner.connect(cluster.address) as queue:
        await queue.publish("t", b"a", partition=0)
        lookups = sum(len(asked) for asked in cluster.of(Command.METADATA).values())
        cluster.leaders[0] = "n3"
        began = asyncio.get_running_loop().time()
        await queue.publish("t", b"b", partition=0)
        assert asyncio.get_running_loop().time() - began < 0.5
        assert sum(len(asked) for asked in cluster.of(Command.METADATA).values()) == lookups
    refused = [one.bulk for one in cluster.brokers["n1"].requests if one.command is Command.PUBLISH][-1]
    taken = [one.bulk for one in cluster.brokers["n3"].requests if one.command is Command.PUBLISH][-1]
    assert bytes(refused) == bytes(taken)
    assert cluster.logs[0] == [b"a", b"b"]


async def test_an_id_is_asked_of_another_broker_when_one_does_not_give_it(cluster: Any) -> None:
    """Its disk hangs, say: it answers everything but this."""
    asked: list[str] = []

    def silent_at_first(node_id: str) -> Any:
        def answer(_control: Any, _request: Any) -> ProducerOpened | None:
            asked.append(node_id)
            return ProducerOpened(7) if len(asked) > 1 else None

        return answer

    for node_id, broker in cluster.brokers.items():
        broker.answers[Command.OPEN_PRODUCER] = silent_at_first(node_id)
    async with asyncio.timeout(8), lanner.connect(cluster.address) as queue:
        await queue.publish("t", b"a", partition=0)
    assert cluster.logs[0] == [b"a"]
    assert len(asked) == len(set(asked)) == 2


async def test_without_a_hint_the_leader_is_looked_up(cluster: Any) -> None:
    cluster.hints = False
    async with lanner.connect(cluster.address) as queue:
        await queue.publish("t", b"a", partition=0)
        cluster.leaders[0] = "n2"
        await queue.publish("t", b"b", partition=0)
    assert cluster.logs[0] == [b"a", b"b"]


async def test_what_is_in_flight_when_the_leader_moves_arrives_in_order(cluster: Any) -> None:
    waiting: list[Any] = []
    cluster.brokers["n1"].answers[Command.PUBLISH] = lambda control, request: waiting.append(request)
    async with lanner.connect(cluster.address) as queue:
        producer = queue.producer(linger_ms=0, batch_messages=1)
        sendings = [await producer.send("t", b"%d" % number, partition=0) for number in range(8)]
        await cluster.brokers["n1"].until(lambda: len(waiting) == 5)
        cluster.append(0, waiting[0].bulk)  # the old leader took the first two, and its answers are lost
        cluster.append(0, waiting[1].bulk)
        cluster.leaders[0] = "n2"
        cluster.brokers["n1"].answers.clear()
        link = cluster.brokers["n1"].links[0]
        for request in waiting:
            link.fail(request, cluster.not_led(cluster.brokers["n1"], [0]))
        receipts = [await sending for sending in sendings]
    assert cluster.logs[0] == [b"%d" % number for number in range(8)]
    assert [receipt.offset for receipt in receipts] == list(range(8))
    assert [receipt.duplicate for receipt in receipts] == [True, True, *[False] * 6]


async def test_more_of_a_lane_stays_with_the_broker_that_owes_answers(cluster: Any) -> None:
    waiting: list[Any] = []
    cluster.brokers["n1"].answers[Command.PUBLISH] = lambda control, request: waiting.append(request)
    async with lanner.connect(cluster.address) as queue:
        producer = queue.producer(linger_ms=0, batch_messages=1)
        await producer.send("t", b"0", partition=0)
        await cluster.brokers["n1"].until(lambda: len(waiting) == 1)
        cluster.leaders[0] = "n2"
        producer._routing.failed("t", 0, None, NotLeader(leader="n2", address=cluster.brokers["n2"].address))
        await producer.send("t", b"1", partition=0)
        await cluster.brokers["n1"].until(lambda: len(waiting) == 2)
        for request in waiting:
            cluster.brokers["n1"].links[0].fail(request, NotLeader())
        await producer.flush()
    assert cluster.logs[0] == [b"0", b"1"]
    assert published(cluster, "n2") == [(0, 0), (0, 1)]


async def test_a_broker_that_dies_holds_up_only_what_it_led(cluster: Any) -> None:
    async with lanner.connect(cluster.address, timeout_ms=10_000) as queue:
        for partition in range(3):
            await queue.publish("t", b"a", partition=partition)
        await cluster.brokers["n2"].stop()
        held_up = asyncio.ensure_future(queue.publish("t", b"b", partition=1))
        await queue.publish("t", b"b", partition=0)
        await queue.publish("t", b"b", partition=2)
        await asyncio.sleep(0.1)
        assert not held_up.done()
        cluster.leaders[1] = "n3"
        async with asyncio.timeout(2):
            await held_up
    assert [cluster.logs[partition] for partition in range(3)] == [[b"a", b"b"]] * 3


async def test_a_leader_that_goes_silent_is_left_for_the_next(cluster: Any) -> None:
    async with lanner.connect(cluster.address, timeout_ms=20_000) as queue:
        await queue.publish("t", b"a", partition=1)
        cluster.brokers["n2"].silent = True
        sending = asyncio.ensure_future(queue.publish("t", b"b", partition=1))
        await asyncio.sleep(0.1)
        cluster.leaders[1] = "n1"
        async with asyncio.timeout(8):
            await sending
    assert cluster.logs[1] == [b"a", b"b"]


async def test_a_leader_that_comes_back_is_not_kept_waiting(cluster: Any) -> None:
    async with lanner.connect(cluster.address, timeout_ms=20_000) as queue:
        await queue.publish("t", b"a", partition=1)
        await cluster.brokers["n2"].stop()
        sending = asyncio.ensure_future(queue.publish("t", b"b", partition=1))
        await asyncio.sleep(2)  # attempts to connect have become rare by now
        await cluster.brokers["n2"].restart()
        began = asyncio.get_running_loop().time()
        await sending
        assert asyncio.get_running_loop().time() - began < 1
    assert cluster.logs[1] == [b"a", b"b"]


async def test_nobody_leading_ends_at_the_deadline_without_a_storm_of_questions(cluster: Any) -> None:
    async with lanner.connect(cluster.address, timeout_ms=1_000) as queue:
        await queue.publish("t", b"a", partition=0)
        cluster.leaders[:] = ["", "", ""]
        began = asyncio.get_running_loop().time()
        with pytest.raises((DeadlineExceeded, NotLeader)):
            await queue.publish("t", b"b", partition=0)
        assert 0.8 < asyncio.get_running_loop().time() - began < 3
    assert sum(len(asked) for asked in cluster.of(Command.METADATA).values()) < 40
    assert sum(len(asked) for asked in cluster.of(Command.PUBLISH).values()) < 20


async def test_a_topic_that_is_deleted_meanwhile_is_told(cluster: Any) -> None:
    async with lanner.connect(cluster.address, timeout_ms=5_000) as queue:
        await queue.publish("t", b"a", partition=0)
        gone = MetadataReply("c", cluster.metadata().brokers, [TopicInfo("t", 0, [], {}, TopicNotFound.code)])
        for broker in cluster.brokers.values():
            broker.answers[Command.METADATA] = lambda control, request: gone
            broker.answers[Command.PUBLISH] = lambda control, request: TopicNotFound()
        with pytest.raises(TopicNotFound):
            await queue.publish("t", b"b", partition=0)


@pytest.mark.parametrize("hints", [True, False])
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_moves_every_message_arrives_once_and_in_order(cluster: Any, seed: int, hints: bool) -> None:
    rng = random.Random(seed)
    cluster.hints = hints

    def troubled(broker: Any) -> Any:
        def answer(control: Any, request: Any) -> Any:
            chance = rng.random()
            if chance < 0.05:
                return broker.HANG_UP
            taken = cluster.answer(broker, request)
            if chance < 0.1:
                return broker.HANG_UP  # after it took it
            if chance < 0.15:
                return rng.choice([ServiceUnavailable(), ConnectionLost(), NotLeader()])
            return taken

        return answer

    for broker in cluster.brokers.values():
        broker.answers[Command.PUBLISH] = troubled(broker)
    confirmed: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    async with lanner.connect(cluster.address, timeout_ms=20_000) as queue:
        producer = queue.producer(linger_ms=0, batch_messages=2)
        sendings = []
        for number in range(240):
            partition = number % 3
            sendings.append((partition, number, await producer.send("t", b"%d" % number, partition=partition)))
            if rng.random() < 0.1:
                cluster.leaders[rng.randrange(3)] = rng.choice(["n1", "n2", "n3", ""])
                await asyncio.sleep(0.002)
        cluster.leaders[:] = ["n3", "n1", "n2"]
        for partition, number, sending in sendings:
            receipt = await sending
            assert receipt.partition == partition
            confirmed[partition].append(b"%d" % number)
    for partition, values in confirmed.items():
        assert cluster.logs[partition] == values


async def test_every_future_is_resolved_once_also_when_the_answer_comes_late(cluster: Any) -> None:
    waiting: list[Any] = []
    cluster.brokers["n1"].answers[Command.PUBLISH] = lambda control, request: waiting.append(request)
    async with lanner.connect(cluster.address, timeout_ms=400) as queue:
        with pytest.raises(LannerError):
            await queue.publish("t", b"a", partition=0)
        cluster.brokers["n1"].links[0].reply(waiting[0], Published(0, 1, 1))
        cluster.brokers["n1"].answers.clear()
        await queue.publish("t", b"b", partition=0)
    assert cluster.logs[0] == [b"b"]
