"""`/v1/cluster`, `/v1/brokers`, `/v1/partitions`: who there is, where replicas are, and wishes about both."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

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
from lanner.broker.desks.calls import BrokerResult, PartitionResult, PlanResult
from lanner.model import check_name


async def describe_cluster(call: Call[NoBody, NoQuery]) -> ClusterReply:
    service = call.service
    found = await service.describe_cluster(call.identity)
    return ClusterReply(
        cluster_id=found.cluster_id,
        node_id=service.node_id,
        version=software_version(),
        ready=service.ready,
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
    found = await call.service.describe_cluster(call.identity)
    return BrokersReply(brokers=[_broker(row) for row in found.brokers])


async def list_all_partitions(call: Call[NoBody, PartitionsQuery]) -> AllPartitionsReply:
    topic = None if isinstance(call.query.topic, UnsetType) else check_name(call.query.topic, "topic")
    rows = await call.service.describe_partitions(call.identity, topic)
    return AllPartitionsReply(partitions=[_partition(row) for row in rows])


async def drain_broker(call: Call[NoBody, NoQuery]) -> ChangeReply:
    return _changed(await call.service.change_cluster(call.identity, "drain", broker=call.broker))


async def undrain_broker(call: Call[NoBody, NoQuery]) -> ChangeReply:
    return _changed(await call.service.change_cluster(call.identity, "undrain", broker=call.broker))


async def remove_broker(call: Call[NoBody, NoQuery]) -> ChangeReply:
    return _changed(await call.service.change_cluster(call.identity, "remove", broker=call.broker))


async def rebalance_cluster(call: Call[NoBody, NoQuery]) -> ChangeReply:
    return _changed(await call.service.change_cluster(call.identity, "rebalance"))


async def upgrade_cluster(call: Call[NoBody, NoQuery]) -> UpgradeReply:
    await call.service.change_cluster(call.identity, "upgrade")
    return UpgradeReply(feature_level=(await call.service.describe_cluster(call.identity)).feature_level)


async def move_replica(call: Call[MoveRequest, NoQuery]) -> ChangeReply:
    source, target = check_name(call.body.source, "source"), check_name(call.body.target, "target")
    plan = await call.service.change_cluster(
        call.identity, "move", topic=call.topic, partition=call.partition, broker=source, target=target
    )
    return _changed(plan)


async def transfer_leader(call: Call[TransferRequest, NoQuery]) -> ChangeReply:
    target = check_name(call.body.target, "target")
    plan = await call.service.change_cluster(
        call.identity, "transfer", topic=call.topic, partition=call.partition, target=target
    )
    return _changed(plan)


def _changed(plan: PlanResult | None) -> ChangeReply:
    """A wish is recorded when this is sent; what it takes to fulfil it goes on behind it."""
    return ChangeReply(status="accepted", plan=UNSET if plan is None else _plan(plan))


def _plan(plan: PlanResult) -> PlanReply:
    return PlanReply(
        id=plan.plan_id,
        kind=str(plan.kind),
        broker=plan.node_id,
        state=str(plan.state),
        steps_done=plan.steps_done,
        steps_total=plan.steps_total,
        moves_done=plan.moves_done,
        moves_total=plan.moves_total,
        moves_running=plan.moves_running,
        moves_failed=plan.moves_failed,
        reason=plan.reason,
    )


def _broker(row: BrokerResult) -> BrokerReply:
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
        scrub=UNSET if row.scrub is None else ScrubReply(**row.scrub._asdict()),
    )


def _partition(row: PartitionResult) -> PartitionReplicasReply:
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
