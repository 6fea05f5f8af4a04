"""What befalls a simulated cluster: faults of disks, power, clocks and network, and operators who change it meanwhile.

Every trouble begins at a moment of the seed's choosing and ends by itself, so that several are going on at a time. Not
everything is allowed at any time: what no replicated system survives is not done to this one. Of the brokers that have
a replica of a set only one loses its disk at a time, and not before what an earlier one lost is replaced. A broker that
leaves has handed everything over.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
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
from lanner.errors import LannerError, StorageDamaged
from lanner.ledger import Ledger
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_calls import CLIENT
from lanner.testing.flips import flip_record, holds_record
from lanner.testing.sim_broker import Broken
from lanner.testing.sim_cluster import SimCluster

_BROKERS_MAX: Final = 7
_LONG_MS: Final = 3_600_000


class Troubles:
    """One cluster's bad luck. Each trouble is a method; `weights` says how often it strikes."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.rng = rng = cluster.rng
        self.weights: dict[str, float] = {
            "crash": rng.choice((1.0, 3.0)),
            "kill": 0.5,
            "plug": rng.choice((0.5, 2.0)),
            "outage": rng.choice((0.0, 0.3)),
            "split": rng.choice((0.5, 2.0)),
            "isolate": rng.choice((0.5, 2.0)),
            "one_way": rng.choice((0.3, 1.5)),
            "pause": rng.choice((0.3, 1.5)),
            "slow": 0.7,
            "slow_syncs": rng.choice((0.3, 1.0)),
            "hung_syncs": rng.choice((0.0, 0.3)),
            "sync_failure": 0.2,
            "full": 0.2,
            "stop": rng.choice((0.3, 1.0)),
            "jump": 0.5,
            "roughen": 0.7,
            "transfer": rng.choice((0.5, 2.0)),
            "move": rng.choice((0.5, 2.0)),
            "rebalance": 0.3,
            "join": 0.4,
            "drain": 0.5,
            "undrain": 0.2,
            "cancel": 0.2,
            "remove": 0.5,
            "wipe": rng.choice((0.2, 0.8)),
            "alter": 0.3,
        }
        self.pause_ms = rng.choice((300, 700, 1_500))
        self._flips = Random(str(rng.getstate()[1][:9]))  # of its own, so that it leaves other troubles where they are

    def begin(self) -> None:
        self.cluster.later(self.rng.randint(1, 2 * self.pause_ms), self._strike)
        if self._flips.random() < 0.6:
            self.cluster.later(self._flips.randint(1, 20_000), self._rot)
        self._tend()

    def _strike(self) -> None:
        cluster = self.cluster
        if cluster.calm:
            return
        name = self.rng.choices(tuple(self.weights), tuple(self.weights.values()))[0]
        strike: Callable[[], bool] = getattr(self, f"_{name}")
        if strike():
            cluster.count()
            cluster.counts[f"trouble_{name}"] += 1
        cluster.later(self.rng.randint(1, 2 * self.pause_ms), self._strike)

    def end(self) -> None:
        """Let everything work from now on; who is down is started."""
        cluster = self.cluster
        cluster.calm = True
        cluster.network.calm()
        for broker in cluster.brokers.values():
            broker.paused_until_ms = broker.slow_until_ms = 0
            broker.sync_ms = (0, 0)
            if broker.hung:
                cluster.crash(broker)
            broker.disk.crash_in(None)
            broker.disk.sync_failures = 0
            broker.disk.write_room_bytes = None
            broker.disk.table_full = False
            broker.own_clock.mend()

    # ------------------------------------------------------------------ whom

    def _running(self) -> list[ClusterBroker]:
        return [broker for broker in self.cluster.brokers.values() if broker.opened and not broker.paused]

    def _victim(self) -> ClusterBroker | None:
        """Often one that leads, because that is where trouble is felt."""
        running = self._running()
        if not running:
            return None
        if self.rng.random() < 0.5:
            leading = [broker for broker in running if any(one.leads for one in broker.engine.replicas.values())]
            return self.rng.choice(leading or running)
        return self.rng.choice(running)

    # ------------------------------------------------------------------ power, disks, clocks

    def _crash(self) -> bool:
        broker = self._victim()
        if broker is not None:
            self.cluster.crash(broker)
        return broker is not None

    def _kill(self) -> bool:
        broker = self._victim()
        if broker is not None:
            self.cluster.crash(broker, power=False)
        return broker is not None

    def _plug(self) -> bool:
        broker = self._victim()
        if broker is not None:
            broker.disk.crash_in(self.rng.randint(1, 40))
        return broker is not None

    def _outage(self) -> bool:
        """The power goes everywhere at once."""
        for broker in self._running():
            self.cluster.crash(broker)
        return True

    def _slow(self) -> bool:
        broker = self._victim()
        if broker is not None:
            broker.slow_until_ms = self.cluster.clock.elapsed_ms + self.rng.randint(100, 3_000)
        return broker is not None

    def _slow_syncs(self) -> bool:
        """Of one disk, or of all: they take a tenth of a second, or three."""
        broker = self._victim()
        if broker is None:
            return False
        brokers = [broker] if self.rng.random() < 0.7 else self._running()
        bounds = self.rng.choice(((100, 700), (600, 1_500), (1_500, 3_000)))
        for one in brokers:
            one.sync_ms = bounds
        self.cluster.counts["slow_syncs"] += 1
        self.cluster.later(self.rng.randint(1_000, 6_000), lambda: self._mend_syncs(brokers))
        return True

    @staticmethod
    def _mend_syncs(brokers: list[ClusterBroker]) -> None:
        for broker in brokers:
            broker.sync_ms = (0, 0)

    def _hung_syncs(self) -> bool:
        """A disk takes nothing any more, until somebody starts its broker anew."""
        broker = self._victim()
        if broker is None:
            return False
        broker.hang()
        self.cluster.counts["hung_syncs"] += 1
        life = broker.life
        self.cluster.later(self.rng.choice((1_000, 4_000, 8_000)), lambda: self._end_hang(broker, life))
        return True

    def _end_hang(self, broker: ClusterBroker, life: int) -> None:
        if broker.hung and broker.life == life:
            self.cluster.crash(broker, power=self.rng.random() < 0.5)

    def _sync_failure(self) -> bool:
        broker = self._victim()
        if broker is not None:
            broker.disk.sync_failures = 1
        return broker is not None

    def _full(self) -> bool:
        broker = self._victim()
        if broker is not None:
            broker.disk.write_room_bytes = self.rng.randrange(2_000)
            broker.disk.table_full = True
        return broker is not None

    def _stop(self) -> bool:
        """An operator stops a broker in good order: it hands over what it leads, waits a little for that, and goes."""
        broker = self._victim()
        if broker is not None:
            self._hand_over(broker, broker.life, self.rng.randint(1, 40))
        return broker is not None

    def _hand_over(self, broker: ClusterBroker, life: int, patience: int) -> None:
        if not broker.opened or broker.life != life:
            return
        left = broker.steward.hand_over()
        self.cluster.guard(broker, broker.work)
        if left and patience and not broker.paused:
            self.cluster.later(50, lambda: self._hand_over(broker, life, patience - 1))
        else:
            self.cluster.crash(broker, power=False)

    def _pause(self) -> bool:
        """The process stops, and goes on as if nothing had happened."""
        broker = self._victim()
        if broker is not None:
            duration_ms = self.rng.choice((100, 800, 2_500, 5_000))
            broker.paused_until_ms = self.cluster.clock.elapsed_ms + duration_ms
        return broker is not None

    def _jump(self) -> bool:
        """Somebody sets a clock, by an hour perhaps; but not the clocks of a majority, which nothing could detect."""
        broker = self._victim()
        if broker is None:
            return False
        right_ms = self.cluster.clock.now_ms()
        wrong = [one for one in self.cluster.brokers.values() if abs(one.own_clock.now_ms() - right_ms) > 1_000]
        if wrong and broker is not wrong[0]:
            broker.own_clock.jump(self.rng.choice((-200, 200)))
        elif wrong:
            broker.own_clock.mend()
        else:
            broker.own_clock.jump(self.rng.choice((-_LONG_MS, -3_000, 3_000, _LONG_MS)))
        return True

    # ------------------------------------------------------------------ network

    def _split(self) -> bool:
        numbers = [*self.cluster.brokers, CLIENT]
        self.rng.shuffle(numbers)
        cut = self.rng.randint(1, len(numbers) - 1)
        self.cluster.network.split(numbers[:cut], numbers[cut:])
        self._heal_later("splits")
        return True

    def _isolate(self) -> bool:
        """One broker hears nobody; its clients may still reach it."""
        broker = self._victim()
        if broker is None:
            return False
        self.cluster.network.split([broker.number], [one for one in self.cluster.brokers if one != broker.number])
        self._heal_later("splits")
        return True

    def _one_way(self) -> bool:
        broker = self._victim()
        if broker is None:
            return False
        for other in self.cluster.brokers:
            if other != broker.number and self.rng.random() < 0.7:
                pair = (broker.number, other) if self.rng.random() < 0.5 else (other, broker.number)
                self.cluster.network.cut(*pair)
        self._heal_later("one_way_splits")
        return True

    def _heal_later(self, what: str) -> None:
        self.cluster.counts[what] += 1
        self.cluster.later(self.rng.choice((200, 1_500, 4_000)), self.cluster.network.heal)

    def _roughen(self) -> bool:
        network, rng = self.cluster.network, self.rng
        network.loss, network.doubling = rng.choice((0.0, 0.05, 0.2)), rng.choice((0.0, 0.05))
        network.detour = rng.choice((0.0, 0.1, 0.3))
        return True

    # ------------------------------------------------------------------ operators

    def _metadata(self) -> Cluster | None:
        leader = self.cluster.metadata_leader()
        return None if leader is None else leader.engine.cluster

    def _change(self, command: bytes) -> bool:
        self.cluster.traffic.change(command)
        return True

    def _now_ms(self) -> int:
        return self.cluster.clock.now_ms()

    def _transfer(self) -> bool:
        """By a wish in the metadata, or by hand to whoever votes."""
        metadata = self._metadata()
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
        self.cluster.guard(leader, leader.work)
        return True

    def _move(self) -> bool:
        metadata = self._metadata()
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
        metadata = self._metadata()
        plans = [] if metadata is None else [one for one in metadata.plans.values() if one.kind is not PlanKind.REBUILD]
        return bool(plans) and self._change(encode_cancel_plan(self.rng.choice(plans).plan_id))

    def _alter(self) -> bool:
        """More partitions, or another number of replicas, for a topic that nobody uses."""
        metadata = self._metadata()
        brief = [] if metadata is None else [one for one in metadata.topics.values() if one.name.startswith("brief")]
        if metadata is None or not brief or any(one.lost for one in metadata.brokers.values()):
            return False  # while a disk is being replaced every replica that is left is needed
        topic = self.rng.choice(brief)
        wanted = {"replication": self.rng.choice((2, 3))}
        if self.rng.random() < 0.5:
            wanted = {"partitions": len(topic.set_ids) + 1}
        return self._change(encode_alter_topic(topic.name, wanted, self._now_ms()))

    def _named(self, *states: BrokerState) -> list[str]:
        metadata = self._metadata()
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
        metadata = self._metadata()
        draining = [
            node_id for node_id in self._named(BrokerState.DRAINING) if metadata and metadata.is_drained(node_id)
        ]
        return bool(draining) and self._change(encode_remove_broker(self.rng.choice(draining), self._now_ms()))

    def _join(self) -> bool:
        cluster = self.cluster
        metadata = self._metadata()
        if metadata is None or len(self._named(BrokerState.ACTIVE, BrokerState.JOINING)) >= _BROKERS_MAX:
            return False
        self._arrive(f"broker{len(cluster.brokers) + 1}")
        return True

    def _wipe(self) -> bool:
        """A disk is lost, and its broker comes back with an empty one, under its old name."""
        if not self._may_lose_a_disk():
            return False
        broker = self._victim()
        if broker is None or broker.node_id not in self.cluster.members():
            return False
        self.wipe(broker)
        return True

    def _may_lose_a_disk(self) -> bool:
        cluster = self.cluster
        metadata = self._metadata()
        if metadata is None or metadata.moves or any(one.lost for one in metadata.brokers.values()):
            return False
        if any(one.state is BrokerState.JOINING for one in metadata.brokers.values()):
            return False
        if any(len(one.voters) < 3 for one in metadata.sets.values()):
            return False
        return all(one.opened for one in cluster.members().values())  # what is down may be the other copy

    def _rot(self) -> None:
        """A crash, and one bit of the last record that was durable flips: the broker must refuse to start. Then an
        operator repairs it: what it had is set aside, and it comes back as one with an empty disk."""
        cluster, rng = self.cluster, self._flips
        if cluster.calm:
            return
        running = self._running() if self._may_lose_a_disk() else []
        unsaved = [one for one in running if one.node_id in cluster.members() and one.unsaved]
        if unsaved:
            self.rot(rng.choice(unsaved))
        else:
            cluster.later(rng.randint(1, 100), self._rot)

    def rot(self, broker: ClusterBroker) -> ClusterBroker:
        """Flip a bit of a broker's last record; the one that comes back under its name."""
        cluster = self.cluster
        cluster.crash(broker, down_ms=_LONG_MS)
        broker.disk.crash_in(None)
        records = broker.durable_records()
        if records and holds_record(broker.disk, records[-1]):
            flip_record(broker.disk, records[-1], self._flips)
            try:
                Ledger.recover(broker.disk.files, broker.disk.table, random_bytes=self._flips.randbytes)
            except StorageDamaged:
                cluster.counts["last_record_refusals"] += 1
            else:
                text = f"the last record of {broker.name}, at {records[-1][0]}:{records[-1][1]}, was flipped"
                raise Broken("damage accepted", CLUSTER_SET, text)
        cluster.retire(broker)
        cluster.counts["repairs"] += 1
        cluster.count()
        return self._arrive(broker.name)

    def wipe(self, broker: ClusterBroker) -> ClusterBroker:
        """Let a broker's disk be lost; the one that comes back under its name."""
        self.cluster.crash(broker, down_ms=_LONG_MS)
        self.cluster.retire(broker)
        self.cluster.counts["wipes"] += 1
        return self._arrive(broker.name)

    def _arrive(self, name: str) -> ClusterBroker:
        """A broker with an empty disk asks to be let in."""
        cluster = self.cluster
        contacts = [broker.node_id for broker in cluster.brokers.values() if broker.place is not None]
        broker = cluster.add_broker(name)
        broker.contacts = contacts
        broker.start()
        self._register(broker)
        return broker

    def _register(self, broker: ClusterBroker) -> None:
        """Ask until the metadata knows it."""
        cluster = self.cluster
        if broker.place is not None or broker.retired:
            return
        metadata = self._metadata()
        if metadata is None or broker.node_id not in metadata.brokers:
            registration = cluster.registration(broker)
            cluster.traffic.change(encode_register_broker(registration, self._now_ms()))
        cluster.later(1_000, lambda: self._register(broker))

    def _tend(self) -> None:
        """Switch off what was removed for good; in the end, take up again what was cancelled or given up halfway."""
        cluster = self.cluster
        metadata = self._metadata()
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
