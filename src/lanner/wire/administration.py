"""What operators ask: topics and their settings, groups, dead letters. One struct each, by the rules of `messages`."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from lanner import limits
from lanner.wire.messages import Call, Control, Empty, Id, Name, Number, OffsetsByPartition, PartitionId, Partitions


class CreateTopic(Call["TopicDescription"]):
    name: Name
    settings: dict[str, Any] = field(default_factory=dict)
    create_id: Id = ""  # chosen at random, and given again when this is repeated: then it gets its first answer


class AlterTopic(Call["TopicDescription"]):
    name: Name
    settings: dict[str, Any]


class DeleteTopic(Call[Empty]):
    name: Name
    partitions: Partitions | None = None  # means nothing: a topic goes whole


class DescribeTopic(Call["TopicDescription"]):
    name: Name
    partitions: Partitions | None = None


class ListGroups(Call["GroupsReply"]):
    name: Name  # of the topic
    partitions: Partitions | None = None


class ListTopics(Call["TopicNames"]):
    """The names of all topics, and no more. Brokers know it from release 0.4.0 on."""


class TopicNames(Control):
    names: list[str]  # sorted


class HoldState(Control):
    """How far behind a group is that retention waits for (`hold_for`), on one partition."""

    group: str
    offset: int  # it has read what lies before
    behind: int  # messages at or after it
    held_bytes: int  # of batches at or after it; of many, estimated


class PartitionState(Control):
    id: int
    leader: str
    first_offset: int
    end_offset: int
    bytes: int
    batches: int
    pinned_bytes: int
    depth: dict[int, int] = field(default_factory=dict)  # messages held, by priority
    holds: list[HoldState] = field(default_factory=list)


class TopicDescription(Control):
    name: str
    incarnation: int
    settings: dict[str, Any]
    partitions: list[PartitionState]


class DescribeGroup(Call["GroupDescription"]):
    topic: Name
    group: Name
    partitions: Partitions | None = None


class DropGroup(Call[Empty]):
    topic: Name
    group: Name
    partitions: Partitions | None = None


class GroupsReply(Control):
    groups: list[str]


class GroupPartition(Control):
    partition: int
    offset: int  # stream: the committed offset; queue: the lowest offset that is not settled
    lag: int  # messages not settled (queue) or not yet committed (stream)
    ready: int
    leased: int
    waiting: int  # for a retry
    dead: int
    depth: dict[int, int] = field(default_factory=dict)  # ready and never delivered, by priority
    oldest_ms: int = 0  # append time of the oldest unsettled message; 0: none
    oldest_age_ms: int = 0  # how long that one has been there, by the clock of the broker that answers


class GroupDescription(Control):
    topic: str
    group: str
    kind: str
    partitions: list[GroupPartition]

    @property
    def oldest_age_ms(self) -> int:
        """How long the oldest unsettled message of all partitions has been there; 0: there is none."""
        return max((part.oldest_age_ms for part in self.partitions), default=0)


class Seek(Call[Empty]):
    """Exactly one of offsets, time_ms, to ("earliest" | "latest")."""

    topic: Name
    group: Name
    offsets: OffsetsByPartition | None = None
    time_ms: Number | None = None
    to: Name | None = None
    partitions: Partitions | None = None
    force: bool = False  # also while the group has members: they go on from there. From feature level 5 on
    number: Number = 0  # brokers fill these in: of the group, and
    generation: Number = 0  # the one that was begun for a seek by force


class ListDead(Call["DeadLetters"]):
    topic: Name
    group: Name
    partition: PartitionId | None = None
    start_offset: Number = 0
    limit: Number = 100
    partitions: Partitions | None = None
    after: tuple[PartitionId, Number] | None = None  # DeadLetters.next of the last page


class DeadLetter(Control):
    partition: int
    offset: int
    priority: int
    attempts: int
    reason: str
    died_ms: int
    append_ms: int
    size: int  # of its extract in the bulk part (a batch of one message); 0 when the bytes are not sent


class DeadLetters(Control):
    """Bulk: the extracts one after the other."""

    letters: list[DeadLetter]
    total: int
    next: tuple[int, int] | None = None  # (partition, offset) of the next page; None: that was all


class RedriveDead(Call["CountReply"]):
    """Put dead letters back into their lanes. offsets None: every one of the group (or of the partition)."""

    topic: Name
    group: Name
    partition: PartitionId | None = None
    offsets: Annotated[list[Number], Meta(max_length=limits.SETTLE_RANGES_MAX)] | None = None
    partitions: Partitions | None = None


class DiscardDead(Call["CountReply"]):
    """Let go of dead letters for good. offsets None: every one of the group (or of the partition)."""

    topic: Name
    group: Name
    partition: PartitionId | None = None
    offsets: Annotated[list[Number], Meta(max_length=limits.SETTLE_RANGES_MAX)] | None = None
    partitions: Partitions | None = None


class CountReply(Control):
    count: int
