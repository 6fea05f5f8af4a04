"""The changes that one command makes to groups, as they stand in the log, and what is asked of each value in them.

`ChangeGroups` holds a list of changes. Each is decided by itself and has a result of its own. A change is a number and
a body, so that one of a newer release is known as such (UnknownRecord), before anything is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from lanner import features, limits
from lanner.cluster.globs import check_pattern
from lanner.errors import UnknownRecord, ValidationError
from lanner.model import GroupKind, check_name

PRINTABLE_LENGTH_MAX: Final = 200


class ChangeKind(IntEnum):
    JOINED = 1
    LEFT = 2
    EXPIRED = 3
    ASSIGNED = 4
    RELEASED = 5
    FORCED = 6
    ALTERED = 7
    FORGOTTEN = 8


class Joined(msgspec.Struct, array_like=True, frozen=True):
    """A process becomes a member. Its id is new with every join; with an `instance` it takes over that member."""

    group: str
    kind: GroupKind
    member: str
    topics: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    assignor: str = ""  # empty: what the group has; of a new one, shared for queues and sticky for streams
    instance: str = ""
    session_ms: int = 0  # 0: the group's
    rack: str = ""
    client: str = ""  # how it calls itself: shown to people
    door: str = ""  # by which door it came
    opaque: bytes = b""  # kept for the member, never read here


class Left(msgspec.Struct, array_like=True, frozen=True):
    group: str
    member: str
    reason: str = ""


class Expired(msgspec.Struct, array_like=True, frozen=True):
    """Nothing was heard of the member for so long. Only the leader of the metadata says so."""

    number: int
    member: int
    silent_ms: int


class Moves(msgspec.Struct, array_like=True, frozen=True):
    """Partitions of one topic and the members that they should go to, side by side."""

    topic: int  # incarnation
    partitions: tuple[int, ...]
    members: tuple[int, ...]


class Assigned(msgspec.Struct, array_like=True, frozen=True):
    """The assignor's answer to the question of this version, as what differs from the present."""

    number: int
    version: int
    moves: tuple[Moves, ...]


class Released(msgspec.Struct, array_like=True, frozen=True):
    """The owner gives a partition up; `grant` says which ownership that was."""

    number: int
    member: str
    topic: int  # incarnation
    partition: int
    grant: int


class Forced(msgspec.Struct, array_like=True, frozen=True):
    """The owner took too long to give the partition up."""

    number: int
    topic: int
    partition: int
    grant: int


class Altered(msgspec.Struct, array_like=True, frozen=True):
    """An operator's change. With nothing to alter it only makes a new generation."""

    group: str
    assignor: str = ""
    session_ms: int = 0
    revoke_ms: int = 0


class Forgotten(msgspec.Struct, array_like=True, frozen=True):
    """A group without members goes. `generation`: one that was used since stays."""

    number: int
    generation: int


Change = Joined | Left | Expired | Assigned | Released | Forced | Altered | Forgotten

_KINDS: Final[Mapping[type[Change], ChangeKind]] = {
    Joined: ChangeKind.JOINED,
    Left: ChangeKind.LEFT,
    Expired: ChangeKind.EXPIRED,
    Assigned: ChangeKind.ASSIGNED,
    Released: ChangeKind.RELEASED,
    Forced: ChangeKind.FORCED,
    Altered: ChangeKind.ALTERED,
    Forgotten: ChangeKind.FORGOTTEN,
}
_DECODERS: Final[Mapping[int, Callable[[msgspec.Raw], Change]]] = {
    kind: msgspec.msgpack.Decoder(change).decode for change, kind in _KINDS.items()
}


class ChangeGroups(msgspec.Struct, frozen=True):
    """The command: changes in order, and the leader's time."""

    changes: tuple[Change, ...]
    now_ms: int


class _Written(msgspec.Struct, array_like=True, frozen=True):
    now_ms: int
    changes: tuple[tuple[int, msgspec.Raw], ...]


_decode_written: Final = msgspec.msgpack.Decoder(_Written).decode
_encode: Final = msgspec.msgpack.encode


def encode_changes(changes: Sequence[Change], now_ms: int) -> bytes:
    """The body of the command. Raises a catalogue error if a value may not be stored."""
    if not 1 <= len(changes) <= limits.GROUP_CHANGES_MAX:
        raise ValidationError(
            f"{len(changes)} changes at once: 1 to {limits.GROUP_CHANGES_MAX} may be", field="changes"
        )
    for change in changes:
        check_change(change)
    written = tuple((int(_KINDS[type(change)]), msgspec.Raw(_encode(change))) for change in changes)
    return _encode(_Written(now_ms, written))


def decode_changes(body: bytes) -> ChangeGroups:
    written = _decode_written(body)
    strange = sorted({kind for kind, _ in written.changes if kind not in _DECODERS})
    if strange:
        raise UnknownRecord(
            f"the metadata holds changes of groups of the kinds {strange}, which are not known here; "
            f"{features.START_NEWER}"
        )
    return ChangeGroups(tuple(_DECODERS[kind](raw) for kind, raw in written.changes), written.now_ms)


# ------------------------------------------------------------------ what values may be


def check_change(change: Change) -> None:
    """Refuse what nobody may store, whatever the state is."""
    if isinstance(change, Joined):
        _check_join(change)
    elif isinstance(change, Left):
        _check_member(change.member)
        _check_text(change.reason, "reason", limits.REASON_LENGTH_MAX)
    elif isinstance(change, Released):
        _check_member(change.member)
    elif isinstance(change, Altered):
        check_name(change.group, "group")
        check_assignor(change.assignor)
        check_session(change.session_ms)
        if change.revoke_ms and not limits.SESSION_MS_MIN <= change.revoke_ms <= limits.REVOKE_MS_MAX:
            raise ValidationError(
                f"revoke_ms is {change.revoke_ms}: it must lie in {limits.SESSION_MS_MIN} to {limits.REVOKE_MS_MAX}",
                field="revoke_ms",
            )
    elif isinstance(change, Assigned):
        _check_moves(change.moves)


def _check_join(change: Joined) -> None:
    check_name(change.group, "group")
    _check_member(change.member)
    check_assignor(change.assignor)
    check_session(change.session_ms)
    if change.instance:
        check_name(change.instance, "instance")
    for value, what in ((change.rack, "rack"), (change.client, "client"), (change.door, "door")):
        _check_text(value, what, PRINTABLE_LENGTH_MAX)
    if len(change.opaque) > limits.OPAQUE_BYTES_MAX:
        raise ValidationError(
            f"a member may keep {limits.OPAQUE_BYTES_MAX} bytes, not {len(change.opaque)}", field="opaque"
        )
    check_subscription(change.topics, change.patterns)


def check_subscription(topics: Sequence[str], patterns: Sequence[str]) -> None:
    if not topics and not patterns:
        raise ValidationError("a member subscribes to at least one topic or pattern", field="topics")
    if len(topics) > limits.SUBSCRIPTION_TOPICS_MAX or len(patterns) > limits.SUBSCRIPTION_PATTERNS_MAX:
        raise ValidationError(
            f"a subscription may name {limits.SUBSCRIPTION_TOPICS_MAX} topics and {limits.SUBSCRIPTION_PATTERNS_MAX} "
            f"patterns, not {len(topics)} and {len(patterns)}",
            field="topics",
        )
    for name in topics:
        check_name(name, "topic")
    for pattern in patterns:
        check_pattern(pattern)
    size = sum(map(len, topics)) + sum(map(len, patterns))
    if size > limits.SUBSCRIPTION_BYTES_MAX:
        raise ValidationError(
            f"the names of a subscription take {size} bytes, more than {limits.SUBSCRIPTION_BYTES_MAX}: use patterns",
            field="topics",
        )


def check_assignor(name: str) -> None:
    """Any name: which assignors there are is not for the log to say, since releases may differ in that."""
    if name:
        check_name(name, "assignor")


def check_session(session_ms: int) -> None:
    if session_ms and not limits.SESSION_MS_MIN <= session_ms <= limits.SESSION_MS_MAX:
        raise ValidationError(
            f"session_ms is {session_ms}: it must lie in {limits.SESSION_MS_MIN} to {limits.SESSION_MS_MAX}",
            field="session_ms",
        )


def _check_member(member: str) -> None:
    check_name(member, "member")
    _check_text(member, "member", limits.IDENTITY_LENGTH_MAX)


def _check_text(value: str, what: str, most: int) -> None:
    if len(value) > most or not value.isprintable():
        raise ValidationError(f"{what} must be printable and at most {most} characters long", field=what)


def _check_moves(moves: Sequence[Moves]) -> None:
    count = sum(len(one.partitions) for one in moves)
    if not 1 <= count <= limits.GROUP_MOVES_MAX:
        raise ValidationError(f"{count} moves at once: 1 to {limits.GROUP_MOVES_MAX} may be", field="moves")
    if any(len(one.partitions) != len(one.members) for one in moves):
        raise ValidationError("each partition that moves needs one member", field="moves")
