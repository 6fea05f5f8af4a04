"""Who leads each replica set, as far as this broker knows.

`leader_of` has one meaning everywhere: the broker that serves the set now. It is this one only when its replica may
decide (a leader that has yet to apply its first entry is about to, and serves nobody), and another one only while it
is heard: nobody is helped by being sent to a broker that has gone silent.

Of a set with a replica here, that replica's Raft node knows the leader. Of others, and while an election is on, what
brokers say of themselves in their pulses counts (`Peers.leaders`), unless the replica here has seen a later term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from lanner.broker.replicas.replica import Replica


class Pulses(Protocol):
    """What other brokers say of themselves."""

    @property
    def leaders(self) -> Mapping[int, tuple[int, str]]:
        """Set → term and node id of the broker that says it leads."""

    def is_alive(self, node_id: str) -> bool: ...


class KnownLeaders:
    """The leaders that one broker knows."""

    def __init__(
        self,
        node_id: str,
        replicas: Mapping[int, Replica],
        route: Callable[[int, int], str | None],
        pulses: Pulses,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._route = route
        self._pulses = pulses

    def leader_of(self, set_id: int) -> str:
        """Return the node id of the broker that serves a replica set now; empty while none is known."""
        replica = self._replicas.get(set_id)
        if replica is not None and replica.leads:
            return self._node_id
        leader = self._said(set_id, replica)
        return leader if leader != self._node_id and self._pulses.is_alive(leader) else ""

    def _said(self, set_id: int, replica: Replica | None) -> str:
        term, leader = self._pulses.leaders.get(set_id, (0, ""))
        if replica is None:
            return leader
        node = replica.node
        followed = self._route(set_id, node.leader_id) if node.leader_id else None
        return followed or (leader if term >= node.term else "")


__all__ = ["KnownLeaders"]
