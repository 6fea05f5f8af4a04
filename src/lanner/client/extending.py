"""Leases that are extended for a consumer, without keeping it alive: one that was dropped unclosed must lose them."""

from __future__ import annotations

import asyncio
import weakref
from typing import Final, Protocol

LEASE_MS: Final = 30_000  # where a topic's setting is not known yet


class Holder(Protocol):
    """A consumer."""

    async def lease_of(self, topic: str, before_ms: int) -> int:
        """For how long it leases messages of a topic; as before, when that cannot be looked up."""

    def extend_held(self, topic: str, lease_ms: int) -> bool:
        """Extend what the application holds of a topic; whether there was any."""


async def extend_while_there(holder: weakref.ref[Holder], topic: str) -> None:
    """Extend what a consumer holds of a topic, three times in each lease, until it holds nothing or is gone."""
    lease_ms = LEASE_MS
    while (there := holder()) is not None:
        lease_ms = await there.lease_of(topic, lease_ms)
        del there
        await asyncio.sleep(lease_ms / 3000)
        if (there := holder()) is None or not there.extend_held(topic, lease_ms):
            return
        del there
