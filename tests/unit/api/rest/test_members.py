from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from lanner import limits
from lanner.api.rest import build_app
from lanner.errors import MemberFenced, MemberUnknown
from lanner.forwarding.unpacking import Handed
from lanner.forwarding.values import Delivered
from lanner.model import Message
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
    MemberView,
)
from tests.unit.api.rest.conftest import FakeService

MEMBERS = "/v1/groups/billing/members"
GROUP = "/v1/topics/orders/groups/billing"


def view(generation: int, *partitions: int, **named: Any) -> MemberView:
    held = [GrantedPartition("orders", 5, partition, generation) for partition in partitions]
    return MemberView(7, generation, 41, 30_000, held, [], **named)


def leased(offset: int) -> Delivered:
    return Delivered(Message("orders", 1, offset, b"v"), 42, 99_000)


# ------------------------------------------------------------------ the members themselves


async def test_a_join_says_what_it_was_told_and_gets_a_member_id(http: httpx.AsyncClient, service: FakeService) -> None:
    body = {"topics": ["orders"], "patterns": ["refunds.*"], "assignor": "sticky", "instance": "web-1", "rack": "r1"}
    reply = await http.post(MEMBERS, json={**body, "kind": "stream", "client": "shop 1.0", "start": "latest"})
    assert reply.status_code == 201
    (asked,) = service.asked("join_group")
    said = reply.json()
    assert asked == JoinGroup(
        "billing",
        "stream",
        said["member_id"],
        ["orders"],
        ["refunds.*"],
        "sticky",
        "web-1",
        30_000,
        "r1",
        "shop 1.0",
        start="latest",
        door="rest",
    )
    assert (said["group"], said["number"], said["generation"], said["assignor"]) == ("billing", 7, 3, "sticky")
    assert len(said["member_id"]) == 16
    again = await http.post(MEMBERS, json={"topics": ["orders"], "member_id": "mine", "session_ms": 5_000})
    assert (again.json()["member_id"], again.json()["session_ms"]) == ("mine", 5_000)
    other = await http.post(MEMBERS, json={"topics": ["orders"]})
    assert other.json()["member_id"] not in (said["member_id"], "mine")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"topics": ["orders"], "instanse": "x"}, "instanse"),
        ({"topics": ["a b"]}, "topics"),
        ({"topics": ["orders"], "kind": "topic"}, "kind"),
        ({"topics": ["orders"], "session_ms": 999}, "session_ms"),
        ({"topics": ["orders"], "session_ms": 300_001}, "session_ms"),
        ({"topics": ["orders"], "member_id": "a/b"}, "member_id"),
        ({"topics": ["orders"], "member_id": ".."}, "member_id"),
        ({"topics": ["orders"], "member_id": "x" * 65}, "member_id"),
        ({"topics": ["orders"], "start": "middle"}, "start"),
        ({"topics": ["orders"] * 1_001}, "topics"),
        ({"patterns": [""]}, "patterns[0]"),
        ({"topics": "orders"}, "topics"),
    ],
)
async def test_a_join_that_cannot_be_meant_is_refused_by_field(
    http: httpx.AsyncClient, service: FakeService, body: dict[str, Any], field: str
) -> None:
    reply = await http.post(MEMBERS, json=body)
    assert (reply.status_code, reply.json()["details"]["field"]) == (400, field)
    assert service.calls == []


async def test_an_unknown_field_is_refused_with_the_nearest_name(http: httpx.AsyncClient) -> None:
    reply = await http.post(MEMBERS, json={"topics": ["orders"], "instanse": "x"})
    assert "did you mean instance?" in reply.json()["message"]
    reply = await http.post(f"{MEMBERS}/a1/heartbeat", json={"realeased": []})
    assert "did you mean released?" in reply.json()["message"]
    reply = await http.get(MEMBERS, params={"limits": 3})
    assert "did you mean limit?" in reply.json()["message"]
    reply = await http.patch("/v1/groups/billing", json={"session": 3})
    assert "did you mean session_ms?" in reply.json()["message"]


async def test_a_heartbeat_tells_what_was_seen_and_what_is_released(
    http: httpx.AsyncClient, service: FakeService
) -> None:
    service.views = [view(9, 1, 2)]
    grant = {"topic": "orders", "incarnation": 5, "partition": 0, "grant": 8, "first": True}
    body = {"number": 7, "generation": 8, "released": [grant]}
    reply = await http.post(f"{MEMBERS}/a1/heartbeat", params={"wait_ms": 250}, json=body)
    assert reply.status_code == 200
    released = [GrantedPartition("orders", 5, 0, 8)]
    assert service.asked("heartbeat") == [Heartbeat("billing", "a1", 7, 8, released, 250)]
    said = reply.json()
    assert [(one["partition"], one["grant"]) for one in said["held"]] == [(1, 9), (2, 9)]
    assert (said["news"], said["shared"], said["revoked"]) == (True, False, [])


async def test_a_heartbeat_may_leave_out_the_number_of_the_group(http: httpx.AsyncClient, service: FakeService) -> None:
    service.views = [view(9, 1)]
    await http.post(f"{MEMBERS}/a1/heartbeat", json={"generation": 8})
    assert service.asked("heartbeat") == [Heartbeat("billing", "a1", 0, 0), Heartbeat("billing", "a1", 7, 8)]
    service.calls.clear()
    await http.post(f"{MEMBERS}/a1/heartbeat", json={})
    assert service.asked("heartbeat") == [Heartbeat("billing", "a1", 0, 0)]


async def test_a_heartbeat_that_waits_ends_with_its_client(service: FakeService) -> None:
    """Else a client that has gone would be heard of for as long as its heartbeat waits."""
    service.views, service.beat_gate, leave = [view(9)], asyncio.Event(), asyncio.Event()
    said: list[Any] = [{"type": "http.request", "body": b"{}"}]
    sent: list[Any] = []

    async def receive() -> Any:
        if said:
            return said.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        sent.append(event)

    path = f"{MEMBERS}/a1/heartbeat"
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"wait_ms=60000", "headers": []}
    serving = asyncio.create_task(build_app(service)(scope, receive, send))  # type: ignore[arg-type, var-annotated]
    while not service.asked("heartbeat"):
        await asyncio.sleep(0)
    assert not sent
    leave.set()
    await serving
    assert sent[0]["status"] == 503  # which nobody reads


async def test_a_member_leaves_is_evicted_and_its_group_is_altered(
    http: httpx.AsyncClient, service: FakeService
) -> None:
    assert (await http.delete(f"{MEMBERS}/a1", params={"reason": "done"})).status_code == 204
    assert (await http.post(f"{MEMBERS}/a1/evict", params={"reason": "stuck"})).status_code == 204
    altered = await http.patch("/v1/groups/billing", json={"assignor": "range", "session_ms": 5_000})
    assert altered.json() == {"group": "billing", "number": 7, "generation": 9}
    touched = await http.patch("/v1/groups/billing", json={})
    assert touched.status_code == 200
    assert service.asked("leave_group") == [LeaveGroup("billing", "a1", "done")]
    assert service.asked("evict_member") == [EvictMember("billing", "a1", "stuck")]
    assert service.asked("alter_group") == [AlterGroup("billing", "range", 5_000, 0), AlterGroup("billing")]


async def test_members_are_listed_page_by_page(http: httpx.AsyncClient, service: FakeService) -> None:
    reply = await http.get(MEMBERS, params={"after": 3, "limit": 2})
    assert service.asked("list_members") == [ListMembers("billing", 3, 2)]
    said = reply.json()
    first, second = said["members"]
    assert (first["member_id"], first["instance"], first["door"], first["heard_ms"]) == ("a1", "web-1", "native", 400)
    assert first["held"] == [{"topic": "orders", "first": 0, "last": 3}]
    assert first["revoked"] == [{"topic": "orders", "partition": 4, "heir": "b2", "waiting_ms": 1_200}]
    assert second["door"] == "rest"
    assert not {"instance", "home", "heard_ms"} & set(second)
    assert said["rebalances"] == [{"begun_ms": 900, "reason": "b2 joined", "moved": 2, "partitions": 8}]
    assert (said["state"], said["count"], said["partitions"], said["next"]) == ("settled", 2, 8, 42)


@pytest.mark.parametrize("member", ["x" * 65, "%0a", "%00"])
async def test_a_path_that_names_no_member_is_refused(http: httpx.AsyncClient, member: str) -> None:
    reply = await http.delete(f"{MEMBERS}/{member}")
    assert (reply.status_code, reply.json()["details"]["field"]) == (400, "member")


async def test_a_claim_tells_each_partition_its_outcome(http: httpx.AsyncClient, service: FakeService) -> None:
    service.views = [view(9, 0, 1)]
    service.claimed = [
        ClaimedPartition(0, 0, 17, True, b"note", 4),
        ClaimedPartition(1, MemberFenced.code),
        ClaimedPartition(2, metadata=b"\xff"),
    ]
    body = {"member_id": "a1", "generation": 9, "partitions": [0, 1, 2], "start": "latest"}
    reply = await http.post(f"{GROUP}/claim", json=body)
    assert service.asked("claim_partitions") == [
        ClaimPartitions("orders", "billing", "a1", 7, 9, 0, [0, 1, 2], "latest")
    ]
    assert reply.json()["partitions"] == [
        {"partition": 0, "offset": 17, "committed": True, "metadata": "note", "sequence": 4},
        {"partition": 1, "error": "MemberFenced"},
        {"partition": 2, "offset": 0, "committed": False, "metadata": "/w==", "metadata_encoding": "base64"},
    ]
    missing = await http.post(f"{GROUP}/claim", json={"member_id": "a1", "partitions": [0]})
    assert (missing.status_code, missing.json()["details"]["field"]) == (400, "generation")


# ------------------------------------------------------------------ what members call


async def test_a_member_commits_under_the_generation_that_it_has_seen(
    http: httpx.AsyncClient, service: FakeService
) -> None:
    service.views = [view(9, 0)]
    body = {"offsets": {"0": 5}, "member_id": "a1", "generation": 8, "sequence": 2, "metadata": {"0": "note"}}
    assert (await http.post(f"{GROUP}/commit", json=body)).status_code == 204
    (asked,) = service.asked("commit")
    assert (asked.member_id, asked.number, asked.generation) == ("a1", 7, 8)
    assert (asked.reader, asked.sequence, asked.metadata) == ("a1", 2, {0: b"note"})
    service.calls.clear()
    body = {"offsets": {"0": 5}, "member_id": "a1", "generation": 8, "number": 7}
    assert (await http.post(f"{GROUP}/commit", json=body)).status_code == 204
    (asked,) = service.asked("commit")
    assert (asked.reader, asked.sequence, asked.number) == ("", -1, 7)
    assert service.asked("heartbeat") == []  # it left nothing out


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"member_id": "a1"}, "generation"),
        ({"member_id": "a1", "generation": 8, "reader": "r", "sequence": 1}, "reader"),
        ({"sequence": 1}, "reader"),
        ({"metadata": {"0": "x" * (limits.COMMIT_METADATA_BYTES_MAX + 1)}}, "metadata.0"),
        ({"metadata": {"0": "?"}, "metadata_encoding": "base64"}, "metadata.0"),
    ],
)
async def test_a_commit_that_cannot_be_meant_is_refused_by_field(
    http: httpx.AsyncClient, service: FakeService, more: dict[str, Any], field: str
) -> None:
    reply = await http.post(f"{GROUP}/commit", json={"offsets": {"0": 5}, **more})
    assert (reply.status_code, reply.json()["details"]["field"]) == (400, field)
    assert service.asked("commit") == []


async def test_a_member_reads_for_its_group(http: httpx.AsyncClient, service: FakeService) -> None:
    service.views = [view(9, 0)]
    path = "/v1/topics/orders/partitions/0/messages"
    read = await http.get(path, params={"group": "billing", "member_id": "a1", "generation": 8})
    assert read.status_code == 200
    (asked,) = service.asked("fetch")
    assert (asked.group, asked.member_id, asked.number, asked.generation) == ("billing", "a1", 7, 8)
    reply = await http.get(path, params={"member_id": "a1"})
    assert (reply.status_code, reply.json()["details"]["field"]) == (400, "group")
    reply = await http.get(path, params={"group": "billing"})
    assert (reply.status_code, reply.json()["details"]["field"]) == (400, "member_id")


async def test_a_settle_names_its_member(http: httpx.AsyncClient, service: FakeService) -> None:
    target = {"partition": 0, "offset": 1, "token": 2}
    for kind in ("ack", "nack", "extend", "reject"):
        reply = await http.post(f"{GROUP}/{kind}", json={"messages": [target], "member_id": "a1"})
        assert reply.status_code == 200
    assert [asked.member_id for asked in service.asked("settle")] == ["a1"] * 4


async def test_a_poll_of_a_member_is_of_what_it_holds(http: httpx.AsyncClient, service: FakeService) -> None:
    service.views = [view(9, 1, 3)]
    service.deliveries = [leased(1)]
    reply = await http.post(f"{GROUP}/poll", json={"member_id": "a1", "wait_ms": 60_000})
    assert reply.json()["count"] == 1
    (asked,) = service.asked("poll")
    assert (asked.partitions, asked.member_id, asked.number, asked.generation) == ([1, 3], "a1", 7, 9)


async def test_a_poll_of_a_member_names_partitions_and_generation_if_it_likes(
    http: httpx.AsyncClient, service: FakeService
) -> None:
    service.views = [view(9, 1)]
    await http.post(f"{GROUP}/poll", json={"member_id": "a1", "partitions": [2], "generation": 8})
    await http.post(f"{GROUP}/poll", json={"member_id": "a1", "generation": 8})  # it has 1 only since 9
    await http.post(f"{GROUP}/poll", json={"member_id": "a1", "generation": 9})
    asked = [(one.partitions, one.number, one.generation) for one in service.asked("poll")]
    assert asked == [([2], 7, 8), ([1], 7, 9)]


async def test_a_poll_of_a_member_of_a_shared_group_is_of_all_partitions(
    http: httpx.AsyncClient, service: FakeService
) -> None:
    service.views = [view(9, shared=True)]
    await http.post(f"{GROUP}/poll", json={"member_id": "a1"})
    (asked,) = service.asked("poll")
    assert asked.partitions is None


async def test_a_poll_that_waits_goes_on_with_what_its_member_holds_next(
    http: httpx.AsyncClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.views = [view(9, 1), view(10, 1, 2)]
    polls: list[list[int]] = []

    async def poll_messages(identity: object, call: Any) -> Handed:
        polls.append(call.partitions)
        if 2 not in call.partitions:
            await asyncio.Event().wait()
        return Handed([leased(1)])

    monkeypatch.setattr(service, "poll_messages", poll_messages)
    reply = await http.post(f"{GROUP}/poll", json={"member_id": "a1", "wait_ms": 60_000})
    assert (polls, reply.json()["count"]) == ([[1], [1, 2]], 1)


async def test_a_poll_of_a_member_that_holds_nothing_waits_for_something(
    http: httpx.AsyncClient, service: FakeService
) -> None:
    service.views = [view(9), view(9, news=False), view(10, 4)]
    service.deliveries = [leased(1)]
    reply = await http.post(f"{GROUP}/poll", json={"member_id": "a1", "wait_ms": 60_000})
    assert reply.json()["count"] == 1
    assert [asked.partitions for asked in service.asked("poll")] == [[4]]
    service.views = [view(10)]
    reply = await http.post(f"{GROUP}/poll", json={"member_id": "a1"})
    assert (reply.status_code, reply.json()["count"]) == (200, 0)


async def test_a_poll_that_is_fenced_hears_first_what_its_member_has_now(
    http: httpx.AsyncClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.views = [view(9, 1), view(11, 2)]

    async def poll_messages(identity: object, call: Any) -> Handed:
        if call.partitions == [1]:
            raise MemberFenced
        return Handed([leased(1)])

    monkeypatch.setattr(service, "poll_messages", poll_messages)
    reply = await http.post(f"{GROUP}/poll", json={"member_id": "a1"})
    assert reply.json()["count"] == 1
    service.views = [view(9, 1)]  # and nothing comes after it
    reply = await http.post(f"{GROUP}/poll", json={"member_id": "a1"})
    assert (reply.status_code, reply.json()["type"]) == (409, "MemberFenced")


async def test_a_poll_that_is_fenced_as_the_news_come_goes_on_with_these(
    http: httpx.AsyncClient, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One change of the metadata fences the poll and answers the heartbeat: nothing else is to be heard of."""
    service.views = [view(9, 1), view(11, 2), view(11, 2, news=False)]

    async def poll_messages(identity: object, call: Any) -> Handed:
        if call.partitions == [1]:
            raise MemberFenced
        return Handed([leased(1)])

    monkeypatch.setattr(service, "poll_messages", poll_messages)
    reply = await http.post(f"{GROUP}/poll", json={"member_id": "a1", "wait_ms": 5_000})
    assert (reply.status_code, reply.json().get("count")) == (200, 1)


async def test_a_member_is_told_that_it_is_none_only_after_the_latest_was_heard(
    http: httpx.AsyncClient, service: FakeService
) -> None:
    service.views = [MemberUnknown(), view(9, 1)]
    reply = await http.post(f"{GROUP}/poll", json={"member_id": "a1"})
    assert reply.status_code == 200
    assert [name for name, _ in service.calls] == ["heartbeat", "list_members", "heartbeat", "poll"]
    service.views = [MemberUnknown()]
    reply = await http.post(f"{GROUP}/poll", json={"member_id": "a1"})
    assert (reply.status_code, reply.json()["type"]) == (404, "MemberUnknown")


async def test_an_eviction_ends_a_poll_that_waits(http: httpx.AsyncClient, service: FakeService) -> None:
    service.views = [view(9, 1), MemberUnknown()]
    service.poll_gate = asyncio.Event()
    reply = await http.post(f"{GROUP}/poll", json={"member_id": "a1", "wait_ms": 60_000})
    assert (reply.status_code, reply.json()["type"]) == (404, "MemberUnknown")
    assert service.asked("poll cancelled") == [None]


async def test_which_assignors_there_are_only_the_brokers_say(http: httpx.AsyncClient, service: FakeService) -> None:
    for body in ({"assignor": "fair"}, {"assignor": "no name"}):
        await http.patch("/v1/groups/billing", json=body)
    assert service.asked("alter_group") == [AlterGroup("billing", "fair")]
    shapes = (await http.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("JoinRequest", "AlterGroupRequest"):
        said = shapes[name]["properties"]["assignor"]
        assert "enum" not in said and re.fullmatch(said["pattern"], "fair"), name


async def test_a_group_is_moved_by_force_while_it_has_members(http: httpx.AsyncClient, service: FakeService) -> None:
    await http.post(f"{GROUP}/seek", json={"to": "earliest", "force": True})
    await http.post(f"{GROUP}/seek", json={"to": "earliest"})
    assert [asked.force for asked in service.asked("seek")] == [True, False]
