"""Members and owners: what each change does, and what it refuses to do."""

from __future__ import annotations

from typing import Any

import pytest

from lanner import limits
from lanner.cluster import (
    Admitted,
    Assigned,
    Changed,
    Cluster,
    Joined,
    Left,
    Moves,
    Released,
    encode_change_groups,
    encode_create_topic,
)
from lanner.errors import (
    AssignorConflict,
    ConflictError,
    GroupFull,
    GroupInUse,
    GroupKindConflict,
    GroupNotFound,
    InstanceFenced,
    MemberFenced,
    MemberUnknown,
    NotSupported,
    Overloaded,
    ValidationError,
)
from lanner.model import TopicSettings
from tests.unit.cluster.groups import QUEUE, STREAM, Groups, admitted, assignment
from tests.unit.cluster.world import StoredRows


@pytest.fixture
def world() -> Groups:
    made = Groups()
    made.create("orders", partitions=4)
    return made


def settled(world: Groups, *members: str, **more: Any) -> Groups:
    for member in members:
        world.join_group(member, **more)
    world.bring_to_rest()
    return world


# ------------------------------------------------------------------ joining


def test_a_join_makes_the_group_and_a_repeated_one_gets_the_same_answer(world: Groups) -> None:
    first = admitted(world.join_group("m1"))
    assert first == Admitted(1, 1, 1)
    assert world.join_group("m1") == first
    assert world.group().row.version == 1
    assert world.owners() == ["-"] * 4


def test_below_level_four_there_are_no_members() -> None:
    world = Groups(level=3)
    result = world.apply(encode_change_groups([Joined("g", STREAM, "m1", ("orders",))], 5))
    assert isinstance(result, NotSupported)
    assert "lanner cluster upgrade" in str(result)
    assert not world.machine.groups()


def test_a_queue_group_is_shared_and_a_stream_group_sticky_unless_the_join_says_otherwise(world: Groups) -> None:
    world.join_group("m1", "q", kind=QUEUE)
    world.join_group("m2", "s")
    world.join_group("m3", "r", kind=QUEUE, assignor="range")
    assert [world.group(name).row.assignor for name in "qsr"] == ["shared", "sticky", "range"]
    assert [world.group(name).row.shared_since for name in "qsr"] == [1, 0, 0]


def test_a_group_keeps_its_kind(world: Groups) -> None:
    world.join_group("m1")
    assert isinstance(world.join_group("m2", kind=QUEUE), GroupKindConflict)


def test_another_assignor_needs_a_group_without_members(world: Groups) -> None:
    world.join_group("m1")
    refused = world.join_group("m2", assignor="range")
    assert isinstance(refused, AssignorConflict)
    assert "lanner group alter g --assignor range" in str(refused)
    world.leave("m1")
    admitted(world.join_group("m2", assignor="shared"))
    assert world.group().shared and world.group().row.shared_since == world.group().row.generation
    world.leave("m2")
    admitted(world.join_group("m3", assignor="range"))
    assert not world.group().shared


def test_changes_of_one_command_are_decided_one_by_one(world: Groups) -> None:
    results = world.change(
        Joined("g", STREAM, "m1", ("orders",)),
        Left("g", "stranger"),
        Joined("g", QUEUE, "m2", ("orders",)),
        Joined("g", STREAM, "m3", ("orders",)),
    )
    kinds = [type(result) for result in results]
    assert kinds == [Admitted, MemberUnknown, GroupKindConflict, Admitted]


def test_numbers_of_groups_and_members_are_never_given_twice(world: Groups) -> None:
    world.join_group("m1")
    world.leave("m1")
    assert world.forget() == Changed(1, 2)
    assert world.machine.group("g") is None
    assert admitted(world.join_group("m1")) == Admitted(2, 1, 2)


def test_a_group_that_is_in_use_again_is_not_forgotten(world: Groups) -> None:
    world.join_group("m1")
    assert isinstance(world.forget(), GroupInUse)


# ------------------------------------------------------------------ owners


def test_partitions_go_to_the_members_and_their_views_show_it(world: Groups) -> None:
    settled(world, "m1", "m2")
    assert world.owners() == ["m1", "m2", "m1", "m2"]
    view = world.view("m1")
    assert [(one.topic, one.partition, one.grant, one.first) for one in view.held] == [
        ("orders", 0, 3, True),
        ("orders", 2, 3, True),
    ]
    assert (view.number, view.generation, view.revoked) == (1, 3, ())


def test_a_stream_partition_waits_for_its_owner_and_then_goes_to_the_heir_under_a_new_grant(world: Groups) -> None:
    settled(world, "m1")
    world.join_group("m2")
    world.assign()
    assert world.owners() == ["m1", "m1", "m1>m2", "m1>m2"]
    assert [one.partition for one in world.view("m1").revoked] == [2, 3]
    assert world.view("m2").held == ()
    before = world.group().row.generation
    assert world.release("m1", 2) == Changed(1, before + 1)
    assert world.owners() == ["m1", "m1", "m2", "m1>m2"]
    assert world.grants()[2] == before + 1


def test_a_queue_partition_changes_hands_at_once(world: Groups) -> None:
    for member in ("m1", "m2"):
        world.join_group(member, kind=QUEUE, assignor="sticky")
        world.assign()
    assert world.owners() == ["m1", "m1", "m2", "m2"]


def test_a_release_under_another_grant_is_of_the_past(world: Groups) -> None:
    settled(world, "m1")
    assert isinstance(world.release("m1", 0, grant=world.grants()[0] - 1), MemberFenced)
    assert isinstance(world.release("stranger", 0), MemberFenced)
    assert isinstance(world.release("m1", 9), MemberFenced)
    before = world.group().row.generation
    assert world.release("m1", 0) == Changed(1, before + 1)
    assert world.owners() == ["-", "m1", "m1", "m1"]


def test_what_was_released_for_nobody_comes_back_under_a_new_grant(world: Groups) -> None:
    settled(world, "m1")
    old = world.grants()[0]
    world.release("m1", 0)
    world.assign()
    assert world.owners() == ["m1"] * 4
    assert world.grants()[0] > old


def test_an_owner_that_is_too_slow_is_forced_and_stays_a_member(world: Groups) -> None:
    settled(world, "m1")
    assert isinstance(world.force(3), ConflictError), "nobody waits for it"
    world.join_group("m2")
    world.assign()
    assert isinstance(world.force(3, grant=1), ConflictError)
    world.force(3)
    assert world.owners()[3] == "m2"
    assert "m1" in world.group().ids


def test_a_move_that_is_called_off_leaves_the_grant_as_it_was(world: Groups) -> None:
    settled(world, "m1")
    grants = world.grants()
    world.join_group("m2")
    world.assign()
    world.leave("m2")
    assert world.owners() == ["m1"] * 4
    assert world.grants() == grants
    world.join_group("m3")
    world.assign()
    number = world.number("m1")
    back = Assigned(1, world.group().row.version, (Moves(world.incarnation(), (2, 3), (number, number)),))
    world.change(back)
    assert world.owners() == ["m1"] * 4 and world.grants() == grants


def test_an_assignment_of_an_older_version_does_nothing(world: Groups) -> None:
    world.join_group("m1")
    old = assignment(world, world.group())
    assert old is not None
    world.join_group("m2")
    assert isinstance(world.change(old), ConflictError)
    assert world.owners() == ["-"] * 4


@pytest.mark.parametrize(("topic", "partition", "member"), [(1, 9, 1), (1, -1, 1), (7, 0, 1), (1, 0, 5), (2, 0, 1)])
def test_an_assignment_that_does_not_fit_does_nothing(world: Groups, topic: int, partition: int, member: int) -> None:
    world.create("payments", partitions=1)
    world.join_group("m1")
    row = world.group().row
    moves = (Moves(1, (0,), (1,)), Moves(topic, (partition,), (member,)))
    assert isinstance(world.change(Assigned(1, row.version, moves)), ValidationError)
    assert world.owners() == ["-"] * 4 and world.group().row.generation == row.generation


def test_a_dead_owners_partitions_go_to_their_heirs_or_to_nobody(world: Groups) -> None:
    settled(world, "m1")
    world.join_group("m2")
    world.assign()
    world.expire("m1")
    assert world.owners() == ["-", "-", "m2", "m2"]
    assert isinstance(world.leave("m1"), MemberUnknown)


def test_groups_and_members_that_are_gone_are_errors_and_change_nothing(world: Groups) -> None:
    world.join_group("m1")
    rows = world.machine.all_rows()
    results = world.change(
        Left("other", "m1"),
        Released(9, "m1", 1, 0, 1),
        Assigned(9, 1, (Moves(1, (0,), (1,)),)),
    )
    assert [type(one) for one in results] == [MemberUnknown, GroupNotFound, GroupNotFound]
    assert isinstance(world.alter("other"), GroupNotFound)
    changed = {key for key, value in world.machine.all_rows().items() if rows.get(key) != value}
    assert changed <= {b"c"}, "only the index has moved"


# ------------------------------------------------------------------ static members


def test_an_instance_that_comes_back_has_what_it_had_under_new_grants_and_nothing_moves(world: Groups) -> None:
    world.join_group("m1", instance="web-1")
    settled(world, "m2")
    grants, version = world.grants(), world.group().row.version
    again = admitted(world.join_group("m3", instance="web-1"))
    assert world.owners() == ["m3", "m2", "m3", "m2"]
    assert world.grants() == [again.generation, grants[1], again.generation, grants[3]]
    assert world.group().row.version == version + 1, "an assignment under way names the old process"
    assert assignment(world, world.group()) is None, "the same question, the same answer"
    assert world.group().row.rebalances[-1].reason.endswith("joined")


def test_the_older_of_two_processes_of_one_instance_is_told_so_and_cannot_come_back(world: Groups) -> None:
    for number in range(1, 8):
        admitted(world.join_group(f"m{number}", instance="web-1"))
    assert isinstance(world.join_group("m6", instance="web-1"), InstanceFenced)
    with pytest.raises(InstanceFenced):
        world.machine.find_member("g", "m6")
    with pytest.raises(MemberUnknown):
        world.machine.find_member("g", "m1")
    assert len(world.group().members) == 1


def test_an_instance_that_was_to_follow_still_is(world: Groups) -> None:
    settled(world, "m1")
    world.join_group("m2", instance="web-1")
    world.assign()
    world.join_group("m3", instance="web-1")
    assert world.owners() == ["m1", "m1", "m1>m3", "m1>m3"]


def test_an_instance_that_wants_other_topics_gives_up_what_it_no_longer_wants(world: Groups) -> None:
    world.create("payments", partitions=2)
    world.join_group("m1", instance="web-1", topics=("orders", "payments"))
    world.bring_to_rest()
    world.join_group("m2", topics=("orders",))
    world.assign()
    assert world.owners() == ["m1", "m1>m2", "m1>m2", "m1>m2"]
    world.join_group("m3", instance="web-1", topics=("payments",))
    assert world.owners() == ["-", "m2", "m2", "m2"]
    assert world.owners(topic="payments") == ["m3", "m3"]
    world.join_group("m4", instance="web-1", topics=("orders",))
    assert world.owners(topic="payments") == ["-", "-"]


def test_an_instance_that_was_to_follow_where_it_no_longer_wants_to_does_not(world: Groups) -> None:
    world.create("payments", partitions=2)
    settled(world, "m1", topics=("orders", "payments"))
    world.join_group("m2", instance="web-1", topics=("orders", "payments"))
    world.assign()
    assert any(">" in owner for owner in world.owners())
    world.join_group("m3", instance="web-1", topics=("payments",))
    assert world.owners() == ["m1"] * 4


def test_a_join_that_takes_over_the_only_member_may_bring_another_assignor(world: Groups) -> None:
    world.join_group("m1", instance="web-1")
    admitted(world.join_group("m2", instance="web-1", assignor="range"))
    assert world.group().row.assignor == "range"


# ------------------------------------------------------------------ altering


def test_a_touch_makes_a_generation_and_changes_nothing_else(world: Groups) -> None:
    settled(world, "m1")
    row, grants = world.group().row, world.grants()
    assert world.alter() == Changed(1, row.generation + 1)
    assert (world.group().row.version, world.grants()) == (row.version, grants)


def test_to_shared_and_back_nobody_owns_a_partition(world: Groups) -> None:
    settled(world, "m1")
    world.join_group("m2")
    world.assign()
    world.alter(assignor="shared")
    assert world.owners() == ["-"] * 4
    assert world.group().row.shared_since == world.group().row.generation
    assert isinstance(world.change(Assigned(1, world.group().row.version, (Moves(1, (0,), (1,)),))), ConflictError)
    world.alter(assignor="sticky")
    world.bring_to_rest()
    assert world.owners() == ["m1", "m2", "m1", "m2"]


def test_another_assignor_leaves_the_owners_until_it_has_answered(world: Groups) -> None:
    settled(world, "m1", "m2")
    version = world.group().row.version
    world.alter(assignor="range", session_ms=2_000)
    assert world.group().row.version == version + 1
    assert world.owners() == ["m1", "m2", "m1", "m2"]
    assert world.view("m1").session_ms == 2_000
    world.bring_to_rest()
    assert world.owners() == ["m1", "m1", "m2", "m2"]


def test_a_hand_over_may_not_be_forced_before_a_session_ends(world: Groups) -> None:
    world.join_group("m1")
    assert isinstance(world.alter(session_ms=9_000, revoke_ms=8_000), ValidationError)
    assert isinstance(world.alter(revoke_ms=9_000), ValidationError)
    assert isinstance(world.alter(session_ms=9_000, revoke_ms=9_000), Changed)


def test_a_member_may_have_a_session_of_its_own(world: Groups) -> None:
    world.join_group("m1", session_ms=30_000)
    world.join_group("m2")
    assert [world.view(member).session_ms for member in ("m1", "m2")] == [30_000, limits.SESSION_MS]


# ------------------------------------------------------------------ topics


def test_partitions_that_a_topic_grows_by_are_nobodys_and_were_not_there_at_first(world: Groups) -> None:
    settled(world, "m1")
    version = world.group().row.version
    world.grow(6)
    assert world.owners() == ["m1"] * 4 + ["-", "-"]
    assert world.group().row.version == version + 1
    world.bring_to_rest()
    assert [one.first for one in world.view("m1").held] == [True] * 4 + [False] * 2


def test_a_topic_that_comes_later_is_found_by_name_and_by_pattern(world: Groups) -> None:
    world.join_group("m1", topics=("later",), patterns=("refunds.*",))
    version = world.group().row.version
    for name in ("later", "refunds.eu", "refunds", "other"):
        world.create(name, partitions=1)
    assert world.group().row.version == version + 2
    world.bring_to_rest()
    assert [(one.topic, one.first) for one in world.view("m1").held] == [("later", False), ("refunds.eu", False)]


def test_a_deleted_topics_partitions_are_gone_and_a_new_one_begins_anew(world: Groups) -> None:
    settled(world, "m1")
    world.join_group("m2")
    world.assign()
    world.delete()
    assert world.view("m1").held == () and world.view("m1").revoked == ()
    assert world.group().row.rebalances[-1].ended_ms
    world.create("orders", partitions=1)
    world.bring_to_rest()
    assert world.owners() == ["m1"]


def test_a_topic_that_nobody_wants_any_more_changes_nothing_but_its_row(world: Groups) -> None:
    settled(world, "m1")
    world.leave("m1")
    row = world.group().row
    world.grow(5)
    assert world.group().row == row and len(world.owners()) == 5
    world.delete()
    assert world.group().row == row and world.group().owners == {}


def test_members_own_only_what_they_want(world: Groups) -> None:
    world.create("payments", partitions=3)
    world.join_group("m1", topics=("orders",))
    world.join_group("m2", topics=("payments", "orders"))
    world.bring_to_rest()
    assert world.owners(topic="payments") == ["m2"] * 3
    world.leave("m2")
    assert world.owners(topic="payments") == ["-"] * 3
    world.bring_to_rest()
    assert world.owners() == ["m1"] * 4 and world.owners(topic="payments") == ["-"] * 3


# ------------------------------------------------------------------ what is remembered


def test_rebalances_are_remembered_with_their_reasons_and_how_long_they_took(world: Groups) -> None:
    settled(world, "member-one")
    world.join_group("m2")
    world.assign()
    last = world.group().row.rebalances[-1]
    assert (last.reason, last.moved, last.partitions, last.ended_ms) == ("m2 joined", 2, 4, 0)
    world.release("member-one", 2)
    assert not world.group().row.rebalances[-1].ended_ms
    world.release("member-one", 3)
    assert world.group().row.rebalances[-1].ended_ms == world.now_ms
    world.expire("m2")
    world.assign()
    reasons = [one.reason for one in world.group().row.rebalances]
    assert reasons == ["member-o… joined", "m2 joined", "m2 silent for 10 s"]


def test_an_assignment_in_two_parts_is_one_rebalance(world: Groups) -> None:
    world.join_group("m1")
    version = world.group().row.version
    for partitions in ((0, 1), (2, 3)):
        world.change(Assigned(1, version, (Moves(1, partitions, (1, 1)),)))
    assert [one.moved for one in world.group().row.rebalances] == [4]


def test_only_the_last_rebalances_are_kept(world: Groups) -> None:
    for number in range(20):
        world.join_group(f"m{number}")
        world.bring_to_rest()
        world.leave(f"m{number}")
    assert len(world.group().row.rebalances) == limits.REBALANCES_KEPT


def test_a_machine_that_is_loaded_from_its_rows_knows_all_of_it(world: Groups) -> None:
    world.create("payments", partitions=2)
    world.join_group("m1", instance="web-1", topics=("orders",), patterns=("pay*",), opaque=b"\x00\x01")
    settled(world, "m2", topics=("orders", "payments"))
    world.join_group("m3", instance="web-1")
    world.join_group("m4")
    world.assign()
    world.save()
    world.restart()
    again = world.machine
    assert again.group("g").replaced == {"m1": 3}  # type: ignore[union-attr]
    assert isinstance(world.join_group("m1", instance="web-1"), InstanceFenced)
    rows = StoredRows()
    rows.put(dict(again.all_rows()))
    Cluster(rows).check()


def test_the_bytes_that_a_member_brings_are_kept_as_they_are(world: Groups) -> None:
    world.join_group("m1", opaque=b"\0\1")
    world.join_group("m2", instance="web-1", opaque=b"\xff" * limits.OPAQUE_BYTES_MAX)
    world.save()
    world.join_group("m3", instance="web-1", opaque=b"new")
    world.restart()
    members = world.group().members
    assert {one.member: one.opaque for one in members.values()} == {"m1": b"\0\1", "m3": b"new"}


def test_without_groups_the_rows_are_those_of_the_release_before(world: Groups) -> None:
    counters = world.machine.all_rows()[b"c"]
    assert counters[0] == 0x99, "nine fields"
    assert not {key[:1] for key in world.machine.all_rows()} & {b"g", b"i", b"o"}
    world.join_group("m1")
    assert world.machine.all_rows()[b"c"][0] == 0x9B


def test_which_groups_changed_is_told_once(world: Groups) -> None:
    world.join_group("m1")
    world.join_group("m2", "other")
    assert world.machine.take_changed_groups() == {1, 2}
    world.leave("m2", "other")
    assert world.machine.take_changed_groups() == {2}
    world.forget("other")
    assert world.machine.take_changed_groups() == {2}
    assert world.machine.take_changed_groups() == set()


def test_a_view_says_in_which_generation_it_changed_last(world: Groups) -> None:
    settled(world, "m1", "m2")
    first = dict(world.group().seen)
    world.join_group("m3")
    assert {number: world.group().seen[number] for number in first} == first, "the others' views are as they were"
    world.assign()
    changed = [number for number in first if world.group().seen[number] != first[number]]
    assert changed == [world.number(owner.split(">")[0]) for owner in world.owners() if ">" in owner]


# ------------------------------------------------------------------ bounds


def test_a_group_has_only_so_many_members(world: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_MEMBERS_MAX", 2)
    world.join_group("m1", instance="web-1")
    world.join_group("m2")
    assert isinstance(world.join_group("m3"), GroupFull)
    admitted(world.join_group("m3", instance="web-1"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MEMBERS_MAX", 1),
        ("MEMBER_GROUPS_MAX", 1),
        ("OPAQUE_BYTES_TOTAL_MAX", 3),
        ("PATTERNS_MAX", 1),
        ("SUBSCRIBED_PARTITIONS_MAX", 7),
    ],
)
def test_all_groups_together_are_bounded(world: Groups, monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> None:
    monkeypatch.setattr(limits, name, value)
    more: dict[str, Any] = {"opaque": b"12", "patterns": ("ord*",)}
    admitted(world.join_group("m1", **more))
    assert isinstance(world.join_group("m2", "other", **more), GroupFull)
    assert world.machine.group("other") is None
    assert world.leave("m1") is not None


def test_the_subscriptions_of_a_group_are_bounded_and_told_apart(
    world: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_PER_GROUP_MAX", 2)
    world.join_group("m1", topics=("a", "b"))
    world.join_group("m2", topics=("b", "a", "a"))
    world.join_group("m3", topics=("c",))
    assert len(world.group().row.subscriptions) == 2
    assert isinstance(world.join_group("m4", topics=("d",)), GroupFull)
    world.leave("m3")
    admitted(world.join_group("m4", topics=("d",)))


def test_a_topic_that_would_put_groups_over_their_bound_is_refused(
    world: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.join_group("m1", patterns=("*",))
    monkeypatch.setattr(limits, "SUBSCRIBED_PARTITIONS_MAX", 5)
    assert isinstance(world.apply(encode_create_topic("big", TopicSettings(partitions=2), 1)), Overloaded)
    assert isinstance(world.grow(6), Overloaded)
    world.create("small", partitions=1)
    assert "small" in world.machine.topics


def test_racks_of_copies_stand_in_the_question_when_members_have_racks() -> None:
    world = Groups("a", "b", "c", racks="xyz")
    world.create("orders", partitions=2, replication=1)
    world.join_group("m1")
    assert world.machine.question_of(world.group()).racks == {}
    world.join_group("m2", rack="y")
    racks = world.machine.question_of(world.group()).racks
    assert set(racks) == {(1, 0), (1, 1)} and all(len(found) == 1 for found in racks.values())
