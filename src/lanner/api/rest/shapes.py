"""The bodies, queries and replies of the REST door, one struct each.

A shape carries its own bounds, so that decoding refuses what is too long or out of range before anything is done with
it, and so that the OpenAPI document states the same bounds. An optional field of a reply is absent when it has nothing
to say (UNSET); it is never null.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lanner import limits
from lanner.model import LANES, PRIORITY_NAMES, TopicSettings, setting_bounds, setting_choices

NAME_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "pattern": r"^[A-Za-z0-9._-]{1,200}$",
    "not": {"enum": [".", ".."]},
}


def _settings_schema() -> dict[str, Any]:
    defaults = TopicSettings().to_dict()
    properties: dict[str, Any] = {
        name: {"type": "integer", "minimum": low, "maximum": high, "default": defaults[name]}
        for name, (low, high) in setting_bounds().items()
    }
    for name, choices in setting_choices().items():
        properties[name] = {"type": "string", "enum": list(choices), "default": defaults[name]}
    group = {"type": "string", **NAME_SCHEMA}
    properties["hold_for"] = {"type": "array", "items": group, "maxItems": limits.HOLD_GROUPS_MAX, "default": []}
    return {"properties": properties}


# Text of a value, key or header may be base64 of any bytes; it is then a third longer than what it stands for.
_TEXT_MAX: Final = limits.MESSAGE_BYTES_MAX * 4 // 3 + 4
_KEY_TEXT_MAX: Final = limits.KEY_BYTES_MAX * 4 // 3 + 4
_MESSAGES_MAX: Final = limits.POLL_MESSAGES_MAX

_PRIORITIES: Final = r"^([0-9]|low|normal|high)(,([0-9]|low|normal|high))*$"

Name = Annotated[str, Meta(extra_json_schema=NAME_SCHEMA)]
Text = Annotated[str, Meta(max_length=_TEXT_MAX)]
KeyText = Annotated[str, Meta(max_length=_KEY_TEXT_MAX)]
Encoding = Literal["utf-8", "base64"]
PriorityIn = (
    Annotated[int, Meta(ge=0, le=LANES - 1)] | Annotated[str, Meta(extra_json_schema={"enum": sorted(PRIORITY_NAMES)})]
)
Offset = Annotated[int, Meta(ge=0, le=limits.OFFSET_MAX)]
TimeMs = Annotated[int, Meta(ge=0, le=limits.TIME_MS_MAX)]
DelayMs = Annotated[int, Meta(ge=0, le=limits.DELAY_MS_MAX)]
PartitionId = Annotated[int, Meta(ge=0, le=limits.PARTITIONS_MAX - 1)]
Token = Annotated[int, Meta(ge=0, le=limits.OFFSET_MAX)]
Reason = Annotated[str, Meta(max_length=limits.REASON_LENGTH_MAX)]
WaitMs = Annotated[int, Meta(ge=0, le=limits.POLL_WAIT_MS_MAX)]
Settings = Annotated[dict[str, int | str], Meta(extra_json_schema=_settings_schema())]
# JSON has only string keys: partition ids are written as digits there.
PartitionOffsetsMap = Annotated[
    dict[int, Offset],
    Meta(
        max_length=limits.PARTITIONS_MAX,
        description="Offsets by partition.",
        extra_json_schema={
            "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,2})$"},
            "minProperties": 1,
        },
        min_length=1,
    ),
]


_BASE64: Final = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def _base64_when(encoding: str, field: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "if": {"properties": {encoding: {"const": "base64"}}, "required": [encoding]},
        "then": {"properties": {field: schema}},
    }


# What a struct cannot say of its fields together; the document adds it to the schema of the name.
RULES: Final[dict[str, dict[str, Any]]] = {
    "PublishRequest": _base64_when("encoding", "message", {"pattern": _BASE64}),
    "MessageIn": {
        "allOf": [
            _base64_when("encoding", "value", {"pattern": _BASE64}),
            _base64_when("key_encoding", "key", {"pattern": _BASE64}),
            _base64_when("headers_encoding", "headers", {"additionalProperties": {"pattern": _BASE64}}),
        ]
    },
    "CreateTopicRequest": {"properties": {"settings": {"additionalProperties": False}}},
    "AlterTopicRequest": {"properties": {"settings": {"additionalProperties": False}}},
    "SeekRequest": {"oneOf": [{"required": [choice]} for choice in ("offsets", "time_ms", "to")]},
    "CommitRequest": {"dependentRequired": {"reader": ["sequence"], "sequence": ["reader"]}},
    "DeadChoice": {"dependentRequired": {"offsets": ["partition"]}},
}


class Shape(msgspec.Struct):
    pass


NextPlace = Annotated[str, Meta(description="Give it as `after` for the next page; absent: that was all.")]


class Request(Shape, forbid_unknown_fields=True):
    """What callers send under `/v1`: a misspelt name must not be taken for one that was left out."""


class NoQuery(Request, kw_only=True):
    """An operation without query parameters."""


class NoBody(Shape, kw_only=True):
    """An operation without a body."""


class Problem(Shape, kw_only=True):
    """Every error. `type` and `details.error` are its name in the catalogue; FalconQ's routes keep its five types."""

    type: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET


# ------------------------------------------------------------------ /v1: topics


class TopicsReply(Shape, kw_only=True):
    topics: list[str]


class CreateTopicRequest(Request, kw_only=True):
    name: Name
    settings: Settings = {}
    create_id: Annotated[
        str,
        Meta(
            max_length=limits.IDENTITY_LENGTH_MAX,
            description="Chosen at random, and given again when this is repeated: then it gets its first answer.",
        ),
    ] = ""


class AlterTopicRequest(Request, kw_only=True):
    settings: Settings


class HoldOut(Shape, kw_only=True):
    group: str
    offset: int
    behind: Annotated[int, Meta(description="Messages that it has not read yet.")]
    held_bytes: int


class TopicPartitionState(Shape, kw_only=True):
    id: int
    leader: str
    first_offset: int
    end_offset: int
    bytes: int
    batches: int
    pinned_bytes: int
    depth: Annotated[dict[str, int], Meta(description="Messages held, by priority.")]
    holds: Annotated[list[HoldOut], Meta(description="Groups that retention waits for.")] | UnsetType = UNSET


class TopicReply(Shape, kw_only=True):
    name: str
    incarnation: int
    settings: dict[str, Any]
    partitions: list[TopicPartitionState]


class TimeQuery(Request, kw_only=True):
    time_ms: TimeMs | UnsetType = UNSET


class PartitionOffsets(Shape, kw_only=True):
    partition: int
    first_offset: int
    end_offset: int
    at_time: int | UnsetType = UNSET


class OffsetsReply(Shape, kw_only=True):
    topic: str
    incarnation: int
    partitions: list[PartitionOffsets]


# ------------------------------------------------------------------ /v1: messages


class MessageIn(Request, kw_only=True):
    value: Text
    encoding: Encoding | UnsetType = UNSET
    key: KeyText | UnsetType = UNSET
    key_encoding: Encoding | UnsetType = UNSET
    headers: Annotated[dict[str, Text], Meta(max_length=limits.HEADER_COUNT_MAX)] = {}
    headers_encoding: Encoding | UnsetType = UNSET
    priority: PriorityIn | UnsetType = UNSET
    partition: PartitionId | UnsetType = UNSET
    delay_ms: Annotated[DelayMs, Meta(description="Not delivered before this has passed.")] | UnsetType = UNSET
    ttl_ms: Annotated[DelayMs, Meta(description="Not delivered after this has passed.")] | UnsetType = UNSET


class PublishManyRequest(Request, kw_only=True):
    messages: Annotated[list[MessageIn], Meta(min_length=1, max_length=limits.LIST_ITEMS_MAX)]


class StoredMessage(Shape, kw_only=True):
    id: str
    partition: int
    offset: int
    timestamp_ms: int
    duplicate: bool


class PublishManyReply(Shape, kw_only=True):
    topic: str
    count: int
    messages: list[StoredMessage]


class MessageOut(Shape, kw_only=True):
    id: str
    partition: int
    offset: int
    value: str
    encoding: Literal["base64"] | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_encoding: Literal["base64"] | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    headers_encoding: Literal["base64"] | UnsetType = UNSET
    priority: int
    timestamp_ms: int
    deliver_at_ms: int | UnsetType = UNSET
    expires_at_ms: int | UnsetType = UNSET
    flags: (
        Annotated[list[Literal["delayed", "expired"]], Meta(description="Queue groups do not get it now, and why.")]
        | UnsetType
    ) = UNSET


class ReadQuery(Request, kw_only=True):
    offset: Offset = 0
    priorities: (
        Annotated[str, Meta(pattern=_PRIORITIES, description="Only these: 0 to 9, low, normal, high; with commas.")]
        | UnsetType
    ) = UNSET
    limit: Annotated[int, Meta(ge=1, le=limits.LIST_ITEMS_MAX)] = 100
    wait_ms: WaitMs = 0


class HoleOut(Shape, kw_only=True):
    first_offset: int
    next_offset: int
    reason: Literal["retention", "malformed", "damaged"]


class ReadReply(Shape, kw_only=True):
    topic: str
    partition: int
    first_offset: int
    end_offset: int
    next_offset: int
    messages: list[MessageOut]
    holes: Annotated[list[HoleOut], Meta(description="What cannot be read, and why.")] | UnsetType = UNSET


# ------------------------------------------------------------------ /v1: groups


class PollRequest(Request, kw_only=True):
    max_messages: Annotated[int, Meta(ge=1, le=_MESSAGES_MAX)] = 10
    max_bytes: Annotated[int, Meta(ge=1, le=limits.POLL_BYTES_MAX)] = limits.MIB
    wait_ms: WaitMs = 0
    lease_ms: Annotated[int, Meta(ge=limits.LEASE_MS_MIN, le=limits.LEASE_MS_MAX)] | UnsetType = UNSET
    auto_ack: bool = False
    start: Literal["earliest", "latest"] = "earliest"
    partitions: Annotated[list[PartitionId], Meta(min_length=1, max_length=limits.POLL_PARTITIONS_MAX)] | UnsetType = (
        UNSET
    )


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


_Targets = Annotated[list[SettleTarget], Meta(min_length=1, max_length=limits.SETTLE_RANGES_MAX)]


class AckRequest(Request, kw_only=True):
    messages: _Targets


class NackRequest(Request, kw_only=True):
    messages: _Targets
    delay_ms: Annotated[DelayMs, Meta(description="Until the retry; the topic's backoff unless given.")] | UnsetType = (
        UNSET
    )
    reason: Reason = ""


class ExtendRequest(Request, kw_only=True):
    messages: _Targets
    lease_ms: Annotated[int, Meta(ge=limits.LEASE_MS_MIN, le=limits.LEASE_MS_MAX)] | UnsetType = UNSET


class RejectRequest(Request, kw_only=True):
    messages: _Targets
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
        int, Meta(ge=0, le=limits.OFFSET_MAX, description="Of this reader's commits, rising; needed with a reader.")
    ] = -1


class CommittedReply(Shape, kw_only=True):
    topic: str
    group: str
    offsets: dict[str, int]


class DoneReply(Shape, kw_only=True):
    status: str


# ------------------------------------------------------------------ /v1: dead letters


class DeadQuery(Request, kw_only=True):
    partition: PartitionId | UnsetType = UNSET
    start_offset: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=limits.LIST_ITEMS_MAX)] = 100
    after: (
        Annotated[str, Meta(pattern=r"^[0-9]{1,3}/[0-9]{1,15}$", description="`next` of the page before.")] | UnsetType
    ) = UNSET


class DeadMessage(Shape, kw_only=True):
    id: str
    partition: int
    offset: int
    priority: int
    attempts: int
    reason: str
    died_ms: int
    timestamp_ms: int
    value: str | UnsetType = UNSET
    encoding: Literal["base64"] | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_encoding: Literal["base64"] | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    headers_encoding: Literal["base64"] | UnsetType = UNSET


class DeadReply(Shape, kw_only=True):
    topic: str
    group: str
    total: int
    messages: list[DeadMessage]
    next: NextPlace | UnsetType = UNSET


class DeadChoice(Request, kw_only=True):
    """Those named; without offsets all of the partition, without a partition all of the group."""

    partition: PartitionId | UnsetType = UNSET
    offsets: Annotated[list[Offset], Meta(min_length=1, max_length=limits.LIST_ITEMS_MAX)] | UnsetType = UNSET


class CountReply(Shape, kw_only=True):
    count: int


# ------------------------------------------------------------------ the broker itself


class HealthReply(Shape, kw_only=True, omit_defaults=True):
    status: str
    stopped: dict[str, str] | None = None  # partitions whose replica here met a record of a newer release, and why
