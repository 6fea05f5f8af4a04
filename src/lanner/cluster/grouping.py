"""Members of groups, and who owns which partition: the rules by which groups change.

Each change is decided by itself: it takes effect, or it is a no-op with an error. Every effect makes a new generation.
The rules that keep hand-overs safe:
- A partition is granted again only after its owner released it, went, or was forced. In a queue group the new owner has
  it at once: leases are what protects messages there.
- A grant is the generation in which it was given. It changes only with its owner: a move that is called off leaves it.
- A process that takes over an instance owns under new grants, and an assignment that named the old one is void.
- An assignment applies only to the version that it was made for.
- Numbers of groups and members are never given twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from lanner import features, limits
from lanner.cluster.assignors import SHARED, STICKY
from lanner.cluster.group_changes import (
    Altered,
    Assigned,
    Change,
    ChangeGroups,
    Expired,
    Forced,
    Forgotten,
    Joined,
    Left,
    Released,
    check_change,
)
from lanner.cluster.grouped import (
    NOBODY,
    Group,
    GroupRow,
    GroupTable,
    MemberRow,
    Subscription,
)
from lanner.cluster.ownership import advance, end_rebalance, give, note_rebalance, pass_on, unowned
from lanner.cluster.state import State, Topic
from lanner.errors import (
    AssignorConflict,
    ConflictError,
    GroupFull,
    GroupInUse,
    GroupKindConflict,
    GroupNotFound,
    InstanceFenced,
    LannerError,
    MemberFenced,
    MemberUnknown,
    NotSupported,
    ValidationError,
)
from lanner.model import GroupKind, TopicPartitionId


class Admitted(NamedTuple):
    """A join took effect, now or before."""

    number: int
    generation: int
    member: int


class Changed(NamedTuple):
    number: int
    generation: int


Applied = Admitted | Changed | LannerError


class GroupsChanged(msgspec.Struct, frozen=True):
    """What became of each change, in their order."""

    results: tuple[Applied, ...]


def change_groups(state: State, command: ChangeGroups) -> GroupsChanged:
    if state.counters.feature_level < features.GROUPS:
        raise NotSupported(
            f"members of groups need feature level {features.GROUPS}, and the cluster is at "
            f"{state.counters.feature_level}: upgrade every broker, then run `lanner cluster upgrade`"
        )
    if len(command.changes) > limits.GROUP_CHANGES_MAX:
        raise ValidationError(f"{len(command.changes)} changes are more than {limits.GROUP_CHANGES_MAX}")
    return GroupsChanged(tuple(_change(state, change) for change in command.changes))


def _change(state: State, change: Change) -> Applied:
    try:
        check_change(change)
        match change:
            case Joined():
                return _join(state, change)
            case Left():
                return _leave(state, change)
            case Expired():
                return _expire(state, change)
            case Assigned():
                return _assign(state, change)
            case Released():
                return _release(state, change)
            case Forced():
                return _force(state, change)
            case Altered():
                return _alter(state, change)
            case Forgotten():
                return _forget(state, change)
    except LannerError as error:
        return error


# ------------------------------------------------------------------ members come


def _join(state: State, change: Joined) -> Admitted:
    table = state.groups
    group = table.by_name(change.group)
    known = None if group is None else group.member(change.member)
    if group is not None and known is not None:
        return Admitted(group.row.number, group.row.generation, known.number)
    replaced = None if group is None else _check_join(group, change)
    subscription = Subscription(tuple(sorted(set(change.topics))), tuple(sorted(set(change.patterns))))
    wanted = [topic for topic in state.topics.values() if subscription.wants(topic.name)]
    _check_room(table, group, change, replaced)
    _check_subscription(table, group, subscription, wanted, replaced)
    if group is None:
        group = _new_group(state, change)
    subscriptions, number = _with_subscription(group, subscription, replaced)
    came = "came back" if replaced else "joined"
    shown = f"{_shown(change.member)} ({change.instance})" if change.instance else _shown(change.member)
    generation = advance(state, group, f"{shown} {came}", subscriptions=subscriptions, **_chosen(group, change))
    for topic in wanted:
        if topic.incarnation not in group.owners:
            table.put_owners(group, topic.incarnation, topic.name, unowned(len(topic.set_ids), len(topic.set_ids)))
    group.wanted = {one: group.wanted[one] for one in subscriptions if one != number}
    group.wanted[number] = frozenset(topic.incarnation for topic in wanted)
    member = _new_member(state, change, number, replaced)
    table.put_member(group, member)
    if replaced is not None:
        _take_over(table, group, replaced, member)
        end_rebalance(state, group)
    return Admitted(group.row.number, generation, member.number)


def _check_join(group: Group, change: Joined) -> MemberRow | None:
    """Whether the process may join this group; the member that it takes over."""
    row = group.row
    if change.member in group.replaced:
        raise InstanceFenced(
            f"member {change.member!r} of group {row.name!r} was replaced by a newer process of its instance: stop "
            "this one, or give each its own instance",
            group=row.name,
            member=change.member,
        )
    if change.kind is not row.kind:
        raise GroupKindConflict(f"{row.name!r} is a {row.kind} group; use another name", group=row.name)
    taken = group.instances.get(change.instance)
    if change.assignor not in ("", row.assignor) and len(group.members) > (taken is not None):
        raise AssignorConflict(
            f"group {row.name!r} uses the assignor {row.assignor!r} and has {len(group.members)} members: join with "
            f"that one, or run `lanner group alter {row.name} --assignor {change.assignor}`",
            group=row.name,
            assignor=row.assignor,
        )
    return None if taken is None else group.members[taken]


def _check_room(table: GroupTable, group: Group | None, change: Joined, replaced: MemberRow | None) -> None:
    if group is None and len(table.groups) >= limits.MEMBER_GROUPS_MAX:
        raise GroupFull(f"there are {limits.MEMBER_GROUPS_MAX} groups with members, as many as there may be")
    if replaced is None and group is not None and len(group.members) >= limits.GROUP_MEMBERS_MAX:
        raise GroupFull(
            f"group {change.group!r} has {limits.GROUP_MEMBERS_MAX} members, as many as it may", group=change.group
        )
    if replaced is None and table.member_count >= limits.MEMBERS_MAX:
        raise GroupFull(f"there are {limits.MEMBERS_MAX} members of groups, as many as there may be")
    freed = 0 if replaced is None else len(replaced.opaque)
    if table.opaque_bytes - freed + len(change.opaque) > limits.OPAQUE_BYTES_TOTAL_MAX:
        raise GroupFull(f"members keep {limits.OPAQUE_BYTES_TOTAL_MAX} bytes, as many as they may")


def _check_subscription(
    table: GroupTable, group: Group | None, wanted: Subscription, topics: list[Topic], replaced: MemberRow | None
) -> None:
    known = {} if group is None else _left_without(group, replaced)
    if wanted not in known.values():
        if len(known) >= limits.SUBSCRIPTIONS_PER_GROUP_MAX:
            raise GroupFull(
                f"the members of the group have {limits.SUBSCRIPTIONS_PER_GROUP_MAX} different subscriptions, as many "
                "as they may"
            )
        if table.pattern_count + len(wanted.patterns) > limits.PATTERNS_MAX:
            raise GroupFull(f"groups have {limits.PATTERNS_MAX} patterns, as many as they may")
    new = sum(len(one.set_ids) for one in topics if group is None or one.incarnation not in group.owners)
    if table.partition_count + new > limits.SUBSCRIBED_PARTITIONS_MAX:
        raise GroupFull(
            f"groups are subscribed to {table.partition_count} partitions, and {new} more would be over "
            f"{limits.SUBSCRIBED_PARTITIONS_MAX}, as many as may be"
        )


def _new_group(state: State, change: Joined) -> Group:
    default = SHARED if change.kind is GroupKind.QUEUE else STICKY
    number = state.counters.next_group
    state.counters.next_group = number + 1
    return Group(
        GroupRow(
            number,
            change.group,
            change.kind,
            change.assignor or default,
            limits.SESSION_MS,
            limits.REVOKE_MS,
            shared_since=1 if (change.assignor or default) == SHARED else 0,
        )
    )


def _chosen(group: Group, change: Joined) -> dict[str, Any]:
    """What a join into a group without other members may change of it."""
    row = group.row
    if change.assignor in ("", row.assignor):
        return {}
    return {"assignor": change.assignor, "shared_since": row.generation + 1 if change.assignor == SHARED else 0}


def _with_subscription(
    group: Group, subscription: Subscription, replaced: MemberRow | None
) -> tuple[dict[int, Subscription], int]:
    """The group's subscriptions with this one in it, and its number."""
    known = _left_without(group, replaced)
    for number, one in known.items():
        if one == subscription:
            return known, number
    number = next(number for number in range(len(known) + 1) if number not in known)
    return dict(sorted((known | {number: subscription}).items())), number


def _left_without(group: Group, gone: MemberRow | None) -> dict[int, Subscription]:
    """The subscriptions that somebody still has when this member is gone."""
    known = group.row.subscriptions
    if gone is None or any(
        one.subscription == gone.subscription for one in group.members.values() if one.number != gone.number
    ):
        return dict(known)
    return {number: one for number, one in known.items() if number != gone.subscription}


def _new_member(state: State, change: Joined, subscription: int, replaced: MemberRow | None) -> MemberRow:
    number = state.counters.next_member
    state.counters.next_member = number + 1
    return MemberRow(
        number,
        change.member,
        subscription,
        state.counters.machine_ms,
        change.instance,
        change.session_ms,
        change.rack,
        change.client,
        change.door,
        change.opaque,
        () if replaced is None else (*replaced.replaced, replaced.member)[-limits.REPLACED_IDS_KEPT :],
    )


def _take_over(table: GroupTable, group: Group, old: MemberRow, new: MemberRow) -> None:
    """What the old process had the new one has, under new grants; but for what it no longer wants."""
    wanted, generation = group.topics_of(new), group.row.generation
    for partition_id in sorted(group.owned.get(old.number, ())):
        _, _, heir = group.owner_of(partition_id)
        if partition_id[0] in wanted:
            give(table, group, partition_id, new.number, generation, heir)
        else:
            pass_on(table, group, partition_id)
    for partition_id in sorted(group.inherited.get(old.number, ())):
        owner, grant, _ = group.owner_of(partition_id)
        give(table, group, partition_id, owner, grant, new.number if partition_id[0] in wanted else NOBODY)
    table.drop_member(group, old)
    for member_id in new.replaced:
        group.replaced[member_id] = new.number  # the old row listed some of them, too
    group.instances[new.instance] = new.number


# ------------------------------------------------------------------ members go


def _leave(state: State, change: Left) -> Changed:
    group = state.groups.by_name(change.group)
    one = None if group is None else group.member(change.member)
    if group is None or one is None:
        raise MemberUnknown(
            f"group {change.group[: limits.NAME_LENGTH_MAX]!r} has no member {change.member!r}",
            group=change.group,
            member=change.member,
        )
    return _remove(state, group, one, f"{_shown(one.member)} left" + (f": {change.reason}" if change.reason else ""))


def _expire(state: State, change: Expired) -> Changed:
    group = _find(state, change.number)
    one = group.members.get(change.member)
    if one is None:
        raise MemberUnknown(f"group {group.row.name!r} has no member of number {change.member}", group=group.row.name)
    return _remove(state, group, one, f"{_shown(one.member)} silent for {change.silent_ms / 1_000:g} s")


def _remove(state: State, group: Group, one: MemberRow, reason: str) -> Changed:
    table = state.groups
    subscriptions = _left_without(group, one)
    advance(state, group, reason, subscriptions=subscriptions)
    for partition_id in sorted(group.inherited.get(one.number, ())):
        owner, grant, _ = group.owner_of(partition_id)
        give(table, group, partition_id, owner, grant, NOBODY)
    for partition_id in sorted(group.owned.get(one.number, ())):
        pass_on(table, group, partition_id)
    table.drop_member(group, one)
    group.wanted = {number: group.wanted[number] for number in subscriptions}
    end_rebalance(state, group)
    return Changed(group.row.number, group.row.generation)


# ------------------------------------------------------------------ partitions


def _assign(state: State, change: Assigned) -> Changed:
    group = _find(state, change.number)
    row = group.row
    if change.version != row.version or group.shared:
        raise ConflictError(
            f"the assignment of version {change.version} is of the past: group {row.name!r} is at {row.version}",
            group=row.name,
        )
    moves = [
        ((one.topic, partition), member)
        for one in change.moves
        for partition, member in zip(one.partitions, one.members, strict=True)
    ]
    for partition_id, member in moves:
        found, owners = group.members.get(member), group.owners.get(partition_id[0])
        fits = owners is not None and 0 <= partition_id[1] < len(owners.owners)
        if found is None or not fits or partition_id[0] not in group.topics_of(found):
            raise ValidationError(f"the assignment of {partition_id} to member {member} does not fit", field="moves")
    generation = advance(state, group)
    for partition_id, member in moves:
        owner, grant, _ = group.owner_of(partition_id)
        if owner == member:
            give(state.groups, group, partition_id, owner, grant, NOBODY)  # the move is called off
        elif owner == NOBODY or row.kind is GroupKind.QUEUE:
            give(state.groups, group, partition_id, member, generation, NOBODY)
        else:
            give(state.groups, group, partition_id, owner, grant, member)
    note_rebalance(state, group, len(moves))
    return Changed(row.number, generation)


def _release(state: State, change: Released) -> Changed:
    group = _find(state, change.number)
    one = group.member(change.member)
    partition_id = (change.topic, change.partition)
    owner, grant, heir = group.owner_of(partition_id)
    if one is None or (owner, grant) != (one.number, change.grant):
        raise MemberFenced(
            f"member {change.member!r} of group {group.row.name!r} no longer has partition {change.partition} under "
            f"grant {change.grant}",
            group=group.row.name,
            member=change.member,
        )
    shown = f"{state.groups.names[change.topic]}/{change.partition}"
    return _hand_over(state, group, partition_id, "" if heir else f"{_shown(change.member)} gave up {shown}")


def _force(state: State, change: Forced) -> Changed:
    group = _find(state, change.number)
    partition_id = (change.topic, change.partition)
    _, grant, heir = group.owner_of(partition_id)
    if heir == NOBODY or grant != change.grant:
        raise ConflictError(f"partition {change.partition} of group {group.row.name!r} is not waited for any more")
    return _hand_over(state, group, partition_id)


def _hand_over(state: State, group: Group, partition_id: TopicPartitionId, reason: str = "") -> Changed:
    """With a reason: nobody follows, so the question is who should."""
    generation = advance(state, group, reason)
    pass_on(state.groups, group, partition_id)
    end_rebalance(state, group)
    return Changed(group.row.number, generation)


# ------------------------------------------------------------------ the group itself


def _alter(state: State, change: Altered) -> Changed:
    group = state.groups.by_name(change.group)
    if group is None:
        raise GroupNotFound(f"group {change.group!r} has never had members", group=change.group)
    row = group.row
    session_ms, revoke_ms = change.session_ms or row.session_ms, change.revoke_ms or row.revoke_ms
    if revoke_ms < session_ms:
        raise ValidationError(
            f"revoke_ms ({revoke_ms}) may not be less than session_ms ({session_ms})", field="revoke_ms"
        )
    changes: dict[str, Any] = {"session_ms": session_ms, "revoke_ms": revoke_ms}
    switched = change.assignor not in ("", row.assignor)
    if switched:
        changes |= {"assignor": change.assignor, "shared_since": row.generation + 1 if change.assignor == SHARED else 0}
    advance(state, group, f"the assignor is now {change.assignor}" if switched else "", **changes)
    if switched and SHARED in (row.assignor, change.assignor):
        for partition_id in sorted(
            partition_id for partition_ids in group.owned.values() for partition_id in partition_ids
        ):
            give(state.groups, group, partition_id, NOBODY, 0, NOBODY)
    if group.row.session_ms != row.session_ms or switched:
        for number in group.members:
            group.note_seen(number)
    end_rebalance(state, group)
    return Changed(row.number, group.row.generation)


def _forget(state: State, change: Forgotten) -> Changed:
    group = _find(state, change.number)
    if group.members or group.row.generation != change.generation:
        raise GroupInUse(f"group {group.row.name!r} is in use again", group=group.row.name)
    state.groups.drop_group(group)
    return Changed(change.number, change.generation)


def _find(state: State, number: int) -> Group:
    group = state.groups.groups.get(number)
    if group is None:
        raise GroupNotFound(f"there is no group of number {number}: it was forgotten")
    return group


def _shown(member: str) -> str:
    return f"{member[:8]}…" if len(member) > 8 else member
