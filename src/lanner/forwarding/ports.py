"""What forwarding asks of the place where it stands: a broker, or a proxy, which holds nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Protocol, TypeVar

from lanner.calls import Action, Answer, Bulk, Identity
from lanner.errors import NotLeader
from lanner.model import TopicSettings
from lanner.wire.messages import AnswerT, Call

Result = TypeVar("Result")


class KnownTopic(Protocol):
    """A topic as it is known where a call enters."""

    @property
    def name(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def settings(self) -> TopicSettings: ...
    @property
    def set_ids(self) -> tuple[int, ...]:
        """A number for each partition, which no other partition has: on a broker its replica set; it never changes."""


class Here(Protocol):
    """Serve what is served where a call enters."""

    @property
    def own(self) -> Identity:
        """Who works here for several callers, or for none."""

    @property
    def draining(self) -> bool: ...

    def check(self, identity: Identity, call: Call[AnswerT]) -> None:
        """Raise what stands against this call of this caller, as its row says."""

    def admit(self, identity: Identity, action: Action, topics: Iterable[str]) -> None:
        """The same, for an action on topics."""

    async def handle(self, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Serve a call here, for somebody who was checked."""

    def find_topic(self, name: str) -> KnownTopic:
        """Return the topic as it is known here; TopicNotFound when it is not."""


class Map(Protocol):
    """Know which broker serves which partition."""

    @property
    def node_id(self) -> str:
        """The broker that stands here; empty: none does."""

    @property
    def live_sets(self) -> Container[int]:
        """The numbers of the partitions that are there."""

    def leader_of(self, set_id: int) -> str:
        """Return the node id of the broker that serves a partition now; empty while none is known."""

    def not_leader(self, topic: KnownTopic, partition: int) -> NotLeader:
        """The error of a call that was not served because of who leads."""

    async def hear_of(self, topics: Iterable[str]) -> None:
        """Ask about topics that are not known here: they may have been made a moment ago, elsewhere."""

    async def catch_up(self) -> None:
        """Know what the metadata's leader knew when this was called; go on with what is known if it does not answer."""


class Hops(Protocol):
    """Reach other brokers."""

    async def serve_at(
        self, node_id: str, identity: Identity, call: Call[AnswerT], bulk: Bulk, timeout_ms: int
    ) -> Answer[AnswerT]:
        """Have that broker serve a call, or refuse it: one hop, never two. Nothing is repeated."""


class Reader(Protocol):
    """Run what takes a while beside the loop."""

    async def in_reader(self, work: Callable[[], Result]) -> Result:
        """Run work that may block on the disk, or on much computing, in a thread."""


__all__ = ["Here", "Hops", "KnownTopic", "Map", "Reader"]
