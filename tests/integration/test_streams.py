"""Streams of three real brokers: from followers, of some priorities, since a time, of dead letters, over failovers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import lanner
from lanner.client.dead_reader import DeadHole
from lanner.errors import GroupNotFound, StaleIncarnation
from lanner.wire.messages import Fetch
from tests.integration.test_client_cluster import TOPIC, Trio


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    trio = Trio(tmp_path)
    await trio.start()
    yield trio
    await trio.stop()


async def fetches(trio: Trio) -> dict[str, list[bool]]:
    """Whether each FETCH that a broker answers from now on is answered as a follower."""
    seen: dict[str, list[bool]] = {name: [] for name in trio.servers}
    for name, server in trio.servers.items():
        fetch = server.service.handlers[Fetch]

        async def watched(call: Fetch, fetch: Any = fetch, name: str = name) -> Any:
            found = await fetch(call)
            seen[name].append(found.control.follower)
            return found

        server.service.handlers = {**server.service.handlers, Fetch: watched}
    return seen


async def read(queue: lanner.Queue, **options: Any) -> list[bytes]:
    async with asyncio.timeout(30), queue.reader(TOPIC, until_end=True, **options) as reader:
        return [message.value async for message in reader]


async def test_a_stream_from_followers_is_whole_while_leaders_move(trio: Trio) -> None:
    async with lanner.connect(trio.address) as queue:
        await queue.admin.create_topic(TOPIC, partitions=1)
        values = [b"%d" % number for number in range(3_000)]
        for start in range(0, 3_000, 100):
            await queue.publish_many(TOPIC, values[start : start + 100])
        seen = await fetches(trio)
        for name in trio.names:  # so that the client is connected to all of them
            queue._brokers.to(trio.servers[name].node.node_id)
        async with asyncio.timeout(10):
            while queue._routing.follower(TOPIC, 0) is None:
                await asyncio.sleep(0.01)
        found = []
        async with asyncio.timeout(30), queue.reader(TOPIC, from_followers=True, page_bytes=1) as reader:
            for number in range(3_000):
                found.append((await anext(reader)).value)
                if number % 700 == 699:
                    trio.move(0)
            await queue.publish(TOPIC, b"last")
            found.append((await anext(reader)).value)  # the followers end before it, or have it: it comes
        assert found == [*values, b"last"]
        assert any(True in answered for answered in seen.values()), "no follower was read"
        assert any(False in answered for answered in seen.values()), "no leader was read"


async def test_only_some_priorities_and_only_from_a_time_on(trio: Trio) -> None:
    async with lanner.connect(trio.address) as queue:
        await queue.admin.create_topic(TOPIC, partitions=1)
        sent = []
        for number in range(30):
            value, priority = b"%d" % number, (0, 4, 9)[number % 3]
            sent.append((value, priority, (await queue.publish(TOPIC, value, priority=priority)).timestamp_ms))
        assert await read(queue, priorities=["high", "low"]) == [value for value, priority, _ in sent if priority != 4]
        for ms in (sent[14][2], sent[14][2] + 1, sent[29][2] + 1):
            moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
            expected = [value for value, priority, sent_ms in sent if priority == 9 and sent_ms >= ms]
            assert await read(queue, priorities=9, start=moment) == expected


async def kill_leader(trio: Trio) -> None:
    """The broker that leads the partition goes, and comes back."""
    name = next(
        name
        for name, server in trio.servers.items()
        if server.node.engine.replicas[server.service.find_topic(TOPIC).set_ids[0]].leads
    )
    await trio.restart(name, away_s=0.1)


async def reject(queue: lanner.Queue, count: int, reason: str) -> None:
    async with queue.consumer(TOPIC, "billing") as consumer:
        for _ in range(count):
            await (await anext(consumer)).reject(reason)


async def test_dead_letters_are_a_stream_that_survives_the_leader(trio: Trio) -> None:
    async with lanner.connect(trio.address) as queue:
        await queue.admin.create_topic(TOPIC, partitions=1)
        await queue.publish_many(TOPIC, [b"a", b"b", b"c", b"d"], headers=[{"h": b"1"}] * 4, keys=[b"k"] * 4)
        with pytest.raises(GroupNotFound):
            async with queue.dead_letter_reader(TOPIC, "billing"):
                pass
        await reject(queue, 3, "first")
        async with asyncio.timeout(60), queue.dead_letter_reader(TOPIC, "billing") as reader:
            letters = [await anext(reader) for _ in range(2)]
            assert [(one.number, one.offset, one.attempts, one.reason) for one in letters] == [
                (0, 0, 1, "first"),
                (1, 1, 1, "first"),
            ]
            message = letters[0].message
            assert message is not None
            assert (message.value, message.key, message.headers) == (b"a", b"k", {"h": b"1"})
            await kill_leader(trio)
            assert (await anext(reader)).number == 2
            waiting = asyncio.ensure_future(anext(reader))
            await queue.admin.redrive(TOPIC, "billing", partition=0, offsets=[1])
            await reject(queue, 1, "second")
            again = await waiting
            assert (again.number, again.offset, again.reason) == (3, 1, "second")
            position = reader.positions()
        await queue.admin.discard(TOPIC, "billing", partition=0, offsets=[0])
        await kill_leader(trio)
        await reject(queue, 1, "third")
        async with queue.dead_letter_reader(TOPIC, "billing", start=position, until_end=True) as reader:
            assert [(one.number, one.offset) async for one in reader] == [(4, 3)]
        async with queue.dead_letter_reader(TOPIC, "billing", start={0: 0}, until_end=True) as reader:
            assert [(one.number, one.offset) async for one in reader] == [(2, 2), (3, 1), (4, 3)]
            assert list(reader.holes) == [DeadHole(0, 0, 2)]


async def test_a_group_that_was_dropped_and_made_again_is_not_taken_for_the_old_one(trio: Trio) -> None:
    async with lanner.connect(trio.address) as queue:
        await queue.admin.create_topic(TOPIC, partitions=1)
        await queue.publish_many(TOPIC, [b"a", b"b"])
        await reject(queue, 1, "bad")
        async with asyncio.timeout(30), queue.dead_letter_reader(TOPIC, "billing") as reader:
            await anext(reader)
            await queue.admin.drop_group(TOPIC, "billing")
            await reject(queue, 2, "bad")
            with pytest.raises(StaleIncarnation, match="dropped and made again"):
                await anext(reader)
