from __future__ import annotations

import pytest

from lanner.raft import Message, MessageKind, Role
from lanner.raft.electing import DECLINED_MAX
from tests.unit.raft.trio import drain, elect, finish, kinds, make_one_of_three, say


def test_a_node_asks_whether_it_could_win_before_it_stands() -> None:
    node, log = make_one_of_three((1, 1))
    node.campaign()
    messages = drain(node, log)
    assert kinds(messages) == [("PRE_VOTE", 2), ("PRE_VOTE", 3)]
    assert (messages[0].term, messages[0].log_index, messages[0].log_term) == (2, 2, 1)
    assert (node.role, node.term, node.vote) == (Role.PRE_CANDIDATE, 1, 0)


def test_votes_are_asked_for_only_after_the_own_vote_is_durable() -> None:
    node, log = make_one_of_three()
    node.campaign()
    drain(node, log)
    say(node, MessageKind.PRE_VOTE_REPLY, 3, term=1)
    ready = node.ready()
    assert (ready.hard_state, ready.messages) == ((1, 1), ())
    finish(node, log, ready)
    assert kinds(drain(node, log)) == [("VOTE", 2), ("VOTE", 3)]


def test_a_vote_is_answered_only_after_it_is_durable_and_a_repeated_question_at_once() -> None:
    node, log = make_one_of_three()
    say(node, MessageKind.VOTE, 2, term=4)
    ready = node.ready()
    assert (ready.hard_state, ready.messages) == ((4, 2), ())
    finish(node, log, ready)
    assert [(message.receiver, message.rejected) for message in drain(node, log)] == [(2, False)]
    say(node, MessageKind.VOTE, 2, term=4)
    assert [(message.receiver, message.rejected) for message in drain(node, log)] == [(2, False)]
    say(node, MessageKind.VOTE, 3, term=4)
    assert [(message.receiver, message.rejected) for message in drain(node, log)] == [(3, True)]


def test_a_vote_that_became_durable_too_late_is_not_answered() -> None:
    node, log = make_one_of_three()
    say(node, MessageKind.VOTE, 2, term=4)
    first = node.ready()
    say(node, MessageKind.VOTE, 3, term=5)
    second = node.ready()
    finish(node, log, first)
    assert node.ready().messages == ()
    log.store(second)
    node.advance(second)


@pytest.mark.parametrize(
    ("log_index", "log_term", "granted"), [(3, 2, True), (9, 1, False), (2, 2, False), (1, 3, True), (4, 2, True)]
)
def test_only_a_log_that_is_at_least_as_new_gets_a_vote(log_index: int, log_term: int, granted: bool) -> None:
    for kind in (MessageKind.VOTE, MessageKind.PRE_VOTE):
        node, log = make_one_of_three((1, 2, 2))
        say(node, kind, 2, term=7, log_index=log_index, log_term=log_term)
        assert [message.rejected for message in drain(node, log)] == [not granted]


def test_who_hears_a_leader_answers_no_candidate_unless_the_leader_sent_it() -> None:
    node, log = make_one_of_three()
    say(node, MessageKind.HEARTBEAT, 2, term=1)
    drain(node, log)
    for kind in (MessageKind.PRE_VOTE, MessageKind.VOTE):
        say(node, kind, 3, term=2)
        assert drain(node, log) == []
    assert node.term == 1
    say(node, MessageKind.VOTE, 3, term=2, context=1)
    assert kinds(drain(node, log)) == [("VOTE_REPLY", 3)]
    assert (node.term, node.vote) == (2, 3)


def test_the_lease_on_a_leader_ends_with_the_shortest_election_timeout() -> None:
    node, log = make_one_of_three()
    say(node, MessageKind.HEARTBEAT, 2, term=1)
    drain(node, log)
    for _ in range(10):
        node.tick()
    say(node, MessageKind.PRE_VOTE, 3, term=2)
    assert ("PRE_VOTE_REPLY", 3) in kinds(drain(node, log))


def test_a_majority_of_refusals_ends_a_candidacy() -> None:
    node, _log = make_one_of_three()
    node.campaign()
    for peer in (2, 3):
        say(node, MessageKind.PRE_VOTE_REPLY, peer, rejected=True)
    assert (node.role, node.term) == (Role.FOLLOWER, 0)


def test_answers_of_another_candidacy_do_not_count() -> None:
    node, _log = make_one_of_three()
    say(node, MessageKind.VOTE_REPLY, 2)
    say(node, MessageKind.PRE_VOTE_REPLY, 2, term=1)
    assert node.role is Role.FOLLOWER
    node.campaign()
    say(node, MessageKind.PRE_VOTE_REPLY, 2, term=9)
    assert node.role is Role.PRE_CANDIDATE
    say(node, MessageKind.PRE_VOTE_REPLY, 2, term=1)
    assert node.role is Role.CANDIDATE
    say(node, MessageKind.VOTE_REPLY, 2)
    assert node.role is Role.CANDIDATE, "nobody was asked yet: this is an answer to an earlier life"


def test_an_old_candidate_and_an_old_leader_are_told_the_newer_term() -> None:
    node, log = make_one_of_three(term=6)
    say(node, MessageKind.VOTE, 2, term=5)
    say(node, MessageKind.APPEND, 3, term=5)
    say(node, MessageKind.VOTE_REPLY, 3, term=5)
    assert [(message.kind, message.term) for message in drain(node, log)] == [
        (MessageKind.VOTE_REPLY, 6),
        (MessageKind.APPEND_REPLY, 6),
    ]


def test_a_candidate_follows_the_leader_of_its_term() -> None:
    node, log = make_one_of_three()
    node.campaign()
    drain(node, log)
    say(node, MessageKind.PRE_VOTE_REPLY, 2, term=1)
    say(node, MessageKind.APPEND, 3, term=1)
    assert (node.role, node.leader_id, node.vote) == (Role.FOLLOWER, 3, 1)


def test_a_node_told_to_stand_does_so_at_once_and_says_who_sent_it() -> None:
    node, log = make_one_of_three()
    say(node, MessageKind.HEARTBEAT, 2, term=1)
    drain(node, log)
    say(node, MessageKind.TIMEOUT_NOW, 2)
    assert [(message.kind, message.term, message.context) for message in drain(node, log)] == [
        (MessageKind.VOTE, 2, 1),
        (MessageKind.VOTE, 2, 1),
    ]


def test_a_leader_refuses_a_vote_in_its_own_term_and_ignores_what_only_followers_get() -> None:
    node, log = make_one_of_three()
    elect(node, log)
    say(node, MessageKind.VOTE, 3)
    assert [(message.kind, message.rejected) for message in drain(node, log)] == [(MessageKind.VOTE_REPLY, True)]
    say(node, MessageKind.TIMEOUT_NOW, 3)
    say(node, MessageKind.PRE_VOTE, 3, term=5)
    assert drain(node, log) == []


def test_a_message_for_another_id_is_not_taken() -> None:
    node, _ = make_one_of_three()
    node.step(Message(kind=MessageKind.VOTE, sender=2, receiver=77, term=5))
    assert (node.term, node.has_ready()) == (0, False)


def test_an_answer_of_no_kind_that_a_follower_expects_changes_nothing() -> None:
    node, _log = make_one_of_three(term=3)
    for kind in (MessageKind.APPEND_REPLY, MessageKind.HEARTBEAT_REPLY):
        say(node, kind, 2)
    assert not node.has_ready()


def test_a_reluctant_node_leaves_it_to_others_but_not_for_ever() -> None:
    node, log = make_one_of_three((1, 1))
    node.reluctant = True
    for _ in range(DECLINED_MAX):
        node.campaign()
        assert (drain(node, log), node.role) == ([], Role.FOLLOWER)
    node.campaign()
    assert kinds(drain(node, log)) == [("PRE_VOTE", 2), ("PRE_VOTE", 3)]


def test_a_reluctant_node_votes_and_takes_no_hand_over() -> None:
    node, log = make_one_of_three((1, 1))
    node.reluctant = True
    say(node, MessageKind.HEARTBEAT, 2, term=1)
    drain(node, log)
    say(node, MessageKind.TIMEOUT_NOW, 2, term=1)
    assert (node.role, node.term) == (Role.FOLLOWER, 1)
    say(node, MessageKind.VOTE, 3, term=2, log_index=2, log_term=1, context=1)
    assert [(message.receiver, message.rejected) for message in drain(node, log)] == [(3, False)]
