"""A broker's settings say what is wrong with them before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from lanner import limits
from lanner.broker.settings import BrokerSettings
from lanner.errors import ValidationError
from lanner.net.addresses import join_address, parse_address


def test_addresses_are_host_and_port_and_empty_keeps_a_door_shut() -> None:
    assert parse_address("127.0.0.1:7400", "native") == ("127.0.0.1", 7400)
    assert parse_address("[::1]:0", "native") == ("::1", 0)
    assert parse_address(":80", "http") == ("127.0.0.1", 80)
    assert parse_address("", "http") is None


@pytest.mark.parametrize("text", ["nonsense", "host:port", "host:70000", "host:-1"])
def test_an_address_that_is_none_names_the_setting(text: str) -> None:
    with pytest.raises(ValidationError, match="native is"):
        BrokerSettings(native=text)


def test_the_reserve_is_the_larger_of_a_gibibyte_and_a_twentieth_unless_told() -> None:
    assert BrokerSettings().reserve_bytes(20 * limits.GIB) == limits.GIB
    assert BrokerSettings().reserve_bytes(100 * limits.GIB) == 5 * limits.GIB
    assert BrokerSettings(disk_reserve_bytes=7).reserve_bytes(100 * limits.GIB) == 7


def test_senseless_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="data"):
        BrokerSettings(data="")
    with pytest.raises(ValidationError, match="default_partitions"):
        BrokerSettings(default_partitions=0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "no spaces"}, "name"),
        ({"rack": "a/b"}, "rack"),
        ({"seeds": ("a:1", "b")}, "seeds is 'b'"),
        ({"seeds": ("a:1", "")}, "empty address"),
        ({"seeds": ("a:1", "a:1")}, "different addresses"),
        ({"seeds": ("a:1",), "join": "b:1"}, "not both"),
        ({"join": "b"}, "join is 'b'"),
        ({"advertise": "b"}, "advertise is 'b'"),
        ({"seeds": ("a:1",), "native": ""}, "needs its native door"),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else "",
)
def test_settings_of_a_cluster_that_make_no_sense_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        BrokerSettings(**changes)


def test_addresses_are_written_as_they_are_read() -> None:
    assert join_address("h", 1) == "h:1"
    assert parse_address(join_address("::1", 7), "native") == ("::1", 7)
