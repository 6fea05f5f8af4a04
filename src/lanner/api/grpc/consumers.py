"""Queue's consumers that connected to this broker: which group each reads for.

Queue's calls name a consumer and not its group, so the door remembers what Connect said. It is remembered here only: a
consumer that goes on at another broker connects there as well. Nothing else hangs on it. Groups, leases and acks are in
the partitions' logs, and every consumer may receive from every partition of its topics.

When there are too many, the one that was silent for the longest is forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from lanner import limits
from lanner.errors import NotFoundError


@dataclass(slots=True)
class Consumer:
    """One consumer, as it connected."""

    id: str
    group: str
    topics: tuple[str, ...]
    heard_ms: int


class Consumers:
    """The consumers by id, the longest silent first."""

    def __init__(self, count_max: int = limits.GRPC_CONSUMERS_MAX) -> None:
        self._count_max = count_max
        self._known: OrderedDict[str, Consumer] = OrderedDict()

    def connect(self, consumer_id: str, group: str, topics: Sequence[str], now_ms: int) -> Consumer:
        """Remember a consumer; the latest word of it counts."""
        consumer = self._known[consumer_id] = Consumer(consumer_id, group, tuple(topics), now_ms)
        self._known.move_to_end(consumer_id)
        if len(self._known) > self._count_max:
            self._known.popitem(last=False)
        return consumer

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
