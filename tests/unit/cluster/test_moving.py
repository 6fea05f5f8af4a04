from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from lanner import features, limits
from lanner.cluster import (
    METADATA_SET,
    Action,
    BrokerState,
    PlanState,
    encode_alter_topic,
    encode_cancel_plan,
    encode_delete_topic,
    encode_finish_step,
    encode_move_replica,
    encode_raise_feature_level,
    encode_register_broker,
    encode_report_damage,
    encode_transfer_leader,
    encode_update_broker,
)
from lanner.errors import ConflictError, LannerError
from tests.unit.cluster.world import World, registration


def moving_world(**settings: Any) -> tuple[World, int, int]:
    """Three replicas on a, b, c, and the one of c is to go to d: the world, the set, the plan."""
    world = World("a", "b", "c", "d")
    settings.setdefault("replication", 3)
    set_id = world.create("orders", partitions=1, **settings).set_ids[0]
    source = sorted(world.nodes(set_id))[-1]
    plan = world.apply(encode_move_replica(set_id, f"node-{source}", "node-d", 2))
    return world, set_id, plan.plan_id


def advance_to(world: World, action: Action) -> None:
    while world.machine.next_steps()[0].action is not action:
        world.advance()


def refused(result: Any, kind: type[LannerError], words: str) -> None:
    assert isinstance(result, kind), result
    assert words in result.message


def test_a_move_goes_by_single_steps_and_never_below_its_replication() -> None:
    world, set_id, plan_id = moving_world()
    seen = []
    while steps := world.machine.next_steps():
        [step] = steps
        one = world.machine.sets[set_id]
        seen.append((step.action, step.replica_id, step.node_id, len(one.voters)))
        assert len(one.voters) >= 3
        world.advance()
    assert seen == [
        (Action.ADD_LEARNER, 4, "node-d", 3),
        (Action.CATCH_UP, 4, "node-d", 3),
        (Action.PROMOTE, 4, "node-d", 3),
        (Action.HAND_OVER, 3, "node-c", 4),
        (Action.DEMOTE, 3, "node-c", 4),
        (Action.REMOVE, 3, "node-c", 3),
    ]
    assert world.nodes(set_id) == {"a", "b", "d"}
    progress = world.machine.progress(plan_id)
    assert progress is not None
    assert (progress.state, progress.steps_done, progress.steps_total) == (PlanState.DONE, 6, 6)
    assert (progress.moves_done, progress.moves_total, progress.moves_running) == (1, 1, 0)


def test_even_a_single_replica_moves_without_a_moment_without_a_voter() -> None:
    world, set_id, _ = moving_world(replication=1)
    world.settle()
    assert world.nodes(set_id) == {"d"}
    assert world.machine.leaders_wanted()[set_id].node_id == "node-d"


def test_the_successor_leads_before_the_leader_goes() -> None:
    world, set_id, _ = moving_world(replication=3)
    world.settle()
    world.apply(encode_transfer_leader(set_id, "node-a"))
    world.apply(encode_move_replica(set_id, "node-a", "node-c", 3))
    advance_to(world, Action.HAND_OVER)
    [step] = world.machine.next_steps()
    new = world.machine.sets[set_id].replica_on("node-c")
    assert new is not None
    assert step.successor == new.replica_id == world.machine.leaders_wanted()[set_id].replica_id
    world.settle()
    assert world.machine.leaders_wanted()[set_id].node_id == "node-c"


@pytest.mark.parametrize("action", list(Action)[:6])
def test_a_move_goes_on_after_a_crash_at_any_step(action: Action) -> None:
    world, set_id, _ = moving_world()
    world.save()
    advance_to(world, action)
    [step] = world.machine.next_steps()
    world.do(step)  # and the report is lost
    world.restart()
    assert world.machine.next_steps() == [step]
    world.settle()
    assert world.nodes(set_id) == {"a", "b", "d"}


def test_a_report_that_comes_twice_changes_nothing() -> None:
    world, _, _ = moving_world()
    [step] = world.machine.next_steps()
    world.do(step)
    world.report(step)
    moves = dict(world.machine.moves)
    world.report(step)
    assert dict(world.machine.moves) == moves


def test_a_report_for_a_step_that_was_not_asked_for_is_refused() -> None:
    world, _, _ = moving_world()
    [step] = world.machine.next_steps()
    refused(world.report(step._replace(position=1)), ConflictError, "stands at step 0")
    refused(world.report(step._replace(action=Action.PROMOTE)), ConflictError, "stands at step 0, add_learner")


def test_a_late_report_does_not_pass_for_a_step_of_taking_back() -> None:
    world, set_id, plan_id = moving_world()
    advance_to(world, Action.PROMOTE)
    [step] = world.machine.next_steps()
    world.do(step)
    world.apply(encode_cancel_plan(plan_id))
    refused(world.report(step), ConflictError, "back_hand_over, not at 2, promote")
    world.settle()
    assert world.members[set_id] == {1: True, 2: True, 3: True}


@pytest.mark.parametrize(
    ("action", "back"),
    [
        (Action.ADD_LEARNER, ["back_remove"]),
        (Action.CATCH_UP, ["back_remove"]),
        (Action.PROMOTE, ["back_hand_over", "back_demote", "back_remove"]),
        (Action.HAND_OVER, ["back_hand_over", "back_demote", "back_remove"]),
    ],
)
@pytest.mark.parametrize("done", [False, True])
def test_a_cancelled_move_is_taken_back_by_steps(action: Action, back: list[str], done: bool) -> None:
    world, set_id, plan_id = moving_world()
    advance_to(world, action)
    if done:
        world.do(world.machine.next_steps()[0])
    world.apply(encode_cancel_plan(plan_id))
    seen = []
    while steps := world.machine.next_steps():
        seen += [str(step.action) for step in steps]
        world.advance()
    assert seen == back
    assert world.nodes(set_id) == {"a", "b", "c"}
    plan = world.machine.plans[plan_id]
    assert (plan.state, plan.moves_done, plan.moves_dropped) == (PlanState.CANCELLED, 0, 1)
    assert plan.steps_done == plan.steps_total


@pytest.mark.parametrize("action", [Action.DEMOTE, Action.REMOVE])
def test_a_move_whose_source_has_begun_to_go_comes_to_its_end(action: Action) -> None:
    world, set_id, plan_id = moving_world()
    advance_to(world, action)
    world.apply(encode_cancel_plan(plan_id))
    world.settle()
    assert world.nodes(set_id) == {"a", "b", "d"}
    assert world.machine.plans[plan_id].moves_done == 1


def test_leadership_goes_back_to_the_source_when_a_move_is_taken_back() -> None:
    world, set_id, plan_id = moving_world(replication=1)
    source = world.machine.leaders_wanted()[set_id]
    advance_to(world, Action.HAND_OVER)
    assert world.machine.leaders_wanted()[set_id].node_id == "node-d"
    world.apply(encode_cancel_plan(plan_id))
    assert world.machine.leaders_wanted()[set_id] == source
    world.settle()
    assert world.machine.leaders_wanted()[set_id] == source


def test_a_step_that_fails_too_often_takes_the_move_back_and_says_why() -> None:
    world, set_id, plan_id = moving_world()
    advance_to(world, Action.CATCH_UP)
    for _ in range(limits.MOVE_FAILURES_MAX - 1):
        world.fail(world.machine.next_steps()[0], "the disk is full")
    assert world.machine.next_steps()[0].action is Action.CATCH_UP
    world.fail(world.machine.next_steps()[0], "the disk is full " + "x" * 2_000)
    assert world.machine.next_steps()[0].action is Action.BACK_REMOVE
    world.fail(world.machine.next_steps()[0])
    world.settle()
    plan = world.machine.plans[plan_id]
    assert (plan.state, plan.moves_failed) == (PlanState.STALLED, 1)
    assert plan.reason.startswith("the disk is full") and len(plan.reason) == limits.REASON_LENGTH_MAX
    assert world.nodes(set_id) == {"a", "b", "c"}


def test_a_step_past_the_point_of_no_return_is_tried_for_ever() -> None:
    world, set_id, _ = moving_world()
    advance_to(world, Action.DEMOTE)
    for _ in range(3 * limits.MOVE_FAILURES_MAX):
        world.fail(world.machine.next_steps()[0])
    assert world.machine.next_steps()[0].action is Action.DEMOTE
    world.settle()
    assert world.nodes(set_id) == {"a", "b", "d"}


def test_a_step_that_succeeds_is_forgiven_its_failures() -> None:
    world, _, _ = moving_world()
    world.fail(world.machine.next_steps()[0])
    world.advance()
    [move] = world.machine.moves.values()
    assert (move.failures, move.reason) == (0, "")


def test_an_id_that_was_taken_back_is_never_given_again() -> None:
    world, set_id, plan_id = moving_world()
    world.apply(encode_cancel_plan(plan_id))
    world.settle()
    world.apply(encode_move_replica(set_id, "node-c", "node-d", 3))
    world.settle()
    replica = world.machine.sets[set_id].replica_on("node-d")
    assert replica is not None and replica.replica_id == 5


def test_what_cannot_be_moved_is_refused_with_the_reason() -> None:
    world, set_id, _ = moving_world()
    refused(world.apply(encode_move_replica(set_id, "node-c", "node-d", 3)), ConflictError, "on the move already")
    world.settle()
    refused(world.apply(encode_move_replica(set_id, "node-c", "node-d", 3)), ConflictError, "has no replica")
    refused(world.apply(encode_move_replica(set_id, "node-a", "node-d", 3)), ConflictError, "already")
    refused(world.apply(encode_move_replica(METADATA_SET, "node-a", "node-d", 3)), ConflictError, "every broker")
    world.apply(encode_register_broker(registration("e"), 3))
    refused(world.apply(encode_move_replica(set_id, "node-a", "node-e", 3)), ConflictError, "is joining")


def test_a_broker_takes_part_in_a_few_moves_at_a_time() -> None:
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=12)
    world.drain("a")
    most = 0
    while steps := world.machine.next_steps():
        moving = [step for step in steps if step.set_id != METADATA_SET]
        most = max(most, len(moving))
        assert len(moving) <= limits.MOVES_PER_BROKER_MAX, "all of them leave from a"
        world.advance()
    assert most == limits.MOVES_PER_BROKER_MAX


def test_a_deleted_topic_takes_its_moves_with_it() -> None:
    world, _, plan_id = moving_world()
    world.advance()
    world.apply(encode_delete_topic("orders"))
    assert world.machine.next_steps() == []
    plan = world.machine.plans[plan_id]
    assert (plan.state, plan.steps_done, plan.steps_total, plan.moves_dropped) == (PlanState.DONE, 1, 1, 1)


def test_a_topic_deleted_while_its_move_is_taken_back_is_counted_once() -> None:
    world, _, plan_id = moving_world()
    world.apply(encode_cancel_plan(plan_id))
    world.apply(encode_delete_topic("orders"))
    assert world.machine.plans[plan_id].moves_dropped == 1


def test_a_set_whose_last_voter_should_be_demoted_refuses_it() -> None:
    """Cannot come about by commands; a damaged plan must still not take the last vote."""
    world, set_id, _ = moving_world()
    advance_to(world, Action.DEMOTE)
    state = world.machine._state
    one = state.sets[set_id]
    from msgspec.structs import replace

    lonely = tuple(replica for replica in one.replicas if replica.node_id == "node-c")
    state.sets[set_id] = replace(one, replicas=lonely)
    [step] = world.machine.next_steps()
    outcome = world.machine.apply(99, encode_finish_step(step.move_id, step.position, step.action))
    refused(outcome.result, ConflictError, "its last voter")


# ---------------------------------------------------------------------- a source that was to go, and stays


def shrinking_world() -> tuple[World, int, int]:
    """One of three replicas is to go, on a broker that stays, and stands at losing its vote."""
    world = World("a", "b", "c")
    set_id = world.create("orders", partitions=1, replication=3).set_ids[0]
    world.apply(encode_alter_topic("orders", {"replication": 2}))
    advance_to(world, Action.DEMOTE)
    [plan] = world.machine.plans.values()
    return world, set_id, plan.plan_id


@pytest.mark.parametrize("done", [False, True])
def test_a_replica_that_was_to_go_from_a_broker_that_stays_gets_its_vote_back(done: bool) -> None:
    world, set_id, plan_id = shrinking_world()
    world.save()
    if done:
        world.do(world.machine.next_steps()[0])
    world.apply(encode_cancel_plan(plan_id))
    world.restart()
    assert [step.action for step in world.machine.next_steps()] == [Action.BACK_PROMOTE]
    world.settle()
    assert world.members[set_id] == {1: True, 2: True, 3: True}
    plan = world.machine.plans[plan_id]
    assert (plan.state, plan.moves_dropped, plan.steps_done) == (PlanState.CANCELLED, 1, plan.steps_total)


def test_replicas_that_are_to_stay_after_all_count_when_more_are_asked_for() -> None:
    world, set_id, plan_id = shrinking_world()
    world.apply(encode_cancel_plan(plan_id))
    world.apply(encode_alter_topic("orders", {"replication": 3}))
    world.settle()
    assert world.nodes(set_id) == {"a", "b", "c"}


def test_a_disk_that_is_lost_while_another_replica_is_to_go_is_replaced() -> None:
    world, set_id, plan_id = shrinking_world()
    [shrink] = world.machine.next_steps()
    lost = next(name for name in "abc" if f"node-{name}" != shrink.node_id)
    world.apply(encode_register_broker(registration(lost, "new"), 9))
    while any(step.set_id != set_id for step in world.machine.next_steps()):
        for step in world.machine.next_steps():
            if step.set_id != set_id:
                world.do(step)
                world.report(step)
    for _ in range(limits.MOVE_FAILURES_MAX):
        assert world.machine.next_steps() == [shrink], "those who would be left to vote do not answer"
        world.fail(shrink)
    world.settle()
    assert world.machine.plans[plan_id].state is PlanState.STALLED
    assert f"node-{lost}" not in {replica.node_id for replica in world.machine.sets[set_id].replicas}
    assert len(world.nodes(set_id)) == 3
    assert all(plan.state is PlanState.DONE for number, plan in world.machine.plans.items() if number != plan_id)


def test_what_a_leaving_broker_gives_away_is_not_given_back() -> None:
    world, set_id, plan_id = shrinking_world()
    [step] = world.machine.next_steps()
    world.machine._state.put_broker(
        replace(world.machine.brokers[step.node_id], state=BrokerState.DRAINING, leaving=True)
    )
    world.apply(encode_cancel_plan(plan_id))
    assert world.machine.next_steps() == [step]
    world.settle()
    assert len(world.nodes(set_id)) == 2


# ---------------------------------------------------------------------- a damaged copy, which may never vote again


def repairing_world(level: int = features.REPAIRS) -> tuple[World, int, int]:
    """One of three copies is damaged, and stands at losing its vote: the world, the set, the plan."""
    world = World("a", "b", "c", level=level)
    set_id = world.create("orders", partitions=1, replication=3).set_ids[0]
    world.apply(encode_report_damage(set_id, 3, world.machine.sets[set_id].replicas[2].node_id))
    advance_to(world, Action.DEMOTE)
    [plan] = world.machine.plans.values()
    return world, set_id, plan.plan_id


def fail_often(world: World) -> None:
    [step] = world.machine.next_steps()
    for _ in range(limits.MOVE_FAILURES_MAX):
        world.fail(step)


def test_a_repair_cannot_be_cancelled() -> None:
    world, _, plan_id = repairing_world()
    refused(world.apply(encode_cancel_plan(plan_id)), ConflictError, "damaged copy and cannot be cancelled")
    world.settle()
    assert world.machine.plans[plan_id].state is PlanState.DONE


def test_brokers_of_an_older_release_cancel_a_repair_alike() -> None:
    world, _, plan_id = repairing_world(level=features.REPAIRS - 1)
    world.apply(encode_cancel_plan(plan_id))
    assert [step.action for step in world.machine.next_steps()] == [Action.BACK_PROMOTE]
    fail_often(world)
    assert [step.action for step in world.machine.next_steps()] == [Action.BACK_PROMOTE]


@pytest.mark.parametrize("done", [False, True])
def test_a_damaged_copy_that_does_not_get_its_vote_back_goes_after_all(done: bool) -> None:
    world, set_id, plan_id = repairing_world()
    world.save()
    if done:
        world.do(world.machine.next_steps()[0])
    fail_often(world)
    assert [step.action for step in world.machine.next_steps()] == [Action.BACK_PROMOTE]
    fail_often(world)
    world.restart()
    assert [step.action for step in world.machine.next_steps()] == [Action.DEMOTE]
    world.settle()
    assert world.members[set_id] == {1: True, 2: True, 4: True}
    assert world.machine.sets[set_id].damaged == ()
    plan = world.machine.plans[plan_id]
    assert (plan.state, plan.moves_done, plan.moves_failed, plan.moves_dropped) == (PlanState.DONE, 2, 0, 0)
    assert plan.steps_done == plan.steps_total


def test_a_repair_that_was_cancelled_before_the_upgrade_comes_to_its_end_after_it() -> None:
    world, set_id, plan_id = repairing_world(level=features.REPAIRS - 1)
    world.do(world.machine.next_steps()[0])
    world.apply(encode_cancel_plan(plan_id))
    fail_often(world)
    for name in "abc":
        world.apply(encode_update_broker(f"node-{name}", feature_max=features.REPAIRS))
    world.apply(encode_raise_feature_level(features.REPAIRS))
    fail_often(world)
    world.settle()
    assert world.members[set_id] == {1: True, 2: True}
    assert world.machine.plans[plan_id].state is PlanState.CANCELLED
