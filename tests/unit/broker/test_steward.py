"""Stewards of several brokers: each holds, serves and leads what the metadata says, whatever happens meanwhile."""

from __future__ import annotations

from lanner.cluster import (
    encode_move_replica,
)
from tests.unit.broker.flock import Flock


def test_a_new_topic_is_opened_where_the_metadata_puts_it_and_led_where_it_should_be() -> None:
    flock = Flock()
    sets = flock.create_topic("orders", partitions=6)
    assert all(flock.place(set_id) == set("abc") for set_id in sets)
    assert all(flock.is_home(set_id) for set_id in sets)
    for set_id in sets:
        assert flock.publish(set_id, b"x").base_offset == 0
    assert all(flock.count(broker, set_id) == 1 for broker in flock.up() for set_id in sets)


def test_a_replica_moves_to_a_new_broker_with_all_it_holds() -> None:
    flock = Flock()
    (set_id,) = flock.create_topic("orders")
    for number in range(20):
        flock.publish(set_id, b"%d" % number)
    flock.add("d")
    flock.until(lambda: flock.metadata.brokers["node-d"].state == "active")
    plan = flock.command(encode_move_replica(set_id, "node-a", "node-d", flock.now_ms))
    flock.finish(plan)
    assert flock.place(set_id) == flock.members(set_id) == set("bcd")
    assert flock.count(flock.brokers["d"], set_id) == 20
    assert flock.publish(set_id, b"more").base_offset == 20
