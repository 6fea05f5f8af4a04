"""The service of another broker: the same calls, asked over its peer link.

Every call names its partitions, and the other broker serves them itself or refuses (NotLeader): one hop, never two.
What it answers comes back as the values that the service here would give, so the caller need not know where the
partition was led. Nothing is repeated here: who asks again, where and how long is decided above.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from lanner import limits
from lanner.broker.desks.calls import (
    ByteCount,
    DeadLetterResult,
    DeadLettersResult,
    DeadPlace,
    FetchedBatch,
    FetchResult,
    GroupPartitionResult,
    GroupResult,
    Identity,
    LeasedBatch,
    OffsetsResult,
    PartitionStateResult,
    PollResult,
    PublishResult,
    Range,
    ReplicasReport,
    ScrubResult,
    SettleItem,
    SettleResult,
    TopicResult,
)
from lanner.errors import BadGateway, ConnectionLost, DeadlineExceeded, NotSupported
from lanner.model import Looked, LookPlace, Message
from lanner.partition import HoldState
from lanner.wire import administration, cluster, messages, staging
from lanner.wire.messages import Command, Control

CALL_TIMEOUT_MS: Final = 5_000
_LISTEN_SECONDS: Final = 0.5


class Replied(Protocol):
    """A reply as it came over a link."""

    @property
    def control(self) -> Any: ...
    @property
    def bulk(self) -> memoryview: ...


class Calling(Protocol):
    """What can carry a request to another broker."""

    def is_alive(self, node_id: str) -> bool: ...

    async def call(
        self,
        node_id: str,
        command: Command,
        control: Control,
        bulk: Sequence[bytes | memoryview] = (),
        *,
        timeout_ms: int,
    ) -> Replied: ...


class RemoteService:
    """One other broker."""

    def __init__(self, peers: Calling, node_id: str, name: str, timeout_ms: int = CALL_TIMEOUT_MS) -> None:
        self._peers = peers
        self._node_id = node_id
        self._name = name
        self._timeout_ms = timeout_ms

    async def _call(
        self, command: Command, control: Control, bulk: Sequence[bytes | memoryview] = (), wait_ms: int = 0
    ) -> Replied:
        """Ask, for as long as the other broker gives signs of life: its partitions may be led elsewhere soon."""
        peers, loop = self._peers, asyncio.get_running_loop()
        patience = asyncio.timeout(None)
        timer: asyncio.TimerHandle

        def listen() -> None:
            nonlocal timer
            if peers.is_alive(self._node_id):
                timer = loop.call_later(_LISTEN_SECONDS, listen)
            else:
                patience.reschedule(loop.time())

        timer = loop.call_later(_LISTEN_SECONDS, listen)
        try:
            async with patience:
                return await peers.call(self._node_id, command, control, bulk, timeout_ms=self._timeout_ms + wait_ms)
        except (ConnectionLost, DeadlineExceeded) as error:
            # The caller that waits for the answer wants to know which broker did not give it.
            raise self._silence(error.message) from error
        except TimeoutError:
            raise self._silence("it has gone silent") from None
        finally:
            timer.cancel()

    def _silence(self, why: str) -> BadGateway:
        return BadGateway(f"broker {self._name} did not answer: {why}", broker=self._name, node_id=self._node_id)

    # ------------------------------------------------------------------ publishing

    async def publish(
        self, identity: Identity, topic: str, partition: int, data: bytes | memoryview, incarnation: int = 0
    ) -> PublishResult:
        asked = messages.Publish(topic, partition, incarnation)
        found = (await self._call(Command.PUBLISH, asked, [data])).control
        return PublishResult(found.base_offset, found.count, found.append_ms, found.duplicate)

    # ------------------------------------------------------------------ queue use

    async def poll(self, identity: Identity, *, partitions: Sequence[int], **wanted: Any) -> PollResult:
        asked = messages.Poll(**wanted, partitions=list(partitions))
        reply = await self._call(Command.POLL, asked, wait_ms=asked.wait_ms)
        found = reply.control
        pieces = _cut(reply.bulk, (item.size for item in found.batches))
        batches = [
            LeasedBatch(
                item.partition,
                item.token,
                item.base_offset,
                item.append_ms,
                item.deadline_ms,
                item.priority,
                data,
                [Range(part.first_offset, part.count, part.attempt) for part in item.ranges],
            )
            for item, data in zip(found.batches, pieces, strict=True)
        ]
        return PollResult(batches, found.limited, found.priority)

    async def glance(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int],
        wait_ms: int = 0,
        start: str = "earliest",
    ) -> int:
        asked = messages.Glance(group, topic, list(partitions), wait_ms, start)
        priority: int = (await self._call(Command.GLANCE, asked, wait_ms=wait_ms)).control.priority
        return priority

    async def settle(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem]
    ) -> list[SettleResult]:
        return await self._settle(Command.SETTLE, messages.Settle(group, topic, _settle_items(items)))

    async def release(
        self, identity: Identity, topic: str, group: str, items: Sequence[SettleItem]
    ) -> list[SettleResult]:
        return await self._settle(Command.RELEASE, messages.Release(group, topic, _settle_items(items)))

    async def _settle(self, command: Command, asked: Control) -> list[SettleResult]:
        found = (await self._call(command, asked)).control
        return [SettleResult(item.code, item.count) for item in found.items]

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
        lanes: int = 0,
    ) -> FetchResult:
        asked = messages.Fetch(topic, partition, offset, max_bytes, wait_ms, incarnation, lanes)
        reply = await self._call(Command.FETCH, asked, wait_ms=wait_ms)
        found = reply.control
        if found.lanes != lanes:
            raise NotSupported(
                f"the broker that leads {topic}/{partition} cannot read some priorities only: upgrade it"
            )
        pieces = _cut(reply.bulk, (item.size for item in found.batches))
        batches = [
            FetchedBatch(item.base_offset, item.count, item.append_ms, data)
            for item, data in zip(found.batches, pieces, strict=True)
        ]
        return FetchResult(
            found.first_offset,
            found.end_offset,
            found.next_offset,
            batches,
            found.incarnation,
            found.damaged,
            found.lanes,
            found.holes,
            found.follower,
            found.time_ms,
        )

    async def peek(
        self,
        identity: Identity,
        topic: str,
        partitions: Sequence[int],
        offset: int,
        max_messages: int,
        max_bytes: int = limits.LIST_BYTES_MAX,
        after: LookPlace | None = None,
    ) -> Looked:
        asked = messages.Peek(topic, None, offset, max_messages, max_bytes, list(partitions), after)
        found = (await self._call(Command.PEEK, asked)).control
        page = Looked(
            Message(
                topic=topic,
                partition=shown.partition,
                offset=shown.offset,
                value=shown.value,
                key=shown.key,
                headers=shown.headers,
                priority=shown.priority,
                timestamp_ms=shown.append_ms,
                producer_timestamp_ms=shown.producer_timestamp_ms,
                deliver_at_ms=shown.deliver_at_ms,
                expires_at_ms=shown.expires_at_ms,
            )
            for shown in found.messages
        )
        page.next = found.next
        return page

    async def commit(
        self,
        identity: Identity,
        topic: str,
        group: str,
        offsets: Mapping[int, int],
        reader: str = "",
        sequence: int = -1,
    ) -> None:
        await self._call(Command.COMMIT, messages.Commit(group, topic, dict(offsets), reader, sequence))

    async def committed(self, identity: Identity, topic: str, group: str, partitions: Sequence[int]) -> dict[int, int]:
        asked = messages.Committed(group, topic, list(partitions))
        found: dict[int, int] = (await self._call(Command.COMMITTED, asked)).control.offsets
        return found

    async def offsets(
        self,
        identity: Identity,
        topic: str,
        time_ms: int,
        partitions: Sequence[int],
        counting: ByteCount | None = None,
    ) -> tuple[int, list[OffsetsResult]]:
        asked = messages.Offsets(topic, time_ms, list(partitions))
        if counting is not None:
            starts, max_bytes, lanes = counting
            asked = messages.Offsets(topic, time_ms, list(partitions), dict(starts), max_bytes, lanes)
        found = (await self._call(Command.OFFSETS, asked)).control
        return found.incarnation, [
            OffsetsResult(item.partition, item.first_offset, item.end_offset, item.at_time, item.at_bytes)
            for item in found.partitions
        ]

    # ------------------------------------------------------------------ topics and groups

    async def topic(self, identity: Identity, name: str, partitions: Sequence[int]) -> TopicResult:
        found = (await self._call(Command.DESCRIBE_TOPIC, administration.DescribeTopic(name, list(partitions)))).control
        states = [
            PartitionStateResult(
                part.id,
                part.leader,
                part.first_offset,
                part.end_offset,
                part.bytes,
                part.batches,
                part.pinned_bytes,
                part.depth,
                [HoldState(hold.group, hold.offset, hold.behind, hold.held_bytes) for hold in part.holds],
            )
            for part in found.partitions
        ]
        return TopicResult(found.name, found.incarnation, found.settings, states)

    async def groups(self, identity: Identity, topic: str, partitions: Sequence[int]) -> list[str]:
        asked = administration.ListGroups(topic, list(partitions))
        names: list[str] = (await self._call(Command.LIST_GROUPS, asked)).control.groups
        return names

    async def group(self, identity: Identity, topic: str, group: str, partitions: Sequence[int]) -> GroupResult:
        found = (
            await self._call(Command.DESCRIBE_GROUP, administration.DescribeGroup(topic, group, list(partitions)))
        ).control
        states = [
            GroupPartitionResult(
                part.partition,
                part.offset,
                part.lag,
                part.ready,
                part.leased,
                part.waiting,
                part.dead,
                part.depth,
                part.oldest_ms,
            )
            for part in found.partitions
        ]
        return GroupResult(found.topic, found.group, found.kind, states)

    async def drop_group(self, identity: Identity, topic: str, group: str, partitions: Sequence[int]) -> None:
        await self._call(Command.DROP_GROUP, administration.DropGroup(topic, group, list(partitions)))

    async def seek(
        self,
        identity: Identity,
        topic: str,
        group: str,
        *,
        offsets: Mapping[int, int] | None,
        time_ms: int | None,
        to: str | None,
        partitions: Sequence[int] | None,
    ) -> None:
        where = None if offsets is None else dict(offsets)
        chosen = None if partitions is None else list(partitions)
        await self._call(Command.SEEK, administration.Seek(topic, group, where, time_ms, to, chosen))

    async def dead_letters(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: Sequence[int],
        start_offset: int,
        limit: int,
        after: DeadPlace | None = None,
    ) -> DeadLettersResult:
        asked = administration.ListDead(topic, group, None, start_offset, limit, list(partitions), after)
        reply = await self._call(Command.LIST_DEAD, asked)
        found = reply.control
        pieces = _cut(reply.bulk, (letter.size for letter in found.letters))
        letters = [
            DeadLetterResult(
                letter.partition,
                letter.offset,
                letter.priority,
                letter.attempts,
                letter.reason,
                letter.died_ms,
                letter.append_ms,
                bytes(data),
            )
            for letter, data in zip(found.letters, pieces, strict=True)
        ]
        return DeadLettersResult(letters, found.total, found.next)

    async def redrive(
        self, identity: Identity, topic: str, group: str, partitions: Sequence[int], offsets: Sequence[int] | None
    ) -> int:
        return await self._choose_dead(Command.REDRIVE, topic, group, partitions, offsets)

    async def discard(
        self, identity: Identity, topic: str, group: str, partitions: Sequence[int], offsets: Sequence[int] | None
    ) -> int:
        return await self._choose_dead(Command.DISCARD, topic, group, partitions, offsets)

    async def _choose_dead(
        self, command: Command, topic: str, group: str, partitions: Sequence[int], offsets: Sequence[int] | None
    ) -> int:
        chosen = None if offsets is None else list(offsets)
        kind = administration.RedriveDead if command is Command.REDRIVE else administration.DiscardDead
        asked = kind(topic, group, None, chosen, list(partitions))
        count: int = (await self._call(command, asked)).control.count
        return count

    # ------------------------------------------------------------------ what operators ask

    async def raft_status(self, identity: Identity, topic: str, partition: int, node_id: str = "") -> dict[str, object]:
        asked = cluster.RaftStatus(topic, partition, node_id)
        status: dict[str, object] = (await self._call(Command.RAFT_STATUS, asked)).control.status
        return status

    async def replicas_report(self, identity: Identity, topic: str | None) -> ReplicasReport:
        """Who is behind of what is led there, and which of its own replicas do not run."""
        found = (await self._call(Command.DESCRIBE_PARTITIONS, cluster.DescribePartitions(topic))).control
        replicas = [(part, replica) for part in found.partitions for replica in part.replicas]
        return ReplicasReport(
            {
                (part.set_id, replica.replica_id): replica.lag
                for part, replica in replicas
                if part.leader == self._node_id and replica.lag is not None
            },
            {
                (part.set_id, replica.node_id): replica.stopped
                for part, replica in replicas
                if replica.node_id == self._node_id and replica.stopped
            },
        )

    async def scrub(self, identity: Identity, start: bool) -> ScrubResult:
        found = (await self._call(Command.SCRUB, cluster.Scrub(start))).control
        return ScrubResult(*(getattr(found, name) for name in ScrubResult._fields))

    async def list_transactions(self, identity: Identity, asked: staging.ListTransactions) -> staging.TransactionList:
        found: staging.TransactionList = (await self._call(Command.LIST_TRANSACTIONS, asked)).control
        return found

    async def applied_index(self) -> int:
        """How far the other broker's copy of the metadata has come."""
        found: int = (await self._call(Command.METADATA, messages.Metadata([]))).control.index
        return found


def _settle_items(items: Iterable[SettleItem]) -> list[messages.SettleItem]:
    return [messages.SettleItem(*item) for item in items]


def _cut(bulk: memoryview, sizes: Iterable[int]) -> Iterator[memoryview]:
    """The parts of a reply's bulk; more than it has is the other broker's fault."""
    position = 0
    for size in sizes:
        if not 0 <= size <= len(bulk) - position:
            raise BadGateway("the other broker announced more bytes than it sent")
        yield bulk[position : position + size]
        position += size
