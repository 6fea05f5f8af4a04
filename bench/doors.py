"""Every door twice: as its callers use it, and as a server of the same kind that does nothing but talk.

A *caller* speaks one door with requests that are encoded once, so that it costs as little as it can. The *floor* of a
door listens with the same server (grpc.aio, starlette on uvicorn, the native listener), decodes the same requests into
the door's own shapes, takes the values out, and makes and encodes the same replies. It stores nothing and knows no
queue. To a caller a broker and a floor are the same: only the address differs.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar, NamedTuple

import grpc
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from bench import load
from lanner import batch
from lanner.api.grpc.door import LANNER
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as proto
from lanner.api.rest import group_shapes, shapes
from lanner.errors import ConnectionLost
from lanner.model import PRIORITY_NORMAL
from lanner.net import loop
from lanner.net.connector import open_connection
from lanner.net.listener import Listener, ServerLink
from lanner.wire import messages as wire
from lanner.wire.connection import Request
from lanner.wire.messages import Command

HOST = "127.0.0.1"
POLL_WAIT_MS = 500
PARTITIONS = 4
STREAM_AHEAD = 2  # requests of a stream that are on their way beside the one that is waited for
LEASE_MS = 30_000
PARTITION = 1  # of everything that a floor hands out: protobuf leaves a 0 out

_places = itertools.count()  # offsets and tokens that a floor hands out
_callers = itertools.count(1)


class Work(NamedTuple):
    """What a caller does: which call, on what, and how many messages at a time."""

    call: str  # publish, stream or consume
    topic: str
    messages: int
    group: str = ""


class Caller:
    """One caller of a door. `taken_bytes` is what it got: it tells whether two servers said the same."""

    def __init__(self, address: str, work: Work) -> None:
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.work = work
        self.taken_bytes = 0

    async def open(self) -> None: ...

    async def publish(self) -> int:
        raise NotImplementedError

    async def stream(self) -> int:
        raise NotImplementedError

    async def consume(self) -> int:
        """Poll and ack: how many messages; 0: none came."""
        raise NotImplementedError

    async def close(self) -> None: ...

    async def step(self) -> int:
        calls: dict[str, Callable[[], Awaitable[int]]] = {
            "publish": self.publish,
            "stream": self.stream,
            "consume": self.consume,
        }
        return await calls[self.work.call]()


# ------------------------------------------------------------------ native


class NativeCaller(Caller):
    """Batches as they lie; acks ride on the next poll, as the client sends them."""

    async def open(self) -> None:
        self._link = await open_connection(self.host, self.port)
        self._batch = batch.encode(load.messages(self.work.messages))
        self._turns = itertools.count()
        self._member = f"bench-{next(_callers)}"
        self._settles: list[wire.SettleItem] = []

    async def publish(self) -> int:
        asked = wire.Publish(self.work.topic, next(self._turns) % PARTITIONS)
        reply = await self._link.request(Command.PUBLISH, asked, [self._batch])
        return int(reply.control.count)

    async def consume(self) -> int:
        work, settles = self.work, self._settles
        asked = wire.Poll(
            work.group,
            work.topic,
            self._member,
            -1,
            list(range(PARTITIONS)),
            work.messages,
            wait_ms=POLL_WAIT_MS,
            settles=settles,
        )
        settled, polled = self._link.poll(asked)
        if settled is not None:
            refused = [item.code for item in (await settled).control.items if item.code]
            assert not refused, f"acks were refused: {refused}"
        reply = await polled
        self.taken_bytes += len(reply.bulk)
        self._settles = [
            wire.SettleItem(one.partition, one.token, part.first_offset, part.count, wire.SettleKind.ACK)
            for one in reply.control.batches
            for part in one.ranges
        ]
        return sum(item.count for item in self._settles)

    async def close(self) -> None:
        await self._link.close()


class NativeFloor:
    """A session of the native listener that answers at once."""

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        self._batch = b""

    def greet(self, hello: wire.Hello) -> wire.HelloReply:
        return wire.HelloReply(wire.PROTOCOL_VERSION, "floor", "floor", "floor", 1 << 26, 1_000)

    def handle(self, request: Request) -> None:
        asked, now, place = request.control, _now_ms(), next(_places)
        if request.command is Command.PUBLISH:
            header = batch.read_header(request.bulk)
            self._link.reply(request, wire.Published(place, now, header.count))
            return
        assert request.command is Command.POLL, request.command
        if not self._batch:
            self._batch = batch.encode(load.messages(asked.max_messages))
        if asked.settles:
            self._link.reply_settles(request, wire.Settled([wire.SettledItem(0, item.count) for item in asked.settles]))
        ranges = [wire.LeasedRange(place, asked.max_messages, 1)]
        found = wire.PolledBatch(0, place, place, now, now + LEASE_MS, PRIORITY_NORMAL, len(self._batch), ranges)
        self._link.reply(request, wire.Polled([found], priority=PRIORITY_NORMAL), [self._batch])

    def handed_over(self) -> None: ...

    def lost(self) -> None: ...


def serve_native(port: int) -> None:
    async def serve() -> None:
        await Listener(NativeFloor).start(HOST, port)
        await asyncio.Event().wait()

    loop.run(serve())


# ------------------------------------------------------------------ REST


class RestCaller(Caller):
    """One kept connection, one request at a time."""

    _polled = msgspec.json.Decoder(group_shapes.PollReply)

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self.host, self.port, limit=1 << 22)
        messages = [shapes.MessageIn(value=value.decode()) for value in load.messages(self.work.messages)]
        topic, group = f"/v1/topics/{self.work.topic}", f"/v1/topics/{self.work.topic}/groups/{self.work.group}"
        self._publish = self._request(f"{topic}/messages", shapes.PublishManyRequest(messages=messages))
        polling = group_shapes.PollRequest(max_messages=self.work.messages, wait_ms=POLL_WAIT_MS)
        self._poll = self._request(f"{group}/poll", polling)
        self._ack_path = f"{group}/ack"

    def _request(self, path: str, body: msgspec.Struct) -> bytes:
        data = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\ncontent-type: application/json\r\n"
        return head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data

    async def _ask(self, request: bytes) -> bytes:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await self._reader.readexactly(size)
        assert head[9:10] == b"2", (head, body[:500])
        self.taken_bytes += size
        return body

    async def publish(self) -> int:
        await self._ask(self._publish)
        return self.work.messages

    async def consume(self) -> int:
        found = self._polled.decode(await self._ask(self._poll)).messages
        if found:
            targets = [
                group_shapes.SettleTarget(partition=one.partition, offset=one.offset, token=one.token) for one in found
            ]
            await self._ask(self._request(self._ack_path, group_shapes.AckRequest(messages=targets)))
        return len(found)

    async def close(self) -> None:
        self._writer.close()


def serve_rest(port: int) -> None:
    encoder = msgspec.json.Encoder()
    publish_decoder = msgspec.json.Decoder(shapes.PublishManyRequest)
    poll_decoder = msgspec.json.Decoder(group_shapes.PollRequest)
    ack_decoder = msgspec.json.Decoder(group_shapes.AckRequest)
    texts = [value.decode() for value in load.messages(1_000)]

    async def publish(request: HttpRequest) -> Response:
        asked, topic, now = publish_decoder.decode(await request.body()), request.path_params["topic"], _now_ms()
        values = [message.value.encode() for message in asked.messages]
        stored = [
            shapes.StoredMessage(
                id=f"{topic}/{PARTITION}/{offset}",
                partition=PARTITION,
                offset=offset,
                timestamp_ms=now,
                duplicate=False,
            )
            for offset in itertools.islice(_places, len(values))
        ]
        return answer(shapes.PublishManyReply(topic=topic, count=len(values), messages=stored))

    async def poll(request: HttpRequest) -> Response:
        asked, topic, now = poll_decoder.decode(await request.body()), request.path_params["topic"], _now_ms()
        found = [
            group_shapes.LeasedMessage(
                id=f"{topic}/{PARTITION}/{offset}",
                partition=PARTITION,
                offset=offset,
                value=text,
                priority=PRIORITY_NORMAL,
                timestamp_ms=now,
                attempt=1,
                token=offset,
                lease_until_ms=now + LEASE_MS,
            )
            for offset, text in zip(_places, texts[: asked.max_messages], strict=False)
        ]
        group = request.path_params["group"]
        return answer(group_shapes.PollReply(topic=topic, group=group, count=len(found), messages=found))

    async def ack(request: HttpRequest) -> Response:
        asked = ack_decoder.decode(await request.body())
        settled = [
            group_shapes.SettledTarget(partition=one.partition, offset=one.offset, count=one.count)
            for one in asked.messages
        ]
        return answer(group_shapes.SettleReply(settled=len(settled), failed=0, messages=settled))

    def answer(reply: msgspec.Struct) -> Response:
        return Response(encoder.encode(reply), media_type="application/json")

    group = "/v1/topics/{topic}/groups/{group}"
    routes = [
        Route("/v1/topics/{topic}/messages", publish, methods=["POST"]),
        Route(f"{group}/poll", poll, methods=["POST"]),
        Route(f"{group}/ack", ack, methods=["POST"]),
    ]
    uvicorn.run(
        Starlette(routes=routes),
        host=HOST,
        port=port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="error",
        server_header=False,
        date_header=False,
    )


# ------------------------------------------------------------------ gRPC


class GrpcCaller(Caller):
    """One call at a time, or one stream; callers of a process share their connection."""

    async def open(self) -> None:
        self._channel: Any = grpc.aio.insecure_channel(f"{self.host}:{self.port}")
        messages = [proto.NewMessage(value=value) for value in load.messages(self.work.messages)]
        self._publish = proto.PublishRequest(topic=self.work.topic, messages=messages).SerializeToString()
        self._poll = proto.ReceiveMessagesRequest(
            topic=self.work.topic, group=self.work.group, max_messages=self.work.messages, wait_ms=POLL_WAIT_MS
        ).SerializeToString()
        # Without serializers: bytes there and bytes back.
        self._calls: dict[str, Any] = {
            name: self._channel.unary_unary(f"/{LANNER}/{name}") for name in ("Publish", "ReceiveMessages", "Ack")
        }
        if self.work.call == "stream":
            self._stream = self._channel.stream_stream(f"/{LANNER}/PublishStream")()
            for _ in range(STREAM_AHEAD):
                await self._stream.write(self._publish)

    async def _ask(self, name: str, request: bytes) -> bytes:
        reply: bytes = await self._calls[name](request)
        self.taken_bytes += len(reply)
        return reply

    async def publish(self) -> int:
        await self._ask("Publish", self._publish)
        return self.work.messages

    async def stream(self) -> int:
        await self._stream.write(self._publish)
        reply = await self._stream.read()
        assert isinstance(reply, bytes), await self._stream.details()
        self.taken_bytes += len(reply)
        return self.work.messages

    async def consume(self) -> int:
        found = proto.ReceiveMessagesResponse.FromString(await self._ask("ReceiveMessages", self._poll)).messages
        if found:
            leases = [
                proto.Lease(partition=one.message.partition, offset=one.message.offset, token=one.token)
                for one in found
            ]
            asked = proto.AckRequest(topic=self.work.topic, group=self.work.group, leases=leases)
            await self._ask("Ack", asked.SerializeToString())
        return len(found)

    async def close(self) -> None:
        if self.work.call == "stream":
            await self._stream.done_writing()
            while await self._stream.read() is not grpc.aio.EOF:
                pass
        await self._channel.close()


class GrpcFloor:
    """The methods of the service, as somebody would write them who has nothing to store."""

    values: ClassVar = load.messages(1_000)

    async def publish(self, asked: Any, _: Any) -> Any:
        topic, now = asked.topic, _now_ms()
        values = [message.value for message in asked.messages]
        reply = proto.PublishResponse()
        add = reply.messages.add  # cheaper than a list of messages, which are copied
        for offset in itertools.islice(_places, len(values)):
            add(id=f"{topic}/{PARTITION}/{offset}", partition=PARTITION, offset=offset, timestamp_ms=now)
        return reply

    async def publish_stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for asked in requests:
            yield await self.publish(asked, context)

    async def receive(self, asked: Any, _: Any) -> Any:
        topic, now = asked.topic, _now_ms()
        reply = proto.ReceiveMessagesResponse()
        add = reply.messages.add
        for offset, value in zip(_places, self.values[: asked.max_messages], strict=False):
            found = add(token=offset, attempt=1, lease_until_ms=now + LEASE_MS).message
            found.id, found.topic, found.value = f"{topic}/{PARTITION}/{offset}", topic, value
            found.partition, found.offset = PARTITION, offset
            found.priority, found.timestamp_ms = PRIORITY_NORMAL, now
        return reply

    async def ack(self, asked: Any, _: Any) -> Any:
        reply = proto.SettleResponse(settled=len(asked.leases))
        add = reply.leases.add
        for one in asked.leases:
            add(partition=one.partition, offset=one.offset, count=1)
        return reply


def serve_grpc(port: int) -> None:
    async def serve() -> None:
        floor, server = GrpcFloor(), grpc.aio.server()
        one, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        handlers: dict[str, Any] = {
            "Publish": one(floor.publish, proto.PublishRequest.FromString, _encoded),
            "PublishStream": stream(floor.publish_stream, proto.PublishRequest.FromString, _encoded),
            "ReceiveMessages": one(floor.receive, proto.ReceiveMessagesRequest.FromString, _encoded),
            "Ack": one(floor.ack, proto.AckRequest.FromString, _encoded),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(LANNER, handlers)])
        server.add_insecure_port(f"{HOST}:{port}")
        await server.start()
        await server.wait_for_termination()

    loop.run(serve())


def _encoded(reply: Any) -> bytes:
    data: bytes = reply.SerializeToString()
    return data


# ------------------------------------------------------------------ all of them


CALLERS: dict[str, type[Caller]] = {"native": NativeCaller, "rest": RestCaller, "grpc": GrpcCaller}
FLOORS: dict[str, Callable[[int], None]] = {"native": serve_native, "rest": serve_rest, "grpc": serve_grpc}


class Done(NamedTuple):
    """What the callers did together."""

    span: load.Span
    bytes_each: float  # of a reply, for one message


def call_for(door: str, address: str, works: list[Work], seconds: float) -> Done:
    """One caller for each work, all at once in this process, for some seconds or until nothing comes any more."""

    async def run() -> Done:
        callers = [CALLERS[door](address, work) for work in works]
        for caller in callers:
            await _open(caller)
        total, began = 0, time.monotonic()
        ended, ends = began, began + seconds

        async def keep_on(caller: Caller) -> None:
            nonlocal total, ended
            while time.monotonic() < ends and (count := await caller.step()):
                total += count
                ended = time.monotonic()

        await asyncio.gather(*(keep_on(caller) for caller in callers))
        for caller in callers:
            await caller.close()
        return Done(load.Span(total, began, ended), sum(caller.taken_bytes for caller in callers) / max(1, total))

    return loop.run(run())


async def _open(caller: Caller) -> None:
    """A server that was only just started may not listen yet."""
    for _ in range(500):
        try:
            return await caller.open()
        except (OSError, ConnectionLost):
            await asyncio.sleep(0.01)
    raise AssertionError(f"nothing listens at {caller.host}:{caller.port}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
