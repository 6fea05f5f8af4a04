"""What happens as time passes: everything that counts in ticks gets one, twenty times a second.

The engine's Raft nodes, the steward and the attendant tick; the others hear a pulse; a disk that has become slow is
noticed; and what the steward has to tell the metadata is proposed, again and again until it has taken effect.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from lanner.errors import LannerError

if TYPE_CHECKING:
    from lanner.broker.node import Node
    from lanner.broker.steward import Steward

log = logging.getLogger("lanner.broker")

_TICK_SECONDS: Final = 0.05
_PULSE_TICKS: Final = 3
_REPORT_MS: Final = 5_000


class Ticking:
    """One broker's pulse."""

    def __init__(self, node: Node, steward: Steward) -> None:
        self._node = node
        self._steward = steward
        self._ticks = 0
        self._reporting: set[bytes] = set()

    async def forever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            if not self._node.failed.done():
                self._tick()

    def _tick(self) -> None:
        node, steward = self._node, self._steward
        self._ticks += 1
        node.engine.tick()
        steward.tick(node.peers.may_lead)
        node.tries.tick()
        self._watch_pace()
        node.outages.advise()
        if self._ticks % _PULSE_TICKS == 0 and node.peers.known:
            node.peers.pulse(node.own_ms(), steward.led(), leaving=node.leaving or node.pace.slow)
            node.peers.watch()
        for command in steward.take_reports():
            if command not in self._reporting:
                self._reporting.add(command)
                node.spawn(self._report(command))
        node.kick()

    def _watch_pace(self) -> None:
        """A disk that is slow leads nothing, if others are faster."""
        pace = self._node.pace
        if pace.look():
            if pace.slow:
                log.warning(
                    "disk slow: a sync has been under way for %.1f s; what is led here goes to brokers that are faster",
                    pace.sync_ms / 1_000,
                )
            else:
                log.warning("disk no longer slow: the longest sync took %.1f s", pace.longest_ms / 1_000)
        if pace.should_hand_over:
            self._steward.hand_over()

    async def _report(self, command: bytes) -> None:
        """Propose something that the steward found; it comes again until it has taken effect."""
        try:
            await self._node.propose_cluster(command, timeout_ms=_REPORT_MS)
        except LannerError as error:
            log.info("a report to the metadata was not taken: %s", error.message)
        finally:
            self._reporting.discard(command)


__all__ = ["Ticking"]
