"""Archive holds on a real broker: retention waits, the disk runs short, and an old group is noticed."""

from __future__ import annotations

import pytest

from lanner.calls import ANONYMOUS
from lanner.errors import GroupExpired, StorageFull, TopicFull
from lanner.server import Server
from tests.callers import Here
from tests.integration.test_service import publish, server, service

__all__ = ["server", "service"]

TOPIC = "orders"
KEPT = {"partitions": 1, "retention_ms": 1, "hold_for": ["archive"]}


async def first_offset(service: Here) -> int:
    return (await service.topic(ANONYMOUS, TOPIC)).partitions[0].first_offset


async def trimmed(server: Server, service: Here) -> None:
    """Until retention has taken everything."""
    partition = server.node.engine.replica(service.find_topic(TOPIC).set_ids[0]).partition
    await server.node.waiting.until(lambda: partition.first_offset == partition.end_offset, 10_000)


async def test_retention_waits_until_the_archive_has_read(server: Server, service: Here) -> None:
    await service.create_topic(ANONYMOUS, TOPIC, KEPT)
    await publish(service, TOPIC, "a", "b", "c")
    await service.commit(ANONYMOUS, TOPIC, "archive", {0: 0})
    (hold,) = (await service.topic(ANONYMOUS, TOPIC)).partitions[0].holds
    assert (hold.group, hold.offset, hold.behind) == ("archive", 0, 3) and hold.held_bytes > 0
    await publish(service, TOPIC, "d")  # a decision later, it is all there
    await service.commit(ANONYMOUS, TOPIC, "other", {0: 4})
    assert await first_offset(service) == 0
    await service.commit(ANONYMOUS, TOPIC, "archive", {0: 4})
    await trimmed(server, service)
    fetched = await service.fetch(ANONYMOUS, TOPIC, 0, 0)
    assert (fetched.holes, fetched.next_offset) == ([(0, 4)], 4)


async def test_on_a_short_disk_publishing_gives_way_or_the_hold_does(server: Server, service: Here) -> None:
    await service.create_topic(ANONYMOUS, TOPIC, KEPT)
    await publish(service, TOPIC, "a")
    room = server.node.saving.room
    room.look(free=0, total=1, reserve=1)
    server.node.engine.timers.note_disk(room.is_full, server.node.engine.replicas.values())
    with pytest.raises(StorageFull):
        await publish(service, TOPIC, "b")
    await service.commit(ANONYMOUS, TOPIC, "other", {0: 1})  # a decision
    assert await first_offset(service) == 0
    await service.alter_topic(ANONYMOUS, TOPIC, {"hold_full": "release"})
    await trimmed(server, service)


async def test_a_topic_that_is_full_of_what_is_held_says_for_whom(service: Here) -> None:
    settings = {**KEPT, "retention_ms": 0, "max_bytes": 1_000, "full_policy": "drop_oldest"}
    await service.create_topic(ANONYMOUS, TOPIC, settings)
    with pytest.raises(TopicFull, match="held for archive"):
        for _ in range(20):
            await publish(service, TOPIC, "x" * 100)
    await service.alter_topic(ANONYMOUS, TOPIC, {"hold_full": "release"})
    for _ in range(20):
        await publish(service, TOPIC, "x" * 100)


async def test_a_reader_whose_group_is_gone_is_told_both_ways_on(service: Here) -> None:
    await service.create_topic(ANONYMOUS, TOPIC, {"partitions": 1})
    await publish(service, TOPIC, "a")
    await service.commit(ANONYMOUS, TOPIC, "g", {0: 1})
    await service.drop_group(ANONYMOUS, TOPIC, "g")
    with pytest.raises(GroupExpired, match=r"earliest.*latest"):
        await service.commit(ANONYMOUS, TOPIC, "g", {0: 1}, known=[0])
    assert await service.committed(ANONYMOUS, TOPIC, "g") == {}
