"""How many connections a broker may have, over all its doors: as many as it may open files, less what storage needs.

A process that has run out of file descriptors cannot open a segment, and a broker that cannot write stops. So
connections are the first that go without. Clients are refused before other brokers are: a share is kept for these.
A caller that is refused is told why, for as long as few are being told; in a storm they are only closed.

What is refused is said once in the log, and again only when there was room in between.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

from lanner import limits
from lanner.errors import Overloaded

log = logging.getLogger("lanner.net")

REFUSALS_MAX: Final = 16  # so many are told at once why they are refused; each takes a descriptor for a moment
_PEERS_SHARE: Final = 8


def open_files_max() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits.OPEN_FILES_WANTED if soft == resource.RLIM_INFINITY else min(soft, limits.OPEN_FILES_WANTED)


def raise_open_files() -> int:
    """Have this process open as many files as it is allowed to raise itself to; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, limits.OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.warning("this broker may open %d files and could not raise that to %d: %s", soft, wanted, error)
    return open_files_max()


class Seats:
    """Counts connections in and out."""

    def __init__(self, callers_max: int = limits.CONNECTIONS_MAX, reserved: int = 0) -> None:
        self.callers_max = callers_max
        self.reserved = reserved  # so many more, for other brokers
        self.open = 0
        self.refusing = 0  # those that are being told, and gone in a moment
        self.refused_total = 0
        self._said = False

    @classmethod
    def for_open_files(cls, files: int, callers_max: int = limits.CONNECTIONS_MAX) -> Seats:
        """As many as fit beside storage in a process that may open so many files; for callers at most so many."""
        connections = min(limits.connections_for(files), callers_max + limits.PEER_CONNECTIONS_RESERVED)
        reserved = min(limits.PEER_CONNECTIONS_RESERVED, connections // _PEERS_SHARE)
        return cls(min(callers_max, connections - reserved), reserved)

    def lend(self, share: int) -> int:
        """Give one of so many seats of callers to a door that counts its connections itself; how many that are."""
        lent = max(1, self.callers_max // share)
        self.callers_max -= lent
        return lent

    @property
    def is_full(self) -> bool:
        """Whether there is nothing left, even for other brokers."""
        return self.open >= self.callers_max + self.reserved

    @property
    def is_full_for_callers(self) -> bool:
        """Whether a new one has to be another broker."""
        return self.open >= self.callers_max

    @property
    def is_beyond_callers(self) -> bool:
        """Whether those that are in use up what is kept for other brokers."""
        return self.open > self.callers_max

    def enter(self) -> None:
        self.open += 1

    def leave(self) -> None:
        self.open -= 1
        if self._said and self.open < self.callers_max - self.callers_max // 8:
            self._said = False

    def refuse(self) -> Overloaded:
        """One more is refused; why."""
        self.refused_total += 1
        if not self._said:
            self._said = True
            log.warning(
                "%d connections are open, which is all this broker may have: new ones are refused; it may open %d "
                "files, and keeps some for its storage (see ulimit -n and --connections-max)",
                self.open,
                open_files_max(),
            )
        return Overloaded(f"the broker has {self.open} connections, which is all it may have; try again later")


__all__ = ["REFUSALS_MAX", "Seats", "open_files_max", "raise_open_files"]
