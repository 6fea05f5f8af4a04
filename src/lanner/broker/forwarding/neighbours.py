"""The other brokers, as forwarding on a broker sees them: by its own copy of the metadata, over its own links."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from lanner import features
from lanner.broker.desks.routes import Routes
from lanner.broker.forwarding.hops import hop
from lanner.broker.parts import Parts
from lanner.calls import Answer, Bulk, Identity
from lanner.cluster import METADATA_SET
from lanner.errors import BadGateway, DeadlineExceeded, NotLeader, ServiceUnavailable
from lanner.forwarding.ports import KnownTopic
from lanner.wire.messages import AnswerT, Call, Metadata

_CATCH_UP_MS: Final = 1_000


class Neighbours:
    """Who leads what, and a way to each of them."""

    def __init__(self, own: Identity, parts: Parts, routes: Routes) -> None:
        self._own = own
        self._engine = parts.engine
        self._leaders = parts.leaders
        self._peers = parts.peers
        self._conditions = parts.waiting
        self._routes = routes
        self.node_id = parts.node_id

    @property
    def live_sets(self) -> Container[int]:
        return self._engine.cluster.sets

    @property
    def metadata_leader(self) -> str:
        return self.leader_of(METADATA_SET)

    def leader_of(self, set_id: int) -> str:
        return self._leaders.leader_of(set_id)

    def not_leader(self, topic: KnownTopic, partition: int) -> NotLeader:
        return self._routes.not_leader(topic, partition)

    def is_alive(self, node_id: str) -> bool:
        return self._peers.is_alive(node_id)

    def brokers(self) -> dict[str, str]:
        """Every broker of the cluster: its node id and its name."""
        return {broker.node_id: broker.name for broker in self._routes.brokers()}

    def node_called(self, name: str) -> str:
        """The node id of the broker with this name or node id."""
        return self._routes.broker_called(name).node_id

    async def hear_of(self, topics: Iterable[str]) -> None:
        known = self._engine.cluster.topics
        if any(name not in known for name in topics):
            await self.catch_up()

    async def catch_up(self) -> None:
        leader = self.metadata_leader
        if leader in ("", self.node_id):
            return
        try:
            answer = await self.serve_at(leader, self._own, Metadata([]), (), _CATCH_UP_MS)
            index = answer.control.index
            if self._engine.cluster.applied_index < index:
                await self._conditions.until(lambda: self._engine.cluster.applied_index >= index, _CATCH_UP_MS)
        except (BadGateway, DeadlineExceeded, ServiceUnavailable):
            return

    async def serve_at(
        self, node_id: str, identity: Identity, call: Call[AnswerT], bulk: Bulk, timeout_ms: int
    ) -> Answer[AnswerT]:
        name = self._routes.name_of(node_id)
        caller = identity.name if self._engine.feature_level >= features.CALLERS else ""
        return await hop(self._peers, node_id, name, caller, call, bulk, timeout_ms)


__all__ = ["Neighbours"]
