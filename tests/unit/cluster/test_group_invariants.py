"""Each invariant of groups is broken once: a check that cannot fail is a defect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from lanner import features
from lanner.cluster.grouped import Group, Subscription
from lanner.cluster.state import State
from tests.unit.cluster.groups import Groups


def a_world() -> Groups:
    """A stream group with an instance that was replaced; partition 2 of `orders` is to go from m1 to m3."""
    world = Groups()
    world.create("orders", partitions=4)
    world.create("payments", partitions=1)
    world.join_group("m1", topics=("orders",), patterns=("pay*",))
    world.join_group("m2", instance="web-1")
    world.bring_to_rest()
    world.join_group("m3", instance="web-1")
    world.join_group("m4")
    world.assign()
    world.join_group("q1", "shared", kind="queue")
    return world


def group_of(state: State, name: str = "g") -> Group:
    found = state.groups.by_name(name)
    assert found is not None
    return found


def change_row(name: str = "g", **changes: Any) -> Callable[[State], None]:
    def change(state: State) -> None:
        group = group_of(state, name)
        group.row = replace(group.row, **changes)

    return change


def set_owner(partition: int, owner: int, grant: int, heir: int, name: str = "g") -> Callable[[State], None]:
    return lambda state: group_of(state, name).set_owner((1, partition), owner, grant, heir)


def cut_row(state: State) -> None:
    group_of(state).owners[1].heirs.pop()


BROKEN: dict[str, Callable[[State], None]] = {
    "groups below their level": lambda state: setattr(state.counters, "feature_level", features.GROUPS - 1),
    "a group under another name": lambda state: state.groups.numbers.update(x=1),
    "a number of a group not yet given": lambda state: setattr(state.counters, "next_group", 2),
    "a number of a member not yet given": lambda state: setattr(state.counters, "next_member", 4),
    "miscounted members": lambda state: setattr(state.groups, "member_count", 9),
    "miscounted bytes": lambda state: setattr(state.groups, "opaque_bytes", 9),
    "miscounted partitions": lambda state: setattr(state.groups, "partition_count", 99),
    "miscounted patterns": lambda state: setattr(state.groups, "pattern_count", 9),
    "a group with patterns that is not listed": lambda state: state.groups.patterned.clear(),
    "an id that is wrong": lambda state: group_of(state).ids.update(m9=1),
    "an instance that is wrong": lambda state: group_of(state).instances.clear(),
    "a replaced id that is forgotten": lambda state: group_of(state).replaced.clear(),
    "a view without a member": lambda state: group_of(state).seen.update({99: 1}),
    "a view of the future": lambda state: group_of(state).seen.update({1: 999}),
    "a subscription that nobody has": change_row(subscriptions={0: Subscription(("orders",), ())}),
    "more versions than generations": change_row(version=999),
    "shared since the future": change_row("shared", shared_since=999),
    "revoked before the session ends": change_row(revoke_ms=1),
    "a rebalance that nobody ends": lambda state: (
        [
            group_of(state).set_owner(partition_id, 1, 3, 0)
            for partition_id in list(group_of(state).inherited.get(4, ()))
        ]
        and None
    ),
    "a wanted topic that is unknown": lambda state: group_of(state).wanted.update({0: frozenset()}),
    "a topic that is not listed by name": lambda state: state.groups.named["orders"].discard(1),
    "a topic that is not listed": lambda state: state.groups.subscribed[1].discard(1),
    "columns of different length": cut_row,
    "an owner without a grant": set_owner(0, 1, 0, 0),
    "a grant without an owner": set_owner(0, 0, 3, 0),
    "a grant of the future": set_owner(0, 1, 999, 0),
    "an heir of nobody": set_owner(0, 0, 0, 1),
    "an heir of itself": set_owner(0, 1, 3, 1),
    "an owner that is no member": set_owner(0, 99, 3, 0),
    "an index of owners that is wrong": lambda state: group_of(state).owned.clear(),
    "an owner in a shared group": set_owner(0, 5, 1, 0, "shared"),
    "an heir in a queue group": change_row(kind="queue"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_invariant_is_seen(name: str) -> None:
    world = a_world()
    world.machine.check()
    BROKEN[name](world.machine._state)
    with pytest.raises((AssertionError, KeyError)):
        world.machine.check()
