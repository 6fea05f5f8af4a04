from __future__ import annotations

import pytest

from lanner.errors import ConflictError, NotLeader, ServiceUnavailable, StorageDamaged, ValidationError
from lanner.raft import (
    Change,
    Config,
    Entry,
    EntryKind,
    HardState,
    Membership,
    MessageKind,
    RaftNode,
    Restored,
    Role,
    find_memberships,
)
from tests.unit.raft.storage import StoredLog
from tests.unit.raft.trio import VOTERS, drain, elect, finish, kinds, make_leader_of_three, make_one_of_three, say


def acknowledge(node: RaftNode, peer: int, index: int) -> None:
    say(node, MessageKind.APPEND_REPLY, peer, log_index=index)


# ------------------------------------------------------------------ replication and commits


def test_a_leader_sends_in_parallel_to_its_own_write() -> None:
    node, _ = make_leader_of_three()
    node.propose(b"a")
    node.propose(b"b")
    ready = node.ready()
    assert kinds(list(ready.messages)) == [("APPEND", 2), ("APPEND", 3)]
    assert [entry.index for entry in ready.messages[0].entries] == [2, 3]
    assert [entry.index for entry in ready.entries] == [2, 3]


def test_two_followers_commit_before_the_leaders_own_disk_and_the_leader_applies_after_it() -> None:
    node, log = make_leader_of_three()
    node.propose(b"a")
    ready = node.ready()
    acknowledge(node, 2, 2)
    assert node.commit_index == 1
    acknowledge(node, 3, 2)
    assert node.commit_index == 2
    assert node.ready().committed == []
    log.store(ready)
    node.advance(ready)


def test_an_entry_of_an_older_term_commits_only_with_one_of_the_own() -> None:
    node, log = make_one_of_three((1, 1))
    elect(node, log)
    acknowledge(node, 2, 2)
    assert node.commit_index == 0
    acknowledge(node, 2, 3)
    assert node.commit_index == 3


def test_appends_are_bounded_in_bytes_and_in_flight_by_count() -> None:
    node, log = make_leader_of_three(append_bytes_max=10, inflight_messages_max=2)
    for _ in range(6):
        node.propose(b"x" * 6)
    to_two = [message for message in drain(node, log) if message.receiver == 2]
    assert [[entry.index for entry in message.entries] for message in to_two] == [[2], [3]]
    acknowledge(node, 2, 2)
    assert [[e.index for e in m.entries] for m in drain(node, log) if m.receiver == 2 and m.entries] == [[4]]


def test_appends_are_bounded_in_flight_by_bytes() -> None:
    node, log = make_leader_of_three(append_bytes_max=10, inflight_bytes_max=15)
    for _ in range(6):
        node.propose(b"x" * 10)
    assert len([message for message in drain(node, log) if message.receiver == 3]) == 2


def test_a_refusal_takes_the_leader_back_to_where_the_logs_may_agree() -> None:
    node, log = make_one_of_three((1, 1, 1, 2, 2))
    elect(node, log)
    say(node, MessageKind.APPEND_REPLY, 3, rejected=True, log_index=5, hint=4, log_term=1)
    (append,) = drain(node, log)
    assert (append.log_index, append.log_term, [entry.index for entry in append.entries]) == (3, 1, [4, 5])
    say(node, MessageKind.APPEND_REPLY, 3, rejected=True, log_index=5, hint=4, log_term=1)
    assert drain(node, log) == [], "an answer to an older question"


def test_a_heartbeat_brings_back_what_was_lost() -> None:
    node, log = make_leader_of_three()
    node.propose(b"lost")
    drain(node, log)
    for _ in range(2):
        node.tick()
    beats = [message for message in drain(node, log) if message.kind == MessageKind.HEARTBEAT]
    say(node, MessageKind.HEARTBEAT_REPLY, 2, log_index=1, context=beats[0].context)
    (probe,) = drain(node, log)
    assert (probe.kind, probe.log_index, list(probe.entries)) == (MessageKind.APPEND, 2, [])
    say(node, MessageKind.APPEND_REPLY, 2, rejected=True, log_index=2, hint=1, log_term=1)
    (again,) = drain(node, log)
    assert [entry.payload for entry in again.entries] == [b"lost"]
    say(node, MessageKind.HEARTBEAT_REPLY, 2, log_index=2)
    assert node.commit_index == 2, "an acknowledgement that was lost comes with a heartbeat's answer"


def test_an_unreachable_peer_is_probed_when_it_is_heard_again() -> None:
    node, log = make_leader_of_three()
    node.report_unreachable(2)
    node.report_unreachable(77)
    node.propose(b"x")
    assert {message.receiver for message in drain(node, log)} == {3}
    say(node, MessageKind.HEARTBEAT_REPLY, 2, log_index=1)
    assert kinds(drain(node, log)) == [("APPEND", 2)]


def test_an_answer_from_a_stranger_counts_for_nothing() -> None:
    node, log = make_leader_of_three()
    node.propose(b"x")
    drain(node, log)
    for kind in (MessageKind.APPEND_REPLY, MessageKind.HEARTBEAT_REPLY):
        say(node, kind, 9, log_index=2)
    assert node.commit_index == 1


def test_a_peer_that_is_a_little_behind_is_served_from_memory_and_a_far_one_from_disk() -> None:
    node, log = make_leader_of_three(held_bytes_max=25, append_bytes_max=10)
    for _ in range(6):
        node.propose(b"x" * 10)
        drain(node, log)
        acknowledge(node, 2, node.last_index)
        drain(node, log)
    reads = log.reads
    say(node, MessageKind.APPEND_REPLY, 3, rejected=True, log_index=7, hint=5, log_term=1)
    drain(node, log)
    acknowledge(node, 3, 5)
    drain(node, log)
    assert log.reads - reads == 1, "the probe goes back beyond what is held; what follows it is held"


# ------------------------------------------------------------------ keeping a majority


def test_a_leader_without_a_majority_steps_down_before_the_shortest_timeout() -> None:
    node, log = make_leader_of_three()
    for tick in range(1, 10):
        assert node.role is Role.LEADER, tick
        node.tick()
        drain(node, log)
    assert (node.role, node.leader_id, node.term) == (Role.FOLLOWER, 0, 1)


def test_one_voter_of_two_that_answers_is_enough_to_go_on() -> None:
    node, log = make_leader_of_three()
    for _ in range(60):
        node.tick()
        for message in drain(node, log):
            if message.kind == MessageKind.HEARTBEAT and message.receiver == 3:
                say(node, MessageKind.HEARTBEAT_REPLY, 3, log_index=1, context=message.context)
    assert node.role is Role.LEADER


def test_an_answer_to_an_old_heartbeat_is_no_sign_of_life() -> None:
    node, log = make_leader_of_three()
    for _ in range(60):
        node.tick()
        drain(node, log)
        if node.role is Role.LEADER:
            say(node, MessageKind.HEARTBEAT_REPLY, 3, log_index=1, context=2)
    assert node.role is Role.PRE_CANDIDATE


# ------------------------------------------------------------------ hand-over


def test_a_hand_over_waits_until_the_successor_has_everything_and_refuses_proposals() -> None:
    node, log = make_leader_of_three()
    node.propose(b"x")
    drain(node, log)
    node.transfer(2)
    assert node.transferee == 2
    assert ("TIMEOUT_NOW", 2) not in kinds(drain(node, log))
    with pytest.raises(NotLeader) as refused:
        node.propose(b"y")
    assert refused.value.details["leader_id"] == 2
    with pytest.raises(NotLeader):
        node.change_membership(Change.REMOVE, 3)
    acknowledge(node, 2, 2)
    assert ("TIMEOUT_NOW", 2) in kinds(drain(node, log))


def test_a_hand_over_is_given_up_after_an_election_timeout() -> None:
    node, log = make_leader_of_three()
    node.transfer(2)
    for _ in range(10):
        node.tick()
        for message in drain(node, log):
            if message.kind == MessageKind.HEARTBEAT and message.receiver == 3:
                say(node, MessageKind.HEARTBEAT_REPLY, 3, log_index=1, context=message.context)
    assert node.transferee == 0
    node.propose(b"y")


def test_a_hand_over_to_one_that_cannot_be_reached_ends_at_once() -> None:
    node, _log = make_leader_of_three()
    node.transfer(2)
    node.report_unreachable(3)
    assert node.transferee == 2
    node.report_unreachable(2)
    assert node.transferee == 0
    node.propose(b"y")


def test_only_another_voter_can_be_handed_to() -> None:
    node, _ = make_leader_of_three()
    node.transfer(1)
    assert node.transferee == 0
    with pytest.raises(ValidationError, match="no voter"):
        node.transfer(9)


def test_handing_over_to_itself_ends_a_hand_over() -> None:
    node, log = make_leader_of_three()
    node.propose(b"x")
    drain(node, log)
    node.transfer(2)
    node.transfer(1)
    assert node.transferee == 0
    node.propose(b"y")
    acknowledge(node, 2, 2)
    assert ("TIMEOUT_NOW", 2) not in kinds(drain(node, log))


def test_asking_for_the_same_hand_over_again_does_not_prolong_it() -> None:
    node, log = make_leader_of_three()
    node.propose(b"x")
    drain(node, log)
    node.transfer(2)
    for _ in range(10):
        node.tick()
        if node.transferee:
            node.transfer(2)
        for message in drain(node, log):
            if message.kind == MessageKind.HEARTBEAT and message.receiver == 3:
                say(node, MessageKind.HEARTBEAT_REPLY, 3, log_index=2, context=message.context)
    assert node.transferee == 0
    node.propose(b"y")


def test_a_hand_over_to_another_begins_anew() -> None:
    node, log = make_leader_of_three()
    node.propose(b"x")
    drain(node, log)
    node.transfer(2)
    node.transfer(3)
    acknowledge(node, 2, 2)
    assert ("TIMEOUT_NOW", 2) not in kinds(drain(node, log))
    acknowledge(node, 3, 2)
    assert ("TIMEOUT_NOW", 3) in kinds(drain(node, log))


def test_a_hand_over_to_one_that_is_behind_asks_at_once_where_it_is() -> None:
    node, log = make_leader_of_three()
    node.propose(b"x")
    drain(node, log)  # on its way to both, and the answer of one is lost
    node.transfer(2)
    assert kinds(drain(node, log)) == [("APPEND", 2)]


def test_a_hand_over_to_one_that_waits_for_a_probe_probes_at_once() -> None:
    node, log = make_leader_of_three()
    node.report_unreachable(2)
    node.propose(b"x")
    assert kinds(drain(node, log)) == [("APPEND", 3)]
    node.transfer(2)
    (probe,) = drain(node, log)
    assert kinds([probe]) == [("APPEND", 2)]
    assert [entry.payload for entry in probe.entries] == [b"x"]


def test_a_hand_over_to_one_that_is_removed_ends() -> None:
    node, _log = make_leader_of_three()
    assert node.leadership is not None
    node.leadership.transferee = 3
    node.memberships.append(2, Membership(frozenset({1, 2}), frozenset()))
    node.membership_changed()
    assert node.transferee == 0


# ------------------------------------------------------------------ membership


def test_a_change_waits_for_the_own_term_and_for_the_one_before_it() -> None:
    node, log = make_one_of_three()
    elect(node, log)
    with pytest.raises(ServiceUnavailable):
        node.change_membership(Change.ADD_LEARNER, 4)
    acknowledge(node, 2, 1)
    assert node.change_membership(Change.ADD_LEARNER, 4) == 2
    assert node.learners == {4}
    with pytest.raises(ConflictError):
        node.change_membership(Change.PROMOTE, 4)
    assert ("APPEND", 4) in kinds(drain(node, log))
    acknowledge(node, 2, 2)
    node.change_membership(Change.PROMOTE, 4)
    assert (node.voters, node.quorum) == ({1, 2, 3, 4}, 3)


def test_a_learner_counts_for_no_majority() -> None:
    node, log = make_leader_of_three()
    node.change_membership(Change.ADD_LEARNER, 4)
    drain(node, log)
    acknowledge(node, 4, 2)
    assert node.commit_index == 1


def test_a_leader_that_removed_itself_leads_until_that_committed_without_counting_itself() -> None:
    node, log = make_leader_of_three()
    node.change_membership(Change.REMOVE, 1)
    drain(node, log)
    acknowledge(node, 2, 2)
    assert (node.role, node.commit_index) == (Role.LEADER, 1)
    acknowledge(node, 3, 2)
    assert (node.role, node.commit_index) == (Role.FOLLOWER, 2)
    assert ("TIMEOUT_NOW", 2) in kinds(drain(node, log))
    node.campaign()
    assert node.role is Role.FOLLOWER


def test_a_membership_entry_is_known_again_after_a_restart() -> None:
    node, log = make_leader_of_three()
    node.change_membership(Change.REMOVE, 3)
    drain(node, log)
    found = find_memberships(log, 1, 2)
    restored = Restored(log.hard_state, VOTERS, last_index=2, last_term=1, memberships=found)
    again = RaftNode(Config(1), restored, log, node._rng)
    assert again.voters == {1, 2}
    assert again.membership_at(1) == (VOTERS, frozenset())


@pytest.mark.parametrize(
    "entries",
    [
        (Entry(1, 1, EntryKind.NORMAL, b""),),
        (Entry(3, 1, EntryKind.MEMBERSHIP, b""),),
        (Entry(2, 1, EntryKind.MEMBERSHIP, b""), Entry(1, 1, EntryKind.MEMBERSHIP, b"")),
    ],
    ids=["kind", "beyond the log", "order"],
)
def test_restored_memberships_that_cannot_be_are_refused(entries: tuple[Entry, ...]) -> None:
    with pytest.raises(ValueError, match="memberships"):
        Restored(HardState(1, 0), VOTERS, last_index=2, last_term=1, memberships=entries)


# ------------------------------------------------------------------ snapshots


def make_compacted() -> tuple[RaftNode, StoredLog]:
    """A leader of five entries that has forgotten four of them; node 3 has answered for the first only."""
    node, log = make_leader_of_three()
    for _ in range(4):
        node.propose(b"x")
    drain(node, log)
    acknowledge(node, 2, 5)
    drain(node, log)
    node.compacted(4, log.compact(4))
    return node, log


def test_a_peer_that_lacks_what_the_log_no_longer_has_needs_a_snapshot() -> None:
    node, log = make_compacted()
    say(node, MessageKind.APPEND_REPLY, 3, rejected=True, log_index=5, hint=1, log_term=1)
    ready = node.ready()
    assert (ready.snapshots, ready.messages) == ([3], ())
    finish(node, log, ready)
    announced = node.snapshot_message(3, 5)
    assert (announced.log_index, announced.log_term, announced.receiver) == (5, 1, 3)
    assert Membership.decode(announced.entries[0].payload) == (VOTERS, frozenset())
    with pytest.raises(ValueError, match="impossible"):
        node.snapshot_message(3, 3)
    node.propose(b"y")
    assert {message.receiver for message in drain(node, log)} == {2}
    node.report_snapshot(3, True, 5)
    node.report_snapshot(2, True, 5)
    node.report_snapshot(9, True, 5)
    acknowledge(node, 3, 5)
    assert [[entry.index for entry in m.entries] for m in drain(node, log) if m.receiver == 3] == [[6]]


def test_a_snapshot_that_failed_is_asked_for_again_when_the_peer_is_heard() -> None:
    node, _log = make_compacted()
    say(node, MessageKind.APPEND_REPLY, 3, rejected=True, log_index=5, hint=1, log_term=1)
    assert node.ready().snapshots == [3]
    node.report_snapshot(3, False)
    node.propose(b"y")
    assert node.ready().snapshots in ((), [])
    say(node, MessageKind.HEARTBEAT_REPLY, 3, log_index=1)
    assert node.ready().snapshots == [3]


def test_no_snapshot_is_made_for_a_peer_that_is_away() -> None:
    node, _ = make_compacted()
    node.report_unreachable(3)
    assert node.leadership is not None
    node.leadership.progress[3].paused = False
    node.propose(b"y")
    assert node.ready().snapshots in ((), [])


def test_a_follower_neither_reports_nor_announces() -> None:
    node, _ = make_one_of_three()
    node.report_unreachable(2)
    node.report_snapshot(2, True, 4)
    with pytest.raises(NotLeader):
        node.snapshot_message(2, 1)
    assert node.transferee == 0


# ------------------------------------------------------------------ rest


def test_a_set_is_idle_when_everybody_knows_that_everything_is_done() -> None:
    node, log = make_leader_of_three()
    assert node.idle
    node.propose(b"x")
    assert not node.idle
    drain(node, log)
    assert not node.idle
    for peer in (2, 3):
        acknowledge(node, peer, 2)
    drain(node, log)
    assert not node.idle, "the followers have not said that they know of the commit"
    for peer in (2, 3):
        say(node, MessageKind.HEARTBEAT_REPLY, peer, log_index=2, commit_index=2)
    assert node.idle
    node.transfer(2)
    drain(node, log)
    assert not node.idle


def test_a_follower_is_idle_when_it_has_a_leader_and_nothing_to_wait_for() -> None:
    node, log = make_one_of_three()
    assert not node.idle
    say(node, MessageKind.APPEND, 2, term=3, entries=[Entry(1, 3, EntryKind.NORMAL, b"x")])
    assert not node.idle
    drain(node, log)
    assert not node.idle
    say(node, MessageKind.COMMIT, 2, commit_index=1)
    assert not node.idle
    drain(node, log)
    assert node.idle


def test_the_status_of_a_leader_shows_its_peers() -> None:
    node, _ = make_leader_of_three()
    progress = node.status()["progress"]
    assert progress == {peer: {"state": "replicate", "match": 1, "next": 2} for peer in (2, 3)}


# ------------------------------------------------------------------ a damaged log


def test_a_leader_whose_log_is_damaged_asks_its_peer_again_with_the_next_heartbeat_and_not_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, log = make_one_of_three((1, 1, 1, 1))
    read = log.entries

    def entries(first: int, last: int, bytes_max: int) -> list[Entry]:
        if first == 3:
            raise StorageDamaged("entry 3 does not match its checksum")
        return read(first, min(last, 2), bytes_max)

    monkeypatch.setattr(log, "entries", entries)
    elect(node, log)
    say(node, MessageKind.APPEND_REPLY, 3, log_index=4, rejected=True, hint=0)
    drain(node, log)
    acknowledge(node, 3, 2)
    assert [message for message in drain(node, log) if message.receiver == 3] == []
    for _ in range(2):
        node.tick()
    say(node, MessageKind.HEARTBEAT_REPLY, 3, log_index=2)
    sent = [message for message in drain(node, log) if message.receiver == 3]
    assert len(sent) <= 2
    acknowledge(node, 2, 5)
    assert node.commit_index == 5
    drain(node, log)
    assert node.applied_index == 2
