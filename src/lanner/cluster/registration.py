"""What a broker says of itself when it comes: checked before it enters the log, and again when it leaves it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lanner import limits
from lanner.cluster.values import ADDRESS_KINDS
from lanner.errors import ValidationError
from lanner.model import check_name

_ADDRESS: Final = re.compile(r"[!-~]+:[0-9]{1,5}\Z")


class Registration(msgspec.Struct, array_like=True, frozen=True):
    name: str  # given by an operator; stays when the disk is replaced
    node_id: str  # made with the data directory; goes with it
    addresses: dict[str, str]
    rack: str = ""
    feature_min: int = 1
    feature_max: int = 1


def check_registration(given: Registration) -> Registration:
    check_name(given.name, "name")
    check_name(given.node_id, "node_id")
    check_rack(given.rack)
    check_addresses(given.addresses)
    check_features(given.feature_min, given.feature_max)
    return given


def check_founders(founders: Sequence[Registration]) -> tuple[Registration, ...]:
    if not 1 <= len(founders) <= limits.BROKERS_MAX:
        raise ValidationError(f"a cluster starts with 1 to {limits.BROKERS_MAX} brokers", field="founders")
    for what in ("name", "node_id"):
        if len({getattr(founder, what) for founder in founders}) != len(founders):
            raise ValidationError(f"two of the brokers have the same {what}", field=what)
    return tuple(check_registration(founder) for founder in founders)


def check_rack(rack: str) -> str:
    return rack if rack == "" else check_name(rack, "rack")


def check_addresses(addresses: Mapping[str, str]) -> None:
    for kind, address in addresses.items():
        if kind not in ADDRESS_KINDS:
            raise ValidationError(
                f"{kind[: limits.NAME_LENGTH_MAX]!r} is no kind of address; there are {', '.join(ADDRESS_KINDS)}",
                field="addresses",
            )
        if len(address) > limits.ADDRESS_LENGTH_MAX or not _ADDRESS.match(address):
            raise ValidationError(f"the {kind} address is not host:port", field="addresses")


def check_features(low: int, high: int) -> None:
    if not 1 <= low <= high <= limits.FEATURE_LEVEL_MAX:
        raise ValidationError(f"feature levels {low} to {high} make no range", field="feature_max")
