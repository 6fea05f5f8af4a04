"""The metadata machine: which brokers there are, which topics, and which replica sets carry their partitions where.

It is the machine of replica set 0. It knows names, settings, places and counters; it refuses to know where a
partition's bytes are, who really leads it and what time it is. Commands are decided when they are applied, by fixed
rules over this state alone, so that every copy decides alike. What is handed out (incarnations, set ids, replica ids,
producer ids) comes from counters that only rise: a recreated topic, or a wiped broker, inherits nothing.

The shell drives it so: propose a command, and apply what is committed. Then, on whichever broker leads a set,
carry out the steps that `next_steps()` names for it and propose `encode_finish_step` or `encode_fail_step`; open
the replicas that `holdings(node_id)` lists; and hand leadership to what `leaders_wanted()` says.

It records who is a member of which group and who owns which partition (`grouping`); assignors answer who should.

It also decides what becomes of staged publishes (`transactions`): partitions act on the tries that they find here.
"""

from lanner.cluster.commands import (
    encode_abort_commit,
    encode_allocate_producers,
    encode_alter_topic,
    encode_begin_try,
    encode_cancel_plan,
    encode_change_groups,
    encode_claim_transaction,
    encode_create_topic,
    encode_delete_topic,
    encode_drain_broker,
    encode_end_tries,
    encode_fail_step,
    encode_finish_step,
    encode_forget_transactions,
    encode_found_cluster,
    encode_move_replica,
    encode_raise_feature_level,
    encode_rebalance,
    encode_register_broker,
    encode_remove_broker,
    encode_report_damage,
    encode_transfer_leader,
    encode_undrain_broker,
    encode_update_broker,
    is_known,
)
from lanner.cluster.group_changes import (
    Altered,
    Assigned,
    Change,
    Expired,
    Forced,
    Forgotten,
    Joined,
    Left,
    Moves,
    Released,
)
from lanner.cluster.grouped import Group, GroupRow, MemberRow, Rebalance, Subscription
from lanner.cluster.grouping import Admitted, Changed, GroupsChanged
from lanner.cluster.machine import Cluster, Outcome, Result
from lanner.cluster.registration import Registration
from lanner.cluster.settings import check_settings
from lanner.cluster.staged import (
    AbortReason,
    Begun,
    Claimed,
    CommitEnded,
    Ended,
    Repeated,
    Transaction,
    Try,
    TryState,
)
from lanner.cluster.state import Rows, Topic
from lanner.cluster.values import (
    METADATA_SET,
    Action,
    Broker,
    BrokerState,
    Move,
    Plan,
    PlanKind,
    PlanState,
    Replica,
    ReplicaSet,
)
from lanner.cluster.views import BrokerRow, ClusterRow, Holding, PartitionRow, Progress, ReplicaRow, Step

__all__ = [
    "METADATA_SET",
    "AbortReason",
    "Action",
    "Admitted",
    "Altered",
    "Assigned",
    "Begun",
    "Broker",
    "BrokerRow",
    "BrokerState",
    "Change",
    "Changed",
    "Claimed",
    "Cluster",
    "ClusterRow",
    "CommitEnded",
    "Ended",
    "Expired",
    "Forced",
    "Forgotten",
    "Group",
    "GroupRow",
    "GroupsChanged",
    "Holding",
    "Joined",
    "Left",
    "MemberRow",
    "Move",
    "Moves",
    "Outcome",
    "PartitionRow",
    "Plan",
    "PlanKind",
    "PlanState",
    "Progress",
    "Rebalance",
    "Registration",
    "Released",
    "Repeated",
    "Replica",
    "ReplicaRow",
    "ReplicaSet",
    "Result",
    "Rows",
    "Step",
    "Subscription",
    "Topic",
    "Transaction",
    "Try",
    "TryState",
    "check_settings",
    "encode_abort_commit",
    "encode_allocate_producers",
    "encode_alter_topic",
    "encode_begin_try",
    "encode_cancel_plan",
    "encode_change_groups",
    "encode_claim_transaction",
    "encode_create_topic",
    "encode_delete_topic",
    "encode_drain_broker",
    "encode_end_tries",
    "encode_fail_step",
    "encode_finish_step",
    "encode_forget_transactions",
    "encode_found_cluster",
    "encode_move_replica",
    "encode_raise_feature_level",
    "encode_rebalance",
    "encode_register_broker",
    "encode_remove_broker",
    "encode_report_damage",
    "encode_transfer_leader",
    "encode_undrain_broker",
    "encode_update_broker",
    "is_known",
]
