"""Members of groups over all doors: they join, share, hand over, leave and are fenced the same over each.

A case may let members come by several doors: they are members of one group all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest

from lanner.errors import (
    AssignorConflict,
    GenerationAhead,
    GroupFull,
    GroupInUse,
    GroupKindConflict,
    GroupNotFound,
    InstanceFenced,
    MemberFenced,
    MembershipRequired,
    MemberUnknown,
)
from lanner.limits import SUBSCRIPTIONS_PER_GROUP_MAX
from tests.contract.doors.door import Claimed, Door, Grant, New, View
from tests.contract.doors.parity import brings, everywhere, shows

BEAT_MS = 2_000


def heard(door: Door, group: str, view: View, ready: Callable[[View], bool], released: Sequence[Grant] = ()) -> View:
    """The member's view, once it is so; heartbeats wait for it."""
    ends = time.monotonic() + 60
    while not ready(view):
        assert time.monotonic() < ends, view
        told = door.heartbeat(group, view, released, wait_ms=BEAT_MS)
        view = told if told.news else view._replace(generation=told.generation)
    return view


def joined(door: Door, group: str, topic: str, partitions: int, **wanted: object) -> View:
    """A member that has so many partitions."""
    view = door.join_group(group, topic, **{"assignor": "sticky", **wanted})
    return heard(door, group, view, lambda view: len(view.held) == partitions)


def filled(door: Door, topic: str, partitions: int, each: int = 1) -> None:
    """A topic with so many messages in each partition, whose values are the partition's number."""
    door.create_topic(topic, partitions=partitions)
    for partition in range(partitions):
        door.publish(topic, *(New(b"%d" % partition, partition=partition) for _ in range(each)))


# ------------------------------------------------------------------ queue groups


@shows("join_group", "heartbeat", "poll")
def test_a_second_member_gets_half_and_nothing_else_moves(door: Door, topic: str) -> None:
    filled(door, topic, 4)
    first = joined(door, topic, topic, 4)
    assert (first.assignor, first.shared, first.session_ms) == ("sticky", False, 30_000)
    second = joined(door, topic, topic, 2)
    first = heard(door, topic, first, lambda view: len(view.held) == 2)
    assert sorted(first.partitions + second.partitions) == [0, 1, 2, 3]
    for view in (first, second):
        polled = door.poll(topic, topic, partitions=view.partitions, **view.seen)
        assert sorted(one.message.partition for one in polled) == sorted(view.partitions)
        assert [one.error for one in door.settle("ack", topic, topic, polled, member_id=view.member_id)] == ["", ""]
    grants = {one.partition: one.grant for one in first.held}
    third = joined(door, topic, topic, 1)
    first = heard(door, topic, first, lambda view: view.generation >= third.generation)
    assert all(grants[one.partition] == one.grant for one in first.held)  # what stays is not given anew


@shows("poll", "join_group", "ack")
def test_what_is_leased_stays_leased_when_its_partition_moves(door: Door, topic: str) -> None:
    filled(door, topic, 2)
    first = joined(door, topic, topic, 2)
    polled = door.poll(topic, topic, partitions=[0, 1], **first.seen)
    assert len(polled) == 2
    second = joined(door, topic, topic, 1)
    assert door.poll(topic, topic, partitions=second.partitions, **second.seen) == []
    assert [one.error for one in door.settle("ack", topic, topic, polled)] == ["", ""]


@shows("leave_group")
def test_who_leaves_hands_over_at_once(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=2)
    first = joined(door, topic, topic, 2)
    second = joined(door, topic, topic, 1)
    door.leave_group(topic, first.member_id, reason="done")
    second = heard(door, topic, second, lambda view: len(view.held) == 2)
    with pytest.raises(MemberUnknown):
        door.heartbeat(topic, first)
    door.leave_group(topic, first.member_id)  # asked again: it is gone, that is all
    found = door.list_members(topic)
    assert [one.member_id for one in found.members] == [second.member_id]
    assert any("left: done" in reason for reason in found.reasons)


@shows("join_group", "heartbeat")
def test_a_member_that_is_silent_for_its_session_is_lost(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=2)
    silent = joined(door, topic, topic, 2, session_ms=1_000)
    other = joined(door, topic, topic, 1)
    heard(door, topic, other, lambda view: len(view.held) == 2)
    with pytest.raises(MemberUnknown):
        door.heartbeat(topic, silent)


@shows("join_group", "poll")
def test_members_may_share_everything(door: Door, topic: str) -> None:
    filled(door, topic, 2)
    views = [door.join_group(topic, topic) for _ in range(3)]
    assert all(view.shared and view.assignor == "shared" and not view.held for view in views)
    found = [one for view in views for one in door.poll(topic, topic, max_messages=1, **view.seen)]
    assert sorted(one.message.partition for one in found) == [0, 1]
    assert door.poll(topic, topic) == []  # nobody needs to be a member


@shows("join_group", "list_members")
def test_a_pattern_takes_in_topics_that_come_later(door: Door, topic: str) -> None:
    door.create_topic(f"{topic}.a", partitions=1)
    view = door.join_group(topic, patterns=[f"{topic}.*"], assignor="range")
    heard(door, topic, view, lambda view: [one.topic for one in view.held] == [f"{topic}.a"])
    door.create_topic(f"{topic}.b", partitions=2)
    heard(door, topic, view, lambda view: len(view.held) == 3)
    (member,) = door.list_members(topic).members
    assert member.held == [(f"{topic}.a", 0, 0), (f"{topic}.b", 0, 1)]


@shows("join_group", "list_members")
def test_a_join_that_is_repeated_under_its_id_is_one_member(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    first = door.join_group(topic, topic, member_id="mine")
    assert door.join_group(topic, topic, member_id="mine").member_id == first.member_id == "mine"
    assert door.list_members(topic).count == 1


@shows("join_group", "heartbeat")
def test_an_instance_that_comes_back_has_what_it_had(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=4)
    old = joined(door, topic, topic, 4, instance="web-1")
    other = joined(door, topic, topic, 2)
    old = heard(door, topic, old, lambda view: len(view.held) == 2)
    new = joined(door, topic, topic, 2, instance="web-1")
    assert new.partitions == old.partitions
    assert all(was.grant < now.grant for was, now in zip(old.held, new.held, strict=True))
    assert not door.heartbeat(topic, other).news  # nothing of hers has moved


@everywhere()
def test_members_of_all_doors_are_members_of_one_group(door: Door, doors: dict[str, Door], topic: str) -> None:
    door.create_topic(topic, partitions=len(doors))
    views = {name: one.join_group(topic, topic, assignor="sticky", client=name) for name, one in doors.items()}
    views = {name: heard(doors[name], topic, view, lambda view: len(view.held) == 1) for name, view in views.items()}
    assert sorted(partition for view in views.values() for partition in view.partitions) == list(range(len(doors)))
    found = {one.client: one for one in door.list_members(topic).members}
    assert {name: one.door for name, one in found.items()} == {"native": "native", "REST": "rest", "gRPC": "grpc"}
    for name, view in views.items():  # a member belongs to no door: any takes its heartbeat
        assert door.heartbeat(topic, view).session_ms == view.session_ms
        assert found[name].held == [(topic, view.partitions[0], view.partitions[0])]


# ------------------------------------------------------------------ stream groups


@shows("claim_partitions", "fetch", "commit", "committed", "heartbeat")
def test_a_stream_is_handed_over_where_its_owner_stopped(door: Door, topic: str) -> None:
    filled(door, topic, 2, each=10)
    first = joined(door, topic, topic, 2, kind="stream")
    assert door.claim_partitions(topic, topic, first, [0, 1]) == [Claimed(0, "", 0), Claimed(1, "", 0)]
    assert len(door.fetch(topic, 0, 0, group=topic, **first.seen).messages) == 10
    door.commit(topic, topic, {0: 4, 1: 4}, **first.seen)

    second = door.join_group(topic, topic, kind="stream")
    first = heard(door, topic, first, lambda view: len(view.revoked) == 1)
    (moving,) = first.revoked
    assert not heard(door, topic, second, lambda view: view.generation >= first.generation).held  # it waits
    door.commit(topic, topic, {moving.partition: 7}, **first.seen)
    heard(door, topic, first, lambda view: not view.revoked, released=[moving])
    second = heard(door, topic, second, lambda view: len(view.held) == 1)
    assert second.partitions == [moving.partition]
    assert door.claim_partitions(topic, topic, second, second.partitions) == [Claimed(moving.partition, "", 7, True)]

    for view in (first, door.heartbeat(topic, first._replace(number=0, generation=0))):
        with pytest.raises(MemberFenced):
            door.commit(topic, topic, {moving.partition: 9}, **view.seen)
        with pytest.raises(MemberFenced):
            door.fetch(topic, moving.partition, 7, group=topic, **view.seen)
    assert door.claim_partitions(topic, topic, first, [moving.partition]) == [Claimed(moving.partition, "MemberFenced")]
    door.commit(topic, topic, {moving.partition: 8}, **second.seen)
    assert door.committed(topic, topic) == {moving.partition: 8, 1 - moving.partition: 4}


@shows("commit")
def test_a_members_commit_that_is_repeated_under_its_sequence_does_nothing(door: Door, topic: str) -> None:
    filled(door, topic, 1, each=5)
    view = joined(door, topic, topic, 1, kind="stream")
    door.claim_partitions(topic, topic, view, [0])
    door.commit(topic, topic, {0: 2}, sequence=1, **view.seen)
    door.commit(topic, topic, {0: 4}, sequence=2, **view.seen)
    door.commit(topic, topic, {0: 2}, sequence=1, **view.seen)
    assert door.committed(topic, topic) == {0: 4}


@shows("seek", "claim_partitions")
def test_a_stream_is_moved_by_force_under_its_members(door: Door, topic: str) -> None:
    filled(door, topic, 1, each=5)
    view = joined(door, topic, topic, 1, kind="stream")
    door.claim_partitions(topic, topic, view, [0])
    door.commit(topic, topic, {0: 5}, **view.seen)
    with pytest.raises(GroupInUse):
        door.seek(topic, topic, to="earliest")
    door.seek(topic, topic, to="earliest", force=True)
    with pytest.raises(MemberFenced):
        door.commit(topic, topic, {0: 5}, **view.seen)  # it would undo the seek
    (old,) = view.held
    again = heard(door, topic, view, lambda view: bool(view.held) and view.held[0].grant > old.grant, released=[old])
    assert door.claim_partitions(topic, topic, again, [0])[0].offset == 0


# ------------------------------------------------------------------ operators


@shows("list_members")
def test_members_are_listed_with_what_they_have(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=4)
    joined(door, topic, topic, 4, client="host-a", instance="web-1")
    joined(door, topic, topic, 2, client="host-b")
    found = door.list_members(topic)
    ends = time.monotonic() + 60
    while found.state != "settled":  # the coordinator hears of its own assignment a moment later
        assert time.monotonic() < ends, found
        found = door.list_members(topic)
    assert (found.kind, found.assignor, found.count) == ("queue", "sticky", 2)
    assert [(one.client, one.instance) for one in found.members] == [("host-a", "web-1"), ("host-b", "")]
    assert sum(last - first + 1 for one in found.members for _, first, last in one.held) == 4
    assert any("joined" in reason for reason in found.reasons)
    page = door.list_members(topic, limit=1)
    assert [one.client for one in page.members] == ["host-a"]
    rest = door.list_members(topic, after=page.next)
    assert ([one.client for one in rest.members], rest.next) == (["host-b"], 0)


@shows("alter_group", "list_members")
def test_a_group_is_altered_while_it_works(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=2)
    view = joined(door, topic, topic, 2)
    generation = door.alter_group(topic, assignor="shared", session_ms=20_000, revoke_ms=90_000)
    view = heard(door, topic, view, lambda view: view.shared)
    assert view.generation >= generation and not view.held
    found = door.list_members(topic)
    assert (found.assignor, found.session_ms, found.revoke_ms) == ("shared", 20_000, 90_000)
    door.alter_group(topic, assignor="round_robin")
    view = heard(door, topic, view, lambda view: len(view.held) == 2)
    assert door.alter_group(topic) > view.generation  # with nothing to alter it begins another generation


@shows("evict_member")
def test_a_member_is_evicted(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=2)
    stuck = joined(door, topic, topic, 2)
    other = joined(door, topic, topic, 1)
    door.evict_member(topic, stuck.member_id, reason="stuck since noon")
    heard(door, topic, other, lambda view: len(view.held) == 2)
    with pytest.raises(MemberUnknown):
        door.poll(topic, topic, partitions=[0], **stuck.seen)
    assert any("stuck since noon" in reason for reason in door.list_members(topic).reasons)
    assert joined(door, topic, topic, 1).member_id != stuck.member_id  # it may come back, as another


@shows("list_clients")
def test_connections_that_use_a_group_are_listed(door: Door, doors: dict[str, Door], topic: str) -> None:
    door.create_topic(topic, partitions=1)
    for one in doors.values():
        one.poll(topic, topic)
    assert sorted(door.list_clients(topic)) == ["grpc", "native", "rest"]


# ------------------------------------------------------------------ errors


@brings(MemberUnknown)
def test_somebody_who_is_no_member(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    view = joined(door, topic, topic, 1)
    stranger = view._replace(member_id="stranger")
    with pytest.raises(MemberUnknown):
        door.heartbeat(topic, stranger)
    with pytest.raises(MemberUnknown):
        door.evict_member(topic, "stranger")
    with pytest.raises(MemberUnknown):
        door.poll(topic, topic, partitions=[0], **stranger.seen)
    with pytest.raises(MemberUnknown):
        door.fetch(topic, 0, 0, group=topic, **stranger.seen)


@brings(MemberFenced)
def test_a_partition_that_is_another_members(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=2)
    first = joined(door, topic, topic, 2)
    second = joined(door, topic, topic, 1)
    with pytest.raises(MemberFenced):
        door.poll(topic, topic, partitions=second.partitions, **first.seen)
    with pytest.raises(MemberFenced):
        door.poll(topic, topic, partitions=[1 - second.partitions[0]], **second.seen)


@brings(InstanceFenced)
def test_a_process_whose_instance_another_has_taken(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    old = joined(door, topic, topic, 1, instance="web-1")
    joined(door, topic, topic, 1, instance="web-1")
    with pytest.raises(InstanceFenced):
        door.heartbeat(topic, old)
    with pytest.raises(InstanceFenced):
        door.poll(topic, topic, partitions=[0], **old.seen)
    with pytest.raises(InstanceFenced):
        door.join_group(topic, topic, member_id=old.member_id, instance="web-1")


@brings(MembershipRequired)
def test_a_group_whose_members_have_its_partitions(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    joined(door, topic, topic, 1)
    with pytest.raises(MembershipRequired):
        door.poll(topic, topic)
    joined(door, f"{topic}-stream", topic, 1, kind="stream")
    with pytest.raises(MembershipRequired):
        door.commit(topic, f"{topic}-stream", {0: 0})


@brings(AssignorConflict)
def test_a_group_that_uses_another_assignor(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    joined(door, topic, topic, 1)
    with pytest.raises(AssignorConflict):
        door.join_group(topic, topic, assignor="range")
    assert door.join_group(topic, topic).assignor == "sticky"


@brings(GroupKindConflict)
def test_a_member_of_a_group_of_the_other_kind(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    joined(door, topic, topic, 1)
    with pytest.raises(GroupKindConflict):
        door.join_group(topic, topic, kind="stream")


@brings(GroupInUse)
def test_a_group_that_has_members_is_not_dropped(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    view = joined(door, topic, topic, 1)
    door.poll(topic, topic, partitions=[0], **view.seen)
    with pytest.raises(GroupInUse):
        door.drop_group(topic, topic)
    door.leave_group(topic, view.member_id)
    door.drop_group(topic, topic)


@brings(GroupFull)
def test_a_group_with_as_many_subscriptions_as_there_may_be(door: Door, topic: str) -> None:
    for number in range(SUBSCRIPTIONS_PER_GROUP_MAX):
        door.join_group(topic, f"{topic}-{number}", member_id=f"m{number}")
    with pytest.raises(GroupFull):
        door.join_group(topic, f"{topic}-one-more", member_id="one-more")
    door.join_group(topic, f"{topic}-0", member_id="the-same")


@brings(GenerationAhead)
def test_a_member_that_has_seen_more_than_its_broker(door: Door, topic: str) -> None:
    door.create_topic(topic, partitions=1)
    view = joined(door, topic, topic, 1)
    ahead = view._replace(generation=view.generation + 1_000)
    with pytest.raises(GenerationAhead):
        door.heartbeat(topic, ahead)
    with pytest.raises(GenerationAhead):
        door.poll(topic, topic, partitions=[0], **ahead.seen)


@brings(GroupNotFound)
def test_a_group_that_never_had_members(door: Door, topic: str) -> None:
    for call in (door.list_members, door.alter_group):
        with pytest.raises(GroupNotFound):
            call(topic)
    with pytest.raises(GroupNotFound):
        door.evict_member(topic, "somebody")
