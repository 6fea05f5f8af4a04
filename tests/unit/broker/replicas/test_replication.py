"""Three engines over three disks in memory, and a network that is a list: the same engine, with peers."""

from __future__ import annotations

from typing import Any

import pytest

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.errors import NotLeader
from lanner.partition import Appended, Poll
from lanner.raft import Role
from lanner.testing.lockstep import EnginePeer, Engines

EVERYBODY = frozenset({1, 2, 3})
SET = 1
Three = Engines[EnginePeer]


def three() -> Three:
    """Three brokers with the metadata and one partition."""
    return Three(EnginePeer(number, EVERYBODY, (CLUSTER_SET, SET)) for number in sorted(EVERYBODY))


def ends(brokers: Three) -> list[int]:
    return [broker.replica(SET).partition.end_offset for broker in brokers.up()]


@pytest.fixture
def brokers() -> Three:
    return three()


def test_a_publish_is_told_when_a_majority_has_it_and_reaches_everybody(brokers: Three) -> None:
    told = brokers.elect(SET).publish(SET, b"a")
    assert told == []
    brokers.settle()
    assert told == [Appended(0, 1, 1_000_000, False)]
    brokers.pass_time(5)
    assert ends(brokers) == [1, 1, 1]


def test_without_a_majority_nobody_is_told_anything(brokers: Three) -> None:
    leader = brokers.elect(SET)
    brokers.down = set(EVERYBODY - {leader.number})
    told = leader.publish(SET, b"a")
    brokers.settle()
    assert told == []


def test_a_leader_that_lost_its_majority_tells_its_callers_to_ask_again(brokers: Three) -> None:
    leader = brokers.elect(SET)
    brokers.down = set(EVERYBODY - {leader.number})
    told = leader.publish(SET, b"a")
    answers: list[Any] = []
    leader.engine.ask(SET, Poll("g", "m", 1), lambda answer, _: answers.append(answer))
    brokers.pass_time(100)
    assert not leader.leads(SET)
    assert isinstance(told[0], NotLeader) and isinstance(answers[0], NotLeader)
    assert leader.engine.unapplied_bytes == 0


def test_a_question_asked_during_a_decision_is_answered_without_a_tick(brokers: Three) -> None:
    leader = brokers.elect(SET)
    leader.publish(SET, b"a")
    brokers.settle()
    answers: list[Any] = []
    leader.engine.ask(SET, Poll("g", "m", 1), lambda answer, _: answers.append(answer))
    leader.work()  # the decision is on its way to the others
    leader.engine.ask(SET, Poll("h", "m", 2), lambda answer, _: answers.append(answer))
    assert answers == []
    brokers.settle()
    assert len(answers) == 2


def test_a_follower_refuses_at_once(brokers: Three) -> None:
    leader = brokers.elect(SET)
    follower = next(broker for broker in brokers.up() if broker is not leader)
    with pytest.raises(NotLeader):
        follower.publish(SET, b"a")
    answers: list[Any] = []
    follower.engine.ask(SET, Poll("g", "m", 1), lambda answer, _: answers.append(answer))
    assert isinstance(answers[0], NotLeader)


def test_another_takes_over_with_everything_acknowledged_and_the_old_one_catches_up(
    brokers: Three,
) -> None:
    first = brokers.elect(SET)
    told = [first.publish(SET, b"%d" % number) for number in range(20)]
    brokers.settle()
    assert all(isinstance(fate[0], Appended) for fate in told)
    unsure = first.publish(SET, b"never sent")
    first.work()
    first.engine.take_messages()
    brokers.down = {first.number}
    second = brokers.elect(SET)
    assert second is not first
    assert second.replica(SET).partition.end_offset == 20
    told = [second.publish(SET, b"later %d" % number) for number in range(5)]
    brokers.settle()
    assert [fate[0].base_offset for fate in told] == [20, 21, 22, 23, 24]
    brokers.down = set()
    brokers.pass_time(100)
    assert ends(brokers) == [25, 25, 25]
    assert isinstance(unsure[0], NotLeader)
    assert first.replica(SET).node.role is Role.FOLLOWER


@pytest.mark.parametrize("saved", [False, True])
def test_all_three_come_back_from_their_disks(brokers: Three, saved: bool) -> None:
    leader = brokers.elect(SET)
    for number in range(10):
        leader.publish(SET, b"%d" % number)
    brokers.settle()
    brokers.pass_time(5)
    for broker in brokers.up():
        if saved:
            broker.save()
        broker.start()
    leader = brokers.elect(SET)
    brokers.pass_time(5)
    assert ends(brokers) == [10, 10, 10]
    assert leader.replica(SET).node.voters == EVERYBODY


def test_a_snapshot_that_is_read_slowly_holds_back_the_saves_of_its_own_set_only(
    brokers: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = brokers.elect(SET)
    leader.publish(SET, b"a")
    brokers.settle()
    engine = leader.engine
    with monkeypatch.context() as patch:
        patch.setattr(type(engine.sending), "holds", lambda _sending, set_id: set_id == SET)
        leader.save()
        assert engine.ledger.state(CLUSTER_SET).saved_index == leader.replica(CLUSTER_SET).node.applied_index
        assert engine.ledger.state(SET).saved_index < leader.replica(SET).node.applied_index
    leader.save()
    assert engine.ledger.state(SET).saved_index == leader.replica(SET).node.applied_index
