"""The simulated cluster itself: it founds, stops, pauses, joins, wipes and comes to rest as it is told to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import BrokerState, encode_rebalance
from lanner.testing.clock import START_MS, SimClock
from lanner.testing.cluster_broker import BrokerClock, ClusterBroker
from lanner.testing.cluster_rot import rows_of
from lanner.testing.cluster_simulation import ClusterSimulation, simulate_cluster
from lanner.testing.cluster_troubles import Troubles
from lanner.testing.disk import PowerLost
from lanner.testing.planted import planted
from lanner.testing.sim_broker import Broken
from lanner.testing.sim_cluster import SimCluster, size_of


def founded(nodes: int = 3, seed: int = 4) -> SimCluster:
    cluster = SimCluster(seed, nodes)
    cluster.run_until(
        lambda: (leader := cluster.metadata_leader()) is not None and bool(leader.engine.cluster.cluster_id),
        20_000,
        "no founding",
    )
    return cluster


def test_even_seeds_found_three_brokers_and_odd_ones_five() -> None:
    assert [size_of(seed) for seed in range(4)] == [3, 5, 3, 5]
    assert len(SimCluster(3).brokers) == 5
    assert len(SimCluster(3, 3).brokers) == 3


def test_a_clock_runs_wrong_until_it_is_mended() -> None:
    world = SimClock()
    clock = BrokerClock(world, 100, 0.5)
    world.advance(1_000)
    assert clock.now_ms() == START_MS + 1_600
    clock.jump(-200)
    assert clock.now_ms() == START_MS + 1_400
    clock.mend()
    assert clock.now_ms() == START_MS + 1_000


@pytest.mark.parametrize("nodes", [3, 5])
def test_founders_become_one_cluster(nodes: int) -> None:
    cluster = founded(nodes)
    assert len(cluster.members()) == nodes
    assert cluster.leader(99) is None


def test_a_crashed_broker_comes_back_by_itself_and_carries_on() -> None:
    cluster = founded()
    broker = cluster.brokers[2]
    life = broker.life
    cluster.crash(broker, down_ms=100)
    assert not broker.up
    cluster.crash(broker)  # it is down already
    assert cluster.counts["crashes"] == 1
    cluster.run_for(3_000)
    assert broker.opened
    assert broker.life == life + 1
    assert broker.engine.cluster.cluster_id == "simulated"


def test_a_retired_broker_never_comes_back() -> None:
    cluster = founded()
    cluster.retire(cluster.brokers[2])
    cluster.run_for(5_000)
    assert not cluster.brokers[2].up
    assert cluster.brokers[2] not in cluster.serving()


def test_power_that_goes_in_the_middle_of_something_is_a_crash() -> None:
    cluster = founded()
    broker = cluster.brokers[1]

    def lose_power() -> None:
        raise PowerLost

    cluster.guard(broker, lose_power)
    assert not broker.up


def test_power_that_goes_during_the_start_is_another_crash() -> None:
    cluster = founded()
    broker = cluster.brokers[1]
    cluster.crash(broker, down_ms=10)
    broker.disk.crash_in(1)
    cluster.run_for(10_000)
    assert cluster.counts["crashes"] == 2
    assert broker.opened


def test_a_start_that_finds_no_room_to_cut_the_torn_tail_is_made_again() -> None:
    cluster = founded()
    leader = cluster.metadata_leader()
    assert leader is not None
    cluster.run_until(lambda: not leader.busy, 1_000, "it never stops writing")
    for _ in range(20):
        leader.propose_metadata(encode_rebalance(cluster.clock.now_ms()))
    assert leader.step_commit()
    leader.disk.write_room_bytes = 600
    leader.write_without_sync()
    cluster.crash(leader, power=False, down_ms=10)
    leader.disk.write_room_bytes = 20
    life = leader.life
    cluster.run_for(10_000)
    assert leader.opened
    assert leader.life == life + 2
    assert leader.counts["torn_tails"] == leader.counts["disk_full"] == 1


def test_power_that_goes_while_a_client_is_answered_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = ClusterSimulation(4, nodes=3)
    cluster = simulation.cluster
    first, *others = cluster.brokers.values()
    cluster.run_until(lambda: all(broker.opened for broker in cluster.brokers.values()), 20_000, "not all are open")

    def look(_what: str) -> bool:
        first.disk.crash_in(1)
        first.disk.table.get(b"row")
        return False

    monkeypatch.setattr(simulation.traffic, "look", look)
    assert simulation._do("read")
    assert [broker.up for broker in (first, *others)] == [False, True, True]


def test_a_paused_broker_does_nothing_and_then_everything_that_waited() -> None:
    cluster = founded()
    follower = next(broker for broker in cluster.brokers.values() if broker is not cluster.metadata_leader())
    node = follower.engine.replica(CLUSTER_SET).node
    follower.paused_until_ms = cluster.clock.elapsed_ms + 2_000
    elapsed = node.elapsed_ticks
    cluster.run_for(1_900)
    assert node.elapsed_ticks == elapsed
    assert follower.paused
    assert len(cluster.network) > 0
    cluster.run_for(1_000)
    assert not follower.paused
    assert node.leader_id


def test_a_broker_joins_and_gets_a_seat_that_nobody_had() -> None:
    cluster = founded()
    joined = Troubles(cluster).arrive("late")
    cluster.run_until(lambda: joined.record is not None, 20_000, "no seat")
    assert joined.record is not None
    assert joined.record.seat.replica_id == 4
    cluster.run_until(lambda: joined.node_id in cluster.members(), 20_000, "never a member")


def test_a_wiped_broker_comes_back_as_another_under_its_name() -> None:
    cluster = founded()
    cluster.run_for(2_000)
    old = cluster.brokers[2]
    came = Troubles(cluster).wipe(old)
    cluster.run_until(lambda: came.node_id in cluster.members(), 60_000, "it never comes")
    assert came.name == old.name
    assert came.node_id != old.node_id
    assert old.retired
    leader = cluster.metadata_leader()
    assert leader is not None
    cluster.run_until(lambda: not leader.engine.cluster.moves, 60_000, "moves do not end")
    assert leader.engine.cluster.brokers[old.node_id].state is BrokerState.REMOVED


def test_waiting_for_what_never_comes_is_a_broken_rule() -> None:
    with pytest.raises(Broken, match="never comes to rest"):
        founded().run_until(lambda: False, 500, "nothing")


def test_a_report_says_what_was_met() -> None:
    report = simulate_cluster(0, 600)
    assert not report.failed
    assert report.events >= 600
    assert report.totals["elections"] >= 4
    assert report.totals["calls"] >= 200


def test_an_exception_of_a_broker_is_a_broken_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(simulation: ClusterSimulation) -> None:
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr(ClusterSimulation, "_drain", break_down)
    (violation,) = simulate_cluster(0, 300).violations
    assert violation.rule == "broker broke down"
    assert "by hand" in violation.text


def test_an_assertion_of_a_broker_is_a_broken_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(simulation: ClusterSimulation) -> None:
        raise AssertionError("by hand")

    monkeypatch.setattr(ClusterSimulation, "_drain", fail)
    (violation,) = simulate_cluster(0, 300).violations
    assert violation.rule == "invariant broken"


def test_replicas_that_read_differently_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from lanner.testing import cluster_simulation

    honest = cluster_simulation.stored_on
    monkeypatch.setattr(
        cluster_simulation, "stored_on", lambda set_id, broker: honest(set_id, broker) if broker.number % 2 else {}
    )
    rules = [violation.rule for violation in simulate_cluster(0, 300).violations]
    assert rules[0] == "replicas differ"


def rotten() -> tuple[SimCluster, ClusterBroker, ClusterBroker]:
    """A cluster in which a bit of one broker's last record has flipped; that one, and the one that came for it."""
    cluster = founded()
    cluster.run_until(lambda: all(one.opened for one in cluster.brokers.values()), 20_000, "not all are open")
    cluster.run_until(lambda: any(one.unsaved for one in cluster.brokers.values()), 20_000, "everything is saved")
    broker = next(one for one in cluster.brokers.values() if one.unsaved)
    return cluster, broker, Troubles(cluster).rot.rot_record(broker)


def test_a_broker_whose_last_record_is_flipped_refuses_to_start_and_is_replaced_under_its_name() -> None:
    cluster, old, came = rotten()
    assert cluster.counts["last_record_refusals"] == cluster.counts["repairs"] == 1
    cluster.run_until(lambda: came.node_id in cluster.members(), 60_000, "it never comes")
    assert came.name == old.name
    assert old.retired


def test_a_broker_that_cuts_a_flipped_record_is_caught() -> None:
    with planted("damaged-tail-cut"), pytest.raises(Broken, match="damage accepted"):
        rotten()


def test_a_replaced_founder_is_silent_at_once_so_that_what_it_led_is_led_by_others() -> None:
    """Its successor registers before anybody would have missed it; sets that rest would wait for it for ever."""
    simulation = ClusterSimulation(1)
    cluster = simulation.cluster
    cluster.run_until(simulation._founded, 20_000, "no founding")
    simulation._make_topics()
    cluster.run_for(5_000)
    simulation._replace_founders()
    assert cluster.counts["founders_replaced"] == 5
    assert not {one.node_id for one in cluster.founders} & cluster.members().keys()
    assert simulation._all_led()


def spoiled() -> tuple[ClusterSimulation, Callable[[], int]]:
    """A cluster in which a row of one copy of a partition is flipped; how much its id has grown since."""
    simulation = ClusterSimulation(4)
    cluster = simulation.cluster
    cluster.run_until(simulation._founded, 20_000, "no founding")
    simulation._make_topics()
    cluster.later(1, simulation._act)
    cluster.run_for(5_000)
    set_id = next(iter(cluster.traffic.settings))
    broker = next(one for one in cluster.brokers.values() if rows_of(one.disk, set_id))

    def replica_id() -> int:
        found = simulation._metadata().sets[set_id].replica_on(broker.node_id)
        assert found is not None
        return found.replica_id

    before = replica_id()
    simulation.troubles.rot.rot_row(broker, set_id)
    return simulation, lambda: replica_id() - before


def test_a_copy_of_which_a_row_is_flipped_is_closed_and_replaced() -> None:
    simulation, newer = spoiled()
    cluster = simulation.cluster
    assert cluster.counts["rotten_rows"] == 1
    assert simulation.troubles.is_damaged()
    cluster.run_until(simulation._mended, 60_000, "it is not replaced")
    assert newer() > 0, "under a new id"


def test_a_broker_that_ignores_the_checksums_of_rows_is_caught() -> None:
    with planted("row-checksum-ignored"), pytest.raises(Broken, match="damage accepted"):
        spoiled()


def test_the_power_may_go_while_an_entry_that_could_rot_is_looked_for() -> None:
    simulation, _ = spoiled()
    cluster, rot = simulation.cluster, simulation.troubles.rot
    cluster.run_until(rot.may_rot, 60_000, "no copy may be damaged")
    before = cluster.counts["crashes"]
    for broker in cluster.brokers.values():
        broker.disk.crash_in(1)
    rot.rot_entry()
    assert cluster.counts["crashes"] == before + 1
