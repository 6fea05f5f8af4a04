"""Three engines over three disks in memory, and a network that is a list: the same engine, with peers."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest

from lanner import batch
from lanner.broker.replicas.engine import CLUSTER_SET, Engine, Seat
from lanner.errors import NotLeader
from lanner.ledger import Ledger, perform
from lanner.partition import Appended, Poll, encode_append
from lanner.raft import Message, Role
from lanner.storage import MemoryFiles, MemoryTable

EVERYBODY = frozenset({1, 2, 3})


class Broker:
    """One engine with its disk."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.files, self.table = MemoryFiles(), MemoryTable()
        self.start()

    def start(self) -> None:
        ledger = Ledger.recover(self.files, self.table, random_bytes=os.urandom, segment_bytes=1 << 20)
        self.engine = Engine(ledger, self.files, rng=Random(self.number), now_ms=lambda: 1_000_000)
        for set_id in (CLUSTER_SET, 1):
            self.engine.open_set(set_id, Seat(self.number, EVERYBODY))

    def work(self) -> list[tuple[int, Message]]:
        """Store and apply all there is to; what is to be sent."""
        while (commit := self.engine.pump()) is not None:
            perform(commit, self.files)
            self.engine.committed(commit)
        return self.engine.take_messages()

    def save(self) -> None:
        job = self.engine.begin_save()
        assert job is not None
        while self.engine.save_step(job):
            pass
        self.table.commit(job.puts)
        self.engine.saved(job)

    @property
    def leads(self) -> bool:
        return self.engine.replica(1).leads

    def publish(self, value: bytes) -> list[Any]:
        told: list[Any] = []
        self.engine.propose(1, encode_append(1_000_000, batch.encode([value])), told.append)
        return told


class Brokers:
    """Three of them; those in `down` neither work nor hear anything."""

    def __init__(self) -> None:
        self.all = {number: Broker(number) for number in sorted(EVERYBODY)}
        self.down: set[int] = set()

    def up(self) -> list[Broker]:
        return [broker for number, broker in self.all.items() if number not in self.down]

    def settle(self) -> None:
        """Until nobody has anything to say."""
        messages = [sent for broker in self.up() for sent in broker.work()]
        while messages:
            for set_id, message in messages:
                if message.receiver not in self.down:
                    self.all[message.receiver].engine.step(set_id, message)
            messages = [sent for broker in self.up() for sent in broker.work()]

    def pass_time(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            for broker in self.up():
                broker.engine.tick()
            self.settle()

    def leader(self) -> Broker:
        for _ in range(200):
            self.pass_time()
            leaders = [broker for broker in self.up() if broker.leads]
            if leaders:
                return max(leaders, key=lambda broker: broker.engine.replica(1).node.term)
        raise AssertionError("nobody leads")

    def ends(self) -> list[int]:
        return [broker.engine.replica(1).partition.end_offset for broker in self.up()]


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def test_a_publish_is_told_when_a_majority_has_it_and_reaches_everybody(brokers: Brokers) -> None:
    told = brokers.leader().publish(b"a")
    assert told == []
    brokers.settle()
    assert told == [Appended(0, 1, 1_000_000, False)]
    brokers.pass_time(5)
    assert brokers.ends() == [1, 1, 1]


def test_without_a_majority_nobody_is_told_anything(brokers: Brokers) -> None:
    leader = brokers.leader()
    brokers.down = set(EVERYBODY - {leader.number})
    told = leader.publish(b"a")
    brokers.settle()
    assert told == []


def test_a_leader_that_lost_its_majority_tells_its_callers_to_ask_again(brokers: Brokers) -> None:
    leader = brokers.leader()
    brokers.down = set(EVERYBODY - {leader.number})
    told = leader.publish(b"a")
    answers: list[Any] = []
    leader.engine.ask(1, Poll("g", "m", 1), lambda answer, _: answers.append(answer))
    brokers.pass_time(100)
    assert not leader.leads
    assert isinstance(told[0], NotLeader) and isinstance(answers[0], NotLeader)
    assert leader.engine.unapplied_bytes == 0


def test_a_question_asked_during_a_decision_is_answered_without_a_tick(brokers: Brokers) -> None:
    leader = brokers.leader()
    leader.publish(b"a")
    brokers.settle()
    answers: list[Any] = []
    leader.engine.ask(1, Poll("g", "m", 1), lambda answer, _: answers.append(answer))
    sent = leader.work()  # the decision is on its way to the others
    leader.engine.ask(1, Poll("h", "m", 2), lambda answer, _: answers.append(answer))
    assert answers == []
    for set_id, message in sent:
        brokers.all[message.receiver].engine.step(set_id, message)
    brokers.settle()
    assert len(answers) == 2


def test_a_follower_refuses_at_once(brokers: Brokers) -> None:
    leader = brokers.leader()
    follower = next(broker for broker in brokers.up() if broker is not leader)
    with pytest.raises(NotLeader):
        follower.publish(b"a")
    answers: list[Any] = []
    follower.engine.ask(1, Poll("g", "m", 1), lambda answer, _: answers.append(answer))
    assert isinstance(answers[0], NotLeader)


def test_another_takes_over_with_everything_acknowledged_and_the_old_one_catches_up(brokers: Brokers) -> None:
    first = brokers.leader()
    told = [first.publish(b"%d" % number) for number in range(20)]
    brokers.settle()
    assert all(isinstance(fate[0], Appended) for fate in told)
    unsure = first.publish(b"never sent")
    first.work()
    brokers.down = {first.number}
    second = brokers.leader()
    assert second is not first
    assert second.engine.replica(1).partition.end_offset == 20
    told = [second.publish(b"later %d" % number) for number in range(5)]
    brokers.settle()
    assert [fate[0].base_offset for fate in told] == [20, 21, 22, 23, 24]
    brokers.down = set()
    brokers.pass_time(100)
    assert brokers.ends() == [25, 25, 25]
    assert isinstance(unsure[0], NotLeader)
    assert first.engine.replica(1).node.role is Role.FOLLOWER


@pytest.mark.parametrize("saved", [False, True])
def test_all_three_come_back_from_their_disks(brokers: Brokers, saved: bool) -> None:
    leader = brokers.leader()
    for number in range(10):
        leader.publish(b"%d" % number)
    brokers.settle()
    brokers.pass_time(5)
    for broker in brokers.up():
        if saved:
            broker.save()
        broker.start()
    leader = brokers.leader()
    brokers.pass_time(5)
    assert brokers.ends() == [10, 10, 10]
    assert leader.engine.replica(1).node.voters == EVERYBODY


def test_a_snapshot_that_is_read_slowly_holds_back_the_saves_of_its_own_set_only(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = brokers.leader()
    leader.publish(b"a")
    brokers.settle()
    engine = leader.engine
    with monkeypatch.context() as patch:
        patch.setattr(type(engine.sending), "holds", lambda _sending, set_id: set_id == 1)
        leader.save()
        assert engine.ledger.state(CLUSTER_SET).saved_index == engine.replica(CLUSTER_SET).node.applied_index
        assert engine.ledger.state(1).saved_index < engine.replica(1).node.applied_index
    leader.save()
    assert engine.ledger.state(1).saved_index == engine.replica(1).node.applied_index
