"""Stream use: fetch, peek, commit, offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from lanner import limits
from lanner.broker.desks.calls import (
    FetchedBatch,
    FetchResult,
    Identity,
    OffsetsResult,
)
from lanner.broker.desks.checks import check_number
from lanner.broker.desks.desk import Desk
from lanner.model import Looked, LookPlace, check_name
from lanner.partition import APPEND_PREFIX_BYTES, CommitOffset


class Streams(Desk):
    """What readers call."""

    async def fetch(
        self,
        identity: Identity,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = limits.MIB,
        wait_ms: int = 0,
        incarnation: int = 0,
    ) -> FetchResult:
        """Batches from an offset on, as their producers encoded them."""
        self._admit(identity, "consume", topic)
        found = self._topic(topic, incarnation)
        replica = self._replica(found, partition)
        check_number("offset", offset, 0, limits.OFFSET_MAX)
        check_number("max_bytes", max_bytes, 1, limits.FETCH_BYTES_MAX)
        check_number("wait_ms", wait_ms, 0, limits.POLL_WAIT_MS_MAX)
        if offset >= replica.partition.end_offset and wait_ms and not self._draining:
            deadline = self._loop.time() + wait_ms / 1_000
            while offset >= replica.partition.end_offset and not self._draining and not replica.closed:
                left = deadline - self._loop.time()
                if left <= 0:
                    break
                await self._questions.news([replica], left)
                if not replica.leads and not replica.closed:
                    raise self._routes.not_leader(found, partition)
        machine = replica.partition
        refs = machine.batches_from(offset, max_bytes)
        payloads = await self._node.payloads([(replica.set_id, ref.index) for ref in refs])
        batches: list[FetchedBatch] = []
        damaged: list[tuple[int, int]] = []
        next_offset = offset
        for ref, payload in zip(refs, payloads, strict=True):
            next_offset = ref.base_offset + ref.count
            if payload is not None:
                data = memoryview(payload)[APPEND_PREFIX_BYTES:]
                batches.append(FetchedBatch(ref.base_offset, ref.count, ref.append_ms, data))
            elif self._node.engine.damages.holds(replica.set_id, ref.index):
                damaged.append((ref.base_offset, next_offset))
        if not refs:
            next_offset = max(offset, machine.first_offset) if offset < machine.end_offset else machine.end_offset
        return FetchResult(machine.first_offset, machine.end_offset, next_offset, batches, found.incarnation, damaged)

    async def peek(
        self,
        identity: Identity,
        topic: str,
        partitions: Sequence[int] | None,
        offset: int,
        max_messages: int,
        max_bytes: int = limits.LIST_BYTES_MAX,
        after: LookPlace | None = None,
    ) -> Looked:
        """Look without leasing: the most urgent first among what is at or after the offset; a page of bounded bytes."""
        self._admit(identity, "consume", topic)
        check_number("offset", offset, 0, limits.OFFSET_MAX)
        check_number("batch", max_messages, 1, limits.LIST_ITEMS_MAX)
        found = self._topic(topic)
        replicas = self._replicas(found, partitions)
        room_bytes = min(max_bytes, limits.LIST_BYTES_MAX)
        return await self._pages.look(topic, replicas, offset, max_messages, room_bytes, after)

    async def commit(
        self,
        identity: Identity,
        topic: str,
        group: str,
        offsets: Mapping[int, int],
        reader: str = "",
        sequence: int = -1,  # of this reader's commits, rising; repeated, it does nothing
    ) -> None:
        """Record how far a stream group has read."""
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        found = self._topic(topic)
        for partition, offset in offsets.items():
            self._replica(found, partition)
            check_number("offset", offset, 0, limits.OFFSET_MAX)
        await asyncio.gather(
            *(
                self._ask(found, partition, CommitOffset(group, offset, reader, sequence))
                for partition, offset in offsets.items()
            )
        )

    async def committed(
        self, identity: Identity, topic: str, group: str, partitions: Sequence[int] | None = None
    ) -> dict[int, int]:
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        offsets: dict[int, int] = {}
        for number, replica in self._replicas(self._topic(topic), partitions):
            offset = replica.partition.committed(group)
            if offset is not None:
                offsets[number] = offset
        return offsets

    async def offsets(
        self, identity: Identity, topic: str, time_ms: int = -1, partitions: Sequence[int] | None = None
    ) -> tuple[int, list[OffsetsResult]]:
        """Where each partition begins and ends, and what it held at a time."""
        self._admit(identity, "consume", topic)
        check_number("time_ms", time_ms, -1, limits.TIME_MS_MAX)
        found = self._topic(topic)
        results = []
        for number, replica in self._replicas(found, partitions):
            machine = replica.partition
            at_time = machine.offset_at_time(time_ms) if time_ms >= 0 else -1
            results.append(OffsetsResult(number, machine.first_offset, machine.end_offset, at_time))
        return found.incarnation, results
