"""Stream use: fetch, peek, commit, offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from lanner import limits
from lanner.broker.desks.calls import (
    ByteCount,
    FetchedBatch,
    FetchResult,
    Identity,
    OffsetsResult,
)
from lanner.broker.desks.checks import check_number
from lanner.broker.desks.desk import Desk
from lanner.broker.replicas.replica import Replica
from lanner.cluster import Topic
from lanner.model import LANES, Looked, LookPlace, check_name
from lanner.partition import CommitOffset, Stretch, batch_start


class _ReadStretch(NamedTuple):
    """What came of reading a stretch."""

    batches: Sequence[FetchedBatch]
    damaged: Sequence[tuple[int, int]]
    holes: Sequence[tuple[int, int]]
    next_offset: int


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
        lanes: int = 0,
        follower: bool = False,
    ) -> FetchResult:
        """Batches from an offset on, as their producers encoded them; with `lanes` only those of some priorities.

        Where the caller allows a `follower` this broker answers, if it holds a copy, with what that has applied: all of
        it is committed. It does not wait, and leaves the rest to the leader.
        """
        self._admit(identity, "consume", topic)
        found = self._topic(topic, incarnation)
        replica = self._reading_replica(found, partition, follower)
        check_number("offset", offset, 0, limits.OFFSET_MAX)
        check_number("max_bytes", max_bytes, 1, limits.FETCH_BYTES_MAX)
        check_number("wait_ms", wait_ms, 0, limits.POLL_WAIT_MS_MAX)
        check_number("lanes", lanes, 0, (1 << LANES) - 1)
        led = replica.leads
        machine = replica.partition
        stretch = machine.stretch(offset, max_bytes, lanes)
        if led:
            stretch = await self._await_stretch(found, partition, replica, stretch, max_bytes, wait_ms, lanes)
        read = await self._read_stretch(found, partition, replica, stretch, led)
        self.fetched_bytes["leader" if led else "follower"] += sum(len(one.data) for one in read.batches)
        next_offset = read.next_offset
        if led and next_offset > machine.end_offset:
            next_offset = machine.end_offset
        return FetchResult(
            machine.first_offset,
            machine.end_offset,
            next_offset,
            read.batches,
            found.incarnation,
            read.damaged,
            lanes,
            read.holes,
            not led,
            self._node.now_ms(),
        )

    def _reading_replica(self, topic: Topic, partition: int, follower: bool) -> Replica:
        """The leader's, or a follower's where that is allowed; one that no longer belongs to the set is neither."""
        if follower:
            self._check_partition(topic, partition)
            set_id = topic.set_ids[partition]
            replica = self._engine.replicas.get(set_id)
            members = self._engine.cluster.sets.get(set_id)
            if replica is not None and not replica.closed and members is not None and self.node_id in members.nodes:
                return replica
        return self._replica(topic, partition)

    async def _await_stretch(
        self,
        topic: Topic,
        partition: int,
        replica: Replica,
        stretch: Stretch,
        max_bytes: int,
        wait_ms: int,
        lanes: int,
    ) -> Stretch:
        """Go on from the end of the log while nothing was found, until something is or the wait is over."""
        deadline = self._loop.time() + wait_ms / 1_000
        machine = replica.partition
        while not stretch.refs and not stretch.holes and stretch.next_offset >= machine.end_offset:
            left = deadline - self._loop.time()
            if left <= 0 or self._draining or replica.closed:
                break
            await self._questions.news([replica], left)
            if not replica.leads and not replica.closed:
                raise self._routes.not_leader(topic, partition)
            stretch = machine.stretch(stretch.next_offset, max_bytes, lanes)
        return stretch

    async def _read_stretch(
        self, topic: Topic, partition: int, replica: Replica, stretch: Stretch, led: bool
    ) -> _ReadStretch:
        """The batches themselves. What a follower cannot read is left to the leader: only that knows why."""
        payloads = await self._node.payloads([(replica.set_id, ref.index) for ref in stretch.refs])
        batches: list[FetchedBatch] = []
        damaged: list[tuple[int, int]] = []
        holes = list(stretch.holes)
        for ref, payload in zip(stretch.refs, payloads, strict=True):
            if payload is not None:
                data = memoryview(payload)[batch_start(payload) :]
                batches.append(FetchedBatch(ref.base_offset, ref.count, ref.append_ms, data))
            elif not led:
                before = [hole for hole in holes if hole[0] < ref.base_offset]
                return _ReadStretch(batches, damaged, before, ref.base_offset)
            elif self._engine.damages.holds(replica.set_id, ref.index):
                damaged.append((ref.base_offset, ref.base_offset + ref.count))
            elif replica.partition.batch_at(ref.base_offset) is not None:
                raise self._routes.not_leader(topic, partition)  # its place was taken by another copy meanwhile
            else:
                holes.append((ref.base_offset, ref.base_offset + ref.count))
        return _ReadStretch(batches, damaged, sorted(holes), stretch.next_offset)

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
        known: Collection[int] | None = None,  # partitions where the group has committed before
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
                self._ask(
                    found,
                    partition,
                    CommitOffset(group, offset, reader, sequence, known is not None and partition in known),
                )
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
        self,
        identity: Identity,
        topic: str,
        time_ms: int = -1,
        partitions: Sequence[int] | None = None,
        counting: ByteCount | None = None,
    ) -> tuple[int, list[OffsetsResult]]:
        """Where each partition begins and ends, what it held at a time, and how far so many bytes reach."""
        self._admit(identity, "consume", topic)
        check_number("time_ms", time_ms, -1, limits.TIME_MS_MAX)
        found = self._topic(topic)
        results = []
        for number, replica in self._replicas(found, partitions):
            machine = replica.partition
            at_time = machine.offset_at_time(time_ms) if time_ms >= 0 else -1
            at_bytes = -1
            if counting is not None and number in counting.starts:
                start = counting.starts[number]
                at_bytes = machine.offset_after_bytes(start, counting.max_bytes, counting.lanes)
            results.append(OffsetsResult(number, machine.first_offset, machine.end_offset, at_time, at_bytes))
        return found.incarnation, results
