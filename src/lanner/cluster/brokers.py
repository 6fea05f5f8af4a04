"""Brokers come, change and go, and replicas are moved by hand: the commands about them.

Each checks everything before it changes anything, because a refused command must leave the state as it was. What
follows from a change (copies of the metadata, moves that can start) is not done here but by settling.
"""

from __future__ import annotations

from msgspec.structs import replace

from lanner import features, limits
from lanner.cluster.commands import (
    CancelPlan,
    DrainBroker,
    FailStep,
    FinishStep,
    FoundCluster,
    MoveReplica,
    RaiseFeatureLevel,
    RegisterBroker,
    RemoveBroker,
    ReportDamage,
    TransferLeader,
    UndrainBroker,
    UpdateBroker,
)
from lanner.cluster.moving import fail_step, finish_step, open_plan, take_back, take_back_moves_to
from lanner.cluster.placement import find_loads, move_preference_off, prefer_other
from lanner.cluster.planning import (
    add_drain,
    add_move_by_hand,
    add_rebalance,
    add_rebuild,
    add_repair,
    find_drain,
    find_rebuild,
    is_drained,
    may_replace,
    prefer_leader,
)
from lanner.cluster.registration import (
    Registration,
    check_addresses,
    check_features,
    check_founders,
    check_rack,
    check_registration,
)
from lanner.cluster.state import State
from lanner.cluster.values import (
    METADATA_SET,
    METADATA_VOTERS_MAX,
    Broker,
    BrokerState,
    Move,
    PlanKind,
    PlanState,
    Replica,
    ReplicaSet,
)
from lanner.errors import ConflictError, NotFoundError, Overloaded
from lanner.model import check_name


def find_broker(state: State, node_id: str) -> Broker:
    broker = state.brokers.get(node_id)
    if broker is None or broker.state is BrokerState.REMOVED:
        raise NotFoundError(f"there is no broker {node_id[: limits.NAME_LENGTH_MAX]!r}", node_id=node_id)
    return broker


def find_set(state: State, set_id: int) -> ReplicaSet:
    found = state.sets.get(set_id)
    if found is None:
        raise NotFoundError(f"there is no replica set {set_id}; its topic may have been deleted", set_id=set_id)
    return found


# ------------------------------------------------------------------ coming


def found_cluster(state: State, command: FoundCluster) -> None:
    """The cluster begins: its brokers are active at once, and the first of them vote over the metadata."""
    cluster_id, founders = check_name(command.cluster_id, "cluster_id"), check_founders(command.founders)
    if state.founded:
        raise ConflictError(f"the cluster is founded already, as {state.counters.cluster_id}")
    if state.topics and len(founders) > 1:
        raise ConflictError(
            "there are topics already, so one broker has them all: found the cluster with that one, then add the others"
        )
    level = min(founder.feature_max for founder in founders)
    if not max(state.counters.feature_level, *(founder.feature_min for founder in founders)) <= level:
        raise ConflictError("the brokers have no feature level in common: upgrade the oldest of them")
    state.counters.cluster_id, state.counters.feature_level = cluster_id, level
    for founder in founders:
        state.put_broker(_admitted(state, founder, BrokerState.ACTIVE))
    replicas = tuple(
        Replica(number, founder.node_id, number <= METADATA_VOTERS_MAX)
        for number, founder in enumerate(founders, start=1)
    )
    voters = min(len(replicas), METADATA_VOTERS_MAX)
    state.put_set(ReplicaSet(METADATA_SET, "", 0, replicas, voters, len(replicas) + 1, 1))
    places = [
        (set_id, topic.name, partition)
        for topic in state.topics.values()
        for partition, set_id in enumerate(topic.set_ids)
    ]
    for set_id, name, partition in sorted(places):
        state.put_set(ReplicaSet(set_id, name, partition, (replicas[0],), 1, 2, 1))


def register_broker(state: State, command: RegisterBroker) -> Broker:
    given = check_registration(command.registration)
    if not state.founded:
        raise ConflictError("the cluster is not founded yet: found it before brokers join")
    _check_level(state, given.feature_min, given.feature_max)
    known = state.brokers.get(given.node_id)
    if known is not None:
        return _register_again(state, known, given)
    namesake = next((one for one in state.live() if one.name == given.name and not one.lost), None)
    if namesake is not None and not command.replaces:
        raise ConflictError(
            f"the name {given.name!r} belongs to broker {namesake.node_id}; choose another name, or, if this one "
            "replaces it because its disk is gone, stop that one first",
            node_id=namesake.node_id,
        )
    if len(state.live()) >= limits.BROKERS_MAX:
        raise Overloaded(f"there are {limits.BROKERS_MAX} brokers, as many as there may be; remove one first")
    broker = _admitted(state, given, BrokerState.JOINING)
    state.put_broker(broker)
    if namesake is not None:
        lost = replace(namesake, state=BrokerState.DRAINING, successor=given.node_id, leaving=True)
        state.put_broker(lost)
        _cancel_plans(state, PlanKind.DRAIN, lost.node_id)
        take_back_moves_to(state, lost.node_id)
        move_preference_off(state, lost)
    return broker


def _register_again(state: State, known: Broker, given: Registration) -> Broker:
    """A broker that restarts says what has changed about it."""
    if known.state is BrokerState.REMOVED or known.lost:
        raise ConflictError(
            f"node {known.node_id} was removed, or replaced by a broker of the same name, and may not come back: start "
            "it with an empty data directory to let it join as a new one",
            node_id=known.node_id,
        )
    if known.name != given.name:
        raise ConflictError(f"node {known.node_id} is known as {known.name!r}; it cannot be renamed to {given.name!r}")
    broker = replace(
        known,
        rack=given.rack,
        addresses=given.addresses,
        feature_min=given.feature_min,
        feature_max=given.feature_max,
    )
    state.put_broker(broker)
    return broker


def _admitted(state: State, given: Registration, how: BrokerState) -> Broker:
    return Broker(
        given.node_id,
        given.name,
        given.rack,
        given.addresses,
        how,
        given.feature_min,
        given.feature_max,
        state.counters.machine_ms,
    )


def update_broker(state: State, command: UpdateBroker) -> Broker:
    broker = find_broker(state, command.node_id)
    if command.rack is not None:
        broker = replace(broker, rack=check_rack(command.rack))
    if command.addresses is not None:
        check_addresses(command.addresses)
        broker = replace(broker, addresses=command.addresses)
    low = broker.feature_min if command.feature_min is None else command.feature_min
    high = broker.feature_max if command.feature_max is None else command.feature_max
    check_features(low, high)
    _check_level(state, low, high)
    broker = replace(broker, feature_min=low, feature_max=high)
    state.put_broker(broker)
    return broker


def _check_level(state: State, low: int, high: int) -> None:
    level = state.counters.feature_level
    if not low <= level <= high:
        raise ConflictError(
            f"the cluster is at feature level {level} and the broker supports {low} to {high}: "
            + ("upgrade the broker" if high < level else "upgrade the cluster to that level first"),
            feature_level=level,
        )


def raise_feature_level(state: State, command: RaiseFeatureLevel) -> int:
    """Never lowered: records of the new level may be in the logs."""
    present = state.counters.feature_level
    if command.level <= present:
        raise ConflictError(f"the cluster is at feature level {present}; it can only be raised", feature_level=present)
    behind = [broker.name for broker in state.live() if not broker.lost and broker.feature_max < command.level]
    if behind or (not state.founded and command.level > features.HIGHEST):
        who = f"{', '.join(sorted(behind))}" if behind else "this broker"
        raise ConflictError(
            f"feature level {command.level} is not supported by {who}: start a newer release there first",
            feature_level=present,
            behind=sorted(behind),
        )
    state.counters.feature_level = command.level
    return command.level


# ------------------------------------------------------------------ going


def drain_broker(state: State, command: DrainBroker) -> int:
    """Plan to move everything off a broker; the plan's id. Asking again takes up what was left."""
    broker = find_broker(state, command.node_id)
    if broker.state is BrokerState.JOINING:
        raise ConflictError(f"broker {broker.name!r} is still joining and holds nothing: remove it instead")
    kind = PlanKind.REBUILD if broker.lost else PlanKind.DRAIN
    for plan in state.plans.values():
        if plan.kind is kind and plan.node_id == broker.node_id and plan.state is PlanState.RUNNING:
            return plan.plan_id
    if broker.lost:
        if not find_rebuild(state, broker):
            raise ConflictError(f"nothing of what the lost broker {broker.name!r} held can be rebuilt from others")
        plan_id = open_plan(state, kind, broker.node_id)
        add_rebuild(state, plan_id, broker)
        return plan_id
    loads = find_loads(state)
    if not loads.keys() - {broker.node_id}:
        raise ConflictError(f"broker {broker.name!r} cannot be drained: no other broker is active; add one first")
    find_drain(state, broker, loads)
    drained = replace(broker, state=BrokerState.DRAINING)
    state.put_broker(drained)
    take_back_moves_to(state, broker.node_id)
    move_preference_off(state, drained)
    plan_id = open_plan(state, kind, broker.node_id)
    add_drain(state, plan_id, drained)
    return plan_id


def undrain_broker(state: State, command: UndrainBroker) -> Broker:
    broker = find_broker(state, command.node_id)
    if broker.state is not BrokerState.DRAINING or broker.lost or broker.leaving:
        raise ConflictError(f"broker {broker.name!r} is not being drained, or is on its way out for good")
    broker = replace(broker, state=BrokerState.ACTIVE)
    state.put_broker(broker)
    _cancel_plans(state, PlanKind.DRAIN, broker.node_id)
    return broker


def remove_broker(state: State, command: RemoveBroker) -> Broker:
    """Let a broker go that holds nothing; its copy of the metadata is taken back, then it is gone."""
    broker = find_broker(state, command.node_id)
    coming = any(move.target_node == broker.node_id for move in state.moves.values() if move.set_id != METADATA_SET)
    if not is_drained(state, broker.node_id) or coming:
        held = len(state.held.get(broker.node_id, ()))
        raise ConflictError(
            f"broker {broker.name!r} holds {held} replicas, or votes over the metadata: drain it first", replicas=held
        )
    if not broker.leaving:
        broker = replace(broker, state=BrokerState.DRAINING, leaving=True)
        state.put_broker(broker)
        take_back_moves_to(state, broker.node_id)
    return broker


# ------------------------------------------------------------------ replicas


def rebalance(state: State) -> int:
    if not state.active():
        raise ConflictError("no broker is active, so nothing can be moved")
    plan_id = open_plan(state, PlanKind.REBALANCE)
    add_rebalance(state, plan_id)
    return plan_id


def move_replica(state: State, command: MoveReplica) -> int:
    found = find_set(state, command.set_id)
    if found.set_id == METADATA_SET:
        raise ConflictError("every broker keeps a copy of the metadata; it cannot be moved")
    for move in state.moves_on(found.set_id):
        raise ConflictError(f"{found.shown} is on the move already, in plan {move.plan_id}; wait, or cancel that")
    source = found.replica_on(find_broker(state, command.source_node).node_id)
    if source is None:
        raise ConflictError(f"broker {command.source_node} has no replica of {found.shown}")
    target = find_broker(state, command.target_node)
    if target.state is not BrokerState.ACTIVE:
        raise ConflictError(f"broker {target.name!r} is {target.state} and takes nothing new")
    if found.replica_on(target.node_id) is not None:
        raise ConflictError(f"broker {target.name!r} has a replica of {found.shown} already")
    return add_move_by_hand(state, found, source, target.node_id)


def transfer_leader(state: State, command: TransferLeader) -> ReplicaSet:
    found = find_set(state, command.set_id)
    find_broker(state, command.node_id)
    changed = prefer_leader(state, found, command.node_id)
    state.put_set(changed)
    return changed


# ------------------------------------------------------------------ reports


def report_damage(state: State, command: ReportDamage) -> int:
    """A broker's copy of a set is damaged: noted, and replaced as soon as that is safe; the plan's id, or 0."""
    found = find_set(state, command.set_id)
    replica = found.replica(command.replica_id)
    if found.set_id == METADATA_SET or replica is None or replica.node_id != command.node_id:
        raise ConflictError(
            f"replica {command.replica_id} of {found.shown} is not on broker {command.node_id}, or cannot be replaced "
            "there",
            set_id=found.set_id,
        )
    if replica.replica_id not in found.damaged:
        found = replace(found, damaged=tuple(sorted((*found.damaged, replica.replica_id))))
        found = prefer_other(state, found, replica.replica_id, state.moves_on(found.set_id))
        state.put_set(found)
    for move in state.moves_on(found.set_id):
        return move.plan_id
    if not replica.voter or not may_replace(found, replica.replica_id) or not state.is_active(replica.node_id):
        return 0
    return add_repair(state, found, replica)


def report_step(state: State, command: FinishStep | FailStep) -> int:
    """What became of a step; the plan's id. A report that comes twice, or too late, changes nothing."""
    move = state.moves.get(command.move_id)
    if move is None:
        raise NotFoundError(f"move {command.move_id} is over", move_id=command.move_id)
    if command.position < move.position:
        return move.plan_id
    if not _stands_at(move, command):
        raise ConflictError(
            f"move {move.move_id} stands at step {move.position}, {move.action}, not at {command.position}, "
            f"{command.action}",
            move_id=move.move_id,
        )
    if isinstance(command, FinishStep):
        finish_step(state, move)
    else:
        fail_step(state, move, command.reason)
    return move.plan_id


def _stands_at(move: Move, command: FinishStep | FailStep) -> bool:
    return move.started and command.position == move.position and command.action is move.action


def cancel_plan(state: State, command: CancelPlan) -> int:
    """Stop a plan: what has not begun is dropped, what can be taken back is, and the rest comes to its end."""
    plan = state.plans.get(command.plan_id)
    if plan is None:
        raise NotFoundError(f"there is no plan {command.plan_id}", plan_id=command.plan_id)
    if plan.state is not PlanState.RUNNING:
        raise ConflictError(f"plan {plan.plan_id} is {plan.state}; there is nothing to cancel", plan_id=plan.plan_id)
    if plan.kind in (PlanKind.JOIN, PlanKind.METADATA, PlanKind.REMOVE):
        raise ConflictError(f"plan {plan.plan_id} keeps the cluster's own metadata in order and cannot be cancelled")
    if plan.kind is PlanKind.REPAIR and state.counters.feature_level >= features.REPAIRS:
        raise ConflictError(
            f"plan {plan.plan_id} replaces a damaged copy and cannot be cancelled: that copy serves nobody any more, "
            "and its broker would report it again"
        )
    if plan.kind is PlanKind.DRAIN and not plan.cancelled:
        undrain_broker(state, UndrainBroker(plan.node_id))
    else:
        _cancel(state, plan.plan_id)
    return plan.plan_id


def _cancel_plans(state: State, kind: PlanKind, node_id: str) -> None:
    for plan in list(state.plans.values()):
        if plan.kind is kind and plan.node_id == node_id and plan.state is PlanState.RUNNING:
            _cancel(state, plan.plan_id)


def _cancel(state: State, plan_id: int) -> None:
    state.put_plan(replace(state.plans[plan_id], cancelled=True))
    for move in list(state.moves.values()):
        if move.plan_id == plan_id:
            take_back(state, move)
    state.unsettled = True
