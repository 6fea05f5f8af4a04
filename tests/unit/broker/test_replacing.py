"""A copy that is damaged is replaced on its broker, by recorded steps, while the others are whole."""

from __future__ import annotations

import pytest

from lanner import features
from lanner.broker.steps import REPORT_TICKS
from lanner.cluster import METADATA_SET, PlanKind, PlanState, encode_move_replica, encode_report_damage
from lanner.errors import StorageDamaged
from lanner.testing.flock import Broker, Flock


def damaged_on(flock: Flock, set_id: int, broker: Broker) -> None:
    """Somebody has read an entry of the set there, and it did not match its checksum."""
    broker.engine.damages.note(set_id, 3, StorageDamaged("the entry is rotten"))


def made(names: str = "abc") -> tuple[Flock, int]:
    flock = Flock(names)
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


def test_a_report_that_is_lost_comes_again_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    flock, set_id = made()
    broker = flock.up()[0]
    lost: list[bytes] = []
    with monkeypatch.context() as wires:
        wires.setattr(flock, "propose", lambda command: bool(lost.append(command)))
        damaged_on(flock, set_id, broker)
        flock.pass_time(3)
    assert lost == [encode_report_damage(set_id, broker.replica(set_id).node.node_id, broker.node_id)]
    flock.until(lambda: bool(flock.metadata.plans), ticks=REPORT_TICKS + 5)


def moving() -> tuple[Flock, int, list[Broker], Broker]:
    """A set on its way to a broker that is down: its leader, its other holders, and that broker."""
    flock, set_id = made("abcd")
    nodes = flock.metadata.sets[set_id].nodes
    holders = sorted((one for one in flock.up() if one.node_id in nodes), key=lambda one: not one.leads(set_id))
    (elsewhere,) = (one for one in flock.up() if one.node_id not in nodes)
    elsewhere.stop()
    flock.until(lambda: flock.leader_of(METADATA_SET) is not None)
    flock.propose(encode_move_replica(set_id, holders[1].node_id, elsewhere.node_id, flock.now_ms))
    flock.until(lambda: bool(flock.metadata.moves))
    return flock, set_id, holders, elsewhere


def test_a_copy_whose_damage_is_recorded_is_replaced_also_after_a_restart() -> None:
    """It was reported while the set was on the move, so nothing was planned; and a restart forgets what was read."""
    flock, set_id, (*_, broker), elsewhere = moving()
    old_id = broker.replica(set_id).node.node_id
    damaged_on(flock, set_id, broker)
    flock.propose(encode_report_damage(set_id, old_id, broker.node_id))
    flock.until(lambda: flock.metadata.sets[set_id].damaged == (old_id,))
    broker.stop()
    broker.start()
    flock.until(lambda: set_id in broker.held())
    assert broker.replica(set_id).node.reluctant
    elsewhere.start()
    flock.until(lambda: broker.held().get(set_id, old_id) != old_id, ticks=6_000)
    flock.until(lambda: not flock.metadata.moves and not flock.metadata.sets[set_id].damaged, ticks=6_000)


def spoil_unapplied(broker: Broker, set_id: int) -> None:
    """Flip a bit of an entry that the broker has replayed and not applied yet."""
    place = broker.engine.ledger.locate(set_id, 5)
    (first,) = broker.files.read(place.file, place.offset, 1)
    broker.files.write(place.file, place.offset, [bytes([first ^ 1])])


@pytest.mark.parametrize("leads", [True, False])
def test_a_copy_that_cannot_apply_its_log_any_further_is_replaced(leads: bool) -> None:
    """The one that leads, too: it would keep the others from leading, and decide nothing itself."""
    flock, set_id = made()
    broker = next(one for one in flock.up() if one.leads(set_id) is leads)
    for one in flock.up():
        one.stop()
        one.start()
    spoil_unapplied(broker, set_id)
    old_id = broker.engine.ledger.state(set_id).replica_id
    flock.until(lambda: len([one for one in flock.up() if set_id in one.held()]) == 3)
    if leads:
        broker.replica(set_id).node.campaign()
        broker.engine.wake(set_id)
    flock.until(lambda: flock.leader_of(METADATA_SET) is not None and bool(flock.metadata.moves))
    flock.until(lambda: broker.held().get(set_id, old_id) != old_id, ticks=6_000)
    flock.until(lambda: flock.count(broker, set_id) == 20)


@pytest.mark.parametrize("place", [1, 2])
def test_leadership_is_handed_to_a_copy_that_is_whole(place: int) -> None:
    flock, set_id, holders, _ = moving()
    leader, damaged, whole = holders[0], holders[place], holders[3 - place]
    flock.propose(encode_report_damage(set_id, damaged.replica(set_id).node.node_id, damaged.node_id))
    flock.until(lambda: bool(leader.cluster.sets[set_id].damaged))
    assert leader.steward.hand_over()
    assert leader.replica(set_id).node.transferee == whole.replica(set_id).node.node_id
