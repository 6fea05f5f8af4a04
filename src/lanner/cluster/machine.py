"""The machine itself: entries go in, one after the other; the state behind them is kept as rows.

`apply` is the only mutator. A command that cannot be carried out has an error as its result and leaves everything as it
was. Otherwise one bad entry in the log would stop the broker at every start. Only a command of a newer release raises
(UnknownRecord), before anything has changed: this machine cannot go on as the others do, so it must not go on.

What changed since the last save is known by key, so a save writes only that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from lanner import limits
from lanner.cluster import brokers, grouping, topics, transactions
from lanner.cluster.commands import (
    PRODUCERS_PER_COMMAND_MAX,
    AbortCommit,
    AllocateProducers,
    AlterTopic,
    BeginTry,
    CancelPlan,
    ClaimTransaction,
    Command,
    CreateTopic,
    DeleteTopic,
    DrainBroker,
    EndTries,
    FailStep,
    FinishStep,
    ForgetTransactions,
    FoundCluster,
    MoveReplica,
    RaiseFeatureLevel,
    Rebalance,
    RegisterBroker,
    RemoveBroker,
    ReportDamage,
    TransferLeader,
    UndrainBroker,
    UpdateBroker,
    check_time,
    decode,
)
from lanner.cluster.group_changes import ChangeGroups
from lanner.cluster.grouping import GroupsChanged
from lanner.cluster.invariants import check_state
from lanner.cluster.settling import settle
from lanner.cluster.staged import Begun, Claimed, CommitEnded, Repeated
from lanner.cluster.state import Counters, Rows, State, Topic
from lanner.cluster.values import Broker, Move, Plan, ReplicaSet
from lanner.cluster.views import Views
from lanner.errors import LannerError, UnknownRecord, ValidationError

Staged = Begun | Repeated | CommitEnded | Claimed
Made = Topic | Broker | ReplicaSet | Staged | GroupsChanged | int | str | tuple[int]
Result = Topic | Broker | Plan | ReplicaSet | Staged | GroupsChanged | int | str | LannerError | None
_KEEPING_SHAPE: Final = (BeginTry, EndTries, AbortCommit, ClaimTransaction, ForgetTransactions, ChangeGroups)


class Outcome(NamedTuple):
    """What applying an entry came to. The payloads of this machine need not stay readable."""

    result: Result
    live: bool = False
    released: tuple[()] = ()
    deliverable: bool = False


class Cluster(Views):
    """Brokers, topics and where their replicas are; counters that name new things; plans that are being carried out."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(State(rows))
        self.shape_index = self.applied_index  # up to here brokers, topics or places may have changed

    @property
    def _counters(self) -> Counters:
        return self._state.counters

    @property
    def applied_index(self) -> int:
        return self._state.counters.applied_index

    @property
    def cluster_id(self) -> str:
        """Empty until the cluster is founded: until then there is one broker, and it holds everything."""
        return self._state.counters.cluster_id

    @property
    def feature_level(self) -> int:
        return self._state.counters.feature_level

    @property
    def partition_count(self) -> int:
        return self._state.partition_count

    @property
    def topics(self) -> Mapping[str, Topic]:
        return MappingProxyType(self._state.topics)

    @property
    def brokers(self) -> Mapping[str, Broker]:
        """By node id; removed ones too."""
        return MappingProxyType(self._state.brokers)

    @property
    def sets(self) -> Mapping[int, ReplicaSet]:
        """Where every replica is. Empty until the cluster is founded."""
        return MappingProxyType(self._state.sets)

    @property
    def moves(self) -> Mapping[int, Move]:
        return MappingProxyType(self._state.moves)

    @property
    def plans(self) -> Mapping[int, Plan]:
        return MappingProxyType(self._state.plans)

    # ------------------------------------------------------------------ the only mutator

    def apply(self, index: int, payload: bytes | None) -> Outcome:
        """Carry out one committed entry; None is an entry without a command."""
        state = self._state
        if index <= state.counters.applied_index:
            raise AssertionError(f"entry {index} was applied before: {state.counters.applied_index} is the latest")
        refused: LannerError | None = None
        command: Command | None = None
        try:
            command = None if payload is None else decode(payload)
        except UnknownRecord:
            raise
        except LannerError as error:
            refused = error
        state.counters.applied_index = index
        state.touch_counters()
        if command is None:
            return Outcome(refused)
        if not isinstance(command, _KEEPING_SHAPE):
            self.shape_index = index
        try:
            self._take_time(command)
            result = self._carry_out(command)
        except LannerError as error:
            return Outcome(error)
        settle(state)
        return Outcome(self._as_it_is_now(result))

    def _take_time(self, command: Command) -> None:
        """Only for show: plans say when they were made. It moves also when the command is refused."""
        now_ms = command.created_ms if isinstance(command, CreateTopic) else getattr(command, "now_ms", 0)
        self._counters.machine_ms = max(self._counters.machine_ms, check_time(now_ms))

    def _carry_out(self, command: Command) -> Made:
        """What a command comes to; a plan's id stands in a tuple, to tell it from other numbers."""
        state = self._state
        match command:
            case CreateTopic():
                return topics.create_topic(state, command)
            case AlterTopic():
                return topics.alter_topic(state, command)
            case DeleteTopic():
                return topics.delete_topic(state, command)
            case AllocateProducers():
                return self._allocate_producers(command)
            case FoundCluster():
                brokers.found_cluster(state, command)
                return command.cluster_id
            case RegisterBroker():
                return brokers.register_broker(state, command)
            case UpdateBroker():
                return brokers.update_broker(state, command)
            case UndrainBroker():
                return brokers.undrain_broker(state, command)
            case RemoveBroker():
                return brokers.remove_broker(state, command)
            case RaiseFeatureLevel():
                return brokers.raise_feature_level(state, command)
            case TransferLeader():
                return brokers.transfer_leader(state, command)
            case BeginTry() | EndTries() | AbortCommit() | ClaimTransaction() | ForgetTransactions():
                return self._carry_out_staged(command)
            case ChangeGroups():
                return grouping.change_groups(state, command)
            case _:
                return (self._carry_out_plan(command),)

    def _carry_out_plan(
        self, command: DrainBroker | Rebalance | MoveReplica | FinishStep | FailStep | CancelPlan | ReportDamage
    ) -> int:
        state = self._state
        match command:
            case DrainBroker():
                return brokers.drain_broker(state, command)
            case Rebalance():
                return brokers.rebalance(state)
            case MoveReplica():
                return brokers.move_replica(state, command)
            case ReportDamage():
                return brokers.report_damage(state, command)
            case CancelPlan():
                return brokers.cancel_plan(state, command)
            case _:
                return brokers.report_step(state, command)

    def _carry_out_staged(
        self, command: BeginTry | EndTries | AbortCommit | ClaimTransaction | ForgetTransactions
    ) -> Staged | int:
        state = self._state
        match command:
            case BeginTry():
                return transactions.begin_try(state, command)
            case EndTries():
                return transactions.end_tries(state, command)
            case AbortCommit():
                return transactions.abort_commit(state, command)
            case ClaimTransaction():
                return transactions.claim_transaction(state, command)
            case _:
                return transactions.forget_transactions(state, command)

    def _as_it_is_now(self, result: Made) -> Result:
        """The result after what followed from the command: a plan may have begun, or be done already."""
        if isinstance(result, Broker):
            return self._state.brokers.get(result.node_id, result)
        if isinstance(result, tuple) and not isinstance(result, Topic):
            return self._state.plans.get(result[0])
        return result

    def _allocate_producers(self, command: AllocateProducers) -> int:
        counters = self._counters
        first = counters.next_producer_id
        if not 1 <= command.count <= PRODUCERS_PER_COMMAND_MAX or first + command.count > limits.OFFSET_MAX:
            raise ValidationError(f"{command.count} producer ids cannot be had", field="count")
        counters.next_producer_id = first + command.count
        return first

    def take_changed_tries(self) -> list[int] | None:
        """The tokens of tries that came, changed or went since the last call; None: look at all of them."""
        return self._state.take_changed_tries()

    def take_changed_groups(self) -> set[int]:
        """The numbers of groups that changed, or went, since the last call."""
        return self._state.groups.take_changed()

    # ------------------------------------------------------------------ saving

    def take_dirty(self) -> dict[bytes, bytes | None]:
        """The rows that changed since the last call; None: the row is gone."""
        return self._state.take_dirty()

    def all_rows(self) -> dict[bytes, bytes]:
        """The whole state, one canonical row for each thing in it."""
        return self._state.all_rows()

    def check(self) -> None:
        """Every invariant of the state."""
        check_state(self._state)
