"""A home without brokers: one group in memory, of which a test decides who has what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from lanner.client.assignments import Granted, Seen, View
from lanner.client.member_ports import Told
from lanner.errors import LannerError
from lanner.net.waiters import Waiters

NUMBER = 7


def granted(partition: int, grant: int, topic: str = "orders") -> Granted:
    return Granted(topic, 1, partition, grant)


class FakeHome:
    """Answers a heartbeat when the view differs from what the member has seen, or when its wait is over."""

    def __init__(self) -> None:
        self.session_ms = 400
        self.joined: list[str] = []
        self.left: list[tuple[str, str]] = []
        self.released: list[Granted] = []
        self.heartbeats: list[tuple[str, Seen, bool]] = []
        self.waits: list[int] = []  # of the heartbeats, in milliseconds
        self.claimed: list[Granted] = []
        self.offsets: dict[int, int | LannerError] = {}
        self.error: LannerError | None = None  # the answer to every heartbeat
        self.claim_gate: asyncio.Event | None = None
        self.join_gate: asyncio.Event | None = None  # a join has taken effect, and its answer waits for this
        self.leave_error: LannerError | None = None
        self.refusal: LannerError | None = None  # the answer to every join
        self.confirmed_ms = 0
        self.silent = False
        self.shared = False
        self.is_closed = False
        self.on_release: Callable[[Granted], None] = lambda one: None
        self._view = View((NUMBER, 1), [], [])
        self._changed = Waiters()

    def show(self, generation: int, held: Sequence[Granted] = (), revoked: Sequence[Granted] = ()) -> None:
        """From now on the member's view is this."""
        self._view = View((NUMBER, generation), list(held), list(revoked))
        self._changed.wake_all()

    def fail(self, error: LannerError | None) -> None:
        self.error = error
        self._changed.wake_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0.002)

    # ------------------------------------------------------------------ the port

    async def join(self, member_id: str) -> Told:
        if self.refusal is not None:
            raise self.refusal
        self.joined.append(member_id)
        if self.join_gate is not None:
            await self.join_gate.wait()
        return self._told(self._view)

    async def heartbeat(
        self, member_id: str, seen: Seen, released: Sequence[Granted], wait_ms: int, elsewhere: bool
    ) -> Told:
        self.heartbeats.append((member_id, seen, elsewhere))
        self.waits.append(wait_ms)
        if self.silent:
            await asyncio.Event().wait()
        for one in released:
            if one not in self.released:
                self.released.append(one)
                self.on_release(one)
        if self.error is None and self._view.seen == seen:
            await self._changed.wait(wait_ms / 1000)
        if self.error is not None:
            raise self.error
        return self._told(None if self._view.seen == seen else self._view)

    async def leave(self, member_id: str, reason: str) -> None:
        self.left.append((member_id, reason))
        if self.leave_error is not None:
            raise self.leave_error

    async def claim(
        self, member_id: str, seen: Seen, granted: Sequence[Granted]
    ) -> Mapping[Granted, int | LannerError]:
        if self.claim_gate is not None:
            await self.claim_gate.wait()
        self.claimed += granted
        return {one: self.offsets.get(one.partition, 0) for one in granted}

    def _told(self, view: View | None) -> Told:
        return Told(view, self.session_ms, self.confirmed_ms, self.shared)


class FakeWorker:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.interrupts = 0
        self.commit_error: LannerError | None = None
        self.commit_gate: asyncio.Event | None = None

    def begin(self, one: Granted, offset: int) -> None:
        self.log.append(f"begin {one.partition} at {offset}")

    def pause(self, one: Granted) -> None:
        self.log.append(f"pause {one.partition}")

    def resume(self, one: Granted) -> None:
        self.log.append(f"resume {one.partition}")

    def drop(self, one: Granted) -> None:
        self.log.append(f"drop {one.partition}")

    async def commit(self, given_up: Sequence[Granted]) -> Mapping[Granted, LannerError]:
        self.log.append(f"commit {[one.partition for one in given_up]}")
        if self.commit_gate is not None:
            await self.commit_gate.wait()
        if self.commit_error is not None:
            return dict.fromkeys(given_up, self.commit_error)
        self.log.append("committed")
        return {}

    def interrupt(self) -> None:
        self.interrupts += 1
