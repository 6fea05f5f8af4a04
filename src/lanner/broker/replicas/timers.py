"""Timers of partitions: when each has something to do because time passes (leases end, delays, retention)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush

from lanner.broker.replicas.replica import Replica
from lanner.model import HoldFullPolicy, TopicSettings
from lanner.partition import Partition


class Timers:
    """The next due time of each partition. A machine is asked for it again only after something happened to it."""

    def __init__(self) -> None:
        self._known: list[tuple[int, int]] = []  # (when, set), the earliest first; some are out of date
        self._unknown: dict[int, Replica] = {}
        self._disk_short = False

    def reschedule(self, replica: Replica) -> None:
        """Ask the machine at the next `take` when it is due: something happened to it."""
        self._unknown[replica.set_id] = replica

    def note_disk(self, short: bool, replicas: Iterable[Replica]) -> None:
        """Take note of whether the disk runs short. Then holds give way, where their topics want that."""
        if short != self._disk_short:
            self._disk_short = short
            for replica in replicas:
                if isinstance(replica.machine, Partition):
                    self.reschedule(replica)

    def settings_now(self, settings: TopicSettings) -> TopicSettings:
        """Return a topic's settings as they hold now: holds give way on a short disk."""
        if self._disk_short and settings.hold_for and settings.hold_full is HoldFullPolicy.RELEASE:
            return replace(settings, hold_ms_max=1)  # whatever retention wants may go
        return settings

    def forget(self, set_id: int) -> None:
        self._unknown.pop(set_id, None)

    def take(
        self, now_ms: int, settings_of: Callable[[int], TopicSettings], owned_of: Callable[[int], Container[str]]
    ) -> Iterator[int]:
        """Yield the sets that may have something to do by now, each once; perhaps one that is no longer there."""
        known = self._known
        for set_id, replica in self._unknown.items():
            due_ms = replica.partition.next_due_ms(settings_of(set_id), now_ms, owned_of(set_id))
            if due_ms is not None:
                heappush(known, (due_ms, set_id))
        self._unknown.clear()
        while known and known[0][0] <= now_ms:
            yield heappop(known)[1]


__all__ = ["Timers"]
