"""Changes of groups that wait on a broker: one command at a time, and each is told what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from lanner import limits
from lanner.broker.coordination.changes import Changes
from lanner.broker.coordination.figures import Counts
from lanner.broker.proposals import COMMAND_BYTES_MAX
from lanner.cluster import Change, Changed, GroupsChanged, Joined, Left, Released
from lanner.cluster.commands import decode
from lanner.cluster.group_changes import ChangeGroups
from lanner.errors import DeadlineExceeded, MemberUnknown, ServiceUnavailable, ValidationError
from lanner.model import GroupKind


class Log:
    """The metadata's log: a command applies when the test lets it."""

    def __init__(self) -> None:
        self.commands: list[tuple[Change, ...]] = []
        self.sizes: list[int] = []
        self.gate = asyncio.Event()
        self.failure: Exception | None = None
        self.tasks: list[asyncio.Task[Any]] = []
        self.changes = Changes(self, self, self.spawn, Counts())

    def now_ms(self) -> int:
        return 1_000

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def propose(self, command: bytes, timeout_ms: int = 10_000) -> Any:
        decoded = decode(command)
        assert isinstance(decoded, ChangeGroups)
        self.commands.append(decoded.changes)
        self.sizes.append(len(command))
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        results = [
            MemberUnknown("it is none") if isinstance(one, Left) and one.member == "nobody" else Changed(1, number)
            for number, one in enumerate(decoded.changes)
        ]
        return GroupsChanged(tuple(results))


async def waiting(*asked: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.ensure_future(one) for one in asked]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def joined(member: str, **more: Any) -> Joined:
    return Joined("g", GroupKind.STREAM, member, ("orders",), **more)


async def test_what_comes_while_a_command_is_under_way_shares_the_next_one() -> None:
    log = Log()
    ask = log.changes.ask
    first = await waiting(ask(Left("g", "a")))
    rest = await waiting(ask(Left("g", "b")), ask(joined("c")), ask(Left("g", "nobody")), ask(Left("g", "d")))
    assert [len(one) for one in log.commands] == [1]
    log.gate.set()
    outcomes = await asyncio.gather(*first, *rest, return_exceptions=True)
    assert [len(one) for one in log.commands] == [1, 4]
    assert outcomes[:3] == [Changed(1, 0), Changed(1, 0), Changed(1, 1)]
    assert isinstance(outcomes[3], MemberUnknown), "it alone is told so"
    assert outcomes[4] == Changed(1, 3)
    await asyncio.gather(*log.tasks)
    await ask(Left("g", "later"))
    assert len(log.commands) == 3 and len(log.tasks) == 2, "it goes on when something comes"


async def test_a_release_that_waits_is_not_put_in_twice() -> None:
    log = Log()
    one = Released(1, "m", 2, 0, 7)
    for _ in range(3):
        log.changes.release(one)
    log.changes.release(Released(1, "m", 2, 1, 7))
    log.gate.set()
    await asyncio.gather(*log.tasks)
    assert [change for command in log.commands for change in command] == [one, Released(1, "m", 2, 1, 7)]
    log.changes.release(one)  # it is told again: it may not have applied
    await asyncio.gather(*log.tasks)
    assert log.commands[-1] == (one,)


async def test_a_storm_is_cut_into_commands_that_fit() -> None:
    log = Log()
    log.gate.set()
    large = [log.changes.ask(joined(f"m{at}", opaque=b"x" * limits.OPAQUE_BYTES_MAX)) for at in range(10)]
    small = [log.changes.ask(Left("g", f"n{at}")) for at in range(2_500)]
    await asyncio.gather(*large, *small)
    assert max(log.sizes) <= COMMAND_BYTES_MAX
    assert max(map(len, log.commands)) <= limits.GROUP_CHANGES_MAX
    assert sum(map(len, log.commands)) == 2_510
    assert len(log.commands) <= 8


async def test_a_change_that_may_not_be_stored_is_refused_by_itself() -> None:
    log = Log()
    (good,) = await waiting(log.changes.ask(Left("g", "a")))
    with pytest.raises(ValidationError):
        await log.changes.ask(joined("", session_ms=1))
    with pytest.raises(ValidationError):
        await log.changes.ask(Left("g", "m", "x" * 2_000))
    log.gate.set()
    assert await good == Changed(1, 0)


async def test_a_join_whose_caller_has_gone_is_left_out_and_a_leave_is_not() -> None:
    log = Log()
    first = await waiting(log.changes.ask(Left("g", "a")))
    gone = await waiting(log.changes.ask(joined("b")), log.changes.ask(Left("g", "c")))
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    log.gate.set()
    await asyncio.gather(*first, *log.tasks)
    assert [one.member for command in log.commands for one in command] == ["a", "c"]  # type: ignore[union-attr]


async def test_when_nobody_takes_changes_all_that_wait_are_told() -> None:
    log = Log()
    log.failure = DeadlineExceeded("nobody leads")
    first = await waiting(log.changes.ask(Left("g", "a")))
    rest = await waiting(log.changes.ask(Left("g", "b")))
    log.changes.release(Released(1, "m", 2, 0, 7))
    log.gate.set()
    for task in (*first, *rest):
        with pytest.raises(DeadlineExceeded):
            await task
    assert len(log.commands) == 1
    log.failure = None
    assert await log.changes.ask(Left("g", "a")) == Changed(1, 0)


async def test_a_broker_that_stops_tells_those_that_wait() -> None:
    log = Log()
    (first,) = await waiting(log.changes.ask(Left("g", "a")))  # its command is under way
    (second,) = await waiting(log.changes.ask(Left("g", "b")))
    log.changes.release(Released(1, "m", 2, 0, 7))
    log.tasks[0].cancel()
    async with asyncio.timeout(5):
        for task in (first, second):
            with pytest.raises(ServiceUnavailable, match="may have taken effect or not"):
                await task


async def test_a_mistake_in_one_command_leaves_nobody_waiting_and_the_next_goes_on() -> None:
    log = Log()
    log.failure = RuntimeError("a bug")
    (first,) = await waiting(log.changes.ask(Left("g", "a")))
    log.gate.set()
    async with asyncio.timeout(5):
        with pytest.raises(ServiceUnavailable):
            await first
        await asyncio.gather(*log.tasks, return_exceptions=True)
        log.failure = None
        assert await log.changes.ask(Left("g", "a")) == Changed(1, 0)
