"""A whole broker behind the native door, over real sockets: what clients do, and what bad ones do to it.

After every piece of bad input the same broker publishes and polls once more.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from lanner import batch, limits
from lanner.api.native import NativeDoor
from lanner.broker.settings import BrokerSettings
from lanner.calls import ANONYMOUS
from lanner.errors import (
    ConnectionLost,
    LannerError,
    LeaseLost,
    MalformedBatch,
    MessageTooLarge,
    Overloaded,
    PartitionNotFound,
    ProtocolError,
    ServiceUnavailable,
    TopicNotFound,
    ValidationError,
    catalogue,
)
from lanner.net.connector import ClientLink, open_connection
from lanner.server import Server
from lanner.wire import administration, members, messages
from lanner.wire.messages import Command, Empty, Fetch, Metadata, Poll, Publish, SettleItem, SettleKind
from tests.callers import Here
from tests.native_sessions import Unread, all_ended

HELLO = b"\x01\x00\x00\x00\x0b\x00\x00\x00\x01\x00\x00\x00\x03\x91\x91\x01"


class Broker:
    """A running broker with one topic of one partition, and a client of it."""

    def __init__(self, server: Server, link: ClientLink) -> None:
        self.server = server
        self.link = link
        self.sequence = 0
        self.stopped = False

    @property
    def address(self) -> tuple[str, int]:
        assert self.server.native_address is not None
        return self.server.native_address

    async def publish(self, *values: bytes, priority: int = 4) -> int:
        data = batch.encode(values, priority=priority)
        return int((await self.link.request(Command.PUBLISH, Publish("orders", 0), [data])).control.base_offset)

    async def poll(self, **more: Any) -> tuple[messages.Polled, list[bytes]]:
        """One poll of the group "workers", and the values leased by it."""
        self.sequence += 1
        reply = await self.link.poll(Poll("workers", "orders", "me", self.sequence, **more)).polled
        values: list[bytes] = []
        position = 0
        for item in reply.control.batches:
            decoded = batch.decode(bytes(reply.bulk[position : position + item.size]))
            position += item.size
            places = decoded.positions if decoded.positions is not None else range(decoded.count)
            leased = {first + n for first, count, _ in map(_plain, item.ranges) for n in range(count)}
            values += [
                value
                for place, value in zip(places, decoded.values(), strict=True)
                if item.base_offset + place in leased
            ]
        assert position == len(reply.bulk)
        return reply.control, values

    async def ack(self, polled: messages.Polled) -> None:
        items = [
            SettleItem(item.partition, item.token, part.first_offset, part.count, SettleKind.ACK)
            for item in polled.batches
            for part in item.ranges
        ]
        reply = await self.link.request(Command.SETTLE, messages.Settle("workers", "orders", items))
        assert all(item.code == 0 for item in reply.control.items)

    async def still_serves(self) -> None:
        """A new client publishes, polls and acks."""
        link, self.link = self.link, await open_connection(*self.address)
        try:
            await self.publish(b"after")
            values: list[bytes] = []
            while b"after" not in values:
                polled, values = await self.poll(wait_ms=2_000, max_messages=1_000)
                assert values
                await self.ack(polled)
            await self.link.close()
        finally:
            self.link = link


def native_door(server: Server) -> NativeDoor:
    assert server._doors is not None
    (door,) = [door for door in server._doors._opened if isinstance(door, NativeDoor)]
    return door


def _plain(part: messages.LeasedRange) -> tuple[int, int, int]:
    return part.first_offset, part.count, part.attempt


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    server = Server(BrokerSettings(data=str(tmp_path / "data"), http="", native="127.0.0.1:0", disk_reserve_bytes=0))
    await server.start()
    assert server.native_address is not None
    link = await open_connection(*server.native_address, client="test")
    await link.request(Command.CREATE_TOPIC, administration.CreateTopic("orders", {"partitions": 1}))
    running = Broker(server, link)
    try:
        yield running
    finally:
        for opened in {link, running.link}:
            await opened.close()
        if not running.stopped:
            await server.stop()


@asynccontextmanager
async def raw(broker: Broker) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*broker.address)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def greeted(broker: Broker) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with raw(broker) as (reader, writer):
        writer.write(HELLO)
        assert (await read_frame(reader))[0] == 0x81
        yield reader, writer


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    head = await asyncio.wait_for(reader.readexactly(13), 5)
    command, length, correlation, control_length = struct.unpack(">BIII", head)
    return command, correlation, (await reader.readexactly(length - 8))[:control_length]


async def read_error(reader: asyncio.StreamReader, correlation: int = 0) -> LannerError:
    command, got, control = await read_frame(reader)
    assert (command, got) == (0xFF, correlation)
    reply = msgspec.msgpack.decode(control, type=messages.ErrorReply)
    return catalogue()[reply.code](reply.message, **reply.details)


def frame(command: int, control: Any, bulk: bytes = b"", correlation: int = 5) -> bytes:
    encoded = control if isinstance(control, bytes) else msgspec.msgpack.encode(control)
    return struct.pack(">BIII", command, 8 + len(encoded) + len(bulk), correlation, len(encoded)) + encoded + bulk


# ---------------------------------------------------------------------- what clients do


async def test_high_comes_before_low_whatever_the_order_of_publishing(broker: Broker) -> None:
    for value, priority in ((b"low", 0), (b"normal", 4), (b"high", 9)):
        await broker.publish(value, priority=priority)
    polled, values = await broker.poll()
    assert values == [b"high", b"normal", b"low"]
    assert [item.priority for item in polled.batches] == [9, 4, 0]
    await broker.ack(polled)
    assert (await broker.poll())[1] == []


async def test_a_repeated_poll_returns_the_same_leases(broker: Broker) -> None:
    await broker.publish(b"a", b"b")
    first, values = await broker.poll()
    broker.sequence -= 1
    again, values_again = await broker.poll()
    assert values == values_again == [b"a", b"b"]
    assert [item.token for item in again.batches] == [item.token for item in first.batches]


async def test_leases_that_were_asked_for_again_stay_when_the_first_answer_is_lost(broker: Broker) -> None:
    await broker.publish(b"a", b"b")
    door = native_door(broker.server)
    unread = Unread(door)
    lost = broker.link
    lost.poll(Poll("workers", "orders", "me", 1))
    await unread.reply()
    broker.link = await open_connection(*broker.address)
    polled, values = await broker.poll()  # the same poll again
    assert values == [b"a", b"b"]
    lost.abort(ConnectionLost("test"))
    await all_ended(door, connections=1)
    await broker.ack(polled)


async def test_a_poll_waits_for_what_is_published_later(broker: Broker) -> None:
    waiting = asyncio.create_task(broker.poll(wait_ms=5_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    link, broker.link = broker.link, await open_connection(*broker.address)
    await broker.publish(b"late")
    await broker.link.close()
    broker.link = link
    assert (await asyncio.wait_for(waiting, 2))[1] == [b"late"]


async def test_settles_ride_on_the_next_poll_and_are_answered_before_its_wait(broker: Broker) -> None:
    await broker.publish(b"only")
    polled, _ = await broker.poll()
    [item] = polled.batches
    settles = [SettleItem(0, item.token, 0, 1, SettleKind.ACK), SettleItem(0, item.token, 7, 1, SettleKind.ACK)]
    poll = broker.link.poll(Poll("workers", "orders", "me", 9, wait_ms=1_500, settles=settles))
    assert poll.settled is not None
    settled = (await asyncio.wait_for(poll.settled, 1.2)).control
    assert settled.items[0] == messages.SettledItem(0, 1)
    assert settled.items[1].code == LeaseLost.code
    assert not poll.polled.done()
    assert (await poll.polled).control.batches == []


async def test_a_settle_with_a_stale_token_is_refused(broker: Broker) -> None:
    await broker.publish(b"once")
    first, _ = await broker.poll(lease_ms=20)
    second, values = await broker.poll(wait_ms=3_000)
    while not values:
        second, values = await broker.poll(wait_ms=3_000)
    assert second.batches[0].token > first.batches[0].token
    stale = SettleItem(0, first.batches[0].token, 0, 1, SettleKind.ACK)
    reply = await broker.link.request(Command.SETTLE, messages.Settle("workers", "orders", [stale]))
    assert reply.control.items == [messages.SettledItem(LeaseLost.code, 0)]
    await broker.ack(second)


async def test_leases_of_a_client_that_vanished_while_polling_are_not_held_until_they_expire(broker: Broker) -> None:
    link = await open_connection(*broker.address)
    link.poll(Poll("workers", "orders", "vanishing", 1, wait_ms=60_000))
    await asyncio.sleep(0.05)
    link.abort(ConnectionLost("test"))
    await broker.publish(b"not lost")
    _, values = await broker.poll(wait_ms=2_000)
    assert values == [b"not lost"]


@pytest.mark.parametrize("reading", [False, True], ids=["while it is decided", "while its bytes are read"])
async def test_leases_of_a_poll_that_is_given_up_come_back_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, reading: bool
) -> None:
    """What the door does when a connection ends: it cancels the polls that wait for it."""
    await broker.ack((await broker.poll())[0])  # the group exists now
    await broker.publish(b"a", b"b")
    began = asyncio.Event()

    async def read(*_leased: Any) -> list[Any]:
        began.set()
        await asyncio.sleep(60)
        return []

    service = broker.server.service
    with monkeypatch.context() as patched:
        if reading:
            patched.setattr(service._leases, "read", read)
        poll = Here(service).poll(ANONYMOUS, topic="orders", group="workers", member="gone", sequence=1)
        giving_up = asyncio.create_task(poll)
        await (began.wait() if reading else asyncio.sleep(0))
        giving_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await giving_up
    polled, values = await broker.poll(wait_ms=5_000)
    assert values == [b"a", b"b"]
    assert [part.attempt for item in polled.batches for part in item.ranges] == [1]


async def test_a_fetch_returns_the_bytes_that_were_published(broker: Broker) -> None:
    data = batch.encode([b"one", b"two"], keys=[b"k", None], priority=7)
    await broker.link.request(Command.PUBLISH, Publish("orders", 0), [data])
    await broker.publish(b"three")
    reply = await broker.link.request(Command.FETCH, Fetch("orders", 0, 1))
    first, second = reply.control.batches
    assert (first.base_offset, first.count, second.base_offset) == (0, 2, 2)
    assert bytes(reply.bulk[: first.size]) == data
    assert reply.control.next_offset == reply.control.end_offset == 3


async def test_peek_offsets_commit_and_groups_over_the_wire(broker: Broker) -> None:
    await broker.publish(b"low", priority=0)
    await broker.publish(b"high", priority=9)
    peeked = (await broker.link.request(Command.PEEK, messages.Peek("orders", max_messages=5))).control
    assert [message.value for message in peeked.messages] == [b"high", b"low"]
    offsets = (await broker.link.request(Command.OFFSETS, messages.Offsets("orders"))).control
    assert offsets.partitions == [messages.PartitionOffsets(0, 0, 2)]
    await broker.link.request(Command.COMMIT, messages.Commit("readers", "orders", {0: 1}))
    committed = await broker.link.request(Command.COMMITTED, messages.Committed("readers", "orders"))
    assert committed.control.offsets == {0: 1}
    await broker.poll()
    groups = (await broker.link.request(Command.LIST_GROUPS, administration.ListGroups("orders"))).control.groups
    assert groups == ["readers", "workers"]
    described = (
        await broker.link.request(Command.DESCRIBE_GROUP, administration.DescribeGroup("orders", "workers"))
    ).control
    assert (described.kind, described.partitions[0].leased) == ("queue", 2)


async def test_what_a_commit_brings_along_the_next_owner_gets_with_its_claim(broker: Broker) -> None:
    await broker.publish(b"a")
    for member_id, found, metadata in (("first", b"", b"\0 here"), ("second", b"\0 here", b"")):
        join = members.JoinGroup("readers", "stream", member_id, ["orders"])
        view = (await broker.link.request(Command.JOIN_GROUP, join)).control
        while not view.held:
            beat = members.Heartbeat("readers", member_id, view.number, view.generation, wait_ms=5_000)
            view = (await broker.link.request(Command.HEARTBEAT, beat)).control
        seen = (member_id, view.number, view.generation)
        claim = members.ClaimPartitions("orders", "readers", *seen, view.held[0].incarnation, [0])
        [claimed] = (await broker.link.request(Command.CLAIM_PARTITIONS, claim)).control.partitions
        assert (claimed.code, claimed.metadata) == (0, found)
        commit = messages.Commit("readers", "orders", {0: 1}, member_id, 0, None, *seen, metadata={0: metadata})
        await broker.link.request(Command.COMMIT, commit)
        committed = await broker.link.request(Command.COMMITTED, messages.Committed("readers", "orders"))
        assert committed.control.metadata == ({0: metadata} if metadata else {})
        await broker.link.request(Command.LEAVE_GROUP, members.LeaveGroup("readers", member_id))


async def test_a_rejected_message_is_listed_redriven_and_delivered_again(broker: Broker) -> None:
    await broker.publish(b"poison")
    polled, _ = await broker.poll()
    reject = SettleItem(0, polled.batches[0].token, 0, 1, SettleKind.REJECT, reason="cannot parse")
    await broker.link.request(Command.SETTLE, messages.Settle("workers", "orders", [reject]))
    listed = await broker.link.request(Command.LIST_DEAD, administration.ListDead("orders", "workers"))
    [letter] = listed.control.letters
    assert (letter.offset, letter.reason, listed.control.total) == (0, "cannot parse", 1)
    assert batch.decode(bytes(listed.bulk)).values() == [b"poison"]
    redriven = await broker.link.request(Command.REDRIVE, administration.RedriveDead("orders", "workers"))
    assert redriven.control.count == 1
    assert (await broker.poll(wait_ms=1_000))[1] == [b"poison"]


async def test_a_poll_of_an_unknown_topic_does_not_create_it_and_metadata_does_when_asked(broker: Broker) -> None:
    with pytest.raises(TopicNotFound):
        await broker.link.poll(Poll("g", "unheard", "m", 1)).polled
    with pytest.raises(TopicNotFound):
        await broker.link.request(Command.FETCH, Fetch("unheard", 0, 0))
    seen = (await broker.link.request(Command.METADATA, Metadata(["unheard"]))).control
    assert seen.topics[0].error == TopicNotFound.code
    made = (await broker.link.request(Command.METADATA, Metadata(["unheard"], create=True))).control
    assert made.topics[0].error == 0
    assert made.topics[0].partitions


async def test_stopping_answers_what_is_in_flight(broker: Broker) -> None:
    waiting = broker.link.poll(Poll("workers", "orders", "me", 1, wait_ms=60_000)).polled
    publishes = [broker.link.request(Command.PUBLISH, Publish("orders", 0), [batch.encode([b"x"])]) for _ in range(20)]
    await asyncio.gather(*publishes)
    await waiting
    idle = broker.link.poll(Poll("others", "orders", "me", 1, start="latest", wait_ms=60_000)).polled
    await asyncio.sleep(0.05)
    broker.stopped = True
    await asyncio.wait_for(broker.server.stop(), 10)
    assert (await idle).control.batches == []
    with pytest.raises((ServiceUnavailable, ConnectionLost)):
        await broker.link.request(Command.PING, Empty())


# ---------------------------------------------------------------------- bad input that leaves the framing intact


GOOD = batch.encode([b"value"])


def damaged(position: int) -> bytes:
    data = bytearray(GOOD)
    data[position] ^= 0xFF
    return bytes(data)


@pytest.mark.parametrize(
    ("command", "control", "bulk", "kind", "says"),
    [
        (0x77, [], b"", ProtocolError, "command 0x77 is not known"),
        (Command.PUBLISH, ["orders", "zero"], GOOD, ProtocolError, "PUBLISH: partition"),
        (Command.PUBLISH, ["orders"], GOOD, ProtocolError, "PUBLISH: partition is not valid: it is missing"),
        (Command.PUBLISH, "orders", GOOD, ProtocolError, "PUBLISH: control"),
        (Command.PUBLISH, ["orders", -1], GOOD, ProtocolError, "PUBLISH: partition"),
        (Command.PUBLISH, ["orders", 1], GOOD, PartitionNotFound, "1"),
        (Command.PUBLISH, ["", 0], GOOD, ValidationError, "topic ''"),
        (Command.PUBLISH, ["..", 0], GOOD, ValidationError, "topic '..'"),
        (Command.PUBLISH, ["a/b", 0], GOOD, ValidationError, "topic 'a/b'"),
        (Command.PUBLISH, ["x" * 201, 0], GOOD, ProtocolError, "topic"),
        (Command.PUBLISH, ["orders", 0], b"", MalformedBatch, ""),
        (Command.PUBLISH, ["orders", 0], b"not a batch", MalformedBatch, ""),
        (Command.PUBLISH, ["orders", 0], damaged(0), MalformedBatch, ""),
        (Command.PUBLISH, ["orders", 0], damaged(-1), MalformedBatch, ""),
        (Command.PUBLISH, ["orders", 0], GOOD[:-1], MalformedBatch, ""),
        (Command.PUBLISH, ["orders", 0], bytes(limits.BATCH_BYTES_MAX + 1), ValidationError, ""),
        (Command.PING, [], b"bulk", ProtocolError, "PING: bulk"),
        (Command.HELLO, [[1]], b"", ProtocolError, "HELLO comes once"),
        (Command.FETCH, ["orders", 0, -1], b"", ProtocolError, "FETCH: offset"),
        (Command.FETCH, ["orders", 0, 2**64 - 1], b"", ProtocolError, "FETCH: offset"),
        (Command.FETCH, ["orders", 0, 0, 2**40], b"", ValidationError, "max_bytes"),
        (Command.POLL, ["", "orders", "m", 1], b"", ValidationError, "group"),
        (Command.POLL, ["g", "orders", "m", 1, None, 0], b"", ValidationError, "max_messages"),
        (Command.POLL, ["g", "orders", "m", 1, None, 10**6], b"", ValidationError, "max_messages"),
        (Command.POLL, ["g", "orders", "m", 1, [5]], b"", PartitionNotFound, "5"),
        (Command.POLL, ["g", "orders", "m", 1, None, 1, 1, 0, -1, False, "middle"], b"", ValidationError, "start"),
        (Command.POLL, ["g", "orders", "m", 1, None, 1, 1, 10**9], b"", ValidationError, "wait_ms"),
        (Command.SETTLE, ["g", "orders", [[0, 1, 0, 1, 99]]], b"", ValidationError, "kind"),
        (Command.SETTLE, ["g", "orders", [[0, 1, 0, 1, 1]] * 10_001], b"", ProtocolError, "SETTLE: items"),
        (Command.SETTLE, ["g", "orders", [[9, 1, 0, 1, 1]]], b"", PartitionNotFound, "9"),
        (Command.COMMIT, ["g", "orders", {"0": 1}], b"", ProtocolError, "COMMIT: offsets"),
        (Command.COMMIT, ["g", "orders", {0: -1}], b"", ProtocolError, "COMMIT: offsets"),
        (Command.CREATE_TOPIC, ["t", {"partitions": 10_000}], b"", ValidationError, "partitions"),
        (Command.CREATE_TOPIC, ["t", {"partitions": 0}], b"", ValidationError, "partitions"),
        (Command.CREATE_TOPIC, ["t", {"partitions": "three"}], b"", ValidationError, "partitions"),
        (Command.CREATE_TOPIC, ["t", {"colour": "red"}], b"", ValidationError, "colour"),
        (Command.CREATE_TOPIC, [".."], b"", ValidationError, "'..'"),
        (Command.SEEK, ["orders", "g"], b"", ValidationError, "exactly one"),
        (Command.SEEK, ["orders", "g", None, None, "middle"], b"", ValidationError, "middle"),
        (Command.LIST_DEAD, ["orders", "g", None, 0, 10**9], b"", ValidationError, "limit"),
    ],
)
async def test_bad_input_gets_an_error_that_names_it_and_the_connection_goes_on(
    broker: Broker, command: int, control: Any, bulk: bytes, kind: type[LannerError], says: str
) -> None:
    async with greeted(broker) as (reader, writer):
        writer.write(frame(command, control, bulk))
        error = await read_error(reader, correlation=5)
        assert isinstance(error, kind)
        assert says in error.message
        writer.write(frame(Command.PING, [], correlation=6))
        assert (await read_frame(reader))[:2] == (0x82, 6)
    await broker.still_serves()


async def test_an_unknown_priority_in_a_batch_is_refused(broker: Broker) -> None:
    data = bytearray(GOOD)
    data[18] = 10  # the priority, where docs/protocol.md says it is
    data[4:8] = crc32c(data[8:]).to_bytes(4, "little")
    with pytest.raises(MalformedBatch, match="priority: 10"):
        await broker.link.request(Command.PUBLISH, Publish("orders", 0), [bytes(data)])
    await broker.still_serves()


async def test_a_message_larger_than_the_topic_allows_is_refused(broker: Broker) -> None:
    await broker.link.request(Command.ALTER_TOPIC, administration.AlterTopic("orders", {"message_bytes_max": 1_000}))
    with pytest.raises(MessageTooLarge):
        await broker.publish(b"x" * 10_000)
    await broker.still_serves()


# ---------------------------------------------------------------------- bad input that breaks the framing


async def test_garbage_before_hello_is_told_what_was_expected(broker: Broker) -> None:
    for garbage in (b"SSH-2.0-client\r\n\r\n", b"\x16\x03\x01\x02\x00", os.urandom(10_000).replace(b"\x01", b"\x02")):
        async with raw(broker) as (reader, writer):
            writer.write(garbage)
            error = await read_error(reader)
            assert isinstance(error, ProtocolError)
            assert "expected HELLO" in error.message
            assert await reader.read() == b""
    await broker.still_serves()


async def test_a_length_of_4_gb_after_hello_ends_only_that_connection(broker: Broker) -> None:
    async with greeted(broker) as (reader, writer):
        writer.write(b"\x10\xff\xff\xff\xff")
        error = await read_error(reader)
        assert "announces 4294967295 bytes" in error.message
        assert await reader.read() == b""
    await broker.still_serves()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see the memory of this process")
async def test_three_headers_of_5_bytes_that_claim_4_gib_take_no_memory(broker: Broker) -> None:
    gc.collect()
    before = resident_bytes()
    for _ in range(3):
        async with raw(broker) as (reader, writer):
            writer.write(b"\x01\xff\xff\xff\xff")
            await read_error(reader)
        async with greeted(broker) as (reader, writer):
            writer.write(b"\x10\xff\xff\xff\xff")
            await read_error(reader)
    assert resident_bytes() - before < 20 * limits.MIB
    await broker.still_serves()


async def test_truncated_frames_publish_nothing(broker: Broker) -> None:
    whole = frame(Command.PUBLISH, ["orders", 0], GOOD)
    for cut in (1, 4, 5, 9, 13, 20, len(whole) - 1):
        async with greeted(broker) as (_, writer):
            writer.write(whole[:cut])
            await writer.drain()
    await broker.still_serves()
    offsets = (await broker.link.request(Command.OFFSETS, messages.Offsets("orders"))).control
    assert offsets.partitions[0].end_offset == 1  # only what still_serves published


async def test_a_frame_that_arrives_byte_by_byte_is_a_frame(broker: Broker) -> None:
    async with greeted(broker) as (reader, writer):
        for byte in frame(Command.PUBLISH, ["orders", 0], GOOD):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await read_frame(reader))[:2] == (0x90, 5)


async def test_what_came_before_a_broken_frame_takes_effect(broker: Broker) -> None:
    async with greeted(broker) as (reader, writer):
        writer.write(frame(Command.PUBLISH, ["orders", 0], GOOD) + b"\x10\x00\x00\x00\x01x")
        assert "alone take 8" in (await read_error(reader)).message
        assert await reader.read() == b""
    assert (await broker.poll(wait_ms=2_000))[1] == [b"value"]
    await broker.still_serves()


async def test_a_client_that_never_reads_its_replies_is_let_go_and_its_leases_come_back(
    broker: Broker,
) -> None:
    door = native_door(broker.server)
    door._listener.unsent_bytes_max = 8 * limits.MIB
    for _ in range(4):
        await broker.publish(b"x" * limits.MIB)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(broker.address)
    sock.sendall(HELLO)
    await asyncio.sleep(0.05)
    sock.sendall(frame(Command.POLL, ["workers", "orders", "deaf", 1, None, 1, 2 * limits.MIB], correlation=3))
    await asyncio.sleep(0.1)
    sock.sendall(b"".join(frame(Command.FETCH, ["orders", 0, 0, 4 * limits.MIB], correlation=4) for _ in range(40)))
    for _ in range(200):
        await asyncio.sleep(0.02)
        if door.connections == 1:
            break
    assert door.connections == 1, "the deaf client is still connected"
    sock.close()
    await broker.still_serves()


async def test_a_client_that_dribbles_its_hello_is_let_go(broker: Broker) -> None:
    door = native_door(broker.server)
    door._listener.hello_deadline_ms = 80
    async with raw(broker) as (reader, writer):
        for byte in HELLO[:4]:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)
        assert "no HELLO came within 80 ms" in (await read_error(reader)).message
    door._listener.hello_deadline_ms = limits.HELLO_DEADLINE_MS
    await broker.still_serves()


# ---------------------------------------------------------------------- what all connections may have in hand together


def crowded(sequence: int, count: int) -> Poll:
    """A poll that waits, with so many settles on it."""
    settles = [SettleItem(0, 1, number, 1, SettleKind.ACK, reason="r" * 90) for number in range(count)]
    return Poll("workers", "orders", "me", sequence, wait_ms=60_000, settles=settles)


async def test_large_control_parts_of_all_connections_have_one_budget_and_small_ones_go_on(tmp_path: Path) -> None:
    settings = BrokerSettings(
        data=str(tmp_path / "data"),
        http="",
        native="127.0.0.1:0",
        disk_reserve_bytes=0,
        control_bytes_max=4 * limits.MIB,
        connections_max=4,
        unfinished_bytes_max=64 * limits.MIB,
        frame_deadline_ms=7_000,
    )
    server = Server(settings)
    await server.start()
    assert server.native_address is not None
    door = native_door(server)
    links = [await open_connection(*server.native_address) for _ in range(4)]
    try:
        await links[0].request(Command.CREATE_TOPIC, administration.CreateTopic("orders", {"partitions": 1}))
        with pytest.raises(Overloaded, match="which is all it may have"):
            await open_connection(*server.native_address)
        for budget in (door._listener.unfinished, door.between_brokers):
            assert (budget.bytes_max, budget.deadline_seconds) == (64 * limits.MIB, 7)
        waiting = []
        for sequence, link in enumerate(links[:2]):  # each about 0.9 MiB: together nearly half of the budget
            poll = link.poll(crowded(sequence, 8_500))
            assert poll.settled is not None
            await poll.settled
            waiting.append(poll.polled)
        assert 1 << 20 < door.controls.held_bytes <= 2 << 20
        with pytest.raises(Overloaded, match="control_bytes_max") as caught:
            await links[2].poll(crowded(7, 8_500)).polled
        assert caught.value.retry_after_ms
        settle = messages.Settle("workers", "orders", crowded(8, 8_500).settles)
        await links[2].request(Command.SETTLE, settle)  # an ack is never refused for want of room
        broker = Broker(server, links[3])
        await broker.publish(b"goes on")
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await broker.publish(b"for the other")
        await asyncio.gather(*waiting)
        assert door.controls.held_bytes == 0
    finally:
        for link in links:
            await link.close()
        await server.stop()


async def test_a_connection_that_goes_gives_back_what_its_requests_held(broker: Broker) -> None:
    door = native_door(broker.server)
    link = await open_connection(*broker.address)
    poll = link.poll(crowded(1, 100))
    assert poll.settled is not None
    await poll.settled
    held = door.controls.held_bytes
    await link.close()
    with pytest.raises(LannerError):
        await poll.polled
    async with asyncio.timeout(5):
        while door.controls.held_bytes:
            await asyncio.sleep(0)
    assert held > 5_000
