"""A replica set in one process, driven from one seed through everything that can go wrong with networks and disks.

Every message is encoded and decoded. The network drops, doubles, delays and reorders, and cuts links one way or both. A
disk takes its time; a crash loses the writes that were not done, and some of those that were done were never reported.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from lanner.errors import ConflictError, NotLeader, Overloaded, ServiceUnavailable, ValidationError
from lanner.raft import (
    Change,
    Config,
    Entry,
    HardState,
    Membership,
    Message,
    MessageKind,
    RaftNode,
    Ready,
    Restored,
    Role,
    Snapshot,
    decode_message,
    encode_message,
    find_memberships,
)
from tests.unit.raft.witness import Violation, Witness


class Disk:
    """What survives a crash."""

    def __init__(self, bootstrap: Membership) -> None:
        self.hard_state = HardState(0, 0)
        self.compacted_index = 0
        self.compacted_term = 0
        self.log: list[Entry] = []
        self.saved_index = 0
        self.saved_digest = 0
        self.saved_membership = bootstrap

    @property
    def last_index(self) -> int:
        return self.compacted_index + len(self.log)

    def store(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.entries:
            place = ready.entries[0].index - self.compacted_index - 1
            assert 0 <= place <= len(self.log), "a hole in the log"
            self.log[place:] = ready.entries

    def entries(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        found: list[Entry] = []
        for index in range(first, last + 1):
            found.append(self.log[index - self.compacted_index - 1])
            bytes_max -= len(found[-1].payload)
            if bytes_max < 0:
                break
        return found

    def term(self, index: int) -> int:
        return self.log[index - self.compacted_index - 1].term

    def holds(self, index: int, term: int) -> bool:
        return index <= self.compacted_index or (index <= self.last_index and self.term(index) == term)

    def compact(self, index: int) -> int:
        term = self.compacted_term if index == self.compacted_index else self.term(index)
        del self.log[: index - self.compacted_index]
        self.compacted_index, self.compacted_term = index, term
        return term

    def flip(self, snapshot: Snapshot, digest: int) -> None:
        self.log = []
        self.compacted_index, self.compacted_term = snapshot.index, snapshot.term
        self.saved_index, self.saved_digest = snapshot.index, digest
        self.saved_membership = Membership(snapshot.voters, snapshot.learners)

    def restored(self) -> Restored:
        last = self.last_index
        return Restored(
            self.hard_state,
            *self.saved_membership,
            self.compacted_index,
            self.compacted_term,
            last,
            self.log[-1].term if self.log else self.compacted_term,
            self.saved_index,
            find_memberships(self, self.saved_index + 1, last),
        )


class Flip(NamedTuple):
    snapshot: Snapshot
    digest: int


class Host:
    """One node with its disk, its machine, and the writes that are on their way."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.disk = Disk(cluster.bootstrap)
        self.node: RaftNode | None = None
        self.wiped = False
        self.start()

    def start(self) -> None:
        settings = self.cluster.settings
        self.node = RaftNode(Config(self.node_id, **settings), self.disk.restored(), self.disk, self.cluster.rng)
        self.writes: deque[Ready | Flip] = deque()
        self.applied, self.digest = self.disk.saved_index, self.disk.saved_digest
        self.seen_commit = self.applied
        self.sending: dict[int, int] = {}  # peer → ticks until its snapshot counts as failed
        self.cluster.witness.restarted(self.node)

    def crash(self, kept: int) -> None:
        """The first `kept` of the writes on their way were done; nobody was told."""
        for _ in range(kept):
            self._write(self.writes.popleft())
        self.node = None

    def log_entries(self, first: int, last: int) -> list[Entry]:
        """Entries as the node sees them: its memory first, else its disk."""
        assert self.node is not None
        found: list[Entry] = []
        while first <= last:
            found += self.node.tail.pick(first, last - first + 1, 1 << 40)
            first = found[-1].index + 1
        return found[: len(found) - max(0, found[-1].index - last)] if found else []

    def pump(self) -> None:
        node, cluster = self.node, self.cluster
        if node is None:
            return
        cluster.witness.look(self, cluster.disks)
        while node.has_ready():
            ready = node.ready()
            for message in ready.messages:
                cluster.send(message, self)
            cluster.witness.look(self, cluster.disks)
            if ready.committed:
                cluster.witness.applied(self, ready.committed)
                node.applied(self.applied)
            for peer in ready.snapshots:
                self._send_snapshot(peer)
            if ready.must_store or self.writes:
                self.writes.append(ready)
            else:
                node.advance(ready)
        cluster.witness.look(self, cluster.disks)

    def _send_snapshot(self, peer: int) -> None:
        assert self.node is not None
        disk = self.disk
        self.cluster.snapshots[disk.saved_index] = disk.saved_digest
        self.cluster.send(self.node.snapshot_message(peer, disk.saved_index), self)
        self.sending[peer] = 30
        self.cluster.facts["snapshots"] += 1

    def _write(self, write: Ready | Flip) -> None:
        if isinstance(write, Flip):
            self.disk.flip(*write)
        else:
            self.disk.store(write)

    def finish_write(self) -> None:
        if self.node is None or not self.writes:
            return
        write = self.writes.popleft()
        self._write(write)
        if isinstance(write, Flip):
            self.applied, self.digest = write.snapshot.index, write.digest
            self.cluster.witness.installed(self.node_id, *write)
            self.node.installed(write.snapshot)
            self.cluster.facts["installs"] += 1
        else:
            self.node.advance(write)
        while self.writes and isinstance(self.writes[0], Ready) and not self.writes[0].must_store:
            later = self.writes.popleft()
            assert isinstance(later, Ready)
            self.node.advance(later)

    def install(self) -> None:
        wanted = None if self.node is None else self.node.installing
        if self.node is not None and wanted is not None and self.node.begin_install(wanted):
            self.writes.append(Flip(wanted, self.cluster.snapshots[wanted.index]))

    def save(self, compact_to: float) -> None:
        node, disk = self.node, self.disk
        if node is None or node.following.flipping or any(isinstance(write, Flip) for write in self.writes):
            return
        disk.saved_index, disk.saved_digest = self.applied, self.digest
        disk.saved_membership = node.membership_at(self.applied)
        to = disk.compacted_index + int((disk.saved_index - disk.compacted_index) * compact_to)
        if to > disk.compacted_index:
            node.compacted(to, disk.compact(to))

    def tick(self) -> None:
        assert self.node is not None
        self.node.tick()
        for peer in list(self.sending):
            self.sending[peer] -= 1
            if self.sending[peer] <= 0:
                del self.sending[peer]
                self.node.report_snapshot(peer, False)


class Cluster:
    """Hosts, the network between them, and the hand that disturbs both."""

    def __init__(self, seed: int, voters: int, *, faults: bool = True) -> None:
        self.rng = random.Random(seed)
        self.bootstrap = Membership(frozenset(range(1, voters + 1)), frozenset())
        self.witness = Witness(self.bootstrap)
        self.facts: Counter[str] = Counter()
        self.settings = {
            "election_ticks": 8,
            "heartbeat_ticks": 2,
            "uncommitted_bytes_max": 600,
            "committed_bytes_max": 120,
            "append_bytes_max": 90,
            "append_entries_max": 8,
            "inflight_messages_max": 4,
            "inflight_bytes_max": 250,
            "held_bytes_max": 100,
        }
        self.snapshots: dict[int, int] = {}  # the content of the snapshot at an index
        self.frames: list[tuple[int, int, bytes]] = []
        self.cuts: set[tuple[int, int]] = set()
        self.drop_rate = self.rng.choice((0.0, 0.02, 0.1)) if faults else 0.0
        self.double_rate = self.rng.choice((0.0, 0.05)) if faults else 0.0
        self.bounce_rate = 0.1 if faults else 0.0
        self.hosts: dict[int, Host] = {}
        for node_id in sorted(self.bootstrap.voters):
            self.hosts[node_id] = Host(self, node_id)
        self.next_id = voters + 1
        self.slow = self.rng.randint(0, voters)  # the disk of this one takes far longer
        self.size = voters

    @property
    def disks(self) -> dict[int, Disk]:
        return {node_id: host.disk for node_id, host in self.hosts.items()}

    def leaders(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.node is not None and host.node.role is Role.LEADER]

    # ------------------------------------------------------------------ the network

    def send(self, message: Message, host: Host) -> None:
        self.witness.sent(message, host)
        if message.kind == MessageKind.VOTE:
            self.facts["candidacies"] += 1
        if (message.sender, message.receiver) in self.cuts or self.rng.random() < self.drop_rate:
            return
        frame = b"".join(encode_message(message))
        self.frames.append((message.sender, message.receiver, frame))
        if self.rng.random() < self.double_rate:
            self.frames.append(self.frames[-1])

    def deliver(self) -> None:
        """One message arrives: mostly one of the older ones, sometimes any."""
        if not self.frames:
            return
        reach = len(self.frames) if self.rng.random() < 0.1 else min(len(self.frames), 4)
        sender, receiver, frame = self.frames.pop(self.rng.randrange(reach))
        host = self.hosts.get(receiver)
        if host is None or host.node is None or (sender, receiver) in self.cuts:
            return
        host.node.step(decode_message(frame))
        host.pump()

    # ------------------------------------------------------------------ what can happen

    def tick(self) -> None:
        for host in self.hosts.values():
            if host.node is not None and self.rng.random() < 0.95:
                host.tick()
                host.pump()

    def write(self) -> None:
        busy = [host for host in self.hosts.values() if host.writes and host.node is not None]
        if busy:
            host = self.rng.choice(busy)
            if host.node_id == self.slow and self.rng.random() < 0.9:
                return
            before = host.disk.hard_state
            for _ in range(self.rng.choice((1, 1, 2, 5))):
                host.finish_write()
            host.pump()
            if host.disk.hard_state != before and self.rng.random() < self.bounce_rate:
                host.crash(0)  # just after a vote went out is the most delicate moment
                host.start()
                self.facts["crashes"] += 1

    def on_leader(self, act: Callable[[RaftNode, Host], object]) -> None:
        leaders = self.leaders()
        if not leaders:
            return
        host = self.rng.choice(leaders)
        assert host.node is not None
        try:
            act(host.node, host)
        except (NotLeader, Overloaded, ConflictError, ServiceUnavailable, ValidationError):
            self.facts["refusals"] += 1
        if self.rng.random() < 0.8:
            host.pump()

    def propose(self) -> None:
        payload = self.rng.randbytes(self.rng.choice((1, 5, 30, 100)))
        self.on_leader(lambda node, _: [node.propose(payload) for _ in range(self.rng.choice((1, 1, 4)))])

    def transfer(self) -> None:
        def hand_over(node: RaftNode, _: Host) -> None:
            node.transfer(self.rng.choice(sorted(node.voters)))
            self.facts["transfers"] += 1

        self.on_leader(hand_over)

    def change(self) -> None:
        def step(node: RaftNode, _: Host) -> None:
            change, node_id = self._pick_change(node)
            node.change_membership(change, node_id)
            self.witness.membership_proposed(node)
            self.facts["changes"] += 1

        self.on_leader(step)

    def _pick_change(self, node: RaftNode) -> tuple[Change, int]:
        """A step that a sensible operator might take: it leaves a majority that can still come back."""
        gone = [node_id for node_id in sorted(node.voters | node.learners) if self.hosts[node_id].wiped]
        if gone and self.rng.random() < 0.7:
            return Change.REMOVE, gone[0]
        learners = sorted(node.learners - set(gone))
        if learners and self.rng.random() < 0.6:
            return Change.PROMOTE, self.rng.choice(learners)
        if len(node.voters) >= self.size and not gone and self.rng.random() < 0.6:
            change = self.rng.choice((Change.REMOVE, Change.REMOVE, Change.DEMOTE))
            return change, self.rng.choice(sorted(node.voters if len(node.voters) > 2 else node.learners | {0}))
        if len(node.voters | node.learners) > self.size + 1:
            raise ConflictError("large enough")
        node_id = self.next_id
        self.next_id += 1
        self.hosts[node_id] = Host(self, node_id)
        return (Change.ADD_VOTER if self.rng.random() < 0.2 else Change.ADD_LEARNER), node_id

    def save(self) -> None:
        host = self.rng.choice(list(self.hosts.values()))
        host.save(self.rng.choice((0.0, 0.5, 1.0, 1.0)))
        host.pump()

    def install(self) -> None:
        for host in self.hosts.values():
            host.install()
            host.pump()

    def crash(self) -> None:
        host = self.rng.choice([host for host in self.hosts.values() if not host.wiped])
        if host.node is not None:
            host.crash(self.rng.randint(0, len(host.writes)))
            self.facts["crashes"] += 1

    def restart(self) -> None:
        for host in self.hosts.values():
            if host.node is None and not host.wiped and self.rng.random() < 0.5:
                host.start()
                host.pump()

    def wipe(self) -> None:
        """A disk is lost for good, when the set can bear it. It never returns under its id."""
        host = self.rng.choice(list(self.hosts.values()))
        membership = self.witness.memberships[-1][1]
        gone = {node_id for node_id, other in self.hosts.items() if other.wiped} | {host.node_id}
        for other in self.hosts.values():
            if other.wiped or other.node_id not in membership.voters | membership.learners:
                continue
            if other.node is None or other.node.memberships.current != membership:
                return  # somebody is down, or goes by another membership, which might not bear it
        if len(membership.voters - gone) < len(membership.voters) // 2 + 1:
            return
        self.frames.clear()  # nor may an old message bring another membership back
        host.crash(0)
        host.wiped = True
        self.facts["wipes"] += 1

    def split(self) -> None:
        ids = sorted(self.hosts)
        kind = self.rng.choice(("halves", "one way", "alone", "leader deaf"))
        self.facts["splits"] += 1
        if kind == "halves":
            half = set(self.rng.sample(ids, len(ids) // 2))
            self.cuts |= {(a, b) for a in ids for b in ids if (a in half) != (b in half)}
            return
        leaders = self.leaders()
        chosen = leaders[0].node_id if leaders and kind == "leader deaf" else self.rng.choice(ids)
        self.cuts |= {(other, chosen) for other in ids}
        if kind == "alone":
            self.cuts |= {(chosen, other) for other in ids}
        elif kind == "one way" and self.rng.random() < 0.5:
            self.cuts = {(b, a) for a, b in self.cuts}

    def heal(self) -> None:
        self.cuts.clear()

    def report_unreachable(self) -> None:
        self.on_leader(lambda node, _: node.report_unreachable(self.rng.choice(sorted(self.hosts))))

    # ------------------------------------------------------------------ a life

    def run(self, steps: int) -> None:
        """Faults and work, with every invariant after every step."""
        actions: list[tuple[Callable[[], None], float]] = [
            (self.deliver, 90),
            (self.tick, 10),
            (self.write, 30),
            (self.propose, 10),
            (self.transfer, 0.3),
            (self.change, 1.5),
            (self.save, 1.5),
            (self.install, 2),
            (self.crash, 0.2),
            (self.restart, 1.2),
            (self.wipe, 0.3),
            (self.split, 0.15),
            (self.heal, 0.7),
            (self.report_unreachable, 0.5),
        ]
        chosen = self.rng.choices([action for action, _ in actions], [weight for _, weight in actions], k=steps)
        for number, action in enumerate(chosen):
            action()
            if number % 25 == 0:
                self.witness.compare(self.hosts.values())
        self.facts["elections"] += len(self.witness.leaders)

    def converge(self, rounds: int = 400) -> None:
        """Faults off: everybody who can must come to the same state, with everything that was committed."""
        self.cuts.clear()
        self.drop_rate = self.double_rate = self.bounce_rate = 0.0
        for host in self.hosts.values():
            if host.node is None and not host.wiped:
                host.start()
        start = self.witness.committed_index
        for number in range(rounds):
            self.tick()
            self.install()
            self.settle()
            if any(entry.payload == b"the end" for entry in self.witness.committed[start:]):
                if self._converged():
                    self.witness.compare(self.hosts.values())
                    return
            elif number % 10 == 0:
                self.on_leader(lambda node, _: node.propose(b"the end"))
        raise Violation(
            f"convergence: {[(host.node_id, host.node and host.node.status()) for host in self.hosts.values()]}"
        )

    def settle(self) -> None:
        """Let messages and writes run until there are none; nodes that never fall silent are broken."""
        for _ in range(10_000):
            if not self.frames and not any(host.writes for host in self.hosts.values() if host.node is not None):
                return
            self.deliver()
            self.write()
        raise Violation("convergence: the nodes keep talking although nothing happens")

    def _converged(self) -> bool:
        leaders = self.leaders()
        if len(leaders) != 1 or leaders[0].node is None:
            return False
        leader = leaders[0].node
        members = [self.hosts[node_id] for node_id in leader.voters | leader.learners]
        return all(
            host.wiped or (host.applied == leader.last_index and host.digest == leaders[0].digest) for host in members
        )
