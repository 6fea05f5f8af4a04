"""The values that every room speaks of: frozen, checked when they are made, free of behaviour.

Nothing here knows of bytes on a wire or rows on a disk. A value that exists is valid: names are bounded, priorities
lie in 0–9, settings make sense together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from lanner import limits
from lanner.errors import ValidationError

LANES: Final = 10
PRIORITY_LOW: Final = 0
PRIORITY_NORMAL: Final = 4
PRIORITY_HIGH: Final = 9
PRIORITY_NAMES: Final[Mapping[str, int]] = {
    "low": PRIORITY_LOW,
    "normal": PRIORITY_NORMAL,
    "high": PRIORITY_HIGH,
}
_NAME_OF_PRIORITY: Final = {number: name for name, number in PRIORITY_NAMES.items()}


def parse_priority(value: int | str | None) -> int:
    """The number of a priority given as a number, a digit or a name; None is the default."""
    if value is None:
        return PRIORITY_NORMAL
    if isinstance(value, str):
        number = PRIORITY_NAMES.get(value.lower())
        if number is not None:
            return number
        if value.isascii() and value.isdigit() and len(value) == 1:
            return int(value)
    elif not isinstance(value, bool) and isinstance(value, int) and 0 <= value < LANES:
        return value
    raise ValidationError(
        f"priority {value!r} is not known: give a number from 0 to 9, or low, normal or high",
        field="priority",
    )


def priority_name(priority: int) -> str | int:
    """The name of a priority where it has one, else its number."""
    return _NAME_OF_PRIORITY.get(priority, priority)


def check_name(name: object, what: str = "name") -> str:
    """The name itself, if it may be one."""
    if not isinstance(name, str) or not limits.NAME_PATTERN.match(name) or name in (".", ".."):
        shown = repr(name) if len(repr(name)) <= 80 else repr(name)[:80] + "…"
        raise ValidationError(
            f"{what} {shown} is not valid: use 1 to {limits.NAME_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ - "
            "(and not '.' or '..')",
            field=what,
        )
    return name


LookPlace = tuple[int, int, int]  # priority, partition, offset


class Looked(list["Message"]):
    """One page of a look: messages, and where the next page begins."""

    next: LookPlace | None = None  # None: there is nothing more


FLAG_DELAYED: Final = 1  # queue groups do not get it yet
FLAG_EXPIRED: Final = 2  # queue groups no longer get it


def message_flags(deliver_at_ms: int, expires_at_ms: int, now_ms: int) -> int:
    """What a stream tells of messages that queue groups do not get at this time."""
    delayed = FLAG_DELAYED if deliver_at_ms > now_ms else 0
    return delayed | (FLAG_EXPIRED if 0 < expires_at_ms <= now_ms else 0)


TopicPartitionId = tuple[int, int]  # incarnation of the topic, partition: a topic that is made again has other ones


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


_NO_HEADERS: Final[Mapping[str, bytes]] = {}


class Message(NamedTuple):
    """One message as a consumer sees it. Its id is topic/partition/offset.

    A stream makes one for each message that it reads: a tuple takes an eighth of the time of a frozen dataclass.
    """

    topic: str
    partition: int
    offset: int
    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = _NO_HEADERS
    priority: int = PRIORITY_NORMAL
    timestamp_ms: int = 0
    producer_timestamp_ms: int | None = None
    deliver_at_ms: int = 0
    expires_at_ms: int = 0
    attempt: int = 0
    flags: int = 0  # of a stream: FLAG_DELAYED, FLAG_EXPIRED, as it was when it was read

    @property
    def id(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def is_delayed(self) -> bool:
        return bool(self.flags & FLAG_DELAYED)

    @property
    def is_expired(self) -> bool:
        return bool(self.flags & FLAG_EXPIRED)


BEGIN_AGAIN: Final = (
    'Begin again by your own choice: start="earliest" reads everything that is left, start="latest" only what is new. '
    "A group that the topic's hold_for names never expires"
)


class GroupKind(StrEnum):
    STREAM = "stream"
    QUEUE = "queue"


class PriorityPolicy(StrEnum):
    STRICT = "strict"
    WEIGHTED = "weighted"


class Retention(StrEnum):
    TIME = "time"  # by age and by bytes
    ACKED = "acked"  # gone once every group has acked; no groups, nothing goes


class FullPolicy(StrEnum):
    REJECT = "reject"
    DROP_OLDEST = "drop_oldest"


class DeadFullPolicy(StrEnum):
    DISCARD_OLDEST = "discard_oldest"
    REJECT = "reject"


class HoldFullPolicy(StrEnum):
    REJECT = "reject"  # publishing gives way
    RELEASE = "release"  # the hold gives way, the oldest first


_DAY_MS: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What an operator can set for a topic. Changes are live: only the leader's next decisions consult them."""

    partitions: int = 3
    replication: int = 0  # 0: as many as there are brokers, up to 3; made a number when the topic is
    priority_policy: PriorityPolicy = PriorityPolicy.STRICT
    lease_ms: int = 30_000
    max_deliveries: int = 5
    backoff_ms: int = 1_000
    backoff_max_ms: int = 300_000
    retention: Retention = Retention.TIME
    retention_ms: int = 7 * _DAY_MS  # 0: no limit by age
    retention_bytes: int = 0  # per partition; 0: no limit by bytes
    max_bytes: int = 0  # per partition; 0: no limit
    full_policy: FullPolicy = FullPolicy.REJECT
    outstanding_max: int = limits.OUTSTANDING_MAX
    pinned_bytes_max: int = limits.PINNED_BYTES_MAX
    dead_full: DeadFullPolicy = DeadFullPolicy.DISCARD_OLDEST
    dedup_window_ms: int = 10 * 60_000
    group_idle_ms: int = 7 * _DAY_MS
    message_bytes_max: int = limits.MESSAGE_BYTES_MAX
    staged_bytes_max: int = limits.STAGED_BYTES_MAX  # per partition: staged, and not yet published
    hold_for: tuple[str, ...] = ()  # groups: retention waits for what they have read
    hold_ms_max: int = 0  # what is older is not held any more; 0: no limit
    hold_bytes_max: int = 0  # per partition: of more, the oldest are not held any more; 0: no limit
    hold_full: HoldFullPolicy = HoldFullPolicy.REJECT  # what gives way when the disk, or max_bytes, is full

    def __post_init__(self) -> None:
        for name, (low, high) in _SETTING_BOUNDS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValidationError(
                    f"{name} is {value!r}: it must be a whole number from {low} to {high}", field=name
                )
        for name, kind in _SETTING_CHOICES.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, kind(value))
            except ValueError:
                choices = ", ".join(kind)
                raise ValidationError(f"{name} is {value!r}: choose one of {choices}", field=name) from None
        object.__setattr__(self, "hold_for", _checked_groups(self.hold_for))
        if self.backoff_ms > self.backoff_max_ms:
            raise ValidationError("backoff_ms is larger than backoff_max_ms", field="backoff_ms")

    def to_dict(self) -> dict[str, Any]:
        found = {name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(self).items()}
        return {**found, "hold_for": list(self.hold_for)}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> TopicSettings:
        return cls().changed(given)

    def changed(self, given: Mapping[str, Any]) -> TopicSettings:
        """These settings with some replaced; a name that is no setting is an error that lists those there are."""
        unknown = sorted(set(given) - _SETTING_NAMES)
        if unknown:
            raise ValidationError(
                f"{unknown[0]!r} is not a topic setting; there are {', '.join(sorted(_SETTING_NAMES))}",
                field=str(unknown[0]),
            )
        return replace(self, **given)


def _checked_groups(given: object) -> tuple[str, ...]:
    """The names of groups, each once."""
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) > limits.HOLD_GROUPS_MAX:
        raise ValidationError(
            f"hold_for is {str(given)[:80]!r}: give a list of up to {limits.HOLD_GROUPS_MAX} group names",
            field="hold_for",
        )
    return tuple(dict.fromkeys(check_name(name, "hold_for") for name in given))


_SETTING_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "partitions": (1, limits.PARTITIONS_MAX),
    "replication": (0, limits.REPLICATION_MAX),
    "lease_ms": (limits.LEASE_MS_MIN, limits.LEASE_MS_MAX),
    "max_deliveries": (1, limits.MAX_DELIVERIES_MAX),
    "backoff_ms": (0, limits.DELAY_MS_MAX),
    "backoff_max_ms": (0, limits.DELAY_MS_MAX),
    "retention_ms": (0, limits.TIME_MS_MAX),
    "retention_bytes": (0, limits.OFFSET_MAX),
    "max_bytes": (0, limits.OFFSET_MAX),
    "outstanding_max": (1, 1_000_000),
    "pinned_bytes_max": (0, limits.OFFSET_MAX),
    "dedup_window_ms": (0, limits.DELAY_MS_MAX),
    "group_idle_ms": (1_000, limits.TIME_MS_MAX),
    "message_bytes_max": (1, limits.MESSAGE_BYTES_MAX),
    "staged_bytes_max": (0, limits.OFFSET_MAX),
    "hold_ms_max": (0, limits.TIME_MS_MAX),
    "hold_bytes_max": (0, limits.OFFSET_MAX),
}
_SETTING_CHOICES: Final[Mapping[str, type[StrEnum]]] = {
    "priority_policy": PriorityPolicy,
    "retention": Retention,
    "full_policy": FullPolicy,
    "dead_full": DeadFullPolicy,
    "hold_full": HoldFullPolicy,
}
_SETTING_NAMES: Final = frozenset(setting.name for setting in fields(TopicSettings))


def setting_bounds() -> Mapping[str, tuple[int, int]]:
    """The lowest and highest value of each setting that is a number; doors state them in their documents."""
    return _SETTING_BOUNDS


def setting_choices() -> Mapping[str, type[StrEnum]]:
    """The values of each setting that is a choice."""
    return _SETTING_CHOICES
