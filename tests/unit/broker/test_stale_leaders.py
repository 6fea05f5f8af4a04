"""A leader that was deposed and does not know it yet: whatever it says rests on what a majority had stored."""

from __future__ import annotations

from typing import Any

from lanner import batch
from lanner.errors import NotLeader
from lanner.partition import Poll, Settle, SettleItem, encode_append
from lanner.testing.flock import Broker, Flock


def deposed(*, leased: bool = False) -> tuple[Flock, int, Broker, Broker]:
    """A set with one message, a leader that was cut off, and the one that leads now."""
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    flock.publish(set_id, b"first")
    flock.pass_time(3)
    stale = flock.leader_of(set_id)
    assert stale is not None
    if leased:
        stale.engine.ask(set_id, Poll("g", "m", 1, max_messages=5), lambda answer, _index: None)
        flock.settle()
    flock.cut = {stale.node_id}
    voters = [broker for broker in flock.up() if broker is not stale]
    for broker in voters:
        broker.replica(set_id).node.leader_silent()
    voters[0].replica(set_id).node.campaign()
    voters[0].engine.wake(set_id)
    flock.settle()
    assert stale.leads(set_id) and voters[0].leads(set_id), "two of them, of different terms"
    return flock, set_id, stale, voters[0]


def test_it_leases_nothing() -> None:
    flock, set_id, stale, _ = deposed()
    told: list[Any] = []
    stale.engine.ask(set_id, Poll("g", "m", 1, max_messages=5), lambda answer, _index: told.append(answer))
    flock.settle()
    assert told == []
    flock.pass_time(40)
    assert isinstance(told[0], NotLeader)


def test_it_acknowledges_nothing_and_shows_nothing_that_is_not_committed() -> None:
    flock, set_id, stale, leader = deposed()
    told: list[Any] = []
    stale.engine.propose(set_id, encode_append(0, batch.encode([b"never"])), told.append)
    flock.settle()
    assert flock.publish(set_id, b"second").base_offset == 1
    assert told == []
    partition = stale.replica(set_id).partition
    assert partition.end_offset == 1 and len(partition.batches_from(0, 1 << 20)) == 1
    flock.cut = set()
    flock.pass_time(60)
    assert isinstance(told[0], NotLeader)
    assert flock.count(stale, set_id) == flock.count(leader, set_id) == 2


def test_a_settle_there_is_not_confirmed_even_if_its_lease_was_good() -> None:
    flock, set_id, stale, leader = deposed(leased=True)
    token = stale.replica(set_id).partition.applied_index
    told: list[Any] = []
    settle = Settle("g", [SettleItem(token, 0, 1)])
    stale.engine.ask(set_id, settle, lambda answer, _index: told.append(answer))
    flock.settle()
    assert told == []
    flock.pass_time(40)
    assert isinstance(told[0], NotLeader)
    leader.engine.ask(set_id, settle, lambda answer, _index: told.append(answer))
    flock.settle()
    assert isinstance(told[1], list), "the leader that counts takes it"


def test_followers_keep_no_payloads_for_readers_who_do_not_come() -> None:
    flock = Flock(cache_bytes=1 << 20)
    (set_id,) = flock.create_topic("orders")
    flock.publish(set_id, b"first")
    flock.pass_time(5)
    leader = flock.leader_of(set_id)
    assert leader is not None
    stored = leader.replica(set_id).partition.batch_at(0)
    assert stored is not None
    kept = {broker.name for broker in flock.up() if broker.engine.cache.get(set_id, stored.index) is not None}
    assert kept == {leader.name}
