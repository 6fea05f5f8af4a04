"""The simulated shell and its witness: what they do, and that the witness can be made to speak."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from lanner import batch
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import encode_create_topic
from lanner.errors import StorageDamaged
from lanner.ledger import Ledger
from lanner.model import TopicSettings
from lanner.partition import Appended, encode_append
from lanner.raft import Entry, EntryKind
from lanner.testing.clock import SimClock
from lanner.testing.disk import PowerLost
from lanner.testing.sim_broker import Broken, SimBroker, Witness

SET_ID = 1


@pytest.fixture
def broker() -> SimBroker:
    """A broker with one topic of one partition."""
    made = SimBroker(Random(5), SimClock())
    made.start()
    command = encode_create_topic("orders", TopicSettings(partitions=1), made.clock.now_ms())
    made.engine.propose(CLUSTER_SET, command, lambda _result: made.reconcile())
    settle(made)
    return made


def settle(broker: SimBroker) -> None:
    while broker.step_commit() or broker.busy or not broker.engine.led:
        pass


def publish(broker: SimBroker, *values: bytes) -> list[Any]:
    told: list[Any] = []
    payload = encode_append(broker.clock.now_ms(), batch.encode(values))
    broker.engine.propose(SET_ID, payload, told.append)
    return told


def values(broker: SimBroker) -> list[bytes]:
    found: list[bytes] = []
    for ref in broker.engine.replica(SET_ID).partition.batches_from(0, 1 << 20):
        found += broker.read(SET_ID, ref).values()
    return found


def broken(action: Callable[[], object]) -> str:
    with pytest.raises(Broken) as caught:
        action()
    return caught.value.violation.rule


# ------------------------------------------------------------------ the shell


def test_a_publish_is_answered_when_its_commit_was_reported_and_not_before(broker: SimBroker) -> None:
    told = publish(broker, b"a", b"b")
    assert broker.step_commit()  # begun
    assert broker.step_commit()  # written and synced
    assert told == []
    assert broker.step_commit()  # reported
    assert told == [Appended(0, 2, broker.clock.now_ms(), False)]
    assert values(broker) == [b"a", b"b"]


def test_what_was_answered_survives_a_crash_and_what_was_not_may_not(broker: SimBroker) -> None:
    publish(broker, b"kept")
    settle(broker)
    publish(broker, b"lost")
    broker.step_commit()
    broker.crash()
    broker.start()
    assert values(broker) == [b"kept"]
    assert broker.counts["crashes"] == 1


def test_a_kill_loses_nothing_that_was_written(broker: SimBroker) -> None:
    publish(broker, b"written")
    broker.step_commit()
    broker.write_without_sync()
    broker.kill()
    broker.start()
    assert values(broker) == [b"written"]


def test_the_power_may_go_inside_any_step(broker: SimBroker) -> None:
    publish(broker, b"a")
    broker.disk.crash_in(1)
    with pytest.raises(PowerLost):
        settle(broker)
    broker.crash()
    broker.start()
    assert broker.engine.led


def test_a_full_disk_delays_a_commit_and_nothing_else(broker: SimBroker) -> None:
    told = publish(broker, b"a")
    broker.disk.write_room_bytes = 10
    settle(broker)
    assert [answer.base_offset for answer in told] == [0]
    assert broker.counts["disk_full"] == 1


def test_a_full_disk_delays_a_segment_that_is_prepared_and_nothing_else(broker: SimBroker) -> None:
    settle(broker)
    ledger = broker.engine.ledger
    known = set(ledger.files())
    broker.disk.write_room_bytes = 100
    while broker.step_work("prepare"):
        pass
    assert broker.counts["disk_full"] == 1
    assert set(ledger.files()) == known
    while broker.step_work("prepare"):
        pass
    assert len(ledger.files()) == len(known) + 1


def test_a_commit_that_needs_a_new_segment_waits_for_room(broker: SimBroker) -> None:
    broker.disk.write_room_bytes = 20_000
    told = publish(broker, bytes(40_000))  # larger than a segment
    settle(broker)
    assert [answer.base_offset for answer in told] == [0]
    assert broker.counts["disk_full"] == 1


def test_a_crash_may_tear_what_a_full_disk_took_of_a_commit(broker: SimBroker) -> None:
    publish(broker, b"kept")
    settle(broker)
    publish(broker, b"lost" * 300)
    broker.step_commit()
    broker.disk.write_room_bytes = 600
    broker.write_without_sync()
    broker.disk.write_room_bytes = None
    broker.kill()
    broker.start()
    assert values(broker) == [b"kept"]
    assert broker.counts["torn_tails"] == 1


def test_a_full_table_delays_a_save_and_nothing_else(broker: SimBroker) -> None:
    publish(broker, b"a")
    settle(broker)
    broker.disk.table_full = True
    broker.finish_work()
    assert broker.counts["disk_full"] >= 1
    assert broker.counts["saves"] >= 1
    broker.crash()
    broker.start()
    assert values(broker) == [b"a"]


def test_saves_rewrites_and_preparations_come_to_an_end(broker: SimBroker) -> None:
    for number in range(300):
        publish(broker, b"%d" % number * 300)
        settle(broker)
        broker.step_work("prepare")
    for _ in range(3):
        broker.finish_work()
    assert broker.durable_records() == []
    assert broker.engine.begin_save() is None
    assert len(values(broker)) == 300


@pytest.mark.parametrize("seed", range(4))
def test_a_rewrite_that_finds_the_disk_full_is_repeated_or_given_up(broker: SimBroker, seed: int) -> None:
    for number in range(400):
        publish(broker, b"%d" % number * 300)
        settle(broker)
    broker.finish_work()
    ledger = broker.engine.ledger
    for index in range(3, 380):
        if index % 20:
            ledger.release(SET_ID, index)
    broker.rng = Random(seed)  # decides which of the two it is
    broker.disk.write_room_bytes = 100
    for _ in range(4):
        broker.finish_work()
    assert broker.counts["disk_full"] == 1
    assert broker.counts["rewritten_segments"] > 0
    ledger.check()


def test_damage_to_a_durable_record_is_refused(broker: SimBroker) -> None:
    for number in range(3):
        publish(broker, b"%d" % number)
        settle(broker)
    file_id, offset, size = broker.durable_records()[-1]
    copy = broker.disk.snapshot()
    copy.flip_bit(file_id, offset + size - 1)
    with pytest.raises(StorageDamaged):
        Ledger.recover(copy.files, copy.table, random_bytes=Random(1).randbytes)


# ------------------------------------------------------------------ the witness


def entry(index: int, payload: bytes = b"", term: int = 1) -> Entry:
    return Entry(index, term, EntryKind.NORMAL if payload else EntryKind.NOOP, payload)


def test_an_entry_that_changed_is_noticed() -> None:
    witness = Witness()
    witness._see(SET_ID, entry(1))
    witness._see(SET_ID, entry(1))
    assert broken(lambda: witness._see(SET_ID, entry(1, term=2))) == "committed entry changed"
    assert broken(lambda: witness._see(SET_ID, entry(3))) == "committed entry lost"


def test_an_entry_that_is_gone_after_a_restart_is_noticed(broker: SimBroker) -> None:
    broker.witness._applied[SET_ID].append(0)
    broker.crash()
    assert broken(broker.start) in ("committed entry lost", "committed entry changed")


def test_a_state_that_differs_after_a_restart_is_noticed(broker: SimBroker) -> None:
    replica = broker.engine.replica(SET_ID)
    broker.witness.compare(replica)
    replica.partition._state.machine_ms += 1
    replica.partition._state.end_offset += 1
    assert broken(lambda: broker.witness.compare(replica)) == "state differs after a restart"


def test_a_machine_that_stands_elsewhere_is_noticed(broker: SimBroker) -> None:
    replica = broker.engine.replica(SET_ID)
    del broker.witness.machines[SET_ID]
    assert broken(lambda: broker.witness.compare(replica)) == "state differs after a restart"


def test_a_batch_that_cannot_be_read_is_noticed(broker: SimBroker) -> None:
    publish(broker, bytes(9_000))  # larger than the cache
    settle(broker)
    [ref] = broker.engine.replica(SET_ID).partition.batches_from(0, 1 << 20)
    assert broken(lambda: broker.read(SET_ID, ref._replace(index=99))) == "message cannot be read"
    for file_id, _ in broker.disk.files.list():
        broker.disk.files.remove(file_id)
    assert broken(lambda: broker.read(SET_ID, ref)) == "message cannot be read"


def test_a_broker_that_never_leads_is_noticed(broker: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(broker.engine), "led", property(lambda _engine: False))
    broker.crash()
    assert broken(broker.start) == "broker never leads"
