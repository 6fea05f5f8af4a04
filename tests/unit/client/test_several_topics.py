"""Polls over several topics when a question about one of them fails: the others go on, and what is final is raised."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import lanner
from lanner.errors import LannerError, NotLeader, Overloaded, TopicNotFound, ValidationError
from lanner.wire.messages import BestPriorityFound, Command
from tests.unit.client.scripted_group import ScriptedGroup


@pytest.mark.parametrize("error", [TopicNotFound("gone"), NotLeader("elsewhere"), Overloaded("later")])
async def test_a_topic_that_cannot_be_asked_holds_up_no_other_and_is_asked_again(
    broker: Any, error: LannerError
) -> None:
    failed: list[str] = []

    def look(call: Any, request: Any) -> Any:
        if call.topic == "u" and len(failed) < 2:
            failed.append(call.topic)
            return error
        return BestPriorityFound(4 if call.topic == "t" else -1)

    group = ScriptedGroup(broker)
    broker.answers[Command.BEST_PRIORITY] = look
    async with lanner.connect(broker.address) as queue, queue.consumer(["t", "u"], "g") as consumer:
        async with asyncio.timeout(20):
            while len(failed) < 2:  # it is asked again
                assert not await consumer.poll(wait_ms=200), "nothing was there after all"
    assert {call.topic for call in group.of(Command.POLL)} == {"t"}


async def test_an_error_that_no_repeat_mends_is_raised(broker: Any) -> None:
    ScriptedGroup(broker)
    broker.answers[Command.BEST_PRIORITY] = lambda call, request: ValidationError("a bad group", field="group")
    async with lanner.connect(broker.address) as queue, queue.consumer(["t", "u"], "g") as consumer:
        with pytest.raises(ValidationError, match="a bad group"):
            await consumer.poll(wait_ms=1_000)


async def test_a_topic_that_is_not_there_yet_is_looked_for_until_time_is_over(broker: Any) -> None:
    ScriptedGroup(broker)
    broker.answers[Command.METADATA] = lambda call, request: TopicNotFound("not there")
    async with lanner.connect(broker.address) as queue, queue.consumer(["t", "u"], "g") as consumer:
        assert not await consumer.poll(wait_ms=300)
    assert broker.of(Command.BEST_PRIORITY) == []
