"""The control parts of requests in hand: one budget for all connections.

A control part is small as a rule, and may have a megabyte: a poll that carries ten thousand settles. One connection may
have a thousand requests in hand, and polls wait for a minute, so what each connection may do says nothing about all of
them together. A request counts from its arrival until it is answered. Beyond the budget it is refused, surely without
effect; the large ones already at half of it, so that they never keep the small ones out. Settles, commits and pings are
counted and never refused: they wait for nobody, and they are what lets others go.
"""

from __future__ import annotations

import logging
from typing import Final

from lanner import limits
from lanner.errors import Overloaded
from lanner.wire.messages import Command

log = logging.getLogger("lanner.net")

SMALL_BYTES: Final = 4 * limits.KIB
_RETRY_MS: Final = 100
_NEVER_REFUSED: Final = frozenset({Command.PING, Command.SETTLE, Command.RELEASE, Command.COMMIT})


class Controls:
    """Counts the bytes of control parts in and out."""

    def __init__(self, bytes_max: int = limits.CONTROLS_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self._said = False

    def take(self, command: Command, size: int) -> None:
        """One more is in hand; raises what refuses it."""
        held = self.held_bytes + size
        if held > (self.bytes_max if size <= SMALL_BYTES else self.bytes_max // 2) and command not in _NEVER_REFUSED:
            self._refuse(size)
        self.held_bytes = held

    def give_back(self, size: int) -> None:
        self.held_bytes -= size
        if self._said and self.held_bytes < self.bytes_max // 4:
            self._said = False

    def _refuse(self, size: int) -> None:
        if not self._said:
            self._said = True
            log.warning(
                "the requests in hand have control parts of %d KiB, and may have %d: more are refused until some are "
                "answered (see --control-bytes-max)",
                self.held_bytes // limits.KIB,
                self.bytes_max // limits.KIB,
            )
        raise Overloaded(
            f"the control parts of all requests in hand have {self.held_bytes} bytes, and this one {size} more, which "
            f"is too much (control_bytes_max is {self.bytes_max}): try again a little later, or with fewer settles",
            retry_after_ms=_RETRY_MS,
            setting="control_bytes_max",
        )


__all__ = ["SMALL_BYTES", "Controls"]
