"""What slow and hung disks may do to a cluster to which nothing else happens.

Among other troubles an election proves nothing. So some seeds begin with a trial: clients act, nothing else is wrong,
and every disk syncs slowly for a while. Nobody may be deposed for that (*deposed by a slow disk*). Then the disk of a
broker that leads hangs for good: soon everything must be led by others (*hung disk leads*).
"""

from __future__ import annotations

from typing import Final

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.sim_broker import Broken
from lanner.testing.sim_cluster import SimCluster

SLOW_SYNC_MS: Final = (300, 1_500)  # below what counts as slow, and about as long as an election timeout
_SLOW_FOR_MS: Final = 8_000
_SETTLED_MS: Final = 60_000
_LED_ELSEWHERE_MS: Final = 5_500  # two seconds until it is slow, half a second for the others to say that they are not


class DiskTrials:
    """One cluster's trials, before its troubles begin."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster

    def run(self) -> None:
        """Both of them, one after the other."""
        self.cluster.run_until(self._settled, _SETTLED_MS, "leaders do not come home")
        self._slow_everywhere()
        self._hang_one()

    def _settled(self) -> bool:
        """Whether everything is led where it should be, so that nobody is about to hand over."""
        leader = self.cluster.metadata_leader()
        if leader is None:
            return False
        for record in leader.engine.cluster.sets.values():
            found = self.cluster.leader(record.set_id)
            if found is None or found.engine.replica(record.set_id).node.node_id != record.preferred:
                return False
        return True

    def _slow_everywhere(self) -> None:
        cluster = self.cluster
        before = self._terms()
        for broker in cluster.brokers.values():
            broker.sync_ms = SLOW_SYNC_MS
        cluster.run_for(_SLOW_FOR_MS)
        for broker in cluster.brokers.values():
            broker.sync_ms = (0, 0)
        cluster.counts["slow_syncs"] += 1
        for set_id, term in self._terms().items():
            if term != before.get(set_id, term):
                raise Broken(
                    "deposed by a slow disk", set_id, f"term {term} after {before[set_id]}, and only disks were slow"
                )

    def _terms(self) -> dict[int, int]:
        terms: dict[int, int] = {}
        for broker in self.cluster.brokers.values():
            for set_id, replica in broker.engine.replicas.items():
                terms[set_id] = max(terms.get(set_id, 0), replica.node.term)
        return terms

    def _hang_one(self) -> None:
        cluster = self.cluster
        hung = max(cluster.brokers.values(), key=lambda broker: len(broker.steward.led()))
        hung.hang()
        cluster.counts["hung_syncs"] += 1
        held = list(hung.engine.replicas)
        ends_ms = cluster.clock.elapsed_ms + _LED_ELSEWHERE_MS
        while (left := self._left(hung, held)) is not None:
            if cluster.clock.elapsed_ms >= ends_ms:
                raise Broken("hung disk leads", left, f"{hung.name} leads, or nobody, after {_LED_ELSEWHERE_MS} ms")
            cluster.run_for(50)
        cluster.crash(hung)

    def _left(self, hung: ClusterBroker, held: list[int]) -> int | None:
        """A set that nobody but the broker whose disk hangs leads; not one that is deleted by now."""
        metadata = self.cluster.metadata_leader()
        if metadata is None or metadata is hung:
            return CLUSTER_SET
        known = metadata.engine.cluster.sets
        return next((one for one in held if one in known and self.cluster.leader(one) in (None, hung)), None)


__all__ = ["DiskTrials"]
