"""Whether the disk has room for more, and what is missing.

Publishing is refused below the reserve, and while something could not be written for lack of room. A write that waits
is tried again and again: only when it has succeeded there is room, whatever the file system says meanwhile. What the
operator reads changes only when the answer does.
"""

from __future__ import annotations

import logging

from lanner import limits

log = logging.getLogger("lanner.broker")


class Room:
    """One disk's room, as far as it has been seen."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._waiting: set[str] = set()  # what is tried again until there is room for it
        self._wanted_bytes = 0  # room beyond the reserve that something gave up for, and may try again when it is there
        self.is_full = False
        self.missing = ""  # what the operator has to know while it is full

    def ran_out(self, work: str) -> None:
        """This found no room, and is tried again until it does."""
        self._waiting.add(work)
        self.is_full = True

    def gave_up(self) -> None:
        """Something that can wait found no room for another segment."""
        self._wanted_bytes = self._segment_bytes
        self.is_full = True

    def wrote(self, work: str) -> bool:
        """It was written; whether it had waited for room."""
        if work not in self._waiting:
            return False
        self._waiting.discard(work)
        return True

    def look(self, free: int, total: int, reserve: int) -> None:
        """The file system says this."""
        if free >= reserve + self._wanted_bytes:
            self._wanted_bytes = 0
        full = bool(self._waiting) or bool(self._wanted_bytes) or free < reserve
        if full and not self.missing:
            self.missing = (
                f"the disk has {_mib(free)} MiB of {_mib(total)} MiB free; {_mib(reserve)} MiB are kept in reserve, "
                f"and a new segment takes {_mib(self._segment_bytes)} MiB"
            )
            log.warning("%s: publishing is refused until there is room; free some space", self.missing)
        elif self.missing and not full:
            self.missing = ""
            log.warning("the disk has %d MiB free: publishing is possible again", _mib(free))
        self.is_full = full


def _mib(size: int) -> int:
    return -(-size // limits.MIB)


__all__ = ["Room"]
