"""Time as a simulator makes it: it passes when told to, and the wall clock that the broker sees may jump."""

from __future__ import annotations

from typing import Final

START_MS: Final = 1_700_000_000_000


class SimClock:
    """`elapsed_ms` only rises; `now_ms()` is what a broker reads, and can jump either way."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self.elapsed_ms = 0
        self._offset_ms = start_ms

    def now_ms(self) -> int:
        return self._offset_ms + self.elapsed_ms

    def advance(self, duration_ms: int) -> None:
        if duration_ms < 0:
            raise ValueError("time passes in one direction; `jump` moves the wall clock")
        self.elapsed_ms += duration_ms

    def jump(self, duration_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or a time service might."""
        self._offset_ms = max(self._offset_ms + duration_ms, 1 - self.elapsed_ms)
