"""The pace of a broker's disk: how long its syncs take, and whether others should lead instead.

A disk is *slow* from when a sync has been under way for two seconds, until ten seconds have passed without such a sync.
While it is, the broker says so (`/readyz`, log, metrics), tells the others that nothing should
be led here, as a broker does that stops, and hands over what it leads to brokers that do not say the same. Where all
disks are slow, no broker hands over: it would gain nothing.

The others hear of it with the next pulse. So a broker waits a moment before it hands over: theirs may be slow, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SLOW_SYNC_MS: Final = 2_000
SLOW_FOR_MS: Final = 10_000  # after the latest slow sync
HAND_OVER_AFTER_MS: Final = 500  # more than two pulses


class Pace:
    """One disk. Told when a sync begins and ends; asked at every tick."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._began_ms: int | None = None
        self._slow_since_ms: int | None = None
        self._slow_until_ms = 0
        self.longest_ms = 0  # the longest sync since the disk was called slow

    def begin(self) -> None:
        self._began_ms = self._now_ms()

    def end(self) -> None:
        self.look()
        self._began_ms = None

    @property
    def sync_ms(self) -> int:
        """How long the sync that is under way has lasted; 0 when none is."""
        return 0 if self._began_ms is None else self._now_ms() - self._began_ms

    @property
    def slow(self) -> bool:
        return self._slow_since_ms is not None

    @property
    def slow_text(self) -> str:
        """Describe a disk that is slow; empty when it is not."""
        if not self.slow:
            return ""
        if self.sync_ms >= SLOW_SYNC_MS:
            return f"disk slow: a sync has been under way for {self.sync_ms / 1_000:.1f} s"
        return f"disk slow: a sync took {self.longest_ms / 1_000:.1f} s a moment ago"

    @property
    def should_hand_over(self) -> bool:
        """Whether it has been slow for so long that the others' pulses say whether theirs is."""
        since = self._slow_since_ms
        return since is not None and self._now_ms() - since >= HAND_OVER_AFTER_MS

    def look(self) -> bool:
        """Judge the disk after time has passed or a sync has ended; return whether it became slow, or fast again."""
        now_ms, was = self._now_ms(), self.slow
        lasted_ms = self.sync_ms
        if lasted_ms >= SLOW_SYNC_MS:
            self._slow_until_ms = now_ms + SLOW_FOR_MS
            if self._slow_since_ms is None:
                self._slow_since_ms, self.longest_ms = now_ms, 0
            self.longest_ms = max(self.longest_ms, lasted_ms)
        elif was and now_ms >= self._slow_until_ms:
            self._slow_since_ms = None
        return was != self.slow


__all__ = ["HAND_OVER_AFTER_MS", "SLOW_FOR_MS", "SLOW_SYNC_MS", "Pace"]
