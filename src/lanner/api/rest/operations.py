"""What an operation is: one row of the route table, and the call that its handler receives.

A row is everything that routing, validation and the OpenAPI document need to know. A handler gets a decoded call and
returns a reply struct (or None for 204); it knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from lanner.api.rest.shapes import NoBody, NoQuery
from lanner.calls import Answer, Identity
from lanner.errors import LannerError
from lanner.net.seats import Seats
from lanner.net.unfinished import Unfinished
from lanner.wire import messages as wire
from lanner.wire.messages import AnswerT

if TYPE_CHECKING:
    from lanner.api.ports import Service

BodyT_co = TypeVar("BodyT_co", bound=msgspec.Struct, covariant=True)
QueryT_co = TypeVar("QueryT_co", bound=msgspec.Struct, covariant=True)

CALL_DEADLINE_MS: Final = 30_000
JSON: Final = "application/json"


class Door:
    """What all calls of one door share: the cluster's service, how the names begin to poll under, and counters."""

    def __init__(self, service: Service, unfinished: Unfinished, seats: Seats, body_deadline_ms: int) -> None:
        self.service = service
        self.body_deadline_ms = body_deadline_ms
        self.seats = seats  # the connections of all doors
        self.unfinished = unfinished  # what has not arrived whole yet, over all doors
        self.member = f"rest-{secrets.token_hex(8)}"  # its polls are never repeated: HTTP cannot say that it does
        self.requests: dict[tuple[str, int], int] = {}
        self._background: set[asyncio.Future[None]] = set()
        self.streams = 0  # of events, that are open
        self.stream_bytes = 0  # of events, that their clients have not taken yet
        self.body_bytes = 0  # of the whole bodies in hand, over all connections

    def spawn(self, work: Awaitable[None]) -> None:
        """Something that goes on when its request is over."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def count(self, operation: str, status: int) -> None:
        key = (operation, status)
        self.requests[key] = self.requests.get(key, 0) + 1


@dataclass(frozen=True, slots=True)
class Call(Generic[BodyT_co, QueryT_co]):
    """One decoded request."""

    door: Door
    identity: Identity
    body: BodyT_co
    query: QueryT_co
    headers: Mapping[bytes, bytes]
    disconnected: Callable[[], Awaitable[None]]  # returns once the client has gone; only after the body was read
    topic: str = ""
    group: str = ""
    partition: int = 0
    broker: str = ""
    member: str = ""  # an id

    async def ask(self, call: wire.Call[AnswerT]) -> Answer[AnswerT]:
        """What the cluster answers to a call of the table."""
        return await self.door.service.ask(self.identity, call)

    @property
    def poller(self) -> str:
        """The name that this connection polls under."""
        connection = self.identity.connection
        return self.door.member if connection is None else f"{self.door.member}-{connection.number}"

    @property
    def service(self) -> Service:
        return self.door.service


AnyCall = Call[msgspec.Struct, msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Raw:
    """A reply that is no struct: not JSON, or JSON that is written already."""

    content_type: str
    body: bytes
    status: int = 200


@dataclass(frozen=True, slots=True)
class Prepared:
    """A reply that is made last: in a reader thread where it is large, so that the loop goes on."""

    make: Callable[[], msgspec.Struct | bytes]  # bytes: it is JSON already
    size: int  # about so many bytes
    unsent: Callable[[], None] | None = None  # what to do when the client does not get it


@dataclass(frozen=True, slots=True)
class Streamed:
    """A reply that goes on: each piece is made when the socket has taken the one before."""

    content_type: str
    pieces: AsyncGenerator[bytes, None]


MESSAGE_BYTES: Final = 300  # of a message in JSON, besides what it says

Reply = msgspec.Struct | Mapping[str, str] | Raw | Prepared | Streamed | None


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the route table."""

    method: str
    path: str
    handler: Callable[[Call[Any, Any]], Awaitable[Reply]]  # of its body and its query, as a test over annotations says
    summary: str
    reply: object = None  # a struct, a mapping type, or None: no content
    body: type[msgspec.Struct] = NoBody
    plain: type[msgspec.Struct] | None = None  # a narrower body that most requests fit: it is tried first
    query: type[msgspec.Struct] = NoQuery
    errors: tuple[type[LannerError], ...] = ()
    tag: str = "v1"
    status: int = 200
    description: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # request headers that mean something: name → what
    deadline_ms: int = CALL_DEADLINE_MS
    content_type: str = JSON
    takes: bool = False  # what it shows is gone then: a GET of which there must be no HEAD

    @property
    def name(self) -> str:
        return self.handler.__name__
