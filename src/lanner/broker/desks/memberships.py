"""How members come, tell that they live, and go; and what operators do about them.

Joins, leaves and releases are changes of the metadata, made from any broker (`coordination/changes`). A heartbeat is
answered by the broker that hears it, from its own copy: it changes nothing, and needs nobody else. So members go on
while nobody leads the metadata, as long as none of them comes, goes or gives something up.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import suppress
from typing import Final

from lanner import limits
from lanner.broker.coordination.changes import JoinRate
from lanner.broker.coordination.figures import OPERATOR
from lanner.broker.desks.fencing import CATCHING_UP_MS
from lanner.broker.desks.member_desk import MemberDesk
from lanner.broker.parts import Parts
from lanner.calls import Answer, Bulk, Identity
from lanner.cluster import Admitted, Altered, Change, Changed, Group, Joined, Left, MemberRow, Released, Subscription
from lanner.cluster.assignors import ASSIGNORS
from lanner.cluster.group_views import Holding
from lanner.errors import (
    DeadlineExceeded,
    GenerationAhead,
    GroupNotFound,
    MemberUnknown,
    Overloaded,
    TopicNotFound,
    ValidationError,
)
from lanner.forwarding.checks import check_start
from lanner.model import GroupKind
from lanner.wire.members import (
    AlterGroup,
    EvictMember,
    GrantedPartition,
    GroupAltered,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    MakeGroup,
    MemberView,
)
from lanner.wire.messages import AnswerT, Call, Empty

_WAIT_SHARE: Final = 4  # a heartbeat waits for at most this part of its session
_BEGUN_AT_ONCE: Final = 32  # topics on which a group begins
LATEST: Final = "latest"


class Memberships(MemberDesk):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._changes = parts.changes
        self._group_counts = parts.group_counts
        self._joins = JoinRate(parts.clock)

    # ------------------------------------------------------------------ members

    async def join_group(self, call: JoinGroup) -> Answer[MemberView]:
        self._check_members()
        wanted = _joined(call)
        again_ms = self._joins.admit()
        if again_ms:
            raise Overloaded(
                f"more than {limits.JOINS_PER_SECOND_MAX} members a second want to join here; try again a little later",
                retry_after_ms=again_ms,
            )
        if call.start == LATEST:
            await self._begin_everywhere(wanted)
        admitted = await self._change(wanted)
        assert isinstance(admitted, Admitted)
        group, member = self._member(call.group, call.member_id)
        self._homes.heard(call.group, call.member_id)
        return Answer(self._view(group, member))

    async def _begin_everywhere(self, wanted: Joined) -> None:
        """Begin a group that is new at the end of every partition, before any of them has an owner.

        Else what is published before its last partition is first read would be behind its beginning there."""
        group = self._engine.cluster.group(wanted.group)
        known = () if group is None else group.owners
        subscription = Subscription(wanted.topics, wanted.patterns)
        topics = [
            topic.name
            for topic in self._engine.cluster.topics.values()
            if topic.incarnation not in known and subscription.wants(topic.name)
        ]
        for first in range(0, len(topics), _BEGUN_AT_ONCE):  # a pattern may stand for thousands
            some = topics[first : first + _BEGUN_AT_ONCE]
            await asyncio.gather(*(self._begin(MakeGroup(name, wanted.group, wanted.kind, LATEST)) for name in some))

    async def _begin(self, call: MakeGroup) -> None:
        with suppress(TopicNotFound):  # it was deleted meanwhile: nobody wants it any more
            await self.ask(self.own, call)

    async def heartbeat(self, call: Heartbeat) -> Answer[MemberView]:
        self._check_members()
        await self._catch_up(call.group, call.member_id, (call.number, call.generation))
        group, member = self._member(call.group, call.member_id)
        seen = call.generation if call.number == group.row.number else -1
        for one in call.released:
            place = (one.incarnation, one.partition)
            if group.owner_of(place)[:2] == (member.number, one.grant):  # else it was given up before
                self._changes.release(Released(group.row.number, call.member_id, *place, one.grant))
        wait_ms = min(call.wait_ms, group.session_ms(member) // _WAIT_SHARE)
        with self._homes.present(call.group, call.member_id):
            if wait_ms:
                await self._homes.wait_for_news(group, member.number, seen, wait_ms)
        group, member = self._member(call.group, call.member_id)
        return Answer(self._view(group, member, news=group.seen[member.number] > seen))

    async def leave_group(self, call: LeaveGroup) -> Answer[Empty]:
        self._check_members()
        with suppress(MemberUnknown):  # then it is none: that is what was asked for
            await self._change(Left(call.group, call.member_id, call.reason))
        return Answer(Empty())

    # ------------------------------------------------------------------ operators

    async def alter_group(self, call: AlterGroup) -> Answer[GroupAltered]:
        self._check_members()
        _check_assignor(call.assignor)
        changed = await self._change(Altered(call.group, call.assignor, call.session_ms, call.revoke_ms))
        return Answer(GroupAltered(changed.number, changed.generation))

    async def evict_member(self, call: EvictMember) -> Answer[Empty]:
        self._check_members()
        if self._engine.cluster.group(call.group) is None:
            raise GroupNotFound(f"group {call.group!r} has never had members", group=call.group)
        self._member(call.group, call.member_id)
        reason = f"evicted: {call.reason}" if call.reason else "evicted"
        with suppress(MemberUnknown):  # it went meanwhile, or with an earlier try of this call
            await self._change(Left(call.group, call.member_id, reason[: limits.REASON_LENGTH_MAX]))
            self._group_counts.evicted(OPERATOR)
        return Answer(Empty())

    # ------------------------------------------------------------------ what both need

    @abstractmethod
    async def ask(self, identity: Identity, call: Call[AnswerT], bulk: Bulk = ()) -> Answer[AnswerT]:
        """Have a call answered from wherever it can be: the service knows how."""

    async def _change(self, change: Change) -> Admitted | Changed:
        try:
            return await self._changes.ask(change)
        except DeadlineExceeded as error:
            raise self._undecided(error) from error

    async def _catch_up(self, group: str, member_id: str, seen: tuple[int, int]) -> None:
        """Wait until this copy of the metadata knows what the member has seen: before, it says nothing about it."""
        cluster = self._engine.cluster
        if not cluster.is_behind(group, seen):
            return
        try:
            await self._waiting.until(lambda: not self._engine.cluster.is_behind(group, seen), CATCHING_UP_MS)
        except DeadlineExceeded:
            raise GenerationAhead(
                f"this broker has not heard yet of generation {seen[1]} of group {group!r}, which member {member_id!r} "
                "has seen: try again, or ask another broker",
                group=group,
                member=member_id,
                generation=seen[1],
            ) from None

    def _member(self, group: str, member_id: str) -> tuple[Group, MemberRow]:
        cluster = self._engine.cluster
        member = cluster.find_member(group, member_id)
        found = cluster.group(group)
        assert found is not None
        return found, member

    def _view(self, group: Group, member: MemberRow, *, news: bool = True) -> MemberView:
        view = self._engine.cluster.member_view(group, member)
        return MemberView(
            view.number,
            view.generation,
            view.member,
            view.session_ms,
            [_granted(one) for one in view.held] if news else [],
            [_granted(one) for one in view.revoked] if news else [],
            self._homes.confirmed_ms,
            news,
            group.row.assignor,
            group.shared,
        )


def _joined(call: JoinGroup) -> Joined:
    """What the metadata is to record; a ValidationError for what this release knows to be wrong."""
    try:
        kind = GroupKind(call.kind)
    except ValueError:
        raise ValidationError(f"kind is {call.kind!r}: it must be queue or stream", field="kind") from None
    check_start(call.start)
    _check_assignor(call.assignor)
    return Joined(
        call.group,
        kind,
        call.member_id,
        tuple(call.topics),
        tuple(call.patterns),
        call.assignor,
        call.instance,
        call.session_ms,
        call.rack,
        call.client,
        call.door,
        call.opaque,
    )


def _check_assignor(name: str) -> None:
    if name and name not in ASSIGNORS:
        raise ValidationError(
            f"there is no assignor {name!r}: use one of {', '.join(sorted(ASSIGNORS))}", field="assignor"
        )


def _granted(one: Holding) -> GrantedPartition:
    return GrantedPartition(one.topic, one.incarnation, one.partition, one.grant, one.first)
