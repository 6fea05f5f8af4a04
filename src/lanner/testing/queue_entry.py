"""What has certainly happened to one message, as one group on one partition has it: an entry of `queue_model`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class State(Enum):
    FRESH = "never handed out"
    LEASED = "leased"
    WAITING = "due for a retry"
    DONE = "settled"
    DEAD = "dead"
    UNSURE = "unsure"


@dataclass(slots=True, eq=False)
class Entry:
    """One message as this group has it."""

    offset: int
    lane: int
    since: float  # when it came to be in this state, at the latest
    state: State = State.FRESH
    deliver_at_ms: int = 0
    ready_ms: int = 0  # not deliverable before
    expires_ms: int = 0
    gone_ms: int = 0  # from here on retention may have taken it, as long as no delivery holds it; 0: never
    delayed: bool = False
    attempt: int = 0
    token: int = 0
    deadline_ms: int = 0
    pending: int = 0  # settles that were called and not answered
    released: bool = False  # perhaps: its last delivery may not count
    vague: bool = False  # leased for certain until its deadline; then a poll that nobody heard of may have had it
    unseen: set[int] = field(default_factory=set)  # tokens of deliveries that nobody saw and nobody gave back
    maybe_done: bool = False
    ever_done: bool = False
    answered: dict[tuple[int, str], float] = field(default_factory=dict)  # settles that took effect: since when
    unheard: set[tuple[int, str]] = field(default_factory=set)  # settles whose answer never came
    undone: set[tuple[int, str]] = field(
        default_factory=set
    )  # rejects of these, whose effect a redrive may have undone

    def deliverable_at(self, now_ms: int, max_deliveries: int) -> bool:
        """Whether it is certain that a poll decided at this time could have had it."""
        if self.pending or (self.expires_ms and (not now_ms or self.expires_ms <= now_ms)):
            return False
        if self.state is State.LEASED:
            return not self.vague and 0 < self.deadline_ms <= now_ms and self.attempt < max_deliveries
        if self.state is State.FRESH and self.gone_ms and self.gone_ms <= now_ms:
            return False
        return self.state is not State.UNSURE and self.ready_ms <= now_ms
