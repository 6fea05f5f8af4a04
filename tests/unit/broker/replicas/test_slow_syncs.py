"""While a sync is under way everything leaves that does not depend on it, and nothing that does."""

from __future__ import annotations

from typing import Any

import pytest

from lanner import limits
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.errors import NotLeader
from lanner.ledger import Commit, perform
from lanner.partition import Appended, Poll
from lanner.raft import Message, MessageKind, Role
from lanner.testing.lockstep import EnginePeer
from tests.unit.broker.replicas.test_replication import EVERYBODY, SET, Three, ends, three


@pytest.fixture
def brokers() -> Three:
    made = three()
    made.elect(SET)
    made.pass_time(5)
    return made


def leader_of(brokers: Three) -> EnginePeer:
    return next(broker for broker in brokers.up() if broker.leads(SET))


def follower_of(brokers: Three) -> EnginePeer:
    return next(broker for broker in brokers.up() if not broker.leads(SET))


def begin(broker: EnginePeer) -> Commit:
    """A commit that is on its way to the disk, and stays there."""
    commit = broker.engine.pump()
    assert commit is not None
    broker.engine.take_messages()
    return commit


def finish(broker: EnginePeer, commit: Commit) -> None:
    perform(commit, broker.files)
    broker.engine.committed(commit)


def said(broker: EnginePeer, kind: MessageKind) -> list[Message]:
    """What it says of the partition while its disk is busy."""
    assert broker.engine.pump() is None
    return [message for set_id, message in broker.engine.take_messages() if set_id == SET and message.kind == kind]


def worked(broker: EnginePeer) -> list[tuple[int, Message]]:
    """What it has to say when everything is stored and applied."""
    broker.work()
    return broker.engine.take_messages()


def hear(brokers: Three, messages: list[Message]) -> None:
    for message in messages:
        brokers.all[message.receiver].engine.step(SET, message)


def test_heartbeats_leave_while_a_sync_is_under_way(brokers: Three) -> None:
    leader = leader_of(brokers)
    leader.publish(SET, b"a")
    begin(leader)
    for _ in range(3):
        leader.engine.tick()
    assert {message.receiver for message in said(leader, MessageKind.HEARTBEAT)} == EVERYBODY - {leader.number}


def test_a_follower_answers_heartbeats_while_its_disk_syncs_and_claims_only_what_is_stored(
    brokers: Three,
) -> None:
    leader, follower = leader_of(brokers), follower_of(brokers)
    stored = follower.replica(SET).node.durable_index
    leader.publish(SET, b"a")
    begun = leader.engine.pump()
    assert begun is not None
    for set_id, message in leader.engine.take_messages():
        if message.receiver == follower.number:
            follower.engine.step(set_id, message)
    commit = begin(follower)
    for _ in range(3):
        leader.engine.tick()
    hear(brokers, [one for one in said(leader, MessageKind.HEARTBEAT) if one.receiver == follower.number])
    (answer,) = said(follower, MessageKind.HEARTBEAT_REPLY)
    assert answer.log_index == stored
    finish(follower, commit)
    acks = [message for _, message in follower.engine.take_messages() if message.kind == MessageKind.APPEND_REPLY]
    assert [ack.log_index for ack in acks] == [stored + 1]


def test_entries_leave_for_the_followers_while_the_leaders_own_disk_syncs_others(brokers: Three) -> None:
    leader = leader_of(brokers)
    leader.publish(SET, b"a")
    commit = begin(leader)
    told = leader.publish(SET, b"b")
    appends = said(leader, MessageKind.APPEND)
    assert {message.receiver for message in appends} == EVERYBODY - {leader.number}
    assert all(len(message.entries) == 1 for message in appends)
    hear(brokers, appends)
    finish(leader, commit)
    brokers.settle()
    brokers.pass_time(5)
    assert told == [Appended(1, 1, 1_000_000, False)]
    assert ends(brokers) == [2, 2, 2]


def test_what_others_have_stored_is_answered_while_a_later_commit_syncs(brokers: Three) -> None:
    """Its own disk has the entry, a majority has it, too: the sync of something later is no reason to wait."""
    leader = leader_of(brokers)
    told = leader.publish(SET, b"a")
    first = leader.engine.pump()
    assert first is not None
    appends = [message for set_id, message in leader.engine.take_messages() if set_id == SET]
    finish(leader, first)
    leader.publish(SET, b"b")
    begin(leader)
    hear(brokers, appends)
    answers = [message for number in EVERYBODY - {leader.number} for _, message in worked(brokers.all[number])]
    assert told == []
    for message in answers:
        leader.engine.step(SET, message)
    assert leader.engine.pump() is None
    assert told == [Appended(0, 1, 1_000_000, False)]


def test_a_vote_leaves_only_when_it_is_on_the_disk(brokers: Three) -> None:
    leader, follower = leader_of(brokers), follower_of(brokers)
    other = next(number for number in EVERYBODY if number not in (leader.number, follower.number))
    begun = _busy_follower(leader, follower)
    node = follower.replica(SET).node
    asks = Message(
        kind=MessageKind.VOTE,
        sender=other,
        receiver=follower.number,
        term=node.term + 1,
        log_index=1_000,
        log_term=node.term,
        context=1,
    )
    follower.engine.step(SET, asks)
    assert said(follower, MessageKind.VOTE_REPLY) == []
    finish(follower, begun)
    assert said_when_free(follower, MessageKind.VOTE_REPLY) == []
    second = follower.engine.pump()
    assert second is not None
    finish(follower, second)
    assert [answer.rejected for answer in said_when_free(follower, MessageKind.VOTE_REPLY)] == [False]


def _busy_follower(leader: EnginePeer, follower: EnginePeer) -> Commit:
    leader.publish(SET, b"a")
    assert leader.engine.pump() is not None
    for set_id, message in leader.engine.take_messages():
        if message.receiver == follower.number:
            follower.engine.step(set_id, message)
    return begin(follower)


def said_when_free(broker: EnginePeer, kind: MessageKind) -> list[Message]:
    return [message for _, message in broker.engine.take_messages() if message.kind == kind]


def test_a_leader_whose_disk_hangs_answers_its_callers_when_another_is_elected(brokers: Three) -> None:
    leader = leader_of(brokers)
    told = leader.publish(SET, b"a")
    answers: list[Any] = []
    begun = leader.engine.pump()
    assert begun is not None
    hear(brokers, [message for set_id, message in leader.engine.take_messages() if set_id == SET])
    leader.engine.ask(SET, Poll("g", "m", 1), lambda answer, _: answers.append(answer))
    brokers.down = {leader.number}
    successor = brokers.elect(SET)
    assert successor.replica(SET).partition.end_offset == 1
    term = successor.replica(SET).node.term
    leader.engine.step(
        SET, Message(kind=MessageKind.HEARTBEAT, sender=successor.number, receiver=leader.number, term=term)
    )
    assert leader.engine.pump() is None
    assert isinstance(told[0], NotLeader) and isinstance(answers[0], NotLeader)
    assert leader.replica(SET).node.role is Role.FOLLOWER
    finish(leader, begun)
    brokers.down = set()
    brokers.pass_time(30)
    assert ends(brokers) == [1, 1, 1]


def test_a_sync_that_never_ends_gathers_no_memory(brokers: Three) -> None:
    """Heartbeats are answered for days; what they made must not be kept until the sync ends."""
    leader = leader_of(brokers)
    leader.publish(SET, b"a")
    begin(leader)
    for _ in range(300):
        leader.engine.tick()
        for message in said(leader, MessageKind.HEARTBEAT):
            brokers.all[message.receiver].engine.step(SET, message)
        for number in EVERYBODY - {leader.number}:
            for set_id, message in worked(brokers.all[number]):
                if message.receiver == leader.number:
                    leader.engine.step(set_id, message)
    assert leader.leads(SET)
    assert leader.replica(SET).unstored == []
    assert leader.replica(CLUSTER_SET).unstored == []


def test_what_gathered_for_long_is_written_in_commits_of_bounded_size(
    brokers: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_RECORD_BYTES_MAX", 1_000)
    leader = leader_of(brokers)
    leader.publish(SET, b"a")
    commit: Commit | None = begin(leader)
    told = []
    for number in range(20):
        told.append(leader.publish(SET, b"%d" % number * 300))
        leader.engine.pump()
    sizes = []
    while commit is not None:
        finish(leader, commit)
        commit = leader.engine.pump()
        sizes += [] if commit is None else [commit.size]
    assert len(sizes) > 5 and max(sizes) < 2_500
    brokers.settle()
    brokers.pass_time(5)
    assert [fate[0].base_offset for fate in told] == list(range(1, 21))
    assert ends(brokers) == [21, 21, 21]
