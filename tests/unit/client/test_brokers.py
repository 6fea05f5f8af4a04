"""Several brokers: who is found, who is asked, and who is let go."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

import lanner
from lanner.client import brokers as brokers_module
from lanner.client import session as session_module
from lanner.client.brokers import Brokers
from lanner.client.routing import Routing
from lanner.errors import BrokerRemoved, ConnectionLost, LannerError, NotLeader, ServiceUnavailable, StorageFailed
from lanner.wire.administration import DeleteTopic, TopicDescription
from lanner.wire.messages import BrokerInfo, Command, Empty, MetadataReply


async def opened(address: str, **options: Any) -> tuple[Brokers, Routing]:
    brokers = Brokers(address, **options)
    await brokers.open()
    return brokers, Routing(brokers)


async def closed(brokers: Brokers, routing: Routing) -> None:
    await routing.close()
    await brokers.close()


async def test_one_address_is_enough_to_find_all_brokers(cluster: Any) -> None:
    async with lanner.connect(cluster.brokers["n2"].address) as queue:
        for partition in range(3):
            await queue.publish("t", b"x", partition=partition)
    assert {node_id: len(asked) for node_id, asked in cluster.of(Command.PUBLISH).items()} == dict.fromkeys(
        ("n1", "n2", "n3"), 1
    )


async def test_brokers_that_are_not_needed_are_not_connected_to(cluster: Any) -> None:
    async with lanner.connect(cluster.brokers["n1"].address) as queue:
        await queue.publish("t", b"x", partition=0)
        assert [len(broker.links) for broker in cluster.brokers.values()] == [1, 0, 0]


async def test_an_address_that_does_not_answer_is_not_waited_for(broker: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        host, port = deaf.getsockname()
        for addresses in (f"{host}:{port},{broker.address}", f"127.0.0.1:1,{broker.address}"):
            brokers = Brokers(addresses)
            async with asyncio.timeout(3):
                await brokers.open()
            assert brokers.is_up
            await brokers.close()


async def test_a_question_for_anybody_goes_on_to_another_broker(cluster: Any) -> None:
    brokers, routing = await opened(cluster.address)
    await routing.route("t")
    first = brokers.any_up()
    assert first is not None
    await cluster.brokers[first.node_id].stop()
    async with asyncio.timeout(3):
        await brokers.request(Empty())
        await brokers.request(Empty())
    second = brokers.any_up()
    assert second is not None
    assert second is not first
    assert len(cluster.brokers[second.node_id].of(Command.PING)) == 2  # it stays with the broker that answers
    await closed(brokers, routing)


async def test_a_broker_that_stays_silent_is_given_up_for_another(cluster: Any) -> None:
    brokers, routing = await opened(cluster.address)
    await routing.route("t")
    first = brokers.any_up()
    assert first is not None
    cluster.brokers[first.node_id].silent = True
    async with asyncio.timeout(3):
        await brokers.request(Empty(), attempt_ms=300)
    await closed(brokers, routing)


@pytest.mark.parametrize(
    ("command", "change"),
    [
        (Command.CREATE_TOPIC, lambda admin: admin.create_topic("t", partitions=3)),
        (Command.ALTER_TOPIC, lambda admin: admin.alter_topic("t", partitions=3)),
    ],
)
async def test_a_topic_is_made_by_another_broker_when_one_does_not_answer(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, command: Command, change: Any
) -> None:
    """Its disk hangs, say: it answers everything but this."""
    monkeypatch.setattr("lanner.client.admin.CHANGE_MS", 100)
    asked: list[tuple[str, Any]] = []

    def silent_at_first(node_id: str) -> Any:
        def answer(control: Any, _request: Any) -> TopicDescription | None:
            asked.append((node_id, control))
            return TopicDescription("t", 1, {"partitions": 3}, []) if len(asked) > 1 else None

        return answer

    for node_id, broker in cluster.brokers.items():
        broker.answers[command] = silent_at_first(node_id)
    addresses = [broker.address for broker in cluster.brokers.values()]
    async with asyncio.timeout(8), lanner.connect(addresses) as queue:
        assert (await change(queue.admin)).name == "t"
    (first, control), (second, again) = asked
    assert first != second
    assert control == again, "under the same id"


async def test_silence_ends_a_connection_where_another_broker_could_serve(cluster: Any) -> None:
    brokers, routing = await opened(cluster.brokers["n1"].address)
    await routing.route("t")
    session = brokers.to("n1")
    assert session is not None
    cluster.brokers["n1"].silent = True
    began = asyncio.get_running_loop().time()
    outcome = await session.ask(Command.PING, Empty(), 30_000)
    assert isinstance(outcome, ConnectionLost)
    assert 1 < asyncio.get_running_loop().time() - began < 8
    await closed(brokers, routing)


async def test_what_may_have_taken_effect_is_not_asked_at_another_broker(cluster: Any) -> None:
    brokers, routing = await opened(cluster.address)
    await routing.route("t")
    for broker in cluster.brokers.values():
        broker.answers[Command.DELETE_TOPIC] = lambda control, request, broker=broker: broker.HANG_UP
    with pytest.raises(ConnectionLost):
        await brokers.request(DeleteTopic("t"))
    assert sum(len(asked) for asked in cluster.of(Command.DELETE_TOPIC).values()) == 1
    await closed(brokers, routing)


@pytest.mark.parametrize("why", [BrokerRemoved(), StorageFailed()])
async def test_a_broker_that_ends_is_given_up_for_another(cluster: Any, why: LannerError) -> None:
    brokers, routing = await opened(cluster.address)
    await routing.route("t")
    ending = brokers.any_up()
    assert ending is not None
    cluster.brokers[ending.node_id].answers[Command.PING] = lambda control, request: why
    async with asyncio.timeout(3):
        await brokers.request(Empty())
    assert brokers.any_up() is not ending
    await closed(brokers, routing)


async def test_what_a_removed_broker_may_have_done_is_not_asked_at_another(cluster: Any) -> None:
    brokers, routing = await opened(cluster.address)
    await routing.route("t")
    for broker in cluster.brokers.values():
        broker.answers[Command.DELETE_TOPIC] = lambda control, request: BrokerRemoved()
    with pytest.raises(BrokerRemoved):
        await brokers.request(DeleteTopic("t"))
    assert sum(len(asked) for asked in cluster.of(Command.DELETE_TOPIC).values()) == 1
    await closed(brokers, routing)


async def test_the_only_broker_that_was_removed_says_so_at_once(broker: Any) -> None:
    brokers, routing = await opened(broker.address)
    broker.answers[Command.PING] = lambda control, request: BrokerRemoved()
    with pytest.raises(BrokerRemoved):
        await brokers.request(Empty())
    assert len(broker.of(Command.PING)) == 1
    await closed(brokers, routing)


async def test_a_broker_that_vanished_is_forgotten_and_a_new_one_found(cluster: Any) -> None:
    brokers, routing = await opened(cluster.brokers["n1"].address)
    await routing.route("t")
    second = brokers.to("n2")
    assert second is not None
    await second.wait_until_tried(asyncio.get_running_loop().time() + 3)
    await cluster.brokers["n2"].stop()
    await cluster.brokers["n1"].until(lambda: not second.is_up)
    gone = cluster.brokers.pop("n2")
    cluster.brokers["n4"] = type(gone)("n4", cluster)
    await cluster.brokers["n4"].start()
    cluster.leaders[1] = "n4"
    routing.refresh("t")
    await cluster.brokers["n1"].until(lambda: brokers.to("n2") is None and brokers.to("n4") is not None)
    fourth = brokers.to("n4")
    assert fourth is not None
    await fourth.wait_until_tried(asyncio.get_running_loop().time() + 3)
    assert second.is_closed
    await closed(brokers, routing)


async def test_sessions_that_nobody_needs_are_closed(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers_module, "_SWEEP_S", 0.05)
    monkeypatch.setattr(brokers_module, "IDLE_S", 0.1)
    brokers, routing = await opened(cluster.brokers["n1"].address)
    await routing.route("t")
    second = brokers.to("n2")
    assert second is not None
    await second.wait_until_tried(asyncio.get_running_loop().time() + 3)
    async with asyncio.timeout(5):
        while not second.is_closed:
            await brokers.request(Empty())
            await asyncio.sleep(0.02)
    assert brokers.is_up
    await closed(brokers, routing)


async def test_another_broker_at_the_address_of_one_is_not_taken_for_it(cluster: Any) -> None:
    brokers, routing = await opened(cluster.brokers["n1"].address)
    await routing.route("t")
    cluster.brokers["n2"].node_id = "stranger"
    second = brokers.to("n2")
    assert second is not None
    await second.wait_until_tried(asyncio.get_running_loop().time() + 3)
    assert not second.is_up
    assert "another broker now" in second.failure.message
    await closed(brokers, routing)


async def test_the_only_broker_may_come_back_with_an_empty_disk(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        await queue.publish("t", b"a")
        await broker.stop()
        await broker.until(lambda: not queue.is_connected)
        broker.node_id = "n9"
        await broker.restart()
        assert (await queue.publish("t", b"b")).offset == 1


async def test_addresses_that_make_no_sense_are_not_learnt(cluster: Any) -> None:
    brokers, routing = await opened(cluster.brokers["n1"].address)
    brokers.learn([BrokerInfo("n7", "", 1), BrokerInfo("n8", "host", 0)])
    brokers.learn_one("n9", "nonsense:port")
    brokers.learn_one("n9", "")
    assert brokers.to("n9") is brokers.to("n1")  # as long as there is one, it is meant
    await closed(brokers, routing)


async def test_the_addresses_given_are_tried_again_when_all_known_brokers_are_gone(cluster: Any) -> None:
    brokers, routing = await opened(cluster.brokers["n1"].address + "," + cluster.brokers["n3"].address)
    await routing.route("t")
    brokers.learn([BrokerInfo("n8", "127.0.0.1", 1), BrokerInfo("n9", "127.0.0.1", 1)])
    first = brokers.any_up()
    assert first is not None
    await cluster.brokers[first.node_id].stop()
    async with asyncio.timeout(5):
        await brokers.request(Empty())
    await closed(brokers, routing)


async def test_nobody_in_reach_is_said_at_the_deadline(cluster: Any) -> None:
    brokers, routing = await opened(cluster.address, timeout_ms=400)
    await routing.route("t")
    await cluster.stop()
    await cluster.brokers["n1"].until(lambda: not brokers.is_up)
    with pytest.raises((ConnectionLost, ServiceUnavailable)):
        await brokers.request(Empty())
    await closed(brokers, routing)


# ------------------------------------------------------------------ routes


async def test_a_hint_is_taken_without_asking(cluster: Any) -> None:
    brokers, routing = await opened(cluster.brokers["n1"].address)
    await routing.route("t")
    asked = len(cluster.brokers["n1"].of(Command.METADATA))
    noticed: list[str] = []
    routing.on_change.append(noticed.append)
    error = NotLeader(leader="n3", address=cluster.brokers["n3"].address)
    assert routing.failed("t", 0, brokers.to("n1"), error)
    leader = routing.leader("t", 0)
    assert leader is not None
    assert leader.node_id == "n3"
    assert noticed == ["t"]
    await asyncio.sleep(0.05)
    assert len(cluster.brokers["n1"].of(Command.METADATA)) == asked
    await closed(brokers, routing)


async def test_a_broker_named_by_a_hint_is_tried_again_at_once(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "RECONNECT_S_MAX", 600.0)
    cluster.leaders[1] = "n3"
    brokers, routing = await opened(cluster.brokers["n1"].address)
    await routing.route("t")
    second, broker = brokers.to("n2"), cluster.brokers["n2"]
    assert second is not None
    await second.wait_until_tried(asyncio.get_running_loop().time() + 3)
    await broker.stop()
    tried: list[bool] = []
    brokers.on_lost.append(lambda session: tried.append(session is second))
    while len(tried) < 15:  # each pause is twice as long as the one before
        second.hurry()
        await asyncio.sleep(0.005)
    await broker.restart()
    routing.failed("t", 0, brokers.to("n1"), NotLeader(leader="n2", address=broker.address))
    await broker.until(lambda: second.is_up)
    await closed(brokers, routing)


async def test_a_hint_that_names_who_was_asked_or_another_partition_is_no_hint(cluster: Any) -> None:
    brokers, routing = await opened(cluster.brokers["n1"].address)
    await routing.route("t")
    assert not routing.failed("t", 0, brokers.to("n1"), NotLeader(leader="n1", address="x"))
    assert not routing.failed("t", 0, brokers.to("n1"), NotLeader())
    of_another = NotLeader(leader="n3", address=cluster.brokers["n3"].address, partition=1)
    assert not routing.failed("t", 0, brokers.to("n1"), of_another)
    assert routing.leader("t", 0) is brokers.to("n1")
    await closed(brokers, routing)


async def test_an_answer_asked_for_before_a_hint_does_not_undo_it(cluster: Any) -> None:
    brokers, routing = await opened(cluster.brokers["n1"].address)
    await routing.route("t")
    waiting: list[Any] = []
    cluster.brokers["n1"].answers[Command.METADATA] = lambda control, request: waiting.append(request)
    routing.refresh("t")
    await cluster.brokers["n1"].until(lambda: bool(waiting))
    routing.failed("t", 0, None, NotLeader(leader="n3", address=cluster.brokers["n3"].address))
    cluster.leaders[1] = "n3"
    cluster.brokers["n1"].links[0].reply(waiting[0], cluster.metadata())
    await cluster.brokers["n1"].until(lambda: routing.leader("t", 1) is brokers.to("n3"))
    assert routing.leader("t", 0) is brokers.to("n3")
    await closed(brokers, routing)


async def test_a_topic_does_not_shrink_because_a_broker_is_behind(cluster: Any) -> None:
    brokers, routing = await opened(cluster.brokers["n1"].address)
    await routing.route("t")
    behind = cluster.metadata()
    del behind.topics[0].partitions[1:]
    cluster.brokers["n1"].answers[Command.METADATA] = lambda control, request: behind
    routing.refresh("t")
    await cluster.brokers["n1"].until(lambda: len(cluster.brokers["n1"].of(Command.METADATA)) == 2)
    await asyncio.sleep(0.02)
    assert (await routing.route("t")).partitions == 3
    await closed(brokers, routing)


async def test_questions_about_leaders_stay_few_however_many_ask(cluster: Any) -> None:
    brokers, routing = await opened(cluster.brokers["n1"].address)
    await routing.route("t")
    cluster.leaders[:] = ["", "", ""]
    for _ in range(200):
        for number in range(20):
            routing.refresh(f"t{number}" if number else "t")
        await asyncio.sleep(0.005)
    assert routing.leader("t", 0) is None
    asked = sum(len(one) for one in cluster.of(Command.METADATA).values())
    assert 3 < asked < 40  # in a second or more, for twenty topics
    await closed(brokers, routing)


async def test_a_lost_connection_has_the_leaders_looked_up(cluster: Any) -> None:
    brokers, routing = await opened(cluster.brokers["n1"].address)
    await routing.route("t")
    second = routing.leader("t", 1)
    assert second is not None
    await second.wait_until_tried(asyncio.get_running_loop().time() + 3)
    cluster.leaders[1] = "n3"
    await cluster.brokers["n2"].stop()
    await cluster.brokers["n1"].until(lambda: routing.leader("t", 1) is brokers.to("n3"))
    await closed(brokers, routing)


async def test_a_topic_made_a_moment_ago_at_another_broker_is_found_by_a_second_look(cluster: Any) -> None:
    answers = iter([MetadataReply("c", cluster.metadata().brokers, [])])
    cluster.brokers["n1"].answers[Command.METADATA] = lambda control, request: next(answers, cluster.metadata())
    brokers, routing = await opened(cluster.brokers["n1"].address)
    assert (await routing.route("t")).partitions == 3
    await closed(brokers, routing)
