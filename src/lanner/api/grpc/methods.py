"""What every method of the door goes through: reading the request, errors, cancellation.

To gRPC all methods are streams, which on the wire is the same: so a request is read when the door asks for it, and not
before, and a handler that sends its answer itself hears whether it was taken. A request that does not arrive at once
counts among all that is not whole yet (`unfinished`). How much of it is there cannot be known here, so it counts as if
it were all there. A stream may be silent for as long as it likes, and whether it is, or has sent half a request, cannot
be known either. So there are as many streams as the budget has shares, and most of them must be between two requests
for the budget to hold.

A handler takes a request, or an iterator of them, and a `Caller`; it returns a response, or sends several. An error of
the catalogue that it raises ends the call with its status; anything else is a fault of ours. A caller that has gone, or
whose deadline is over, cancels the handler wherever it waits.

gRPC itself ends what reaches it while it shuts down as CANCELLED, which tells a client nothing. So before it does, the
door goes on for a moment with calls that were on their way, and for as long as it may with those in hand: what is
refused is refused by a handler, with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from lanner import limits
from lanner.api.grpc.problems import problem_of
from lanner.api.grpc.seen_clients import CONNECTION, SeenClients
from lanner.errors import LannerError, Overloaded, ServerError, ServiceUnavailable, ValidationError
from lanner.net.clients import Clients
from lanner.net.unfinished import Part, Unfinished

_log: Final = logging.getLogger("lanner.api.grpc")
_COUNTED_AFTER_SECONDS: Final = 0.25  # a request that takes longer to arrive counts as unfinished
_STREAM_SHARE_BYTES: Final = limits.MIB  # of the budget for what is not whole: a stream may hold eight times as much
_ON_ITS_WAY_SECONDS: Final = 0.2  # so long after a broker began to stop a call may still come that was made before

RequestT = TypeVar("RequestT")
RequestT_co = TypeVar("RequestT_co", covariant=True)
Context = grpc.aio.ServicerContext[bytes, bytes]


class RequestKind(Protocol[RequestT_co]):
    """What reads a request: a message of the proto, or something that knows a shorter way."""

    def FromString(self, data: bytes, /) -> RequestT_co: ...  # noqa: N802 (protobuf named it)


class Response(Protocol):
    """What is sent: a message of the proto, or what is written already."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802 (protobuf named it)


class Caller:
    """One call, as its handler sees it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def trail(self, **trailers: str) -> None:
        """Send these after the answer."""
        self._context.set_trailing_metadata(tuple(trailers.items()))

    def wait_ms(self, wanted: int) -> int:
        """How long to wait, so that the answer is there before the caller's deadline."""
        if wanted > limits.POLL_WAIT_MS_MAX:
            raise ValidationError(f"wait_ms is {wanted}: at most {limits.POLL_WAIT_MS_MAX}", field="wait_ms")
        left: float | None = self._context.time_remaining()
        return wanted if left is None else max(0, min(wanted, round(left * 1_000) - limits.GRPC_ANSWER_MS))

    async def send(self, response: Response) -> None:
        """Hand over a response; returns when there is room for the next, raises when the caller has gone."""
        await self._context.write(response.SerializeToString())


class _Reading:
    """A task that waits for a request, and can be told to wait no longer."""

    __slots__ = ("error", "part", "task", "timer")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.error: LannerError | None = None
        self.part: Part | None = None
        self.timer: asyncio.TimerHandle | None = None

    def end(self, error: LannerError) -> None:
        if self.error is None:
            self.error = error
            self.task.cancel()


class Arrivals:
    """The requests of a door that are on their way."""

    def __init__(self, unfinished: Unfinished, seen: SeenClients | None = None) -> None:
        self._unfinished = unfinished
        self.streams_max = min(limits.GRPC_STREAMS_MAX, unfinished.bytes_max // _STREAM_SHARE_BYTES)
        self.seen = SeenClients(Clients()) if seen is None else seen  # who calls
        self._idle: set[_Reading] = set()  # streams that wait for their callers
        self._streams = 0
        self._stopping = False
        self._in_hand = 0
        self._nothing_in_hand = asyncio.Event()
        self._nothing_in_hand.set()

    def begin(self) -> None:
        """A call is taken in hand."""
        self._in_hand += 1
        self._nothing_in_hand.clear()

    def end(self) -> None:
        """Its handler has ended."""
        self._in_hand -= 1
        if not self._in_hand:
            self._nothing_in_hand.set()

    def stop(self) -> None:
        """Wait no longer for the next request of a stream."""
        self._stopping = True
        for reading in tuple(self._idle):
            reading.end(stops())

    async def finish(self, seconds: float) -> None:
        """Wait for calls that were on their way and those in hand, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.sleep(_ON_ITS_WAY_SECONDS)
                await self._nothing_in_hand.wait()

    async def only(self, kind: RequestKind[RequestT], context: Context) -> RequestT:
        """The request of a call that has one."""
        reading = _Reading()
        reading.timer = asyncio.get_running_loop().call_later(_COUNTED_AFTER_SECONDS, self._count, reading)
        try:
            data = await _read(context, reading)
        finally:
            reading.timer.cancel()
            if reading.part is not None:
                self._unfinished.end(reading.part)
        if data is None:
            raise ValidationError("the call holds no request")
        return _parsed(kind, data)

    def _count(self, reading: _Reading) -> None:
        reading.part = self._unfinished.begin(reading)
        self._unfinished.hold(reading.part, limits.GRPC_REQUEST_BYTES_MAX)

    async def stream(self, kind: RequestKind[RequestT], context: Context) -> AsyncIterator[RequestT]:
        """The requests of a stream, until its caller ends it or the broker stops."""
        if self._streams >= self.streams_max:
            raise Overloaded(
                f"{self._streams} streams of requests are open here, and there may be no more: one for each MiB of "
                "unfinished_bytes_max"
            )
        self._streams += 1
        try:
            while (data := await self._next(context)) is not None:
                yield _parsed(kind, data)
        finally:
            self._streams -= 1

    async def _next(self, context: Context) -> bytes | None:
        if self._stopping:
            raise stops()
        reading = _Reading()
        self._idle.add(reading)
        try:
            return await _read(context, reading)
        finally:
            self._idle.discard(reading)


class Method(NamedTuple):
    """How one method is served: run to its answer, or to its end when it sends its answers itself."""

    run: Callable[[Arrivals, Context], Awaitable[bytes | None]]
    sends: bool


def unary(kind: RequestKind[RequestT], handle: Callable[[RequestT, Caller], Awaitable[Response]]) -> Method:
    """One request, one response."""

    async def run(arrivals: Arrivals, context: Context) -> bytes:
        request = await arrivals.only(kind, context)
        return (await handle(request, Caller(context))).SerializeToString()

    return Method(run, sends=False)


def sending(kind: RequestKind[RequestT], handle: Callable[[RequestT, Caller], Awaitable[None]]) -> Method:
    """One request, and a handler that sends the responses itself: it hears whether they were taken."""

    async def run(arrivals: Arrivals, context: Context) -> None:
        await handle(await arrivals.only(kind, context), Caller(context))

    return Method(run, sends=True)


def streaming(
    kind: RequestKind[RequestT], handle: Callable[[AsyncIterator[RequestT], Caller], Awaitable[None]]
) -> Method:
    """Requests as they come, and a handler that sends the responses itself."""

    async def run(arrivals: Arrivals, context: Context) -> None:
        await handle(arrivals.stream(kind, context), Caller(context))

    return Method(run, sends=True)


class MethodTable(grpc.GenericRpcHandler):
    """The methods of one service, by name."""

    def __init__(self, service: str, methods: Mapping[str, Method], arrivals: Arrivals) -> None:
        self._handlers = {f"/{service}/{name}": _handler(method, arrivals) for name, method in methods.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handlers.get(handler_call_details.method)


def _handler(method: Method, arrivals: Arrivals) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def serve(_: object, context: Context) -> bytes | None:
        client = arrivals.seen.begin(context.peer(), context.invocation_metadata() or ())
        CONNECTION.set(client)
        arrivals.begin()
        try:
            return await method.run(arrivals, context)
        except Exception as error:
            await _end(context, error)
            return None
        finally:
            arrivals.end()
            arrivals.seen.end(client)

    if method.sends:
        return grpc.stream_stream_rpc_method_handler(serve)
    return grpc.stream_unary_rpc_method_handler(serve)


async def _read(context: Context, reading: _Reading) -> bytes | None:
    """The next request; None: there is none."""
    try:
        data: object = await context.read()
    except asyncio.CancelledError:
        if reading.error is None:
            raise
        reading.task.uncancel()
        raise reading.error from None
    return data if isinstance(data, bytes) else None  # grpc.aio.EOF


def _parsed(kind: RequestKind[RequestT], data: bytes) -> RequestT:
    try:
        return kind.FromString(data)
    except DecodeError:
        described: Descriptor | None = getattr(kind, "DESCRIPTOR", None)
        raise ValidationError(f"the request is no {'such' if described is None else described.full_name}") from None


def stops() -> ServiceUnavailable:
    """What a stream ends with when its broker stops."""
    return ServiceUnavailable("the broker stops: open the stream again at another one")


async def _end(context: Context, error: Exception) -> None:
    """End the call with what went wrong."""
    if isinstance(error, grpc.aio.BaseError):
        raise error  # gRPC's own: the caller has gone
    if not isinstance(error, LannerError):
        _log.error("a call failed in a way that it should not", exc_info=error)
        error = ServerError()
    code, message, trailers = problem_of(error)
    await context.abort(code, message, trailers)
