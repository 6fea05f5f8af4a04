from __future__ import annotations

import random
from typing import Any

import pytest

from lanner.errors import NotLeader, NotSupported, Overloaded, ValidationError
from lanner.raft import Config, Entry, EntryKind, HardState, Message, MessageKind, RaftNode, Restored, Role, SoftState
from tests.unit.raft.storage import NODE, StoredLog, make_leader, make_node, settle

# ------------------------------------------------------------------ elections


def test_a_fresh_node_is_a_follower_without_a_term() -> None:
    node = make_node()
    assert (node.role, node.term, node.vote, node.leader_id) == (Role.FOLLOWER, 0, 0, 0)
    assert not node.has_ready()


def test_a_sole_voter_leads_after_its_vote_is_durable_and_not_before() -> None:
    node = make_node()
    node.campaign()
    ready = node.ready()
    assert ready.hard_state == HardState(1, NODE)
    assert ready.must_store
    assert node.role is Role.CANDIDATE
    node.advance(ready)
    assert node.role is Role.LEADER
    assert node.leader_id == NODE


def test_the_soft_state_is_reported_once_per_change() -> None:
    node = make_node()
    node.campaign()
    first = node.ready()
    assert first.soft_state == SoftState(Role.CANDIDATE, 0)
    node.advance(first)
    assert node.ready().soft_state == SoftState(Role.LEADER, NODE)
    assert node.ready().soft_state is None


def test_ticks_lead_to_an_election_within_twice_the_timeout() -> None:
    for seed in range(30):
        node = RaftNode(Config(NODE, election_ticks=10), StoredLog().restored(), StoredLog(), random.Random(seed))
        ticks = 0
        while node.role is Role.FOLLOWER:
            node.tick()
            ticks += 1
        assert 10 <= ticks < 20


def test_election_timeouts_differ_by_chance() -> None:
    drawn = set()
    for seed in range(30):
        node = RaftNode(Config(NODE), StoredLog().restored(), StoredLog(), random.Random(seed))
        ticks = 0
        while node.role is Role.FOLLOWER:
            node.tick()
            ticks += 1
        drawn.add(ticks)
    assert len(drawn) > 5


def test_a_slow_disk_is_no_reason_for_another_term() -> None:
    node = make_node()
    node.campaign()
    ready = node.ready()
    for _ in range(500):
        node.tick()
    assert node.term == 1
    node.advance(ready)
    assert node.role is Role.LEADER


def test_a_candidate_without_a_majority_tries_again_with_a_new_term() -> None:
    restored = Restored(HardState(3, 0), frozenset({1, 2, 3}), last_term=3, last_index=4)
    node = RaftNode(Config(NODE), restored, StoredLog(), random.Random(1))
    node.campaign()
    node.advance(node.ready())
    assert (node.role, node.term) == (Role.PRE_CANDIDATE, 3)
    node.step(Message(kind=MessageKind.PRE_VOTE_REPLY, sender=2, receiver=NODE, term=4))
    assert (node.role, node.term) == (Role.CANDIDATE, 4)
    node.advance(node.ready())
    for _ in range(40):
        node.tick()
    assert (node.role, node.term) == (Role.PRE_CANDIDATE, 4)
    node.step(Message(kind=MessageKind.PRE_VOTE_REPLY, sender=3, receiver=NODE, term=5))
    assert (node.role, node.term) == (Role.CANDIDATE, 5)


def test_a_vote_of_an_older_term_does_not_elect() -> None:
    node = make_node(learners=frozenset({2}))
    node.campaign()
    ready = node.ready()
    node.step(Message(kind=MessageKind.HEARTBEAT, sender=2, receiver=NODE, term=5))
    node.advance(ready)
    assert (node.role, node.term, node.vote) == (Role.FOLLOWER, 5, 0)


def test_a_leader_neither_campaigns_nor_times_out() -> None:
    node = make_leader()
    node.campaign()
    for _ in range(200):
        node.tick()
    assert (node.role, node.term) == (Role.LEADER, 1)
    assert not node.has_ready()


def test_a_learner_and_a_stranger_never_stand_for_election() -> None:
    for learners, role in ((frozenset({1}), Role.LEARNER), (frozenset[int](), Role.FOLLOWER)):
        restored = Restored(HardState(0, 0), frozenset({2}), learners)
        node = RaftNode(Config(NODE), restored, StoredLog(), random.Random(1))
        for _ in range(100):
            node.tick()
        node.campaign()
        assert (node.role, node.term) == (role, 0)


# ------------------------------------------------------------------ messages, judged by their term


def test_a_higher_term_makes_a_leader_step_down_and_it_can_lead_again() -> None:
    log = StoredLog()
    node = make_node(log, learners=frozenset({2}))
    node.campaign()
    settle(node, log)
    node.propose(b"kept")
    node.step(Message(kind=MessageKind.APPEND, sender=2, receiver=NODE, term=9))
    assert (node.role, node.term, node.vote, node.uncommitted_bytes) == (Role.FOLLOWER, 9, 0, 0)
    assert not node.own_term_applied
    assert settle(node, log) == []  # durable, but nobody has committed it
    with pytest.raises(NotLeader):
        node.propose(b"refused")
    node.campaign()
    assert [entry.payload for entry in settle(node, log)] == [b"kept", b""]
    assert node.term == 10


@pytest.mark.parametrize(("sender", "term"), [(2, 1), (3, 99), (NODE, 99)], ids=["same term", "stranger", "itself"])
def test_a_message_that_says_nothing_new_changes_nothing(sender: int, term: int) -> None:
    log = StoredLog()
    node = make_node(log, learners=frozenset({2}))
    node.campaign()
    settle(node, log)
    node.step(Message(kind=MessageKind.HEARTBEAT, sender=sender, receiver=NODE, term=term))
    assert (node.role, node.term) == (Role.LEADER, 1)
    assert not node.has_ready()


def test_a_leader_that_was_left_behind_is_told_the_newer_term() -> None:
    log = StoredLog()
    node = make_node(log, learners=frozenset({2}))
    node.campaign()
    settle(node, log)
    node.step(Message(kind=MessageKind.HEARTBEAT, sender=2, receiver=NODE, term=0))
    assert (node.role, node.term) == (Role.LEADER, 1)
    assert node.ready().messages == [Message(kind=MessageKind.APPEND_REPLY, sender=NODE, receiver=2, term=1)]


# ------------------------------------------------------------------ proposals and commits


def test_a_leader_first_appends_an_empty_entry_of_its_own_term() -> None:
    node = make_node()
    node.campaign()
    node.advance(node.ready())
    ready = node.ready()
    assert ready.entries == [Entry(1, 1, EntryKind.NOOP, b"")]
    assert not node.own_term_applied
    node.advance(ready)
    committed = node.ready().committed
    assert not node.own_term_applied
    node.applied(committed[-1].index)
    assert node.own_term_applied


def test_nothing_commits_before_it_is_durable() -> None:
    node = make_leader()
    index = node.propose(b"value")
    ready = node.ready()
    assert ready.entries == [Entry(index, 1, EntryKind.NORMAL, b"value")]
    assert ready.committed == []
    assert node.commit_index == index - 1
    assert not node.has_ready()
    node.advance(ready)
    assert node.commit_index == index
    assert [entry.payload for entry in node.ready().committed] == [b"value"]


def test_a_follower_takes_no_proposals() -> None:
    with pytest.raises(NotLeader):
        make_node().propose(b"value")


def test_membership_is_not_yet_for_proposing_and_an_unknown_kind_never() -> None:
    node = make_leader()
    with pytest.raises(NotSupported):
        node.propose(b"", EntryKind.MEMBERSHIP)
    for kind in (EntryKind.NOOP, 77):
        with pytest.raises(ValidationError):
            node.propose(b"", kind)
    assert not node.has_ready()


def test_uncommitted_bytes_are_bounded_and_given_back_by_the_commit() -> None:
    log = StoredLog()
    node = make_leader(log, uncommitted_bytes_max=100)
    node.propose(b"x" * 60)
    node.propose(b"x" * 40)
    with pytest.raises(Overloaded) as refused:
        node.propose(b"x")
    assert refused.value.retry_after_ms == 50
    assert node.uncommitted_bytes == 100
    settle(node, log)
    assert node.uncommitted_bytes == 0
    node.propose(b"x")


def test_a_proposal_larger_than_the_bound_is_taken_when_nothing_else_waits() -> None:
    node = make_leader(uncommitted_bytes_max=100)
    node.propose(b"x" * 1_000)
    with pytest.raises(Overloaded):
        node.propose(b"x")


def test_several_readies_are_in_flight_and_complete_in_order() -> None:
    node = make_leader()
    readies = []
    for payload in (b"a", b"b", b"c"):
        node.propose(payload)
        readies.append(node.ready())
    assert [[entry.payload for entry in ready.entries] for ready in readies] == [[b"a"], [b"b"], [b"c"]]
    with pytest.raises(ValueError, match="cannot complete before"):
        node.advance(readies[1])
    node.advance(readies[0])
    assert [entry.payload for entry in node.ready().committed] == [b"a"]
    node.advance(readies[1])
    node.advance(readies[2])
    assert [entry.payload for entry in node.ready().committed] == [b"b", b"c"]


def test_the_commit_of_one_ready_frees_only_its_own_bytes() -> None:
    node = make_leader()
    node.propose(b"x" * 10)
    first = node.ready()
    node.propose(b"x" * 5)
    node.advance(first)
    assert node.uncommitted_bytes == 5


def test_a_ready_advances_only_once() -> None:
    node = make_leader()
    node.propose(b"a")
    ready = node.ready()
    node.advance(ready)
    with pytest.raises(ValueError, match="cannot complete"):
        node.advance(ready)


def test_an_empty_ready_has_nothing_to_store() -> None:
    node = make_leader()
    ready = node.ready()
    assert not ready.must_store
    assert (ready.hard_state, ready.entries, ready.committed, ready.messages) == (None, [], [], ())


def test_what_is_handed_out_to_apply_is_bounded_in_bytes_but_never_empty() -> None:
    log = StoredLog()
    node = make_leader(log, committed_bytes_max=10)
    for size in (4, 4, 4, 50, 1):
        node.propose(b"x" * size)
    node.advance(node.ready())
    sizes = []
    while node.has_ready():
        ready = node.ready()
        node.advance(ready)
        sizes.append([len(entry.payload) for entry in ready.committed])
    assert sizes == [[4, 4], [4], [50], [1]]


def test_with_other_voters_an_own_write_alone_commits_nothing() -> None:
    restored = Restored(HardState(1, 0), frozenset({1, 2}))
    node = RaftNode(Config(NODE), restored, StoredLog(), random.Random(1))
    node.become_candidate()
    node.become_leader()
    node.propose(b"alone")
    settle(node)
    assert node.commit_index == 0


# ------------------------------------------------------------------ applying and compaction


def test_applied_moves_forward_only_and_never_past_what_was_handed_out() -> None:
    node = make_leader()
    node.propose(b"a")
    node.advance(node.ready())
    with pytest.raises(ValueError, match="applied cannot be"):
        node.applied(2)
    node.ready()
    node.applied(2)
    with pytest.raises(ValueError, match="applied cannot be"):
        node.applied(1)


def test_compaction_stays_behind_applied_and_never_goes_back() -> None:
    log = StoredLog()
    node = make_leader(log)
    for _ in range(5):
        node.propose(b"x")
    settle(node, log)
    with pytest.raises(ValueError, match="cannot compact"):
        node.compacted(7, 1)
    node.compacted(4, 1)
    with pytest.raises(ValueError, match="cannot compact"):
        node.compacted(3, 1)
    assert node.compacted_index == 4
    assert node.status()["compacted_index"] == 4


# ------------------------------------------------------------------ restart


def test_a_restart_applies_what_was_stored_behind_the_saved_point() -> None:
    log = StoredLog()
    node = make_leader(log)
    for number in range(6):
        node.propose(b"%d" % number)
    settle(node, log)
    log.saved_index = 3
    again = make_node(log)
    assert (again.commit_index, again.applied_index, again.last_index) == (3, 3, 7)
    again.campaign()
    applied = settle(again, log)
    assert [(entry.index, entry.payload) for entry in applied] == [(4, b"2"), (5, b"3"), (6, b"4"), (7, b"5"), (8, b"")]
    assert again.term == 2
    assert again.own_term_applied


def test_a_restart_reads_the_log_back_in_bounded_pieces() -> None:
    log = StoredLog()
    node = make_leader(log)
    for _ in range(20):
        node.propose(b"x" * 10)
    settle(node, log)
    again = make_node(log, committed_bytes_max=35)
    again.campaign()
    assert [entry.index for entry in settle(again, log)] == list(range(1, 23))
    assert log.reads == 7


def test_a_restart_from_a_compacted_log_needs_nothing_below_it() -> None:
    log = StoredLog()
    node = make_leader(log)
    for _ in range(5):
        node.propose(b"x")
    settle(node, log)
    log.saved_index = 6
    node.compacted(6, log.compact(6))
    again = make_node(log)
    again.campaign()
    assert [entry.index for entry in settle(again, log)] == [7]
    assert log.reads == 0


def test_a_reader_that_skips_an_entry_is_refused_before_anything_is_applied() -> None:
    log = StoredLog()
    node = make_leader(log)
    node.propose(b"a")
    settle(node, log)
    for broken in ([], [Entry(2, 1, 1, b"a")]):
        log.entries = lambda first, last, bytes_max, broken=broken: broken  # type: ignore[method-assign]
        again = make_node(log)
        again.campaign()
        with pytest.raises(ValueError, match="storage did not return"):
            settle(again, log)


# ------------------------------------------------------------------ values


def test_the_status_is_flat_and_names_what_operators_know() -> None:
    status = make_leader().status()
    assert status["state"] == "leader"
    assert status["num_peers"] == 0
    assert status["latest_configuration"] == {"voters": [1], "learners": []}
    assert (status["term"], status["commit_index"], status["applied_index"], status["last_log_index"]) == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"node_id": 0}, "node_id"),
        ({"node_id": 1, "heartbeat_ticks": 20}, "heartbeat_ticks"),
        ({"node_id": 1, "heartbeat_ticks": 18}, "lease"),
        ({"node_id": 1, "heartbeat_ticks": 2, "election_ticks": 4}, "lease"),
        ({"node_id": 1, "uncommitted_bytes_max": 0}, "byte bounds"),
        ({"node_id": 1, "inflight_bytes_max": 0}, "byte bounds"),
        ({"node_id": 1, "append_entries_max": 1_000_000}, "counts of entries"),
        ({"node_id": 1, "inflight_messages_max": 0}, "counts of entries"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(arguments: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Config(**arguments)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"voters": frozenset()}, "at least one voter"),
        ({"learners": frozenset({1})}, "not both"),
        ({"applied_index": 1}, "rise in this order"),
        ({"last_index": 1, "last_term": 2}, "rise in this order"),
    ],
)
def test_restored_state_that_contradicts_itself_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Restored(**{"hard_state": HardState(1, 0), "voters": frozenset({1}), **arguments})
