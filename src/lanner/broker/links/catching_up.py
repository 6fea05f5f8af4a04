"""Catching up with the metadata after a start.

What the disk knows then may be old: a topic that it does not know may exist, and must not be denied. So the leader is
asked once how far the metadata is, and callers are answered when this broker is as far.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from lanner.broker.ports import Conditions, Kick, Leaders, PeerCalls
from lanner.broker.replicas.engine import CLUSTER_SET, Engine
from lanner.errors import LannerError
from lanner.wire.messages import Command, Metadata

log = logging.getLogger("lanner.broker")

_LOOK_AGAIN_SECONDS: Final = 0.02
_CATCH_UP_MS: Final = 2_000


class CatchingUp:
    """Whether the metadata here has been current since the start."""

    def __init__(
        self, node_id: str, engine: Engine, leaders: Leaders, peers: PeerCalls, waiting: Conditions, kick: Kick
    ) -> None:
        self._node_id = node_id
        self._engine = engine
        self._leaders = leaders
        self._peers = peers
        self._waiting = waiting
        self._kick = kick
        self._caught_up = False

    @property
    def is_current(self) -> bool:
        """Whether the metadata here is as far as its leader's was at some moment since the start."""
        return self._caught_up or self._engine.replicas[CLUSTER_SET].leads

    async def run(self) -> None:
        """Ask the metadata's leader how far it is, until it answers, and come as far."""
        while not self.is_current:
            leader = self._leaders.leader_of(CLUSTER_SET)
            try:
                if leader and leader != self._node_id:
                    await self._follow(leader)
            except LannerError as error:
                log.debug("the metadata's leader does not say how far it is: %s", error.message)
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        self._kick()

    async def _follow(self, leader: str) -> None:
        reply = await self._peers.call(leader, Command.METADATA, Metadata([]), timeout_ms=_CATCH_UP_MS)
        index = reply.control.index
        await self._waiting.until(lambda: self._engine.metadata_index >= index, _CATCH_UP_MS)
        self._caught_up = True


__all__ = ["CatchingUp"]
