"""Bodies of requests: read whole before anything is decoded, and bounded in every way before that.

A body has a size and a deadline. While it arrives it counts with all other requests that are not whole yet
(`net/unfinished`), where the slowest goes first; once it is whole it counts with the bodies in hand until its call is
over, and one too many is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from starlette.types import Receive

from lanner import limits
from lanner.api.rest.operations import Door
from lanner.errors import LannerError, MessageTooLarge, Overloaded, RequestTimeout

BODIES_BYTES_MAX: Final = 128 * limits.MIB


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


class BodyRefused(Exception):
    """The body was not read to its end, because of this."""

    def __init__(self, error: LannerError) -> None:
        self.error = error
        super().__init__(error.message)


class Body:
    """A request's body, and its share of what all bodies together may hold in memory."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._size = 0
        self._patience: asyncio.Timeout
        self._refusal: LannerError | None = None

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limits.REST_BODY_BYTES_MAX:
            raise BodyRefused(_too_large())
        try:
            async with asyncio.timeout(self._door.body_deadline_ms / 1_000) as self._patience:
                chunk, more = await _next_chunk(receive)
                # Most bodies come in one piece with their head; only the others have to be counted meanwhile.
                return self._take(await self._read_rest(chunk, receive) if more else chunk)
        except TimeoutError:
            late = RequestTimeout(f"the body did not arrive within {self._door.body_deadline_ms} ms")
            raise BodyRefused(self._refusal or late) from None

    async def _read_rest(self, chunk: bytes, receive: Receive) -> bytes:
        chunks, size, more = [chunk], len(chunk), True
        unfinished = self._door.unfinished
        part = unfinished.begin(self)
        try:
            while more:
                if size > limits.REST_BODY_BYTES_MAX:
                    raise BodyRefused(_too_large())
                unfinished.hold(part, size)
                chunk, more = await _next_chunk(receive)
                chunks.append(chunk)
                size += len(chunk)
            return b"".join(chunks)
        finally:
            unfinished.end(part)

    def end(self, error: LannerError) -> None:
        """Too much is on its way, and this is the slowest of it."""
        if self._refusal is None:
            self._refusal = error
            self._patience.reschedule(asyncio.get_running_loop().time())

    def _take(self, whole: bytes) -> bytes:
        if len(whole) > limits.REST_BODY_BYTES_MAX:
            raise BodyRefused(_too_large())
        self._size = len(whole)
        self._door.body_bytes += self._size
        if self._door.body_bytes > BODIES_BYTES_MAX:
            raise BodyRefused(Overloaded("the broker holds too many large requests at once; try again later"))
        return whole

    def let_go(self) -> None:
        self._door.body_bytes -= self._size
        self._size = 0


async def _next_chunk(receive: Receive) -> tuple[bytes, bool]:
    """What came next, and whether there is more to come."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


def _too_large() -> MessageTooLarge:
    return MessageTooLarge(
        f"the body is larger than {limits.REST_BODY_BYTES_MAX} bytes: send fewer messages at a time",
        bytes_max=limits.REST_BODY_BYTES_MAX,
    )
