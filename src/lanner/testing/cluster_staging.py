"""Writers that stage in a simulated cluster, over the same network as its other clients, and what comes of it."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Final

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import Cluster, Topic, Try
from lanner.errors import LannerError, NotLeader, StorageDamaged, StorageFailed
from lanner.model import TopicSettings
from lanner.partition import DropStages, StageNote, encode_append
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_calls import Told as ToldIndex
from lanner.testing.disk import PowerLost
from lanner.testing.sim_broker import Broken
from lanner.testing.sim_cluster import SimCluster
from lanner.testing.staged_run import StagedRun, propose_stage
from lanner.testing.staged_traffic import TOPIC, Told

_ACTING_MS: Final = 8
_OBSERVED: Final = 0.05
_LAG_MS: Final = 4_000


class ClusterPort:
    """Writers and a cluster: calls are forwarded, lost and answered late as those of all clients."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._traffic = cluster.traffic

    def _call(self, set_id: int, begin: partial[None], told: Told) -> None:
        self._traffic._call(set_id, begin, lambda answered: told(answered.answer))

    def change(self, command: bytes, told: Told) -> None:
        self._traffic.change(command, told)

    def stage(self, set_id: int, note: StageNote, data: bytes, told: Told) -> None:
        def begin(broker: ClusterBroker, answer: ToldIndex) -> None:
            if not broker.engine.replica(set_id).leads:
                raise NotLeader("it does not lead yet")
            propose_stage(broker, set_id, note, data, broker.leader_ms(), lambda result: answer(result, 0))

        self._call(set_id, partial(begin), told)

    def append(self, set_id: int, data: bytes, told: Told) -> None:
        def begin(broker: ClusterBroker, answer: ToldIndex) -> None:
            if not broker.engine.replica(set_id).leads:
                raise NotLeader("it does not lead yet")
            payload = encode_append(broker.leader_ms(), data)
            broker.engine.propose(set_id, payload, lambda result: answer(result, 0))

        self._call(set_id, partial(begin), told)

    def prepare(self, set_id: int, token: int, manifest: list[tuple[int, bytes, int]], told: Told) -> None:
        def begin(broker: ClusterBroker, answer: ToldIndex) -> None:
            broker.tries.prepare(set_id, token, manifest, answer)

        self._call(set_id, partial(begin), told)

    def drop(self, set_id: int, request: DropStages, told: Told) -> None:
        def begin(broker: ClusterBroker, answer: ToldIndex) -> None:
            broker.engine.ask(set_id, request, answer)

        self._call(set_id, partial(begin), told)

    def copy(self) -> Cluster | None:
        """What any broker has applied of the metadata, however old."""
        opened = [broker for broker in self._cluster.serving() if broker.opened]
        return self._cluster.rng.choice(opened).engine.cluster if opened else None

    def now_ms(self) -> int:
        return self._cluster.clock.now_ms()


class ClusterStaging:
    """Staged publish in one simulated cluster."""

    def __init__(self, seed: int, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.run = StagedRun(seed, ClusterPort(cluster))
        self.run.watch(cluster.witness)

    def topics(self) -> dict[str, TopicSettings]:
        return {TOPIC: TopicSettings(partitions=3, replication=3, retention_ms=0)}

    def serves(self, topic: Topic) -> bool:
        if topic.name == TOPIC:
            self.run.serve(topic)
        return topic.name == TOPIC

    def totals(self) -> Counter[str]:
        return self.run.totals()

    # ------------------------------------------------------------------ the run

    def begin(self) -> None:
        self._cluster.later(1, self._act)

    def _act(self) -> None:
        cluster, rng = self._cluster, self.run.rng
        if cluster.calm:
            return
        if rng.random() < _OBSERVED:
            self._observe(rng.choice(self.run.traffic.set_ids))
        else:
            cluster.events += self.run.traffic.act()
        cluster.later(rng.randint(0, 2 * _ACTING_MS), self._act)

    def trouble(self) -> None:
        """From now on brokers may come to lag behind."""
        self._cluster.later(self.run.rng.randint(1, _LAG_MS), self._lag)

    def _lag(self) -> None:
        """In the middle of a try a broker stops to hear of the metadata, and comes to lead a partition whose leader has
        published it. There everything that belongs to the try comes once more."""
        cluster, rng = self._cluster, self.run.rng
        if cluster.calm:
            return
        tries = [recorded.one for recorded in self.run.judge.tries.values() if not recorded.outcome]
        chosen = [(one, broker) for one in tries[-3:] for broker in self._uninvolved(one)]
        if not chosen or cluster.network.deaf:
            cluster.later(10, self._lag)
            return
        one, broker = rng.choice(chosen)
        self.run.traffic.counts["lags"] += 1
        cluster.network.deaf.add((broker.number, CLUSTER_SET))
        for _ in range(3):
            set_id = rng.choice(one.set_ids)
            moved_ms = rng.randint(100, 600)
            cluster.later(moved_ms, partial(self._move, set_id, broker))
            cluster.later(moved_ms + rng.randint(200, 500), partial(self.run.traffic.repeat, one.token, set_id))
        cluster.later(rng.randint(700, 1_500), cluster.network.deaf.clear)
        cluster.later(rng.randint(1_000, _LAG_MS), self._lag)

    def _uninvolved(self, one: Try) -> list[ClusterBroker]:
        """Brokers that have heard of a try and lead nothing that takes part in it, nor the metadata."""
        cluster = self._cluster
        leaders = [cluster.leader(set_id) for set_id in (CLUSTER_SET, *one.set_ids)]
        return [
            broker
            for broker in cluster.serving()
            if broker.opened and broker not in leaders and broker.engine.cluster.applied_index >= one.token
        ]

    def _move(self, set_id: int, broker: ClusterBroker) -> None:
        leader = self._cluster.leader(set_id)
        if self._cluster.calm or leader is None or leader is broker or not broker.opened:
            return
        replica = broker.engine.replicas.get(set_id)
        node = leader.engine.replica(set_id).node
        if replica is not None and replica.node.node_id in node.voters:
            with suppress(LannerError):
                node.transfer(replica.node.node_id)
            self._cluster.guard(leader, leader.work)

    def _observe(self, set_id: int) -> None:
        leader = self._cluster.leader(set_id)
        if leader is None:
            return
        leader.disk.crash_in(None)  # power that goes here would be lost on nobody
        with suppress(PowerLost, StorageFailed, StorageDamaged):
            self.run.observe(set_id, leader.engine.replica(set_id).partition, leader.read)

    # ------------------------------------------------------------------ the end

    def at_rest(self) -> bool:
        """Whether no try is open, and none is on its way into the metadata."""
        leader = self._cluster.leader(CLUSTER_SET)
        if leader is None:
            return False
        node = leader.engine.replica(CLUSTER_SET).node
        return node.applied_index == node.last_index and self._are_ended()

    def _are_ended(self) -> bool:
        leaders = [self._cluster.leader(set_id) for set_id in (CLUSTER_SET, *self.run.traffic.set_ids)]
        found = [leader for leader in leaders if leader is not None]
        if len(found) < len(leaders):
            return False
        partitions = [
            leader.engine.replica(set_id).partition
            for leader, set_id in zip(found[1:], self.run.traffic.set_ids, strict=True)
        ]
        return self.run.at_rest(found[0].engine.cluster, partitions)

    def finish(self, metadata: Cluster) -> None:
        """Read everything once more, on every replica, and judge it."""
        if not self._are_ended():
            raise Broken("try never ends", CLUSTER_SET, "it began again after everything had come to rest")
        for set_id in self.run.traffic.set_ids:
            for node_id in metadata.sets[set_id].nodes:
                holder = self._cluster.brokers[self._cluster.number_of(node_id) or 0]
                self.run.observe(set_id, holder.engine.replica(set_id).partition, holder.read, everything=True)
        self.run.finish()
