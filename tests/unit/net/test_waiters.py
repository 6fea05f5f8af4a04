"""Waiting tasks are woken in order, all at once, or not at all; who leaves takes nobody's turn along."""

from __future__ import annotations

import asyncio

import pytest

from lanner.net.waiters import Waiters, answer_to


async def start(waiters: Waiters, count: int, timeout_s: float | None = None) -> list[asyncio.Task[bool]]:
    tasks = [asyncio.create_task(waiters.wait(timeout_s)) for _ in range(count)]
    before = len(waiters)
    while len(waiters) < before + count:
        await asyncio.sleep(0)
    return tasks


async def test_all_are_woken_at_once_and_nobody_who_comes_later() -> None:
    waiters = Waiters()
    tasks = await start(waiters, 3)
    waiters.wake_all()
    assert len(waiters) == 0
    assert await asyncio.gather(*tasks) == [True] * 3
    [late] = await start(waiters, 1)
    await asyncio.sleep(0)
    assert not late.done()
    late.cancel()


async def test_one_is_woken_the_one_that_waits_longest() -> None:
    waiters = Waiters()
    first, second = await start(waiters, 2)
    waiters.wake_one()
    assert await first
    assert not second.done() and len(waiters) == 1
    waiters.wake_one()
    assert await second
    waiters.wake_one()
    waiters.wake_all()


async def test_one_whose_time_runs_out_is_told_and_leaves() -> None:
    waiters = Waiters()
    assert await waiters.wait(0.0) is False
    assert await waiters.wait(-1.0) is False
    assert len(waiters) == 0
    [task] = await start(waiters, 1, 60.0)
    waiters.wake_all()
    assert await task is True


@pytest.mark.parametrize("timeout_s", [None, 60.0])
async def test_one_that_is_cancelled_leaves_and_the_next_is_woken(timeout_s: float | None) -> None:
    waiters = Waiters()
    gone, other = await start(waiters, 2, timeout_s)
    gone.cancel()
    waiters.wake_one()  # before the cancelled one has run
    await asyncio.wait([gone])
    assert gone.cancelled()
    assert await other, "the turn is passed on"
    assert len(waiters) == 0


@pytest.mark.parametrize("timeout_s", [None, 60.0])
async def test_a_turn_is_passed_on_when_its_task_is_cancelled_before_it_runs(timeout_s: float | None) -> None:
    waiters = Waiters()
    gone, other = await start(waiters, 2, timeout_s)
    waiters.wake_one()
    gone.cancel()
    await asyncio.wait([gone])
    assert gone.cancelled()
    assert await other


async def test_what_was_for_all_is_not_passed_on() -> None:
    waiters = Waiters()
    [gone] = await start(waiters, 1)
    waiters.wake_all()
    [late] = await start(waiters, 1)
    gone.cancel()
    await asyncio.wait([gone])
    await asyncio.sleep(0)
    assert not late.done(), "it has come after everybody was woken"
    late.cancel()


async def test_a_cancelled_one_may_be_met_by_a_wake_before_it_has_left() -> None:
    waiters = Waiters()
    [gone] = await start(waiters, 1)
    gone.cancel()
    waiters.wake_all()
    await asyncio.wait([gone])
    assert gone.cancelled() and len(waiters) == 0


async def test_an_answer_to_a_caller_that_gave_up_is_dropped() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    answer = answer_to(future)
    answer(1)
    answer(2)
    assert await future == 1
    gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    gone.cancel()
    answer_to(gone)(3)
    assert gone.cancelled()
