from __future__ import annotations

import random
import re
from typing import Any

import msgspec
import pytest

from lanner.cluster import AbortReason, Action, Registration, commands
from lanner.cluster.group_changes import ChangeGroups, Left
from lanner.cluster.machine import Cluster
from lanner.cluster.settings import written
from lanner.errors import UnknownRecord, ValidationError
from lanner.features import START_NEWER
from lanner.model import TopicSettings
from tests.unit.cluster.world import World, registration

ID = bytes(range(16))
A_BROKER = Registration("a", "n-1", {"native": "a:7400"}, "r", 1, 2)
EVERY_COMMAND: list[tuple[bytes, commands.Command]] = [
    (commands.encode_found_cluster("c", [A_BROKER], 5), commands.FoundCluster("c", (A_BROKER,), 5)),
    (commands.encode_register_broker(A_BROKER, 5), commands.RegisterBroker(A_BROKER, 5, True)),
    (commands.encode_register_broker(A_BROKER, 5, replaces=False), commands.RegisterBroker(A_BROKER, 5, False)),
    (commands.encode_update_broker("n", rack="x"), commands.UpdateBroker("n", "x", None, None, None)),
    (commands.encode_update_broker("n", addresses={}), commands.UpdateBroker("n", None, {}, None, None)),
    (commands.encode_drain_broker("n", 6), commands.DrainBroker("n", 6)),
    (commands.encode_undrain_broker("n"), commands.UndrainBroker("n")),
    (commands.encode_remove_broker("n", 7), commands.RemoveBroker("n", 7)),
    (commands.encode_rebalance(8), commands.Rebalance(8)),
    (commands.encode_move_replica(3, "n", "m", 9), commands.MoveReplica(3, "n", "m", 9)),
    (commands.encode_transfer_leader(3, "n"), commands.TransferLeader(3, "n")),
    (commands.encode_finish_step(1, 2, Action.PROMOTE), commands.FinishStep(1, 2, Action.PROMOTE)),
    (commands.encode_fail_step(1, 2, Action.REMOVE, "x" * 2_000), commands.FailStep(1, 2, Action.REMOVE, "x" * 1_000)),
    (commands.encode_cancel_plan(4), commands.CancelPlan(4)),
    (commands.encode_raise_feature_level(5), commands.RaiseFeatureLevel(5)),
    (commands.encode_report_damage(3, 2, "n"), commands.ReportDamage(3, 2, "n")),
    (
        commands.encode_begin_try("t", "o", 7, ID, [("a", 2, [0, 1])], timeout_ms=1_000, once=True, now_ms=5),
        commands.BeginTry("t", "o", 7, ID, (("a", 2, (0, 1)),), 1_000, True, 5),
    ),
    (
        commands.encode_end_tries([1], [(2, AbortReason.REFUSED)], [3], 5),
        commands.EndTries((1,), ((2, AbortReason.REFUSED),), (3,), 5),
    ),
    (commands.encode_abort_commit("t", "o", ID, 5), commands.AbortCommit("t", "o", ID, 5)),
    (
        commands.encode_claim_transaction("t", "o", restart=True, now_ms=5),
        commands.ClaimTransaction("t", "o", True, 5),
    ),
    (commands.encode_forget_transactions([("t", 4)]), commands.ForgetTransactions((("t", 4),), False)),
    (commands.encode_change_groups([Left("g", "m")], 5), ChangeGroups((Left("g", "m"),), 5)),
]


@pytest.mark.parametrize(("payload", "command"), EVERY_COMMAND)
def test_each_command_about_brokers_and_replicas_survives_a_round_trip(
    payload: bytes, command: commands.Command
) -> None:
    assert commands.decode(payload) == command


def test_every_kind_of_command_has_its_own_number_and_struct() -> None:
    kinds = {payload[0] for payload, _ in EVERY_COMMAND} | {1, 2, 3, 4}
    assert kinds == set(commands.Kind)


@pytest.mark.parametrize("seed", range(10))
def test_no_entry_about_brokers_can_stop_the_machine(seed: int) -> None:
    rng = random.Random(seed)
    world = World("a", "b", "c", "d", level=3)
    world.create("orders", partitions=2, replication=3)
    valid = [
        commands.encode_begin_try("t", "o", seed, ID, [("orders", 1, [0])], timeout_ms=1_000, now_ms=5),
        commands.encode_end_tries([2, 5, 8], [(3, AbortReason.REFUSED)], [2, 5], 5),
        commands.encode_abort_commit("t", "o", ID[::-1], 5),
        commands.encode_claim_transaction("t", "p", restart=False, now_ms=5),
        commands.encode_forget_transactions([("t", 5)]),
        commands.encode_register_broker(registration("e"), 5),
        commands.encode_update_broker("node-a", rack="x", feature_max=4),
        commands.encode_drain_broker("node-a", 6),
        commands.encode_undrain_broker("node-a"),
        commands.encode_remove_broker("node-a", 7),
        commands.encode_rebalance(8),
        commands.encode_move_replica(1, "node-a", "node-d", 9),
        commands.encode_transfer_leader(1, "node-b"),
        commands.encode_finish_step(1, 0, Action.ADD_LEARNER),
        commands.encode_fail_step(1, 0, Action.ADD_LEARNER, "no"),
        commands.encode_cancel_plan(1),
        commands.encode_raise_feature_level(2),
        commands.encode_found_cluster("c", [A_BROKER], 5),
    ]
    for _ in range(150):
        payload = bytearray(rng.choice(valid))
        for _ in range(rng.randint(0, 3)):
            payload[rng.randrange(2, len(payload))] = rng.randrange(256)  # what is of no known kind does stop it
        machine = world.machine
        machine.apply(machine.applied_index + 1, bytes(payload[: rng.randint(len(payload) // 2, len(payload))]))
        machine.apply(machine.applied_index + 1, bytes(payload))
        machine.check()


def test_a_number_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(ValidationError, match="values"):
        commands.encode_cancel_plan(2**80)


def test_text_that_is_not_text_is_refused() -> None:
    with pytest.raises(ValidationError):
        commands.encode_update_broker("n", rack="\ud800")


def test_each_command_survives_a_round_trip() -> None:
    settings = TopicSettings(partitions=2)
    create = commands.decode(commands.encode_create_topic("a", settings, 7))
    assert create == commands.CreateTopic("a", written(settings), 7)
    assert commands.decode(commands.encode_delete_topic("a")) == commands.DeleteTopic("a")
    assert commands.decode(commands.encode_alter_topic("a", {"lease_ms": 1})) == commands.AlterTopic(
        "a", {"lease_ms": 1}
    )
    assert commands.decode(commands.encode_allocate_producers(3)) == commands.AllocateProducers(3)


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 201])
def test_a_name_that_may_not_be_one_is_refused_before_it_reaches_the_log(name: str) -> None:
    for encode in (
        lambda: commands.encode_create_topic(name, TopicSettings(), 0),
        lambda: commands.encode_delete_topic(name),
        lambda: commands.encode_alter_topic(name, {}),
    ):
        with pytest.raises(ValidationError):
            encode()


@pytest.mark.parametrize("created_ms", [-1, 2**60])
def test_a_time_out_of_bounds_is_refused(created_ms: int) -> None:
    with pytest.raises(ValidationError):
        commands.encode_create_topic("a", TopicSettings(), created_ms)
    forged = bytes((1, 1)) + msgspec.msgpack.encode(["a", {}, created_ms])
    machine = Cluster(_NoRows())
    assert isinstance(machine.apply(1, forged).result, ValidationError)


@pytest.mark.parametrize("count", [0, -1, 1_000_001])
def test_a_count_of_producers_out_of_bounds_is_refused(count: int) -> None:
    with pytest.raises(ValidationError):
        commands.encode_allocate_producers(count)


@pytest.mark.parametrize("value", [object(), 2**80, "x" * 70_000])
def test_settings_that_cannot_be_stored_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="settings"):
        commands.encode_alter_topic("a", {"lease_ms": value})


@pytest.mark.parametrize(
    "payload", [b"", b"\x01", b"\x01\x01", b"\x01\x01" + b"\x90" * 70_000, b"\x02\x01\xc1", b"\x02\x01\x91\x05"]
)
def test_bytes_that_are_no_command_are_a_validation_error(payload: bytes) -> None:
    with pytest.raises(ValidationError):
        commands.decode(payload)


@pytest.mark.parametrize("prefix", [b"\x63\x01", b"\x01\x02"])
def test_a_command_of_a_newer_release_stops_the_machine_before_anything_has_changed(prefix: bytes) -> None:
    world = World("a", "b")
    before, rows = world.machine.applied_index, world.machine.all_rows()
    world.machine.take_dirty()
    for _ in range(2):
        with pytest.raises(UnknownRecord, match=f"not known here; {re.escape(START_NEWER)}"):
            world.machine.apply(before + 1, prefix + b"\x90")
    assert (world.machine.applied_index, world.machine.all_rows()) == (before, rows)
    assert world.machine.take_dirty() == {}
    assert not commands.is_known(prefix + b"\x90"), "nobody may propose it"
    assert commands.is_known(commands.encode_rebalance(1))


class _NoRows:
    def get(self, key: bytes) -> None:
        return None

    def scan(self, start: bytes, stop: bytes) -> Any:
        return iter(())
