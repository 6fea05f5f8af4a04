"""What must hold of the state after every entry. For tests and the simulator, never on the way of a command."""

from __future__ import annotations

from lanner import features, limits
from lanner.cluster.grouped import NOBODY, Group
from lanner.cluster.moving import busy_brokers
from lanner.cluster.staged import HASH_BYTES, Transaction, Try, check_commit_id
from lanner.cluster.state import State
from lanner.cluster.values import (
    METADATA_SET,
    METADATA_VOTERS_MAX,
    BrokerState,
    PlanState,
    ReplicaSet,
)
from lanner.model import check_name


def check_state(state: State) -> None:
    _check_topics(state)
    _check_brokers(state)
    _check_sets(state)
    _check_moves(state)
    _check_plans(state)
    _check_transactions(state)
    _check_tries(state)
    _check_forgotten(state)
    _check_groups(state)
    assert not state.unsettled and not state.arrived, "a command left something undone"


def _check_topics(state: State) -> None:
    counters, found = state.counters, state.topics
    set_ids = [set_id for topic in found.values() for set_id in topic.set_ids]
    incarnations = [topic.incarnation for topic in found.values()]
    assert len(set(set_ids)) == len(set_ids) == state.partition_count <= limits.PARTITIONS_TOTAL_MAX
    assert all(0 < set_id < counters.next_set_id for set_id in set_ids)
    assert len(set(incarnations)) == len(incarnations) <= limits.TOPICS_MAX
    assert all(0 < incarnation < counters.next_incarnation for incarnation in incarnations)
    for name, topic in found.items():
        assert name == topic.name == check_name(name)
        assert len(topic.set_ids) == topic.settings.partitions
        assert not topic.grows or counters.feature_level >= features.COPIES, "older brokers would not let it grow"
    if not state.founded:
        assert not state.sets and not state.brokers and not state.moves
        return
    assert sorted(state.sets) == sorted([METADATA_SET, *set_ids]), "each partition has its set, and no set is left over"
    for topic in found.values():
        for partition, set_id in enumerate(topic.set_ids):
            one = state.sets[set_id]
            assert (one.set_id, one.topic, one.partition) == (set_id, topic.name, partition)


def _check_brokers(state: State) -> None:
    live = state.live()
    names = [broker.name for broker in live if not broker.lost]
    assert len(set(names)) == len(names) <= limits.BROKERS_MAX, "one broker a name"
    assert len(state.brokers) - len(live) <= limits.BROKERS_REMOVED_KEPT
    for node_id, broker in state.brokers.items():
        assert node_id == broker.node_id == check_name(node_id)
        if not broker.lost and broker.state is not BrokerState.REMOVED:
            assert broker.feature_min <= state.counters.feature_level <= broker.feature_max
        if broker.lost or broker.leaving:
            assert broker.state in (BrokerState.DRAINING, BrokerState.REMOVED)
        if broker.state is BrokerState.JOINING:
            assert not state.held.get(node_id), "a broker gets partitions when it has joined"


def _check_sets(state: State) -> None:
    held: dict[str, set[int]] = {}
    led: dict[str, int] = {}
    for set_id, one in state.sets.items():
        _check_set(state, one)
        for replica in one.replicas if set_id != METADATA_SET else ():
            held.setdefault(replica.node_id, set()).add(set_id)
            led[replica.node_id] = led.get(replica.node_id, 0) + (replica.replica_id == one.preferred)
    assert held == {node_id: sets for node_id, sets in state.held.items() if sets}
    assert {node: n for node, n in led.items() if n} == {node: n for node, n in state.led.items() if n}


def _check_set(state: State, one: ReplicaSet) -> None:
    numbers = [replica.replica_id for replica in one.replicas]
    assert numbers == sorted(set(numbers)), f"{one.shown}: a replica id stands for one replica"
    assert all(0 < number < one.next_replica_id for number in numbers)
    assert 0 < one.founders < one.next_replica_id
    assert len(set(one.nodes)) == len(one.nodes), f"{one.shown}: two replicas on one broker"
    assert one.voters, f"{one.shown}: nobody votes"
    assert one.preferred in [voter.replica_id for voter in one.voters], f"{one.shown}: a leader that cannot lead"
    for node_id in one.nodes:
        assert state.brokers[node_id].state is not BrokerState.REMOVED, f"{one.shown}: a replica on a removed broker"
    if one.set_id == METADATA_SET:
        assert len(one.voters) <= METADATA_VOTERS_MAX + 1, "one more while a vote goes from one broker to another"
    assert set(one.damaged) <= set(numbers), f"{one.shown}: a damaged replica that is not there"
    learners = {replica.replica_id for replica in one.replicas if not replica.voter}
    if one.set_id != METADATA_SET:
        on_the_move = {
            number for move in state.moves_on(one.set_id) if move.started for number in (move.source, move.target)
        }
        assert learners <= on_the_move, f"{one.shown}: a learner that nobody will promote or remove"


def _check_moves(state: State) -> None:
    listed = [(set_id, move) for set_id, moves in state.moves_of.items() for move in moves.values()]
    assert sorted(move.move_id for _, move in listed) == sorted(state.moves)
    assert all(state.moves[move.move_id] is move and move.set_id == set_id for set_id, move in listed)
    started = [move for move in state.moves.values() if move.started]
    assert {move.move_id for move in started} == state.started
    assert len({move.set_id for move in started}) == len(started), "one move at a time per set"
    for number, move in state.moves.items():
        assert 0 < number == move.move_id < state.counters.next_move_id
        assert 0 <= move.position < len(move.steps)
        assert state.plans[move.plan_id].state is PlanState.RUNNING
        one = state.sets[move.set_id]
        if not move.started:
            assert move.position == 0 and not move.taken_back
            continue
        assert one.replica(move.replica_id) is not None, "a step is about a replica that is there"
        if move.target:
            assert one.replica(move.target) is not None
        leaving = one.replica(move.source)
        assert move.source == 0 or (leaving is not None and leaving.node_id == move.source_node)
    assert all(count <= limits.MOVES_PER_BROKER_MAX for count in busy_brokers(state).values())


def _check_plans(state: State) -> None:
    finished = 0
    for number, plan in state.plans.items():
        assert 0 < number == plan.plan_id < state.counters.next_plan_id
        moves = [move for move in state.moves.values() if move.plan_id == number]
        assert plan.moves_open == len(moves)
        assert plan.steps_done + sum(move.steps_left for move in moves) == plan.steps_total
        if plan.state is not PlanState.RUNNING:
            finished += 1
            assert not moves, "a plan that is over has no moves"
    assert finished <= limits.PLANS_FINISHED_KEPT


def _check_transactions(state: State) -> None:
    rows = list(state.transactions.values())
    assert len(rows) <= limits.TRANSACTIONS_MAX
    assert not rows or state.counters.feature_level >= features.STAGES, "older brokers would not know what this is"
    assert [row.used_ms for row in rows] == sorted(row.used_ms for row in rows), "the longest unused come first"
    assert list(state.once) == [row.name for row in rows if row.once], "in the same order"
    for name, row in state.transactions.items():
        assert name == row.name == check_name(name) and row.owner == check_name(row.owner)
        _check_transaction(state, row)


def _check_transaction(state: State, row: Transaction) -> None:
    counters, shown = state.counters, f"transaction {row.name}"
    assert 0 < row.era <= counters.applied_index and row.used_ms <= counters.machine_ms
    assert row.name not in state.forgotten, f"{shown} is both known and forgotten"
    ends = [number for one in row.done for number in one]
    assert len(row.done) <= limits.COMMITTED_RANGES_KEPT and all(first <= last for first, last in row.done)
    assert all(last + 1 < first for last, first in zip(ends[1::2], ends[2::2], strict=False)), f"{shown}: {row.done}"
    assert len(row.ended) <= limits.ENDED_COMMITS_KEPT
    assert len({one.commit_id for one in row.ended}) == len(row.ended), f"{shown}: one commit ended twice"
    for one in row.ended:
        check_commit_id(one.commit_id)
        assert 0 <= one.token <= counters.applied_index and (one.token > 0 or not one.committed)
    if row.open_token:
        assert state.tries[row.open_token].transaction == row.name, f"{shown} has a try of another one"


def _check_tries(state: State) -> None:
    assert len(state.tries) <= limits.OPEN_TRIES_MAX and list(state.tries) == sorted(state.tries)
    there = {set_id for topic in state.topics.values() for set_id in topic.set_ids}
    for token, one in state.tries.items():
        assert 0 < token == one.token <= state.counters.applied_index
        assert 0 < len(one.set_ids) <= limits.PARTICIPANTS_MAX
        assert list(one.set_ids) == sorted(set(one.set_ids)) and there.issuperset(one.set_ids)
        _check_try(one, state.transactions[one.transaction])
    listed = {(set_id, token) for set_id, tries in state.tries_of.items() for token in tries}
    assert listed == {(set_id, one.token) for one in state.tries.values() for set_id in one.set_ids}
    assert len(listed) == state.participant_count <= limits.OPEN_PARTICIPANTS_MAX
    for tries in state.tries_of.values():
        assert tries and list(tries) == sorted(tries), "oldest first"
        assert all(state.tries[token] is one for token, one in tries.items())


def _check_try(one: Try, row: Transaction) -> None:
    assert row.open_token == one.token, f"try {one.token} is not the one that its transaction has"
    check_commit_id(one.commit_id)
    ended = row.ended_as(one.commit_id)
    if one.committed:
        assert ended is None or ended.committed, f"try {one.token} ended in two ways"
        assert one.decided_index > one.token, f"try {one.token} is decided before it began"
        assert row.era != one.era or row.has_done(one.sequence), f"try {one.token} is committed, its sequence is not"
    else:
        assert (row.owner, row.era) == (one.owner, one.era), f"try {one.token} is of an owner that was fenced"
        assert ended is None, f"try {one.token} has ended, and goes on"
        assert one.sequence > row.latest and not one.decided_index


def _check_forgotten(state: State) -> None:
    assert len(state.forgotten) <= limits.TRANSACTIONS_FORGOTTEN_MAX
    count = 0
    for first in state.forgotten:
        packed = state.forgotten.packed(first)
        assert packed and len(packed) % HASH_BYTES == 0
        hashes = [packed[place : place + HASH_BYTES] for place in range(0, len(packed), HASH_BYTES)]
        assert hashes == sorted(set(hashes)) and all(one[0] == first for one in hashes)
        count += len(hashes)
    assert count == len(state.forgotten)


def _check_groups(state: State) -> None:
    table = state.groups
    groups = list(table.groups.values())
    assert not groups or state.counters.feature_level >= features.GROUPS, "older brokers would not know what this is"
    assert table.numbers == {group.row.name: number for number, group in table.groups.items()}
    assert all(0 < number < state.counters.next_group for number in table.groups)
    members = [number for group in groups for number in group.members]
    assert len(set(members)) == len(members) == table.member_count <= limits.MEMBERS_MAX
    assert all(0 < number < state.counters.next_member for number in members)
    assert table.opaque_bytes == sum(len(one.opaque) for group in groups for one in group.members.values())
    assert table.partition_count == sum(len(row.owners) for group in groups for row in group.owners.values())
    patterns = {number: _count_patterns(group) for number, group in table.groups.items()}
    assert table.pattern_count == sum(patterns.values()) <= limits.PATTERNS_MAX
    assert table.patterned == {number for number, count in patterns.items() if count}
    for group in groups:
        _check_members(group)
        _check_wanted(state, group)
        _check_owners(group)


def _count_patterns(group: Group) -> int:
    return sum(len(one.patterns) for one in group.row.subscriptions.values())


def _check_members(group: Group) -> None:
    row = group.row
    assert len(group.members) <= limits.GROUP_MEMBERS_MAX
    assert group.ids == {one.member: number for number, one in group.members.items()}
    assert group.instances == {one.instance: number for number, one in group.members.items() if one.instance}
    assert group.replaced == {old: number for number, one in group.members.items() for old in one.replaced}
    assert group.seen.keys() == group.members.keys()
    assert all(0 < generation <= row.generation for generation in group.seen.values())
    used = {one.subscription for one in group.members.values()}
    assert used == row.subscriptions.keys() == group.wanted.keys(), "a subscription without a member, or the reverse"
    assert len(set(row.subscriptions.values())) == len(row.subscriptions) <= limits.SUBSCRIPTIONS_PER_GROUP_MAX
    assert 0 < row.version <= row.generation
    assert 0 <= row.shared_since <= row.generation
    assert row.session_ms <= row.revoke_ms
    assert len(row.rebalances) <= limits.REBALANCES_KEPT
    assert not row.rebalances or row.rebalances[-1].ended_ms or group.handing_over, "a rebalance that nobody ends"


def _check_wanted(state: State, group: Group) -> None:
    known = {topic.incarnation: topic for topic in state.topics.values()}
    for number, subscription in group.row.subscriptions.items():
        wanted = {one.incarnation for one in state.topics.values() if subscription.wants(one.name)}
        assert group.wanted[number] == wanted, f"group {group.row.name}: what is wanted and what is known of it differ"
        assert wanted <= group.owners.keys()
        assert all(group.row.number in state.groups.named[topic] for topic in subscription.topics)
    for incarnation, owners in group.owners.items():
        assert group.row.number in state.groups.subscribed[incarnation]
        count = len(known[incarnation].set_ids)
        assert len(owners.owners) == len(owners.grants) == len(owners.heirs) == count >= owners.first


def _check_owners(group: Group) -> None:
    owned: dict[int, set[tuple[int, int]]] = {}
    inherited: dict[int, set[tuple[int, int]]] = {}
    for incarnation, row in group.owners.items():
        for partition, (owner, grant, heir) in enumerate(zip(row.owners, row.grants, row.heirs, strict=True)):
            partition_id = (incarnation, partition)
            assert (owner == NOBODY) == (grant == 0), f"{partition_id}: a grant without an owner, or the reverse"
            assert grant <= group.row.generation, f"{partition_id}: a grant of the future"
            assert heir == NOBODY or heir != owner != NOBODY, f"{partition_id}: an heir of nobody, or of itself"
            for number, index in ((owner, owned), (heir, inherited)):
                if number != NOBODY:
                    assert incarnation in group.topics_of(group.members[number]), (
                        f"{partition_id}: not wanted by {number}"
                    )
                    index.setdefault(number, set()).add(partition_id)
    assert (owned, inherited) == (group.owned, group.inherited)
    assert not group.shared or not owned, "in a shared group nobody owns a partition"
    assert group.row.kind == "stream" or not inherited, "in a queue group a partition changes hands at once"
