"""One node of a replica set: the rules that turn ticks, proposals and finished writes into terms and commits.

Every public call either changes the node at once or raises and changes nothing. What the outside must do about it is
collected until the driver asks with `ready()`. The roles change only in the `_become_…` methods; a commit moves only
in `_maybe_commit`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lanner.errors import NotLeader, NotSupported, Overloaded, ValidationError
from lanner.raft.entry import EntryKind, HardState, Message, Ready, Role, SoftState
from lanner.raft.log import LogReader, Tail

if TYPE_CHECKING:
    from lanner.raft.config import Config, Restored

_NORMAL = int(EntryKind.NORMAL)


class Chance(Protocol):
    """The part of random.Random that election timeouts need."""

    def randrange(self, stop: int, /) -> int: ...


class RaftNode:
    """The core. `commit_index` never goes back; `term` never goes back; a vote is given once a term."""

    def __init__(self, config: Config, restored: Restored, log: LogReader, rng: Chance) -> None:
        self._config = config
        self._rng = rng
        self._tail = Tail(restored, log)
        self.voters = restored.voters
        self.learners = restored.learners
        self.term, self.vote = restored.hard_state
        self.role = self._resting_role()
        self.leader_id = 0
        self.commit_index = restored.applied_index
        self.applied_index = restored.applied_index
        self.uncommitted_bytes = 0
        self._durable_hard_state = restored.hard_state
        self._handed_hard_state = restored.hard_state
        self._handed_soft_state = SoftState(self.role, 0)
        self._votes: set[int] = set()
        self._match: dict[int, int] = {}  # leader only: what each voter holds durably
        self._first_own_index = 0  # leader only: its empty entry; every later one is of its term
        self._elapsed_ticks = 0
        self._timeout_ticks = self._draw_timeout()
        self._next_ready = 0  # the number that the next ready() gets
        self._next_advance = 0  # the number that the next advance() must carry

    # ------------------------------------------------------------------ what one can see

    @property
    def last_index(self) -> int:
        return self._tail.last_index

    @property
    def durable_index(self) -> int:
        return self._tail.durable_index

    @property
    def compacted_index(self) -> int:
        return self._tail.compacted_index

    @property
    def own_term_applied(self) -> bool:
        """A leader whose first own entry has been applied: its machine has seen all that earlier leaders committed."""
        return self.role is Role.LEADER and self.applied_index >= self._first_own_index

    def status(self) -> dict[str, object]:
        """A flat picture for operators."""
        tail = self._tail
        return {
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
            "num_peers": len(self.voters | self.learners) - 1,
            "latest_configuration": {"voters": sorted(self.voters), "learners": sorted(self.learners)},
        }

    # ------------------------------------------------------------------ what the driver puts in

    def tick(self) -> None:
        """One unit of time has passed."""
        if self.role is Role.LEADER:
            return  # heartbeats to the other voters hang here
        self._elapsed_ticks += 1
        if self._elapsed_ticks >= self._timeout_ticks:
            self._elapsed_ticks = 0
            self._timeout_ticks = self._draw_timeout()
            self.campaign()

    def campaign(self) -> None:
        """Stand for election now. A leader, a learner and one that is no member have nothing to stand for."""
        if self.role is Role.LEADER or self._config.node_id not in self.voters:
            return
        if self.role is Role.CANDIDATE and self._durable_hard_state.term < self.term:
            return  # its own vote is still being written: a slow disk is no reason for another term
        self._become_candidate()

    def step(self, message: Message) -> None:
        """Take a message from another member. Terms are judged here; what each kind means comes with replication."""
        if message.sender not in self.voters and message.sender not in self.learners:
            return
        if message.sender == self._config.node_id:
            return
        if message.term > self.term:
            self._become_follower(message.term)

    def propose(self, payload: bytes, kind: int = _NORMAL) -> int:
        """Append to the log; the index is where the entry will be, if it commits. Leader only, bounded."""
        if self.role is not Role.LEADER:
            raise NotLeader(leader_id=self.leader_id)
        if kind != _NORMAL:
            if kind == EntryKind.MEMBERSHIP:
                raise NotSupported("changes of membership need a cluster; this replica set has one voter")
            raise ValidationError(f"entries of kind {kind} are not for proposing", field="kind")
        size = len(payload)
        # One that is too large by itself is taken when nothing else waits, or it could never get through.
        if self.uncommitted_bytes and self.uncommitted_bytes + size > self._config.uncommitted_bytes_max:
            raise Overloaded(
                f"{self.uncommitted_bytes} bytes are proposed and not yet committed; try again a little later",
                retry_after_ms=self._config.overloaded_retry_ms,
            )
        self.uncommitted_bytes += size
        return self._tail.append(self.term, _NORMAL, payload)

    # ------------------------------------------------------------------ what the driver takes out

    def has_ready(self) -> bool:
        tail = self._tail
        return (
            tail.handed_index != tail.last_index
            or tail.delivered_index < min(self.commit_index, tail.durable_index)
            or self._handed_hard_state != (self.term, self.vote)
            or self._handed_soft_state != (self.role, self.leader_id)
        )

    def ready(self) -> Ready:
        """Everything new since the last call, handed out once."""
        tail = self._tail
        hard_state: HardState | None = None
        if self._handed_hard_state != (self.term, self.vote):
            hard_state = self._handed_hard_state = HardState(self.term, self.vote)
        soft_state: SoftState | None = None
        if self._handed_soft_state != (self.role, self.leader_id):
            soft_state = self._handed_soft_state = SoftState(self.role, self.leader_id)
        committed = tail.deliver(min(self.commit_index, tail.durable_index), self._config.committed_bytes_max)
        ready = Ready(self._next_ready, hard_state, tail.hand_out(), committed, (), soft_state)
        self._next_ready += 1
        return ready

    def advance(self, ready: Ready) -> None:
        """That ready's hard state and entries are durable. Readies complete in the order they were handed out."""
        if ready.number != self._next_advance:
            raise ValueError(f"ready {ready.number} cannot complete before ready {self._next_advance}")
        self._next_advance += 1
        if ready.hard_state is not None:
            self._durable_hard_state = ready.hard_state
            self._count_own_vote()
        if ready.entries:
            self._tail.durable_index = ready.entries[-1].index
            self._maybe_commit()

    def applied(self, index: int) -> None:
        """The machine has applied everything up to this index."""
        if not self.applied_index <= index <= self._tail.delivered_index:
            raise ValueError(
                f"applied cannot be {index}: it was {self.applied_index}, and {self._tail.delivered_index} "
                "is the last that was handed out"
            )
        self.applied_index = index

    def compacted(self, index: int, term: int) -> None:
        """The log up to this index may be gone; its term is remembered."""
        tail = self._tail
        if not tail.compacted_index <= index <= self.applied_index:
            raise ValueError(
                f"cannot compact to {index}: compacted is {tail.compacted_index}, applied {self.applied_index}"
            )
        tail.compacted_index = index
        tail.compacted_term = term

    # ------------------------------------------------------------------ the rules

    def _become_follower(self, term: int) -> None:
        self.term = term
        self.vote = 0
        self.role = self._resting_role()
        self.leader_id = 0
        self._reset()

    def _become_candidate(self) -> None:
        self.term += 1
        self.vote = self._config.node_id
        self.role = Role.CANDIDATE
        self.leader_id = 0
        self._reset()

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader_id = self._config.node_id
        self._reset()
        self._first_own_index = self._tail.append(self.term, EntryKind.NOOP, b"")

    def _reset(self) -> None:
        self._votes.clear()
        self._match.clear()
        self.uncommitted_bytes = 0
        self._elapsed_ticks = 0
        self._timeout_ticks = self._draw_timeout()

    def _count_own_vote(self) -> None:
        """A candidate's vote for itself counts once it is durable, as it would if another had asked for it."""
        if self.role is Role.CANDIDATE and self._durable_hard_state == (self.term, self._config.node_id):
            self._votes.add(self._config.node_id)
            if len(self._votes) >= self._quorum:
                self._become_leader()

    def _maybe_commit(self) -> None:
        """Commit what a majority holds durably, if it reaches into this leader's own term."""
        if self.role is not Role.LEADER:
            return
        self._match[self._config.node_id] = self._tail.durable_index
        held = sorted((self._match.get(voter, 0) for voter in self.voters), reverse=True)
        index = held[self._quorum - 1]
        if index < self._first_own_index or index <= self.commit_index:
            return
        first_counted = max(self.commit_index, self._first_own_index) + 1
        self.uncommitted_bytes -= self._tail.size(first_counted, index)
        self.commit_index = index

    @property
    def _quorum(self) -> int:
        return len(self.voters) // 2 + 1

    def _resting_role(self) -> Role:
        return Role.LEARNER if self._config.node_id in self.learners else Role.FOLLOWER

    def _draw_timeout(self) -> int:
        """Drawn anew each time, so that two candidates do not collide for ever."""
        return self._config.election_ticks + self._rng.randrange(self._config.election_ticks)
