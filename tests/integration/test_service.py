"""The service of a whole broker, without a door: real journal, real table, real sync."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lanner import batch, limits
from lanner.broker.settings import BrokerSettings
from lanner.calls import ANONYMOUS, Identity
from lanner.errors import (
    GroupKindConflict,
    GroupNotFound,
    LeaseLost,
    MalformedBatch,
    MessageTooLarge,
    Overloaded,
    PartitionNotFound,
    ServiceUnavailable,
    StaleIncarnation,
    StorageFull,
    TopicExists,
    TopicFull,
    TopicNotFound,
    ValidationError,
)
from lanner.forwarding.values import Delivered, NewMessage
from lanner.server import Server
from lanner.wire.messages import SettleItem
from tests.callers import Here

ACK, NACK, EXTEND, REJECT = 1, 2, 3, 4


def settings_for(path: Path, **changes: Any) -> BrokerSettings:
    changes = {"disk_reserve_bytes": 0, "segment_bytes": 4 * limits.MIB, **changes}
    return BrokerSettings(data=str(path / "data"), http="", native="", **changes)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(settings_for(tmp_path))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def service(server: Server) -> Here:
    return Here(server.service)


async def publish(service: Here, topic: str, *values: str, **fields: Any) -> None:
    await service.ensure_topic(ANONYMOUS, topic)
    await service.publish_messages(ANONYMOUS, topic, [NewMessage(value.encode(), **fields) for value in values])


async def poll(service: Here, topic: str, group: str = "workers", **wanted: Any) -> list[Delivered]:
    return await service.poll_messages(ANONYMOUS, topic=topic, group=group, member="one", **wanted)


async def settle(service: Here, topic: str, kind: int, *found: Delivered, **fields: Any) -> list[int]:
    items = [SettleItem(item.message.partition, item.token, item.message.offset, 1, kind, **fields) for item in found]
    return [result.code for result in await service.settle(ANONYMOUS, topic, "workers", items)]


async def somebody_waits(server: Server) -> None:
    """Until a caller waits for news of a partition."""
    while not any(replica.watchers for replica in server.node.engine.replicas.values()):
        await asyncio.sleep(0)


def values(found: list[Delivered]) -> list[str]:
    return [item.message.value.decode() for item in found]


async def test_high_comes_before_low_over_all_partitions_whatever_the_order(service: Here) -> None:
    for number, priority in enumerate([0, 9, 4, 0, 9, 4, 9]):
        await publish(service, "mixed", f"{priority}-{number}", priority=priority, partition=number % 3)
    found = await poll(service, "mixed", max_messages=10)
    assert [item.message.priority for item in found] == [9, 9, 9, 4, 4, 0, 0]


async def test_each_of_a_thousand_mixed_messages_is_consumed_exactly_once_in_odd_batches(service: Here) -> None:
    for number in range(1_000):
        await publish(service, "thousand", f"{number}", priority=number * 7 % 10)
    seen: list[str] = []
    sizes = [1, 3, 7, 11, 13, 29]
    while found := await poll(service, "thousand", max_messages=sizes[len(seen) % len(sizes)], auto_ack=True):
        priorities = [item.message.priority for item in found]
        assert priorities == sorted(priorities, reverse=True)
        seen += values(found)
    assert sorted(map(int, seen)) == list(range(1_000))


async def test_a_poll_repeated_under_its_sequence_gets_the_same_leases(service: Here) -> None:
    for number in range(6):
        await publish(service, "orders", f"{number}", partition=number % 3, priority=number % 2 * 9)
    first = await poll(service, "orders", sequence=7, max_messages=6)
    again = await poll(service, "orders", sequence=7, max_messages=6)
    assert sorted(values(first)) == sorted(values(again)) == list("012345")
    assert {(item.message.id, item.token) for item in first} == {(item.message.id, item.token) for item in again}
    assert await poll(service, "orders", sequence=8, max_messages=6) == []


async def test_a_poll_that_does_not_know_it_is_repeated_gets_the_leases_under_their_own_tokens(
    service: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(service, "orders", "0", partition=0)
    first = await poll(service, "orders", sequence=7, partitions=[0])
    for number in range(3):
        await publish(service, "orders", f"more {number}", partition=0)
    await publish(service, "orders", "urgent", partition=0, priority=9)
    # A new leader may apply what the old one had decided only after the look whether this poll was decided before.
    monkeypatch.setattr("lanner.partition.Partition.has_polled", lambda *_: False)
    again = await poll(service, "orders", sequence=7, partitions=[0], max_messages=1)
    assert [(item.message.id, item.token) for item in again] == [(item.message.id, item.token) for item in first]
    assert first[0].token > 0


async def test_a_group_told_latest_gets_all_that_is_appended_after_its_first_poll(service: Here) -> None:
    await publish(service, "news", "old", partition=0)
    assert await poll(service, "news", start="latest") == []
    await publish(service, "news", "new", partition=1)
    assert values(await poll(service, "news", start="latest")) == ["new"]


async def test_a_long_poll_wakes_when_something_is_published(server: Server, service: Here) -> None:
    await service.ensure_topic(ANONYMOUS, "slow")
    waiting = asyncio.create_task(poll(service, "slow", wait_ms=30_000))
    await somebody_waits(server)
    await publish(service, "slow", "at last")
    assert values(await waiting) == ["at last"]


async def test_a_long_poll_ends_empty_when_its_time_is_over(service: Here) -> None:
    await service.ensure_topic(ANONYMOUS, "empty")
    assert await poll(service, "empty", wait_ms=20) == []


async def test_a_delayed_message_comes_when_it_is_due_and_an_expired_one_never(service: Here, server: Server) -> None:
    now_ms = server.node.clock.now_ms()
    await publish(service, "times", "expired", expires_at_ms=now_ms - 1, partition=0)
    await publish(service, "times", "later", deliver_at_ms=now_ms + 200, partition=0)
    assert await poll(service, "times") == []
    found = await poll(service, "times", wait_ms=20_000)
    assert values(found) == ["later"]
    assert server.node.clock.now_ms() >= now_ms + 200


async def test_nack_reject_and_redrive(service: Here) -> None:
    await publish(service, "work", "a", "b", partition=0)
    first, second = await poll(service, "work")
    assert await settle(service, "work", NACK, first, delay_ms=0) == [0]
    assert await settle(service, "work", REJECT, second, reason="poison") == [0]
    (again,) = await poll(service, "work")
    assert (again.message.value, again.message.attempt) == (b"a", 2)
    assert await settle(service, "work", ACK, again) == [0]
    letters = await service.dead_letters(ANONYMOUS, "work", "workers", None, 0, 10)
    assert letters.total == 1
    assert (letters.letters[0].offset, letters.letters[0].reason) == (1, "poison")
    assert batch.decode(letters.letters[0].data).values() == [b"b"]
    assert await service.redrive(ANONYMOUS, "work", "workers", None, None) == 1
    (back,) = await poll(service, "work")
    assert (back.message.value, back.message.attempt) == (b"b", 1)
    assert await settle(service, "work", REJECT, back) == [0]
    assert await service.discard(ANONYMOUS, "work", "workers", [0], [1]) == 1
    assert (await service.group(ANONYMOUS, "work", "workers")).partitions[0].dead == 0


async def test_a_settle_with_a_stale_or_unknown_token_is_refused_and_has_no_effect(service: Here) -> None:
    await publish(service, "work", "a", "b", "c", "d", partition=0)
    (leased,) = await poll(service, "work", max_messages=1)
    stranger = leased._replace(token=leased.token + 1_000)
    assert await settle(service, "work", ACK, stranger) == [LeaseLost.code]
    assert await settle(service, "work", ACK, leased) == [0]
    assert await settle(service, "work", ACK, leased) == [0], "asked again, it gets its first answer"
    assert await settle(service, "work", NACK, leased) == [LeaseLost.code]
    assert values(await poll(service, "work")) == ["b", "c", "d"]


async def test_an_ended_lease_is_delivered_again_and_its_old_token_refused(service: Here) -> None:
    await publish(service, "work", "a", partition=0)
    (old,) = await poll(service, "work", lease_ms=20)
    (new,) = await poll(service, "work", wait_ms=20_000)
    assert (new.message.offset, new.message.attempt) == (old.message.offset, 2)
    assert await settle(service, "work", ACK, old) == [LeaseLost.code]
    assert await settle(service, "work", ACK, new) == [0]


async def test_what_is_given_back_unseen_counts_no_attempt(service: Here) -> None:
    await publish(service, "work", "a", partition=0)
    (leased,) = await poll(service, "work")
    item = SettleItem(0, leased.token, 0, 1, ACK)
    assert [result.code for result in await service.release(ANONYMOUS, "work", "workers", [item])] == [0]
    (again,) = await poll(service, "work")
    assert again.message.attempt == 1


async def test_streams_fetch_commit_and_seek(service: Here) -> None:
    await publish(service, "log", "a", "b", partition=0)
    await publish(service, "log", "c", partition=0)
    fetched = await service.fetch(ANONYMOUS, "log", 0, 1)
    assert [batch.decode(item.data).values() for item in fetched.batches] == [[b"a", b"b"], [b"c"]]
    assert (fetched.first_offset, fetched.end_offset, fetched.next_offset) == (0, 3, 3)
    await service.commit(ANONYMOUS, "log", "readers", {0: 2})
    assert await service.committed(ANONYMOUS, "log", "readers") == {0: 2}
    assert (await service.group(ANONYMOUS, "log", "readers")).partitions[0].lag == 1
    with pytest.raises(GroupKindConflict):
        await poll(service, "log", "readers")
    await service.seek(ANONYMOUS, "log", "readers", to="earliest")
    assert await service.committed(ANONYMOUS, "log", "readers") == {0: 0}
    incarnation, offsets = await service.offsets(ANONYMOUS, "log", 0)
    assert incarnation == fetched.incarnation
    assert (offsets[0].first_offset, offsets[0].end_offset, offsets[0].at_time) == (0, 3, 0)


async def test_a_fetch_at_the_end_waits_for_what_comes(server: Server, service: Here) -> None:
    await service.ensure_topic(ANONYMOUS, "log")
    waiting = asyncio.create_task(service.fetch(ANONYMOUS, "log", 0, 0, wait_ms=30_000))
    await somebody_waits(server)
    await publish(service, "log", "news", partition=0)
    assert len((await waiting).batches) == 1
    assert (await service.fetch(ANONYMOUS, "log", 0, 1, wait_ms=10)).batches == []


async def test_peek_shows_the_most_urgent_first_and_takes_nothing(service: Here) -> None:
    for number, priority in enumerate([0, 9, 4]):
        await publish(service, "look", f"{number}", priority=priority, partition=number)
    for _ in range(2):
        seen = await service.peek(ANONYMOUS, "look", None, 0, 2)
        assert [message.priority for message in seen] == [9, 4]
    assert await service.peek(ANONYMOUS, "look", [0], 1, 5) == []


async def test_a_seek_back_delivers_again_and_a_dropped_group_is_gone(service: Here) -> None:
    await publish(service, "again", "a", "b", partition=0)
    assert values(await poll(service, "again", auto_ack=True)) == ["a", "b"]
    await service.seek(ANONYMOUS, "again", "workers", offsets={0: 1})
    assert values(await poll(service, "again")) == ["b"]
    await service.drop_group(ANONYMOUS, "again", "workers")
    with pytest.raises(GroupNotFound):
        await service.group(ANONYMOUS, "again", "workers")
    assert await service.groups(ANONYMOUS, "again") == []


async def test_topics_are_made_changed_and_deleted_live(service: Here) -> None:
    made = await service.create_topic(ANONYMOUS, "plan", {"partitions": 2, "lease_ms": 5_000})
    with pytest.raises(TopicExists):
        await service.create_topic(ANONYMOUS, "plan", {})
    grown = await service.alter_topic(ANONYMOUS, "plan", {"partitions": 4, "max_deliveries": 1})
    assert [partition.id for partition in grown.partitions] == [0, 1, 2, 3]
    assert all(partition.leader == service.node_id for partition in grown.partitions)
    await publish(service, "plan", "x", partition=3)
    (leased,) = await poll(service, "plan")
    await settle(service, "plan", NACK, leased, delay_ms=0)
    assert (await service.group(ANONYMOUS, "plan", "workers")).partitions[3].dead == 1  # max_deliveries is 1 now
    await service.delete_topic(ANONYMOUS, "plan")
    with pytest.raises(TopicNotFound):
        await service.topic(ANONYMOUS, "plan")
    anew = await service.create_topic(ANONYMOUS, "plan", {})
    assert anew.incarnation != made.incarnation
    with pytest.raises(StaleIncarnation):
        await service.fetch(ANONYMOUS, "plan", 0, 0, incarnation=made.incarnation)


async def test_deleting_a_topic_ends_the_polls_that_wait_on_it(server: Server, service: Here) -> None:
    await service.ensure_topic(ANONYMOUS, "gone")
    waiting = asyncio.create_task(poll(service, "gone", wait_ms=30_000))
    await somebody_waits(server)
    await service.delete_topic(ANONYMOUS, "gone")
    with pytest.raises(TopicNotFound):
        await waiting


async def test_reads_of_an_unknown_topic_create_nothing(service: Here) -> None:
    for call in (poll(service, "nowhere"), service.fetch(ANONYMOUS, "nowhere", 0, 0)):
        with pytest.raises(TopicNotFound):
            await call
    assert await service.topics(ANONYMOUS) == []


async def test_automatic_creation_can_be_turned_off(tmp_path: Path) -> None:
    server = Server(settings_for(tmp_path, auto_create_topics=False))
    await server.start()
    with pytest.raises(TopicNotFound):
        await server.service.ensure_topic(ANONYMOUS, "orders")
    await server.stop()


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"max_messages": 0}, "max_messages"),
        ({"max_messages": limits.POLL_MESSAGES_MAX + 1}, "max_messages"),
        ({"wait_ms": -1}, "wait_ms"),
        ({"lease_ms": 1}, "lease_ms"),
        ({"start": "middle"}, "start"),
        ({"group": ".."}, "group"),
        ({"sequence": -2}, "sequence"),
    ],
)
async def test_a_poll_that_asks_for_nonsense_says_what(service: Here, wanted: dict[str, Any], field: str) -> None:
    await service.ensure_topic(ANONYMOUS, "orders")
    with pytest.raises(ValidationError) as caught:
        await poll(service, "orders", **wanted)
    assert caught.value.details["field"] == field


async def test_a_publish_that_cannot_be_taken_says_why(service: Here) -> None:
    await service.create_topic(ANONYMOUS, "orders", {"message_bytes_max": 10, "partitions": 1})
    good = batch.encode([b"x"])
    with pytest.raises(PartitionNotFound, match="0 to 0"):
        service.publish(ANONYMOUS, "orders", 1, good)
    with pytest.raises(MalformedBatch):
        service.publish(ANONYMOUS, "orders", 0, b"rubbish")
    with pytest.raises(MalformedBatch):
        service.publish(ANONYMOUS, "orders", 0, good[:-1] + b"\xff")
    with pytest.raises(MessageTooLarge):
        await publish(service, "orders", "longer than ten")
    with pytest.raises(ValidationError, match="extract"):
        service.publish(ANONYMOUS, "orders", 0, batch.extract(good, [0]))
    with pytest.raises(ValidationError):
        service.publish(Identity(""), "orders", 0, good)


async def test_below_the_reserve_publishes_are_refused_and_acks_go_on(server: Server, service: Here) -> None:
    await publish(service, "orders", "kept", partition=0)
    server.node.saving.room.is_full = True
    with pytest.raises(StorageFull) as caught:
        await publish(service, "orders", "refused")
    assert caught.value.retry_after_ms
    (leased,) = await poll(service, "orders")
    assert await settle(service, "orders", ACK, leased) == [0]
    server.node.saving.check_disk()
    await publish(service, "orders", "taken again")


async def test_at_the_bound_of_dedup_ids_a_new_one_is_refused_and_a_known_one_gets_its_first_answer(
    service: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEDUP_IDS_PER_PARTITION_MAX", 2)
    await service.create_topic(ANONYMOUS, "orders", {"partitions": 1, "dedup_window_ms": 600_000})

    async def send(dedup_id: bytes) -> Any:
        return await service.publish_messages(ANONYMOUS, "orders", [NewMessage(b"value", dedup_id=dedup_id)])

    first = [await send(name) for name in (b"a", b"b")]
    with pytest.raises(Overloaded, match="lower the topic's dedup_window_ms") as caught:
        await send(b"c")
    assert 0 < (caught.value.retry_after_ms or 0) <= 600_000
    for name, stored in zip((b"a", b"b"), first, strict=True):
        assert await send(name) == [stored[0]._replace(duplicate=True)]
    await service.alter_topic(ANONYMOUS, "orders", {"dedup_window_ms": 0})
    async with asyncio.timeout(10):
        while True:
            try:
                await send(b"c")
                break
            except Overloaded as error:
                await asyncio.sleep((error.retry_after_ms or 0) / 1_000)


async def test_a_topic_takes_no_more_than_it_may_from_many_at_once(service: Here) -> None:
    await service.create_topic(ANONYMOUS, "small", {"partitions": 1, "max_bytes": 10_000})
    told = await asyncio.gather(
        *(publish(service, "small", secrets.token_hex(1_000)) for _ in range(30)), return_exceptions=True
    )
    assert {type(one) for one in told} == {type(None), TopicFull}
    assert 7_000 < (await service.topic(ANONYMOUS, "small")).partitions[0].bytes <= 10_000
    with pytest.raises(TopicFull, match="more do not fit: raise max_bytes, or set full_policy=drop_oldest"):
        for _ in range(2):
            await publish(service, "small", secrets.token_hex(1_000))
    await publish(service, "small", "x")  # nothing is on the way any more


async def test_a_full_topic_rejects_at_once_or_drops_its_oldest(service: Here) -> None:
    await service.create_topic(ANONYMOUS, "small", {"partitions": 1, "max_bytes": 1_000})
    with pytest.raises(TopicFull):
        for _ in range(20):
            await publish(service, "small", "x" * 100)
    await service.alter_topic(ANONYMOUS, "small", {"full_policy": "drop_oldest"})
    for _ in range(20):
        await publish(service, "small", "x" * 100)
    partition = (await service.topic(ANONYMOUS, "small")).partitions[0]
    assert partition.end_offset > 20


async def test_too_much_in_hand_sheds_the_least_urgent_first(service: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    await service.create_topic(ANONYMOUS, "busy", {"partitions": 1})
    monkeypatch.setattr(limits, "UNCOMMITTED_BYTES_MAX_PER_PARTITION", 1_000)
    urgent, idle = batch.encode([b"x" * 600], priority=9), batch.encode([b"x" * 600], priority=0)
    first = service.publish(ANONYMOUS, "busy", 0, urgent)
    with pytest.raises(Overloaded) as caught:
        service.publish(ANONYMOUS, "busy", 0, idle)
    assert caught.value.retry_after_ms
    await first
    with pytest.raises(Overloaded):
        service.publish(ANONYMOUS, "busy", 0, batch.encode([b"x" * 700], priority=0))
    await service.publish(ANONYMOUS, "busy", 0, batch.encode([b"x" * 700], priority=9))


async def test_draining_refuses_new_work_ends_polls_and_still_takes_acks(server: Server, service: Here) -> None:
    await publish(service, "orders", "a", partition=0)
    (leased,) = await poll(service, "orders")
    waiting = asyncio.create_task(poll(service, "orders", wait_ms=30_000))
    await somebody_waits(server)
    service.drain()
    assert await waiting == []
    with pytest.raises(ServiceUnavailable):
        await publish(service, "orders", "b")
    assert await settle(service, "orders", ACK, leased) == [0]
    assert "draining" in service.readiness.refusal


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    server = Server(settings_for(tmp_path))
    await server.start()
    await publish(Here(server.service), "orders", "a", "b", partition=0)
    (leased,) = await poll(Here(server.service), "orders", max_messages=1)
    await settle(Here(server.service), "orders", ACK, leased)
    identity = server.service.node_id
    producer, _ = await Here(server.service).open_producer(ANONYMOUS)
    await server.stop()
    server = Server(settings_for(tmp_path))
    await server.start()
    assert server.service.node_id == identity
    assert await Here(server.service).topics(ANONYMOUS) == ["orders"]
    assert values(await poll(Here(server.service), "orders")) == ["b"]
    await publish(Here(server.service), "orders", "c", partition=0)
    assert (await Here(server.service).topic(ANONYMOUS, "orders")).partitions[0].end_offset == 3
    assert (await Here(server.service).open_producer(ANONYMOUS))[0] > producer
    await server.stop()


async def test_producer_ids_are_never_handed_out_twice(service: Here) -> None:
    count = limits.PRODUCER_ID_BLOCK + 10
    opened = await asyncio.gather(*(service.open_producer(ANONYMOUS) for _ in range(count)))
    assert len({producer for producer, _ in opened}) == count


async def test_producer_ids_that_were_fetched_long_ago_are_not_handed_out(service: Here) -> None:
    first, _ = await service.open_producer(ANONYMOUS)
    assert (await service.open_producer(ANONYMOUS))[0] == first + 1
    assert service._producer_ids_until > asyncio.get_running_loop().time()
    service.service._producer_ids_until = 0.0  # long ago
    assert (await service.open_producer(ANONYMOUS))[0] >= first + limits.PRODUCER_ID_BLOCK
