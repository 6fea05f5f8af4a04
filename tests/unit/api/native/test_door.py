"""The native door in front of a service that does what each test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from lanner import limits
from lanner.api.native import NativeDoor
from lanner.broker.service import Service
from lanner.calls import ROWS, Answer, Bulk, Identity, Row, row_of
from lanner.errors import (
    ConnectionLost,
    LannerError,
    LeaseLost,
    Overloaded,
    ServerError,
    ServiceUnavailable,
    TopicNotFound,
    catalogue,
)
from lanner.net.connector import ClientLink, open_connection
from lanner.partition import Appended
from lanner.wire import cluster, members, messages
from lanner.wire.messages import Call, Command, Empty, Poll, Polled, Publish, SettleItem
from tests.native_sessions import Unread, all_ended, break_silently
from tests.unit.wire.test_connection import SAMPLES


def leased(data: bytes = b"bytes", count: int = 1, append_ms: int = 5) -> Answer[Polled]:
    batch = messages.PolledBatch(0, 7, 100, append_ms, 6, 9, len(data), [messages.LeasedRange(100, 2, 1)])
    return Answer(Polled([batch] * count), [data] * count)


class FakeService:
    """The service's surface, by hand. Publishes wait until the test decides them."""

    cluster_id = "cluster"
    node_id = "node"

    def __init__(self) -> None:
        self.published: list[tuple[Publish, bytes, asyncio.Future[Appended]]] = []
        self.settled: list[SettleItem] = []
        self.identities: set[Identity] = set()
        self.poll_gate = asyncio.Event()
        self.poll_answer: Answer[Polled] = Answer(Polled([]))
        self.polls_cancelled = 0
        self.unheard = 0  # answers that the door gave back
        self.problem: Exception | None = None
        self.settle_problem: Exception | None = None
        self.answer: messages.Control | None = None  # to everything else
        self.served: list[Call[Any]] = []
        self.asked: list[Call[Any]] = []

    def publish(self, identity: Identity, call: Publish, data: bytes | memoryview) -> asyncio.Future[Appended]:
        self.identities.add(identity)
        if self.problem is not None:
            raise self.problem
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.published.append((call, bytes(data), future))
        return future

    async def serve(self, identity: Identity, call: Call[Any], bulk: Bulk = ()) -> Answer[Any]:
        self.served.append(call)
        return await self._answer(identity, call)

    async def ask(self, identity: Identity, call: Call[Any], bulk: Bulk = ()) -> Answer[Any]:
        self.asked.append(call)
        return await self._answer(identity, call)

    async def _answer(self, identity: Identity, call: Call[Any]) -> Answer[Any]:
        self.identities.add(identity)
        if isinstance(call, Poll):
            return await self._poll(call)
        if isinstance(call, messages.Settle):
            if self.settle_problem is not None:
                raise self.settle_problem
            self.settled += call.items
            return Answer(messages.Settled([messages.SettledItem(0, item.count) for item in call.items]))
        if self.problem is not None:
            raise self.problem
        if self.answer is not None:
            return Answer(self.answer)
        row = row_of(call)
        return Answer(SAMPLES[row.answer], [b"bu", b"lk"] if row.sizes else ())

    async def _poll(self, call: Poll) -> Answer[Polled]:
        try:
            if call.wait_ms:
                await self.poll_gate.wait()
        except asyncio.CancelledError:
            self.polls_cancelled += 1
            raise
        if self.problem is not None:
            raise self.problem
        return self.poll_answer if call.auto_ack else self.poll_answer._replace(unheard=self._give_back)

    def _give_back(self) -> None:
        self.unheard += 1


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


async def test_a_member_is_told_what_it_has_also_where_that_is_more_than_a_request_may_say() -> None:
    held = [members.GrantedPartition("t" * 200, 1 + number // 1_000, number % 1_000, 1) for number in range(20_000)]
    async with opened() as (service, _, link):
        service.answer = members.MemberView(7, 1, 1, 10_000, held, [])
        assert (await link.request(Command.HEARTBEAT, SAMPLES[members.Heartbeat])).control == service.answer


async def test_a_publish_is_answered_when_its_future_is() -> None:
    async with opened() as (service, _, link):
        replies = [link.request(Command.PUBLISH, Publish("t", 1), [b"one", b"two"]) for _ in range(2)]
        await soon(lambda: len(service.published) == 2)
        tasks = len(asyncio.all_tasks())
        assert tasks == 1  # only this test: a publish costs no task
        call, batch, first = service.published[0]
        assert (call, batch) == (Publish("t", 1), b"onetwo")
        service.published[1][2].set_result(Appended(10, 2, 99, True))
        assert (await replies[1]).control == messages.Published(10, 99, 2, True)
        first.set_result(Appended(8, 2, 98, False))
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
        service.published[0][2].set_exception(LeaseLost("odd"))
        with pytest.raises(LeaseLost):
            await reply
        reply = link.request(Command.PUBLISH, Publish("t", 0), [b"x"])
        await soon(lambda: len(service.published) == 2)
        service.published[1][2].cancel()
        with pytest.raises(ServiceUnavailable):
            await reply


@pytest.mark.parametrize("kind", catalogue().values(), ids=lambda kind: kind.__name__)
async def test_every_error_arrives_as_itself_with_its_details_and_the_door_goes_on(kind: type[LannerError]) -> None:
    calls: list[tuple[Command, Any, list[bytes]]] = [
        (Command.PUBLISH, Publish("t", 0), [b"x"]),
        (Command.POLL, Poll("g", "t", "m", 1), []),
        (Command.RAFT_STATUS, SAMPLES[cluster.RaftStatus], []),
    ]
    async with opened() as (service, _, link):
        service.problem = kind("it is so", partition=3)
        for command, call, bulk in calls:
            with pytest.raises(kind) as caught:
                await (link.poll(call).polled if isinstance(call, Poll) else link.request(command, call, bulk))
            assert (caught.value.code, caught.value.name, caught.value.message) == (
                kind.code,
                kind.__name__,
                "it is so",
            )
            assert (caught.value.retryable, caught.value.details["partition"]) == (kind.retryable, 3)
        service.problem = None
        assert (await link.request(Command.PING, Empty())).control == Empty()


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
        service.poll_answer = leased()
        settle = SettleItem(0, 7, 100, 2, messages.SettleKind.NACK, 500, "because")
        poll = link.poll(Poll("g", "t", "m", 3, wait_ms=1_000, settles=[settle]))
        assert poll.settled is not None
        assert (await poll.settled).control == messages.Settled([messages.SettledItem(0, 2)])
        assert service.settled == [settle]
        assert not poll.polled.done()
        service.poll_gate.set()
        reply = await poll.polled
        assert reply.control == messages.Polled(
            [messages.PolledBatch(0, 7, 100, 5, 6, 9, 5, [messages.LeasedRange(100, 2, 1)])], False
        )
        assert bytes(reply.bulk) == b"bytes"
        assert service.unheard == 0
        assert [call.settles for call in service.asked if isinstance(call, Poll)] == [[]]


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
        service.poll_answer = leased()
        link.poll(Poll("g", "t", "m", 1, wait_ms=1_000, settles=[SettleItem(0, 7, 1, 2, 1)]))
        await soon(lambda: service.asked)
        break_silently(door)
        service.poll_gate.set()
        await soon(lambda: service.unheard == 1)


async def test_leases_whose_reply_does_not_fit_into_a_frame_are_released() -> None:
    async with opened() as (service, _, link):
        service.poll_answer = leased(b"x" * limits.BATCH_BYTES_MAX, 5)
        with pytest.raises(ServerError, match="does not fit"):
            await link.poll(Poll("g", "t", "m", 1)).polled
        await soon(lambda: service.unheard == 1)


async def test_leases_whose_reply_cannot_be_encoded_are_released() -> None:
    async with opened() as (service, _, link):
        service.poll_answer = leased(append_ms=2**70)
        with pytest.raises(ServerError):
            await link.poll(Poll("g", "t", "m", 1)).polled
        await soon(lambda: service.unheard == 1)


async def test_leases_in_replies_that_never_reached_the_socket_are_released() -> None:
    async with opened() as (service, door, link):
        service.poll_answer = leased()
        unread = Unread(door)
        link.poll(Poll("g", "t", "m", 1))
        await unread.reply()
        link.abort(ConnectionLost("test"))
        await soon(lambda: service.unheard == 1)


async def test_what_was_taken_without_a_lease_cannot_be_released() -> None:
    async with opened() as (service, door, link):
        service.poll_answer = leased()
        link.poll(Poll("g", "t", "m", 1, wait_ms=1_000, auto_ack=True))
        await soon(lambda: service.asked)
        break_silently(door)
        service.poll_gate.set()
        await asyncio.sleep(0.01)
        link.abort(ConnectionLost("test"))
        await all_ended(door)
        assert service.unheard == 0


async def test_what_a_connection_has_in_hand_is_bounded_and_the_rest_keeps_its_order() -> None:
    async with opened(inflight_max=3) as (service, _, link):
        replies = [link.request(Command.PUBLISH, Publish("t", number), [b"x"]) for number in range(10)]
        last = link.request(Command.PING, Empty())
        await soon(lambda: len(service.published) == 3)
        await asyncio.sleep(0.02)
        assert len(service.published) == 3
        assert not last.done()
        for number in range(10):
            await soon(lambda: len(service.published) > number)  # noqa: B023
            service.published[number][2].set_result(Appended(number, 1, 0, False))
        assert [(await reply).control.base_offset for reply in replies] == list(range(10))
        assert [call.partition for call, _, _ in service.published] == list(range(10))
        await last


async def test_the_bytes_a_connection_has_in_hand_are_bounded() -> None:
    async with opened(inflight_bytes_max=100) as (service, _, link):
        replies = [link.request(Command.PUBLISH, Publish("t", 0), [b"x" * size]) for size in (150, 60, 30, 60)]
        for count, number in ((1, 0), (3, 1), (4, 2), (4, 3)):
            await soon(lambda: len(service.published) == count)  # noqa: B023
            await asyncio.sleep(0.01)
            assert len(service.published) == count
            service.published[number][2].set_result(Appended(0, 1, 0, False))
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
        service.published[0][2].set_result(Appended(5, 1, 0, False))
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
        service.published[0][2].set_result(Appended(5, 1, 0, False))
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
        with pytest.raises(ServiceUnavailable):
            await open_connection("127.0.0.1", int(link.address.rpartition(":")[2]))
        with pytest.raises(ServiceUnavailable):
            await link.request(Command.PING, Empty())


PASSED_ON = [row for row in ROWS.values() if row.command not in (Command.PUBLISH, Command.STAGE, Command.POLL)]


@pytest.mark.parametrize("row", PASSED_ON, ids=lambda row: row.command.name)
async def test_a_command_is_one_call_that_passes_through_as_it_is(row: Row[Any, Any]) -> None:
    async with opened() as (service, _, link):
        call = SAMPLES[row.call]
        reply = await link.request(row.command, call)
        assert service.served + service.asked == [call]
        assert service.served == ([call] if row.strict else [])
        if row.command is not Command.SETTLE:
            assert reply.control == SAMPLES[row.answer]
            assert bytes(reply.bulk) == (b"bulk" if row.sizes else b"")
        assert service.identities == {Identity("anonymous", "native")}


async def test_what_names_its_partitions_is_served_here_and_anything_else_by_the_whole_cluster() -> None:
    async with opened() as (service, _, link):
        here: list[tuple[Command, Call[Any]]] = [
            (Command.OFFSETS, messages.Offsets("t", -1, [0])),
            (Command.BEST_PRIORITY, messages.BestPriority("g", "t", [0])),
            (Command.POLL, Poll("g", "t", "m", 1, [0])),
        ]
        for command, call in here:
            await link.request(command, call)
        assert service.served == [call for _, call in here] and not service.asked
        everywhere: list[tuple[Command, Call[Any]]] = [
            (Command.OFFSETS, messages.Offsets("t")),
            (Command.POLL, Poll("g", "t", "m", 1)),
            (Command.PEEK, messages.Peek("t", 0)),
        ]
        for command, call in everywhere:
            await link.request(command, call)
        assert service.asked == [call for _, call in everywhere] and len(service.served) == len(here)
