"""Sets in which nothing happens quiesce on all their brokers, and wake for whatever happens to them."""

from __future__ import annotations

from typing import Any

import pytest

from lanner import batch
from lanner.broker.replicas.quiescence import QUIESCE_TICKS
from lanner.cluster import METADATA_SET, encode_transfer_leader
from lanner.errors import NotLeader
from lanner.partition import WAIT, Poll, encode_append
from lanner.raft import Message, MessageKind
from lanner.testing.flock import SILENT_TICKS, Broker, Flock

ELECTION_TICKS = 40  # the longest timeout


def asleep(flock: Flock) -> bool:
    return all(set(broker.engine.quiesced()) == set(broker.engine.replicas) for broker in flock.up())


def rested(seed: int = 0) -> tuple[Flock, int, Broker]:
    """A cluster in which everything is quiesced; one of its sets, and who leads it."""
    flock = Flock(seed=seed)
    (set_id,) = flock.create_topic("orders")
    flock.publish(set_id, b"first")
    flock.pass_time(3 * QUIESCE_TICKS)
    assert asleep(flock)
    leader = flock.leader_of(set_id)
    assert leader is not None
    flock.watching = True
    return flock, set_id, leader


def test_when_nothing_happens_nothing_is_said() -> None:
    flock, _, leader = rested()
    before = leader.replica(METADATA_SET).node.elapsed_ticks
    flock.pass_time(1_000)
    assert flock.sent == [] and asleep(flock)
    assert leader.replica(METADATA_SET).node.elapsed_ticks == before, "nor is anybody ticked"


def test_a_set_does_not_rest_while_it_is_used() -> None:
    flock, set_id, leader = rested()
    for _ in range(3 * QUIESCE_TICKS):
        flock.publish(set_id, b"x")
        flock.pass_time()
        assert set_id not in leader.engine.quiesced()


def test_a_publish_wakes_the_set_and_it_rests_again() -> None:
    flock, set_id, leader = rested()
    assert flock.publish(set_id, b"second").base_offset == 1
    assert all(set_id not in broker.engine.quiesced() for broker in flock.up())
    flock.pass_time(QUIESCE_TICKS + 5)
    assert asleep(flock)
    assert all(flock.count(broker, set_id) == 2 for broker in flock.up()), "everybody knows before they quiesce"
    assert leader.leads(set_id)


def test_a_poll_that_finds_nothing_wakes_nobody() -> None:
    flock, set_id, leader = rested()
    answers: list[Any] = []

    def poll(sequence: int) -> None:
        leader.engine.ask(set_id, Poll("g", "m", sequence, max_messages=9), lambda *told: answers.append(told))
        flock.settle()

    poll(1)
    assert set_id not in leader.engine.quiesced(), "the first one takes a lease"
    flock.pass_time(2 * QUIESCE_TICKS)
    flock.sent.clear()
    poll(2)
    assert answers[-1] == (WAIT, 0) or not answers[-1][0].leases
    assert asleep(flock) and flock.sent == []


def test_a_set_at_rest_elects_another_leader_when_its_leaders_broker_is_no_longer_heard() -> None:
    flock, set_id, leader = rested()
    leader.stop()
    ticks = 0
    while flock.leader_of(set_id) is None:
        flock.pass_time()
        ticks += 1
    assert ticks <= SILENT_TICKS + ELECTION_TICKS // 2, "as soon as a set that is awake"
    assert flock.publish(set_id, b"second").base_offset == 1
    flock.pass_time(3 * QUIESCE_TICKS)
    assert asleep(flock), "two of three can quiesce as well"


def test_a_broker_that_returns_catches_up_with_a_set_that_rests() -> None:
    flock, set_id, leader = rested()
    away = next(broker for broker in flock.up() if broker is not leader)
    away.stop()
    flock.pass_time(SILENT_TICKS + 1)
    flock.publish(set_id, b"second")
    flock.pass_time(3 * QUIESCE_TICKS)
    assert asleep(flock)
    away.start()
    flock.until(lambda: set_id in away.engine.replicas and flock.count(away, set_id) == 2, 3 * ELECTION_TICKS)
    flock.pass_time(5 * QUIESCE_TICKS)
    assert asleep(flock)


def test_a_broker_that_was_only_cut_off_catches_up_with_a_set_that_rests() -> None:
    flock, set_id, leader = rested()
    away = next(broker for broker in flock.up() if broker is not leader)
    flock.cut = {away.node_id}
    flock.pass_time(SILENT_TICKS + 1)
    flock.publish(set_id, b"second")
    flock.pass_time(3 * QUIESCE_TICKS)
    assert set_id in leader.engine.quiesced() and set_id not in away.engine.quiesced()
    flock.cut = set()
    flock.until(lambda: flock.count(away, set_id) == 2, 3 * ELECTION_TICKS)
    assert leader.leads(set_id), "and disturbs nobody"


def test_a_follower_whose_answers_are_lost_does_not_rest_without_what_it_lacks() -> None:
    flock, set_id, leader = rested()
    away = next(broker for broker in flock.up() if broker is not leader)
    number = away.replica(set_id).node.node_id
    flock.lost = lambda at, message: at == set_id and number in (message.sender, message.receiver)
    leader.replica(set_id).node.report_unreachable(number)
    flock.publish(set_id, b"second")
    flock.pass_time(2 * QUIESCE_TICKS)
    flock.lost = lambda at, message: at == set_id and message.sender == number  # it hears, and is not heard
    flock.pass_time(4 * QUIESCE_TICKS)
    assert set_id not in away.engine.quiesced()
    flock.lost = lambda at, message: False
    flock.until(lambda: flock.count(away, set_id) == 2, 3 * ELECTION_TICKS)


def test_a_leader_at_rest_that_was_cut_off_does_not_answer() -> None:
    flock, set_id, leader = rested()
    told: list[Any] = []
    flock.cut = {leader.node_id}
    leader.engine.propose(set_id, encode_append(0, batch.encode([b"lost"])), told.append)
    leader.engine.ask(set_id, Poll("g", "m", 1, max_messages=9), lambda answer, _index: told.append(answer))
    flock.settle()
    assert told == []
    flock.until(lambda: flock.leader_of(set_id) is not None)
    assert flock.publish(set_id, b"second").base_offset == 1
    flock.pass_time(ELECTION_TICKS)
    assert [type(answer) for answer in told] == [NotLeader, NotLeader]


def test_a_leader_at_rest_that_was_cut_off_steps_down_although_nobody_asks_it_anything() -> None:
    flock, set_id, leader = rested()
    flock.cut = {leader.node_id}
    flock.pass_time(SILENT_TICKS + ELECTION_TICKS)
    assert not leader.leads(set_id)


def test_a_leader_whose_broker_restarts_faster_than_anybody_notices_is_replaced() -> None:
    flock, set_id, leader = rested()
    leader.stop()
    leader.start()
    flock.until(lambda: flock.leader_of(set_id) is not None, 2 * ELECTION_TICKS)
    assert flock.publish(set_id, b"second").base_offset == 1


def test_a_follower_that_could_not_rest_hears_heartbeats_again() -> None:
    flock, set_id, leader = rested()
    busy = next(broker for broker in flock.up() if broker is not leader)
    number = busy.held()[set_id]
    flock.publish(set_id, b"second")
    node = busy.replica(set_id).node
    flock.watching = False
    marks = 0

    def keep_busy(which: int, message: Message) -> bool:
        """Just before the mark arrives there is something that the follower has not got rid of."""
        nonlocal marks
        if which == set_id and message.receiver == number and message.hint and message.kind == MessageKind.HEARTBEAT:
            marks += 1
            node.attention = True
        return False

    flock.lost = keep_busy
    flock.pass_time(10 * QUIESCE_TICKS)
    assert leader.leads(set_id) and leader.replica(set_id).node.term == node.term, "nobody stood for election"
    assert set_id not in leader.engine.quiesced() or set_id not in busy.engine.quiesced()
    assert 5 <= marks <= 10, "it tries again, about once in the time that it waits for"
    flock.lost = lambda which, message: False
    flock.pass_time(3 * QUIESCE_TICKS)
    assert asleep(flock)


def test_a_mark_of_rest_means_nothing_to_who_has_something_to_do() -> None:
    flock, set_id, leader = rested()
    other = next(broker for broker in flock.up() if broker is not leader)
    node = other.replica(set_id).node
    mark = Message(
        kind=MessageKind.HEARTBEAT, sender=leader.held()[set_id], receiver=node.node_id, term=node.term, hint=1
    )
    other.engine.wake(set_id)
    other.engine.step(set_id, mark)
    assert set_id in other.engine.quiesced() and other.engine.take_messages() == []
    other.engine.wake(set_id)
    node.attention = True
    other.engine.step(set_id, mark)
    assert set_id not in other.engine.quiesced()
    other.engine.pump()
    assert [message.kind for _, message in other.engine.take_messages()] == [MessageKind.HEARTBEAT_REPLY]


def test_a_leader_does_not_rest_while_a_follower_that_it_hears_is_behind() -> None:
    flock, set_id, leader = rested()
    number = next(number for number in leader.replica(set_id).node.voters if number != leader.held()[set_id])
    flock.lost = lambda which, message: which == set_id and message.receiver == number and bool(message.entries)
    flock.publish(set_id, b"second")
    for _ in range(5 * QUIESCE_TICKS):
        flock.pass_time()
        assert set_id not in leader.engine.quiesced()


def test_a_leader_at_rest_whose_words_are_lost_finds_out_although_the_brokers_hear_each_other() -> None:
    flock, set_id, leader = rested()
    told: list[Any] = []
    flock.lost = lambda which, message: which == set_id
    leader.engine.propose(set_id, encode_append(0, batch.encode([b"lost"])), told.append)
    flock.pass_time(ELECTION_TICKS)
    assert isinstance(told[0], NotLeader)


def test_a_mark_that_is_lost_costs_some_heartbeats_and_no_leader() -> None:
    flock, set_id, leader = rested()
    term = leader.replica(set_id).node.term
    number = next(number for number in leader.replica(set_id).node.voters if number != leader.held()[set_id])
    flock.publish(set_id, b"second")
    lost = 0

    def lose_one(which: int, message: Message) -> bool:
        nonlocal lost
        mark = which == set_id and message.receiver == number and message.hint and message.kind == MessageKind.HEARTBEAT
        lost += bool(mark)
        return bool(mark) and lost == 1

    flock.lost = lose_one
    flock.pass_time(QUIESCE_TICKS + ELECTION_TICKS + 3 * QUIESCE_TICKS)
    assert lost >= 2 and asleep(flock)
    assert leader.leads(set_id) and leader.replica(set_id).node.term == term


@pytest.mark.parametrize("seed", range(4))
def test_two_brokers_that_do_not_hear_each_other_depose_nobody_whom_a_third_one_hears(seed: int) -> None:
    flock, set_id, leader = rested(seed)
    term = leader.replica(set_id).node.term
    other = next(broker for broker in flock.up() if broker is not leader)
    flock.parted = {frozenset({leader.node_id, other.node_id})}
    flock.pass_time(20 * ELECTION_TICKS)
    assert leader.leads(set_id) and leader.replica(set_id).node.term == term
    flock.parted = set()
    flock.pass_time(ELECTION_TICKS + 3 * QUIESCE_TICKS)
    assert asleep(flock) and leader.leads(set_id)


def test_a_hand_over_wakes_a_set_that_rests() -> None:
    flock, set_id, leader = rested()
    other = next(broker for broker in flock.up() if broker is not leader)
    flock.command(encode_transfer_leader(set_id, other.node_id))
    flock.until(lambda: other.leads(set_id))
    flock.pass_time(200)
    assert asleep(flock)


def test_the_metadata_finds_another_leader_before_the_cluster_is_founded() -> None:
    flock = Flock(found=False)
    for broker in flock.up():
        broker.steward.founding = None
    flock.until(lambda: flock.leader_of(METADATA_SET) is not None)
    flock.pass_time(3 * QUIESCE_TICKS)
    leader = flock.leader_of(METADATA_SET)
    assert leader is not None and asleep(flock)
    leader.stop()
    flock.until(lambda: flock.leader_of(METADATA_SET) is not None, SILENT_TICKS + ELECTION_TICKS // 2)


def test_sets_of_one_broker_rest_too() -> None:
    flock = Flock("a")
    flock.create_topic("orders", partitions=3, replication=1)
    flock.pass_time(2 * QUIESCE_TICKS)
    assert asleep(flock)
    assert flock.publish(1, b"x").base_offset == 0
