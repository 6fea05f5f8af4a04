"""The home of members: whom it wakes, and how many of them at a time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from lanner.broker.coordination.homes import Homes

NUMBER = 7
MEMBERS = 300


class Copy:
    """A broker's copy of the metadata, with one group."""

    def __init__(self) -> None:
        self.group = SimpleNamespace(
            row=SimpleNamespace(number=NUMBER, name="g"), seen=dict.fromkeys(range(MEMBERS), 1)
        )
        self.known = {NUMBER: self.group}
        self.cluster = self

    def groups(self) -> dict[int, Any]:
        return self.known

    def give_news_to(self, members: range) -> None:
        self.group.seen.update(dict.fromkeys(members, 2))


async def waiting(copy: Copy) -> tuple[Homes, list[asyncio.Task[None]]]:
    homes = Homes("n1", cast("Any", copy), lambda: "n1", lambda: 0)
    group = cast("Any", copy.group)
    beats = [asyncio.create_task(homes.wait_for_news(group, member, 1, 60_000)) for member in range(MEMBERS)]
    await asyncio.sleep(0)
    return homes, beats


async def test_a_thousand_heartbeats_that_have_news_do_not_keep_the_loop_to_themselves() -> None:
    copy = Copy()
    homes, beats = await waiting(copy)
    copy.give_news_to(range(MEMBERS))
    homes.changed([NUMBER])
    answered, turns = 0, 0
    while answered < MEMBERS:
        await asyncio.sleep(0)
        now = sum(beat.done() for beat in beats)
        assert now - answered <= 64
        answered, turns = now, turns + 1
        homes.changed([NUMBER])  # further changes while they are woken
    assert turns >= MEMBERS // 64
    assert list(homes.awaited) == []


async def test_only_members_with_news_are_woken_and_all_of_them_when_the_group_or_the_broker_is_gone() -> None:
    copy = Copy()
    homes, beats = await waiting(copy)
    copy.give_news_to(range(3))
    homes.changed([NUMBER])
    await asyncio.sleep(0.01)
    assert [beat.done() for beat in beats[:5]] == [True, True, True, False, False]
    copy.known.clear()
    homes.changed([NUMBER])
    async with asyncio.timeout(5):
        await asyncio.gather(*beats)
    homes, beats = await waiting(Copy())
    homes.wake_all()
    async with asyncio.timeout(5):
        await asyncio.gather(*beats)
