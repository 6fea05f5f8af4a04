"""Readiness follows from the facts: which fact makes a broker unready, what is said of it, and what stays true."""

from __future__ import annotations

import asyncio

import pytest

from lanner.broker.pace import SLOW_SYNC_MS, Pace
from lanner.broker.readiness import Facts, Readiness, judge
from lanner.broker.room import Room
from lanner.errors import LannerError, StorageFailed
from lanner.testing.flock import Flock

READY = Facts(
    member=True,
    registered=True,
    current=True,
    opened=True,
    restored=True,
    metadata_led=True,
)
LATER = READY._replace(was_serving=True, was_complete=True)
SLOW = "disk slow: a sync has been under way for 3.0 s"


def test_a_broker_is_ready_when_everything_is_there_and_led() -> None:
    found = judge(READY)
    assert (found.serving, found.complete, found.ready) == (True, True, True)
    assert (found.refusal, found.status) == ("", "ready")


@pytest.mark.parametrize(
    ("facts", "serving", "complete", "reason"),
    [
        (Facts(), False, False, "does not belong to a cluster yet"),
        (READY._replace(registered=False), False, False, "the metadata does not name it yet"),
        (READY._replace(current=False), False, False, "does not know yet how far the metadata is"),
        (READY._replace(opened=False), True, False, "opens its partitions"),
        (READY._replace(leaderless=2), True, False, "2 of the partitions here have no leader yet"),
        (READY._replace(restored=False), True, False, "the copies that its disk lost are not restored yet"),
        (READY._replace(draining=True), True, True, "it is draining"),
        (READY._replace(failed="the disk is gone"), True, True, "it stops, because the disk is gone"),
        (READY._replace(leaderless=1, disk_full="the disk has 3 MiB"), True, False, "the disk has 3 MiB"),
        (LATER._replace(leaderless=1, metadata_led=False), True, False, "no broker leads the metadata at the moment"),
    ],
)
def test_each_fact_that_is_missing_is_the_reason(facts: Facts, serving: bool, complete: bool, reason: str) -> None:
    found = judge(facts)
    assert (found.serving, found.complete, found.ready) == (serving, complete, False)
    assert found.refusal.startswith("the broker is not ready: ")
    assert reason in found.refusal


def test_a_broker_that_was_complete_stays_ready_while_a_partition_elects() -> None:
    found = judge(LATER._replace(leaderless=3))
    assert (found.complete, found.ready, found.refusal) == (False, True, "")


def test_a_disk_that_was_restored_once_need_not_be_restored_again() -> None:
    assert judge(LATER._replace(restored=False)).complete


def test_who_serves_once_serves_always() -> None:
    assert judge(LATER._replace(registered=False, current=False)).serving


def test_a_slow_disk_sends_callers_away_only_while_others_can_lead() -> None:
    alone = judge(READY._replace(disk_slow=SLOW))
    assert (alone.ready, alone.refusal, alone.status) == (True, "", f"ready, {SLOW}")
    among_others = judge(READY._replace(disk_slow=SLOW, others_may_lead=True))
    assert (among_others.ready, among_others.refusal) == (True, f"{SLOW}; other brokers lead meanwhile")


class Parts:
    """What the facts are gathered from, beside a real engine."""

    is_current = True
    settled = True
    others_may_lead = False

    def __init__(self, flock: Flock) -> None:
        self.failed: asyncio.Future[LannerError] = asyncio.get_running_loop().create_future()
        self.room = Room(1)
        self.steady_ms = 0
        self.pace = Pace(lambda: self.steady_ms)
        engine = flock.brokers["a"].engine
        self.readiness = Readiness(
            "node-a", engine, self.failed, metadata=self, holdings=self, room=self.room, pace=self.pace, others=self
        )


async def test_the_facts_are_those_of_the_broker() -> None:
    flock = Flock("abc")
    (set_id,) = flock.create_topic("orders", 1, 3)
    flock.until(lambda: flock.is_home(set_id))
    parts = Parts(flock)
    assert parts.readiness.serving and parts.readiness.complete and parts.readiness.verdict().ready
    parts.readiness.draining = True
    assert "draining" in parts.readiness.verdict().refusal
    parts.readiness.draining = False
    parts.pace.begin()
    parts.steady_ms += SLOW_SYNC_MS
    parts.pace.end()
    assert parts.readiness.verdict().status.startswith("ready, disk slow")
    parts.failed.set_result(StorageFailed("the disk is gone"))
    assert "the disk is gone" in parts.readiness.verdict().refusal


async def test_a_set_without_a_leader_counts_until_it_was_complete() -> None:
    flock = Flock("abc", found=False)
    parts = Parts(flock)
    assert not parts.readiness.verdict().serving
    assert "does not name it yet" in parts.readiness.verdict().refusal
    flock.until(lambda: all(broker.cluster.cluster_id for broker in flock.up()))
    (set_id,) = flock.create_topic("orders", 1, 3)
    flock.until(lambda: flock.is_home(set_id))
    flock.cut = {"node-b", "node-c"}
    flock.until(lambda: not flock.brokers["a"].replica(set_id).node.leader_id)
    assert parts.readiness.serving
    assert not parts.readiness.complete
    assert "no leader yet" in parts.readiness.verdict().refusal
    flock.cut = set()
    flock.until(lambda: parts.readiness.complete)
    flock.cut = {"node-b", "node-c"}
    flock.until(lambda: not parts.readiness.verdict().ready)
    assert "no broker leads the metadata" in parts.readiness.verdict().refusal


async def test_a_broker_without_a_cluster_has_no_facts_to_gather() -> None:
    flock = Flock("abc", found=False)
    parts = Parts(flock)
    flock.brokers["a"].engine.replicas.clear()
    assert "does not belong to a cluster yet" in parts.readiness.verdict().refusal
