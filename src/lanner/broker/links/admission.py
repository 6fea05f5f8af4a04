"""Answers to brokers that look for their cluster: who founded it, and, for a newcomer, its admission."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from lanner.broker.links.acquaintances import present
from lanner.broker.links.founding import founder_of, registration_of
from lanner.broker.links.identity import BrokerIdentity
from lanner.broker.links.membership import ClusterMembership
from lanner.broker.ports import Clock, Conditions, PeerCalls, Proposer
from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.cluster import Cluster, encode_register_broker
from lanner.errors import DeadlineExceeded, ServiceUnavailable
from lanner.wire.peers import PeerInfo, PeerInfoReply

REPLICA_TIMEOUT_MS: Final = 3_000


class Serving(Protocol):
    """Whether this broker serves callers."""

    @property
    def serving(self) -> bool: ...


class Admission:
    """Tells other brokers of this one's cluster, and has the cluster take them in."""

    def __init__(
        self,
        identity: BrokerIdentity,
        membership: ClusterMembership,
        seeds: Sequence[str],
        engine: Engine,
        peers: PeerCalls,
        proposer: Proposer,
        waiting: Conditions,
        own_clock: Clock,
        readiness: Serving,
    ) -> None:
        self._identity = identity
        self._membership = membership
        self._seeds = seeds
        self._engine = engine
        self._peers = peers
        self._proposer = proposer
        self._waiting = waiting
        self._own_clock = own_clock
        self._readiness = readiness

    async def answer(self, asked: PeerInfo) -> PeerInfoReply:
        """Say which cluster this broker belongs to; register the broker that asks, if it wants to join."""
        own, founding = founder_of(self._identity.registration), self._membership.founding
        if founding is None:
            return PeerInfoReply(own, seeds=list(self._seeds))
        founders = [founder_of(founder) for founder in founding.founders]
        if not asked.join:
            return PeerInfoReply(own, founding.cluster_id, founders)
        if not self._readiness.serving:
            raise ServiceUnavailable("the broker there does not know itself yet who leads the metadata")
        replica_id = await self._register(asked)
        brokers = [founder_of(one) for one in present(self._engine.cluster.brokers)]
        return PeerInfoReply(own, founding.cluster_id, founders, replica_id, brokers=brokers)

    async def _register(self, asked: PeerInfo) -> int:
        """Register a newcomer; the id of its replica of the metadata, 0 while that is open."""
        engine, newcomer = self._engine, registration_of(asked.asker)
        namesakes = [
            one.node_id for one in engine.cluster.brokers.values() if one.name == newcomer.name and not one.lost
        ]
        replaces = not any(one != newcomer.node_id and self._peers.is_alive(one) for one in namesakes)
        await self._proposer.propose(encode_register_broker(newcomer, self._own_clock.now_ms(), replaces=replaces))
        try:
            await self._waiting.until(lambda: _replica_id(engine.cluster, newcomer.node_id) > 0, REPLICA_TIMEOUT_MS)
        except DeadlineExceeded:
            return 0
        return _replica_id(engine.cluster, newcomer.node_id)


def _replica_id(cluster: Cluster, node_id: str) -> int:
    record = cluster.sets.get(CLUSTER_SET)
    replica = None if record is None else record.replica_on(node_id)
    return 0 if replica is None else replica.replica_id


__all__ = ["Admission"]
