"""The ticks: everything that counts time in ticks gets one, twenty times a second.

The engine's Raft nodes, the steward, the attendant and the coordinator of groups tick; the others hear a pulse; a disk
that has become slow is noticed; and what the steward has to tell the metadata is proposed, again and again until it has
taken effect.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from lanner import features
from lanner.broker.coordination.coordination import Coordination
from lanner.broker.coordination.homes import Homes
from lanner.broker.links.peers import Peers
from lanner.broker.outages import Outages
from lanner.broker.pace import Pace
from lanner.broker.ports import Clock, Kick, Proposer, Spawn
from lanner.broker.replicas.engine import Engine
from lanner.broker.steward import Steward
from lanner.broker.tries import Tries
from lanner.errors import LannerError

log = logging.getLogger("lanner.broker")

_TICK_SECONDS: Final = 0.05
_PULSE_TICKS: Final = 3
_REPORT_MS: Final = 5_000


class Ticking:
    """The ticks of one broker."""

    def __init__(
        self,
        engine: Engine,
        steward: Steward,
        tries: Tries,
        homes: Homes,
        coordination: Coordination,
        outages: Outages,
        peers: Peers,
        pace: Pace,
        *,
        own_clock: Clock,
        proposer: Proposer,
        failed: asyncio.Future[LannerError],
        kick: Kick,
        spawn: Spawn,
    ) -> None:
        self._engine = engine
        self._steward = steward
        self._tries = tries
        self._homes = homes
        self._coordination = coordination
        self._outages = outages
        self._peers = peers
        self._pace = pace
        self._own_clock = own_clock
        self._proposer = proposer
        self._failed = failed
        self._kick = kick
        self._spawn = spawn
        self.leaving = False  # this broker says with every pulse that it stops
        self._ticks = 0
        self._reporting: set[bytes] = set()

    async def forever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            if not self._failed.done():
                self._tick()

    def _tick(self) -> None:
        steward, peers = self._steward, self._peers
        self._ticks += 1
        self._engine.tick()
        steward.tick(peers.may_lead)
        self._tries.tick()
        self._coordination.tick()
        self._watch_pace()
        self._outages.advise()
        if self._ticks % _PULSE_TICKS == 0 and peers.known:
            self.pulse()
            peers.watch()
        for command in steward.take_reports():
            if command not in self._reporting:
                self._reporting.add(command)
                self._spawn(self._report(command))
        self._kick()

    def pulse(self) -> None:
        """Tell the other brokers that this one lives, what it leads, and which members of groups it hears."""
        leaving = self.leaving or self._pace.slow
        sign_for = self._homes.sign_for if self._engine.feature_level >= features.MEMBERS else None
        self._peers.pulse(self._own_clock.now_ms(), self._steward.led(), leaving=leaving, sign_for=sign_for)

    def _watch_pace(self) -> None:
        """Notice a slow disk, and hand over what is led here while other disks are faster."""
        pace = self._pace
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
        """Propose a report of the steward, which repeats it until it has taken effect."""
        try:
            await self._proposer.propose(command, _REPORT_MS)
        except LannerError as error:
            log.info("a report to the metadata was not taken: %s", error.message)
        finally:
            self._reporting.discard(command)


__all__ = ["Ticking"]
