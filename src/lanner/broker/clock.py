"""The time that a leader decides by: its own, unless it runs ahead of what most brokers say.

Leases, delays and retention count in the time that decisions carry, and a machine's time never goes back. So a clock
that runs behind does little harm (time stands still until it is caught up with), but one that runs an hour ahead would
end every lease at once, for good. Therefore a leader never believes its own clock by more than half a second beyond the
median of its own and those of the brokers it hears. A minority of wrong clocks changes nothing, wherever they are.

What a broker said is kept with the moment of a steady clock, so that a jump of the own clock does not drag the others
along. Of an even number the lower median counts: too early is the mistake that passes.

A broker that has just started has heard nobody, and what it decided then could not be taken back. So a leader decides
and appends only when it knows as many clocks as its set has votes to win (`known`, see `Replica.leads`). Pulses come on
the same line as votes and several times a second: a new leader does not wait for long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lanner import limits

AHEAD_MS_MAX: Final = 500


class LeaderClock:
    """The own clock, bounded by those of other brokers."""

    def __init__(self, own_ms: Callable[[], int], steady_ms: Callable[[], int] | None = None) -> None:
        self._own_ms = own_ms
        self._steady_ms = own_ms if steady_ms is None else steady_ms
        self._others: dict[str, int] = {}  # node id → what its clock shows when the steady clock shows 0
        self._latest_ms: int | None = None  # what the own clock may show when the steady clock shows 0

    def observe(self, node_id: str, their_ms: int) -> None:
        """Take note of another broker's time. It has aged a little on the way, which only makes it more careful."""
        if node_id in self._others or len(self._others) < limits.BROKERS_MAX:
            self._others[node_id] = their_ms - self._steady_ms()
            self._bound()

    def known(self) -> int:
        """Return how many clocks are known here, the own one among them."""
        return len(self._others) + 1

    def forget(self, node_id: str) -> None:
        """Forget the clock of a broker that does not belong to the cluster any more."""
        self._others.pop(node_id, None)
        self._bound()

    def _bound(self) -> None:
        """Work out the latest time to believe: half a second beyond the median, however far ahead the own clock is."""
        others = sorted(self._others.values())
        self._latest_ms = others[len(others) // 2] + AHEAD_MS_MAX if others else None

    def now_ms(self) -> int:
        own_ms = self._own_ms()
        if self._latest_ms is None:
            return own_ms
        return min(own_ms, self._latest_ms + self._steady_ms())
