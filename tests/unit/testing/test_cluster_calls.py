"""Calls to a simulated cluster: passed on, answered, lost, and known to be over when nobody outside can know it."""

from __future__ import annotations

from typing import Any

import pytest

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import encode_allocate_producers
from lanner.errors import NotLeader
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_calls import CLIENT, Answered, Told
from lanner.testing.parties import LOST
from lanner.testing.sim_cluster import SimCluster

TIMEOUT_MS = 1_000


class Caller:
    """One call, what it heard, and whether it was told that the call is over."""

    def __init__(self, cluster: SimCluster, receiver: int) -> None:
        self.heard: list[Answered] = []
        self.over = False
        cluster.calls.make(CLUSTER_SET, receiver, self._begin, self.heard.append, self._end, TIMEOUT_MS)

    @staticmethod
    def _begin(broker: ClusterBroker, told: Told) -> None:
        broker.engine.propose(CLUSTER_SET, encode_allocate_producers(1), lambda result: told(result, 0))

    def _end(self) -> None:
        self.over = True

    @property
    def answer(self) -> Any:
        (heard,) = self.heard
        return heard.answer


@pytest.fixture
def cluster() -> SimCluster:
    cluster = SimCluster(4, 3)
    cluster.run_until(lambda: cluster.metadata_leader() is not None, 20_000, "no leader")
    cluster.run_for(500)
    return cluster


def leader(cluster: SimCluster) -> ClusterBroker:
    found = cluster.metadata_leader()
    assert found is not None
    return found


def others(cluster: SimCluster) -> list[int]:
    return [number for number in cluster.brokers if number != leader(cluster).number]


def test_the_leader_answers(cluster: SimCluster) -> None:
    caller = Caller(cluster, leader(cluster).number)
    cluster.run_for(100)
    assert isinstance(caller.answer, int)
    assert caller.heard[0].leader == leader(cluster).number
    assert len(cluster.calls) == 0
    assert not caller.over  # nobody need be told of what was heard


def test_another_broker_passes_the_call_on_and_the_answer_back(cluster: SimCluster) -> None:
    caller = Caller(cluster, others(cluster)[0])
    cluster.run_for(100)
    assert isinstance(caller.answer, int)
    assert cluster.counts["forwards"] == 1


def test_a_broker_that_knows_no_leader_refuses_before_anything_happens(cluster: SimCluster) -> None:
    number = others(cluster)[0]
    cluster.network.split([number], [one for one in cluster.brokers if one != number])
    cluster.run_for(5_000)
    caller = Caller(cluster, number)
    cluster.run_for(100)
    assert isinstance(caller.answer, NotLeader)
    assert caller.heard[0].refused


def test_a_call_that_is_lost_on_its_way_is_unknown_and_over(cluster: SimCluster) -> None:
    cluster.network.cut(CLIENT, 1)
    caller = Caller(cluster, 1)
    cluster.run_for(TIMEOUT_MS - 1)
    assert caller.heard == []
    cluster.run_for(2)
    assert caller.answer is LOST
    assert caller.over
    assert not cluster.calls.waiting


def test_a_broker_that_is_down_takes_no_call(cluster: SimCluster) -> None:
    number = others(cluster)[0]
    cluster.crash(cluster.brokers[number], down_ms=60_000)
    caller = Caller(cluster, number)
    cluster.run_for(TIMEOUT_MS + 1)
    assert caller.answer is LOST
    assert caller.over


def test_an_answer_that_is_lost_leaves_the_caller_in_doubt_but_the_call_is_over(cluster: SimCluster) -> None:
    number = leader(cluster).number
    before = leader(cluster).engine.cluster._state.counters.next_producer_id
    cluster.network.cut(number, CLIENT)
    caller = Caller(cluster, number)
    cluster.run_for(TIMEOUT_MS + 1)
    assert caller.answer is LOST
    assert caller.over
    assert leader(cluster).engine.cluster._state.counters.next_producer_id == before + 1


def test_what_a_deposed_leader_had_is_over_when_a_later_term_has_committed(cluster: SimCluster) -> None:
    old = leader(cluster)
    cluster.network.split([old.number], others(cluster))
    caller = Caller(cluster, old.number)
    cluster.run_for(TIMEOUT_MS + 1)
    assert caller.answer is LOST
    assert not caller.over
    cluster.run_until(lambda: cluster.metadata_leader() not in (None, old), 20_000, "nobody else leads")
    assert caller.over
    assert not cluster.calls.waiting


def test_what_a_crashed_leader_had_is_in_doubt_until_another_has_committed(cluster: SimCluster) -> None:
    old = leader(cluster)
    caller = Caller(cluster, old.number)
    while not any(call.broker is old for call in cluster.calls._calls.values()):
        cluster.step()
    cluster.crash(old, down_ms=60_000)
    cluster.run_for(TIMEOUT_MS - 100)
    assert not caller.over
    cluster.run_until(lambda: cluster.metadata_leader() not in (None, old), 20_000, "nobody else leads")
    cluster.run_for(TIMEOUT_MS)
    assert caller.answer is LOST
    assert caller.over


def test_at_rest_every_doubt_can_be_ended(cluster: SimCluster) -> None:
    old = leader(cluster)
    cluster.network.split([old.number], others(cluster))
    caller = Caller(cluster, old.number)
    cluster.run_for(TIMEOUT_MS + 1)
    (call,) = cluster.calls._calls.values()
    cluster.calls._doubt(call)
    cluster.calls.end()
    assert caller.over
