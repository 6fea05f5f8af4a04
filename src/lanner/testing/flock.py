"""A cluster in one process that moves in lockstep: whole brokers but for their doors, over memory.

Each has an engine, a steward, tries and a coordination; `lockstep` says how they move. Nothing is lost unless a broker
is down or cut off, or the test says so. Time passes when the test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from lanner import features
from lanner.broker.clock import LeaderClock
from lanner.broker.coordination.coordination import Coordination
from lanner.broker.coordination.figures import Counts
from lanner.broker.coordination.homes import Homes
from lanner.broker.replicas.engine import CLUSTER_SET, Seat
from lanner.broker.steward import Steward
from lanner.broker.tries import Tries
from lanner.cluster import (
    METADATA_SET,
    Cluster,
    Plan,
    PlanState,
    Registration,
    encode_create_topic,
    encode_found_cluster,
    encode_register_broker,
)
from lanner.errors import LannerError
from lanner.ledger import Files
from lanner.model import TopicSettings
from lanner.partition import Appended
from lanner.raft import Message
from lanner.storage import MemoryFiles, MemoryTable
from lanner.testing.lockstep import START_MS, EngineBroker, Lockstep

VOTERS_MAX: Final = 5
SILENT_TICKS: Final = 20
PULSE_MS: Final = 150
TICK_MS: Final = 50
BOUNDS: Final = {"tail_entries": 10_000, "cache_bytes": 1}  # what is asked for again comes from the disk


class Broker(EngineBroker):
    """One of them. Its disk survives `stop`; what was not saved must be replayed."""

    closes_damaged = True
    table: MemoryTable

    def __init__(self, flock: Flock, name: str, node_id: str, seat: Seat, nodes: dict[int, str]) -> None:
        super().__init__(name, flock.files(), None, **flock.bounds)
        self.flock, self.node_id, self.seat, self.nodes = flock, node_id, seat, nodes
        self.up = False
        self.ahead_ms = 0  # how wrong its clock is
        self.beside: Callable[[Callable[[], Any], Callable[[Any], None]], None] = lambda work, told: told(work())

    def start(self) -> None:
        flock = self.flock
        self.up = True
        self.clock = LeaderClock(self.own_ms, lambda: flock.now_ms)
        self.clocks = self.clock.known
        super().start()
        self.steward = Steward(self.engine, self.node_id)
        self.steward.founding = flock.founding
        self.steward.open_metadata(self.seat, self.nodes)
        self.tries = Tries(self.engine)
        self.group_counts = Counts()
        self.homes = Homes(self.node_id, self.engine, self._metadata_leader, lambda: flock.now_ms)
        self.coordination = Coordination(
            self.node_id,
            self.engine,
            self.homes,
            self.clock,
            lambda work, told: self.beside(work, told),  # what a real one does in a thread
            self.group_counts,
        )

    def rng(self) -> Random:
        return Random(f"{self.node_id}/{self.lives}/{self.flock.seed}")

    def _metadata_leader(self) -> str:
        """As pulses have it."""
        leader = self.flock.leader_of(METADATA_SET)
        alive = leader is not None and self.flock.is_alive(leader.node_id, self.node_id)
        return leader.node_id if leader is not None and alive else ""

    def own_ms(self) -> int:
        return self.flock.now_ms + self.ahead_ms

    def leader_ms(self) -> int:
        return self.clock.now_ms()

    def stop(self) -> None:
        """Pull the plug."""
        self.up = False

    @property
    def cluster(self) -> Cluster:
        return self.engine.cluster

    def work(self) -> None:
        while self.commit() or self.tries.follow(self.leader_ms()):
            self.steward.follow()
        self.steward.follow()
        self.coordination.follow()
        if self.engine.installs.save_wanted:
            self.save()

    def held(self) -> dict[int, int]:
        """Set → replica id, without the metadata."""
        replicas = self.engine.replicas.items()
        return {set_id: replica.node.node_id for set_id, replica in replicas if set_id != CLUSTER_SET}

    def leads(self, set_id: int) -> bool:
        return self.up and super().leads(set_id)


def _registration(name: str, node_id: str) -> Registration:
    return Registration(name, node_id, {"native": f"{name}:7400"}, "", features.LOWEST, features.HIGHEST)


class Flock(Lockstep[Broker]):
    """All of them."""

    def __init__(
        self,
        names: str = "abc",
        *,
        seed: int = 0,
        found: bool = True,
        files: Callable[[], Files] = MemoryFiles,
        **bounds: int,
    ) -> None:
        """`bounds` are those of the engines."""
        self.seed, self.files, self.bounds = seed, files, {**BOUNDS, **bounds}
        self.now_ms = START_MS
        self.cut: set[str] = set()  # node ids that nobody hears and that hear nobody
        self.parted: set[frozenset[str]] = set()  # pairs of node ids that do not hear each other
        self.lost: Callable[[int, Message], bool] = lambda set_id, message: False
        self.sent: list[tuple[int, Message]] = []  # everything that arrived, while `watching`
        self.watching = False
        self.coordinating = True  # else nobody falls silent, and no partition is assigned but by the test
        self.timeless = False  # nobody hears what time it is elsewhere
        self.propose: Callable[[bytes], bool] = self.put  # how reports of stewards reach the metadata, if they do
        self.unheard: dict[tuple[str, str], int] = {}  # (by whom, who) → for how many ticks
        nodes = {number: f"node-{name}" for number, name in enumerate(names, start=1)}
        registrations = [_registration(name, f"node-{name}") for name in names]
        self.founding = encode_found_cluster("cluster", registrations, self.now_ms)
        voters = frozenset(range(1, min(len(names), VOTERS_MAX) + 1))
        self.brokers: dict[str, Broker] = {}
        for number, name in enumerate(names, start=1):
            self.brokers[name] = Broker(self, name, f"node-{name}", Seat(number, voters), nodes)
            self.brokers[name].start()
        if found:
            self.until(lambda: all(broker.cluster.cluster_id for broker in self.up()))

    # ------------------------------------------------------------------ time and messages

    def up(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if broker.up]

    def reachable(self) -> list[Broker]:
        return [broker for broker in self.up() if broker.node_id not in self.cut]

    def is_alive(self, node_id: str, seen_by: str = "") -> bool:
        if node_id in self.cut or seen_by in self.cut:
            return False
        if self.parted and frozenset({node_id, seen_by}) in self.parted:
            return False
        return any(one.node_id == node_id for one in self.up())

    def tell(self, broker: Broker) -> bool:
        spoken = False
        for report in broker.steward.take_reports():
            spoken = self.propose(report) or spoken
        for item in broker.tries.take_reports():
            conductor = self.leader_of(METADATA_SET)
            if conductor is not None and self.is_alive(conductor.node_id, broker.node_id):
                spoken = True
                conductor.tries.hear([item])
        return super().tell(broker) or spoken

    def hear(self, receiver: Broker, sender: Broker, set_id: int, message: Message) -> None:
        if self.lost(set_id, message):
            return
        if self.watching:
            self.sent.append((set_id, message))
        receiver.steward.learn_route(set_id, message.sender, sender.node_id)
        super().hear(receiver, sender, set_id, message)

    def receiver(self, sender: Broker, set_id: int, replica_id: int) -> Broker | None:
        node_id = sender.steward.route(set_id, replica_id)
        found = next((broker for broker in self.up() if broker.node_id == node_id), None)
        return found if found is not None and self.is_alive(found.node_id, sender.node_id) else None

    def put(self, command: bytes) -> bool:
        """Put a command into the metadata's log; False when nobody leads it."""
        leader = self.leader_of(METADATA_SET)
        if leader is None:
            return False
        leader.engine.propose(METADATA_SET, command, lambda _result: None)
        return True

    def tick(self) -> None:
        self.now_ms += TICK_MS
        self._listen()
        for broker in self.up():
            broker.engine.tick()
            broker.tries.tick()
            if self.coordinating:
                broker.coordination.tick()
            broker.steward.tick(partial(self.is_alive, seen_by=broker.node_id))

    def _listen(self) -> None:
        """As pulses would have it: others' clocks are heard, and who has not been heard for a while is noticed."""
        for broker in self.up():
            for other in self.brokers.values():
                key = (broker.node_id, other.node_id)
                if self.is_alive(other.node_id, broker.node_id):
                    self.unheard.pop(key, None)
                    if other is not broker and self.now_ms % PULSE_MS == 0:
                        sign = other.homes.sign_for(broker.node_id)
                        broker.homes.take_sign(other.node_id, sign.sent_ms, sign.echo_ms)
                        broker.coordination.hear(other.node_id, sign.heard)
                    if other is not broker and not self.timeless:
                        broker.clock.observe(other.node_id, other.own_ms())
                    continue
                self.unheard[key] = self.unheard.get(key, 0) + 1
                if self.unheard[key] == SILENT_TICKS:
                    broker.steward.peer_silent(other.node_id)

    # ------------------------------------------------------------------ who has what

    def place(self, set_id: int) -> set[str]:
        """The names of the brokers that have the set open."""
        return {broker.name for broker in self.up() if set_id in broker.engine.replicas}

    def members(self, set_id: int) -> set[str]:
        """The names of the brokers that vote over the set, by its leader's log."""
        leader = self.leader_of(set_id)
        assert leader is not None
        routes = [leader.steward.route(set_id, voter) for voter in leader.replica(set_id).node.voters]
        return {broker.name for broker in self.brokers.values() if broker.node_id in routes}

    def is_home(self, set_id: int) -> bool:
        """Whether the set is led where it should be."""
        leader = self.leader_of(set_id)
        return leader is not None and leader.cluster.sets[set_id].preferred == leader.replica(set_id).node.node_id

    @property
    def metadata(self) -> Cluster:
        leader = self.leader_of(METADATA_SET)
        assert leader is not None
        return leader.cluster

    # ------------------------------------------------------------------ what is asked of them

    def command(self, command: bytes) -> Any:
        """A command of the metadata, and what it came to; known to everybody who is up when it returns."""
        told: list[Any] = []
        self.until(lambda: self.leader_of(METADATA_SET) is not None)
        leader = self.leader_of(METADATA_SET)
        assert leader is not None
        leader.engine.propose(METADATA_SET, command, told.append)
        self.until(lambda: bool(told))
        self.settle()
        if isinstance(told[0], LannerError):
            raise told[0]
        return told[0]

    def create_topic(self, name: str, partitions: int = 1, replication: int = 3, **settings: Any) -> tuple[int, ...]:
        wanted = TopicSettings(partitions=partitions, replication=replication, **settings)
        topic = self.command(encode_create_topic(name, wanted, self.now_ms))
        self.until(lambda: all(self.leader_of(set_id) is not None for set_id in topic.set_ids))
        return tuple(topic.set_ids)

    def add(self, name: str, node_id: str = "") -> Broker:
        """A new broker; or one that comes back under its name with an empty disk and another node id."""
        node_id = node_id or f"node-{name}"
        self.command(encode_register_broker(_registration(name, node_id), self.now_ms))
        self.until(lambda: self.metadata.sets[METADATA_SET].replica_on(node_id) is not None)
        record = self.metadata.sets[METADATA_SET]
        replica = record.replica_on(node_id)
        assert replica is not None
        seat = Seat(replica.replica_id, frozenset(range(1, record.founders + 1)))
        self.brokers[name] = Broker(self, name, node_id, seat, dict(self.metadata.routes(METADATA_SET)))
        self.brokers[name].start()
        return self.brokers[name]

    def finish(self, plan: Plan, ticks: int = 6_000) -> None:
        """Until a plan is over, and well."""
        self.until(lambda: self.state(plan) is not PlanState.RUNNING, ticks)
        assert self.state(plan) is PlanState.DONE

    def state(self, plan: Plan) -> PlanState:
        leader = self.leader_of(METADATA_SET)
        return PlanState.RUNNING if leader is None else leader.cluster.plans[plan.plan_id].state

    def publish(self, set_id: int, value: bytes) -> Appended:
        """Publish until it is acknowledged; a set without a leader gets time to find one."""
        for _ in range(400):
            leader = self.leader_of(set_id)
            if leader is not None and not leader.replica(set_id).node.transferee:
                told = leader.publish(set_id, value)
                self.settle()
                if told and isinstance(told[0], Appended):
                    return told[0]
            self.pass_time()
        raise AssertionError("nobody acknowledges")

    def count(self, broker: Broker, set_id: int) -> int:
        """How many messages the broker's replica has."""
        return broker.replica(set_id).partition.end_offset
