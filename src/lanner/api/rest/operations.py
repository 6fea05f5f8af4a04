"""What an operation is: one row of the route table, and the call that its handler receives.

A row is everything that routing, validation and the OpenAPI document need to know. A handler gets a decoded call and
returns a reply struct (or None for 204); it knows nothing of HTTP.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from lanner.api.rest.shapes import NoBody, NoQuery
from lanner.broker.calls import Identity
from lanner.errors import LannerError

if TYPE_CHECKING:
    from lanner.broker.service import Service

BodyT_co = TypeVar("BodyT_co", bound=msgspec.Struct, covariant=True)
QueryT_co = TypeVar("QueryT_co", bound=msgspec.Struct, covariant=True)

CALL_DEADLINE_MS: Final = 30_000


class Door:
    """What all calls of one door share: the service, a name to poll under, and counters."""

    def __init__(self, service: Service) -> None:
        self.service = service
        # A poll repeated under the same (member, sequence) would get the same leases again. HTTP clients cannot repeat
        # one knowingly, so every poll of this door is a new one, also across restarts.
        self.member = f"rest-{secrets.token_hex(8)}"
        self._sequences = itertools.count(1)
        self.requests: dict[tuple[str, int], int] = {}

    def next_sequence(self) -> int:
        return next(self._sequences)

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

    @property
    def service(self) -> Service:
        return self.door.service


@dataclass(frozen=True, slots=True)
class Raw:
    """A reply that is not JSON."""

    content_type: str
    body: bytes
    status: int = 200


Reply = msgspec.Struct | Mapping[str, str] | Raw | None


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the route table."""

    method: str
    path: str
    handler: Callable[[Call[Any, Any]], Awaitable[Reply]]
    summary: str
    reply: Any = None  # a struct, a mapping type, or None: no content
    body: type[msgspec.Struct] = NoBody
    query: type[msgspec.Struct] = NoQuery
    errors: tuple[type[LannerError], ...] = ()
    tag: str = "v1"
    status: int = 200
    description: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # request headers that mean something: name → what
    deadline_ms: int = CALL_DEADLINE_MS
    content_type: str = "application/json"

    @property
    def name(self) -> str:
        return self.handler.__name__
