"""The native door: structs of the wire over one connection. A client of it makes batches and chooses partitions."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from time import time_ns
from typing import Any, ClassVar

from lanner import batch
from lanner.batch import partition_for_key
from lanner.calls import row_of
from lanner.errors import LannerError, ProtocolError, from_wire
from lanner.model import parse_priority
from lanner.net.connector import ClientLink, open_connection
from lanner.sync_thread import LoopThread
from lanner.wire import administration, cluster, members, messages
from lanner.wire.connection import Reply
from lanner.wire.messages import Call
from tests.contract.doors.door import (
    Claimed,
    Dead,
    Door,
    Grant,
    Group,
    Leased,
    Member,
    Members,
    New,
    Page,
    PartitionDepth,
    Seen,
    Settled,
    Stored,
    Topic,
    View,
    told,
)

_KINDS = {kind.name.lower(): kind for kind in messages.SettleKind}


class NativeDoor(Door):
    name = "native"
    served: ClassVar[Mapping[str, str]] = {
        "publish": "PUBLISH",
        "poll": "POLL",
        "ack": "SETTLE",
        "nack": "SETTLE",
        "extend": "SETTLE",
        "reject": "SETTLE",
        "peek": "PEEK",
        "fetch": "FETCH",
        "commit": "COMMIT",
        "committed": "COMMITTED",
        "seek": "SEEK",
        "list_dead": "LIST_DEAD",
        "redrive": "REDRIVE",
        "discard": "DISCARD",
        "create_topic": "CREATE_TOPIC",
        "alter_topic": "ALTER_TOPIC",
        "delete_topic": "DELETE_TOPIC",
        "describe_topic": "DESCRIBE_TOPIC",
        "list_topics": "LIST_TOPICS",
        "offsets": "OFFSETS",
        "list_groups": "LIST_GROUPS",
        "describe_group": "DESCRIBE_GROUP",
        "drop_group": "DROP_GROUP",
        "join_group": "JOIN_GROUP",
        "heartbeat": "HEARTBEAT",
        "leave_group": "LEAVE_GROUP",
        "claim_partitions": "CLAIM_PARTITIONS",
        "list_members": "LIST_MEMBERS",
        "alter_group": "ALTER_GROUP",
        "evict_member": "EVICT_MEMBER",
        "list_clients": "LIST_CLIENTS",
        "describe_cluster": "DESCRIBE_CLUSTER",
        "describe_partitions": "DESCRIBE_PARTITIONS",
        "change_cluster": "CHANGE_CLUSTER",
        "raft_status": "RAFT_STATUS",
    }

    def __init__(self, address: str) -> None:
        super().__init__(address)
        host, _, port = address.rpartition(":")
        self._thread = LoopThread("contract")
        self._link: ClientLink = self._thread.call(open_connection(host, int(port)))
        self._sequence = 0

    def close(self) -> None:
        self._thread.call(self._link.close())
        self._thread.stop()

    def ask(self, call: Call[Any], bulk: Sequence[bytes] = ()) -> Reply:
        command = row_of(call).command
        self.asked.add(command.name)

        async def request() -> Reply:
            if isinstance(call, messages.Poll):
                return await self._link.poll(call).polled
            return await self._link.request(command, call, bulk)

        try:
            return self._thread.call(request())
        except ProtocolError as error:
            raise ProtocolError(error.message, **error.details) from None
        except LannerError as error:
            raise told(error.name, error.message, error.details, code=error.code) from None

    # ------------------------------------------------------------------ messages

    def publish(self, topic: str, *given: New, idempotency_key: str = "") -> list[Stored]:
        count, now_ms = self._partitions_of(topic), time_ns() // 1_000_000
        batches: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
        for place, one in enumerate(given):
            partition = one.partition
            if partition is None:
                partition = 0 if one.key is None else partition_for_key(one.key, count)
            due = now_ms + one.delay_ms if one.delay_ms else 0
            ends = now_ms + one.ttl_ms if one.ttl_ms else 0
            batches[partition, parse_priority(one.priority), due, ends].append(place)
        stored: list[Stored] = [Stored(0, 0)] * len(given)
        for number, ((partition, priority, due, ends), places) in enumerate(batches.items()):
            data = batch.encode(
                [given[place].value for place in places],
                keys=[given[place].key for place in places],
                headers=[given[place].headers for place in places],
                priority=priority,
                deliver_at_ms=due,
                expires_at_ms=ends,
                dedup_id=f"{idempotency_key}-{number}".encode() if idempotency_key else b"",
            )
            done = self.ask(messages.Publish(topic, partition), [data]).control
            for position, place in enumerate(places):
                stored[place] = Stored(partition, done.base_offset + position, done.duplicate)
        return stored

    def _partitions_of(self, topic: str) -> int:
        (found,) = self.ask(messages.Metadata([topic], create=True)).control.topics
        if found.error:
            raise from_wire(found.error, "")
        return len(found.partitions)

    def poll(self, topic: str, group: str, **wanted: Any) -> list[Leased]:
        self._sequence += 1
        call = messages.Poll(group, topic, "contract", self._sequence, **{"max_messages": 10, **wanted})
        reply = self.ask(call)
        found = []
        for item, data in _cut(reply, reply.control.batches):
            attempts = {part.first_offset + place: part.attempt for part in item.ranges for place in range(part.count)}
            for seen in _messages(item.partition, item.base_offset, data):
                if seen.offset in attempts:
                    found.append(Leased(seen, item.token, attempts[seen.offset]))
        return found

    def settle(self, kind: str, topic: str, group: str, leases: Sequence[Leased], **more: Any) -> list[Settled]:
        span_ms = more.get("delay_ms", more.get("lease_ms", -1))
        items = [
            messages.SettleItem(
                lease.message.partition,
                lease.token,
                lease.message.offset,
                1,
                int(_KINDS[kind]),
                span_ms,
                more.get("reason", ""),
            )
            for lease in leases
        ]
        results = self.ask(messages.Settle(group, topic, items, more.get("member_id", ""))).control.items
        return [Settled(one.count, from_wire(one.code, "").name if one.code else "") for one in results]

    def peek(self, topic: str, **wanted: Any) -> list[Seen]:
        found = self.ask(messages.Peek(topic, **{"max_messages": 10, **wanted})).control.messages
        return [Seen(one.partition, one.offset, one.value, one.key, one.headers, one.priority) for one in found]

    def fetch(self, topic: str, partition: int, offset: int, **wanted: Any) -> Page:
        lanes = sum(1 << priority for priority in wanted.pop("priorities", ()))
        count = wanted.pop("max_messages", 1_000)
        reply = self.ask(messages.Fetch(topic, partition, offset, lanes=lanes, **wanted))
        fetched = reply.control
        found = [
            seen
            for item, data in _cut(reply, fetched.batches)
            for seen in _messages(partition, item.base_offset, data)
            if seen.offset >= offset
        ]
        next_offset = found[count].offset if len(found) > count else fetched.next_offset
        return Page(found[:count], fetched.first_offset, fetched.end_offset, next_offset)

    def commit(self, topic: str, group: str, offsets: Mapping[int, int], **more: Any) -> None:
        if "sequence" in more and "member_id" in more:
            more["reader"] = more["member_id"]  # under which a member's commits are numbered
        self.ask(messages.Commit(group, topic, dict(offsets), **more))

    def committed(self, topic: str, group: str) -> Mapping[int, int]:
        return dict(self.ask(messages.Committed(group, topic)).control.offsets)

    def seek(self, topic: str, group: str, **to: Any) -> None:
        self.ask(administration.Seek(topic, group, **to))

    # ------------------------------------------------------------------ dead letters

    def list_dead(self, topic: str, group: str, **wanted: Any) -> tuple[list[Dead], int]:
        reply = self.ask(administration.ListDead(topic, group, **wanted))
        found = [
            Dead(one.partition, one.offset, batch.decode(data).values()[0], one.attempts, one.reason)
            for one, data in _cut(reply, reply.control.letters)
        ]
        return found, reply.control.total

    def redrive(self, topic: str, group: str, **chosen: Any) -> int:
        return int(self.ask(administration.RedriveDead(topic, group, **chosen)).control.count)

    def discard(self, topic: str, group: str, **chosen: Any) -> int:
        return int(self.ask(administration.DiscardDead(topic, group, **chosen)).control.count)

    # ------------------------------------------------------------------ topics, groups, the cluster

    def create_topic(self, name: str, **settings: Any) -> Topic:
        return _topic(self.ask(administration.CreateTopic(name, settings)).control)

    def alter_topic(self, name: str, **settings: Any) -> Topic:
        return _topic(self.ask(administration.AlterTopic(name, settings)).control)

    def delete_topic(self, name: str) -> None:
        self.ask(administration.DeleteTopic(name))

    def describe_topic(self, name: str) -> Topic:
        return _topic(self.ask(administration.DescribeTopic(name)).control)

    def list_topics(self) -> list[str]:
        return list(self.ask(administration.ListTopics()).control.names)

    def offsets(self, topic: str, time_ms: int = -1) -> list[tuple[int, int, int]]:
        found = self.ask(messages.Offsets(topic, time_ms)).control.partitions
        return [(one.first_offset, one.end_offset, one.at_time) for one in found]

    def list_groups(self, topic: str) -> list[str]:
        return list(self.ask(administration.ListGroups(topic)).control.groups)

    def describe_group(self, topic: str, group: str) -> Group:
        found = self.ask(administration.DescribeGroup(topic, group)).control
        figures = ("lag", "ready", "leased", "waiting", "dead")
        return Group(found.kind, *(sum(getattr(one, figure) for one in found.partitions) for figure in figures))

    def drop_group(self, topic: str, group: str) -> None:
        self.ask(administration.DropGroup(topic, group))

    # ------------------------------------------------------------------ members of groups

    def join_group(self, group: str, *topics: str, **wanted: Any) -> View:
        asked = {"kind": "queue", "member_id": secrets.token_hex(8), "session_ms": 30_000, **wanted}
        return _view(asked["member_id"], self.ask(members.JoinGroup(group, topics=list(topics), **asked)).control)

    def heartbeat(self, group: str, view: View, released: Sequence[Grant] = (), wait_ms: int = 0) -> View:
        given = [members.GrantedPartition(*one) for one in released]
        asked = members.Heartbeat(group, view.member_id, view.number, view.generation, given, wait_ms)
        return _view(view.member_id, self.ask(asked).control)

    def leave_group(self, group: str, member_id: str, **more: Any) -> None:
        self.ask(members.LeaveGroup(group, member_id, **more))

    def claim_partitions(
        self, topic: str, group: str, view: View, partitions: Sequence[int], **more: Any
    ) -> list[Claimed]:
        incarnation = next((one.incarnation for one in view.held if one.topic == topic), 0)
        asked = members.ClaimPartitions(
            topic, group, view.member_id, view.number, view.generation, incarnation, list(partitions), **more
        )
        return [
            Claimed(one.partition, from_wire(one.code, "").name if one.code else "", one.offset, one.committed)
            for one in self.ask(asked).control.partitions
        ]

    def list_members(self, group: str, **wanted: Any) -> Members:
        found = self.ask(members.ListMembers(group, **wanted)).control
        return Members(
            *(getattr(found, name) for name in Members._fields[:7]),
            [
                Member(
                    one.member_id,
                    one.instance,
                    one.client,
                    one.door or "native",
                    [(held.topic, held.first, held.last) for held in one.held],
                )
                for one in found.members
            ],
            [one.reason for one in found.rebalances],
            found.next,
        )

    def alter_group(self, group: str, **changes: Any) -> int:
        return int(self.ask(members.AlterGroup(group, **changes)).control.generation)

    def evict_member(self, group: str, member_id: str, **more: Any) -> None:
        self.ask(members.EvictMember(group, member_id, **more))

    def list_clients(self, group: str) -> list[str]:
        return [one.door for one in self.ask(members.ListClients(group)).control.clients]

    # ------------------------------------------------------------------ the cluster

    def describe_cluster(self) -> tuple[str, list[str]]:
        found = self.ask(cluster.DescribeCluster()).control
        return found.cluster_id, [broker.name for broker in found.brokers]

    def describe_partitions(self, topic: str) -> list[tuple[int, int]]:
        found = self.ask(cluster.DescribePartitions(topic)).control.partitions
        return [(one.partition, len(one.replicas)) for one in found]

    def change_cluster(self, action: str, **wish: Any) -> None:
        self.ask(cluster.ChangeCluster(action, **wish))

    def raft_status(self, topic: str, partition: int) -> Mapping[str, Any]:
        return dict(self.ask(cluster.RaftStatus(topic, partition)).control.status)


def _cut(reply: Reply, parts: Sequence[Any]) -> Iterator[tuple[Any, bytes]]:
    position = 0
    for part in parts:
        yield part, bytes(reply.bulk[position : position + part.size])
        position += part.size
    assert position == len(reply.bulk)


def _messages(partition: int, base_offset: int, data: bytes) -> Iterator[Seen]:
    found = batch.decode(data)
    places = found.positions if found.positions is not None else range(found.count)
    for place, value, key, headers in zip(places, found.values(), found.keys(), found.headers(), strict=True):
        yield Seen(partition, base_offset + place, value, key, headers, found.header.priority)


def _view(member_id: str, found: members.MemberView) -> View:
    return View(
        member_id,
        found.number,
        found.generation,
        found.session_ms,
        found.assignor,
        found.shared,
        found.news,
        [Grant(one.topic, one.incarnation, one.partition, one.grant) for one in found.held],
        [Grant(one.topic, one.incarnation, one.partition, one.grant) for one in found.revoked],
    )


def _topic(found: administration.TopicDescription) -> Topic:
    settings = {
        name: ",".join(value) if isinstance(value, list) else str(value) for name, value in found.settings.items()
    }
    return Topic(
        found.name, settings, [PartitionDepth(one.first_offset, one.end_offset, one.depth) for one in found.partitions]
    )
