"""What operators ask and wish, on any broker.

The metadata is on every broker, so most is answered here, after catching up with its leader. Who lags is known to the
leaders only, which replicas do not run and how far a scrub is to the brokers that have them: they are asked, all at
once, and one that does not answer leaves a gap, not an error.
"""

from __future__ import annotations

from typing import Any, Final

from lanner.broker.desks.calls import BrokerResult, ClusterResult, Identity, PartitionResult, PlanResult, ReplicasReport
from lanner.broker.forwarding.spreading import Spreading
from lanner.errors import LannerError

_REPORT_MS: Final = 2_000
_NOTHING: Final = ReplicasReport({}, {})


class ForwardedOverview(Spreading):
    """The cluster, seen and changed from any broker."""

    async def describe_cluster(self, identity: Identity) -> ClusterResult:
        await self.catch_up()
        found: ClusterResult = await self._service.describe_cluster(identity)
        brokers = await self.together(self._with_scrub(row, identity) for row in found.brokers)
        return found._replace(brokers=brokers)

    async def _with_scrub(self, row: BrokerResult, identity: Identity) -> BrokerResult:
        if row.scrub is not None or not row.alive:
            return row
        try:
            return row._replace(scrub=await self.at(row.node_id, _REPORT_MS).scrub(identity, False))
        except LannerError:
            return row

    async def describe_partitions(self, identity: Identity, topic: str | None = None) -> list[PartitionResult]:
        await self.catch_up()
        # What is wrong with the question is said at once.
        seen = self._service.partitions_seen(identity, topic, _NOTHING)
        asked = {row.leader for row in seen} | {replica.node_id for row in seen for replica in row.replicas}
        lags: dict[tuple[int, int], int] = {}
        stopped: dict[tuple[int, str], str] = {}
        for found in await self.together(self._report(node_id, identity, topic) for node_id in sorted(asked - {""})):
            lags |= found.lags
            stopped |= found.stopped
        rows: list[PartitionResult] = self._service.partitions_seen(identity, topic, ReplicasReport(lags, stopped))
        return rows

    async def _report(self, node_id: str, identity: Identity, topic: str | None) -> ReplicasReport:
        if not self._node.peers.is_alive(node_id):
            return _NOTHING
        try:
            found: ReplicasReport = await self.at(node_id, _REPORT_MS).replicas_report(identity, topic)
            return found
        except LannerError:
            return _NOTHING

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
