"""A leader that has just started decides nothing by its own clock alone: a machine's time never goes back."""

from __future__ import annotations

from typing import Any

from lanner.broker.clock import AHEAD_MS_MAX
from lanner.cluster import METADATA_SET
from lanner.partition import Poll
from lanner.testing.flock import Broker, Flock

HOUR_MS = 3_600_000
LEASE_MS = 5_000


def led_by_a_wrong_clock() -> tuple[Flock, int, Broker]:
    """A set of three with a leased message, led by a broker that came back an hour ahead and has heard no time yet."""
    flock = Flock()
    (set_id,) = flock.create_topic("orders", lease_ms=LEASE_MS)
    flock.publish(set_id, b"first")
    old = flock.leader_of(set_id)
    assert old is not None
    poll(old, set_id, "holder")
    flock.pass_time(3)
    broker = next(one for one in flock.up() if one is not old)
    broker.stop()
    broker.ahead_ms, flock.timeless = HOUR_MS, True
    broker.start()
    flock.pass_time(2)
    for one in flock.up():
        one.replica(set_id).node.leader_silent()
    broker.replica(set_id).node.campaign()
    broker.engine.wake(set_id)
    flock.settle()
    assert broker.replica(set_id).node.own_term_applied
    return flock, set_id, broker


def poll(broker: Broker, set_id: int, member: str) -> list[Any]:
    told: list[Any] = []
    broker.engine.ask(set_id, Poll("workers", member, 1, max_messages=5), lambda answer, _index: told.append(answer))
    return told


def ahead_ms(flock: Flock, broker: Broker, set_id: int) -> int:
    return broker.replica(set_id).partition.machine_ms - flock.now_ms


def test_it_neither_leads_nor_decides_before_it_has_heard_what_time_others_have() -> None:
    flock, set_id, broker = led_by_a_wrong_clock()
    told = poll(broker, set_id, "other")
    flock.pass_time(60)  # the set would rest by now
    assert not broker.leads(set_id), "or a publish would be given the time, too"
    assert told == []
    assert ahead_ms(flock, broker, set_id) <= 0


def test_it_goes_on_as_soon_as_a_majority_of_clocks_is_known() -> None:
    flock, set_id, broker = led_by_a_wrong_clock()
    told = poll(broker, set_id, "other")
    flock.pass_time(60)
    other = next(one for one in flock.up() if one is not broker)
    broker.clock.observe(other.node_id, flock.now_ms)
    flock.settle()
    assert broker.leads(set_id)
    assert len(told) == 1
    assert ahead_ms(flock, broker, set_id) <= AHEAD_MS_MAX


def test_a_lease_that_ends_meanwhile_is_not_forgotten_and_none_ends_early() -> None:
    flock, set_id, broker = led_by_a_wrong_clock()
    partition = broker.replica(set_id).partition
    flock.pass_time(10)
    flock.timeless = False
    flock.pass_time(3)
    assert partition.describe_group("workers", flock.now_ms).leased == 1
    flock.pass_time(LEASE_MS // 50)
    assert partition.describe_group("workers", flock.now_ms).leased == 0
    assert ahead_ms(flock, broker, set_id) <= AHEAD_MS_MAX


def test_a_set_without_peers_goes_by_the_clock_of_its_only_broker() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("alone", replication=1)
    broker = flock.leader_of(set_id)
    assert broker is not None
    broker.stop()
    flock.timeless = True
    broker.start()
    flock.until(lambda: broker.leads(set_id))
    assert broker.clock.known() == 1


def test_the_metadata_has_no_time_to_wait_for() -> None:
    flock = Flock("abc", found=False)
    flock.timeless = True
    flock.until(lambda: all(broker.cluster.cluster_id for broker in flock.up()))
    assert flock.leader_of(METADATA_SET) is not None
