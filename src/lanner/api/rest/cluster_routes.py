"""The part of the route table that is about the cluster itself."""

from __future__ import annotations

from typing import Final

from lanner.api.rest import clients, cluster
from lanner.api.rest import cluster_shapes as shapes
from lanner.api.rest.operations import Operation
from lanner.errors import ConflictError, NotFoundError, NotSupported, PartitionNotFound, TopicNotFound

_BROKER: Final = "/v1/brokers/{broker}"
_PARTITION: Final = "/v1/partitions/{topic}/{partition}"
_BROKER_ERRORS: Final = (NotFoundError, ConflictError)
_PARTITION_ERRORS: Final = (TopicNotFound, PartitionNotFound, *_BROKER_ERRORS)
_TAG: Final = "cluster"

CLUSTER_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "GET",
        "/v1/cluster",
        cluster.describe_cluster,
        "The cluster: brokers, counts, and what moves",
        reply=shapes.ClusterReply,
        tag=_TAG,
    ),
    Operation("GET", "/v1/brokers", cluster.list_brokers, "Its brokers", reply=shapes.BrokersReply, tag=_TAG),
    Operation(
        "GET",
        "/v1/partitions",
        cluster.list_all_partitions,
        "Where every replica is, who leads, and who lags",
        query=shapes.PartitionsQuery,
        reply=shapes.AllPartitionsReply,
        errors=(TopicNotFound,),
        tag=_TAG,
    ),
    Operation(
        "GET",
        "/v1/clients",
        clients.list_clients,
        "Who is connected, to which broker, which groups each uses, and what it holds leased",
        query=shapes.ClientsQuery,
        reply=shapes.ClientsReply,
        errors=(NotSupported,),
        tag=_TAG,
        description="A page over all brokers; brokers that do not answer are named. gRPC does not tell when a client "
        "goes: it is listed for a minute after its last call.",
    ),
    Operation(
        "POST",
        f"{_BROKER}/drain",
        cluster.drain_broker,
        "Move everything off a broker",
        reply=shapes.ChangeReply,
        errors=_BROKER_ERRORS,
        tag=_TAG,
        description="Answered when the wish is recorded; GET /v1/cluster shows how far it is.",
    ),
    Operation(
        "POST",
        f"{_BROKER}/undrain",
        cluster.undrain_broker,
        "Let a broker take replicas again",
        reply=shapes.ChangeReply,
        errors=_BROKER_ERRORS,
        tag=_TAG,
    ),
    Operation(
        "POST",
        f"{_BROKER}/remove",
        cluster.remove_broker,
        "Take a broker out of the cluster for good",
        reply=shapes.ChangeReply,
        errors=_BROKER_ERRORS,
        tag=_TAG,
        description="It must hold nothing but the metadata: drain it first.",
    ),
    Operation(
        "POST",
        "/v1/cluster/rebalance",
        cluster.rebalance_cluster,
        "Spread replicas and leaders evenly",
        reply=shapes.ChangeReply,
        errors=(ConflictError,),
        tag=_TAG,
    ),
    Operation(
        "POST",
        "/v1/cluster/upgrade",
        cluster.upgrade_cluster,
        "Let the brokers use what their release brings",
        reply=shapes.UpgradeReply,
        errors=(ConflictError,),
        tag=_TAG,
        description="Every broker must run that release. The level never falls: older releases cannot come back then.",
    ),
    Operation(
        "POST",
        f"{_PARTITION}/move",
        cluster.move_replica,
        "Move one replica to another broker",
        body=shapes.MoveRequest,
        reply=shapes.ChangeReply,
        errors=_PARTITION_ERRORS,
        tag=_TAG,
    ),
    Operation(
        "POST",
        f"{_PARTITION}/transfer",
        cluster.transfer_leader,
        "Have another replica lead a partition",
        body=shapes.TransferRequest,
        reply=shapes.ChangeReply,
        errors=_PARTITION_ERRORS,
        tag=_TAG,
    ),
)
