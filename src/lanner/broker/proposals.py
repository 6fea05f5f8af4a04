"""Changes of the metadata, from any broker.

A command goes into the log of set 0 on the broker that leads it, here or over one hop. Its outcome is the result of
applying it *on this broker*: the caller can look at the metadata right afterwards and finds the change.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from lanner.broker.ports import Applied, Conditions, Kick, Leaders, PeerCalls
from lanner.broker.replicas.engine import CLUSTER_SET
from lanner.broker.replicas.replica import OnApplied
from lanner.cluster import is_known
from lanner.errors import (
    BadGateway,
    ConnectionLost,
    DeadlineExceeded,
    LannerError,
    NotLeader,
    NotSupported,
    ServiceUnavailable,
    ValidationError,
)
from lanner.net.backoff import Backoff
from lanner.net.waiters import answer_to
from lanner.wire.messages import Command
from lanner.wire.peers import Propose

PROPOSE_TIMEOUT_MS: Final = 10_000
COMMAND_BYTES_MAX: Final = 64 * 1024
OUTCOMES_MAX: Final = 4_096
_AGAIN_SECONDS_MIN: Final = 0.02
_AGAIN_SECONDS_MAX: Final = 0.5
_ATTEMPT_MS_MAX: Final = 3_000  # a broker that hangs is soon led away from
_ELSEWHERE: Final = (NotLeader, ConnectionLost, BadGateway, ServiceUnavailable, DeadlineExceeded)


class MetadataLog(Protocol):
    """The metadata's log on this broker."""

    @property
    def metadata_index(self) -> int:
        """How far it is applied here."""

    def propose(self, set_id: int, payload: bytes, on_applied: OnApplied) -> int:
        """Append a command, if this broker leads; its index."""


class Outcomes:
    """The results of the latest commands, by index; for callers that had them proposed elsewhere."""

    def __init__(self) -> None:
        self._results: OrderedDict[int, tuple[int, Applied]] = OrderedDict()

    def note(self, index: int, command: bytes, result: Applied) -> None:
        self._results[index] = (hash(command), result)
        if len(self._results) > OUTCOMES_MAX:
            self._results.popitem(last=False)

    def at(self, index: int) -> Applied:
        """Return the result at an index; an error for one that came within a snapshot, whose result is not known."""
        if index not in self._results:
            return ServiceUnavailable("the change was applied, but its outcome is not known here: look, or ask again")
        return self._results[index][1]

    def success_of(self, command: bytes, after_index: int) -> Applied:
        """Return the result of this command when it took effect after an index; None: it did not."""
        wanted = hash(command)
        for index, (other, result) in self._results.items():
            if index > after_index and other == wanted and not isinstance(result, LannerError):
                return result
        return None


class Proposals:
    """Proposes for this broker's own callers, and for other brokers that send theirs here."""

    def __init__(
        self,
        node_id: str,
        engine: MetadataLog,
        leaders: Leaders,
        peers: PeerCalls,
        waiting: Conditions,
        *,
        kick: Kick,
        follow: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self._engine = engine
        self._leaders = leaders
        self._peers = peers
        self._waiting = waiting
        self._kick = kick
        self._follow = follow  # has this broker do what the metadata says now
        self._loop = asyncio.get_running_loop()
        self.outcomes = Outcomes()

    async def propose(self, command: bytes, timeout_ms: int = PROPOSE_TIMEOUT_MS) -> Applied:
        """Put a command into the metadata's log, wherever it is led; its result once it has applied on this broker.

        DeadlineExceeded means that it may have taken effect or not. A command whose outcome was not heard is proposed
        again. When it had taken effect after all, the second one finds its own work done, which would look like that
        of another caller: so the outcome of the first one counts.
        """
        result = await self._propose(command, timeout_ms)
        self._follow()
        return result

    async def _propose(self, command: bytes, timeout_ms: int) -> Applied:
        ends = self._loop.time() + timeout_ms / 1_000
        backoff = Backoff(_AGAIN_SECONDS_MIN, _AGAIN_SECONDS_MAX)
        began_at, repeated = self._engine.metadata_index, False
        while True:
            left_ms = int((ends - self._loop.time()) * 1_000)
            try:
                result = await self._propose_once(command, max(min(left_ms, _ATTEMPT_MS_MAX), 1))
            except _ELSEWHERE as error:
                pause_s = backoff.pause_until(ends, self._loop.time())
                if pause_s is None:
                    raise DeadlineExceeded(
                        f"nobody could take the change of the metadata within {timeout_ms} ms: {error.message}"
                    ) from error
                await asyncio.sleep(pause_s)
                repeated = True
                continue
            if isinstance(result, LannerError):
                first = self.outcomes.success_of(command, began_at) if repeated else None
                if first is None:
                    raise result
                return first
            return result

    async def _propose_once(self, command: bytes, timeout_ms: int) -> Applied:
        leader = self._leaders.leader_of(CLUSTER_SET)
        if leader == self._node_id:
            index, result = await self.propose_here(command, timeout_ms)
            return result
        if not leader:
            raise NotLeader("nobody leads the metadata at the moment")
        reply = await self._peers.call(leader, Command.PROPOSE, Propose(), [command], timeout_ms=timeout_ms)
        index = reply.control.index
        await self._waiting.until(lambda: self._engine.metadata_index >= index, timeout_ms)
        return self.outcomes.at(index)

    async def propose_here(self, command: bytes, timeout_ms: int) -> tuple[int, Applied]:
        """Put a command into the log of this broker, if it leads; the index at which it applied, and its result."""
        if not 0 < len(command) <= COMMAND_BYTES_MAX:
            raise ValidationError(f"a command of {len(command)} bytes is too short or too long")
        if not is_known(command):  # once it is committed, nobody may skip it
            raise NotSupported(f"command {command[0]} is not known to the broker that leads the metadata: upgrade that")
        future: asyncio.Future[Applied] = self._loop.create_future()
        index = self._engine.propose(CLUSTER_SET, command, answer_to(future))
        self._kick()
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                result = await future
        except TimeoutError:
            raise DeadlineExceeded("the change of the metadata did not commit in time; it may still") from None
        if isinstance(result, NotLeader):
            raise result
        return index, result


__all__ = ["Outcomes", "Proposals"]
