"""Where messages are printed to, and when what was printed is out of our hands.

A terminal or a file has what was flushed to it. A pipe is another matter: it holds many messages that the program at
its other end may never read, as `head -2` does. So into a pipe messages go one at a time, each when the one before it
was taken. The kernel tells how much of a pipe is unread (FIONREAD) and whether anybody still has its other end; it has
no event for "read", hence the short waits, which leave the event loop free to keep the leases meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import struct
import sys
from typing import Final, TextIO

_LOOKS: Final = 20  # a reader that waits takes a line within microseconds: look so often before the first rest
_REST_SECONDS_MAX: Final = 0.02


class Outlet:
    """Standard output."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pipe = _pipe_of(stream)

    def flush(self) -> None:
        self._stream.flush()

    @property
    def has_unread(self) -> bool:
        """Whether the reader of a pipe has yet to take something."""
        return self._pipe is not None and _unread_bytes(self._pipe) > 0

    async def passed(self) -> None:
        """Return when the reader of a pipe has all that was written; raise BrokenPipeError when it never will."""
        if self._pipe is None:
            return
        self._stream.flush()
        looks = 0
        while self.has_unread:
            if _is_broken(self._pipe):
                raise BrokenPipeError
            looks += 1
            await asyncio.sleep(0 if looks < _LOOKS else min(_REST_SECONDS_MAX, 1e-4 * (looks - _LOOKS)))


def _pipe_of(stream: TextIO) -> int | None:
    """The descriptor, where it is a pipe whose unread bytes can be counted."""
    if sys.platform != "linux":
        return None
    try:
        descriptor = stream.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
    except OSError:
        return None


def _unread_bytes(pipe: int) -> int:
    import fcntl
    import termios

    count: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]
    return count


def _is_broken(pipe: int) -> bool:
    """Whether nobody has the other end of a pipe any more."""
    poll = select.poll()
    poll.register(pipe, select.POLLERR)
    return bool(poll.poll(0))
