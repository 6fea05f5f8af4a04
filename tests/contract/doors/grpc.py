"""The gRPC door: `lanner.v1.Queue`, with a client that is compiled from its proto in the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tests.contract.doors.door import (
    BY_NAME,
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
from tests.grpc_client import Service

_PROTOS = Path(__file__).parents[3] / "proto"


class GrpcDoor(Door):
    name = "gRPC"
    served: ClassVar[Mapping[str, str]] = {
        "publish": "Publish",
        "poll": "ReceiveMessages",
        "ack": "Ack",
        "nack": "Nack",
        "extend": "Extend",
        "reject": "Reject",
        "peek": "Peek",
        "fetch": "Fetch",
        "commit": "Commit",
        "committed": "Committed",
        "seek": "Seek",
        "list_dead": "ListDeadLetters",
        "redrive": "RedriveDeadLetters",
        "discard": "DiscardDeadLetters",
        "create_topic": "CreateTopic",
        "alter_topic": "AlterTopic",
        "delete_topic": "DeleteTopic",
        "describe_topic": "DescribeTopic",
        "list_topics": "ListTopics",
        "list_groups": "ListGroups",
        "describe_group": "DescribeGroup",
        "drop_group": "DropGroup",
        "offsets": "Offsets",
        "join_group": "JoinGroup",
        "heartbeat": "Heartbeat",
        "leave_group": "LeaveGroup",
        "claim_partitions": "ClaimPartitions",
        "list_members": "ListMembers",
        "alter_group": "AlterGroup",
        "evict_member": "EvictMember",
        "list_clients": "ListClients",
        "describe_cluster": "DescribeCluster",
        "describe_partitions": "DescribePartitions",
        "change_cluster": "ChangeCluster",
        "raft_status": "RaftStatus",
    }

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", 32 << 20)])
        self.queue = Service(self.channel, _PROTOS, "lanner/v1/queue.proto", "lanner.v1.Queue")

    def close(self) -> None:
        self.channel.close()

    def ask(self, method: str, **fields: Any) -> Any:
        self.asked.add(method)
        try:
            return getattr(self.queue, method)(timeout=30.0, **fields)
        except grpc.RpcError as error:
            raise as_told(error) from None

    def _serve(self, call: str, **fields: Any) -> Any:
        return self.ask(self.served[call], **fields)

    # ------------------------------------------------------------------ messages

    def publish(self, topic: str, *given: New, idempotency_key: str = "") -> list[Stored]:
        shapes = [_shape(one) for one in given]
        found = self._serve("publish", topic=topic, messages=shapes, idempotency_key=idempotency_key)
        return [Stored(one.partition, one.offset, one.duplicate) for one in found.messages]

    def poll(self, topic: str, group: str, **wanted: Any) -> list[Leased]:
        found = self._serve("poll", topic=topic, group=group, **{"max_messages": 10, **wanted})
        return [Leased(_seen(one.message), one.token, one.attempt) for one in found.messages]

    def settle(self, kind: str, topic: str, group: str, leases: Sequence[Leased], **more: Any) -> list[Settled]:
        shapes = [
            {"partition": one.message.partition, "offset": one.message.offset, "token": one.token} for one in leases
        ]
        found = self._serve(kind, topic=topic, group=group, leases=shapes, **more)
        return [Settled(one.count, one.error) for one in found.leases]

    def peek(self, topic: str, **wanted: Any) -> list[Seen]:
        found = self._serve("peek", topic=topic, **{"max_messages": 10, **wanted})
        return [_seen(one) for one in found.messages]

    def fetch(self, topic: str, partition: int, offset: int, **wanted: Any) -> Page:
        found = self._serve("fetch", topic=topic, partition=partition, offset=offset, **wanted)
        return Page([_seen(one) for one in found.messages], found.first_offset, found.end_offset, found.next_offset)

    def commit(self, topic: str, group: str, offsets: Mapping[int, int], **more: Any) -> None:
        self._serve("commit", topic=topic, group=group, offsets=offsets, **more)

    def committed(self, topic: str, group: str) -> Mapping[int, int]:
        return dict(self._serve("committed", topic=topic, group=group).offsets)

    def seek(self, topic: str, group: str, **to: Any) -> None:
        if "offsets" in to:
            to["offsets"] = {"offsets": to["offsets"]}
        if "to" in to:
            to["place"] = to.pop("to")
        self._serve("seek", topic=topic, group=group, **to)

    # ------------------------------------------------------------------ dead letters

    def list_dead(self, topic: str, group: str, **wanted: Any) -> tuple[list[Dead], int]:
        found = self._serve("list_dead", topic=topic, group=group, **wanted)
        letters = [
            Dead(one.partition, one.offset, one.message.value, one.attempts, one.reason) for one in found.letters
        ]
        return letters, found.total

    def redrive(self, topic: str, group: str, **chosen: Any) -> int:
        return int(self._serve("redrive", topic=topic, group=group, **_choice(chosen)).count)

    def discard(self, topic: str, group: str, **chosen: Any) -> int:
        return int(self._serve("discard", topic=topic, group=group, **_choice(chosen)).count)

    # ------------------------------------------------------------------ topics, groups, the cluster

    def create_topic(self, name: str, **settings: Any) -> Topic:
        return _topic(self._serve("create_topic", topic=name, settings=_texts(settings)))

    def alter_topic(self, name: str, **settings: Any) -> Topic:
        return _topic(self._serve("alter_topic", topic=name, settings=_texts(settings)))

    def delete_topic(self, name: str) -> None:
        self._serve("delete_topic", topic=name)

    def describe_topic(self, name: str) -> Topic:
        return _topic(self._serve("describe_topic", topic=name))

    def list_topics(self) -> list[str]:
        return list(self._serve("list_topics").topics)

    def list_groups(self, topic: str) -> list[str]:
        return list(self._serve("list_groups", topic=topic).groups)

    def describe_group(self, topic: str, group: str) -> Group:
        found = self._serve("describe_group", topic=topic, group=group)
        figures = ("lag", "ready", "leased", "waiting", "dead")
        return Group(found.kind, *(sum(getattr(one, figure) for one in found.partitions) for figure in figures))

    def drop_group(self, topic: str, group: str) -> None:
        self._serve("drop_group", topic=topic, group=group)

    def offsets(self, topic: str, time_ms: int = -1) -> list[tuple[int, int, int]]:
        found = self._serve("offsets", topic=topic, **({} if time_ms < 0 else {"time_ms": time_ms})).partitions
        return [(one.first_offset, one.end_offset, one.at_time if one.HasField("at_time") else -1) for one in found]

    # ------------------------------------------------------------------ members of groups

    def join_group(self, group: str, *topics: str, **wanted: Any) -> View:
        return _view(self._serve("join_group", group=group, topics=topics, **wanted))

    def heartbeat(self, group: str, view: View, released: Sequence[Grant] = (), wait_ms: int = 0) -> View:
        given = [one._asdict() for one in released]
        return _view(self._serve("heartbeat", group=group, **view.seen, released=given, wait_ms=wait_ms))

    def leave_group(self, group: str, member_id: str, **more: Any) -> None:
        self._serve("leave_group", group=group, member_id=member_id, **more)

    def claim_partitions(
        self, topic: str, group: str, view: View, partitions: Sequence[int], **more: Any
    ) -> list[Claimed]:
        found = self._serve(
            "claim_partitions", topic=topic, group=group, **view.seen, partitions=list(partitions), **more
        )
        return [Claimed(one.partition, one.error, one.offset, one.committed) for one in found.partitions]

    def list_members(self, group: str, **wanted: Any) -> Members:
        found = self._serve("list_members", group=group, **wanted)
        return Members(
            *(getattr(found, name) for name in Members._fields[:7]),
            [
                Member(
                    one.member_id,
                    one.instance,
                    one.client,
                    one.door,
                    [(held.topic, held.first, held.last) for held in one.held],
                )
                for one in found.members
            ],
            [one.reason for one in found.rebalances],
            found.next,
        )

    def alter_group(self, group: str, **changes: Any) -> int:
        return int(self._serve("alter_group", group=group, **changes).generation)

    def evict_member(self, group: str, member_id: str, **more: Any) -> None:
        self._serve("evict_member", group=group, member_id=member_id, **more)

    def list_clients(self, group: str) -> list[str]:
        return [one.door for one in self._serve("list_clients", group=group).clients]

    # ------------------------------------------------------------------ the cluster

    def describe_cluster(self) -> tuple[str, list[str]]:
        found = self._serve("describe_cluster")
        return found.id, [broker.name for broker in found.brokers]

    def describe_partitions(self, topic: str) -> list[tuple[int, int]]:
        found = self._serve("describe_partitions", topic=topic).partitions
        return [(one.partition, len(one.replicas)) for one in found]

    def change_cluster(self, action: str, **wish: Any) -> None:
        self._serve("change_cluster", action=action, **wish)

    def raft_status(self, topic: str, partition: int) -> Mapping[str, Any]:
        return {"state": self._serve("raft_status", topic=topic, partition=partition).state}


def as_told(error: grpc.RpcError) -> Exception:
    """What a call ended with, when it is an error of the catalogue; else gRPC's own."""
    trailers = dict(error.trailing_metadata() or ())
    if "lanner-error" not in trailers:
        return error
    name = trailers["lanner-error"]
    assert int(trailers["lanner-code"]) == BY_NAME[name].code
    status, info = Status.FromString(trailers["grpc-status-details-bin"]), ErrorInfo()
    assert (status.code, status.details[0].Unpack(info)) == (error.code().value[0], True)
    assert (info.reason, info.domain) == (name, "lanner")
    details = dict(info.metadata)
    assert (details.pop("retryable", "") == "true") is ("lanner-retryable" in trailers)
    return told(
        name,
        error.details(),
        details,
        grpc_status=error.code().name,
        retryable=trailers.get("lanner-retryable") == "true",
    )


def _shape(one: New) -> dict[str, Any]:
    shape: dict[str, Any] = {"value": one.value, "headers": one.headers}
    shape |= {name: getattr(one, name) for name in ("delay_ms", "ttl_ms")}
    shape |= {name: getattr(one, name) for name in ("key", "partition") if getattr(one, name) is not None}
    if one.priority is not None:
        shape["priority_name" if isinstance(one.priority, str) else "priority"] = one.priority
    return shape


def _seen(one: Any) -> Seen:
    key = one.key if one.HasField("key") else None
    return Seen(one.partition, one.offset, one.value, key, dict(one.headers), one.priority)


def _choice(chosen: dict[str, Any]) -> dict[str, Any]:
    return chosen if "offsets" in chosen else {**chosen, "all": True}


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    return {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in settings.items()}


def _view(found: Any) -> View:
    plain = (getattr(found, name) for name in View._fields[:6])
    held, revoked = (
        [Grant(*(getattr(one, name) for name in Grant._fields)) for one in grants]
        for grants in (found.held, found.revoked)
    )
    return View(*plain, not found.unchanged, held, revoked)


def _topic(found: Any) -> Topic:
    partitions = [PartitionDepth(one.first_offset, one.end_offset, dict(one.depth)) for one in found.partitions]
    return Topic(found.name, dict(found.settings), partitions)
