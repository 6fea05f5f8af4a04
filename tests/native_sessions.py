"""What happens to a connection of the native door that no client can bring about at a chosen moment."""

from __future__ import annotations

import asyncio
from typing import Any

from lanner.api.native.door import NativeDoor


def _only_session(door: NativeDoor) -> Any:
    [session] = door._sessions
    return session


def break_silently(door: NativeDoor) -> None:
    """The socket of the only client broke, and nobody was told yet."""
    _only_session(door)._link._connection.close()


class Unread:
    """The only client reads nothing from now on."""

    def __init__(self, door: NativeDoor) -> None:
        self._session = _only_session(door)
        link = self._session._link
        link.pause_writing()
        link.resume_reading(link._pause)

    async def reply(self) -> None:
        """Wait until a reply with leases lies in front of the socket."""
        async with asyncio.timeout(5):
            while not self._session._unsent:
                await asyncio.sleep(0.001)


async def all_ended(door: NativeDoor, connections: int = 0) -> None:
    """Wait until there are no more connections than that, and nothing works for one that is gone."""
    async with asyncio.timeout(5):
        while door.connections > connections or door.background:
            await asyncio.sleep(0.001)
