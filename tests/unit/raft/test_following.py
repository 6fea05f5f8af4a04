from __future__ import annotations

import pytest

from lanner.errors import ProtocolError, StorageDamaged
from lanner.raft import Entry, EntryKind, Membership, Message, MessageKind, RaftNode, Role, Snapshot
from tests.unit.raft.trio import VOTERS, drain, elect, finish, kinds, make_one_of_three, say

NORMAL = EntryKind.NORMAL


def entries(first: int, *terms: int) -> list[Entry]:
    return [Entry(at, term, NORMAL, b"new") for at, term in enumerate(terms, first)]


def append(node: RaftNode, after: tuple[int, int], *terms: int, term: int = 3, commit: int = 0) -> None:
    new = entries(after[0] + 1, *terms)
    say(node, MessageKind.APPEND, 2, term=term, log_index=after[0], log_term=after[1], entries=new, commit_index=commit)


def test_entries_are_answered_for_when_they_are_on_disk_and_not_before() -> None:
    node, log = make_one_of_three()
    append(node, (0, 0), 3, 3)
    ready = node.ready()
    assert [entry.index for entry in ready.entries] == [1, 2]
    assert ready.messages == ()
    finish(node, log, ready)
    assert [(message.kind, message.log_index) for message in drain(node, log)] == [(MessageKind.APPEND_REPLY, 2)]


def test_appends_that_are_stored_together_are_answered_together() -> None:
    node, log = make_one_of_three()
    append(node, (0, 0), 3)
    append(node, (1, 3), 3)
    append(node, (2, 3), 3)
    assert [message.log_index for message in drain(node, log)] == [3]


def test_an_append_that_came_twice_is_answered_twice_and_stored_once() -> None:
    node, log = make_one_of_three()
    for _ in range(2):
        append(node, (0, 0), 3, 3)
        assert [message.log_index for message in drain(node, log)] == [2]
    assert sorted(log.stored) == [1, 2]


def test_an_older_append_does_not_shorten_the_log() -> None:
    node, log = make_one_of_three()
    append(node, (0, 0), 3, 3, 3)
    drain(node, log)
    append(node, (0, 0), 3)
    assert [message.log_index for message in drain(node, log)] == [3]
    assert node.last_index == 3


def test_a_conflicting_tail_is_taken_back_and_stored_from_there() -> None:
    node, log = make_one_of_three((1, 1, 2, 2))
    append(node, (2, 1), 3)
    ready = node.ready()
    assert [(entry.index, entry.term) for entry in ready.entries] == [(3, 3)]
    assert (node.last_index, node.durable_index) == (3, 2)
    finish(node, log, ready)
    assert (sorted(log.stored), node.durable_index) == ([1, 2, 3], 3)


def test_a_write_that_was_overtaken_counts_only_up_to_where_the_logs_parted() -> None:
    node, log = make_one_of_three()
    append(node, (0, 0), 3, 3, 3)
    overtaken = node.ready()
    append(node, (1, 3), 4, 4, 4, term=4)
    newer = node.ready()
    finish(node, log, overtaken)
    assert node.durable_index == 1
    assert [message.log_index for message in node.ready().messages] == [1]
    log.store(newer)
    assert [entry.term for entry in log.stored.values()] == [3, 4, 4, 4]


def test_a_refusal_names_the_highest_entry_that_may_agree() -> None:
    node, log = make_one_of_three((1, 1, 1, 2, 2))
    append(node, (9, 3), 3)
    append(node, (5, 1), 3)
    answers = drain(node, log)
    assert [(a.rejected, a.log_index, a.hint, a.log_term) for a in answers] == [(True, 9, 5, 2), (True, 5, 3, 1)]


def test_a_longer_tail_of_an_older_leader_is_not_answered_for() -> None:
    node, log = make_one_of_three((1, 1, 2, 2))
    append(node, (2, 1))
    assert [message.log_index for message in drain(node, log)] == [2]
    say(node, MessageKind.HEARTBEAT, 2)
    assert [message.log_index for message in drain(node, log)] == [2]


def test_what_is_committed_is_applied_once_it_is_on_disk_here() -> None:
    node, log = make_one_of_three()
    append(node, (0, 0), 3, 3, commit=9)
    ready = node.ready()
    assert (node.commit_index, ready.committed) == (2, [])
    finish(node, log, ready)
    assert [entry.index for entry in node.ready().committed] == [1, 2]


def test_a_commit_wants_no_answer_and_a_heartbeat_does() -> None:
    node, log = make_one_of_three()
    append(node, (0, 0), 3, 3)
    drain(node, log)
    say(node, MessageKind.COMMIT, 2, commit_index=1)
    assert drain(node, log) == []
    say(node, MessageKind.HEARTBEAT, 2, commit_index=2, context=17)
    (answer,) = drain(node, log)
    assert (answer.log_index, answer.commit_index, answer.context) == (2, 2, 17)
    assert node.applied_index == 2


def test_a_leader_that_contradicts_what_is_committed_is_refused() -> None:
    node, log = make_one_of_three()
    append(node, (0, 0), 3, 3, commit=2)
    drain(node, log)
    append(node, (2, 3), 3)
    node.commit_index = 3
    with pytest.raises(ProtocolError, match="committed here"):
        node.following._take(entries(3, 4))


def test_a_node_whose_log_lost_what_it_had_answered_for_says_so() -> None:
    node, _ = make_one_of_three()
    with pytest.raises(StorageDamaged, match="rejoin under a new id"):
        say(node, MessageKind.HEARTBEAT, 2, term=3, commit_index=8)


def test_a_membership_is_in_force_when_it_is_appended_and_goes_with_its_entry() -> None:
    node, log = make_one_of_three()
    smaller = Membership(frozenset({2, 3}), frozenset({1}))
    entry = Entry(1, 3, EntryKind.MEMBERSHIP, smaller.encode())
    say(node, MessageKind.APPEND, 2, term=3, entries=[entry])
    assert (node.voters, node.role) == ({2, 3}, Role.LEARNER)
    drain(node, log)
    append(node, (0, 0), 4, term=4)
    assert (node.voters, node.role) == (VOTERS, Role.FOLLOWER)


def test_a_membership_that_cannot_be_read_changes_nothing() -> None:
    node, _log = make_one_of_three((1, 1))
    with pytest.raises(ProtocolError):
        say(node, MessageKind.APPEND, 2, term=3, entries=[Entry(1, 3, EntryKind.MEMBERSHIP, b"?")])
    assert node.last_index == 2


# ------------------------------------------------------------------ snapshots


def offer(node: RaftNode, index: int = 8, term: int = 3, voters: frozenset[int] = VOTERS) -> None:
    entry = Entry(index, 2, EntryKind.MEMBERSHIP, Membership(voters, frozenset({9})).encode())
    say(node, MessageKind.SNAPSHOT, 2, term=term, log_index=index, log_term=2, entries=[entry])


def test_a_snapshot_takes_the_logs_place_and_brings_its_membership() -> None:
    node, log = make_one_of_three((1, 1))
    offer(node, voters=frozenset({1, 2}))
    snapshot = node.installing
    assert snapshot == Snapshot(8, 2, frozenset({1, 2}), frozenset({9}))
    drain(node, log)
    append(node, (2, 1), 3)
    say(node, MessageKind.HEARTBEAT, 2)
    assert [message.log_index for message in drain(node, log)] == [0], "it answers for nothing meanwhile"
    assert node.begin_install(snapshot)
    node.campaign()
    offer(node, 9)
    assert node.role is Role.FOLLOWER
    node.installed(snapshot)
    assert (node.commit_index, node.applied_index, node.last_index, node.compacted_index) == (8, 8, 8, 8)
    assert (node.voters, node.learners, node.installing) == ({1, 2}, {9}, None)
    assert [(message.kind, message.log_index) for message in drain(node, log)] == [(MessageKind.APPEND_REPLY, 8)]
    append(node, (8, 2), 3)
    assert [message.log_index for message in drain(node, log)] == [9]


def test_an_install_ends_with_a_new_term_unless_its_flip_is_on_the_way() -> None:
    node, log = make_one_of_three()
    offer(node)
    snapshot = node.installing
    assert snapshot is not None
    append(node, (0, 0), 4, term=4)
    assert node.installing is None
    assert not node.begin_install(snapshot)
    with pytest.raises(ValueError, match="begun its flip"):
        node.installed(snapshot)
    offer(node, term=4)
    assert node.begin_install(snapshot)
    say(node, MessageKind.VOTE, 3, term=5, context=1, log_index=99, log_term=4)
    assert node.installing == snapshot
    drain(node, log)
    node.installed(snapshot)
    assert node.has_ready() is False, "nobody leads yet: there is nobody to tell"
    assert node.last_index == 8


def test_a_snapshot_that_brings_nothing_new_is_answered_and_not_installed() -> None:
    node, log = make_one_of_three((1, 2, 2))
    offer(node, index=2)
    assert node.installing is None
    assert (node.commit_index, [message.log_index for message in drain(node, log)]) == (2, [2])
    offer(node, index=1)
    assert [message.log_index for message in drain(node, log)] == [2]


def test_an_install_that_failed_is_given_up_and_a_malformed_offer_refused() -> None:
    node, _log = make_one_of_three()
    offer(node)
    node.abandon_install()
    assert node.installing is None
    with pytest.raises(ProtocolError, match="one entry only"):
        node.step(Message(kind=MessageKind.SNAPSHOT, sender=2, receiver=1, term=3, log_index=4))


def test_a_leader_that_steps_down_owes_nobody_an_answer_for_its_own_writes() -> None:
    node, log = make_one_of_three()
    elect(node, log)
    node.propose(b"x")
    ready = node.ready()
    say(node, MessageKind.VOTE, 3, term=9, context=1, log_index=50, log_term=9)
    finish(node, log, ready)
    assert kinds(drain(node, log)) == [("VOTE_REPLY", 3)]
