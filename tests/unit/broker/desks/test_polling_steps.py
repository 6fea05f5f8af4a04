"""Polls over several partitions of one broker: which are asked when, and what becomes of what they give."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from lanner import limits
from lanner.calls import ANONYMOUS
from lanner.forwarding.values import NewMessage
from lanner.partition import Poll
from tests.unit.broker.offices import Office, Offices, opened

Answer = asyncio.Future[tuple[Any, int]]
Put = Callable[[], Answer]


async def publish(offices: Offices, *messages: tuple[int, int]) -> None:
    """(partition, priority) each."""
    new = [NewMessage(b"%d-%d" % one, partition=one[0], priority=one[1]) for one in messages]
    await offices["a"].anywhere.publish_messages(ANONYMOUS, "orders", new)


async def poll(office: Office, **wanted: Any) -> list[tuple[int, int]]:
    """(priority, partition) of each message."""
    found = await office.here.poll_messages(ANONYMOUS, topic="orders", group="g", member="m", **wanted)
    return [(item.message.priority, item.message.partition) for item in found]


def watch(office: Office, answer: Callable[[Put], Answer]) -> list[Poll]:
    """Every question of a poll passes here; those that were put so far."""
    put, polls = office.service._questions.put, []

    def watched(replica: Any, request: Any, *given: Any) -> Answer:
        if not isinstance(request, Poll):
            return put(replica, request, *given)
        polls.append(request)
        return answer(partial(put, replica, request, *given))

    office.service._questions.put = watched  # type: ignore[method-assign]
    return polls


async def test_a_poll_ends_although_messages_keep_coming() -> None:
    """Else its first messages wait for as many commits as a poll may have."""
    async with opened("a") as offices:
        offices.topic("orders")
        await publish(offices, (0, 4), (1, 4))

        async def and_another(put: Put) -> tuple[Any, int]:
            answer = await put()
            await publish(offices, (0, 4), (1, 4))
            return answer

        polls = watch(offices["a"], lambda put: asyncio.ensure_future(and_another(put)))
        assert sorted(await poll(offices["a"])) == [(4, 0), (4, 1)]
        assert len(polls) == 2


async def test_what_came_meanwhile_and_is_as_urgent_keeps_the_less_urgent_of_others_back() -> None:
    async with opened("a") as offices:
        offices.topic("orders")
        await publish(offices, (0, 4), (1, 2))

        async def and_another(put: Put) -> tuple[Any, int]:
            answer = await put()
            await publish(offices, (0, 4))
            return answer

        watch(offices["a"], lambda put: asyncio.ensure_future(and_another(put)))
        assert await poll(offices["a"]) == [(4, 0)]


async def test_equals_with_little_are_asked_in_one_turn() -> None:
    async with opened("a") as offices:
        offices.topic("orders")
        await publish(offices, (0, 4), (1, 4), (1, 4), (2, 4), (2, 1), (0, 1))
        asked: list[Answer] = []
        together: list[int] = []

        def count(put: Put) -> Answer:
            asked.append(put())
            together.append(sum(not future.done() for future in asked))
            return asked[-1]

        watch(offices["a"], count)
        found = await poll(offices["a"])
        assert [priority for priority, _ in found] == [4, 4, 4, 4, 1, 1]
        assert together == [1, 2, 3, 1, 2]


async def test_one_partition_with_enough_fills_a_poll_alone() -> None:
    async with opened("a") as offices:
        offices.topic("orders")
        await publish(offices, *[(partition, 4) for partition in range(3) for _ in range(5)])
        polls = watch(offices["a"], lambda put: put())
        assert len({partition for _, partition in await poll(offices["a"], max_messages=5)}) == 1
        assert len(polls) == 1


@pytest.mark.parametrize("answered", [0, 1, 2])
async def test_a_caller_who_goes_gives_back_what_every_partition_gave(answered: int) -> None:
    async with opened("a") as offices:
        offices.topic("orders")
        await publish(offices, (0, 4), (1, 4), (2, 4))
        asked: list[Answer] = []

        def hold_the_last(put: Put) -> Answer:
            asked.append(put() if len(asked) < answered else asyncio.get_running_loop().create_future())
            return asked[-1]

        watch(offices["a"], hold_the_last)
        polling = asyncio.create_task(poll(offices["a"], lease_ms=limits.LEASE_MS_MAX))
        async with asyncio.timeout(5):
            while len(asked) < 3 or sum(future.done() for future in asked) < answered:
                await asyncio.sleep(0)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        async with asyncio.timeout(5):
            while True:
                group = await offices["a"].anywhere.group(ANONYMOUS, "orders", "g")
                if sum(state.ready for state in group.partitions) == 3:
                    break
                await asyncio.sleep(0.01)
