"""The ASGI application: route, bound, decode, call, encode.

Everything from outside is bounded before it is used: the body by its announced and by its real length and by the time
it takes to arrive, the query by its number of fields, every value by its shape. Whatever goes wrong becomes an answer
of the catalogue; nothing that a client sends reaches the server's own error page.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lanner import limits
from lanner.api.rest.bodies import Body, BodyRefused, ClientGone
from lanner.api.rest.names import refuse_near_misses
from lanner.api.rest.openapi import build_document
from lanner.api.rest.operations import AnyCall, Call, Door, Operation, Prepared, Raw, Streamed
from lanner.api.rest.origins import Gate, cors_headers, preflight_headers
from lanner.api.rest.page import PAGE
from lanner.api.rest.problems import OWN_PATHS, Answer, answer_to, answer_to_unexpected, explain
from lanner.api.rest.publishing import IDEMPOTENCY_KEY
from lanner.api.rest.routes import FALCONQ, OPERATIONS
from lanner.api.rest.shapes import NoBody, NoQuery
from lanner.api.rest.streaming import LAST_EVENT_ID
from lanner.calls import Identity
from lanner.errors import (
    DeadlineExceeded,
    LannerError,
    MethodNotAllowed,
    NotFoundError,
    PartitionNotFound,
    ValidationError,
)
from lanner.model import check_name
from lanner.net.clients import Client
from lanner.net.seats import Seats
from lanner.net.unfinished import Unfinished

if TYPE_CHECKING:
    from lanner.api.ports import Service

_DISCARD_MS: Final = 2_000
_DISCARD_BYTES_MAX: Final = 64 * limits.MIB
_QUERY_FIELDS_MAX: Final = 32
_IDENTITY: Final = Identity("anonymous", door="rest")
_ONCE: Final = (IDEMPOTENCY_KEY, LAST_EVENT_ID)
_NO_BODY: Final = NoBody()
_NO_QUERY: Final = NoQuery()
_JSON: Final = b"application/json"
_encoder: Final = msgspec.json.Encoder()
CONNECTION: Final = "lanner.connection"  # where a scope has the connection that its request came by
INLINE_BYTES_MAX: Final = 64 * limits.KIB  # a larger reply is made in a reader thread
_names_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def build_app(
    service: Service,
    gate: Gate | None = None,
    unfinished: Unfinished | None = None,
    seats: Seats | None = None,
    body_deadline_ms: int = limits.BODY_DEADLINE_MS,
) -> ASGIApp:
    """The whole door as an ASGI application."""
    door = Door(service, unfinished or Unfinished(), seats or Seats(), body_deadline_ms)
    gate = gate or Gate()
    by_path: dict[str, dict[str, Endpoint]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = Endpoint(operation, door)
    document = msgspec.json.encode(build_document(OPERATIONS))
    routes = [Route(path, MethodTable(methods), methods=None) for path, methods in by_path.items()]
    routes.append(Route("/openapi.json", Page("application/json", document), methods=None))
    routes.append(Route("/docs", Page("text/html; charset=utf-8", PAGE.encode()), methods=None))
    router = Router(routes=routes, redirect_slashes=False, default=_nothing_here)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        refused = gate.check(scope["path"], headers)
        if refused is not None:
            await _send_and_discard(send, receive, answer_to(refused, scope["path"]))
        elif b"origin" in headers and gate.allows(headers[b"origin"].decode("latin-1")):
            await _serve_allowed_page(router, scope, receive, send, headers)
        else:
            await router(scope, receive, send)

    return app


async def _serve_allowed_page(
    router: Router, scope: Scope, receive: Receive, send: Send, headers: Mapping[bytes, bytes]
) -> None:
    """The same for a page of another site that the operator lets in: its browser wants to hear that."""
    cors = cors_headers(headers[b"origin"])

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *cors]
        await send(message)

    if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
        await _send(tell, Answer(204, b"", preflight_headers(headers)))
    else:
        await router(scope, receive, tell)


class MethodTable:
    """The operations of one path, by method."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = dict(endpoints)
        if "GET" in endpoints and not endpoints["GET"].takes:
            self._endpoints["HEAD"] = endpoints["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is None:
            await _refuse(scope, receive, send, answer_to(_method_refused(scope, self._endpoints), scope["path"]))
        else:
            await endpoint(scope, receive, send)


class Page:
    """Something that never changes."""

    def __init__(self, content_type: str, body: bytes) -> None:
        self._answer = Answer(200, body, [])
        self._content_type = content_type.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse(scope, receive, send, answer_to(_method_refused(scope, ("GET", "HEAD"))))
        else:
            await _send(send, self._answer, self._content_type)


class Endpoint:
    """One operation behind HTTP."""

    def __init__(self, operation: Operation, door: Door) -> None:
        self._operation = operation
        self._door = door
        self.takes = operation.takes
        self._takes_body = operation.body is not NoBody
        self._is_falconq = operation.tag == FALCONQ
        # Probes may say what they like to the broker's own pages.
        self._takes_query = operation.query is not NoQuery or operation.path.startswith(OWN_PATHS)
        self._decoder = msgspec.json.Decoder(operation.body)
        self._plain_decoder = None if operation.plain is None else msgspec.json.Decoder(operation.plain)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(self._door)
        try:
            await self._serve(scope, receive, send, body)
        finally:
            body.let_go()

    async def _serve(self, scope: Scope, receive: Receive, send: Send, body: Body) -> None:
        content_type = _JSON
        try:
            call = await self._decode(scope, receive, body)
            async with asyncio.timeout(self._operation.deadline_ms / 1_000):
                reply = await self._operation.handler(call)
            if isinstance(reply, Prepared):
                await self._send_prepared(scope, send, reply)
                return
            if isinstance(reply, Streamed):
                await self._send_stream(scope, send, reply)
                return
            if isinstance(reply, Raw):
                content_type = reply.content_type.encode("ascii")
                answer = Answer(reply.status, reply.body, [])
            else:
                answer = Answer(self._operation.status, b"" if reply is None else _encoder.encode(reply), [])
        except ClientGone:
            return
        except BodyRefused as refusal:
            answer = answer_to(refusal.error, self._operation.path)
            self._door.count(self._operation.name, answer.status)
            await _send_and_discard(send, receive, answer)
            return
        except LannerError as error:
            answer = answer_to(error, self._operation.path)
        except TimeoutError:
            answer = answer_to(DeadlineExceeded(), self._operation.path)
        except Exception as error:
            answer = answer_to_unexpected(error, self._operation.path)
        self._door.count(self._operation.name, answer.status)
        await _send(send, answer, content_type)

    async def _send_prepared(self, scope: Scope, send: Send, reply: Prepared) -> None:
        """Make a reply and send it. When the client does not get it, what hangs on it is undone."""
        heard = False
        try:
            body = await self._made(reply)
            self._door.count(self._operation.name, self._operation.status)
            await _send(send, Answer(self._operation.status, body, []))
            heard = await handed_over(scope)
        finally:
            if not heard and reply.unsent is not None:
                reply.unsent()

    async def _send_stream(self, scope: Scope, send: Send, reply: Streamed) -> None:
        """Send piece after piece, each made when the socket has taken the one before; `send` alone reads one ahead."""
        self._door.count(self._operation.name, self._operation.status)
        headers = [(b"content-type", reply.content_type.encode("ascii")), (b"cache-control", b"no-store")]
        async with contextlib.aclosing(reply.pieces) as pieces:
            await send({"type": "http.response.start", "status": self._operation.status, "headers": headers})
            if scope["method"] != "HEAD":
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    del piece  # the next one may be long in coming
                    if not await handed_over(scope):
                        break
            await send({"type": "http.response.body", "body": b""})

    async def _made(self, reply: Prepared) -> bytes:
        if reply.size <= INLINE_BYTES_MAX:
            return _encoded(reply)
        return await self._door.service.in_reader(lambda: _encoded(reply))

    async def _decode(self, scope: Scope, receive: Receive, incoming: Body) -> AnyCall:
        headers = _headers_of(scope)
        path = _path_values(scope["path_params"])
        query: msgspec.Struct = _NO_QUERY
        if self._takes_query and (self._operation.query is not NoQuery or scope["query_string"]):
            query = self._decode_query(scope["query_string"])
        body: msgspec.Struct = _NO_BODY
        if self._takes_body:
            raw = await incoming.read(headers, receive)
            try:
                body = self._decode_plain(raw) or self._decode_body(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise explain(error, "the body", self._operation.body, raw) from None
        return Call(
            door=self._door,
            identity=_identity_of(scope, headers),
            body=body,
            query=query,
            headers=headers,
            disconnected=lambda: _until_gone(receive),
            **path,
        )

    def _decode_query(self, raw: bytes) -> msgspec.Struct:
        kind = self._operation.query
        given = _query_fields(raw)
        if self._is_falconq:
            refuse_near_misses(given, "the query", kind)
        try:
            return msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            raise explain(error, "the query", kind) from None

    def _decode_plain(self, raw: bytes) -> msgspec.Struct | None:
        """The body as most are; None: it is another one, or none at all, which decoding the whole shape tells."""
        if self._plain_decoder is None:
            return None
        try:
            return self._plain_decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def _decode_body(self, raw: bytes) -> msgspec.Struct:
        if self._is_falconq:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):  # told below, in whole
                refuse_near_misses(_names_decoder.decode(raw), "the body", self._operation.body)
        try:
            body: msgspec.Struct = self._decoder.decode(raw)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
            # To JSON 5.0 and 5 are one number, and some languages write every number with a fraction.
            body = msgspec.convert(_whole(msgspec.json.decode(raw)), self._operation.body, str_keys=True)
        return body


def _encoded(reply: Prepared) -> bytes:
    made = reply.make()
    return made if isinstance(made, bytes) else msgspec.json.encode(made)


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return value


def _path_values(given: Mapping[str, str]) -> dict[str, Any]:
    """What the path names, as fields of the call."""
    return {name: _PATH_CHECKS.get(name, check_name)(text, name) for name, text in given.items()}


def _check_partition(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValidationError(f"partition {text[:80]!r} is not a number: partitions count from 0", field=name)
    partition = int(text)
    if partition >= limits.PARTITIONS_MAX:
        raise PartitionNotFound(f"no topic has a partition {partition}", field=name)
    return partition


def _check_member(text: str, name: str) -> str:
    """Members of other doors choose their ids freely, so what is unlikely may still be one."""
    if len(text) > limits.IDENTITY_LENGTH_MAX or not text.isprintable():
        raise ValidationError(
            f"{text[:80]!r} is no member's id: those have at most {limits.IDENTITY_LENGTH_MAX} visible characters",
            field=name,
        )
    return text


_PATH_CHECKS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "partition": _check_partition,
    "member": _check_member,
}


def _headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """The headers by name. Of those that say what a request means there must be no two."""
    headers = dict(scope["headers"])
    if len(headers) != len(scope["headers"]):
        for name in _ONCE:
            if sum([name == other for other, _ in scope["headers"]]) > 1:
                raise ValidationError(f"the request gives {name.decode()} more than once", field=name.decode())
    return headers


def _query_fields(raw: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX, errors="strict"
        )
    except UnicodeDecodeError:
        raise ValidationError("the query is not UTF-8: percent-encode it") from None
    except ValueError:
        raise ValidationError(f"the query has more than {_QUERY_FIELDS_MAX} parameters") from None
    given = dict(pairs)
    if len(given) != len(pairs):
        twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise ValidationError(f"the query gives {twice[:80]} more than once", field=twice[:80])
    return given


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _identity_of(scope: Scope, headers: Mapping[bytes, bytes]) -> Identity:
    """Who calls: the client at the other end of the connection, which says in each request what it is."""
    connection = scope.get(CONNECTION)
    client: Client | None = None if connection is None else connection.caller
    if client is None:
        return _IDENTITY
    if not client.name:
        client.call_itself(headers.get(b"user-agent", b"").decode("latin-1"))
    return Identity(_IDENTITY.name, _IDENTITY.door, client)


async def handed_over(scope: Scope) -> bool:
    """Whether the socket took the whole reply; without a socket of ours, as in tests, it did."""
    connection = scope.get(CONNECTION)
    return True if connection is None else bool(await connection.handed_over())


async def _send(send: Send, answer: Answer, content_type: bytes = _JSON) -> None:
    headers = answer.headers
    if answer.status != 204:
        headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(answer.body)), *headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _refuse(scope: Scope, receive: Receive, send: Send, answer: Answer) -> None:
    """Answer without the body. One that is announced and does not come must not keep the connection."""
    if any(name in (b"content-length", b"transfer-encoding") and value != b"0" for name, value in scope["headers"]):
        await _send_and_discard(send, receive, answer)
    else:
        await _send(send, answer)


async def _send_and_discard(send: Send, receive: Receive, answer: Answer) -> None:
    """Answer before the body has been read, then let the client finish its sentence for a moment.

    Closing at once would reset the connection under a client that still writes, and it would never see the answer.
    """
    headers = [(b"content-type", _JSON), (b"content-length", b"%d" % len(answer.body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers + answer.headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    discarded = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_MS / 1_000):
            while discarded < _DISCARD_BYTES_MAX:
                message = await receive()
                discarded += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    break
    await send({"type": "http.response.body", "body": b""})


async def _nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope["path"][:200]
    error = NotFoundError(f"there is nothing at {path!r}; /docs lists what there is")
    await _refuse(scope, receive, send, answer_to(error, scope["path"]))


def _method_refused(scope: Scope, allowed: Iterable[str]) -> MethodNotAllowed:
    names = sorted(allowed)
    return MethodNotAllowed(f"this path knows {', '.join(names)}, not {scope['method'][:40]}", allowed=names)
