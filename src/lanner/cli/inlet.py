"""Where lines come from: standard input, read beside the event loop.

A pipe may be silent for hours. A wait for it on the loop would keep the client from its heartbeats and its retries, so
a thread waits instead. It reads the descriptor itself, not Python's buffer, whose lock a waiting thread would hold when
the program ends. Backpressure: it reads on once what it has read before was taken, so that a fast file does not fill
the memory of a command that publishes slowly.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from io import BufferedReader
from typing import Final, TextIO, cast

from lanner import limits
from lanner.errors import MessageTooLarge

_READ_BYTES: Final = 1 << 20
_LINE_BYTES_MAX: Final = 2 << 20
_CHUNKS_AHEAD: Final = 2  # one that is being published, and one that is there when it has been


class Inlet:
    """Standard input, or another stream of bytes."""

    def __init__(self, stream: TextIO) -> None:
        self._read = _reader_of(stream)
        self._room = threading.Semaphore(_CHUNKS_AHEAD)
        self._chunks: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    async def lines(self) -> AsyncIterator[list[bytes]]:
        """Lines, as many at a time as have arrived: a slow pipe is not kept waiting for a full batch."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._fill, args=(loop,), name="lanner-input", daemon=True).start()
        left = b""
        while chunk := await self._chunks.get():
            if isinstance(chunk, Exception):
                raise chunk
            *lines, left = (left + chunk).split(b"\n")
            if len(left) > _LINE_BYTES_MAX:
                raise MessageTooLarge(
                    f"a line is longer than a message may be ({limits.MESSAGE_BYTES_MAX} bytes): divide it"
                )
            if lines:
                yield lines
            self._room.release()
        if left:
            yield [left]

    def _fill(self, loop: asyncio.AbstractEventLoop) -> None:
        found: bytes | Exception = b"more"
        while found and not isinstance(found, Exception):
            self._room.acquire()
            try:
                found = self._read()
            except Exception as error:  # it is raised where the lines are taken
                found = error
            try:
                loop.call_soon_threadsafe(self._chunks.put_nowait, found)
            except RuntimeError:  # the loop is closed: nobody wants it any more
                return


def _reader_of(stream: TextIO) -> Callable[[], bytes]:
    """What reads as much as has arrived, and waits until something has."""
    try:
        return partial(os.read, stream.fileno(), _READ_BYTES)
    except OSError:  # a stream without a descriptor, as tests have it
        return partial(cast(BufferedReader, stream.buffer).read1, _READ_BYTES)


__all__ = ["Inlet"]
