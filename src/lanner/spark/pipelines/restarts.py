"""When a query that failed is started again, and when it is given up.

Pure: moments are arguments. Failures count as long as they come in a row: a query that got through a batch since begins
to count anew. The wait doubles from one to the next.
"""

from __future__ import annotations

from typing import NamedTuple

from lanner.spark.pipelines.plan import Restart, duration_ms


class Decision(NamedTuple):
    """What to do about a failure."""

    restart_at_s: float | None  # None: give it up


class Restarts:
    """The failures of one query."""

    def __init__(self, policy: Restart) -> None:
        self._policy = policy
        self._last_batch = -1
        self.in_a_row = 0
        self.total = 0

    def failed(self, batch: int, now_s: float) -> Decision:
        """It failed, and this is the last batch that it had completed before."""
        if batch > self._last_batch:
            self.in_a_row = 0
        self._last_batch = max(self._last_batch, batch)
        if self.in_a_row >= self._policy.limit:
            return Decision(None)
        wait_ms = min(duration_ms(self._policy.backoff) * 2**self.in_a_row, duration_ms(self._policy.backoff_max))
        self.in_a_row += 1
        self.total += 1
        return Decision(now_s + wait_ms / 1000)
