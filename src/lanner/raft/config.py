"""What a node is told when it is made: how it should behave, and what its disk remembers."""

from __future__ import annotations

from dataclasses import dataclass

from lanner import limits
from lanner.raft.entry import HardState


@dataclass(frozen=True, slots=True)
class Config:
    """Behaviour of one node. Times are in ticks; only the driver knows how long a tick is."""

    node_id: int
    election_ticks: int = 20  # a timeout is drawn from [election_ticks, 2 × election_ticks)
    heartbeat_ticks: int = 3
    uncommitted_bytes_max: int = limits.UNCOMMITTED_BYTES_MAX_PER_PARTITION
    committed_bytes_max: int = 4 * limits.MIB  # about so much to apply in one ready, and at least one entry
    overloaded_retry_ms: int = 50  # the hint that goes with Overloaded

    def __post_init__(self) -> None:
        if self.node_id < 1:
            raise ValueError("node_id must be at least 1: 0 means nobody")
        if not 1 <= self.heartbeat_ticks < self.election_ticks:
            raise ValueError("heartbeat_ticks must be at least 1 and less than election_ticks")
        if self.uncommitted_bytes_max < 1 or self.committed_bytes_max < 1:
            raise ValueError("the byte bounds must be at least 1")


@dataclass(frozen=True, slots=True)
class Restored:
    """What storage holds for this node."""

    hard_state: HardState  # (0, 0) for a log that was never written to
    voters: frozenset[int]
    learners: frozenset[int] = frozenset()
    compacted_index: int = 0
    compacted_term: int = 0
    last_index: int = 0
    last_term: int = 0
    applied_index: int = 0  # what the machine's saved state reflects: committed, therefore

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
