from __future__ import annotations

import pytest
from msgspec.structs import replace

from lanner import limits
from lanner.cluster import (
    METADATA_SET,
    Action,
    BrokerState,
    PlanKind,
    PlanState,
    encode_cancel_plan,
    encode_drain_broker,
    encode_rebalance,
    encode_register_broker,
    encode_remove_broker,
    encode_undrain_broker,
)
from lanner.cluster.moving import add_move, open_plan
from lanner.cluster.placement import even_leaders
from lanner.cluster.settling import settle
from lanner.cluster.values import GROW, LEAVE, LOWER, RAISE, SHRINK, Steps
from lanner.errors import ConflictError
from tests.unit.cluster.world import World, registration


def test_finished_plans_are_kept_up_to_a_bound_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PLANS_FINISHED_KEPT", 2)
    world = World("a", "b")
    for _ in range(4):
        world.apply(encode_rebalance(1))
        world.save()
    assert list(world.machine.plans) == [3, 4]
    assert world.stored.rows == world.machine.all_rows()
    world.restart()


@pytest.mark.parametrize(
    ("steps", "source", "target", "target_node"),
    [
        (SHRINK, 9, 0, ""),  # its source is gone
        (LEAVE, 1, 0, ""),  # its source votes
        (SHRINK, 1, 0, ""),  # its source is the last that votes
        (GROW, 0, 0, "node-a"),  # its target is there already
        (GROW, 0, 0, "nobody"),  # its target is gone
        (GROW, 0, 0, "node-c"),  # its target is being drained
        (RAISE, 0, 9, ""),  # what should vote is gone
        (RAISE, 0, 1, ""),  # what should vote does so already
    ],
)
def test_a_move_that_no_longer_fits_is_dropped_when_its_turn_comes(
    steps: Steps, source: int, target: int, target_node: str
) -> None:
    world = World("a", "b", "c")
    set_id = world.create("orders", partitions=1, replication=1).set_ids[0]
    world.drain("c")
    world.settle()
    state = world.machine._state
    plan_id = open_plan(state, PlanKind.MOVE)
    add_move(state, plan_id, set_id, steps, source=source, target=target, target_node=target_node)
    settle(state)
    world.machine.check()
    plan = state.plans[plan_id]
    assert (plan.state, plan.moves_dropped, plan.steps_total) == (PlanState.DONE, 1, 0)


def test_a_vote_that_is_being_given_back_is_given_to_somebody_else() -> None:
    world = World("a")
    world.join("b")
    world.apply(encode_register_broker(registration("c"), 2))
    while not any(step.action is Action.PROMOTE for step in world.machine.next_steps()):
        world.advance()
    [step] = world.machine.next_steps()
    world.do(step)
    for _ in range(limits.MOVE_FAILURES_MAX):
        world.fail(step)
    assert [one.action for one in world.machine.next_steps()] == [Action.BACK_HAND_OVER]
    world.settle()
    assert world.votes() == {"a", "b", "c"}, "it is tried again by itself"


def test_a_voter_that_is_relieved_halfway_keeps_its_vote_when_the_drain_is_cancelled() -> None:
    world = World(*"abcdef")
    plan = world.drain("a")
    while world.machine.next_steps()[0].action is not Action.HAND_OVER:
        world.advance()
    assert len(world.votes()) == 6
    world.apply(encode_cancel_plan(plan.plan_id))
    assert [step.action for step in world.machine.next_steps()] == [Action.BACK_HAND_OVER]
    world.settle()
    assert world.votes() == set("abcde")


def test_the_last_vote_over_the_metadata_is_not_taken_from_a_wiped_broker() -> None:
    world = World("a")
    world.apply(encode_register_broker(registration("b"), 2))
    world.apply(encode_register_broker(registration("a", "reborn"), 3))
    assert PlanKind.REMOVE not in {plan.kind for plan in world.machine.plans.values()}
    for _ in range(3):
        world.advance()
    assert "a" in world.votes()
    world.settle()
    assert world.machine.brokers["node-a"].state is BrokerState.REMOVED, "others vote now, so it could go"
    assert len(world.votes()) == 2


def test_the_metadata_waits_for_no_partition() -> None:
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=12)
    world.drain("a")
    assert METADATA_SET in {step.set_id for step in world.machine.next_steps()}


def test_the_clusters_own_plans_cannot_be_cancelled() -> None:
    world = World("a")
    world.apply(encode_register_broker(registration("b"), 2))
    [plan] = world.machine.plans.values()
    assert plan.kind is PlanKind.JOIN
    refused = world.apply(encode_cancel_plan(plan.plan_id))
    assert isinstance(refused, ConflictError)


def test_leaders_go_where_somebody_active_can_take_them_and_else_stay() -> None:
    world = World("a", "b", "c")
    alone, shared = world.create("alone", partitions=1, replication=1), world.create("shared", replication=2)
    state = world.machine._state
    state.put_broker(replace(state.brokers["node-a"], state=BrokerState.DRAINING))
    for set_id in shared.set_ids:
        here = state.sets[set_id].replica_on("node-a")
        if here is not None:
            state.put_set(replace(state.sets[set_id], preferred=here.replica_id))
    even_leaders(state)
    assert world.led()["a"] == len([set_id for set_id in alone.set_ids if world.nodes(set_id) == {"a"}]) == 1


def test_a_broker_is_drained_undrained_and_drained_again() -> None:
    world = World(*"abcd")
    world.create("orders", partitions=3)
    for _ in range(3):
        world.apply(encode_drain_broker("node-b", 2))
        world.advance()
        world.apply(encode_undrain_broker("node-b"))
        world.advance()
    world.settle()
    world.drain("b")
    world.settle()
    world.apply(encode_remove_broker("node-b", 3))
    world.settle()
    assert sorted(world.held()) == ["a", "c", "d"]


def test_a_rebuild_takes_up_what_arrived_on_the_wiped_broker_too_late_to_be_stopped() -> None:
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=2, replication=3)
    world.apply(encode_drain_broker("node-a", 2))
    while not any(step.action is Action.DEMOTE and step.set_id for step in world.machine.next_steps()):
        world.advance()
    world.apply(encode_register_broker(registration("d", "reborn"), 3))
    world.settle()
    assert world.machine.brokers["node-d"].state is BrokerState.REMOVED
    for set_id in world.machine.topics["orders"].set_ids:
        assert world.machine.sets[set_id].replica_on("node-d") is None


def test_a_step_of_the_metadata_that_only_lowers_can_be_dropped() -> None:
    world = World("a", "b", "c")
    plan = world.drain("a")
    [step] = world.machine.next_steps()
    assert step.action is LOWER[0]
    world.apply(encode_cancel_plan(plan.plan_id))
    assert world.machine.next_steps() == []
    assert world.votes() == {"a", "b", "c"}
