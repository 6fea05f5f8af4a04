"""What must hold in a replica set whatever happens to it, judged from outside the nodes by someone who sees them all.

The witness sees every disk, every message sent, every commit and every apply. It trusts nothing a node says about
itself without holding it against what the disks have and what was committed anywhere before.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lanner.raft import Entry, EntryKind, Membership, Message, MessageKind, RaftNode, Role, Snapshot

if TYPE_CHECKING:
    from tests.unit.raft.cluster import Disk, Host


class Violation(AssertionError):
    """An invariant is broken; the first word names it."""


def chained(digest: int, entry: Entry) -> int:
    """The state of a machine that remembers, in one number, all it ever applied."""
    return zlib.crc32(entry.payload, zlib.crc32(b"%d %d %d" % entry[:3], digest))


class Witness:
    def __init__(self, bootstrap: Membership) -> None:
        self.committed: list[Entry] = []  # index 1 is at place 0
        self.digests = [0]
        self.memberships: list[tuple[int, Membership]] = [(0, bootstrap)]
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self._seen: dict[int, tuple[int, int, int]] = {}

    @property
    def committed_index(self) -> int:
        return len(self.committed)

    def membership_at(self, index: int) -> Membership:
        return next(membership for start, membership in reversed(self.memberships) if start <= index)

    # ------------------------------------------------------------------ what nodes say

    def sent(self, message: Message, host: Host) -> None:
        """A message leaves a node: it must not promise what its disk does not hold."""
        kind, disk = message.kind, host.disk
        if kind == MessageKind.VOTE or (kind == MessageKind.VOTE_REPLY and not message.rejected):
            vote = message.sender if kind == MessageKind.VOTE else message.receiver
            if self.votes.setdefault((message.term, message.sender), vote) != vote:
                raise Violation(f"double vote: node {message.sender} in term {message.term}")
            if disk.hard_state != (message.term, vote) and disk.hard_state.term <= message.term:
                raise Violation(f"unsynced vote: node {message.sender} in term {message.term}")
        elif kind in (MessageKind.APPEND_REPLY, MessageKind.HEARTBEAT_REPLY):
            if message.rejected:
                return
            assert host.node is not None
            index = message.log_index
            if index > disk.last_index or (index and not disk.holds(index, host.node.tail.term(index))):
                raise Violation(f"unsynced answer: node {message.sender} for entry {index}")

    def membership_proposed(self, node: RaftNode) -> None:
        if not node.commit_index or self.committed[node.commit_index - 1].term != node.term:
            raise Violation(f"early membership: node {node.node_id} has committed nothing in term {node.term}")

    # ------------------------------------------------------------------ what nodes are

    def look(self, host: Host, disks: dict[int, Disk]) -> None:
        """After every step, at the node that took it."""
        node = host.node
        assert node is not None
        self._monotonic(node)
        if node.role is Role.LEADER and self.leaders.get(node.term) != node.node_id:
            self._elected(node)
        if node.commit_index > host.seen_commit:
            self._commit(host, node, disks)
        if node.commit_index > node.compacted_index:
            self._same(node, node.commit_index)

    def _monotonic(self, node: RaftNode) -> None:
        now = (node.term, node.commit_index, node.applied_index)
        before = self._seen.get(node.node_id, now)
        if any(new < old for new, old in zip(now, before, strict=True)):
            raise Violation(f"monotonic: node {node.node_id} went from {before} to {now}")
        if not node.applied_index <= node.commit_index <= node.last_index or node.durable_index > node.last_index:
            raise Violation(f"monotonic: node {node.node_id} applied and committed beyond its log")
        self._seen[node.node_id] = now

    def restarted(self, node: RaftNode) -> None:
        """Memory is gone; term and what was saved are not."""
        term, _, _ = self._seen.get(node.node_id, (0, 0, 0))
        self._seen[node.node_id] = (min(term, node.term), node.commit_index, node.applied_index)

    def _elected(self, node: RaftNode) -> None:
        if self.leaders.setdefault(node.term, node.node_id) != node.node_id:
            raise Violation(f"election safety: {node.node_id} and {self.leaders[node.term]} lead term {node.term}")
        if node.last_index < self.committed_index:
            raise Violation(f"leader completeness: node {node.node_id} lacks entry {self.committed_index}")
        for index in range(max(1, node.compacted_index), self.committed_index + 1):
            self._same(node, index, "leader completeness")

    def _same(self, node: RaftNode, index: int, name: str = "committed is immutable") -> None:
        if node.tail.term(index) != self.committed[index - 1].term:
            raise Violation(f"{name}: node {node.node_id} has another entry {index}")

    def _commit(self, host: Host, node: RaftNode, disks: dict[int, Disk]) -> None:
        first = max(host.seen_commit, node.compacted_index) + 1
        host.seen_commit = node.commit_index
        if first > node.commit_index:
            return
        entries = host.log_entries(first, node.commit_index)
        for entry in entries:
            if entry.index <= self.committed_index:
                if self.committed[entry.index - 1] != entry:
                    raise Violation(f"committed is immutable: node {node.node_id} commits another entry {entry.index}")
                continue
            self._first_commit(node, entry, disks)

    def _first_commit(self, node: RaftNode, entry: Entry, disks: dict[int, Disk]) -> None:
        if entry.index != self.committed_index + 1:
            raise Violation(f"committed is immutable: entry {entry.index} after {self.committed_index}")
        if node.role is Role.LEADER:
            holding = sum(disks[voter].holds(entry.index, entry.term) for voter in node.voters if voter in disks)
            if holding < node.quorum:
                raise Violation(f"durability: entry {entry.index} is committed and on {holding} disks only")
        self.committed.append(entry)
        self.digests.append(chained(self.digests[-1], entry))
        if entry.kind == EntryKind.MEMBERSHIP:
            membership = Membership.decode(entry.payload)
            before = self.memberships[-1][1]
            if len(before.voters ^ membership.voters) > 1:
                raise Violation(f"single step: {sorted(before.voters)} to {sorted(membership.voters)}")
            self.memberships.append((entry.index, membership))

    def applied(self, host: Host, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.index != host.applied + 1:
                raise Violation(f"state machine safety: node {host.node_id} applies {entry.index} after {host.applied}")
            if entry.index > self.committed_index or self.committed[entry.index - 1] != entry:
                raise Violation(f"state machine safety: node {host.node_id} applies another entry {entry.index}")
            host.applied = entry.index
            host.digest = chained(host.digest, entry)
            if host.digest != self.digests[entry.index]:
                raise Violation(f"state machine safety: node {host.node_id} differs after {entry.index}")

    def installed(self, node_id: int, snapshot: Snapshot, digest: int) -> None:
        if digest != self.digests[snapshot.index]:
            raise Violation(f"state machine safety: node {node_id} installs something else at {snapshot.index}")
        if Membership(snapshot.voters, snapshot.learners) != self.membership_at(snapshot.index):
            raise Violation(f"membership: node {node_id} installs a snapshot that forgot it at {snapshot.index}")

    # ------------------------------------------------------------------ the whole set

    def compare(self, hosts: Iterable[Host]) -> None:
        """Log matching, the committed prefix of every log, and the membership in force, now and then."""
        logs: list[tuple[int, dict[int, Entry]]] = []
        for host in hosts:
            node = host.node
            if node is None:
                continue
            entries = host.log_entries(node.compacted_index + 1, node.last_index)
            for entry in entries[: max(0, node.commit_index - node.compacted_index)]:
                if self.committed[entry.index - 1] != entry:
                    raise Violation(f"committed is immutable: node {node.node_id} lost entry {entry.index}")
            self._membership_in_force(node, entries)
            log = {entry.index: entry for entry in entries}
            for other_id, other in logs:
                self._match(node.node_id, log, other_id, other)
            logs.append((node.node_id, log))

    def _membership_in_force(self, node: RaftNode, entries: list[Entry]) -> None:
        expected = self.membership_at(node.compacted_index)
        for entry in entries:
            if entry.kind == EntryKind.MEMBERSHIP:
                expected = Membership.decode(entry.payload)
        if (node.voters, node.learners) != expected:
            raise Violation(f"membership: node {node.node_id} goes by {sorted(node.voters)}, its log says {expected}")

    @staticmethod
    def _match(one_id: int, one: dict[int, Entry], other_id: int, other: dict[int, Entry]) -> None:
        agreed = False
        for index in sorted(one.keys() & other.keys(), reverse=True):
            same_term = one[index].term == other[index].term
            if (agreed and not same_term) or (same_term and one[index] != other[index]):
                raise Violation(f"log matching: nodes {one_id} and {other_id} differ at {index}")
            agreed = agreed or same_term
