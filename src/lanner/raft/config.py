"""What a node is told when it is made: how it should behave, and what its disk remembers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lanner import limits
from lanner.raft.entry import Entry, EntryKind, HardState


class Chance(Protocol):
    """The part of random.Random that election timeouts need."""

    def randrange(self, stop: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class Config:
    """Behaviour of one node. Times are in ticks; only the driver knows how long a tick is."""

    node_id: int
    election_ticks: int = 20  # a timeout is drawn from [election_ticks, 2 × election_ticks)
    heartbeat_ticks: int = 3
    uncommitted_bytes_max: int = limits.UNCOMMITTED_BYTES_MAX_PER_PARTITION
    committed_bytes_max: int = 4 * limits.MIB  # about so much to apply in one ready, and at least one entry
    overloaded_retry_ms: int = 50  # the hint that goes with Overloaded
    append_bytes_max: int = 256 * limits.KIB  # payload in one append message, and at least one entry
    append_entries_max: int = 1_024
    inflight_messages_max: int = 64  # appends on their way to one peer
    inflight_bytes_max: int = 4 * limits.MIB
    tells_commits: bool = True  # at once, by a message of its own; else with the next append or heartbeat
    held_bytes_max: int = 1 * limits.MIB  # applied entries kept in memory for peers that are a little behind

    def __post_init__(self) -> None:
        if self.node_id < 1:
            raise ValueError("node_id must be at least 1: 0 means nobody")
        if not 1 <= self.heartbeat_ticks < self.election_ticks:
            raise ValueError("heartbeat_ticks must be at least 1 and less than election_ticks")
        if self.heartbeat_ticks + 3 > self.election_ticks:
            # The answer to one heartbeat must have time to come before a leader that hears nothing must step down.
            raise ValueError("election_ticks must exceed heartbeat_ticks by 3, or a leader could outlive its lease")
        if (
            min(self.uncommitted_bytes_max, self.committed_bytes_max, self.append_bytes_max, self.inflight_bytes_max)
            < 1
        ):
            raise ValueError("the byte bounds must be at least 1")
        if not 1 <= self.append_entries_max <= limits.RAFT_ENTRIES_PER_MESSAGE_MAX or self.inflight_messages_max < 1:
            raise ValueError("the counts of entries and messages must be at least 1 and within the limits")


@dataclass(frozen=True, slots=True)
class Restored:
    """What storage holds for this node.

    A membership takes effect when it is appended, not when it commits. So beside the members at `applied_index` the
    core must know the membership entries behind it; `raft.find_memberships` finds them for a driver that did not
    see them go by while it replayed its journal.
    """

    hard_state: HardState  # (0, 0) for a log that was never written to
    voters: frozenset[int]  # at applied_index
    learners: frozenset[int] = frozenset()
    compacted_index: int = 0
    compacted_term: int = 0
    last_index: int = 0
    last_term: int = 0
    applied_index: int = 0  # what the machine's saved state reflects: committed, therefore
    memberships: tuple[Entry, ...] = ()  # the entries of kind MEMBERSHIP in (applied_index, last_index]

    def __post_init__(self) -> None:
        if not self.voters:
            raise ValueError("a replica set needs at least one voter")
        if self.voters & self.learners:
            raise ValueError("a node is a voter or a learner, not both")
        if not 0 <= self.compacted_index <= self.applied_index <= self.last_index:
            raise ValueError(
                f"compacted {self.compacted_index}, applied {self.applied_index} and last {self.last_index} "
                "must rise in this order"
            )
        if not self.compacted_term <= self.last_term <= self.hard_state.term:
            raise ValueError(
                f"terms of compacted {self.compacted_term}, last entry {self.last_term} and hard state "
                f"{self.hard_state.term} must rise in this order"
            )
        places = [entry.index for entry in self.memberships if entry.kind == EntryKind.MEMBERSHIP]
        if len(places) != len(self.memberships) or places != sorted(set(places)):
            raise ValueError("memberships must be entries of that kind, in the order of the log")
        if places and not self.applied_index < places[0] <= places[-1] <= self.last_index:
            raise ValueError(f"memberships must lie behind applied {self.applied_index} and within {self.last_index}")
