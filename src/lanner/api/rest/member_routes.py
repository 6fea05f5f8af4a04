"""The part of the route table that is about members of groups."""

from __future__ import annotations

from typing import Final

from lanner.api.rest import group_shapes as shapes
from lanner.api.rest import members
from lanner.api.rest.operations import CALL_DEADLINE_MS, Operation
from lanner.errors import (
    AssignorConflict,
    GenerationAhead,
    GroupFull,
    GroupKindConflict,
    GroupNotFound,
    InstanceFenced,
    LannerError,
    MemberFenced,
    MembershipRequired,
    MemberUnknown,
    NotSupported,
    Overloaded,
    PartitionNotFound,
    TopicNotFound,
)
from lanner.limits import POLL_WAIT_MS_MAX

MEMBER_CALL_ERRORS: Final[tuple[type[LannerError], ...]] = (
    MemberUnknown,
    MemberFenced,
    InstanceFenced,
    MembershipRequired,
    GenerationAhead,
    NotSupported,
)
_GROUP: Final = "/v1/groups/{group}"
_MEMBER: Final = "/v1/groups/{group}/members/{member}"
_TAG: Final = "members"

MEMBER_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "POST",
        f"{_MEMBER}/heartbeat",
        members.heartbeat,
        "Tell that a member lives, and hear what it has",
        body=shapes.HeartbeatRequest,
        query=shapes.HeartbeatQuery,
        reply=shapes.ViewReply,
        errors=(MemberUnknown, InstanceFenced, MemberFenced, GenerationAhead, NotSupported),
        tag=_TAG,
        deadline_ms=POLL_WAIT_MS_MAX + CALL_DEADLINE_MS,
        description="Answered at once when the member's partitions are others than the view that it names, else when "
        "they change or the wait is over. What is in `released` is given up, in the same request.",
    ),
    Operation(
        "POST",
        f"{_GROUP}/members",
        members.join_group,
        "Join a group",
        body=shapes.JoinRequest,
        reply=shapes.ViewReply,
        errors=(AssignorConflict, GroupKindConflict, GroupFull, InstanceFenced, Overloaded, NotSupported),
        tag=_TAG,
        status=201,
        description="Partitions are assigned a moment later: heartbeat with wait_ms to hear which. No broker keeps a "
        "member alive by itself: who sends no heartbeat, poll, settle or commit for session_ms is lost.",
    ),
    Operation(
        "DELETE",
        _MEMBER,
        members.leave_group,
        "Leave a group",
        query=shapes.ReasonQuery,
        errors=(MemberUnknown, InstanceFenced, NotSupported),
        tag=_TAG,
        status=204,
        description="Others have its partitions a moment later. Commit, or settle, what is in hand before.",
    ),
    Operation(
        "GET",
        f"{_GROUP}/members",
        members.list_members,
        "Who is in a group, and has what since when",
        query=shapes.MembersQuery,
        reply=shapes.MembersReply,
        errors=(GroupNotFound, NotSupported),
        tag=_TAG,
    ),
    Operation(
        "PATCH",
        _GROUP,
        members.alter_group,
        "Change how a group shares its partitions",
        body=shapes.AlterGroupRequest,
        reply=shapes.AlteredReply,
        errors=(GroupNotFound, NotSupported),
        tag=_TAG,
    ),
    Operation(
        "POST",
        f"{_MEMBER}/evict",
        members.evict_member,
        "Have a member be none any more",
        query=shapes.ReasonQuery,
        errors=(MemberUnknown, InstanceFenced, GroupNotFound, NotSupported),
        tag=_TAG,
        status=204,
        description="Its process is told MemberUnknown, and may join again.",
    ),
    Operation(
        "POST",
        "/v1/topics/{topic}/groups/{group}/claim",
        members.claim_partitions,
        "Claim partitions of a stream",
        body=shapes.ClaimRequest,
        reply=shapes.ClaimReply,
        errors=(TopicNotFound, PartitionNotFound, GroupKindConflict, *MEMBER_CALL_ERRORS),
        tag=_TAG,
        description="The first thing that a new owner does, before it reads: from then on nobody else commits there. "
        "Each partition has its own outcome, and says where to go on.",
    ),
)
