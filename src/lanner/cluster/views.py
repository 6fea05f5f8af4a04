"""What the shell and the operators ask: what is to be done now, what a broker should hold, how far a plan is.

Everything here is read from the state and changes nothing. Who really leads and who lags is not known to this machine;
where a table shows it, it comes in from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from lanner import features, limits
from lanner.cluster.assignors import Question
from lanner.cluster.group_views import (
    Fence,
    MemberView,
    find_member,
    is_behind,
    is_owned,
    question_of,
    resolve,
    view_of,
)
from lanner.cluster.grouped import Group, MemberRow
from lanner.cluster.placement import wanted_replication
from lanner.cluster.planning import is_drained, last_incarnation
from lanner.cluster.staged import Transaction, Try
from lanner.cluster.state import State
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
from lanner.model import TopicPartitionId

_RESTORING: Final = (PlanKind.JOIN, PlanKind.METADATA, PlanKind.REBUILD, PlanKind.REMOVE)


class Step(NamedTuple):
    """One thing to be done now, by the leader of the set; then finished or failed under the same three values.

    It must be harmless when it was done before: the report of it may have been lost.
    """

    move_id: int
    position: int
    action: Action
    set_id: int
    replica_id: int  # what it is about: to be added, caught up, promoted, led away from, demoted, removed
    node_id: str
    successor: int  # a hand-over: the replica that should lead; else 0
    voter: bool  # what the replica is by the record; the set's own log may be one step ahead


class Holding(NamedTuple):
    """One replica that a broker should have, and what it must know to start it with an empty log."""

    set_id: int
    topic: str
    partition: int
    replica_id: int
    voter: bool
    founders: frozenset[int]  # the voters the set was born with


class Progress(NamedTuple):
    """How far a plan is."""

    plan_id: int
    kind: PlanKind
    node_id: str
    state: PlanState
    steps_done: int
    steps_total: int
    moves_done: int
    moves_total: int
    moves_running: int
    moves_failed: int
    reason: str


class BrokerRow(NamedTuple):
    name: str
    node_id: str
    rack: str
    state: str
    addresses: Mapping[str, str]
    replicas: int
    leads: int  # in fact, as told from outside
    should_lead: int
    metadata: str  # voter, learner, or nothing
    drain: Progress | None


class ReplicaRow(NamedTuple):
    replica_id: int
    node_id: str
    name: str
    role: str
    leads: bool
    preferred: bool
    lag: int | None  # entries behind its leader; None: nobody said
    step: str  # of a move that is under way with it
    stopped: str = ""  # why its broker does not run it; empty: it runs, or nobody said


class PartitionRow(NamedTuple):
    set_id: int
    topic: str
    partition: int
    leader: str  # node id; empty: none known
    replication: int  # as it should be
    replicas: tuple[ReplicaRow, ...]


class ClusterRow(NamedTuple):
    cluster_id: str
    feature_level: int
    feature_level_possible: int  # by what every broker says of itself
    behind: tuple[str, ...]  # the brokers that support less than others do, and keep the level down
    brokers: int
    topics: int
    partitions: int
    replicas: int
    replicas_missing: int
    plans_running: int


class Views:
    """The questions. The machine itself adds the one way to change anything."""

    def __init__(self, state: State) -> None:
        self._state = state

    # ------------------------------------------------------------------ for the shell

    def next_steps(self) -> list[Step]:
        """Everything that should be done now, oldest move first."""
        return [self._step(self._state.moves[move_id]) for move_id in sorted(self._state.started)]

    def _step(self, move: Move) -> Step:
        replica_set = self._state.sets[move.set_id]
        replica = replica_set.replica(move.replica_id)
        assert replica is not None, "a step is about a replica of its set"
        handing_over = move.action in (Action.HAND_OVER, Action.BACK_HAND_OVER)
        return Step(
            move.move_id,
            move.position,
            move.action,
            move.set_id,
            replica.replica_id,
            replica.node_id,
            replica_set.preferred if handing_over else 0,
            replica.voter,
        )

    def leaders_wanted(self) -> dict[int, Replica]:
        """The replica that should lead each set."""
        found = {}
        for set_id, replica_set in self._state.sets.items():
            replica = replica_set.replica(replica_set.preferred)
            assert replica is not None, "the preferred replica is one of the set"
            found[set_id] = replica
        return found

    def holdings(self, node_id: str) -> Iterator[Holding]:
        """The replicas that a broker should have. What else it has it may let go of when `is_gone` says so."""
        set_ids = sorted(self._state.held.get(node_id, ()))
        for set_id in [METADATA_SET, *set_ids] if METADATA_SET in self._state.sets else set_ids:
            one = self._state.sets[set_id]
            replica = one.replica_on(node_id)
            if replica is not None:
                founders = frozenset(range(1, one.founders + 1))
                yield Holding(set_id, one.topic, one.partition, replica.replica_id, replica.voter, founders)

    def routes(self, set_id: int) -> dict[int, str]:
        """Where each replica of a set is: replica id to node id."""
        found = self._state.sets.get(set_id)
        return {} if found is None else {replica.replica_id: replica.node_id for replica in found.replicas}

    def is_gone(self, set_id: int, replica_id: int) -> bool:
        """Whether a replica was there and will never be again.

        A machine that has not caught up must not take what it has not heard of for what is over: ids that it has
        not given yet are unknown, not gone.
        """
        state = self._state
        found = state.sets.get(set_id)
        if found is not None:
            return 0 < replica_id < found.next_replica_id and found.replica(replica_id) is None
        if not 0 < set_id < state.counters.next_set_id:
            return False
        return state.founded or not any(set_id in topic.set_ids for topic in state.topics.values())

    def strays(self, set_id: int, members: Iterable[int]) -> list[int]:
        """Members of a set's own log that are gone by the record: the leader of the set should remove them.

        They come about when a leader that lags behind the metadata carries out a step of a move that was taken back
        meanwhile. Their ids are never given again, so it is safe to remove them at any time.
        """
        return sorted(replica_id for replica_id in members if self.is_gone(set_id, replica_id))

    def is_drained(self, node_id: str) -> bool:
        """Whether a broker holds nothing but its copy of the metadata, so that it can be removed."""
        return METADATA_SET in self._state.sets and is_drained(self._state, node_id)

    def is_restored(self, node_id: str) -> bool:
        """Whether a broker that came, or came back with an empty disk, has all that it is to get for that.

        As long as it has not, the loss of another disk may be one too many: dead voters still count against it.
        """
        state = self._state
        for plan in state.plans.values():
            if plan.state is PlanState.RUNNING and plan.kind in _RESTORING:
                broker = state.brokers.get(plan.node_id)
                if broker is not None and last_incarnation(state, broker).node_id == node_id:
                    return False
        return True

    # ------------------------------------------------------------------ of groups

    def groups(self) -> Mapping[int, Group]:
        """Every group that has, or had, members, by number."""
        return MappingProxyType(self._state.groups.groups)

    def group(self, name: str) -> Group | None:
        return self._state.groups.by_name(name)

    def member_view(self, group: Group, member: MemberRow) -> MemberView:
        return view_of(self._state, group, member)

    def find_member(self, group: str, member_id: str) -> MemberRow:
        """The member, or an error that says what became of it."""
        return find_member(self._state.groups.by_name(group), group, member_id)

    def is_behind(self, group: str, seen: Fence) -> bool:
        """Whether this copy does not know yet what a member of the group has seen."""
        return is_behind(self._state, group, seen)

    def question_of(self, group: Group) -> Question:
        """What the group's assignor is to answer."""
        return question_of(self._state, group)

    def is_owned(self, group: str, set_id: int, idle_since_ms: int) -> bool:
        """Whether the partition of this set has an owner in the group, or had a moment ago."""
        return is_owned(self._state, group, set_id, idle_since_ms)

    @property
    def outside(self) -> Fence | None:
        """What callers stand for in groups that nobody has joined; None: there has never been a group with members."""
        counters = self._state.counters
        return (counters.next_group, 0) if counters.next_group > 1 else None

    def resolve(self, group: str, member_id: str, seen: Fence, partition_id: TopicPartitionId) -> Fence | None:
        """The fence that a call of a member, or of none, stands for; None: this copy is behind what it has seen."""
        return resolve(self._state, group, member_id, seen, partition_id)

    # ------------------------------------------------------------------ of staged publish

    @property
    def knows_stages(self) -> bool:
        """Whether every broker of the cluster knows staged publish; below that level all of it is NotSupported."""
        return self._state.counters.feature_level >= features.STAGES

    def tries(self) -> Mapping[int, Try]:
        """Every try that is not over, by token, oldest first."""
        return MappingProxyType(self._state.tries)

    def tries_on(self, set_id: int) -> Mapping[int, Try]:
        """Those that name a set."""
        return self._state.tries_on(set_id)

    def try_of(self, token: int) -> Try | None:
        """None: it is over; or, when the token is above the applied index, this copy has not heard of it yet."""
        return self._state.tries.get(token)

    def transaction(self, name: str) -> Transaction | None:
        return self._state.transactions.get(name)

    def transactions(self) -> Mapping[str, Transaction]:
        """By name, the longest unused first."""
        return MappingProxyType(self._state.transactions)

    def was_forgotten(self, name: str) -> bool:
        """Whether the name was used before, and no more is known of it."""
        return name not in self._state.transactions and name in self._state.forgotten

    @property
    def forgotten_count(self) -> int:
        return len(self._state.forgotten)

    def forgettable(self, now_ms: int) -> list[tuple[str, int]]:
        """What should be forgotten now, as (name, when it was used last): no more than one command takes."""
        state, most = self._state, limits.TRANSACTIONS_FORGOTTEN_AT_ONCE
        found: dict[str, int] = {}
        for name in state.once:
            row = state.transactions[name]
            if len(found) >= most or row.used_ms + limits.ONCE_KEPT_MS > now_ms:
                break
            if not row.open_token:
                found[name] = row.used_ms
        surplus = min(most, len(state.transactions) - limits.TRANSACTIONS_KEPT)
        names = state.once if state.forgotten.full else state.transactions
        for name in names:
            if len(found) >= surplus:
                break
            row = state.transactions[name]
            if not row.open_token:
                found[name] = row.used_ms
        return list(found.items())

    # ------------------------------------------------------------------ for the operators

    def progress(self, plan_id: int) -> Progress | None:
        plan = self._state.plans.get(plan_id)
        if plan is None:
            return None
        running = sum(move.started and move.plan_id == plan_id for move in self._state.moves.values())
        return _progress(plan, running)

    def describe_plans(self) -> list[Progress]:
        """Every plan that is remembered, newest first."""
        running: dict[int, int] = {}
        for move in self._state.moves.values():
            running[move.plan_id] = running.get(move.plan_id, 0) + move.started
        return [_progress(plan, running.get(number, 0)) for number, plan in reversed(self._state.plans.items())]

    def describe_brokers(self, leaders: Mapping[int, str] | None = None) -> list[BrokerRow]:
        """The brokers by name; `leaders`: which node leads which set, as far as the asker knows."""
        leads: dict[str, int] = {}
        for set_id, node_id in (leaders or {}).items():
            if set_id != METADATA_SET:
                leads[node_id] = leads.get(node_id, 0) + 1
        drains = {row.node_id: row for row in reversed(self.describe_plans()) if row.kind is PlanKind.DRAIN}
        live = sorted(self._state.live(), key=lambda broker: (broker.name, broker.registered_ms, broker.node_id))
        return [self._broker_row(broker, leads.get(broker.node_id, 0), drains) for broker in live]

    def _broker_row(self, broker: Broker, leads: int, drains: Mapping[str, Progress]) -> BrokerRow:
        here = self._state.sets[METADATA_SET].replica_on(broker.node_id)
        draining = broker.state is BrokerState.DRAINING
        return BrokerRow(
            broker.name,
            broker.node_id,
            broker.rack,
            "lost" if broker.lost else str(broker.state),
            broker.addresses,
            len(self._state.held.get(broker.node_id, ())),
            leads,
            self._state.led.get(broker.node_id, 0),
            _role(here),
            drains.get(broker.node_id) if draining else None,
        )

    def describe_partitions(
        self,
        topic: str | None = None,
        leaders: Mapping[int, str] | None = None,
        lags: Mapping[tuple[int, int], int] | None = None,
    ) -> list[PartitionRow]:
        """Who has, leads and lags; `leaders`: set to node, `lags`: (set, replica) to entries behind."""
        names = sorted(self._state.topics) if topic is None else [topic] if topic in self._state.topics else []
        moving = {step.set_id: step for step in self.next_steps()}
        rows = []
        for name in names:
            found = self._state.topics[name]
            wanted = wanted_replication(self._state, found)
            for set_id in found.set_ids:
                one = self._state.sets.get(set_id)
                if one is not None:
                    leader = (leaders or {}).get(set_id, "")
                    replicas = tuple(self._replica_rows(one, leader, lags or {}, moving.get(set_id)))
                    rows.append(PartitionRow(set_id, name, one.partition, leader, wanted, replicas))
        return rows

    def _replica_rows(
        self, one: ReplicaSet, leader: str, lags: Mapping[tuple[int, int], int], step: Step | None
    ) -> Iterator[ReplicaRow]:
        for replica in one.replicas:
            concerned = step is not None and replica.replica_id == step.replica_id
            yield ReplicaRow(
                replica.replica_id,
                replica.node_id,
                self._state.brokers[replica.node_id].name,
                _role(replica),
                replica.node_id == leader,
                replica.replica_id == one.preferred,
                lags.get((one.set_id, replica.replica_id)),
                str(step.action) if step is not None and concerned else "",
            )

    def describe_cluster(self) -> ClusterRow:
        state = self._state
        missing = 0
        for topic in state.topics.values():
            wanted = wanted_replication(state, topic)
            for set_id in topic.set_ids:
                voters = len(state.sets[set_id].voters) if set_id in state.sets else 1
                missing += max(0, wanted - voters)
        live = [broker for broker in state.live() if not broker.lost]
        newest = max((broker.feature_max for broker in live), default=0)
        return ClusterRow(
            state.counters.cluster_id,
            state.counters.feature_level,
            min((broker.feature_max for broker in live), default=state.counters.feature_level),
            tuple(sorted(broker.name for broker in live if broker.feature_max < newest)),
            len(live),
            len(state.topics),
            state.partition_count,
            sum(len(held) for held in state.held.values()),
            missing,
            sum(plan.state is PlanState.RUNNING for plan in state.plans.values()),
        )


def _progress(plan: Plan, running: int) -> Progress:
    total = plan.moves_open + plan.moves_done + plan.moves_failed + plan.moves_dropped
    return Progress(
        plan.plan_id,
        plan.kind,
        plan.node_id,
        plan.state,
        plan.steps_done,
        plan.steps_total,
        plan.moves_done,
        total,
        running,
        plan.moves_failed,
        plan.reason,
    )


def _role(replica: Replica | None) -> str:
    if replica is None:
        return ""
    return "voter" if replica.voter else "learner"
