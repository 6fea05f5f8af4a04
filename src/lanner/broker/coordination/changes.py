"""What the callers of one broker want changed in groups: joins, leaves, releases, and what operators ask for.

Each broker puts such changes into the log of the metadata by itself, wherever that is led: in one hop. It keeps one
command in flight; everything that comes meanwhile goes into the next one, so that a storm of joins becomes a few
records. Each change has a result of its own, which is told to who asked, once it has applied on this broker.

It refuses to know what a change means. A command whose outcome is not known fails all that were in it, and those that
waited behind it: they are asked again by their callers, and each comes to the same when it is repeated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

import msgspec

from lanner import limits
from lanner.broker.coordination.figures import Counts
from lanner.broker.ports import Clock, Proposer, Spawn
from lanner.cluster import Admitted, Change, Changed, GroupsChanged, Joined, Released, encode_change_groups
from lanner.cluster.group_changes import check_change
from lanner.errors import LannerError, ServiceUnavailable
from lanner.net.waiters import answer_to

Result = Admitted | Changed | LannerError

_COMMAND_BYTES: Final = 60 * limits.KIB  # of the 64 that a command may have
_FRAME_BYTES: Final = 8  # around each change, at most


class _Wanted(NamedTuple):
    change: Change
    size: int
    told: asyncio.Future[Result] | None  # None: nobody waits for it


class Changes:
    """The changes that wait on one broker."""

    def __init__(self, proposer: Proposer, clock: Clock, spawn: Spawn, counts: Counts) -> None:
        self._proposer = proposer
        self._clock = clock
        self._spawn = spawn
        self._counts = counts
        self._waiting: deque[_Wanted] = deque()
        self._released: set[Released] = set()  # releases that wait or are under way
        self._working = False

    async def ask(self, change: Change) -> Admitted | Changed:
        """Have the metadata change so; what it came to, once this broker's copy shows it."""
        check_change(change)  # one that may not be stored must not spoil the others' command
        told: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._put(change, told)
        result = await told
        if isinstance(result, LannerError):
            raise result
        return result

    def release(self, change: Released) -> None:
        """Have a partition given up. Members say it again with every heartbeat, so nobody waits for it."""
        if change not in self._released:
            check_change(change)
            self._released.add(change)
            self._put(change, None)

    def _put(self, change: Change, told: asyncio.Future[Result] | None) -> None:
        self._waiting.append(_Wanted(change, len(msgspec.msgpack.encode(change)) + _FRAME_BYTES, told))
        if not self._working:
            self._working = True
            self._spawn(self._work())

    async def _work(self) -> None:
        """Propose what waits, one command after the other, until nothing does."""
        wanted: list[_Wanted] = []  # and not told what became of it
        try:
            while self._waiting:
                wanted = self._take()
                try:
                    results = await self._propose([one.change for one in wanted])
                except LannerError as error:
                    wanted += self._waiting  # they would wait as long, for the same
                    self._waiting.clear()
                    results = [error] * len(wanted)
                self._tell(wanted, results)
                wanted = []
        finally:
            self._working = False
            left = [*wanted, *self._waiting]
            self._waiting.clear()
            gone = ServiceUnavailable("the broker stops, and the change may have taken effect or not; ask another one")
            self._tell(left, [gone] * len(left))

    def _take(self) -> list[_Wanted]:
        """What goes into the next command. A change fits by itself; a join whose caller has gone is left out."""
        taken: list[_Wanted] = []
        size = 0
        while self._waiting and len(taken) < limits.GROUP_CHANGES_MAX:
            one = self._waiting[0]
            if taken and size + one.size > _COMMAND_BYTES:
                break
            self._waiting.popleft()
            if not isinstance(one.change, Joined) or one.told is None or not one.told.done():
                taken.append(one)
                size += one.size
        return taken

    async def _propose(self, changes: list[Change]) -> list[Result]:
        if not changes:
            return []
        command = encode_change_groups(changes, self._clock.now_ms())
        self._counts.proposed(len(command))
        outcome = await self._proposer.propose(command)
        assert isinstance(outcome, GroupsChanged)
        return list(outcome.results)

    def _tell(self, wanted: list[_Wanted], results: list[Result]) -> None:
        for one, result in zip(wanted, results, strict=True):
            if isinstance(one.change, Released):
                self._released.discard(one.change)
            if one.told is not None:
                answer_to(one.told)(result)


class JoinRate:
    """How many joins one broker takes in a second."""

    def __init__(self, clock: Clock, per_second: int = limits.JOINS_PER_SECOND_MAX) -> None:
        self._clock = clock
        self._per_second = per_second
        self._second = self._count = 0

    def admit(self) -> int:
        """Count a join; after how many milliseconds it should come again, 0 when it may go on."""
        second, passed_ms = divmod(self._clock.now_ms(), 1_000)
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return 0 if self._count <= self._per_second else 1_000 - passed_ms


__all__ = ["Changes", "JoinRate"]
