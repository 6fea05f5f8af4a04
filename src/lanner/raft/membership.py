"""Who votes and who learns, and how that changes: one node at a time.

A change takes effect when its entry is *appended*, on the leader and on every follower alike, as the Raft dissertation
has it for single steps: the majorities of two memberships that differ by one voter always overlap, so nobody needs to
know when the other half of the set learnt of it. The price is that a membership can be taken back with the entry that
carried it, which is why this module remembers the older ones until they are compacted.

Two more rules live with the leader, which alone proposes changes: none before an entry of its own term has committed
(without that, two leaders could change the same membership in different ways and elect themselves apart), and none
while another is on its way.

A membership entry carries the whole membership, not the difference: so a snapshot, a restart and an entry say the same.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import NamedTuple

from lanner import limits
from lanner.errors import RemoteProtocolError, ValidationError
from lanner.raft.entry import Entry, EntryKind
from lanner.raft.log import LogReader

_VERSION = 1
_HEAD = struct.Struct("<BHH")


class Change(StrEnum):
    """One step of membership."""

    ADD_LEARNER = "add_learner"
    ADD_VOTER = "add_voter"  # without a time as a learner: only for a set that is being born
    PROMOTE = "promote"  # a learner becomes a voter
    DEMOTE = "demote"  # a voter becomes a learner
    REMOVE = "remove"


class Membership(NamedTuple):
    voters: frozenset[int]
    learners: frozenset[int]

    def encode(self) -> bytes:
        ids = [*sorted(self.voters), *sorted(self.learners)]
        return _HEAD.pack(_VERSION, len(self.voters), len(self.learners)) + struct.pack(f"<{len(ids)}Q", *ids)

    @classmethod
    def decode(cls, payload: bytes) -> Membership:
        """Decode a membership; refuse anything that `encode` could not have made, since it would split the set."""
        if len(payload) < _HEAD.size:
            raise RemoteProtocolError("a membership entry is cut short")
        version, voter_count, learner_count = _HEAD.unpack_from(payload)
        count = voter_count + learner_count
        if version != _VERSION:
            raise RemoteProtocolError(
                f"a membership entry has version {version}; this broker knows {_VERSION}: upgrade it"
            )
        if not 1 <= voter_count <= count <= limits.RAFT_MEMBERS_MAX or len(payload) != _HEAD.size + 8 * count:
            raise RemoteProtocolError(f"a membership entry names {voter_count} voters and {learner_count} learners")
        ids = struct.unpack_from(f"<{count}Q", payload, _HEAD.size)
        if len(set(ids)) != count or 0 in ids:
            raise RemoteProtocolError("a membership entry names a node twice, or nobody")
        return cls(frozenset(ids[:voter_count]), frozenset(ids[voter_count:]))

    def changed(self, change: Change, node_id: int) -> Membership:
        """Return the membership after a step; refuse one that changes nothing or leaves no voter."""
        voters, learners, node = self.voters, self.learners, frozenset({node_id})
        if node_id < 1:
            raise ValidationError("a node id is at least 1", field="node_id")
        if change in (Change.ADD_LEARNER, Change.ADD_VOTER):
            if node_id in voters or node_id in learners:
                raise ValidationError(f"node {node_id} is a member already", field="node_id")
            if len(voters) + len(learners) >= limits.RAFT_MEMBERS_MAX:
                raise ValidationError(f"a replica set has at most {limits.RAFT_MEMBERS_MAX} members", field="node_id")
            if change is Change.ADD_VOTER:
                return Membership(voters | node, learners)
            return Membership(voters, learners | node)
        if change is Change.PROMOTE:
            if node_id not in learners:
                raise ValidationError(f"node {node_id} is no learner here: add it as one first", field="node_id")
            return Membership(voters | node, learners - node)
        if node_id not in voters and (change is Change.DEMOTE or node_id not in learners):
            raise ValidationError(f"node {node_id} is no member that could go", field="node_id")
        if voters == node:
            raise ValidationError(f"node {node_id} is the last voter: promote another first", field="node_id")
        return Membership(voters - node, learners | node if change is Change.DEMOTE else learners - node)


class Memberships:
    """The memberships of one log by the index of the entry that made them; the last one is in force."""

    __slots__ = ("_history", "current", "current_index")

    def __init__(self, base_index: int, base: Membership, entries: tuple[Entry, ...] = ()) -> None:
        self._history = [(base_index, base)]
        self.current_index, self.current = base_index, base
        for entry in entries:
            self.append(entry.index, Membership.decode(entry.payload))

    def append(self, index: int, membership: Membership) -> None:
        self._history.append((index, membership))
        self.current_index, self.current = index, membership

    def truncate(self, first: int) -> bool:
        """Forget the entries from `first` on; return whether that brought an older membership back."""
        if self.current_index < first:
            return False
        while self._history[-1][0] >= first:
            self._history.pop()
        self.current_index, self.current = self._history[-1]
        return True

    def compact(self, index: int) -> None:
        """Forget the memberships before this index."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            del self._history[0]

    def at(self, index: int) -> Membership:
        for start, membership in reversed(self._history):
            if start <= index:
                return membership
        return self._history[0][1]


def find_memberships(log: LogReader, first: int, last: int, bytes_max: int = limits.MIB) -> tuple[Entry, ...]:
    """The membership entries in [first, last], read piece by piece."""
    found: list[Entry] = []
    while first <= last:
        entries = log.entries(first, last, bytes_max)
        found += [entry for entry in entries if entry.kind == EntryKind.MEMBERSHIP]
        first = entries[-1].index + 1
    return tuple(found)
