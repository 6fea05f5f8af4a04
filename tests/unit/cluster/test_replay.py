"""Random lives of a cluster: commands that make sense or not, steps done and not reported, restarts in the middle."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lanner.cluster import (
    BrokerState,
    PlanState,
    encode_allocate_producers,
    encode_alter_topic,
    encode_cancel_plan,
    encode_delete_topic,
    encode_drain_broker,
    encode_move_replica,
    encode_raise_feature_level,
    encode_rebalance,
    encode_register_broker,
    encode_remove_broker,
    encode_transfer_leader,
    encode_undrain_broker,
    encode_update_broker,
)
from lanner.errors import LannerError
from tests.unit.cluster.world import World, registration

TOPICS = ("a", "b", "c")
NAMES = ("n1", "n2", "n3", "n4", "n5", "n6", "n7")


class Life(World):
    """A world that understands small numbers as commands."""

    def __init__(self, founders: int) -> None:
        super().__init__(*NAMES[:founders], racks="xyxyzzy")
        self.lives = 0
        self.reports: list[Any] = []

    def node(self, number: int) -> str:
        known = sorted(self.machine.brokers)
        return known[number % len(known)]

    def set_id(self, number: int) -> int:
        known = sorted(self.machine.sets)
        return known[number % len(known)]

    def live(self, kind: int, a: int, b: int) -> None:
        result = getattr(self, ACTS[kind % len(ACTS)])(a, b)
        assert result is None or not isinstance(result, Exception) or isinstance(result, LannerError)

    # ------------------------------------------------------------------ topics

    def make_topic(self, a: int, b: int) -> Any:
        return self.create(TOPICS[a % 3], partitions=1 + b % 4, replication=(a + b) % 5)

    def delete_topic(self, a: int, b: int) -> Any:
        return self.apply(encode_delete_topic(TOPICS[a % 3]))

    def grow_topic(self, a: int, b: int) -> Any:
        return self.apply(encode_alter_topic(TOPICS[a % 3], {"partitions": 1 + b % 8}, 5))

    def change_replication(self, a: int, b: int) -> Any:
        return self.apply(encode_alter_topic(TOPICS[a % 3], {"replication": b % 6}))

    # ------------------------------------------------------------------ brokers

    def come(self, a: int, b: int) -> Any:
        """A broker with an empty disk; its name may be new or known."""
        self.lives += 1
        given = registration(NAMES[a % 7], f"life-{self.lives}", "xyz"[b % 3])
        return self.apply(encode_register_broker(given, 7, replaces=b % 4 > 0))

    def come_again(self, a: int, b: int) -> Any:
        broker = self.machine.brokers[self.node(a)]
        return self.apply(encode_register_broker(registration(broker.name, broker.node_id, "xyz"[b % 3]), 8))

    def update(self, a: int, b: int) -> Any:
        return self.apply(encode_update_broker(self.node(a), rack="xyz"[b % 3], feature_max=1 + b % 3))

    def raise_level(self, a: int, b: int) -> Any:
        return self.apply(encode_raise_feature_level(1 + a % 3))

    def drain_one(self, a: int, b: int) -> Any:
        return self.apply(encode_drain_broker(self.node(a), 9))

    def undrain_one(self, a: int, b: int) -> Any:
        return self.apply(encode_undrain_broker(self.node(a)))

    def remove_one(self, a: int, b: int) -> Any:
        return self.apply(encode_remove_broker(self.node(a), 10))

    def remove_what_is_drained(self, a: int, b: int) -> Any:
        drained = [node_id for node_id in sorted(self.machine.brokers) if self.machine.is_drained(node_id)]
        return self.apply(encode_remove_broker(drained[a % len(drained)], 10)) if drained else None

    # ------------------------------------------------------------------ replicas

    def rebalance(self, a: int, b: int) -> Any:
        return self.apply(encode_rebalance(11))

    def move(self, a: int, b: int) -> Any:
        one = self.machine.sets[self.set_id(a)]
        return self.apply(encode_move_replica(one.set_id, one.nodes[b % len(one.nodes)], self.node(b), 12))

    def transfer(self, a: int, b: int) -> Any:
        return self.apply(encode_transfer_leader(self.set_id(a), self.node(b)))

    def cancel(self, a: int, b: int) -> Any:
        plans = list(self.machine.plans)
        return self.apply(encode_cancel_plan(plans[-1 - a % len(plans)])) if plans else None

    # ------------------------------------------------------------------ steps

    def take_step(self, a: int, b: int) -> Any:
        """A step: done and reported, done and not reported, failed, or reported by somebody who came too late."""
        if b % 5 == 4 and self.reports:
            return self.report(self.reports[a % len(self.reports)])
        steps = self.machine.next_steps()
        if not steps:
            return None
        step = steps[a % len(steps)]
        if b % 5 == 3:
            return self.fail(step)
        self.do(step)
        self.reports.append(step)
        return self.report(step) if b % 5 else self._compare()

    def take_steps(self, a: int, b: int) -> None:
        for _ in range(1 + b % 4):
            self.advance()

    def fail_for_good(self, a: int, b: int) -> None:
        steps = self.machine.next_steps()
        for _ in range(5 if steps else 0):
            self.fail(steps[a % len(steps)])

    # ------------------------------------------------------------------ the rest

    def save_and_restart(self, a: int, b: int) -> None:
        if a % 3:
            self.save()
        if b % 3:
            self.restart()

    def be_confused(self, a: int, b: int) -> Any:
        if a % 2:
            return self.apply(encode_allocate_producers(1 + b))
        return self.apply(bytes((1 + a % 17, 1)) + bytes((b % 256, a % 256, 0x93)))


ACTS = (
    "make_topic",
    "make_topic",
    "delete_topic",
    "grow_topic",
    "change_replication",
    "come",
    "come",
    "come_again",
    "update",
    "raise_level",
    "drain_one",
    "drain_one",
    "undrain_one",
    "remove_one",
    "remove_what_is_drained",
    "rebalance",
    "move",
    "transfer",
    "cancel",
    "take_step",
    "take_step",
    "take_step",
    "take_step",
    "take_steps",
    "take_steps",
    "fail_for_good",
    "save_and_restart",
    "be_confused",
)

lives = st.lists(st.tuples(st.integers(0, len(ACTS) - 1), st.integers(0, 300), st.integers(0, 300)), max_size=120)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.integers(1, 7), lives)
def test_rows_and_the_tail_of_the_log_make_the_same_machine_wherever_it_stopped(
    founders: int, acts: list[tuple[int, int, int]]
) -> None:
    life = Life(founders)
    for act in acts:
        life.live(*act)
    life.restart()
    life.settle()
    assert all(plan.state is not PlanState.RUNNING for plan in life.machine.plans.values())
    assert all(broker.state is not BrokerState.JOINING for broker in life.machine.brokers.values())
    life.save()
    assert life.stored.rows == life.machine.all_rows()


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 30))])
def test_long_lives_come_to_rest(seed: int) -> None:
    """Hypothesis prefers short lives, because they shrink well; plans that overlap need long ones."""
    rng = random.Random(seed)
    life = Life(rng.randint(1, 7))
    for _ in range(rng.randint(100, 250)):
        life.live(rng.randrange(len(ACTS)), rng.randrange(300), rng.randrange(300))
    life.restart()
    life.settle()
    assert all(plan.state is not PlanState.RUNNING for plan in life.machine.plans.values())
