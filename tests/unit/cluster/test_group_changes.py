"""Changes of groups as bytes: they come back as they were, what may not be stored is refused, newer ones are known."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from lanner import limits
from lanner.cluster import commands, encode_change_groups
from lanner.cluster.group_changes import (
    Altered,
    Assigned,
    Change,
    ChangeGroups,
    ChangeKind,
    Expired,
    Forced,
    Forgotten,
    Joined,
    Left,
    Moves,
    Released,
)
from lanner.errors import UnknownRecord, ValidationError
from lanner.model import GroupKind
from tests.unit.cluster.groups import STREAM, Groups

EVERY_CHANGE: list[Change] = [
    Joined("g", GroupKind.QUEUE, "m", ("a",), ("b*",), "sticky", "web-1", 5_000, "r", "host:1", "rest", b"\x00"),
    Left("g", "m", "stalled"),
    Expired(1, 2, 10_000),
    Assigned(1, 2, (Moves(3, (0, 1), (4, 5)),)),
    Released(1, "m", 2, 3, 4),
    Forced(1, 2, 3, 4),
    Altered("g", "range", 5_000, 60_000),
    Forgotten(1, 9),
]


def test_every_change_survives_a_round_trip() -> None:
    payload = encode_change_groups(EVERY_CHANGE, 7)
    assert commands.decode(payload) == ChangeGroups(tuple(EVERY_CHANGE), 7)
    assert len(EVERY_CHANGE) == len(ChangeKind)


def join(**more: Any) -> Joined:
    return Joined(**({"group": "g", "kind": STREAM, "member": "m", "topics": ("a",)} | more))


@pytest.mark.parametrize(
    "change",
    [
        join(group="no group"),
        join(member=""),
        join(member="m" * 65),
        join(topics=()),
        join(topics=("no topic",)),
        join(topics=tuple(f"t{number}" for number in range(limits.SUBSCRIPTION_TOPICS_MAX + 1))),
        join(topics=tuple(f"{number:0200}" for number in range(200))),
        join(patterns=("[a]",)),
        join(patterns=tuple(f"p{number}*" for number in range(limits.SUBSCRIPTION_PATTERNS_MAX + 1))),
        join(assignor="no assignor"),
        join(instance="no instance"),
        join(session_ms=limits.SESSION_MS_MIN - 1),
        join(session_ms=limits.SESSION_MS_MAX + 1),
        join(session_ms=-1),
        join(rack="r" * 201),
        join(client="a\nb"),
        join(opaque=bytes(limits.OPAQUE_BYTES_MAX + 1)),
        Left("g", "m m"),
        Left("g", "m", "r" * (limits.REASON_LENGTH_MAX + 1)),
        Released(1, "", 1, 1, 1),
        Altered("g g"),
        Altered("g", "a a"),
        Altered("g", session_ms=1),
        Altered("g", revoke_ms=1),
        Altered("g", revoke_ms=limits.REVOKE_MS_MAX + 1),
        Assigned(1, 1, ()),
        Assigned(1, 1, (Moves(1, (1, 2), (1,)),)),
        Assigned(1, 1, (Moves(1, tuple(range(5_001)), tuple(range(5_001))),)),
    ],
)
def test_what_may_not_be_stored_is_refused_before_and_at_apply(change: Change) -> None:
    with pytest.raises(ValidationError):
        encode_change_groups([change], 1)
    world = Groups()
    body = msgspec.msgpack.encode((1, ((_kind(change), change),)))
    if len(body) < commands.COMMAND_BYTES_MAX - 2:
        [result] = world.apply(bytes((commands.Kind.CHANGE_GROUPS, 1)) + body).results
        assert isinstance(result, ValidationError)


def _kind(change: Change) -> int:
    return int(ChangeKind[type(change).__name__.upper()])


def test_a_command_holds_at_least_one_change_and_only_so_many() -> None:
    for count in (0, limits.GROUP_CHANGES_MAX + 1):
        with pytest.raises(ValidationError, match="changes at once"):
            encode_change_groups([Expired(1, 1, 1)] * count, 1)
    world = Groups()
    changes = [(int(ChangeKind.EXPIRED), Expired(1, 1, 1))] * (limits.GROUP_CHANGES_MAX + 1)
    body = msgspec.msgpack.encode((1, changes))
    assert isinstance(world.apply(bytes((commands.Kind.CHANGE_GROUPS, 1)) + body), ValidationError)


def test_the_largest_join_and_the_largest_assignment_fit_into_a_command() -> None:
    names = tuple(f"{number:0198}" for number in range(limits.SUBSCRIPTION_BYTES_MAX // 198))
    largest = join(topics=names, opaque=bytes(limits.OPAQUE_BYTES_MAX), client="c" * 200, rack="r" * 200)
    assert encode_change_groups([largest], 1)
    count = limits.GROUP_MOVES_MAX
    moves = Moves(2**40, tuple(999 for _ in range(count)), tuple(2**32 + at for at in range(count)))
    assert encode_change_groups([Assigned(2**40, 2**40, (moves,))], 1)


def test_a_change_of_a_newer_release_stops_the_machine_before_anything_has_changed() -> None:
    world = Groups()
    index, rows = world.machine.applied_index, world.machine.all_rows()
    body = msgspec.msgpack.encode((1, ((int(ChangeKind.JOINED), join()), (99, ("x",)))))
    with pytest.raises(UnknownRecord, match="start the broker"):
        world.machine.apply(index + 1, bytes((commands.Kind.CHANGE_GROUPS, 1)) + body)
    assert (world.machine.applied_index, world.machine.all_rows()) == (index, rows)


@pytest.mark.parametrize("seed", range(10))
def test_no_change_of_groups_can_stop_the_machine(seed: int) -> None:
    rng = random.Random(seed)
    world = Groups()
    world.create("a", partitions=3)
    for member in ("m", "n"):
        world.join_group(member, topics=("a",))
    world.bring_to_rest()
    valid = [encode_change_groups([change], 9) for change in EVERY_CHANGE]
    valid.append(encode_change_groups([join(), *EVERY_CHANGE], 9))
    for _ in range(200):
        payload = bytearray(rng.choice(valid))
        for _ in range(rng.randint(0, 3)):
            payload[rng.randrange(2, len(payload))] = rng.randrange(256)
        machine = world.machine
        try:
            machine.apply(machine.applied_index + 1, bytes(payload))
        except UnknownRecord:
            continue  # it became a change of another number
        machine.check()
