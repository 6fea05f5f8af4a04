"""Moves: how a replica set changes by single steps, each of which is a record.

A move is started when its set is free and its brokers have room for it; then its new replica gets an id that nobody
ever had, and stands in the set as a learner. From there each reported step changes the set, or only the position. The
step to be done is always in the state, so a crash at any point loses nothing: the next leader of the set is asked
for the same step, and finds it done or does it. That is why every step must be harmless when done twice.

A move can be taken back until its source has begun to go. Taking back is done by steps too, because a step may have
happened that was not reported yet: each of them removes what is there, and is content when nothing is. Where nothing
comes for a source that goes, and its broker stays, it can even get its vote back: else a set that was to have fewer
replicas, and loses the disk of another meanwhile, could neither give that one up nor the first. A damaged copy may be
unable to vote ever again: where it does not get its vote back, it goes after all.
"""

from __future__ import annotations

from msgspec.structs import replace

from lanner import features, limits
from lanner.cluster.placement import prefer_other
from lanner.cluster.state import State
from lanner.cluster.values import (
    METADATA_SET,
    TAKING_BACK,
    Action,
    BrokerState,
    Move,
    Plan,
    PlanKind,
    Replica,
    ReplicaSet,
    Steps,
)
from lanner.errors import ConflictError

_HANDING_OVER = (Action.HAND_OVER, Action.BACK_HAND_OVER)
_DEMOTING = (Action.DEMOTE, Action.BACK_DEMOTE)
_REMOVING = (Action.REMOVE, Action.BACK_REMOVE)


def open_plan(state: State, kind: PlanKind, node_id: str = "") -> int:
    counters = state.counters
    plan = Plan(counters.next_plan_id, kind, node_id, counters.machine_ms)
    counters.next_plan_id += 1
    state.put_plan(plan)
    state.unsettled = True
    return plan.plan_id


def add_move(
    state: State, plan_id: int, set_id: int, steps: Steps, *, source: int = 0, target: int = 0, target_node: str = ""
) -> None:
    counters = state.counters
    leaving = state.sets[set_id].replica(source)
    source_node = "" if leaving is None else leaving.node_id
    state.put_move(Move(counters.next_move_id, plan_id, set_id, steps, source, target, target_node, source_node))
    counters.next_move_id += 1
    plan = state.plans[plan_id]
    state.put_plan(replace(plan, steps_total=plan.steps_total + len(steps), moves_open=plan.moves_open + 1))
    state.unsettled = True


# ------------------------------------------------------------------ starting


def busy_brokers(state: State) -> dict[str, int]:
    """How many moves of partitions each broker takes part in now, as the one that gives or the one that gets."""
    busy: dict[str, int] = {}
    for move_id in state.started:
        move = state.moves[move_id]
        for node_id in (move.source_node, move.target_node) if move.set_id != METADATA_SET else ():
            busy[node_id] = busy.get(node_id, 0) + 1
    busy.pop("", None)  # moves that only add or only remove
    return busy


def start_waiting(state: State) -> None:
    """Start what can be started, oldest first: one move at a time per set, and a few per broker."""
    busy = busy_brokers(state)
    full = {node_id for node_id, count in busy.items() if count >= limits.MOVES_PER_BROKER_MAX}
    busy_sets = {state.moves[move_id].set_id for move_id in state.started}
    for move in list(state.moves.values()):
        if move.set_id in busy_sets:
            continue
        busy_sets.add(move.set_id)  # also when it must wait: the moves of one set keep their order
        if move.set_id != METADATA_SET and (move.source_node in full or move.target_node in full):
            continue
        if not _can_start(state, move):
            drop_move(state, move)
            continue
        _start(state, move)
        for node_id in (move.source_node, move.target_node) if move.set_id != METADATA_SET else ():
            busy[node_id] = busy.get(node_id, 0) + 1
            if node_id and busy[node_id] >= limits.MOVES_PER_BROKER_MAX:
                full.add(node_id)


def _can_start(state: State, move: Move) -> bool:
    """Whether a plan that was made earlier still fits: brokers and replicas may have gone meanwhile."""
    replica_set = state.sets[move.set_id]
    if move.source:
        source = replica_set.replica(move.source)
        if source is None or (Action.DEMOTE in move.steps) != source.voter:
            return False
        if source.voter and len(replica_set.voters) == 1 and Action.PROMOTE not in move.steps:
            return False
    if move.target_node:
        broker = state.brokers.get(move.target_node)
        may_come = (BrokerState.ACTIVE,) if Action.PROMOTE in move.steps else (BrokerState.ACTIVE, BrokerState.JOINING)
        return broker is not None and broker.state in may_come and replica_set.replica_on(move.target_node) is None
    if move.target:
        target = replica_set.replica(move.target)
        return target is not None and not target.voter and state.is_active(target.node_id)
    return True


def _start(state: State, move: Move) -> None:
    replica_set = state.sets[move.set_id]
    if move.target_node:
        new = Replica(replica_set.next_replica_id, move.target_node, False)
        replica_set = replace(replica_set, replicas=(*replica_set.replicas, new), next_replica_id=new.replica_id + 1)
        state.put_set(replica_set)
        move = replace(move, target=new.replica_id)
    _enter(state, replace(move, started=True))


def _enter(state: State, move: Move) -> None:
    """The move stands at its present step; before a hand-over somebody else must be the one to lead."""
    state.put_move(move)
    if move.action in _HANDING_OVER:
        before = state.sets[move.set_id]
        after = prefer_other(state, before, move.replica_id, (move,), move.source)
        if after is not before:
            state.put_set(after)


# ------------------------------------------------------------------ steps


def finish_step(state: State, move: Move) -> None:
    """The present step of a move is done."""
    _change_set(state, move)
    plan = state.plans[move.plan_id]
    plan = replace(plan, steps_done=plan.steps_done + 1)
    if move.steps_left > 1:
        state.put_plan(plan)
        _enter(state, replace(move, position=move.position + 1, failures=0, reason=""))
        return
    state.put_plan(
        replace(plan, moves_open=plan.moves_open - 1, moves_done=plan.moves_done + (0 if move.taken_back else 1))
    )
    state.drop_move(move.move_id)


def _change_set(state: State, move: Move) -> None:
    before, number = state.sets[move.set_id], move.replica_id
    after = before
    if move.action in (Action.PROMOTE, Action.BACK_PROMOTE):
        after = _with_vote(before, number, True)
        if move.action is Action.PROMOTE and move.source and before.preferred == move.source:
            after = replace(after, preferred=number)
    elif move.action in _DEMOTING:
        if before.replica(number) in before.voters and len(before.voters) == 1:
            raise ConflictError(f"replica {number} of {before.shown} is its last voter", set_id=before.set_id)
        after = _with_vote(prefer_other(state, before, number, (move,), move.source), number, False)
    elif move.action in _REMOVING:
        replicas = tuple(one for one in before.replicas if one.replica_id != number)
        after = replace(before, replicas=replicas, damaged=tuple(one for one in before.damaged if one != number))
    elif move.action is Action.CATCH_UP and move.set_id == METADATA_SET:
        _activate(state, before, number)
    if after is not before:
        state.put_set(after)


def _with_vote(replica_set: ReplicaSet, replica_id: int, voter: bool) -> ReplicaSet:
    replicas = tuple(replace(one, voter=voter) if one.replica_id == replica_id else one for one in replica_set.replicas)
    return replace(replica_set, replicas=replicas)


def _activate(state: State, metadata: ReplicaSet, replica_id: int) -> None:
    """A broker that has caught up with the metadata may be given partitions."""
    replica = metadata.replica(replica_id)
    assert replica is not None, "a started move's target is in its set"
    broker = state.brokers[replica.node_id]
    if broker.state is BrokerState.JOINING:
        state.put_broker(replace(broker, state=BrokerState.ACTIVE))


def fail_step(state: State, move: Move, reason: str) -> None:
    """The present step could not be done; too often, and the move is taken back if it still can be."""
    failed = replace(move, failures=move.failures + 1, reason=reason[: limits.REASON_LENGTH_MAX])
    state.put_move(failed)
    if failed.failures < limits.MOVE_FAILURES_MAX:
        return
    if move.action is Action.BACK_PROMOTE:
        if state.counters.feature_level >= features.REPAIRS and move.source in state.sets[move.set_id].damaged:
            _go_after_all(state, failed)
    elif not move.taken_back and take_back(state, failed, failed=True):
        plan = state.plans[move.plan_id]
        state.put_plan(replace(plan, reason=failed.reason))


# ------------------------------------------------------------------ taking back


def take_back(state: State, move: Move, *, failed: bool = False) -> bool:
    """Undo a move, or let it be where that needs no step; False: its source has begun to go, so it must finish."""
    if not move.started or move.taken_back:
        if not move.taken_back:
            drop_move(state, move, failed=failed)
        return True
    if move.action is Action.REMOVE or (move.action is Action.DEMOTE and not _may_stay(state, move)):
        return False
    born_here = (Action.BACK_REMOVE,) if Action.ADD_LEARNER in move.steps else ()
    back: Steps = ()
    if move.action is Action.DEMOTE:
        back = (Action.BACK_PROMOTE,)
    elif move.target and move.action in (Action.ADD_LEARNER, Action.CATCH_UP):
        back = born_here
    elif move.target:
        back = (Action.BACK_HAND_OVER, Action.BACK_DEMOTE, *born_here)
    if not back:
        drop_move(state, move, failed=failed)
        return True
    assert all(step in TAKING_BACK for step in back)
    plan = _counted_out(state.plans[move.plan_id], failed)
    state.put_plan(replace(plan, steps_total=plan.steps_total - move.steps_left + len(back)))
    _enter(state, replace(move, steps=move.steps[: move.position] + back, failures=0))
    state.unsettled = True
    return True


def _go_after_all(state: State, move: Move) -> None:
    """The source was to keep its vote, and cannot: take it out, as was meant at first."""
    plan = state.plans[move.plan_id]
    steps = (Action.DEMOTE, Action.REMOVE)
    counted = (
        {"moves_failed": plan.moves_failed - 1} if plan.moves_failed else {"moves_dropped": plan.moves_dropped - 1}
    )
    state.put_plan(replace(plan, steps_total=plan.steps_total - move.steps_left + len(steps), **counted))
    _enter(state, replace(move, steps=move.steps[: move.position] + steps, failures=0))


def _may_stay(state: State, move: Move) -> bool:
    """Whether the source could keep its vote: nothing has come in its place, and its broker is to keep what it has."""
    return not move.target and move.set_id != METADATA_SET and state.is_active(move.source_node)


def drop_move(state: State, move: Move, *, failed: bool = False) -> None:
    """Forget a move without any step: it has not begun, or what it was about is gone."""
    plan = state.plans[move.plan_id]
    if not move.taken_back:  # one that is being taken back was counted then
        plan = _counted_out(plan, failed)
    state.put_plan(replace(plan, steps_total=plan.steps_total - move.steps_left, moves_open=plan.moves_open - 1))
    state.drop_move(move.move_id)


def _counted_out(plan: Plan, failed: bool) -> Plan:
    if failed:
        return replace(plan, moves_failed=plan.moves_failed + 1)
    return replace(plan, moves_dropped=plan.moves_dropped + 1)


def take_back_moves_to(state: State, node_id: str) -> None:
    """Nothing more comes to this broker, as far as that can still be stopped."""
    for move in list(state.moves.values()):
        target = state.sets[move.set_id].replica(move.target)
        if (target is not None and target.node_id == node_id) or (not move.started and move.target_node == node_id):
            take_back(state, move)
