"""Which brokers this one keeps lines to, and which ones a newcomer is told of.

The metadata decides as soon as it is here. Until then a broker knows whom its record names (the founders, or, for one
that joined, the brokers that the cluster had at that time) and who has spoken to it as one of its cluster. Founders may
be long gone when somebody joins, so nobody is told of them alone; and a broker that has spoken is believed whether it
did so when it connected or later, because it may have connected before this broker knew its own cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lanner import limits
from lanner.cluster import Broker, BrokerState, Registration


class Acquaintances:
    """The others, as one broker knows them."""

    def __init__(self) -> None:
        self._told: tuple[Registration, ...] = ()
        self._met: dict[str, None] = {}

    def told(self, brokers: Sequence[Registration]) -> None:
        """The record names these."""
        self._told = tuple(brokers)

    def meet(self, node_id: str) -> bool:
        """That one speaks as one of this cluster, and is believed until the metadata is here. Whether it is news."""
        if node_id in self._met or len(self._met) >= limits.BROKERS_MAX:
            return False
        self._met[node_id] = None
        return True

    def __len__(self) -> int:
        """How many have spoken."""
        return len(self._met)

    def brokers(self, known: Mapping[str, Broker]) -> list[str]:
        """The node ids of all that there should be lines to; `known` is what the metadata says."""
        if not known:
            return list(dict.fromkeys([*(one.node_id for one in self._told), *self._met]))
        live = [one.node_id for one in known.values() if is_present(one)]
        return [*live, *(one for one in self._met if one not in known)]

    def address_of(self, node_id: str) -> str:
        """Where the record says that a broker is; empty: it does not."""
        return next((one.addresses.get("native", "") for one in self._told if one.node_id == node_id), "")


def is_present(broker: Broker) -> bool:
    """Whether it belongs to the cluster now: it is neither removed nor replaced by one with a new disk."""
    return broker.state is not BrokerState.REMOVED and not broker.lost


def present(known: Mapping[str, Broker]) -> list[Registration]:
    """The brokers that a cluster has now, as a newcomer is told of them."""
    return [
        Registration(one.name, one.node_id, dict(one.addresses), one.rack, one.feature_min, one.feature_max)
        for one in known.values()
        if is_present(one)
    ]


__all__ = ["Acquaintances", "is_present", "present"]
