"""How many connections there may be, and what happens when a process is out of file descriptors."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from typing import Any

import pytest

from lanner import limits
from lanner.errors import Overloaded
from lanner.net import seats as module
from lanner.net.acceptor import Acceptor
from lanner.net.loop import run
from lanner.net.seats import REFUSALS_MAX, Seats, raise_open_files


@pytest.mark.parametrize("files", [64, 128, 256, 1_024, 4_096, 20_000, 1_000_000])
def test_connections_and_storage_fit_into_what_a_process_may_open(files: int) -> None:
    seats = Seats.for_open_files(files)
    connections = seats.callers_max + seats.reserved
    assert connections + limits.storage_files_for(files) + REFUSALS_MAX + 20 <= files
    assert seats.callers_max <= limits.CONNECTIONS_MAX
    assert 0 < seats.reserved <= limits.PEER_CONNECTIONS_RESERVED


def test_with_many_files_the_bounds_are_those_of_the_catalogue() -> None:
    seats = Seats.for_open_files(65_536)
    assert (seats.callers_max, seats.reserved) == (limits.CONNECTIONS_MAX, limits.PEER_CONNECTIONS_RESERVED)


def test_callers_are_refused_before_other_brokers_are() -> None:
    seats = Seats(2, reserved=1)
    seats.enter()
    assert not seats.is_full_for_callers
    seats.enter()
    assert seats.is_full_for_callers and not seats.is_full and not seats.is_beyond_callers
    seats.enter()
    assert seats.is_full and seats.is_beyond_callers


def test_that_there_are_too_many_is_said_once_until_there_was_room(caplog: pytest.LogCaptureFixture) -> None:
    seats = Seats(16)
    for _ in range(16):
        seats.enter()
    with caplog.at_level(logging.WARNING, "lanner.net"):
        for _ in range(3):
            assert isinstance(seats.refuse(), Overloaded)
        seats.leave()
        seats.enter()
        seats.refuse()
        assert caplog.text.count("16 connections are open, which is all this broker may have") == 1
        for _ in range(3):
            seats.leave()
        seats.refuse()
    assert caplog.text.count("which is all this broker may have") == 2
    assert seats.refused_total == 5


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1_024, 4_096, 4_096),
        (1_024, 1_048_576, 65_536),
        (1_024, resource.RLIM_INFINITY, 65_536),
        (100_000, 200_000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
        (256, 256, None),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_may_be(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None
) -> None:
    limit = [soft, hard]
    monkeypatch.setattr(module.resource, "getrlimit", lambda _: tuple(limit))
    monkeypatch.setattr(module.resource, "setrlimit", lambda _, new: limit.__setitem__(slice(None), new))
    assert raise_open_files() == (min(65_536, soft) if raised is None and soft > 0 else raised or 65_536)
    assert limit == [soft if raised is None else raised, hard]


def test_a_limit_that_cannot_be_raised_is_no_reason_not_to_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("not permitted")

    monkeypatch.setattr(module.resource, "getrlimit", lambda _: (1_024, 4_096))
    monkeypatch.setattr(module.resource, "setrlimit", refuse)
    assert raise_open_files() == 1_024
    assert "could not raise that to 4096: not permitted" in caplog.text


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.write(b"hello")
        transport.close()


class Starved(socket.socket):
    """A listening socket in a process without descriptors, for as long as `times` says."""

    times = 0

    def accept(self) -> Any:
        if Starved.times:
            Starved.times -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def starve(caplog: pytest.LogCaptureFixture) -> None:
    Starved.times = 3
    acceptor = Acceptor(Greeting, Seats(), wait_seconds=0.01)
    address = await acceptor.bind("127.0.0.1", 0)
    acceptor._sockets = [Starved(fileno=listening.detach()) for listening in acceptor._sockets]
    acceptor.accept()
    try:
        for _ in range(2):
            reader, writer = await asyncio.open_connection(*address)
            assert await asyncio.wait_for(reader.read(), 5) == b"hello"
            writer.close()
            await writer.wait_closed()
    finally:
        acceptor.close()
    assert Starved.times == 0
    assert caplog.text.count("no new connection can be accepted for the moment: Too many open files") == 1
    assert caplog.text.count("connections are accepted again") == 1


def test_without_descriptors_accepting_waits_and_goes_on_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    run(starve(caplog))


async def test_the_same_on_the_loop_of_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    await starve(caplog)


async def test_in_a_storm_those_too_many_are_only_closed() -> None:
    seats = Seats(0)
    seats.refusing = REFUSALS_MAX
    acceptor = Acceptor(Greeting, seats)
    address = await acceptor.bind("127.0.0.1", 0)
    acceptor.accept()
    reader, writer = await asyncio.open_connection(*address)
    with pytest.raises(ConnectionError):
        assert await asyncio.wait_for(reader.read(), 5) == b""
        raise ConnectionResetError
    writer.close()
    assert seats.refused_total == 1
    acceptor.close()
    acceptor.close()


async def test_an_address_that_is_taken_is_refused_and_nothing_is_left_open() -> None:
    taken = Acceptor(Greeting, Seats())
    host, port = await taken.bind("127.0.0.1", 0)
    taken.accept()
    other = Acceptor(Greeting, Seats())
    with pytest.raises(OSError) as problem:
        await other.bind(host, port)
    assert problem.value.errno == errno.EADDRINUSE
    assert other._sockets == []
    taken.close()


async def test_a_connection_that_is_accepted_as_the_listener_closes_is_closed_too() -> None:
    acceptor = Acceptor(asyncio.Protocol, Seats(10))
    address = await acceptor.bind("127.0.0.1", 0)
    acceptor.accept()
    before = asyncio.all_tasks()
    with socket.create_connection(address) as client:
        while asyncio.all_tasks() == before:
            await asyncio.sleep(0)
        acceptor.close()  # the task that opens the connection has not begun
        assert await asyncio.to_thread(client.recv, 1) == b""
