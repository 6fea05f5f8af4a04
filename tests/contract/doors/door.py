"""What a door is to the contract suite: the calls in the words of the suite, whatever shape they travel in.

An adapter passes on what it is given and checks nothing, so that the broker refuses what is wrong. It keeps the names
of what it asked, as its users know them, and raises the error of the catalogue that the broker told. A door that tells
an error in another way than the catalogue says (another status, another number) fails the suite here.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from lanner.errors import LannerError, catalogue

BY_NAME = {kind.__name__: kind for kind in catalogue().values()}


class New(NamedTuple):
    """A message as it is published."""

    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = {}
    priority: int | str | None = None
    partition: int | None = None
    delay_ms: int = 0
    ttl_ms: int = 0


class Stored(NamedTuple):
    partition: int
    offset: int
    duplicate: bool = False


class Seen(NamedTuple):
    """A message as it is read."""

    partition: int
    offset: int
    value: bytes
    key: bytes | None
    headers: Mapping[str, bytes]
    priority: int


class Leased(NamedTuple):
    message: Seen
    token: int
    attempt: int


class Settled(NamedTuple):
    count: int
    error: str = ""


class Page(NamedTuple):
    """What a fetch brought."""

    messages: list[Seen]
    first_offset: int
    end_offset: int
    next_offset: int


class Dead(NamedTuple):
    partition: int
    offset: int
    value: bytes
    attempts: int
    reason: str


class PartitionDepth(NamedTuple):
    """How one partition of a topic stands."""

    first_offset: int
    end_offset: int
    depth: Mapping[int, int]


class Topic(NamedTuple):
    name: str
    settings: Mapping[str, str]
    partitions: list[PartitionDepth]


class Group(NamedTuple):
    """How a group stands, over all partitions."""

    kind: str
    lag: int
    ready: int
    leased: int
    waiting: int
    dead: int


class Grant(NamedTuple):
    """A partition that a member has."""

    topic: str
    incarnation: int
    partition: int
    grant: int


class View(NamedTuple):
    """What a member has."""

    member_id: str
    number: int
    generation: int
    session_ms: int
    assignor: str
    shared: bool
    news: bool
    held: list[Grant]
    revoked: list[Grant]

    @property
    def seen(self) -> dict[str, Any]:
        """What a call of the member says of itself."""
        return {"member_id": self.member_id, "number": self.number, "generation": self.generation}

    @property
    def partitions(self) -> list[int]:
        return [one.partition for one in self.held]


class Claimed(NamedTuple):
    partition: int
    error: str
    offset: int = 0
    committed: bool = False


class Member(NamedTuple):
    """A member as operators see it."""

    member_id: str
    instance: str
    client: str
    door: str
    held: list[tuple[str, int, int]]  # topic, first and last partition


class Members(NamedTuple):
    kind: str
    assignor: str
    generation: int
    session_ms: int
    revoke_ms: int
    state: str
    count: int
    members: list[Member]
    reasons: list[str]  # of the rebalances
    next: int


class Door(ABC):
    """One door of one broker, or of a proxy before it."""

    name: ClassVar[str]
    served: ClassVar[Mapping[str, str]]  # call → what it is called here

    def __init__(self, address: str) -> None:
        self.address = address
        self.place = "broker"  # whose door it is: or "proxy"
        self.asked: set[str] = set()

    def connect(self) -> socket.socket:
        """A connection of one's own, to say what no client would."""
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=10)

    @abstractmethod
    def close(self) -> None: ...

    # ------------------------------------------------------------------ messages

    @abstractmethod
    def publish(self, topic: str, *messages: New, idempotency_key: str = "") -> list[Stored]: ...

    @abstractmethod
    def poll(self, topic: str, group: str, **wanted: Any) -> list[Leased]: ...

    @abstractmethod
    def settle(self, kind: str, topic: str, group: str, leases: Sequence[Leased], **more: Any) -> list[Settled]: ...

    @abstractmethod
    def peek(self, topic: str, **wanted: Any) -> list[Seen]: ...

    @abstractmethod
    def fetch(self, topic: str, partition: int, offset: int, **wanted: Any) -> Page: ...

    @abstractmethod
    def commit(self, topic: str, group: str, offsets: Mapping[int, int], **more: Any) -> None: ...

    @abstractmethod
    def committed(self, topic: str, group: str) -> Mapping[int, int]: ...

    @abstractmethod
    def seek(self, topic: str, group: str, **to: Any) -> None: ...

    # ------------------------------------------------------------------ dead letters

    @abstractmethod
    def list_dead(self, topic: str, group: str, **wanted: Any) -> tuple[list[Dead], int]: ...

    @abstractmethod
    def redrive(self, topic: str, group: str, **chosen: Any) -> int: ...

    @abstractmethod
    def discard(self, topic: str, group: str, **chosen: Any) -> int: ...

    # ------------------------------------------------------------------ topics, groups, the cluster

    @abstractmethod
    def create_topic(self, name: str, **settings: Any) -> Topic: ...

    @abstractmethod
    def alter_topic(self, name: str, **settings: Any) -> Topic: ...

    @abstractmethod
    def delete_topic(self, name: str) -> None: ...

    @abstractmethod
    def describe_topic(self, name: str) -> Topic: ...

    @abstractmethod
    def list_topics(self) -> list[str]: ...

    @abstractmethod
    def list_groups(self, topic: str) -> list[str]: ...

    @abstractmethod
    def describe_group(self, topic: str, group: str) -> Group: ...

    @abstractmethod
    def drop_group(self, topic: str, group: str) -> None: ...

    @abstractmethod
    def describe_cluster(self) -> tuple[str, list[str]]:
        """The cluster's id and the names of its brokers."""

    # ------------------------------------------------------------------ members of groups

    @abstractmethod
    def join_group(self, group: str, *topics: str, **wanted: Any) -> View: ...

    @abstractmethod
    def heartbeat(self, group: str, view: View, released: Sequence[Grant] = (), wait_ms: int = 0) -> View: ...

    @abstractmethod
    def leave_group(self, group: str, member_id: str, **more: Any) -> None: ...

    @abstractmethod
    def claim_partitions(
        self, topic: str, group: str, view: View, partitions: Sequence[int], **more: Any
    ) -> list[Claimed]: ...

    @abstractmethod
    def list_members(self, group: str, **wanted: Any) -> Members: ...

    @abstractmethod
    def alter_group(self, group: str, **changes: Any) -> int:
        """The generation that it begins."""

    @abstractmethod
    def evict_member(self, group: str, member_id: str, **more: Any) -> None: ...

    # ------------------------------------------------------------------ what not every door serves

    def list_clients(self, group: str) -> list[str]:
        """The doors of the connections that use a group."""
        raise NotImplementedError

    def offsets(self, topic: str, time_ms: int = -1) -> list[tuple[int, int, int]]:
        """First and end offset of each partition, and the first one appended at the time; -1: not asked."""
        raise NotImplementedError

    def describe_partitions(self, topic: str) -> list[tuple[int, int]]:
        """Partition and number of replicas."""
        raise NotImplementedError

    def change_cluster(self, action: str, **wish: Any) -> None:
        raise NotImplementedError

    def raft_status(self, topic: str, partition: int) -> Mapping[str, Any]:
        raise NotImplementedError


def told(name: str, message: str, details: Mapping[str, Any], /, **as_told: Any) -> LannerError:
    """The error that a door told; `as_told` must be what the catalogue says of it (`http_status`, `code`, ...)."""
    kind = BY_NAME[name]
    for what, value in as_told.items():
        assert value == getattr(kind, what), f"{name} was told with {what} {value}, not {getattr(kind, what)}"
    assert message, f"{name} was told without a message"
    return kind(message, **{str(key): value for key, value in details.items()})
