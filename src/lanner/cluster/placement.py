"""Where replicas go and who should lead: fixed rules over the state, so that every copy of it chooses alike.

The rules, in this order: never two replicas of a set on one broker; first the rack that holds the fewest replicas of
the set; then the broker with the least load; then the lowest node id. Load counts replicas, with what is on its way
in and without what is on its way out, because a plan of many moves would otherwise heap them all on one broker.
Only active brokers are given anything.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from msgspec.structs import replace

from lanner import limits
from lanner.cluster.state import State, Topic
from lanner.cluster.values import GOING, METADATA_SET, Broker, Move, Replica, ReplicaSet
from lanner.errors import ConflictError

Loads = dict[str, int]


def find_loads(state: State) -> Loads:
    """How many replicas each active broker will hold when everything planned is done."""
    loads = {broker.node_id: len(state.held.get(broker.node_id, ())) for broker in state.active()}
    for move in state.moves.values():
        if move.set_id == METADATA_SET:
            continue
        leaving = state.sets[move.set_id].replica(move.target if move.taken_back else move.source)
        if leaving is not None and leaving.node_id in loads:
            loads[leaving.node_id] -= 1
        if not move.started and move.target_node in loads:
            loads[move.target_node] += 1
    return loads


def resolve_replication(state: State, wanted: int) -> int:
    """The number of replicas for a topic that asks for so many; 0 asks for the default."""
    there_are = len(state.active()) if state.founded else 1
    if wanted == 0 and there_are:
        return min(limits.REPLICATION_DEFAULT, there_are)
    if wanted > there_are or not there_are:
        raise ConflictError(
            f"replication {wanted or limits.REPLICATION_DEFAULT} needs as many active brokers and there are "
            f"{there_are}: add brokers, or ask for less",
            field="replication",
            active_brokers=there_are,
        )
    return wanted


def wanted_replication(state: State, topic: Topic) -> int:
    """How many replicas a topic is to have, those included for which a broker is yet to come (back)."""
    if not topic.grows or not state.founded:
        return topic.settings.replication
    staying = sum(not broker.lost and not broker.leaving for broker in state.live())
    return grown_replication(topic, staying)


def grown_replication(topic: Topic, brokers: int) -> int:
    """How many replicas a topic that grows has with so many brokers. It never grows to two: those need each other, so
    that a topic of a single broker would stop with the second one."""
    enough = brokers >= limits.REPLICATION_DEFAULT
    return max(topic.settings.replication, limits.REPLICATION_DEFAULT) if enough else topic.settings.replication


def choose_node(state: State, loads: Loads, taken: Iterable[str], among: Container[str] | None = None) -> str | None:
    """The broker for one more replica of a set that has, or will have, replicas on the taken ones."""
    occupied = set(taken)
    racks: dict[str, int] = {}
    for node_id in occupied:
        rack = state.brokers[node_id].rack
        racks[rack] = racks.get(rack, 0) + 1
    best: tuple[int, int, str] | None = None
    for node_id, load in loads.items():
        if node_id in occupied or (among is not None and node_id not in among):
            continue
        found = (racks.get(state.brokers[node_id].rack, 0), load, node_id)
        if best is None or found < best:
            best = found
    return None if best is None else best[2]


def place_sets(state: State, topic: str, first_partition: int, set_ids: Iterable[int], replication: int) -> None:
    """New sets for a topic's partitions, with their replicas. There are enough brokers: that has been checked."""
    loads = find_loads(state)
    for partition, set_id in enumerate(set_ids, start=first_partition):
        nodes: list[str] = []
        for _ in range(replication):
            node_id = choose_node(state, loads, nodes)
            assert node_id is not None, "the number of brokers was checked"
            nodes.append(node_id)
            loads[node_id] += 1
        leader = min(nodes, key=lambda node_id: (state.led.get(node_id, 0), node_id))
        replicas = tuple(Replica(number, node_id, True) for number, node_id in enumerate(nodes, start=1))
        state.put_set(
            ReplicaSet(set_id, topic, partition, replicas, len(nodes), len(nodes) + 1, nodes.index(leader) + 1)
        )


# ------------------------------------------------------------------ what is on its way


def nodes_to_be(replica_set: ReplicaSet, moves: Iterable[Move]) -> set[str]:
    """The brokers that hold the set now or will: where no further replica of it may go."""
    return {*replica_set.nodes, *(move.target_node for move in moves if move.target_node)}


def count_to_be(replica_set: ReplicaSet, moves: Iterable[Move]) -> int:
    """How many replicas the set has when its moves are done."""
    count = len(replica_set.replicas)
    for move in moves:
        coming = bool(move.target_node) and not move.started
        leaving = bool(move.source) and not move.taken_back
        count += coming - leaving - (move.taken_back and bool(move.target))
    return count


# ------------------------------------------------------------------ leaders


def prefer_other(
    state: State, replica_set: ReplicaSet, replica_id: int, moves: Iterable[Move], favourite: int = 0
) -> ReplicaSet:
    """The set with somebody else preferred than this replica, as far as anybody else votes and stays."""
    if replica_set.preferred != replica_id:
        return replica_set
    going = {replica_id, *(move.replica_id for move in moves if move.started and move.action in GOING)}
    others = [replica for replica in replica_set.voters if replica.replica_id not in going]
    if not others:
        return replica_set

    def rank(replica: Replica) -> tuple[bool, bool, int, str]:
        node_id = replica.node_id
        return (
            replica.replica_id != favourite,
            not state.is_active(node_id),
            state.led.get(node_id, 0),
            node_id,
        )

    return replace(replica_set, preferred=min(others, key=rank).replica_id)


def move_preference_off(state: State, broker: Broker) -> None:
    """Nothing should be led by this broker that another one can lead."""
    for set_id in sorted(state.held.get(broker.node_id, ())):
        before = state.sets[set_id]
        here = before.replica_on(broker.node_id)
        assert here is not None, "held says so"
        after = prefer_other(state, before, here.replica_id, state.moves_on(set_id))
        if after is not before:
            state.put_set(after)


def even_leaders(state: State) -> None:
    """Spread the preferred leaders: no change is left that would bring two brokers' numbers closer."""
    led = {broker.node_id: state.led.get(broker.node_id, 0) for broker in state.active()}
    changed = True
    while changed:
        changed = False
        for set_id, replica_set in state.sets.items():
            if set_id == METADATA_SET or set_id in state.moves_of:
                continue
            leader = replica_set.replica(replica_set.preferred)
            candidates = [replica for replica in replica_set.voters if replica.node_id in led]
            if leader is None or not candidates:
                continue
            best = min(candidates, key=lambda replica: (led[replica.node_id], replica.node_id))
            if leader.node_id in led:
                if led[leader.node_id] - led[best.node_id] < 2:
                    continue
                led[leader.node_id] -= 1
            led[best.node_id] += 1
            state.put_set(replace(replica_set, preferred=best.replica_id))
            changed = True
