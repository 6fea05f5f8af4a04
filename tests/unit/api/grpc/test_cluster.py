"""The cluster over `lanner.v1.Queue`, over a broker that is only a script."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message

from lanner.api.grpc.backing import Backing
from lanner.api.grpc.cluster import Cluster
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.errors import ValidationError
from lanner.wire.cluster import (
    BrokerState,
    ChangeCluster,
    ClusterChanged,
    ClusterDescription,
    DescribePartitions,
    PartitionReplicas,
    PartitionsDescription,
    PlanProgress,
    RaftStatus,
    RaftStatusReply,
    ReplicaState,
)
from lanner.wire.members import ClientList, ClientState, ClientUse, ListClients
from tests.unit.api.grpc.scripted import Script, ScriptedCaller

PLAN = PlanProgress(4, "drain", "n1", "running", 1, 6, 1, 3, 1, 0, "")


async def asked(script: Script, method: str, request: Message) -> Any:
    broker: Any = script
    return await getattr(Cluster(Backing(broker)), method)(request, ScriptedCaller())


async def test_the_cluster_is_described_with_what_moves() -> None:
    one = BrokerState("b1", "n1", "r", "draining", {"grpc": "h:8000"}, 5, 2, 3, "voter", True)
    script = Script(
        DescribeCluster=ClusterDescription("c", "n1", 4, 1, 3, 9, 0, [one], [PLAN], 0, 5, ["b1"]),
    )
    found = await asked(script, "describe_cluster", shapes.DescribeClusterRequest())
    assert (found.id, found.feature_level, found.feature_level_possible, list(found.behind)) == ("c", 4, 5, ["b1"])
    assert [(broker.id, broker.name, dict(broker.addresses)) for broker in found.brokers] == [
        ("n1", "b1", {"grpc": "h:8000"})
    ]
    assert [(plan.id, plan.kind, plan.broker, plan.moves_total) for plan in found.plans] == [(4, "drain", "n1", 3)]


async def test_partitions_are_described_with_their_replicas() -> None:
    replicas = [
        ReplicaState(7, "n1", "b1", "voter", True, True, 0),
        ReplicaState(8, "n2", "b2", "learner", False, False, None, "catching up", "its disk is full"),
    ]
    script = Script(DescribePartitions=PartitionsDescription([PartitionReplicas(3, "orders", 1, "n1", 2, replicas)]))
    (row,) = (await asked(script, "describe_partitions", shapes.DescribePartitionsRequest())).partitions
    assert (row.topic, row.partition, row.leader, row.replication) == ("orders", 1, "n1", 2)
    leader, other = row.replicas
    assert (leader.id, leader.broker_id, leader.broker, leader.leads, leader.HasField("lag")) == (
        7,
        "n1",
        "b1",
        True,
        True,
    )
    assert (other.role, other.HasField("lag"), other.step) == ("learner", False, "catching up")
    assert other.stopped == "its disk is full"
    await asked(script, "describe_partitions", shapes.DescribePartitionsRequest(topic="orders"))
    assert script.asked == [DescribePartitions(None), DescribePartitions("orders")]


async def test_a_log_is_described_and_what_is_not_known_here_is_left_out() -> None:
    status = {
        "state": "leader",
        "term": 3,
        "leader": 7,
        "commit_index": 12,
        "latest_configuration": {"voters": [7, 8], "learners": [9]},
        "progress": {8: {"state": "replicate", "match": 11, "next": 13}},
        "broker": "b1",
        "replicas": ["b1", "b2"],
        "of a later release": [1],
    }
    script = Script(RaftStatus=[RaftStatusReply(status), RaftStatusReply({"state": "follower"})])
    found = await asked(script, "raft_status", shapes.RaftStatusRequest(topic="orders", partition=1))
    assert (found.state, found.term, found.leader, found.commit_index, found.vote) == ("leader", 3, 7, 12, 0)
    assert (found.broker, list(found.replicas), list(found.voters), list(found.learners)) == (
        "b1",
        ["b1", "b2"],
        [7, 8],
        [9],
    )
    assert [(peer, one.match_index, one.next_index) for peer, one in found.progress.items()] == [(8, 11, 13)]
    other = await asked(script, "raft_status", shapes.RaftStatusRequest(topic="orders", broker="b2"))
    assert (other.state, len(other.progress)) == ("follower", 0)
    assert script.asked == [RaftStatus("orders", 1), RaftStatus("orders", 0, "b2")]


async def test_a_wish_is_passed_on_and_its_plan_is_told() -> None:
    script = Script(ChangeCluster=[ClusterChanged(PLAN), ClusterChanged()])
    move = shapes.ChangeClusterRequest(action="move", broker="b1", target="b2", topic="orders", partition=0)
    assert (await asked(script, "change_cluster", move)).plan.id == 4
    upgraded = await asked(script, "change_cluster", shapes.ChangeClusterRequest(action="upgrade"))
    assert not upgraded.HasField("plan")
    assert script.asked == [ChangeCluster("move", "b1", "b2", "orders", 0), ChangeCluster("upgrade")]


async def test_clients_are_listed_page_by_page() -> None:
    uses = [ClientUse("g", "orders", "m", "", 4, 900, 20), ClientUse("h", "orders", "m", "id", -1)]
    one = ClientState("n1", "b1", 17, "grpc", "10.0.0.1:99", "agent", 100, 50, uses)
    script = Script(ListClients=[ClientList([one], ("n1", 17), ["b3"]), ClientList([])])
    found = await asked(script, "list_clients", shapes.ListClientsRequest(group="g", limit=1))
    (client,) = found.clients
    assert (client.broker_id, client.broker, client.number, client.door) == ("n1", "b1", 17, "grpc")
    first, second = client.uses
    assert (first.leased, first.leased_until_ms, first.idle_ms) == (4, 900, 20)
    assert (second.member_id, second.HasField("leased")) == ("id", False)
    assert list(found.missing) == ["b3"]
    last = await asked(script, "list_clients", shapes.ListClientsRequest(after=found.next))
    assert not last.HasField("next")
    assert script.asked == [ListClients("g", None, 1), ListClients("", ("n1", 17), 100)]


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("describe_partitions", shapes.DescribePartitionsRequest(topic="a b")),
        ("raft_status", shapes.RaftStatusRequest()),
        ("raft_status", shapes.RaftStatusRequest(topic="t", partition=1 << 30)),
        ("raft_status", shapes.RaftStatusRequest(topic="t", broker="a b")),
        ("change_cluster", shapes.ChangeClusterRequest()),
        ("change_cluster", shapes.ChangeClusterRequest(action="drain", broker="a b")),
        ("change_cluster", shapes.ChangeClusterRequest(action="move", target="x" * 1_000)),
        ("change_cluster", shapes.ChangeClusterRequest(action="cancel", plan_id=1 << 63)),
        ("list_clients", shapes.ListClientsRequest(group="a b")),
        ("list_clients", shapes.ListClientsRequest(limit=1_001)),
        ("list_clients", shapes.ListClientsRequest(after=shapes.ClientPlace(number=1))),
    ],
)
async def test_what_cannot_be_meant_is_refused(method: str, request_: Message) -> None:
    script = Script()
    with pytest.raises(ValidationError):
        await asked(script, method, request_)
    assert script.asked == []
