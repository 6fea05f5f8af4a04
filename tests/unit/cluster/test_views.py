from __future__ import annotations

from lanner.cluster import (
    METADATA_SET,
    Holding,
    PlanKind,
    PlanState,
    encode_delete_topic,
    encode_move_replica,
    encode_register_broker,
    encode_update_broker,
)
from tests.unit.cluster.world import World, registration


def test_a_broker_learns_what_it_should_hold_and_how_to_start_it() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=1, replication=2)
    set_id = topic.set_ids[0]
    world.apply(encode_move_replica(set_id, "node-a", "node-c", 2))
    assert list(world.machine.holdings("node-c")) == [
        Holding(METADATA_SET, "", 0, 3, True, frozenset({1, 2, 3})),
        Holding(set_id, "orders", 0, 3, False, frozenset({1, 2})),
    ]
    assert list(world.machine.holdings("nobody")) == []
    assert list(World().machine.holdings("nobody")) == []
    assert world.machine.routes(set_id) == {1: "node-a", 2: "node-b", 3: "node-c"}
    assert world.machine.routes(99) == {}


def test_the_wanted_leader_of_every_set_is_named() -> None:
    world = World("a", "b")
    world.create("orders", partitions=2)
    wanted = world.machine.leaders_wanted()
    assert [wanted[set_id].node_id for set_id in (0, 1, 2)] == ["node-a", "node-a", "node-b"]


def test_the_table_of_brokers_shows_what_is_and_what_should_be() -> None:
    world = World("b", "a", "c", "d", racks="wxyz")
    world.create("orders", partitions=4, replication=3)
    plan = world.drain("c")
    world.advance()
    leaders = {METADATA_SET: "node-a", 1: "node-a", 2: "node-a", 3: "node-b", 4: "node-c"}
    rows = world.machine.describe_brokers(leaders)
    assert [(row.name, row.rack, row.state, row.leads, row.metadata) for row in rows] == [
        ("a", "x", "active", 2, "voter"),
        ("b", "w", "active", 1, "voter"),
        ("c", "y", "draining", 1, "voter"),
        ("d", "z", "active", 0, "voter"),
    ]
    assert sum(row.replicas for row in rows) > 12, "what comes is there already, as a learner"
    assert rows[0].addresses == {"native": "a:7400"}
    assert rows[0].drain is None
    progress = rows[2].drain
    assert progress is not None and progress.plan_id == plan.plan_id
    assert 0 < progress.steps_done < progress.steps_total
    assert progress.moves_running >= 2
    assert sum(row.should_lead for row in rows) == 4


def test_a_broker_without_its_copy_of_the_metadata_shows_none() -> None:
    world = World("a", "b")
    world.apply(encode_register_broker(registration("c"), 2))
    world.apply(encode_register_broker(registration("d"), 2))
    assert [row.metadata for row in world.machine.describe_brokers()] == ["voter", "voter", "learner", ""]


def test_the_table_of_partitions_shows_who_leads_who_lags_and_what_moves() -> None:
    world = World("a", "b", "c")
    world.create("orders", partitions=1, replication=2)
    world.create("payments", partitions=1, replication=1)
    world.apply(encode_move_replica(1, "node-a", "node-c", 2))
    [row] = world.machine.describe_partitions("orders", {1: "node-b"}, {(1, 1): 7, (1, 2): 0})
    assert (row.set_id, row.topic, row.partition, row.leader, row.replication) == (1, "orders", 0, "node-b", 2)
    shown = [(one.name, one.role, one.leads, one.preferred, one.lag, one.step) for one in row.replicas]
    assert shown == [
        ("a", "voter", False, True, 7, ""),
        ("b", "voter", True, False, 0, ""),
        ("c", "learner", False, False, None, "add_learner"),
    ]
    assert [(row.topic, row.leader) for row in world.machine.describe_partitions()] == [
        ("orders", ""),
        ("payments", ""),
    ]
    assert world.machine.describe_partitions("nonsense") == []


def test_a_lone_broker_has_no_table_of_partitions_but_a_summary() -> None:
    world = World()
    world.create("orders", partitions=2)
    assert world.machine.describe_partitions() == []
    assert world.machine.describe_brokers() == []
    row = world.machine.describe_cluster()
    assert (row.cluster_id, row.brokers, row.topics, row.partitions, row.replicas_missing) == ("", 0, 1, 2, 0)
    assert not world.machine.is_drained("node-a")


def test_the_summary_counts_what_there_is_and_what_is_missing() -> None:
    world = World("a", "b", "c")
    world.create("orders", partitions=2)
    world.apply(encode_register_broker(registration("c", "reborn"), 2))
    row = world.machine.describe_cluster()
    assert (row.cluster_id, row.feature_level, row.feature_level_possible) == ("cluster", 1, 1)
    assert (row.brokers, row.topics, row.partitions, row.replicas) == (3, 1, 2, 6)
    assert (row.replicas_missing, row.plans_running) == (0, 2)


def test_plans_are_shown_newest_first_and_forgotten_ones_not_at_all() -> None:
    world = World("a")
    world.join("b")
    world.join("c")
    kinds = [(row.kind, row.state) for row in world.machine.describe_plans()]
    assert kinds == [(PlanKind.METADATA, PlanState.DONE), (PlanKind.JOIN, PlanState.DONE)] * 2
    assert world.machine.progress(99) is None


def test_what_was_there_and_went_is_gone_and_what_was_never_heard_of_is_not() -> None:
    world = World("a", "b", "c")
    set_id = world.create("orders", partitions=1, replication=2).set_ids[0]
    world.apply(encode_move_replica(set_id, "node-a", "node-c", 2))
    assert not any(world.machine.is_gone(set_id, number) for number in (0, 1, 2, 3, 4))
    world.settle()
    assert [number for number in range(6) if world.machine.is_gone(set_id, number)] == [1]
    assert world.machine.strays(set_id, [1, 2, 3, 4]) == [1]
    assert not world.machine.is_gone(set_id + 1, 1), "a set that this machine has not heard of yet"
    world.apply(encode_delete_topic("orders"))
    assert world.machine.is_gone(set_id, 2)
    assert not world.machine.is_gone(METADATA_SET, 3)


def test_a_lone_broker_knows_its_deleted_topics_too() -> None:
    world = World()
    kept, deleted = world.create("kept", partitions=1), world.create("deleted", partitions=1)
    world.apply(encode_delete_topic("deleted"))
    assert not world.machine.is_gone(kept.set_ids[0], 1)
    assert world.machine.is_gone(deleted.set_ids[0], 1)
    assert not world.machine.is_gone(METADATA_SET, 1)


def test_a_broker_with_a_new_disk_is_restored_when_all_its_replicas_vote_again() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=2)
    assert world.machine.is_restored("node-c")
    world.apply(encode_register_broker(registration("c", "reborn"), 3))
    while world.machine.next_steps():
        assert not world.machine.is_restored("reborn")
        assert world.machine.is_restored("node-a"), "it lost nothing"
        world.advance()
    assert world.machine.is_restored("reborn")
    for set_id in [METADATA_SET, *topic.set_ids]:
        assert {voter.node_id for voter in world.machine.sets[set_id].voters} == {"node-a", "node-b", "reborn"}


def test_the_brokers_that_keep_the_level_down_are_named() -> None:
    world = World("a", "b")
    row = world.machine.describe_cluster()
    assert (row.feature_level, row.feature_level_possible, row.behind) == (1, 1, ())
    world.apply(encode_update_broker("node-a", feature_max=2))
    row = world.machine.describe_cluster()
    assert (row.feature_level_possible, row.behind) == (1, ("b",))
    world.apply(encode_update_broker("node-b", feature_max=2))
    row = world.machine.describe_cluster()
    assert (row.feature_level_possible, row.behind) == (2, ())
