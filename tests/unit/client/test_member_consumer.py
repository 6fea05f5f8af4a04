"""A consumer that is a member: what it polls and as whom, and how it becomes one, against a scripted broker."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import lanner
from lanner.errors import (
    InstanceFenced,
    MemberFenced,
    MembershipRequired,
    MemberUnknown,
    ServiceUnavailable,
    StaleIncarnation,
    TopicNotFound,
    ValidationError,
)
from lanner.wire.administration import TopicNames
from lanner.wire.messages import BestPriorityFound, Command, Poll, Polled, Release, SettleKind
from tests.unit.client.scripted_group import NUMBER, ScriptedGroup, granted
from tests.unit.client.test_member_reader import tell


@pytest.fixture
def group(broker: Any) -> ScriptedGroup:
    broker.partitions = 3
    return ScriptedGroup(broker)


def consumer_of(queue: lanner.Queue, topic: Any = "t", **options: Any) -> lanner.Consumer:
    return queue.consumer(topic, "g", **{"assignor": "sticky", **options})


async def test_it_polls_what_it_holds_and_says_as_whom_and_what_it_has_seen(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(2, 2), granted(0, 2))
    async with lanner.connect(broker.address) as queue, consumer_of(queue, **tell(group.log)) as consumer:
        batch = await consumer.poll()
        assert sorted(batch.values()) == [b"0:0", b"2:0"]
        assert consumer.assignment == [lanner.TopicPartition("t", 0), lanner.TopicPartition("t", 2)]
        assert consumer.generation == 2
        await batch.ack()
    (join,) = group.of(Command.JOIN_GROUP)
    poll = group.of(Command.POLL)[0]
    assert (join.kind, join.assignor, poll.partitions) == ("queue", "sticky", [0, 2])
    assert (poll.member_id, poll.number, poll.generation, poll.incarnation) == (join.member_id, NUMBER, 2, 1)
    assert [line for line in group.log if not line.startswith("release")] == [
        "join",
        "assigned [0, 2]",
        "revoked [0, 2]",
        "leave",
    ]
    assert group.released == set() and not group.of(Command.CLAIM_PARTITIONS)


async def test_a_poll_that_waits_is_ended_when_the_member_gets_something_and_what_it_brings_is_given_back(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue, consumer_of(queue, **tell(group.log)) as consumer:
        await (await consumer.poll()).ack()
        waiting = asyncio.create_task(consumer.poll(wait_ms=20_000))
        await broker.until(lambda: len(group.of(Command.POLL)) == 2)
        group.show(granted(0, 2), granted(1, 3))
        assert (await waiting).values() == [b"1:0"]
        assert group.of(Command.POLL)[-1].generation == 3
        assert "assigned [1]" in group.log
        link, request = broker.links[0], [one for one in broker.requests if one.command is Command.POLL][1]
        group.leased.clear()
        late = group.poll(request.control, request)
        link.reply(request, *late)
        await broker.until(lambda: bool(group.of(Command.RELEASE)))
        (release,) = group.of(Command.RELEASE)
        assert isinstance(release, Release) and [item.partition for item in release.items] == [0]


async def test_one_that_holds_nothing_waits_and_asks_no_broker_for_messages(broker: Any, group: ScriptedGroup) -> None:
    async with lanner.connect(broker.address) as queue, consumer_of(queue) as consumer:
        assert not await consumer.poll(wait_ms=50)
        assert group.of(Command.POLL) == []
        waiting = asyncio.create_task(consumer.poll(wait_ms=20_000))
        group.show(granted(1, 2))
        assert (await waiting).values() == [b"1:0"]


async def test_a_refused_partition_is_given_up_and_the_others_go_on(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2), granted(1, 2))
    poll = broker.answers[Command.POLL]
    broker.answers[Command.POLL] = lambda call, request: (
        MemberFenced("another's", topic="t", partition=0) if 0 in call.partitions else poll(call, request)
    )
    async with lanner.connect(broker.address) as queue, consumer_of(queue, **tell(group.log)) as consumer:
        assert (await consumer.poll(wait_ms=5_000)).values() == [b"1:0"]
        assert "revoked [0]" in group.log and "lost [0]" not in group.log
        await broker.until(lambda: group.released == {(0, 2)})


async def test_a_topic_that_was_made_anew_is_no_error_of_the_poll(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    poll = broker.answers[Command.POLL]
    broker.answers[Command.POLL] = lambda call, request: StaleIncarnation("made anew")
    async with lanner.connect(broker.address) as queue, consumer_of(queue) as consumer:
        waiting = asyncio.create_task(consumer.poll(wait_ms=5_000))
        await broker.until(lambda: bool(group.of(Command.POLL)))
        broker.answers[Command.POLL] = poll
        group.show(granted(0, 2)._replace(incarnation=2, grant=3))
        assert (await waiting).values() == [b"0:0"]
        assert group.of(Command.POLL)[-1].incarnation == 2


@pytest.mark.parametrize("topics", ["t", ["t", "u"], "t*"])
async def test_a_topic_that_was_deleted_is_not_made_anew_by_the_member_that_held_it(
    broker: Any, group: ScriptedGroup, topics: Any
) -> None:
    group.show(granted(0, 2))
    broker.answers[Command.POLL] = lambda call, request: TopicNotFound("deleted")
    async with lanner.connect(broker.address) as queue, consumer_of(queue, topics) as consumer:
        waiting = asyncio.create_task(consumer.poll(wait_ms=5_000))
        await broker.until(lambda: len(group.of(Command.POLL)) > 1)
        waiting.cancel()
    assert group.of(Command.METADATA) and not any(call.create for call in group.of(Command.METADATA))


async def test_an_evicted_consumer_loses_everything_and_joins_under_another_id(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue, consumer_of(queue, **tell(group.log)) as consumer:
        await (await consumer.poll()).ack()
        poll = broker.answers[Command.POLL]
        broker.answers[Command.POLL] = lambda call, request: (
            MemberUnknown("evicted")
            if call.member_id == group.of(Command.JOIN_GROUP)[0].member_id
            else poll(call, request)
        )
        group.show(granted(1, 9))
        assert (await consumer.poll(wait_ms=5_000)).values() == [b"1:0"]
        assert len({call.member_id for call in group.of(Command.JOIN_GROUP)}) == 2
        assert [line for line in group.log if "[" in line][:2] in (
            ["assigned [0]", "lost [0]"],
            ["assigned [0]", "revoked [0]"],  # the view came before the refusal
        )


async def test_a_newer_process_of_the_instance_ends_the_consumer(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue:
        consumer = consumer_of(queue, instance="web-1", **tell(group.log))
        await (await consumer.poll()).ack()
        broker.answers[Command.POLL] = lambda call, request: InstanceFenced("a newer process has joined")
        with pytest.raises(InstanceFenced, match="newer"):
            await consumer.poll(wait_ms=5_000)
        with pytest.raises(InstanceFenced, match="newer"):
            await consumer.poll()
        assert "lost [0]" in group.log
        await consumer.close()
    assert "leave" not in group.log, "the place is the newer one's"


async def test_a_consumer_that_is_told_to_be_a_member_becomes_one_and_goes_on(
    broker: Any, group: ScriptedGroup
) -> None:
    poll = broker.answers[Command.POLL]
    broker.answers[Command.POLL] = lambda call, request: (
        poll(call, request) if call.member_id else MembershipRequired("join it", assignor="range")
    )
    group.show(granted(1, 2))
    async with lanner.connect(broker.address) as queue:
        async with consumer_of(queue, assignor=None) as consumer:
            assert not group.of(Command.JOIN_GROUP), "by default nothing is joined"
            assert (await consumer.poll(wait_ms=5_000)).values() == [b"1:0"]
            (join,) = group.of(Command.JOIN_GROUP)
            assert join.assignor == "", "it takes what the group has"
        assert group.log[-1] == "leave"
        async with consumer_of(queue, assignor=None, partitions=[1]) as consumer:
            with pytest.raises(MembershipRequired):
                await consumer.poll()


async def test_in_a_shared_group_a_member_polls_everything_and_what_its_patterns_stand_for(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(shared=True)
    broker.answers[Command.LIST_TOPICS] = lambda call, request: TopicNames(["other", "t.1", "t.2"])
    broker.answers[Command.BEST_PRIORITY] = lambda call, request: BestPriorityFound(4 if call.topic == "t.2" else -1)
    polled = iter([group.poll(_all_of(broker), None)])
    broker.answers[Command.POLL] = lambda call, request: next(polled, Polled([]))
    async with (
        lanner.connect(broker.address) as queue,
        consumer_of(queue, "t.*", assignor=None, register=True) as consumer,
    ):
        (first, *_) = await consumer.poll(wait_ms=5_000)
        assert first.topic == "t.2" and consumer.assignment == []
    poll = group.of(Command.POLL)[0]
    assert (poll.topic, poll.partitions, bool(poll.member_id), poll.incarnation) == ("t.2", None, True, 0)
    assert {call.topic for call in group.of(Command.BEST_PRIORITY)} == {"t.1", "t.2"}


def _all_of(broker: Any) -> Poll:
    return Poll("g", "t", "m", 0, list(range(broker.partitions)))


async def test_in_on_revoked_of_a_consumer_that_leaves_messages_can_still_be_acked(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue:
        held: list[lanner.Message] = []

        async def on_revoked(places: list[lanner.TopicPartition]) -> None:
            for message in held:
                await message.ack()

        async with consumer_of(queue, on_revoked=on_revoked) as consumer:
            held += await consumer.poll()
    assert [item.kind for call in group.of(Command.SETTLE) for item in call.items] == [SettleKind.ACK]
    assert group.log[-1] == "leave"


async def test_a_callback_must_not_poll(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue:

        async def on_assigned(places: list[lanner.TopicPartition]) -> None:
            await consumer.poll()

        async with consumer_of(queue, on_assigned=on_assigned) as consumer:
            with pytest.raises(ValidationError, match="must not ask for messages"):
                await consumer.poll()


async def test_a_callback_must_not_iterate(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue:

        async def on_assigned(places: list[lanner.TopicPartition]) -> None:
            async for _ in consumer:
                break

        async with consumer_of(queue, on_assigned=on_assigned) as consumer, asyncio.timeout(20):
            with pytest.raises(ValidationError, match="must not ask for messages"):
                await anext(consumer)


async def test_a_connection_that_is_closed_leaves_the_groups_of_its_consumers(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue:
        consumer = consumer_of(queue)
        batch = await consumer.poll()
        assert len(batch) == 1
    assert group.log[-1] == "leave"
    returned = [item for call in group.of(Command.SETTLE) for item in call.items]
    assert [item.partition for item in returned] == [0]
    said = [request.command for request in broker.requests]
    assert said.index(Command.SETTLE) < said.index(Command.LEAVE_GROUP), "what it held is given back first"


async def test_one_that_is_dropped_and_not_closed_is_not_heard_any_more(
    broker: Any, group: ScriptedGroup, caplog: pytest.LogCaptureFixture
) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue:
        async for message in consumer_of(queue):
            await message.ack()
            break
        del message  # which knows whose it is
        gc.collect()
        await asyncio.sleep(0.1)
        heard = len(group.of(Command.HEARTBEAT))
        await asyncio.sleep(0.5)
        assert len(group.of(Command.HEARTBEAT)) == heard
    assert "was dropped, and not closed" in caplog.text


async def test_what_the_last_callback_raises_when_the_connection_is_closed_is_logged(
    broker: Any, group: ScriptedGroup, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(places: list[lanner.TopicPartition]) -> None:
        raise RuntimeError("could not flush")

    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue:
        consumer = consumer_of(queue, on_revoked=fail)
        await (await consumer.poll()).ack()
    assert "could not flush" in caplog.text
    assert group.log[-1] == "leave"


async def test_one_whose_end_is_cut_short_leaves_all_the_same(broker: Any, group: ScriptedGroup) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue:
        consumer = consumer_of(queue)
        await consumer.poll()
        broker.answers[Command.SETTLE] = lambda call, request: None  # what it gives back is not answered
        closing = asyncio.create_task(consumer.close())
        await broker.until(lambda: bool(group.of(Command.SETTLE)))
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert group.log[-1] == "leave"
        heard = len(group.of(Command.HEARTBEAT))
        await asyncio.sleep(0.3)
        assert len(group.of(Command.HEARTBEAT)) == heard


async def test_one_that_is_closed_while_it_joins_leaves_and_its_poll_is_told(broker: Any, group: ScriptedGroup) -> None:
    joined: list[Any] = []

    def join(call: Any, request: Any) -> None:
        joined.append(request)

    broker.answers[Command.JOIN_GROUP] = join
    async with lanner.connect(broker.address) as queue:
        consumer = consumer_of(queue)
        polling = asyncio.create_task(consumer.poll())
        await broker.until(lambda: bool(joined))
        await consumer.close()
        assert group.log == ["leave"]
        broker.links[0].reply(joined[0], group.view())
        with pytest.raises(ServiceUnavailable, match="closed"):
            await polling
        assert group.log == ["leave", "leave"] and not group.of(Command.HEARTBEAT)


async def test_leases_that_come_in_the_moment_in_which_a_poll_is_cancelled_are_given_back(
    broker: Any, group: ScriptedGroup
) -> None:
    group.show(granted(0, 2))
    async with lanner.connect(broker.address) as queue, consumer_of(queue) as consumer:
        await consumer.poll(wait_ms=0)
        group.leased.clear()
        member = consumer._member
        assert member is not None
        polling = asyncio.create_task(consumer.poll(wait_ms=5_000))
        under_way = member._under_way
        async with asyncio.timeout(5):
            while not any(task.done() for task in under_way):
                tasks = list(under_way)
                if tasks:
                    tasks[0].add_done_callback(lambda task: polling.cancel())
                    break
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await polling
        await broker.until(lambda: bool(group.of(Command.RELEASE)))


async def test_what_makes_no_sense_is_refused(broker: Any) -> None:
    async with lanner.connect(broker.address) as queue:
        with pytest.raises(ValidationError, match="members get theirs"):
            consumer_of(queue, partitions=[1])
        with pytest.raises(ValidationError, match="is a pattern"):
            consumer_of(queue, ["t", "u*"], assignor=None)
        with pytest.raises(ValidationError, match="assignor is ''"):
            consumer_of(queue, assignor="")


async def test_several_topics_wait_together_and_a_question_that_waits_is_not_asked_again(broker: Any) -> None:
    waiting: list[Any] = []
    ready: set[str] = set()

    def look(call: Any, request: Any) -> Any:
        if call.topic in ready:
            return BestPriorityFound(4)
        if call.wait_ms:
            waiting.append(request)
            return None
        return BestPriorityFound(-1)

    group = ScriptedGroup(broker)
    broker.answers[Command.BEST_PRIORITY] = look
    polled = iter([group.poll(_all_of(broker), None)])
    broker.answers[Command.POLL] = lambda call, request: next(polled, Polled([]))
    async with lanner.connect(broker.address) as queue, queue.consumer(["t", "u"], "g") as consumer:
        assert not await consumer.poll(wait_ms=30)
        assert not await consumer.poll(wait_ms=30)
        assert sorted(request.control.topic for request in waiting) == ["t", "u"]
        polling = asyncio.create_task(consumer.poll(wait_ms=20_000))
        await asyncio.sleep(0)
        ready.add("u")
        (request,) = [request for request in waiting if request.control.topic == "u"]
        broker.links[0].reply(request, BestPriorityFound(4))
        (message,) = await polling
        assert message.topic == "u"
        await message.ack()
        assert [call.topic for call in group.of(Command.POLL)] == ["u"]
