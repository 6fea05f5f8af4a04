"""Members of groups: join, heartbeat, leave, claims, and what operators ask about them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from lanner.api.following import SESSION_MS
from lanner.api.grpc.backing import Backing
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.methods import Caller, Method, unary
from lanner.api.grpc.shapes import bounded, shaped, start_of
from lanner.errors import ValidationError, from_wire
from lanner.model import check_name
from lanner.wire.members import (
    AlterGroup,
    ClaimPartitions,
    EvictMember,
    GrantedPartition,
    GroupMembers,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListMembers,
    MemberState,
    MemberView,
)

_KINDS = ("queue", "stream")


class Members:
    """What members of groups call, and who looks after them."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing

    def methods(self) -> Mapping[str, Method]:
        return {
            "JoinGroup": unary(shapes.JoinGroupRequest, self.join_group),
            "Heartbeat": unary(shapes.HeartbeatRequest, self.heartbeat),
            "LeaveGroup": unary(shapes.LeaveGroupRequest, self.leave_group),
            "ClaimPartitions": unary(shapes.ClaimPartitionsRequest, self.claim_partitions),
            "ListMembers": unary(shapes.ListMembersRequest, self.list_members),
            "AlterGroup": unary(shapes.AlterGroupRequest, self.alter_group),
            "EvictMember": unary(shapes.EvictMemberRequest, self.evict_member),
        }

    async def join_group(self, asked: shapes.JoinGroupRequest, caller: Caller) -> shapes.MemberView:
        kind = asked.kind or "queue"
        if kind not in _KINDS:
            raise ValidationError(f"kind is {kind[:80]!r}: give queue or stream", field="kind")
        call = JoinGroup(
            check_name(asked.group, "group"),
            kind,
            asked.member_id or secrets.token_hex(8),
            [check_name(name, "topics") for name in asked.topics],
            list(asked.patterns),
            check_name(asked.assignor, "assignor") if asked.assignor else "",
            check_name(asked.instance, "instance") if asked.instance else "",
            asked.session_ms or SESSION_MS,
            asked.rack,
            asked.client,
            start=start_of(asked.start),
            door="grpc",
        )
        return _view(call.member_id, await self._backing.ask(bounded(call)))

    async def heartbeat(self, asked: shapes.HeartbeatRequest, caller: Caller) -> shapes.MemberView:
        """A caller that goes away while it waits cancels this, and is heard of no longer."""
        group, member_id = check_name(asked.group, "group"), _member_id(asked.member_id)
        number = asked.number
        if asked.generation and not number:
            number, _ = await self._backing.seen_by(group, member_id, 0, asked.generation)
        call = Heartbeat(
            group,
            member_id,
            number,
            asked.generation,
            [_granted(one) for one in asked.released],
            caller.wait_ms(asked.wait_ms),
        )
        return _view(call.member_id, await self._backing.ask(bounded(call)))

    async def leave_group(self, asked: shapes.LeaveGroupRequest, caller: Caller) -> shapes.LeaveGroupResponse:
        call = LeaveGroup(check_name(asked.group, "group"), _member_id(asked.member_id), asked.reason)
        await self._backing.ask(bounded(call))
        return shapes.LeaveGroupResponse()

    async def claim_partitions(
        self, asked: shapes.ClaimPartitionsRequest, caller: Caller
    ) -> shapes.ClaimPartitionsResponse:
        topic, group = check_name(asked.topic, "topic"), check_name(asked.group, "group")
        if not asked.generation:
            raise ValidationError("a claim names the generation that the member has seen: give it", field="generation")
        if not asked.partitions:
            raise ValidationError("a claim names partitions: give at least one", field="partitions")
        member_id = _member_id(asked.member_id)
        number, generation = await self._backing.seen_by(group, member_id, asked.number, asked.generation)
        start = start_of(asked.start)
        call = ClaimPartitions(topic, group, member_id, number, generation, 0, list(asked.partitions), start)
        found = (await self._backing.ask(bounded(call))).partitions
        return shapes.ClaimPartitionsResponse(
            partitions=[
                shaped(
                    shapes.ClaimedPartition,
                    one,
                    error=from_wire(one.code, "").name if one.code else "",
                    sequence=_known(one.sequence),
                )
                for one in found
            ]
        )

    # ------------------------------------------------------------------ what operators ask

    async def list_members(self, asked: shapes.ListMembersRequest, caller: Caller) -> shapes.GroupMembers:
        call = ListMembers(check_name(asked.group, "group"), asked.after, asked.limit or 100)
        return _members(await self._backing.ask(bounded(call)))

    async def alter_group(self, asked: shapes.AlterGroupRequest, caller: Caller) -> shapes.AlterGroupResponse:
        assignor = check_name(asked.assignor, "assignor") if asked.assignor else ""
        call = AlterGroup(check_name(asked.group, "group"), assignor, asked.session_ms, asked.revoke_ms)
        changed = await self._backing.ask(bounded(call))
        return shapes.AlterGroupResponse(number=changed.number, generation=changed.generation)

    async def evict_member(self, asked: shapes.EvictMemberRequest, caller: Caller) -> shapes.EvictMemberResponse:
        call = EvictMember(check_name(asked.group, "group"), _member_id(asked.member_id), asked.reason)
        await self._backing.ask(bounded(call))
        return shapes.EvictMemberResponse()


def _member_id(text: str) -> str:
    if not text:
        raise ValidationError("member_id is missing: give the one that JoinGroup answered", field="member_id")
    return text


def _granted(one: shapes.Grant) -> GrantedPartition:
    return GrantedPartition(check_name(one.topic, "released"), one.incarnation, one.partition, one.grant)


def _view(member_id: str, view: MemberView) -> shapes.MemberView:
    return shaped(
        shapes.MemberView,
        view,
        member_id=member_id,
        unchanged=not view.news,
        held=_grants(view.held),
        revoked=_grants(view.revoked),
    )


def _grants(found: Iterable[GrantedPartition]) -> list[shapes.Grant]:
    return [shaped(shapes.Grant, one) for one in found]


def _members(found: GroupMembers) -> shapes.GroupMembers:
    members = [_member(one) for one in found.members]
    rebalances = [shaped(shapes.Rebalance, one, took_ms=_known(one.took_ms)) for one in found.rebalances]
    return shaped(shapes.GroupMembers, found, members=members, rebalances=rebalances)


def _member(one: MemberState) -> shapes.Member:
    return shaped(
        shapes.Member,
        one,
        door=one.door or "native",
        held=[shaped(shapes.PartitionRange, held) for held in one.held],
        revoked=[shaped(shapes.HandOver, revoked, waiting_ms=_known(revoked.waiting_ms)) for revoked in one.revoked],
        heard_ms=_known(one.heard_ms),
    )


def _known(number: int) -> int | None:
    """A number that may not be known (-1)."""
    return None if number < 0 else number
