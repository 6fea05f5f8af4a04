from __future__ import annotations

from collections import Counter

import pytest

from lanner import limits
from lanner.cluster import (
    encode_alter_topic,
    encode_delete_topic,
    encode_move_replica,
    encode_register_broker,
    encode_transfer_leader,
)
from lanner.errors import ConflictError
from tests.unit.cluster.world import World, registration


def test_by_default_a_topic_has_as_many_replicas_as_there_are_brokers_up_to_three() -> None:
    for names, expected in (("a", 1), ("ab", 2), ("abc", 3), ("abcd", 3)):
        world = World(*names)
        topic = world.create("orders", partitions=1)
        assert topic.settings.replication == expected
        assert len(world.nodes(topic.set_ids[0])) == expected


def test_more_replicas_than_brokers_are_refused_and_never_silently_lowered() -> None:
    world = World("a", "b")
    refused = world.create("orders", replication=3)
    assert isinstance(refused, ConflictError)
    assert "there are 2" in refused.message and refused.details["active_brokers"] == 2
    assert world.machine.topics == {}
    assert world.machine.partition_count == 0
    assert isinstance(World().create("orders", replication=2), ConflictError)  # one broker that knows of no others


def test_a_draining_broker_does_not_count_and_gets_nothing() -> None:
    world = World("a", "b", "c")
    world.drain("c")
    assert isinstance(world.create("orders", replication=3), ConflictError)
    topic = world.create("orders", partitions=2)
    assert all(world.nodes(set_id) == {"a", "b"} for set_id in topic.set_ids)


def test_without_an_active_broker_even_the_default_is_refused() -> None:
    world = World("a", "b")
    world.drain("a")
    world.apply(_wiped("b"))  # the other is gone too, and its new incarnation has not joined yet
    refused = world.create("orders")
    assert isinstance(refused, ConflictError)
    assert "there are 0" in refused.message


def _wiped(name: str) -> bytes:
    return encode_register_broker(registration(name, f"{name}-again"), 5)


def test_replicas_and_leaders_are_spread_evenly() -> None:
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=8, replication=3)
    assert world.held() == dict.fromkeys("abcd", 6)
    assert world.led() == dict.fromkeys("abcd", 2)
    world.create("payments", partitions=2, replication=1)
    assert Counter(world.held().values()) == {6: 2, 7: 2}


def test_racks_come_before_load() -> None:
    world = World("a", "b", "c", "d", racks="xxxy")
    topic = world.create("orders", partitions=6, replication=2)
    for set_id in topic.set_ids:
        assert "d" in world.nodes(set_id), "one of the two is always in the other rack, however full it is"
    assert world.held() == {"a": 2, "b": 2, "c": 2, "d": 6}


def test_three_racks_hold_one_replica_each() -> None:
    world = World(*"abcdef", racks="xxyyzz")
    topic = world.create("orders", partitions=10, replication=3)
    for set_id in topic.set_ids:
        racks = sorted(world.machine.brokers[node_id].rack for node_id in world.machine.sets[set_id].nodes)
        assert racks == ["x", "y", "z"]
    assert set(world.held().values()) == {5}


def test_ties_are_broken_by_node_id() -> None:
    topic = World("c", "a", "b").create("orders", partitions=1, replication=1)
    world = World("b", "c", "a")
    assert world.create("orders", partitions=1, replication=1) == topic
    assert world.nodes(1) == {"a"}


def test_new_partitions_go_where_there_is_least() -> None:
    world = World("a", "b", "c")
    world.create("orders", partitions=2, replication=1)
    world.apply(encode_alter_topic("orders", {"partitions": 3}))
    assert world.held() == {"a": 1, "b": 1, "c": 1}
    assert [one.partition for one in world.machine.sets.values()][1:] == [0, 1, 2]


def test_growth_is_refused_when_there_are_too_few_brokers_for_the_new_partitions() -> None:
    world = World("a", "b")
    world.create("orders", partitions=1, replication=2)
    world.apply(_wiped("b"))
    assert isinstance(world.apply(encode_alter_topic("orders", {"partitions": 2})), ConflictError)
    assert len(world.machine.topics["orders"].set_ids) == 1
    assert world.machine.partition_count == 1


def test_what_is_on_its_way_counts_as_load() -> None:
    world = World("a", "b", "c")
    world.create("orders", partitions=6, replication=1)
    world.drain("c")  # two replicas wait to go to a and b
    world.create("more", partitions=2, replication=1)
    world.settle()
    assert world.held() == {"a": 4, "b": 4, "c": 0}


def test_what_is_on_its_way_out_no_longer_counts_as_load() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=3, replication=1)
    [there] = [set_id for set_id in topic.set_ids if world.nodes(set_id) == {"c"}]
    world.apply(encode_move_replica(there, "node-c", "node-b", 2))
    assert world.nodes(world.create("more", partitions=1, replication=1).set_ids[0]) == {"c"}


def test_what_waits_to_come_counts_as_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOVES_PER_BROKER_MAX", 1)
    world = World("a", "b", "c", "d")
    world.create("orders", partitions=8, replication=1)
    world.drain("d")  # one replica is on its way to a, the other waits to go to b
    assert world.held() == {"a": 3, "b": 2, "c": 2, "d": 2}
    assert world.nodes(world.create("more", partitions=1, replication=1).set_ids[0]) == {"c"}


def test_a_deleted_topic_frees_its_brokers() -> None:
    world = World("a", "b")
    world.create("orders", partitions=3)
    world.apply(encode_delete_topic("orders"))
    assert world.held() == {"a": 0, "b": 0}
    assert world.led() == {"a": 0, "b": 0}
    assert list(world.machine.sets) == [0]


def test_the_leader_that_is_asked_for_is_the_one_that_is_wanted() -> None:
    world = World("a", "b", "c")
    topic = world.create("orders", partitions=1)
    world.apply(encode_transfer_leader(topic.set_ids[0], "node-c"))
    assert world.machine.leaders_wanted()[topic.set_ids[0]].node_id == "node-c"
    assert world.led() == {"a": 0, "b": 0, "c": 1}


@pytest.mark.parametrize("brokers", [2, 3, 5, 7])
def test_no_broker_ever_has_two_replicas_of_a_partition(brokers: int) -> None:
    world = World(*"abcdefg"[:brokers], racks="xyxyxyx"[:brokers])
    for number in range(5):
        topic = world.create(f"t{number}", partitions=3, replication=min(brokers, 1 + number))
        assert all(len(world.nodes(set_id)) == topic.settings.replication for set_id in topic.set_ids)
    assert max(world.held().values()) - min(world.held().values()) <= 3
