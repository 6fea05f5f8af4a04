"""A group with members, driven by the commands of the metadata: what a coordinator would propose, the test says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lanner.cluster import (
    Altered,
    Assigned,
    Changed,
    Expired,
    Joined,
    Left,
    Moves,
    Released,
    encode_change_groups,
)
from lanner.cluster.grouped import Group
from lanner.errors import LannerError
from lanner.model import GroupKind
from lanner.testing.flock import Flock
from lanner.wire.members import ClaimPartitions
from lanner.wire.messages import Commit, Fetch, Poll


class Crew:
    """The members of one group on one topic, as the newest metadata has them."""

    def __init__(self, flock: Flock, topic: str = "orders", group: str = "g", kind: str = "stream") -> None:
        self.flock, self.topic, self.name, self.kind = flock, topic, group, GroupKind(kind)
        flock.coordinating = False

    @property
    def group(self) -> Group:
        found = self.flock.metadata.group(self.name)
        assert found is not None
        return found

    @property
    def incarnation(self) -> int:
        return self.flock.metadata.topics[self.topic].incarnation

    @property
    def seen(self) -> tuple[int, int]:
        return self.group.row.number, self.group.row.generation

    def change(self, change: Any) -> Any:
        """One change, and what it came to."""
        (result,) = self.flock.command(encode_change_groups([change], self.flock.now_ms)).results
        if isinstance(result, LannerError):
            raise result
        return result

    def join(self, *members: str, assignor: str = "sticky") -> None:
        for member in members:
            self.change(Joined(self.name, self.kind, member, (self.topic,), assignor=assignor))

    def leave(self, member: str) -> None:
        self.change(Left(self.name, member))

    def expire(self, member: str) -> None:
        """The leader of the metadata has not heard of it for too long."""
        self.change(Expired(self.group.row.number, self.group.ids[member], 10_000))

    def assign(self, moves: Mapping[int, str]) -> None:
        """Who is to have which partition."""
        group = self.group
        to = tuple(group.ids[member] for member in moves.values())
        self.change(Assigned(group.row.number, group.row.version, (Moves(self.incarnation, tuple(moves), to),)))

    def release(self, member: str, partition: int) -> None:
        _, grant, _ = self.group.owner_of((self.incarnation, partition))
        self.change(Released(self.group.row.number, member, self.incarnation, partition, grant))

    def touch(self) -> tuple[int, int]:
        made = self.change(Altered(self.name))
        assert isinstance(made, Changed)
        return made.number, made.generation

    def alter(self, assignor: str) -> None:
        self.change(Altered(self.name, assignor))

    # ------------------------------------------------------------------ what members call

    def claim(self, member: str, *partitions: int, seen: tuple[int, int] | None = None) -> ClaimPartitions:
        word = self.seen if seen is None else seen
        return ClaimPartitions(self.topic, self.name, member, *word, self.incarnation, list(partitions))

    def commit(
        self, member: str, offsets: dict[int, int], sequence: int, seen: tuple[int, int] | None = None, **more: Any
    ) -> Commit:
        number, generation = self.seen if seen is None else seen
        return Commit(
            self.name,
            self.topic,
            offsets,
            member,
            sequence,
            member_id=member,
            number=number,
            generation=generation,
            incarnation=self.incarnation,
            **more,
        )

    def fetch(self, member: str, partition: int, seen: tuple[int, int] | None = None, **more: Any) -> Fetch:
        number, generation = self.seen if seen is None else seen
        return Fetch(
            self.topic, partition, 0, group=self.name, member_id=member, number=number, generation=generation, **more
        )

    def poll(
        self, member: str, *partitions: int, sequence: int = -1, seen: tuple[int, int] | None = None, **more: Any
    ) -> Poll:
        number, generation = self.seen if seen is None else seen
        return Poll(
            self.name,
            self.topic,
            member,
            sequence,
            list(partitions) or None,
            member_id=member,
            number=number,
            generation=generation,
            **more,
        )
