"""What operators ask and wish, on any broker.

The metadata is on every broker, so most is answered here, after catching up with its leader. Who lags is known to the
leaders only: they are asked, and one that does not answer leaves a gap, not an error.
"""

from __future__ import annotations

from typing import Any, Final

from lanner.broker.desks.calls import ClusterResult, Identity, PartitionResult, PlanResult
from lanner.broker.forwarding.spreading import Spreading
from lanner.errors import LannerError

_LAGS_MS: Final = 2_000


class ForwardedOverview(Spreading):
    """The cluster, seen and changed from any broker."""

    async def describe_cluster(self, identity: Identity) -> ClusterResult:
        await self.catch_up()
        found: ClusterResult = await self._service.describe_cluster(identity)
        return found

    async def describe_partitions(self, identity: Identity, topic: str | None = None) -> list[PartitionResult]:
        await self.catch_up()
        self._service.partitions_seen(identity, topic, {})  # what is wrong with the question is said at once
        cluster = self._node.engine.cluster
        leaders = {self._routes.leader_of(set_id) for set_id in cluster.sets} - {""}
        lags: dict[tuple[int, int], int] = {}
        for found in await self.together(self._lags(node_id, identity, topic) for node_id in sorted(leaders)):
            lags |= found
        rows: list[PartitionResult] = self._service.partitions_seen(identity, topic, lags)
        return rows

    async def _lags(self, node_id: str, identity: Identity, topic: str | None) -> dict[tuple[int, int], int]:
        if not self._node.peers.is_alive(node_id):
            return {}
        try:
            found: dict[tuple[int, int], int] = await self.at(node_id, _LAGS_MS).lags(identity, topic)
            return found
        except LannerError:
            return {}

    async def change_cluster(self, identity: Identity, action: str, **wish: Any) -> PlanResult | None:
        await self.catch_up()
        found: PlanResult | None = await self._service.change_cluster(identity, action, **wish)
        return found

    async def raft_status(self, identity: Identity, topic: str, partition: int, node_id: str = "") -> dict[str, object]:
        """Of the leader's replica, or of the one on the broker that is named."""
        if not node_id:
            answers = await self.spread(
                topic, [partition], lambda service, _: service.raft_status(identity, topic, partition)
            )
            status: dict[str, object] = answers[0]
            return status
        await self.find_topic(topic)
        named = self._service.broker_called(node_id).node_id
        found: dict[str, object] = await self.at(named).raft_status(identity, topic, partition, named)
        return found
