"""What is asked again after an unknown outcome gets its first answer: settles, commits and creates, at any broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lanner.calls import ANONYMOUS
from lanner.errors import TopicExists
from lanner.forwarding.values import NewMessage
from lanner.wire.messages import Command, SettleItem
from tests.unit.broker.offices import Office, Offices, only, opened

KINDS = {"ack": 1, "nack": 2, "extend": 3, "reject": 4}


def stranger(offices: Offices, set_id: int) -> Office:
    """A broker that does not lead the set."""
    leader = offices.leader(set_id)
    return next(office for office in offices.by_name.values() if office is not leader)


async def leased(office: Office, count: int = 5) -> list[Any]:
    messages = [NewMessage(b"%d" % number, partition=0) for number in range(count)]
    await office.anywhere.publish_messages(ANONYMOUS, "orders", messages)
    found: list[Any] = await office.anywhere.poll_messages(
        ANONYMOUS, topic="orders", group="g", member="m", max_messages=count
    )
    return found


def items_of(found: list[Any], kind: str) -> list[SettleItem]:
    return [SettleItem(0, one.token, one.message.offset, 1, KINDS[kind], 60_000, "") for one in found]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_settle_whose_answer_was_lost_is_not_called_lost(kind: str) -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        office = stranger(offices, set_id)
        items = items_of(await leased(office), kind)
        offices.lose = only(Command.SETTLE, times=2)
        results = await office.anywhere.settle(ANONYMOUS, "orders", "g", items)
        assert [(result.code, result.count) for result in results] == [(0, 1)] * 5
        for other in offices.by_name.values():
            again = await other.anywhere.settle(ANONYMOUS, "orders", "g", items)
            assert [(result.code, result.count) for result in again] == [(0, 1)] * 5, (
                "its first answer, at whichever broker"
            )


@pytest.mark.parametrize("kind", ["ack", "nack", "reject"])
async def test_a_settle_is_remembered_by_the_next_leader(kind: str) -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader, office = offices.leader(set_id), stranger(offices, set_id)
        items = items_of(await leased(office), kind)

        def die(node_id: str, command: Command) -> bool:
            if command is Command.SETTLE and leader.broker.up:
                offices.flock.settle()  # it is on a majority; only the answer is gone
                offices.stop(leader)
            return not leader.broker.up and node_id == leader.node_id

        offices.lose = die
        results = await office.anywhere.settle(ANONYMOUS, "orders", "g", items)
        assert not leader.broker.up
        assert [(result.code, result.count) for result in results] == [(0, 1)] * 5


async def test_a_commit_whose_answer_was_lost_does_not_undo_what_came_since() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        office = stranger(offices, set_id)
        await leased(office)
        offices.lose = only(Command.COMMIT)
        slow = asyncio.create_task(office.anywhere.commit(ANONYMOUS, "orders", "readers", {0: 1}, "reader", 0))
        while not any(command is Command.COMMIT for _, command in office.called):
            await asyncio.sleep(0)
        for sequence, offset in ((1, 2), (2, 3), (3, 5)):
            await office.anywhere.commit(ANONYMOUS, "orders", "readers", {0: offset}, "reader", sequence)
        await slow
        assert await office.anywhere.committed(ANONYMOUS, "orders", "readers") == {0: 5}


async def test_a_broker_numbers_the_commits_of_callers_that_do_not() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        office = stranger(offices, set_id)
        await leased(office)
        offices.lose = only(Command.COMMIT)
        slow = asyncio.create_task(office.anywhere.commit(ANONYMOUS, "orders", "readers", {0: 1}))
        while not any(command is Command.COMMIT for _, command in office.called):
            await asyncio.sleep(0)
        await office.anywhere.commit(ANONYMOUS, "orders", "readers", {0: 4})
        await slow
        assert await office.anywhere.committed(ANONYMOUS, "orders", "readers") == {0: 4}


async def test_of_two_creates_at_two_brokers_in_the_same_moment_exactly_one_wins() -> None:
    async with opened() as offices:
        for number in range(20):
            outcomes = await asyncio.gather(
                *(office.anywhere.create_topic(ANONYMOUS, f"t{number}", {}) for office in offices.by_name.values()),
                return_exceptions=True,
            )
            assert sorted(type(outcome).__name__ for outcome in outcomes) == [
                "TopicDescription",
                "TopicExists",
                "TopicExists",
            ]


async def test_a_create_asked_again_at_another_broker_gets_its_first_answer() -> None:
    async with opened() as offices:
        made = await offices["a"].anywhere.create_topic(ANONYMOUS, "orders", {"partitions": 2}, "random")
        again = await offices["b"].anywhere.create_topic(ANONYMOUS, "orders", {"partitions": 2}, "random")
        assert again == made
        with pytest.raises(TopicExists):
            await offices["b"].anywhere.create_topic(ANONYMOUS, "orders", {"partitions": 2}, "another")


async def test_a_create_is_answered_also_when_the_leader_of_a_partition_has_not_heard_of_it() -> None:
    async with opened() as offices:
        metadata = offices.leader(0)
        office = stranger(offices, 0)
        answers = office.engine.cluster.topics

        def behind(node_id: str, command: Command) -> bool:
            assert command is not Command.DESCRIBE_TOPIC, "it may answer that there is no such topic"
            return False

        offices.refuse = behind
        made = await office.anywhere.create_topic(ANONYMOUS, "orders", {"partitions": 3})
        assert len(made.partitions) == 3 and all(state.leader for state in made.partitions)
        assert "orders" in answers and metadata is not office
        deleting = office.service._served

        async def delete_meanwhile(name: str) -> None:
            await office.here.delete_topic(ANONYMOUS, name)
            await deleting(name)

        office.service._served = delete_meanwhile  # type: ignore[method-assign]
        assert (await office.anywhere.create_topic(ANONYMOUS, "brief", {"partitions": 1})).name == "brief"
