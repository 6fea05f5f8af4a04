"""The connecting end: what becomes of futures when a broker answers, stays silent, lies or goes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from lanner import limits
from lanner.errors import ConnectionLost, LeaseLost, ProtocolError, TopicNotFound
from lanner.net.connector import ClientLink, open_connection
from lanner.net.loop import run
from lanner.wire.connection import Request, ServerConnection
from lanner.wire.messages import Command, Empty, HelloReply, Metadata, Poll, Polled, Publish, SettleItem

WELCOME = HelloReply(1, "cluster", "node", "test", limits.FRAME_BYTES_MAX, 10)
Behave = Callable[["Peer"], Awaitable[None]]


class Peer:
    """A broker written by hand, one connection at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.connection = ServerConnection()

    async def requests(self) -> list[Request]:
        data = await self.reader.read(1 << 16)
        return self.connection.receive(data) if data else []

    def send(self) -> None:
        self.writer.writelines(self.connection.take_outgoing())

    async def greet(self) -> None:
        [hello] = await self.requests()
        self.connection.welcome(hello, WELCOME)
        self.send()


@asynccontextmanager
async def broker(behave: Behave) -> AsyncIterator[tuple[str, int]]:
    done: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done.append(asyncio.Event())
        ended = done[-1]
        with suppress(ConnectionError):
            try:
                await behave(Peer(reader, writer))
            finally:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()
                ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[:2]
        for ended in done:
            await asyncio.wait_for(ended.wait(), 5)


@asynccontextmanager
async def linked(behave: Behave, **options: int) -> AsyncIterator[ClientLink]:
    async with broker(behave) as address:
        link = await open_connection(*address, **options)
        try:
            yield link
        finally:
            await link.close()


async def until_closed(peer: Peer) -> None:
    while await peer.reader.read(1 << 16):
        pass


async def test_no_broker_is_a_lost_connection_that_names_the_address() -> None:
    async with broker(until_closed) as address:
        pass
    with pytest.raises(ConnectionLost, match=f"could not connect to 127.0.0.1:{address[1]}"):
        await open_connection(*address)


async def test_a_broker_that_does_not_answer_hello_is_given_up() -> None:
    async with broker(until_closed) as address:
        with pytest.raises(ConnectionLost, match="did not answer within 50 ms"):
            await open_connection(*address, timeout_ms=50)


async def test_an_attempt_that_is_cancelled_leaves_no_socket() -> None:
    gone = asyncio.Event()

    async def behave(peer: Peer) -> None:
        try:
            await until_closed(peer)
        finally:
            gone.set()

    async with broker(behave) as address:
        attempt = asyncio.create_task(open_connection(*address))
        await asyncio.sleep(0.05)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        await asyncio.wait_for(gone.wait(), 2)


async def test_something_that_is_no_broker_is_recognised() -> None:
    async def behave(peer: Peer) -> None:
        peer.writer.write(b"SSH-2.0-OpenSSH\r\n")
        await until_closed(peer)

    async with broker(behave) as address:
        with pytest.raises(ProtocolError, match="expected the reply to HELLO"):
            await open_connection(*address)


async def test_a_broker_that_hangs_up_during_hello_is_a_lost_connection() -> None:
    async def behave(peer: Peer) -> None:
        await peer.requests()

    async with broker(behave) as address:
        with pytest.raises(ConnectionLost):
            await open_connection(*address)


async def test_errors_of_the_broker_are_raised_as_themselves() -> None:
    async def behave(peer: Peer) -> None:
        await peer.greet()
        for request in await peer.requests():
            peer.connection.fail(request, TopicNotFound("no orders here", topic="orders"))
        peer.send()
        await until_closed(peer)

    async with linked(behave) as link:
        with pytest.raises(TopicNotFound, match="no orders here"):
            await link.request(Command.PUBLISH, Publish("orders", 0), [b"x"])
        assert link.unanswered == 0


async def test_every_unanswered_request_fails_when_the_broker_goes() -> None:
    async def behave(peer: Peer) -> None:
        await peer.greet()
        await peer.requests()

    async with linked(behave) as link:
        futures = [link.request(Command.PING, Empty()) for _ in range(5)]
        poll = link.poll(Poll("g", "t", "m", 1, settles=[SettleItem(0, 0, 0, 1, 1)]))
        assert poll.settled is not None
        results = await asyncio.gather(*futures, poll.settled, poll.polled, return_exceptions=True)
        assert all(isinstance(result, ConnectionLost) for result in results)
        assert len(set(map(id, results))) == len(results)
        assert not link.is_open
        with pytest.raises(ConnectionLost):
            link.request(Command.PING, Empty())
        with pytest.raises(ConnectionLost):
            link.poll(Poll("g", "t", "m", 2))
        await link.drain()


async def test_a_reply_that_nobody_waits_for_goes_to_the_one_that_asked_for_such() -> None:
    release = asyncio.Event()

    async def behave(peer: Peer) -> None:
        await peer.greet()
        [poll] = await peer.requests()
        await release.wait()
        peer.connection.reply(poll, Polled([], limited=True))
        peer.send()
        await until_closed(peer)

    async with linked(behave) as link:
        orphans = []
        link.on_orphan = orphans.append
        poll = link.poll(Poll("g", "t", "m", 1))
        assert poll.settled is None
        await asyncio.sleep(0.02)
        poll.polled.cancel()
        release.set()
        await asyncio.sleep(0.05)
        assert [orphan.control for orphan in orphans] == [Polled([], limited=True)]
        assert link.is_open


async def test_a_failed_poll_fails_its_settles_too() -> None:
    async def behave(peer: Peer) -> None:
        await peer.greet()
        for request in await peer.requests():
            peer.connection.fail(request, LeaseLost("all of it"))
        peer.send()
        await until_closed(peer)

    async with linked(behave) as link:
        poll = link.poll(Poll("g", "t", "m", 1, settles=[SettleItem(0, 0, 0, 1, 1)]))
        assert poll.settled is not None
        with pytest.raises(LeaseLost):
            await poll.settled
        with pytest.raises(LeaseLost):
            await poll.polled


async def test_broken_framing_of_a_broker_fails_what_waits_with_the_reason() -> None:
    async def behave(peer: Peer) -> None:
        await peer.greet()
        await peer.requests()
        peer.writer.write(struct.pack(">BI", 0x82, 2**32 - 1))
        await until_closed(peer)

    async with linked(behave) as link:
        with pytest.raises(ProtocolError, match="4294967295"):
            await link.request(Command.PING, Empty())


async def test_drain_waits_until_the_broker_reads_again() -> None:
    go_on = asyncio.Event()
    got = bytearray()

    async def behave(peer: Peer) -> None:
        await peer.greet()
        await go_on.wait()
        while data := await peer.reader.read(1 << 20):
            got.extend(data)

    async with linked(behave) as link:
        await asyncio.wait_for(link.drain(), 1)
        for _ in range(16):
            link.request(Command.PUBLISH, Publish("t", 0), [bytes(limits.MIB)])
        await asyncio.sleep(0.02)
        waiting = asyncio.create_task(link.drain())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        go_on.set()
        await asyncio.wait_for(waiting, 5)
    assert len(got) > 16 * limits.MIB


async def test_a_silent_broker_is_pinged_and_kept_while_it_answers() -> None:
    pings = 0

    async def behave(peer: Peer) -> None:
        nonlocal pings
        await peer.greet()
        while requests := await peer.requests():
            pings += len(requests)
            for request in requests:
                peer.connection.reply(request, Empty())
            peer.send()

    async with linked(behave, idle_ping_ms=100) as link:
        await asyncio.sleep(0.5)
        assert pings >= 2
        assert link.is_open


async def test_a_broker_that_stays_silent_although_pinged_is_given_up() -> None:
    async def behave(peer: Peer) -> None:
        await peer.greet()
        await until_closed(peer)

    async with linked(behave, idle_ping_ms=20) as link:
        with pytest.raises(ConnectionLost, match=r"silent for 0\.04 s"):
            await asyncio.wait_for(link.request(Command.METADATA, Metadata()), 2)


SCENARIOS = [test for name, test in list(globals().items()) if name.startswith("test_")]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.removeprefix("test_"))
def test_the_same_holds_on_the_loop_that_brokers_use(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(scenario())


class Gone:
    """A transport that was closed, as it is in the turn of the loop before its link hears of that."""

    def __init__(self) -> None:
        self.written: list[object] = []

    def is_closing(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: object) -> None:
        self.written.append(data)

    writelines = write


async def test_nothing_is_written_to_a_socket_that_was_closed() -> None:
    """Python's own loop would wait for its descriptor, which may be that of another socket by then."""

    async def behave(peer: Peer) -> None:
        await peer.greet()

    async with linked(behave) as link:
        transport, gone = link._transport, Gone()
        link._transport = gone  # type: ignore[assignment]
        for _ in range(3):
            link._connection.request(Command.PUBLISH, Publish("t", 0), [b"x"])
        link._flush()
        link._transport = transport
    assert gone.written == []
