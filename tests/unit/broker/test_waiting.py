"""Callers that wait for a condition look at it whenever something may have changed."""

from __future__ import annotations

import asyncio

import pytest

from lanner.broker.waiting import Waiting
from lanner.errors import DeadlineExceeded, LannerError, StorageFailed


def made() -> tuple[Waiting, asyncio.Future[LannerError]]:
    failed: asyncio.Future[LannerError] = asyncio.get_running_loop().create_future()
    return Waiting(failed), failed


async def test_those_who_wait_look_again_whenever_something_may_have_changed() -> None:
    waiting, _ = made()
    seen: list[int] = []
    waiter = asyncio.ensure_future(waiting.until(lambda: bool(seen)))
    gone = asyncio.ensure_future(waiting.until(lambda: False))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    waiting.wake()
    await asyncio.sleep(0)
    assert not waiter.done()
    seen.append(1)
    waiting.wake()
    await asyncio.wait_for(waiter, 1)


async def test_a_condition_that_does_not_come_true_in_time_is_a_missed_deadline() -> None:
    waiting, _ = made()
    with pytest.raises(DeadlineExceeded):
        await waiting.until(lambda: False, 1)


async def test_those_who_wait_are_told_why_the_broker_fails() -> None:
    waiting, failed = made()
    waiter = asyncio.ensure_future(waiting.until(lambda: False))
    await asyncio.sleep(0)
    failed.set_result(StorageFailed("the disk is gone"))
    waiting.wake()
    with pytest.raises(StorageFailed, match="the disk is gone"):
        await waiter
