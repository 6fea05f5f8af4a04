"""A row of one partition is damaged: in a cluster its replica alone is closed and replaced, and all others go on."""

from __future__ import annotations

import logging

import pytest

from lanner.cluster import METADATA_SET, PlanKind
from lanner.errors import NotLeader, StorageDamaged
from lanner.ledger import Ledger
from lanner.ledger.rows import FORMAT_KEY, damaged_key, set_of_key
from lanner.storage import MemoryFiles, MemoryTable
from lanner.testing.flock import Broker, Flock

KINDS = (b"m", b"e", b"b", b"s")


def made() -> tuple[Flock, int, int, Broker]:
    """A cluster with two partitions, all of it saved, and a broker that has stopped."""
    flock = Flock()
    first, second = flock.create_topic("orders", partitions=2)
    for number in range(20):
        flock.publish(first, b"%d" % number)
        flock.publish(second, b"%d" % number)
    for broker in flock.up():
        broker.save()
    return flock, first, second, flock.brokers["b"]


def rows_of(broker: Broker, set_id: int, kind: bytes) -> list[bytes]:
    keys = [key for key, _ in broker.table.scan(kind, kind + b"\xff") if set_of_key(key) == set_id]
    assert keys, f"set {set_id} has no row of kind {kind!r}"
    return keys


def spoil(table: MemoryTable, key: bytes, what: str) -> None:
    """One bit of a row flips, in its key or in its value."""
    row = table.get(key)
    assert row is not None
    if what == "value":
        table.commit({key: bytes([row[0] ^ 4]) + row[1:]})
    else:
        table.commit({key: None, key[:-1] + bytes([key[-1] ^ 4]): row})


def replaced(flock: Flock, broker: Broker, set_id: int) -> int:
    """Wait until the broker has a whole copy of the set again; its replica's id."""
    flock.until(lambda: set_id in broker.engine.replicas, ticks=6_000)
    flock.until(lambda: not flock.metadata.moves, ticks=6_000)
    plans = [plan for plan in flock.metadata.plans.values() if plan.kind is PlanKind.REPAIR]
    assert [plan.node_id for plan in plans] == [broker.node_id]
    record = flock.metadata.sets[set_id]
    now = record.replica_on(broker.node_id)
    assert now is not None and now.voter and not record.damaged
    return now.replica_id


@pytest.mark.parametrize("what", ["value", "key"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_set_with_a_damaged_row_is_not_opened_and_comes_back_under_a_new_id(
    kind: bytes, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    flock, first, second, broker = made()
    before = broker.replica(first).node.node_id
    broker.stop()
    spoil(broker.table, rows_of(broker, first, kind)[-1], what)
    with caplog.at_level(logging.ERROR):
        broker.start()
    assert f"of replica set {first} is damaged" in caplog.text
    flock.until(lambda: second in broker.engine.replicas)
    assert first not in broker.engine.replicas, "nobody may hear what it remembers"
    assert flock.publish(second, b"goes on").base_offset == 20
    assert flock.publish(first, b"goes on").base_offset == 20, "two other copies are whole"
    assert replaced(flock, broker, first) > max(3, before)
    flock.until(lambda: flock.count(broker, first) == 21)
    assert not broker.engine.ledger.damaged and not broker.engine.damages.sets
    broker.engine.ledger.check()
    for _ in range(3):
        broker.save()
    broker.stop()
    broker.start()
    assert not broker.engine.ledger.damaged, "nothing is left of what was damaged"
    flock.until(lambda: {first, second} <= broker.engine.replicas.keys())
    flock.until(lambda: flock.count(broker, first) == 21 and flock.count(broker, second) == 21)
    broker.engine.ledger.check()


def test_a_set_whose_own_row_is_damaged_is_replaced_also_while_nothing_changes_in_the_cluster() -> None:
    """Whose copy it was, the broker learns from the metadata, once that stands where it stood before the restart."""
    flock, first, _, broker = made()
    leader = flock.leader_of(METADATA_SET)
    assert leader is not None
    other = next(one for one in flock.up() if one not in (leader, broker))
    leader.replica(METADATA_SET).node.transfer(other.replica(METADATA_SET).node.node_id)
    flock.until(lambda: flock.leader_of(METADATA_SET) is other)  # which writes an entry that says nothing
    flock.until(lambda: broker.replica(METADATA_SET).node.last_index == other.replica(METADATA_SET).node.last_index)
    broker.stop()
    (key,) = rows_of(broker, first, b"m")
    spoil(broker.table, key, "value")
    broker.start()
    assert replaced(flock, broker, first) > 3


def test_it_stays_closed_over_restarts_even_if_the_row_can_be_read_again() -> None:
    flock, first, _, broker = made()
    flock.cut.add(broker.node_id)
    broker.stop()
    (key,) = rows_of(broker, first, b"m")
    whole = broker.table.get(key)
    spoil(broker.table, key, "value")
    broker.start()
    broker.save()
    assert broker.table.get(damaged_key(first)) is not None
    broker.stop()
    broker.table.commit({key: whole})
    broker.start()
    broker.work()
    assert first not in broker.engine.replicas, "what it stored meanwhile may be missing"
    flock.cut.clear()
    assert replaced(flock, broker, first) > 3
    broker.save()
    assert broker.table.get(damaged_key(first)) is None


def test_a_row_that_is_found_damaged_in_the_commit_path_closes_its_set_only() -> None:
    flock, first, second, broker = made()
    broker.stop()
    broker.start()
    flock.until(lambda: {first, second} <= broker.engine.replicas.keys())
    for key in rows_of(broker, first, b"e"):  # behind its back: they are read when the next entries go there
        spoil(broker.table, key, "value")
    broker.engine.ledger._books._shelf.forget(first, broker.engine.ledger.state(first).generation)
    told: list[object] = []
    if broker.leads(first):
        broker.engine.ask(first, object(), lambda answer, _index: told.append(answer))
    assert flock.publish(second, b"goes on").base_offset == 20
    assert flock.publish(first, b"goes on").base_offset == 20
    assert all(isinstance(answer, NotLeader) for answer in told)
    assert replaced(flock, broker, first) > 3
    flock.until(lambda: flock.count(broker, first) == 21)
    broker.engine.ledger.check()


def test_a_row_that_a_caller_finds_damaged_closes_its_set_only() -> None:
    flock, first, second, broker = made()
    key = rows_of(broker, first, b"s")[0]
    spoil(broker.table, key, "value")
    rows = broker.engine.ledger.rows(first)
    with pytest.raises(StorageDamaged):
        list(rows.scan(b"", b"\xff"))
    flock.pass_time()
    assert first not in broker.engine.replicas and second in broker.engine.replicas
    assert replaced(flock, broker, first) > 3


@pytest.mark.parametrize("restarts", [False, True])
def test_a_leader_that_is_closed_while_its_set_rests_is_followed_by_another(restarts: bool) -> None:
    """Its broker is heard as before, so nobody is missed, and those that follow do not ask by themselves."""
    flock, first, second, _ = made()
    broker = flock.leader_of(first)
    assert broker is not None
    flock.until(lambda: all({first, second} <= set(one.engine.quiesced()) for one in flock.up()))
    key = rows_of(broker, first, b"s")[0]
    spoil(broker.table, key, "value")
    if restarts:  # so soon that nobody notices
        broker.stop()
        broker.start()
    else:
        with pytest.raises(StorageDamaged):
            list(broker.engine.ledger.rows(first).scan(b"", b"\xff"))
    flock.until(lambda: first in broker.engine.ledger.damaged)
    flock.until(lambda: flock.leader_of(first) not in (None, broker))
    assert replaced(flock, broker, first) > 3
    assert flock.publish(first, b"goes on").base_offset == 20


def test_an_entry_that_cannot_be_applied_closes_its_set_only() -> None:
    flock, first, second, broker = made()
    flock.publish(first, b"not saved yet")
    broker.stop()
    broker.start()  # it does not know yet how much of its log is committed
    ledger = broker.engine.ledger
    place = ledger.locate(first, ledger.state(first).last_index)
    broker.files.write(place.file, place.offset, [b"\xff"])
    flock.until(lambda: second in broker.engine.replicas and first in broker.engine.damages.sets)
    assert flock.publish(second, b"goes on").base_offset == 20
    assert replaced(flock, broker, first) > 3
    flock.until(lambda: flock.count(broker, first) == 21)


@pytest.mark.parametrize("whose", ["the table", "the metadata"])
def test_rows_that_are_everybodys_stop_the_broker(whose: str) -> None:
    _, _, _, broker = made()
    broker.stop()
    key = FORMAT_KEY if whose == "the table" else rows_of(broker, 0, b"s")[0]
    spoil(broker.table, key, "value")
    with pytest.raises(StorageDamaged):
        broker.start()


def test_alone_a_damaged_row_is_raised_as_nobody_could_replace_it() -> None:
    flock = Flock("a")
    (first,) = flock.create_topic("orders", replication=1)
    flock.publish(first, b"one")
    broker = flock.brokers["a"]
    broker.save()
    key = rows_of(broker, first, b"s")[0]
    spoil(broker.table, key, "value")
    with pytest.raises(StorageDamaged):
        list(broker.engine.ledger.rows(first).scan(b"", b"\xff"))
    with pytest.raises(StorageDamaged):
        flock.pass_time()
    with pytest.raises(StorageDamaged, match=f"of replica set {first} does not match"):
        Ledger.recover(broker.files, broker.table, random_bytes=bytes)


def test_a_row_of_a_set_that_nothing_else_knows_stops_the_broker() -> None:
    """Its key may be what has changed, by more than one bit: then it is missing elsewhere, and nobody knows where."""
    files, table = MemoryFiles(), MemoryTable()
    Ledger.recover(files, table, random_bytes=bytes)
    table.commit({b"m" + bytes(7) + b"\x09": bytes(80)})
    with pytest.raises(StorageDamaged):
        Ledger.recover(files, table, random_bytes=bytes, close_damaged=True)
