"""The bodies, queries and replies about groups: polls and settles, progress, and members."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field

from lanner import limits
from lanner.api.following import SESSION_MS
from lanner.api.rest.shapes import (
    DelayMs,
    Encoding,
    MessageOut,
    Name,
    Offset,
    PartitionId,
    PartitionOffsetsMap,
    Reason,
    Request,
    Shape,
    TimeMs,
    Token,
    WaitMs,
)

MEMBER_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "pattern": f"^[A-Za-z0-9._-]{{1,{limits.IDENTITY_LENGTH_MAX}}}$",
}
AssignorName = Annotated[
    Name,
    Meta(
        description="How the group shares its partitions out: sticky, range, round_robin, shared, or another that the "
        "brokers have."
    ),
]
MemberId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.IDENTITY_LENGTH_MAX,
        description="Of the member that calls, as its join answered it; absent: the caller has not joined the group.",
    ),
]
GroupNumber = Annotated[
    int,
    Meta(ge=0, le=limits.OFFSET_MAX, description="Of the group, as views tell it; absent or 0: the member's own."),
]
Generation = Annotated[
    int,
    Meta(
        ge=0, le=limits.OFFSET_MAX, description="Of the newest view that the member acts on; absent or 0: the latest."
    ),
]
SeenGeneration = Annotated[
    int, Meta(ge=1, le=limits.OFFSET_MAX, description="Of the newest view that the member acts on.")
]
SessionMs = Annotated[int, Meta(ge=limits.SESSION_MS_MIN, le=limits.SESSION_MS_MAX)]
Limit = Annotated[int, Meta(ge=1, le=limits.LIST_ITEMS_MAX)]

# ------------------------------------------------------------------ polls and settles


class PollRequest(Request, kw_only=True):
    max_messages: Annotated[int, Meta(ge=1, le=limits.POLL_MESSAGES_MAX)] = 10
    max_bytes: Annotated[int, Meta(ge=1, le=limits.POLL_BYTES_MAX)] = limits.MIB
    wait_ms: WaitMs = 0
    lease_ms: Annotated[int, Meta(ge=limits.LEASE_MS_MIN, le=limits.LEASE_MS_MAX)] | UnsetType = UNSET
    auto_ack: bool = False
    start: Literal["earliest", "latest"] = "earliest"
    partitions: (
        Annotated[
            list[PartitionId],
            Meta(
                min_length=1,
                max_length=limits.POLL_PARTITIONS_MAX,
                description="Absent: all, and for a member those that it holds.",
            ),
        ]
        | UnsetType
    ) = UNSET
    member_id: MemberId | UnsetType = UNSET
    number: GroupNumber = 0
    generation: Generation = 0


class LeasedMessage(MessageOut, kw_only=True):
    attempt: int
    token: Annotated[int, Meta(description="Settles the message, together with its partition and offset.")]
    lease_until_ms: int


class PollReply(Shape, kw_only=True):
    topic: str
    group: str
    count: int
    messages: list[LeasedMessage]


class SettleTarget(Request, kw_only=True):
    """A polled message; other fields of it may stay where they are. `count` takes in those right behind it."""

    partition: PartitionId
    offset: Offset
    token: Token
    count: Annotated[int, Meta(ge=1, le=limits.POLL_MESSAGES_MAX)] = 1
    id: Any = UNSET
    value: Any = UNSET
    encoding: Any = UNSET
    key: Any = UNSET
    key_encoding: Any = UNSET
    headers: Any = UNSET
    headers_encoding: Any = UNSET
    priority: Any = UNSET
    timestamp_ms: Any = UNSET
    deliver_at_ms: Any = UNSET
    expires_at_ms: Any = UNSET
    attempt: Any = UNSET
    lease_until_ms: Any = UNSET


class Settling(Request, kw_only=True):
    """What every settle names."""

    messages: Annotated[list[SettleTarget], Meta(min_length=1, max_length=limits.SETTLE_RANGES_MAX)]
    member_id: MemberId | UnsetType = UNSET


class AckRequest(Settling, kw_only=True):
    """They are done."""


class PlainTarget(Request, kw_only=True, gc=False):
    """What most acks name of a message. Reading it as this costs a quarter."""

    partition: PartitionId
    offset: Offset
    token: Token
    count: Annotated[int, Meta(ge=1, le=limits.POLL_MESSAGES_MAX)] = 1


class PlainAckRequest(Request, kw_only=True):
    messages: Annotated[list[PlainTarget], Meta(min_length=1, max_length=limits.SETTLE_RANGES_MAX)]
    member_id: MemberId | UnsetType = UNSET


class NackRequest(Settling, kw_only=True):
    delay_ms: Annotated[DelayMs, Meta(description="Until the retry; the topic's backoff unless given.")] | UnsetType = (
        UNSET
    )
    reason: Reason = ""


class ExtendRequest(Settling, kw_only=True):
    lease_ms: Annotated[int, Meta(ge=limits.LEASE_MS_MIN, le=limits.LEASE_MS_MAX)] | UnsetType = UNSET


class RejectRequest(Settling, kw_only=True):
    reason: Reason = ""


class SettledTarget(Shape, kw_only=True):
    partition: int
    offset: int
    count: Annotated[int, Meta(description="On how many messages it took effect.")]
    error: Annotated[str, Meta(description="A name of the error catalogue, such as LeaseLost.")] | UnsetType = UNSET


class SettleReply(Shape, kw_only=True):
    settled: int
    failed: int
    messages: list[SettledTarget]


# ------------------------------------------------------------------ progress


class GroupsReply(Shape, kw_only=True):
    topic: str
    groups: list[str]


class GroupPartition(Shape, kw_only=True):
    partition: int
    offset: int
    lag: int
    ready: int
    leased: int
    waiting: int
    dead: int
    depth: dict[str, int]
    oldest_age_ms: int


class GroupReply(Shape, kw_only=True):
    topic: str
    group: str
    kind: str
    lag: int
    ready: int
    leased: int
    waiting: int
    dead: int
    depth: Annotated[dict[str, int], Meta(description="Ready, by priority: new messages and those that are due again.")]
    oldest_age_ms: Annotated[int, Meta(description="How long the oldest unsettled message has been there; 0: none.")]
    partitions: list[GroupPartition]


class SeekRequest(Request, kw_only=True):
    """Exactly one of the three."""

    offsets: PartitionOffsetsMap | UnsetType = UNSET
    time_ms: TimeMs | UnsetType = UNSET
    to: Literal["earliest", "latest"] | UnsetType = UNSET
    force: Annotated[bool, Meta(description="Also while the group has members: they go on from there.")] = False


class CommitRequest(Request, kw_only=True):
    offsets: PartitionOffsetsMap
    reader: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=limits.IDENTITY_LENGTH_MAX,
            description="Whose commit this is: a name chosen at random. One that is sent again under the same sequence "
            "does nothing.",
        ),
    ] = ""
    sequence: Annotated[
        int,
        Meta(
            ge=0,
            le=limits.OFFSET_MAX,
            description="Of this reader's commits, rising; needed with a reader, and may be given by a member.",
        ),
    ] = -1
    member_id: MemberId | UnsetType = UNSET
    number: GroupNumber = 0
    generation: SeenGeneration | UnsetType = UNSET
    metadata: Annotated[
        dict[PartitionId, Annotated[str, Meta(max_length=limits.COMMIT_METADATA_BYTES_MAX * 4 // 3 + 4)]],
        Meta(
            max_length=limits.PARTITIONS_MAX,
            description="Text that is kept with the offset, by partition.",
            extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,2})$"}},
        ),
    ] = field(default_factory=dict)
    metadata_encoding: Encoding | UnsetType = UNSET


class CommittedReply(Shape, kw_only=True):
    topic: str
    group: str
    offsets: dict[str, int]
    metadata: dict[str, str] | UnsetType = UNSET
    metadata_encoding: Literal["base64"] | UnsetType = UNSET


class ClaimRequest(Request, kw_only=True):
    """What a new owner of a stream's partitions asks first: from then on older owners are refused there."""

    member_id: MemberId
    number: GroupNumber = 0
    generation: SeenGeneration
    partitions: Annotated[list[PartitionId], Meta(min_length=1, max_length=limits.POLL_PARTITIONS_MAX)]
    start: Annotated[
        Literal["earliest", "latest"], Meta(description="Where the group begins, if it is not there yet.")
    ] = "earliest"


class ClaimedOut(Shape, kw_only=True):
    partition: int
    error: Annotated[str, Meta(description="A name of the error catalogue, such as MemberFenced.")] | UnsetType = UNSET
    offset: Annotated[int, Meta(description="The next to read.")] | UnsetType = UNSET
    committed: Annotated[bool, Meta(description="The group has committed; else it begins here.")] | UnsetType = UNSET
    metadata: str | UnsetType = UNSET
    metadata_encoding: Literal["base64"] | UnsetType = UNSET
    sequence: Annotated[int, Meta(description="Of this member's latest commit.")] | UnsetType = UNSET


class ClaimReply(Shape, kw_only=True):
    topic: str
    group: str
    partitions: list[ClaimedOut]


# ------------------------------------------------------------------ members


class GrantIn(Request, kw_only=True):
    """A partition that a member gives up; other fields of it may stay where they are."""

    topic: Name
    incarnation: Annotated[int, Meta(ge=0, le=limits.OFFSET_MAX)]
    partition: PartitionId
    grant: Annotated[int, Meta(ge=0, le=limits.OFFSET_MAX)]
    first: Any = UNSET


class GrantOut(Shape, kw_only=True):
    """A partition that a member has."""

    topic: str
    incarnation: Annotated[int, Meta(description="Of the topic: one that is made again has another.")]
    partition: int
    grant: Annotated[int, Meta(description="The generation in which the member got it.")]
    first: Annotated[bool, Meta(description="It was there when the group first wanted the topic.")]


class JoinRequest(Request, kw_only=True):
    kind: Literal["queue", "stream"] = "queue"
    topics: Annotated[list[Name], Meta(max_length=limits.SUBSCRIPTION_TOPICS_MAX)] = field(default_factory=list)
    patterns: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=limits.NAME_LENGTH_MAX)]],
        Meta(
            max_length=limits.SUBSCRIPTION_PATTERNS_MAX,
            description="Topics by name with * (anything) and ? (one character), also those that are made later.",
        ),
    ] = field(default_factory=list)
    assignor: (
        Annotated[
            AssignorName,
            Meta(description="Absent: the group's; of a new one shared for queues, sticky for streams."),
        ]
        | UnsetType
    ) = UNSET
    member_id: (
        Annotated[
            str,
            Meta(
                extra_json_schema=MEMBER_SCHEMA,
                description="Chosen at random, new with every join, and given again when this is repeated: then it "
                "gets its first answer. Absent: the broker chooses one.",
            ),
        ]
        | UnsetType
    ) = UNSET
    instance: (
        Annotated[Name, Meta(description="With it a newer process takes the place of an older one of the same name.")]
        | UnsetType
    ) = UNSET
    session_ms: Annotated[
        SessionMs, Meta(description="Silent for so long it is no member any more: heartbeat, or poll, more often.")
    ] = SESSION_MS
    rack: Annotated[str, Meta(max_length=limits.NAME_LENGTH_MAX)] = ""
    client: Annotated[str, Meta(max_length=limits.NAME_LENGTH_MAX, description="Shown to people.")] = ""
    start: Annotated[
        Literal["earliest", "latest"], Meta(description="Where a group that does not exist yet begins.")
    ] = "earliest"


class ViewReply(Shape, kw_only=True):
    """What a member has. Work on `held`; finish, commit and release what is in `revoked`."""

    group: str
    member_id: str
    number: Annotated[int, Meta(description="Of the group; never given twice.")]
    generation: Annotated[int, Meta(description="It rises with every change of the group. Say it with your calls.")]
    session_ms: int
    assignor: str
    shared: Annotated[bool, Meta(description="Every member polls every partition, and nobody owns one.")]
    news: Annotated[
        bool, Meta(description="false: nothing has changed since what you have seen; held and revoked are left out.")
    ]
    held: list[GrantOut]
    revoked: list[GrantOut]


class HeartbeatQuery(Request, kw_only=True):
    wait_ms: Annotated[WaitMs, Meta(description="Wait so long for news, at most a quarter of the session.")] = 0


class HeartbeatRequest(Request, kw_only=True):
    number: GroupNumber = 0
    generation: Annotated[
        int, Meta(ge=0, le=limits.OFFSET_MAX, description="Of the newest view that was seen; absent or 0: none.")
    ] = 0
    released: Annotated[
        list[GrantIn],
        Meta(max_length=limits.RELEASES_MAX, description="What the member gives up, as a view showed it."),
    ] = field(default_factory=list)


class ReasonQuery(Request, kw_only=True):
    reason: Annotated[Reason, Meta(description="Shown among the rebalances.")] = ""


class MembersQuery(Request, kw_only=True):
    after: Annotated[int, Meta(ge=0, le=limits.OFFSET_MAX, description="`next` of the page before.")] = 0
    limit: Limit = 100


class RangeOut(Shape, kw_only=True):
    """Partitions of one topic, both included."""

    topic: str
    first: int
    last: int


class HandOverOut(Shape, kw_only=True):
    """A partition that waits for its owner to give it up."""

    topic: str
    partition: int
    heir: str
    waiting_ms: int | UnsetType = UNSET


class MemberOut(Shape, kw_only=True):
    member_id: str
    number: int
    instance: str | UnsetType = UNSET
    client: str | UnsetType = UNSET
    door: str
    rack: str | UnsetType = UNSET
    session_ms: int
    joined_ms: int
    joined_age_ms: int
    held: list[RangeOut]
    revoked: list[HandOverOut]
    home: Annotated[str, Meta(description="The broker that heard it last.")] | UnsetType = UNSET
    heard_ms: Annotated[int, Meta(description="How long ago it was heard.")] | UnsetType = UNSET
    topics: list[str]
    patterns: list[str]


class RebalanceOut(Shape, kw_only=True):
    begun_ms: int
    reason: str
    moved: int
    partitions: int
    took_ms: Annotated[int, Meta(description="Absent: it goes on.")] | UnsetType = UNSET


class MembersReply(Shape, kw_only=True):
    group: str
    number: int
    kind: str
    assignor: str
    generation: int
    session_ms: int
    revoke_ms: int
    state: Annotated[str, Meta(description="settled, assigning, handing over or empty.")]
    count: Annotated[int, Meta(description="Of members, on all pages.")]
    partitions: Annotated[int, Meta(description="That members want.")]
    unowned: Annotated[int, Meta(description="Of those, without an owner.")]
    members: list[MemberOut]
    rebalances: Annotated[list[RebalanceOut], Meta(description="The latest last.")]
    next: (
        Annotated[int, Meta(description="Give it as `after` for the next page; absent: that was all.")] | UnsetType
    ) = UNSET


class AlterGroupRequest(Request, kw_only=True):
    """What is left out stays as it is. With nothing in it the group only begins another generation."""

    assignor: AssignorName | UnsetType = UNSET
    session_ms: SessionMs | UnsetType = UNSET
    revoke_ms: (
        Annotated[
            int,
            Meta(
                ge=limits.SESSION_MS_MIN,
                le=limits.REVOKE_MS_MAX,
                description="So long a partition waits for its owner to give it up.",
            ),
        ]
        | UnsetType
    ) = UNSET


class AlteredReply(Shape, kw_only=True):
    group: str
    number: int
    generation: int
