"""The cluster, as operators see it: brokers, replicas, logs, connections, and wishes about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lanner.api.grpc.backing import Backing
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.grpc.methods import Caller, Method, unary
from lanner.api.grpc.shapes import bounded, shaped
from lanner.model import check_name
from lanner.wire.cluster import (
    ChangeCluster,
    DescribeCluster,
    DescribePartitions,
    PartitionReplicas,
    PlanProgress,
    RaftStatus,
    ReplicaState,
)
from lanner.wire.members import ClientState, ClientUse, ListClients

# What Raft says of itself is a picture, to which a later release may add: fields that are here by the same name.
_RAFT_FIGURES: Final = frozenset(shapes.RaftState.DESCRIPTOR.fields_by_name) - {"voters", "learners", "progress"}


class Cluster:
    """What operators ask about the cluster, and wish of it."""

    def __init__(self, backing: Backing) -> None:
        self._backing = backing

    def methods(self) -> Mapping[str, Method]:
        return {
            "DescribeCluster": unary(shapes.DescribeClusterRequest, self.describe_cluster),
            "DescribePartitions": unary(shapes.DescribePartitionsRequest, self.describe_partitions),
            "RaftStatus": unary(shapes.RaftStatusRequest, self.raft_status),
            "ChangeCluster": unary(shapes.ChangeClusterRequest, self.change_cluster),
            "ListClients": unary(shapes.ListClientsRequest, self.list_clients),
        }

    async def describe_cluster(self, asked: shapes.DescribeClusterRequest, caller: Caller) -> shapes.Cluster:
        found = await self._backing.ask(DescribeCluster())
        brokers = [shaped(shapes.Broker, one, id=one.node_id) for one in found.brokers]
        plans = [_plan(one) for one in found.plans]
        return shaped(shapes.Cluster, found, id=found.cluster_id, brokers=brokers, plans=plans)

    async def describe_partitions(
        self, asked: shapes.DescribePartitionsRequest, caller: Caller
    ) -> shapes.DescribePartitionsResponse:
        call = DescribePartitions(check_name(asked.topic, "topic") if asked.topic else None)
        found = await self._backing.ask(call)
        return shapes.DescribePartitionsResponse(partitions=[_partition(one) for one in found.partitions])

    async def raft_status(self, asked: shapes.RaftStatusRequest, caller: Caller) -> shapes.RaftState:
        call = RaftStatus(check_name(asked.topic, "topic"), asked.partition, _name(asked.broker, "broker"))
        return _raft((await self._backing.ask(bounded(call))).status)

    async def change_cluster(self, asked: shapes.ChangeClusterRequest, caller: Caller) -> shapes.ChangeClusterResponse:
        call = ChangeCluster(
            check_name(asked.action, "action"),
            _name(asked.broker, "broker"),
            _name(asked.target, "target"),
            _name(asked.topic, "topic"),
            asked.partition if asked.HasField("partition") else None,
            asked.plan_id,
        )
        plan = (await self._backing.ask(bounded(call))).plan
        return shapes.ChangeClusterResponse(plan=None if plan is None else _plan(plan))

    async def list_clients(self, asked: shapes.ListClientsRequest, caller: Caller) -> shapes.ListClientsResponse:
        after = None
        if asked.HasField("after"):
            after = (check_name(asked.after.broker_id, "after"), asked.after.number)
        call = ListClients(_name(asked.group, "group"), after, asked.limit or 100)
        found = await self._backing.ask(bounded(call))
        following = None if found.next is None else shapes.ClientPlace(broker_id=found.next[0], number=found.next[1])
        return shapes.ListClientsResponse(
            clients=[_client(one) for one in found.clients], next=following, missing=found.missing
        )


def _name(text: str, field: str) -> str:
    """A name that may be left out."""
    return check_name(text, field) if text else ""


def _plan(found: PlanProgress) -> shapes.Plan:
    return shaped(shapes.Plan, found, id=found.plan_id, broker=found.node_id)


def _partition(found: PartitionReplicas) -> shapes.PartitionReplicas:
    return shaped(shapes.PartitionReplicas, found, replicas=[_replica(one) for one in found.replicas])


def _replica(found: ReplicaState) -> shapes.Replica:
    return shaped(shapes.Replica, found, id=found.replica_id, broker_id=found.node_id, broker=found.name)


def _raft(status: Mapping[str, Any]) -> shapes.RaftState:
    members = status.get("latest_configuration", {})
    progress = {
        int(peer): shapes.RaftProgress(state=one["state"], match_index=one["match"], next_index=one["next"])
        for peer, one in status.get("progress", {}).items()
    }
    return shapes.RaftState(
        **{name: value for name, value in status.items() if name in _RAFT_FIGURES},
        voters=members.get("voters", ()),
        learners=members.get("learners", ()),
        progress=progress,
    )


def _client(found: ClientState) -> shapes.Client:
    return shaped(shapes.Client, found, broker_id=found.node_id, uses=[_use(one) for one in found.uses])


def _use(found: ClientUse) -> shapes.ClientUse:
    leased = None if found.leased < 0 else found.leased
    return shaped(shapes.ClientUse, found, leased=leased, leased_until_ms=found.until_ms)
