"""What an operator asks about members of groups and about who is connected, and does about them."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from lanner import limits
from lanner.client.brokers import Brokers
from lanner.model import check_name
from lanner.wire.members import (
    AlterGroup,
    ClientList,
    EvictMember,
    GroupAltered,
    GroupMembers,
    ListClients,
    ListMembers,
    MemberState,
)

_PAGE: Final = 100


class MemberAdmin:
    """The part of `queue.admin` that is about members of groups and about clients."""

    _session: Brokers

    async def group_members(self, group: str, *, limit: int = limits.GROUP_MEMBERS_MAX) -> GroupMembers:
        """A group's members, the first so many: what each has, what it must give up, where it was heard; and the
        latest rebalances.

        GroupNotFound: the group has never had members. Consumers that use it without joining show in `clients`.
        """
        name = check_name(group, "group")
        members: list[MemberState] = []
        after = 0
        while True:
            request = ListMembers(name, after, max(1, min(_PAGE, limit - len(members))))
            found = await self._session.ask(request)
            members += found.members
            if found.next <= after or len(members) >= limit:
                return structs.replace(found, members=members)
            after = found.next

    async def alter_group(
        self, group: str, *, assignor: str | None = None, session_ms: int | None = None, revoke_ms: int | None = None
    ) -> GroupAltered:
        """Change how a group shares its partitions; what is not given stays. Its number and its new generation."""
        request = AlterGroup(check_name(group, "group"), assignor or "", session_ms or 0, revoke_ms or 0)
        return await self._session.ask(request)

    async def evict_member(self, group: str, member: str, *, reason: str = "") -> None:
        """Have a member, by its id, be none any more. Others get its partitions; its process is told, and may join
        again."""
        request = EvictMember(check_name(group, "group"), member, reason)
        await self._session.ask(request)

    async def clients(self, *, group: str = "", after: tuple[str, int] | None = None, limit: int = 100) -> ClientList:
        """A page of the open connections of all brokers: which groups each uses, and what it holds leased. Give its
        `next` as `after` to go on; `missing` names brokers that did not answer."""
        request = ListClients(check_name(group, "group") if group else "", after, limit)
        return await self._session.ask(request)
