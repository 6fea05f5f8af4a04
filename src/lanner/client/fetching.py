"""Who is asked for a page of a partition, and whether the answer is what was asked for.

The leader can always be asked. A follower answers with what it has applied, which is committed, but may be less than
there is: so a reader that may read from followers asks one while that brings it on, and the leader for the rest. What a
follower refuses or cannot read, the leader is asked for; only what the leader says counts as an error.

A broker of an older release overlooks what it does not know in a request. Its answer shows that, and is refused here
rather than taken for what was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from lanner.client.arguments import lane_number
from lanner.client.brokers import Brokers
from lanner.client.leaders import Leaders
from lanner.client.routing import Routing
from lanner.errors import LannerError, NotSupported, ValidationError
from lanner.model import LANES
from lanner.wire.messages import Command, Fetch, Fetched

LEADER_S: Final = 1.0  # so long a follower that had nothing, or failed, is left alone
FOLLOWER_MS: Final = 5_000.0  # so long a follower may take that does not wait for anything

Priorities = Sequence[int | str] | int | str


def lane_mask(priorities: Priorities | None) -> int:
    """Bit n stands for priority n. 0: all of them."""
    if priorities is None:
        return 0
    chosen = [priorities] if isinstance(priorities, int | str) else list(priorities)
    if not chosen:
        raise ValidationError("priorities is empty: name at least one, or leave it away for all", field="priorities")
    mask = 0
    for priority in chosen:
        mask |= 1 << lane_number(priority)
    return 0 if mask == (1 << LANES) - 1 else mask


def check_lanes(asked: Fetch, fetched: Fetched) -> NotSupported | None:
    """What is wrong with an answer to a fetch of some priorities only."""
    if fetched.lanes == asked.lanes:
        return None
    return NotSupported(
        f"the broker that leads {asked.topic}/{asked.partition} cannot read some priorities only: upgrade it to 0.3.0, "
        "or read all priorities"
    )


class Turns:
    """Whose turn it is for one partition: a follower's, or the leader's."""

    __slots__ = ("_at_leader", "_leader_until")

    def __init__(self) -> None:
        self._at_leader = False
        self._leader_until = 0.0

    def follower(self, now: float) -> bool:
        return not self._at_leader and now >= self._leader_until

    def answered(self, fetched: Fetched, now: float) -> None:
        """A follower that came to its end leaves the rest to the leader, until that has much more to give."""
        ended = fetched.next_offset >= fetched.end_offset
        if fetched.follower and (ended or not fetched.batches):
            self._at_leader = ended
            self._leader_until = now + LEADER_S
        elif not fetched.follower:
            self._at_leader = ended

    def failed(self, now: float) -> None:
        self._leader_until = now + LEADER_S


class Fetches:
    """Page after page, each awaited: from a follower where the request allows it, else from the leader."""

    def __init__(self, brokers: Brokers, routing: Routing) -> None:
        self._routing = routing
        self._leaders = Leaders(brokers, routing)
        self._turns: dict[tuple[str, int], Turns] = {}

    async def fetch(self, asked: Fetch, *, timeout_ms: float | None = None) -> tuple[Fetched, memoryview]:
        """What lies at the offset. A follower that has nothing of it is no answer: then the leader is asked."""
        turns = self._turns.setdefault((asked.topic, asked.partition), Turns())
        now = asyncio.get_running_loop().time
        if asked.follower and turns.follower(now()):
            session = self._routing.follower(asked.topic, asked.partition)
            outcome = None if session is None else await session.ask(Command.FETCH, asked, FOLLOWER_MS)
            if isinstance(outcome, LannerError):
                turns.failed(now())
            elif outcome is not None:
                assert isinstance(outcome.control, Fetched)
                turns.answered(outcome.control, now())
                if outcome.control.next_offset > asked.offset and check_lanes(asked, outcome.control) is None:
                    return outcome.control, outcome.bulk
        fetched, bulk = await self._leaders.request(asked.topic, asked.partition, asked, timeout_ms=timeout_ms)
        turns.answered(fetched, now())
        wrong = check_lanes(asked, fetched)
        if wrong is not None:
            raise wrong
        return fetched, bulk
