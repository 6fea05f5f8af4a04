"""What an assignor is asked, and what it answers.

A *question* holds the members that may own partitions, the topics that they want, and who has what at present (the
member that is to follow, else the owner). The answer names one member for each partition. An assignor reads nothing
else: no clock, no chance, and no order but that of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from lanner.model import TopicPartitionId


class Subscriber(NamedTuple):
    """One member of the group. A higher number has joined later."""

    number: int
    topics: frozenset[int]  # incarnations
    rack: str = ""


class Question(NamedTuple):
    subscribers: tuple[Subscriber, ...]
    topics: Mapping[int, int]  # incarnation → how many partitions
    present: Mapping[TopicPartitionId, int]  # partition → number of the member that has it, or is to have it
    racks: Mapping[TopicPartitionId, frozenset[str]] = {}  # partition → racks that hold a copy of it

    def ranked(self) -> list[Subscriber]:
        """The subscribers in the order in which they joined."""
        return sorted(self.subscribers)

    def partition_ids(self) -> list[TopicPartitionId]:
        """Every partition that some member wants, in order."""
        wanted: set[int] = set().union(*(one.topics for one in self.subscribers))
        return [(topic, at) for topic in sorted(wanted & self.topics.keys()) for at in range(self.topics[topic])]


Answer = dict[TopicPartitionId, int]
Assignor = Callable[[Question], Answer]
