"""Quiescence in the core: the mark, which nodes answer it, and what may be elected meanwhile."""

from __future__ import annotations

import pytest

from lanner.errors import NotLeader
from lanner.raft import Entry, EntryKind, Message, MessageKind, Role, decode_message, encode_message
from lanner.raft.entry import QUIESCE
from tests.unit.raft.trio import drain, kinds, make_leader_of_three, make_one_of_three, say


def test_a_leader_that_quiesces_tells_everybody_and_the_mark_survives_the_wire() -> None:
    node, log = make_leader_of_three()
    assert node.idle
    node.quiesce()
    messages = drain(node, log)
    assert kinds(messages) == [("HEARTBEAT", 2), ("HEARTBEAT", 3)]
    for message in messages:
        assert decode_message(b"".join(encode_message(message))).hint == QUIESCE
    assert node.idle
    assert messages[0].commit_index == 1


def test_a_peer_that_is_not_heard_is_not_told_to_quiesce() -> None:
    node, log = make_leader_of_three()
    node.report_unreachable(3)
    node.quiesce()
    assert kinds(drain(node, log)) == [("HEARTBEAT", 2)]


def test_only_a_leader_can_let_a_set_quiesce() -> None:
    node, _ = make_one_of_three()
    with pytest.raises(NotLeader):
        node.quiesce()


def test_an_idle_follower_takes_the_mark_in_silence_and_a_busy_one_answers() -> None:
    node, log = make_one_of_three(term=1)
    entry = Entry(1, 1, EntryKind.NOOP, b"")
    say(node, MessageKind.APPEND, 2, entries=(entry,))
    drain(node, log)
    say(node, MessageKind.HEARTBEAT, 2, hint=QUIESCE)
    assert kinds(drain(node, log)) == [("HEARTBEAT_REPLY", 2)], "what it holds is not known to be committed"
    say(node, MessageKind.HEARTBEAT, 2, commit_index=1, hint=QUIESCE)
    assert kinds(drain(node, log)) == [("HEARTBEAT_REPLY", 2)], "this is how it learns of it"
    say(node, MessageKind.HEARTBEAT, 2, commit_index=1, hint=QUIESCE)
    assert drain(node, log) == [] and node.idle
    say(node, MessageKind.HEARTBEAT, 2, commit_index=1)
    assert kinds(drain(node, log)) == [("HEARTBEAT_REPLY", 2)]


def test_a_peer_that_is_not_heard_does_not_keep_a_set_awake() -> None:
    node, log = make_leader_of_three()
    node.propose(b"x")
    drain(node, log)
    say(node, MessageKind.APPEND_REPLY, 2, log_index=2, commit_index=2)
    drain(node, log)
    assert not node.idle
    node.report_unreachable(3)
    assert node.idle
    node.report_unreachable(2)
    assert not node.idle, "without a majority there is something to find out"
    say(node, MessageKind.HEARTBEAT_REPLY, 2, log_index=2, commit_index=2)
    drain(node, log)
    assert node.idle
    say(node, MessageKind.HEARTBEAT_REPLY, 3, log_index=1)
    drain(node, log)
    assert not node.idle


def test_a_leader_that_stands_for_election_is_no_leader_any_more() -> None:
    node, log = make_one_of_three(term=4)
    say(node, MessageKind.HEARTBEAT, 2)
    drain(node, log)
    node.step(Message(kind=MessageKind.PRE_VOTE, sender=3, receiver=1, term=5))
    assert drain(node, log) == [], "somebody else's wish to lead is not answered"
    node.step(Message(kind=MessageKind.PRE_VOTE, sender=2, receiver=1, term=5))
    assert kinds(drain(node, log)) == [("PRE_VOTE_REPLY", 2)]
    node.step(Message(kind=MessageKind.VOTE, sender=3, receiver=1, term=5))
    assert drain(node, log) == [] and node.term == 4
    node.step(Message(kind=MessageKind.VOTE, sender=2, receiver=1, term=5))
    assert kinds(drain(node, log)) == [("VOTE_REPLY", 2)] and node.term == 5


def test_a_node_that_knows_its_leader_to_be_silent_does_not_wait_the_whole_timeout() -> None:
    node, log = make_one_of_three(term=1)
    say(node, MessageKind.HEARTBEAT, 2)
    drain(node, log)
    node.leader_silent()
    node.step(Message(kind=MessageKind.PRE_VOTE, sender=3, receiver=1, term=2))
    assert kinds(drain(node, log)) == [("PRE_VOTE_REPLY", 3)]
    ticks = 0
    while node.role is Role.FOLLOWER:
        node.tick()
        ticks += 1
    assert ticks <= node.config.election_ticks


def test_a_leader_is_not_silent_to_itself() -> None:
    node, _ = make_leader_of_three()
    before = node.elapsed_ticks
    node.leader_silent()
    assert node.elapsed_ticks == before


def test_what_is_committed_can_wait_for_the_next_append_or_heartbeat() -> None:
    node, log = make_leader_of_three(tells_commits=False)
    node.propose(b"x")
    drain(node, log)
    for peer in (2, 3):
        say(node, MessageKind.APPEND_REPLY, peer, log_index=2, commit_index=1)
        assert drain(node, log) == []
    assert node.commit_index == 2
    node.propose(b"y")
    assert [(message.kind, message.commit_index) for message in drain(node, log)] == [(MessageKind.APPEND, 2)] * 2
    for peer in (2, 3):
        say(node, MessageKind.APPEND_REPLY, peer, log_index=3, commit_index=2)
    node.tick()
    node.tick()
    assert [(message.kind, message.commit_index) for message in drain(node, log)] == [(MessageKind.HEARTBEAT, 3)] * 2
    assert not node.idle, "it is told, but nobody has said that he knows"
