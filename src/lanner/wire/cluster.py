"""Control parts about the cluster itself, for operators and their tools: brokers, where replicas are, what moves."""

from __future__ import annotations

from typing import Any

from msgspec import field

from lanner.wire.messages import Call, Control, Name, Number, PartitionId


class PlanProgress(Control):
    """How far the moves that one wish came to are."""

    plan_id: int
    kind: str
    node_id: str
    state: str
    steps_done: int
    steps_total: int
    moves_done: int
    moves_total: int
    moves_running: int
    moves_failed: int
    reason: str


class ScrubProgress(Control):
    """Of the pass that is under way; else of the latest one."""

    running: bool
    passes: Number  # how many have ended since the broker started
    entries: Number
    rows: Number
    read_bytes: Number
    damaged: Number
    expected_bytes: Number = 0  # about so many are there to be read when the pass begins, rows not counted


class DescribeCluster(Call["ClusterDescription"]):
    """The brokers of the cluster, how it stands, and what moves."""


class BrokerState(Control):
    name: str
    node_id: str
    rack: str
    state: str
    addresses: dict[str, str]
    replicas: int
    leads: int
    should_lead: int
    metadata: str  # voter, learner, or nothing
    alive: bool  # as the broker that answers sees it
    drain: PlanProgress | None = None
    scrub: ScrubProgress | None = None  # None: it was not asked, or did not answer


class ClusterDescription(Control):
    cluster_id: str
    metadata_leader: str  # node id; empty: none known
    feature_level: int
    topics: int
    partitions: int
    replicas: int
    replicas_missing: int
    brokers: list[BrokerState]
    plans: list[PlanProgress] = field(default_factory=list)
    time_ahead_ms: int = 0  # how far machine time is ahead of the wall clock of the broker that answers
    feature_level_possible: int = 0  # 0: a broker of 0.1.0 answers, and does not say
    behind: list[str] = field(default_factory=list)  # brokers that support less than others do


class DescribePartitions(Call["PartitionsDescription"]):
    topic: Name | None = None  # None: of every topic


class ReplicaState(Control):
    replica_id: int
    node_id: str
    name: str
    role: str
    leads: bool
    preferred: bool
    lag: int | None  # entries behind the leader; None: not known
    step: str = ""  # of a move that is under way with it
    stopped: str = ""  # why its broker does not run it; empty: it runs, or its broker did not answer


class PartitionReplicas(Control):
    set_id: int
    topic: str
    partition: int
    leader: str  # node id; empty while there is none
    replication: int
    replicas: list[ReplicaState]


class PartitionsDescription(Control):
    partitions: list[PartitionReplicas]


class ChangeCluster(Call["ClusterChanged"]):
    """drain, undrain, remove (broker); rebalance; move (topic, partition, broker → target); transfer (topic, partition,
    target); cancel (plan_id); upgrade, which raises the feature level. Brokers are given by name or node id."""

    action: Name
    broker: Name = ""
    target: Name = ""
    topic: Name = ""
    partition: PartitionId | None = None
    plan_id: Number = 0


class ClusterChanged(Control):
    plan: PlanProgress | None = None


class RaftStatus(Call["RaftStatusReply"]):
    topic: Name
    partition: PartitionId
    node_id: Name = ""  # of this broker's replica; empty: of the leader's


class RaftStatusReply(Control):
    status: dict[str, Any]


class Scrub(Call["ScrubProgress"]):
    """Asked of one broker, about what lies on its own disk. A pass that is under way is not begun again."""

    start: bool = False  # False: only tell how far it is
