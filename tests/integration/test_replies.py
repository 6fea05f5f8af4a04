"""Replies that do not fit, and batches that do not decode, over every door of a real broker: nothing dies unseen.

The topic of most tests is that of the report: twenty batches of one message of a megabyte and three hundred tiny ones.
A batch's average says that such a message has three kilobytes, so a poll for the large ones leases all of them at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import lanner
from lanner import batch, limits
from lanner.broker.settings import BrokerSettings
from lanner.calls import ANONYMOUS
from lanner.server import Server
from lanner.wire.messages import SettleItem
from tests.callers import Here, Leased
from tests.spoilt import undecodable

BATCHES = 20
LARGE = limits.MIB - 100
TINY = 300
ACK, NACK, REJECT = 1, 2, 4


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(
        BrokerSettings(data=str(tmp_path / "data"), http="127.0.0.1:0", native="127.0.0.1:0", disk_reserve_bytes=0)
    )
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def queue(server: Server) -> AsyncIterator[lanner.Queue]:
    assert server.native_address is not None
    host, port = server.native_address
    async with lanner.connect(f"{host}:{port}", timeout_ms=20_000) as queue:
        yield queue


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    assert server.http_address is not None
    host, port = server.http_address
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as http:
        yield http


async def store(server: Server, topic: str, *batches: bytes, **settings: Any) -> None:
    await Here(server.service).create_topic(ANONYMOUS, topic, {"partitions": 1, "backoff_ms": 0, **settings})
    for data in batches:
        await Here(server.service).publish(ANONYMOUS, topic, 0, data)


async def poll(server: Server, topic: str, group: str = "g", **wanted: Any) -> Leased:
    return await Here(server.service).poll(ANONYMOUS, topic=topic, group=group, member="m", **wanted)


async def settle(server: Server, topic: str, kind: int, polled: Leased, group: str = "g") -> None:
    items = [
        SettleItem(item.partition, item.token, part.first_offset, part.count, kind, 0)
        for item in polled.batches
        for part in item.ranges
    ]
    for result in await Here(server.service).settle(ANONYMOUS, topic, group, items):
        assert result.code == 0


async def standing(server: Server, topic: str, group: str = "g") -> tuple[int, int, int]:
    """How many messages of the group are ready, leased, dead."""
    (state,) = (await Here(server.service).group(ANONYMOUS, topic, group)).partitions
    return state.ready, state.leased, state.dead


async def mixed(server: Server, topic: str = "mixed", kind: int = NACK, **settings: Any) -> None:
    """The topic of the report. Group g has seen everything once: the tiny messages are acked, the large ones wait for
    their second delivery, or are dead when they were rejected."""
    data = batch.encode([b"L" * LARGE, *[b"t"] * TINY])
    await store(server, topic, *[data] * BATCHES, **settings)
    polled = [await poll(server, topic, max_messages=TINY + 1, max_bytes=2 * limits.MIB) for _ in range(BATCHES)]
    tiny, large = [], []
    for found in polled:
        (item,) = found.batches
        tiny.append(SettleItem(0, item.token, item.base_offset + 1, TINY, ACK))
        large.append(SettleItem(0, item.token, item.base_offset, 1, kind, 0, "too much for me"))
    for result in await Here(server.service).settle(ANONYMOUS, topic, "g", [*tiny, *large]):
        assert result.code == 0


# ------------------------------------------------------------------ replies that do not fit


async def test_a_native_worker_gets_large_messages_among_tiny_ones_and_none_dies(
    server: Server, queue: lanner.Queue
) -> None:
    await mixed(server)
    async with queue.consumer("mixed", group="g", max_messages=500, max_bytes=limits.POLL_BYTES_MAX) as consumer:
        seen: list[int] = []
        while len(seen) < BATCHES:
            messages = await consumer.poll(wait_ms=2_000)
            assert messages, await standing(server, "mixed")
            seen += [message.offset for message in messages]
            assert {message.attempt for message in messages} == {2}
            assert sum(len(message.value) for message in messages) <= limits.POLL_BYTES_MAX
            await messages.ack()
    assert sorted(seen) == [number * (TINY + 1) for number in range(BATCHES)]
    assert await standing(server, "mixed") == (0, 0, 0)


async def test_what_a_reply_has_no_room_for_is_free_for_others_at_once(server: Server) -> None:
    await mixed(server)
    first = await poll(server, "mixed", max_bytes=2 * limits.MIB)
    second = await poll(server, "mixed", max_bytes=2 * limits.MIB)
    both = [part for found in (first, second) for item in found.batches for part in item.ranges]
    assert len({part.first_offset for part in both}) == len(both)
    assert {part.attempt for part in both} == {2}, "what did not fit was not counted as delivered"
    for found in (first, second):
        assert 1 <= sum(part.count for item in found.batches for part in item.ranges) <= 4
    ready, leased, dead = await standing(server, "mixed")
    assert (ready + leased, leased, dead) == (BATCHES, len(both), 0)


@pytest.mark.parametrize("max_bytes", [1, 1_000, limits.MIB])
async def test_a_lone_message_always_fits(server: Server, max_bytes: int) -> None:
    await mixed(server)
    found = await poll(server, "mixed", max_bytes=max_bytes, max_messages=10)
    ((part,),) = [item.ranges for item in found.batches][:1]
    assert part.count == 1
    (value,) = batch.decode(found.batches[0].data).values()
    assert len(value) == LARGE


async def test_a_rest_poll_is_cut_to_what_it_may_hold_and_none_dies(server: Server, http: httpx.AsyncClient) -> None:
    await mixed(server)
    seen: list[int] = []
    while len(seen) < BATCHES:
        reply = await http.post("/v1/topics/mixed/groups/g/poll", json={"max_messages": 500, "wait_ms": 1_000})
        assert reply.status_code == 200, reply.text
        messages = reply.json()["messages"]
        assert messages and {message["attempt"] for message in messages} == {2}
        assert sum(len(message["value"]) for message in messages) <= 2 * limits.MIB
        seen += [message["offset"] for message in messages]
        acked = await http.post("/v1/topics/mixed/groups/g/ack", json={"messages": _targets(messages)})
        assert acked.json()["failed"] == 0
    assert await standing(server, "mixed") == (0, 0, 0)


def _targets(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: message[name] for name in ("partition", "offset", "token")} for message in messages]


async def test_consume_takes_only_what_its_reply_holds(server: Server, http: httpx.AsyncClient) -> None:
    await mixed(server)
    seen: list[int] = []
    while len(seen) < BATCHES:
        reply = await http.get("/topic/mixed/consume", params={"consumerID": "g", "batch": 500})
        assert reply.status_code == 200, reply.text
        messages = reply.json()["messages"]
        assert messages and sum(len(message["v"]) for message in messages) <= limits.POLL_BYTES_MAX
        seen += [message["Offset"] for message in messages]
    assert sorted(seen) == [number * (TINY + 1) for number in range(BATCHES)]
    assert await standing(server, "mixed") == (0, 0, 0)


async def test_a_native_consumer_that_acks_by_itself_loses_nothing_that_did_not_fit(
    server: Server, queue: lanner.Queue
) -> None:
    await mixed(server)
    seen: list[int] = []
    async with queue.consumer("mixed", group="g", max_messages=500, auto_ack=True) as consumer:
        while len(seen) < BATCHES:
            messages = await consumer.poll(wait_ms=2_000)
            assert messages
            seen += [message.offset for message in messages]
    assert sorted(seen) == [number * (TINY + 1) for number in range(BATCHES)]


async def test_a_rest_client_that_goes_while_its_reply_is_on_the_way_keeps_no_leases(server: Server) -> None:
    await store(server, "wide", *[batch.encode([b"L" * LARGE])] * 8)
    assert server.http_address is not None
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.setblocking(False)
        await loop.sock_connect(client, server.http_address)
        body = b'{"max_messages": 8, "max_bytes": 8000000}'
        head = b"POST /v1/topics/wide/groups/g/poll HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
        await loop.sock_sendall(client, head % len(body) + body)
        assert (await loop.sock_recv(client, 12)) == b"HTTP/1.1 200"
        assert (await standing(server, "wide"))[1] > 0
    async with asyncio.timeout(10):
        while await standing(server, "wide") != (8, 0, 0):
            await asyncio.sleep(0.01)
    again = await poll(server, "wide", max_bytes=limits.POLL_BYTES_MAX)
    assert {part.attempt for item in again.batches for part in item.ranges} == {1}


# ------------------------------------------------------------------ batches that do not decode


async def test_consume_hands_out_the_neighbours_of_a_batch_that_does_not_decode(
    server: Server, http: httpx.AsyncClient
) -> None:
    good = batch.encode([b"good"] * 5)
    await store(server, "odd", good, undecodable(2), good)
    reply = await http.get("/topic/odd/consume", params={"consumerID": "g", "batch": 100})
    assert reply.status_code == 200, reply.text
    assert [message["Offset"] for message in reply.json()["messages"]] == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
    await assert_dead_as_malformed(http, 5, 6)


async def assert_dead_as_malformed(http: httpx.AsyncClient, *offsets: int) -> None:
    reply = await http.get("/v1/topics/odd/groups/g/dead")
    assert reply.status_code == 200, reply.text
    assert [(one["offset"], one["reason"]) for one in reply.json()["messages"]] == [(at, "malformed") for at in offsets]


async def test_a_rest_poll_hands_out_the_neighbours_of_a_batch_that_does_not_decode(
    server: Server, http: httpx.AsyncClient
) -> None:
    good = batch.encode([b"good"] * 5)
    await store(server, "odd", good, undecodable(), good)
    reply = await http.post("/v1/topics/odd/groups/g/poll", json={"max_messages": 100})
    assert reply.status_code == 200, reply.text
    messages = reply.json()["messages"]
    assert [message["offset"] for message in messages] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    await assert_dead_as_malformed(http, 5)
    acked = await http.post("/v1/topics/odd/groups/g/ack", json={"messages": _targets(messages)})
    assert acked.json()["failed"] == 0
    assert await standing(server, "odd") == (0, 0, 1)


async def test_a_rest_poll_goes_on_behind_batches_of_which_none_decodes(
    server: Server, http: httpx.AsyncClient
) -> None:
    await store(server, "odd", undecodable(), undecodable(), undecodable(), batch.encode([b"good"]))
    reply = await http.post("/v1/topics/odd/groups/g/poll", json={"max_messages": 1, "wait_ms": 5_000})
    assert [message["offset"] for message in reply.json()["messages"]] == [3]
    await assert_dead_as_malformed(http, 0, 1, 2)


async def test_peek_shows_the_neighbours_of_a_batch_that_does_not_decode(
    server: Server, http: httpx.AsyncClient, queue: lanner.Queue
) -> None:
    await store(server, "odd", batch.encode([b"before"]), undecodable(), batch.encode([b"after"]))
    reply = await http.get("/topic/odd/peek", params={"batch": 10})
    assert reply.status_code == 200, reply.text
    assert [message["v"] for message in reply.json()["messages"]] == ["before", "after"]
    assert [message.value for message in await queue.admin.peek("odd")] == [b"before", b"after"]


async def test_a_stream_over_rest_reports_what_does_not_decode_as_a_hole(
    server: Server, http: httpx.AsyncClient
) -> None:
    await store(server, "odd", batch.encode([b"before"]), undecodable(3), batch.encode([b"after"]))
    reply = await http.get("/v1/topics/odd/partitions/0/messages")
    assert reply.status_code == 200, reply.text
    page = reply.json()
    assert [message["offset"] for message in page["messages"]] == [0, 4]
    assert page["holes"] == [{"first_offset": 1, "next_offset": 4, "reason": "malformed"}]
    assert page["next_offset"] == 5


async def test_a_stream_reader_reports_what_does_not_decode_as_a_hole(server: Server, queue: lanner.Queue) -> None:
    await store(server, "odd", batch.encode([b"before"]), undecodable(3), batch.encode([b"after"]))
    async with queue.reader("odd", until_end=True) as reader:
        assert [message.value async for message in reader] == [b"before", b"after"]
        assert list(reader.holes) == [lanner.Hole(0, 1, 4, "malformed")]


async def test_a_native_worker_rejects_what_does_not_decode_and_goes_on(server: Server, queue: lanner.Queue) -> None:
    good = batch.encode([b"good"] * 5)
    await store(server, "odd", good, undecodable(2), good)
    async with queue.consumer("odd", group="g") as consumer:
        messages = await consumer.poll()
        assert [message.offset for message in messages] == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]
        await messages.ack()
    letters = (await queue.admin.dead_letters("odd", "g")).letters
    assert [(letter.offset, letter.reason, letter.message) for letter in letters] == [
        (5, "malformed", None),
        (6, "malformed", None),
    ]


# ------------------------------------------------------------------ listings


async def test_dead_letters_come_in_pages_over_the_native_door(server: Server, queue: lanner.Queue) -> None:
    await mixed(server, kind=REJECT)
    found = await queue.admin.dead_letters("mixed", "g", limit=1_000)
    assert 1 <= len(found.letters) < BATCHES and found.total == BATCHES
    seen = [letter.offset for letter in found.letters]
    while found.next is not None:
        found = await queue.admin.dead_letters("mixed", "g", limit=1_000, after=found.next)
        assert sum(len(letter.message.value) for letter in found.letters if letter.message) <= limits.POLL_BYTES_MAX
        seen += [letter.offset for letter in found.letters]
    assert seen == [number * (TINY + 1) for number in range(BATCHES)]


async def test_dead_letters_come_in_pages_over_rest(server: Server, http: httpx.AsyncClient) -> None:
    await mixed(server, kind=REJECT)
    seen: list[int] = []
    query: dict[str, Any] = {"limit": 1_000}
    while True:
        reply = await http.get("/v1/topics/mixed/groups/g/dead", params=query)
        assert reply.status_code == 200, reply.text
        page = reply.json()
        assert page["messages"] and page["total"] == BATCHES
        assert sum(len(message["value"]) for message in page["messages"]) <= limits.POLL_BYTES_MAX
        seen += [message["offset"] for message in page["messages"]]
        if "next" not in page:
            break
        query["after"] = page["next"]
    assert seen == [number * (TINY + 1) for number in range(BATCHES)]


# ------------------------------------------------------------------ every read has a bound


async def test_a_look_is_bounded_in_bytes_and_can_be_gone_on_with(
    server: Server, http: httpx.AsyncClient, queue: lanner.Queue
) -> None:
    await store(server, "wide", *[batch.encode([b"L" * LARGE] * 3)] * 6)
    found = await queue.admin.peek("wide", 1_000)
    seen = [message.offset for message in found]
    assert 1 <= len(seen) <= 2, "a look has a megabyte unless told otherwise, and one message always fits"
    while found.next is not None:
        found = await queue.admin.peek("wide", 1_000, after=found.next)
        seen += [message.offset for message in found]
    assert seen == list(range(18))
    page = (await http.get("/topic/wide/peek", params={"batch": 1_000})).json()
    seen = [message["Offset"] for message in page["messages"]]
    assert len(seen) < 18
    while "next" in page:
        page = (await http.get("/topic/wide/peek", params={"batch": 1_000, "after": page["next"]})).json()
        assert sum(len(message["v"]) for message in page["messages"]) <= limits.POLL_BYTES_MAX
        seen += [message["Offset"] for message in page["messages"]]
    assert seen == list(range(18))
