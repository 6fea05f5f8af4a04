"""Some brokers in one process: engine and steward each, over memory, and wires that carry everything as bytes.

Nothing is lost unless a broker is down or cut off. Time passes when the tests say so.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from lanner import batch, features
from lanner.broker.clock import LeaderClock
from lanner.broker.coordination.coordination import Coordination
from lanner.broker.coordination.figures import Counts
from lanner.broker.coordination.homes import Homes
from lanner.broker.replicas.engine import CLUSTER_SET, Engine, Seat
from lanner.broker.replicas.replica import Replica
from lanner.broker.replicas.snapshots import Piece, Reply, decode, encode
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
from lanner.ledger import Ledger, perform
from lanner.model import TopicSettings
from lanner.partition import Appended, encode_append
from lanner.raft import Message, decode_message, encode_message
from lanner.storage import MemoryFiles, MemoryTable

VOTERS_MAX = 5
SILENT_TICKS = 20
PULSE_MS = 150


class Broker:
    """One of them. Its disk survives `stop`; what was not saved must be replayed."""

    def __init__(self, flock: Flock, name: str, node_id: str, seat: Seat, nodes: dict[int, str]) -> None:
        self.flock, self.name, self.node_id, self.seat, self.nodes = flock, name, node_id, seat, nodes
        self.files, self.table = MemoryFiles(), MemoryTable()
        self.lives = 0
        self.up = False
        self.ahead_ms = 0  # how wrong its clock is

    def start(self) -> None:
        self.lives += 1
        self.up = True
        rng = Random(f"{self.node_id}/{self.lives}/{self.flock.seed}")
        ledger = Ledger.recover(
            self.files, self.table, random_bytes=rng.randbytes, segment_bytes=1 << 16, close_damaged=True
        )
        flock = self.flock
        self.clock = LeaderClock(self.own_ms, lambda: flock.now_ms)
        self.engine = Engine(
            ledger,
            self.files,
            rng=rng,
            now_ms=self.clock.now_ms,
            clocks=self.clock.known,
            tail_entries=flock.tail_entries,
            cache_bytes=1,
        )
        self.steward = Steward(self.engine, self.node_id)
        self.steward.founding = flock.founding
        self.steward.open_metadata(self.seat, self.nodes)
        self.tries = Tries(self.engine)
        self.group_counts = Counts()
        self.homes = Homes(self.node_id, self.engine, self._metadata_leader, lambda: flock.now_ms)
        self.coordination = Coordination(
            self.node_id, self.engine, self.homes, self.clock, lambda work, told: told(work()), self.group_counts
        )

    def _metadata_leader(self) -> str:
        """As pulses have it."""
        leader = self.flock.leader_of(METADATA_SET)
        alive = leader is not None and self.flock.is_alive(leader.node_id, self.node_id)
        return leader.node_id if leader is not None and alive else ""

    def own_ms(self) -> int:
        return self.flock.now_ms + self.ahead_ms

    def stop(self) -> None:
        """Pull the plug."""
        self.up = False

    @property
    def cluster(self) -> Cluster:
        return self.engine.cluster

    def work(self) -> None:
        while (commit := self.engine.pump()) is not None or self.tries.follow(self.clock.now_ms()):
            if commit is not None:
                perform(commit, self.files)
                self.engine.committed(commit)
            self.steward.follow()
        self.steward.follow()
        self.coordination.follow()
        if self.engine.installs.save_wanted:
            self.save()

    def save(self) -> None:
        job = self.engine.begin_save()
        if job is None:
            return
        while self.engine.save_step(job):
            pass
        self.table.commit(job.puts)
        self.engine.saved(job)
        for file_id in self.engine.ledger.droppable():
            self.files.remove(file_id)
            self.engine.ledger.dropped(file_id)

    def replica(self, set_id: int) -> Replica:
        return self.engine.replicas[set_id]

    def held(self) -> dict[int, int]:
        """Set → replica id, without the metadata."""
        replicas = self.engine.replicas.items()
        return {set_id: replica.node.node_id for set_id, replica in replicas if set_id != CLUSTER_SET}

    def leads(self, set_id: int) -> bool:
        return self.up and set_id in self.engine.replicas and self.replica(set_id).leads


def _registration(name: str, node_id: str) -> Registration:
    return Registration(name, node_id, {"native": f"{name}:7400"}, "", features.LOWEST, features.HIGHEST)


class Flock:
    """All of them."""

    def __init__(self, names: str = "abc", *, seed: int = 0, tail_entries: int = 10_000, found: bool = True) -> None:
        self.seed = seed
        self.now_ms = 1_000_000
        self.tail_entries = tail_entries
        self.cut: set[str] = set()  # node ids that nobody hears and that hear nobody
        self.parted: set[frozenset[str]] = set()  # pairs of node ids that do not hear each other
        self.lost: Callable[[int, Message], bool] = lambda set_id, message: False
        self.sent: list[tuple[int, Message]] = []  # everything that arrived, while `watching`
        self.watching = False
        self.coordinating = True  # else nobody falls silent, and no partition is assigned but by the test
        self.timeless = False  # nobody hears what time it is elsewhere
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

    def is_alive(self, node_id: str, seen_by: str = "") -> bool:
        if self.cut & {node_id, seen_by} or frozenset({node_id, seen_by}) in self.parted:
            return False
        return any(one.node_id == node_id for one in self.up())

    def settle(self) -> None:
        """Until nobody has anything to say."""
        for _ in range(10_000):
            if not self.step():
                return
        raise AssertionError("they never stop talking")

    def step(self) -> bool:
        """Everybody works, and hears what the others said; whether anybody said anything."""
        spoken = False
        for broker in self.up():
            broker.work()
            for report in broker.steward.take_reports():
                spoken = self.propose(report) or spoken
            for item in broker.tries.take_reports():
                conductor = self.leader_of(METADATA_SET)
                if conductor is not None and self.is_alive(conductor.node_id, broker.node_id):
                    spoken = True
                    conductor.tries.hear([item])
            for set_id, message in broker.engine.take_messages():
                spoken = True
                self._carry(broker, set_id, message)
            values: list[Piece | Reply] = [unread.load(broker.files) for unread in broker.engine.take_unread_pieces()]
            values += broker.engine.take_replies()
            for value in values:
                spoken = True
                receiver = self._receiver(broker, value.set_id, value.receiver)
                if receiver is not None:
                    receiver.engine.step_snapshot(decode(encode(value)))
        return spoken

    def _carry(self, sender: Broker, set_id: int, message: Message) -> None:
        receiver = self._receiver(sender, set_id, message.receiver)
        if receiver is None or self.lost(set_id, message):
            return
        received = decode_message(b"".join(encode_message(message)))
        if self.watching:
            self.sent.append((set_id, received))
        receiver.steward.learn_route(set_id, received.sender, sender.node_id)
        receiver.engine.step(set_id, received)

    def _receiver(self, sender: Broker, set_id: int, replica_id: int) -> Broker | None:
        node_id = sender.steward.route(set_id, replica_id)
        found = next((broker for broker in self.up() if broker.node_id == node_id), None)
        return found if found is not None and self.is_alive(found.node_id, sender.node_id) else None

    def propose(self, command: bytes) -> bool:
        leader = self.leader_of(METADATA_SET)
        if leader is None:
            return False
        leader.engine.propose(METADATA_SET, command, lambda _result: None)
        return True

    def pass_time(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            self.now_ms += 50
            self._listen()
            for broker in self.up():
                broker.engine.tick()
                broker.tries.tick()
                if self.coordinating:
                    broker.coordination.tick()
                broker.steward.tick(lambda node_id, by=broker.node_id: self.is_alive(node_id, by))  # type: ignore[misc]
            self.settle()

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

    def until(self, condition: Callable[[], bool], ticks: int = 2_000) -> None:
        for _ in range(ticks):
            if condition():
                return
            self.pass_time()
        raise AssertionError("it never comes true")

    # ------------------------------------------------------------------ who has what

    def leader_of(self, set_id: int) -> Broker | None:
        leaders = [broker for broker in self.up() if broker.leads(set_id) and broker.node_id not in self.cut]
        return max(leaders, key=lambda broker: broker.replica(set_id).node.term) if leaders else None

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
        told: list[Any] = []
        for _ in range(400):
            leader = self.leader_of(set_id)
            if leader is not None and not leader.replica(set_id).node.transferee:
                told.clear()
                leader.engine.propose(set_id, encode_append(self.now_ms, batch.encode([value])), told.append)
                self.settle()
                if told and isinstance(told[0], Appended):
                    return told[0]
            self.pass_time()
        raise AssertionError("nobody acknowledges")

    def count(self, broker: Broker, set_id: int) -> int:
        """How many messages the broker's replica has."""
        return broker.replica(set_id).partition.end_offset
