"""The witness of a simulated cluster: what must hold in every replica set whatever happens, seen from outside.

It sees every message, every entry that is handed out to be stored or applied, every change of role, term and commit
index, and what each disk holds. It trusts nothing that a node says of itself without holding it against what was
committed anywhere before. Looking costs little, because only what has changed since the last look is looked at:

- *election safety*: one leader a term; one vote a node and term, and none that the disk does not hold;
- *log matching*: what is stored as entry i of term t is the same everywhere, and follows the same entry;
- *leader completeness*: who is elected has everything that was committed in earlier terms;
- *committed is immutable*: of entry i every node commits and applies the same, now and after every restart; what a
  leader commits lies on a majority of disks and reaches into its own term;
- *state machine safety*: machines that applied the same index have the same rows;
- *monotonic*: term, commit and applied index never go back in a life, what is durable not even between lives;
- *membership*: changes by one voter, is proposed only by leaders that have committed, and is what the log says;
- *decisions*: none is committed that was made before its leader had applied what earlier leaders had committed;
- *reluctance*: a copy that is known to be damaged does not stand for leader, unless nobody has led for long.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.broker.replicas.replica import Replica
from lanner.partition.records import DECISION_KIND, Decision, decode_decision
from lanner.raft import Change, Entry, EntryKind, HardState, Membership, Message, MessageKind, RaftNode, Role
from lanner.raft.electing import DECLINED_MAX
from lanner.testing.cluster_broker import ClusterBroker
from lanner.testing.sim_broker import Broken

_MEMBERSHIP: Final = int(EntryKind.MEMBERSHIP)
_NORMAL: Final = int(EntryKind.NORMAL)
_VOTING: Final = frozenset({MessageKind.VOTE, MessageKind.VOTE_REPLY})
_ANSWERS: Final = frozenset({MessageKind.APPEND_REPLY, MessageKind.HEARTBEAT_REPLY})
_NEXT: Final = 1e-6
COMPARED_EVERY: Final = 64  # entries: machines are compared, row by row, at such indexes
METADATA_COMPARED_EVERY: Final = 8  # its log is short


@dataclass(slots=True)
class SetRecord:
    """What is known for certain about one replica set."""

    set_id: int
    founders: Membership
    leaders: dict[int, int] = field(default_factory=dict)  # term → replica
    term: int = 0  # the highest that anybody has led in
    terms: list[int] = field(default_factory=list)  # of committed entries; entry 1 is at place 0
    committed_in: list[int] = field(default_factory=list)  # the term of the leader that committed each
    checksums: dict[int, int] = field(default_factory=dict)  # of entries that were applied
    stored: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)  # (index, term) → (term before, crc)
    members: dict[tuple[int, int], Membership] = field(default_factory=dict)  # (index, term) of a membership entry
    membership: Membership | None = None  # committed
    votes: dict[tuple[int, int], int] = field(default_factory=dict)  # (term, replica) → for whom
    durable: dict[int, HardState] = field(default_factory=dict)
    digests: dict[int, int] = field(default_factory=dict)  # index → of the machine
    decided_ms: dict[int, int] = field(default_factory=dict)  # index → time of the decision
    led_index: int = 0  # the highest that a leader has applied
    applied_at: dict[int, float] = field(default_factory=dict)  # index → the moment when a leader first had it applied
    first_of_term: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Sight:
    """What one replica looked like at the last look."""

    replica: Replica
    machine: object
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    role: Role = Role.FOLLOWER
    members: tuple[int, Membership] | None = None
    durable: HardState | None = None


class ClusterWitness:
    """Sees all replicas of all sets."""

    def __init__(self) -> None:
        self.sets: dict[int, SetRecord] = {}
        self.facts: Counter[str] = Counter()
        self.elections = 0
        self.moment: Callable[[], int] = int  # the observer's clock
        self.on_metadata: Callable[[int, bytes | None], None] | None = None  # sees its entries, each once
        self.on_decision: Callable[[int, Decision], None] | None = None  # and those of partitions
        self._sights: defaultdict[int, dict[int, Sight]] = defaultdict(dict)  # broker → set → …
        self._seats: dict[tuple[int, int], ClusterBroker] = {}  # (set, replica) → who has it
        self._known: dict[tuple[int, int], int] = {}  # (set, replica) → what was durable when it was last seen

    def is_latest(self, set_id: int, term: int) -> bool:
        """Whether nobody has led the set in a later term."""
        record = self.sets.get(set_id)
        return record is not None and term >= record.term

    def when_applied(self, set_id: int, index: int) -> float:
        """The moment when a leader first had an entry applied; who asks later about the same entry gets a later one.

        A follower may be earlier, when its disk is faster than the leader's; but nobody hears of it from there.
        """
        record = self.sets[set_id]
        at = record.applied_at.get(index, 0.0)
        if not at:
            return self.moment()  # somebody is told of what no leader has applied
        record.applied_at[index] = at + _NEXT
        return at

    # ------------------------------------------------------------------ what there is to watch

    def watch(self, broker: ClusterBroker, replica: Replica) -> None:
        """A replica was opened: for the first time, or again after a restart."""
        node, set_id = replica.node, replica.set_id
        record = self.sets.get(set_id)
        if record is None:
            record = self.sets[set_id] = SetRecord(set_id, node.memberships.at(0))
        self._check_memory(record, node)
        sight = Sight(replica, None, node.term, node.commit_index, node.applied_index)
        self._sights[broker.number][set_id] = sight
        self._seats[set_id, node.node_id] = broker
        hand_out, change = node.ready, node.change_membership

        def ready() -> Any:
            made = hand_out()
            if made.entries:
                self._stored(record, node, made.entries)
            for entry in made.committed:
                self._applied(record, node, entry)
            return made

        def change_membership(step: Change, peer: int) -> int:
            early = node.leadership is not None and not node.commit_index >= node.leadership.first_own_index
            index = change(step, peer)
            record.members[index, node.term] = node.memberships.current
            if early:
                self._break("early membership", record, node, f"{step} {peer} before an own entry was committed")
            return index

        node.ready = ready  # type: ignore[method-assign]
        node.change_membership = change_membership  # type: ignore[method-assign,assignment]
        self._watch_standing(record, broker, node)
        self._watch_machine(record, replica)

    def _watch_standing(self, record: SetRecord, broker: ClusterBroker, node: RaftNode) -> None:
        ask_first, stand = node.become_pre_candidate, node.become_candidate

        def check() -> None:
            damaged = record.set_id in broker.engine.damages.sets and len(node.voters) > 1
            if damaged and node._election._declined < DECLINED_MAX:
                self._break("damaged copy stands", record, node, f"for leader, on {broker.name}")

        def become_pre_candidate() -> None:
            check()
            ask_first()

        def become_candidate() -> None:
            if node.role is not Role.PRE_CANDIDATE:  # else it began to stand before
                check()
            stand()

        node.become_pre_candidate = become_pre_candidate  # type: ignore[method-assign]
        node.become_candidate = become_candidate  # type: ignore[method-assign]

    def _check_memory(self, record: SetRecord, node: RaftNode) -> None:
        """What was durable in an earlier life must be there in this one."""
        before = record.durable.get(node.node_id)
        if before is None:
            return
        if node.term < before.term:
            self._break("durable state went back", record, node, f"term {node.term} after {before.term}")
        if node.term == before.term and before.vote and node.vote != before.vote:
            self._break("durable state went back", record, node, f"vote {node.vote} after {before.vote}")

    def _watch_machine(self, record: SetRecord, replica: Replica) -> None:
        machine: Any = replica.machine
        apply = machine.apply
        every = COMPARED_EVERY if record.set_id != CLUSTER_SET else METADATA_COMPARED_EVERY

        def apply_and_compare(index: int, payload: bytes | None) -> Any:
            outcome = apply(index, payload)
            if index % every == 0:
                self._compare(record, replica.node, index, digest_of(machine))
            return outcome

        machine.apply = apply_and_compare

    def _compare(self, record: SetRecord, node: RaftNode, index: int, digest: int) -> None:
        if record.digests.setdefault(index, digest) != digest:
            self._break("machines differ", record, node, f"after entry {index}")

    def crashed(self, broker: ClusterBroker) -> None:
        for (set_id, replica_id), who in self._seats.items():
            if who is broker:
                sight = self._sights[broker.number].get(set_id)
                if sight is not None and sight.replica.node.node_id == replica_id:
                    self._known[set_id, replica_id] = sight.replica.node.durable_index

    # ------------------------------------------------------------------ messages

    def sent(self, broker: ClusterBroker, set_id: int, message: Message) -> None:
        """A message must not promise what the disk does not hold."""
        kind = message.kind
        if kind not in _VOTING and kind not in _ANSWERS:
            return
        record, node = self.sets[set_id], broker.engine.replicas.get(set_id)
        if node is None or message.rejected or message.sender != node.node.node_id:
            return
        durable = node.node.durable_hard_state
        if kind in _VOTING:
            vote = message.sender if kind == MessageKind.VOTE else message.receiver
            if record.votes.setdefault((message.term, message.sender), vote) != vote:
                self._break("double vote", record, node.node, f"in term {message.term}")
            if durable.term < message.term or (durable.term == message.term and durable.vote != vote):
                self._break("unsynced vote", record, node.node, f"in term {message.term}")
        elif message.log_index > node.node.durable_index and message.term == node.node.term:
            self._break("unsynced answer", record, node.node, f"for entry {message.log_index}")

    # ------------------------------------------------------------------ entries

    def _stored(self, record: SetRecord, node: RaftNode, entries: Any) -> None:
        before = node.tail.term(entries[0].index - 1)
        for index, term, kind, payload in entries:
            found = (before, zlib.crc32(payload, kind))
            known = record.stored.setdefault((index, term), found)
            if known != found:
                self._break("log matching", record, node, f"entry {index} of term {term} is not the same everywhere")
            if kind == _MEMBERSHIP:
                record.members[index, term] = Membership.decode(payload)
            before = term

    def _applied(self, record: SetRecord, node: RaftNode, entry: Entry) -> None:
        index, term, kind, payload = entry
        if node.role is Role.LEADER:
            self._committed(record, len(record.terms), node)  # before anybody takes it for known
            self._led(record, index)
        checksum = zlib.crc32(payload, term * 4 + kind)
        known = record.checksums.get(index)
        if known is not None:
            if known != checksum:
                self._break("committed entry changed", record, node, f"it applies another entry {index}")
            return
        self._commit(record, node, index, term)
        record.checksums[index] = checksum
        if record.set_id == CLUSTER_SET and self.on_metadata is not None:
            self.on_metadata(index, payload if kind == _NORMAL else None)
        if kind == _NORMAL and record.set_id != CLUSTER_SET and payload[0] == DECISION_KIND:
            decision = decode_decision(payload)
            record.decided_ms[index] = decision.now_ms
            if self.on_decision is not None:
                self.on_decision(record.set_id, decision)
            self.facts.update(type(fact).__name__ for fact in decision.facts)
            if decision.seen_index < record.first_of_term[term]:
                self._break(
                    "early decision",
                    record,
                    node,
                    f"entry {index} was decided at {decision.seen_index}; term {term} began at "
                    f"{record.first_of_term[term]}",
                )

    def _led(self, record: SetRecord, index: int) -> None:
        """A leader has applied everything up to here: whatever is decided from now on was decided knowing it."""
        for at in range(record.led_index + 1, index + 1):
            record.applied_at[at] = self.moment()
        record.led_index = max(record.led_index, index)

    def _commit(self, record: SetRecord, node: RaftNode, index: int, term: int) -> None:
        """An entry is committed, as this node has it."""
        terms = record.terms
        if index <= len(terms):
            if terms[index - 1] != term:
                self._break("committed entry changed", record, node, f"entry {index} is of term {term} here")
            return
        if index != len(terms) + 1:
            self._break("committed entry lost", record, node, f"entry {index} is committed after {len(terms)}")
        terms.append(term)
        record.committed_in.append(node.term)
        record.first_of_term.setdefault(term, index)
        members = record.members.get((index, term))
        if members is not None:
            before = record.membership or record.founders
            if len(before.voters ^ members.voters) > 1:
                self._break("membership", record, node, f"from {sorted(before.voters)} to {sorted(members.voters)}")
            record.membership = members

    # ------------------------------------------------------------------ nodes

    def look(self, broker: ClusterBroker) -> None:
        """After an event, at the broker where it happened."""
        sights = self._sights[broker.number]
        for set_id, replica in broker.engine.replicas.items():
            sight = sights.get(set_id)
            if sight is None or sight.replica is not replica:
                continue  # opened by this very event, and not watched yet
            node = replica.node
            if (
                node.commit_index != sight.commit_index
                or node.applied_index != sight.applied_index
                or node.term != sight.term
                or node.role is not sight.role
                or node.durable_hard_state is not sight.durable
                or sight.members is None
                or node.memberships.current_index != sight.members[0]
                or replica.machine is not sight.machine
            ):
                self._look_closely(self.sets[set_id], sight, replica)

    def _look_closely(self, record: SetRecord, sight: Sight, replica: Replica) -> None:
        node = replica.node
        if replica.machine is not sight.machine:
            if sight.machine is not None:
                self._watch_machine(record, replica)
            sight.machine = replica.machine
        now = (node.term, node.commit_index, node.applied_index)
        before = (sight.term, sight.commit_index, sight.applied_index)
        if node.term < sight.term or node.commit_index < sight.commit_index or node.applied_index < sight.applied_index:
            self._break("monotonic", record, node, f"(term, commit, applied) went from {before} to {now}")
        if not node.applied_index <= node.commit_index <= node.last_index or node.durable_index > node.last_index:
            self._break("monotonic", record, node, "it commits or applies beyond its log")
        if node.role is Role.LEADER and (sight.role is not Role.LEADER or sight.term != node.term):
            self._elected(record, node)
        if node.commit_index > sight.commit_index:
            self._committed(record, sight.commit_index, node)
        members = (node.memberships.current_index, node.memberships.current)
        if members != sight.members:
            self._membership_in_force(record, node)
        record.durable[node.node_id] = sight.durable = node.durable_hard_state
        sight.term, sight.commit_index, sight.applied_index = now
        sight.role, sight.members = node.role, members

    def _elected(self, record: SetRecord, node: RaftNode) -> None:
        if record.leaders.setdefault(node.term, node.node_id) != node.node_id:
            self._break("election safety", record, node, f"{record.leaders[node.term]} leads term {node.term}, too")
        self.elections += 1
        self._led(record, node.applied_index)
        record.term = max(record.term, node.term)
        # A vote may come so late that others lead in later terms already: it owes nothing to those.
        last = bisect_left(record.committed_in, node.term)
        if node.last_index < last or (last > node.compacted_index and node.tail.term(last) != record.terms[last - 1]):
            self._break("leader completeness", record, node, f"it lacks the committed entry {last}")

    def _committed(self, record: SetRecord, before: int, node: RaftNode) -> None:
        commit, known = node.commit_index, len(record.terms)
        for index in range(max(before, node.compacted_index) + 1, commit + 1):
            self._commit(record, node, index, node.tail.term(index))
        if commit <= known or node.role is not Role.LEADER:
            return
        if record.terms[commit - 1] != node.term:
            self._break("older term committed", record, node, f"entry {commit} is of term {record.terms[commit - 1]}")
        holding = [voter for voter in sorted(node.voters) if self._holds(record, voter, commit)]
        if len(holding) <= len(node.voters) // 2:
            self._break("durability", record, node, f"entry {commit} is committed, and on the disks of {holding} only")

    def _holds(self, record: SetRecord, replica_id: int, index: int) -> bool:
        """Whether a replica's disk has this committed entry."""
        broker = self._seats.get((record.set_id, replica_id))
        if broker is None:
            return False
        if not broker.up:
            return self._known.get((record.set_id, replica_id), 0) >= index
        replica = broker.engine.replicas.get(record.set_id)
        if replica is None and record.set_id in broker.engine.ledger.damaged:  # it held it before a row of it rotted
            return self._known.get((record.set_id, replica_id), 0) >= index
        if replica is None and record.set_id in broker.engine.ledger.sets():
            # Its log is there, for a newer release, or until the metadata says again that it is this broker's.
            state = broker.engine.ledger.state(record.set_id)
            return state.replica_id == replica_id and state.last_index >= index
        if replica is None and _was_deleted(broker, record.set_id):
            return True  # it held it when it said so; the leader has not heard yet that the topic is gone
        if replica is None or replica.node.node_id != replica_id:
            return False
        node = replica.node
        if node.durable_index < index:
            return False
        return index <= node.compacted_index or node.tail.term(index) == record.terms[index - 1]

    def _membership_in_force(self, record: SetRecord, node: RaftNode) -> None:
        index, members = node.memberships.current_index, node.memberships.current
        expected = None
        if index > node.compacted_index:
            expected = record.members.get((index, node.tail.term(index)))
        if expected is None:  # where a save or a snapshot ended, not where the membership changed
            expected = self.membership_at(record, index)
        if members != expected:
            self._break(
                "membership", record, node, f"it goes by {sorted(members.voters)} from entry {index} on; not {expected}"
            )

    def membership_at(self, record: SetRecord, index: int) -> Membership:
        """Who belonged to the set when this committed entry was the last."""
        found = record.founders
        for (at, term), members in sorted(record.members.items()):
            if at <= index and at <= len(record.terms) and record.terms[at - 1] == term:
                found = members
        return found

    def _break(self, rule: str, record: SetRecord, node: RaftNode, text: str) -> NoReturn:
        raise Broken(rule, record.set_id, f"replica {node.node_id}: {text}")


def _was_deleted(broker: ClusterBroker, set_id: int) -> bool:
    """Whether a broker knows that the set was there and is no more."""
    if CLUSTER_SET not in broker.engine.replicas:
        return False
    cluster = broker.engine.cluster
    return cluster._counters.next_set_id > set_id and set_id not in cluster.sets


def digest_of(machine: Any) -> int:
    """All rows of a machine in one number."""
    digest = 0
    for key, value in sorted(machine.all_rows().items()):
        digest = zlib.crc32(value, zlib.crc32(key, digest))
    return digest
