from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lanner.cluster import commands
from lanner.cluster.machine import Cluster
from lanner.errors import NotSupported, ValidationError
from lanner.model import TopicSettings


def test_each_command_survives_a_round_trip() -> None:
    settings = TopicSettings(partitions=2)
    create = commands.decode(commands.encode_create_topic("a", settings, 7))
    assert create == commands.CreateTopic("a", settings.to_dict(), 7)
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
def test_an_unknown_kind_or_version_says_so(prefix: bytes) -> None:
    with pytest.raises(NotSupported, match="not known"):
        commands.decode(prefix + b"\x90")


class _NoRows:
    def get(self, key: bytes) -> None:
        return None

    def scan(self, start: bytes, stop: bytes) -> Any:
        return iter(())
