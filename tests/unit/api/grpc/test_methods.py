"""Requests that do not arrive, calls that fail by a fault of ours, and the door's share of connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from lanner import limits
from lanner.api.grpc.door import GrpcDoor
from lanner.api.grpc.methods import Arrivals, Caller
from lanner.net.seats import Seats
from lanner.net.unfinished import Unfinished
from tests.grpc_client import error_of

SEND = "/queue.v1.QueueService/SendMessage"
STREAMS = ("/lanner.v1.Queue/PublishStream", "/queue.v1.QueueService/HealthCheck")
CHECK = "/grpc.health.v1.Health/Check"
NOBODY = health_pb2.HealthCheckRequest(service="nobody").SerializeToString()
STOPS = ("UNAVAILABLE", "ServiceUnavailable")


@asynccontextmanager
async def opened(unfinished: Unfinished) -> AsyncIterator[tuple[GrpcDoor, grpc.aio.Channel]]:
    """A door without a broker behind it, and a channel to it."""
    service: Any = None
    door = GrpcDoor(service, unfinished=unfinished)
    host, port = await door.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
        yield door, channel
    await door.stop(0)


async def ending(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of(caught.value)


async def test_a_request_that_does_not_arrive_in_time_is_let_go() -> None:
    unfinished = Unfinished(deadline_ms=200)
    async with opened(unfinished) as (_, channel):
        assert await ending(channel.stream_unary(SEND)()) == ("DEADLINE_EXCEEDED", "RequestTimeout")
        assert unfinished.held_bytes == 0


async def test_requests_that_do_not_arrive_share_one_budget() -> None:
    unfinished = Unfinished(bytes_max=2 * limits.GRPC_REQUEST_BYTES_MAX)
    async with opened(unfinished) as (_, channel):
        calls = [channel.stream_unary(SEND)() for _ in range(3)]
        waiting = [asyncio.ensure_future(ending(call)) for call in calls]
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result() for one in done] == [("DEADLINE_EXCEEDED", "RequestTimeout")]
        assert (len(rest), unfinished.let_go_total) == (2, 1)
        for call in calls:
            call.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


async def test_what_streams_may_hold_follows_the_budget_for_requests_that_are_not_whole() -> None:
    unfinished = Unfinished(bytes_max=16 * limits.MIB)
    async with opened(unfinished) as (_, channel):
        streams = [channel.stream_stream(STREAMS[0])() for _ in range(17)]
        waiting = {asyncio.ensure_future(ending(stream.read())): stream for stream in streams}
        async with asyncio.timeout(10):
            done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result() for one in done] == [("RESOURCE_EXHAUSTED", "Overloaded")]
        assert (len(rest), unfinished.held_bytes) == (16, 0), "one that waits for its caller holds nothing"
        left = waiting[rest.pop()]
        await left.done_writing()
        assert await left.code() is grpc.StatusCode.OK
        again = channel.stream_stream(STREAMS[1])()
        await again.write(b"\xff")
        assert await ending(again.read()) == ("INVALID_ARGUMENT", "ValidationError"), "there is room for another"


def test_streams_are_bounded_also_where_the_budget_is_large() -> None:
    assert Arrivals(Unfinished(1024 * limits.GIB)).streams_max == limits.GRPC_STREAMS_MAX
    assert Arrivals(Unfinished()).streams_max == 256


async def test_streams_that_are_opened_just_before_a_stop_are_told_of_it_as_those_that_were_open() -> None:
    for _ in range(10):
        async with opened(Unfinished()) as (door, channel):
            assert await ending(channel.unary_unary(CHECK)(NOBODY)) == ("NOT_FOUND", "NotFoundError")
            streams = [channel.stream_stream(name)() for name in STREAMS * 4]
            stopping = asyncio.ensure_future(door.stop(10_000))
            assert [await ending(stream.read()) for stream in streams] == [STOPS] * len(streams)
            await stopping


async def test_calls_that_come_while_others_are_in_hand_are_told_of_a_stop_too() -> None:
    async with opened(Unfinished()) as (door, channel):
        late = channel.stream_unary(SEND)()  # its request does not come
        assert await ending(channel.unary_unary(CHECK)(NOBODY)) == ("NOT_FOUND", "NotFoundError")
        stopping = asyncio.ensure_future(door.stop(60_000))
        for name in STREAMS * 20:
            assert await ending(channel.stream_stream(name)().read()) == STOPS
        assert not stopping.done()
        await late.done_writing()
        assert await ending(late) == ("INVALID_ARGUMENT", "ValidationError")
        await stopping


async def test_a_stop_waits_for_nobody_where_nobody_called_or_no_time_is_given() -> None:
    unheard: Any = None
    for drain_ms, called in ((60_000, False), (0, True)):
        door = GrpcDoor(unheard)
        host, port = await door.start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
            await channel.channel_ready()
            if called:
                stream = channel.stream_stream(STREAMS[0])()
                await stream.wait_for_connection()
            async with asyncio.timeout(30):
                await door.stop(drain_ms)


async def test_a_fault_of_ours_is_told_by_name_only_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(Unfinished()) as (_, channel):  # nothing is behind the door: that is the fault
        topic = b"\x0a\x01t"
        assert await ending(channel.unary_unary(SEND)(topic)) == ("INTERNAL", "ServerError")
    assert "a call failed in a way that it should not" in caplog.text


def test_a_share_of_the_seats_is_lent_once_and_never_all() -> None:
    seats = Seats(callers_max=100)
    assert (seats.lend(4), seats.callers_max) == (25, 75)
    few = Seats(callers_max=3)
    assert (few.lend(4), few.callers_max) == (1, 2)


class Remaining:
    """The context of a call of which so much time is left."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def time_remaining(self) -> float | None:
        return self._seconds


@pytest.mark.parametrize(("left", "waits"), [(None, 60_000), (100.0, 60_000), (1.0, 950), (0.05, 0), (0.0, 0)])
def test_a_poll_waits_only_so_long_that_its_answer_comes_before_the_callers_deadline(
    left: float | None, waits: int
) -> None:
    assert Caller(Remaining(left)).wait_ms(60_000) == waits  # type: ignore[arg-type]
