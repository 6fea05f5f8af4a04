"""Notices to the operator that would otherwise be repeated all day: each once, and then rarely."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

AGAIN_SECONDS: Final = 30.0
REMEMBERED_MAX: Final = 1_000


class Notices:
    """The notices of late. One about the same thing is logged again when its text is new, or after a while."""

    def __init__(
        self,
        log: logging.Logger,
        *,
        again_seconds: float = AGAIN_SECONDS,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._again_seconds = again_seconds
        self._now_seconds = now_seconds
        self._said: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def say(self, about: str, text: str, level: int = logging.WARNING) -> bool:
        """Log a notice about something, unless it was just logged; return whether it was."""
        now = self._now_seconds()
        before, at = self._said.get(about, ("", 0.0))
        if text == before and now - at < self._again_seconds:
            return False
        self._said[about] = (text, now)
        self._said.move_to_end(about)
        if len(self._said) > REMEMBERED_MAX:
            self._said.popitem(last=False)
        self._log.log(level, "%s", text)
        return True
