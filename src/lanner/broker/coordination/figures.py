"""What is counted of groups on one broker.

Counters begin with the broker. What a coordinator does is counted while this broker leads the metadata; so over all
brokers each thing is counted once, and what the present leader says of single groups is said by no other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lanner.cluster import Assigned, Change, Changed, Expired, Forced, Group
from lanner.cluster.coordinating import Coordinator
from lanner.cluster.grouped import NOBODY

GROUPS_TOLD_MAX: Final = 1_000  # that are told by name: each costs the system that collects the figures
SILENT, OPERATOR = "silent", "operator"
_REASONS: Final = (
    (re.compile(r"^topic \S+ (was|has) "), "topic"),
    (re.compile(r"^the assignor is now "), "assignor"),
    (re.compile(r"^\S+( \(\S+\))? (joined|came back)$"), "joined"),
    (re.compile(r"^\S+ left\b"), "left"),
    (re.compile(r"^\S+ silent for "), SILENT),
    (re.compile(r"^\S+ gave up "), "released"),
)
REASONS: Final = tuple(dict.fromkeys(kind for _, kind in _REASONS))


class GroupFigures(NamedTuple):
    """Figures of one group, where the metadata is led."""

    name: str
    members: int
    generation: int
    unowned: int  # partitions that a member wants and nobody owns
    waiting: int  # partitions that wait for their owners to give them up
    silent_ms: int  # of the member that was not heard for longest


class Figures(NamedTuple):
    groups: Sequence[GroupFigures]  # where the metadata is led; else none
    counts: Counter[str]


class Counts:
    """The counters."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._ended: dict[int, tuple[int, str]] = {}  # group → the latest rebalance that was seen to have ended

    def begin(self, groups: Iterable[Group]) -> None:
        """This broker begins to coordinate: what ended before is not counted here."""
        self._ended.clear()
        for group in groups:
            self._note_ended(group)

    def proposed(self, size: int) -> None:
        self.counts["records_bytes"] += size

    def assigned(self, seconds: float) -> None:
        self.counts["assignments"] += 1
        self.counts["assign_us"] += round(seconds * 1e6)

    def evicted(self, reason: str) -> None:
        self.counts[f"evicted_{reason}"] += 1

    def took_effect(self, change: Change, result: object, group: Group | None) -> None:
        """One change of the coordinator has applied; its group as it is now, None if that is gone."""
        if not isinstance(result, Changed) or group is None:
            return
        match change:
            case Expired():
                self.evicted(SILENT)
            case Forced():
                self.counts["forced"] += 1
            case Assigned():
                self.counts["moved"] += sum(len(one.partitions) for one in change.moves)
                self.counts[f"rebalances_{kind_of(group.row.reason)}"] += 1

    def changed(self, groups: Iterable[Group]) -> None:
        """These groups have changed, while this broker coordinates."""
        for group in groups:
            ended_ms = self._note_ended(group)
            if ended_ms >= 0:
                self.counts["handovers"] += 1
                self.counts["handover_ms"] += ended_ms

    def forget(self, numbers: Iterable[int]) -> None:
        """These groups are gone."""
        for number in numbers:
            self._ended.pop(number, None)

    def _note_ended(self, group: Group) -> int:
        """Return how long the latest rebalance took, once; -1: it goes on, or was seen before."""
        last = group.row.rebalances[-1] if group.row.rebalances else None
        if last is None or not last.ended_ms or self._ended.get(group.row.number) == (last.begun_ms, last.reason):
            return -1
        self._ended[group.row.number] = last.begun_ms, last.reason
        return max(0, last.ended_ms - last.begun_ms)


def kind_of(reason: str) -> str:
    """What kind of reason the metadata gives for another version of a group's question."""
    return next((kind for pattern, kind in _REASONS if pattern.search(reason)), "other")


def figures_of(group: Group, coordinator: Coordinator) -> GroupFigures:
    unowned = 0 if group.shared else sum(group.owners[topic].owners.count(NOBODY) for topic in group.topics())
    return GroupFigures(
        group.row.name,
        len(group.members),
        group.row.generation,
        unowned,
        sum(map(len, group.inherited.values())),
        max((coordinator.silent_ms(member) or 0 for member in group.members), default=0),
    )


__all__ = [
    "GROUPS_TOLD_MAX",
    "OPERATOR",
    "REASONS",
    "SILENT",
    "Counts",
    "Figures",
    "GroupFigures",
    "figures_of",
    "kind_of",
]
