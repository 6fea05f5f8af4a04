"""What has begun to arrive and is not whole yet: one budget for all of it, and a deadline for each.

A frame or a body must be kept until it is whole, and until then nothing is known of what it is for. So all of them
together may hold so many bytes, and each may take so long.

Rules. When the budget is exceeded, one is let go, then the next, until the rest fits: always the *slowest* (bytes for
the time since its first one) of those that hold at least half an equal share. So a small frame over a slow line never
pays for large ones. A frame that is not whole at its deadline is let go too. Time during which
the broker itself does not read counts for neither, and a deadline is judged twice, so that a broker that stood still
reads what lies there before it blames the sender.

This module knows no socket. It counts, chooses, and tells the holder.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

from lanner import limits
from lanner.errors import RequestTimeout

log = logging.getLogger("lanner.net")

_LOOKS_PER_DEADLINE: Final = 16
_SECONDS_MIN: Final = 0.001


class Holder(Protocol):
    """Something that keeps the beginning of a frame or a body."""

    def end(self, error: RequestTimeout) -> None:
        """It is not waited for any longer: drop it, and tell the sender why."""


class Part:
    """The beginning of one frame or body."""

    __slots__ = ("began", "holder", "overdue", "size", "stopped")

    def __init__(self, holder: Holder, now: float) -> None:
        self.holder = holder
        self.size = 0
        self.began = now
        self.stopped: float | None = None  # since when the broker itself does not read it
        self.overdue = False

    def seconds(self, now: float) -> float:
        """How long it has been on its way, as far as its sender is to blame."""
        return (now if self.stopped is None else self.stopped) - self.began

    def pace(self, now: float) -> float:
        """Bytes a second."""
        return self.size / max(self.seconds(now), _SECONDS_MIN)


def choose_slowest(parts: Iterable[Part], now: float) -> Part:
    """Of those that hold at least half an equal share, the slowest."""
    everything = list(parts)
    share = sum(part.size for part in everything) / len(everything) / 2
    return min((part for part in everything if part.size >= share), key=lambda part: part.pace(now))


class Unfinished:
    """All parts of one kind of callers."""

    def __init__(
        self, bytes_max: int = limits.UNFINISHED_BYTES_MAX, deadline_ms: int = limits.FRAME_DEADLINE_MS
    ) -> None:
        self.bytes_max = bytes_max
        self.deadline_seconds = deadline_ms / 1_000
        self.held_bytes = 0
        self.let_go_total = 0
        self._parts: set[Part] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._said = False

    def another(self) -> Unfinished:
        """The same budget and deadline again, for callers of another kind."""
        return Unfinished(self.bytes_max, round(self.deadline_seconds * 1_000))

    def begin(self, holder: Holder) -> Part:
        """Something begins to arrive."""
        loop = asyncio.get_running_loop()
        part = Part(holder, loop.time())
        self._parts.add(part)
        if self._timer is None:
            self._timer = loop.call_later(self.deadline_seconds / _LOOKS_PER_DEADLINE, self._look)
        return part

    def hold(self, part: Part, size: int) -> None:
        """So much of it is held now. The slowest may be let go by this, `part` itself too."""
        if part not in self._parts:
            return
        self.held_bytes += size - part.size
        part.size = size
        if self.held_bytes > self.bytes_max:
            self._make_room()

    def stop(self, part: Part) -> None:
        """The broker does not read for a while: that is not the sender's doing."""
        if part.stopped is None:
            part.stopped = asyncio.get_running_loop().time()

    def resume(self, part: Part) -> None:
        if part.stopped is not None:
            part.began += asyncio.get_running_loop().time() - part.stopped
            part.stopped = None

    def end(self, part: Part) -> None:
        """It is whole, or its connection is gone."""
        if part in self._parts:
            self._parts.discard(part)
            self.held_bytes -= part.size
        if self._said and self.held_bytes <= self.bytes_max // 2:
            self._said = False

    def _make_room(self) -> None:
        if not self._said:
            self._said = True
            log.warning(
                "%d requests that are not whole hold %d MiB, which is all they may: the slowest are let go",
                len(self._parts),
                self.held_bytes // limits.MIB,
            )
        now = asyncio.get_running_loop().time()
        while self.held_bytes > self.bytes_max:
            part = choose_slowest(self._parts, now)
            self._let_go(
                part,
                f"requests that are not whole hold {self.held_bytes} bytes here and may hold {self.bytes_max}; the "
                f"{part.size} bytes of this one, in {part.seconds(now):.1f} s, were the slowest: send it again, "
                "faster or in smaller pieces",
            )

    def _look(self) -> None:
        """Let those go that were overdue at the last look and still are."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for part in tuple(self._parts):
            late = part.seconds(now) >= self.deadline_seconds
            if late and part.overdue and part.stopped is None:
                self._let_go(
                    part,
                    f"the request was not whole {self.deadline_seconds:g} s after its first byte, {part.size} bytes "
                    "came: send it faster, or in smaller pieces",
                )
            part.overdue = late
        if self._parts:
            self._timer = loop.call_later(self.deadline_seconds / _LOOKS_PER_DEADLINE, self._look)

    def _let_go(self, part: Part, why: str) -> None:
        self.end(part)
        self.let_go_total += 1
        part.holder.end(RequestTimeout(why))


__all__ = ["Holder", "Part", "Unfinished", "choose_slowest"]
