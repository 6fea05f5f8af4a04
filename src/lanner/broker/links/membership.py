"""Which cluster this broker belongs to, and which other brokers do.

The record of it (`founding`) is written once and read at every later start. Where the others are comes from the
metadata, from what they say when they connect, and, before there is any of that, from the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lanner.broker.links.acquaintances import Acquaintances
from lanner.broker.links.founding import Founding
from lanner.broker.links.identity import Address, BrokerIdentity
from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.cluster import Broker
from lanner.errors import ValidationError
from lanner.net.addresses import parse_address
from lanner.wire.messages import PeerHello


class ClusterMembership:
    """This broker as one of several."""

    def __init__(
        self, identity: BrokerIdentity, engine: Engine, seeds: Sequence[str], founding: Founding | None
    ) -> None:
        self._identity = identity
        self._engine = engine
        self._seeds = seeds
        self._others = Acquaintances()
        self.founding: Founding | None = None
        if founding is not None:
            self.belong(founding)

    def belong(self, founding: Founding) -> None:
        """Take note of the record: from now on this broker belongs to that cluster."""
        self.founding = founding
        self._others.told(founding.told)

    @property
    def node_id(self) -> str:
        return self._identity.node_id

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty until this broker belongs to one."""
        return "" if self.founding is None else self.founding.cluster_id

    @property
    def hello(self) -> PeerHello:
        """How this broker introduces itself to another one."""
        identity = self._identity
        return PeerHello(self.cluster_id, identity.node_id, identity.name, identity.native_address)

    # ------------------------------------------------------------------ the others

    def _known(self) -> Mapping[str, Broker]:
        """The brokers that the metadata names; none before it is open here."""
        return self._engine.cluster.brokers if CLUSTER_SET in self._engine.replicas else {}

    def meet(self, node_id: str) -> bool:
        """Believe a broker that says it belongs here, until the metadata says otherwise; whether it is new."""
        return self._others.meet(node_id)

    def brokers(self) -> list[str]:
        """The node ids of all brokers to which this one keeps lines."""
        return self._others.brokers(self._engine.cluster.brokers) if CLUSTER_SET in self._engine.replicas else []

    def addresses_of(self, node_id: str) -> list[Address]:
        """Where the metadata and the record say that a broker is."""
        known = self._known().get(node_id)
        found = [] if known is None else [known.addresses.get("native", "")]
        return _parsed_all([*found, self._others.address_of(node_id)])

    @property
    def seeds(self) -> list[Address]:
        """Where the operator says that other brokers are. Which ones are there is not known."""
        own = self._identity.native_address
        return _parsed_all([seed for seed in self._seeds if seed != own])


def _parsed_all(texts: Iterable[str]) -> list[Address]:
    addresses = map(_parsed, texts)
    return [address for address in addresses if address is not None]


def _parsed(text: str) -> Address | None:
    """Parse what another broker says of itself; None when it makes no sense."""
    try:
        return parse_address(text, "address")
    except ValidationError:
        return None


__all__ = ["ClusterMembership"]
