"""How a node leads: sending, counting, committing, handing over.

A `Leadership` is made when an election is won and dropped when it ends, so nothing a leader knows outlives its term.

- *Lazy sending.* Nothing is sent when something is proposed; `collect`, called once for every ready, sends each peer
  all that it may have. Sixteen proposals between two readies are one message.
- *Commit* what a majority of voters holds durably, if that reaches into the leader's own term. Its own disk is one of
  them, and not waited for before sending.
- *Rounds.* A counter that moves with every tick. Messages carry it, answers bring it back. A majority that brought back
  a round has followed this leader after that round began; a leader whose majority brought back nothing young enough
  steps down before anybody's lease on it runs out.
- *Membership.* Peers come and go when the entry is appended. A leader that is no voter any more leads until that has
  committed, without counting itself, then sends the best successor into an election.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lanner.errors import ConflictError, NotLeader, ServiceUnavailable, ValidationError
from lanner.raft.entry import QUIESCE, Entry, EntryKind, Message, MessageKind
from lanner.raft.log import KEEP_NOTHING
from lanner.raft.membership import Change
from lanner.raft.progress import Progress, ProgressState

if TYPE_CHECKING:
    from lanner.raft.node import RaftNode

_APPEND = int(MessageKind.APPEND)
_COMMIT = int(MessageKind.COMMIT)
_HEARTBEAT = int(MessageKind.HEARTBEAT)
_PROBE = ProgressState.PROBE
_REPLICATE = ProgressState.REPLICATE
_SNAPSHOT = ProgressState.SNAPSHOT


class Leadership:
    """One leader's term."""

    __slots__ = (
        "_heartbeat_due",
        "_heartbeat_ticks",
        "_node",
        "_round",
        "_tick_rounds",
        "_transfer_ticks",
        "first_own_index",
        "progress",
        "transferee",
    )

    def __init__(self, node: RaftNode) -> None:
        config = node.config
        self._node = node
        self.first_own_index = node.tail.last_index + 1  # its empty entry; every later one is of its term
        self.progress: dict[int, Progress] = {}
        self.transferee = 0
        self._transfer_ticks = 0
        self._heartbeat_due = False
        self._heartbeat_ticks = 0
        self._round = 1
        # As many ticks as a majority may be silent: fewer than the shortest election timeout.
        self._tick_rounds: deque[int] = deque(maxlen=config.election_ticks - 1)
        self.membership_changed()

    @property
    def own_term_committed(self) -> bool:
        return self._node.commit_index >= self.first_own_index

    def membership_changed(self) -> None:
        """Track the peers of the membership in force, and probe newcomers from the log's end."""
        node = self._node
        peers = (node.voters | node.learners) - {node.node_id}
        for gone in self.progress.keys() - peers:
            del self.progress[gone]
        for peer in sorted(peers - self.progress.keys()):
            self.progress[peer] = Progress(self.first_own_index, self._round)
        if self.transferee and self.transferee not in node.voters:
            self.transferee = 0
        node.attention = True

    # ------------------------------------------------------------------ time

    def tick(self) -> bool:
        if not self.progress:
            return False
        node = self._node
        self._round += 1
        rounds = self._tick_rounds
        rounds.append(self._round)
        if len(rounds) == rounds.maxlen and self._majority_round() < rounds[0]:
            node.become_follower(node.term, 0)
            return True
        if self.transferee:
            self._transfer_ticks += 1
            if self._transfer_ticks >= node.config.election_ticks:
                self.transferee = 0
        self._heartbeat_ticks += 1
        if self._heartbeat_ticks < node.config.heartbeat_ticks:
            return False
        self._heartbeat_ticks = 0
        self._heartbeat_due = True
        node.attention = True
        return True

    def _majority_round(self) -> int:
        """Return the highest round that a majority of voters has brought back; the leader is always up to date."""
        node, own = self._node, self._round
        progress, node_id = self.progress, node.node_id
        rounds = sorted([own if voter == node_id else progress[voter].round for voter in node.voters], reverse=True)
        return rounds[node.quorum - 1]

    # ------------------------------------------------------------------ sending

    def collect(self) -> None:
        """Send every peer what it may have by now."""
        node = self._node
        if not self.progress:
            return
        needed, tells = KEEP_NOTHING, node.config.tells_commits
        for peer, progress in self.progress.items():
            if self._heartbeat_due:
                self._send_commit(_HEARTBEAT, peer, progress)
                if peer == self.transferee:
                    self._maybe_hand_over(progress)
            if progress.state is not _SNAPSHOT:
                self._send_appends(peer, progress)
            if tells and progress.told_index < node.commit_index and progress.told_index < progress.match_index:
                self._send_commit(_COMMIT, peer, progress)
            if progress.heard and progress.state is not _SNAPSHOT and progress.match_index < needed:
                needed = progress.match_index + 1
        self._heartbeat_due = False
        if needed != node.tail.keep_from:
            node.tail.keep(needed)

    def _send_commit(self, kind: int, peer: int, progress: Progress, *, hint: int = 0) -> None:
        """Tell a peer what is committed of the entries that it is known to hold."""
        node = self._node
        commit = min(node.commit_index, progress.match_index)
        if commit > progress.told_index:
            progress.told_index = commit
        node.send(kind, peer, commit_index=commit, hint=hint, context=self._round)

    def _send_appends(self, peer: int, progress: Progress) -> None:
        node = self._node
        config, last = node.config, node.tail.last_index
        if progress.state is _PROBE:
            if not progress.paused:
                self._send_append(peer, progress)
            return
        while progress.next_index <= last:
            if not progress.has_room(config.inflight_messages_max, config.inflight_bytes_max):
                break
            if not self._send_append(peer, progress):
                return
        if progress.nudge:
            self._send_append(peer, progress, empty=True)

    def _send_append(self, peer: int, progress: Progress, *, empty: bool = False) -> bool:
        node = self._node
        tail, config = node.tail, node.config
        first = progress.next_index
        if first <= tail.compacted_index:
            self._ask_for_snapshot(peer, progress)
            return False
        entries: list[Entry] = []
        if not empty:
            entries = tail.pick(first, config.append_entries_max, config.append_bytes_max)
            if not entries and first <= tail.last_index:  # it is damaged here: asked again with the next heartbeat
                progress.probe(first)
                progress.paused = True
                return False
        previous = first - 1
        node.send(
            _APPEND,
            peer,
            log_index=previous,
            log_term=tail.term(previous),
            commit_index=node.commit_index,
            entries=entries,
            context=self._round,
        )
        told = min(node.commit_index, previous + len(entries))
        if told > progress.told_index:
            progress.told_index = told
        progress.sent_round = self._round
        progress.nudge = False
        if entries:
            progress.sent(entries[-1].index, sum([len(entry.payload) for entry in entries]))
        elif progress.state is _PROBE:
            progress.paused = True
        return True

    def _ask_for_snapshot(self, peer: int, progress: Progress) -> None:
        """Ask for a snapshot if the peer answers: one for a peer that is away would be old before it is read."""
        if progress.heard:
            progress.await_snapshot()
            self._node.need_snapshot(peer)
        else:
            progress.paused = True

    # ------------------------------------------------------------------ answers

    def on_append_reply(self, message: Message) -> None:
        """Count what the peer holds, or find where its log agrees."""
        progress = self._heard(message)
        if progress is None:
            return
        if not message.rejected:
            self._acknowledged(message.sender, progress, message.log_index)
            return
        agreeing, _ = self._node.tail.last_not_after(message.hint, message.log_term)
        if progress.refused(message.log_index, agreeing + 1):
            self._node.attention = True

    def on_heartbeat_reply(self, message: Message) -> None:
        """Count what the peer holds, and repair what was lost: a probe, an append, or the answer to one."""
        progress = self._heard(message)
        if progress is None:
            return
        if message.log_index > progress.match_index:
            self._acknowledged(message.sender, progress, message.log_index)
        node = self._node
        if progress.state is _PROBE:
            progress.paused = False
            node.attention = True
        elif progress.state is _REPLICATE and progress.match_index < node.tail.last_index:
            # It has answered something younger than the latest append, and still lacks entries: ask where it is.
            progress.nudge = message.context > progress.sent_round
            node.attention = True

    def _heard(self, message: Message) -> Progress | None:
        progress = self.progress.get(message.sender)
        if progress is None:
            return None
        progress.heard = True
        if message.commit_index > progress.commit_index:
            progress.commit_index = message.commit_index
        if message.context > progress.round:
            progress.round = message.context
        return progress

    def _acknowledged(self, peer: int, progress: Progress, index: int) -> None:
        tail = self._node.tail
        if not progress.acknowledged(min(index, tail.last_index), tail.compacted_index + 1):
            return
        node = self._node
        if progress.next_index <= tail.last_index or (
            node.config.tells_commits and progress.told_index < node.commit_index
        ):
            node.attention = True
        if peer == self.transferee:
            self._maybe_hand_over(progress)
        self.maybe_commit()

    # ------------------------------------------------------------------ commits

    def maybe_commit(self) -> None:
        """Commit what a majority holds durably, if it reaches into this leader's own term."""
        node, tail = self._node, self._node.tail
        node_id, progress = node.node_id, self.progress
        if progress:
            held = sorted(
                [tail.durable_index if voter == node_id else progress[voter].match_index for voter in node.voters],
                reverse=True,
            )
            index = held[node.quorum - 1]
        else:
            index = tail.durable_index
        if index < self.first_own_index or index <= node.commit_index:
            return
        first_counted = max(node.commit_index, self.first_own_index) + 1
        node.uncommitted_bytes -= tail.size(first_counted, index)
        node.commit_index = index
        if progress and node.config.tells_commits:
            node.attention = True
        if node_id not in node.voters and node.memberships.current_index <= index:
            self._retire()

    def _retire(self) -> None:
        """Step down after this leader's removal has committed, and let the best of the others take over at once."""
        node = self._node
        self.collect()
        successor = max(node.voters, key=lambda voter: (self.progress[voter].match_index, -voter))
        node.send(MessageKind.TIMEOUT_NOW, successor)
        node.become_follower(node.term, 0)

    # ------------------------------------------------------------------ membership

    def check_change(self) -> None:
        """Raise why the membership cannot change now."""
        node = self._node
        if self.transferee:
            raise NotLeader("leadership is being handed over; ask the next leader", leader_id=self.transferee)
        if not self.own_term_committed:
            raise ServiceUnavailable("the new leader has not committed an entry of its own term yet; try again")
        if node.memberships.current_index > node.commit_index:
            raise ConflictError("another change of membership is on its way; wait until it has committed")

    def propose_change(self, change: Change, peer: int) -> int:
        node = self._node
        self.check_change()
        membership = node.memberships.current.changed(change, peer)
        index = node.tail.append(node.term, EntryKind.MEMBERSHIP, payload := membership.encode())
        node.uncommitted_bytes += len(payload)
        node.memberships.append(index, membership)
        node.membership_changed()
        return index

    # ------------------------------------------------------------------ hand-over

    def transfer(self, peer: int) -> None:
        """Hand over to this voter, instead of any other; to this node itself means to stay."""
        node = self._node
        if peer == node.node_id:
            self.transferee = 0
            return
        if peer not in node.voters:
            raise ValidationError(f"node {peer} is no voter here: it cannot lead", field="node_id")
        if peer == self.transferee:
            return
        self.transferee = peer
        self._transfer_ticks = 0
        progress = self.progress[peer]
        progress.paused = False
        progress.nudge = progress.match_index < node.tail.last_index  # if nothing else is sent: where is it?
        self._maybe_hand_over(progress)
        node.attention = True

    def _maybe_hand_over(self, progress: Progress) -> None:
        node = self._node
        if progress.match_index == node.tail.last_index:
            node.send(MessageKind.TIMEOUT_NOW, self.transferee)

    # ------------------------------------------------------------------ what the driver reports

    def unreachable(self, peer: int) -> None:
        if peer == self.transferee:
            self.transferee = 0  # nobody takes over there: proposals need not wait
        progress = self.progress.get(peer)
        if progress is not None:
            progress.heard = False
            if progress.state is _REPLICATE:
                progress.probe(progress.match_index + 1)
                progress.paused = True  # until it answers a heartbeat

    def snapshot_sent(self, peer: int, index: int) -> None:
        """Go on after a snapshot up to `index` was installed there; 0 means that it failed."""
        progress = self.progress.get(peer)
        if progress is None or progress.state is not _SNAPSHOT:
            return
        progress.probe(max(progress.match_index, index) + 1)
        progress.paused = True  # a heartbeat's answer, or the install's, starts it again
        progress.heard = index > 0

    def quiesce(self) -> None:
        """Send the last heartbeat for a while. A peer that answers it is not idle; the others take it in silence.

        It is not for peers that are not heard: what they hold is not known, so they could not tell that they lack
        something, and would stay without it. They go on being ticked, and wake the leader.
        """
        for peer, progress in self.progress.items():
            if progress.heard:
                self._send_commit(_HEARTBEAT, peer, progress, hint=QUIESCE)

    @property
    def idle(self) -> bool:
        """Nothing to send, to wait for or to tell, as far as peers are heard: the others wake the leader themselves.

        A leader that does not hear a majority is never idle: it must find out whether it still leads.
        """
        node = self._node
        last, commit = node.tail.last_index, node.commit_index
        if self.transferee:
            return False
        heard = int(node.node_id in node.voters)
        for peer, progress in self.progress.items():
            if progress.heard:
                if progress.match_index != last or progress.commit_index != commit:
                    return False
                heard += peer in node.voters
        return heard >= node.quorum
