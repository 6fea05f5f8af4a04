"""The witness of a cluster says so when any of its rules is broken: each is broken here, by hand, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.partition.records import encode_decision
from lanner.raft import Change, Entry, EntryKind, HardState, Membership, Message, MessageKind, RaftNode
from lanner.raft.leading import Leadership
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_witness import ClusterWitness, SetRecord
from lanner.testing.sim_broker import Broken
from lanner.testing.sim_cluster import SimCluster


@pytest.fixture
def cluster() -> SimCluster:
    """Three brokers that have founded their cluster, and nothing else."""
    cluster = SimCluster(4, 3)
    cluster.run_until(lambda: founded(cluster), 20_000, "no founding")
    cluster.run_for(500)
    return cluster


def founded(cluster: SimCluster) -> bool:
    leader = cluster.metadata_leader()
    return leader is not None and bool(leader.engine.cluster.cluster_id)


def leader_of(cluster: SimCluster) -> tuple[ClusterBroker, RaftNode]:
    broker = cluster.metadata_leader()
    assert broker is not None
    return broker, broker.engine.replica(CLUSTER_SET).node


def follower_of(cluster: SimCluster) -> tuple[ClusterBroker, RaftNode]:
    leader, _ = leader_of(cluster)
    broker = next(one for one in cluster.brokers.values() if one is not leader)
    return broker, broker.engine.replica(CLUSTER_SET).node


def record_of(cluster: SimCluster) -> SetRecord:
    return cluster.witness.sets[CLUSTER_SET]


def broken(act: Callable[[], object]) -> str:
    with pytest.raises(Broken) as caught:
        act()
    return caught.value.violation.rule


def test_a_cluster_without_faults_breaks_nothing(cluster: SimCluster) -> None:
    cluster.run_for(3_000)
    assert len(record_of(cluster).leaders) == 1
    assert cluster.witness.elections == 1


def test_two_votes_in_a_term(cluster: SimCluster) -> None:
    broker, node = follower_of(cluster)
    others = sorted(node.voters - {node.node_id})
    witness, term = cluster.witness, node.term + 1
    node.durable_hard_state = HardState(term, others[0])
    witness.sent(
        broker, CLUSTER_SET, Message(kind=MessageKind.VOTE_REPLY, sender=node.node_id, receiver=others[0], term=term)
    )
    node.durable_hard_state = HardState(term, others[1])
    reply = Message(kind=MessageKind.VOTE_REPLY, sender=node.node_id, receiver=others[1], term=term)
    assert broken(lambda: witness.sent(broker, CLUSTER_SET, reply)) == "double vote"


def test_a_vote_that_the_disk_does_not_hold(cluster: SimCluster) -> None:
    broker, node = follower_of(cluster)
    vote = Message(kind=MessageKind.VOTE, sender=node.node_id, receiver=9, term=node.term + 1)
    assert broken(lambda: cluster.witness.sent(broker, CLUSTER_SET, vote)) == "unsynced vote"


def test_a_refusal_promises_nothing(cluster: SimCluster) -> None:
    broker, node = follower_of(cluster)
    refusal = Message(kind=MessageKind.VOTE_REPLY, sender=node.node_id, receiver=9, term=node.term + 1, rejected=True)
    cluster.witness.sent(broker, CLUSTER_SET, refusal)


def test_an_answer_for_what_the_disk_does_not_hold(cluster: SimCluster) -> None:
    broker, node = follower_of(cluster)
    reply = Message(
        kind=MessageKind.APPEND_REPLY, sender=node.node_id, receiver=9, term=node.term, log_index=node.durable_index + 1
    )
    assert broken(lambda: cluster.witness.sent(broker, CLUSTER_SET, reply)) == "unsynced answer"


def test_one_place_of_the_log_with_two_contents(cluster: SimCluster) -> None:
    _, node = leader_of(cluster)
    index = node.last_index + 1
    cluster.witness._stored(record_of(cluster), node, [Entry(index, node.term, EntryKind.NORMAL, b"one")])
    other = [Entry(index, node.term, EntryKind.NORMAL, b"other")]
    assert broken(lambda: cluster.witness._stored(record_of(cluster), node, other)) == "log matching"


def test_another_entry_applied_where_one_was(cluster: SimCluster) -> None:
    _, node = follower_of(cluster)
    entry = Entry(1, node.term, EntryKind.NORMAL, b"other")
    assert broken(lambda: cluster.witness._applied(record_of(cluster), node, entry)) == "committed entry changed"


def test_a_committed_entry_of_another_term(cluster: SimCluster) -> None:
    _, node = follower_of(cluster)
    assert broken(lambda: cluster.witness._commit(record_of(cluster), node, 1, 99)) == "committed entry changed"


def test_a_gap_in_what_is_committed(cluster: SimCluster) -> None:
    _, node = follower_of(cluster)
    index = len(record_of(cluster).terms) + 2
    assert broken(lambda: cluster.witness._commit(record_of(cluster), node, index, node.term)) == "committed entry lost"


def test_two_leaders_of_one_term(cluster: SimCluster) -> None:
    _, node = follower_of(cluster)
    assert broken(lambda: cluster.witness._elected(record_of(cluster), node)) == "election safety"


def test_a_leader_that_lacks_what_was_committed(cluster: SimCluster) -> None:
    _, node = follower_of(cluster)
    node.term += 1
    record = record_of(cluster)
    record.terms.append(1)
    record.committed_in.append(1)
    assert broken(lambda: cluster.witness._elected(record, node)) == "leader completeness"


def test_a_leader_elected_late_owes_nothing_to_later_terms(cluster: SimCluster) -> None:
    _, node = follower_of(cluster)
    record = record_of(cluster)
    node.term += 1
    record.terms.append(node.term + 1)
    record.committed_in.append(node.term + 1)
    cluster.witness._elected(record, node)
    assert not cluster.witness.is_latest(CLUSTER_SET, node.term - 1)


@pytest.mark.parametrize("name", ["term", "commit_index", "applied_index"])
def test_what_must_not_go_back_goes_back(cluster: SimCluster, name: str) -> None:
    broker, node = follower_of(cluster)
    setattr(node, name, getattr(node, name) - 1)
    assert broken(lambda: cluster.witness.look(broker)) == "monotonic"


def test_a_commit_beyond_the_log(cluster: SimCluster) -> None:
    broker, node = follower_of(cluster)
    node.commit_index = node.last_index + 1
    assert broken(lambda: cluster.witness.look(broker)) == "monotonic"


def test_a_commit_that_is_on_one_disk_only(cluster: SimCluster) -> None:
    broker, node = leader_of(cluster)
    node.tail.append(node.term, EntryKind.NORMAL, b"x")
    node.commit_index = node.last_index
    assert broken(lambda: cluster.witness.look(broker)) == "durability"


def test_a_copy_that_is_not_open_again_counts_by_its_disk(cluster: SimCluster) -> None:
    broker, node = follower_of(cluster)
    record, last = record_of(cluster), node.durable_index
    del broker.engine.replicas[CLUSTER_SET]
    holds = cluster.witness._holds
    assert holds(record, node.node_id, last)
    assert not holds(record, node.node_id, last + 1), "that was never there"


def test_a_commit_that_does_not_reach_into_the_own_term(cluster: SimCluster) -> None:
    broker, node = leader_of(cluster)
    node.tail.append(node.term, EntryKind.NORMAL, b"x")
    node.commit_index = node.last_index
    node.term += 1
    sight = cluster.witness._sights[broker.number][CLUSTER_SET]
    record_of(cluster).leaders[node.term] = node.node_id
    sight.term = node.term
    assert broken(lambda: cluster.witness.look(broker)) == "older term committed"


def test_a_vote_that_is_forgotten_between_two_lives(cluster: SimCluster) -> None:
    broker, node = leader_of(cluster)
    assert node.vote == node.node_id
    node.vote = 0
    assert (
        broken(lambda: cluster.witness.watch(broker, broker.engine.replica(CLUSTER_SET))) == "durable state went back"
    )


def test_a_term_that_is_forgotten_between_two_lives(cluster: SimCluster) -> None:
    broker, node = follower_of(cluster)
    node.term -= 1
    assert (
        broken(lambda: cluster.witness.watch(broker, broker.engine.replica(CLUSTER_SET))) == "durable state went back"
    )


def test_machines_that_differ_at_the_same_index(cluster: SimCluster) -> None:
    _, node = follower_of(cluster)
    cluster.witness._compare(record_of(cluster), node, 64, 1)
    assert broken(lambda: cluster.witness._compare(record_of(cluster), node, 64, 2)) == "machines differ"


def test_a_membership_that_the_log_does_not_say(cluster: SimCluster) -> None:
    broker, node = follower_of(cluster)
    node.memberships.append(node.last_index, Membership(frozenset({1, 2}), frozenset()))
    assert broken(lambda: cluster.witness.look(broker)) == "membership"


def test_a_membership_that_changes_by_two_voters(cluster: SimCluster) -> None:
    _, node = leader_of(cluster)
    record, index = record_of(cluster), len(record_of(cluster).terms) + 1
    record.members[index, node.term] = Membership(frozenset({1}), frozenset())
    assert broken(lambda: cluster.witness._commit(record, node, index, node.term)) == "membership"


def test_a_change_of_membership_before_an_own_entry_is_committed(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, node = leader_of(cluster)
    assert node.leadership is not None
    node.leadership.first_own_index = node.commit_index + 1
    monkeypatch.setattr(Leadership, "check_change", lambda leadership: None)
    assert broken(lambda: node.change_membership(Change.ADD_LEARNER, 9)) == "early membership"


def test_a_decision_from_before_the_own_term() -> None:
    witness, node = ClusterWitness(), SimCluster(4, 3).brokers[1].engine.replica(CLUSTER_SET).node
    record = SetRecord(1, node.memberships.current, terms=[1, 2], committed_in=[1, 2], first_of_term={1: 1, 2: 2})
    entry = Entry(3, 2, EntryKind.NORMAL, encode_decision(1_000, 1, []))
    assert broken(lambda: witness._applied(record, node, entry)) == "early decision"
    entry = Entry(4, 2, EntryKind.NORMAL, encode_decision(1_000, 2, []))
    witness._applied(record, node, entry)
    assert record.decided_ms[4] == 1_000


def test_moments_of_one_entry_rise_and_stay_before_the_next(cluster: SimCluster) -> None:
    witness = cluster.witness
    first, second = witness.when_applied(CLUSTER_SET, 2), witness.when_applied(CLUSTER_SET, 2)
    assert first < second < witness.when_applied(CLUSTER_SET, 3)
    assert witness.when_applied(CLUSTER_SET, 10_000) > second
