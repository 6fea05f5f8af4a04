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
Settings = Annotated[
    dict[str, int | str | Annotated[list[str], Meta(max_length=limits.HOLD_GROUPS_MAX)]],
    Meta(extra_json_schema=_settings_schema()),
]
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
    "JoinRequest": {
        "anyOf": [{"required": [names], "properties": {names: {"minItems": 1}}} for names in ("topics", "patterns")]
    },
    "SeekRequest": {"oneOf": [{"required": [choice]} for choice in ("offsets", "time_ms", "to")]},
    "CommitRequest": {
        "dependentRequired": {"reader": ["sequence"], "member_id": ["generation"]},
        "allOf": [
            {
                **_base64_when("metadata_encoding", "metadata", {"additionalProperties": {"pattern": _BASE64}}),
                "else": {
                    "properties": {
                        "metadata": {"additionalProperties": {"maxLength": limits.COMMIT_METADATA_BYTES_MAX}}
                    }
                },
            }
        ],
        "if": {"required": ["sequence"]},
        "then": {"anyOf": [{"required": ["reader"]}, {"required": ["member_id"]}]},
        "not": {"required": ["reader", "member_id"]},
    },
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


class PlainMessageIn(Request, kw_only=True, gc=False):
    """What most messages are: a value. Reading it as this costs less than half."""

    value: Text
    headers: Annotated[dict[str, str], Meta(max_length=0)] | UnsetType = UNSET


class PlainPublishRequest(Request, kw_only=True):
    messages: Annotated[list[PlainMessageIn], Meta(min_length=1, max_length=limits.LIST_ITEMS_MAX)]


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
    group: Annotated[Name, Meta(description="Of the member that reads.")] | UnsetType = UNSET
    member_id: (
        Annotated[str, Meta(min_length=1, max_length=limits.IDENTITY_LENGTH_MAX, description="Of a stream group.")]
        | UnsetType
    ) = UNSET
    number: Offset = 0
    generation: Annotated[Offset, Meta(description="Of the newest view that the member acts on.")] = 0


class StreamQuery(Request, kw_only=True):
    offset: Annotated[Offset, Meta(description="Where to begin; wins over start.")] | UnsetType = UNSET
    start: Literal["earliest", "latest"] = "earliest"
    priorities: (
        Annotated[str, Meta(pattern=_PRIORITIES, description="Only these: 0 to 9, low, normal, high; with commas.")]
        | UnsetType
    ) = UNSET
    wait_ms: (
        Annotated[WaitMs, Meta(description="End when nothing has come for so long; absent: go on.")] | UnsetType
    ) = UNSET


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
