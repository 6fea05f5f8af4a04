"""The use-cases of a broker: the only door that the APIs call.

Every call names who calls, passes one authorisation and limits check, and returns a typed value or raises an error of
the catalogue. Nothing here knows of HTTP, frames or gRPC; nothing here touches a disk.

A *poll over several partitions* is claimed by one partition's decision at a time. Each step goes to the partition
with the most urgent deliverable lane, and takes from it only what is at least as urgent as the best of the others,
so that strict priority holds over the partitions of one broker too. A poll that finds nothing watches its partitions
and looks again when one of them says that something became deliverable; nothing spins.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from lanner import batch, limits
from lanner.broker.calls import (
    DeadLetterResult,
    DeadLettersResult,
    Delivered,
    FetchedBatch,
    FetchResult,
    GroupPartitionResult,
    GroupResult,
    Identity,
    LeasedBatch,
    NewMessage,
    OffsetsResult,
    PartitionStateResult,
    PollResult,
    PublishResult,
    Range,
    SettleItem,
    SettleResult,
    Stored,
    TopicResult,
)
from lanner.broker.delivery import messages_of, slice_for
from lanner.broker.engine import CLUSTER_SET
from lanner.broker.node import Node
from lanner.broker.publishing import Router, group_messages
from lanner.broker.replica import WAIT, Replica
from lanner.cluster import (
    Topic,
    encode_allocate_producers,
    encode_alter_topic,
    encode_create_topic,
    encode_delete_topic,
)
from lanner.errors import (
    GroupNotFound,
    LannerError,
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
from lanner.model import FullPolicy, Message, TopicSettings, check_name
from lanner.partition import (
    APPEND_PREFIX_BYTES,
    Appended,
    CommitOffset,
    Discard,
    DropGroup,
    Poll,
    Redrive,
    Release,
    Seek,
    Settle,
    encode_append,
)

Result = TypeVar("Result")
_OVERLOADED_RETRY_MS: Final = 100
_FULL_RETRY_MS: Final = 1_000


class Service:
    """What a broker does for its callers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._engine = node.engine
        self._loop = asyncio.get_running_loop()
        self._router = Router()
        self._producer_ids: Iterable[int] = iter(())
        self._cluster_changes = asyncio.Lock()
        self._draining = False
        self._polls: set[asyncio.Future[None]] = set()
        self.auto_create = node.settings.auto_create_topics
        self.cluster_id = node.directory.cluster_id
        self.node_id = node.directory.node_id
        self.addresses: dict[str, tuple[str, int]] = {}

    # ------------------------------------------------------------------ state

    @property
    def ready(self) -> bool:
        return not self._draining and not self._node.failed.done() and self._engine.led

    @property
    def healthy(self) -> bool:
        return not self._node.failed.done()

    def drain(self) -> None:
        """Refuse new work and end the long polls, so that the doors can close without cutting anybody off."""
        self._draining = True
        for waiter in list(self._polls):
            if not waiter.done():
                waiter.set_result(None)

    # ------------------------------------------------------------------ one check for every call

    def _admit(self, identity: Identity, _action: str, topic: str | None = None) -> None:
        """Who may do what, and what may be named. Access rules hang here; for now everybody may do everything."""
        if not identity.name:
            raise ValidationError("the call names nobody", field="identity")
        if topic is not None:
            check_name(topic, "topic")
        if self._draining:
            raise ServiceUnavailable("the broker is draining; try another one, or again after its restart")
        if self._node.failed.done():
            raise ServiceUnavailable(f"the broker has stopped: {self._node.failed.result().message}")

    def _topic(self, name: str, incarnation: int = 0) -> Topic:
        topic = self._engine.cluster.topics.get(name)
        if topic is None:
            raise TopicNotFound(f"topic {name!r} does not exist; create it first", topic=name)
        if incarnation and topic.incarnation != incarnation:
            raise StaleIncarnation(f"topic {name!r} was deleted and created again; look it up anew", topic=name)
        return topic

    def _replica(self, topic: Topic, partition: int) -> Replica:
        if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < len(topic.set_ids):
            raise PartitionNotFound(
                f"topic {topic.name!r} has partitions 0 to {len(topic.set_ids) - 1}, not {partition!r}",
                topic=topic.name,
                partition=partition,
            )
        return self._engine.replica(topic.set_ids[partition])

    def _replicas(self, topic: Topic, partitions: Sequence[int] | None) -> list[tuple[int, Replica]]:
        chosen = range(len(topic.set_ids)) if partitions is None else dict.fromkeys(partitions)
        return [(partition, self._replica(topic, partition)) for partition in chosen]

    async def _ask(self, replica: Replica, request: Any) -> tuple[Any, int]:
        """Put a question to a partition; its answer and the index of the decision behind it."""
        future: asyncio.Future[tuple[Any, int]] = self._loop.create_future()

        def answered(answer: Any, index: int) -> None:
            if not future.done():
                future.set_result((answer, index))

        self._engine.ask(replica.set_id, request, answered)
        self._node.kick()
        answer, index = await future
        if isinstance(answer, LannerError):
            raise answer
        return answer, index

    # ------------------------------------------------------------------ publishing

    def publish(
        self, identity: Identity, topic: str, partition: int, data: bytes | memoryview, incarnation: int = 0
    ) -> asyncio.Future[PublishResult]:
        """Append one encoded batch. What is wrong with it is raised at once; the future tells its fate."""
        self._admit(identity, "publish", topic)
        found = self._topic(topic, incarnation)
        replica = self._replica(found, partition)
        header = batch.verify(data)
        self._check_publish(found.settings, replica, header)
        future: asyncio.Future[PublishResult] = self._loop.create_future()

        def applied(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, Appended):
                future.set_result(PublishResult(result.base_offset, result.count, result.append_ms, result.duplicate))
            else:
                future.set_exception(result)

        self._engine.propose(replica.set_id, encode_append(self._node.now_ms(), data), applied)
        self._node.kick()
        return future

    def _check_publish(self, settings: TopicSettings, replica: Replica, header: batch.Header) -> None:
        if self._node.storage_full:
            raise StorageFull(retry_after_ms=_FULL_RETRY_MS)
        if header.length > limits.BATCH_BYTES_MAX:
            raise MessageTooLarge(f"the batch has {header.length} bytes; {limits.BATCH_BYTES_MAX} are allowed")
        if header.count == 1 and header.raw_length > settings.message_bytes_max + limits.KIB:
            raise MessageTooLarge(f"the topic takes messages of up to {settings.message_bytes_max} bytes")
        if header.is_extract:
            raise ValidationError("an extract cannot be published; encode its messages as a batch", field="flags")
        # The least urgent are turned away first: a lane may fill the room up to its share.
        share = 0.7 + 0.3 * header.priority / 9
        if (
            replica.unapplied_bytes + header.length > limits.UNCOMMITTED_BYTES_MAX_PER_PARTITION * share
            or self._engine.unapplied_bytes + header.length > limits.UNCOMMITTED_BYTES_MAX_PER_BROKER * share
        ):
            raise Overloaded(retry_after_ms=_OVERLOADED_RETRY_MS)
        if settings.max_bytes and settings.full_policy is FullPolicy.REJECT:
            partition = replica.partition
            if partition.stored_bytes + header.length > settings.max_bytes:
                raise TopicFull(
                    f"the partition holds {partition.stored_bytes} of {settings.max_bytes} bytes",
                    retry_after_ms=_FULL_RETRY_MS,
                )

    async def publish_messages(self, identity: Identity, topic: str, messages: Sequence[NewMessage]) -> list[Stored]:
        """Publish messages one by one given, as few batches; where each went, in the order given."""
        self._admit(identity, "publish", topic)
        found = self._topic(topic)
        groups = group_messages(messages, len(found.set_ids), found.settings, self._router)
        futures = [self.publish(identity, topic, group.partition, group.data) for group in groups]
        stored: list[Stored | None] = [None] * len(messages)
        for group, outcome in zip(groups, await asyncio.gather(*futures, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            for place, position in enumerate(group.places):
                offset = outcome.base_offset + place
                stored[position] = Stored(group.partition, offset, outcome.append_ms, outcome.duplicate)
        return [place for place in stored if place is not None]

    async def open_producer(self, identity: Identity) -> tuple[int, int]:
        """A producer id that nobody had before. Ids come from the cluster in blocks."""
        self._admit(identity, "publish")
        producer_id = next(iter(self._producer_ids), None)
        while producer_id is None:
            first = await self._change_cluster(encode_allocate_producers(limits.PRODUCER_ID_BLOCK))
            self._producer_ids = itertools.chain(self._producer_ids, range(first, first + limits.PRODUCER_ID_BLOCK))
            producer_id = next(iter(self._producer_ids), None)
        return producer_id, 0

    # ------------------------------------------------------------------ queue use

    async def poll(
        self,
        identity: Identity,
        *,
        topic: str,
        group: str,
        member: str,
        sequence: int = 0,
        partitions: Sequence[int] | None = None,
        max_messages: int = 500,
        max_bytes: int = limits.MIB,
        wait_ms: int = 0,
        lease_ms: int = -1,
        auto_ack: bool = False,
        start: str = "earliest",
    ) -> PollResult:
        """Lease messages, the most urgent first; waits for up to wait_ms when there are none."""
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        _check_poll(member, max_messages, max_bytes, wait_ms, lease_ms, start)
        replicas = self._replicas(self._topic(topic), partitions)
        request = Poll(
            group=group,
            member=member,
            sequence=sequence,
            max_messages=max_messages,
            max_bytes=max_bytes,
            lease_ms=None if lease_ms < 0 else lease_ms,
            auto_ack=auto_ack,
            start=start,
        )
        deadline = self._loop.time() + wait_ms / 1_000
        while True:
            leased, limited = await self._lease(replicas, request)
            if leased:
                return PollResult(await self._read_leases(leased), limited)
            left = deadline - self._loop.time()
            if left <= 0 or self._draining:
                return PollResult((), limited)
            await self._something_deliverable([replica for _, replica in replicas], left)

    async def _lease(self, replicas: list[tuple[int, Replica]], request: Poll) -> tuple[list[Any], bool]:
        """Lease from one partition after the other, the most urgent first, until the poll is full."""
        leased: list[Any] = []
        limited = False
        messages_left, bytes_left = request.max_messages, request.max_bytes
        open_replicas = list(replicas)
        while open_replicas and messages_left > 0 and bytes_left > 0:
            place, min_lane = self._most_urgent(open_replicas, request.group)
            if place is None:
                break
            partition, replica = open_replicas[place]
            step = request._replace(max_messages=messages_left, max_bytes=bytes_left, min_lane=min_lane)
            answer, index = await self._ask(replica, step)
            if answer is WAIT:
                del open_replicas[place]
                continue
            limited = limited or answer.limited
            if answer.leases:
                token = index if answer.token is None else answer.token
                leased.append((partition, replica, token, answer))
            taken = sum(lease.count for lease in answer.leases)
            messages_left -= taken
            bytes_left -= sum(lease.ref.size * lease.count // max(lease.ref.count, 1) for lease in answer.leases)
            if not taken or answer.token is not None:
                del open_replicas[place]
        return leased, limited

    def _most_urgent(self, replicas: list[tuple[int, Replica]], group: str) -> tuple[int | None, int]:
        """Which of these to ask next, and the lane below which another one has something more urgent."""
        now_ms = self._node.now_ms()
        turn, count = self._router.turn(), len(replicas)
        ranked = []
        for place, (_, replica) in enumerate(replicas):
            lane = replica.partition.best_lane(group, now_ms)
            if lane is not None:
                ranked.append((lane, replica.free, (place + turn) % count, place))
        if not ranked:
            return None, 0
        ranked.sort(reverse=True)
        others = ranked[1][0] if len(ranked) > 1 else 0
        return ranked[0][3], others

    async def _something_deliverable(self, replicas: Sequence[Replica], seconds: float) -> None:
        """Sleep until one of these partitions has news, the time is over, or the broker drains."""
        waiter: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        timer = self._loop.call_later(seconds, wake)
        self._polls.add(waiter)
        for replica in replicas:
            replica.watchers.add(wake)
        try:
            await waiter
        finally:
            timer.cancel()
            self._polls.discard(waiter)
            for replica in replicas:
                replica.watchers.discard(wake)

    async def _read_leases(self, leased: list[Any]) -> list[LeasedBatch]:
        """The bytes behind leases, batch by batch, in the order of urgency in which they were leased."""
        grouped: list[tuple[int, int, int, Any, list[Range]]] = []
        wanted: list[tuple[int, int]] = []
        for partition, replica, token, answer in leased:
            last_base = -1
            for lease in answer.leases:
                item = Range(lease.first_offset, lease.count, lease.attempt)
                if lease.ref.base_offset == last_base:
                    grouped[-1][4].append(item)
                    continue
                last_base = lease.ref.base_offset
                grouped.append((partition, token, answer.deadline_ms, lease.ref, [item]))
                wanted.append((replica.set_id, lease.ref.index))
        payloads = await self._node.payloads(wanted)
        batches: list[LeasedBatch] = []
        parts: list[tuple[int, bytes]] = []
        for (partition, token, deadline_ms, ref, ranges), payload in zip(grouped, payloads, strict=True):
            if payload is None:
                continue  # retention took it between the decision and the read
            data = memoryview(payload)[APPEND_PREFIX_BYTES:]
            if sum(item.count for item in ranges) * 2 < ref.count:
                parts.append((len(batches), payload))
            batches.append(
                LeasedBatch(partition, token, ref.base_offset, ref.append_ms, deadline_ms, ref.lane, data, ranges)
            )
        if parts:
            slices = await self._node.in_reader(lambda: [slice_for(batches[place]) for place, _ in parts])
            for (place, _), data_part in zip(parts, slices, strict=True):
                batches[place] = batches[place]._replace(data=data_part)
        return batches

    async def poll_messages(self, identity: Identity, **wanted: Any) -> list[Delivered]:
        """A poll, decoded: for doors whose callers cannot read batches."""
        result = await self.poll(identity, **wanted)
        return messages_of(wanted["topic"], result.batches)

    async def settle(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem]
    ) -> list[SettleResult]:
        """Ack, nack, extend or reject leased messages; each item has its own result."""
        return await self._settle(identity, topic, group, items, Settle)

    async def release(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem]
    ) -> list[SettleResult]:
        """Give back leased messages that nobody saw, without counting a delivery."""
        return await self._settle(identity, topic, group, items, Release)

    async def _settle(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem], kind: Callable[..., Any]
    ) -> list[SettleResult]:
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        if len(items) > limits.SETTLE_RANGES_MAX:
            raise ValidationError(f"{len(items)} ranges in one call; {limits.SETTLE_RANGES_MAX} are allowed")
        found = self._topic(topic)
        by_partition: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            _check_settle(item)
            self._replica(found, item.partition)
            by_partition.setdefault(item.partition, []).append(place)
        results: list[SettleResult] = [SettleResult(0, 0)] * len(items)

        async def settle_in(partition: int, places: list[int]) -> None:
            request = kind(group, [tuple(items[place])[1:] for place in places])
            answers, _ = await self._ask(self._replica(found, partition), request)
            for place, (code, count) in zip(places, answers, strict=True):
                results[place] = SettleResult(code, count)

        if len(by_partition) == 1:
            await settle_in(*next(iter(by_partition.items())))
        else:
            await asyncio.gather(*(settle_in(partition, places) for partition, places in by_partition.items()))
        return results

    # ------------------------------------------------------------------ stream use

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
        _check_number("offset", offset, 0, limits.OFFSET_MAX)
        _check_number("max_bytes", max_bytes, 1, limits.FETCH_BYTES_MAX)
        _check_number("wait_ms", wait_ms, 0, limits.POLL_WAIT_MS_MAX)
        machine = replica.partition
        if offset >= machine.end_offset and wait_ms and not self._draining:
            deadline = self._loop.time() + wait_ms / 1_000
            while offset >= machine.end_offset and not self._draining and not replica.closed:
                left = deadline - self._loop.time()
                if left <= 0:
                    break
                await self._something_deliverable([replica], left)
        refs = machine.batches_from(offset, max_bytes)
        payloads = await self._node.payloads([(replica.set_id, ref.index) for ref in refs])
        batches: list[FetchedBatch] = []
        next_offset = offset
        for ref, payload in zip(refs, payloads, strict=True):
            next_offset = ref.base_offset + ref.count
            if payload is not None:
                data = memoryview(payload)[APPEND_PREFIX_BYTES:]
                batches.append(FetchedBatch(ref.base_offset, ref.count, ref.append_ms, data))
        if not refs:
            next_offset = max(offset, machine.first_offset) if offset < machine.end_offset else machine.end_offset
        return FetchResult(machine.first_offset, machine.end_offset, next_offset, batches, found.incarnation)

    async def peek(
        self, identity: Identity, topic: str, partition: int | None, offset: int, max_messages: int
    ) -> list[Message]:
        """Look without leasing: the most urgent first among what is at or after the offset."""
        self._admit(identity, "consume", topic)
        _check_number("offset", offset, 0, limits.OFFSET_MAX)
        _check_number("batch", max_messages, 1, limits.LIST_ITEMS_MAX)
        found = self._topic(topic)
        replicas = self._replicas(found, None if partition is None else [partition])
        messages: list[Message] = []
        for lane in range(9, -1, -1):
            for number, replica in replicas:
                refs = replica.partition.lane_batches(lane, offset, max_messages - len(messages))
                payloads = await self._node.payloads([(replica.set_id, ref.index) for ref in refs])
                whole = [
                    LeasedBatch(
                        number,
                        0,
                        ref.base_offset,
                        ref.append_ms,
                        0,
                        ref.lane,
                        memoryview(payload)[APPEND_PREFIX_BYTES:],
                        [Range(ref.base_offset, ref.count, 0)],
                    )
                    for ref, payload in zip(refs, payloads, strict=True)
                    if payload is not None
                ]
                for delivered in messages_of(topic, whole):
                    if delivered.message.offset >= offset and len(messages) < max_messages:
                        messages.append(delivered.message)
            if len(messages) >= max_messages:
                break
        return messages

    async def commit(self, identity: Identity, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Record how far a stream group has read."""
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        found = self._topic(topic)
        for partition, offset in offsets.items():
            self._replica(found, partition)
            _check_number("offset", offset, 0, limits.OFFSET_MAX)
        await asyncio.gather(
            *(
                self._ask(self._replica(found, partition), CommitOffset(group, offset))
                for partition, offset in offsets.items()
            )
        )

    async def committed(self, identity: Identity, topic: str, group: str) -> dict[int, int]:
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        offsets: dict[int, int] = {}
        for number, replica in self._replicas(self._topic(topic), None):
            offset = replica.partition.committed(group)
            if offset is not None:
                offsets[number] = offset
        return offsets

    async def offsets(self, identity: Identity, topic: str, time_ms: int = -1) -> tuple[int, list[OffsetsResult]]:
        """Where each partition begins and ends, and what it held at a time."""
        self._admit(identity, "consume", topic)
        _check_number("time_ms", time_ms, -1, limits.TIME_MS_MAX)
        found = self._topic(topic)
        results = []
        for number, replica in self._replicas(found, None):
            machine = replica.partition
            at_time = machine.offset_at_time(time_ms) if time_ms >= 0 else -1
            results.append(OffsetsResult(number, machine.first_offset, machine.end_offset, at_time))
        return found.incarnation, results

    # ------------------------------------------------------------------ topics

    async def _change_cluster(self, command: bytes) -> Any:
        """Put a change into the cluster's log; its result once it has applied and this broker follows it."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def applied(result: Any) -> None:
            if not future.done():
                future.set_result(result)

        self._engine.propose(CLUSTER_SET, command, applied)
        self._node.kick()
        result = await future
        if isinstance(result, LannerError):
            raise result
        self._node.reconcile()
        await self._node.all_led()
        return result

    async def create_topic(self, identity: Identity, name: str, settings: Mapping[str, Any]) -> TopicResult:
        self._admit(identity, "administer", name)
        given = {"partitions": self._node.settings.default_partitions, **settings}
        checked = TopicSettings.from_dict(given)
        await self._change_cluster(encode_create_topic(name, checked, self._node.now_ms()))
        return self.topic(identity, name)

    async def alter_topic(self, identity: Identity, name: str, settings: Mapping[str, Any]) -> TopicResult:
        self._admit(identity, "administer", name)
        self._topic(name).settings.changed(settings)
        await self._change_cluster(encode_alter_topic(name, dict(settings)))
        return self.topic(identity, name)

    async def delete_topic(self, identity: Identity, name: str) -> None:
        self._admit(identity, "administer", name)
        self._topic(name)
        await self._change_cluster(encode_delete_topic(name))

    async def ensure_topic(self, identity: Identity, name: str) -> None:
        """Make the topic if it is missing and the broker may make topics by itself."""
        self._admit(identity, "publish", name)
        if name in self._engine.cluster.topics:
            return
        if not self.auto_create:
            raise TopicNotFound(f"topic {name!r} does not exist, and this broker makes none by itself", topic=name)
        try:
            await self.create_topic(identity, name, {})
        except TopicExists:
            return

    def topics(self, identity: Identity) -> list[str]:
        self._admit(identity, "describe")
        return sorted(self._engine.cluster.topics)

    def topic(self, identity: Identity, name: str) -> TopicResult:
        self._admit(identity, "describe", name)
        found = self._topic(name)
        partitions = []
        for number, replica in self._replicas(found, None):
            machine = replica.partition
            partitions.append(
                PartitionStateResult(
                    number,
                    self.node_id if replica.leads else "",
                    machine.first_offset,
                    machine.end_offset,
                    machine.stored_bytes,
                    machine.batch_count,
                    machine.pinned_bytes,
                    machine.lane_depths(),
                )
            )
        return TopicResult(found.name, found.incarnation, found.settings.to_dict(), partitions)

    # ------------------------------------------------------------------ groups and dead letters

    def groups(self, identity: Identity, topic: str) -> list[str]:
        self._admit(identity, "describe", topic)
        names: set[str] = set()
        for _, replica in self._replicas(self._topic(topic), None):
            names.update(replica.partition.groups())
        return sorted(names)

    def group(self, identity: Identity, topic: str, group: str) -> GroupResult:
        self._admit(identity, "describe", topic)
        check_name(group, "group")
        now_ms = self._node.now_ms()
        kind = ""
        partitions = []
        for number, replica in self._replicas(self._topic(topic), None):
            if group not in replica.partition.groups():
                continue
            state = replica.partition.describe_group(group, now_ms)
            kind = str(state.kind)
            partitions.append(
                GroupPartitionResult(
                    number,
                    state.offset,
                    state.lag,
                    state.ready,
                    state.leased,
                    state.waiting,
                    state.dead,
                    state.depth,
                    state.oldest_ms,
                )
            )
        if not partitions:
            raise GroupNotFound(f"topic {topic!r} has no group {group!r}", topic=topic, group=group)
        return GroupResult(topic, group, kind, partitions)

    def _replicas_with(self, topic: str, group: str, partition: int | None = None) -> list[tuple[int, Replica]]:
        check_name(group, "group")
        replicas = self._replicas(self._topic(topic), None if partition is None else [partition])
        found = [(number, replica) for number, replica in replicas if group in replica.partition.groups()]
        if not found:
            raise GroupNotFound(f"topic {topic!r} has no group {group!r} there", topic=topic, group=group)
        return found

    async def drop_group(self, identity: Identity, topic: str, group: str) -> None:
        self._admit(identity, "consume", topic)
        for _, replica in self._replicas_with(topic, group):
            await self._ask(replica, DropGroup(group))

    async def seek(
        self,
        identity: Identity,
        topic: str,
        group: str,
        *,
        offsets: Mapping[int, int] | None = None,
        time_ms: int | None = None,
        to: str | None = None,
    ) -> None:
        """Move a group, forward or back; its leases there end."""
        self._admit(identity, "consume", topic)
        check_name(group, "group")
        if sum(choice is not None for choice in (offsets, time_ms, to)) != 1:
            raise ValidationError("give exactly one of offsets, time_ms and to", field="seek")
        if to is not None and to not in ("earliest", "latest"):
            raise ValidationError(f"to is {to!r}: choose earliest or latest", field="to")
        found = self._topic(topic)
        moves: list[tuple[Replica, int | str]] = []
        if offsets is not None:
            for partition, offset in offsets.items():
                _check_number("offset", offset, 0, limits.OFFSET_MAX)
                moves.append((self._replica(found, partition), offset))
        else:
            if time_ms is not None:
                _check_number("time_ms", time_ms, 0, limits.TIME_MS_MAX)
            for _, replica in self._replicas_with(topic, group):
                target = replica.partition.offset_at_time(time_ms) if time_ms is not None else to
                assert target is not None
                moves.append((replica, target))
        await asyncio.gather(*(self._ask(replica, Seek(group, target)) for replica, target in moves))

    async def dead_letters(
        self, identity: Identity, topic: str, group: str, partition: int | None, start_offset: int, limit: int
    ) -> DeadLettersResult:
        """What a group gave up on, with the messages themselves."""
        self._admit(identity, "consume", topic)
        _check_number("start_offset", start_offset, 0, limits.OFFSET_MAX)
        _check_number("limit", limit, 1, limits.LIST_ITEMS_MAX)
        total = 0
        found: list[tuple[int, Replica, Any]] = []
        for number, replica in self._replicas_with(topic, group, partition):
            machine = replica.partition
            total += machine.dead_count(group)
            if len(found) < limit:
                entries = machine.dead_letters(group, start_offset, limit - len(found))
                found.extend((number, replica, entry) for entry in entries)
        payloads = await self._node.payloads([(replica.set_id, entry.ref.index) for _, replica, entry in found])

        def extracts() -> list[bytes]:
            return [
                _one_message(payload, entry.offset - entry.ref.base_offset)
                for payload, (_, _, entry) in zip(payloads, found, strict=True)
            ]

        letters = [
            DeadLetterResult(
                number, entry.offset, entry.lane, entry.attempts, entry.reason, entry.died_ms, entry.ref.append_ms, data
            )
            for (number, _, entry), data in zip(found, await self._node.in_reader(extracts), strict=True)
        ]
        return DeadLettersResult(letters, total)

    async def redrive(
        self, identity: Identity, topic: str, group: str, partition: int | None, offsets: Sequence[int] | None
    ) -> int:
        """Put dead letters back into their lanes; how many."""
        return await self._choose_dead(identity, topic, group, partition, offsets, Redrive)

    async def discard(
        self, identity: Identity, topic: str, group: str, partition: int | None, offsets: Sequence[int] | None
    ) -> int:
        """Let go of dead letters for good; how many."""
        return await self._choose_dead(identity, topic, group, partition, offsets, Discard)

    async def _choose_dead(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partition: int | None,
        offsets: Sequence[int] | None,
        kind: Callable[..., Any],
    ) -> int:
        self._admit(identity, "consume", topic)
        if offsets is not None:
            if partition is None:
                raise ValidationError("offsets need the partition they belong to", field="partition")
            _check_number("offsets", len(offsets), 1, limits.SETTLE_RANGES_MAX)
        total = 0
        for _, replica in self._replicas_with(topic, group, partition):
            count, _ = await self._ask(replica, kind(group, offsets))
            total += count
        return total

    # ------------------------------------------------------------------ operators

    def raft_status(self, identity: Identity, topic: str, partition: int) -> dict[str, object]:
        self._admit(identity, "describe", topic)
        return self._replica(self._topic(topic), partition).node.status()


def _one_message(payload: bytes | None, position: int) -> bytes:
    if payload is None:
        return b""
    try:
        return batch.extract(memoryview(payload)[APPEND_PREFIX_BYTES:], [position])
    except LannerError:
        return b""


def _check_number(what: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValidationError(f"{what} is {value!r}: it must be a whole number from {low} to {high}", field=what)


def _check_poll(member: str, max_messages: int, max_bytes: int, wait_ms: int, lease_ms: int, start: str) -> None:
    if not 1 <= len(member) <= limits.MEMBER_LENGTH_MAX:
        raise ValidationError(f"member must have 1 to {limits.MEMBER_LENGTH_MAX} characters", field="member")
    _check_number("max_messages", max_messages, 1, limits.POLL_MESSAGES_MAX)
    _check_number("max_bytes", max_bytes, 1, limits.POLL_BYTES_MAX)
    _check_number("wait_ms", wait_ms, 0, limits.POLL_WAIT_MS_MAX)
    if lease_ms != -1:
        _check_number("lease_ms", lease_ms, limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)
    if start not in ("earliest", "latest"):
        raise ValidationError(f"start is {start!r}: choose earliest or latest", field="start")


def _check_settle(item: SettleItem) -> None:
    _check_number("token", item.token, 0, limits.OFFSET_MAX)
    _check_number("first_offset", item.first_offset, 0, limits.OFFSET_MAX)
    _check_number("count", item.count, 1, limits.OUTSTANDING_MAX)
    _check_number("kind", item.kind, 1, 4)
    _check_number("delay_ms", item.delay_ms, -1, limits.DELAY_MS_MAX)
    if len(item.reason) > limits.REASON_LENGTH_MAX:
        raise ValidationError(f"reason may have {limits.REASON_LENGTH_MAX} characters", field="reason")
