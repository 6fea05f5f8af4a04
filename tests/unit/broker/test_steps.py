"""Steps of moves where reports are lost or overtaken by a change of mind."""

from __future__ import annotations

import pytest

from lanner.cluster import METADATA_SET, Action, PlanState, encode_alter_topic, encode_cancel_plan, encode_move_replica
from lanner.testing.flock import Flock


def test_a_move_that_is_taken_back_before_its_report_was_heard_goes_on_with_the_way_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by seed 101 of the simulated cluster: both steps have one number, and the old report stood for both."""
    flock = Flock("abcd")
    (set_id,) = flock.create_topic("orders")
    record = flock.metadata.sets[set_id]
    target = next(name for name in flock.metadata.brokers if name not in record.nodes)
    heard, flock_propose = [], flock.propose
    monkeypatch.setattr(flock, "propose", lambda command: heard.append(command) or False)
    plan = flock.command(encode_move_replica(set_id, record.nodes[0], target, flock.now_ms))
    flock.until(lambda: bool(heard))
    (move,) = flock.metadata.moves.values()
    assert move.action is Action.ADD_LEARNER
    flock.command(encode_cancel_plan(plan.plan_id))
    monkeypatch.setattr(flock, "propose", flock_propose)
    flock.until(lambda: flock.state(plan) is PlanState.CANCELLED)
    leader = flock.leader_of(set_id)
    assert leader is not None
    assert not leader.replica(set_id).node.learners
    flock.until(lambda: target[-1] not in flock.place(set_id))


def test_a_voter_is_not_taken_out_while_those_who_would_be_left_are_no_majority() -> None:
    """Found by seed 17 of the simulated cluster: of three voters one was down, and taking out another ended the set."""
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    record = flock.metadata.sets[set_id]
    leader = flock.leader_of(set_id)
    assert leader is not None
    victim = max(replica.replica_id for replica in record.replicas)
    down = next(
        replica
        for replica in record.replicas
        if replica.replica_id not in (victim, leader.replica(set_id).node.node_id)
    )
    flock.brokers[down.node_id[-1]].stop()
    flock.until(lambda: flock.leader_of(METADATA_SET) is not None)
    flock.command(encode_alter_topic("orders", {"replication": 2}, flock.now_ms))
    (move,) = flock.metadata.moves.values()
    assert move.source == victim
    flock.pass_time(200)
    assert flock.publish(set_id, b"still there").base_offset == 0
    flock.brokers[down.node_id[-1]].start()
    flock.until(lambda: not flock.metadata.moves)
    assert flock.publish(set_id, b"and now with two").base_offset == 1
    assert len(flock.members(set_id)) == 2
