"""Who leads, as one broker knows it: its own replica's word, the pulses of others, and never one that is silent."""

from __future__ import annotations

from lanner.broker.links.leaders import KnownLeaders
from lanner.testing.flock import Broker, Flock

ELSEWHERE = 99  # a set without a replica here


class Pulses:
    def __init__(self, *alive: str) -> None:
        self.leaders: dict[int, tuple[int, str]] = {}
        self.alive = set(alive)

    def is_alive(self, node_id: str) -> bool:
        return node_id in self.alive


def seen_by(broker: Broker, pulses: Pulses) -> KnownLeaders:
    return KnownLeaders(broker.node_id, broker.engine.replicas, broker.steward.route, pulses)


def test_of_a_set_without_a_replica_here_the_pulses_say_who_leads() -> None:
    pulses = Pulses("node-b")
    leaders = seen_by(Flock("abc").brokers["a"], pulses)
    assert leaders.leader_of(ELSEWHERE) == ""
    pulses.leaders[ELSEWHERE] = (5, "node-b")
    assert leaders.leader_of(ELSEWHERE) == "node-b"
    pulses.leaders[ELSEWHERE] = (5, "node-c")
    assert leaders.leader_of(ELSEWHERE) == "", "it is silent"
    pulses.alive.add("node-a")
    pulses.leaders[ELSEWHERE] = (5, "node-a")
    assert leaders.leader_of(ELSEWHERE) == "", "what this broker does not lead itself, it does not lead"


def test_of_a_set_with_a_replica_here_that_knows_who_leads() -> None:
    flock = Flock("abc")
    (set_id,) = flock.create_topic("orders", 1, 3)
    flock.until(lambda: flock.is_home(set_id))
    leader = flock.leader_of(set_id)
    assert leader is not None
    for broker in flock.brokers.values():
        pulses = Pulses("node-a", "node-b", "node-c")
        assert seen_by(broker, pulses).leader_of(set_id) == leader.node_id
        pulses.alive.clear()
        expected = leader.node_id if broker is leader else ""
        assert seen_by(broker, pulses).leader_of(set_id) == expected, "a silent broker serves nobody"


def test_a_leader_that_may_not_decide_yet_serves_nobody() -> None:
    flock = Flock("abc")
    (set_id,) = flock.create_topic("orders", 1, 3)
    flock.until(lambda: flock.is_home(set_id))
    leader = flock.leader_of(set_id)
    assert leader is not None
    for name in "abc":
        leader.clock.forget(f"node-{name}")
    assert not leader.replica(set_id).leads
    assert seen_by(leader, Pulses("node-a", "node-b", "node-c")).leader_of(set_id) == ""


def test_while_an_election_is_on_a_pulse_of_that_term_or_a_later_one_counts() -> None:
    flock = Flock("abc", found=False)
    broker = flock.brokers["a"]
    pulses = Pulses("node-b")
    node = broker.replica(0).node
    node.campaign()
    assert node.leader_id == 0
    pulses.leaders[0] = (node.term - 1, "node-b")
    assert seen_by(broker, pulses).leader_of(0) == "", "a leader of an older term leads no more"
    pulses.leaders[0] = (node.term, "node-b")
    assert seen_by(broker, pulses).leader_of(0) == "node-b"
