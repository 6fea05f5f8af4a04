"""The values that pass between the core and its driver. All are facts or wishes; none has behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple


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
    TIMEOUT_NOW = 10


class Message(NamedTuple):
    """One message between two nodes of a replica set."""

    kind: int
    sender: int
    receiver: int
    term: int
    log_index: int = 0
    log_term: int = 0
    commit_index: int = 0
    entries: Sequence[Entry] = ()
    rejected: bool = False
    hint: int = 0


class Ready(NamedTuple):
    """What the driver is to do, handed out once: store hard state and entries together, apply what is committed."""

    number: int  # readies complete in this order
    hard_state: HardState | None
    entries: Sequence[Entry]
    committed: Sequence[Entry]
    messages: Sequence[Message]
    soft_state: SoftState | None

    @property
    def must_store(self) -> bool:
        """Whether this ready waits for the disk; one that does not can be advanced at once."""
        return self.hard_state is not None or bool(self.entries)
