"""What a start that takes long says of itself: before the doors are open, the log is all that can be seen of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger("lanner.broker")

_SECONDS_BETWEEN: Final = 2.0


class Converting:
    """Tells, now and then, how far the table of an older release is converted; and when it is done."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._told = now()

    def tell(self, done: int, total: int) -> None:
        if done == total:
            log.warning("converted the table of an older release: %d rows have checksums now", total)
        elif self._now() - self._told >= _SECONDS_BETWEEN:
            self._told = self._now()
            log.warning(
                "converting the table of an older release: %d of %d rows (%d%%)", done, total, 100 * done // total
            )


__all__ = ["Converting"]
