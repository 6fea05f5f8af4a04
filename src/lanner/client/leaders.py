"""Questions that only the leader of a partition answers, asked one at a time: again, and elsewhere, until a deadline.

For what is rare. Producers, consumers and readers have many requests under way, and their own ways to repeat them.
Everything asked here may take effect twice without harm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from lanner.calls import row_of
from lanner.client.brokers import Brokers
from lanner.client.member_ports import NO_MEMBER, Standing
from lanner.client.routing import Routing
from lanner.client.session import Outcome, Session
from lanner.errors import LannerError, NotLeader, PartitionNotFound
from lanner.net.backoff import Backoff
from lanner.wire.messages import AnswerT, Call, Command, Commit, Empty

_CONNECTING_S = 2.0


class Leaders:
    """Asks the present leader."""

    def __init__(self, brokers: Brokers, routing: Routing) -> None:
        self._brokers = brokers
        self._routing = routing

    async def request(
        self,
        topic: str,
        partition: int,
        call: Call[AnswerT],
        *,
        timeout_ms: float | None = None,
    ) -> tuple[AnswerT, memoryview]:
        """Ask the leader of a partition, also when that changes."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._brokers.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        began = time.monotonic()
        backoff = Backoff()
        while True:
            self._brokers.check_open()
            outcome = await self._ask(topic, partition, call, deadline, began)
            if not isinstance(outcome, LannerError):
                return outcome.control, outcome.bulk
            pause_s = backoff.pause_until(deadline, loop.time(), outcome.retry_after_ms)
            if not outcome.retryable or pause_s is None:
                raise outcome
            await asyncio.sleep(pause_s)

    async def _ask(
        self, topic: str, partition: int, call: Call[AnswerT], deadline: float, began: float
    ) -> Outcome[AnswerT]:
        loop, command = asyncio.get_running_loop(), row_of(call).command
        await self._routing.route(topic)
        session = self._routing.leader(topic, partition)
        if session is None:
            return self._unled(topic, partition, began)
        await session.wait_until_tried(min(deadline, loop.time() + _CONNECTING_S))
        outcome = await session.ask(command, call, (deadline - loop.time()) * 1000)
        if isinstance(outcome, LannerError) and self._routing.failed(topic, partition, session, outcome):
            session = self._routing.leader(topic, partition)  # a hint: once without a pause
            if session is not None and session.is_up:
                outcome = await session.ask(command, call, (deadline - loop.time()) * 1000)
        return outcome

    def _unled(self, topic: str, partition: int, began: float) -> LannerError:
        """Why nobody can be asked about a partition: a leader may be found, or there is no such partition any more."""
        if self._routing.is_gone(topic, partition, began):
            return PartitionNotFound(
                f"{topic} has no partition {partition}: it was made anew with fewer of them", partition=partition
            )
        return NotLeader(f"nobody leads {topic}/{partition} at present", sent=False)

    async def commit(
        self,
        topic: str,
        group: str,
        offsets: Mapping[int, int],
        reader: str,
        sequence: int,
        known: Collection[int] = (),
        standing: Standing = NO_MEMBER,
    ) -> None:
        """Set a stream group's next offsets: those of partitions that are led together, together.

        Asked again, it goes under the same identity: it undoes nothing that its reader has committed since. `known` are
        partitions where the group has committed before; if it has expired there meanwhile, that is GroupExpired.
        """
        loop, began = asyncio.get_running_loop(), time.monotonic()
        deadline = loop.time() + self._brokers.timeout_ms / 1000
        backoff = Backoff()
        said = Commit(group, topic, {}, reader, sequence, None, *standing)
        left = dict(offsets)
        while left:
            self._brokers.check_open()
            await self._routing.route(topic)
            led, orphans = self._routing.by_leader(topic, left)
            error: LannerError | None = None
            if orphans:
                error = self._unled(topic, orphans[0], began)
            asked = [(session, {one: left[one] for one in partitions}) for session, partitions in led.items()]
            outcomes = await asyncio.gather(
                *(
                    self._commit(
                        session,
                        replace(said, offsets=part, known=[one for one in part if one in known] or None),
                        deadline,
                    )
                    for session, part in asked
                )
            )
            for (session, part), outcome in zip(asked, outcomes, strict=True):
                for partition in part:
                    if not isinstance(outcome, LannerError):
                        del left[partition]
                        continue
                    error = outcome
                    self._routing.failed(topic, partition, session, outcome)
            if error is not None:
                pause_s = backoff.pause_until(deadline, loop.time(), error.retry_after_ms)
                if not error.retryable or pause_s is None:
                    raise error
                await asyncio.sleep(pause_s)

    async def _commit(self, session: Session, commit: Commit, deadline: float) -> Outcome[Empty]:
        loop = asyncio.get_running_loop()
        await session.wait_until_tried(min(deadline, loop.time() + _CONNECTING_S))
        return await session.ask(Command.COMMIT, commit, (deadline - loop.time()) * 1000)
