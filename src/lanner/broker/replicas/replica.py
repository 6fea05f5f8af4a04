"""One replica: a Raft node and the machine its log drives.

A replica decides nothing about disks or sockets. It turns calls into proposals, hands what must be stored to the
engine, and applies what has committed. Two rules of the design live here:

- *Appends pipeline freely.* Each waits under its log index for the moment it applies.
- *One decision is in flight.* While it is, questions gather; when it has applied, all of them are decided in one
  pass and proposed as one record. A leader asks its machine for a decision only after its own first entry applied, and
  after it has heard what time others have.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final, NamedTuple, Protocol

from lanner.broker.ports import Applied
from lanner.errors import LannerError, NotLeader, UnknownRecord
from lanner.model import TopicSettings
from lanner.partition import WAIT, Answer, Partition, Request
from lanner.raft import Entry, EntryKind, Membership, Message, RaftNode, Ready, Role

_NORMAL: Final = int(EntryKind.NORMAL)
_KINDS: Final = frozenset(map(int, EntryKind))
MEMBERSHIP_KEY: Final = b"\x00members"  # beside the machine's own rows


Released = Sequence[tuple[int, tuple[int, ...] | None, int]]  # index, positions still needed (None: none), bytes


class Outcome(Protocol):
    """What a machine says of an entry it applied."""

    @property
    def result(self) -> Applied: ...
    @property
    def live(self) -> bool: ...
    @property
    def released(self) -> Released: ...
    @property
    def deliverable(self) -> bool: ...


class Machine(Protocol):
    """What a replica drives: a partition, or the cluster's metadata."""

    def apply(self, index: int, payload: bytes | None) -> Outcome: ...
    def take_dirty(self) -> dict[bytes, bytes | None]: ...


OnApplied = Callable[[Applied], None]
"""Told once what became of a proposal: the machine's result, or the error that stopped it."""

OnAnswer = Callable[[Answer, int], None]
"""Told once the answer to a question, and the index of the decision that made it true (0: none was written)."""


class Question(NamedTuple):
    request: Request
    on_answer: OnAnswer


class Effects(NamedTuple):
    """What applying one entry means for the ledger."""

    index: int  # type: ignore[assignment]
    payload: bytes | None  # of an entry that must stay readable
    released: Released


class Load:
    """How much of what was proposed here has not applied yet, over all replicas."""

    __slots__ = ("unapplied_bytes",)

    def __init__(self) -> None:
        self.unapplied_bytes = 0


class Replica:
    """A machine, its Raft node, and those who wait for either."""

    __slots__ = (
        "_clocks",
        "_decision",
        "_load",
        "_questions",
        "_saved_members",
        "_waiting",
        "applied_news",
        "closed",
        "machine",
        "messages",
        "node",
        "on_outcome",
        "set_id",
        "snapshot_peers",
        "stopped",
        "unapplied_bytes",
        "unstored",
        "watchers",
    )

    def __init__(
        self,
        set_id: int,
        node: RaftNode,
        machine: Machine,
        load: Load | None = None,
        clocks: Callable[[], int] | None = None,
    ) -> None:
        self.set_id = set_id
        self.node = node
        self.machine = machine
        self.unstored: list[Ready] = []  # what no commit carries yet
        self.messages: list[Message] = []
        self.snapshot_peers: list[int] = []  # these need more than the log has
        self.watchers: set[Callable[[], None]] = set()
        self.on_outcome: Callable[[int, bytes, Applied], None] | None = None  # told what every entry came to
        self.applied_news = False
        self.closed = False
        self.stopped: UnknownRecord | None = None  # where the log goes on, this release does not know how
        self.unapplied_bytes = 0
        self._load = Load() if load is None else load  # of which this replica's is a part
        self._clocks = clocks  # how many are known on this broker; None: no time matters to this machine
        self._saved_members: Membership | None = None
        self._waiting: dict[int, tuple[OnApplied, int]] = {}
        self._questions: list[Question] = []
        self._decision: tuple[list[Question], list[Answer]] | None = None

    @property
    def partition(self) -> Partition:
        machine = self.machine
        assert isinstance(machine, Partition)
        return machine

    @property
    def leads(self) -> bool:
        """Whether it may decide: leader, with its own first entry applied, and as many clocks known as it takes votes.

        A machine's time never goes back. One broker with a wrong clock must not set it alone, just because it leads.
        """
        node = self.node
        return node.own_term_applied and (self._clocks is None or self._clocks() >= node.quorum)

    @property
    def has_peers(self) -> bool:
        node = self.node
        return len(node.voters) + len(node.learners) > 1 or node.node_id not in node.voters

    @property
    def free(self) -> bool:
        """Whether a question asked now is decided at once."""
        return self._decision is None

    @property
    def deciding(self) -> bool:
        """Whether questions wait behind a decision that has not applied yet."""
        return bool(self._questions) and self._decision is not None

    @property
    def undecided(self) -> bool:
        """Whether questions wait for a decision; it can be made once this replica `leads`."""
        return bool(self._questions) and self._decision is None and self.node.own_term_applied

    # ------------------------------------------------------------------ calls

    def propose(self, payload: bytes, on_applied: OnApplied) -> int:
        """Put a record into the log; NotLeader and Overloaded are raised before anything happened."""
        index = self.node.propose(payload)
        size = len(payload)
        self._waiting[index] = (on_applied, size)
        self.unapplied_bytes += size
        self._load.unapplied_bytes += size
        return index

    def ask(self, request: Request, on_answer: OnAnswer) -> None:
        """Put a question; the next decision answers it."""
        if self.closed:
            on_answer(NotLeader("the partition is no longer served here"), 0)
            return
        if self.node.role is not Role.LEADER:
            on_answer(NotLeader("another broker leads this partition", leader_id=self.node.leader_id), 0)
            return
        self._questions.append(Question(request, on_answer))

    def decide(self, settings: TopicSettings, now_ms: int, feature_level: int, owned: Container[str] = ()) -> None:
        """Answer everything that waits in one pass, and propose what must be written for the answers to hold."""
        questions, self._questions = self._questions, []
        try:
            requests = [question.request for question in questions]
            decided = self.partition.decide(requests, settings, now_ms, feature_level, owned)
            if decided.record is not None:
                self._decision = (questions, list(decided.answers))
                self.propose(decided.record, self._decision_applied)
                return
        except LannerError as error:
            self._decision = None
            for question in questions:
                question.on_answer(error, 0)
            return
        for question, answer in zip(questions, decided.answers, strict=True):
            question.on_answer(answer, 0)

    def _decision_applied(self, result: Applied) -> None:
        assert self._decision is not None
        questions, answers = self._decision
        self._decision = None
        index = self.node.applied_index
        for question, answer in zip(questions, answers, strict=True):
            question.on_answer(result if isinstance(result, LannerError) else answer, index)

    # ------------------------------------------------------------------ the Raft node's output

    def take_ready(self) -> list[Effects]:
        """Apply what has committed and keep what must be stored; returns what the ledger should know."""
        effects: list[Effects] = []
        node = self.node
        while node.has_ready():
            ready = node.ready()
            if ready.messages:
                self.messages += ready.messages
            if ready.snapshots:
                self.snapshot_peers += ready.snapshots
            if ready.soft_state is not None and ready.soft_state.role is not Role.LEADER:
                # What was proposed here may still commit, or not: its callers must ask the new leader.
                self._give_up(NotLeader("another broker leads now; the outcome is not known here: ask again"))
                self.wake()
            if ready.committed:
                try:
                    self._apply(ready.committed, effects)
                except UnknownRecord as error:
                    self.stopped = error
                    return effects
            if ready.must_store:
                self.unstored.append(ready)
        return effects

    def take_unstored(self, room: int, *, everything: bool = False) -> tuple[list[Ready], int]:
        """What the next commit carries of this log, in order, while it has room; and the room that is left."""
        unstored, count = self.unstored, 0
        while count < len(unstored) and (room > 0 or everything):
            room -= sum([len(entry.payload) for entry in unstored[count].entries])
            count += 1
        self.unstored = unstored[count:]
        return unstored[:count], room

    def _apply(self, entries: Sequence[Entry], effects: list[Effects]) -> None:
        machine, node, waiting = self.machine, self.node, self._waiting
        self.applied_news = True
        wake = False
        for entry in entries:
            if entry.kind not in _KINDS:
                raise UnknownRecord(f"the log holds an entry of kind {entry.kind}, which is not known here")
            outcome = machine.apply(entry.index, entry.payload if entry.kind == _NORMAL else None)
            node.applied(entry.index)
            if outcome.live or outcome.released:
                effects.append(Effects(entry.index, entry.payload if outcome.live else None, outcome.released))
            wake = wake or outcome.deliverable
            if self.on_outcome is not None:
                self.on_outcome(entry.index, entry.payload, outcome.result)
            waiter = waiting.pop(entry.index, None)
            if waiter is not None:
                on_applied, size = waiter
                self.unapplied_bytes -= size
                self._load.unapplied_bytes -= size
                on_applied(outcome.result)
        if wake:
            self.wake()

    def take_dirty(self) -> dict[bytes, bytes | None]:
        """The machine's changed rows, and who belongs to the set at the applied index when that has changed."""
        rows = self.machine.take_dirty()
        members = self.node.membership_at(self.node.applied_index)
        if members != self._saved_members:
            self._saved_members = members
            rows[MEMBERSHIP_KEY] = members.encode()
        return rows

    def install(self, machine: Machine) -> None:
        """Use the machine of a snapshot that has replaced the log; wake those that wait."""
        self.machine = machine
        self.applied_news = True
        self._saved_members = None
        self.wake()

    def _give_up(self, error: LannerError) -> None:
        """Tell everybody who waits for a proposal or an answer that none will come from here."""
        waiting, self._waiting = self._waiting, {}
        questions, self._questions = self._questions, []
        self._load.unapplied_bytes -= self.unapplied_bytes
        self.unapplied_bytes = 0
        for on_applied, _ in waiting.values():
            on_applied(error)
        for question in questions:
            question.on_answer(error, 0)

    def wake(self) -> None:
        """Tell everyone who waits for something to deliver to look again; each is told once."""
        watchers, self.watchers = self.watchers, set()
        for watcher in watchers:
            watcher()

    def close(self, error: LannerError) -> None:
        """Nobody will be answered here any more; say so to all who wait."""
        self.closed = True
        self._give_up(error)
        self.wake()


__all__ = ["WAIT", "Effects", "Machine", "OnAnswer", "OnApplied", "Question", "Replica"]
