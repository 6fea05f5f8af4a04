"""The map of a proxy: what METADATA tells it, and what it tells its own clients."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lanner.client.brokers import Brokers
from lanner.errors import NotLeader, TopicNotFound, ValidationError
from lanner.model import TopicSettings
from lanner.proxy.settings import ProxySettings
from lanner.proxy.topology import Topology, told_as_own, without_hint
from lanner.wire.messages import BrokerInfo, MetadataReply, PartitionInfo, TopicInfo


class FakeBrokers:
    """Only what the map asks for."""

    is_closed = True  # nothing is asked in the background
    are_several = True

    def __init__(self) -> None:
        self.on_lost: list[Any] = []
        self.failing: set[str] = set()
        self.known: list[str] = []

    def is_failing(self, node_id: str) -> bool:
        return node_id in self.failing

    def learn(self, infos: list[BrokerInfo]) -> None:
        self.known = [info.node_id for info in infos]


def told(incarnation: int = 7, *leaders: str, name: str = "orders", **settings: Any) -> MetadataReply:
    partitions = [PartitionInfo(number, leader, ["a", "b"]) for number, leader in enumerate(leaders or ("a", "b", ""))]
    topic = TopicInfo(name, incarnation, partitions, {**TopicSettings().to_dict(), **settings})
    return MetadataReply("cluster", [BrokerInfo("a", "h", 1, "first"), BrokerInfo("b", "h", 2)], [topic], 5)


@pytest.fixture
def brokers() -> FakeBrokers:
    return FakeBrokers()


@pytest.fixture
def topology(brokers: FakeBrokers) -> Topology:
    return Topology(cast(Brokers, brokers))


def test_a_topic_is_known_once_metadata_has_told_it(topology: Topology, brokers: FakeBrokers) -> None:
    with pytest.raises(TopicNotFound):
        topology.find_topic("orders")
    topology.learn(told(), 0.0)
    topic = topology.find_topic("orders")
    assert [topology.leader_of(set_id) for set_id in topic.set_ids] == ["a", "b", ""]
    assert topic is topology.find_topic("orders"), "made once"
    assert (topology.cluster_id, brokers.known, topology.name_of("a"), topology.name_of("b")) == (
        "cluster",
        ["a", "b"],
        "first",
        "b",
    )


def test_a_leader_that_cannot_be_reached_is_none(topology: Topology, brokers: FakeBrokers) -> None:
    topology.learn(told(), 0.0)
    brokers.failing = {"a"}
    assert [topology.leader_of(one) for one in topology.find_topic("orders").set_ids] == ["", "b", ""]


def test_numbers_of_partitions_survive_being_forgotten_and_never_come_back_for_another_topic(
    topology: Topology,
) -> None:
    """The doors' own sequences are counted by them: one number for two partitions would lose messages."""
    topology.learn(told(7), 0.0)
    before = topology.find_topic("orders").set_ids
    assert topology.doubt("orders")
    assert not topology.doubt("orders")
    topology.learn(told(7), 0.0)
    assert topology.find_topic("orders").set_ids == before
    assert all(one in topology.live_sets for one in before)
    topology.learn(told(8), 0.0)
    after = topology.find_topic("orders").set_ids
    assert not set(after) & set(before)
    assert not any(one in topology.live_sets for one in before)
    topology.learn(told(9, name="letters"), 0.0)
    assert not set(topology.find_topic("letters").set_ids) & {*after, *before}


def test_a_topic_that_grew_keeps_the_numbers_of_its_partitions(topology: Topology) -> None:
    topology.learn(told(7, "a"), 0.0)
    (first,) = topology.find_topic("orders").set_ids
    topology.learn(told(7, "a", "b"), 0.0)
    assert topology.find_topic("orders").set_ids[0] == first
    assert len(topology.find_topic("orders").set_ids) == 2


def test_settings_of_a_newer_release_are_passed_over(topology: Topology) -> None:
    topology.learn(told(7, "a", message_bytes_max=1_000, invented=1), 0.0)
    assert topology.find_topic("orders").settings.message_bytes_max == 1_000


def test_a_deleted_topic_is_dropped_with_its_numbers(topology: Topology) -> None:
    topology.learn(told(), 0.0)
    numbers = topology.find_topic("orders").set_ids
    topology.drop("orders")
    assert not topology.knows("orders")
    assert not any(one in topology.live_sets for one in numbers)


def test_clients_are_told_of_the_proxy_alone() -> None:
    own = BrokerInfo("proxy-1", "here", 7500, "proxy")
    reply = told_as_own(told(), own)
    assert reply.brokers == [own]
    (topic,) = reply.topics
    assert [(one.leader, one.replicas) for one in topic.partitions] == [
        ("proxy-1", []),
        ("proxy-1", []),
        ("", []),
    ], "what nobody leads is told as it is, and the proxy has no replica"
    assert (topic.incarnation, reply.cluster_id, reply.index) == (7, "cluster", 5)


def test_an_error_names_no_broker_that_clients_would_try_to_reach() -> None:
    error = without_hint(NotLeader("there", leader="a", address="h:1", topic="orders", partition=2))
    assert (error.details["leader"], error.details["address"], error.details["partition"]) == ("", "", 2)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"servers": "http://a:1"}, "servers"),
        ({"servers": ""}, "servers"),
        ({"native": "nowhere"}, "native"),
        ({"native": "", "http": "", "grpc": ""}, "native"),
        ({"name": "no spaces"}, "name"),
        ({"connections_max": 0}, "connections_max"),
        ({"drain_ms": True}, "drain_ms"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ProxySettings(**given)
    assert caught.value.details["field"] == field
