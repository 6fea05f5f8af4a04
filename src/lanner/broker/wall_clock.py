"""The wall clock, followed at the pace of a steady one.

Leases, delays and retention count in a time that never goes back. A wall clock that is set while the broker runs would
end every lease at once, or hold everything up. So a step is followed slowly: the time shown runs at most a twentieth
faster or slower than a steady clock until it agrees with the wall clock again, and a step is told to the operator. A
broker that starts takes the wall clock as it finds it.

Time is an argument: this module reads the two clocks that it is given, and no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger("lanner.broker")

PACE: Final = 0.05
STEP_MS: Final = 1_000  # what the wall clock differs by from one reading to the next to be called a step


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_clock_ms() -> int:
    """Return the milliseconds of a clock that is never set; it counts the time in which the machine sleeps."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


class FollowingClock:
    """The time on this broker."""

    def __init__(self, wall_ms: Callable[[], int] = wall_clock_ms, steady_ms: Callable[[], int] = steady_clock_ms):
        self._wall_ms = wall_ms
        self._steady_ms = steady_ms
        self._steady_before_ms = steady_ms()
        self._shown_ms = float(wall_ms())
        self.behind_ms = 0.0  # how much the wall clock shows more than this one; below 0: less

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC; never less than before."""
        steady_ms = self._steady_ms()
        elapsed_ms = max(0, steady_ms - self._steady_before_ms)
        self._steady_before_ms = steady_ms
        behind_ms = self._wall_ms() - (self._shown_ms + elapsed_ms)
        if abs(behind_ms - self.behind_ms) >= STEP_MS:
            self._tell(behind_ms - self.behind_ms)
        followed_ms = min(max(behind_ms, -PACE * elapsed_ms), PACE * elapsed_ms)
        self._shown_ms += elapsed_ms + followed_ms
        self.behind_ms = behind_ms - followed_ms
        return int(self._shown_ms)

    def _tell(self, step_ms: float) -> None:
        log.warning(
            "the wall clock was set %s by %.1f s while the broker runs: it is followed slowly (%d%%), so that no lease "
            "ends early or late by it; a restart takes the new time at once",
            "forward" if step_ms > 0 else "back",
            abs(step_ms) / 1_000,
            PACE * 100,
        )


__all__ = ["FollowingClock", "steady_clock_ms", "wall_clock_ms"]
