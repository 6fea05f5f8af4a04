"""Text scripts that put a simulated cluster through one situation, and the trace that this must leave.

A script is a list of blocks: commands, a line of dashes, what happened. The whole of a broker takes part: engine,
ledger, partition, metadata, steward, snapshots. Nothing is left to chance but the timeouts, and those are of one seed;
no fault happens unless the script says so. A trace holds what a careful operator would see, not every message: who
comes, goes and leads, who belongs to a set, what callers are told, what every copy holds. The witness looks after
every event.

    brokers 3 | topic orders | publish orders a (via 1) | lease orders work 1000 | ack orders work | polled orders work
    crash 2 | start 2 | wipe 2 | clock 2 3600000 | cut 1 2 | cut 1 > 2 | cut 2 (from everybody) | heal
    move orders 1 4 | add | drain 1 | remove 1 | lead orders 2 | save | run 2000 (ms) | rest (until all is done)
    show orders | show metadata | time orders | snapshots 3 (has it installed any)

Rewrite the traces after a change that is meant: python -m tests.scenarios.cluster_script, and review the difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lanner import batch
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.cluster import (
    BrokerState,
    Cluster,
    encode_create_topic,
    encode_drain_broker,
    encode_move_replica,
    encode_remove_broker,
    encode_transfer_leader,
)
from lanner.errors import LannerError
from lanner.model import TopicSettings
from lanner.partition import Appended, Poll, PollAnswer, Settle, encode_append
from lanner.testing.cluster_broker import Bounds, ClusterBroker
from lanner.testing.cluster_calls import Answered
from lanner.testing.cluster_simulation import stored_on
from lanner.testing.cluster_troubles import Troubles
from lanner.testing.parties import LOST
from lanner.testing.sim_cluster import SimCluster
from tests.scenarios.playing import play, rewrite

FOLDER = Path(__file__).parent / "cluster"
SEED = 1
_LONG_MS = 60_000


class Stage:
    """A cluster in which only the script causes trouble."""

    def __init__(self, nodes: int) -> None:
        self.cluster = SimCluster(
            SEED, nodes, Bounds(segment_bytes=16_384, tail_entries=2, tail_bytes=500, save_ms=200)
        )
        self.troubles = Troubles(self.cluster)
        self.trace: list[str] = []
        self.tokens: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
        self._leaders: dict[int, int] = {}
        self._states: dict[str, str] = {}
        self._members: dict[int, str] = {}
        self._sequence = 0
        self._notes: dict[str, list[str]] = {}
        for broker in self.cluster.brokers.values():
            broker.own_clock.mend()
        self._until(self._founded)
        self.troubles._tend()

    # ------------------------------------------------------------------ time

    def _founded(self) -> bool:
        leader = self.cluster.metadata_leader()
        return leader is not None and bool(leader.engine.cluster.cluster_id)

    def _until(self, condition: Any) -> None:
        end_ms = self.cluster.clock.elapsed_ms + _LONG_MS
        while not condition():
            assert self.cluster.clock.elapsed_ms < end_ms, "it never comes true"
            self._step()

    def _step(self) -> None:
        self.cluster.run_for(10)
        self._note()

    def _note(self) -> None:
        """What changed in the eyes of the leader."""
        cluster = self.cluster
        metadata = self._metadata()
        if metadata is None:
            return
        for record in metadata.brokers.values():
            state = "lost" if record.lost and record.state is not BrokerState.REMOVED else str(record.state)
            if self._states.get(record.node_id, "active") != state:
                self._notes.setdefault(record.name, []).append(f"  {record.node_id} is {state}")
            self._states[record.node_id] = state
        for set_id in metadata.sets:
            leader = cluster.leader(set_id)
            if leader is None:
                continue
            name = self._name(metadata, set_id)
            members = self._belonging(leader, set_id)
            if self._members.get(set_id, members) != members:
                self._notes.setdefault(name, []).append(f"  {name} has {members}")
            self._members[set_id] = members

    def flush(self) -> None:
        """Put what was noted into the trace, subject by subject: how two of them interleave is chance. So is who takes
        over, and how often that changes; who leads in the end should not be."""
        metadata = self._metadata()
        for set_id in metadata.sets if metadata is not None else ():
            leader = self.cluster.leader(set_id)
            if (
                metadata is None
                or leader is None
                or set_id == CLUSTER_SET
                or self._leaders.get(set_id) == leader.number
            ):
                continue
            self._leaders[set_id] = leader.number
            preferred = metadata.routes(set_id).get(metadata.sets[set_id].preferred)
            who = leader.node_id if leader.node_id == preferred else "another than it should be"
            self._notes.setdefault(self._name(metadata, set_id), []).append(
                f"  {self._name(metadata, set_id)} is led by {who}"
            )
        for _, lines in sorted(self._notes.items()):
            self.trace += lines
        self._notes.clear()

    def _metadata(self) -> Cluster | None:
        leader = self.cluster.metadata_leader()
        return None if leader is None else leader.engine.cluster

    @staticmethod
    def _name(metadata: Cluster, set_id: int) -> str:
        return metadata.sets[set_id].topic or "the metadata"

    @staticmethod
    def _belonging(leader: ClusterBroker, set_id: int) -> str:
        node = leader.engine.replica(set_id).node
        learners = f", learners {','.join(map(str, sorted(node.learners)))}" if node.learners else ""
        return f"voters {','.join(map(str, sorted(node.voters)))}{learners}"

    def take_trace(self) -> list[str]:
        self.flush()
        trace, self.trace = self.trace, []
        return trace

    # ------------------------------------------------------------------ commands

    def do(self, command: str) -> None:
        name, *words = command.split()
        getattr(self, f"do_{name}")(*words)
        self._note()

    def _broker(self, word: str) -> ClusterBroker:
        """By its number, or the latest of its name."""
        return self.cluster.brokers[int(word)]

    def _set(self, topic: str) -> int:
        self._until(lambda: (found := self._metadata()) is not None and topic in found.topics)
        metadata = self._metadata()
        assert metadata is not None
        (set_id,) = metadata.topics[topic].set_ids
        return set_id

    def _call(self, set_id: int, begin: Any, through: str = "") -> Any:
        """Ask any broker that runs; what it says, or that it says nothing."""
        told: list[Answered] = []
        running = [broker.number for broker in self.cluster.serving() if broker.opened]
        receiver = int(through) if through else running[0]
        self.cluster.calls.make(set_id, receiver, begin, told.append, lambda: None, 2_000)
        self._until(lambda: bool(told))
        return told[0]

    def _change(self, command: bytes) -> None:
        answered = self._call(CLUSTER_SET, lambda broker, told: broker.engine.propose(0, command, lambda r: told(r, 0)))
        if isinstance(answered.answer, LannerError) or answered.answer is LOST:
            self.trace.append(f"  refused: {answered.answer}")

    def do_topic(self, name: str) -> None:
        settings = TopicSettings(partitions=1, replication=3, backoff_ms=0)
        self._change(encode_create_topic(name, settings, self.cluster.clock.now_ms()))
        self._until(lambda: self.cluster.leader(self._set(name)) is not None)

    def do_publish(self, topic: str, text: str, _at: str = "", through: str = "") -> None:
        set_id = self._set(topic)
        data = batch.encode([f"{text}|".encode()])

        def begin(broker: ClusterBroker, told: Any) -> None:
            broker.engine.propose(set_id, encode_append(broker.leader_ms(), data), lambda result: told(result, 0))

        answer = self._call(set_id, begin, through).answer
        said = (
            f"is acknowledged at {answer.base_offset}" if isinstance(answer, Appended) else f"is not: {_shown(answer)}"
        )
        self.trace.append(f"  {text} {said}")

    def do_lease(self, topic: str, group: str, lease_ms: str) -> None:
        set_id = self._set(topic)
        self._sequence += 1
        poll = Poll(group, "member", self._sequence, 1, lease_ms=int(lease_ms))
        answered = self._call(set_id, lambda broker, told: broker.engine.ask(set_id, poll, told))
        if not isinstance(answered.answer, PollAnswer):
            self.trace.append(f"  {group} gets nothing: {_shown(answered.answer)}")
            return
        for lease in answered.answer.leases:
            self.tokens.setdefault((topic, group), []).append((answered.index, lease.first_offset, lease.count))
            self.trace.append(f"  {group} gets {lease.first_offset}, attempt {lease.attempt}")

    def do_ack(self, topic: str, group: str) -> None:
        set_id = self._set(topic)
        items = [(token, first, count, 1, -1, "") for token, first, count in self.tokens.pop((topic, group), [])]
        request = Settle(group, items)
        answer = self._call(set_id, lambda broker, told: broker.engine.ask(set_id, request, told)).answer
        self.trace.append(f"  {group} acks: {_shown(answer)}")

    def do_crash(self, who: str) -> None:
        self.cluster.crash(self._broker(who), down_ms=10**9)

    def do_start(self, who: str) -> None:
        broker = self._broker(who)
        self.cluster.start(broker, broker.life)

    def do_wipe(self, who: str) -> None:
        came = self.troubles.wipe(self._broker(who))
        came.own_clock.mend()
        self.trace.append(f"  {came.node_id} comes in its place")

    def do_add(self) -> None:
        came = self.troubles.arrive(f"broker{len(self.cluster.brokers) + 1}")
        came.own_clock.mend()
        self.trace.append(f"  {came.node_id} comes")

    def do_clock(self, who: str, ahead_ms: str) -> None:
        self._broker(who).own_clock.jump(int(ahead_ms))

    def do_cut(self, one: str, other: str = "", third: str = "") -> None:
        network = self.cluster.network
        if third:
            network.cut(int(one), int(third))
        elif other:
            network.split([int(one)], [int(other)])
        else:
            network.split([int(one)], [number for number in self.cluster.brokers if number != int(one)])

    def do_heal(self) -> None:
        self.cluster.network.heal()

    def do_move(self, topic: str, source: str, target: str) -> None:
        names = self._broker(source).node_id, self._broker(target).node_id
        self._change(encode_move_replica(self._set(topic), *names, self.cluster.clock.now_ms()))

    def do_drain(self, who: str) -> None:
        self._change(encode_drain_broker(self._broker(who).node_id, self.cluster.clock.now_ms()))

    def do_remove(self, who: str) -> None:
        self._change(encode_remove_broker(self._broker(who).node_id, self.cluster.clock.now_ms()))

    def do_lead(self, topic: str, who: str) -> None:
        """Wish for a leader, and wait until it is so."""
        set_id, broker = self._set(topic), self._broker(who)
        self._change(encode_transfer_leader(set_id, broker.node_id))
        self._until(lambda: self.cluster.leader(set_id) is broker)

    def do_save(self) -> None:
        """Long enough for every broker to bring its table up to date, and to cut its logs."""
        self.do_run("2000")

    def do_run(self, duration_ms: str) -> None:
        for _ in range(int(duration_ms) // 10):
            self._step()

    def do_rest(self) -> None:
        """Until every plan is carried out."""
        self._until(lambda: (found := self._metadata()) is not None and not found.moves)

    def do_time(self, topic: str) -> None:
        """The time of the partition's last decision, against the true one."""
        leader = self.cluster.leader(self._set(topic))
        assert leader is not None
        ahead_ms = leader.engine.replica(self._set(topic)).partition.machine_ms - self.cluster.clock.now_ms()
        late = "in time" if ahead_ms <= 500 else f"{ahead_ms} ms ahead"
        self.trace.append(f"  {topic} is {late}")

    def do_snapshots(self, who: str) -> None:
        """Whether a broker was brought back by snapshots since its start."""
        completed = self._broker(who).engine.installs.completed
        self.trace.append(f"  {self._broker(who).node_id} has installed {'snapshots' if completed else 'nothing'}")

    def do_show(self, what: str) -> None:
        """Every replica of a set, once the latest has reached those who can be reached."""
        self.do_run("300")
        self.flush()
        metadata = self._metadata()
        assert metadata is not None
        set_id = CLUSTER_SET if what == "metadata" else self._set(what)
        for replica in metadata.sets[set_id].replicas:
            number = self.cluster.number_of(replica.node_id)
            broker = self.cluster.brokers[number or 0]
            if not broker.opened or set_id not in broker.engine.replicas:
                self.trace.append(f"  replica {replica.replica_id} on {replica.node_id}: not there")
                continue
            node = broker.engine.replica(set_id).node
            role = "learner" if node.node_id in node.learners else "voter"
            held = "" if set_id == CLUSTER_SET else f", holds {' '.join(_held(set_id, broker)) or 'nothing'}"
            self.trace.append(f"  replica {replica.replica_id} on {replica.node_id}: {role}{held}")


def _held(set_id: int, broker: ClusterBroker) -> list[str]:
    return [message.value for _, message in sorted(stored_on(set_id, broker).items())]


def _shown(answer: Any) -> str:
    if answer is LOST:
        return "no answer"
    return type(answer).__name__ if isinstance(answer, LannerError) else str(answer)


def played(text: str) -> str:
    return play(text, "brokers", lambda words: Stage(int(words[0])))


if __name__ == "__main__":
    rewrite(FOLDER, played)
