"""The values that pass between the core and its driver. All are facts or wishes; none has behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

import msgspec


class EntryKind(IntEnum):
    NOOP = 0  # a new leader's first entry: commits what came before it
    NORMAL = 1  # the machine's business
    MEMBERSHIP = 2  # who votes and who learns


class Entry(NamedTuple):
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks an entry for
    term: int
    kind: int
    payload: bytes


class HardState(NamedTuple):
    """What must be durable before it is acted on."""

    term: int
    vote: int  # 0: none


class Role(StrEnum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"
    LEARNER = "learner"


class SoftState(NamedTuple):
    """What the driver may want to know and need not keep."""

    role: Role
    leader_id: int  # 0: unknown


class MessageKind(IntEnum):
    PRE_VOTE = 1
    PRE_VOTE_REPLY = 2
    VOTE = 3
    VOTE_REPLY = 4
    APPEND = 5
    APPEND_REPLY = 6
    HEARTBEAT = 7
    HEARTBEAT_REPLY = 8
    SNAPSHOT = 9
    TIMEOUT_NOW = 10  # stand for election at once: the leader hands over
    COMMIT = 11  # what is committed, when there is nothing else to send; wants no answer


NOTHING_TO_STORE: Final = -1  # the number of a ready that is not stored
QUIESCE: Final = 1  # the hint of a heartbeat after which an idle set is not ticked: only a busy peer answers it


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message between two nodes of a replica set. Its fields are given by name.

    A leader stamps what it sends with its round (`context`); answers carry the highest round seen in that term back. So
    an answer proves that the follower still followed *after* a given moment, whatever the network did to the order.
    """

    kind: int
    sender: int
    receiver: int
    term: int
    log_index: int = 0
    log_term: int = 0
    commit_index: int = 0
    entries: Sequence[Entry] = ()
    rejected: bool = False
    hint: int = (
        0  # a refused append: the highest index that may agree, whose term is log_term; a heartbeat: QUIESCE or 0
    )
    context: int = 0  # the leader's round; on a VOTE, 1 when the leader itself asked for the election


class Snapshot(NamedTuple):
    """The metadata of a snapshot: where it ends, and who belonged to the set there. Its content is the driver's."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks a snapshot for
    term: int
    voters: frozenset[int]
    learners: frozenset[int]


class Ready(NamedTuple):
    """What the driver is to do, handed out once: store hard state and entries together, apply what is committed.

    `entries` may begin at or below an index that was handed out before: an entry at i discards what was there from i
    on. `messages` may be sent at once, always: one that depends on the disk appears only after the advance it needs.
    """

    number: int  # readies complete in this order; NOTHING_TO_STORE: nothing to wait for
    hard_state: HardState | None
    entries: Sequence[Entry]
    committed: Sequence[Entry]
    messages: Sequence[Message]
    soft_state: SoftState | None
    snapshots: Sequence[int] = ()  # peers that are behind the log: send each a snapshot, then report_snapshot

    @property
    def must_store(self) -> bool:
        """Whether this ready waits for the disk; one that does not need not be advanced."""
        return self.number != NOTHING_TO_STORE
