"""Plans: which moves a wish comes to. Nothing here moves anything; it only decides what is to be moved.

Copies: when a broker comes, or comes back, replicas for whatever has too few. Drain: one replacement for each replica
that the broker holds. Rebalance: first replicas that are missing, then moves from the fullest to the emptiest broker
while they differ by two or more; each such move is one that any even distribution needs, so few are made. Rebuild: what
a wiped disk held is first taken out of its sets and then put back on the broker's new incarnation, because a dead voter
counts against every majority for as long as it is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from lanner.cluster.moving import add_move, open_plan
from lanner.cluster.placement import (
    Loads,
    choose_node,
    count_to_be,
    find_loads,
    grown_replication,
    nodes_to_be,
)
from lanner.cluster.state import State
from lanner.cluster.values import (
    GROW,
    LOWER,
    METADATA_SET,
    RELIEVE,
    REPLACE,
    SHRINK,
    Broker,
    BrokerState,
    Move,
    PlanKind,
    Replica,
    ReplicaSet,
)
from lanner.errors import ConflictError


def is_touched(moves: Iterable[Move], replica_id: int) -> bool:
    """Whether a move is about this replica, so that no other may be planned for it."""
    return any(replica_id in (move.source, move.target) for move in moves)


# ------------------------------------------------------------------ drain


def find_drain(state: State, broker: Broker, loads: Loads) -> list[tuple[int, int, str]]:
    """What must go where (set, replica, node); refuses when something of it has nowhere to go."""
    loads.pop(broker.node_id, None)
    found = []
    for set_id in sorted(state.held.get(broker.node_id, ())):
        replica_set = state.sets[set_id]
        here = replica_set.replica_on(broker.node_id)
        on_their_way = state.moves_on(set_id)
        assert here is not None, "held says so"
        if is_touched(on_their_way, here.replica_id):
            continue
        taken = nodes_to_be(replica_set, on_their_way) - {broker.node_id}
        target = choose_node(state, loads, taken)
        if target is None:
            raise ConflictError(
                f"broker {broker.name!r} cannot be drained: {replica_set.shown} has {len(replica_set.replicas)} "
                f"replicas and only {len(loads)} other brokers are active, so its replica has nowhere to go; add a "
                "broker, or lower the topic's replication first",
                topic=replica_set.topic,
                partition=replica_set.partition,
            )
        loads[target] += 1
        found.append((set_id, here.replica_id, target))
    return found


def add_drain(state: State, plan_id: int, broker: Broker) -> None:
    """Put what a drain needs into its plan: the partitions, and the broker's vote over the metadata."""
    for set_id, replica_id, target in find_drain(state, broker, find_loads(state)):
        add_move(state, plan_id, set_id, REPLACE, source=replica_id, target_node=target)
    metadata = state.sets[METADATA_SET]
    here = metadata.replica_on(broker.node_id)
    moves = state.moves_on(METADATA_SET)
    if here is None or not here.voter or is_touched(moves, here.replica_id):
        return
    candidate = find_metadata_candidate(state, metadata, moves)
    if candidate is not None:
        add_move(state, plan_id, METADATA_SET, RELIEVE, source=here.replica_id, target=candidate.replica_id)
    elif len(metadata.voters) > 1:
        add_move(state, plan_id, METADATA_SET, LOWER, source=here.replica_id)


def find_metadata_candidate(state: State, metadata: ReplicaSet, moves: Iterable[Move]) -> Replica | None:
    """The learner that should vote over the metadata next: of the rack with the fewest votes, then by node id."""
    racks: dict[str, int] = {}
    for voter in metadata.voters:
        rack = state.brokers[voter.node_id].rack
        racks[rack] = racks.get(rack, 0) + 1
    free = [
        replica
        for replica in metadata.replicas
        if not replica.voter and state.is_active(replica.node_id) and not is_touched(moves, replica.replica_id)
    ]

    def rank(replica: Replica) -> tuple[int, str]:
        return racks.get(state.brokers[replica.node_id].rack, 0), replica.node_id

    return min(free, key=rank, default=None)


def is_drained(state: State, node_id: str) -> bool:
    """Whether a broker holds nothing that anybody would miss; a copy of the metadata is missed by nobody."""
    here = state.sets[METADATA_SET].replica_on(node_id)
    return not state.held.get(node_id) and (here is None or not here.voter)


# ------------------------------------------------------------------ a wiped disk


def last_incarnation(state: State, broker: Broker) -> Broker:
    """What a wiped broker came back as in the end; removed ones are forgotten at some time, so the trail may end."""
    while (heir := state.brokers.get(broker.successor)) is not None:
        broker = heir
    return broker


def find_rebuild(state: State, broker: Broker) -> list[ReplicaSet]:
    """The sets that a wiped broker still counts in, and that can be helped: others still vote in them."""
    found = []
    for set_id in sorted(state.held.get(broker.node_id, ())):
        replica_set = state.sets[set_id]
        here = replica_set.replica_on(broker.node_id)
        assert here is not None, "held says so"
        if len(replica_set.voters) > 1 and not is_touched(state.moves_on(set_id), here.replica_id):
            found.append(replica_set)
    return found


def add_rebuild(state: State, plan_id: int, broker: Broker) -> None:
    """Take the wiped replicas out, and put new ones where the broker came back, or elsewhere when it may not."""
    loads = find_loads(state)
    heir = last_incarnation(state, broker).node_id
    for replica_set in find_rebuild(state, broker):
        here = replica_set.replica_on(broker.node_id)
        assert here is not None and here.voter, "learners of partitions are on the move, and those are left out"
        add_move(state, plan_id, replica_set.set_id, SHRINK, source=here.replica_id)
        taken = nodes_to_be(replica_set, state.moves_on(replica_set.set_id)) - {broker.node_id}
        target = choose_node(state, loads, taken, {heir}) or choose_node(state, loads, taken)
        if target is not None:
            loads[target] += 1
            add_move(state, plan_id, replica_set.set_id, GROW, target_node=target)


# ------------------------------------------------------------------ a damaged copy


def may_replace(replica_set: ReplicaSet, replica_id: int) -> bool:
    """Whether a majority of the other voters is whole: while the copy is being replaced, all hangs on them."""
    others = [voter.replica_id for voter in replica_set.voters if voter.replica_id != replica_id]
    whole = [number for number in others if number not in replica_set.damaged]
    return 2 * len(whole) > len(others)


def add_repair(state: State, replica_set: ReplicaSet, replica: Replica) -> int:
    """Take the damaged replica out, then put a new one in its place, on the same broker and under an id of its own.

    In this order, because a broker keeps one copy of a set at a time.
    """
    plan_id = open_plan(state, PlanKind.REPAIR, replica.node_id)
    add_move(state, plan_id, replica_set.set_id, SHRINK, source=replica.replica_id)
    add_move(state, plan_id, replica_set.set_id, GROW, target_node=replica.node_id)
    return plan_id


# ------------------------------------------------------------------ the right number of replicas


def add_missing(state: State, plan_id: int, set_ids: Iterable[int], replication: int) -> None:
    """More replicas for sets that have too few; as many as there are brokers for.

    Every set gets its next one before any gets another: taken set by set, the last sets would find the empty brokers
    taken by the wrong neighbours.
    """
    loads = find_loads(state)
    taken = {set_id: nodes_to_be(state.sets[set_id], state.moves_on(set_id)) for set_id in set_ids}
    missing = {set_id: replication - count_to_be(state.sets[set_id], state.moves_on(set_id)) for set_id in taken}
    for turn in range(replication):
        for set_id, nodes in taken.items():
            target = choose_node(state, loads, nodes) if turn < missing[set_id] else None
            if target is not None:
                loads[target] += 1
                nodes.add(target)
                add_move(state, plan_id, set_id, GROW, target_node=target)


def add_copies(state: State, node_id: str) -> None:
    """A broker has come, or come back: what topics lack is made, where that is possible now.

    Only then, and not whenever something lacks: a plan that failed or was cancelled is made again when somebody asks.
    """
    lacking: dict[int, list[int]] = {}
    loads = find_loads(state)
    for _, topic in sorted(state.topics.items()):
        if topic.grows and (more := grown_replication(topic, len(loads))) > topic.settings.replication:
            topic = topic._replace(settings=dataclasses.replace(topic.settings, replication=more))
            state.put_topic(topic)
        replication = topic.settings.replication
        for set_id in topic.set_ids:
            replica_set, moves = state.sets[set_id], state.moves_on(set_id)
            if count_to_be(replica_set, moves) < replication and choose_node(
                state, loads, nodes_to_be(replica_set, moves)
            ):
                lacking.setdefault(replication, []).append(set_id)
    if lacking:
        plan_id = open_plan(state, PlanKind.REPLICATION, node_id)
        for replication, set_ids in lacking.items():
            add_missing(state, plan_id, set_ids, replication)


def drop_surplus(state: State, plan_id: int, set_ids: Iterable[int], replication: int) -> None:
    """Fewer replicas for sets that have too many: the crowded rack first, then the fullest broker."""
    loads = find_loads(state)
    for set_id in set_ids:
        replica_set = state.sets[set_id]
        on_their_way = state.moves_on(set_id)
        staying = [one for one in replica_set.voters if not is_touched(on_their_way, one.replica_id)]
        surplus = count_to_be(replica_set, on_their_way) - replication
        for _ in range(min(surplus, len(staying) - 1)):
            victim = max(staying, key=lambda one: _readiness_to_go(state, loads, staying, one))
            staying.remove(victim)
            loads[victim.node_id] = loads.get(victim.node_id, 0) - 1
            add_move(state, plan_id, set_id, SHRINK, source=victim.replica_id)


def _readiness_to_go(
    state: State, loads: Loads, staying: list[Replica], replica: Replica
) -> tuple[bool, int, int, int]:
    rack = state.brokers[replica.node_id].rack
    neighbours = sum(state.brokers[one.node_id].rack == rack for one in staying)
    return not state.is_active(replica.node_id), neighbours, loads.get(replica.node_id, 0), replica.replica_id


# ------------------------------------------------------------------ rebalance


def add_rebalance(state: State, plan_id: int) -> None:
    for _, topic in sorted(state.topics.items()):
        add_missing(state, plan_id, topic.set_ids, topic.settings.replication)
    relief = _Relief(state)
    while (found := relief.find()) is not None:
        set_id, donor, receiver = found
        here = state.sets[set_id].replica_on(donor)
        assert here is not None, "a broker gives away only what it had before"
        add_move(state, plan_id, set_id, REPLACE, source=here.replica_id, target_node=receiver)


class _Relief:
    """Finds replicas of full brokers that emptier ones can take, for as long as those differ by two or more.

    What did not fit between two brokers does not fit later in the same plan, so each pair goes through its sets once.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._loads = find_loads(state)
        self._spoken_for = set(state.moves_of)
        self._nodes: dict[int, set[str]] = {}  # where the sets will be, of those that were looked at
        self._candidates: dict[tuple[str, str], Iterator[int]] = {}

    def find(self) -> tuple[int, str, str] | None:
        """The next set, from which broker and to which."""
        loads = self._loads
        donors = sorted(loads, key=lambda node_id: (-loads[node_id], node_id))
        receivers = sorted(loads, key=lambda node_id: (loads[node_id], node_id))
        for donor in donors:
            for receiver in receivers:
                if loads[donor] - loads[receiver] < 2:
                    break
                pair = (donor, receiver)
                if pair not in self._candidates:
                    self._candidates[pair] = iter(sorted(self._state.held.get(donor, ())))
                for set_id in self._candidates[pair]:
                    if set_id not in self._spoken_for and self._fits(set_id, donor, receiver):
                        return self._take(set_id, donor, receiver)
        return None

    def _take(self, set_id: int, donor: str, receiver: str) -> tuple[int, str, str]:
        self._nodes[set_id] = self._nodes_of(set_id) - {donor} | {receiver}
        self._loads[donor] -= 1
        self._loads[receiver] += 1
        return set_id, donor, receiver

    def _nodes_of(self, set_id: int) -> set[str]:
        if set_id not in self._nodes:
            self._nodes[set_id] = set(self._state.sets[set_id].nodes)
        return self._nodes[set_id]

    def _fits(self, set_id: int, donor: str, receiver: str) -> bool:
        """Whether a set may go from one broker to another: not twice on one, and over no fewer racks than now."""
        nodes = self._nodes_of(set_id)
        if receiver in nodes or donor not in nodes or set_id in self._state.held.get(receiver, ()):
            return False

        def racks(of: set[str]) -> int:
            return len({self._state.brokers[node_id].rack for node_id in of})

        return racks(nodes - {donor} | {receiver}) >= racks(nodes)


# ------------------------------------------------------------------ one by hand


def add_move_by_hand(state: State, replica_set: ReplicaSet, source: Replica, target_node: str) -> int:
    plan_id = open_plan(state, PlanKind.MOVE, target_node)
    add_move(state, plan_id, replica_set.set_id, REPLACE, source=source.replica_id, target_node=target_node)
    return plan_id


def prefer_leader(state: State, replica_set: ReplicaSet, node_id: str) -> ReplicaSet:
    """The set as it is to be led from this broker; refuses what cannot lead or is about to go."""
    replica = replica_set.replica_on(node_id)
    if replica is None or not replica.voter:
        raise ConflictError(f"broker {node_id} has no voting replica of {replica_set.shown}, so it cannot lead it")
    if state.brokers[node_id].state is BrokerState.DRAINING:
        raise ConflictError(f"broker {node_id} is being drained; undrain it before it leads anything")
    if is_touched(state.moves_on(replica_set.set_id), replica.replica_id):
        raise ConflictError(f"the replica of {replica_set.shown} on broker {node_id} is on the move; wait, or cancel")
    return replace(replica_set, preferred=replica.replica_id)
