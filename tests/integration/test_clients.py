"""Who is connected, by all three doors of a real broker: as it connects, uses groups, holds leases, and goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

import lanner.sync as lanner
from lanner.testing.process import HOST, BrokerProcess, free_port
from lanner.wire.members import ClientState
from tests.grpc_client import Service

PROTOS = Path(__file__).parents[2] / "proto"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"disk_reserve_bytes": 0, "grpc": f"{HOST}:{free_port()}", "default_partitions": 2}
    with BrokerProcess(tmp_path_factory.mktemp("clients") / "data", settings=settings) as process:
        yield process


@pytest.fixture
def queue(broker: BrokerProcess) -> Iterator[lanner.Queue]:
    with lanner.connect(broker.native, client_name="operator") as queue:
        yield queue


def until(look: Callable[[], Any]) -> Any:
    """What a look finds, once it finds something."""
    ends = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < ends, "it never came about"
        time.sleep(0.02)
    return found


def by_door(queue: lanner.Queue, door: str, group: str = "") -> list[ClientState]:
    return [one for one in queue.admin.clients(group=group).clients if one.door == door]


def test_a_native_client_is_listed_with_its_name_its_groups_and_its_leases_until_it_goes(
    broker: BrokerProcess, queue: lanner.Queue
) -> None:
    with lanner.connect(broker.native, client_name="worker-7") as worker:
        worker.publish_many("native-topic", [b"a", b"b", b"c"])
        with worker.consumer("native-topic", group="billing") as consumer:
            taken = [next(consumer) for _ in range(3)]
            (one,) = until(lambda: by_door(queue, "native", "billing"))
            assert one.client == "worker-7" and one.address.startswith(f"{HOST}:") and one.since_ms > 0
            (use,) = one.uses
            assert (use.group, use.topic) == ("billing", "native-topic") and use.leased == 3
            assert use.until_ms > time.time() * 1_000
            for message in taken:
                message.ack()
        until(lambda: by_door(queue, "native", "billing")[0].uses[0].leased == 0)
    until(lambda: not by_door(queue, "native", "billing"))
    assert [one.client for one in by_door(queue, "native")] == ["operator"]


def test_a_rest_caller_is_its_connection(broker: BrokerProcess, queue: lanner.Queue) -> None:
    queue.publish_many("rest-topic", [b"a", b"b"])
    url = f"http://{broker.host}:{broker.http_port}"
    with httpx.Client(base_url=url, trust_env=False, headers={"user-agent": "curl/8"}) as http:
        answer = http.post("/v1/topics/rest-topic/groups/web/poll", json={"max_messages": 10, "wait_ms": 10_000})
        got = len(answer.json()["messages"])
        assert got
        (one,) = until(lambda: by_door(queue, "rest", "web"))
        assert one.client == "curl/8" and [(use.group, use.leased) for use in one.uses] == [("web", got)]
        found = http.get("/v1/clients", params={"group": "web"}).json()
        assert [client["number"] for client in found["clients"]] == [one.number] and found["missing"] == []
        with httpx.Client(base_url=url, trust_env=False) as other:
            answer = other.post("/v1/topics/rest-topic/groups/web/poll", json={"max_messages": 10})
            held = {client.number: client.uses[0].leased for client in by_door(queue, "rest", "web")}
            assert held.pop(one.number) == got and [*held.values()] == [len(answer.json()["messages"])], "its own only"
    until(lambda: not by_door(queue, "rest"))


def test_a_grpc_caller_is_listed_while_it_calls(broker: BrokerProcess, queue: lanner.Queue) -> None:
    queue.publish_many("grpc-topic", [b"a"])
    with grpc.insecure_channel(broker.settings["grpc"]) as channel:
        service = Service(channel, PROTOS, "lanner/v1/queue.proto", "lanner.v1.Queue")
        got = service.ReceiveMessages(topic="grpc-topic", group="rpc", wait_ms=10_000)
        assert len(got.messages) == 1
        (one,) = until(lambda: by_door(queue, "grpc", "rpc"))
        assert one.client.startswith("grpc-python") and one.address.startswith(f"{HOST}:")
        assert [(use.group, use.leased) for use in one.uses] == [("rpc", 1)]


def test_who_was_never_greeted_is_no_client(broker: BrokerProcess, queue: lanner.Queue) -> None:
    with httpx.Client(trust_env=False) as http:
        assert http.get(f"http://{broker.native}/").status_code == 400, "HTTP, at the wrong door"
    assert [one.client for one in by_door(queue, "native")] == ["operator"]
