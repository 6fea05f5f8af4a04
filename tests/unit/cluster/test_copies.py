"""Topics that have fewer replicas than they want get them when a broker comes, or comes back; from level 6 on."""

from __future__ import annotations

import msgspec
import pytest

from lanner import features
from lanner.cluster import (
    PlanKind,
    PlanState,
    encode_alter_topic,
    encode_cancel_plan,
    encode_found_cluster,
    encode_raise_feature_level,
    encode_rebalance,
    encode_register_broker,
    encode_undrain_broker,
)
from lanner.cluster.state import Topic
from tests.unit.cluster.world import World, registration

LEVEL = features.COPIES


def copies(world: World, topic: Topic) -> list[int]:
    return [len(world.nodes(set_id)) for set_id in topic.set_ids]


def test_a_topic_made_before_a_broker_comes_gets_its_copies_when_it_does() -> None:
    world = World("a", "b", level=LEVEL)
    topic = world.create("orders", partitions=4)
    assert (topic.settings.replication, copies(world, topic)) == (2, [2] * 4)
    world.join("c")
    [plan] = [plan for plan in world.machine.plans.values() if plan.kind is PlanKind.REPLICATION]
    assert (plan.node_id, plan.state, plan.moves_done) == ("node-c", PlanState.DONE, 4)
    assert world.machine.topics["orders"].settings.replication == 3
    assert copies(world, topic) == [3] * 4
    world.save()
    world.restart()
    world.join("d")
    assert copies(world, topic) == [3] * 4, "no more than the default"


def test_a_topic_made_while_a_broker_is_drained_gets_its_copies_when_it_is_back() -> None:
    world = World("a", "b", "c", level=LEVEL)
    world.drain("c")
    topic = world.create("orders", partitions=2)
    assert (copies(world, topic), world.machine.describe_cluster().replicas_missing) == ([2] * 2, 2)
    assert {row.replication for row in world.machine.describe_partitions("orders")} == {3}
    world.apply(encode_undrain_broker("node-c"))
    world.settle()
    assert (copies(world, topic), world.machine.describe_cluster().replicas_missing) == ([3] * 2, 0)


def test_copies_whose_plan_was_cancelled_are_made_when_a_broker_comes() -> None:
    world = World("a", "b", "c", level=LEVEL)
    topic = world.create("orders", partitions=1, replication=2)
    world.apply(encode_alter_topic("orders", {"replication": 3}))
    [plan] = [plan for plan in world.machine.plans.values() if plan.kind is PlanKind.REPLICATION]
    world.apply(encode_cancel_plan(plan.plan_id))
    world.settle()
    assert copies(world, topic) == [2], "who cancels is obeyed, until a broker comes"
    world.join("d")
    assert copies(world, topic) == [3]


def test_copies_that_could_not_be_made_are_not_tried_for_ever() -> None:
    world = World("a", "b", level=LEVEL)
    topic = world.create("orders", partitions=1)
    world.apply(encode_register_broker(registration("c", feature_max=LEVEL), 2))
    while not (steps := [step for step in world.machine.next_steps() if step.set_id]) and world.advance():
        pass
    assert steps
    while steps:
        world.fail(steps[0])
        steps = [step for step in world.machine.next_steps() if step.set_id and step.action == steps[0].action]
    world.settle()
    [plan] = [plan for plan in world.machine.plans.values() if plan.kind is PlanKind.REPLICATION]
    assert (plan.state, copies(world, topic)) == (PlanState.STALLED, [2])
    assert world.machine.describe_cluster().replicas_missing == 1
    world.apply(encode_rebalance(3))
    world.settle()
    assert copies(world, topic) == [3]


@pytest.mark.parametrize("given", [{"replication": 1}, {"replication": 2}])
def test_a_topic_that_asked_for_a_number_keeps_it_when_brokers_come(given: dict[str, int]) -> None:
    world = World("a", "b", level=LEVEL)
    topic = world.create("orders", partitions=2, **given)
    world.join("c")
    assert copies(world, topic) == [given["replication"]] * 2
    assert not any(plan.kind is PlanKind.REPLICATION for plan in world.machine.plans.values()), "nothing is planned"


def test_what_a_topic_asked_for_last_decides_whether_it_grows() -> None:
    world = World("a", "b", level=LEVEL)
    topics = [world.create(name, partitions=1) for name in ("fixed", "kept", "freed")]
    world.apply(encode_alter_topic("fixed", {"replication": 2}))
    world.apply(encode_alter_topic("kept", {"retention_ms": 5}))
    world.apply(encode_alter_topic("freed", {"replication": 1}))
    world.settle()
    world.apply(encode_alter_topic("freed", {"replication": 0}))
    world.settle()
    world.join("c")
    assert [copies(world, topic) for topic in topics] == [[2], [3], [3]]


def test_topics_of_a_single_broker_get_three_copies_with_the_third_broker_and_never_two() -> None:
    world = World()
    world.apply(encode_raise_feature_level(LEVEL))
    topic = world.create("orders", partitions=2)
    world.apply(encode_found_cluster("cluster", [registration("a", feature_max=LEVEL)], 1))
    assert copies(world, topic) == [1, 1]
    assert world.machine.describe_cluster().replicas_missing == 0
    world.join("b")
    assert copies(world, topic) == [1, 1], "two copies would need each other, and stop when either broker does"
    assert world.machine.describe_cluster().replicas_missing == 0
    world.join("c")
    assert copies(world, topic) == [3, 3]


def test_below_the_level_that_brought_it_nothing_grows_and_the_rows_are_as_before() -> None:
    world = World("a", "b", level=LEVEL - 1)
    topic = world.create("orders", partitions=1)
    world.join("c")
    assert (copies(world, topic), world.machine.topics["orders"].grows) == ([2], False)
    assert len(msgspec.msgpack.decode(world.machine.all_rows()[b"torders"])) == 5
