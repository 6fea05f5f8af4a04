"""How long to wait before something that failed is tried again: pauses that double, up to a bound, with jitter.

Jitter keeps callers that failed together from coming back together. A peer that knows when to come back may ask for a
longer pause. This module reads no clock and sleeps nowhere: chance and time are arguments.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FIRST_S: Final = 0.05
MOST_S: Final = 2.0
_JITTER_MIN: Final = 0.75  # of a pause; at most a quarter more than it


class Backoff:
    """The pauses between the tries of one caller."""

    __slots__ = ("_first_s", "_most_s", "_next_s", "_rng", "is_fresh")

    def __init__(
        self, first_s: float = FIRST_S, most_s: float = MOST_S, rng: Callable[[], float] = random.random
    ) -> None:
        self._first_s = self._next_s = first_s
        self._most_s = most_s
        self._rng = rng
        self.is_fresh = True  # nothing failed since the last success

    def reset(self) -> None:
        """Begin again with the shortest pause: something succeeded."""
        self._next_s = self._first_s
        self.is_fresh = True

    def pause_s(self, retry_after_ms: int | None = None) -> float:
        """Return the next pause, not shorter than what the peer asked for."""
        pause_s = max(self._next_s, (retry_after_ms or 0) / 1_000)
        self._next_s = min(2 * self._next_s, self._most_s)
        self.is_fresh = False
        return pause_s * (_JITTER_MIN + self._rng() * 2 * (1 - _JITTER_MIN))

    def pause_until(self, deadline: float, now: float, retry_after_ms: int | None = None) -> float | None:
        """Return the next pause, or None when it would not end before the deadline."""
        pause_s = self.pause_s(retry_after_ms)
        return pause_s if now + pause_s < deadline else None
