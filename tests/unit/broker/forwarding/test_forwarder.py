"""Any request on any broker: what is asked on one is served by the leaders, and put together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lanner import batch, limits
from lanner.calls import ANONYMOUS
from lanner.errors import (
    BadGateway,
    GroupNotFound,
    NotFoundError,
    NotLeader,
    PartitionNotFound,
    ServiceUnavailable,
    TopicExists,
    TopicNotFound,
    UnknownRecord,
    ValidationError,
)
from lanner.forwarding.asking import Tries
from lanner.forwarding.values import NewMessage
from lanner.wire.messages import Command, Publish, SettleItem
from tests.unit.broker.offices import Office, Offices, only, opened

ACK, REJECT = 1, 4


async def fill(offices: Offices, count: int = 9, topic: str = "orders") -> None:
    """Messages of every priority in every partition, published on one broker."""
    messages = [NewMessage(b"%d" % number, priority=number % 10, partition=number % 3) for number in range(count)]
    await offices["a"].anywhere.publish_messages(ANONYMOUS, topic, messages)


@pytest.mark.parametrize("name", ["a", "b", "c"])
async def test_every_broker_tells_the_same_of_a_topic(name: str) -> None:
    async with opened() as offices:
        offices.topic("orders")
        await fill(offices)
        there = offices[name].anywhere
        assert await there.topics(ANONYMOUS) == ["orders"]
        told = await there.topic(ANONYMOUS, "orders")
        assert [state.id for state in told.partitions] == [0, 1, 2]
        assert [state.end_offset for state in told.partitions] == [3, 3, 3]
        assert {state.leader for state in told.partitions} == {"node-a", "node-b", "node-c"}
        incarnation, offsets = await there.offsets(ANONYMOUS, "orders")
        assert incarnation == told.incarnation
        assert [(item.partition, item.end_offset) for item in offsets] == [(0, 3), (1, 3), (2, 3)]
        route = await there.topic_route(ANONYMOUS, "orders")
        assert [part.leader for part in route.partitions] == [state.leader for state in told.partitions]
        assert all(set(part.replicas) == {"node-a", "node-b", "node-c"} for part in route.partitions)
        assert [broker.name for broker in (await there.metadata(ANONYMOUS)).brokers] == ["a", "b", "c"]


async def test_a_topic_is_made_changed_and_deleted_on_any_broker() -> None:
    async with opened() as offices:
        made = await offices["b"].anywhere.create_topic(ANONYMOUS, "orders", {"partitions": 3})
        assert [state.end_offset for state in made.partitions] == [0, 0, 0]
        with pytest.raises(TopicExists):
            await offices["c"].anywhere.create_topic(ANONYMOUS, "orders", {})
        changed = await offices["c"].anywhere.alter_topic(ANONYMOUS, "orders", {"partitions": 5, "lease_ms": 500})
        assert len(changed.partitions) == 5 and changed.settings["lease_ms"] == 500
        await offices["a"].anywhere.delete_topic(ANONYMOUS, "orders")
        for office in offices.by_name.values():
            with pytest.raises(TopicNotFound):
                await office.anywhere.topic(ANONYMOUS, "orders")


async def test_looking_for_an_unknown_topic_makes_none() -> None:
    async with opened() as offices:
        there = offices["a"].anywhere
        calls: list[Any] = [
            there.topic(ANONYMOUS, "nope"),
            there.peek(ANONYMOUS, "nope", None, 0, 1),
            there.offsets(ANONYMOUS, "nope"),
            there.groups(ANONYMOUS, "nope"),
            there.fetch(ANONYMOUS, "nope", 0, 0),
            there.poll(ANONYMOUS, topic="nope", group="g", member="m"),
            there.best_priority(ANONYMOUS, "nope", "g"),
            there.settle(ANONYMOUS, "nope", "g", [SettleItem(0, 1, 0, 1, ACK)]),
            there.publish_messages(ANONYMOUS, "nope", [NewMessage(b"x")]),
            there.raft_status(ANONYMOUS, "nope", 0),
            there.describe_partitions(ANONYMOUS, "nope"),
        ]
        for call in calls:
            with pytest.raises(TopicNotFound):
                await call
        assert await there.topics(ANONYMOUS) == []


async def test_a_topic_made_a_moment_ago_elsewhere_is_found() -> None:
    """The metadata's followers hear of a commit a little after its leader; nobody is told 'not found' meanwhile."""
    async with opened() as offices:
        leader = offices.leader(0)
        follower = next(office for office in offices.by_name.values() if office is not leader)
        offices.flock.cut.add(follower.node_id)
        made = asyncio.create_task(leader.here.create_topic(ANONYMOUS, "orders", {"partitions": 1, "replication": 1}))
        await asyncio.sleep(0.05)
        offices.flock.cut.clear()
        assert "orders" not in follower.engine.cluster.topics
        await follower.anywhere.metadata(ANONYMOUS, "orders")
        assert "orders" in follower.engine.cluster.topics
        await made


async def test_a_partition_that_is_not_led_here_is_refused_with_a_hint() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders")
        leader = offices.leader(set_ids[1])
        other = next(office for office in offices.by_name.values() if office is not leader)
        with pytest.raises(NotLeader) as refusal:
            other.service.publish(ANONYMOUS, Publish("orders", 1), batch.encode([b"x"]))
        assert refusal.value.details == {
            "leader": leader.node_id,
            "address": f"{leader.name}:7400",
            "topic": "orders",
            "partition": 1,
            "refused": True,
        }
        for call in (
            other.here.fetch(ANONYMOUS, "orders", 1, 0),
            other.here.poll(ANONYMOUS, topic="orders", group="g", member="m", partitions=[1]),
            other.here.best_priority(ANONYMOUS, "orders", "g", [1]),
            other.here.commit(ANONYMOUS, "orders", "g", {1: 0}),
            other.here.offsets(ANONYMOUS, "orders"),
        ):
            with pytest.raises(NotLeader, match="leads orders/"):
                await call


async def test_while_nobody_leads_a_partition_its_caller_is_told_to_come_back() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader = offices.leader(set_id)
        offices.stop(leader)
        other = next(office for office in offices.by_name.values() if office is not leader)
        with pytest.raises(NotLeader) as refusal:
            other.service.publish(ANONYMOUS, Publish("orders", 0), batch.encode([b"x"]))
        assert refusal.value.details["leader"] == "" and refusal.value.retry_after_ms


async def test_settles_of_partitions_led_elsewhere_say_so_one_by_one_and_the_others_take_effect() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders")
        await fill(offices)
        there = offices.leader(set_ids[0])
        found = await there.anywhere.poll(ANONYMOUS, topic="orders", group="g", member="m", max_messages=100)
        items = [
            SettleItem(item.partition, item.token, part.first_offset, part.count, ACK)
            for item in found.batches
            for part in item.ranges
        ]
        results = await there.here.settle(ANONYMOUS, "orders", "g", items)
        for item, result in zip(items, results, strict=True):
            assert result.code == (0 if item.partition == 0 else NotLeader.code)
        again = await offices["a"].anywhere.settle(ANONYMOUS, "orders", "g", items)
        assert [result.code for result in again] == [0] * len(items), "those of partition 0 get their first answer"


async def test_settles_go_to_the_leaders_and_wait_for_one_that_is_away() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await fill(offices)
        there = offices["b"].anywhere
        found = await there.poll(ANONYMOUS, topic="orders", group="g", member="m", max_messages=100)
        items = [
            SettleItem(item.partition, item.token, part.first_offset, part.count, ACK)
            for item in found.batches
            for part in item.ranges
        ]
        offices.refuse = only(Command.SETTLE, times=3)
        results = await there.settle(ANONYMOUS, "orders", "g", items)
        assert [result.code for result in results] == [0] * len(items)
        group = await there.group(ANONYMOUS, "orders", "g")
        assert sum(state.lag for state in group.partitions) == 0


async def test_streams_are_read_and_committed_through_any_broker() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await fill(offices)
        for office in offices.by_name.values():
            fetched = [await office.anywhere.fetch(ANONYMOUS, "orders", partition, 0) for partition in range(3)]
            values = [value for one in fetched for item in one.batches for value in batch.decode(item.data).values()]
            assert sorted(values) == sorted(b"%d" % number for number in range(9))
        await offices["c"].anywhere.commit(ANONYMOUS, "orders", "readers", {0: 1, 1: 2, 2: 3})
        for office in offices.by_name.values():
            assert await office.anywhere.committed(ANONYMOUS, "orders", "readers") == {0: 1, 1: 2, 2: 3}
            assert await office.anywhere.groups(ANONYMOUS, "orders") == ["readers"]


async def test_a_fetch_waits_at_the_leader_until_something_comes() -> None:
    async with opened() as offices:
        offices.topic("orders")
        waiting = [
            asyncio.create_task(offices[name].anywhere.fetch(ANONYMOUS, "orders", 0, 0, wait_ms=20_000))
            for name in "abc"
        ]
        await asyncio.sleep(0.05)
        await fill(offices, 1)
        for fetched in await asyncio.gather(*waiting):
            assert fetched.end_offset == 1 and len(fetched.batches) == 1


async def test_only_fetches_that_wait_elsewhere_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits here costs no request at another broker, and each of its callers has a connection here."""
    monkeypatch.setattr("lanner.forwarding.asking.Asking.waiting_max", 0)
    async with opened() as offices:
        set_ids = offices.topic("orders")
        leader = offices.leader(set_ids[0])
        waiting = asyncio.ensure_future(leader.anywhere.fetch(ANONYMOUS, "orders", 0, 0, limits.MIB, 5_000))
        other = next(office for office in offices.by_name.values() if office is not leader)
        assert (await other.anywhere.fetch(ANONYMOUS, "orders", 0, 0, limits.MIB, 5_000)).batches == []
        assert not waiting.done()
        await leader.anywhere.publish_messages(ANONYMOUS, "orders", [NewMessage(b"news", partition=0)])
        assert len((await waiting).batches) == 1


async def test_a_look_shows_the_most_urgent_of_all_brokers_first() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await fill(offices, 30)
        for office in offices.by_name.values():
            seen = await office.anywhere.peek(ANONYMOUS, "orders", None, 0, 7)
            assert [message.priority for message in seen] == [9, 9, 9, 8, 8, 8, 7]
            assert [message.partition for message in seen] == [0, 1, 2, 0, 1, 2, 0]
        only_one = await offices["a"].anywhere.peek(ANONYMOUS, "orders", [2], 0, 100)
        assert {message.partition for message in only_one} == {2} and len(only_one) == 10


async def test_groups_are_described_moved_and_dropped_on_every_broker_at_once() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await fill(offices)
        there = offices["c"].anywhere
        with pytest.raises(GroupNotFound):
            await there.group(ANONYMOUS, "orders", "g")
        await there.poll(ANONYMOUS, topic="orders", group="g", member="m", max_messages=100, auto_ack=True)
        for office in offices.by_name.values():
            told = await office.anywhere.group(ANONYMOUS, "orders", "g")
            assert [state.partition for state in told.partitions] == [0, 1, 2]
            assert sum(state.lag for state in told.partitions) == 0 and told.kind == "queue"
        await offices["a"].anywhere.seek(ANONYMOUS, "orders", "g", to="earliest")
        await offices["b"].anywhere.seek(ANONYMOUS, "orders", "g", offsets={0: 3, 1: 2})
        lags = [state.lag for state in (await there.group(ANONYMOUS, "orders", "g")).partitions]
        assert lags == [0, 1, 3]
        with pytest.raises(ValidationError):
            await there.seek(ANONYMOUS, "orders", "g", to="latest", time_ms=1)
        await there.drop_group(ANONYMOUS, "orders", "g")
        assert await offices["a"].anywhere.groups(ANONYMOUS, "orders") == []
        with pytest.raises(GroupNotFound):
            await there.drop_group(ANONYMOUS, "orders", "g")


async def test_a_group_whose_drop_was_not_answered_is_dropped_all_the_same() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        await offices["a"].anywhere.publish_messages(ANONYMOUS, "orders", [NewMessage(b"x")])
        leader = offices.leader(set_id)
        there = next(office for office in offices.by_name.values() if office is not leader).anywhere
        await there.poll(ANONYMOUS, topic="orders", group="g", member="m", auto_ack=True)
        offices.lose = only(Command.DROP_GROUP)
        await there.drop_group(ANONYMOUS, "orders", "g")
        assert await there.groups(ANONYMOUS, "orders") == []


async def test_dead_letters_of_all_brokers_are_listed_redriven_and_discarded() -> None:
    async with opened() as offices:
        offices.topic("orders")
        await fill(offices)
        there = offices["b"].anywhere
        found = await there.poll(ANONYMOUS, topic="orders", group="g", member="m", max_messages=100)
        items = [
            SettleItem(item.partition, item.token, part.first_offset, part.count, REJECT, reason="bad")
            for item in found.batches
            for part in item.ranges
        ]
        await there.settle(ANONYMOUS, "orders", "g", items)
        for office in offices.by_name.values():
            dead = await office.anywhere.dead_letters(ANONYMOUS, "orders", "g", None, 0, 4)
            assert dead.total == 9
            assert [(letter.partition, letter.offset) for letter in dead.letters] == [(0, 0), (0, 1), (0, 2), (1, 0)]
            assert batch.decode(dead.letters[0].data).values() == [b"0"]
        assert await offices["c"].anywhere.discard(ANONYMOUS, "orders", "g", [1], [0, 2]) == 2
        assert await offices["a"].anywhere.redrive(ANONYMOUS, "orders", "g", None, None) == 7
        with pytest.raises(ValidationError):
            await there.redrive(ANONYMOUS, "orders", "g", None, [1])


async def test_what_is_wrong_is_told_at_once_and_not_asked_again() -> None:
    async with opened() as offices:
        offices.topic("orders")
        there = offices["a"].anywhere
        with pytest.raises(PartitionNotFound):
            await there.fetch(ANONYMOUS, "orders", 3, 0)
        with pytest.raises(PartitionNotFound):
            await there.settle(ANONYMOUS, "orders", "g", [SettleItem(9, 1, 0, 1, ACK)])
        with pytest.raises(ValidationError):
            await there.peek(ANONYMOUS, "orders", None, -1, 1)
        with pytest.raises(NotFoundError, match="there are a, b, c"):
            await there.change_cluster(ANONYMOUS, "drain", broker="nobody")
        with pytest.raises(ValidationError, match="drain, undrain"):
            await there.change_cluster(ANONYMOUS, "destroy")


async def test_an_error_says_which_broker_did_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tries.__init__, "__defaults__", (300,))
    async with opened() as offices:
        set_ids = offices.topic("orders")
        offices.refuse = lambda node_id, command: node_id == "node-b"
        away = next(partition for partition in range(3) if offices.leader(set_ids[partition]).name == "b")
        with pytest.raises(BadGateway, match="broker b did not answer") as refusal:
            await offices["a"].anywhere.offsets(ANONYMOUS, "orders")
        assert refusal.value.details["node_id"] == "node-b"
        assert (await offices["a"].anywhere.offsets(ANONYMOUS, "orders", -1, [(away + 1) % 3]))[1]


async def test_a_call_follows_the_hint_of_a_broker_that_no_longer_leads() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 1)
        leader = offices.leader(set_ids[0])
        first, second = (office for office in offices.by_name.values() if office is not leader)
        first.heard_leader = lambda set_id: second.node_id
        await first.anywhere.offsets(ANONYMOUS, "orders")
        asked = [node_id for node_id, command in first.called if command is Command.OFFSETS]
        assert asked == [second.node_id, leader.node_id]


async def test_brokers_that_name_each_other_are_not_asked_in_a_circle() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 1)
        leader = offices.leader(set_ids[0])
        first, second = (office for office in offices.by_name.values() if office is not leader)
        for office in (first, second):
            office.heard_leader = lambda set_id: second.node_id
        second.heard_leader = lambda set_id: first.node_id
        asking = asyncio.create_task(first.anywhere.offsets(ANONYMOUS, "orders"))
        await asyncio.sleep(0.3)
        asked = [node_id for node_id, command in first.called if command is Command.OFFSETS]
        assert 2 <= len(asked) <= 12
        first.heard_leader, second.heard_leader = first.leader_by_pulses, second.leader_by_pulses
        await asking


async def test_a_call_waits_for_a_new_leader_and_then_succeeds() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 1)
        leader = offices.leader(set_ids[0])
        await offices["a"].anywhere.publish_messages(ANONYMOUS, "orders", [NewMessage(b"x")])
        offices.stop(leader)
        there = next(office for office in offices.by_name.values() if office.broker.up)
        _, offsets = await there.anywhere.offsets(ANONYMOUS, "orders")
        assert offsets[0].end_offset == 1


async def test_raft_stats_are_those_of_the_leader_on_every_broker() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 1)
        leader = offices.leader(set_ids[0])
        told = [await office.anywhere.raft_status(ANONYMOUS, "orders", 0) for office in offices.by_name.values()]
        assert all(status == told[0] for status in told)
        assert told[0]["state"] == "leader" and told[0]["broker"] == told[0]["leader_broker"] == leader.name
        assert set(told[0]["replicas"]) == {"a", "b", "c"}
        other = next(office for office in offices.by_name.values() if office is not leader)
        named = await leader.anywhere.raft_status(ANONYMOUS, "orders", 0, other.name)
        assert named["state"] == "follower" and named["broker"] == other.name


async def test_the_cluster_is_described_alike_and_lags_come_from_the_leaders() -> None:
    async with opened() as offices:
        offices.topic("orders")
        for office in offices.by_name.values():
            told = await office.anywhere.describe_cluster(ANONYMOUS)
            assert [(row.name, row.alive, row.leads, row.replicas) for row in told.brokers] == [
                (name, True, 1, 3) for name in "abc"
            ]
            assert (told.topics, told.partitions, told.replicas, told.replicas_missing) == (1, 3, 9, 0)
            assert told.metadata_leader == offices.leader(0).node_id
            rows = await office.anywhere.describe_partitions(ANONYMOUS, "orders")
            for row in rows:
                assert [replica.leads for replica in row.replicas].count(True) == 1
                lags = [replica.lag for replica in row.replicas if not replica.leads]
                assert lags == [0, 0], row


async def test_every_broker_tells_which_replicas_another_one_does_not_run_and_how_far_it_has_scrubbed() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders", 2)
        leader = offices.leader(set_ids[0])
        there = next(office for office in offices.by_name.values() if office is not leader)
        why = "the log holds a record of kind 99, which is not known here"
        there.engine.closing.stop(there.engine.replicas[set_ids[0]], UnknownRecord(why))
        done = await there.scrubbing.scrub()
        assert done.entries
        for office in offices.by_name.values():
            first, second = await office.anywhere.describe_partitions(ANONYMOUS, "orders")
            assert {one.name: one.stopped for one in first.replicas} == {
                name: why if name == there.name else "" for name in "abc"
            }
            assert not any(one.stopped for one in second.replicas)
            told = {row.name: row.scrub for row in (await office.anywhere.describe_cluster(ANONYMOUS)).brokers}
            for name, scrub in told.items():
                assert scrub is not None
                assert (scrub.passes, scrub.entries) == ((1, done.entries) if name == there.name else (0, 0))
        offices.refuse = lambda node_id, command: command in (Command.SCRUB, Command.DESCRIBE_PARTITIONS)
        rows = (await leader.anywhere.describe_cluster(ANONYMOUS)).brokers
        assert [row.name for row in rows if row.scrub is not None] == [leader.name]
        assert len(await leader.anywhere.describe_partitions(ANONYMOUS, "orders")) == 2


async def test_leadership_is_transferred_and_a_broker_drained_from_any_broker() -> None:
    async with opened("abcd") as offices:
        set_ids = offices.topic("orders", 1)
        leader = offices.leader(set_ids[0])
        route = (await leader.anywhere.topic_route(ANONYMOUS, "orders")).partitions[0]
        target = next(node_id for node_id in route.replicas if node_id != leader.node_id)
        name = target.removeprefix("node-")
        assert (
            await offices["d"].anywhere.change_cluster(ANONYMOUS, "transfer", topic="orders", partition=0, target=name)
            is None
        )
        async with asyncio.timeout(20):
            while offices.leader(set_ids[0]).node_id != target:
                await asyncio.sleep(0.01)
        plan = await offices["a"].anywhere.change_cluster(ANONYMOUS, "drain", broker=name)
        assert plan is not None and plan.kind == "drain" and plan.node_id == target
        async with asyncio.timeout(20):
            while target in (await offices["a"].anywhere.topic_route(ANONYMOUS, "orders")).partitions[0].replicas:
                await asyncio.sleep(0.01)
        await offices["a"].anywhere.change_cluster(ANONYMOUS, "undrain", broker=name)
        told = await offices["c"].anywhere.describe_cluster(ANONYMOUS)
        assert next(row.state for row in told.brokers if row.name == name) == "active"


async def test_a_broker_that_is_starting_or_draining_says_so() -> None:
    async with opened() as offices:
        offices.topic("orders")
        there = offices["a"]
        there.service.drain()
        with pytest.raises(ServiceUnavailable):
            await there.anywhere.topic(ANONYMOUS, "orders")
        late = Office(offices, offices["b"].broker)
        late.is_current = False
        for call in (late.anywhere.topics(ANONYMOUS), late.anywhere.peek(ANONYMOUS, "orders", None, 0, 1)):
            with pytest.raises(ServiceUnavailable):
                await call
        assert "how far the metadata is" in late.service.readiness.refusal
        late.is_current = True
        assert late.service.readiness.ready and await late.anywhere.topics(ANONYMOUS) == ["orders"]


async def test_a_publish_that_lost_its_leader_is_answered_with_who_leads_and_its_retry_with_the_first_offset() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader = offices.leader(set_id)
        producer_id, epoch = await leader.here.open_producer(ANONYMOUS)
        data = batch.encode([b"x"], producer_id=producer_id, producer_epoch=epoch, sequence=0)
        own = leader.broker.replica(set_id).node.node_id
        offices.flock.lost = lambda of, message: of == set_id and message.receiver == own
        publishing = leader.service.publish(ANONYMOUS, Publish("orders", 0), data)
        with pytest.raises(NotLeader) as lost:  # the others have it, but their answers do not arrive
            await asyncio.wait_for(publishing, 10)
        assert lost.value.retryable and "refused" not in lost.value.details
        offices.flock.lost = lambda of, message: False
        async with asyncio.timeout(10):
            while offices.flock.leader_of(set_id) is None:
                await asyncio.sleep(0.01)
        again = await offices.leader(set_id).service.publish(ANONYMOUS, Publish("orders", 0), data)
        assert (again.base_offset, again.duplicate) == (0, True)
        assert (await offices["a"].anywhere.offsets(ANONYMOUS, "orders"))[1][0].end_offset == 1


async def test_a_broker_that_goes_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, not dead: its connections stay, and nothing comes over them."""
    monkeypatch.setattr("lanner.broker.forwarding.hops._LISTEN_SECONDS", 0.02)
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader = offices.leader(set_id)
        there = next(office for office in offices.by_name.values() if office is not leader)
        call = there.call

        async def never_answered(node_id: str, *given: Any, **named: Any) -> Any:
            if node_id == leader.node_id:
                await asyncio.sleep(3_600)
            return await call(node_id, *given, **named)

        monkeypatch.setattr(there, "call", never_answered)
        asking = asyncio.create_task(there.anywhere.offsets(ANONYMOUS, "orders"))
        publishing = asyncio.create_task(there.anywhere.publish_messages(ANONYMOUS, "orders", [NewMessage(b"x")]))
        await asyncio.sleep(0.1)
        assert not asking.done() and not publishing.done(), "it lives, and may answer yet"
        offices.flock.cut.add(leader.node_id)
        async with asyncio.timeout(8):
            await asking
            await publishing
        offices.flock.cut.clear()


async def test_a_message_that_may_go_anywhere_does_not_wait_for_a_leader() -> None:
    async with opened() as offices:
        set_ids = offices.topic("orders")
        gone = offices.leader(set_ids[1])
        there = next(office for office in offices.by_name.values() if office is not gone)
        there.heard_leader = lambda set_id: "" if set_id == set_ids[1] else offices.leader(set_id).node_id
        stored = [
            (await there.anywhere.publish_messages(ANONYMOUS, "orders", [NewMessage(b"x")]))[0].partition
            for _ in range(6)
        ]
        assert set(stored) == {0, 2}


async def test_settles_that_nobody_took_until_the_deadline_say_so_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tries.__init__, "__defaults__", (200,))
    async with opened() as offices:
        set_ids = offices.topic("orders")
        await fill(offices)
        office = offices["a"]
        found = await office.anywhere.poll(ANONYMOUS, topic="orders", group="g", member="m", max_messages=100)
        items = [
            SettleItem(item.partition, item.token, part.first_offset, part.count, ACK)
            for item in found.batches
            for part in item.ranges
        ]
        away = next(number for number in range(3) if offices.leader(set_ids[number]) is not office)
        office.heard_leader = lambda set_id: "" if set_id == set_ids[away] else offices.leader(set_id).node_id
        results = await office.anywhere.settle(ANONYMOUS, "orders", "g", items)
        for item, result in zip(items, results, strict=True):
            assert result.code == (NotLeader.code if item.partition == away else 0)


async def test_a_missing_topic_is_made_where_the_broker_may_and_once_for_all_who_ask() -> None:
    async with opened() as offices:
        await asyncio.gather(
            *(offices[name].anywhere.ensure_topic(ANONYMOUS, "orders") for name in "abc" for _ in range(3))
        )
        assert await offices["b"].anywhere.topics(ANONYMOUS) == ["orders"]
        await offices["c"].anywhere.ensure_topic(ANONYMOUS, "orders")
        offices["a"].service.auto_create = False
        with pytest.raises(TopicNotFound, match="makes none by itself"):
            await offices["a"].anywhere.ensure_topic(ANONYMOUS, "others")


async def test_a_topic_whose_making_was_not_answered_is_not_somebody_elses() -> None:
    async with opened() as offices:
        office = offices["a"]
        propose = office.proposed

        async def proposed_twice(command: bytes) -> Any:
            await propose(command)
            return await propose(command)

        office.proposed = proposed_twice
        assert (await office.anywhere.create_topic(ANONYMOUS, "orders", {"partitions": 1})).name == "orders"
        offices.flock.now_ms += 1
        with pytest.raises(TopicExists):
            await office.anywhere.create_topic(ANONYMOUS, "orders", {"partitions": 1})


async def test_a_change_while_nobody_leads_the_metadata_says_when_to_come_back() -> None:
    async with opened() as offices:
        leader = offices.leader(0)
        office = next(one for one in offices.by_name.values() if one is not leader)
        offices.flock.cut.update(one.node_id for one in offices.by_name.values())
        with pytest.raises(ServiceUnavailable, match="nobody leads the metadata") as refusal:
            await office.anywhere.create_topic(ANONYMOUS, "orders", {})
        assert refusal.value.retry_after_ms
        offices.flock.cut.clear()


async def test_a_new_topic_whose_leaders_do_not_show_up_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanner.broker.desks.administration._LEADERS_TIMEOUT_MS", 50)
    async with opened() as offices:
        office = offices["a"]
        office.known_leader = lambda set_id: ""
        with pytest.raises(NotLeader, match="nobody leads orders/0"):
            await office.here.create_topic(ANONYMOUS, "orders", {"partitions": 1})


async def test_one_encoded_batch_is_published_wherever_its_partition_is_led() -> None:
    async with opened() as offices:
        offices.topic("orders")
        for office in offices.by_name.values():
            offices.refuse = only(Command.PUBLISH)
            for partition in range(3):
                await office.anywhere.publish(ANONYMOUS, "orders", partition, batch.encode([b"x"]))
        _, offsets = await offices["a"].anywhere.offsets(ANONYMOUS, "orders")
        assert [item.end_offset for item in offsets] == [3, 3, 3]


async def test_large_dead_letters_come_some_at_a_time_and_fit_into_a_frame() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        leader = offices.leader(set_id)
        office = next(one for one in offices.by_name.values() if one is not leader)
        for _ in range(20):
            await office.anywhere.publish_messages(ANONYMOUS, "orders", [NewMessage(b"x" * 900_000)])
        while True:
            found = await office.anywhere.poll(ANONYMOUS, topic="orders", group="g", member="m", max_bytes=4_000_000)
            items = [
                SettleItem(item.partition, item.token, part.first_offset, part.count, REJECT)
                for item in found.batches
                for part in item.ranges
            ]
            if not items:
                break
            await office.anywhere.settle(ANONYMOUS, "orders", "g", items)
        dead = await office.anywhere.dead_letters(ANONYMOUS, "orders", "g", None, 0, 100)
        assert dead.total == 20 and len(dead.letters) == 9
        assert sum(len(letter.data) for letter in dead.letters) < limits.FRAME_BYTES_MAX
        rest = await office.anywhere.dead_letters(ANONYMOUS, "orders", "g", None, 15, 100)
        assert [letter.offset for letter in rest.letters] == [15, 16, 17, 18, 19]
