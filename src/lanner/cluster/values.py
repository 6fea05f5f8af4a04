"""What the metadata machine speaks of: brokers, replica sets, moves, plans. Frozen values; each is also its own row.

A *broker* is one data directory: its node id is made with the directory, so a broker whose disk was wiped comes back
as another broker under the same name. A *replica* is one copy of a set on one broker, under a Raft id of its own that
is counted per set and never given twice. So nothing that comes back from the dead can vote in the place of what it was.

A *move* changes one replica set by single steps, listed in it when it is planned; a *plan* is the moves that one wish
(a drain, a rebalance) came to. The table of steps at the end says what each wish consists of.

What it remembers of staged publish (transactions and tries) stands in `staged`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

METADATA_SET: Final = 0
METADATA_VOTERS_MAX: Final = 5
ADDRESS_KINDS: Final = ("native", "http", "grpc", "peer")


class BrokerState(StrEnum):
    JOINING = "joining"  # fetches its first copy of the metadata; takes no partitions yet
    ACTIVE = "active"
    DRAINING = "draining"  # takes nothing new; what it holds is on its way to others
    REMOVED = "removed"  # kept as a name that may not come back


class Broker(msgspec.Struct, array_like=True, frozen=True):
    node_id: str
    name: str
    rack: str
    addresses: dict[str, str]
    state: BrokerState
    feature_min: int
    feature_max: int
    registered_ms: int
    successor: str = ""  # the node id under which the same name came back: this disk is gone
    leaving: bool = False  # is removed as soon as it holds nothing, not even the metadata
    removed_index: int = 0

    @property
    def lost(self) -> bool:
        return self.successor != ""


class Replica(msgspec.Struct, array_like=True, frozen=True):
    replica_id: int
    node_id: str
    voter: bool


class ReplicaSet(msgspec.Struct, array_like=True, frozen=True):
    """The copies of one log. Ids up to `founders` are the voters it was born with: an empty log starts from those."""

    set_id: int
    topic: str  # empty: the metadata itself
    partition: int
    replicas: tuple[Replica, ...]  # by replica id
    founders: int
    next_replica_id: int
    preferred: int  # the replica that should lead
    damaged: tuple[int, ...] = ()  # replicas whose copy is damaged, by the word of their brokers

    def replica(self, replica_id: int) -> Replica | None:
        for replica in self.replicas:
            if replica.replica_id == replica_id:
                return replica
        return None

    def replica_on(self, node_id: str) -> Replica | None:
        for replica in self.replicas:
            if replica.node_id == node_id:
                return replica
        return None

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(replica.node_id for replica in self.replicas)

    @property
    def voters(self) -> tuple[Replica, ...]:
        return tuple(replica for replica in self.replicas if replica.voter)

    @property
    def shown(self) -> str:
        return f"{self.topic}/{self.partition}" if self.topic else "the metadata"


class Action(StrEnum):
    """One step of a move. The first three are about its target, the next three about its source.

    The others take a move back: three about the target again, and one about a source that was to go.
    """

    ADD_LEARNER = "add_learner"
    CATCH_UP = "catch_up"
    PROMOTE = "promote"
    HAND_OVER = "hand_over"
    DEMOTE = "demote"
    REMOVE = "remove"
    BACK_HAND_OVER = "back_hand_over"
    BACK_DEMOTE = "back_demote"
    BACK_REMOVE = "back_remove"
    BACK_PROMOTE = "back_promote"


ON_SOURCE: Final = frozenset({Action.HAND_OVER, Action.DEMOTE, Action.REMOVE})
BACK_ON_TARGET: Final = frozenset({Action.BACK_HAND_OVER, Action.BACK_DEMOTE, Action.BACK_REMOVE})
TAKING_BACK: Final = BACK_ON_TARGET | {Action.BACK_PROMOTE}
GOING: Final = ON_SOURCE | BACK_ON_TARGET

Steps = tuple[Action, ...]
REPLACE: Final[Steps] = tuple(Action)[:6]
GROW: Final[Steps] = (Action.ADD_LEARNER, Action.CATCH_UP, Action.PROMOTE)
SHRINK: Final[Steps] = (Action.HAND_OVER, Action.DEMOTE, Action.REMOVE)
# Of the metadata only: every broker keeps a copy, some of them vote.
JOIN: Final[Steps] = (Action.ADD_LEARNER, Action.CATCH_UP)
RAISE: Final[Steps] = (Action.CATCH_UP, Action.PROMOTE)
RELIEVE: Final[Steps] = (Action.CATCH_UP, Action.PROMOTE, Action.HAND_OVER, Action.DEMOTE)
LOWER: Final[Steps] = (Action.HAND_OVER, Action.DEMOTE)
LEAVE: Final[Steps] = (Action.REMOVE,)


class Move(msgspec.Struct, array_like=True, frozen=True):
    move_id: int
    plan_id: int
    set_id: int
    steps: tuple[Action, ...]
    source: int  # replica id; 0: nothing leaves
    target: int  # replica id; 0: nothing comes, or it has not begun
    target_node: str  # where a new replica goes; empty: nothing new
    source_node: str = ""  # where the source is: a queue of thousands asks for it at every turn
    position: int = 0  # of the step to be done now
    started: bool = False
    failures: int = 0  # of the present step
    reason: str = ""  # of the last failure

    @property
    def action(self) -> Action:
        return self.steps[self.position]

    @property
    def replica_id(self) -> int:
        """The replica that the present step is about."""
        return self.source if self.action in ON_SOURCE or self.action is Action.BACK_PROMOTE else self.target

    @property
    def taken_back(self) -> bool:
        return self.steps[-1] in TAKING_BACK

    @property
    def steps_left(self) -> int:
        return len(self.steps) - self.position


class PlanKind(StrEnum):
    JOIN = "join"
    METADATA = "metadata"
    DRAIN = "drain"
    REMOVE = "remove"
    REBUILD = "rebuild"
    REBALANCE = "rebalance"
    MOVE = "move"
    REPLICATION = "replication"
    REPAIR = "repair"  # from feature level 2 on


class PlanState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    STALLED = "stalled"  # some of it failed and was taken back; ask again
    CANCELLED = "cancelled"


class Plan(msgspec.Struct, array_like=True, frozen=True):
    plan_id: int
    kind: PlanKind
    node_id: str  # the broker it is about; empty: none
    created_ms: int
    state: PlanState = PlanState.RUNNING
    steps_done: int = 0
    steps_total: int = 0
    moves_open: int = 0
    moves_done: int = 0
    moves_failed: int = 0
    moves_dropped: int = 0  # cancelled, or overtaken by a deleted topic
    cancelled: bool = False
    reason: str = ""
