"""The REST door: JSON under `/v1`, over one connection that is kept."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import httpx

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

_TOPIC, _GROUP = "/v1/topics/{topic}", "/v1/topics/{topic}/groups/{group}"
_MEMBERS = "/v1/groups/{group}/members"
_ACTIONS = {"drain": "/v1/brokers/{broker}/drain", "upgrade": "/v1/cluster/upgrade"}


class RestDoor(Door):
    name = "REST"
    served: ClassVar[Mapping[str, str]] = {
        "publish": f"POST {_TOPIC}/messages",
        "poll": f"POST {_GROUP}/poll",
        "ack": f"POST {_GROUP}/ack",
        "nack": f"POST {_GROUP}/nack",
        "extend": f"POST {_GROUP}/extend",
        "reject": f"POST {_GROUP}/reject",
        "peek": "GET /topic/{topic}/peek",
        "fetch": f"GET {_TOPIC}/partitions/{{partition}}/messages",
        "commit": f"POST {_GROUP}/commit",
        "committed": f"GET {_GROUP}/committed",
        "seek": f"POST {_GROUP}/seek",
        "list_dead": f"GET {_GROUP}/dead",
        "redrive": f"POST {_GROUP}/dead/redrive",
        "discard": f"POST {_GROUP}/dead/discard",
        "create_topic": "POST /v1/topics",
        "alter_topic": f"PATCH {_TOPIC}",
        "delete_topic": f"DELETE {_TOPIC}",
        "describe_topic": f"GET {_TOPIC}",
        "list_topics": "GET /v1/topics",
        "offsets": f"GET {_TOPIC}/offsets",
        "list_groups": f"GET {_TOPIC}/groups",
        "describe_group": f"GET {_GROUP}",
        "drop_group": f"DELETE {_GROUP}",
        "join_group": f"POST {_MEMBERS}",
        "heartbeat": f"POST {_MEMBERS}/{{member}}/heartbeat",
        "leave_group": f"DELETE {_MEMBERS}/{{member}}",
        "claim_partitions": f"POST {_GROUP}/claim",
        "list_members": f"GET {_MEMBERS}",
        "alter_group": "PATCH /v1/groups/{group}",
        "evict_member": f"POST {_MEMBERS}/{{member}}/evict",
        "list_clients": "GET /v1/clients",
        "describe_cluster": "GET /v1/cluster",
        "describe_partitions": "GET /v1/partitions",
        "change_cluster": "POST /v1/brokers/{broker}/drain",
        "raft_status": "GET /raft/stats",
    }

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.http = httpx.Client(base_url=f"http://{address}", timeout=30.0, trust_env=False)

    def close(self) -> None:
        self.http.close()

    def ask(self, operation: str, path: Mapping[str, object] | None = None, **more: Any) -> Any:
        """Ask for an operation as `served` names it: `POST /v1/topics/{topic}/messages`."""
        self.asked.add(operation)
        method, _, template = operation.partition(" ")
        answer = self.http.request(method, template.format_map(path or {}), **more)
        if answer.is_success:
            return answer.json() if answer.content else None
        problem = answer.json()
        details = dict(problem.get("details", {}))
        name = details.pop("error")
        if template.startswith("/v1"):
            assert problem["type"] == name
        retryable = details.pop("retryable", False)
        error = told(name, problem["message"], details, http_status=answer.status_code, retryable=retryable)
        assert answer.headers["content-type"] == "application/json"
        raise error

    def _serve(self, call: str, path: Mapping[str, object] | None = None, **more: Any) -> Any:
        return self.ask(self.served[call], path, **more)

    # ------------------------------------------------------------------ messages

    def publish(self, topic: str, *given: New, idempotency_key: str = "") -> list[Stored]:
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        found = self._serve(
            "publish", {"topic": topic}, json={"messages": [_shape(one) for one in given]}, headers=headers
        )
        assert found["count"] == len(found["messages"])
        return [Stored(one["partition"], one["offset"], one["duplicate"]) for one in found["messages"]]

    def poll(self, topic: str, group: str, **wanted: Any) -> list[Leased]:
        found = self._serve("poll", {"topic": topic, "group": group}, json=wanted)
        return [Leased(_seen(one), one["token"], one["attempt"]) for one in found["messages"]]

    def settle(self, kind: str, topic: str, group: str, leases: Sequence[Leased], **more: Any) -> list[Settled]:
        targets = [
            {"partition": one.message.partition, "offset": one.message.offset, "token": one.token} for one in leases
        ]
        found = self._serve(kind, {"topic": topic, "group": group}, json={"messages": targets, **more})
        return [Settled(one["count"], one.get("error", "")) for one in found["messages"]]

    def peek(self, topic: str, **wanted: Any) -> list[Seen]:
        renamed = {"max_messages": "batch", "partition": "partitionID"}
        query = {renamed.get(name, name): value for name, value in {"max_messages": 10, **wanted}.items()}
        found = self._serve("peek", {"topic": topic}, params=query)
        return [
            Seen(one["partitionID"], one["Offset"], one["v"].encode(), None, {}, _number(one["p"]))
            for one in found["messages"]
        ]

    def fetch(self, topic: str, partition: int, offset: int, **wanted: Any) -> Page:
        query: dict[str, Any] = {"offset": offset}
        if "priorities" in wanted:
            query["priorities"] = ",".join(map(str, wanted.pop("priorities")))
        for name, value in wanted.items():
            query["limit" if name == "max_messages" else name] = value
        found = self._serve("fetch", {"topic": topic, "partition": partition}, params=query)
        return Page(
            [_seen(one) for one in found["messages"]],
            found["first_offset"],
            found["end_offset"],
            found["next_offset"],
        )

    def commit(self, topic: str, group: str, offsets: Mapping[int, int], **more: Any) -> None:
        body = {"offsets": {str(partition): offset for partition, offset in offsets.items()}, **more}
        self._serve("commit", {"topic": topic, "group": group}, json=body)

    def committed(self, topic: str, group: str) -> Mapping[int, int]:
        found = self._serve("committed", {"topic": topic, "group": group})
        return {int(partition): offset for partition, offset in found["offsets"].items()}

    def seek(self, topic: str, group: str, **to: Any) -> None:
        if "offsets" in to:
            to["offsets"] = {str(partition): offset for partition, offset in to["offsets"].items()}
        self._serve("seek", {"topic": topic, "group": group}, json=to)

    # ------------------------------------------------------------------ dead letters

    def list_dead(self, topic: str, group: str, **wanted: Any) -> tuple[list[Dead], int]:
        found = self._serve("list_dead", {"topic": topic, "group": group}, params=wanted)
        letters = [
            Dead(one["partition"], one["offset"], _bytes(one, "value", "encoding"), one["attempts"], one["reason"])
            for one in found["messages"]
        ]
        return letters, found["total"]

    def redrive(self, topic: str, group: str, **chosen: Any) -> int:
        return int(self._serve("redrive", {"topic": topic, "group": group}, json=chosen)["count"])

    def discard(self, topic: str, group: str, **chosen: Any) -> int:
        return int(self._serve("discard", {"topic": topic, "group": group}, json=chosen)["count"])

    # ------------------------------------------------------------------ topics, groups, the cluster

    def create_topic(self, name: str, **settings: Any) -> Topic:
        return _topic(self._serve("create_topic", json={"name": name, "settings": settings}))

    def alter_topic(self, name: str, **settings: Any) -> Topic:
        return _topic(self._serve("alter_topic", {"topic": name}, json={"settings": settings}))

    def delete_topic(self, name: str) -> None:
        self._serve("delete_topic", {"topic": name})

    def describe_topic(self, name: str) -> Topic:
        return _topic(self._serve("describe_topic", {"topic": name}))

    def list_topics(self) -> list[str]:
        return list(self._serve("list_topics")["topics"])

    def offsets(self, topic: str, time_ms: int = -1) -> list[tuple[int, int, int]]:
        found = self._serve("offsets", {"topic": topic}, params={} if time_ms < 0 else {"time_ms": time_ms})
        return [(one["first_offset"], one["end_offset"], one.get("at_time", -1)) for one in found["partitions"]]

    def list_groups(self, topic: str) -> list[str]:
        return list(self._serve("list_groups", {"topic": topic})["groups"])

    def describe_group(self, topic: str, group: str) -> Group:
        found = self._serve("describe_group", {"topic": topic, "group": group})
        return Group(*(found[figure] for figure in Group._fields))

    def drop_group(self, topic: str, group: str) -> None:
        self._serve("drop_group", {"topic": topic, "group": group})

    # ------------------------------------------------------------------ members of groups

    def join_group(self, group: str, *topics: str, **wanted: Any) -> View:
        return _view(self._serve("join_group", {"group": group}, json={"topics": topics, **wanted}))

    def heartbeat(self, group: str, view: View, released: Sequence[Grant] = (), wait_ms: int = 0) -> View:
        path = {"group": group, "member": view.member_id}
        body = {
            "number": view.number,
            "generation": view.generation,
            "released": [one._asdict() for one in released],
        }
        return _view(self._serve("heartbeat", path, params={"wait_ms": wait_ms}, json=body))

    def leave_group(self, group: str, member_id: str, **more: Any) -> None:
        self._serve("leave_group", {"group": group, "member": member_id}, params=more)

    def claim_partitions(
        self, topic: str, group: str, view: View, partitions: Sequence[int], **more: Any
    ) -> list[Claimed]:
        body = {**view.seen, "partitions": partitions, **more}
        found = self._serve("claim_partitions", {"topic": topic, "group": group}, json=body)
        return [
            Claimed(one["partition"], one.get("error", ""), one.get("offset", 0), one.get("committed", False))
            for one in found["partitions"]
        ]

    def list_members(self, group: str, **wanted: Any) -> Members:
        found = self._serve("list_members", {"group": group}, params=wanted)
        return Members(
            *(found[name] for name in Members._fields[:7]),
            [
                Member(
                    one["member_id"],
                    one.get("instance", ""),
                    one.get("client", ""),
                    one["door"],
                    [(held["topic"], held["first"], held["last"]) for held in one["held"]],
                )
                for one in found["members"]
            ],
            [one["reason"] for one in found["rebalances"]],
            found.get("next", 0),
        )

    def alter_group(self, group: str, **changes: Any) -> int:
        return int(self._serve("alter_group", {"group": group}, json=changes)["generation"])

    def evict_member(self, group: str, member_id: str, **more: Any) -> None:
        self._serve("evict_member", {"group": group, "member": member_id}, params=more)

    def list_clients(self, group: str) -> list[str]:
        return [one["door"] for one in self._serve("list_clients", params={"group": group})["clients"]]

    # ------------------------------------------------------------------ the cluster

    def describe_cluster(self) -> tuple[str, list[str]]:
        found = self._serve("describe_cluster")
        return found["cluster_id"], [broker["name"] for broker in found["brokers"]]

    def describe_partitions(self, topic: str) -> list[tuple[int, int]]:
        found = self._serve("describe_partitions", params={"topic": topic})
        return [(one["partition"], len(one["replicas"])) for one in found["partitions"]]

    def change_cluster(self, action: str, **wish: Any) -> None:
        self.ask(f"POST {_ACTIONS[action]}", wish)

    def raft_status(self, topic: str, partition: int) -> Mapping[str, Any]:
        found: dict[str, Any] = self._serve("raft_status", params={"topic": topic, "partitionID": partition})
        return found


def _shape(one: New) -> dict[str, Any]:
    shape: dict[str, Any] = _text("value", "encoding", one.value)
    if one.key is not None:
        shape |= _text("key", "key_encoding", one.key)
    if one.headers:
        shape["headers"] = {name: base64.b64encode(value).decode() for name, value in one.headers.items()}
        shape["headers_encoding"] = "base64"
    if one.priority is not None:
        shape["priority"] = one.priority
    if one.partition is not None:
        shape["partition"] = one.partition
    for name in ("delay_ms", "ttl_ms"):
        if getattr(one, name):
            shape[name] = getattr(one, name)
    return shape


def _text(name: str, encoding: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), encoding: "base64"}


def _bytes(one: Mapping[str, Any], name: str, encoding: str) -> bytes:
    text: str = one[name]
    return base64.b64decode(text) if one.get(encoding) == "base64" else text.encode()


def _seen(one: Mapping[str, Any]) -> Seen:
    headers = one.get("headers", {})
    plain = one.get("headers_encoding") != "base64"
    return Seen(
        one["partition"],
        one["offset"],
        _bytes(one, "value", "encoding"),
        _bytes(one, "key", "key_encoding") if "key" in one else None,
        {name: text.encode() if plain else base64.b64decode(text) for name, text in headers.items()},
        one["priority"],
    )


def _number(priority: int | str) -> int:
    return {"low": 0, "normal": 4, "high": 9}[priority] if isinstance(priority, str) else priority


def _view(found: Mapping[str, Any]) -> View:
    plain = (found[name] for name in View._fields[:7])
    held, revoked = (
        [Grant(*(one[name] for name in Grant._fields)) for one in found[where]] for where in ("held", "revoked")
    )
    return View(*plain, held, revoked)


def _topic(found: Mapping[str, Any]) -> Topic:
    settings = {
        name: ",".join(value) if isinstance(value, list) else str(value) for name, value in found["settings"].items()
    }
    partitions = [
        PartitionDepth(
            one["first_offset"],
            one["end_offset"],
            {int(priority): count for priority, count in one["depth"].items()},
        )
        for one in found["partitions"]
    ]
    return Topic(found["name"], settings, partitions)
