"""The steward: makes this broker hold, serve and lead what the metadata says.

The metadata (replica set 0) says where every replica is and who should lead. The steward reads it after each change
and acts for this one broker: it opens and lets go of replicas, tells the engine the topics' settings, knows where the
messages of a set go, carries out the steps of moves for the sets that are led here (`steps`), and brings leadership to
where it should be. It does no I/O: commands for the metadata are handed out (`take_reports`), and whether another
broker is alive is told to it.

Rules, each of which guards against a loss of data:
- A replica is let go of only when the metadata says that it is *gone*. What the metadata does not know may be what it
  does not know yet: after a restart it stands at its last save.
- A log belongs to one replica id for ever (the ledger remembers which). A broker that is given a set again gets a new
  id, and starts with nothing.
- A replica that is not on this disk is opened only after the metadata has applied all that its log held at the start.
  Before that it could be one that was here, voted, was let go of, and is now remembered only by the old save:
  opened again with an empty log it would vote for what it once outvoted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from lanner.broker.replicas.engine import CLUSTER_SET, SOLE_SEAT, Engine, Seat
from lanner.broker.replicas.replica import Replica
from lanner.broker.steps import REPORT_TICKS, Alive, Steps
from lanner.cluster import Action, Cluster, Holding, ReplicaSet, Topic, encode_report_damage
from lanner.errors import LannerError, NotLeader, StorageDamaged, TopicNotFound
from lanner.raft import Change

OPENS_PER_TURN: Final = 50  # a new topic may have a thousand partitions; the loop goes on meanwhile
TENDED_TICKS: Final = 20  # every set that is led here is looked after once in so many ticks
LEADS_TICKS_MIN: Final = 100  # a leader stays so long; its predecessor may be on its way down, not back up
TRANSFERS_MAX: Final = 4  # hand-overs at the same time, of those that no step waits for
RETRY_TICKS_MIN: Final = 40
RETRY_TICKS_MAX: Final = 1_200
DAMAGE_LEVEL: Final = 2  # the feature level from which on brokers know what to do about a damaged copy
LEARNED_MAX: Final = 4_096
_BIRTH_TICKS: Final = frozenset({1, 2, 4, 8, 16})
_OPEN_STEPS: Final = frozenset({Action.ADD_LEARNER, Action.CATCH_UP})  # leadership may change during these


class Steward:
    """One broker's part in its cluster."""

    def __init__(self, engine: Engine, node_id: str) -> None:
        self.engine = engine
        self.node_id = node_id
        self.founding: bytes | None = None  # what the metadata's first leader should propose
        self._seat = SOLE_SEAT  # of the metadata
        self._metadata_nodes: Mapping[int, str] = {}
        self._steps = Steps(engine, self.route)
        self._cluster: Cluster | None = None  # as it was read last
        self._followed_index = -1
        self._held_back_index = 0  # nothing new is opened before the metadata stands here
        self._topics: dict[str, Topic] = {}
        self._unopened: set[int] = set()  # on this disk
        self._wanted: dict[int, Holding] = {}  # not open yet
        self._routes: dict[tuple[int, int], str] = {}
        self._learned: OrderedDict[tuple[int, int], str] = OrderedDict()
        self._births: dict[int, int] = {}  # sets that should be led from here, by when they were opened
        self._led_since: dict[int, tuple[int, int]] = {}  # set → (term, tick)
        self._retries: dict[int, tuple[int, int]] = {}  # set → (not before this tick, wait after that)
        self._round: list[int] = []
        self._recorded_damage: set[int] = set()  # sets whose copy here is damaged by the record
        self._damage_ticks: dict[int, int] = {}  # set → when its damage is reported again
        self._ticks = 0
        self._alive: Alive = _nobody
        self._founding_tick = 0

    # ------------------------------------------------------------------ what is held here

    def open_metadata(self, seat: Seat = SOLE_SEAT, nodes: Mapping[int, str] | None = None) -> Replica:
        """Open set 0 as it was recorded when this broker became part of its cluster: before that it holds nothing."""
        self._seat, self._metadata_nodes = seat, dict(nodes or {})
        self._unopened = set(self.engine.ledger.sets()) - {CLUSTER_SET}
        replica = self.engine.open_set(CLUSTER_SET, seat)
        self._held_back_index = replica.node.last_index
        return replica

    @property
    def settled(self) -> bool:
        """Whether everything that the metadata names for this broker, as far as that is known, is open."""
        return self._cluster is not None and not self._wanted

    def follow(self) -> None:
        """Do what the metadata says; cheap when it says nothing new."""
        cluster = self.engine.cluster
        index = cluster.shape_index
        if cluster is not self._cluster:  # the first look, or a snapshot replaced it: everything may be new
            self._cluster = cluster
        elif index == self._followed_index:
            if self._wanted or self._held_back_index:
                self._open_some()
                self._name_damaged(cluster)
            return
        self._followed_index = index
        self._routes.clear()
        wanted = {holding.set_id: holding for holding in self._holdings(cluster) if holding.set_id != CLUSTER_SET}
        self._let_go(cluster, wanted)
        self._recall_damage(cluster, wanted)
        running = self.engine.replicas.keys() | self.engine.stopped.keys() | self.engine.ledger.damaged.keys()
        self._wanted = {set_id: one for set_id, one in wanted.items() if set_id not in running}
        self._tell_settings(cluster)
        self._open_some()
        self._name_damaged(cluster)

    def _holdings(self, cluster: Cluster) -> Iterable[Holding]:
        if cluster.cluster_id:
            return cluster.holdings(self.node_id)
        if self._seat.founders != {self._seat.replica_id}:
            return ()
        return (  # one broker that was never told of others has everything
            Holding(set_id, topic.name, partition, self._seat.replica_id, True, self._seat.founders)
            for topic in cluster.topics.values()
            for partition, set_id in enumerate(topic.set_ids)
        )

    def _let_go(self, cluster: Cluster, wanted: Mapping[int, Holding]) -> None:
        """Close what is gone for good, whatever else is here."""
        engine = self.engine
        held = {set_id: replica.node.node_id for set_id, replica in engine.replicas.items() if set_id != CLUSTER_SET}
        held |= {set_id: engine.ledger.state(set_id).replica_id for set_id in (*self._unopened, *engine.stopped)}
        held |= {set_id: one.replica_id for set_id, one in engine.ledger.damaged.items()}
        for set_id, replica_id in held.items():
            holding = wanted.get(set_id)
            if holding is not None and holding.replica_id == replica_id:
                continue
            if cluster.is_gone(set_id, replica_id):
                engine.close_set(set_id, _why_gone(cluster, set_id))
                self._unopened.discard(set_id)
                self._births.pop(set_id, None)

    def _recall_damage(self, cluster: Cluster, wanted: Mapping[int, Holding]) -> None:
        """Have a copy replaced that the record calls damaged, also after a restart, which forgets what was read."""
        self._recorded_damage = {
            set_id
            for set_id, holding in wanted.items()
            if (record := cluster.sets.get(set_id)) is not None and holding.replica_id in record.damaged
        }
        for set_id in self._recorded_damage & self.engine.replicas.keys():
            self.engine.replicas[set_id].node.reluctant = True

    def _name_damaged(self, cluster: Cluster) -> None:
        """Find out whose log a damaged one was, where its own row does not say any more.

        It is that of the replica which the metadata names for this broker, or of one before that; never of a later
        one, as a broker keeps one copy at a time. So it is enough to have the one that is named replaced.
        """
        ledger = self.engine.ledger
        if self._held_back_index or all(one.replica_id for one in ledger.damaged.values()):
            return
        named = {holding.set_id: holding.replica_id for holding in self._holdings(cluster)}
        for set_id, one in list(ledger.damaged.items()):
            if one.replica_id:
                continue
            if set_id in named:
                ledger.close_damaged(set_id, one.error, named[set_id])
            elif cluster.cluster_id:
                self.engine.close_set(set_id, _why_gone(cluster, set_id))

    def _open_some(self) -> None:
        engine, cluster = self.engine, self.engine.cluster
        metadata = engine.replicas[CLUSTER_SET].node
        if self._held_back_index:
            # What the log had behind its commits may have been taken back by a new leader.
            self._held_back_index = min(self._held_back_index, metadata.last_index)
            if metadata.applied_index >= self._held_back_index:
                self._held_back_index = 0
        opened = 0
        for set_id, holding in list(self._wanted.items()):
            if set_id in self._unopened:
                if engine.ledger.state(set_id).replica_id != holding.replica_id:
                    continue  # the metadata has yet to say what became of the other one
            elif self._held_back_index:
                continue
            del self._wanted[set_id]
            self._unopened.discard(set_id)
            self._open(cluster, holding)
            opened += 1
            if opened >= OPENS_PER_TURN:
                return

    def _open(self, cluster: Cluster, holding: Holding) -> None:
        topic = cluster.topics.get(holding.topic)
        if topic is not None:
            self.engine.change_settings(holding.set_id, topic.settings)
        try:
            replica = self.engine.open_set(holding.set_id, Seat(holding.replica_id, holding.founders))
        except StorageDamaged as error:
            self.engine.closing.damaged(holding.set_id, error)
            return
        replica.node.reluctant = holding.set_id in self._recorded_damage
        record = cluster.sets.get(holding.set_id)
        if record is not None and record.preferred == holding.replica_id and replica.node.last_index == 0:
            self._births[holding.set_id] = self._ticks

    def _tell_settings(self, cluster: Cluster) -> None:
        """Topics that changed since the last look; rows are replaced, never changed in place."""
        known, engine = self._topics, self.engine
        for name, topic in cluster.topics.items():
            if known.get(name) is not topic:
                known[name] = topic
                for set_id in topic.set_ids:
                    if set_id in engine.replicas:
                        engine.change_settings(set_id, topic.settings)
        if len(known) > len(cluster.topics):
            self._topics = {name: topic for name, topic in known.items() if name in cluster.topics}

    # ------------------------------------------------------------------ where messages go

    def route(self, set_id: int, replica_id: int) -> str | None:
        """The node id of the broker that has a replica; None: not known here."""
        key = (set_id, replica_id)
        found = self._routes.get(key)
        if found is None:
            record = None if self._cluster is None else self._cluster.sets.get(set_id)
            replica = None if record is None else record.replica(replica_id)
            if replica is not None:
                found = self._routes[key] = replica.node_id
            else:
                found = self._learned.get(key)
                if found is None and set_id == CLUSTER_SET:
                    found = self._metadata_nodes.get(replica_id)
        return found

    def learn_route(self, set_id: int, replica_id: int, node_id: str) -> None:
        """Take note that a message of this replica came from there; for what the metadata has not said yet."""
        key = (set_id, replica_id)
        if key in self._routes or self._learned.get(key) == node_id or set_id not in self.engine.replicas:
            return
        self._learned[key] = node_id
        while len(self._learned) > LEARNED_MAX:
            self._learned.popitem(last=False)

    # ------------------------------------------------------------------ time

    def tick(self, alive: Alive) -> None:
        """Carry out steps, remove what strays, bring leadership to where it should be."""
        self._ticks += 1
        self._alive = alive
        cluster = self._cluster
        if cluster is None:
            return
        self._steps.tick(cluster, alive)
        self._tend_births()
        if not self._round:
            self._round = list(self.engine.replicas)
        share = -(-len(self.engine.replicas) // TENDED_TICKS)
        chosen, self._round = self._round[:share], self._round[share:]
        for set_id in chosen:
            self._tend(cluster, set_id)

    def _tend_births(self) -> None:
        """Have the preferred replica of a new set stand as soon as the others may have it, without a timeout."""
        for set_id, opened in list(self._births.items()):
            age = self._ticks - opened
            replica = self.engine.replicas.get(set_id)
            if replica is None or replica.node.leader_id or replica.node.last_index or age > max(_BIRTH_TICKS):
                del self._births[set_id]
            elif age in _BIRTH_TICKS:
                replica.node.campaign()
                self.engine.wake(set_id)

    def _tend(self, cluster: Cluster, set_id: int) -> None:
        replica = self.engine.replicas.get(set_id)
        if replica is None or replica.node.leadership is None or not replica.has_peers:
            self._led_since.pop(set_id, None)
            if replica is not None:
                self._doubt_leader(cluster, replica)
            return
        node = replica.node
        if not replica.leads:
            if node.reluctant:  # what is damaged may be what it would have to apply first
                self._leave_to_another(replica)
            return
        term, since = self._led_since.get(set_id, (0, 0))
        if term != node.term:
            since = self._ticks
            self._led_since[set_id] = (node.term, since)
        self._look_for_silent_peers(replica)
        record = cluster.sets.get(set_id)
        try:
            if node.reluctant and self._leave_to_another(replica):
                return
            if (
                not self._remove_stray(cluster, replica)
                and record is not None
                and not self._add_founder(cluster, replica)
                and not self._give_vote_back(cluster, record, replica)
            ):
                if node.node_id == record.preferred:
                    self._retries.pop(set_id, None)
                elif self._ticks - since >= LEADS_TICKS_MIN:
                    self._bring_home(cluster, record, replica)
        except LannerError:
            return  # not now; it is looked at again within a second

    def _doubt_leader(self, cluster: Cluster, replica: Replica) -> None:
        """Wake a follower of a damaged copy: that may be closed, and say nothing more, while its broker is heard."""
        record = cluster.sets.get(replica.set_id)
        if record is not None and replica.node.leader_id in record.damaged:
            self.engine.wake(replica.set_id)

    def _leave_to_another(self, replica: Replica) -> bool:
        """Have a damaged set that is led here led where it is whole; False when no other replica is fit to lead."""
        successor = self._steps.successor(replica.set_id, replica.node, self._alive)
        if successor and not replica.node.transferee:
            replica.node.transfer(successor)
            self.engine.wake(replica.set_id)
        return bool(successor)

    def _look_for_silent_peers(self, replica: Replica) -> None:
        """Wake a set with a replica that is not heard on a broker that is: it may wait for a heartbeat."""
        leadership = replica.node.leadership
        assert leadership is not None, "it leads"
        for peer, progress in leadership.progress.items():
            if not progress.heard and self._alive(self.route(replica.set_id, peer) or ""):
                self.engine.wake(replica.set_id)
                return

    def _remove_stray(self, cluster: Cluster, replica: Replica) -> bool:
        """Take members out that are gone by the record, one at a time; whether there was one."""
        node = replica.node
        strays = cluster.strays(replica.set_id, node.voters | node.learners)
        if not strays:
            return False
        stray = next((one for one in strays if one != node.node_id), 0)
        if stray:
            node.change_membership(Change.REMOVE, stray)
        elif not node.transferee:
            successor = self._steps.successor(replica.set_id, node, self._alive)
            if successor:
                node.transfer(successor)
        self.engine.wake(replica.set_id)
        return True

    def _add_founder(self, cluster: Cluster, replica: Replica) -> bool:
        """Founders beyond the first five learn the metadata: by the record from the beginning, in the log from here on.

        Only of the metadata, and only while nothing moves there: else a step that is not reported yet explains it.
        """
        if replica.set_id != CLUSTER_SET or any(move.set_id == CLUSTER_SET for move in cluster.moves.values()):
            return False
        node = replica.node
        missing = cluster.routes(CLUSTER_SET).keys() - node.voters - node.learners
        if not missing:
            return False
        node.change_membership(Change.ADD_LEARNER, min(missing))
        self.engine.wake(CLUSTER_SET)
        return True

    def _give_vote_back(self, cluster: Cluster, record: ReplicaSet, replica: Replica) -> bool:
        """Let the replicas vote that do so by the record and only listen.

        A broker that had not heard that a step was taken back may have done it once more when it came to lead.
        """
        node, set_id = replica.node, record.set_id
        if not node.learners or set_id == CLUSTER_SET or any(move.set_id == set_id for move in cluster.moves.values()):
            return False
        for voter in record.voters:
            if voter.replica_id in node.learners:
                node.change_membership(Change.PROMOTE, voter.replica_id)
                self.engine.wake(set_id)
                return True
        return False

    def _bring_home(self, cluster: Cluster, record: ReplicaSet, replica: Replica) -> None:
        """Hand leadership to the replica that should have it, if that is there and keeps up."""
        set_id, node, wanted = record.set_id, replica.node, record.preferred
        not_before, wait = self._retries.get(set_id, (0, RETRY_TICKS_MIN))
        if wanted in record.damaged:
            return  # it would decline
        if self._ticks < not_before or node.transferee or not self._steps.is_fit(set_id, node, wanted, self._alive):
            return
        for move in cluster.moves.values():
            # A step that is under way has its own idea of who leads.
            if move.set_id == set_id and move.started and (move.action not in _OPEN_STEPS or move.source == wanted):
                return
        replicas = self.engine.replicas
        handing_over = sum(1 for one in self._retries if one in replicas and replicas[one].node.transferee)
        if handing_over >= TRANSFERS_MAX:
            return
        self._retries[set_id] = (self._ticks + wait, min(2 * wait, RETRY_TICKS_MAX))
        node.transfer(wanted)
        self.engine.wake(set_id)

    def peer_silent(self, node_id: str) -> None:
        """Take note that a broker is no longer heard: sets that it leads elect, and quiesced sets look around.

        When a process dies its connections end at once, so this comes long before an election timeout.
        """
        for set_id, replica in self.engine.replicas.items():
            node, silent = replica.node, self._replicas_on(set_id, node_id)
            for member in silent:
                node.report_unreachable(member)
            if silent:
                # Whom it follows, or whom it has just voted for: that election ends with nobody.
                if (node.leader_id or node.vote) in silent:
                    node.leader_silent()
                self.engine.wake(set_id)

    def peer_reached(self, node_id: str) -> None:
        """Take note that a broker is reached (again): it may have just started, and its replicas may know no leader.

        A voter would ask around and wake a quiesced set. A learner never asks; so the leader looks after it.
        """
        for set_id, replica in self.engine.replicas.items():
            if replica.node.leadership is not None and self._replicas_on(set_id, node_id):
                self.engine.wake(set_id)

    def _replicas_on(self, set_id: int, node_id: str) -> list[int]:
        record = None if self._cluster is None else self._cluster.sets.get(set_id)
        if record is not None:
            return [replica.replica_id for replica in record.replicas if replica.node_id == node_id]
        node = self.engine.replicas[set_id].node
        return [member for member in node.voters | node.learners if self.route(set_id, member) == node_id]

    # ------------------------------------------------------------------ what others want to know

    def take_reports(self) -> list[bytes]:
        """Return commands for the metadata, to be proposed where it is led. Each comes again until its effect shows."""
        reports = self._steps.take_reports() + self._damage_reports()
        unfounded = self._cluster is not None and not self._cluster.cluster_id
        if self.founding is not None and unfounded and self._founding_tick <= self._ticks:
            if not self.engine.replicas[CLUSTER_SET].leads:
                return reports
            self._founding_tick = self._ticks + RETRY_TICKS_MIN
            reports.append(self.founding)
        return reports

    def _damage_reports(self) -> list[bytes]:
        """Report copies here that are damaged, and soon again until the record has it."""
        cluster, damaged = self._cluster, self.engine.damages.sets.keys() | self._recorded_damage
        if cluster is None or not damaged or cluster.feature_level < DAMAGE_LEVEL:
            self._damage_ticks.clear()
            return []
        moving = {move.set_id for move in cluster.moves.values()}
        reports = []
        for set_id in sorted(damaged - moving - {CLUSTER_SET}):
            number, record = self._replica_here(set_id), cluster.sets.get(set_id)
            due_tick = self._damage_ticks.get(set_id, 0)
            if not number or record is None or len(record.voters) < 2 or due_tick > self._ticks:
                continue
            self._damage_ticks[set_id] = self._ticks + (RETRY_TICKS_MAX if number in record.damaged else REPORT_TICKS)
            reports.append(encode_report_damage(set_id, number, self.node_id))
        return reports

    def _replica_here(self, set_id: int) -> int:
        """Return the id of this broker's replica, also of a closed one; 0 when there is none that is known."""
        replica, closed = self.engine.replicas.get(set_id), self.engine.ledger.damaged.get(set_id)
        if replica is not None:
            return replica.node.node_id
        return 0 if closed is None else closed.replica_id

    def led(self) -> list[tuple[int, int]]:
        """(set, term) of everything that is led here."""
        return [(set_id, replica.node.term) for set_id, replica in self.engine.replicas.items() if replica.leads]

    def lags(self) -> dict[tuple[int, int], int]:
        """How many entries each peer's replica is behind, for the sets that are led here."""
        found = {}
        for set_id, replica in self.engine.replicas.items():
            leadership, last = replica.node.leadership, replica.node.last_index
            if leadership is not None:
                for peer, progress in leadership.progress.items():
                    found[set_id, peer] = last - progress.match_index
        return found

    def hand_over(self) -> int:
        """Ask others to lead, before this broker stops; return how many sets they could lead are still led here."""
        left = 0
        for set_id, replica in self.engine.replicas.items():
            node = replica.node
            if node.leadership is None or not node.voters - {node.node_id}:
                continue
            left += 1
            if not node.transferee:
                record = None if self._cluster is None else self._cluster.sets.get(set_id)
                wanted = 0 if record is None else record.preferred
                successor = self._steps.successor(set_id, node, self._alive, wanted)
                if successor:
                    node.transfer(successor)
                    self.engine.wake(set_id)
        return left


def _nobody(_node_id: str) -> bool:
    return False


def _why_gone(cluster: Cluster, set_id: int) -> LannerError:
    if set_id in cluster.sets:
        return NotLeader("this broker no longer has a replica of the partition; ask again to be shown who leads it")
    return TopicNotFound("the topic was deleted")
