"""What follows by itself after a command: copies of the metadata, the next moves, finished plans, brokers that go.

It runs after every command that changed brokers or moves, until nothing follows any more. Whatever it does depends on
the state alone, so it needs no records of its own; and it always runs to its end, so nothing about it is saved.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from lanner import features, limits
from lanner.cluster.moving import add_move, open_plan, start_waiting
from lanner.cluster.placement import even_leaders
from lanner.cluster.planning import (
    add_copies,
    add_drain,
    add_rebuild,
    find_metadata_candidate,
    find_rebuild,
    is_drained,
    is_touched,
    last_incarnation,
)
from lanner.cluster.state import State
from lanner.cluster.values import (
    JOIN,
    LEAVE,
    METADATA_SET,
    METADATA_VOTERS_MAX,
    RAISE,
    SHRINK,
    Action,
    Broker,
    BrokerState,
    Plan,
    PlanKind,
    PlanState,
    ReplicaSet,
)
from lanner.errors import ConflictError

_ROUNDS_MAX: Final = 16  # two or three are usual; whatever is left waits for the next command
_CHANGES_LEADERS: Final = (PlanKind.DRAIN, PlanKind.REBALANCE, PlanKind.REBUILD, PlanKind.REPLICATION)


def settle(state: State) -> None:
    rounds = 0
    while state.unsettled and rounds < _ROUNDS_MAX:
        state.unsettled = False
        rounds += 1
        if state.founded:
            _tend_brokers(state)
            _raise_voters(state)
            if state.arrived and state.counters.feature_level >= features.COPIES:
                add_copies(state, state.arrived[0])
            state.arrived.clear()
        start_waiting(state)
        for plan in [plan for plan in state.plans.values() if plan.state is PlanState.RUNNING]:
            if plan.moves_open == 0:
                _finish(state, plan)
    state.unsettled = False
    state.arrived.clear()


# ------------------------------------------------------------------ brokers


def _tend_brokers(state: State) -> None:
    """Every broker keeps a copy of the metadata; one that leaves gives it back last; a wiped one is replaced."""
    metadata = state.sets[METADATA_SET]
    moves = state.moves_on(METADATA_SET)
    joining = {move.target_node for move in moves}
    for broker in state.live():
        here = metadata.replica_on(broker.node_id)
        if broker.leaving or broker.lost:
            _let_go(state, broker, metadata)
        elif here is None and broker.node_id not in joining:
            plan_id = open_plan(state, PlanKind.JOIN, broker.node_id)
            add_move(state, plan_id, METADATA_SET, JOIN, target_node=broker.node_id)


def _let_go(state: State, broker: Broker, metadata: ReplicaSet) -> None:
    if broker.lost and last_incarnation(state, broker).state is not BrokerState.JOINING:
        _plan_rebuild(state, broker)
    moves = state.moves_on(METADATA_SET)
    here = metadata.replica_on(broker.node_id)
    holds = bool(state.held.get(broker.node_id))
    if here is None:
        coming = any(move.target_node == broker.node_id for move in state.moves.values())
        if not holds and not coming:
            _mark_removed(state, broker)
    elif (broker.lost or not holds) and not is_touched(moves, here.replica_id):
        if here.voter and len(metadata.voters) == 1:
            return
        plan_id = open_plan(state, PlanKind.REMOVE, broker.node_id)
        add_move(state, plan_id, METADATA_SET, SHRINK if here.voter else LEAVE, source=here.replica_id)


def _plan_rebuild(state: State, broker: Broker) -> None:
    """Once; what failed or was cancelled is planned again only when somebody asks."""
    earlier = [
        plan for plan in state.plans.values() if plan.kind is PlanKind.REBUILD and plan.node_id == broker.node_id
    ]
    if all(plan.state is PlanState.DONE for plan in earlier) and find_rebuild(state, broker):
        add_rebuild(state, open_plan(state, PlanKind.REBUILD, broker.node_id), broker)


def _mark_removed(state: State, broker: Broker) -> None:
    removed_index = state.counters.applied_index
    state.put_broker(replace(broker, state=BrokerState.REMOVED, removed_index=removed_index, addresses={}))
    gone = [one for one in state.brokers.values() if one.state is BrokerState.REMOVED]
    if len(gone) > limits.BROKERS_REMOVED_KEPT:
        state.drop_broker(min(gone, key=lambda one: (one.removed_index, one.node_id)).node_id)


def _raise_voters(state: State) -> None:
    """Up to five brokers vote over the metadata."""
    metadata = state.sets[METADATA_SET]
    moves = state.moves_on(METADATA_SET)
    votes = len(metadata.voters)
    for move in moves:
        left, target = move.steps[move.position :], metadata.replica(move.target)
        votes += (Action.PROMOTE in left) - (Action.DEMOTE in left)
        if Action.BACK_DEMOTE in left and target is not None and target.voter:
            votes -= 1
    while votes < METADATA_VOTERS_MAX:
        candidate = find_metadata_candidate(state, metadata, moves)
        if candidate is None:
            return
        plan_id = open_plan(state, PlanKind.METADATA, candidate.node_id)
        add_move(state, plan_id, METADATA_SET, RAISE, target=candidate.replica_id)
        moves = state.moves_on(METADATA_SET)
        votes += 1


# ------------------------------------------------------------------ plans


def _finish(state: State, plan: Plan) -> None:
    """A plan has no moves left: it is over, unless new work has come up for what it wanted."""
    if not plan.cancelled and not plan.moves_failed and _extend(state, plan):
        return
    plan = state.plans[plan.plan_id]
    outcome, reason = PlanState.DONE, plan.reason
    if plan.cancelled:
        outcome = PlanState.CANCELLED
    elif plan.moves_failed:
        outcome = PlanState.STALLED
    elif plan.kind is PlanKind.DRAIN and not is_drained(state, plan.node_id):
        outcome, reason = PlanState.STALLED, reason or "what the broker still holds has nowhere to go"
    state.put_plan(replace(plan, state=outcome, reason=reason))
    if plan.kind in _CHANGES_LEADERS:
        even_leaders(state)
    finished = [number for number, one in state.plans.items() if one.state is not PlanState.RUNNING]
    for number in finished[: -limits.PLANS_FINISHED_KEPT]:
        state.drop_plan(number)


def _extend(state: State, plan: Plan) -> bool:
    """More moves for a drain or a rebuild that is not at its end; whether there were any."""
    broker = state.brokers.get(plan.node_id)
    if broker is None or broker.state is not BrokerState.DRAINING:
        return False
    if plan.kind is PlanKind.REBUILD:
        add_rebuild(state, plan.plan_id, broker)
    elif plan.kind is PlanKind.DRAIN:
        try:
            add_drain(state, plan.plan_id, broker)
        except ConflictError as error:
            state.put_plan(replace(state.plans[plan.plan_id], reason=error.message))
    return state.plans[plan.plan_id].moves_open > 0
