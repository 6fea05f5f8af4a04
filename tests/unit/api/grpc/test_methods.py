"""Requests that do not arrive, calls that fail by a fault of ours, and the door's share of connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from lanner import limits
from lanner.api.grpc.door import GrpcDoor
from lanner.net.seats import Seats
from lanner.net.unfinished import Unfinished
from tests.grpc_client import error_of

SEND = "/queue.v1.QueueService/SendMessage"


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
