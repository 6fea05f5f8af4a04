"""Reads from brokers that do not lead: what they have applied, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lanner import batch
from lanner.calls import ANONYMOUS
from lanner.errors import NotLeader, PartitionNotFound, StaleIncarnation
from lanner.wire.messages import Publish
from tests.unit.broker.offices import Office, Offices, opened


async def publish(offices: Offices, set_id: int, *values: bytes, priority: int = 4) -> None:
    service = offices.leader(set_id).service
    await service.publish(ANONYMOUS, Publish("orders", 0), batch.encode(list(values), priority=priority))


def followers(offices: Offices, set_id: int) -> list[Office]:
    leader = offices.leader(set_id)
    return [office for office in offices.by_name.values() if office is not leader]


def values(fetched: Any) -> list[bytes]:
    return [value for one in fetched.batches for value in batch.decode(one.data).values()]


async def test_a_follower_answers_where_that_is_allowed_and_says_that_it_is_one() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        await publish(offices, set_id, b"one", b"two")
        everybody = list(offices.by_name.values())
        offices.flock.until(lambda: all(one.engine.replicas[set_id].partition.end_offset == 2 for one in everybody))
        for office in followers(offices, set_id):
            with pytest.raises(NotLeader):
                await office.here.fetch(ANONYMOUS, "orders", 0, 0)
            fetched = await office.here.fetch(ANONYMOUS, "orders", 0, 0, follower=True)
            assert (values(fetched), fetched.follower, fetched.next_offset) == ([b"one", b"two"], True, 2)
            assert fetched.time_ms == offices.flock.now_ms
        at_leader = await offices.leader(set_id).here.fetch(ANONYMOUS, "orders", 0, 0, follower=True)
        assert (values(at_leader), at_leader.follower) == ([b"one", b"two"], False)


async def test_a_follower_that_is_behind_answers_what_it_has_and_never_moves_a_reader_back() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        await publish(offices, set_id, b"one")
        everybody = list(offices.by_name.values())
        offices.flock.until(lambda: all(one.engine.replicas[set_id].partition.end_offset == 1 for one in everybody))
        behind = followers(offices, set_id)[0]
        offices.flock.cut.add(behind.node_id)
        await publish(offices, set_id, b"two")
        fetched = await behind.here.fetch(ANONYMOUS, "orders", 0, 0, follower=True)
        assert (values(fetched), fetched.end_offset, fetched.next_offset) == ([b"one"], 1, 1)
        beyond = await behind.here.fetch(ANONYMOUS, "orders", 0, 2, wait_ms=60_000, follower=True)
        assert (values(beyond), beyond.next_offset, beyond.holes) == ([], 2, [])


async def test_what_a_follower_cannot_read_is_left_to_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        for value in (b"one", b"two", b"three"):
            await publish(offices, set_id, value)
        everybody = list(offices.by_name.values())
        offices.flock.until(lambda: all(one.engine.replicas[set_id].partition.end_offset == 3 for one in everybody))
        office = followers(offices, set_id)[0]
        read = office.payloads

        async def payloads(wanted: Any) -> list[bytes | None]:
            found = await read(wanted)
            return [found[0], *(None for _ in found[1:])]

        monkeypatch.setattr(office, "payloads", payloads)
        fetched = await office.here.fetch(ANONYMOUS, "orders", 0, 0, follower=True)
        assert (values(fetched), fetched.next_offset, fetched.holes) == ([b"one"], 1, [])


async def test_a_read_from_a_follower_checks_the_topic_and_whether_it_belongs_to_the_set() -> None:
    async with opened("abcd") as offices:
        (set_id,) = offices.topic("orders", 1)
        await publish(offices, set_id, b"one")
        holders = offices.flock.members(set_id)
        member = next(one for one in followers(offices, set_id) if one.name in holders or one.node_id in holders)
        stranger = next(one for one in offices.by_name.values() if set_id not in one.engine.replicas)
        with pytest.raises(StaleIncarnation):
            await member.here.fetch(ANONYMOUS, "orders", 0, 0, incarnation=99, follower=True)
        with pytest.raises(PartitionNotFound):
            await member.here.fetch(ANONYMOUS, "orders", 7, 0, follower=True)
        with pytest.raises(NotLeader):
            await stranger.here.fetch(ANONYMOUS, "orders", 0, 0, follower=True)
        stranger.engine.replicas[set_id] = member.engine.replicas[set_id]  # it was moved away, and is still there
        with pytest.raises(NotLeader):
            await stranger.here.fetch(ANONYMOUS, "orders", 0, 0, follower=True)
        del stranger.engine.replicas[set_id]


async def test_other_lanes_are_passed_by_while_a_fetch_waits() -> None:
    async with opened() as offices:
        (set_id,) = offices.topic("orders", 1)
        await publish(offices, set_id, b"low", priority=0)
        service = offices.leader(set_id).here
        nothing = await service.fetch(ANONYMOUS, "orders", 0, 0, lanes=1 << 9)
        assert (nothing.batches, nothing.holes, nothing.next_offset, nothing.lanes) == ([], [], 1, 1 << 9)
        await publish(offices, set_id, b"high", priority=9)
        found = await service.fetch(ANONYMOUS, "orders", 0, 0, lanes=1 << 9)
        assert (values(found), found.next_offset) == ([b"high"], 2)
        asked = next(office for office in offices.by_name.values() if office is not offices.leader(set_id))
        forwarded = await asked.anywhere.fetch(ANONYMOUS, "orders", 0, 0, lanes=1 << 9)
        assert values(forwarded) == [b"high"]
        waiting = asyncio.create_task(service.fetch(ANONYMOUS, "orders", 0, 2, wait_ms=60_000, lanes=1 << 9))
        await publish(offices, set_id, b"low again", priority=0)
        await publish(offices, set_id, b"high again", priority=9)
        found = await waiting
        assert (values(found), found.next_offset) == ([b"high again"], 4)
