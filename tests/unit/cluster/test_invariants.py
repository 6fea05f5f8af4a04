"""A check that cannot fail is a defect: each invariant is broken once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from lanner import limits
from lanner.cluster import AbortReason, BrokerState, Ended, PlanState, Replica, encode_move_replica
from lanner.cluster.state import State
from lanner.cluster.values import Action
from tests.unit.cluster.commits import Commits
from tests.unit.cluster.world import World


def a_world() -> World:
    """Two topics of two replicas on a, b, c; the first partition of `orders` is on the move from a to c."""
    world = World("a", "b", "c")
    world.create("orders", partitions=2, replication=2)
    world.create("payments", partitions=1, replication=2)
    world.apply(encode_move_replica(1, "node-a", "node-c", 2))
    return world


def change_set(set_id: int = 1, **changes: Any) -> Callable[[State], None]:
    return lambda state: state.put_set(replace(state.sets[set_id], **changes))


def change_topic(**changes: Any) -> Callable[[State], None]:
    return lambda state: state.put_topic(state.topics["orders"]._replace(**changes))


def change_broker(node_id: str = "node-b", **changes: Any) -> Callable[[State], None]:
    def change(state: State) -> None:
        state.put_broker(replace(state.brokers[node_id], **changes))
        state.unsettled = False

    return change


def change_move(**changes: Any) -> Callable[[State], None]:
    return lambda state: state.put_move(replace(state.moves[1], **changes))


def change_plan(**changes: Any) -> Callable[[State], None]:
    return lambda state: state.put_plan(replace(state.plans[1], **changes))


def change_counter(**changes: Any) -> Callable[[State], None]:
    def change(state: State) -> None:
        for name, value in changes.items():
            setattr(state.counters, name, value)

    return change


A, B, C = Replica(1, "node-a", True), Replica(2, "node-b", True), Replica(3, "node-c", False)

ID = bytes(16)


def change_transaction(name: str = "open", **changes: Any) -> Callable[[State], None]:
    return lambda state: state.put_transaction(replace(state.transactions[name], **changes))


def change_try(name: str = "open", **changes: Any) -> Callable[[State], None]:
    return lambda state: state.put_try(replace(state.tries[state.transactions[name].open_token], **changes))


def drop_try(state: State) -> None:
    state.drop_try(state.transactions["open"].open_token)


def note_an_end(token: int = 1, reason: AbortReason | None = None, times: int = 1) -> Callable[[State], None]:
    ended = tuple(Ended(bytes((place,)) * 16, token, reason) for place in range(times))
    return lambda state: state.put_transaction(replace(state.transactions["open"], ended=ended))


BROKEN_TRIES: dict[str, Callable[[State], None]] = {
    "transactions below their level": change_counter(feature_level=2),
    "a transaction under another name": lambda state: state.transactions.update(x=state.transactions["open"]),
    "an order of use that is wrong": lambda state: state.transactions.update(
        open=replace(state.transactions["open"], used_ms=9)
    ),
    "an index of single uses that is wrong": lambda state: state.once.clear(),
    "an era that is yet to come": change_transaction(era=999),
    "a use that is yet to come": change_transaction("job", used_ms=10**9),
    "a name both known and forgotten": lambda state: state.note_forgotten("open"),
    "ranges that touch": change_transaction("rolling", done=((0, 4), (5, 5))),
    "a range that runs backwards": change_transaction("job", done=((3, 2),)),
    "a commit that ended twice": change_transaction("job", ended=(Ended(ID, 1, None), Ended(ID, 2, None))),
    "more ends than are kept": note_an_end(times=limits.ENDED_COMMITS_KEPT + 1),
    "an end that is yet to come": note_an_end(token=999),
    "a commit that never began": note_an_end(token=0),
    "a try that nobody has": drop_try,
    "a try that its transaction does not know": change_transaction(open_token=0),
    "a try of nobody": change_try(transaction="nobody"),
    "a try without partitions": change_try(set_ids=()),
    "a try on a set that is not there": change_try(set_ids=(77,)),
    "a try that names a set twice": change_try(set_ids=(1, 1)),
    "a try of a fenced owner": change_try(owner="other"),
    "a try of an earlier era": change_try(era=1),
    "a try that has ended and goes on": change_try(commit_id=bytes((0,)) * 16),
    "a try of a sequence that is committed": change_try("open", sequence=0),
    "a try that was committed before it began": change_try("rolling", decided_index=1),
    "a try with an outcome that it has not": change_try(decided_index=999),
    "a committed try whose sequence is not": change_transaction("rolling", done=()),
    "a committed try that was aborted": lambda state: state.put_transaction(
        replace(
            state.transactions["rolling"],
            ended=(Ended(state.tries[state.transactions["rolling"].open_token].commit_id, 1, AbortReason.DEADLINE),),
        )
    ),
    "an index of tries that is wrong": lambda state: state.tries_of.clear(),
    "miscounted participants": lambda state: setattr(state, "participant_count", 1),
    "a hash in the wrong place": lambda state: state.forgotten._packed.update({1: bytearray(8)}),
    "a miscounted hash": lambda state: setattr(state.forgotten, "_count", 7),
}


BROKEN: dict[str, Callable[[State], None]] = {
    "a set id twice": change_topic(set_ids=(1, 1)),
    "a set id not yet given": change_counter(next_set_id=2),
    "an incarnation twice": change_topic(incarnation=2),
    "an incarnation not yet given": change_counter(next_incarnation=2),
    "a topic under another name": lambda state: state.topics.update(orders=state.topics["payments"]),
    "more partitions than set ids": change_topic(set_ids=(1,)),
    "a miscounted partition": lambda state: setattr(state, "partition_count", 5),
    "a set of nobody": lambda state: state.put_set(replace(state.sets[1], set_id=77)),
    "a set without a row": lambda state: state.drop_set(2),
    "a set that says another topic": change_set(topic="payments"),
    "brokers before the founding": change_counter(cluster_id=""),
    "a name twice": change_broker(name="a"),
    "a broker under another id": lambda state: state.brokers.update({"node-x": state.brokers["node-a"]}),
    "a broker below the feature level": change_broker(feature_max=0),
    "a broker that leaves and is active": change_broker(leaving=True),
    "a joining broker with partitions": change_broker(state=BrokerState.JOINING),
    "a replica on a removed broker": change_broker(state=BrokerState.REMOVED),
    "a replica id twice": change_set(replicas=(A, replace(B, replica_id=1), C)),
    "a replica id not yet given": change_set(next_replica_id=3),
    "founders that never were": change_set(founders=9),
    "two replicas on one broker": change_set(replicas=(A, replace(B, node_id="node-a"), C)),
    "nobody votes": change_set(replicas=(replace(A, voter=False), replace(B, voter=False), C)),
    "a leader that is not there": change_set(preferred=9),
    "a leader that only learns": change_set(preferred=3),
    "a learner that is left alone": change_set(2, replicas=(replace(A, voter=False), B), preferred=2),
    "an index of what is held that is wrong": lambda state: state.held["node-a"].discard(2),
    "an index of who leads that is wrong": lambda state: state.led.update({"node-a": 7}),
    "a move not yet counted": change_counter(next_move_id=1),
    "a move past its end": change_move(position=6),
    "a move that waits in its middle": change_move(started=False, position=2),
    "a move about a replica that is gone": change_move(target=9),
    "a move from a replica that is gone": change_move(position=3, source=9),
    "a move of a plan that is over": change_plan(state=PlanState.DONE),
    "a second move of a set": lambda state: state.put_move(replace(state.moves[1], move_id=0)),
    "a plan not yet counted": change_counter(next_plan_id=1),
    "a plan with too few moves": change_plan(moves_open=2),
    "a plan with too few steps": change_plan(steps_total=5),
    "something left undone": lambda state: setattr(state, "unsettled", True),
}


def test_the_world_is_sound_before_it_is_broken() -> None:
    a_world().machine.check()


@pytest.mark.parametrize("what", BROKEN)
def test_every_invariant_can_fail(what: str) -> None:
    world = a_world()
    BROKEN[what](world.machine._state)
    with pytest.raises((AssertionError, IndexError)):
        world.machine.check()


def a_world_of_tries() -> Commits:
    """An open try after an earlier one that was aborted, one that is committed and rolls on, a name used once."""
    world = Commits()
    world.begin(0, name="job", topics={}, once=True)
    world.now_ms += 1
    world.begin(0, name="open", topics={}, commit=0)
    world.begin(1, name="open", commit=7)
    rolling = world.begin(5, name="rolling", commit=9)
    world.end(commits=(rolling.token,))
    world.begin(0, name="gone", topics={})
    world.forget("gone")
    return world


def test_the_world_of_tries_is_sound_before_it_is_broken() -> None:
    a_world_of_tries().machine.check()


@pytest.mark.parametrize("what", BROKEN_TRIES)
def test_every_invariant_of_tries_can_fail(what: str) -> None:
    world = a_world_of_tries()
    BROKEN_TRIES[what](world.machine._state)
    with pytest.raises((AssertionError, KeyError)):
        world.machine.check()


@pytest.mark.parametrize(
    "bound", ["TRANSACTIONS_MAX", "OPEN_TRIES_MAX", "OPEN_PARTICIPANTS_MAX", "TRANSACTIONS_FORGOTTEN_MAX"]
)
def test_bounds_of_tries_are_checked_too(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world_of_tries()
    monkeypatch.setattr(limits, bound, 0)
    with pytest.raises(AssertionError):
        world.machine.check()


def test_bounds_are_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROKERS_MAX", "MOVES_PER_BROKER_MAX"):
        with monkeypatch.context() as changed:
            world = a_world()
            changed.setattr(limits, name, 0)
            with pytest.raises(AssertionError):
                world.machine.check()


def test_finished_plans_and_removed_brokers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world()
    world.settle()
    with monkeypatch.context() as changed:
        changed.setattr(limits, "PLANS_FINISHED_KEPT", 0)
        with pytest.raises(AssertionError):
            world.machine.check()
    world.machine._state.brokers["node-z"] = replace(
        world.machine._state.brokers["node-a"], node_id="node-z", name="z", state=BrokerState.REMOVED
    )
    world.machine.check()
    monkeypatch.setattr(limits, "BROKERS_REMOVED_KEPT", 0)
    with pytest.raises(AssertionError):
        world.machine.check()


def test_too_many_votes_over_the_metadata_are_seen() -> None:
    world = World(*"abcdefg")
    one = world.machine._state.sets[0]
    world.machine._state.put_set(replace(one, replicas=tuple(replace(replica, voter=True) for replica in one.replicas)))
    with pytest.raises(AssertionError, match="one more"):
        world.machine.check()


def test_the_world_itself_sees_a_replica_that_comes_back() -> None:
    world = a_world()
    world.settle()
    one = world.machine._state.sets[1]
    world.machine._state.put_set(replace(one, replicas=(A, *one.replicas)))
    with pytest.raises(AssertionError, match="came back from the dead"):
        world._watch()


def test_the_world_itself_sees_a_step_that_was_skipped() -> None:
    world = a_world()
    [step] = world.machine.next_steps()
    assert step.action is Action.ADD_LEARNER
    world.report(step)  # reported, and not done: the next one is about the same replica, so it may still be on its way
    [step] = world.machine.next_steps()
    with pytest.raises(AssertionError, match="was added before"):
        world.do(step)
