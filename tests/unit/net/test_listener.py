"""The listening end over real sockets, with a session that does what each test tells it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import msgspec
import pytest

from lanner import limits
from lanner.errors import (
    ConnectionLost,
    Overloaded,
    ProtocolError,
    RequestTimeout,
    ServiceUnavailable,
    Unauthenticated,
    catalogue,
)
from lanner.net.connector import open_connection
from lanner.net.link import Pause
from lanner.net.listener import REQUESTS_PER_TURN_MAX, Listener, ServerLink
from lanner.net.loop import run
from lanner.net.seats import Seats
from lanner.net.unfinished import Unfinished
from lanner.wire.connection import Request
from lanner.wire.messages import (
    Command,
    Empty,
    ErrorReply,
    Fetch,
    Fetched,
    Hello,
    HelloReply,
    PeerHello,
    Poll,
    Polled,
    Settled,
    SettleItem,
)
from lanner.wire.peers import Pulse

HELLO = b"\x01\x00\x00\x00\x0b\x00\x00\x00\x01\x00\x00\x00\x03\x91\x91\x01"


class Scripted:
    """A session that answers PING, and anything else by a script."""

    refusal: Exception | None = None

    def __init__(self, link: ServerLink) -> None:
        self.link = link
        self.requests: list[Request] = []
        self.is_lost = False
        self.handed = 0

    def greet(self, hello: Hello) -> HelloReply:
        if self.refusal is not None:
            raise self.refusal
        return HelloReply(1, "cluster", "node", "test", limits.FRAME_BYTES_MAX, 10)

    def handle(self, request: Request) -> None:
        self.requests.append(request)
        self.script(request)

    def script(self, request: Request) -> None:
        self.link.reply(request, Empty())

    def handed_over(self) -> None:
        self.handed += 1

    def lost(self) -> None:
        self.is_lost = True


class Served:
    def __init__(self, kind: type[Scripted], **bounds: Any) -> None:
        self.sessions: list[Scripted] = []
        self.kind = kind
        self.listener = Listener(self.make, **bounds)
        self.address = ("", 0)

    def make(self, link: ServerLink) -> Scripted:
        self.sessions.append(self.kind(link))
        return self.sessions[-1]


@asynccontextmanager
async def serving(kind: type[Scripted] = Scripted, **bounds: Any) -> AsyncIterator[Served]:
    served = Served(kind, **bounds)
    served.address = await served.listener.start("127.0.0.1", 0)
    try:
        yield served
    finally:
        await served.listener.close()


@asynccontextmanager
async def raw(address: tuple[str, int]) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    command, length, correlation, control_length = struct.unpack(">BIII", await reader.readexactly(13))
    rest = await reader.readexactly(length - 8)
    return command, correlation, rest[:control_length]


async def read_error(reader: asyncio.StreamReader) -> Exception:
    """The error of the connection, which must be the last thing that is said."""
    command, correlation, control = await asyncio.wait_for(read_frame(reader), 5)
    assert (command, correlation) == (0xFF, 0)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    reply = msgspec.msgpack.decode(control, type=ErrorReply)
    return catalogue()[reply.code](reply.message)


async def still_serves(served: Served) -> None:
    link = await open_connection(*served.address)
    assert (await link.request(Command.PING, Empty())).control == Empty()
    await link.close()


async def test_a_client_says_hello_and_asks() -> None:
    async with serving() as served:
        link = await open_connection(*served.address, client="me")
        assert link.hello_reply.cluster_id == "cluster"
        assert (await link.request(Command.PING, Empty())).command is Command.PING
        await link.close()
        assert served.sessions[0].is_lost
        assert not served.listener.links


async def test_a_session_may_refuse_a_client() -> None:
    class Refusing(Scripted):
        refusal = Unauthenticated("who are you")

    async with serving(Refusing) as served:
        with pytest.raises(Unauthenticated, match="who are you"):
            await open_connection(*served.address)


class Counting:
    """A transport that counts what is written at once."""

    def __init__(self, transport: asyncio.Transport | None) -> None:
        self._transport = transport
        self.writes: list[int] = []

    def writelines(self, buffers: list[bytes]) -> None:
        self.writes.append(len(buffers))
        assert self._transport is not None
        self._transport.writelines(buffers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_requests_and_replies_made_in_one_turn_leave_in_one_write() -> None:
    async with serving() as served:
        link = await open_connection(*served.address)
        session = served.sessions[0]
        asking, answering = Counting(link._transport), Counting(session.link._transport)
        link._transport, session.link._transport = cast(Any, asking), cast(Any, answering)
        before = session.handed
        await asyncio.gather(*(link.request(Command.PING, Empty()) for _ in range(50)))
        assert asking.writes == answering.writes == [50]
        assert session.handed == before + 1
        await link.close()


async def test_garbage_before_hello_is_answered_with_what_was_expected() -> None:
    async with serving() as served:
        async with raw(served.address) as (reader, writer):
            writer.write(b"SSH-2.0-client\r\nHost: x\r\n\r\n" * 1_000)
            error = await read_error(reader)
            assert isinstance(error, ProtocolError)
            assert "expected HELLO (0x01)" in str(error)
        await still_serves(served)


async def test_a_4_gib_length_is_refused_before_and_after_hello() -> None:
    async with serving() as served:
        async with raw(served.address) as (reader, writer):
            writer.write(b"\x01\xff\xff\xff\xff")
            assert "4294967295 bytes" in str(await read_error(reader))
        async with raw(served.address) as (reader, writer):
            writer.write(HELLO)
            assert (await read_frame(reader))[0] == 0x81
            writer.write(b"\x10\xff\xff\xff\xff")
            assert "4294967295 bytes" in str(await read_error(reader))
        await still_serves(served)


async def test_a_client_that_says_nothing_or_dribbles_is_let_go_at_the_deadline() -> None:
    async with serving(hello_deadline_ms=60) as served:
        async with raw(served.address) as (reader, writer), raw(served.address) as (silent, _):
            for byte in HELLO[:3]:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)
            assert "no HELLO came within 60 ms" in str(await read_error(reader))
            assert "no HELLO" in str(await read_error(silent))
        served.listener.hello_deadline_ms = limits.HELLO_DEADLINE_MS
        await still_serves(served)


async def test_the_deadline_does_not_touch_those_who_said_hello() -> None:
    async with serving(hello_deadline_ms=150) as served:
        link = await open_connection(*served.address)
        await asyncio.sleep(0.25)
        await link.request(Command.PING, Empty())
        await link.close()


async def test_a_truncated_frame_and_a_closed_socket_leave_the_listener_serving() -> None:
    async with serving() as served:
        async with raw(served.address) as (reader, writer):
            writer.write(HELLO)
            await read_frame(reader)
            writer.write(b"\x10\x00\x00\x10\x00half")
            await writer.drain()
        await still_serves(served)
        assert served.sessions[0].requests == []


async def test_connections_are_bounded_and_the_one_too_many_is_told() -> None:
    async with serving(seats=Seats(2)) as served:
        links = [await open_connection(*served.address) for _ in range(2)]
        with pytest.raises(Overloaded, match="2 connections"):
            await open_connection(*served.address)
        await links[0].close()
        await still_serves(served)
        await links[1].close()


class Flooding(Scripted):
    """Answers every FETCH with a mebibyte."""

    def script(self, request: Request) -> None:
        self.link.reply(request, Fetched(0, 0, 0, []), [b"x" * limits.MIB])


def stubborn(address: tuple[str, int]) -> socket.socket:
    """A client that never reads, with small buffers so that the network holds little for it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(address)
    sock.sendall(HELLO)
    return sock


def fetches(count: int) -> bytes:
    control = msgspec.msgpack.encode(Fetch("t", 0, 0))
    return b"".join(
        struct.pack(">BIII", Command.FETCH, 8 + len(control), number, len(control)) + control
        for number in range(1, count + 1)
    )


async def test_a_client_that_reads_nothing_is_let_go_when_too_much_waits_for_it() -> None:
    async with serving(Flooding, unsent_bytes_max=32 * limits.MIB) as served:
        sock = stubborn(served.address)
        try:
            await asyncio.sleep(0.05)
            sock.sendall(fetches(60))
            for _ in range(100):
                await asyncio.sleep(0.02)
                if served.sessions[0].is_lost:
                    break
            assert served.sessions[0].is_lost
        finally:
            sock.close()
        link = await open_connection(*served.address)
        assert len((await link.request(Command.FETCH, Fetch("t", 0, 0))).bulk) == limits.MIB
        await link.close()


async def test_a_client_that_reads_nothing_is_asked_no_more_and_let_go_after_a_stall() -> None:
    async with serving(Flooding, stall_ms=400) as served:
        sock = stubborn(served.address)
        try:
            await asyncio.sleep(0.03)
            for _ in range(20):
                sock.sendall(fetches(1))
                await asyncio.sleep(0.005)
            session = served.sessions[0]
            assert len(session.requests) < 20  # reading stopped, so the rest was never taken on
            for _ in range(100):
                await asyncio.sleep(0.01)
                if session.is_lost:
                    break
            assert session.is_lost
            failure = session.link._connection.failure
            assert failure is not None
            assert "read nothing" in failure.message
        finally:
            sock.close()
        link = await open_connection(*served.address)
        await link.close()


async def test_a_client_that_reads_slowly_but_reads_is_kept() -> None:
    async with serving(Flooding, stall_ms=250) as served:
        reader, writer = await asyncio.open_connection(*served.address, limit=4_096)
        writer.write(HELLO)
        await read_frame(reader)
        writer.write(fetches(3))
        got = 0
        while got < 3 * limits.MIB:
            data = await reader.read(64 * limits.KIB)
            assert data, "the listener hung up on a slow reader"
            got += len(data)
            await asyncio.sleep(0.015)
        writer.close()
        await writer.wait_closed()


async def test_reading_stops_while_a_session_has_enough_in_hand() -> None:
    class Busy(Scripted):
        def script(self, request: Request) -> None:
            self.link.pause_reading(Pause.WORK_IN_HAND)

    async with serving(Busy) as served:
        link = await open_connection(*served.address)
        first = link.request(Command.PING, Empty())
        await asyncio.sleep(0.02)
        second = link.request(Command.PING, Empty())
        await asyncio.sleep(0.05)
        session = served.sessions[0]
        assert len(session.requests) == 1
        session.link.reply(session.requests[0], Empty())
        session.link.resume_reading(Pause.WORK_IN_HAND)
        await first
        await asyncio.sleep(0.02)
        assert len(session.requests) == 2
        session.link.reply(session.requests[1], Empty())
        session.link.resume_reading(Pause.WORK_IN_HAND)
        await second
        await link.close()


async def test_many_requests_in_one_piece_are_handed_on_a_few_at_a_turn_and_in_order() -> None:
    class Watching(Scripted):
        def __init__(self, link: ServerLink) -> None:
            super().__init__(link)
            self.turn = 0
            self.turns: list[int] = []
            asyncio.get_running_loop().call_soon(self.next_turn)

        def next_turn(self) -> None:
            self.turn += 1
            if not self.is_lost:
                asyncio.get_running_loop().call_soon(self.next_turn)

        def script(self, request: Request) -> None:
            self.turns.append(self.turn)
            self.link.reply(request, Empty())

    async with serving(Watching) as served:
        async with raw(served.address) as (reader, writer):
            writer.write(HELLO)
            await read_frame(reader)
            control = struct.pack(">BIII", Command.PING, 9, 0, 1)[:5]
            writer.write(b"".join(control + struct.pack(">II", number, 1) + b"\x90" for number in range(1, 1_001)))
            assert [(await read_frame(reader))[1] for _ in range(1_000)] == list(range(1, 1_001))
            session = served.sessions[0]
            assert isinstance(session, Watching)
            assert max(session.turns.count(turn) for turn in set(session.turns)) <= 2 * REQUESTS_PER_TURN_MAX
            assert len(set(session.turns)) >= 8
            writer.write(b"".join(control + struct.pack(">II", number, 1) + b"\x90" for number in range(1, 1_001)))
            await writer.drain()
        await still_serves(served)


async def test_a_client_that_left_unnoticed_does_not_trouble_the_close() -> None:
    class Deaf(Scripted):
        def script(self, request: Request) -> None:
            self.link.pause_reading(Pause.WORK_IN_HAND)

    async with serving(Deaf) as served:
        link = await open_connection(*served.address)
        link.request(Command.PING, Empty())
        await asyncio.sleep(0.02)
        link.abort(ConnectionLost("gone"))
        await link.closed
        await served.listener.close()
        assert served.sessions[0].is_lost


async def test_settles_are_answered_before_their_poll() -> None:
    class Polling(Scripted):
        def script(self, request: Request) -> None:
            self.link.reply_settles(request, Settled([]))
            asyncio.get_running_loop().call_later(0.03, self.link.reply, request, Polled([]))

    async with serving(Polling) as served:
        link = await open_connection(*served.address)
        poll = link.poll(Poll("g", "t", "m", 1, settles=[SettleItem(0, 1, 2, 3, 1)]))
        assert poll.settled is not None
        assert (await poll.settled).command is Command.SETTLE
        assert not poll.polled.done()
        assert (await poll.polled).control == Polled([])
        await link.close()


async def test_closing_tells_everybody_and_refuses_newcomers() -> None:
    async with serving() as served:
        link = await open_connection(*served.address)
        await served.listener.close()
        await link.closed
        with pytest.raises(ServiceUnavailable, match="stopping"):
            link.request(Command.PING, Empty())


async def test_a_client_that_does_not_hang_up_does_not_hold_up_the_close() -> None:
    async with serving() as served:
        sock = socket.create_connection(served.address)
        sock.sendall(HELLO)
        await asyncio.sleep(0.05)
        await asyncio.wait_for(served.listener.close(), 4)
        sock.close()
        assert not served.listener.links


SCENARIOS = [test for name, test in list(globals().items()) if name.startswith("test_")]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.removeprefix("test_"))
def test_the_same_holds_on_the_loop_that_brokers_use(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(scenario())


@pytest.mark.parametrize("behind", [HELLO, b"\x02\x00\x00\x00\x09" + b"\x00" * 8 + b"\x90", b"\xff" * 20])
async def test_a_caller_that_sends_more_in_one_piece_with_hello_is_told_what_was_wrong(behind: bytes) -> None:
    async with serving() as served:
        async with raw(served.address) as (reader, writer):
            writer.write(HELLO + behind)
            assert isinstance(await read_error(reader), ProtocolError)
        assert served.sessions[0].requests == []
        await still_serves(served)


async def test_a_listener_that_only_took_its_address_lets_nobody_in_until_it_accepts() -> None:
    served = Served(Scripted)
    served.address = await served.listener.start("127.0.0.1", 0, accept=False)
    try:
        with pytest.raises(ConnectionLost, match="could not connect"):
            await open_connection(*served.address)
        await served.listener.accept()
        await still_serves(served)
    finally:
        await served.listener.close()


async def test_what_is_told_arrives_in_order_and_nothing_comes_back() -> None:
    class Listens(Scripted):
        def script(self, request: Request) -> None: ...

    async with serving(Listens) as served:
        peer = PeerHello("c", "n", "a", "h:1")
        link = await open_connection(*served.address, peer=peer, silent_ms_max=5_000)
        for number in range(3):
            link.tell(Command.PULSE, Pulse(number))
        assert link.unsent_bytes > 0
        link.flush()
        assert link.unsent_bytes == 0
        async with asyncio.timeout(5):
            while len(served.sessions[0].requests) < 3:
                await asyncio.sleep(0.005)
        assert [request.control.now_ms for request in served.sessions[0].requests] == [0, 1, 2]
        assert link.unanswered == 0
        await link.close()
        with pytest.raises(ConnectionLost):
            link.tell(Command.PULSE, Pulse(3))


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
async def test_a_connection_that_must_make_progress_is_given_up_by_the_system() -> None:
    async with serving() as served:
        link = await open_connection(*served.address, silent_ms_max=5_000)
        assert link._transport is not None
        raw_socket = link._transport.get_extra_info("socket")
        assert raw_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000
        await link.close()
        link.expect_progress(1_000)  # too late is harmless


def beginning_of_a_frame(announced: int, sent: int) -> bytes:
    return struct.pack(">BIII", Command.PUBLISH, announced, 1, 8) + bytes(sent)


async def held(unfinished: Unfinished, size: int) -> None:
    """Wait until so many bytes are held."""
    async with asyncio.timeout(5):
        while unfinished.held_bytes != size:
            await asyncio.sleep(0.001)


async def test_a_frame_that_never_becomes_whole_ends_its_connection() -> None:
    async with serving(unfinished=Unfinished(deadline_ms=50)) as served:
        async with raw(served.address) as (reader, writer):
            writer.write(HELLO)
            await read_frame(reader)
            writer.write(beginning_of_a_frame(1_000, 100))
            error = await read_error(reader)
            assert isinstance(error, RequestTimeout)
            assert "not whole 0.05 s after its first byte" in str(error)
        await still_serves(served)
        assert served.listener.unfinished.held_bytes == 0


async def test_the_deadline_counts_from_the_first_byte_of_each_frame() -> None:
    async with serving() as served, raw(served.address) as (reader, writer):
        writer.write(HELLO)
        await read_frame(reader)
        ping = struct.pack(">BIII", Command.PING, 9, 1, 1) + b"\x90"
        writer.write(ping[:7])
        await held(served.listener.unfinished, 7)
        (first,) = served.listener.unfinished._parts
        writer.write(ping[7:] + ping[:5])
        await held(served.listener.unfinished, 5)
        (second,) = served.listener.unfinished._parts
        assert second is not first
        writer.write(ping[5:])
        await held(served.listener.unfinished, 0)


async def test_frames_that_are_not_whole_share_one_budget_and_are_dropped_at_once() -> None:
    async with serving(unfinished=Unfinished(bytes_max=2_000)) as served:
        async with raw(served.address) as (first, first_writer), raw(served.address) as (second, second_writer):
            for reader, writer in ((first, first_writer), (second, second_writer)):
                writer.write(HELLO)
                await read_frame(reader)
            first_writer.write(beginning_of_a_frame(5_000, 1_000))
            await held(served.listener.unfinished, 1_013)
            second_writer.write(beginning_of_a_frame(5_000, 1_001))
            error = await read_error(first)
            assert isinstance(error, RequestTimeout)
            assert "were the slowest" in str(error)
            assert served.sessions[0].link._connection.unfinished_bytes == 0  # also while it lingers
            await held(served.listener.unfinished, 1_014)
        await still_serves(served)
        await held(served.listener.unfinished, 0)


async def test_one_that_is_counted_apart_does_not_pay_for_the_others() -> None:
    apart = Unfinished()

    class Known(Scripted):
        def greet(self, hello: Hello) -> HelloReply:
            if hello.client == "known":
                self.link.count_apart(apart)
            return super().greet(hello)

    async with serving(Known, unfinished=Unfinished(bytes_max=2_000)) as served:
        async with raw(served.address) as (known_reader, known_writer), raw(served.address) as (reader, writer):
            for each, to, name in ((known_reader, known_writer, "known"), (reader, writer, "")):
                hello = msgspec.msgpack.encode(Hello([1], name))
                to.write(struct.pack(">BIII", Command.HELLO, 8 + len(hello), 0, len(hello)) + hello)
                await read_frame(each)
            known_writer.write(beginning_of_a_frame(9_000, 3_000))
            await held(apart, 3_013)
            writer.write(beginning_of_a_frame(9_000, 2_000))
            assert isinstance(await read_error(reader), RequestTimeout)
            assert not known_reader.at_eof()
        await held(apart, 0)


async def test_a_hello_in_pieces_leaves_nothing_behind_when_its_sender_is_counted_apart() -> None:
    apart = Unfinished()

    class Known(Scripted):
        def greet(self, hello: Hello) -> HelloReply:
            self.link.count_apart(apart)
            return super().greet(hello)

    async with serving(Known) as served, raw(served.address) as (reader, writer):
        writer.write(HELLO[:9])
        await held(served.listener.unfinished, 9)
        writer.write(HELLO[9:])
        await read_frame(reader)
        assert served.listener.unfinished.held_bytes == 0


async def test_a_frame_that_the_broker_does_not_read_on_is_not_late() -> None:
    class Busy(Scripted):
        def script(self, request: Request) -> None:
            self.link.pause_reading(Pause.WORK_IN_HAND)

    unfinished = Unfinished(deadline_ms=60_000)
    async with serving(Busy, unfinished=unfinished) as served, raw(served.address) as (reader, writer):
        writer.write(HELLO)
        await read_frame(reader)
        ping = struct.pack(">BIII", Command.PING, 9, 1, 1) + b"\x90"
        writer.write(ping + ping[:6])
        await held(unfinished, 6)
        (part,) = unfinished._parts
        assert part.stopped is not None
        session = served.sessions[0]
        session.link.resume_reading(Pause.WORK_IN_HAND)
        assert part.stopped is None
        session.link.pause_reading(Pause.WORK_IN_HAND)
        assert part.stopped is not None
        session.link.resume_reading(Pause.WORK_IN_HAND)
        writer.write(ping[6:])
        await held(unfinished, 0)
