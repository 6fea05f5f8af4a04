"""The rows of the table for members of groups, and for who is connected."""

from __future__ import annotations

from typing import Final

from lanner.calls import merging
from lanner.calls.rows import Fresh, Repeat, Row, Where, its_partitions, its_topic, its_wait
from lanner.wire import members, messages
from lanner.wire.messages import Command

CLAIM_PARTITIONS: Final = Row(
    command=Command.CLAIM_PARTITIONS,
    call=members.ClaimPartitions,
    answer=members.ClaimedPartitions,
    action="consume",
    topics=its_topic,
    where=Where.LEADERS,
    fresh=Fresh.NAMED,
    repeat=Repeat.SAME_END,
    strict=True,
    partitions=its_partitions,
    merge=merging.claimed_merge,
)
MAKE_GROUP: Final = Row(
    command=Command.MAKE_GROUP,
    call=members.MakeGroup,
    answer=messages.Empty,
    action="consume",
    topics=its_topic,
    where=Where.LEADERS,
    fresh=Fresh.NAMED,
    repeat=Repeat.SAME_END,
    partitions=its_partitions,
)
JOIN_GROUP: Final = Row(
    command=Command.JOIN_GROUP,
    call=members.JoinGroup,
    answer=members.MemberView,
    action="consume",
    topics=lambda call: call.topics,
    where=Where.METADATA,
    repeat=Repeat.NUMBERED,
)
HEARTBEAT: Final = Row(
    command=Command.HEARTBEAT,
    call=members.Heartbeat,
    answer=members.MemberView,
    action="consume",
    where=Where.HERE,
    fresh=lambda call: Fresh.AS_KNOWN if call.number else Fresh.LATEST,  # who has seen nothing may be new here
    repeat=Repeat.SAME_END,
    waits=its_wait,
)
LEAVE_GROUP: Final = Row(
    command=Command.LEAVE_GROUP,
    call=members.LeaveGroup,
    answer=messages.Empty,
    action="consume",
    where=Where.METADATA,
    repeat=Repeat.SAME_END,
    while_draining=True,
)
LIST_MEMBERS: Final = Row(
    command=Command.LIST_MEMBERS,
    call=members.ListMembers,
    answer=members.GroupMembers,
    action="describe",
    where=Where.HERE,
    fresh=Fresh.LATEST,
    repeat=Repeat.READS,
)
ALTER_GROUP: Final = Row(
    command=Command.ALTER_GROUP,
    call=members.AlterGroup,
    answer=members.GroupAltered,
    action="administer",
    where=Where.METADATA,
    repeat=Repeat.SAME_END,
)
EVICT_MEMBER: Final = Row(
    command=Command.EVICT_MEMBER,
    call=members.EvictMember,
    answer=messages.Empty,
    action="administer",
    where=Where.METADATA,
    fresh=Fresh.LATEST,
    repeat=Repeat.SAME_END,
)
LIST_CLIENTS: Final = Row(
    command=Command.LIST_CLIENTS,
    call=members.ListClients,
    answer=members.ClientList,
    action="describe",
    where=Where.HERE,
    repeat=Repeat.READS,
)
