"""Operators of a simulated cluster: they move, drain, remove, add and wipe brokers while everything else goes on.

Not everything is allowed at any time: of the brokers that have a replica of a set only one loses its disk at a time,
and not before what an earlier one lost is replaced. A broker that leaves has handed everything over.
"""

from __future__ import annotations

from typing import Final

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import (
    BrokerState,
    Cluster,
    PlanKind,
    encode_alter_topic,
    encode_cancel_plan,
    encode_drain_broker,
    encode_move_replica,
    encode_rebalance,
    encode_register_broker,
    encode_remove_broker,
    encode_transfer_leader,
    encode_undrain_broker,
)
from lanner.errors import LannerError
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_faults import LONG_MS, Faults

_BROKERS_MAX: Final = 7


class Operators(Faults):
    """Operators of one cluster, amid its faults."""

    def metadata(self) -> Cluster | None:
        leader = self.cluster.metadata_leader()
        return None if leader is None else leader.engine.cluster

    def _change(self, command: bytes) -> bool:
        self.cluster.traffic.change(command)
        return True

    def _now_ms(self) -> int:
        return self.cluster.clock.now_ms()

    def _transfer(self) -> bool:
        """By a wish in the metadata, or by hand to one that votes."""
        metadata = self.metadata()
        if metadata is None:
            return False
        if self.rng.random() < 0.5:
            found = self.rng.choice(list(metadata.sets.values()))
            return self._change(encode_transfer_leader(found.set_id, self.rng.choice(found.nodes)))
        set_id = self.rng.choice(list(metadata.sets))
        leader = self.cluster.leader(set_id)
        if leader is None:
            return False
        node = leader.engine.replica(set_id).node
        try:
            node.transfer(self.rng.choice(sorted(node.voters)))
        except LannerError:
            return False
        leader.engine.wake(set_id)
        self.cluster.guard(leader, leader.work)
        return True

    def _move(self) -> bool:
        metadata = self.metadata()
        sets = [] if metadata is None else [one for one in metadata.sets.values() if one.set_id != CLUSTER_SET]
        if metadata is None or not sets:
            return False
        found = self.rng.choice(sets)
        others = [node_id for node_id in metadata.brokers if node_id not in found.nodes]
        if not others:
            return False
        source, target = self.rng.choice(found.nodes), self.rng.choice(others)
        return self._change(encode_move_replica(found.set_id, source, target, self._now_ms()))

    def _rebalance(self) -> bool:
        return self._change(encode_rebalance(self._now_ms()))

    def _cancel(self) -> bool:
        metadata = self.metadata()
        plans = [] if metadata is None else [one for one in metadata.plans.values() if one.kind is not PlanKind.REBUILD]
        return bool(plans) and self._change(encode_cancel_plan(self.rng.choice(plans).plan_id))

    def _alter(self) -> bool:
        """More partitions, or another number of replicas, for a topic that nobody uses."""
        metadata = self.metadata()
        brief = [] if metadata is None else [one for one in metadata.topics.values() if one.name.startswith("brief")]
        if metadata is None or not brief or any(one.lost for one in metadata.brokers.values()) or self.is_damaged():
            return False  # while a disk or a copy is being replaced every replica that is left is needed
        topic = self.rng.choice(brief)
        wanted = {"replication": self.rng.choice((2, 3))}
        if self.rng.random() < 0.5:
            wanted = {"partitions": len(topic.set_ids) + 1}
        return self._change(encode_alter_topic(topic.name, wanted, self._now_ms()))

    def _named(self, *states: BrokerState) -> list[str]:
        metadata = self.metadata()
        found = [] if metadata is None else metadata.brokers.values()
        return [broker.node_id for broker in found if broker.state in states and not broker.lost]

    def _drain(self) -> bool:
        active = self._named(BrokerState.ACTIVE)
        if len(active) < 4 or self._named(BrokerState.DRAINING):
            return False
        return self._change(encode_drain_broker(self.rng.choice(active), self._now_ms()))

    def _undrain(self) -> bool:
        draining = self._named(BrokerState.DRAINING)
        return bool(draining) and self._change(encode_undrain_broker(self.rng.choice(draining)))

    def _remove(self) -> bool:
        metadata = self.metadata()
        draining = [
            node_id for node_id in self._named(BrokerState.DRAINING) if metadata and metadata.is_drained(node_id)
        ]
        return bool(draining) and self._change(encode_remove_broker(self.rng.choice(draining), self._now_ms()))

    def _join(self) -> bool:
        cluster = self.cluster
        metadata = self.metadata()
        if metadata is None or len(self._named(BrokerState.ACTIVE, BrokerState.JOINING)) >= _BROKERS_MAX:
            return False
        self.arrive(f"broker{len(cluster.brokers) + 1}")
        return True

    def _wipe(self) -> bool:
        """A disk is lost, and its broker comes back with an empty one, under its old name."""
        if not self.may_lose_a_disk():
            return False
        broker = self._victim()
        if broker is None or broker.node_id not in self.cluster.members():
            return False
        self.wipe(broker)
        return True

    def is_damaged(self) -> bool:
        """Whether some copy is damaged and not replaced yet."""
        return False

    def may_lose_a_disk(self) -> bool:
        """Whether every copy is whole, by the newest metadata that any broker has: a leader may lag behind the next."""
        cluster = self.cluster
        metadata = self.metadata()
        if metadata is not None:
            known = [one.engine.cluster for one in cluster.serving() if one.opened]
            metadata = max([metadata, *known], key=lambda one: one.applied_index)
        if (
            self.is_damaged()
            or metadata is None
            or metadata.moves
            or any(one.lost and one.state is not BrokerState.REMOVED for one in metadata.brokers.values())
        ):
            return False
        if any(one.state is BrokerState.JOINING for one in metadata.brokers.values()):
            return False
        if any(one.damaged or len(one.voters) < 3 for one in metadata.sets.values()):
            return False
        if any(one.engine.damages.sets for one in cluster.serving()):  # it is about to be reported
            return False
        return all(one.opened for one in cluster.members().values())  # what is down may be the other copy

    def wipe(self, broker: ClusterBroker) -> ClusterBroker:
        """Let a broker's disk be lost; the one that comes back under its name."""
        self.cluster.crash(broker, down_ms=LONG_MS)
        self.cluster.retire(broker)
        self.cluster.counts["wipes"] += 1
        return self.arrive(broker.name)

    def arrive(self, name: str) -> ClusterBroker:
        """A broker with an empty disk asks to be let in."""
        cluster = self.cluster
        contacts = [broker.node_id for broker in cluster.brokers.values() if broker.record is not None]
        broker = cluster.add_broker(name)
        broker.contacts = contacts
        broker.start()
        self._register(broker)
        return broker

    def _register(self, broker: ClusterBroker) -> None:
        """Ask until the metadata knows it."""
        cluster = self.cluster
        if broker.record is not None or broker.retired:
            return
        metadata = self.metadata()
        if metadata is None or broker.node_id not in metadata.brokers:
            registration = cluster.registration(broker)
            cluster.traffic.change(encode_register_broker(registration, self._now_ms()))
        cluster.later(1_000, lambda: self._register(broker))

    def _tend(self) -> None:
        """Switch off what was removed for good; in the end, take up again what was cancelled or given up halfway."""
        cluster = self.cluster
        metadata = self.metadata()
        if metadata is not None:
            for record in metadata.brokers.values():
                number = cluster.number_of(record.node_id)
                if record.state is BrokerState.REMOVED and number is not None:
                    cluster.retire(cluster.brokers[number])
                elif (
                    record.state is BrokerState.DRAINING
                    and metadata.is_drained(record.node_id)
                    and not record.leaving
                    and self.rng.random() < 0.1
                ):
                    self._change(encode_remove_broker(record.node_id, self._now_ms()))
                elif record.lost and cluster.calm and not metadata.moves:
                    self._change(encode_drain_broker(record.node_id, self._now_ms()))
        cluster.later(500, self._tend)
