"""Frames: how the bytes of a connection divide.

A frame is a header of 5 bytes (command u8, length u32) and a payload of that length: correlation id u32, control
length u32, control, bulk. All big-endian. This module knows where one frame ends and the next begins, and nothing of
what commands mean.

Its rules: a length is judged as soon as its header is there, before a byte of the payload is kept; memory follows the
bytes that came, never the bytes that were announced; a frame that arrived in one piece is handed out as views of that
piece, without a copy, and one that arrived in several is copied once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from lanner import limits
from lanner.errors import ProtocolError, RemoteProtocolError

HEADER_BYTES: Final = 5
_HTTP: Final = b"HTTP/"  # how every answer of a web server begins
_HTTP2: Final = 0  # the first byte of a server that speaks HTTP/2, as gRPC does
PREFIX_BYTES: Final = 8  # correlation id and control length, at the start of every payload
CORRELATION_MAX: Final = 2**32 - 1

_HEADER: Final = Struct(">BI")
_HEADER_AND_PREFIX: Final = Struct(">BIII")
_HEAD_BYTES: Final = HEADER_BYTES + PREFIX_BYTES

assert _HEADER.size == HEADER_BYTES
assert _HEADER_AND_PREFIX.size == _HEAD_BYTES

_pack_head = _HEADER_AND_PREFIX.pack
_unpack_head = _HEADER_AND_PREFIX.unpack_from
_encode_control = msgspec.msgpack.Encoder(enc_hook=str).encode


class Frame(NamedTuple):
    """One frame; control and bulk are views of the bytes that came."""

    command: int
    correlation: int
    control: memoryview
    bulk: memoryview


def encode_frame(
    command: int, correlation: int, control: msgspec.Struct, bulk: Sequence[bytes | memoryview] = ()
) -> list[bytes | memoryview]:
    """The buffers of one frame, in the order they are to be written. Bulk is not copied."""
    encoded = _encode_control(control)
    size = len(encoded)
    if not bulk:
        return [_pack_head(command, PREFIX_BYTES + size, correlation, size) + encoded]
    length = PREFIX_BYTES + size
    for part in bulk:
        length += len(part)
    return [_pack_head(command, length, correlation, size) + encoded, *bulk]


class FrameReader:
    """Cuts a stream of bytes into frames.

    `frame_bytes_max` bounds the payload and may be changed between calls; it holds for frames whose header has not
    been read yet. While `expected` is set (command → its name), a frame that begins with another byte is refused at
    that byte: that is how a peer that speaks something else is recognised before its "length" is believed.

    Frames that came whole before a broken one are handed out first. `failure` then says what broke; nothing behind it
    can be trusted, and every further call raises it.
    """

    __slots__ = ("_pending", "_wanted", "begun", "control_bytes_max", "expected", "failure", "frame_bytes_max")

    def __init__(
        self,
        frame_bytes_max: int = limits.FRAME_BYTES_MAX,
        *,
        control_bytes_max: int = limits.CONTROL_BYTES_MAX,
        expected: Mapping[int, str] | None = None,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.control_bytes_max = control_bytes_max
        self.expected = expected
        self.failure: ProtocolError | None = None
        self._pending = bytearray()  # the beginning of a frame that is not whole yet
        self._wanted = 0  # bytes of that frame with its header; 0 while the header itself is not whole
        self.begun = 0  # how many frames came in more than one piece: another number, another unfinished frame

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return len(self._pending)

    def drop(self) -> None:
        """Let go of an unfinished frame: nothing more will be read."""
        self._pending = bytearray()
        self._wanted = 0

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises ProtocolError when the first thing in it is broken."""
        if self.failure is not None:
            raise self.failure
        frames: list[Frame] = []
        try:
            position = self._finish_pending(data, frames) if self._pending else 0
            self._cut(data, position, frames)
        except ProtocolError as error:
            self.failure = error
            self._pending = bytearray()
            if not frames:
                raise
        return frames

    def _cut(self, data: bytes, position: int, frames: list[Frame]) -> None:
        """Hand out the whole frames of `data` from `position` on; keep the rest."""
        end = len(data)
        view = memoryview(data)
        while end - position >= _HEAD_BYTES:
            command, length, correlation, control_length = _unpack_head(data, position)
            if self.expected is not None:
                self._check_command(command)
            if not PREFIX_BYTES <= length <= self.frame_bytes_max:
                self._check_length(command, length)
            control_end = position + _HEAD_BYTES + control_length
            frame_end = position + HEADER_BYTES + length
            if control_end > frame_end or control_length > self.control_bytes_max:
                self._refuse_control(command, length, control_length)
            if frame_end > end:
                break
            frames.append(
                Frame(command, correlation, view[position + _HEAD_BYTES : control_end], view[control_end:frame_end])
            )
            position = frame_end
        if position < end:
            self._wanted = self._check_beginning(data, position, end - position)
            self._pending += view[position:]
            self.begun += 1

    def _check_beginning(self, data: bytes | bytearray, position: int, available: int) -> int:
        """Judge the first bytes of a frame as far as they came; the size of the frame once that is known, else 0."""
        self._check_command(data[position])
        if available < HEADER_BYTES:
            return 0
        command, length = _HEADER.unpack_from(data, position)
        self._check_length(command, length)
        return HEADER_BYTES + int(length)

    def _finish_pending(self, data: bytes, frames: list[Frame]) -> int:
        """Complete the unfinished frame from the start of `data`; how many of its bytes that took."""
        pending = self._pending
        taken = 0
        if not self._wanted:
            taken = min(HEADER_BYTES - len(pending), len(data))
            pending += data[:taken]
            self._wanted = self._check_beginning(pending, 0, len(pending))
            if not self._wanted:
                return taken
        missing = self._wanted - len(pending)
        rest = memoryview(data)[taken : taken + missing]
        pending += rest
        taken += len(rest)
        if len(rest) < missing:
            return taken
        # The buffer now belongs to the frame: its views live as long as somebody holds them.
        self._pending = bytearray()
        self._wanted = 0
        command, length, correlation, control_length = _unpack_head(pending, 0)
        if PREFIX_BYTES + control_length > length or control_length > self.control_bytes_max:
            self._refuse_control(command, length, control_length)
        view = memoryview(pending).toreadonly()
        control_end = _HEAD_BYTES + control_length
        frames.append(Frame(command, correlation, view[_HEAD_BYTES:control_end], view[control_end:]))
        return taken

    def _check_command(self, command: int) -> None:
        if self.expected is None or command in self.expected:
            return
        if command == _HTTP[0]:
            raise _web_server()
        names = " or ".join(f"{name} (0x{number:02x})" for number, name in self.expected.items())
        hint = "" if command != _HTTP2 else "; servers of HTTP/2 begin so: is this the address of gRPC?"
        raise RemoteProtocolError(
            f"a frame begins with the byte 0x{command:02x}: expected {names}, then the length in 4 bytes{hint}",
            expected=names,
        )

    def _check_length(self, command: int, length: int) -> None:
        if bytes([command]) + length.to_bytes(4, "big") == _HTTP:
            raise _web_server()
        if length > self.frame_bytes_max:
            raise RemoteProtocolError(
                f"the frame of command 0x{command:02x} announces {length} bytes: at most {self.frame_bytes_max} "
                f"are allowed{'' if self.expected is None else ' until HELLO is answered'}",
                field="length",
            )
        if length < PREFIX_BYTES:
            raise RemoteProtocolError(
                f"the frame of command 0x{command:02x} announces {length} bytes: "
                f"correlation id and control length alone take {PREFIX_BYTES}",
                field="length",
            )

    def _refuse_control(self, command: int, length: int, control_length: int) -> None:
        raise RemoteProtocolError(
            f"the frame of command 0x{command:02x} announces a control part of {control_length} bytes: "
            f"it may take {min(length - PREFIX_BYTES, self.control_bytes_max)}",
            field="control length",
        )


def _web_server() -> RemoteProtocolError:
    return RemoteProtocolError(
        "a web server answers there, not the native protocol: the address is that of REST. Give the native one, which "
        "is port 7400 unless the broker was told otherwise"
    )
