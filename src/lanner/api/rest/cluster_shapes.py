"""The shapes of what is said about the cluster itself."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from lanner import limits
from lanner.api.rest.shapes import Name, Request, Shape


class PlanReply(Shape, kw_only=True):
    """Moves that one wish came to, and how far they are."""

    id: int
    kind: str
    broker: Annotated[str, Meta(description="The node id of the broker it is about; empty: none.")]
    state: str
    steps_done: int
    steps_total: int
    moves_done: int
    moves_total: int
    moves_running: int
    moves_failed: int
    reason: str


class ScrubReply(Shape, kw_only=True):
    """Reading what lies on a broker's disk: of the pass that is under way; else of the latest one."""

    running: bool
    passes: Annotated[int, Meta(description="How many have ended since the broker started.")]
    entries: int
    rows: int
    read_bytes: int
    damaged: int
    expected_bytes: Annotated[int, Meta(description="About so many are there to be read, rows not counted.")]


class BrokerReply(Shape, kw_only=True):
    node_id: str
    host: Annotated[str, Meta(description="Where its native door is reached.")]
    port: int
    name: str
    rack: str
    state: str
    addresses: dict[str, str]
    replicas: int
    leads: int
    should_lead: int
    metadata: Annotated[str, Meta(description="Its part in the metadata: voter, learner, or nothing.")]
    alive: Annotated[bool, Meta(description="As the broker that answers sees it.")]
    drain: PlanReply | UnsetType = UNSET
    scrub: Annotated[ScrubReply, Meta(description="Absent when the broker did not answer.")] | UnsetType = UNSET


class BrokersReply(Shape, kw_only=True):
    brokers: list[BrokerReply]


class ClusterReply(Shape, kw_only=True):
    cluster_id: str
    node_id: Annotated[str, Meta(description="Of the broker that answers.")]
    version: str
    ready: bool
    metadata_leader: Annotated[str, Meta(description="Its node id; empty while there is none.")]
    feature_level: int
    feature_level_possible: Annotated[int, Meta(description="What every broker supports; upgrading raises it to that.")]
    behind: Annotated[list[str], Meta(description="Brokers that support less than others do.")]
    topics: int
    partitions: int
    replicas: int
    replicas_missing: int
    brokers: list[BrokerReply]
    plans: list[PlanReply]
    time_ahead_ms: Annotated[
        int, Meta(description="How far time in the answering broker's logs is ahead of its clock.")
    ]


class PartitionsQuery(Request, kw_only=True):
    topic: Name | UnsetType = UNSET


class ReplicaReply(Shape, kw_only=True):
    replica_id: int
    node_id: str
    broker: str
    role: str
    leads: bool
    preferred: bool
    lag: Annotated[int, Meta(description="Entries behind the leader; absent when nobody knows.")] | UnsetType = UNSET
    step: Annotated[str, Meta(description="Of a move that is under way with it.")] | UnsetType = UNSET
    stopped: Annotated[str, Meta(description="Why its broker does not run it.")] | UnsetType = UNSET


class PartitionReplicasReply(Shape, kw_only=True):
    topic: str
    partition: int
    leader: Annotated[str, Meta(description="A node id; empty while there is none.")]
    replication: int
    replicas: list[ReplicaReply]


class AllPartitionsReply(Shape, kw_only=True):
    partitions: list[PartitionReplicasReply]


class ClientsQuery(Request, kw_only=True):
    group: Annotated[Name, Meta(description="Only those that use this group.")] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=limits.LIST_ITEMS_MAX)] = 100
    after: (
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,200}/[0-9]{1,15}$", description="`next` of the page before.")]
        | UnsetType
    ) = UNSET


class ClientUseReply(Shape, kw_only=True):
    """One group that a connection uses."""

    group: str
    topic: Annotated[str, Meta(description="Empty: only heartbeats of a member came by this connection.")]
    member: Annotated[str, Meta(description="The name that it polls or commits under.")]
    member_id: Annotated[str, Meta(description="Empty: it has not joined the group.")]
    leased: (
        Annotated[int, Meta(description="Messages that it holds; of native clients, where this broker leads.")]
        | UnsetType
    ) = UNSET
    leased_until_ms: Annotated[int, Meta(description="When the last of these leases ends.")] | UnsetType = UNSET
    idle_ms: Annotated[int, Meta(description="How long ago it used the group last.")]


class ClientReply(Shape, kw_only=True):
    """One open connection."""

    node_id: Annotated[str, Meta(description="Of the broker that it is connected to.")]
    broker: str
    number: int
    door: Annotated[str, Meta(description="native, rest or grpc.")]
    address: str
    client: Annotated[str, Meta(description="How it calls itself; not to be trusted.")]
    since_ms: int
    age_ms: int
    uses: list[ClientUseReply]


class ClientsReply(Shape, kw_only=True):
    clients: list[ClientReply]
    next: Annotated[str, Meta(description="Where the next page begins; absent: that was all.")] | UnsetType = UNSET
    missing: Annotated[list[str], Meta(description="Brokers that did not answer: their clients are not listed.")]


class MoveRequest(Request, kw_only=True):
    """Brokers by name or node id."""

    source: Name
    target: Name


class TransferRequest(Request, kw_only=True):
    target: Annotated[Name, Meta(description="The broker that should lead, by name or node id.")]


class UpgradeReply(Shape, kw_only=True):
    feature_level: int


class ChangeReply(Shape, kw_only=True):
    status: str
    plan: PlanReply | UnsetType = UNSET
