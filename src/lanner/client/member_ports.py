"""The ports of a member: the home that hears it, the worker whose partitions it has, and the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from lanner.client.assignments import Granted, Seen, View
from lanner.errors import LannerError
from lanner.model import TopicPartition

Callback = Callable[[list[TopicPartition]], Awaitable[None] | None]


class Callbacks(NamedTuple):
    """What the application wants to be told; each may be a coroutine function."""

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None  # before the commit and the release
    on_lost: Callback | None = None  # nothing of it may be committed


class Standing(NamedTuple):
    """As which member of its group somebody asks, and what that member has seen."""

    member_id: str = ""  # empty: as none
    number: int = 0
    generation: int = 0
    incarnation: int = 0  # of the topic


class Told(NamedTuple):
    """A home's answer."""

    view: View | None  # None: nothing has changed
    session_ms: int
    confirmed_ms: int = 0  # so long ago the leader of the metadata heard this home; -1: never
    shared: bool = False  # nobody owns a partition: every member polls all of them


class Home(Protocol):
    """Where members are heard: any broker."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection to the brokers was closed on this side: nobody is heard any more."""
        ...

    async def join(self, member_id: str) -> Told: ...
    async def heartbeat(
        self, member_id: str, seen: Seen, released: Sequence[Granted], wait_ms: int, elsewhere: bool
    ) -> Told: ...
    async def leave(self, member_id: str, reason: str) -> None: ...
    async def claim(
        self, member_id: str, seen: Seen, granted: Sequence[Granted]
    ) -> Mapping[Granted, int | LannerError]:
        """Where to begin in each partition, or why it cannot be had."""
        ...


class Worker(Protocol):
    """The consumer or reader of a member."""

    def begin(self, one: Granted, offset: int) -> None:
        """Hand out messages of this partition from now on."""

    def pause(self, one: Granted) -> None:
        """Hand out nothing more of it for now."""

    def resume(self, one: Granted) -> None:
        """Go on: the move was called off."""

    def drop(self, one: Granted) -> None:
        """It is another member's."""

    async def commit(self, given_up: Sequence[Granted]) -> Mapping[Granted, LannerError]:
        """Record how far the application came; returns with the commits' answers: those that were refused."""
        ...

    def interrupt(self) -> None:
        """There is something to attend to: end the present wait for messages."""


NO_CALLBACKS: Final = Callbacks()
NO_MEMBER: Final = Standing()
