"""Who this broker is, as it tells others: its node id, its name, and where its doors are reached."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

from lanner import features
from lanner.broker.settings import BrokerSettings
from lanner.cluster import Registration
from lanner.errors import ServiceUnavailable, ValidationError
from lanner.net.addresses import join_address, parse_address

Address = tuple[str, int]
_WILDCARDS: Final = frozenset({"0.0.0.0", "::", "*"})


class BrokerIdentity:
    """One broker's own name and addresses."""

    def __init__(
        self, node_id: str, settings: BrokerSettings, *, recorded_name: str = "", rejoin_name: str = ""
    ) -> None:
        self.node_id = node_id
        self.name = recorded_name or rejoin_name or settings.name or f"broker-{node_id[:8]}"
        self._settings = settings
        self._recorded_name = recorded_name
        self._registration: Registration | None = None

    @property
    def registration(self) -> Registration:
        """What the cluster is told of this broker; ServiceUnavailable before its doors are open."""
        if self._registration is None:
            raise ServiceUnavailable("the broker is starting")
        return self._registration

    @property
    def native_address(self) -> str:
        """Where other brokers reach this one; empty without a native door."""
        return self.registration.addresses.get("native", "")

    def introduce(self, doors: Mapping[str, Address]) -> None:
        """Take note of where the doors are open, so that this broker can say where it is reached."""
        settings = self._settings
        if self._recorded_name and settings.name not in ("", self._recorded_name):
            raise ValidationError(
                f"this data belongs to broker {self._recorded_name!r}, which cannot be renamed to {settings.name!r}: "
                "give its own name, or an empty data directory",
                field="name",
            )
        advertised = parse_address(settings.advertise, "advertise")
        native = doors.get("native")
        host = None if advertised is None else advertised[0]
        if native is not None and advertised is None:
            host = native[0]
            if host in _WILDCARDS:
                host = socket.gethostname()
                if settings.seeds or settings.join:
                    raise ValidationError(
                        f"the native door listens on {native[0]}, which others cannot dial: say with --advertise "
                        "HOST:PORT where they reach this broker",
                        field="advertise",
                    )
            advertised = (host, native[1])
        addresses = {} if advertised is None else {"native": join_address(*advertised)}
        for kind in ("http", "grpc"):
            door = doors.get(kind)
            if door is not None:
                addresses[kind] = join_address(host if host and door[0] in _WILDCARDS else door[0], door[1])
        self._registration = Registration(
            self.name, self.node_id, addresses, settings.rack, features.LOWEST, features.HIGHEST
        )


__all__ = ["Address", "BrokerIdentity"]
