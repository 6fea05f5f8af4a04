"""A stream of events: it asks for no more while its client does not read, goes on where it was, says why it ends."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest

from lanner import batch, limits
from lanner.api.rest import build_app
from lanner.api.rest.app import CONNECTION, Scope
from lanner.calls import Answer
from lanner.errors import TopicNotFound
from lanner.wire.messages import Fetched, FetchedBatch

SCOPE: Scope = {
    "type": "http",
    "method": "GET",
    "path": "/v1/topics/orders/partitions/0/stream",
    "query_string": b"",
    "headers": [(b"host", b"localhost")],
}


async def test_nothing_is_asked_for_while_the_client_does_not_read(service: Any) -> None:
    data = batch.encode([b"v"])
    service.fetched = Answer(Fetched(0, 1, 1, [FetchedBatch(0, 1, 0, len(data))]), [data])
    gone, reads, pieces = asyncio.Event(), asyncio.Semaphore(2), []

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await reads.acquire()
        pieces.append(message)

    serving = asyncio.ensure_future(build_app(service)(dict(SCOPE), receive, send))
    while len(pieces) < 2:
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(service.asked("fetch")) == 1, "the head and the first comment were read, and no message yet"
    for _ in range(limits.KIB):
        reads.release()
    while len(service.asked("fetch")) < 3:
        await asyncio.sleep(0)
    gone.set()
    await serving
    assert pieces[-1] == {"type": "http.response.body", "body": b""}


async def told(service: Any, query: bytes = b"", *headers: tuple[bytes, bytes]) -> tuple[int, bytes]:
    """The status and the whole body of a stream that ends by itself."""
    pieces: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        pieces.append(message)

    scope = {**SCOPE, "query_string": query, "headers": [(b"host", b"localhost"), *headers]}
    async with asyncio.timeout(10):
        await build_app(service)(scope, receive, send)
    return pieces[0]["status"], b"".join(one.get("body", b"") for one in pieces[1:])


async def test_a_stream_that_may_end_ends_when_nothing_has_come_for_so_long(service: Any) -> None:
    service.fetched = Answer(Fetched(0, 7, 7, []), [])
    status, body = await told(service, b"offset=7&wait_ms=1")
    assert status == 200 and body.endswith(b'event: end\ndata: {"reason":"quiet"}\n\n')
    first, second = service.asked("fetch")[:2]
    assert (first.offset, first.wait_ms, second.offset, second.wait_ms) == (7, 0, 7, 1)


async def test_a_stream_that_is_answered_without_waiting_asks_a_few_times_only(service: Any) -> None:
    """Beyond its bound of calls that wait, a broker answers at once: that is no reason to ask without a pause."""
    service.fetched = Answer(Fetched(0, 7, 7, []), [])
    began = asyncio.get_running_loop().time()
    _, body = await told(service, b"offset=7&wait_ms=400")
    assert asyncio.get_running_loop().time() - began >= 0.4, "it was not quiet for so long before that"
    assert body.endswith(b'event: end\ndata: {"reason":"quiet"}\n\n')
    assert len(service.asked("fetch")) < 12


async def test_what_comes_in_other_lanes_does_not_keep_a_stream_from_ending(service: Any) -> None:
    ends = iter(range(7, 10_000))

    async def ask(identity: Any, call: Any, bulk: Any = ()) -> Any:
        await asyncio.sleep(call.wait_ms / 1_000)
        end = next(ends)
        return Answer(Fetched(0, end, end, []), [])

    service.ask = ask
    _, body = await told(service, b"offset=0&priorities=high&wait_ms=20")
    assert body.endswith(b'event: end\ndata: {"reason":"quiet"}\n\n')


async def test_a_stream_reads_what_is_there_of_other_lanes_before_it_ends(service: Any) -> None:
    data = batch.encode([b"v"])
    pages = [Answer(Fetched(0, 9, end, []), []) for end in (1, 2, 3, 8)]
    pages.append(Answer(Fetched(0, 9, 9, [FetchedBatch(8, 1, 0, len(data))]), [data]))

    async def ask(identity: Any, call: Any, bulk: Any = ()) -> Any:
        await asyncio.sleep(0.01)
        return pages.pop(0) if pages else Answer(Fetched(0, 9, 9, []), [])

    service.ask = ask
    _, body = await told(service, b"offset=0&priorities=high&wait_ms=1")
    assert b"id: 8\n" in body


async def test_a_comment_comes_when_only_other_lanes_have_something(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanner.api.rest.streaming.HEARTBEAT_MS", 20)
    ends = iter(range(1, 20))

    async def ask(identity: Any, call: Any, bulk: Any = ()) -> Any:
        await asyncio.sleep(call.wait_ms / 1_000)
        end = next(ends, None)
        if end is None:
            raise TopicNotFound("orders was deleted")
        return Answer(Fetched(0, end, end, []), [])

    service.ask = ask
    _, body = await told(service, b"offset=0&priorities=high")
    assert body.count(b"\n:\n\n") > 5


async def test_a_client_that_comes_again_goes_on_behind_the_last_event(service: Any) -> None:
    service.fetched = Answer(Fetched(0, 42, 42, []), [])
    await told(service, b"offset=3&wait_ms=1", (b"last-event-id", b"41"))
    assert service.asked("fetch")[0].offset == 42, "what it has seen wins over where it began"


async def test_an_event_beyond_the_end_is_of_another_topic_and_refused(service: Any) -> None:
    service.fetched = Answer(Fetched(0, 4, 4, []), [])
    status, body = await told(service, b"wait_ms=1", (b"last-event-id", b"3"))
    assert status == 200
    status, body = await told(service, b"wait_ms=1", (b"last-event-id", b"4"))
    assert status == 416 and b"the topic was made anew" in body
    status, _ = await told(service, b"wait_ms=1&offset=5")
    assert status == 200, "who begins there waits for what comes"


async def test_two_last_events_are_refused(service: Any) -> None:
    status, body = await told(service, b"wait_ms=1", (b"last-event-id", b"1"), (b"last-event-id", b"2"))
    assert status == 400 and b"last-event-id more than once" in body


@pytest.mark.parametrize("seen", [b"x", b"-1", b"9" * 25, b"0" * 20 + b"9" * 30, b"0" * 20 + b"9" * 5_000])
async def test_an_id_that_is_none_of_the_streams_is_refused(service: Any, seen: bytes) -> None:
    status, body = await told(service, b"", (b"last-event-id", seen))
    assert status == 400 and b"Last-Event-ID" in body
    assert service.asked("fetch") == []


@pytest.mark.parametrize(
    ("fault", "name"), [(TopicNotFound("orders was deleted"), b"TopicNotFound"), (KeyError("a fault"), b"ServerError")]
)
async def test_what_ends_a_stream_is_its_last_event(service: Any, fault: Exception, name: bytes) -> None:
    data = batch.encode([b"v"])
    service.fetched = Answer(Fetched(0, 1, 1, [FetchedBatch(0, 1, 0, len(data))]), [data])
    ask = service.ask

    async def once(identity: Any, call: Any, bulk: Any = ()) -> Any:
        if service.asked("fetch"):
            raise fault
        return await ask(identity, call, bulk)

    service.ask = once
    status, body = await told(service)
    head, _, last = body.rpartition(b"event: end\n")
    assert status == 200 and b"id: 0\n" in head and name in last


async def test_streams_are_bounded(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REST_STREAMS_MAX", 0)
    status, body = await told(service)
    assert status == 429 and b"Overloaded" in body


async def test_streams_that_begin_together_are_bounded_too(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REST_STREAMS_MAX", 2)
    service.fetched = Answer(Fetched(0, 7, 7, []), [])
    app, ask, statuses = build_app(service), service.ask, []

    async def slow(identity: Any, call: Any, bulk: Any = ()) -> Any:
        await asyncio.sleep(0.01)
        return await ask(identity, call, bulk)

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    service.ask = slow
    scope = {**SCOPE, "query_string": b"offset=7&wait_ms=50"}
    await asyncio.gather(*(app(dict(scope), receive, send) for _ in range(5)))
    assert sorted(statuses) == [200, 200, 429, 429, 429]


async def test_a_stream_holds_nothing_of_what_its_client_has_read(service: Any) -> None:
    """A thousand streams may be open, most of them idle."""
    size = 2 * limits.MIB
    count = size // limits.KIB

    async def ask(identity: Any, call: Any, bulk: Any = ()) -> Any:
        if call.offset >= count:
            idle.set()
            await asyncio.Event().wait()
        data = batch.encode([b"v" * limits.KIB] * count)
        return Answer(Fetched(0, count, count, [FetchedBatch(0, count, 0, len(data))]), [data])

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        nonlocal sent
        sent += len(message.get("body", b""))

    async def held_by_an_idle_stream() -> int:
        gc.collect()
        tracemalloc.start()
        try:
            serving = asyncio.ensure_future(app(dict(SCOPE), receive, send))
            await asyncio.wait_for(idle.wait(), 10)
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return held

    idle, sent, service.ask = asyncio.Event(), 0, ask
    app = build_app(service)
    await held_by_an_idle_stream()  # what the first one loads is there for good
    idle.clear()
    held = await held_by_an_idle_stream()
    assert sent > size
    assert held < size // 4


class SlowConnection:
    """One whose socket takes what is written only when it is told to."""

    caller = None

    def __init__(self) -> None:
        self.taken = asyncio.Event()
        self.is_lost = False

    async def handed_over(self) -> bool:
        await self.taken.wait()
        return not self.is_lost


@pytest.mark.parametrize("is_lost", [False, True])
async def test_the_next_page_is_read_when_the_socket_has_taken_the_last(service: Any, is_lost: bool) -> None:
    """What is sent returns at once, with all of it in a buffer."""
    data = batch.encode([b"v"])
    service.fetched = Answer(Fetched(0, 1, 1, [FetchedBatch(0, 1, 0, len(data))]), [data])
    connection, gone, sent = SlowConnection(), asyncio.Event(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):
            sent.set()

    scope = {**SCOPE, CONNECTION: connection}
    serving = asyncio.ensure_future(build_app(service)(scope, receive, send))
    await asyncio.wait_for(sent.wait(), 10)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(service.asked("fetch")) == 1
    connection.is_lost = is_lost
    connection.taken.set()
    while len(service.asked("fetch")) < 3 and not serving.done():
        await asyncio.sleep(0)
    gone.set()
    await serving
    assert (len(service.asked("fetch")) == 1) == is_lost


async def test_streams_that_nobody_reads_hold_little_together(service: Any) -> None:
    """Each has one piece in its socket's buffer, and the broker nothing beside it; the more there are, the smaller."""
    count, size = 100, limits.MIB
    data = batch.encode([b"v" * limits.KIB] * (size // limits.KIB))
    end = size // limits.KIB
    service.fetched = Answer(Fetched(0, end, end, [FetchedBatch(0, end, 0, len(data))]), [data])
    buffers: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    class Connection(SlowConnection):
        async def handed_over(self) -> bool:
            return await super().handed_over() if self.is_full else True

        is_full = False

    async def begin() -> asyncio.Future[None]:
        connection, full = Connection(), asyncio.Event()

        async def send(message: Any) -> None:
            if len(body := message.get("body", b"")) > limits.KIB:
                buffers.append(b"%x\r\n%b\r\n" % (len(body), body))
                connection.is_full = True
                full.set()

        serving = asyncio.ensure_future(app({**SCOPE, CONNECTION: connection}, receive, send))
        await asyncio.wait_for(full.wait(), 10)
        return serving

    app = build_app(service)
    tracemalloc.start()
    try:
        streams = [await begin() for _ in range(count)]
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for serving in streams:
        serving.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    buffered = sum(map(len, buffers))
    assert min(map(len, buffers)) >= limits.REST_STREAM_BYTES_MIN // 2, "and yet each goes on"
    assert buffered < limits.REST_STREAMS_BYTES_MAX + count * limits.REST_STREAM_BYTES_MIN
    assert held < 1.5 * buffered


async def test_what_is_left_of_a_page_is_read_again(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REST_STREAMS_BYTES_MAX", 0)
    monkeypatch.setattr(limits, "REST_STREAM_BYTES_MIN", 1)
    data, offsets = batch.encode([b"a", b"b", b"c"]), []

    async def ask(identity: Any, call: Any, bulk: Any = ()) -> Any:
        offsets.append(call.offset)
        if call.offset >= 8:
            return Answer(Fetched(0, 8, 8, []))
        holes = [(2, 5)] if call.offset < 5 else []
        return Answer(Fetched(0, 8, 8, [FetchedBatch(5, 3, 0, len(data))], holes=holes), [data])

    service.ask = ask
    _, body = await told(service, b"offset=0&wait_ms=50")
    numbers = [line for line in body.splitlines() if line.startswith(b"id: ")]
    assert numbers == [b"id: 4", b"id: 5", b"id: 6", b"id: 7"]
    assert offsets[:5] == [0, 5, 6, 7, 8]
