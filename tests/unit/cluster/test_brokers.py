from __future__ import annotations

from typing import Any

import pytest

from lanner import features, limits
from lanner.cluster import (
    METADATA_SET,
    Broker,
    BrokerState,
    Plan,
    PlanKind,
    PlanState,
    Registration,
    encode_cancel_plan,
    encode_drain_broker,
    encode_finish_step,
    encode_found_cluster,
    encode_move_replica,
    encode_raise_feature_level,
    encode_rebalance,
    encode_register_broker,
    encode_remove_broker,
    encode_transfer_leader,
    encode_undrain_broker,
    encode_update_broker,
)
from lanner.cluster.values import Action
from lanner.errors import ConflictError, LannerError, NotFoundError, Overloaded, ValidationError
from tests.unit.cluster.world import World, registration


def refused(result: Any, kind: type[LannerError], words: str) -> None:
    assert isinstance(result, kind), result
    assert words in result.message


# ---------------------------------------------------------------------- founding


def test_the_founders_are_active_and_the_first_five_vote_over_the_metadata() -> None:
    world = World(*"abcdefg")
    assert world.machine.cluster_id == "cluster"
    assert {broker.state for broker in world.machine.brokers.values()} == {BrokerState.ACTIVE}
    metadata = world.machine.sets[METADATA_SET]
    assert [(one.replica_id, one.node_id, one.voter) for one in metadata.replicas] == [
        (place, f"node-{name}", place <= 5) for place, name in enumerate("abcdefg", start=1)
    ]
    assert metadata.founders == 5
    assert world.machine.next_steps() == []


def test_a_cluster_is_founded_once() -> None:
    world = World("a")
    refused(world.apply(encode_found_cluster("other", [registration("b")], 1)), ConflictError, "founded already")
    assert world.machine.cluster_id == "cluster"


def test_the_topics_of_a_lone_broker_become_its_replicas_when_a_cluster_is_founded_on_it() -> None:
    world = World()
    topic = world.create("orders", partitions=2)
    two = encode_found_cluster("cluster", [registration("a"), registration("b")], 1)
    refused(world.apply(two), ConflictError, "one broker has them all")
    world.apply(encode_found_cluster("cluster", [registration("a")], 1))
    for set_id in topic.set_ids:
        one = world.machine.sets[set_id]
        assert [(replica.replica_id, replica.node_id) for replica in one.replicas] == [(1, "node-a")]
        assert (one.founders, one.next_replica_id) == (1, 2)


def test_founders_without_a_feature_level_in_common_are_refused() -> None:
    world = World()
    founders = [registration("a", feature_min=1, feature_max=2), registration("b", feature_min=3, feature_max=4)]
    refused(world.apply(encode_found_cluster("cluster", founders, 1)), ConflictError, "no feature level in common")
    founders[1] = registration("b", feature_min=2, feature_max=4)
    world.apply(encode_found_cluster("cluster", founders, 1))
    assert world.machine.feature_level == 2


def test_nobody_joins_what_was_not_founded() -> None:
    world = World()
    refused(world.apply(encode_register_broker(registration("a"), 1)), ConflictError, "not founded")


# ---------------------------------------------------------------------- joining


def test_a_broker_that_joins_takes_partitions_only_when_it_has_the_metadata() -> None:
    world = World("a")
    broker = world.apply(encode_register_broker(registration("b"), 2))
    assert isinstance(broker, Broker) and broker.state is BrokerState.JOINING
    assert world.create("early").settings.replication == 1
    steps = []
    while world.machine.next_steps():
        [step] = world.machine.next_steps()
        steps.append((step.action, step.set_id, step.node_id))
        world.advance()
    assert [action for action, _, _ in steps] == [
        Action.ADD_LEARNER,
        Action.CATCH_UP,
        Action.CATCH_UP,
        Action.PROMOTE,
    ]
    assert {(set_id, node_id) for _, set_id, node_id in steps} == {(METADATA_SET, "node-b")}
    assert world.machine.brokers["node-b"].state is BrokerState.ACTIVE
    assert world.votes() == {"a", "b"}
    assert world.create("late").settings.replication == 2


def test_at_most_five_brokers_vote_and_the_others_learn() -> None:
    world = World("a")
    for name in "bcdefg":
        world.join(name)
    assert world.votes() == set("abcde")
    assert len(world.machine.sets[METADATA_SET].replicas) == 7


def test_votes_over_the_metadata_are_spread_over_the_racks() -> None:
    world = World(*"abcdefg", racks="xxxxxyz")
    for name in "ab":
        world.drain(name)
        world.settle()
    assert {"f", "g"} <= world.votes()
    assert len(world.votes()) == 5


def test_a_broker_that_restarts_may_have_moved() -> None:
    world = World("a", "b")
    moved = Registration("b", "node-b", {"http": "elsewhere:80"}, "cellar")
    broker = world.apply(encode_register_broker(moved, 3))
    assert (broker.rack, broker.addresses, broker.state) == ("cellar", {"http": "elsewhere:80"}, BrokerState.ACTIVE)
    assert world.machine.plans == {}


def test_a_node_keeps_its_name() -> None:
    world = World("a", "b")
    refused(world.apply(encode_register_broker(registration("c", "node-b"), 3)), ConflictError, "cannot be renamed")


def test_a_name_is_not_taken_from_a_broker_that_is_alive() -> None:
    world = World("a", "b")
    command = encode_register_broker(registration("b", "other"), 3, replaces=False)
    refused(world.apply(command), ConflictError, "belongs to broker node-b")
    assert "other" not in world.machine.brokers


def test_the_number_of_brokers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BROKERS_MAX", 2)
    world = World("a", "b")
    refused(world.apply(encode_register_broker(registration("c"), 3)), Overloaded, "remove one first")


# ---------------------------------------------------------------------- a wiped disk


def test_a_wiped_broker_is_a_new_one_and_never_votes_under_its_old_replica_ids() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=3)
    before = {(set_id, one.replica_on("node-c").replica_id) for set_id, one in world.machine.sets.items()}  # type: ignore[union-attr]
    world.join("c", "reborn")
    assert world.machine.brokers["node-c"].state is BrokerState.REMOVED
    assert world.machine.brokers["reborn"].state is BrokerState.ACTIVE
    for set_id in [METADATA_SET, *topic.set_ids]:
        one = world.machine.sets[set_id]
        new = one.replica_on("reborn")
        assert new is not None and new.voter
        assert new.replica_id == 4
        assert (set_id, new.replica_id) not in before
        assert one.replica_on("node-c") is None
    assert world.led() == {"a": 1, "b": 1, "c": 1}


def test_a_wiped_broker_leads_nothing_from_the_moment_it_is_known_to_be_wiped() -> None:
    world = World("a", "b", "c")
    world.create("orders", partitions=6)
    world.apply(encode_register_broker(registration("c", "reborn"), 3))
    leaders = [replica.node_id for set_id, replica in world.machine.leaders_wanted().items() if set_id]
    assert "node-c" not in leaders
    assert leaders.count("node-a") == leaders.count("node-b") == 3


def test_a_wiped_replica_is_rebuilt_where_it_was_even_when_others_have_less_to_do() -> None:
    world = World("a", "b", "c", "d")
    set_id = world.create("orders", partitions=1, replication=2).set_ids[0]
    world.join("b", "zz")
    assert world.nodes(set_id) == {"a", "zz"}


def test_a_wiped_replica_is_taken_out_before_its_successor_votes() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=1)
    world.apply(encode_register_broker(registration("c", "reborn"), 3))
    seen = []
    while world.machine.next_steps():
        for step in world.machine.next_steps():
            if step.set_id == topic.set_ids[0]:
                seen.append((step.action, step.replica_id))
        assert len(world.machine.sets[topic.set_ids[0]].voters) <= 3, "a dead voter never makes the majority larger"
        world.advance()
    assert seen == [
        (Action.HAND_OVER, 3),
        (Action.DEMOTE, 3),
        (Action.REMOVE, 3),
        (Action.ADD_LEARNER, 4),
        (Action.CATCH_UP, 4),
        (Action.PROMOTE, 4),
    ]


def test_the_old_disk_of_a_replaced_broker_may_not_come_back() -> None:
    world = World("a", "b", "c")
    world.create("orders")
    world.apply(encode_register_broker(registration("c", "reborn"), 3))
    refused(world.apply(encode_register_broker(registration("c"), 4)), ConflictError, "empty data directory")
    world.settle()
    refused(world.apply(encode_register_broker(registration("c"), 5)), ConflictError, "empty data directory")


def test_a_broker_wiped_twice_is_rebuilt_on_its_last_incarnation() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=2)
    world.apply(encode_register_broker(registration("c", "second"), 3))
    world.advance()
    world.advance()
    world.advance()
    world.join("c", "third")
    for set_id in topic.set_ids:
        assert world.machine.sets[set_id].replica_on("third") is not None
    gone = {node_id for node_id, broker in world.machine.brokers.items() if broker.state is BrokerState.REMOVED}
    assert gone == {"node-c", "second"}


def test_what_only_a_wiped_broker_had_stays_in_its_name() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=3, replication=1)
    [lost] = [set_id for set_id in topic.set_ids if world.nodes(set_id) == {"c"}]
    world.join("c", "reborn")
    assert world.machine.sets[lost].nodes == ("node-c",)
    row = next(row for row in world.machine.describe_brokers() if row.node_id == "node-c")
    assert (row.state, row.replicas) == ("lost", 1)
    refused(world.apply(encode_drain_broker("node-c", 4)), ConflictError, "can be rebuilt")


def test_a_rebuild_that_was_cancelled_goes_on_when_it_is_asked_for() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=1)
    world.apply(encode_register_broker(registration("c", "reborn"), 3))
    while not (found := [plan for plan in world.machine.plans.values() if plan.kind is PlanKind.REBUILD]):
        world.advance()
    plan = world.apply(encode_cancel_plan(found[0].plan_id))
    world.settle()
    assert world.machine.plans[plan.plan_id].state is PlanState.CANCELLED
    assert world.nodes(topic.set_ids[0]) == {"a", "b", "c"}
    again = world.apply(encode_drain_broker("node-c", 4))
    assert (again.kind, again.state) == (PlanKind.REBUILD, PlanState.RUNNING)
    assert world.apply(encode_drain_broker("node-c", 4)).plan_id == again.plan_id
    world.settle()
    assert world.nodes(topic.set_ids[0]) == {"a", "b", "reborn"}
    assert world.machine.brokers["node-c"].state is BrokerState.REMOVED


def test_a_drain_ends_when_the_broker_is_wiped() -> None:
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=4)
    plan = world.drain("c")
    world.join("c", "reborn")
    assert world.machine.plans[plan.plan_id].state is PlanState.CANCELLED
    refused(world.apply(encode_undrain_broker("node-c")), NotFoundError, "no broker")
    assert world.machine.brokers["reborn"].state is BrokerState.ACTIVE


# ---------------------------------------------------------------------- drain and removal


def test_a_drained_broker_holds_nothing_and_can_be_removed() -> None:
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=6)
    plan = world.drain("a")
    assert isinstance(plan, Plan) and plan.kind is PlanKind.DRAIN
    assert world.led()["a"] == 0, "leaders go first"
    refused(world.apply(encode_remove_broker("node-a", 5)), ConflictError, "drain it first")
    world.settle()
    assert world.machine.plans[plan.plan_id].state is PlanState.DONE
    assert world.held() == {"a": 0, "b": 6, "c": 6, "d": 6}
    assert world.led() == {"a": 0, "b": 2, "c": 2, "d": 2}
    assert world.votes() == {"b", "c", "d"}
    assert world.machine.is_drained("node-a")
    world.apply(encode_remove_broker("node-a", 6))
    world.settle()
    assert world.machine.brokers["node-a"].state is BrokerState.REMOVED
    assert "node-a" not in world.machine.sets[METADATA_SET].nodes
    refused(world.apply(encode_remove_broker("node-a", 7)), NotFoundError, "no broker")


def test_a_drain_that_leaves_too_few_brokers_is_refused_and_says_why() -> None:
    world = World("a", "b", "c")
    world.create("orders", partitions=1)
    rows = world.machine.all_rows()
    result = world.drain("b")
    refused(result, ConflictError, "orders/0 has 3 replicas and only 2 other brokers are active")
    assert result.details == {"topic": "orders", "partition": 0}
    assert {key: value for key, value in world.machine.all_rows().items() if key != b"c"} == {
        key: value for key, value in rows.items() if key != b"c"
    }


def test_the_last_active_broker_is_never_drained() -> None:
    refused(World("a").drain("a"), ConflictError, "no other broker is active")
    world = World("a", "b")
    assert isinstance(world.drain("a"), Plan)
    refused(world.drain("b"), ConflictError, "no other broker is active")


def test_draining_again_while_it_runs_is_the_same_plan() -> None:
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=6)
    assert world.drain("a").plan_id == world.drain("a").plan_id


def test_two_brokers_are_drained_at_once_without_meeting_on_one_target() -> None:
    world = World(*"abcde")
    world.create("orders", partitions=10)
    world.drain("a")
    world.drain("b")
    world.settle()
    assert world.held() == {"a": 0, "b": 0, "c": 10, "d": 10, "e": 10}


def test_an_undrained_broker_keeps_what_it_still_has_and_votes_again() -> None:
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=8)
    plan = world.drain("a")
    world.advance()
    broker = world.apply(encode_undrain_broker("node-a"))
    assert broker.state is BrokerState.ACTIVE
    world.settle()
    assert world.machine.plans[plan.plan_id].state is PlanState.CANCELLED
    assert world.held() == dict.fromkeys("abcd", 6)
    assert world.led() == dict.fromkeys("abcd", 2)
    assert world.votes() == set("abcd")
    refused(world.apply(encode_undrain_broker("node-a")), ConflictError, "not being drained")


def test_cancelling_a_drain_undrains_the_broker() -> None:
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=4)
    plan = world.drain("a")
    world.apply(encode_cancel_plan(plan.plan_id))
    assert world.machine.brokers["node-a"].state is BrokerState.ACTIVE
    world.apply(encode_cancel_plan(plan.plan_id))
    world.settle()
    refused(world.apply(encode_cancel_plan(plan.plan_id)), ConflictError, "is cancelled")


def test_a_broker_that_is_still_joining_is_removed_instead_of_drained() -> None:
    world = World("a", "b")
    world.apply(encode_register_broker(registration("c"), 3))
    refused(world.drain("c"), ConflictError, "still joining")
    world.apply(encode_remove_broker("node-c", 4))
    world.apply(encode_remove_broker("node-c", 4))
    refused(world.apply(encode_undrain_broker("node-c")), ConflictError, "on its way out")
    world.settle()
    assert world.machine.brokers["node-c"].state is BrokerState.REMOVED
    assert world.votes() == {"a", "b"}


def test_a_broker_is_not_removed_while_something_is_on_its_way_to_it() -> None:
    world = World(*"abcdef")
    topic = world.create("orders", partitions=1, replication=1)
    world.drain("f")
    world.settle()
    world.apply(encode_undrain_broker("node-f"))
    assert world.machine.is_drained("node-f"), "five others vote, so it only learns"
    world.apply(encode_move_replica(topic.set_ids[0], "node-a", "node-f", 3))
    refused(world.apply(encode_remove_broker("node-f", 4)), ConflictError, "drain it first")


def test_a_broker_is_not_removed_while_something_waits_to_come_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOVES_PER_BROKER_MAX", 1)
    world = World(*"abcdef")
    topic = world.create("orders", partitions=12, replication=1)
    world.drain("f")
    world.settle()
    world.apply(encode_undrain_broker("node-f"))
    first, second, *_ = [set_id for set_id in topic.set_ids if world.nodes(set_id) == {"a"}]
    world.apply(encode_move_replica(first, "node-a", "node-b", 3))
    world.apply(encode_move_replica(second, "node-a", "node-f", 3))
    assert world.machine.is_drained("node-f")
    refused(world.apply(encode_remove_broker("node-f", 4)), ConflictError, "drain it first")


def test_removed_brokers_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BROKERS_REMOVED_KEPT", 1)
    world = World("a")
    for name in "bc":
        world.apply(encode_register_broker(registration(name), 3))
        world.apply(encode_remove_broker(f"node-{name}", 4))
        world.settle()
        world.save()
    assert sorted(world.machine.brokers) == ["node-a", "node-c"]
    assert world.stored.rows == world.machine.all_rows()
    refused(world.apply(encode_register_broker(registration("c"), 5)), ConflictError, "empty data directory")


def test_what_is_not_there_is_not_found() -> None:
    world = World("a")
    for command in (
        encode_drain_broker("nobody", 1),
        encode_undrain_broker("nobody"),
        encode_remove_broker("nobody", 1),
        encode_update_broker("nobody"),
        encode_transfer_leader(0, "nobody"),
        encode_transfer_leader(77, "node-a"),
        encode_move_replica(77, "node-a", "node-a", 1),
        encode_cancel_plan(77),
        encode_finish_step(77, 0, Action.PROMOTE),
    ):
        assert isinstance(world.apply(command), NotFoundError)


# ---------------------------------------------------------------------- what a broker says of itself


def test_an_update_changes_only_what_it_names() -> None:
    world = World("a")
    broker = world.apply(encode_update_broker("node-a", rack="r1"))
    assert (broker.rack, broker.addresses) == ("r1", {"native": "a:7400"})
    broker = world.apply(encode_update_broker("node-a", addresses={"grpc": "a:8000"}))
    assert (broker.rack, broker.addresses) == ("r1", {"grpc": "a:8000"})
    refused(world.apply(encode_update_broker("node-a", addresses={"grpc": "nowhere"})), ValidationError, "host:port")
    refused(world.apply(encode_update_broker("node-a", rack="a rack")), ValidationError, "rack")
    refused(world.apply(encode_update_broker("node-a", feature_max=0)), ValidationError, "no range")


def test_the_feature_level_is_raised_only_when_all_brokers_support_it() -> None:
    world = World("a", "b")
    world.apply(encode_update_broker("node-a", feature_max=3))
    refused(world.apply(encode_raise_feature_level(2)), ConflictError, "feature level 2 is not supported by b")
    world.apply(encode_update_broker("node-b", feature_max=2))
    assert world.machine.describe_cluster().feature_level_possible == 2
    assert world.apply(encode_raise_feature_level(2)) == world.machine.feature_level == 2
    refused(world.apply(encode_raise_feature_level(2)), ConflictError, "only be raised")
    refused(world.apply(encode_raise_feature_level(3)), ConflictError, "not supported by b")
    refused(world.apply(encode_update_broker("node-a", feature_max=1)), ConflictError, "upgrade the broker")
    old = registration("c", feature_max=1)
    refused(world.apply(encode_register_broker(old, 3)), ConflictError, "upgrade the broker")
    new = registration("c", feature_min=3, feature_max=3)
    refused(world.apply(encode_register_broker(new, 3)), ConflictError, "upgrade the cluster")


def test_a_lone_broker_is_at_the_level_it_was_built_for() -> None:
    refused(
        World().apply(encode_raise_feature_level(features.HIGHEST + 1)),
        ConflictError,
        "is not supported by this broker",
    )


def test_a_leader_must_vote_and_stay() -> None:
    world = World("a", "b", "c", "d")
    topic = world.create("orders", partitions=1, replication=3)
    set_id = topic.set_ids[0]
    refused(world.apply(encode_transfer_leader(set_id, "node-d")), ConflictError, "no voting replica")
    world.apply(encode_move_replica(set_id, "node-c", "node-d", 2))
    refused(world.apply(encode_transfer_leader(set_id, "node-d")), ConflictError, "no voting replica")
    refused(world.apply(encode_transfer_leader(set_id, "node-c")), ConflictError, "on the move")
    world.drain("c")
    refused(world.apply(encode_transfer_leader(set_id, "node-c")), ConflictError, "being drained")


def test_nothing_is_rebalanced_without_an_active_broker() -> None:
    refused(World().apply(encode_rebalance(1)), ConflictError, "no broker is active")
