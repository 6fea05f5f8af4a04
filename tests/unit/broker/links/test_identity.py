"""What a broker says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from lanner import features
from lanner.broker.links.identity import BrokerIdentity
from lanner.broker.settings import BrokerSettings
from lanner.cluster import Registration
from lanner.errors import ServiceUnavailable, ValidationError

NATIVE, HTTP = ("127.0.0.1", 7400), ("127.0.0.1", 8080)
NODE_ID = "a" * 32


def identity(recorded_name: str = "", rejoin_name: str = "", **settings: Any) -> BrokerIdentity:
    return BrokerIdentity(NODE_ID, BrokerSettings(**settings), recorded_name=recorded_name, rejoin_name=rejoin_name)


def test_a_broker_has_a_name_of_its_own_unless_it_is_given_one() -> None:
    assert identity().name == "broker-aaaaaaaa"
    assert identity(name="first").name == "first"


def test_a_broker_that_joins_its_cluster_anew_keeps_its_name() -> None:
    assert identity(rejoin_name="first", name="second").name == "first"


def test_before_the_doors_are_open_there_is_nothing_to_say() -> None:
    with pytest.raises(ServiceUnavailable, match="starting"):
        _ = identity().registration


def test_a_broker_says_where_its_doors_are() -> None:
    own = identity(name="first", rack="r1")
    own.introduce({"native": NATIVE, "http": HTTP})
    assert own.registration == Registration(
        "first",
        NODE_ID,
        {"native": "127.0.0.1:7400", "http": "127.0.0.1:8080"},
        "r1",
        features.LOWEST,
        features.HIGHEST,
    )
    assert own.native_address == "127.0.0.1:7400"


def test_what_is_advertised_wins_over_what_is_bound() -> None:
    own = identity(advertise="queue.example:17400")
    own.introduce({"native": ("0.0.0.0", 7400), "http": ("0.0.0.0", 8080)})
    assert own.registration.addresses == {"native": "queue.example:17400", "http": "queue.example:8080"}


def test_an_address_that_others_cannot_dial_is_refused_where_there_are_others() -> None:
    with pytest.raises(ValidationError, match="--advertise HOST:PORT"):
        identity(seeds=("a:1", "b:1")).introduce({"native": ("0.0.0.0", 7400)})
    alone = identity()
    alone.introduce({"native": ("0.0.0.0", 7400)})
    assert not alone.native_address.startswith("0.0.0.0")


def test_a_broker_without_a_native_door_has_no_address() -> None:
    own = identity(native="")
    own.introduce({})
    assert own.registration.addresses == {}
    assert own.native_address == ""


def test_a_recorded_broker_keeps_its_name() -> None:
    assert identity("first").name == "first"
    identity("first", name="first").introduce({})
    with pytest.raises(ValidationError, match="cannot be renamed"):
        identity("first", name="second").introduce({})
