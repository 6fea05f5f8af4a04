"""The consumer over several brokers: most urgent first, from any of them; settles where they belong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import lanner
from lanner.client.brokers import Brokers
from lanner.client.member_ports import Standing
from lanner.client.polling import Poller, Wanted
from lanner.client.routing import Routing
from lanner.client.settling import SettleQueue
from lanner.errors import ConnectionLost, LeaseLost, NotLeader, ServiceUnavailable
from lanner.wire.messages import Command, Settled, SettledItem, SettleKind


def total(cluster: Any, command: Command) -> int:
    return sum(len(asked) for asked in cluster.of(command).values())


# ------------------------------------------------------------------ what comes first


async def test_the_most_urgent_comes_first_whichever_broker_has_it(cluster: Any) -> None:
    cluster.add(0, 4, b"normal")
    cluster.add(1, 0, b"low")
    cluster.add(2, 9, b"high")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        for expected in ([b"high"], [b"normal"], [b"low"]):
            batch = await consumer.poll(wait_ms=0)
            assert batch.values() == expected  # at once: the less urgent waits for the next call
            await batch.ack()
    assert sorted(cluster.acked) == [(0, 0), (1, 0), (2, 0)]


async def test_nothing_less_urgent_is_taken_than_another_broker_has(cluster: Any) -> None:
    cluster.add(0, 9, b"a")
    cluster.add(0, 1, b"later")
    cluster.add(1, 5, b"b", b"c")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        for expected in ([b"a"], [b"b", b"c"], [b"later"]):
            assert (await consumer.poll(3, wait_ms=0)).values() == expected
    (first, *_) = cluster.of(Command.POLL)["n1"]
    assert first.min_priority == 5


async def test_among_equals_it_is_each_brokers_turn(cluster: Any) -> None:
    for partition in range(3):
        cluster.add(partition, 4, *[b"%d" % partition] * 20)
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        taken = [(await consumer.poll(1, wait_ms=0)).values()[0] for _ in range(30)]
    assert {value: taken.count(value) for value in taken} == {b"0": 10, b"1": 10, b"2": 10}


async def test_a_poll_ends_although_messages_keep_coming(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(3):
        cluster.add(partition, 4, b"first")
    lease = cluster.lease

    def and_another(poll: Any) -> Any:
        answer = lease(poll)
        for partition in poll.partitions:
            cluster.add(partition, 4, b"next")
        return answer[0].__class__(answer[0].batches, False, 4), answer[1]

    monkeypatch.setattr(cluster, "lease", and_another)
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        assert (await consumer.poll(100, wait_ms=0)).values() == [b"first"] * 3
    assert total(cluster, Command.POLL) == 3


async def test_equals_with_little_are_polled_together_and_one_with_enough_alone(cluster: Any) -> None:
    for partition in range(3):
        cluster.add(partition, 4, b"x", b"y")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        assert (await consumer.poll(2, wait_ms=0)).values() == [b"x", b"y"]
        assert total(cluster, Command.POLL) == 1
        assert sorted((await consumer.poll(5, wait_ms=0)).values()) == [b"x", b"x", b"y", b"y"]
        assert total(cluster, Command.POLL) == 3


async def test_nothing_less_urgent_is_handed_out_than_what_came_before_the_call(cluster: Any) -> None:
    """What is asked for, or comes, between two calls may be old when the later one is made."""
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        for number in range(20):
            for partition in range(3):
                cluster.add(partition, 2, b"low")
            assert (await consumer.poll(1)).values() == [b"low"]
            await asyncio.sleep(0.005)  # for what might be asked ahead
            cluster.add(number % 3, 8, b"high")
            assert (await consumer.poll(1)).values() == [b"high"]


@pytest.mark.parametrize("leaders", [["n1", "n2", "n3"], ["n2", "n2", "n2"]])
async def test_a_call_leaves_no_poll_under_way(cluster: Any, leaders: list[str]) -> None:
    cluster.leaders[:] = leaders
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        for partition in range(3):
            cluster.add(partition, 4, b"x")
        for _ in range(3):
            assert (await consumer.poll(1)).values() == [b"x"]
        polls = total(cluster, Command.POLL)
        for partition in range(3):
            cluster.add(partition, 4, b"y")
        await asyncio.sleep(0.05)
        assert total(cluster, Command.POLL) == polls
        assert sum(len(ready) for ready in cluster.ready.values()) == 3  # leased by nobody


async def test_one_broker_that_leads_everything_is_polled_and_waits(cluster: Any) -> None:
    cluster.leaders[:] = ["n2", "n2", "n2"]
    cluster.add(1, 4, b"a")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        assert (await consumer.poll()).values() == [b"a"]
    assert total(cluster, Command.BEST_PRIORITY) == 0
    (poll,) = cluster.of(Command.POLL)["n2"]
    assert (poll.partitions, poll.wait_ms > 900) == ([0, 1, 2], True)


async def test_waiting_costs_one_question_a_broker_and_news_end_it(cluster: Any) -> None:
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        polling = asyncio.ensure_future(consumer.poll(wait_ms=5_000))
        third = cluster.brokers["n3"]
        await third.until(lambda: any(control.wait_ms for control in third.of(Command.BEST_PRIORITY)))
        await asyncio.sleep(0.3)
        assert total(cluster, Command.BEST_PRIORITY) <= 9  # a look and a watch each; a little more while connecting
        cluster.add(2, 9, b"news")
        async with asyncio.timeout(1):
            assert (await polling).values() == [b"news"]
        looks = total(cluster, Command.BEST_PRIORITY)
        assert not await consumer.poll(wait_ms=0)
        assert total(cluster, Command.BEST_PRIORITY) <= looks + 1  # the two others still watch: they have nothing
    assert total(cluster, Command.POLL) == 1


async def test_a_wait_that_is_over_gives_nothing(cluster: Any) -> None:
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        began = asyncio.get_running_loop().time()
        assert not await consumer.poll(wait_ms=200)
        assert 0.15 < asyncio.get_running_loop().time() - began < 2


# ------------------------------------------------------------------ brokers that move, or go


async def test_a_poll_whose_answer_was_lost_gets_its_leases_at_the_next_leader(cluster: Any) -> None:
    cluster.leaders[:] = ["n1", "n1", "n1"]
    cluster.add(0, 4, b"a")
    cluster.add(1, 4, b"b")

    def hang_up(control: Any, request: Any) -> Any:
        cluster.answer(cluster.brokers["n1"], request)
        cluster.leaders[:] = ["n2", "n3", "n3"]
        return cluster.brokers["n1"].HANG_UP

    cluster.brokers["n1"].answers[Command.POLL] = hang_up
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        found: list[bytes] = []
        async with asyncio.timeout(5):
            while len(found) < 2:  # the two leaders may be found one after the other
                batch = await consumer.poll()
                found += batch.values()
                await batch.ack()
        assert sorted(found) == [b"a", b"b"]
    sequences = {control.sequence for asked in cluster.of(Command.POLL).values() for control in asked}
    assert sequences == {1}
    assert sorted(cluster.acked) == [(0, 0), (1, 0)]


async def test_a_watch_learns_of_the_one_partition_that_moved(cluster: Any) -> None:
    cluster.leaders[:] = ["n1", "n1", "n2"]
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        polling = asyncio.ensure_future(consumer.poll(wait_ms=5_000))
        first = cluster.brokers["n1"]
        await first.until(lambda: any(control.wait_ms for control in first.of(Command.BEST_PRIORITY)))
        cluster.leaders[1] = "n3"
        cluster.watching.clear()
        cluster.add(1, 4, b"x")
        (waiting,) = [one for one in first.requests if one.command is Command.BEST_PRIORITY and one.control.wait_ms]
        first.links[-1].fail(waiting, cluster.not_led(first, [0, 1]))
        async with asyncio.timeout(2):
            assert (await polling).values() == [b"x"]
    assert [control.partitions for control in cluster.of(Command.POLL)["n3"]] == [[1]]


async def test_a_lost_poll_of_one_broker_does_not_hide_what_the_others_have(cluster: Any) -> None:
    cluster.add(0, 9, b"first")
    cluster.add(1, 4, b"second")

    def hang_up(control: Any, request: Any) -> Any:
        cluster.answer(cluster.brokers["n1"], request)
        cluster.brokers["n1"].answers.clear()
        return cluster.brokers["n1"].HANG_UP

    cluster.brokers["n1"].answers[Command.POLL] = hang_up
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        assert (await consumer.poll()).values() == [b"second"]
        assert (await consumer.poll()).values() == [b"first"]  # leased once, and heard of now
    assert [control.sequence for control in cluster.of(Command.POLL)["n1"]] == [1, 1]


async def test_an_answer_that_is_owed_does_not_hold_up_the_other_brokers(cluster: Any) -> None:
    cluster.add(0, 9, b"owed")

    def not_said(control: Any, request: Any) -> Any:
        cluster.answer(cluster.brokers["n1"], request)
        return ServiceUnavailable()

    cluster.brokers["n1"].answers[Command.POLL] = not_said
    async with lanner.connect(cluster.address, timeout_ms=10_000) as queue, queue.consumer("t", "g") as consumer:
        polling = asyncio.ensure_future(consumer.poll())
        await cluster.brokers["n1"].until(lambda: len(cluster.of(Command.POLL)["n1"]) >= 2)
        cluster.add(0, 9, b"more")
        cluster.add(1, 4, b"x")
        cluster.add(2, 4, b"y")
        async with asyncio.timeout(2):
            found = (await polling).values()
            while len(found) < 2:
                found += (await consumer.poll()).values()
        assert sorted(found) == [b"x", b"y"]
        cluster.leaders[0] = "n3"
        assert (await consumer.poll()).values() == [b"owed"]
        assert (await consumer.poll()).values() == [b"more"]
    assert {control.sequence for control in cluster.of(Command.POLL)["n1"]} == {1}


async def test_a_slow_broker_is_not_waited_for_with_leases_in_hand(cluster: Any) -> None:
    cluster.add(0, 4, b"first")
    cluster.add(1, 4, b"slow")
    held_back: list[Any] = []
    cluster.brokers["n2"].answers[Command.POLL] = lambda control, request: held_back.append(request)
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        began = asyncio.get_running_loop().time()
        assert (await consumer.poll()).values() == [b"first"]
        assert asyncio.get_running_loop().time() - began < 2
        (late,) = held_back
        cluster.brokers["n2"].answers.clear()
        reply = cluster.lease(late.control)
        cluster.brokers["n2"].links[0].reply(late, *reply)
        batch = await consumer.poll()
        assert batch.values() == [b"slow"]  # the same lease, heard of by the repetition
        await batch.ack()
        assert (1, 0) in cluster.acked
        assert cluster.of(Command.RELEASE)["n2"] == []
    first, again = (control.sequence for control in cluster.of(Command.POLL)["n2"])
    assert first == again


async def test_a_slow_look_does_not_keep_what_is_there(cluster: Any) -> None:
    cluster.add(0, 4, b"here")
    cluster.brokers["n3"].answers[Command.BEST_PRIORITY] = lambda control, request: None
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        async with asyncio.timeout(2):
            assert (await consumer.poll()).values() == [b"here"]


async def test_a_broker_that_is_away_holds_up_only_what_it_leads(cluster: Any) -> None:
    async with lanner.connect(cluster.address, timeout_ms=5_000) as queue, queue.consumer("t", "g") as consumer:
        assert not await consumer.poll(wait_ms=0)
        await cluster.brokers["n2"].stop()
        cluster.add(0, 4, b"a")
        assert (await consumer.poll()).values() == [b"a"]
        cluster.add(1, 4, b"b")
        polling = asyncio.ensure_future(consumer.poll(wait_ms=0))
        await asyncio.sleep(0.2)
        assert not polling.done()  # empty would say that there is nothing
        cluster.leaders[1] = "n1"
        async with asyncio.timeout(3):
            assert (await polling).values() == [b"b"]


async def test_what_cannot_be_asked_by_the_deadline_is_an_error(cluster: Any) -> None:
    async with lanner.connect(cluster.address, timeout_ms=500) as queue, queue.consumer("t", "g") as consumer:
        assert not await consumer.poll(wait_ms=0)
        cluster.leaders[1] = ""
        cluster.hints = False
        for broker in cluster.brokers.values():
            broker.answers[Command.BEST_PRIORITY] = lambda control, request: NotLeader()
        with pytest.raises(NotLeader):
            await consumer.poll(wait_ms=0)
    assert total(cluster, Command.METADATA) < 40
    assert total(cluster, Command.BEST_PRIORITY) < 60


async def test_leases_for_a_cancelled_poll_are_released_where_they_are(cluster: Any) -> None:
    cluster.leaders[:] = ["n3", "n3", "n3"]
    waiting: list[Any] = []
    cluster.brokers["n3"].answers[Command.POLL] = lambda control, request: waiting.append(request)
    cluster.add(0, 4, b"a")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        polling = asyncio.ensure_future(consumer.poll(wait_ms=5_000))
        await cluster.brokers["n3"].until(lambda: bool(waiting))
        polling.cancel()
        await asyncio.sleep(0)
        cluster.brokers["n3"].links[0].reply(waiting[0], *cluster.lease(waiting[0].control))
        await cluster.brokers["n3"].until(lambda: bool(cluster.brokers["n3"].of(Command.RELEASE)))


async def test_a_cancelled_poll_gives_back_what_some_brokers_had_answered(cluster: Any) -> None:
    cluster.add(0, 4, b"a")
    cluster.add(1, 4, b"b")
    waiting: list[Any] = []
    cluster.brokers["n2"].answers[Command.POLL] = lambda control, request: waiting.append(request)
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        polling = asyncio.ensure_future(consumer.poll(wait_ms=5_000))
        await cluster.brokers["n2"].until(lambda: bool(waiting))
        polling.cancel()
        await asyncio.sleep(0)
        cluster.brokers["n2"].links[0].reply(waiting[0], *cluster.lease(waiting[0].control))
        for name in ("n1", "n2"):
            await cluster.brokers[name].until(lambda name=name: bool(cluster.brokers[name].of(Command.RELEASE)))


# ------------------------------------------------------------------ settling


async def test_settles_ride_on_the_polls_that_leave_for_their_brokers(cluster: Any) -> None:
    for partition in range(3):
        cluster.add(partition, 4, b"x")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        settling = (await consumer.poll(wait_ms=0)).ack()
        cluster.add(1, 4, b"y")
        assert (await consumer.poll(wait_ms=0)).values() == [b"y"]
        await settling
        assert settling.settled_count == 3
        polls = cluster.of(Command.POLL)["n2"]
        assert [[item.partition for item in poll.settles] for poll in polls] == [[], [1]]
        settles = {node_id: len(asked) for node_id, asked in cluster.of(Command.SETTLE).items()}
        assert settles == {"n1": 1, "n2": 0, "n3": 1}


async def test_settles_do_not_wait_for_a_poll_that_has_nobody_to_ask(cluster: Any) -> None:
    cluster.add(0, 4, b"x")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        settling = (await consumer.poll(wait_ms=0)).ack()
        polling = asyncio.ensure_future(consumer.poll(wait_ms=30_000))
        async with asyncio.timeout(5):
            await settling
        assert not polling.done()
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


async def test_settles_go_to_the_leader_of_each_message(cluster: Any) -> None:
    for partition in range(3):
        cluster.add(partition, 4, b"x")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        batch = await consumer.poll(wait_ms=0)
        settling = batch.ack()
        await settling
        assert settling.settled_count == 3
    for place, node_id in enumerate(("n1", "n2", "n3")):
        (settle,) = cluster.of(Command.SETTLE)[node_id]
        assert [item.partition for item in settle.items] == [place]


async def test_a_settle_follows_its_partition_and_the_others_take_effect_once(cluster: Any) -> None:
    for partition in range(3):
        cluster.add(partition, 4, b"x")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        batch = await consumer.poll(wait_ms=0)
        cluster.leaders[1] = "n3"
        await batch.ack()
    assert sorted(cluster.acked) == [(0, 0), (1, 0), (2, 0)]


async def test_settles_that_ride_on_a_poll_follow_their_partition_too(cluster: Any) -> None:
    cluster.leaders[:] = ["n1", "n1", "n1"]
    cluster.add(0, 4, b"x")
    cluster.add(1, 4, b"y")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        batch = await consumer.poll()
        cluster.leaders[1] = "n2"
        settling = batch.ack()
        await consumer.poll(wait_ms=0)
        await settling
    assert sorted(cluster.acked) == [(0, 0), (1, 0)]


async def test_a_settle_whose_partition_nobody_leads_waits_for_one(cluster: Any) -> None:
    cluster.add(0, 4, b"x")
    async with lanner.connect(cluster.address, timeout_ms=5_000) as queue, queue.consumer("t", "g") as consumer:
        (message,) = await consumer.poll(wait_ms=0)
        cluster.leaders[0] = ""
        settling = message.ack()
        await asyncio.sleep(0.3)
        assert not settling.done
        cluster.leaders[0] = "n2"
        await settling
    assert cluster.acked == [(0, 0)]


async def test_a_lost_lease_stays_lost_at_the_next_leader(cluster: Any) -> None:
    cluster.add(0, 4, b"x")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        (message,) = await consumer.poll(wait_ms=0)
        cluster.leaders[0] = "n2"
        cluster.brokers["n2"].answers[Command.SETTLE] = lambda control, request: Settled(
            [SettledItem(LeaseLost.code, 0)]
        )
        with pytest.raises(LeaseLost, match="or it took effect already"):
            await message.ack()


async def test_a_settle_that_finds_no_leader_in_time_fails(cluster: Any) -> None:
    cluster.add(0, 4, b"x")
    async with lanner.connect(cluster.address, timeout_ms=600) as queue, queue.consumer("t", "g") as consumer:
        (message,) = await consumer.poll(wait_ms=0)
        cluster.leaders[0] = ""
        with pytest.raises((NotLeader, ConnectionLost)):
            await message.ack()


async def test_a_settle_in_a_partition_that_is_gone_with_its_topic_is_lost_at_once_and_the_others_wait_for_a_leader(
    cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for partition in range(3):
        cluster.add(partition, 4, b"%d" % partition)
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g") as consumer:
        messages = {message.partition: message for _ in range(3) for message in await consumer.poll(1, wait_ms=500)}
        cluster.leaders, cluster.incarnation = ["", "n2"], 2  # made anew, with a partition less
        queue._routing.refresh("t")
        await cluster.brokers["n1"].until(lambda: queue._routing.known("t").partitions == 2)
        async with asyncio.timeout(5):
            with pytest.raises(LeaseLost, match="t was made anew, and has no partition 2 now"):
                await messages[2].ack()
        waits = asyncio.ensure_future(messages[0].ack())
        await asyncio.sleep(0.3)
        assert not waits.done()
        cluster.leaders[0] = "n1"
        await waits
        assert cluster.acked == [(0, 0)]
        cluster.leaders, cluster.incarnation = ["n1"], 3  # what is left to give back is gone as well
        queue._routing.refresh("t")
        await cluster.brokers["n1"].until(lambda: queue._routing.known("t").partitions == 1)
    assert "given back" not in caplog.text


async def test_a_partition_that_nobody_leads_costs_no_lease_of_the_others(cluster: Any) -> None:
    for partition in (0, 1):
        cluster.add(partition, 4, b"%d" % partition)
    options: dict[str, Any] = {"lease_ms": 60, "auto_extend": True}
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g", **options) as consumer:
        held = [await consumer.poll(1, wait_ms=500) for _ in range(2)]
        assert sorted(batch[0].partition for batch in held) == [0, 1]
        cluster.leaders[1] = ""

        def extended() -> list[int]:
            calls = [call for calls in cluster.of(Command.SETTLE).values() for call in calls]
            return [item.partition for call in calls for item in call.items if item.kind == SettleKind.EXTEND]

        before = len(extended())
        await cluster.brokers["n1"].until(lambda: extended()[before:].count(0) >= 20)
        assert extended()[before:].count(1) < 20  # it is asked for now and then
        cluster.leaders[1] = "n3"
        await cluster.brokers["n3"].until(lambda: extended()[before:].count(1) >= 40)


async def test_leaving_gives_back_at_each_leader(cluster: Any) -> None:
    for partition in range(3):
        cluster.add(partition, 4, b"x")
    async with lanner.connect(cluster.address) as queue, queue.consumer("t", "g", prefetch=10) as consumer:
        await anext(consumer)
        cluster.leaders[2] = "n1"
    released = [item for asked in cluster.of(Command.RELEASE).values() for control in asked for item in control.items]
    returned = [item for asked in cluster.of(Command.SETTLE).values() for control in asked for item in control.items]
    assert {item.partition for item in released} | {item.partition for item in returned} == {0, 1, 2}


# ------------------------------------------------------------------ as a member of a group


@asynccontextmanager
async def poller_of(cluster: Any) -> AsyncIterator[Poller]:
    brokers = Brokers(cluster.address, timeout_ms=2_000)
    await brokers.open()
    routing = Routing(brokers)
    settles = SettleQueue(brokers, routing, "t", "g")
    wanted = Wanted("t", "g", "me", None, 1 << 20, -1, False, "earliest")
    try:
        yield Poller(brokers, routing, settles, wanted, lambda reply: None, lambda: None)
    finally:
        await routing.close()
        await brokers.close()


async def test_what_is_polled_and_as_which_member_may_change_between_two_polls(cluster: Any) -> None:
    for partition in range(3):
        cluster.add(partition, 4, b"%d" % partition)
    async with poller_of(cluster) as poller:
        poller.want([2], Standing("m1", 7, 3, 1), "earliest", create=False)
        (reply,) = await poller.poll(10, 0)
        assert [batch.partition for batch in reply.control.batches] == [2]
        poller.want([0, 1], Standing("m1", 7, 4, 1), "earliest", create=False)
        replies = await poller.poll(10, 0)
        assert sorted(batch.partition for reply in replies for batch in reply.control.batches) == [0, 1]
    polls = [poll for polls in cluster.of(Command.POLL).values() for poll in polls]
    assert sorted((poll.partitions, poll.member_id, poll.number, poll.generation) for poll in polls) == [
        ([0], "m1", 7, 4),
        ([1], "m1", 7, 4),
        ([2], "m1", 7, 3),
    ]
    assert {poll.incarnation for poll in polls} == {1}


async def test_a_poll_may_ask_for_nothing_that_is_less_urgent_than_something_elsewhere(cluster: Any) -> None:
    cluster.add(0, 9, b"urgent")
    cluster.add(0, 3, b"later")
    cluster.add(1, 5, b"so so")
    async with poller_of(cluster) as poller:
        found = []
        for _ in range(3):
            replies = await poller.poll(10, 0, min_priority=5)
            found += [batch.priority for reply in replies for batch in reply.control.batches]
        assert found == [9, 5]
