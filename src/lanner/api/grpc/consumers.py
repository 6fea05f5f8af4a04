"""Queue's consumers that connected to this broker: which group each reads for, and as which member.

Queue's calls name a consumer and not its group, so the door remembers what Connect said. It is remembered here only: a
consumer that goes on at another broker connects there as well. Nothing else hangs on it. Members, leases and acks are
in the logs of the metadata and of the partitions.

When there are too many, the one that was silent for the longest is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from lanner import limits
from lanner.errors import NotFoundError
from lanner.wire.members import MemberView


@dataclass(slots=True)
class Consumer:
    """One consumer, as it connected."""

    id: str
    group: str
    topics: tuple[str, ...]
    heard_ms: int
    member_id: str = ""  # empty: the cluster's feature level knows no members yet
    number: int = 0  # of the group, and
    generation: int = 0  # of the latest view
    shared: bool = True  # every consumer may receive from every partition
    held: frozenset[tuple[str, int]] = frozenset()  # topics and partitions that are this consumer's

    def see(self, view: MemberView) -> None:
        """Take a view, if it is not older than the one before."""
        if view.news and (view.number, view.generation) >= (self.number, self.generation):
            self.number, self.generation, self.shared = view.number, view.generation, view.shared
            self.held = frozenset((one.topic, one.partition) for one in view.held)


class Consumers:
    """The consumers by id, the longest silent first."""

    def __init__(self, count_max: int = limits.GRPC_CONSUMERS_MAX) -> None:
        self._count_max = count_max
        self._known: OrderedDict[str, Consumer] = OrderedDict()

    def connect(self, consumer: Consumer) -> None:
        """Remember a consumer; the latest word of it counts."""
        self._known[consumer.id] = consumer
        self._known.move_to_end(consumer.id)
        if len(self._known) > self._count_max:
            self._known.popitem(last=False)

    def find(self, consumer_id: str) -> Consumer | None:
        return self._known.get(consumer_id)

    def forget(self, consumer: Consumer) -> None:
        """It is no member any more; unless it has connected anew meanwhile."""
        if self._known.get(consumer.id) is consumer:
            del self._known[consumer.id]

    def heard(self, consumer_id: str, now_ms: int) -> Consumer:
        """A consumer that calls."""
        consumer = self._known.get(consumer_id)
        if consumer is None:
            raise NotFoundError(
                f"consumer {consumer_id[:80]!r} is not connected to this broker: call Connect here first",
                consumer=consumer_id[:80],
            )
        consumer.heard_ms = now_ms
        self._known.move_to_end(consumer_id)
        return consumer

    def of_group(self, group: str) -> list[Consumer]:
        return sorted((one for one in self._known.values() if one.group == group), key=lambda one: one.id)
