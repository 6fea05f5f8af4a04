"""The shapes of FalconQ's calls, in FalconQ's spelling (`partitionID`, `Offset`, `v`, `p`)."""

# ruff: noqa: N815 (FalconQ's names are FalconQ's)

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from lanner import limits
from lanner.api.rest.shapes import Encoding, KeyText, Name, NextPlace, Offset, PartitionId, PriorityIn, Shape, Text


class PublishRequest(Shape, kw_only=True):
    message: Annotated[Text, Meta(description="The value; any text, also an empty one.")]
    priority: PriorityIn | UnsetType = UNSET
    partitionKey: Annotated[KeyText, Meta(description="Messages of one key keep their order.")] | UnsetType = UNSET
    encoding: Encoding | UnsetType = UNSET


class PublishReply(Shape, kw_only=True):
    status: str
    topic: str
    partitionID: int
    offset: int
    priority: str | int


class ConsumeQuery(Shape, kw_only=True):
    consumerID: Annotated[str, Meta(min_length=1, max_length=limits.NAME_LENGTH_MAX)]
    batch: Annotated[int, Meta(ge=1, le=limits.POLL_MESSAGES_MAX)] = 1
    partitionID: PartitionId | UnsetType = UNSET


class PeekQuery(Shape, kw_only=True):
    offset: Offset = 0
    batch: Annotated[int, Meta(ge=1, le=limits.LIST_ITEMS_MAX)] = 1
    partitionID: PartitionId | UnsetType = UNSET
    after: (
        Annotated[str, Meta(pattern=r"^[0-9]/[0-9]{1,3}/[0-9]{1,15}$", description="`next` of the page before.")]
        | UnsetType
    ) = UNSET


class FalconMessage(Shape, kw_only=True):
    v: Annotated[str, Meta(description="The value, as text; base64 when `encoding` says so.")]
    p: Annotated[str | int, Meta(description="The priority's name where it has one, else its number.")]
    Offset: int
    partitionID: int
    id: str
    encoding: Literal["base64"] | UnsetType = UNSET


class ConsumeReply(Shape, kw_only=True):
    topic: str
    consumerID: str
    partitionID: int | UnsetType = UNSET
    startOffset: Annotated[int, Meta(description="The lowest offset in this reply; nextOffset when it is empty.")]
    nextOffset: Annotated[
        int,
        Meta(
            description="The lowest offset that this consumer has not consumed yet. For information: "
            "progress is kept by the broker, and no call needs this number back."
        ),
    ]
    count: int
    messages: list[FalconMessage]


class PeekReply(Shape, kw_only=True):
    topic: str
    partitionID: int | UnsetType = UNSET
    startOffset: Annotated[int, Meta(description="The offset asked for.")]
    nextOffset: Annotated[int, Meta(description="The first offset at or after it that this reply does not show.")]
    count: int
    messages: list[FalconMessage]
    next: NextPlace | UnsetType = UNSET


class FalconPartition(Shape, kw_only=True):
    id: int
    leader: Annotated[str, Meta(description="The node id of the broker that leads the partition.")]
    leaderName: str
    replicas: Annotated[list[str], Meta(description="Names of the brokers that have a copy.")]
    firstOffset: int
    endOffset: int
    highCount: int
    lowCount: int
    totalCount: int


class PartitionRef(Shape, kw_only=True):
    id: int


class PartitionsReply(Shape, kw_only=True):
    topic: str
    partitions: list[FalconPartition]
    activePartitions: list[PartitionRef]
    configuredPartitions: int
    partitionKeyStrategy: str


class RaftStatsQuery(Shape, kw_only=True):
    topic: Name
    partitionID: PartitionId = 0
