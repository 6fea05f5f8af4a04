"""The ports of a broker: what one part of it asks of another, each a few methods wide.

A constructor takes the ports that it uses, never the whole node, so a test can stand in for each of them with a class
of a few lines. What implements a port does not know it: `Node` puts the parts together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from lanner import cluster, partition
from lanner.wire.connection import Reply
from lanner.wire.messages import AnswerT, Asked, Command

Result = TypeVar("Result")

Applied = partition.Result | cluster.Result  # what applying one entry of a log came to
Kick = Callable[[], None]  # something may be waiting: pump the engine at the end of this turn of the loop
Fail = Callable[[Exception], None]  # this broker cannot go on, for this reason
Spawn = Callable[[Coroutine[Any, Any, object]], None]  # run this beside everything else, until the broker stops


class Clock(Protocol):
    """Tell the time in milliseconds since 1970, UTC."""

    def now_ms(self) -> int: ...


class RunInThread(Protocol):
    """Run work that may block in a thread, and wait for its result."""

    def __call__(self, work: Callable[[], Result]) -> Awaitable[Result]: ...


class PayloadReader(Protocol):
    """Read what is stored, without blocking the loop."""

    async def in_reader(self, work: Callable[[], Result]) -> Result:
        """Run work that may block on the disk, or on much computing, in a reader thread."""

    async def payloads(self, wanted: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Return the payloads of (set, index) pairs; None for one that retention has taken."""


class Leaders(Protocol):
    """Know who leads."""

    def leader_of(self, set_id: int) -> str:
        """Return the node id of the broker that serves a replica set now; empty while none is known."""


class PeerCalls(Protocol):
    """Reach other brokers."""

    def is_alive(self, node_id: str) -> bool:
        """Return whether the broker was heard a moment ago; this broker itself always is."""

    async def call(
        self,
        node_id: str,
        command: Command,
        control: Asked[AnswerT],
        bulk: Sequence[bytes | memoryview] = (),
        *,
        timeout_ms: int,
        caller: str = "",
    ) -> Reply[AnswerT]:
        """Send one request to that broker, and return its answer; name the caller of a request that is passed on."""


class Addresses(Protocol):
    """Know where other brokers are."""

    def address_of(self, node_id: str) -> tuple[str, int] | None:
        """Return the likeliest address of a broker's native door; None when none is known."""


class Peering(PeerCalls, Addresses, Protocol):
    """Know and reach other brokers."""


class Belonging(Protocol):
    """Know the cluster that this broker belongs to."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty until this broker belongs to one."""


class Proposer(Protocol):
    """Change the metadata."""

    async def propose(self, command: bytes, timeout_ms: int = 10_000) -> Applied:
        """Put a command into the metadata's log, wherever it is led; its result once it has applied on this broker."""


class Conditions(Protocol):
    """Wait for what commits, messages or time may bring about."""

    async def until(self, condition: Callable[[], bool], timeout_ms: int) -> None:
        """Return when the condition holds; DeadlineExceeded when it does not in time."""


__all__ = [
    "Addresses",
    "Belonging",
    "Clock",
    "Conditions",
    "Fail",
    "Kick",
    "Leaders",
    "PayloadReader",
    "PeerCalls",
    "Peering",
    "Proposer",
    "Result",
    "RunInThread",
    "Spawn",
]
