"""Members over REST and gRPC against a real broker: polls that follow what their member holds, and who stays alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from lanner.testing.process import HOST, BrokerProcess, free_port
from tests.grpc_client import Service, error_of

PROTOS = Path(__file__).parents[2] / "proto"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"disk_reserve_bytes": 0, "grpc": f"{HOST}:{free_port()}", "default_partitions": 1}
    with BrokerProcess(tmp_path_factory.mktemp("members") / "data", settings=settings) as process:
        yield process


@pytest.fixture
def http(broker: BrokerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=broker.url, timeout=90.0, trust_env=False) as client:
        yield client


@pytest.fixture
def queue(broker: BrokerProcess) -> Iterator[Service]:
    with grpc.insecure_channel(broker.settings["grpc"]) as channel:
        yield Service(channel, PROTOS, "lanner/v1/queue.proto", "lanner.v1.Queue")


def join(http: httpx.Client, group: str, topic: str, **more: Any) -> str:
    reply = http.post(f"/v1/groups/{group}/members", json={"topics": [topic], "assignor": "sticky", **more})
    assert reply.status_code == 201, reply.text
    return str(reply.json()["member_id"])


def publish(http: httpx.Client, topic: str, *values: str, partition: int = 0) -> None:
    messages = [{"value": value, "partition": partition} for value in values]
    assert http.post(f"/v1/topics/{topic}/messages", json={"messages": messages}).status_code == 200


def poll(http: httpx.Client, topic: str, group: str, member_id: str, wait_ms: int) -> list[str]:
    body = {"member_id": member_id, "wait_ms": wait_ms, "auto_ack": True}
    reply = http.post(f"/v1/topics/{topic}/groups/{group}/poll", json=body)
    assert reply.status_code == 200, reply.text
    return [one["value"] for one in reply.json()["messages"]]


def test_a_poll_waits_for_partitions_and_goes_on_with_what_comes_later(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "followed", "settings": {"partitions": 2}})
    publish(http, "followed", "early", partition=1)
    first = join(http, "followers", "followed")
    assert poll(http, "followed", "followers", first, 30_000) == ["early"]  # partitions are assigned while it waits
    second = join(http, "followers", "followed")
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(poll, http, "followed", "followers", one, 30_000) for one in (first, second)]
        publish(http, "followed", "zero", partition=0)
        publish(http, "followed", "one", partition=1)
        assert sorted(value for one in waiting for value in one.result()) == ["one", "zero"]  # one each
        waits = pool.submit(poll, http, "followed", "followers", first, 60_000)
        assert http.delete(f"/v1/groups/followers/members/{second}").status_code == 204
        for partition in (0, 1):  # the poll that waits goes on with both, once they are its member's
            publish(http, "followed", f"late {partition}", partition=partition)
        got = waits.result()
        while len(got) < 2:
            got += poll(http, "followed", "followers", first, 30_000)
        assert sorted(got) == ["late 0", "late 1"]


def test_polls_keep_a_member_alive_and_silence_loses_it(http: httpx.Client) -> None:
    http.post("/v1/topics", json={"name": "kept", "settings": {"partitions": 1}})
    member_id = join(http, "keepers", "kept", session_ms=2_000)
    ends = time.monotonic() + 5  # more than two sessions
    while time.monotonic() < ends:
        assert poll(http, "kept", "keepers", member_id, 1_000) == []
    assert http.get("/v1/groups/keepers/members").json()["count"] == 1
    ends = time.monotonic() + 60
    while http.get("/v1/groups/keepers/members").json()["count"]:
        assert time.monotonic() < ends
        time.sleep(0.1)
    reply = http.post("/v1/topics/kept/groups/keepers/poll", json={"member_id": member_id})
    assert (reply.status_code, reply.json()["type"]) == (404, "MemberUnknown")


def test_a_subscription_is_its_members_heartbeat_while_messages_are_taken(queue: Service) -> None:
    queue.CreateTopic(topic="pushed", settings={"partitions": "1"})
    view = queue.JoinGroup(group="pushers", topics=["pushed"], assignor="sticky", session_ms=2_000)
    stream = queue.Subscribe(topic="pushed", group="pushers", member_id=view.member_id, timeout=120.0)
    got: list[bytes] = []
    arrived = threading.Semaphore(0)

    def read() -> None:
        try:
            for response in stream:
                got.extend(one.message.value for one in response.messages)
                arrived.release()
        except grpc.RpcError:
            return

    reader = threading.Thread(target=read)
    reader.start()
    ends = time.monotonic() + 5  # more than two sessions without a word of the client's own
    while time.monotonic() < ends:
        assert queue.ListMembers(group="pushers").count == 1
        time.sleep(0.2)
    queue.Publish(topic="pushed", messages=[{"value": b"one"}])
    assert arrived.acquire(timeout=60)
    assert got == [b"one"]
    stream.cancel()
    reader.join()
    ends = time.monotonic() + 60
    while queue.ListMembers(group="pushers").count:
        assert time.monotonic() < ends
        time.sleep(0.1)


def test_a_subscription_that_nobody_reads_does_not_keep_its_member(queue: Service) -> None:
    queue.CreateTopic(topic="stuffed", settings={"partitions": "1"})
    view = queue.JoinGroup(group="stuffers", topics=["stuffed"], assignor="sticky", session_ms=2_000)
    for _ in range(64):  # more than any buffer between the two takes
        queue.Publish(topic="stuffed", messages=[{"value": b"x" * (1 << 20)}])
    stream = queue.Subscribe(topic="stuffed", group="stuffers", member_id=view.member_id, timeout=120.0)
    ends = time.monotonic() + 60
    while queue.ListMembers(group="stuffers").count:
        assert time.monotonic() < ends
        time.sleep(0.1)
    with pytest.raises(grpc.RpcError) as caught:
        for _ in stream:
            pass
    assert error_of(caught.value) == ("NOT_FOUND", "MemberUnknown")


def test_a_stranger_is_told_so_by_every_call(queue: Service) -> None:
    queue.CreateTopic(topic="closed", settings={"partitions": "1"})
    queue.JoinGroup(group="closed", topics=["closed"], assignor="sticky")
    for call in (
        lambda: queue.Heartbeat(group="closed", member_id="x"),
        lambda: queue.ReceiveMessages(topic="closed", group="closed", member_id="x"),
        lambda: list(queue.Subscribe(topic="closed", group="closed", member_id="x")),
        lambda: queue.Fetch(topic="closed", group="closed", member_id="x"),
        lambda: queue.ClaimPartitions(topic="closed", group="closed", member_id="x", generation=1, partitions=[0]),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert error_of(caught.value) == ("NOT_FOUND", "MemberUnknown")
