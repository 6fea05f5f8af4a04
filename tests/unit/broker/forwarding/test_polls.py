"""Polls over several brokers: the most urgent first, nothing lost, nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lanner import batch, limits
from lanner.calls import ANONYMOUS, Answer
from lanner.errors import BadGateway, GroupKindConflict, NotLeader, ValidationError
from lanner.forwarding import polls as forwarding_polls
from lanner.forwarding import watches
from lanner.forwarding.values import Delivered, NewMessage
from lanner.partition import Poll
from lanner.wire.messages import BestPriority, BestPriorityFound, Command, SettleItem
from tests.callers import Here
from tests.spoilt import undecodable
from tests.unit.broker.offices import Office, Offices, only, opened


async def publish(offices: Offices, *messages: tuple[int, int], topic: str = "orders") -> None:
    """(partition, priority) each."""
    new = [NewMessage(b"%d-%d" % one, partition=one[0], priority=one[1]) for one in messages]
    await offices["a"].anywhere.publish_messages(ANONYMOUS, topic, new)


async def poll(office: Office, **wanted: Any) -> list[Delivered]:
    fields = {"topic": "orders", "group": "g", "member": "m", "max_messages": 100, **wanted}
    return await office.anywhere.poll_messages(ANONYMOUS, **fields)


def shown(found: list[Delivered]) -> list[tuple[int, int]]:
    return [(item.message.priority, item.message.partition) for item in found]


async def unleased(office: Office) -> int:
    """How many messages the group could have now."""
    group = await office.anywhere.group(ANONYMOUS, "orders", "g")
    return sum(state.ready for state in group.partitions)


async def test_the_most_urgent_comes_first_over_all_brokers() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await publish(offices, *((number % 3, number % 10) for number in range(30)))
        found = await poll(offices["b"])
        assert [priority for priority, _ in shown(found)] == sorted((n % 10 for n in range(30)), reverse=True)
        assert len({item.message.id for item in found}) == 30


async def test_brokers_with_equally_urgent_messages_are_polled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as offices:
        offices.topic("orders")
        await publish(offices, (0, 5), (1, 5), (2, 5))
        everybody = asyncio.Barrier(3)
        poll_once = forwarding_polls.ForwardedPolls._poll_once

        async def once_all_are_asked(self: Any, *given: Any) -> Any:
            async with asyncio.timeout(5):
                await everybody.wait()
            return await poll_once(self, *given)

        monkeypatch.setattr(forwarding_polls.ForwardedPolls, "_poll_once", once_all_are_asked)
        assert sorted(shown(await poll(offices["b"]))) == [(5, 0), (5, 1), (5, 2)]


async def test_polls_with_sequences_keep_the_order_too() -> None:
    """Each broker is asked once in such a poll, so one may bring less than there is; but never in the wrong order."""
    async with opened() as offices:
        offices.topic("orders")
        await poll(offices["b"], sequence=1)  # it is known here, so the next ones are no repetitions
        await publish(offices, *((number % 3, number % 10) for number in range(30)))
        found: list[Delivered] = []
        for sequence in range(2, 30):
            found += await poll(offices["b"], sequence=sequence)
        assert [priority for priority, _ in shown(found)] == sorted((n % 10 for n in range(30)), reverse=True)
        assert len({item.message.id for item in found}) == 30


async def test_a_small_poll_takes_from_the_broker_with_the_best_only() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await publish(offices, (0, 1), (0, 1), (1, 8), (2, 5), (2, 9))
        assert shown(await poll(offices["a"], max_messages=1)) == [(9, 2)]
        assert shown(await poll(offices["b"], max_messages=2)) == [(8, 1), (5, 2)]
        assert shown(await poll(offices["c"])) == [(1, 0), (1, 0)]
        assert await poll(offices["c"]) == []


async def test_a_poll_says_how_urgent_what_is_left_is_and_takes_nothing_less_urgent_than_asked() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await publish(offices, (0, 2), (1, 8), (2, 5))
        fields = {"topic": "orders", "group": "g", "member": "m"}
        first = await offices["a"].anywhere.poll(ANONYMOUS, **fields, max_messages=1)
        assert first.priority == 5
        second = await offices["a"].anywhere.poll(ANONYMOUS, **fields, max_messages=10, min_priority=3)
        assert [item.priority for item in second.batches] == [5]
        assert await offices["a"].anywhere.best_priority(ANONYMOUS, "orders", "g") == 2
        assert [item.priority for item in (await offices["a"].anywhere.poll(ANONYMOUS, **fields)).batches] == [2]
        assert await offices["a"].anywhere.best_priority(ANONYMOUS, "orders", "g") == -1


async def test_a_service_leases_nothing_below_the_priority_asked_for() -> None:
    async with opened("a") as offices:
        offices.topic("orders")
        await publish(offices, (0, 2), (1, 8), (2, 5), (0, 8))
        fields = {"topic": "orders", "group": "g", "member": "m"}
        found = await offices["a"].here.poll(ANONYMOUS, **fields, min_priority=5)
        assert [item.priority for item in found.batches] == [8, 8, 5] and found.priority == 2
        assert (await offices["a"].here.poll(ANONYMOUS, **fields, min_priority=5)).batches == []


async def test_a_reply_put_together_of_several_brokers_is_cut_to_what_fits_and_the_rest_is_free_at_once() -> None:
    """A large message hides among tiny ones on each broker: by their average, all of them fit."""
    async with opened() as offices:
        offices.topic("orders")
        mixed = batch.encode([b"L" * 900_000, *[b"t"] * 300])
        for partition in range(3):
            for _ in range(2):
                await offices["a"].anywhere.publish(ANONYMOUS, "orders", partition, mixed)
        seen: set[tuple[int, int]] = set()
        rounds = 0
        while len(seen) < 6 * 301:
            found = await poll(offices["b"], max_messages=10_000, max_bytes=limits.MIB)
            rounds += 1
            assert found and {item.message.attempt for item in found} == {1}, "what did not fit was not counted"
            assert sum(len(item.message.value) for item in found) <= 2 * limits.MIB
            seen |= {(item.message.partition, item.message.offset) for item in found}
            items = [SettleItem(one.message.partition, one.token, one.message.offset, 1, 1) for one in found]
            assert {result.code for result in await offices["b"].anywhere.settle(ANONYMOUS, "orders", "g", items)} == {
                0
            }
        assert rounds >= 3


async def test_a_batch_that_does_not_decode_is_made_dead_wherever_it_is_led() -> None:
    async with opened() as offices:
        offices.topic("orders")
        for partition in range(3):
            for data in (batch.encode([b"before"]), undecodable(2), batch.encode([b"after"])):
                await offices["a"].anywhere.publish(ANONYMOUS, "orders", partition, data)
        for auto_ack, group in ((False, "g"), (True, "taken")):
            found: list[Delivered] = []
            while len(found) < 6:
                more = await poll(offices["b"], group=group, auto_ack=auto_ack)
                assert more
                found += more
            assert sorted((item.message.partition, item.message.offset) for item in found) == [
                (partition, offset) for partition in range(3) for offset in (0, 3)
            ]
            dead = await offices["c"].anywhere.dead_letters(ANONYMOUS, "orders", group, None, 0, 100)
            assert [(one.partition, one.offset, one.reason) for one in dead.letters] == [
                (partition, offset, "malformed") for partition in range(3) for offset in (1, 2)
            ]


@pytest.mark.parametrize("where", [0, 1, 2])
async def test_a_waiting_poll_wakes_when_something_comes_anywhere(where: int) -> None:
    async with opened() as offices:
        offices.topic("orders")
        waiting = asyncio.create_task(poll(offices["a"], wait_ms=30_000))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await publish(offices, (where, 4))
        assert shown(await asyncio.wait_for(waiting, 5)) == [(4, where)]


async def test_a_waiting_poll_asks_nobody_again_and_again() -> None:
    async with opened() as offices:
        offices.topic("orders")
        assert await poll(offices["a"], wait_ms=400) == []
        asked = [command for _, command in offices["a"].called if command is Command.BEST_PRIORITY]
        assert len(asked) <= 8, "two short ones, two long ones, and two at the end"


async def test_many_who_wait_for_the_same_cost_one_long_question_at_each_broker() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await poll(offices["a"])  # the group is there
        offices["a"].called.clear()
        waiting = [asyncio.create_task(poll(offices["a"], max_messages=1, wait_ms=20_000)) for _ in range(20)]
        async with asyncio.timeout(5):
            while len(offices["a"].called) < 20 * 2 + 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert [command for _, command in offices["a"].called] == [Command.BEST_PRIORITY] * (20 * 2 + 2)
        await publish(offices, *((number % 3, 4) for number in range(20)))
        found = await asyncio.gather(*waiting)
        assert len({one[0].message.id for one in found}) == 20


async def test_a_poll_waits_out_its_time_and_comes_back_empty() -> None:
    async with opened() as offices:
        offices.topic("orders")
        began = asyncio.get_running_loop().time()
        assert await poll(offices["c"], wait_ms=200) == []
        assert 0.19 <= asyncio.get_running_loop().time() - began < 2


async def test_a_caller_who_goes_while_it_waits_leaves_no_leases() -> None:
    async with opened() as offices:
        offices.topic("orders")
        waiting = asyncio.create_task(poll(offices["a"], wait_ms=30_000))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await publish(offices, (0, 4), (1, 4), (2, 4))
        assert await unleased(offices["b"]) == 3


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_caller_who_goes_while_leases_are_on_their_way_gives_them_back(step: int) -> None:
    async with opened() as offices:
        offices.topic("orders")
        await publish(offices, (0, 9), (1, 8), (2, 7))
        office = offices["a"]
        held, steps = asyncio.Event(), [0]
        poll_at = forwarding_polls.ForwardedPolls._poll_once

        async def slow(self: Any, *given: Any) -> Any:
            steps[0] += 1
            if steps[0] == step:
                call = asyncio.create_task(poll_at(self, *given))
                held.set()
                return await call
            return await poll_at(self, *given)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(forwarding_polls.ForwardedPolls, "_poll_once", slow)
            polling = asyncio.create_task(poll(office))
            await held.wait()
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
        async with asyncio.timeout(5):
            while await unleased(office) != 3:
                await asyncio.sleep(0.01)
        again = await poll(office)
        assert [item.message.attempt for item in again] == [1, 1, 1], "nobody saw them: it does not count"


async def test_what_was_taken_is_returned_although_another_broker_failed() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders")
        await publish(offices, (0, 9), (1, 9), (2, 9))
        office = offices.leader(set_ids[0])
        offices.refuse = only(Command.POLL, times=100)
        found = await poll(office, auto_ack=True)
        assert shown(found) == [(9, 0)]
        offices.refuse = lambda node_id, command: False
        assert len(await poll(office, auto_ack=True)) == 2


async def test_leases_whose_answer_was_lost_are_found_again() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 1)
        await publish(offices, (0, 9), (0, 4))
        leader = offices.leader(set_ids[0])
        office = next(one for one in offices.by_name.values() if one is not leader)
        offices.lose = only(Command.POLL, times=2)
        found = await poll(office)
        assert shown(found) == [(9, 0), (4, 0)]
        items = [SettleItem(0, one.token, one.message.offset, 1, 1) for one in found]
        assert [result.code for result in await office.anywhere.settle(ANONYMOUS, "orders", "g", items)] == [0, 0]


async def test_leases_whose_answer_was_lost_with_their_leader_are_found_at_the_next_one() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 1)
        await publish(offices, (0, 9))
        leader = offices.leader(set_ids[0])
        office = next(one for one in offices.by_name.values() if one is not leader)

        def die(node_id: str, command: Command) -> bool:
            if command is Command.POLL and leader.broker.up:
                offices.flock.settle()
                offices.stop(leader)
            return not leader.broker.up and node_id == leader.node_id

        offices.lose = die
        found = await poll(office)
        assert shown(found) == [(9, 0)] and found[0].message.attempt == 1
        assert not leader.broker.up


async def test_a_poll_repeated_under_its_sequence_gets_the_same_leases_on_any_broker() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await publish(offices, (0, 9), (1, 8), (2, 7))
        first = await poll(offices["a"], sequence=5)
        again = await poll(offices["b"], sequence=5)
        assert {(item.message.id, item.token) for item in again} == {(item.message.id, item.token) for item in first}
        assert await poll(offices["b"], sequence=6) == []


async def test_a_poll_goes_on_with_the_others_while_a_partition_has_no_leader() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders")
        await publish(offices, (0, 9), (1, 8), (2, 7))
        gone = offices.leader(set_ids[1])
        offices.stop(gone)
        office = next(one for one in offices.by_name.values() if one is not gone)
        assert (7, 2) in shown(await poll(office)) or (9, 0) in shown(await poll(office))


async def test_a_poll_that_finds_nothing_waits_for_a_leader_who_may_have_something() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 1)
        await publish(offices, (0, 9))
        gone = offices.leader(set_ids[0])
        offices.stop(gone)
        office = next(one for one in offices.by_name.values() if one is not gone)
        assert shown(await poll(office)) == [(9, 0)]


async def test_when_nobody_can_say_whether_there_is_something_the_caller_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forwarding_polls, "DEADLINE_MS", 200)
    async with opened() as offices:
        set_ids = offices.topic("orders", 1)
        leader = offices.leader(set_ids[0])
        office = next(one for one in offices.by_name.values() if one is not leader)
        offices.refuse = lambda node_id, command: node_id == leader.node_id
        with pytest.raises(BadGateway, match=f"broker {leader.name} did not answer"):
            await poll(office)
        with pytest.raises(BadGateway):
            await office.anywhere.best_priority(ANONYMOUS, "orders", "g", wait_ms=10)
        assert len(office.called) < 60


async def test_a_poll_here_moves_on_when_leadership_does() -> None:
    """It waits at this broker, which leads everything; then another takes over."""
    async with opened() as offices:
        set_ids = offices.topic("orders", 1)
        leader = offices.leader(set_ids[0])
        waiting = asyncio.create_task(poll(leader, wait_ms=30_000))
        explicit = asyncio.create_task(
            leader.here.poll(ANONYMOUS, topic="orders", group="g", member="n", partitions=[0], wait_ms=30_000)
        )
        fetching = asyncio.create_task(leader.here.fetch(ANONYMOUS, "orders", 0, 0, wait_ms=30_000))
        await asyncio.sleep(0.05)
        other = next(one for one in offices.by_name.values() if one is not leader)
        await other.anywhere.change_cluster(ANONYMOUS, "transfer", topic="orders", partition=0, target=other.name)
        for task in (explicit, fetching):
            with pytest.raises(NotLeader) as refusal:
                await asyncio.wait_for(task, 10)
            assert refusal.value.details["partition"] == 0
        await publish(offices, (0, 4))
        assert shown(await asyncio.wait_for(waiting, 10)) == [(4, 0)]


async def test_a_stream_group_is_refused_on_every_broker() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await offices["a"].anywhere.commit(ANONYMOUS, "orders", "g", {0: 0, 1: 0, 2: 0})
        for office in offices.by_name.values():
            with pytest.raises(GroupKindConflict):
                await poll(office, wait_ms=1_000)
            with pytest.raises(GroupKindConflict):
                await office.anywhere.best_priority(ANONYMOUS, "orders", "g", wait_ms=1_000)


async def test_a_new_group_begins_everywhere_at_the_same_time() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await publish(offices, (0, 9), (1, 8), (2, 7))
        assert await poll(offices["a"], start="latest") == []
        await publish(offices, (0, 3), (1, 2), (2, 1))
        assert shown(await poll(offices["b"], start="latest")) == [(3, 0), (2, 1), (1, 2)]


async def test_a_group_at_its_bound_is_not_asked_without_pause() -> None:
    async with opened() as offices:
        offices.topic("orders", 3, outstanding_max=1)
        await publish(offices, *((partition, 4) for partition in (0, 1, 2) for _ in range(3)))
        assert len(await poll(offices["a"])) == 3
        offices["a"].called.clear()
        assert await poll(offices["a"], wait_ms=500) == []
        assert len(offices["a"].called) < 60


async def test_a_watch_that_nobody_waits_for_ends() -> None:
    async def best_priority(node_id: str, call: BestPriority) -> Answer[BestPriorityFound]:
        asked.append(node_id)
        return Answer(BestPriorityFound(await answers.get()))

    answers: asyncio.Queue[int] = asyncio.Queue()
    asked: list[str] = []
    watching = watches.Watches(best_priority)
    waiter = watching.join("node", "t", "g", [0])
    second = watching.join("node", "t", "g", [0])
    for _ in range(3):
        answers.put_nowait(-1)
    while not answers.empty():
        await asyncio.sleep(0)
    assert not waiter.done() and len(asked) == 4, "as long as somebody waits it goes on, once for both"
    waiter.cancel()
    second.cancel()
    await asyncio.sleep(0)
    answers.put_nowait(-1)
    for _ in range(10):
        await asyncio.sleep(0)
    assert answers.empty() and len(asked) == 4, "nobody asks any more"
    third = watching.join("node", "t", "g", [0])
    answers.put_nowait(7)
    assert await asyncio.wait_for(third, 10) == 7 and len(asked) == 5


async def test_a_broker_that_drains_ends_its_polls_at_once_also_those_that_wait_elsewhere() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader = offices.leader(set_id)
        office = next(one for one in offices.by_name.values() if one is not leader)
        waiting = asyncio.create_task(poll(office, wait_ms=30_000))
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        office.service.drain()
        assert await waiting == []
        assert asyncio.get_running_loop().time() - began < 1


async def test_a_poll_of_no_partition_at_all_is_refused() -> None:
    async with opened() as offices:
        offices.topic("orders")
        with pytest.raises(ValidationError, match="partitions is empty"):
            await poll(offices["a"], partitions=[], sequence=1)


def lost(set_id: int, request: Any, told: Callable[[Any, int], None]) -> None:
    """A question whose partition moves away."""
    told(NotLeader("gone"), 0)


@pytest.mark.parametrize("auto_ack", [True, False])
async def test_a_poll_of_one_broker_returns_what_it_took_although_a_partition_was_lost(auto_ack: bool) -> None:
    async with opened("a") as offices:
        offices.topic("orders")
        await publish(offices, (0, 9), (1, 8), (2, 7))
        service, engine = offices["a"].service, offices["a"].engine
        ask, polls = engine.ask, []

        def lose_the_second(set_id: int, request: Any, told: Callable[[Any, int], None]) -> None:
            is_poll = isinstance(request, Poll)
            polls.extend([request] if is_poll else [])
            (lost if is_poll and len(polls) == 2 else ask)(set_id, request, told)

        engine.ask = lose_the_second  # type: ignore[method-assign]
        fields = {"topic": "orders", "group": "g", "member": "m", "auto_ack": auto_ack}
        found = await Here(service).poll(ANONYMOUS, **fields)
        assert [item.priority for item in found.batches] == [9] and len(polls) == 2


async def test_a_poll_that_lost_its_only_partition_says_which() -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        await publish(offices, (0, 9))
        offices["a"].engine.ask = lost  # type: ignore[method-assign]
        fields = {"topic": "orders", "group": "g", "member": "m"}
        here = offices["a"].here
        for call in (here.poll(ANONYMOUS, **fields), here.best_priority(ANONYMOUS, "orders", "g")):
            with pytest.raises(NotLeader) as refusal:
                await call
            assert refusal.value.details["partition"] == 0 and "refused" not in refusal.value.details


async def test_a_caller_of_the_service_who_goes_gives_back_what_was_decided_meanwhile() -> None:
    async with opened("a") as offices:
        offices.topic("orders", 1)
        await publish(offices, (0, 9), (0, 4))
        office = offices["a"]
        polling = asyncio.create_task(
            office.here.poll(ANONYMOUS, topic="orders", group="g", member="m", max_messages=10)
        )
        while not office.engine.replicas[1]._questions:
            await asyncio.sleep(0)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        async with asyncio.timeout(5):
            while await unleased(office) != 2:
                await asyncio.sleep(0.01)
