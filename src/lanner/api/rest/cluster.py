"""`/v1/cluster`, `/v1/brokers`, `/v1/partitions`: who there is, where replicas are, and wishes about both."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType, structs

from lanner.api.rest.cluster_shapes import (
    AllPartitionsReply,
    BrokerReply,
    BrokersReply,
    ChangeReply,
    ClusterReply,
    MoveRequest,
    PartitionReplicasReply,
    PartitionsQuery,
    PlanReply,
    ReplicaReply,
    ScrubReply,
    TransferRequest,
    UpgradeReply,
)
from lanner.api.rest.operations import Call
from lanner.api.rest.shapes import NoBody, NoQuery
from lanner.api.rest.system import software_version
from lanner.model import check_name
from lanner.wire import cluster as wire


async def describe_cluster(call: Call[NoBody, NoQuery]) -> ClusterReply:
    service = call.service
    found = (await call.ask(wire.DescribeCluster())).control
    return ClusterReply(
        cluster_id=found.cluster_id,
        node_id=service.node_id,
        version=software_version(),
        ready=service.readiness.ready,
        metadata_leader=found.metadata_leader,
        feature_level=found.feature_level,
        feature_level_possible=found.feature_level_possible,
        behind=list(found.behind),
        topics=found.topics,
        partitions=found.partitions,
        replicas=found.replicas,
        replicas_missing=found.replicas_missing,
        brokers=[_broker(row) for row in found.brokers],
        plans=[_plan(plan) for plan in found.plans],
        time_ahead_ms=found.time_ahead_ms,
    )


async def list_brokers(call: Call[NoBody, NoQuery]) -> BrokersReply:
    found = (await call.ask(wire.DescribeCluster())).control
    return BrokersReply(brokers=[_broker(row) for row in found.brokers])


async def list_all_partitions(call: Call[NoBody, PartitionsQuery]) -> AllPartitionsReply:
    topic = None if isinstance(call.query.topic, UnsetType) else check_name(call.query.topic, "topic")
    rows = (await call.ask(wire.DescribePartitions(topic))).control.partitions
    return AllPartitionsReply(partitions=[_partition(row) for row in rows])


async def drain_broker(call: Call[NoBody, NoQuery]) -> ChangeReply:
    return await _change(call, wire.ChangeCluster("drain", call.broker))


async def undrain_broker(call: Call[NoBody, NoQuery]) -> ChangeReply:
    return await _change(call, wire.ChangeCluster("undrain", call.broker))


async def remove_broker(call: Call[NoBody, NoQuery]) -> ChangeReply:
    return await _change(call, wire.ChangeCluster("remove", call.broker))


async def rebalance_cluster(call: Call[NoBody, NoQuery]) -> ChangeReply:
    return await _change(call, wire.ChangeCluster("rebalance"))


async def upgrade_cluster(call: Call[NoBody, NoQuery]) -> UpgradeReply:
    await call.ask(wire.ChangeCluster("upgrade"))
    return UpgradeReply(feature_level=(await call.ask(wire.DescribeCluster())).control.feature_level)


async def move_replica(call: Call[MoveRequest, NoQuery]) -> ChangeReply:
    source, target = check_name(call.body.source, "source"), check_name(call.body.target, "target")
    return await _change(call, wire.ChangeCluster("move", source, target, call.topic, call.partition))


async def transfer_leader(call: Call[TransferRequest, NoQuery]) -> ChangeReply:
    target = check_name(call.body.target, "target")
    return await _change(call, wire.ChangeCluster("transfer", "", target, call.topic, call.partition))


async def _change(call: Call[msgspec.Struct, msgspec.Struct], wish: wire.ChangeCluster) -> ChangeReply:
    """A wish is recorded when this is sent; what it takes to fulfil it goes on behind it."""
    plan = (await call.ask(wish)).control.plan
    return ChangeReply(status="accepted", plan=UNSET if plan is None else _plan(plan))


def _plan(plan: wire.PlanProgress) -> PlanReply:
    return PlanReply(
        id=plan.plan_id,
        kind=plan.kind,
        broker=plan.node_id,
        state=plan.state,
        steps_done=plan.steps_done,
        steps_total=plan.steps_total,
        moves_done=plan.moves_done,
        moves_total=plan.moves_total,
        moves_running=plan.moves_running,
        moves_failed=plan.moves_failed,
        reason=plan.reason,
    )


def _broker(row: wire.BrokerState) -> BrokerReply:
    host, _, port = row.addresses.get("native", "").rpartition(":")
    return BrokerReply(
        node_id=row.node_id,
        host=host.strip("[]"),
        port=int(port) if port.isdigit() else 0,
        name=row.name,
        rack=row.rack,
        state=row.state,
        addresses=dict(row.addresses),
        replicas=row.replicas,
        leads=row.leads,
        should_lead=row.should_lead,
        metadata=row.metadata,
        alive=row.alive,
        drain=UNSET if row.drain is None else _plan(row.drain),
        scrub=UNSET if row.scrub is None else ScrubReply(**structs.asdict(row.scrub)),
    )


def _partition(row: wire.PartitionReplicas) -> PartitionReplicasReply:
    return PartitionReplicasReply(
        topic=row.topic,
        partition=row.partition,
        leader=row.leader,
        replication=row.replication,
        replicas=[
            ReplicaReply(
                replica_id=replica.replica_id,
                node_id=replica.node_id,
                broker=replica.name,
                role=replica.role,
                leads=replica.leads,
                preferred=replica.preferred,
                lag=UNSET if replica.lag is None else replica.lag,
                step=replica.step or UNSET,
                stopped=replica.stopped or UNSET,
            )
            for replica in row.replicas
        ],
    )
