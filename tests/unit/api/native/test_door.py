"""The native door in front of a service that does what each test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from lanner import limits
from lanner.api.native import NativeDoor
from lanner.broker.desks import calls
from lanner.broker.desks.calls import Identity, PollResult, PublishResult, SettleResult
from lanner.broker.desks.routes import BrokerRoute, PartitionRoute, TopicRoute
from lanner.broker.service import Service, _adapted
from lanner.cluster import PartitionRow, PlanKind, PlanState, Progress, ReplicaRow
from lanner.errors import (
    ConnectionLost,
    LeaseLost,
    Overloaded,
    ServerError,
    ServiceUnavailable,
    TopicNotFound,
)
from lanner.model import Looked, LookPlace, Message
from lanner.net.connector import ClientLink, open_connection
from lanner.wire import administration, cluster, messages
from lanner.wire.messages import Command, Empty, Poll, Publish, SettleItem

_LATER_MS = 1 << 52  # of a clock that is ahead of this one
LEASED = PollResult([calls.LeasedBatch(0, 7, 100, 5, 6, 9, b"bytes", [calls.Range(100, 2, 1)])], False)


def looked(*found: Message, following: LookPlace) -> Looked:
    page = Looked(found)
    page.next = following
    return page


class FakeService:
    """The service's surface, by hand. Publishes wait until the test decides them."""

    cluster_id = "cluster"
    node_id = "node"
    auto_create = True

    def __init__(self) -> None:
        self.addresses = {"native": ("127.0.0.1", 7400)}
        self.published: list[tuple[str, int, bytes, asyncio.Future[PublishResult]]] = []
        self.released: list[tuple[str, str, list[calls.SettleItem]]] = []
        self.settled: list[calls.SettleItem] = []
        self.identities: set[Identity] = set()
        self.poll_gate = asyncio.Event()
        self.poll_result = PollResult((), False)
        self.repeated: set[tuple[str, str, int, int]] = set()
        self.polls_cancelled = 0
        self.problem: Exception | None = None
        self.settle_problem: Exception | None = None
        self.asked: list[tuple[Any, ...]] = []
        self.forwarded = 0

    def publish(
        self, identity: Identity, topic: str, partition: int, batch: bytes | memoryview, incarnation: int = 0
    ) -> asyncio.Future[PublishResult]:
        self.identities.add(identity)
        if self.problem is not None:
            raise self.problem
        future: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()
        self.published.append((topic, partition, bytes(batch), future))
        return future

    async def poll(self, identity: Identity, **asked: Any) -> PollResult:
        self.identities.add(identity)
        self.asked.append(("poll", asked))
        try:
            if asked["wait_ms"]:
                await self.poll_gate.wait()
        except asyncio.CancelledError:
            self.polls_cancelled += 1
            raise
        if self.problem is not None:
            raise self.problem
        return self.poll_result

    async def settle(
        self, identity: Identity, topic: str, group: str, items: Sequence[calls.SettleItem]
    ) -> list[SettleResult]:
        if self.settle_problem is not None:
            raise self.settle_problem
        self.settled += items
        return [SettleResult(0, item.count) for item in items]

    def was_repeated(self, group: str, member: str, sequence: int, call: int) -> bool:
        return (group, member, sequence, call) in self.repeated

    async def release(
        self, identity: Identity, topic: str, group: str, items: Sequence[calls.SettleItem]
    ) -> list[SettleResult]:
        if self.settle_problem is not None:
            raise self.settle_problem
        self.released.append((topic, group, list(items)))
        return [SettleResult(0, item.count) for item in items]

    metadata_index = 17

    @property
    def anywhere(self) -> FakeService:
        self.forwarded += 1
        return self

    async def serve(self, identity: Identity, call: Any, bulk: Any = ()) -> Any:
        return await _adapted(self, identity, call, bulk)

    async def ask(self, identity: Identity, call: Any, bulk: Any = ()) -> Any:
        return await _adapted(self.anywhere, identity, call, bulk)

    async def look_up(self, names: Sequence[str]) -> None:
        pass

    async def topics(self, identity: Identity) -> list[str]:
        return ["a", "b"]

    def topic_route(self, identity: Identity, name: str) -> TopicRoute:
        if name == "missing":
            raise TopicNotFound("no such topic")
        return TopicRoute(name, 3, {"partitions": 1}, [PartitionRoute(0, "node", ["node", "other"])])

    def broker_routes(self, identity: Identity) -> list[BrokerRoute]:
        return [BrokerRoute("node", "one", "rack", "127.0.0.1", 7400, "127.0.0.1:8080")]

    async def topic(self, identity: Identity, name: str, partitions: Any = None) -> calls.TopicResult:
        if name == "missing":
            raise TopicNotFound("no such topic")
        partition = calls.PartitionStateResult(0, "node", 1, 2, 3, 4, 5, {9: 1})
        return calls.TopicResult(name, 3, {"partitions": 1}, [partition])

    async def ensure_topic(self, identity: Identity, name: str) -> None:
        self.asked.append(("ensure", name))

    def __getattr__(self, name: str) -> Any:
        """The plain calls: remembered, and answered from `ANSWERS`."""

        async def call(identity: Identity, *given: Any, **named: Any) -> Any:
            self.asked.append((name, *given, named))
            return ANSWERS[name]

        return call


TOPIC = calls.TopicResult("t", 3, {"partitions": 1}, [calls.PartitionStateResult(0, "n", 1, 2, 3, 4, 5, {9: 1})])
DESCRIPTION = administration.TopicDescription(
    "t", 3, {"partitions": 1}, [administration.PartitionState(0, "n", 1, 2, 3, 4, 5, {9: 1})]
)
PLAN = Progress(3, PlanKind.DRAIN, "n", PlanState.RUNNING, 1, 6, 0, 1, 1, 0, "")
ANSWERS: dict[str, Any] = {
    "glance": 4,
    "describe_cluster": calls.ClusterResult(
        "cluster",
        "n",
        1,
        2,
        6,
        18,
        1,
        [calls.BrokerResult("one", "n", "r", "draining", {"native": "h:1"}, 6, 2, 2, "voter", PLAN, alive=True)],
        [PLAN],
    ),
    "describe_partitions": [
        PartitionRow(
            9,
            "t",
            0,
            "n",
            2,
            (
                ReplicaRow(1, "n", "one", "voter", True, True, None, ""),
                ReplicaRow(2, "o", "two", "voter", False, False, 7, ""),
            ),
        )
    ],
    "change_cluster": PLAN,
    "raft_status": {"state": "leader"},
    "scrub": calls.ScrubResult(True, 1, 2, 3, 4, 5, 6),
    "open_producer": (41, 2),
    "fetch": calls.FetchResult(1, 9, 5, [calls.FetchedBatch(1, 4, 77, b"batch")], 3),
    "peek": looked(Message("t", 0, 5, b"value", b"key", {"h": b"x"}, 9, 66), following=(4, 1, 7)),
    "commit": None,
    "committed": {0: 4},
    "offsets": (3, [calls.OffsetsResult(0, 1, 9, 4)]),
    "create_topic": TOPIC,
    "alter_topic": TOPIC,
    "delete_topic": None,
    "groups": ["g"],
    "group": calls.GroupResult("t", "g", "queue", [calls.GroupPartitionResult(0, 1, 2, 3, 4, 5, 6, {4: 2}, _LATER_MS)]),
    "drop_group": None,
    "seek": None,
    "dead_letters": calls.DeadLettersResult([calls.DeadLetterResult(0, 5, 9, 5, "why", 8, 7, b"dead")], 12, (0, 6)),
    "redrive": 3,
    "discard": 4,
}


@asynccontextmanager
async def opened(**bounds: int) -> AsyncIterator[tuple[FakeService, NativeDoor, ClientLink]]:
    service = FakeService()
    door = NativeDoor(cast(Service, service), **bounds)
    address = await door.start("127.0.0.1", 0)
    link = await open_connection(*address)
    try:
        yield service, door, link
    finally:
        await link.close()
        await door.stop()


async def soon(condition: Any) -> None:
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen in 2 s")


async def test_hello_tells_cluster_node_and_bounds() -> None:
    async with opened(inflight_max=9) as (_, _, link):
        assert link.hello_reply == messages.HelloReply(
            1, "cluster", "node", link.hello_reply.broker, limits.FRAME_BYTES_MAX, 9
        )
        assert link.hello_reply.broker.startswith("lanner/")


async def test_a_publish_is_answered_when_its_future_is() -> None:
    async with opened() as (service, _, link):
        replies = [link.request(Command.PUBLISH, Publish("t", 1), [b"one", b"two"]) for _ in range(2)]
        await soon(lambda: len(service.published) == 2)
        tasks = len(asyncio.all_tasks())
        assert tasks == 1  # only this test: a publish costs no task
        topic, partition, batch, first = service.published[0]
        assert (topic, partition, batch) == ("t", 1, b"onetwo")
        service.published[1][3].set_result(PublishResult(10, 2, 99, True))
        assert (await replies[1]).control == messages.Published(10, 99, 2, True)
        first.set_result(PublishResult(8, 2, 98, False))
        assert (await replies[0]).control == messages.Published(8, 98, 2, False)
        assert service.identities == {Identity("anonymous", "native")}


async def test_errors_of_a_publish_arrive_as_themselves_whether_raised_now_or_later() -> None:
    async with opened() as (service, _, link):
        service.problem = Overloaded("later", retry_after_ms=100)
        with pytest.raises(Overloaded) as caught:
            await link.request(Command.PUBLISH, Publish("t", 0), [b"x"])
        assert caught.value.retry_after_ms == 100
        service.problem = None
        reply = link.request(Command.PUBLISH, Publish("t", 0), [b"x"])
        await soon(lambda: service.published)
        service.published[0][3].set_exception(LeaseLost("odd"))
        with pytest.raises(LeaseLost):
            await reply
        reply = link.request(Command.PUBLISH, Publish("t", 0), [b"x"])
        await soon(lambda: len(service.published) == 2)
        service.published[1][3].cancel()
        with pytest.raises(ServiceUnavailable):
            await reply


async def test_a_failure_of_the_service_is_a_server_error_and_the_door_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened() as (service, _, link):
        service.problem = ZeroDivisionError("a bug")
        for command, control in (
            (Command.PUBLISH, Publish("t", 0)),
            (Command.POLL, Poll("g", "t", "m", 1)),
        ):
            with pytest.raises(ServerError) as caught:
                await link.request(command, control)
            assert "a bug" not in caught.value.message
        assert "a bug" in caplog.text
        service.problem = None
        assert (await link.request(Command.PING, Empty())).control == Empty()


async def test_the_settles_of_a_poll_are_answered_while_the_poll_waits() -> None:
    async with opened() as (service, _, link):
        service.poll_result = LEASED
        settle = SettleItem(0, 7, 100, 2, messages.SettleKind.NACK, 500, "because")
        poll = link.poll(Poll("g", "t", "m", 3, wait_ms=1_000, settles=[settle]))
        assert poll.settled is not None
        assert (await poll.settled).control == messages.Settled([messages.SettledItem(0, 2)])
        assert service.settled == [calls.SettleItem(0, 7, 100, 2, 2, 500, "because")]
        assert not poll.polled.done()
        service.poll_gate.set()
        reply = await poll.polled
        assert reply.control == messages.Polled(
            [messages.PolledBatch(0, 7, 100, 5, 6, 9, 5, [messages.LeasedRange(100, 2, 1)])], False
        )
        assert bytes(reply.bulk) == b"bytes"
        assert service.released == []


async def test_settles_that_fail_altogether_are_told_one_by_one_and_the_poll_goes_on() -> None:
    async with opened() as (service, _, link):
        service.settle_problem = TopicNotFound()
        poll = link.poll(Poll("g", "t", "m", 3, settles=[SettleItem(0, 7, 100, 2, 1)] * 2))
        assert poll.settled is not None
        assert (await poll.settled).control == messages.Settled([messages.SettledItem(TopicNotFound.code, 0)] * 2)
        assert (await poll.polled).control == messages.Polled([])


async def test_a_poll_that_fails_has_its_settles_answered_all_the_same() -> None:
    async with opened() as (service, _, link):
        service.problem = Overloaded()
        poll = link.poll(Poll("g", "t", "m", 3, settles=[SettleItem(0, 7, 100, 2, 1)]))
        assert poll.settled is not None
        assert (await poll.settled).control.items[0].code == 0
        with pytest.raises(Overloaded):
            await poll.polled


async def test_a_waiting_poll_ends_with_its_connection() -> None:
    async with opened() as (service, _, link):
        link.poll(Poll("g", "t", "m", 1, wait_ms=60_000))
        await soon(lambda: service.asked)
        link.abort(ConnectionLost("test"))
        await soon(lambda: service.polls_cancelled)


async def test_leases_whose_reply_cannot_be_sent_are_released() -> None:
    async with opened() as (service, door, link):
        service.poll_result = LEASED
        link.poll(Poll("g", "t", "m", 1, wait_ms=1_000, settles=[SettleItem(0, 7, 1, 2, 1)]))
        await soon(lambda: service.asked)
        [session] = door._sessions
        session._link._connection.close()  # the socket broke, and nobody was told yet
        service.poll_gate.set()
        await soon(lambda: service.released)
        assert service.released == [("t", "g", [calls.SettleItem(0, 7, 100, 2, 1)])]


async def test_leases_whose_reply_does_not_fit_into_a_frame_are_released() -> None:
    async with opened() as (service, _, link):
        large = [LEASED.batches[0]._replace(data=b"x" * limits.BATCH_BYTES_MAX) for _ in range(5)]
        service.poll_result = PollResult(large, False)
        with pytest.raises(ServerError, match="does not fit"):
            await link.poll(Poll("g", "t", "m", 1)).polled
        await soon(lambda: service.released)
        assert service.released == [("t", "g", [calls.SettleItem(0, 7, 100, 2, 1)] * 5)]


async def test_leases_whose_reply_cannot_be_encoded_are_released() -> None:
    async with opened() as (service, _, link):
        service.poll_result = PollResult([LEASED.batches[0]._replace(append_ms=2**70)], False)
        with pytest.raises(ServerError):
            await link.poll(Poll("g", "t", "m", 1)).polled
        await soon(lambda: service.released)
        assert service.released == [("t", "g", [calls.SettleItem(0, 7, 100, 2, 1)])]


async def test_leases_in_replies_that_never_reached_the_socket_are_released() -> None:
    async with opened() as (service, door, link):
        service.poll_result = LEASED
        [session] = door._sessions
        session._link.pause_writing()  # the client reads nothing
        session._link.resume_reading(session._link._pause)
        link.poll(Poll("g", "t", "m", 1))
        await soon(lambda: session._unsent)
        link.abort(ConnectionLost("test"))
        await soon(lambda: service.released)
        assert service.released == [("t", "g", [calls.SettleItem(0, 7, 100, 2, 1)])]


async def test_what_was_taken_without_a_lease_cannot_be_released() -> None:
    async with opened() as (service, door, link):
        service.poll_result = LEASED
        link.poll(Poll("g", "t", "m", 1, wait_ms=1_000, auto_ack=True))
        await soon(lambda: service.asked)
        [session] = door._sessions
        session._link._connection.close()
        service.poll_gate.set()
        await soon(lambda: not session._running)
        await asyncio.sleep(0.01)
        assert service.released == []


async def test_a_release_that_fails_is_left_to_the_end_of_the_leases(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with opened() as (service, door, link):
        service.poll_result = LEASED
        service.settle_problem = Overloaded("too busy")
        link.poll(Poll("g", "t", "m", 1, wait_ms=1_000))
        await soon(lambda: service.asked)
        [session] = door._sessions
        session._link._connection.close()
        service.poll_gate.set()
        await soon(lambda: "too busy" in caplog.text)


async def test_what_a_connection_has_in_hand_is_bounded_and_the_rest_keeps_its_order() -> None:
    async with opened(inflight_max=3) as (service, door, link):
        replies = [link.request(Command.PUBLISH, Publish("t", number), [b"x"]) for number in range(10)]
        last = link.request(Command.PING, Empty())
        await soon(lambda: len(service.published) == 3)
        await asyncio.sleep(0.02)
        assert len(service.published) == 3
        assert not last.done()
        for number in range(10):
            await soon(lambda: len(service.published) > number)  # noqa: B023
            service.published[number][3].set_result(PublishResult(number, 1, 0, False))
        assert [(await reply).control.base_offset for reply in replies] == list(range(10))
        assert [partition for _, partition, _, _ in service.published] == list(range(10))
        await last
        [session] = door._sessions
        assert session._inflight == session._inflight_bytes == 0


async def test_the_bytes_a_connection_has_in_hand_are_bounded() -> None:
    async with opened(inflight_bytes_max=100) as (service, _, link):
        replies = [link.request(Command.PUBLISH, Publish("t", 0), [b"x" * size]) for size in (150, 60, 30, 60)]
        for count, number in ((1, 0), (3, 1), (4, 2), (4, 3)):
            await soon(lambda: len(service.published) == count)  # noqa: B023
            await asyncio.sleep(0.01)
            assert len(service.published) == count
            service.published[number][3].set_result(PublishResult(0, 1, 0, False))
        await asyncio.gather(*replies)


async def test_draining_answers_what_is_in_hand_and_refuses_the_rest() -> None:
    async with opened() as (service, door, link):
        reply = link.request(Command.PUBLISH, Publish("t", 0), [b"x"])
        await soon(lambda: service.published)
        stopping = asyncio.create_task(door.stop(2_000))
        await asyncio.sleep(0.02)
        with pytest.raises(ServiceUnavailable):
            await link.request(Command.PUBLISH, Publish("t", 0), [b"y"])
        assert not stopping.done()
        service.published[0][3].set_result(PublishResult(5, 1, 0, False))
        assert (await reply).control.base_offset == 5
        await stopping
        await link.closed
        assert len(service.published) == 1


async def test_a_drain_does_not_wait_for_what_it_refuses() -> None:
    async with opened(inflight_max=1) as (service, door, link):
        first = link.request(Command.PUBLISH, Publish("t", 0), [b"x"])
        behind = link.request(Command.PUBLISH, Publish("t", 0), [b"y"])
        await soon(lambda: service.published)
        stopping = asyncio.create_task(door.stop(60_000))
        await asyncio.sleep(0.02)
        service.published[0][3].set_result(PublishResult(5, 1, 0, False))
        assert (await first).control.base_offset == 5
        with pytest.raises(ServiceUnavailable):
            await behind
        await asyncio.wait_for(stopping, 3)


async def test_a_drain_ends_in_time_and_tells_those_who_still_wait() -> None:
    async with opened(inflight_max=1) as (service, door, link):
        poll = link.poll(Poll("g", "t", "m", 1, wait_ms=60_000))
        behind = link.request(Command.PING, Empty())
        await soon(lambda: service.asked)
        await asyncio.wait_for(door.stop(50), 3)
        for future in (poll.polled, behind):
            with pytest.raises(ServiceUnavailable):
                await future


async def test_a_draining_door_refuses_hello() -> None:
    async with opened() as (_, door, link):
        door.draining = True
        [session] = door._sessions
        with pytest.raises(ServiceUnavailable):
            session.greet(messages.Hello([1]))
        with pytest.raises(ServiceUnavailable):
            await link.request(Command.PING, Empty())


async def test_metadata_names_topics_brokers_and_what_is_missing() -> None:
    async with opened() as (service, _, link):
        every = (await link.request(Command.METADATA, messages.Metadata())).control
        assert [topic.name for topic in every.topics] == ["a", "b"]
        assert every.topics[0].settings == {}  # only for those who ask by name
        assert every.brokers == [messages.BrokerInfo("node", "127.0.0.1", 7400, "one", "rack", "127.0.0.1:8080")]
        named = (await link.request(Command.METADATA, messages.Metadata(["a", "missing"], create=True))).control
        assert named.topics == [
            messages.TopicInfo("a", 3, [messages.PartitionInfo(0, "node", ["node", "other"])], {"partitions": 1}),
            messages.TopicInfo("missing", 0, [], error=TopicNotFound.code),
        ]
        assert service.asked == [("ensure", "a"), ("ensure", "missing")]


@pytest.mark.parametrize(
    ("command", "control", "asked", "answer", "bulk"),
    [
        (Command.OPEN_PRODUCER, messages.OpenProducer(), ("open_producer", {}), messages.ProducerOpened(41, 2), b""),
        (
            Command.FETCH,
            messages.Fetch("t", 0, 3, 100, 0, 9),
            ("fetch", "t", 0, 3, 100, 0, 9, 0, False, {}),
            messages.Fetched(1, 9, 5, [messages.FetchedBatch(1, 4, 77, 5)], 3),
            b"batch",
        ),
        (
            Command.PEEK,
            messages.Peek("t", None, 5, 10, 20, None, (9, 0, 5)),
            ("peek", "t", None, 5, 10, 20, (9, 0, 5), {}),
            messages.Peeked([messages.PeekedMessage(0, 5, 66, 9, b"value", b"key", {"h": b"x"})], (4, 1, 7)),
            b"",
        ),
        (
            Command.COMMIT,
            messages.Commit("g", "t", {0: 4}, known=[0]),
            ("commit", "t", "g", {0: 4}, "", -1, [0], {}),
            Empty(),
            b"",
        ),
        (
            Command.COMMIT,
            messages.Commit("g", "t", {0: 4}, "reader", 7),
            ("commit", "t", "g", {0: 4}, "reader", 7, None, {}),
            Empty(),
            b"",
        ),
        (
            Command.COMMITTED,
            messages.Committed("g", "t"),
            ("committed", "t", "g", None, {}),
            messages.CommittedReply({0: 4}),
            b"",
        ),
        (
            Command.OFFSETS,
            messages.Offsets("t", 5),
            ("offsets", "t", 5, None, None, {}),
            messages.OffsetsReply([messages.PartitionOffsets(0, 1, 9, 4)], 3),
            b"",
        ),
        (
            Command.CREATE_TOPIC,
            administration.CreateTopic("t", {"partitions": 1}, "random"),
            ("create_topic", "t", {"partitions": 1}, "random", {}),
            DESCRIPTION,
            b"",
        ),
        (Command.ALTER_TOPIC, administration.AlterTopic("t", {}), ("alter_topic", "t", {}, {}), DESCRIPTION, b""),
        (Command.DELETE_TOPIC, administration.DeleteTopic("t"), ("delete_topic", "t", {}), Empty(), b""),
        (
            Command.LIST_GROUPS,
            administration.ListGroups("t"),
            ("groups", "t", None, {}),
            administration.GroupsReply(["g"]),
            b"",
        ),
        (
            Command.DESCRIBE_GROUP,
            administration.DescribeGroup("t", "g"),
            ("group", "t", "g", None, {}),
            administration.GroupDescription(
                "t", "g", "queue", [administration.GroupPartition(0, 1, 2, 3, 4, 5, 6, {4: 2}, _LATER_MS, 0)]
            ),
            b"",
        ),
        (Command.DROP_GROUP, administration.DropGroup("t", "g"), ("drop_group", "t", "g", None, {}), Empty(), b""),
        (
            Command.SEEK,
            administration.Seek("t", "g", to="latest"),
            ("seek", "t", "g", {"offsets": None, "time_ms": None, "to": "latest", "partitions": None}),
            Empty(),
            b"",
        ),
        (
            Command.LIST_DEAD,
            administration.ListDead("t", "g", 0, 5, 10, None, (0, 5)),
            ("dead_letters", "t", "g", [0], 5, 10, (0, 5), {}),
            administration.DeadLetters([administration.DeadLetter(0, 5, 9, 5, "why", 8, 7, 4)], 12, (0, 6)),
            b"dead",
        ),
        (
            Command.REDRIVE,
            administration.RedriveDead("t", "g"),
            ("redrive", "t", "g", None, None, {}),
            administration.CountReply(3),
            b"",
        ),
        (
            Command.DISCARD,
            administration.DiscardDead("t", "g", 0, [5]),
            ("discard", "t", "g", [0], [5], {}),
            administration.CountReply(4),
            b"",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Command) else "",
)
async def test_a_command_is_one_call_of_the_service(
    command: Command, control: messages.Control, asked: tuple[Any, ...], answer: messages.Control, bulk: bytes
) -> None:
    async with opened() as (service, _, link):
        reply = await link.request(command, control)
        assert service.asked == [asked]
        assert reply.control == answer
        assert bytes(reply.bulk) == bulk


async def test_settle_release_and_describe_are_calls_too() -> None:
    async with opened() as (service, _, link):
        item = SettleItem(0, 7, 100, 2, 1)
        reply = await link.request(Command.SETTLE, messages.Settle("g", "t", [item]))
        assert reply.control == messages.Settled([messages.SettledItem(0, 2)])
        await link.request(Command.RELEASE, messages.Release("g", "t", [item]))
        assert service.released == [("t", "g", [calls.SettleItem(0, 7, 100, 2, 1)])]
        described = await link.request(Command.DESCRIBE_TOPIC, administration.DescribeTopic("x"))
        assert described.control.name == "x"
        with pytest.raises(TopicNotFound):
            await link.request(Command.DESCRIBE_TOPIC, administration.DescribeTopic("missing"))


async def test_what_names_its_partitions_is_served_here_and_anything_else_by_the_whole_cluster() -> None:
    async with opened() as (service, _, link):
        here: list[tuple[Command, messages.Control]] = [
            (Command.FETCH, messages.Fetch("t", 0, 3)),
            (Command.SETTLE, messages.Settle("g", "t", [SettleItem(0, 7, 100, 2, 1)])),
            (Command.RELEASE, messages.Release("g", "t", [SettleItem(0, 7, 100, 2, 1)])),
            (Command.COMMIT, messages.Commit("g", "t", {0: 4})),
            (Command.OPEN_PRODUCER, messages.OpenProducer()),
            (Command.OFFSETS, messages.Offsets("t", -1, [0])),
            (Command.GLANCE, messages.Glance("g", "t", [0])),
            (Command.POLL, Poll("g", "t", "m", 1, [0])),
            (Command.SCRUB, cluster.Scrub()),
        ]
        for command, control in here:
            await link.request(command, control)
        assert service.forwarded == 0
        everywhere: list[tuple[Command, messages.Control]] = [
            (Command.METADATA, messages.Metadata()),
            (Command.OFFSETS, messages.Offsets("t")),
            (Command.GLANCE, messages.Glance("g", "t")),
            (Command.POLL, Poll("g", "t", "m", 1)),
            (Command.PEEK, messages.Peek("t", 0)),
            (Command.CREATE_TOPIC, administration.CreateTopic("t")),
            (Command.DESCRIBE_CLUSTER, cluster.DescribeCluster()),
        ]
        for number, (command, control) in enumerate(everywhere, start=1):
            await link.request(command, control)
            assert service.forwarded == number, command


async def test_another_broker_is_served_by_this_one_itself_whatever_it_asks() -> None:
    async with opened() as (_, door, _link):
        [session] = door._sessions
        assert not session._is_for_here(messages.Offsets("t"))
        session._peer = messages.PeerHello("cluster", "other", "two", "")
        assert session._is_for_here(messages.Offsets("t"))


async def test_the_cluster_is_described_and_changed_natively() -> None:
    async with opened() as (service, _, link):
        told = (await link.request(Command.DESCRIBE_CLUSTER, cluster.DescribeCluster())).control
        assert (told.cluster_id, told.metadata_leader, told.topics, told.replicas_missing) == ("cluster", "n", 2, 1)
        assert told.brokers[0].name == "one" and told.brokers[0].alive and told.brokers[0].drain.plan_id == 3
        assert told.plans == [told.brokers[0].drain]
        rows = (await link.request(Command.DESCRIBE_PARTITIONS, cluster.DescribePartitions("t"))).control.partitions
        assert (rows[0].topic, rows[0].leader, [replica.lag for replica in rows[0].replicas]) == ("t", "n", [None, 7])
        wish = cluster.ChangeCluster("move", broker="one", target="two", topic="t", partition=0)
        assert (await link.request(Command.CHANGE_CLUSTER, wish)).control.plan.plan_id == 3
        named = {"broker": "one", "target": "two", "topic": "t", "partition": 0, "plan_id": 0}
        assert service.asked[-1] == ("change_cluster", "move", named)
        status = (await link.request(Command.RAFT_STATUS, cluster.RaftStatus("t", 0, "n"))).control.status
        assert status == {"state": "leader"} and service.asked[-1] == ("raft_status", "t", 0, "n", {})
        progress = (await link.request(Command.SCRUB, cluster.Scrub(start=True))).control
        assert progress == cluster.ScrubProgress(True, 1, 2, 3, 4, 5, 6) and service.asked[-1] == ("scrub", True, {})
