"""Stream use: fetch, peek, commit, offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from lanner import limits
from lanner.broker.desks.desk import Desk
from lanner.broker.replicas.replica import Replica
from lanner.calls import Answer
from lanner.calls.merging import chosen_partitions
from lanner.cluster import Topic
from lanner.forwarding.checks import check_number, check_partition
from lanner.model import LANES, Message, check_name
from lanner.partition import CommitOffset, Stretch, batch_start
from lanner.wire.messages import (
    Commit,
    Committed,
    CommittedReply,
    Empty,
    Fetch,
    Fetched,
    FetchedBatch,
    Offsets,
    OffsetsReply,
    PartitionOffsets,
    Peek,
    Peeked,
    PeekedMessage,
)


class _ReadStretch(NamedTuple):
    """What came of reading a stretch."""

    batches: list[FetchedBatch]
    bulk: Sequence[memoryview]
    damaged: list[tuple[int, int]]
    holes: list[tuple[int, int]]
    next_offset: int


class Streams(Desk):
    """What readers call."""

    async def fetch(self, call: Fetch) -> Answer[Fetched]:
        """Batches from an offset on, as their producers encoded them; with `lanes` only those of some priorities.

        Where the caller allows a `follower` this broker answers, if it holds a copy, with what that has applied: all of
        it is committed. It does not wait, and leaves the rest to the leader.
        """
        found = self._topic(call.topic, call.incarnation)
        replica = self._reading_replica(found, call.partition, call.follower)
        check_number("offset", call.offset, 0, limits.OFFSET_MAX)
        check_number("max_bytes", call.max_bytes, 1, limits.FETCH_BYTES_MAX)
        check_number("wait_ms", call.wait_ms, 0, limits.POLL_WAIT_MS_MAX)
        check_number("lanes", call.lanes, 0, (1 << LANES) - 1)
        if call.member_id:
            await self._admit_reader(found, replica, call)
        led = replica.leads
        machine = replica.partition
        stretch = machine.stretch(call.offset, call.max_bytes, call.lanes)
        if led:
            stretch = await self._await_stretch(found, replica, stretch, call)
        read = await self._read_stretch(found, call.partition, replica, stretch, led)
        self.fetched_bytes["leader" if led else "follower"] += sum(map(len, read.bulk))
        next_offset = read.next_offset
        if led and next_offset > machine.end_offset:
            next_offset = machine.end_offset
        control = Fetched(
            machine.first_offset,
            machine.end_offset,
            next_offset,
            read.batches,
            found.incarnation,
            read.damaged,
            call.lanes,
            read.holes,
            not led,
            self._clock.now_ms(),
        )
        return Answer(control, read.bulk)

    async def _admit_reader(self, topic: Topic, replica: Replica, call: Fetch) -> None:
        """Refuse a member that does not have the partition. Nothing is written: what it reads cannot change."""
        check_name(call.group, "group")
        self._fencing.hear(call.group, call.member_id)
        fence = await self._fencing.fence(call, topic, call.partition)
        self._fencing.check(call, call.partition, replica, fence)

    def _reading_replica(self, topic: Topic, partition: int, follower: bool) -> Replica:
        """The leader's, or a follower's where that is allowed; one that no longer belongs to the set is neither."""
        if follower:
            check_partition(topic, partition)
            set_id = topic.set_ids[partition]
            replica = self._engine.replicas.get(set_id)
            members = self._engine.cluster.sets.get(set_id)
            if replica is not None and not replica.closed and members is not None and self.node_id in members.nodes:
                return replica
        return self._replica(topic, partition)

    async def _await_stretch(self, topic: Topic, replica: Replica, stretch: Stretch, call: Fetch) -> Stretch:
        """Go on from the end of the log while nothing was found, until something is or the wait is over."""
        deadline = self._loop.time() + call.wait_ms / 1_000
        machine = replica.partition
        while not stretch.refs and not stretch.holes and stretch.next_offset >= machine.end_offset:
            left = deadline - self._loop.time()
            if left <= 0 or self._readiness.draining or replica.closed:
                break
            with self._fencing.present(call.group, call.member_id):
                await self._questions.news([replica], left, call.group if call.member_id else "")
            if not replica.leads and not replica.closed:
                raise self._routes.not_leader(topic, call.partition)
            if call.member_id:
                await self._admit_reader(topic, replica, call)
            stretch = machine.stretch(stretch.next_offset, call.max_bytes, call.lanes)
        return stretch

    async def _read_stretch(
        self, topic: Topic, partition: int, replica: Replica, stretch: Stretch, led: bool
    ) -> _ReadStretch:
        """The batches themselves. What a follower cannot read is left to the leader: only that knows why."""
        payloads = await self._reader.payloads([(replica.set_id, ref.index) for ref in stretch.refs])
        batches: list[FetchedBatch] = []
        bulk: list[memoryview] = []
        damaged: list[tuple[int, int]] = []
        holes = list(stretch.holes)
        for ref, payload in zip(stretch.refs, payloads, strict=True):
            if payload is not None:
                data = memoryview(payload)[batch_start(payload) :]
                batches.append(FetchedBatch(ref.base_offset, ref.count, ref.append_ms, len(data)))
                bulk.append(data)
            elif not led:
                before = [hole for hole in holes if hole[0] < ref.base_offset]
                return _ReadStretch(batches, bulk, damaged, before, ref.base_offset)
            elif self._engine.damages.holds(replica.set_id, ref.index):
                damaged.append((ref.base_offset, ref.base_offset + ref.count))
            elif replica.partition.batch_at(ref.base_offset) is not None:
                raise self._routes.not_leader(topic, partition)  # its place was taken by another copy meanwhile
            else:
                holes.append((ref.base_offset, ref.base_offset + ref.count))
        return _ReadStretch(batches, bulk, damaged, sorted(holes), stretch.next_offset)

    async def peek(self, call: Peek) -> Answer[Peeked]:
        """Look without leasing: the most urgent first among what is at or after the offset; a page of bounded bytes."""
        check_number("offset", call.offset, 0, limits.OFFSET_MAX)
        check_number("batch", call.max_messages, 1, limits.LIST_ITEMS_MAX)
        replicas = self._replicas(self._topic(call.topic), chosen_partitions(call))
        room_bytes = min(call.max_bytes, limits.LIST_BYTES_MAX)
        page = await self._pages.look(call.topic, replicas, call.offset, call.max_messages, room_bytes, call.after)
        return Answer(Peeked([_peeked(message) for message in page], page.next))

    async def commit(self, call: Commit) -> Answer[Empty]:
        """Record how far a stream group has read."""
        check_name(call.group, "group")
        self._fencing.hear(call.group, call.member_id)
        found = self._topic(call.topic, call.incarnation)
        for partition, offset in call.offsets.items():
            self._replica(found, partition)
            check_number("offset", offset, 0, limits.OFFSET_MAX)
        known = call.known or ()  # where the group has committed before
        commits = {
            partition: CommitOffset(
                call.group,
                offset,
                call.reader,
                call.sequence,
                partition in known,
                await self._fencing.fence(call, found, partition),
                call.metadata.get(partition, b""),
            )
            for partition, offset in call.offsets.items()
        }
        await asyncio.gather(*(self._ask(found, partition, commit) for partition, commit in commits.items()))
        return Answer(Empty())

    async def committed(self, call: Committed) -> Answer[CommittedReply]:
        check_name(call.group, "group")
        offsets: dict[int, int] = {}
        metadata: dict[int, bytes] = {}
        for number, replica in self._replicas(self._topic(call.topic), call.partitions):
            offset = replica.partition.committed(call.group)
            if offset is not None:
                offsets[number] = offset
                if noted := replica.partition.commit_metadata(call.group):
                    metadata[number] = noted
        return Answer(CommittedReply(offsets, metadata))

    async def offsets(self, call: Offsets) -> Answer[OffsetsReply]:
        """Where each partition begins and ends, what it held at a time, and how far so many bytes reach."""
        check_number("time_ms", call.time_ms, -1, limits.TIME_MS_MAX)
        found = self._topic(call.topic)
        starts = call.starts or {}
        results = []
        for number, replica in self._replicas(found, call.partitions):
            machine = replica.partition
            at_time = machine.offset_at_time(call.time_ms) if call.time_ms >= 0 else -1
            at_bytes = -1
            if number in starts:
                at_bytes = machine.offset_after_bytes(starts[number], call.max_bytes, call.lanes)
            results.append(PartitionOffsets(number, machine.first_offset, machine.end_offset, at_time, at_bytes))
        return Answer(OffsetsReply(results, found.incarnation))


def _peeked(message: Message) -> PeekedMessage:
    return PeekedMessage(
        message.partition,
        message.offset,
        message.timestamp_ms,
        message.priority,
        message.value,
        message.key,
        dict(message.headers),
        message.producer_timestamp_ms,
        message.deliver_at_ms,
        message.expires_at_ms,
    )
