"""What a caller's word stands for where a partition is led: resolved from a copy of the metadata, never on trust."""

from __future__ import annotations

import pytest

from lanner.errors import InstanceFenced, MemberFenced, MembershipRequired, MemberUnknown
from tests.unit.cluster.groups import QUEUE, Groups

OUTSIDER, NOTHING = "", (0, 0)


@pytest.fixture
def world() -> Groups:
    made = Groups()
    made.create("orders", partitions=2)
    return made


def resolve(world: Groups, member: str, seen: tuple[int, int], partition: int = 0) -> tuple[int, int] | None:
    found: tuple[int, int] | None = world.machine.resolve("g", member, seen, (world.incarnation(), partition))
    return found


def test_where_there_is_no_group_an_outsider_stands_above_all_that_were_and_below_the_next(world: Groups) -> None:
    assert resolve(world, OUTSIDER, NOTHING) == (1, 0)
    world.join_group("m1")
    world.leave("m1")
    world.forget()
    assert resolve(world, OUTSIDER, NOTHING) == (2, 0)
    with pytest.raises(MemberUnknown):
        resolve(world, "m1", (1, 2))
    assert resolve(world, "m2", (2, 1)) is None, "this copy has not heard of the group yet"


def test_an_owner_stands_under_its_grant(world: Groups) -> None:
    world.join_group("m1")
    world.bring_to_rest()
    row = world.group().row
    assert resolve(world, "m1", (1, row.generation)) == (1, 2)
    assert resolve(world, "m1", (1, row.generation + 1)) is None
    world.join_group("m2")
    assert resolve(world, "m1", (1, row.generation)) == (1, 2), "what others do does not refuse a healthy owner"


def test_a_member_that_is_not_the_owner_is_fenced(world: Groups) -> None:
    world.join_group("m1")
    world.join_group("m2")
    world.bring_to_rest()
    seen = (1, world.group().row.generation)
    for member, partition in (("m2", 0), ("m1", 1), ("m1", 9)):
        with pytest.raises(MemberFenced, match="release it"):
            resolve(world, member, seen, partition)


def test_a_request_from_before_the_partition_was_lost_and_regained_is_fenced(world: Groups) -> None:
    world.join_group("m1")
    world.bring_to_rest()
    before = (1, world.group().row.generation)
    world.release("m1", 0)
    world.bring_to_rest()
    with pytest.raises(MemberFenced):
        resolve(world, "m1", before)
    assert resolve(world, "m1", (1, world.group().row.generation)) == (1, world.grants()[0])


def test_members_that_went_are_told_how(world: Groups) -> None:
    world.join_group("m1", instance="web-1")
    world.join_group("m2", instance="web-1")
    seen = (1, world.group().row.generation)
    with pytest.raises(InstanceFenced):
        resolve(world, "m1", seen)
    with pytest.raises(MemberUnknown):
        resolve(world, "m9", seen)


def test_an_outsider_is_refused_while_there_are_members_unless_a_generation_was_made_for_it(world: Groups) -> None:
    world.join_group("m1")
    with pytest.raises(MembershipRequired, match="sticky"):
        resolve(world, OUTSIDER, NOTHING)
    touched = world.alter()
    assert resolve(world, OUTSIDER, (1, touched.generation)) == (1, touched.generation)
    assert resolve(world, OUTSIDER, (1, touched.generation + 1)) is None
    world.leave("m1")
    assert resolve(world, OUTSIDER, NOTHING) == (1, world.group().row.generation)
    world.forget()
    world.join_group("m2")
    with pytest.raises(MembershipRequired, match="another one"):
        resolve(world, OUTSIDER, (1, 1))


def test_in_a_shared_group_everybody_stands_under_the_same_fence(world: Groups) -> None:
    world.join_group("m1", kind=QUEUE)
    for member, seen in (("m1", (1, 1)), ("stranger", (1, 9)), (OUTSIDER, NOTHING)):
        assert resolve(world, member, seen) == (1, 1)


def test_what_no_group_knows_belongs_to_nobody(world: Groups) -> None:
    world.join_group("m1")
    assert world.group().owner_of((99, 0)) == (0, 0, 0)
    assert world.group().owner_of((world.incarnation(), -1)) == (0, 0, 0)
