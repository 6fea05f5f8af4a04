"""Which brokers this one keeps lines to, and which ones a newcomer is told of.

The metadata decides as soon as it is here. Until then a broker knows those that its record names (the founders, or, for
one that joined, the brokers that the cluster had at that time) and those that have spoken to it. Founders may be long
gone when a broker joins, so a newcomer is not told of them alone; and a broker that has spoken is believed whether it
did so when it connected or later, because it may have connected before this broker knew its own cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lanner import limits
from lanner.cluster import Broker, BrokerState, Registration


class Acquaintances:
    """The other brokers that one broker knows."""

    def __init__(self) -> None:
        self._told: tuple[Registration, ...] = ()
        self._met: dict[str, None] = {}

    def told(self, brokers: Sequence[Registration]) -> None:
        """Take note of the brokers that the record names."""
        self._told = tuple(brokers)

    def meet(self, node_id: str) -> bool:
        """Believe a broker that says it belongs here, until the metadata is here; return whether it is new."""
        if node_id in self._met or len(self._met) >= limits.BROKERS_MAX:
            return False
        self._met[node_id] = None
        return True

    def __len__(self) -> int:
        """Return how many brokers have spoken."""
        return len(self._met)

    def brokers(self, known: Mapping[str, Broker]) -> list[str]:
        """Return the node ids of all brokers to keep lines to; `known` is what the metadata says."""
        if not known:
            return list(dict.fromkeys([*(one.node_id for one in self._told), *self._met]))
        live = [one.node_id for one in known.values() if is_present(one)]
        return [*live, *(one for one in self._met if one not in known)]

    def address_of(self, node_id: str) -> str:
        """Return where the record says that a broker is; empty when it does not."""
        return next((one.addresses.get("native", "") for one in self._told if one.node_id == node_id), "")


def is_present(broker: Broker) -> bool:
    """Return whether a broker belongs to the cluster: it is neither removed nor replaced by one with a new disk."""
    return broker.state is not BrokerState.REMOVED and not broker.lost


def present(known: Mapping[str, Broker]) -> list[Registration]:
    """Return the brokers that a cluster has now, as a newcomer is told of them."""
    return [
        Registration(one.name, one.node_id, dict(one.addresses), one.rack, one.feature_min, one.feature_max)
        for one in known.values()
        if is_present(one)
    ]


__all__ = ["Acquaintances", "is_present", "present"]
