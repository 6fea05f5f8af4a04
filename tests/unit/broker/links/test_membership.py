"""Which cluster a broker belongs to, and where it thinks the others are, with the metadata open and before."""

from __future__ import annotations

from lanner import features
from lanner.broker.links.founding import Founding
from lanner.broker.links.identity import BrokerIdentity
from lanner.broker.links.membership import ClusterMembership
from lanner.broker.settings import BrokerSettings
from lanner.cluster import Registration, encode_register_broker
from lanner.testing.flock import Flock

OTHER = Registration("other", "b" * 32, {"native": "h:1"})
OWN = Registration("first", "a" * 32, {})
RECORD = Founding("x", (OTHER, OWN), 2, name="first")


def membership(flock: Flock, founding: Founding | None = RECORD, seeds: tuple[str, ...] = ()) -> ClusterMembership:
    identity = BrokerIdentity(OWN.node_id, BrokerSettings())
    identity.introduce({"native": ("127.0.0.1", 7400)})
    return ClusterMembership(identity, flock.brokers["a"].engine, seeds, founding)


def register(flock: Flock, name: str, node_id: str, address: str) -> None:
    found = Registration(name, node_id, {"native": address}, "", features.LOWEST, features.HIGHEST)
    assert flock.propose(encode_register_broker(found, 1, replaces=True))
    flock.until(lambda: node_id in flock.brokers["a"].engine.cluster.brokers)


def test_a_broker_belongs_to_the_cluster_of_its_record() -> None:
    flock = Flock("abc")
    none_yet = membership(flock, None)
    assert (none_yet.cluster_id, none_yet.hello.cluster_id) == ("", "")
    none_yet.belong(RECORD)
    assert (none_yet.cluster_id, none_yet.hello.cluster_id) == ("x", "x")
    assert none_yet.hello.address == "127.0.0.1:7400"


def test_before_the_metadata_is_open_there_are_no_lines_and_the_record_says_where_others_are() -> None:
    flock = Flock("abc")
    flock.brokers["a"].engine.replicas.clear()
    found = membership(flock)
    assert found.brokers() == []
    assert found.addresses_of(OTHER.node_id) == [("h", 1)]
    assert found.addresses_of("nobody") == []


def test_before_the_metadata_names_anybody_the_record_and_those_who_spoke_count() -> None:
    found = membership(Flock("abc", found=False))
    assert found.meet("newcomer")
    assert not found.meet("newcomer")
    assert found.brokers() == [OTHER.node_id, OWN.node_id, "newcomer"]


def test_the_metadata_says_who_belongs_and_where_they_are() -> None:
    flock = Flock("abc")
    found = membership(flock)
    found.meet("newcomer")
    register(flock, "other", OTHER.node_id, "moved:2")
    register(flock, "fourth", "d" * 32, "h:99999")
    assert found.brokers() == ["node-a", "node-b", "node-c", OTHER.node_id, "d" * 32, "newcomer"]
    assert found.addresses_of(OTHER.node_id) == [("moved", 2), ("h", 1)]
    assert found.addresses_of("d" * 32) == [], "what another broker says of itself may make no sense"
    register(flock, "fourth", "e" * 32, "h:5")
    assert "d" * 32 not in found.brokers(), "its name came back on a new disk"


def test_its_own_address_is_no_seed() -> None:
    assert membership(Flock("abc"), seeds=("127.0.0.1:7400", "h:1")).seeds == [("h", 1)]
