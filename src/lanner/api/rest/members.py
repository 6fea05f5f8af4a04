"""`/v1/groups/{group}`: members of groups, and claims of a stream's partitions."""

from __future__ import annotations

import re
import secrets
from typing import Final

from msgspec import UNSET, UnsetType, structs

from lanner import limits
from lanner.api.following import seen_by, view_of
from lanner.api.rest.group_shapes import (
    AlteredReply,
    AlterGroupRequest,
    ClaimedOut,
    ClaimReply,
    ClaimRequest,
    GrantOut,
    HandOverOut,
    HeartbeatQuery,
    HeartbeatRequest,
    JoinRequest,
    MemberOut,
    MembersQuery,
    MembersReply,
    RangeOut,
    ReasonQuery,
    RebalanceOut,
    ViewReply,
)
from lanner.api.rest.operations import Call
from lanner.api.rest.shapes import NoBody, NoQuery
from lanner.api.rest.values import given, text_of
from lanner.api.rest.waiting import while_there
from lanner.errors import ValidationError, from_wire
from lanner.model import check_name
from lanner.wire.members import (
    AlterGroup,
    ClaimedPartition,
    ClaimPartitions,
    EvictMember,
    GrantedPartition,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListMembers,
    MemberState,
    MemberView,
)

_MEMBER_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.IDENTITY_LENGTH_MAX}}}\Z")


async def join_group(call: Call[JoinRequest, NoQuery]) -> ViewReply:
    body = call.body
    member_id = secrets.token_hex(8) if isinstance(body.member_id, UnsetType) else body.member_id
    if _MEMBER_ID.match(member_id) is None or member_id in (".", ".."):  # it must fit into a path
        raise ValidationError(
            f"member_id {member_id[:80]!r} is not valid: use 1 to {limits.IDENTITY_LENGTH_MAX} letters, digits, "
            "dots, dashes and underscores",
            field="member_id",
        )
    for name in body.topics:
        check_name(name, "topics")
    _check_given(body.assignor, "assignor")
    _check_given(body.instance, "instance")
    asked = JoinGroup(
        call.group,
        body.kind,
        member_id,
        body.topics,
        body.patterns,
        given(body.assignor),
        given(body.instance),
        body.session_ms,
        body.rack,
        body.client,
        start=body.start,
        door="rest",
    )
    return _view(call.group, member_id, (await call.ask(asked)).control)


async def heartbeat(call: Call[HeartbeatRequest, HeartbeatQuery]) -> ViewReply:
    """A client that goes away while it waits is heard of no longer."""
    number, generation = call.body.number, call.body.generation
    if generation and not number:
        number = (await view_of(call.service, call.identity, call.group, call.member)).number
    released = [
        GrantedPartition(check_name(one.topic, "topic"), one.incarnation, one.partition, one.grant)
        for one in call.body.released
    ]
    asked = Heartbeat(call.group, call.member, number, generation, released, call.query.wait_ms)
    answer = await (while_there(call, call.ask(asked)) if asked.wait_ms else call.ask(asked))
    return _view(call.group, call.member, answer.control)


async def leave_group(call: Call[NoBody, ReasonQuery]) -> None:
    await call.ask(LeaveGroup(call.group, call.member, call.query.reason))


async def list_members(call: Call[NoBody, MembersQuery]) -> MembersReply:
    found = (await call.ask(ListMembers(call.group, call.query.after, call.query.limit))).control
    return MembersReply(
        group=found.group,
        number=found.number,
        kind=found.kind,
        assignor=found.assignor,
        generation=found.generation,
        session_ms=found.session_ms,
        revoke_ms=found.revoke_ms,
        state=found.state,
        count=found.count,
        partitions=found.partitions,
        unowned=found.unowned,
        members=[_member(one) for one in found.members],
        rebalances=[
            RebalanceOut(
                begun_ms=one.begun_ms,
                reason=one.reason,
                moved=one.moved,
                partitions=one.partitions,
                took_ms=_known(one.took_ms),
            )
            for one in found.rebalances
        ],
        next=found.next or UNSET,
    )


async def alter_group(call: Call[AlterGroupRequest, NoQuery]) -> AlteredReply:
    body = call.body
    _check_given(body.assignor, "assignor")
    session_ms = 0 if isinstance(body.session_ms, UnsetType) else body.session_ms
    revoke_ms = 0 if isinstance(body.revoke_ms, UnsetType) else body.revoke_ms
    changed = (await call.ask(AlterGroup(call.group, given(body.assignor), session_ms, revoke_ms))).control
    return AlteredReply(group=call.group, number=changed.number, generation=changed.generation)


async def evict_member(call: Call[NoBody, ReasonQuery]) -> None:
    await call.ask(EvictMember(call.group, call.member, call.query.reason))


async def claim_partitions(call: Call[ClaimRequest, NoQuery]) -> ClaimReply:
    body = call.body
    number, generation = await seen_by(
        call.service, call.identity, call.group, body.member_id, body.number, body.generation
    )
    asked = ClaimPartitions(call.topic, call.group, body.member_id, number, generation, 0, body.partitions, body.start)
    found = (await call.ask(asked)).control.partitions
    return ClaimReply(topic=call.topic, group=call.group, partitions=[_claimed(one) for one in found])


def _claimed(one: ClaimedPartition) -> ClaimedOut:
    if one.code:
        return ClaimedOut(partition=one.partition, error=from_wire(one.code, "").name)
    metadata, encoding = text_of(one.metadata) if one.metadata else (UNSET, UNSET)
    return ClaimedOut(
        partition=one.partition,
        offset=one.offset,
        committed=one.committed,
        metadata=metadata,
        metadata_encoding=encoding,
        sequence=_known(one.sequence),
    )


def _view(group: str, member_id: str, view: MemberView) -> ViewReply:
    return ViewReply(
        group=group,
        member_id=member_id,
        number=view.number,
        generation=view.generation,
        session_ms=view.session_ms,
        assignor=view.assignor,
        shared=view.shared,
        news=view.news,
        held=[GrantOut(**structs.asdict(one)) for one in view.held],
        revoked=[GrantOut(**structs.asdict(one)) for one in view.revoked],
    )


def _member(one: MemberState) -> MemberOut:
    return MemberOut(
        member_id=one.member_id,
        number=one.number,
        instance=one.instance or UNSET,
        client=one.client or UNSET,
        door=one.door or "native",
        rack=one.rack or UNSET,
        session_ms=one.session_ms,
        joined_ms=one.joined_ms,
        joined_age_ms=one.joined_age_ms,
        held=[RangeOut(**structs.asdict(held)) for held in one.held],
        revoked=[
            HandOverOut(
                topic=revoked.topic,
                partition=revoked.partition,
                heir=revoked.heir,
                waiting_ms=_known(revoked.waiting_ms),
            )
            for revoked in one.revoked
        ],
        home=one.home or UNSET,
        heard_ms=_known(one.heard_ms),
        topics=one.topics,
        patterns=one.patterns,
    )


def _check_given(name: str | UnsetType, field: str) -> None:
    if not isinstance(name, UnsetType):
        check_name(name, field)


def _known(number: int) -> int | UnsetType:
    """A number that may not be known (-1)."""
    return UNSET if number < 0 else number
