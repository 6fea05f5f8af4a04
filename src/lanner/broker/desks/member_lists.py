"""What there is to tell of a group that has members: who they are, what they hold, and how the last rebalances went.

Any broker tells what the metadata says. When a member was heard, by whom, and since when a partition waits for its
owner is known where the metadata is led; elsewhere it is told as not known. A page is bounded by its members and by its
bytes: each may want a thousand topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from lanner import limits
from lanner.broker.coordination.figures import Figures
from lanner.broker.desks.member_desk import MemberDesk
from lanner.broker.parts import Parts
from lanner.calls import Answer
from lanner.cluster import Group, MemberRow, Rebalance
from lanner.cluster.grouped import NOBODY
from lanner.errors import GroupNotFound
from lanner.model import TopicPartitionId
from lanner.wire.members import (
    GroupMembers,
    HandOver,
    ListMembers,
    MemberState,
    PartitionRange,
    RebalanceState,
)

_PAGE_BYTES_MAX: Final = 256 * limits.KIB  # of its members; one always fits


class MemberLists(MemberDesk):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._coordination = parts.coordination

    @property
    def group_figures(self) -> Figures:
        """What there is to tell of groups with members here."""
        return self._coordination.figures()

    async def list_members(self, call: ListMembers) -> Answer[GroupMembers]:
        self._check_members()
        cluster = self._engine.cluster
        group = cluster.group(call.group)
        if group is None:
            raise GroupNotFound(f"group {call.group!r} has never had members", group=call.group)
        coordinator = self._coordination.coordinator
        names = {topic.incarnation: topic.name for topic in cluster.topics.values()}
        waits = {} if coordinator is None else coordinator.waits(group.row.number)
        numbers = [number for number in sorted(group.members) if number > call.after]
        states = (self._member_state(group, group.members[number], names, waits) for number in numbers[: call.limit])
        page = list(_fitting(states))
        row, wanted, unowned = group.row, _wanted(group), _unowned(group)
        return Answer(
            GroupMembers(
                row.name,
                row.number,
                str(row.kind),
                row.assignor,
                row.generation,
                row.session_ms,
                row.revoke_ms,
                self._group_state(group, unowned),
                len(group.members),
                unowned,
                page,
                [_rebalance(one) for one in row.rebalances],
                page[-1].number if len(numbers) > len(page) else 0,
                wanted,
            )
        )

    def _group_state(self, group: Group, unowned: int) -> str:
        coordinator = self._coordination.coordinator
        if not group.members:
            return "empty"
        if group.handing_over:
            return "handing over"
        if unowned or (coordinator is not None and coordinator.is_open(group.row.number)):
            return "assigning"
        return "settled"

    def _member_state(
        self, group: Group, member: MemberRow, names: Mapping[int, str], waits: Mapping[TopicPartitionId, int]
    ) -> MemberState:
        held: list[TopicPartitionId] = []
        revoked: list[HandOver] = []
        for partition_id in sorted(group.owned.get(member.number, ())):
            heir = group.owner_of(partition_id)[2]
            if heir == NOBODY:
                held.append(partition_id)
            else:
                follower = group.members[heir].member
                revoked.append(HandOver(names[partition_id[0]], partition_id[1], follower, waits.get(partition_id, -1)))
        heard = self._coordination.heard_member(member.number)
        subscription = group.row.subscriptions[member.subscription]
        return MemberState(
            member.member,
            member.number,
            member.instance,
            member.client,
            member.door,
            member.rack,
            group.session_ms(member),
            member.joined_ms,
            max(0, self._clock.now_ms() - member.joined_ms),
            list(_ranges(held, names)),
            revoked,
            "" if heard is None or not heard.home else self._routes.name_of(heard.home),
            -1 if heard is None else heard.silent_ms,
            list(subscription.topics),
            list(subscription.patterns),
        )


def _fitting(states: Iterable[MemberState]) -> Iterable[MemberState]:
    """Those that one page has room for."""
    left = _PAGE_BYTES_MAX
    for place, state in enumerate(states):
        left -= len(msgspec.msgpack.encode(state))
        if left < 0 and place:
            return
        yield state


def _wanted(group: Group) -> int:
    return sum(len(group.owners[topic].owners) for topic in group.topics())


def _unowned(group: Group) -> int:
    return 0 if group.shared else sum(group.owners[topic].owners.count(NOBODY) for topic in group.topics())


def _ranges(partition_ids: Iterable[TopicPartitionId], names: Mapping[int, str]) -> Iterable[PartitionRange]:
    """Partitions that follow each other, as one range each."""
    begun: TopicPartitionId | None = None
    last: TopicPartitionId | None = None
    for partition_id in partition_ids:
        if begun is not None and last is not None and partition_id != (last[0], last[1] + 1):
            yield PartitionRange(names[begun[0]], begun[1], last[1])
            begun = None
        begun, last = begun or partition_id, partition_id
    if begun is not None and last is not None:
        yield PartitionRange(names[begun[0]], begun[1], last[1])


def _rebalance(one: Rebalance) -> RebalanceState:
    took_ms = max(0, one.ended_ms - one.begun_ms) if one.ended_ms else -1
    return RebalanceState(one.begun_ms, one.reason, one.moved, one.partitions, took_ms)
