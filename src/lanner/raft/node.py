"""One node of a replica set: the surface of the core, its state, and the one place where messages are judged.

Every public call either changes the node at once or raises and changes nothing. What the outside must do about it is
collected until the driver asks with `ready()`. The roles change only in the `become_…` methods. What a node does
as a leader, as a follower and in elections lives in `leading`, `following` and `electing`; they share this state.

    follower ──timer──▶ pre_candidate ──majority would──▶ candidate ──majority did──▶ leader
       ▲                     │                               │                          │
       └─────────────────────┴── leader heard, refused, higher term, no majority heard ─┘
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lanner.errors import NotLeader, NotSupported, Overloaded, ValidationError
from lanner.raft.electing import FORCED, Election
from lanner.raft.entry import (
    NOTHING_TO_STORE,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    Ready,
    Role,
    Snapshot,
    SoftState,
)
from lanner.raft.following import Following
from lanner.raft.leading import Leadership
from lanner.raft.log import KEEP_NOTHING, LogReader, Tail
from lanner.raft.membership import Change, Membership, Memberships

if TYPE_CHECKING:
    from lanner.raft.config import Chance, Config, Restored

_NORMAL = int(EntryKind.NORMAL)
_PRE_VOTE = int(MessageKind.PRE_VOTE)
_FROM_LEADERS = frozenset({MessageKind.APPEND, MessageKind.HEARTBEAT, MessageKind.COMMIT, MessageKind.SNAPSHOT})


class RaftNode:
    """The core. `commit_index` never goes back; `term` never goes back; a vote is given once a term."""

    def __init__(self, config: Config, restored: Restored, log: LogReader, rng: Chance) -> None:
        self.config = config
        self.node_id = config.node_id
        self._rng = rng
        self.tail = Tail(restored, log, config.held_bytes_max)
        base = Membership(restored.voters, restored.learners)
        self.memberships = Memberships(restored.applied_index, base, restored.memberships)
        self.voters, self.learners = self.memberships.current
        self.quorum = len(self.voters) // 2 + 1
        self.term, self.vote = restored.hard_state
        self.role = self._passive_role()
        self.leader_id = 0
        self.commit_index = restored.applied_index
        self.applied_index = restored.applied_index
        self.uncommitted_bytes = 0
        self.durable_hard_state = restored.hard_state
        self.elapsed_ticks = 0  # since a leader was heard, a vote was given or a candidacy began
        self.reluctant = False  # its driver would rather have another node lead: see `electing`
        self.attention = False  # something besides entries and hard state waits for the next ready
        self.leadership: Leadership | None = None
        self.following = Following(self)
        self._election = Election(self)
        self._timeout_ticks = self._draw_timeout()
        self._handed_hard_state = restored.hard_state
        self._handed_soft_state = SoftState(self.role, 0)
        self._outbox: list[Message] = []
        self._snapshots: list[int] = []
        self._next_ready = 0  # the number that the next ready() with something to store gets
        self._next_advance = 0  # the number that the next advance() must carry
        self._handlers: dict[int, Callable[[Message], None]] = {
            MessageKind.PRE_VOTE_REPLY: self._election.on_pre_vote_reply,
            MessageKind.VOTE: self._election.on_vote,
            MessageKind.VOTE_REPLY: self._election.on_vote_reply,
            MessageKind.APPEND: self.following.on_append,
            MessageKind.HEARTBEAT: self.following.on_heartbeat,
            MessageKind.COMMIT: self.following.on_commit,
            MessageKind.SNAPSHOT: self.following.on_snapshot,
            MessageKind.TIMEOUT_NOW: self._election.on_timeout_now,
        }

    # ------------------------------------------------------------------ what one can see

    @property
    def last_index(self) -> int:
        return self.tail.last_index

    @property
    def durable_index(self) -> int:
        return self.tail.durable_index

    @property
    def compacted_index(self) -> int:
        return self.tail.compacted_index

    @property
    def own_term_applied(self) -> bool:
        """Whether this leader has applied an entry of its own term, and so all that earlier leaders committed."""
        return self.leadership is not None and self.applied_index >= self.leadership.first_own_index

    @property
    def transferee(self) -> int:
        """The voter that leadership is being handed to; 0 when there is none."""
        return 0 if self.leadership is None else self.leadership.transferee

    @property
    def installing(self) -> Snapshot | None:
        """The snapshot that this node wants; a driver that is fetching another one should stop."""
        return self.following.installing

    @property
    def idle(self) -> bool:
        """Nothing is on its way anywhere: the driver need not tick this node until something happens.

        All members of a set quiesce together, or the ones that are ticked miss the leader's heartbeats: so a leader
        that is not to be ticked any more is told to `quiesce`, and idle followers stop when they hear of it. They must
        be ticked again when anything happens to the set, and when a member's broker is no longer heard.
        """
        tail = self.tail
        if tail.durable_index != tail.last_index or self.applied_index != tail.last_index:
            return False
        if self.has_ready():
            return False
        if self.leadership is not None:
            return self.leadership.idle
        return self.leader_id != 0 and self.commit_index == tail.last_index and self.following.installing is None

    def membership_at(self, index: int) -> Membership:
        """Return the membership at this index, which a snapshot or a save there must carry."""
        return self.memberships.at(index)

    def status(self) -> dict[str, object]:
        """Return the state as operators look at it."""
        tail = self.tail
        picture: dict[str, object] = {
            "state": str(self.role),
            "term": self.term,
            "vote": self.vote,
            "leader": self.leader_id,
            "commit_index": self.commit_index,
            "applied_index": self.applied_index,
            "last_log_index": tail.last_index,
            "last_log_term": tail.last_term,
            "durable_index": tail.durable_index,
            "compacted_index": tail.compacted_index,
            "uncommitted_bytes": self.uncommitted_bytes,
            "num_peers": len((self.voters | self.learners) - {self.node_id}),
            "latest_configuration": {"voters": sorted(self.voters), "learners": sorted(self.learners)},
        }
        if self.leadership is not None:
            picture["progress"] = {
                peer: {"state": str(progress.state), "match": progress.match_index, "next": progress.next_index}
                for peer, progress in self.leadership.progress.items()
            }
        return picture

    # ------------------------------------------------------------------ what the driver puts in

    def tick(self) -> bool:
        """Count one unit of time; return whether the next ready has something because of it."""
        if self.leadership is not None:
            return self.leadership.tick()
        self.elapsed_ticks += 1
        if self.elapsed_ticks < self._timeout_ticks:
            return False
        self.elapsed_ticks = 0
        self._timeout_ticks = self._draw_timeout()
        self.campaign()
        return True

    def campaign(self) -> None:
        """Stand for election now. A leader, a learner and one that is no member have nothing to stand for."""
        self._election.campaign()

    def step(self, message: Message) -> None:
        """Take a message from another node. Terms are judged here; what each kind means, by its handler."""
        if message.receiver != self.node_id or message.sender == self.node_id:
            return
        if self.voters == {self.node_id} and message.sender not in self.learners:
            return  # nobody leads or stands without the sole voter's knowledge. Others may not know each other yet
        kind = message.kind
        if kind == _PRE_VOTE:
            self._election.on_pre_vote(message)
            return
        if message.term != self.term and not self._accept_term(message):
            return
        if self.leadership is not None:
            if kind == MessageKind.APPEND_REPLY:
                self.leadership.on_append_reply(message)
            elif kind == MessageKind.HEARTBEAT_REPLY:
                self.leadership.on_heartbeat_reply(message)
            elif kind == MessageKind.VOTE:
                self._election.on_vote(message)
            return
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(message)

    def propose(self, payload: bytes, kind: int = _NORMAL) -> int:
        """Append to the log of this leader; return the index of the entry, if it commits."""
        leadership = self.leadership
        if leadership is None or leadership.transferee:
            raise NotLeader(leader_id=self.leader_id if leadership is None else leadership.transferee)
        if kind != _NORMAL:
            if kind == EntryKind.MEMBERSHIP:
                raise NotSupported("changes of membership are asked for with change_membership")
            raise ValidationError(f"entries of kind {kind} are not for proposing", field="kind")
        size = len(payload)
        # One that is too large by itself is taken when nothing else waits, or it could never get through.
        if self.uncommitted_bytes and self.uncommitted_bytes + size > self.config.uncommitted_bytes_max:
            raise Overloaded(
                f"{self.uncommitted_bytes} bytes are proposed and not yet committed; try again a little later",
                retry_after_ms=self.config.overloaded_retry_ms,
            )
        self.uncommitted_bytes += size
        return self.tail.append(self.term, _NORMAL, payload)

    def change_membership(self, change: Change, node_id: int) -> int:
        """Propose one step; it is in force here at once. Refused before an own entry has committed, and while
        another change is on its way."""
        return self._lead().propose_change(change, node_id)

    def transfer(self, node_id: int) -> None:
        """Hand leadership to a voter. Proposals are refused meanwhile; given up after an election timeout, when that
        voter cannot be reached, or when this node's own id is given."""
        self._lead().transfer(node_id)

    def quiesce(self) -> None:
        """Tell the followers that the driver of this idle leader will not tick it for a while."""
        self._lead().quiesce()

    def wake_leader(self) -> None:
        """Let the leader know that this follower is awake: a set quiesces together or not at all."""
        if self.leadership is None and self.leader_id:
            self.following.wake_leader()

    def leader_silent(self) -> None:
        """Let the election timeout end early: the driver does not hear the leader's broker."""
        if self.leadership is None:
            self.elapsed_ticks = max(self.elapsed_ticks, self.config.election_ticks)

    def report_unreachable(self, node_id: int) -> None:
        """Probe a peer before sending more: messages to it may have been lost."""
        if self.leadership is not None:
            self.leadership.unreachable(node_id)

    def snapshot_message(self, node_id: int, index: int) -> Message:
        """Return the message that announces a snapshot at an applied index, with its term and its membership."""
        self._lead()
        if not max(1, self.tail.compacted_index) <= index <= self.applied_index:
            raise ValueError(f"a snapshot at {index} is impossible: the log is applied up to {self.applied_index}")
        term = self.tail.term(index)
        entry = Entry(index, term, EntryKind.MEMBERSHIP, self.memberships.at(index).encode())
        return Message(
            kind=MessageKind.SNAPSHOT,
            sender=self.node_id,
            receiver=node_id,
            term=self.term,
            log_index=index,
            log_term=term,
            entries=(entry,),
        )

    def report_snapshot(self, node_id: int, ok: bool, index: int = 0) -> None:
        """Go on sending to a peer after a snapshot that ended at `index`, or failed."""
        if self.leadership is not None:
            self.leadership.snapshot_sent(node_id, index if ok else 0)

    def begin_install(self, snapshot: Snapshot) -> bool:
        """Begin the last step of a snapshot that is built; False when it is no longer wanted.

        From True on until `installed` the node takes no entries and does not stand for election.
        """
        return self.following.begin_flip(snapshot)

    def installed(self, snapshot: Snapshot) -> None:
        """Take the snapshot, which is durable, as the beginning of the log; writes from before it are void."""
        self.following.flipped(snapshot)

    def abandon_install(self) -> None:
        """Give up the snapshot that could not be fetched; the leader offers another."""
        self.following.abandon()

    # ------------------------------------------------------------------ what the driver takes out

    def has_ready(self) -> bool:
        tail = self.tail
        return (
            self.attention
            or tail.handed_index != tail.last_index
            or (tail.delivered_index < self.commit_index and tail.can_deliver(self.commit_index))
            or self._handed_hard_state != (self.term, self.vote)
            or self._handed_soft_state != (self.role, self.leader_id)
        )

    def ready(self) -> Ready:
        """Return everything that is new since the last call."""
        tail = self.tail
        hard_state: HardState | None = None
        if self._handed_hard_state != (self.term, self.vote):
            hard_state = self._handed_hard_state = HardState(self.term, self.vote)
        soft_state: SoftState | None = None
        if self._handed_soft_state != (self.role, self.leader_id):
            soft_state = self._handed_soft_state = SoftState(self.role, self.leader_id)
        committed: list[Entry] = []
        if tail.delivered_index < self.commit_index and tail.can_deliver(self.commit_index):
            committed = tail.deliver(min(self.commit_index, tail.durable_index), self.config.committed_bytes_max)
        if self.leadership is not None and (self.attention or tail.handed_index != tail.last_index):
            self.leadership.collect()
        entries = tail.hand_out() if tail.handed_index != tail.last_index else []
        number = NOTHING_TO_STORE
        if entries or hard_state is not None:
            number = self._next_ready
            self._next_ready = number + 1
        if not self.attention:
            return Ready(number, hard_state, entries, committed, (), soft_state)
        self.attention = False
        messages, self._outbox = self._outbox, []
        snapshots, self._snapshots = self._snapshots, []
        return Ready(number, hard_state, entries, committed, messages or (), soft_state, snapshots)

    def advance(self, ready: Ready) -> None:
        """That ready's hard state and entries are durable. Readies complete in the order they were handed out; one that
        has nothing to store is complete from the beginning."""
        if ready.number == NOTHING_TO_STORE:
            return
        if ready.number != self._next_advance:
            raise ValueError(f"ready {ready.number} cannot complete before ready {self._next_advance}")
        self._next_advance += 1
        if ready.hard_state is not None:
            self.durable_hard_state = ready.hard_state
            self._election.hard_state_stored()
        if ready.entries:
            self.tail.stored()
            if self.leadership is not None:
                self.leadership.maybe_commit()
            else:
                self.following.stored()

    def applied(self, index: int) -> None:
        """Note that the machine has applied everything up to this index."""
        if not self.applied_index <= index <= self.tail.delivered_index:
            raise ValueError(
                f"applied cannot be {index}: it was {self.applied_index}, and {self.tail.delivered_index} "
                "is the last that was handed out"
            )
        self.applied_index = index

    def compacted(self, index: int, term: int) -> None:
        """Forget the log up to this index, except its term."""
        tail = self.tail
        if not tail.compacted_index <= index <= self.applied_index:
            raise ValueError(
                f"cannot compact to {index}: compacted is {tail.compacted_index}, applied {self.applied_index}"
            )
        tail.compacted_index = index
        tail.compacted_term = term
        self.memberships.compact(index)

    # ------------------------------------------------------------------ roles

    def become_follower(self, term: int, leader_id: int) -> None:
        new_term = term != self.term
        if new_term:
            self.term = term
            self.vote = 0
        self._enter(self._passive_role(), leader_id)
        if leader_id:
            self._election.leader_known()
        if new_term:
            self.following.reset()

    def become_pre_candidate(self) -> None:
        self._enter(Role.PRE_CANDIDATE, 0)

    def become_candidate(self) -> None:
        self.term += 1
        self.vote = self.node_id
        self._enter(Role.CANDIDATE, 0)
        self.following.reset()

    def become_leader(self) -> None:
        self._enter(Role.LEADER, self.node_id)
        self.leadership = Leadership(self)
        self.tail.append(self.term, EntryKind.NOOP, b"")

    def _enter(self, role: Role, leader_id: int) -> None:
        if self.leadership is not None:
            self.leadership = None
            self.tail.keep(KEEP_NOTHING)
        self.role = role
        self.leader_id = leader_id
        self.uncommitted_bytes = 0
        self.elapsed_ticks = 0
        self._timeout_ticks = self._draw_timeout()
        self._election.reset()

    def follow(self, leader_id: int) -> None:
        """Follow the leader of this term, which was heard."""
        if self.role is Role.FOLLOWER or self.role is Role.LEARNER:
            self.leader_id = leader_id
            self.elapsed_ticks = 0
        else:
            self.become_follower(self.term, leader_id)

    def membership_changed(self) -> None:
        self.voters, self.learners = self.memberships.current
        self.quorum = len(self.voters) // 2 + 1
        if self.leadership is not None:
            self.leadership.membership_changed()
        elif self.role is Role.FOLLOWER or self.role is Role.LEARNER:
            self.role = self._passive_role()

    def restore(self, snapshot: Snapshot) -> None:
        """Begin the log anew at a snapshot."""
        self.tail.restore(snapshot.index, snapshot.term)
        self.commit_index = self.applied_index = snapshot.index
        self.memberships = Memberships(snapshot.index, Membership(snapshot.voters, snapshot.learners))
        self.membership_changed()

    # ------------------------------------------------------------------ the rules they share

    def _accept_term(self, message: Message) -> bool:
        """Judge a message of another term; return whether its handler should see it."""
        kind = message.kind
        if message.term < self.term:
            if kind in _FROM_LEADERS:
                # A leader that was left behind must hear of it, or a node with a higher term could never rejoin.
                self.send(MessageKind.APPEND_REPLY, message.sender)
            elif kind == MessageKind.VOTE:
                self.send(MessageKind.VOTE_REPLY, message.sender, rejected=True)
            return False
        if kind == MessageKind.VOTE and message.context != FORCED and self._election.has_live_leader(message.sender):
            return False
        if kind == MessageKind.PRE_VOTE_REPLY and not message.rejected:
            return True  # it answers the term that this node would stand in
        self.become_follower(message.term, message.sender if kind in _FROM_LEADERS else 0)
        return True

    def _lead(self) -> Leadership:
        if self.leadership is None:
            raise NotLeader(leader_id=self.leader_id)
        return self.leadership

    def send(
        self,
        kind: int,
        receiver: int,
        *,
        term: int = 0,
        log_index: int = 0,
        log_term: int = 0,
        commit_index: int = 0,
        entries: Sequence[Entry] = (),
        rejected: bool = False,
        hint: int = 0,
        context: int = 0,
    ) -> None:
        """Send a message with the next ready, in this node's term unless another one is given."""
        self._outbox.append(
            Message(
                kind=kind,
                sender=self.node_id,
                receiver=receiver,
                term=term or self.term,
                log_index=log_index,
                log_term=log_term,
                commit_index=commit_index,
                entries=entries,
                rejected=rejected,
                hint=hint,
                context=context,
            )
        )
        self.attention = True

    def need_snapshot(self, peer: int) -> None:
        self._snapshots.append(peer)
        self.attention = True

    def commit_to(self, index: int) -> None:
        """Commit up to an index that the leader has committed."""
        if index > self.commit_index:
            self.commit_index = index

    def _passive_role(self) -> Role:
        """The role of a node that neither leads nor stands for election."""
        return Role.LEARNER if self.node_id in self.learners else Role.FOLLOWER

    def _draw_timeout(self) -> int:
        """Draw a timeout, anew each time, so that two candidates do not collide for ever."""
        return self.config.election_ticks + self._rng.randrange(self.config.election_ticks)
