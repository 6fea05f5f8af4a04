"""Calls of the table with the words of tests: over `service.ask` of the cluster, over `service.serve` of one broker.

Each method makes one call and gives what its answer says, with the bytes of batches beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lanner.broker.service import Service
from lanner.calls import Answer, Identity
from lanner.errors import from_wire
from lanner.forwarding.values import Delivered, LeasedBatch, NewMessage, Stored, leased_batches
from lanner.partition import Appended
from lanner.wire import administration, cluster, dead, messages, staging
from lanner.wire.messages import AnswerT, Call

Ask = Callable[..., Awaitable[Answer[Any]]]


class Leased(NamedTuple):
    """What a poll brought."""

    batches: Sequence[LeasedBatch]
    limited: bool
    priority: int


class WithBytes:
    """A part of an answer, with its piece of the bulk as `data`."""

    def __init__(self, part: Any, data: bytes | memoryview) -> None:
        self._part, self.data = part, data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


class Page:
    """An answer whose parts have bytes."""

    def __init__(self, answer: Answer[Any], parts: str) -> None:
        self._control = answer.control
        found = zip(getattr(answer.control, parts), answer.bulk, strict=True)
        setattr(self, parts, [WithBytes(part, data) for part, data in found])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)


class Looked(list[messages.PeekedMessage]):
    """A page of a look."""

    next: tuple[int, int, int] | None = None


class Caller:
    """Somebody who asks a service."""

    def __init__(self, service: Service, ask: Ask) -> None:
        self.service, self._ask = service, ask

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service, name)

    async def ask(self, identity: Identity, call: Call[AnswerT]) -> AnswerT:
        return (await self._ask(identity, call)).control  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ messages

    async def publish(
        self, identity: Identity, topic: str, partition: int, data: bytes, incarnation: int = 0
    ) -> messages.Published:
        found: messages.Published = (
            await self._ask(identity, messages.Publish(topic, partition, incarnation), [data])
        ).control
        return found

    async def publish_messages(self, identity: Identity, topic: str, given: Sequence[NewMessage]) -> list[Stored]:
        return list(await self.service.publish_messages(identity, topic, given))

    async def ensure_topic(self, identity: Identity, name: str) -> None:
        await self.service.ensure_topic(identity, name)

    async def poll(self, identity: Identity, *, sequence: int = -1, **wanted: Any) -> Leased:
        answer = await self._ask(identity, messages.Poll(sequence=sequence, **wanted))
        return Leased(leased_batches(answer), answer.control.limited, answer.control.priority)

    async def poll_messages(self, identity: Identity, *, sequence: int = -1, **wanted: Any) -> list[Delivered]:
        return (await self.service.poll_messages(identity, messages.Poll(sequence=sequence, **wanted))).messages

    async def best_priority(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: list[int] | None = None,
        wait_ms: int = 0,
        start: str = "earliest",
    ) -> int:
        return (await self.ask(identity, messages.BestPriority(group, topic, partitions, wait_ms, start))).priority

    async def settle(
        self, identity: Identity, topic: str, group: str, items: Sequence[messages.SettleItem]
    ) -> list[messages.SettledItem]:
        return (await self.ask(identity, messages.Settle(group, topic, list(items)))).items

    async def release(
        self, identity: Identity, topic: str, group: str, items: Sequence[messages.SettleItem]
    ) -> list[messages.SettledItem]:
        return (await self.ask(identity, messages.Release(group, topic, list(items)))).items

    async def fetch(self, identity: Identity, topic: str, partition: int, offset: int, *more: Any, **named: Any) -> Any:
        return Page(await self._ask(identity, messages.Fetch(topic, partition, offset, *more, **named)), "batches")

    async def peek(
        self,
        identity: Identity,
        topic: str,
        partitions: list[int] | None,
        offset: int,
        max_messages: int,
        max_bytes: int = 1 << 20,
        after: tuple[int, int, int] | None = None,
    ) -> Looked:
        one = partitions[0] if partitions is not None and len(partitions) == 1 else None
        several = partitions if one is None else None
        found = await self.ask(identity, messages.Peek(topic, one, offset, max_messages, max_bytes, several, after))
        page = Looked(found.messages)
        page.next = found.next
        return page

    async def commit(
        self, identity: Identity, topic: str, group: str, offsets: Mapping[int, int], *more: Any, **named: Any
    ) -> None:
        await self.ask(identity, messages.Commit(group, topic, dict(offsets), *more, **named))

    async def committed(
        self, identity: Identity, topic: str, group: str, partitions: list[int] | None = None
    ) -> dict[int, int]:
        return (await self.ask(identity, messages.Committed(group, topic, partitions))).offsets

    async def offsets(
        self, identity: Identity, topic: str, time_ms: int = -1, partitions: list[int] | None = None, **named: Any
    ) -> tuple[int, list[messages.PartitionOffsets]]:
        found = await self.ask(identity, messages.Offsets(topic, time_ms, partitions, **named))
        return found.incarnation, found.partitions

    # ------------------------------------------------------------------ topics and groups

    async def topics(self, identity: Identity) -> list[str]:
        return (await self.ask(identity, administration.ListTopics())).names

    async def metadata(self, identity: Identity, *names: str) -> messages.MetadataReply:
        return await self.ask(identity, messages.Metadata(list(names)))

    async def topic_route(self, identity: Identity, name: str) -> messages.TopicInfo:
        found = (await self.metadata(identity, name)).topics[0]
        if found.error:
            raise from_wire(found.error, "")
        return found

    async def open_producer(self, identity: Identity) -> tuple[int, int]:
        found = await self.ask(identity, messages.OpenProducer())
        return found.producer_id, found.epoch

    async def create_topic(
        self, identity: Identity, name: str, settings: Mapping[str, Any], create_id: str = ""
    ) -> administration.TopicDescription:
        return await self.ask(identity, administration.CreateTopic(name, dict(settings), create_id))

    async def alter_topic(
        self, identity: Identity, name: str, settings: Mapping[str, Any]
    ) -> administration.TopicDescription:
        return await self.ask(identity, administration.AlterTopic(name, dict(settings)))

    async def delete_topic(self, identity: Identity, name: str) -> None:
        await self.ask(identity, administration.DeleteTopic(name))

    async def topic(
        self, identity: Identity, name: str, partitions: list[int] | None = None
    ) -> administration.TopicDescription:
        return await self.ask(identity, administration.DescribeTopic(name, partitions))

    async def groups(self, identity: Identity, topic: str, partitions: list[int] | None = None) -> list[str]:
        return (await self.ask(identity, administration.ListGroups(topic, partitions))).groups

    async def group(
        self, identity: Identity, topic: str, group: str, partitions: list[int] | None = None
    ) -> administration.GroupDescription:
        return await self.ask(identity, administration.DescribeGroup(topic, group, partitions))

    async def drop_group(self, identity: Identity, topic: str, group: str, partitions: list[int] | None = None) -> None:
        await self.ask(identity, administration.DropGroup(topic, group, partitions))

    async def seek(self, identity: Identity, topic: str, group: str, **where: Any) -> None:
        await self.ask(identity, administration.Seek(topic, group, **where))

    async def dead_letters(
        self,
        identity: Identity,
        topic: str,
        group: str,
        partitions: list[int] | None,
        start_offset: int,
        limit: int,
        after: tuple[int, int] | None = None,
    ) -> Any:
        call = administration.ListDead(topic, group, None, start_offset, limit, partitions, after)
        return Page(await self._ask(identity, call), "letters")

    async def redrive(
        self, identity: Identity, topic: str, group: str, partitions: list[int] | None, offsets: list[int] | None
    ) -> int:
        call = administration.RedriveDead(topic, group, None, offsets, partitions)
        return (await self.ask(identity, call)).count

    async def discard(
        self, identity: Identity, topic: str, group: str, partitions: list[int] | None, offsets: list[int] | None
    ) -> int:
        call = administration.DiscardDead(topic, group, None, offsets, partitions)
        return (await self.ask(identity, call)).count

    async def fetch_dead(self, identity: Identity, asked: dead.FetchDead) -> Answer[dead.FetchedDead]:
        return await self._ask(identity, asked)

    # ------------------------------------------------------------------ the cluster

    async def raft_status(self, identity: Identity, topic: str, partition: int, node_id: str = "") -> dict[str, Any]:
        return (await self.ask(identity, cluster.RaftStatus(topic, partition, node_id))).status

    async def describe_cluster(self, identity: Identity) -> cluster.ClusterDescription:
        return await self.ask(identity, cluster.DescribeCluster())

    async def describe_partitions(
        self, identity: Identity, topic: str | None = None
    ) -> list[cluster.PartitionReplicas]:
        return (await self.ask(identity, cluster.DescribePartitions(topic))).partitions

    async def change_cluster(self, identity: Identity, action: str, **wish: Any) -> cluster.PlanProgress | None:
        return (await self.ask(identity, cluster.ChangeCluster(action, **wish))).plan

    async def scrub(self, identity: Identity, start: bool) -> cluster.ScrubProgress:
        return await self.ask(identity, cluster.Scrub(start))

    # ------------------------------------------------------------------ transactions

    def stage(self, identity: Identity, asked: staging.Stage, data: bytes) -> asyncio.Future[Any]:
        return self.service.stage(identity, asked, data)

    async def prepare(self, identity: Identity, asked: staging.Prepare) -> staging.PartitionOutcomes:
        return await self.ask(identity, asked)

    async def discard_stages(self, identity: Identity, asked: staging.DiscardStages) -> staging.PartitionOutcomes:
        return await self.ask(identity, asked)

    async def begin(self, identity: Identity, asked: staging.Begin) -> staging.CommitState:
        return await self.ask(identity, asked)

    async def end(self, identity: Identity, asked: staging.End) -> staging.CommitState:
        return await self.ask(identity, asked)

    async def look(self, identity: Identity, asked: staging.Look) -> staging.Looked:
        return await self.ask(identity, asked)

    async def claim(self, identity: Identity, asked: staging.Claim) -> staging.Claimed:
        return await self.ask(identity, asked)

    async def forget(self, identity: Identity, asked: staging.Forget) -> administration.CountReply:
        return await self.ask(identity, asked)

    async def list_transactions(self, identity: Identity, asked: staging.ListTransactions) -> staging.TransactionList:
        return await self.ask(identity, asked)


class Here(Caller):
    """Somebody who asks one broker alone."""

    def __init__(self, service: Service) -> None:
        super().__init__(service, service.serve)

    def publish(  # type: ignore[override]
        self, identity: Identity, topic: str, partition: int, data: bytes, incarnation: int = 0
    ) -> asyncio.Future[Appended]:
        """As the native door does: what is wrong is raised at once."""
        return self.service.publish(identity, messages.Publish(topic, partition, incarnation), data)
