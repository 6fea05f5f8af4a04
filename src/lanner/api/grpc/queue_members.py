"""Queue's consumers as members of groups: Connect joins, pings are heartbeats, and a silent consumer is lost.

A consumer's id is its instance: one that connects again, here or at another broker, has what it had, without a
rebalance. A second consumer of a group gets its share (`sticky`), unless the group is shared by others already; then
everyone receives from every partition, as in a cluster whose feature level knows no members yet.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from lanner import limits
from lanner.api.following import SESSION_MS
from lanner.api.grpc.backing import Backing
from lanner.api.grpc.consumers import Consumer, Consumers
from lanner.api.grpc.queue_ids import partition_id
from lanner.errors import (
    AssignorConflict,
    InstanceFenced,
    LannerError,
    MemberFenced,
    MemberUnknown,
    NotSupported,
)
from lanner.forwarding.unpacking import Handed
from lanner.wire.members import GroupMembers, Heartbeat, JoinGroup, LeaveGroup, ListMembers, MemberView
from lanner.wire.messages import Poll

_ASSIGNOR: Final = "sticky"
_ASSIGNED_S: Final = 5.0  # so long Connect waits at most until it is settled what the consumer has
_LOOK_MS: Final = 200  # between two looks at that


class QueueMembers:
    """The consumers of this broker, and their memberships."""

    def __init__(self, backing: Backing, consumers: Consumers) -> None:
        self._backing = backing
        self._consumers = consumers

    async def connect(self, consumer_id: str, group: str, topics: Sequence[str], now_ms: int) -> Consumer:
        """Connect a consumer to its group and topics. Asked again, it hears what it has now."""
        known = self._consumers.find(consumer_id)
        if known is not None and known.member_id:
            if (known.group, known.topics) == (group, tuple(topics)) and await self._is_member(known):
                known.heard_ms = now_ms
                return known
            if known.group != group:
                await self._leave(known)
        consumer = Consumer(consumer_id, group, tuple(topics), now_ms)
        await self._join(consumer)
        self._consumers.connect(consumer)
        return consumer

    async def settled(self, consumer: Consumer) -> GroupMembers | None:
        """Wait until it is known what a new consumer has; the group as it is then, None where there are no members."""
        if not consumer.member_id:
            return None
        ends = asyncio.get_running_loop().time() + _ASSIGNED_S
        while True:
            found = await self._members(consumer.group)
            await self.hear(consumer)
            is_over = asyncio.get_running_loop().time() >= ends
            if consumer.shared or consumer.held or found.state == "settled" or is_over:
                return found
            await self._beat(consumer, _LOOK_MS)

    async def _members(self, group: str) -> GroupMembers:
        """The group with all its members, on however many pages."""
        found = await self._backing.ask(ListMembers(group, limit=limits.LIST_ITEMS_MAX))
        while found.next:
            more = await self._backing.ask(ListMembers(group, found.next, limits.LIST_ITEMS_MAX))
            found = replace(more, members=[*found.members, *more.members])
        return found

    async def hear(self, consumer: Consumer) -> None:
        """A consumer tells that it lives. One that is no member any more is forgotten, and told to connect again."""
        if not consumer.member_id:
            return
        try:
            await self._beat(consumer)
        except (MemberUnknown, InstanceFenced) as error:
            self._consumers.forget(consumer)
            raise type(error)(
                f"consumer {consumer.id} is no member of group {consumer.group} any more: call Connect again",
                group=consumer.group,
                consumer=consumer.id,
            ) from None

    async def poll(self, consumer: Consumer, topic: str, partition: int) -> Handed:
        """Lease one message of a partition, if it is this consumer's."""
        try:
            return await self._backing.poll(_poll(consumer, topic, partition))
        except MemberFenced:
            await self.hear(consumer)
        if not consumer.shared and (topic, partition) not in consumer.held:
            raise MemberFenced(
                f"{partition_id(topic, partition)} is not consumer {consumer.id}'s now: call Connect again to hear "
                "which partitions are",
                group=consumer.group,
                consumer=consumer.id,
                partition=partition,
            )
        return await self._backing.poll(_poll(consumer, topic, partition))

    async def _join(self, consumer: Consumer) -> None:
        asked = JoinGroup(
            consumer.group,
            "queue",
            secrets.token_hex(8),
            list(consumer.topics),
            assignor=_ASSIGNOR,
            instance=_instance(consumer.id),
            session_ms=SESSION_MS,
            client=consumer.id,
            door="grpc",
        )
        try:
            view = await self._joined(asked)
        except NotSupported:
            return
        consumer.member_id = asked.member_id
        consumer.see(view)

    async def _joined(self, asked: JoinGroup) -> MemberView:
        try:
            return await self._backing.ask(asked)
        except AssignorConflict:
            return await self._backing.ask(replace(asked, assignor=""))

    async def _is_member(self, consumer: Consumer) -> bool:
        try:
            await self._beat(consumer)
        except (MemberUnknown, InstanceFenced):
            return False
        return True

    async def _beat(self, consumer: Consumer, wait_ms: int = 0) -> None:
        asked = Heartbeat(consumer.group, consumer.member_id, consumer.number, consumer.generation, wait_ms=wait_ms)
        consumer.see(await self._backing.ask(asked))

    async def _leave(self, consumer: Consumer) -> None:
        try:
            await self._backing.ask(LeaveGroup(consumer.group, consumer.member_id, "connected to another group"))
        except LannerError:  # then it is lost by its silence
            return


def _poll(consumer: Consumer, topic: str, partition: int) -> Poll:
    return Poll(
        consumer.group,
        topic,
        consumer.id,
        -1,
        [partition],
        max_messages=1,
        member_id=consumer.member_id,
        number=consumer.number,
        generation=consumer.generation,
    )


def _instance(consumer_id: str) -> str:
    """The consumer's id, or what stands for it where it may not be the name of an instance."""
    if limits.NAME_PATTERN.match(consumer_id) and consumer_id not in (".", ".."):
        return consumer_id
    return f"queue-{hashlib.sha256(consumer_id.encode()).hexdigest()[:40]}"
