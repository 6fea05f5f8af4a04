"""The cluster behind REST: who there is, where replicas are, and wishes about both."""

from __future__ import annotations

import httpx
import pytest

from lanner.errors import NotFoundError, NotLeader, TopicNotFound
from lanner.wire.cluster import ChangeCluster, DescribePartitions
from tests.unit.api.rest.conftest import FakeService

PLAN = {
    "id": 3,
    "kind": "drain",
    "broker": "node",
    "state": "running",
    "steps_done": 1,
    "steps_total": 6,
    "moves_done": 0,
    "moves_total": 1,
    "moves_running": 1,
    "moves_failed": 0,
    "reason": "",
}
BROKER = {
    "node_id": "node",
    "host": "::1",
    "port": 7400,
    "name": "one",
    "rack": "r1",
    "state": "draining",
    "addresses": {"native": "[::1]:7400"},
    "replicas": 4,
    "leads": 2,
    "should_lead": 1,
    "metadata": "voter",
    "alive": True,
    "drain": PLAN,
    "scrub": {
        "running": True,
        "passes": 1,
        "entries": 20,
        "rows": 3,
        "read_bytes": 400,
        "damaged": 0,
        "expected_bytes": 900,
    },
}


async def test_the_cluster_is_told_with_its_brokers_and_what_moves(
    http: httpx.AsyncClient, service: FakeService
) -> None:
    service.known["orders"] = 1
    answer = (await http.get("/v1/cluster")).json()
    assert answer["cluster_id"] == "cluster" and answer["metadata_leader"] == "node"
    assert (answer["topics"], answer["partitions"], answer["replicas"], answer["replicas_missing"]) == (1, 5, 15, 1)
    assert answer["brokers"] == [BROKER]
    assert answer["plans"] == [PLAN]
    assert (await http.get("/v1/brokers")).json() == {"brokers": [BROKER]}


async def test_partitions_show_who_leads_and_who_lags(http: httpx.AsyncClient, service: FakeService) -> None:
    answer = (await http.get("/v1/partitions?topic=orders")).json()
    assert service.asked("describe_partitions") == [DescribePartitions("orders")]
    (partition,) = answer["partitions"]
    assert (partition["topic"], partition["partition"], partition["leader"]) == ("orders", 2, "node")
    leader, other = partition["replicas"]
    assert leader["leads"] and "lag" not in leader and "step" not in leader
    assert (other["broker"], other["lag"], other["step"]) == ("two", 17, "catch_up")
    assert other["stopped"] == "kind 99 is not known" and "stopped" not in leader
    await http.get("/v1/partitions")
    assert service.asked("describe_partitions") == [DescribePartitions("orders"), DescribePartitions()]
    assert (await http.get("/v1/partitions?topic=..")).status_code == 400


@pytest.mark.parametrize("action", ["drain", "undrain", "remove"])
async def test_a_wish_about_a_broker_names_it(http: httpx.AsyncClient, service: FakeService, action: str) -> None:
    answer = await http.post(f"/v1/brokers/one/{action}")
    assert answer.status_code == 200
    assert answer.json()["status"] == "accepted"
    assert ("plan" in answer.json()) == (action != "undrain")
    assert service.asked("change_cluster") == [ChangeCluster(action, "one")]
    assert (await http.post(f"/v1/brokers/no%20name/{action}")).status_code == 400


async def test_replicas_are_moved_and_leadership_is_transferred(http: httpx.AsyncClient, service: FakeService) -> None:
    moved = await http.post("/v1/partitions/orders/2/move", json={"source": "one", "target": "two"})
    assert moved.json()["plan"]["id"] == 4
    assert service.asked("change_cluster") == [ChangeCluster("move", "one", "two", "orders", 2)]
    await http.post("/v1/partitions/orders/2/transfer", json={"target": "two"})
    assert service.asked("change_cluster")[-1] == ChangeCluster("transfer", "", "two", "orders", 2)
    assert (await http.post("/v1/partitions/orders/2/move", json={"source": "one"})).status_code == 400
    assert (await http.post("/v1/cluster/rebalance")).json()["plan"]["kind"] == "move"
    assert (await http.post("/v1/cluster/upgrade")).json() == {"feature_level": 1}


async def test_while_nobody_leads_the_caller_is_told_when_to_come_back(
    http: httpx.AsyncClient, service: FakeService
) -> None:
    service.failure = NotLeader("nobody leads orders/0", leader="", address="", retry_after_ms=200)
    answer = await http.get("/topics/orders/partitions")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["type"] == "ServiceUnavailable"
    assert answer.json()["details"]["error"] == "NotLeader"


async def test_what_is_not_there_is_not_found(http: httpx.AsyncClient, service: FakeService) -> None:
    service.failure = NotFoundError("there is no broker 'x'; there are one")
    assert (await http.post("/v1/brokers/x/drain")).status_code == 404
    service.failure = TopicNotFound("no")
    assert (await http.get("/v1/partitions?topic=nope")).status_code == 404
