"""What a leader knows of one peer's log, and how much it may send to it.

Three states. *Probe*: the leader does not know where the logs part; one append at a time. *Replicate*: it knows;
appends stream ahead of their answers, within bounds of count and bytes. *Snapshot*: what the peer lacks is no longer in
the log; nothing is sent until the driver says what became of the snapshot.

    probe ──answer accepted──▶ replicate ──refusal, unreachable──▶ probe
      │                            │
      └──────── log too short ─────┴──────▶ snapshot ──report, or an answer within the log──▶ probe
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum


class ProgressState(StrEnum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One peer, as its leader sees it. match_index < next_index, and match_index never goes back in a term."""

    __slots__ = (
        "_inflight",
        "_probed",
        "commit_index",
        "heard",
        "inflight_bytes",
        "match_index",
        "next_index",
        "nudge",
        "paused",
        "round",
        "sent_round",
        "state",
        "told_index",
    )

    def __init__(self, next_index: int, round_number: int) -> None:
        self.state = ProgressState.PROBE
        self.match_index = 0  # the peer holds this much durably, equal to the leader's log
        self.next_index = next_index  # what to send next
        self.commit_index = 0  # what the peer said it knows to be committed
        self.told_index = 0  # the highest commit index that was sent to it
        self.round = round_number  # the highest round that came back
        self.sent_round = 0  # the round of the latest append
        self.heard = False  # since it was last reported unreachable
        self.paused = False  # probe only: an append is out, its answer is not here
        self.nudge = False  # something sent may have been lost: ask where the peer is
        self.inflight_bytes = 0
        self._inflight: deque[tuple[int, int]] = deque()  # (last index, bytes) of each append on its way
        self._probed = (0, 0)  # the same of the probe on its way

    @property
    def inflight_count(self) -> int:
        return len(self._inflight)

    def has_room(self, messages_max: int, bytes_max: int) -> bool:
        return len(self._inflight) < messages_max and self.inflight_bytes < bytes_max

    def sent(self, last: int, size: int) -> None:
        """Note an append with entries up to `last`."""
        if self.state is ProgressState.REPLICATE:
            self.next_index = last + 1
            self._inflight.append((last, size))
            self.inflight_bytes += size
        else:
            self.paused = True
            self._probed = (last, size)

    def probe(self, next_index: int) -> None:
        self.state = ProgressState.PROBE
        self.next_index = next_index
        self.paused = self.nudge = False
        self._inflight.clear()
        self._probed = (0, 0)
        self.inflight_bytes = 0

    def await_snapshot(self) -> None:
        self.probe(self.next_index)
        self.state = ProgressState.SNAPSHOT

    def acknowledged(self, index: int, first_held: int) -> bool:
        """Note that the peer holds everything up to `index`; return whether that is news."""
        news = index > self.match_index
        if news:
            self.match_index = index
            self.next_index = max(self.next_index, index + 1)
            inflight = self._inflight
            while inflight and inflight[0][0] <= index:
                self.inflight_bytes -= inflight.popleft()[1]
        elif index < self.match_index:
            return False
        if self.state is ProgressState.PROBE or (self.state is ProgressState.SNAPSHOT and index + 1 >= first_held):
            last, size = self._probed
            self.probe(self.match_index + 1)
            self.state = ProgressState.REPLICATE
            if last > self.match_index:
                self.sent(last, size)  # the probe's entries are there, and on their way to the disk
            return True
        return news

    def refused(self, index: int, next_index: int) -> bool:
        """Note that the peer has no entry `index` that agrees; False when that was settled long ago."""
        if self.state is ProgressState.REPLICATE:
            if index <= self.match_index:
                return False
            self.probe(self.match_index + 1)
            return True
        if self.state is ProgressState.SNAPSHOT or self.next_index - 1 != index:
            return False
        before = self.next_index
        self.probe(max(min(index, next_index), self.match_index + 1))
        # It refuses what it has answered for: its log was damaged. Ask again with the next heartbeat, not at once.
        self.paused = self.next_index == before
        return True
