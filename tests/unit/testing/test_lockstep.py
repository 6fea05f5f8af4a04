"""Brokers in lockstep: nothing happens unless it is told to, and what was told happens at once."""

from __future__ import annotations

import pytest

from bench.engines import busy
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.errors import TopicExists
from lanner.partition import Appended
from lanner.testing.flock import Flock
from lanner.testing.lockstep import EnginePeer, Engines

SET = 1


def three() -> Engines[EnginePeer]:
    voters = frozenset({1, 2, 3})
    return Engines(EnginePeer(number, voters, (CLUSTER_SET, SET)) for number in sorted(voters))


def test_without_time_nobody_leads_and_with_it_somebody_does() -> None:
    engines = three()
    engines.settle()
    assert engines.leader_of(SET) is None
    assert engines.elect(SET).leads(SET)


def test_two_runs_come_to_the_same() -> None:
    first, second = three(), three()
    assert first.elect(SET).number == second.elect(SET).number
    assert [one.leader_ms() for one in first.up()] == [one.leader_ms() for one in second.up()]


def test_what_is_published_is_told_within_settle_and_survives_a_start_saved_or_not() -> None:
    engines = three()
    leader = engines.elect(SET)
    told = leader.publish(SET, b"one", b"two")
    assert told == []
    engines.settle()
    assert [(answer.base_offset, answer.count) for answer in told] == [(0, 2)]
    engines.pass_time(5)
    leader.save()
    for broker in engines.up():
        broker.start()
    engines.elect(SET)
    engines.pass_time(5)
    assert [broker.replica(SET).partition.end_offset for broker in engines.up()] == [2, 2, 2]


def test_who_is_down_neither_works_nor_hears_and_forgets_nothing() -> None:
    engines = three()
    leader = engines.elect(SET)
    engines.down = {broker.number for broker in engines.up() if broker is not leader}
    told = leader.publish(SET, b"one")
    engines.settle()
    assert told == [] and engines.up() == [leader]
    engines.down = set()
    engines.pass_time(20)
    assert isinstance(told[0], Appended)


def test_a_condition_that_never_comes_true_is_said() -> None:
    with pytest.raises(AssertionError, match="never comes true"):
        three().until(lambda: False, ticks=3)


def test_a_flock_is_founded_and_a_command_is_known_to_everybody_when_it_returns() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    assert flock.place(set_id) == set("abc") and flock.is_home(set_id)
    assert all("orders" in broker.cluster.topics for broker in flock.up())
    with pytest.raises(TopicExists):
        flock.create_topic("orders")


def test_who_is_cut_off_is_heard_of_no_more_until_it_is_back() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    leader = flock.leader_of(set_id)
    assert leader is not None
    flock.cut = {leader.node_id}
    assert flock.publish(set_id, b"one").base_offset == 0
    assert flock.leader_of(set_id) is not leader and flock.count(leader, set_id) == 0
    flock.cut = set()
    flock.until(lambda: flock.count(leader, set_id) == 1)


def test_the_measurement_of_three_brokers_runs() -> None:
    rate, note = busy(100, 1, 1, 0.01)
    assert rate > 0 and note.startswith("4.00 messages")
