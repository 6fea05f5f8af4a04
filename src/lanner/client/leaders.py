"""Questions that only the leader of a partition answers, asked one at a time: again, and elsewhere, until a deadline.

For what is rare. Producers, consumers and readers have many requests under way, and their own ways to repeat them.
Everything asked here may take effect twice without harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping

from lanner.client.brokers import Brokers
from lanner.client.routing import Routing
from lanner.client.session import PAUSE_S, PAUSE_S_MAX, ControlT, Outcome
from lanner.errors import LannerError, NotLeader
from lanner.wire.messages import Command, Commit, Control, Empty

_CONNECTING_S = 2.0


class Leaders:
    """Asks whoever leads."""

    def __init__(self, brokers: Brokers, routing: Routing) -> None:
        self._brokers = brokers
        self._routing = routing

    async def request(
        self,
        topic: str,
        partition: int,
        command: Command,
        control: Control,
        kind: type[ControlT],
        *,
        timeout_ms: float | None = None,
    ) -> tuple[ControlT, memoryview]:
        """Ask the leader of a partition, whoever that becomes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._brokers.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        pause_s = 0.0
        while True:
            self._brokers.check_open()
            outcome = await self._ask(topic, partition, command, control, deadline)
            if not isinstance(outcome, LannerError):
                assert isinstance(outcome.control, kind)
                return outcome.control, outcome.bulk
            pause_s = min(PAUSE_S_MAX, max(PAUSE_S, pause_s * 2))
            wait_s = max(pause_s, (outcome.retry_after_ms or 0) / 1000) * (0.75 + random.random() / 2)
            if not outcome.retryable or loop.time() + wait_s >= deadline:
                raise outcome
            await asyncio.sleep(wait_s)

    async def _ask(self, topic: str, partition: int, command: Command, control: Control, deadline: float) -> Outcome:
        loop = asyncio.get_running_loop()
        await self._routing.route(topic)
        session = self._routing.leader(topic, partition)
        if session is None:
            return NotLeader(f"nobody leads {topic}/{partition} at present", sent=False)
        if not session.is_up:
            with contextlib.suppress(LannerError):
                await session.wait_until_up(min(deadline, loop.time() + _CONNECTING_S))
        outcome = await session.ask(command, control, (deadline - loop.time()) * 1000)
        if isinstance(outcome, LannerError) and self._routing.failed(topic, partition, session, outcome):
            session = self._routing.leader(topic, partition)  # a hint: once without a pause
            if session is not None and session.is_up:
                outcome = await session.ask(command, control, (deadline - loop.time()) * 1000)
        return outcome

    async def commit(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Set a stream group's next offsets. Partitions that are led together are set together."""
        await self._routing.route(topic)
        led, orphans = self._routing.by_leader(topic, offsets)
        together = [*led.values(), *([partition] for partition in orphans)]
        results = await asyncio.gather(
            *(self._commit(topic, group, {one: offsets[one] for one in partitions}) for partitions in together),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _commit(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """They may come to be led apart while this is repeated: then one by one."""
        try:
            timeout_ms = self._brokers.timeout_ms if len(offsets) == 1 else self._brokers.timeout_ms / 4
            commit = Commit(group, topic, dict(offsets))
            await self.request(topic, next(iter(offsets)), Command.COMMIT, commit, Empty, timeout_ms=timeout_ms)
        except LannerError as error:
            if len(offsets) == 1 or not error.retryable:
                raise
            for partition, offset in offsets.items():
                await self._commit(topic, group, {partition: offset})
