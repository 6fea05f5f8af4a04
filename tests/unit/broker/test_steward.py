"""Stewards of several brokers: each holds, serves and leads what the metadata says, whatever happens meanwhile."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from lanner.broker import steps as steps_module
from lanner.broker import steward as steward_module
from lanner.broker.replicas.engine import CLUSTER_SET, Seat
from lanner.cluster import (
    METADATA_SET,
    Action,
    PlanState,
    encode_alter_topic,
    encode_cancel_plan,
    encode_claim_transaction,
    encode_create_topic,
    encode_delete_topic,
    encode_drain_broker,
    encode_finish_step,
    encode_move_replica,
    encode_rebalance,
    encode_remove_broker,
    encode_transfer_leader,
)
from lanner.errors import NotLeader, TopicNotFound
from lanner.ledger import perform
from lanner.model import TopicSettings
from lanner.partition import Partition
from lanner.raft import Change, MessageKind
from lanner.testing.flock import TICK_MS, Broker, Flock


def grown() -> tuple[Flock, int]:
    """Three brokers with one topic, and a fourth that has just joined."""
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    for number in range(20):
        flock.publish(set_id, b"%d" % number)
    flock.add("d")
    flock.until(lambda: flock.metadata.brokers["node-d"].state == "active" and not flock.metadata.moves)
    return flock, set_id


# ------------------------------------------------------------------ opening


def test_a_new_topic_is_opened_where_the_metadata_puts_it_and_led_where_it_should_be() -> None:
    flock = Flock()
    sets = flock.create_topic("orders", partitions=6)
    assert all(flock.place(set_id) == set("abc") for set_id in sets)
    assert all(flock.is_home(set_id) for set_id in sets)
    for set_id in sets:
        assert flock.publish(set_id, b"x").base_offset == 0
    flock.pass_time(3)  # what is committed is told with a heartbeat
    assert all(flock.count(broker, set_id) == 1 for broker in flock.up() for set_id in sets)


def test_a_broker_has_only_what_was_put_on_it() -> None:
    flock = Flock("abcd")
    sets = flock.create_topic("orders", partitions=8, replication=2)
    for set_id in sets:
        assert flock.place(set_id) == {node_id[-1] for node_id in flock.metadata.sets[set_id].nodes}


def test_a_topic_with_many_partitions_is_opened_over_several_turns() -> None:
    flock = Flock("a")
    count = 2 * steward_module.OPENS_PER_TURN + 1
    told: list[Any] = []
    broker = flock.brokers["a"]
    wanted = TopicSettings(partitions=count, replication=1)
    broker.engine.propose(METADATA_SET, encode_create_topic("wide", wanted, 0), told.append)
    broker.steward.follow()
    while not told:
        commit = broker.engine.pump()
        assert commit is not None
        perform(commit, broker.files)
        broker.engine.committed(commit)
    opened: list[int] = []
    while not opened or opened[-1] < count:
        broker.steward.follow()
        opened.append(len(broker.held()))
    assert opened == [steward_module.OPENS_PER_TURN, 2 * steward_module.OPENS_PER_TURN, count]
    assert broker.steward.settled


def test_settings_reach_the_engine_and_changes_do_too() -> None:
    flock = Flock()
    sets = flock.create_topic("orders", partitions=2, lease_ms=5_000)
    for broker in flock.up():
        assert [broker.engine.settings[set_id].lease_ms for set_id in sets] == [5_000, 5_000]
    flock.command(encode_alter_topic("orders", {"lease_ms": 7_000}))
    for broker in flock.up():
        assert [broker.engine.settings[set_id].lease_ms for set_id in sets] == [7_000, 7_000]


def test_a_shorter_retention_is_acted_on_at_once() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders", retention_ms=1_000_000_000)
    flock.publish(set_id, b"old")
    flock.pass_time(100)
    flock.command(encode_alter_topic("orders", {"retention_ms": 1_000}))
    flock.pass_time(60)
    assert all(broker.replica(set_id).partition.first_offset == 1 for broker in flock.up())


def test_one_broker_that_was_never_told_of_others_has_everything() -> None:
    flock = Flock("a", found=False)
    flock.brokers["a"].steward.founding = None
    flock.until(lambda: flock.leader_of(METADATA_SET) is not None)
    sets = flock.create_topic("orders", partitions=2, replication=1)
    assert not flock.metadata.cluster_id
    assert flock.brokers["a"].held() == dict.fromkeys(sets, 1)
    flock.command(encode_delete_topic("orders"))
    assert flock.brokers["a"].held() == {}


def test_brokers_that_are_not_founded_yet_have_nothing() -> None:
    flock = Flock(found=False)
    for broker in flock.up():
        broker.steward.founding = None
    flock.command(encode_create_topic("orders", TopicSettings(partitions=1, replication=1), 0))
    assert all(broker.held() == {} for broker in flock.up())


# ------------------------------------------------------------------ letting go


def test_a_replica_that_does_not_know_a_record_stops_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    old, *_ = flock.up()
    apply, ignorant = Partition.apply, old.replica(set_id).machine

    def know_more(machine: Partition, index: int, payload: bytes | None) -> Any:
        if payload == b"\x77" and machine is not ignorant:
            payload = None  # the others are of a release that knows it
        return apply(machine, index, payload)

    monkeypatch.setattr(Partition, "apply", know_more)
    leader = flock.leader_of(set_id)
    assert leader is not None
    leader.engine.propose(set_id, b"\x77", lambda _result: None)
    flock.pass_time(100)
    assert set_id in old.engine.stopped
    assert set_id not in old.engine.replicas
    leader = flock.leader_of(set_id)
    assert leader is not None and leader is not old
    told: list[Any] = []
    leader.engine.propose(set_id, b"\x01", told.append)
    flock.pass_time(20)
    assert len(told) == 1, "two of three are a majority"
    assert old.steward.settled
    flock.command(encode_delete_topic("orders"))
    assert set_id not in old.engine.ledger.sets()


def test_a_deleted_topic_is_let_go_of_and_those_who_wait_are_told() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    leader = flock.leader_of(set_id)
    assert leader is not None
    told: list[Any] = []
    flock.lost = lambda which, _message: which == set_id
    leader.engine.propose(set_id, b"\x00", told.append)
    flock.command(encode_delete_topic("orders"))
    assert flock.place(set_id) == set()
    assert isinstance(told[0], TopicNotFound)
    assert all(set_id not in broker.engine.ledger.sets() for broker in flock.up())


def test_a_topic_that_was_deleted_while_a_broker_was_away_is_let_go_of_when_it_returns() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    away = flock.brokers["b"]
    away.stop()
    flock.command(encode_delete_topic("orders"))
    away.start()
    assert set_id in away.engine.ledger.sets()
    flock.until(lambda: set_id not in away.engine.ledger.sets())
    assert away.held() == {}


def test_what_the_metadata_has_not_heard_of_yet_is_kept() -> None:
    """After a restart the metadata stands at its last save; the topic was made behind that."""
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    flock.publish(set_id, b"kept")
    for broker in flock.up():
        broker.stop()
    alone = flock.brokers["c"]
    alone.start()  # one of three commits nothing, so its metadata does not move
    flock.pass_time(100)
    assert set_id not in alone.cluster.sets and set_id in alone.engine.ledger.sets()
    for name in "ab":
        flock.brokers[name].start()
    flock.until(lambda: flock.place(set_id) == set("abc") and flock.leader_of(set_id) is not None)
    assert flock.publish(set_id, b"more").base_offset == 1


def test_a_replica_that_is_gone_is_not_opened_again_from_an_old_save() -> None:
    """It voted and answered under its id; with an empty log it would vote for what it once outvoted."""
    flock, set_id = grown()
    for broker in flock.up():
        broker.save()
    moved = flock.brokers["a"]
    flock.finish(flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms)))
    assert set_id not in moved.held()
    moved.stop()
    moved.start()
    assert set_id in {holding.set_id for holding in moved.cluster.holdings("node-a")}, "by the save it is still here"
    flock.cut = {"node-a"}
    flock.pass_time(100)
    assert set_id not in moved.held()
    flock.cut = set()
    flock.pass_time(100)
    assert set_id not in moved.held() and moved.cluster.is_gone(set_id, 1)


def test_a_broker_that_is_given_a_set_again_starts_under_a_new_id_with_nothing() -> None:
    flock, set_id = grown()
    back = flock.brokers["a"]
    before = back.held()[set_id]
    back.stop()
    flock.until(lambda: flock.leader_of(set_id) is not None and flock.leader_of(METADATA_SET) is not None)
    flock.finish(flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms)))
    plan = flock.command(encode_move_replica(set_id, "node-d", "node-a", flock.now_ms))
    back.start()
    assert back.engine.ledger.state(set_id).replica_id == before
    flock.finish(plan)
    assert back.held()[set_id] not in (before, 0) and back.engine.ledger.state(set_id).replica_id == back.held()[set_id]
    assert flock.count(back, set_id) == 20


def test_entries_of_the_metadata_that_were_taken_back_hold_nothing_up() -> None:
    flock = Flock()
    flock.create_topic("orders")
    behind = flock.leader_of(METADATA_SET)
    assert behind is not None
    flock.cut = {behind.node_id}
    for number in range(50):  # nobody hears of these
        behind.engine.propose(METADATA_SET, b"%d" % number, lambda _result: None)
    flock.settle()
    last = behind.replica(METADATA_SET).node.last_index
    behind.stop()
    behind.start()
    flock.until(lambda: flock.leader_of(METADATA_SET) is not None)
    flock.cut = set()
    (set_id,) = flock.create_topic("more")
    flock.until(lambda: set_id in behind.held())
    assert behind.replica(METADATA_SET).node.last_index < last


def test_a_replica_keeps_its_id_over_saves_and_restarts() -> None:
    flock, set_id = grown()
    flock.finish(flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms)))
    moved = flock.brokers["d"]
    for saved in (False, True, True):
        if saved:
            moved.save()
        moved.stop()
        flock.pass_time(2)
        moved.start()
        flock.until(lambda: moved.held() == {set_id: 4})


def test_a_log_on_disk_waits_until_the_metadata_knows_whose_it_is() -> None:
    """The save names the replica that was here before; the disk has the one that came later."""
    flock, set_id = grown()
    for broker in flock.up():
        broker.save()
    flock.finish(flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms)))
    flock.finish(flock.command(encode_move_replica(set_id, "node-d", "node-a", flock.now_ms)))
    back = flock.brokers["a"]
    number = back.held()[set_id]
    back.stop()
    back.start()
    flock.cut = {"node-a"}
    flock.pass_time(60)
    assert back.held() == {} and back.engine.ledger.state(set_id).replica_id == number
    flock.cut = set()
    flock.until(lambda: back.held() == {set_id: number} and flock.count(back, set_id) == 20)


def test_a_log_is_never_opened_in_the_name_of_another_replica() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    engine = flock.brokers["a"].engine
    number = flock.brokers["a"].held()[set_id]
    with pytest.raises(ValueError, match=f"that of replica {number}"):
        engine.open_set(set_id, Seat(number + 1, frozenset({1, 2, 3})))


# ------------------------------------------------------------------ moving


def test_a_replica_moves_to_a_new_broker_with_all_it_holds() -> None:
    flock, set_id = grown()
    plan = flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    flock.finish(plan)
    assert flock.place(set_id) == flock.members(set_id) == set("bcd")
    assert flock.count(flock.brokers["d"], set_id) == 20
    assert flock.publish(set_id, b"more").base_offset == 20


def test_a_leader_that_is_to_go_hands_over_first() -> None:
    flock, set_id = grown()
    leader = flock.leader_of(set_id)
    assert leader is not None
    term = leader.replica(set_id).node.term
    flock.finish(flock.command(encode_move_replica(set_id, leader.node_id, "node-d", flock.now_ms)))
    assert leader.name not in flock.members(set_id)
    after = flock.leader_of(set_id)
    assert after is not None and after.replica(set_id).node.term == term + 1, "one hand-over, no election by silence"


@pytest.mark.parametrize("pause", range(1, 7))
def test_a_move_goes_on_when_any_broker_crashes_at_any_step(pause: int) -> None:
    flock, set_id = grown()
    plan = flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    turn = 0
    while flock.state(plan) is PlanState.RUNNING:
        flock.pass_time(pause)
        broker = flock.brokers["abcd"[(turn + pause) % 4]]
        broker.stop()
        flock.pass_time(2)
        broker.start()
        turn += 1
        assert turn < 400
        if turn % 8 == 0:  # elections need some peace
            flock.pass_time(100)
    assert flock.state(plan) is PlanState.DONE
    flock.until(lambda: flock.leader_of(set_id) is not None and flock.place(set_id) == set("bcd"))
    assert flock.publish(set_id, b"more").base_offset == 20


def test_a_report_that_is_lost_is_made_again() -> None:
    flock, set_id = grown()
    refused: list[bytes] = []
    propose = flock.propose

    def lossy(command: bytes) -> bool:
        if command not in refused:
            refused.append(command)
            return False
        return propose(command)

    flock.propose = lossy
    flock.finish(flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms)))
    assert len(refused) >= 6, "each step's first report was lost"


def test_a_step_that_was_done_and_not_reported_is_only_reported() -> None:
    flock, set_id = grown()
    flock.founding = b""
    reports: list[bytes] = []
    propose = flock.propose
    flock.propose = lambda command: reports.append(command) is not None
    plan = flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    flock.until(lambda: bool(reports))
    leader = flock.leader_of(set_id)
    assert leader is not None
    index = leader.replica(set_id).node.memberships.current_index
    flock.pass_time(3 * steps_module.REPORT_TICKS)
    assert len(set(reports)) == 1 and len(reports) >= 3
    assert leader.replica(set_id).node.memberships.current_index == index
    flock.propose = propose
    flock.finish(plan)


def test_a_target_that_never_answers_fails_the_move_and_everything_is_taken_back() -> None:
    flock, set_id = grown()
    flock.brokers["d"].stop()
    plan = flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    flock.until(lambda: flock.state(plan) is not PlanState.RUNNING, ticks=8 * steps_module.FAIL_TICKS)
    after = flock.metadata.plans[plan.plan_id]
    assert after.state is PlanState.STALLED and "does not answer" in after.reason
    leader = flock.leader_of(set_id)
    assert leader is not None
    node = leader.replica(set_id).node
    assert (node.voters, node.learners) == (frozenset({1, 2, 3}), frozenset())


def test_a_replica_that_moves_slowly_has_not_failed() -> None:
    """As long as something arrives the step goes on, however long it takes."""
    flock, set_id = grown()
    flock.brokers["d"].stop()
    plan = flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    flock.until(lambda: action(flock, set_id) is Action.CATCH_UP)
    leader = flock.leader_of(set_id)
    assert leader is not None
    leadership = leader.replica(set_id).node.leadership
    assert leadership is not None
    for _ in range(4):
        flock.pass_time(steps_module.FAIL_TICKS - 10)
        leadership.progress[4].match_index += 1
    assert all(move.failures == 0 for move in flock.metadata.moves.values())
    leadership.progress[4].match_index = 0
    flock.brokers["d"].start()
    flock.finish(plan)


def test_a_replica_that_waits_for_its_turn_to_get_a_snapshot_has_not_failed() -> None:
    flock, set_id = grown()
    flock.brokers["d"].stop()
    flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    flock.until(lambda: action(flock, set_id) is Action.CATCH_UP)
    leader = flock.leader_of(set_id)
    assert leader is not None
    leader.engine.take_unread_pieces = list  # type: ignore[method-assign]  # others are served first
    leader.engine.sending.waiting[set_id, 4] = leader.replica(set_id)
    flock.pass_time(3 * steps_module.FAIL_TICKS)
    assert all(move.failures == 0 for move in flock.metadata.moves.values())
    leader.engine.sending.waiting.clear()
    flock.pass_time(2 * steps_module.FAIL_TICKS)
    assert any(move.failures for move in flock.metadata.moves.values())


def test_a_replica_that_needs_long_rounds_is_not_caught_up_before_a_short_one() -> None:
    flock, set_id = grown()
    flock.brokers["d"].stop()
    plan = flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    flock.until(lambda: action(flock, set_id) is Action.CATCH_UP)
    flock.pass_time(2 * steps_module.ROUND_TICKS)
    for _ in range(5):
        flock.publish(set_id, b"more")
    leader = flock.leader_of(set_id)
    assert leader is not None
    node = leader.replica(set_id).node
    assert node.leadership is not None
    node.leadership.progress[4].match_index = node.last_index - 5  # the first round is over, and it was long
    flock.pass_time()
    assert action(flock, set_id) is Action.CATCH_UP
    node.leadership.progress[4].match_index = 0
    flock.brokers["d"].start()
    flock.finish(plan)


def action(flock: Flock, set_id: int) -> Action | None:
    return next((move.action for move in flock.metadata.moves.values() if move.set_id == set_id), None)


def test_a_learner_that_has_gone_silent_is_not_promoted() -> None:
    flock, set_id = grown()
    plan = flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    propose = flock.propose

    def before_promotion(command: bytes) -> bool:
        if action(flock, set_id) is Action.CATCH_UP:
            flock.brokers["d"].stop()
        return propose(command)

    flock.propose = before_promotion
    flock.until(lambda: action(flock, set_id) is Action.PROMOTE)
    flock.pass_time(100)
    assert flock.members(set_id) == set("abc")
    flock.brokers["d"].start()
    flock.finish(plan)
    assert flock.members(set_id) == set("bcd")


def test_a_move_that_is_cancelled_is_taken_back_by_steps() -> None:
    flock, set_id = grown()
    flock.brokers["d"].stop()
    plan = flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    flock.pass_time(20)
    flock.command(encode_cancel_plan(plan.plan_id))
    flock.until(lambda: not flock.metadata.moves)
    flock.brokers["d"].start()
    flock.pass_time(60)
    assert flock.place(set_id) == flock.members(set_id) == set("abc")


def test_a_change_of_membership_counts_when_it_has_committed() -> None:
    flock, set_id = grown()
    flock.lost = lambda which, message: which == set_id and bool(message.entries)
    flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    flock.pass_time(10)
    leader = flock.leader_of(set_id)
    assert leader is not None and leader.replica(set_id).node.learners == {4}, (
        "it is in force, but it may be taken back"
    )
    assert action(flock, set_id) is Action.ADD_LEARNER
    flock.lost = lambda which, message: False
    flock.until(lambda: action(flock, set_id) is not Action.ADD_LEARNER)


def test_a_hand_over_is_done_when_the_source_does_not_lead_and_pauses_between_attempts() -> None:
    flock, set_id = grown()
    leader = flock.leader_of(set_id)
    assert leader is not None
    flock.lost = lambda which, message: which == set_id and message.kind == MessageKind.TIMEOUT_NOW
    plan = flock.command(encode_move_replica(set_id, leader.node_id, "node-d", flock.now_ms))
    flock.until(lambda: action(flock, set_id) is Action.HAND_OVER)
    refusing = 0
    for _ in range(400):
        flock.pass_time()
        refusing += leader.replica(set_id).node.transferee > 0
    assert action(flock, set_id) is Action.HAND_OVER
    assert 100 < refusing < 250, "half of the time the set takes what is published"
    flock.lost = lambda which, message: False
    flock.finish(plan)


def test_leadership_is_handed_to_the_replica_that_should_lead_if_that_can() -> None:
    flock = Flock("abcde")
    (set_id,) = flock.create_topic("orders", replication=5)
    leader = flock.leader_of(set_id)
    assert leader is not None
    node, steps = leader.replica(set_id).node, leader.steward._steps
    others = sorted(node.voters - {node.node_id})
    assert [steps.successor(set_id, node, flock.is_alive, wanted) for wanted in others] == others
    away = next(broker for broker in flock.up() if broker.held()[set_id] == others[0])
    away.stop()
    assert steps.successor(set_id, node, flock.is_alive, others[0]) in others[1:]
    assert steps.successor(set_id, node, lambda _node_id: False, others[0]) == 0


def test_a_source_that_leads_again_hands_over_before_it_is_demoted() -> None:
    flock, set_id = grown()
    source = flock.leader_of(set_id)
    assert source is not None
    number = source.held()[set_id]
    plan = flock.command(encode_move_replica(set_id, source.node_id, "node-d", flock.now_ms))
    propose = flock.propose
    flock.until(lambda: action(flock, set_id) is Action.HAND_OVER)
    flock.propose = lambda command: False
    flock.until(lambda: not source.leads(set_id))
    other = flock.leader_of(set_id)
    while other is None:
        flock.pass_time()
        other = flock.leader_of(set_id)
    flock.command(encode_finish_step(max(flock.metadata.moves), 3, Action.HAND_OVER))
    assert action(flock, set_id) is Action.DEMOTE
    other.replica(set_id).node.transfer(number)
    other.engine.wake(set_id)
    flock.settle()
    assert source.leads(set_id)
    flock.lost = lambda which, message: which == set_id and message.kind == MessageKind.TIMEOUT_NOW
    flock.pass_time(3)
    assert number in source.replica(set_id).node.voters and source.replica(set_id).node.transferee
    flock.lost = lambda which, message: False
    flock.propose = propose
    flock.finish(plan)


def test_a_leader_that_comes_back_does_not_count_the_time_it_was_away_as_failed() -> None:
    flock, set_id = grown()
    leader, other = leader_and_other(flock, set_id)
    flock.brokers["d"].stop()
    flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    flock.until(lambda: action(flock, set_id) is Action.CATCH_UP)
    flock.pass_time(steps_module.FAIL_TICKS - 50)
    leader.replica(set_id).node.transfer(other.held()[set_id])
    flock.pass_time(3)
    assert other.leads(set_id)
    other.replica(set_id).node.transfer(leader.held()[set_id])
    flock.pass_time(3)
    assert leader.leads(set_id)
    flock.pass_time(100)
    assert all(move.failures == 0 for move in flock.metadata.moves.values())


def test_members_that_are_gone_by_the_record_are_removed() -> None:
    """A leader that lags behind the metadata may add a replica whose move was taken back meanwhile."""
    flock, set_id = grown()
    flock.brokers["d"].stop()
    plan = flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    flock.command(encode_cancel_plan(plan.plan_id))
    flock.until(lambda: not flock.metadata.moves)
    leader = flock.leader_of(set_id)
    assert leader is not None and flock.metadata.is_gone(set_id, 4)
    leader.replica(set_id).node.change_membership(Change.ADD_LEARNER, 4)
    leader.engine.wake(set_id)
    flock.pass_time()
    assert leader.replica(set_id).node.learners == {4}
    flock.pass_time(3 * steward_module.TENDED_TICKS)
    assert leader.replica(set_id).node.learners == frozenset()


def test_a_leader_that_is_gone_by_the_record_lets_another_one_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    leader = flock.leader_of(set_id)
    assert leader is not None
    number = leader.held()[set_id]
    monkeypatch.setattr(leader.cluster, "strays", lambda which, members: [number] if which == set_id else [])
    flock.until(lambda: not leader.leads(set_id), 2 * steward_module.TENDED_TICKS)
    assert flock.publish(set_id, b"x").base_offset == 0


def test_a_stray_that_cannot_be_removed_now_is_removed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    leader = flock.leader_of(set_id)
    assert leader is not None
    node = leader.replica(set_id).node
    stray = next(iter(node.voters - {node.node_id}))
    node.transfer(stray)  # while leadership is on its way, membership stays as it is
    monkeypatch.setattr(leader.cluster, "strays", lambda which, members: [stray] if stray in members else [])
    leader.steward._tend(leader.cluster, set_id)
    assert stray in node.voters
    flock.lost = lambda which, message: message.kind == MessageKind.TIMEOUT_NOW
    flock.until(lambda: stray not in node.voters)


# ------------------------------------------------------------------ brokers


def test_a_broker_that_is_drained_ends_up_with_nothing_and_can_be_removed() -> None:
    flock = Flock("abcd")
    sets = flock.create_topic("orders", partitions=4)
    for set_id in sets:
        flock.publish(set_id, b"x")
    flock.finish(flock.command(encode_drain_broker("node-a", flock.now_ms)))
    flock.until(lambda: flock.brokers["a"].held() == {})
    assert all(flock.members(set_id) == set("bcd") for set_id in sets)
    flock.command(encode_remove_broker("node-a", flock.now_ms))
    flock.until(lambda: flock.metadata.brokers["node-a"].state == "removed")
    flock.brokers["a"].stop()
    for set_id in sets:
        assert flock.publish(set_id, b"y").base_offset == 1


def test_a_new_broker_gets_its_share_by_a_rebalance_and_leads_it() -> None:
    flock = Flock()
    sets = flock.create_topic("orders", partitions=8)
    flock.add("d")
    flock.until(lambda: flock.metadata.brokers["node-d"].state == "active")
    flock.finish(flock.command(encode_rebalance(flock.now_ms)))
    flock.until(lambda: all(flock.is_home(set_id) for set_id in sets))
    assert sorted(len(broker.held()) for broker in flock.up()) == [6, 6, 6, 6]
    led = [sum(broker.leads(set_id) for set_id in sets) for broker in flock.up()]
    assert led == [2, 2, 2, 2]


def test_a_wiped_broker_comes_back_under_new_ids_and_everything_is_rebuilt() -> None:
    flock = Flock()
    sets = flock.create_topic("orders", partitions=3)
    for set_id in sets:
        flock.publish(set_id, b"x")
    flock.brokers["b"].stop()
    flock.until(lambda: all(flock.leader_of(set_id) is not None for set_id in (METADATA_SET, *sets)))
    flock.add("b", "node-b2")
    back = flock.brokers["b"]
    flock.until(lambda: set(back.held()) == set(sets) and all(flock.count(back, one) == 1 for one in sets), 6_000)
    flock.until(lambda: all(flock.members(set_id) == set("abc") for set_id in sets))
    assert all(number > 3 for number in back.held().values())
    assert flock.metadata.brokers["node-b"].state == "removed"


def test_a_broker_that_joins_late_gets_the_metadata_by_a_snapshot_and_reads_all_of_it_anew() -> None:
    flock = Flock(tail_entries=0)
    (set_id,) = flock.create_topic("orders", lease_ms=4_000)
    for broker in flock.up():
        broker.save()
    late = flock.add("d")
    flock.until(lambda: flock.metadata.brokers["node-d"].state == "active")
    assert late.engine.installs.completed >= 1
    flock.finish(flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms)))
    assert late.engine.settings[set_id].lease_ms == 4_000
    assert late.steward.route(CLUSTER_SET, 4) == "node-d"
    late.save()
    late.stop()
    late.start()
    assert late.replica(CLUSTER_SET).node.node_id == 4, "a snapshot changes the log, not whose it is"


# ------------------------------------------------------------------ leadership


def test_leadership_returns_to_where_it_should_be_when_that_broker_is_back() -> None:
    flock = Flock()
    sets = flock.create_topic("orders", partitions=6)
    flock.brokers["a"].stop()
    flock.until(lambda: all(flock.leader_of(set_id) is not None for set_id in sets))
    flock.brokers["a"].start()
    flock.pass_time(steward_module.LEADS_TICKS_MIN // 2)
    assert sum(flock.brokers["a"].leads(set_id) for set_id in sets) == 0, "not before it is known to stay"
    flock.until(lambda: all(flock.is_home(set_id) for set_id in sets))
    assert sum(flock.brokers["a"].leads(set_id) for set_id in sets) == 2


def test_leadership_does_not_go_to_a_broker_that_is_away_or_behind() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    leader, other = leader_and_other(flock, set_id)
    other.stop()
    flock.command(encode_transfer_leader(set_id, other.node_id))
    stays(flock, leader, set_id)
    number = flock.metadata.sets[set_id].preferred
    flock.lost = lambda which, message: which == set_id and message.receiver == number and bool(message.entries)
    other.start()
    for _ in range(2 * steps_module.LEAD_LAG_MAX):
        leader.engine.propose(set_id, b"\x01", lambda _result: None)
    stays(flock, leader, set_id)
    flock.lost = lambda which, message: False
    flock.until(lambda: other.leads(set_id))


def leader_and_other(flock: Flock, set_id: int) -> tuple[Broker, Broker]:
    leader = flock.leader_of(set_id)
    assert leader is not None
    return leader, next(broker for broker in flock.up() if broker is not leader and set_id in broker.held())


def stays(flock: Flock, leader: Broker, set_id: int) -> None:
    """Nobody tries to take leadership away from there."""
    for _ in range(2 * steward_module.LEADS_TICKS_MIN):
        flock.pass_time()
        assert leader.leads(set_id) and not leader.replica(set_id).node.transferee


def test_leadership_does_not_go_to_a_replica_that_is_on_its_way_out() -> None:
    flock, set_id = grown()
    going = flock.leader_of(set_id)
    assert going is not None
    flock.lost = lambda which, message: which == set_id and message.receiver == 4  # so the move stays where it is
    flock.command(encode_move_replica(set_id, going.node_id, "node-d", flock.now_ms))
    flock.until(lambda: action(flock, set_id) is Action.CATCH_UP)
    assert flock.metadata.sets[set_id].preferred == going.held()[set_id]
    going.stop()
    flock.until(lambda: flock.leader_of(set_id) is not None and flock.leader_of(METADATA_SET) is not None)
    going.start()
    leader = flock.leader_of(set_id)
    assert leader is not None and leader is not going
    stays(flock, leader, set_id)


def test_a_hand_over_that_does_not_happen_is_tried_again_less_and_less_often() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    leader = flock.leader_of(set_id)
    assert leader is not None
    other = next(broker for broker in flock.up() if broker is not leader)
    asked: list[int] = []

    def deaf(which: int, message: Any) -> bool:
        if which == set_id and message.kind == MessageKind.TIMEOUT_NOW:
            asked.append((flock.now_ms - began) // TICK_MS)
        return which == set_id and message.kind == MessageKind.TIMEOUT_NOW

    flock.lost, began = deaf, flock.now_ms
    flock.command(encode_transfer_leader(set_id, other.node_id))
    flock.pass_time(1_000)
    attempts = [tick for before, tick in zip([0, *asked], asked, strict=False) if tick - before > 25]
    waits = [after - before for before, after in pairwise(attempts)]
    assert len(waits) >= 3 and all(later >= before for before, later in pairwise(waits))
    assert waits[-1] >= 4 * steward_module.RETRY_TICKS_MIN


def test_only_a_few_hand_overs_run_at_the_same_time() -> None:
    flock = Flock()
    sets = flock.create_topic("orders", partitions=30)
    flock.brokers["a"].stop()
    flock.until(lambda: all(flock.leader_of(set_id) is not None for set_id in sets))
    flock.brokers["a"].start()
    flock.lost = lambda which, message: message.kind == MessageKind.TIMEOUT_NOW
    most = 0
    for _ in range(200):
        flock.pass_time()
        for broker in flock.up():
            most = max(most, sum(replica.node.transferee > 0 for replica in broker.engine.replicas.values()))
    assert 1 <= most <= steward_module.TRANSFERS_MAX


def test_a_broker_that_stops_hands_everything_over_and_nothing_waits_for_a_timeout() -> None:
    flock = Flock()
    sets = flock.create_topic("orders", partitions=6)
    leaving = flock.leader_of(METADATA_SET)
    assert leaving is not None
    assert {set_id for set_id, _ in leaving.steward.led()} >= {METADATA_SET}
    assert leaving.steward.hand_over() == len(leaving.steward.led())
    flock.settle()
    assert leaving.steward.hand_over() == 0 and leaving.steward.led() == []
    leaving.stop()
    assert all(flock.leader_of(set_id) is not None for set_id in (METADATA_SET, *sets))
    for set_id in sets:
        assert flock.publish(set_id, b"x").base_offset == 0


def test_a_broker_that_stops_does_not_wait_for_sets_that_nobody_else_has() -> None:
    flock = Flock("a")
    flock.create_topic("orders", partitions=2, replication=1)
    assert flock.brokers["a"].steward.hand_over() == 0


def test_a_broker_that_finds_nobody_to_hand_over_to_says_so() -> None:
    flock = Flock()
    flock.create_topic("orders", partitions=3)
    leaving = flock.leader_of(METADATA_SET)
    assert leaving is not None
    for broker in flock.up():
        if broker is not leaving:
            broker.stop()
    flock.pass_time()
    assert leaving.steward.hand_over() == len(leaving.steward.led()) > 0
    assert all(not replica.node.transferee for replica in leaving.engine.replicas.values())


# ------------------------------------------------------------------ routes and numbers


def test_routes_come_from_the_metadata_then_from_what_was_heard_then_from_the_founding() -> None:
    flock = Flock(found=False)
    steward = flock.brokers["a"].steward
    assert steward.route(METADATA_SET, 2) == "node-b"
    steward.learn_route(METADATA_SET, 9, "node-x")
    assert steward.route(METADATA_SET, 9) == "node-x"
    flock.until(lambda: all(broker.cluster.cluster_id for broker in flock.up()))
    (set_id,) = flock.create_topic("orders")
    routes = {number: steward.route(set_id, number) for number in (1, 2, 3)}
    assert routes == flock.metadata.routes(set_id)
    assert steward.route(set_id, 4) is None
    steward.learn_route(set_id, 4, "node-d")
    assert steward.route(set_id, 4) == "node-d"
    steward.learn_route(set_id, 1, "node-liar")
    other = flock.brokers["b"].steward
    for number in routes:
        other.learn_route(set_id, number, "node-liar")  # before the true one was ever asked for
    assert {number: other.route(set_id, number) for number in routes} == routes
    assert steward.route(set_id, 1) == routes[1], "what the metadata says is not overheard"
    steward.learn_route(77, 1, "node-d")
    assert steward.route(77, 1) is None


def test_learned_routes_are_bounded() -> None:
    flock = Flock()
    steward = flock.brokers["a"].steward
    for number in range(10, 10 + 2 * steward_module.LEARNED_MAX):
        steward.learn_route(METADATA_SET, number, "node-x")
    known = [steward.route(METADATA_SET, number) for number in range(10, 10 + 2 * steward_module.LEARNED_MAX)]
    assert known == [None] * steward_module.LEARNED_MAX + ["node-x"] * steward_module.LEARNED_MAX


def test_lags_tell_how_far_peers_are_behind() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    leader = flock.leader_of(set_id)
    assert leader is not None
    away = next(broker for broker in flock.up() if broker is not leader)
    away.stop()
    for number in range(7):
        flock.publish(set_id, b"%d" % number)
    lags = {number: lag for (which, number), lag in leader.steward.lags().items() if which == set_id}
    assert lags.pop(away.held()[set_id]) == 7
    assert set(lags.values()) == {0}


def test_callers_of_a_replica_that_moved_away_are_sent_on() -> None:
    flock, set_id = grown()
    told: list[Any] = []
    flock.brokers["a"].replica(set_id).watchers.add(lambda: told.append("look again"))
    flock.finish(flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms)))
    assert told == ["look again"]
    error = steward_module._why_gone(flock.metadata, set_id)
    assert isinstance(error, NotLeader)


def test_who_voted_for_a_broker_that_dies_does_not_wait_for_it_to_lead() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    flock.publish(set_id, b"x")
    leader = flock.leader_of(set_id)
    assert leader is not None
    heir, third = (broker for broker in flock.up() if broker is not leader)
    flock.lost = lambda at, message: at == set_id and message.kind == MessageKind.VOTE_REPLY
    leader.replica(set_id).node.transfer(heir.replica(set_id).node.node_id)
    leader.engine.wake(set_id)
    flock.settle()
    node = leader.replica(set_id).node
    assert (node.leader_id, node.vote) == (0, heir.replica(set_id).node.node_id)
    heir.stop()
    leader.steward.peer_silent(third.node_id)
    assert node.elapsed_ticks < node.config.election_ticks
    leader.steward.peer_silent(heir.node_id)
    assert node.elapsed_ticks == node.config.election_ticks


def test_who_votes_by_the_record_and_only_listens_gets_its_vote_back() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    flock.publish(set_id, b"x")
    leader = flock.leader_of(set_id)
    assert leader is not None
    other = next(broker for broker in flock.up() if broker is not leader).replica(set_id).node.node_id
    node = leader.replica(set_id).node
    node.change_membership(Change.DEMOTE, other)
    leader.engine.wake(set_id)
    flock.settle()
    assert other in node.learners
    flock.until(lambda: other in node.voters and not node.learners)


def test_a_commit_that_begins_gives_the_steward_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be hundreds a second, and places do not change by them."""
    flock = Flock()
    flock.create_topic("orders")
    steward = flock.up()[0].steward
    looks: list[int] = []
    monkeypatch.setattr(steward, "_let_go", lambda *_: looks.append(1))
    flock.propose(encode_claim_transaction("t", "me", restart=False, now_ms=1))
    flock.pass_time(3)
    assert not looks
    flock.create_topic("audit")
    assert looks, "a topic does"
