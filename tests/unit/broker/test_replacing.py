"""A copy that is damaged is replaced on its broker, by recorded steps, while the others are whole."""

from __future__ import annotations

import pytest

from lanner import features
from lanner.cluster import PlanKind, PlanState, encode_report_damage
from lanner.errors import StorageDamaged
from tests.unit.broker.flock import Broker, Flock


def damaged_on(flock: Flock, set_id: int, broker: Broker) -> None:
    """Somebody has read an entry of the set there, and it did not match its checksum."""
    broker.engine.damages.note(set_id, 3, StorageDamaged("the entry is rotten"))


def made() -> tuple[Flock, int]:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    for number in range(20):
        flock.publish(set_id, b"%d" % number)
    return flock, set_id


@pytest.mark.parametrize("leads", [True, False])
def test_a_damaged_copy_is_replaced_on_its_broker_under_a_new_id(leads: bool) -> None:
    flock, set_id = made()
    broker = next(one for one in flock.up() if one.leads(set_id) is leads)
    old_id = broker.replica(set_id).node.node_id
    damaged_on(flock, set_id, broker)
    flock.until(lambda: any(plan.kind is PlanKind.REPAIR for plan in flock.metadata.plans.values()))
    flock.until(lambda: not flock.metadata.moves, ticks=6_000)
    (plan,) = [plan for plan in flock.metadata.plans.values() if plan.kind is PlanKind.REPAIR]
    assert (plan.state, plan.node_id) == (PlanState.DONE, broker.node_id)
    record = flock.metadata.sets[set_id]
    now = record.replica_on(broker.node_id)
    assert now is not None and now.voter
    assert (now.replica_id, record.damaged) == (4, ())
    assert old_id != now.replica_id == broker.replica(set_id).node.node_id
    assert not broker.engine.damages.sets
    assert not broker.replica(set_id).node.reluctant
    flock.publish(set_id, b"one more")
    flock.until(lambda: flock.count(broker, set_id) == 21)


def test_a_damaged_copy_stops_leading_before_anything_else() -> None:
    flock, set_id = made()
    broker = flock.leader_of(set_id)
    assert broker is not None
    damaged_on(flock, set_id, broker)
    flock.until(lambda: flock.leader_of(set_id) not in (None, broker))
    assert flock.publish(set_id, b"goes on").base_offset == 20


def test_nothing_is_reported_before_all_brokers_know_what_that_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanner.broker.steward.DAMAGE_LEVEL", features.HIGHEST + 1)
    flock, set_id = made()
    broker = flock.up()[0]
    damaged_on(flock, set_id, broker)
    flock.pass_time(300)
    assert not flock.metadata.sets[set_id].damaged
    assert not flock.metadata.plans


def test_a_report_of_a_replica_that_is_gone_changes_nothing() -> None:
    flock, set_id = made()
    flock.propose(encode_report_damage(set_id, 9, "node-a"))
    flock.pass_time(5)
    assert not flock.metadata.sets[set_id].damaged
