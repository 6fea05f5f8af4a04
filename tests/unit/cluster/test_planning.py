from __future__ import annotations

import random

import pytest

from lanner import limits
from lanner.cluster import (
    PlanKind,
    PlanState,
    encode_alter_topic,
    encode_cancel_plan,
    encode_drain_broker,
    encode_move_replica,
    encode_rebalance,
    encode_register_broker,
    encode_undrain_broker,
)
from lanner.cluster.planning import may_replace
from lanner.cluster.values import Replica, ReplicaSet
from lanner.errors import ConflictError
from tests.unit.cluster.world import World, registration


def test_a_rebalance_evens_out_with_as_few_moves_as_possible() -> None:
    world = World("a", "b", "c")
    world.create("orders", partitions=12)  # twelve each
    world.join("d")
    assert world.held() == {"a": 12, "b": 12, "c": 12, "d": 0}
    plan = world.apply(encode_rebalance(5))
    assert plan.moves_open == 9, "the new broker's fair share, and nothing else"
    world.settle()
    assert world.held() == dict.fromkeys("abcd", 9)
    assert world.led() == dict.fromkeys("abcd", 3)
    assert world.machine.plans[plan.plan_id].state is PlanState.DONE


def test_a_rebalance_of_what_is_even_does_nothing() -> None:
    world = World("a", "b", "c")
    world.create("orders", partitions=3, replication=1)
    plan = world.apply(encode_rebalance(5))
    assert (plan.state, plan.steps_total) == (PlanState.DONE, 0)


def test_a_rebalance_never_brings_a_partition_into_fewer_racks() -> None:
    world = World("a", "b", racks="xy")
    world.create("orders", partitions=6)
    world.join("c", rack="x")
    world.apply(encode_rebalance(5))
    world.settle()
    assert world.held() == {"a": 3, "b": 6, "c": 3}
    for set_id in world.machine.topics["orders"].set_ids:
        assert "b" in world.nodes(set_id)


def test_a_rebalance_puts_back_what_is_missing() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=2)
    world.apply(encode_register_broker(registration("c", "reborn"), 3))
    while not (found := [plan for plan in world.machine.plans.values() if plan.kind is PlanKind.REBUILD]):
        world.advance()
    for _ in range(3):
        world.advance()
    world.apply(encode_cancel_plan(found[0].plan_id))
    world.settle()
    assert [len(world.nodes(set_id)) for set_id in topic.set_ids] == [2, 2]
    assert world.machine.describe_cluster().replicas_missing == 2
    world.apply(encode_rebalance(5))
    world.settle()
    assert [len(world.nodes(set_id)) for set_id in topic.set_ids] == [3, 3]
    assert world.machine.describe_cluster().replicas_missing == 0


def test_a_rebalance_leaves_alone_what_is_on_the_move() -> None:
    world = World("a", "b")
    topic = world.create("orders", partitions=4, replication=1)
    world.join("c")
    before = world.apply(encode_move_replica(topic.set_ids[0], "node-a", "node-c", 4))
    plan = world.apply(encode_rebalance(5))
    assert plan.moves_open == 0 or all(
        move.set_id != topic.set_ids[0] for move in world.machine.moves.values() if move.plan_id == plan.plan_id
    )
    world.settle()
    assert sorted(world.held().values()) == [1, 1, 2]
    assert world.machine.plans[before.plan_id].state is PlanState.DONE


@pytest.mark.parametrize("seed", range(10))
def test_after_a_rebalance_no_two_brokers_differ_by_more_than_one(seed: int) -> None:
    rng = random.Random(seed)
    world = World(*"abc")
    for number in range(rng.randint(1, 5)):
        world.create(f"t{number}", partitions=rng.randint(1, 6), replication=rng.randint(1, 3))
    for name in "defg"[: rng.randint(1, 4)]:
        world.join(name)
    world.apply(encode_rebalance(5))
    world.settle()
    held, led = world.held().values(), world.led().values()
    assert max(held) - min(held) <= 1
    assert max(led) - min(led) <= 2


def test_more_replicas_are_added_and_fewer_are_taken_away() -> None:
    world = World("a", "b", "c", "d")
    topic = world.create("orders", partitions=4, replication=1)
    world.apply(encode_alter_topic("orders", {"replication": 3}, 5))
    [plan] = world.machine.plans.values()
    assert (plan.kind, plan.moves_open, plan.created_ms) == (PlanKind.REPLICATION, 8, 1_000)
    world.settle()
    assert [len(world.nodes(set_id)) for set_id in topic.set_ids] == [3] * 4
    assert world.held() == dict.fromkeys("abcd", 3)
    world.apply(encode_alter_topic("orders", {"replication": 2}, 6))
    world.settle()
    assert [len(world.nodes(set_id)) for set_id in topic.set_ids] == [2] * 4
    assert world.held() == dict.fromkeys("abcd", 2)
    assert world.led() == dict.fromkeys("abcd", 1)


def test_the_replica_that_goes_is_one_of_a_crowded_rack() -> None:
    world = World("a", "b", "c", racks="xxy")
    topic = world.create("orders", partitions=3)
    world.apply(encode_alter_topic("orders", {"replication": 2}))
    world.settle()
    assert all("c" in world.nodes(set_id) for set_id in topic.set_ids)


def test_a_replication_that_is_changed_again_before_it_is_reached_ends_where_it_should() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=2, replication=1)
    world.apply(encode_alter_topic("orders", {"replication": 3}))
    world.advance()
    world.apply(encode_alter_topic("orders", {"replication": 2}))
    world.settle()
    assert all(len(world.nodes(set_id)) >= 2 for set_id in topic.set_ids)
    assert isinstance(world.apply(encode_alter_topic("orders", {"replication": 4})), ConflictError)


def test_the_default_asked_for_again_follows_the_number_of_brokers() -> None:
    world = World("a")
    topic = world.create("orders", partitions=1)
    world.join("b")
    world.join("c")
    assert world.nodes(topic.set_ids[0]) == {"a"}, "nothing grows by itself"
    assert world.apply(encode_alter_topic("orders", {"replication": 0})).settings.replication == 3
    world.settle()
    assert world.nodes(topic.set_ids[0]) == {"a", "b", "c"}


def test_a_drain_keeps_the_racks_apart() -> None:
    world = World("a", "b", "c", "d", racks="xyxy")
    topic = world.create("orders", partitions=4, replication=2)
    world.drain("a")
    world.settle()
    for set_id in topic.set_ids:
        assert len({world.machine.brokers[node].rack for node in world.machine.sets[set_id].nodes}) == 2
    assert world.held()["a"] == 0


def test_a_drain_takes_up_what_arrives_too_late_to_be_stopped() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=1, replication=1)
    set_id = topic.set_ids[0]
    world.apply(encode_move_replica(set_id, "node-a", "node-b", 3))
    while world.machine.next_steps()[0].action != "demote":
        world.advance()
    plan = world.drain("b")
    world.settle()
    assert world.nodes(set_id) <= {"a", "c"}
    assert world.machine.plans[plan.plan_id].state is PlanState.DONE


def test_a_drain_with_a_failed_move_stalls_and_goes_on_when_asked_again() -> None:
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=1)
    plan = world.drain("a")
    step = next(step for step in world.machine.next_steps() if step.set_id)
    for _ in range(limits.MOVE_FAILURES_MAX):
        world.fail(step, "no route")
    world.settle()
    stalled = world.machine.plans[plan.plan_id]
    assert (stalled.state, stalled.reason) == (PlanState.STALLED, "no route")
    assert world.held()["a"] == 1, "nobody tries what failed again before somebody asks"
    again = world.apply(encode_drain_broker("node-a", 4))
    assert again.plan_id != plan.plan_id
    world.settle()
    assert world.machine.is_drained("node-a")


def test_a_drain_that_finds_nowhere_to_go_later_stalls_with_the_reason() -> None:
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=1, replication=3)
    before = world.nodes(1)
    world.drain("a")
    # its target is wiped before the move has begun to matter, so the drain must look for another, and there is none
    world.apply(encode_register_broker(registration("d", "reborn"), 4))
    plan = next(plan for plan in world.machine.plans.values() if plan.kind is PlanKind.DRAIN)
    while world.machine.plans[plan.plan_id].state is PlanState.RUNNING:
        step = next(step for step in world.machine.next_steps() if step.node_id != "reborn")
        world.do(step)
        world.report(step)
    stalled = world.machine.plans[plan.plan_id]
    assert stalled.state is PlanState.STALLED
    assert "nowhere to go" in stalled.reason
    assert world.nodes(1) == before


def test_two_wishes_for_one_replica_come_to_one_move() -> None:
    world = World("a", "b", "c", "d")
    topic = world.create("orders", partitions=1, replication=3)
    world.apply(encode_move_replica(topic.set_ids[0], "node-a", "node-d", 3))
    plan = world.drain("a")
    assert [move.plan_id == plan.plan_id for move in world.machine.moves.values() if move.set_id] == [False]
    world.settle()
    assert world.nodes(topic.set_ids[0]) == {"b", "c", "d"}


def test_a_broker_that_is_drained_gives_its_vote_to_one_that_learns() -> None:
    world = World(*"abcdef")
    world.drain("a")
    seen = [step.action for step in world.machine.next_steps()]
    assert seen == ["catch_up"]
    world.settle()
    assert world.votes() == set("bcdef")
    world.apply(encode_undrain_broker("node-a"))
    world.settle()
    assert world.votes() == set("bcdef"), "five vote already"


def test_a_wiped_broker_that_does_not_come_back_for_good_is_rebuilt_elsewhere() -> None:
    world = World("a", "b", "c", "d")
    topic = world.create("orders", partitions=2, replication=3)
    world.apply(encode_register_broker(registration("a", "reborn"), 3))
    world.advance()
    world.apply(encode_register_broker(registration("a", "reborn"), 3))
    from lanner.cluster import encode_remove_broker

    world.apply(encode_remove_broker("reborn", 4))
    world.settle()
    for set_id in topic.set_ids:
        assert world.nodes(set_id) == {"b", "c", "d"}


@pytest.mark.parametrize(
    ("voters", "damaged", "replaced", "may"),
    [
        (3, (1,), 1, True),
        (3, (1, 2), 1, False),  # the third may be the only whole one
        (2, (1,), 1, True),
        (2, (1, 2), 1, False),
        (1, (1,), 1, False),  # there is nobody to get a copy from
        (5, (1, 2), 1, True),
        (5, (1, 2, 3), 1, False),
    ],
)
def test_a_damaged_copy_is_replaced_only_while_most_others_are_whole(
    voters: int, damaged: tuple[int, ...], replaced: int, may: bool
) -> None:
    replicas = tuple(Replica(number, f"node-{number}", True) for number in range(1, voters + 1))
    replica_set = ReplicaSet(7, "orders", 0, replicas, voters, voters + 1, 1, damaged)
    assert may_replace(replica_set, replaced) is may
