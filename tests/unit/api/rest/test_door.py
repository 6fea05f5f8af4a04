from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from lanner import limits
from lanner.api.rest.door import HEAD_BYTES_MAX, BoundedProtocol, RestDoor
from lanner.net.seats import Seats
from lanner.net.unfinished import Unfinished

PUBLISH = b"POST /topic/orders/publish HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture
async def address(service) -> AsyncIterator[tuple[str, int]]:
    door = RestDoor(service)
    yield await door.start("127.0.0.1", 0)
    await door.stop(drain_ms=1_000)


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], dict[str, object]]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).decode()
    first, *lines = head.strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    body = await asyncio.wait_for(reader.readexactly(int(headers["content-length"])), 5)
    return int(first.split()[1]), headers, json.loads(body)


async def test_a_connection_serves_one_request_after_the_other(address):
    reader, writer = await asyncio.open_connection(*address)
    body = b'{"message": "hi"}'
    for offset in range(3):
        writer.write(PUBLISH + b"content-length: %d\r\n\r\n" % len(body) + body)
        status, headers, reply = await answer(reader)
        assert (status, reply["offset"]) == (200, offset)
        assert "server" not in headers
    writer.close()


async def test_a_head_request_is_answered_without_a_body(address):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2 + b"GET /healthz HTTP/1.1\r\n\r\n")
    for _ in range(2):
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 200 OK")
    assert (await answer(reader))[2] == {"status": "ok"}
    writer.close()


async def test_a_client_that_asks_whether_to_go_on_is_told(address):
    reader, writer = await asyncio.open_connection(*address)
    body = b'{"message": "hi"}'
    writer.write(PUBLISH + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body))
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 100 ")
    writer.write(body)
    assert (await answer(reader))[0] == 200
    writer.close()


async def test_pipelined_requests_are_answered_in_order(address):
    reader, writer = await asyncio.open_connection(*address)
    body = b'{"message": "hi"}'
    writer.write((PUBLISH + b"content-length: %d\r\n\r\n" % len(body) + body) * 10)
    assert [(await answer(reader))[2]["offset"] for _ in range(10)] == list(range(10))
    writer.close()


async def test_garbage_is_answered_in_json_and_closed(address):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"\x00\x01\x02garbage\r\n\r\n")
    status, _, reply = await answer(reader)
    assert (status, reply["type"]) == (400, "ValidationError")
    assert await reader.read() == b""
    writer.close()


async def test_what_follows_a_request_and_is_no_http_does_not_take_its_answer_away(address):
    reader, writer = await asyncio.open_connection(*address)
    body = '{"message": "größe"}'  # as a client sends it that counts characters, not bytes
    writer.write(PUBLISH + b"content-length: %d\r\n\r\n" % len(body) + body.encode())
    status, headers, reply = await answer(reader)
    assert (status, headers["connection"]) == (400, "close")
    assert str(reply["message"]).startswith("the body is not valid JSON: Input data was truncated")
    assert await reader.read() == b""
    writer.close()


OFFER = b"connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAEAAEAA\r\nupgrade: h2c\r\n"


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_a_client_that_offers_another_protocol_is_served_as_one_that_does_not(address, service, size):
    reader, writer = await asyncio.open_connection(*address)
    body = b'{"message": "hi"}'
    request = PUBLISH + OFFER + b"content-length: %d\r\n\r\n" % len(body) + body
    sent = request * 2 + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + OFFER + b"\r\n" + request
    for place in range(0, len(sent), size):
        writer.write(sent[place : place + size])
        await writer.drain()
        await asyncio.sleep(0)
    replies = [await answer(reader) for _ in range(4)]
    assert [status for status, _, _ in replies] == [200] * 4
    assert [one.value for one in service.published] == [b"hi"] * 3
    writer.close()


async def test_a_client_that_takes_this_for_a_proxy_is_refused(address):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"CONNECT localhost:443 HTTP/1.1\r\nhost: localhost:443\r\n\r\n")
    assert (await answer(reader))[0] == 400
    assert await reader.read() == b""
    writer.close()


async def test_an_endless_head_is_cut(address):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /topics HTTP/1.1\r\n")
    writer.write(b"x-filler: " + b"x" * (HEAD_BYTES_MAX + 1))
    status, _, reply = await answer(reader)
    assert status == 400
    assert "head" in reply["message"]
    writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET /topics HT"])
async def test_a_head_that_does_not_arrive_is_not_waited_for(address, monkeypatch, sent):
    monkeypatch.setattr(BoundedProtocol, "head_deadline_seconds", 0.05)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    status, _, reply = await answer(reader)
    assert (status, reply["type"]) == (408, "RequestTimeout")
    writer.close()


async def test_a_second_head_that_does_not_arrive_is_not_waited_for_either(address, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "head_deadline_seconds", 0.05)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /topics HTTP/1.1\r\nhost: localhost\r\n\r\nGET /to")
    assert (await answer(reader))[0] == 200
    assert (await answer(reader))[0] == 408
    writer.close()


async def test_a_body_that_does_not_arrive_is_not_waited_for(service):
    door = RestDoor(service, body_deadline_ms=50)
    reader, writer = await asyncio.open_connection(*await door.start("127.0.0.1", 0))
    writer.write(PUBLISH + b"content-length: 100\r\n\r\nhalf")
    status, headers, reply = await answer(reader)
    assert (status, reply["type"]) == (408, "RequestTimeout")
    assert reply["message"] == "the body did not arrive within 50 ms"
    assert headers["connection"] == "close"
    writer.close()
    await door.stop(drain_ms=1_000)


async def held(unfinished: Unfinished, size: int) -> None:
    async with asyncio.timeout(5):
        while unfinished.held_bytes != size:
            await asyncio.sleep(0.001)


async def test_bodies_that_are_not_whole_share_one_budget_and_the_slowest_goes_first(service):
    unfinished = Unfinished(bytes_max=2_000)
    door = RestDoor(service, unfinished=unfinished)
    address = await door.start("127.0.0.1", 0)
    slow, slow_writer = await asyncio.open_connection(*address)
    slow_writer.write(PUBLISH + b"content-length: 5000\r\n\r\n" + b" " * 1_500)
    await held(unfinished, 1_500)
    body = b'{"message": "hi"}'
    fast, fast_writer = await asyncio.open_connection(*address)
    fast_writer.write(PUBLISH + b"content-length: %d\r\n\r\n" % (1_500 + len(body)) + b" " * 1_500)
    status, headers, reply = await answer(slow)
    assert (status, reply["type"], headers["connection"]) == (408, "RequestTimeout", "close")
    assert "were the slowest" in reply["message"]
    fast_writer.write(body)
    assert (await answer(fast))[0] == 200
    await held(unfinished, 0)
    slow_writer.close()
    fast_writer.close()
    await door.stop(drain_ms=1_000)


async def test_large_heads_that_are_not_whole_count_as_well(service):
    unfinished = Unfinished(bytes_max=20_000)
    door = RestDoor(service, unfinished=unfinished)
    address = await door.start("127.0.0.1", 0)
    head = b"GET /topics HTTP/1.1\r\nhost: localhost\r\n"
    slow, slow_writer = await asyncio.open_connection(*address)
    slow_writer.write(head + b"x-filler: " + b"x" * 15_000)
    await held(unfinished, len(head) + 15_010)
    fast, fast_writer = await asyncio.open_connection(*address)
    fast_writer.write(head + b"x-filler: " + b"x" * 15_000)
    assert (await answer(slow))[0] == 408
    fast_writer.write(b"\r\n\r\n")
    assert (await answer(fast))[0] == 200
    await held(unfinished, 0)
    slow_writer.close()
    fast_writer.close()
    await door.stop(drain_ms=1_000)


async def test_a_body_of_4_gib_is_refused_before_it_is_sent(address, service):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(PUBLISH + b"content-length: 4294967296\r\nexpect: 100-continue\r\n\r\n")
    status, _, reply = await answer(reader)
    assert (status, reply["type"]) == (413, "MessageTooLarge")
    writer.close()


async def test_a_client_that_sends_too_much_still_gets_its_answer(address):
    reader, writer = await asyncio.open_connection(*address)
    size = limits.REST_BODY_BYTES_MAX + limits.MIB
    writer.write(PUBLISH + b"content-length: %d\r\n\r\n" % size)
    writer.write(b"x" * size)
    status, _, _ = await answer(reader)
    assert status == 413
    writer.close()


async def test_a_client_that_does_not_read_is_cut_off(address, service, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "write_deadline_seconds", 0.2)
    service.known = {f"{'x' * 190}-{number}": 1 for number in range(20_000)}
    reader, writer = await asyncio.open_connection(*address, limit=1)
    for _ in range(20):
        writer.write(b"GET /topics HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await asyncio.sleep(1)
    with pytest.raises(ConnectionError):
        for _ in range(1_000):
            await asyncio.wait_for(reader.read(1 << 20), 5)
            writer.write(b"GET /topics HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await writer.drain()
    writer.close()


async def test_replies_that_nobody_reads_are_bounded_together(address, service, monkeypatch):
    monkeypatch.setattr(BoundedProtocol, "unread_bytes_max", 1)
    service.known = {f"{'x' * 190}-{number}": 1 for number in range(20_000)}
    reader, writer = await asyncio.open_connection(*address, limit=1)
    for _ in range(20):
        writer.write(b"GET /topics HTTP/1.1\r\nhost: localhost\r\n\r\n")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        for _ in range(20):
            await asyncio.wait_for(reader.readexactly(4_000_000), 5)
    writer.close()


async def test_too_many_connections_are_turned_away_and_there_is_room_again_when_one_goes(service):
    seats = Seats(1, reserved=5)
    door = RestDoor(service, seats=seats)
    address = await door.start("127.0.0.1", 0)
    _, first = await asyncio.open_connection(*address)
    async with asyncio.timeout(5):
        while seats.open != 1:
            await asyncio.sleep(0.001)
    reader, second = await asyncio.open_connection(*address)
    status, _, reply = await answer(reader)
    assert (status, reply["type"]) == (429, "Overloaded")
    assert (seats.open, seats.refusing, seats.refused_total) == (1, 1, 1)
    for writer in (first, second):
        writer.close()
    async with asyncio.timeout(5):
        while seats.open or seats.refusing:
            await asyncio.sleep(0.001)
    await door.stop(drain_ms=1_000)


async def test_a_door_that_stops_finishes_what_it_has_in_hand(service):
    service.poll_gate = asyncio.Event()
    door = RestDoor(service)
    address = await door.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*address)
    body = b'{"wait_ms": 5000}'
    path = b"POST /v1/topics/orders/groups/g/poll HTTP/1.1\r\nhost: localhost\r\n"
    writer.write(path + b"content-length: %d\r\n\r\n" % len(body) + body)
    while not service.asked("poll"):
        await asyncio.sleep(0.01)
    stopping = asyncio.create_task(door.stop(drain_ms=5_000))
    await asyncio.sleep(0.05)
    assert not stopping.done()
    service.poll_gate.set()
    status, headers, _ = await answer(reader)
    assert (status, headers["connection"]) == (200, "close")
    await stopping
    with pytest.raises(OSError):
        await asyncio.open_connection(*address)
    writer.close()


async def test_a_door_that_was_never_opened_can_be_stopped(service):
    await RestDoor(service).stop(drain_ms=0)


@pytest.mark.parametrize("line", [b"POST /nothing", b"PUT /v1/topics", b"POST /openapi.json"])
async def test_a_refusal_does_not_wait_for_a_body_that_does_not_come(address, line):
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(line + b" HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        async with asyncio.timeout(20):
            said = await reader.read()  # until the broker closes: an idle connection is kept for 75 seconds
        assert said.split()[1] in (b"404", b"405")
    finally:
        writer.close()
