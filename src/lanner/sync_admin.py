"""The operator's part of the blocking client. Names and arguments are those of the asynchronous one."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from lanner import limits
from lanner.client import admin as asynchronous_admin
from lanner.client.admin import DeadMessages
from lanner.model import Looked, LookPlace
from lanner.wire.administration import GroupDescription, TopicDescription
from lanner.wire.cluster import ClusterDescription, PartitionReplicas, PlanProgress, ScrubProgress
from lanner.wire.members import ClientList, GroupAltered, GroupMembers
from lanner.wire.messages import MetadataReply, PartitionOffsets
from lanner.wire.staging import CommitState, TransactionList, TransactionState

Result = TypeVar("Result")


class Caller(Protocol):
    """Runs work on the client's loop and waits for it."""

    def call(self, work: Coroutine[Any, Any, Result]) -> Result: ...


class Admin:
    """Topics, groups, dead letters and the cluster."""

    def __init__(self, thread: Caller, admin: asynchronous_admin.Admin) -> None:
        self._thread = thread
        self._admin = admin

    def ping(self) -> None:
        self._thread.call(self._admin.ping())

    def cluster(self) -> MetadataReply:
        return self._thread.call(self._admin.cluster())

    def topics(self) -> list[str]:
        return self._thread.call(self._admin.topics())

    def create_topic(self, name: str, *, exist_ok: bool = False, **settings: Any) -> TopicDescription:
        return self._thread.call(self._admin.create_topic(name, exist_ok=exist_ok, **settings))

    def alter_topic(self, name: str, **settings: Any) -> TopicDescription:
        return self._thread.call(self._admin.alter_topic(name, **settings))

    def delete_topic(self, name: str) -> None:
        self._thread.call(self._admin.delete_topic(name))

    def describe(self, name: str) -> TopicDescription:
        return self._thread.call(self._admin.describe(name))

    def offsets(self, topic: str, time: int | datetime | None = None) -> list[PartitionOffsets]:
        return self._thread.call(self._admin.offsets(topic, time))

    def peek(
        self,
        topic: str,
        max_messages: int = 10,
        *,
        partition: int | None = None,
        offset: int = 0,
        max_bytes: int = limits.MIB,
        after: LookPlace | None = None,
    ) -> Looked:
        work = self._admin.peek(
            topic, max_messages, partition=partition, offset=offset, max_bytes=max_bytes, after=after
        )
        return self._thread.call(work)

    def groups(self, topic: str) -> list[str]:
        return self._thread.call(self._admin.groups(topic))

    def group(self, topic: str, group: str) -> GroupDescription:
        return self._thread.call(self._admin.group(topic, group))

    def drop_group(self, topic: str, group: str) -> None:
        self._thread.call(self._admin.drop_group(topic, group))

    def seek(
        self,
        topic: str,
        group: str,
        *,
        to: str | None = None,
        offsets: Mapping[int, int] | None = None,
        time: int | datetime | None = None,
        force: bool = False,
    ) -> None:
        self._thread.call(self._admin.seek(topic, group, to=to, offsets=offsets, time=time, force=force))

    def commit(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        self._thread.call(self._admin.commit(topic, group, offsets))

    def committed(self, topic: str, group: str) -> dict[int, int]:
        return self._thread.call(self._admin.committed(topic, group))

    def dead_letters(
        self,
        topic: str,
        group: str,
        *,
        partition: int | None = None,
        start_offset: int = 0,
        limit: int = 100,
        after: tuple[int, int] | None = None,
    ) -> DeadMessages:
        work = self._admin.dead_letters(
            topic, group, partition=partition, start_offset=start_offset, limit=limit, after=after
        )
        return self._thread.call(work)

    def redrive(
        self, topic: str, group: str, *, partition: int | None = None, offsets: Sequence[int] | None = None
    ) -> int:
        return self._thread.call(self._admin.redrive(topic, group, partition=partition, offsets=offsets))

    def discard(
        self, topic: str, group: str, *, partition: int | None = None, offsets: Sequence[int] | None = None
    ) -> int:
        return self._thread.call(self._admin.discard(topic, group, partition=partition, offsets=offsets))

    def describe_cluster(self) -> ClusterDescription:
        return self._thread.call(self._admin.describe_cluster())

    def describe_partitions(self, topic: str | None = None) -> list[PartitionReplicas]:
        return self._thread.call(self._admin.describe_partitions(topic))

    def drain(self, broker: str) -> PlanProgress | None:
        return self._thread.call(self._admin.drain(broker))

    def undrain(self, broker: str) -> None:
        self._thread.call(self._admin.undrain(broker))

    def remove(self, broker: str) -> PlanProgress | None:
        return self._thread.call(self._admin.remove(broker))

    def rebalance(self) -> PlanProgress | None:
        return self._thread.call(self._admin.rebalance())

    def upgrade(self) -> int:
        return self._thread.call(self._admin.upgrade())

    def move(self, topic: str, partition: int, source: str, target: str) -> PlanProgress | None:
        return self._thread.call(self._admin.move(topic, partition, source, target))

    def transfer(self, topic: str, partition: int, target: str) -> None:
        self._thread.call(self._admin.transfer(topic, partition, target))

    def cancel(self, plan_id: int) -> PlanProgress | None:
        return self._thread.call(self._admin.cancel(plan_id))

    def raft_status(self, topic: str, partition: int, broker: str = "") -> dict[str, Any]:
        return self._thread.call(self._admin.raft_status(topic, partition, broker))

    def scrub(self, broker: str) -> ScrubProgress:
        return self._thread.call(self._admin.scrub(broker))

    def scrub_progress(self, broker: str) -> ScrubProgress:
        return self._thread.call(self._admin.scrub_progress(broker))

    # ------------------------------------------------------------------ members and clients

    def group_members(self, group: str, *, limit: int = limits.GROUP_MEMBERS_MAX) -> GroupMembers:
        return self._thread.call(self._admin.group_members(group, limit=limit))

    def alter_group(
        self, group: str, *, assignor: str | None = None, session_ms: int | None = None, revoke_ms: int | None = None
    ) -> GroupAltered:
        work = self._admin.alter_group(group, assignor=assignor, session_ms=session_ms, revoke_ms=revoke_ms)
        return self._thread.call(work)

    def evict_member(self, group: str, member: str, *, reason: str = "") -> None:
        self._thread.call(self._admin.evict_member(group, member, reason=reason))

    def clients(self, *, group: str = "", after: tuple[str, int] | None = None, limit: int = 100) -> ClientList:
        return self._thread.call(self._admin.clients(group=group, after=after, limit=limit))

    # ------------------------------------------------------------------ transactions

    def transactions(self, *, open_only: bool = False, after: str = "", limit: int = 100) -> TransactionList:
        return self._thread.call(self._admin.transactions(open_only=open_only, after=after, limit=limit))

    def transaction(self, transaction: str) -> TransactionState:
        return self._thread.call(self._admin.transaction(transaction))

    def abort_transaction(self, transaction: str) -> CommitState:
        return self._thread.call(self._admin.abort_transaction(transaction))

    def clear_forgotten_transactions(self) -> int:
        return self._thread.call(self._admin.clear_forgotten_transactions())

    def forget_transaction(self, transaction: str) -> None:
        self._thread.call(self._admin.forget_transaction(transaction))
