"""Control parts of staged publish: batches on several partitions that become visible all or none.

STAGE, PREPARE and DISCARD_STAGES are for the brokers that lead the partitions they name; the rest may be asked of any
broker. REPORT is what brokers say among themselves: it is not answered, and comes again until its effect shows.

A *transaction* is a name, its *owner* the lineage of work that may use it, its *sequence* one piece of that work. An
*attempt* is 16 random bytes made by the one who stages; *commit id* 16 bytes that name one call of commit; a *token*
one try of it, given by the broker.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from msgspec import Meta, field

from lanner import limits
from lanner.wire.administration import CountReply
from lanner.wire.messages import Call, Control, Name, Number, NumberOrNone, PartitionId

Attempt = Annotated[bytes, Meta(min_length=16, max_length=16)]
CommitId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Reason = Annotated[str, Meta(max_length=limits.REASON_LENGTH_MAX)]
HoldMs = Annotated[int, Meta(ge=1, le=limits.STAGE_HOLD_MS_MAX)]
TimeoutMs = Annotated[int, Meta(ge=limits.COMMIT_TIMEOUT_MS_MIN, le=limits.COMMIT_TIMEOUT_MS_MAX)]
StageNumber = Annotated[int, Meta(ge=0, lt=limits.STAGES_PER_ATTEMPT_MAX)]
StageCount = Annotated[int, Meta(ge=1, le=limits.STAGES_PER_ATTEMPT_MAX)]


# ------------------------------------------------------------------ at the leaders of partitions


class Stage(Call["Staged"]):
    """Bulk: exactly one encoded batch, without a producer and without a dedup id."""

    topic: Name
    partition: PartitionId
    incarnation: Number  # 0: whatever topic has this name now
    transaction: Name
    owner: Name
    sequence: Number
    task: Number
    attempt: Attempt
    number: StageNumber  # of this batch among those of its attempt on this partition, from 0, without a gap
    hold_ms: HoldMs = limits.STAGE_HOLD_MS  # so long after its latest stage an attempt is kept unprepared


class Staged(Control):
    number: int
    duplicate: bool = False  # it was here already


class Manifest(Control):
    """The attempts that count on one partition, in the order of their tasks, each task once."""

    topic: Name
    partition: PartitionId
    incarnation: Number
    attempts: Annotated[
        list[tuple[Number, Attempt, StageCount]], Meta(max_length=limits.MANIFEST_ATTEMPTS_MAX)
    ]  # (task, attempt, stages)


class Prepare(Call["PartitionOutcomes"]):
    """All partitions that are led where it is asked, in one call."""

    token: Number
    manifests: Annotated[list[Manifest], Meta(max_length=limits.PARTICIPANTS_MAX)]


class PartitionOutcome(Control):
    topic: str
    partition: int
    code: int = 0  # 0, or a catalogue code (StageExpired, NotLeader, ...)
    message: str = ""
    attempts: list[bytes] = field(default_factory=list)  # the ones that are missing


class PartitionOutcomes(Control):
    """One for each partition named, in order."""

    items: list[PartitionOutcome]


class Discard(Control):
    topic: Name
    partition: PartitionId
    incarnation: Number
    attempts: Annotated[list[Attempt], Meta(max_length=limits.MANIFEST_ATTEMPTS_MAX)]


class DiscardStages(Call["PartitionOutcomes"]):
    """Stages that nobody will commit. What is prepared stays: only its outcome ends it."""

    items: Annotated[list[Discard], Meta(max_length=limits.PARTICIPANTS_MAX)]


# ------------------------------------------------------------------ at any broker


class Participant(Control):
    """Partitions of one topic that have stages of this commit."""

    topic: Name
    incarnation: Number
    partitions: Annotated[list[PartitionId], Meta(min_length=1, max_length=limits.PARTICIPANTS_MAX)]


class Begin(Call["CommitState"]):
    transaction: Name
    owner: Name
    sequence: Number
    commit_id: CommitId
    participants: Annotated[list[Participant], Meta(max_length=limits.TRANSACTION_TOPICS_MAX)]
    timeout_ms: TimeoutMs = limits.COMMIT_TIMEOUT_MS
    once: bool = False  # the id is random and used for sequence 0 only: it leaves nothing behind when it is forgotten


class CommitPhase(IntEnum):
    """How far a commit is. UNKNOWN: no commit of this id is known, or no longer."""

    UNKNOWN = 0
    PREPARING = 1
    COMMITTED = 2  # it is decided; partitions publish
    VISIBLE = 3  # every partition has published
    ABORTED = 4
    REPEATED = 5  # this sequence was committed before, by this commit or another one


class CommitState(Control):
    phase: int  # CommitPhase
    token: int = 0  # 0: none was given
    reason: str = ""  # of an abort: deadline, refused, superseded, fenced, deleted or operator


class End(Call["CommitState"]):
    """Abort a commit that is not decided, or has not begun. The answer is how it has ended: perhaps committed."""

    transaction: Name
    owner: Name
    commit_id: CommitId


class Look(Call["Looked"]):
    """How far is a commit, and is a sequence committed? With wait_ms it is answered once the phase is reached, or any
    that nothing follows."""

    transaction: Name
    commit_id: CommitId | None = None  # None: only the sequence is asked about
    owner: Name = ""
    sequence: NumberOrNone = -1
    phase: Annotated[int, Meta(ge=0, le=3)] = 0  # wait for COMMITTED or VISIBLE
    wait_ms: Annotated[int, Meta(ge=0, le=limits.POLL_WAIT_MS_MAX)] = 0
    token: Number = 0  # of this commit: a broker that has not heard of it yet waits until it has


class Looked(Control):
    state: CommitState
    owner: str = ""  # of the transaction; empty: it is not known
    committed: bool = False  # the sequence, by the owner that was asked about
    latest: int = -1  # the highest committed sequence; -1: none
    forgotten: bool = False  # the id was used before, and no more is known of it


class Claim(Call["Claimed"]):
    transaction: Name
    owner: Name
    restart: bool = False  # forget which sequences are committed: the new owner starts over


class Claimed(Control):
    owner_before: str  # empty: the id was new
    latest: int = -1  # the highest committed sequence that stays known


class ListTransactions(Call["TransactionList"]):
    """In the order of their names."""

    transaction: Name = ""  # only this one, with all that is known of it
    open_only: bool = False
    after: Name = ""  # TransactionList.next of the last page
    limit: Annotated[int, Meta(ge=1, le=limits.LIST_ITEMS_MAX)] = 100


class TryPartition(Control):
    topic: str
    partition: int
    leader: str = ""  # node id; empty while there is none
    state: str = ""  # prepared, confirmed, awaited; empty: the broker that answers does not know
    bytes: int = 0  # that it has prepared; only where it is led by the broker that answers


class OpenTry(Control):
    token: int
    sequence: int
    commit_id: bytes
    phase: int  # PREPARING or COMMITTED
    begun_ms: int
    deadline_ms: int
    decided_ms: int
    participants: int
    partitions: list[TryPartition] = field(default_factory=list)  # only when one transaction was asked for


class EndedCommit(Control):
    commit_id: bytes
    token: int
    phase: int  # COMMITTED or ABORTED
    reason: str = ""


class TransactionState(Control):
    transaction: str
    owner: str
    once: bool
    used_ms: int
    committed: list[tuple[int, int]]  # ranges of sequences: first and last
    ended: list[EndedCommit] = field(default_factory=list)  # the latest ones, oldest first
    open: OpenTry | None = None


class TransactionList(Control):
    transactions: list[TransactionState]
    next: str = ""  # ask after this one for the next page; empty: that was all
    total: int = 0  # that are remembered
    open: int = 0  # that have a try under way
    forgotten: int = 0  # of which only a hash is left


class Forget(Call[CountReply]):
    """Without an open try. Each leaves a hash, so that a late repeat is refused rather than published again."""

    transactions: Annotated[list[Name], Meta(max_length=limits.LIST_ITEMS_MAX)]
    hashes: bool = False  # of all that were ever forgotten, first: their names may then be used as new ones


# ------------------------------------------------------------------ brokers among themselves


class ReportKind(IntEnum):
    PREPARED = 1
    REFUSED = 2
    DONE = 3  # it has published


class ReportItem(Control):
    token: Number
    set_id: Number
    kind: Annotated[int, Meta(ge=1, le=3)]  # ReportKind
    reason: Reason = ""


class Report(Control):
    """Not answered. What the sets that are led by the sender have to say of tries, for the conductor."""

    items: Annotated[list[ReportItem], Meta(max_length=limits.REPORT_ITEMS_MAX)]
