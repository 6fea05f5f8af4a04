"""What a door asks of what stands behind it: a broker's service, or a proxy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from lanner.calls import Answer, Bulk, Identity
from lanner.forwarding.unpacking import Handed
from lanner.forwarding.values import NewMessage, Placed
from lanner.wire.connection import Request
from lanner.wire.messages import AnswerT, Call, Control, PeerHello, Poll, Publish
from lanner.wire.staging import Stage

Result = TypeVar("Result")
Facts = TypeVar("Facts", covariant=True)
Appended = tuple[int, int, int, bool]  # base offset, count, append time, whether it repeats
Staged = tuple[int, int, bool]  # number of the batch, its count, whether it repeats


class Readiness(Protocol):
    """Whether callers should come."""

    @property
    def ready(self) -> bool: ...
    @property
    def refusal(self) -> str:
        """Why callers should go elsewhere; empty: they should come."""

    @property
    def status(self) -> str:
        """What callers that come may know."""


class Pending(Protocol[Facts]):
    """What becomes of a batch, once that is known: a future, of which a door sees no more than this."""

    def add_done_callback(self, told: Callable[[Pending[Facts]], object], /) -> None: ...
    def cancelled(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def result(self) -> Facts: ...


class Service(Protocol):
    """Everything that doors ask for."""

    @property
    def node_id(self) -> str: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def readiness(self) -> Readiness: ...
    @property
    def stopped_partitions(self) -> dict[str, str]:
        """Partitions that cannot go on here, with the reasons."""

    async def ask(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Answer a call from wherever it can be answered."""

    async def serve(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Answer a call that its caller brought to the right place."""

    def publish(self, identity: Identity, call: Publish, data: bytes | memoryview) -> Pending[Appended]:
        """Append one encoded batch."""

    def stage(self, identity: Identity, asked: Stage, data: bytes | memoryview) -> Pending[Staged]:
        """Stage one encoded batch."""

    async def ensure_topic(self, identity: Identity, name: str) -> None:
        """Make a topic if it is missing and may be made so."""

    async def publish_messages(self, identity: Identity, topic: str, messages: Sequence[NewMessage]) -> Placed:
        """Publish individual messages in as few batches as possible; where each went, in the order given."""

    async def poll_messages(self, identity: Identity, call: Poll) -> Handed:
        """A poll, decoded: for doors whose callers cannot read batches."""

    async def in_reader(self, work: Callable[[], Result]) -> Result:
        """Run what takes a while in a thread."""

    def metrics(self) -> list[str]:
        """Lines of the text exposition, about everything but doors."""


class PeerInbox(Protocol):
    """What other brokers say to the broker behind a native door."""

    @property
    def open_to_clients(self) -> bool: ...

    def greet(self, peer: PeerHello) -> None:
        """Take the greeting of another broker; raise an error if it may not connect."""

    def is_peer(self, hello: PeerHello) -> bool:
        """Whether a broker with this greeting may say for which caller it passes a call on."""

    def take(self, peer: PeerHello, request: Request) -> None:
        """Take a frame that is not answered. What this raises ends the connection."""

    async def answer(self, peer: PeerHello, request: Request) -> Control:
        """Answer what brokers ask each other."""


__all__ = ["PeerInbox", "Readiness", "Service"]
