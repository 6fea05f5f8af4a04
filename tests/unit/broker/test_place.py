"""What a broker says of itself, and where it thinks the others are."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lanner import features
from lanner.broker.links.founding import Founding, encode_record
from lanner.broker.links.place import Place
from lanner.broker.node import Node
from lanner.broker.settings import BrokerSettings
from lanner.cluster import Registration
from lanner.errors import DataDirectoryRefused, ServiceUnavailable, ValidationError

NATIVE, HTTP = ("127.0.0.1", 7400), ("127.0.0.1", 8080)
OTHER = Registration("other", "b" * 32, {"native": "h:1"})


class Directory:
    node_id, cluster_id, path = "a" * 32, "c" * 32, Path("nowhere")

    def __init__(self, recorded: bytes | None) -> None:
        self._recorded = recorded

    def read_founding(self) -> bytes | None:
        return self._recorded


class Replica:
    """One replica as its Raft node shows itself."""

    def __init__(self, leader_id: int, node_id: int = 1, term: int = 5) -> None:
        self.node = SimpleNamespace(leader_id=leader_id, node_id=node_id, term=term)


def node_with(recorded: Founding | None = None, **settings: Any) -> Any:
    return SimpleNamespace(
        settings=BrokerSettings(**settings),
        directory=Directory(None if recorded is None else encode_record(recorded)),
        steward=None,
        engine=SimpleNamespace(replicas={}, cluster=SimpleNamespace(brokers={}), ledger=SimpleNamespace(sets=dict)),
        peers=SimpleNamespace(leaders={}, known=["alive"], is_alive=lambda node_id: node_id == "alive"),
    )


def place_with(recorded: Founding | None = None, **settings: Any) -> Place:
    return Place(cast(Node, node_with(recorded, **settings)))


# ---------------------------------------------------------------------- who this is


def test_a_broker_has_a_name_of_its_own_unless_it_is_given_one() -> None:
    assert place_with().name == "broker-aaaaaaaa"
    assert place_with(name="first").name == "first"


def test_before_the_doors_are_open_there_is_nothing_to_say() -> None:
    with pytest.raises(ServiceUnavailable, match="starting"):
        _ = place_with().registration


def test_a_broker_says_where_its_doors_are() -> None:
    place = place_with(name="first", rack="r1")
    place.introduce({"native": NATIVE, "http": HTTP})
    assert place.registration == Registration(
        "first",
        "a" * 32,
        {"native": "127.0.0.1:7400", "http": "127.0.0.1:8080"},
        "r1",
        features.LOWEST,
        features.HIGHEST,
    )
    assert place.hello.address == "127.0.0.1:7400"
    assert place.hello.cluster_id == ""


def test_what_is_advertised_wins_over_what_is_bound() -> None:
    place = place_with(advertise="queue.example:17400")
    place.introduce({"native": ("0.0.0.0", 7400), "http": ("0.0.0.0", 8080)})
    assert place.registration.addresses == {"native": "queue.example:17400", "http": "queue.example:8080"}


def test_an_address_that_others_cannot_dial_is_refused_where_there_are_others() -> None:
    with pytest.raises(ValidationError, match="--advertise HOST:PORT"):
        place_with(seeds=("a:1", "b:1")).introduce({"native": ("0.0.0.0", 7400)})
    alone = place_with()
    alone.introduce({"native": ("0.0.0.0", 7400)})
    assert not alone.registration.addresses["native"].startswith("0.0.0.0")


def test_a_broker_without_a_native_door_has_no_address() -> None:
    place = place_with(native="")
    place.introduce({})
    assert place.registration.addresses == {}
    assert place.hello.address == ""


def test_a_recorded_broker_keeps_its_name() -> None:
    recorded = Founding("x", (Registration("first", "a" * 32, {}),), 1, name="first")
    assert place_with(recorded).name == "first"
    place_with(recorded, name="first").introduce({})
    with pytest.raises(ValidationError, match="cannot be renamed"):
        place_with(recorded, name="second").introduce({})


def test_a_record_that_says_nothing_stops_the_start() -> None:
    node = node_with()
    node.directory = Directory(b"{}")
    with pytest.raises(DataDirectoryRefused):
        Place(cast(Node, node))


# ---------------------------------------------------------------------- coming to belong


def test_a_broker_with_a_record_or_data_or_without_others_need_not_ask() -> None:
    recorded = Founding("x", (Registration("first", "a" * 32, {}),), 1, name="first")
    assert place_with().is_found
    assert place_with(recorded, seeds=("a:1",)).is_found
    assert not place_with(seeds=("a:1",)).is_found
    assert not place_with(join="a:1").is_found
    old = node_with(seeds=("a:1",))
    old.engine.ledger.sets = lambda: {0: None}
    assert Place(cast(Node, old)).is_found


async def test_data_of_one_broker_goes_on_as_a_cluster_of_one(caplog: pytest.LogCaptureFixture) -> None:
    node = node_with(seeds=("a:1",), name="first")
    node.engine.ledger.sets = lambda: {0: None}
    node.engine.ledger.state = lambda set_id: SimpleNamespace(replica_id=1)
    written: list[bytes] = []
    node.directory.write_founding = written.append

    async def in_saver(work: Any) -> None:
        work()

    node.in_saver = in_saver
    place = Place(cast(Node, node))
    place.introduce({"native": NATIVE})
    with caplog.at_level(logging.WARNING):
        founding = await place.establish()
    assert (founding.cluster_id, founding.replica_id, founding.name) == ("c" * 32, 1, "first")
    assert written == [encode_record(founding)]
    assert await place.establish() is founding
    assert "goes on as a cluster of one" in caplog.text


# ---------------------------------------------------------------------- the others


def test_others_are_where_the_metadata_says_and_else_where_they_were_at_the_founding(tmp_path: Path) -> None:
    node = node_with(Founding("x", (OTHER, Registration("first", "a" * 32, {})), 2, name="first"))
    place = Place(cast(Node, node))
    assert place.brokers() == []
    assert place.addresses_of(OTHER.node_id) == [("h", 1)]
    node.steward = SimpleNamespace()
    place.meet("newcomer")
    assert place.brokers() == [OTHER.node_id, "a" * 32, "newcomer"]
    node.engine.cluster.brokers = {
        OTHER.node_id: SimpleNamespace(
            node_id=OTHER.node_id, state="active", lost=False, addresses={"native": "moved:2"}
        ),
        "lost": SimpleNamespace(node_id="lost", state="draining", lost=True, addresses={"native": "nonsense"}),
    }
    assert place.brokers() == [OTHER.node_id, "newcomer"]
    assert place.addresses_of(OTHER.node_id) == [("moved", 2), ("h", 1)]
    assert place.addresses_of("lost") == []
    assert place.addresses_of("nobody") == []


def test_the_leader_is_whom_the_own_replica_follows_and_else_who_says_so() -> None:
    node = node_with()
    place = Place(cast(Node, node))
    assert place.leader_of(7) == ""
    node.peers.leaders[7] = (5, "alive")
    assert place.leader_of(7) == "alive"
    node.peers.leaders[7] = (5, "silent")
    assert place.leader_of(7) == ""

    node.steward = SimpleNamespace(route=lambda set_id, replica_id: {2: "second"}.get(replica_id))
    node.engine.replicas[7] = Replica(leader_id=1)
    assert place.leader_of(7) == place.node_id
    node.engine.replicas[7] = Replica(leader_id=2)
    assert place.leader_of(7) == "second"
    node.engine.replicas[7] = Replica(leader_id=0, term=6)
    node.peers.leaders[7] = (5, "alive")
    assert place.leader_of(7) == "", "a leader of an older term leads no more"
    node.peers.leaders[7] = (6, "alive")
    assert place.leader_of(7) == "alive"


def test_a_broker_that_cannot_be_reached_is_reported_to_the_replica() -> None:
    node = node_with()
    reported: list[int] = []
    node.engine.replicas[7] = SimpleNamespace(node=SimpleNamespace(report_unreachable=reported.append))
    place = Place(cast(Node, node))
    place.unreachable(7, 3)
    place.unreachable(8, 4)
    assert reported == [3]
