"""How a node follows: taking entries, answering for what its disk holds, learning what is committed, taking a snapshot.

- An answer never claims more than the disk has. Entries are taken at once and answered for when they are stored;
  several appends stored together are answered together.
- It never claims more than is known to agree with *this* leader's log, either: a longer tail from an older leader stays
  where it is until somebody contradicts it, and counts for nothing meanwhile.
- A committed entry is never taken back. A leader that asks for it contradicts the theorem that elected it: refused.
- While a snapshot is being installed the node votes by its old log and answers for nothing. A new term ends the
  install, unless its last step, the flip of the log, is on its way to the disk: then the flip is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lanner.errors import RemoteProtocolError, StorageDamaged
from lanner.raft.entry import QUIESCE, Entry, EntryKind, Message, MessageKind, Snapshot
from lanner.raft.membership import Membership

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lanner.raft.node import RaftNode

_MEMBERSHIP = int(EntryKind.MEMBERSHIP)


class Following:
    """What a node knows about the leader of its term, and owes it."""

    __slots__ = ("_acked_index", "_agreed_index", "_node", "_owes", "_round", "flipping", "installing")

    def __init__(self, node: RaftNode) -> None:
        self._node = node
        self._agreed_index = node.commit_index  # up to here the log equals that of the term's leader
        self._acked_index = 0  # the most that was answered for in this term
        self._owes = False  # an append was taken whose answer waits for the disk
        self._round = 0  # the highest round of the leader
        self.installing: Snapshot | None = None
        self.flipping = False

    def reset(self) -> None:
        """Begin a new term, of whose leader's log only the committed part is known."""
        self._agreed_index = self._node.commit_index
        self._acked_index = self._round = 0
        self._owes = False
        if not self.flipping:
            self.installing = None

    # ------------------------------------------------------------------ entries

    def on_append(self, message: Message) -> None:
        """Take the entries if they follow on this log; answer for what is stored."""
        node, tail = self._node, self._node.tail
        self._heard(message)
        if self.installing is not None:
            return
        entries = message.entries
        if message.log_index >= node.commit_index:
            if not tail.agrees(message.log_index, message.log_term):
                self._refuse(message)
                return
            if entries:
                self._take(entries)
            agreed = message.log_index + len(entries)
            if agreed > self._agreed_index:
                self._agreed_index = agreed
            node.commit_to(min(message.commit_index, agreed))
        if not entries or self._agreed_index <= tail.durable_index or self._answerable() > self._acked_index:
            self._answer(MessageKind.APPEND_REPLY)
        self._owes = self._agreed_index > tail.durable_index

    def _take(self, entries: Sequence[Entry]) -> None:
        """Add what is new; take back what contradicts it. All is checked before anything changes."""
        node, tail = self._node, self._node.tail
        place = 0
        if entries[0].index <= tail.last_index:
            while place < len(entries) and tail.agrees(entries[place].index, entries[place].term):
                place += 1
            if place == len(entries):
                return
            entries = entries[place:]
        memberships = [
            (entry.index, Membership.decode(entry.payload)) for entry in entries if entry.kind == _MEMBERSHIP
        ]
        first = entries[0].index
        changed = False
        if first <= tail.last_index:
            if first <= node.commit_index:
                raise RemoteProtocolError(
                    f"entry {first} is committed here; a leader of term {node.term} contradicts it"
                )
            tail.truncate(first)
            changed = node.memberships.truncate(first)
        tail.extend(entries)
        for index, membership in memberships:
            node.memberships.append(index, membership)
        if changed or memberships:
            node.membership_changed()

    def _refuse(self, message: Message) -> None:
        """Name the highest entry that may agree, so that the leader skips whole terms instead of single entries."""
        node = self._node
        hint, hint_term = node.tail.last_not_after(message.log_index, message.log_term)
        node.send(
            MessageKind.APPEND_REPLY,
            message.sender,
            log_index=message.log_index,
            log_term=hint_term,
            commit_index=node.commit_index,
            rejected=True,
            hint=hint,
            context=self._round,
        )

    def stored(self) -> None:
        """Answer for more of the log, which is on disk now."""
        if self._owes and self._node.leader_id and self._answerable() > self._acked_index:
            self._answer(MessageKind.APPEND_REPLY)
            self._owes = self._agreed_index > self._node.tail.durable_index

    def _answerable(self) -> int:
        return 0 if self.installing is not None else min(self._agreed_index, self._node.tail.durable_index)

    def _answer(self, kind: MessageKind) -> None:
        node = self._node
        acked = self._answerable()
        self._acked_index = max(self._acked_index, acked)
        node.send(kind, node.leader_id, log_index=acked, commit_index=node.commit_index, context=self._round)

    # ------------------------------------------------------------------ heartbeats and commits

    def on_heartbeat(self, message: Message) -> None:
        """Learn what is committed, and answer; an idle node takes the mark of quiescence in silence."""
        self.on_commit(message)
        if message.hint == QUIESCE and self._node.idle:
            return
        self._answer(MessageKind.HEARTBEAT_REPLY)

    def wake_leader(self) -> None:
        """Answer a heartbeat that was never sent. It says nothing new, but it wakes the leader."""
        self._answer(MessageKind.HEARTBEAT_REPLY)

    def on_commit(self, message: Message) -> None:
        """Commit what the leader says: it says so only of what this node has answered for in this term."""
        node = self._node
        self._heard(message)
        if self.installing is not None or message.commit_index <= node.commit_index:
            return
        if message.commit_index > node.tail.last_index:
            raise StorageDamaged(
                f"the leader committed entry {message.commit_index} because this node had stored it, but its log "
                f"ends at {node.tail.last_index}: this replica has lost entries; let it rejoin under a new id"
            )
        self._agreed_index = max(self._agreed_index, message.commit_index)
        node.commit_to(message.commit_index)

    def _heard(self, message: Message) -> None:
        self._node.follow(message.sender)
        if message.context > self._round:
            self._round = message.context

    # ------------------------------------------------------------------ snapshots

    def on_snapshot(self, message: Message) -> None:
        """Want the snapshot that the leader offers, unless the log reaches its index already."""
        node, tail = self._node, self._node.tail
        if len(message.entries) != 1 or message.log_index < 1:
            raise RemoteProtocolError("a snapshot must carry the membership at its index, and one entry only")
        membership = Membership.decode(message.entries[0].payload)
        self._heard(message)
        if self.flipping:
            return
        if message.log_index > node.commit_index and tail.agrees(message.log_index, message.log_term):
            self._agreed_index = max(self._agreed_index, message.log_index)
            node.commit_to(message.log_index)
        if message.log_index <= node.commit_index:
            self._answer(MessageKind.APPEND_REPLY)
            return
        self.installing = Snapshot(message.log_index, message.log_term, *membership)

    def begin_flip(self, snapshot: Snapshot) -> bool:
        if self.installing != snapshot or self.flipping or snapshot.index <= self._node.commit_index:
            return False
        self.flipping = True
        return True

    def flipped(self, snapshot: Snapshot) -> None:
        node = self._node
        if not self.flipping or self.installing != snapshot:
            raise ValueError(f"no install of a snapshot at {snapshot.index} has begun its flip")
        self.abandon()
        node.restore(snapshot)
        self._agreed_index = snapshot.index
        self._owes = False
        if node.leader_id:
            self._answer(MessageKind.APPEND_REPLY)

    def abandon(self) -> None:
        self.installing = None
        self.flipping = False
