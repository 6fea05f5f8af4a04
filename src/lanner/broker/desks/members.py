"""Members of groups: the calls about them, and which desk takes each."""

from __future__ import annotations

from lanner.broker.desks.claims import Claims
from lanner.broker.desks.clients import Clients
from lanner.broker.desks.member_lists import MemberLists
from lanner.broker.desks.memberships import Memberships
from lanner.calls import Handlers
from lanner.wire.members import (
    AlterGroup,
    ClaimPartitions,
    EvictMember,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListClients,
    ListMembers,
    MakeGroup,
)


class Members(Memberships, MemberLists, Claims, Clients):
    """What members of groups call, and who looks after them."""

    def member_handlers(self) -> Handlers:
        return {
            JoinGroup: self.join_group,
            Heartbeat: self.heartbeat,
            LeaveGroup: self.leave_group,
            ClaimPartitions: self.claim_partitions,
            MakeGroup: self.make_group,
            ListMembers: self.list_members,
            AlterGroup: self.alter_group,
            EvictMember: self.evict_member,
            ListClients: self.list_clients,
        }
