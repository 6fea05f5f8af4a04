"""A whole cluster from one seed: brokers, network, clients, operators and faults, in an order the seed alone decides.

Time is a list of what happens next: letters that arrive, ticks, writes that are done, clients that act, troubles that
begin and end. After every event the witness looks at the broker where it happened. A run founds a cluster of three or
five, makes topics, lets clients and troubles loose until enough has happened, then takes the faults away. From then
on the cluster must come to rest by itself: every move done, every replica of a set at the same index with the same
rows, every group drained, every acknowledged message readable on every replica; and the history is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

from lanner import features
from lanner.broker.links.acquaintances import present
from lanner.broker.links.founding import Founding
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import BrokerState, Registration, encode_found_cluster
from lanner.errors import StorageFailed, StorageFull
from lanner.testing.clock import SimClock
from lanner.testing.cluster_broker import PULSE, Bounds, BrokerClock, ClusterBroker, ClusterRecord
from lanner.testing.cluster_calls import ANSWER, CALL, CLIENT, Calls
from lanner.testing.cluster_clients import ClusterTraffic
from lanner.testing.cluster_witness import ClusterWitness
from lanner.testing.disk import PowerLost
from lanner.testing.history import History
from lanner.testing.network import RAFT, Letter, SimNetwork
from lanner.testing.sim_broker import Broken
from lanner.testing.staged_traffic import takes_part

_HEARTBEATS: Final = frozenset({7, 8})  # as a frame's second byte says; they come by themselves, like ticks


def size_of(seed: int) -> int:
    """With how many brokers a seed founds its cluster, unless told."""
    return 3 if seed % 2 == 0 else 5


def _record(founding: Founding) -> ClusterRecord:
    return ClusterRecord(founding.seat, founding.nodes, founding.told)


class SimCluster:
    """Brokers and clients over one network, and the time that passes for them."""

    def __init__(self, seed: int, nodes: int = 0, bounds: Bounds | None = None) -> None:
        self.rng = rng = Random(seed)
        self.staged = takes_part(seed)
        old = not self.staged and Random(f"release {seed}").random() < 0.3  # writers that stage need the present level
        self.release = features.STAGES - 1 if old else features.HIGHEST  # the feature level of brokers that come
        self.clock = SimClock()
        self.network = SimNetwork(rng)
        self.network.on_loss = self._lost
        self.witness = ClusterWitness()
        self.counts: Counter[str] = Counter()
        self.brokers: dict[int, ClusterBroker] = {}
        self.events = 0
        self.bounds = bounds or Bounds(
            segment_bytes=rng.choice((16_384, 32_768)),
            tail_entries=rng.choice((2, 10, 40)),
            tail_bytes=rng.choice((2_000, 10_000, 40_000)),
            save_ms=rng.choice((100, 300, 1_000)),
        )
        self.history = History()
        self.calls = Calls(self)
        self.traffic = ClusterTraffic(rng, self.clock, self.history, self.calls, self.serving, self.leader)
        self.witness.moment = self.traffic.now
        self.calm = False  # no more faults
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._numbers: dict[str, int] = {}
        self._found(nodes or size_of(seed))

    @property
    def watcher(self) -> ClusterWitness:
        return self.witness

    # ------------------------------------------------------------------ brokers

    def add_broker(self, name: str) -> ClusterBroker:
        """A broker with an empty disk."""
        number = len(self.brokers) + 1
        rng = self.rng
        clock = BrokerClock(self.clock, rng.choice((0, 0, -150, 90, 300)), rng.choice((0.0, 0.0, 0.001, -0.001)))
        broker = ClusterBroker(self, number, name, f"{name}-{number}", clock)
        broker.release = self.release
        self.brokers[number] = broker
        self._numbers[broker.node_id] = number
        return broker

    def _found(self, count: int) -> None:
        brokers = [self.add_broker(f"broker{number}") for number in range(1, count + 1)]
        self.founders = tuple(self.registration(broker) for broker in brokers)
        found = encode_found_cluster("simulated", self.founders, 1)
        for number, broker in enumerate(brokers, start=1):
            broker.founding = found
            broker.record = _record(Founding("simulated", self.founders, number))
            broker.start()

    @staticmethod
    def registration(broker: ClusterBroker) -> Registration:
        address = f"127.0.0.1:{7000 + broker.number}"
        return Registration(
            broker.name,
            broker.node_id,
            {"native": address},
            f"r{broker.number % 3}",
            features.LOWEST,
            broker.release,
        )

    def number_of(self, node_id: str) -> int | None:
        return self._numbers.get(node_id)

    def serving(self) -> list[ClusterBroker]:
        """The brokers that clients may have heard of: those that are in the cluster."""
        return [broker for broker in self.brokers.values() if broker.record is not None and not broker.retired]

    def leader(self, set_id: int) -> ClusterBroker | None:
        """Who leads a set and may decide, if nobody leads it in a later term."""
        for broker in self.brokers.values():
            if broker.opened and not broker.paused:
                replica = broker.engine.replicas.get(set_id)
                if replica is not None and replica.leads and self.witness.is_latest(set_id, replica.node.term):
                    return broker
        return None

    def metadata_leader(self) -> ClusterBroker | None:
        return self.leader(CLUSTER_SET)

    def crash(self, broker: ClusterBroker, *, power: bool = True, down_ms: int | None = None) -> None:
        """Let a broker stop, and start it again after a while."""
        if not broker.up:
            return
        self.counts["crashes"] += 1
        if broker.opened:
            self.witness.crashed(broker)
        self._count_snapshots(broker)
        self.calls.crashed(broker)
        broker.stop(power=power)
        if down_ms is None:
            down_ms = self.rng.choice((1, 50, 400, 3_000))
        life = broker.life
        self.later(down_ms, lambda: self.start(broker, life))

    def start(self, broker: ClusterBroker, life: int) -> None:
        if broker.up or broker.retired or broker.life != life:
            return
        try:
            broker.start()
        except (PowerLost, StorageFailed):
            broker.up = True
            self.crash(broker)
        except StorageFull:  # a start ends with that, as a real one does, and is made again when there is room
            broker.up = True
            broker.make_room()
            self.crash(broker, power=False)

    def retire(self, broker: ClusterBroker) -> None:
        """Switch a broker off for good: it was removed, or its disk is gone."""
        if not broker.retired:
            self.crash(broker)
            broker.retired = True

    def _count_snapshots(self, broker: ClusterBroker) -> None:
        installs = getattr(broker, "engine", None) and broker.engine.installs
        if installs:
            self.counts["snapshots"] += installs.completed
            installs.completed = 0

    def guard(self, broker: ClusterBroker, act: Callable[[], None]) -> None:
        """Do something on a broker whose power may go meanwhile."""
        try:
            act()
        except PowerLost:
            self.crash(broker)
        except StorageFailed:  # the process ends; what it had written may still be in the system's cache
            self.counts["failed_syncs"] += 1
            self.crash(broker, power=self.rng.random() < 0.5)

    # ------------------------------------------------------------------ time

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._scheduled += 1
        heappush(self._due, (self.clock.elapsed_ms + delay_ms, self._scheduled, act))

    def count(self) -> None:
        self.events += 1

    def step(self) -> None:
        """Let the next thing happen."""
        arrives_ms = self.network.next_ms
        due_ms = self._due[0][0]
        if arrives_ms is not None and arrives_ms <= due_ms:
            self.clock.advance(max(0, arrives_ms - self.clock.elapsed_ms))
            letter = self.network.take(self.clock.elapsed_ms)
            if letter is not None:
                self._deliver(letter)
        else:
            self.clock.advance(max(0, due_ms - self.clock.elapsed_ms))
            heappop(self._due)[2]()
        self.calls.look()

    def run_for(self, duration_ms: int) -> None:
        end_ms = self.clock.elapsed_ms + duration_ms
        while self._due[0][0] < end_ms or (self.network.next_ms or end_ms) < end_ms:
            self.step()
        self.clock.advance(max(0, end_ms - self.clock.elapsed_ms))

    def run_until(self, condition: Callable[[], bool], limit_ms: int, what: str) -> None:
        end_ms = self.clock.elapsed_ms + limit_ms
        while not condition():
            if self.clock.elapsed_ms >= end_ms:
                raise Broken("cluster never comes to rest", CLUSTER_SET, f"{what} within {limit_ms} ms")
            self.run_for(100)

    def _deliver(self, letter: Letter) -> None:
        if letter.kind == RAFT:
            self.events += letter.frame[1] not in _HEARTBEATS
        elif letter.kind != PULSE:
            self.events += 1
        if letter.receiver == CLIENT:
            self.calls.arrived(letter, None)
            return
        broker = self.brokers[letter.receiver]
        if not broker.up:
            self._lost(letter)
        elif broker.paused:
            self.network.redeliver(letter, broker.paused_until_ms + 1)
        elif letter.kind in (CALL, ANSWER):
            self.guard(broker, lambda: self.calls.arrived(letter, broker))
        else:
            sender = self.brokers[letter.sender].node_id
            if broker.record is None:
                self._learn_seat(broker, letter)
            self.guard(broker, lambda: broker.hear(letter, sender))

    def _learn_seat(self, broker: ClusterBroker, letter: Letter) -> None:
        """A broker that joins is told which replica of the metadata it is, and who is there: by the one that sends it
        the first message about the metadata."""
        if letter.kind != RAFT or letter.set_id != CLUSTER_SET:
            return
        receiver = int.from_bytes(letter.frame[16:24], "little")
        there = tuple(present(self.brokers[letter.sender].engine.cluster.brokers))
        founding = Founding("simulated", self.founders, receiver, joined=True, brokers=there)
        self.guard(broker, lambda: broker.join(_record(founding)))

    def _lost(self, letter: Letter) -> None:
        self.calls.lost(letter)

    # ------------------------------------------------------------------ rest

    def members(self) -> dict[str, ClusterBroker]:
        """The brokers that belong to the cluster by what its metadata says now, by node id."""
        leader = self.metadata_leader()
        if leader is None:
            return {}
        found = {}
        for broker in leader.engine.cluster.brokers.values():
            if broker.state is not BrokerState.REMOVED and not broker.lost:
                found[broker.node_id] = self.brokers[self._numbers[broker.node_id]]
        return found
