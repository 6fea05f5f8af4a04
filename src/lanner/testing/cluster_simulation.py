"""One cluster, one seed, from its founding to the judgement: see `sim_cluster` for what it stands on.

`simulate_cluster(seed)` gives the same report every time. The report's totals say how much trouble was met, because a
seed in which nothing happened proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lanner.broker.replicas import installs, snapshots
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import BrokerState, Cluster, encode_alter_topic, encode_create_topic
from lanner.errors import StorageFailed
from lanner.model import Retention, TopicSettings
from lanner.partition import Partition
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.cluster_disks import DiskTrials
from lanner.testing.cluster_faults import LONG_MS
from lanner.testing.cluster_staging import ClusterStaging
from lanner.testing.cluster_troubles import Troubles
from lanner.testing.decay import scrub
from lanner.testing.disk import PowerLost
from lanner.testing.history import Crashed, Ended, Stored
from lanner.testing.sim_broker import Broken
from lanner.testing.sim_cluster import SimCluster
from lanner.testing.simulator import REPEATED, Report, rules_of, run_and_judge
from lanner.testing.traffic import AUTO_GROUP, QUEUE_GROUPS, name_of

CLUSTER_EVENTS: Final = 5_000
CLUSTER_CALLS: Final = 200
CLUSTER_TOTALS: Final = (
    "elections",
    "crashes",
    "splits",
    "snapshots",
    "moves",
    "expiries",
    "forwards",
    "cut_replies",
    "last_record_refusals",
    "rotten_entries",
    "rotten_rows",
    "founders_replaced",
    "upgrades",
    "slow_syncs",
    "hung_syncs",
)
_STARTED_MS: Final = 20_000
_LED_MS: Final = 15_000  # those who are down come back within three seconds, and elections take two or three
_REST_MS: Final = 240_000
_REPLACED_MS: Final = 60_000
_ASK_MS: Final = 5_000
_COPIES: Final = 3
_DRAIN_ROUNDS_MAX: Final = 400
_LONGEST_WAIT_MS: Final = 5_000


_SMALL: Final = (  # so that snapshots take several pieces, and those that are lost are sent again within a second
    (snapshots, "PIECE_BYTES", 2_000),
    (snapshots, "PIECE_ROWS_BYTES", 1_000),
    (snapshots, "SCAN_ROWS", 4),
    (snapshots, "RESEND_TICKS", 15),
    (snapshots, "SILENT_TICKS_MAX", 90),
    (installs, "SILENT_TICKS_MAX", 120),
)


@contextmanager
def small_snapshots() -> Iterator[None]:
    """Let snapshots travel in small pieces for the length of a block."""
    before = [(module, name, getattr(module, name)) for module, name, _ in _SMALL]
    try:
        for module, name, value in _SMALL:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def simulate_cluster(seed: int, events: int = CLUSTER_EVENTS, nodes: int = 0) -> Report:
    """Run one seed to its end, or to the first rule that is seen to be broken."""
    with small_snapshots():
        return _simulate(seed, events, nodes)


def _simulate(seed: int, events: int, nodes: int) -> Report:
    simulation = ClusterSimulation(seed, events, nodes)
    cluster = simulation.cluster
    report = Report(seed, history=cluster.history)
    run_and_judge(report, simulation.run, cluster.traffic.give_up)
    if simulation.staged is not None:
        report.violations += simulation.staged.run.judge.violations
    report.events = cluster.events
    report.totals = simulation.totals()
    return report


class ClusterSimulation:
    """One run."""

    def __init__(self, seed: int, events: int = CLUSTER_EVENTS, nodes: int = 0) -> None:
        self.cluster = SimCluster(seed, nodes)
        self.rng = self.cluster.rng
        self.traffic = self.cluster.traffic
        self.troubles = Troubles(self.cluster)
        self._events_wanted = events
        self._tries_disks = self.rng.random() < 0.15
        self._renews = self.rng.random() < 0.1
        self._moves_done = 0
        self._asked_ms = 0  # when operators last asked for missing copies
        self._acting_ms = self.rng.choice((10, 25, 50))
        self._actions = self._weigh_actions()
        self.staged = ClusterStaging(seed, self.cluster) if self.cluster.staged else None

    def totals(self) -> Counter[str]:
        cluster = self.cluster
        totals = Counter(cluster.counts)
        for broker in cluster.brokers.values():
            totals.update(
                {name: broker.counts[name] for name in ("torn_tails", "saves", "rewritten_segments", "dropped_files")}
            )
            if hasattr(broker, "engine"):
                totals["snapshots"] += broker.engine.installs.completed
        facts = cluster.witness.facts
        totals["elections"] = cluster.witness.elections
        totals["expiries"] = facts["LeaseEnded"]
        totals["dead"] = facts["Died"]
        totals["trims"] = facts["Trimmed"]
        totals["moves"] = self._moves_done
        totals["events"] = cluster.events
        totals["simulated_seconds"] = cluster.clock.elapsed_ms // 1_000
        told = ("published", "handed", "retries", "unknown", "duplicates", "refused", "stale", "cut_replies")
        for name in (*told, "damaged_polls", "damaged_reads", *REPEATED):
            totals[name] = self.traffic.counts[name]
        if self.staged is not None:
            totals.update(self.staged.totals())
        return totals

    # ------------------------------------------------------------------ the run

    def run(self) -> None:
        cluster = self.cluster
        cluster.run_until(self._founded, _STARTED_MS, "no founding")
        self._make_topics()
        cluster.later(1, self._act)
        if self.staged is not None:
            self.staged.begin()
        if self._tries_disks:
            DiskTrials(cluster).run()
        if self._renews:
            before = cluster.events
            self._replace_founders()
            self._events_wanted += cluster.events - before  # its troubles are yet to come
        self.troubles.begin()
        if self.staged is not None:
            self.staged.trouble()
        while cluster.events < self._events_wanted or cluster.counts["calls"] < CLUSTER_CALLS:
            cluster.step()
        self.troubles.end()
        cluster.run_until(self._all_led, _LED_MS, "not every set is led")
        if self.staged is not None:
            cluster.run_until(self.staged.at_rest, _REST_MS, "tries do not end")
        cluster.run_until(lambda: self.troubles.upgrade.over, _REST_MS, "the feature level is not raised")
        cluster.run_until(self._mended, _REST_MS, "damaged copies are not replaced")
        cluster.run_until(self._at_rest, _REST_MS, "moves and replicas do not settle")
        self._end_doubt()
        self._drain()
        cluster.run_until(self._at_rest, _REST_MS, "replicas do not settle after the drain")
        self._count_moves()
        self._compare_everything()
        if self.staged is not None:
            self.staged.finish(self._metadata())

    def _replace_founders(self) -> None:
        """One after the other the founders lose their disks, until none of them is left; nothing else is wrong."""
        cluster, troubles = self.cluster, self.troubles
        for number in range(1, len(cluster.founders) + 1):
            cluster.run_until(self._may_lose_a_founder, _REPLACED_MS, "what a founder had is not replaced")
            troubles.wipe(cluster.brokers[number])
            cluster.counts["founders_replaced"] += 1
        cluster.run_until(self._may_lose_a_founder, _REPLACED_MS, "what the last founder had is not replaced")

    def _may_lose_a_founder(self) -> bool:
        """Whether nothing hangs on it. A topic made while one of three was away has two copies, and an operator has to
        ask for the third."""
        if self.troubles.may_lose_a_disk():
            return True
        metadata, clock = self.troubles.metadata(), self.cluster.clock
        if metadata is not None and not metadata.moves and clock.elapsed_ms >= self._asked_ms + _ASK_MS:
            self._asked_ms = clock.elapsed_ms
            for topic in metadata.topics.values():
                if topic.settings.replication < _COPIES:
                    self.traffic.change(encode_alter_topic(topic.name, {"replication": _COPIES}, clock.now_ms()))
        return False

    def _founded(self) -> bool:
        leader = self.cluster.metadata_leader()
        return leader is not None and bool(leader.engine.cluster.cluster_id)

    def _make_topics(self) -> None:
        cluster, rng = self.cluster, self.rng
        wanted: dict[str, TopicSettings] = {}
        for number in range(2):
            bytes_max = rng.choice((0, 40_000))
            wanted[f"topic-{number}"] = TopicSettings(
                partitions=2 - number,
                replication=3,
                lease_ms=rng.choice((400, 1_000, 3_000)),
                max_deliveries=rng.choice((2, 3, 5)),
                backoff_ms=rng.choice((0, 50, 300)),
                backoff_max_ms=1_000,
                outstanding_max=rng.choice((10_000, 10_000, 40)),
                retention=Retention.TIME if number else Retention.ACKED,
                retention_ms=0 if bytes_max else 30_000,
                retention_bytes=bytes_max if number else 0,
                dedup_window_ms=3 * LONG_MS,  # an id lives by leaders' clocks, and one of them may be behind by LONG_MS
            )
        if self.staged is not None:
            wanted |= self.staged.topics()
        self._ask_for_topics(wanted)
        cluster.run_until(lambda: self._has_topics(wanted), _STARTED_MS, "no topics")
        for name in wanted:
            topic = self._metadata().topics[name]
            if self.staged is not None and self.staged.serves(topic):
                continue
            for set_id in topic.set_ids:
                self.traffic.serve(set_id, name, topic.settings)
                cluster.history.rules[set_id] = rules_of(topic.settings)
        self.traffic.open_producers(4)

    def _ask_for_topics(self, wanted: dict[str, TopicSettings]) -> None:
        """Again and again, as an operator would whose first call met a broker that had heard of nothing yet."""
        if not self._has_topics(wanted):
            for name, settings in wanted.items():
                self.traffic.change(encode_create_topic(name, settings, self.cluster.clock.now_ms()))
            self.cluster.later(3_000, lambda: self._ask_for_topics(wanted))

    def _has_topics(self, wanted: dict[str, TopicSettings]) -> bool:
        leader = self.cluster.metadata_leader()
        if leader is None:
            return False
        topics = leader.engine.cluster.topics
        return all(
            name in topics and all(self.cluster.leader(set_id) for set_id in topics[name].set_ids) for name in wanted
        )

    def _metadata(self) -> Cluster:
        leader = self.cluster.metadata_leader()
        assert leader is not None
        return leader.engine.cluster

    # ------------------------------------------------------------------ clients

    def _weigh_actions(self) -> tuple[tuple[str, ...], tuple[float, ...]]:
        rng = self.rng
        weights = {
            "publish": rng.choice((8.0, 12.0, 18.0)),
            "poll": 10.0,
            "settle": rng.choice((12.0, 20.0)),
            "read": 1.0,
            "inspect": 0.3,
            "administer": 0.5,
        }
        return tuple(weights), tuple(weights.values())

    def _act(self) -> None:
        cluster = self.cluster
        if cluster.calm:
            return
        action = self.rng.choices(*self._actions)[0]
        cluster.events += self._do(action)
        cluster.later(self.rng.randint(0, 2 * self._acting_ms), self._act)

    def _do(self, action: str) -> bool:
        traffic = self.traffic
        if action == "publish":
            return traffic.publish()
        if action == "poll":
            return traffic.poll(self.rng.choice(traffic.consumers))
        if action == "settle":
            return traffic.settle_one(self.rng.choice(traffic.consumers))
        try:
            return traffic.look(action)
        except (PowerLost, StorageFailed):  # while a client was being answered
            for broker in self.cluster.brokers.values():
                if broker.up and broker.disk.is_off:
                    self.cluster.crash(broker)
            return True

    # ------------------------------------------------------------------ the end

    def _all_led(self) -> bool:
        leader = self.cluster.metadata_leader()
        return leader is not None and all(self.cluster.leader(set_id) for set_id in leader.engine.cluster.sets)

    def _mended(self) -> bool:
        members = self.cluster.members()
        running = bool(members) and all(broker.opened for broker in members.values())
        return running and self.troubles.rot.is_mended(self._metadata(), members.values())

    def _at_rest(self) -> bool:
        """Every broker runs, every move is done, and every replica has applied all that its leader has."""
        cluster = self.cluster
        members = cluster.members()
        if not members or not all(broker.opened for broker in members.values()):
            return False
        metadata = self._metadata()
        if metadata.moves or any(one.state is BrokerState.JOINING for one in metadata.brokers.values()):
            return False
        if cluster.calls.waiting or any(
            one.lost and one.state is not BrokerState.REMOVED for one in metadata.brokers.values()
        ):
            return False
        for set_id in metadata.sets:
            leader = cluster.leader(set_id)
            if leader is None or not self._set_at_rest(set_id, leader, members):
                return False
        return all(set_id in metadata.sets for broker in members.values() for set_id in broker.engine.replicas)

    def _set_at_rest(self, set_id: int, leader: ClusterBroker, members: dict[str, ClusterBroker]) -> bool:
        node = leader.engine.replica(set_id).node
        record = self._metadata().sets[set_id]
        if {one.replica_id for one in record.replicas} != node.voters | node.learners:
            return False
        for one in record.replicas:
            replica = members[one.node_id].engine.replicas.get(set_id)
            if replica is None or replica.node.applied_index != node.last_index:
                return False
        return True

    def _end_doubt(self) -> None:
        self.cluster.calls.end()
        self.traffic.give_up()
        self.cluster.history.add(Crashed(self.traffic.now()))

    def _settle_down(self) -> None:
        self.cluster.run_until(lambda: not self.cluster.calls.waiting, _REST_MS, "calls are not answered")

    def _drain(self) -> None:
        """Without faults: every group must get everything, in the end."""
        cluster, traffic = self.cluster, self.traffic
        for consumer in traffic.consumers:
            consumer.held.clear()
        for _ in range(_DRAIN_ROUNDS_MAX):
            before = traffic.counts["handed"]
            for consumer in traffic.consumers:
                traffic.poll(consumer, max_messages=500)
            self._settle_down()
            for consumer in traffic.consumers:
                while consumer.held:
                    traffic.settle(consumer, "ack")
            self._settle_down()
            cluster.run_for(100)
            if traffic.counts["handed"] == before:
                if self._drained():
                    return
                cluster.run_for(_LONGEST_WAIT_MS)
        raise Broken("group never comes to rest", CLUSTER_SET, f"after {_DRAIN_ROUNDS_MAX} rounds without faults")

    def _drained(self) -> bool:
        for set_id in self.traffic.settings:
            leader = self.cluster.leader(set_id)
            if leader is None:
                return False
            partition = leader.engine.replica(set_id).partition
            if len(partition._state.delayed):
                return False
            for group in (*QUEUE_GROUPS, AUTO_GROUP):
                if group in partition.groups():
                    state = partition.describe_group(group, leader.leader_ms())
                    if state.lag or state.ready or state.leased or state.waiting:
                        return False
        return True

    def _count_moves(self) -> None:
        self._moves_done = sum(plan.moves_done for plan in self._metadata().plans.values())

    # ------------------------------------------------------------------ every replica

    def _compare_everything(self) -> None:
        cluster = self.cluster
        metadata = self._metadata()
        metadata.check()
        for set_id, record in metadata.sets.items():
            holders = [cluster.brokers[cluster.number_of(node_id) or 0] for node_id in record.nodes]
            machines = [(holder, holder.engine.replica(set_id).machine) for holder in holders]
            rows = machines[0][1].all_rows()  # type: ignore[attr-defined]
            for holder, machine in machines[1:]:
                if machine.all_rows() != rows:  # type: ignore[attr-defined]
                    raise Broken("machines differ", set_id, f"in the end, on {holder.name} and {holders[0].name}")
            if set_id in self.traffic.settings:
                self._read_everything(set_id, holders)
        for broker in cluster.members().values():
            broker.engine.ledger.check()
            for set_id in broker.engine.replicas:
                if scrub(broker, set_id):
                    raise Broken("damaged copy kept", set_id, f"in the end, on {broker.name}")

    def _read_everything(self, set_id: int, holders: list[ClusterBroker]) -> None:
        leader = self.cluster.leader(set_id)
        assert leader is not None
        called = self.traffic.now()
        partition = leader.engine.replica(set_id).partition
        partition.check()
        stored = stored_on(set_id, leader)
        for holder in holders:
            if stored_on(set_id, holder) != stored:
                raise Broken("replicas differ", set_id, f"{holder.name} reads something else than {leader.name}")
        groups = [group for group in QUEUE_GROUPS if group in partition.groups()]
        dead: list[tuple[str, int]] = []
        for group in groups:
            for letter in self.traffic.see_dead(set_id, group, limit=100_000):
                dead.append((group, letter.offset))
                stored[letter.offset] = letter
        self.cluster.history.add(
            Ended(
                called,
                self.traffic.now(),
                set_id,
                partition.first_offset,
                partition.end_offset,
                tuple(stored[at] for at in sorted(stored)),
                partition.machine_ms,
                tuple(groups),
                tuple(dead),
            )
        )


def stored_on(set_id: int, broker: ClusterBroker) -> dict[int, Stored]:
    """Everything that a broker's replica of a partition can read, from its own disk."""
    partition: Partition = broker.engine.replica(set_id).partition
    stored: dict[int, Stored] = {}
    offset = partition.first_offset
    while refs := partition.batches_from(offset, 1 << 20):
        for ref in refs:
            for at, value in broker.read(set_id, ref).items():
                stored[at] = Stored(at, name_of(value), ref.lane)
            offset = ref.base_offset + ref.count
    return stored


__all__ = ["CLUSTER_CALLS", "CLUSTER_EVENTS", "CLUSTER_TOTALS", "ClusterSimulation", "simulate_cluster", "stored_on"]
