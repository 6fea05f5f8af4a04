"""One socket under one connection of the wire room: what both ends share.

Callbacks only, no task for a message. What the connection wants to say collects during a turn of the loop and leaves
in one write at its end. A peer that does not read is noticed in three steps: nothing more is handed to the socket, so
its replies stay here where they can be counted; nothing more is read from it, so that it cannot ask for more; and when
too much waits, or nothing moves for too long, it is let go.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from enum import IntFlag
from typing import Final, cast

from lanner import limits
from lanner.errors import ConnectionLost, LannerError
from lanner.wire.connection import ClientConnection, ServerConnection

LINGER_SECONDS: Final = 1.0
PIECE_BYTES: Final = 256 * limits.KIB
_LIMITS: Final = (2 * PIECE_BYTES, PIECE_BYTES // 2)  # of what waits in a transport: it says stop, it says go on
_VERSION: Final = sys.version_info[:3]
# Python's own loop forgot in these to say stop after `writelines`, so that whatever was said piled up in it.
FORGETS_TO_PAUSE: Final = (3, 12) <= _VERSION < (3, 12, 9) or (3, 13) <= _VERSION < (3, 13, 2)


class Pause(IntFlag):
    """Why nothing is read from the socket for the moment."""

    NONE = 0
    UNREAD_REPLIES = 1
    WORK_IN_HAND = 2
    NEXT_TURN = 4


class Link(asyncio.Protocol):
    """The shared half of both ends. Subclasses say what to do with the bytes that come."""

    def __init__(
        self,
        connection: ClientConnection | ServerConnection,
        *,
        unsent_bytes_max: int = limits.CONNECTION_UNSENT_BYTES_MAX,
        stall_ms: int = limits.CONNECTION_STALL_MS,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self._hanging_up = False
        self._writable = True
        self._pause = Pause.NONE
        self._unsent_bytes_max = unsent_bytes_max
        self._stall_seconds = stall_ms / 1_000
        self._stall_timer: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    # ------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(*_LIMITS)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def pause_writing(self) -> None:
        self._writable = False
        if not self._hanging_up:
            self.pause_reading(Pause.UNREAD_REPLIES)
            self._watch_stall()

    def resume_writing(self) -> None:
        self._writable = True
        if self._hanging_up:
            return
        self._stop_watching()
        self._flush()
        if self._writable:
            self.resume_reading(Pause.UNREAD_REPLIES)

    def connection_lost(self, problem: Exception | None) -> None:
        self._stop_watching()
        self._transport = None
        reason = "" if problem is None else f": {problem}"
        self._connection.close(ConnectionLost(f"the connection ended before the answer came{reason}"))
        self._connection.take_outgoing()
        self._lost()
        if not self.closed.done():
            self.closed.set_result(None)

    # ------------------------------------------------------------------ hooks of the subclasses

    def _lost(self) -> None:
        """The socket is gone."""

    def _handed_over(self) -> None:
        """Everything said so far is with the socket now."""

    # ------------------------------------------------------------------ reading

    def pause_reading(self, why: Pause) -> None:
        if not self._pause and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pause |= why

    def resume_reading(self, why: Pause) -> None:
        before = self._pause
        self._pause &= ~why
        if before and not self._pause and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # ------------------------------------------------------------------ writing

    def flush(self) -> None:
        """Write what was said now, if the turn is known to be over."""
        if self._connection.outgoing_bytes and not self.is_closing:
            self._flush()

    def expect_progress(self, silent_ms_max: int) -> None:
        """Give the connection up when the other machine acknowledges nothing for so long: it is cut off, or gone.

        Without this the system tries for minutes, more and more rarely, and goes on trying rarely when the way is free
        again.
        """
        raw = None if self._transport is None else self._transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_USER_TIMEOUT"):
            seconds = max(1, silent_ms_max // 2_000)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silent_ms_max)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)

    def flush_soon(self) -> None:
        """Write what was said when this turn of the loop is over."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        transport, connection = self._transport, self._connection
        if transport is None or not connection.outgoing_bytes:
            return
        # In pieces, so that a peer that reads slowly has its replies waiting here and not in the transport, where every
        # partial write would move them.
        while self._writable and connection.outgoing_bytes:
            _write(transport, connection.take_outgoing(PIECE_BYTES))
        if not connection.outgoing_bytes:
            self._handed_over()
        if not self._writable:
            unsent = connection.outgoing_bytes + transport.get_write_buffer_size()
            if unsent > self._unsent_bytes_max:
                self.abort(
                    ConnectionLost(f"{unsent} bytes wait to be read by the peer; {self._unsent_bytes_max} are allowed")
                )

    def _watch_stall(self) -> None:
        """While the socket takes nothing more, see from time to time whether the peer reads at all."""
        if self._stall_timer is not None or self._transport is None:
            return
        waiting = self._transport.get_write_buffer_size()
        self._stall_timer = self._loop.call_later(self._stall_seconds, self._judge_stall, waiting)

    def _judge_stall(self, waiting_before: int) -> None:
        self._stall_timer = None
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() >= waiting_before:
            self.abort(ConnectionLost(f"the peer has read nothing for {self._stall_seconds:g} s"))
        else:
            self._watch_stall()

    def _stop_watching(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    # ------------------------------------------------------------------ the end

    @property
    def is_writable(self) -> bool:
        """The socket takes more bytes: a writer that has a choice writes only then."""
        return self._writable

    @property
    def is_idle(self) -> bool:
        """Everything that was said is with the system: what is said now leaves at once."""
        transport = self._transport
        return (
            transport is not None
            and self._writable
            and not self._connection.outgoing_bytes
            and not transport.get_write_buffer_size()
        )

    @property
    def is_closing(self) -> bool:
        return self._hanging_up or self._transport is None or self._transport.is_closing()

    def hang_up(self) -> None:
        """Write what was said, then close.

        A socket that is closed while bytes of the peer lie unread resets the connection, and the reset can overtake
        the answer. So only the writing half is closed at first; what still comes is read and dropped until the
        peer closes too, for a moment at most.
        """
        transport = self._transport
        if transport is None or transport.is_closing() or self._hanging_up:
            return
        self._hanging_up = True
        self._stop_watching()
        buffers = self._connection.take_outgoing()
        if buffers:
            _write(transport, buffers)
            self._handed_over()
        self._connection.close(ConnectionLost("the connection is closed"))
        if not transport.can_write_eof():  # TLS has no half-closed state
            self._stall_timer = self._loop.call_later(self._stall_seconds, transport.abort)
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer was faster, and nobody was reading to notice
            transport.abort()
            return
        self.resume_reading(~Pause.NONE)
        self._stall_timer = self._loop.call_later(LINGER_SECONDS, transport.abort)

    def abort(self, error: LannerError) -> None:
        """Close at once; what was not sent is lost."""
        self._connection.close(error)
        if self._transport is not None:
            self._transport.abort()


def _write(transport: asyncio.Transport, buffers: list[bytes | memoryview]) -> None:
    if transport.is_closing():
        # `writelines` of Python's own loop does not look, and would wait for a descriptor that is another socket's now.
        return
    if len(buffers) == 1:
        transport.write(buffers[0])
        return
    transport.writelines(buffers)
    if FORGETS_TO_PAUSE:
        transport.set_write_buffer_limits(*_LIMITS)  # has it look at what waits
