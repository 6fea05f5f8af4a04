"""Who leads what, and where they are reached: what a broker tells a caller that asked the wrong one.

Everything here is a look at the metadata and at what other brokers said; nothing waits and nothing is decided. A hint
may be out of date by the time it is used, so it never does more than save somebody a detour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lanner.broker.ports import Addresses, Leaders
from lanner.broker.replicas.engine import Engine
from lanner.cluster import Broker, BrokerState, Topic
from lanner.errors import NotFoundError, NotLeader
from lanner.forwarding.ports import KnownTopic
from lanner.net.addresses import join_address

NO_LEADER_RETRY_MS: Final = 200


class BrokerRoute(NamedTuple):
    """One broker, as its clients reach it."""

    node_id: str
    name: str
    rack: str
    host: str
    port: int
    http: str


class PartitionRoute(NamedTuple):
    id: int
    leader: str  # node id; empty while none is known
    replicas: Sequence[str]  # node ids


class TopicRoute(NamedTuple):
    name: str
    incarnation: int
    settings: dict[str, object]
    partitions: Sequence[PartitionRoute]


class Routes:
    """The broker's own view of who leads and where everybody is."""

    def __init__(self, node_id: str, name: str, engine: Engine, leaders: Leaders, peers: Addresses) -> None:
        self._node_id = node_id
        self._name = name
        self._engine = engine
        self._leaders = leaders
        self._peers = peers
        self.addresses: dict[str, tuple[str, int]] = {}  # of this broker's own doors

    def address_of(self, node_id: str) -> str:
        """HOST:PORT of a broker's native door; empty when it is not known."""
        address = self._peers.address_of(node_id) if node_id else None
        return "" if address is None else join_address(*address)

    def name_of(self, node_id: str) -> str:
        """A broker's name, for people; its id where it has none."""
        broker = self._engine.cluster.brokers.get(node_id)
        return node_id if broker is None else broker.name or node_id

    def broker_called(self, name: str) -> Broker:
        """The broker of that name or node id. A name that came back on a new disk means the one that is there now."""
        brokers = self._engine.cluster.brokers
        found = brokers.get(name)
        if found is None:
            named = [broker for broker in brokers.values() if broker.name == name]
            found = next((broker for broker in named if not broker.lost), None)
        if found is None or found.state is BrokerState.REMOVED:
            known = ", ".join(sorted(row.name for row in brokers.values() if row.state is not BrokerState.REMOVED))
            raise NotFoundError(f"there is no broker {name!r}; there are {known}", broker=name)
        return found

    def not_leader(self, topic: KnownTopic, partition: int, what: str = "") -> NotLeader:
        """The error that sends a caller on to the right broker."""
        leader = self._leaders.leader_of(topic.set_ids[partition])
        details: dict[str, object] = {
            "leader": leader,
            "address": self.address_of(leader),
            "topic": topic.name,
            "partition": partition,
        }
        if not what:
            details["refused"] = True  # before anything was done: a caller may go elsewhere without fear of doubles
        place = f"{topic.name}/{partition}"
        if leader and leader != self._node_id:
            return NotLeader(what or f"broker {self.name_of(leader)} leads {place}; ask there", **details)
        details["leader"] = details["address"] = ""
        details["retry_after_ms"] = NO_LEADER_RETRY_MS
        return NotLeader(what or f"nobody leads {place} at the moment; ask again soon", **details)

    def topic(self, topic: Topic) -> TopicRoute:
        sets = self._engine.cluster.sets
        partitions = []
        for number, set_id in enumerate(topic.set_ids):
            replica_set = sets.get(set_id)
            nodes = [self._node_id] if replica_set is None else list(replica_set.nodes)
            partitions.append(PartitionRoute(number, self._leaders.leader_of(set_id), nodes))
        return TopicRoute(topic.name, topic.incarnation, topic.settings.to_dict(), partitions)

    def brokers(self) -> list[BrokerRoute]:
        """Every broker that is not removed, by name, where the metadata says it is."""
        found = []
        for broker in self._engine.cluster.brokers.values():
            if broker.state is BrokerState.REMOVED or broker.lost:
                continue
            address = self._peers.address_of(broker.node_id) or ("", 0)
            http = broker.addresses.get("http", "")
            found.append(BrokerRoute(broker.node_id, broker.name, broker.rack, *address, http))
        found.sort(key=lambda broker: (broker.name, broker.node_id))
        return found or [self._own()]

    def _own(self) -> BrokerRoute:
        """Before the cluster is founded there is only this one."""
        host, port = self.addresses.get("native", ("", 0))
        http = self.addresses.get("http")
        return BrokerRoute(self._node_id, self._name, "", host, port, join_address(*http) if http else "")
