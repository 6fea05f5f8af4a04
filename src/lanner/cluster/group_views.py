"""What others may know of groups: a member's view, the question for an assignor, and what a caller's claim stands for.

`resolve` is asked wherever a partition is led. It makes of a caller's word (a member, and the generation that it has
seen) the fence that the call stands for, from this copy of the metadata alone: nothing is taken on trust. A copy that
is behind what the caller has seen says so (None); the caller waits for it, or asks elsewhere.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from lanner.cluster.assignors import Question, Subscriber
from lanner.cluster.grouped import NOBODY, Group, MemberRow
from lanner.cluster.state import State
from lanner.errors import InstanceFenced, MemberFenced, MembershipRequired, MemberUnknown
from lanner.model import TopicPartitionId

Fence = tuple[int, int]  # number of the group, grant
NOTHING_SEEN: Final[Fence] = (0, 0)


class Holding(NamedTuple):
    """A partition that a member owns."""

    topic: str
    incarnation: int
    partition: int
    grant: int
    first: bool  # it was there when the group first wanted the topic


class MemberView(NamedTuple):
    number: int
    generation: int
    member: int
    session_ms: int
    held: tuple[Holding, ...]
    revoked: tuple[Holding, ...]  # to be given up: another member is to follow


def view_of(state: State, group: Group, member: MemberRow) -> MemberView:
    held: list[Holding] = []
    revoked: list[Holding] = []
    for partition_id in sorted(group.owned.get(member.number, ())):
        _, grant, heir = group.owner_of(partition_id)
        first = partition_id[1] < group.owners[partition_id[0]].first
        one = Holding(state.groups.names[partition_id[0]], partition_id[0], partition_id[1], grant, first)
        (held if heir == NOBODY else revoked).append(one)
    row = group.row
    return MemberView(row.number, row.generation, member.number, group.session_ms(member), tuple(held), tuple(revoked))


def find_member(group: Group | None, name: str, member_id: str) -> MemberRow:
    """The member of this id, or an error that says what became of it."""
    one = None if group is None else group.member(member_id)
    if one is not None:
        return one
    if group is not None and member_id in group.replaced:
        raise InstanceFenced(
            f"a newer process has joined group {name!r} under the instance of member {member_id!r}: stop this one, or "
            "give each its own instance",
            group=name,
            member=member_id,
        )
    raise MemberUnknown(
        f"group {name!r} has no member {member_id!r}: it left, or was silent for too long; join again under a new id",
        group=name,
        member=member_id,
    )


def is_behind(state: State, name: str, seen: Fence) -> bool:
    """Whether this copy does not know yet what a member of the group has seen."""
    group = state.groups.by_name(name)
    if group is None:
        return seen[0] >= state.counters.next_group
    return (group.row.number, group.row.generation) < seen


def question_of(state: State, group: Group) -> Question:
    """What the group's assignor is to answer. The present: who is to follow, else who owns."""
    members = tuple(Subscriber(number, group.topics_of(one), one.rack) for number, one in sorted(group.members.items()))
    counts = {incarnation: len(group.owners[incarnation].owners) for incarnation in sorted(group.topics())}
    present: dict[TopicPartitionId, int] = {}
    for incarnation in counts:
        row = group.owners[incarnation]
        for partition, (owner, heir) in enumerate(zip(row.owners, row.heirs, strict=True)):
            if heir or owner:
                present[incarnation, partition] = heir or owner
    racks = _racks_of(state, counts) if any(one.rack for one in members) else {}
    return Question(members, counts, present, racks)


def _racks_of(state: State, counts: dict[int, int]) -> dict[TopicPartitionId, frozenset[str]]:
    racks: dict[TopicPartitionId, frozenset[str]] = {}
    for topic in state.topics.values():
        if topic.incarnation in counts:
            for partition, set_id in enumerate(topic.set_ids):
                nodes = state.sets[set_id].nodes if set_id in state.sets else ()
                racks[topic.incarnation, partition] = frozenset(state.brokers[node].rack for node in nodes) - {""}
    return racks


def is_owned(state: State, name: str, set_id: int, idle_since_ms: int) -> bool:
    """Whether a group is in use on the partition of this set: it has an owner there, or it changed since that time. So
    the progress of a quiet group outlives the moment between two of its members."""
    group = state.groups.by_name(name)
    if group is None:
        return False
    if group.row.generation_ms > idle_since_ms:
        return True
    record = state.sets.get(set_id)
    topic = None if record is None else state.topics.get(record.topic)
    if record is None or topic is None:
        return bool(group.owned)
    return group.owner_of((topic.incarnation, record.partition))[0] != NOBODY


def resolve(state: State, name: str, member_id: str, seen: Fence, partition_id: TopicPartitionId) -> Fence | None:
    """The fence that a call of this member (or of none) stands for; None: this copy is behind what it has seen."""
    group = state.groups.by_name(name)
    if group is None:
        if seen == NOTHING_SEEN and not member_id:
            return state.counters.next_group, 0  # above every group of this name so far, below the next one
        if seen[0] >= state.counters.next_group:
            return None
        find_member(group, name, member_id)
        raise AssertionError("a group that is not there has no members")
    row = group.row
    if group.shared:
        return row.number, row.shared_since
    if not member_id and seen == NOTHING_SEEN:
        if group.members:
            raise MembershipRequired(
                f"group {name!r} has members, and each partition belongs to one of them ({row.assignor}): join it",
                group=name,
                assignor=row.assignor,
            )
        return row.number, row.generation
    if (row.number, row.generation) < seen:
        return None
    if not member_id:
        return _forced(group, seen)
    one = find_member(group, name, member_id)
    owner, grant, _ = group.owner_of(partition_id)
    if owner != one.number or (row.number, grant) > seen:
        raise MemberFenced(
            f"member {member_id!r} of group {name!r} does not have partition {partition_id[1]} as of generation "
            f"{seen[1]}; the group is at {row.generation}: stop working on it, and release it",
            group=name,
            member=member_id,
            partition=partition_id[1],
            generation=row.generation,
        )
    return row.number, grant


def _forced(group: Group, seen: Fence) -> Fence:
    """An operator acts under a generation that was made for it."""
    if seen[0] != group.row.number:
        raise MembershipRequired(f"group {group.row.name!r} is another one by now; begin again", group=group.row.name)
    return seen
