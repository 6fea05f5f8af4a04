"""FalconQ's six calls, with its routes and its field names.

A consumerID is a group of its own, and `consume` takes messages for good as it hands them out (at most once): FalconQ
has no acks. What it lacked is kept by the broker here: progress is the group's own state, per priority, so a reply's
offsets are for information and can neither skip nor repeat a message.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import UNSET, UnsetType

from lanner import limits
from lanner.api.deduplication import dedup_ids, refuse_other_messages
from lanner.api.rest.falconq_shapes import (
    ConsumeQuery,
    ConsumeReply,
    FalconMessage,
    FalconPartition,
    PartitionRef,
    PartitionsReply,
    PeekQuery,
    PeekReply,
    PublishReply,
    PublishRequest,
    RaftStatsQuery,
)
from lanner.api.rest.operations import MESSAGE_BYTES, Call, Prepared
from lanner.api.rest.publishing import idempotency_key
from lanner.api.rest.shapes import NoBody, NoQuery, TopicsReply
from lanner.api.rest.values import bytes_of, text_of
from lanner.errors import GroupNotFound, LannerError, PartitionNotFound, from_wire
from lanner.forwarding.values import NewMessage
from lanner.model import PRIORITY_HIGH, PRIORITY_LOW, Message, check_name, parse_priority, priority_name
from lanner.wire.administration import DescribeGroup, DescribeTopic, ListTopics
from lanner.wire.cluster import RaftStatus
from lanner.wire.messages import Metadata, Offsets, Peek, Poll

_INFORMATION_SECONDS: Final = 2.0


async def publish(call: Call[PublishRequest, NoQuery]) -> PublishReply:
    body = call.body
    priority = parse_priority(None if body.priority is UNSET else body.priority)
    key = None if body.partitionKey is UNSET else body.partitionKey.encode("utf-8")
    value = bytes_of(body.message, body.encoding, "message")
    message = NewMessage(value=value, key=key or None, priority=priority)
    message = dedup_ids(idempotency_key(call.headers), [message])[0]
    await call.service.ensure_topic(call.identity, call.topic)
    stored = (await call.service.publish_messages(call.identity, call.topic, [message]))[0]
    await refuse_other_messages(call.ask, call.topic, [message], [stored])
    return PublishReply(
        status="message committed",
        topic=call.topic,
        partitionID=stored.partition,
        offset=stored.offset,
        priority=priority_name(priority),
    )


async def consume(call: Call[NoBody, ConsumeQuery]) -> Prepared:
    query = call.query
    group = group_of(query.consumerID)
    found = (await call.ask(Metadata([call.topic]))).control.topics[0]
    if found.error:
        raise from_wire(found.error, f"topic {call.topic!r} does not exist; create it first", {"topic": call.topic})
    partitions = _chosen(call.topic, [part.id for part in found.partitions], query.partitionID)
    poll = Poll(
        group=group,
        topic=call.topic,
        member=call.poller,
        sequence=-1,
        partitions=None if query.partitionID is UNSET else partitions,
        max_messages=query.batch,
        max_bytes=limits.POLL_BYTES_MAX,
        wait_ms=0,
        lease_ms=-1,
        auto_ack=True,
        start="earliest",
    )
    messages = [item.message for item in (await call.service.poll_messages(call.identity, poll)).messages]
    next_offset = await _next_offset(call, group, partitions, messages)
    return Prepared(
        lambda: ConsumeReply(
            topic=call.topic,
            consumerID=query.consumerID,
            partitionID=query.partitionID,
            startOffset=min((message.offset for message in messages), default=next_offset),
            nextOffset=next_offset,
            count=len(messages),
            messages=[_shown(message) for message in messages],
        ),
        _size(messages),
    )


async def peek(call: Call[NoBody, PeekQuery]) -> Prepared:
    query = call.query
    known = (await call.ask(Offsets(call.topic))).control.partitions
    partitions = _chosen(call.topic, [state.partition for state in known], query.partitionID)
    number = None if isinstance(query.partitionID, UnsetType) else query.partitionID
    after = None
    if not isinstance(query.after, UnsetType):
        priority, partition, offset = map(int, query.after.split("/"))
        after = (priority, partition, offset)
    asked = Peek(call.topic, number, query.offset, query.batch, limits.LIST_BYTES_MAX, after=after)
    page = (await call.ask(asked)).control
    messages = [one.of_topic(call.topic) for one in page.messages]
    starts = {
        state.partition: max(query.offset, state.first_offset) for state in known if state.partition in partitions
    }
    return Prepared(
        lambda: PeekReply(
            topic=call.topic,
            partitionID=query.partitionID,
            startOffset=query.offset,
            nextOffset=first_not_shown(starts, messages),
            count=len(messages),
            messages=[_shown(message) for message in messages],
            next=UNSET if page.next is None else "{}/{}/{}".format(*page.next),
        ),
        _size(messages),
    )


async def list_topics(call: Call[NoBody, NoQuery]) -> TopicsReply:
    return TopicsReply(topics=(await call.ask(ListTopics())).control.names)


async def list_partitions(call: Call[NoBody, NoQuery]) -> PartitionsReply:
    known = (await call.ask(DescribeTopic(call.topic))).control
    found = (await call.ask(Metadata([call.topic]))).control
    names = {broker.node_id: broker.name for broker in found.brokers}
    replicas = {part.id: part.replicas for part in found.topics[0].partitions}
    return PartitionsReply(
        topic=known.name,
        partitions=[
            FalconPartition(
                id=state.id,
                leader=state.leader,
                leaderName=names.get(state.leader, state.leader),
                replicas=[names.get(node_id, node_id) for node_id in replicas.get(state.id, ())],
                firstOffset=state.first_offset,
                endOffset=state.end_offset,
                highCount=state.depth.get(PRIORITY_HIGH, 0),
                lowCount=state.depth.get(PRIORITY_LOW, 0),
                totalCount=sum(state.depth.values()),
            )
            for state in known.partitions
        ],
        activePartitions=[PartitionRef(id=state.id) for state in known.partitions if state.leader],
        configuredPartitions=len(known.partitions),
        partitionKeyStrategy="consistent_hash+round_robin_fallback",
    )


async def raft_stats(call: Call[NoBody, RaftStatsQuery]) -> Mapping[str, str]:
    """Every value is text, as it was in FalconQ."""
    topic = check_name(call.query.topic, "topic")
    status = (await call.ask(RaftStatus(topic, call.query.partitionID))).control.status
    flat = {name: _flat(value) for name, value in status.items()}
    flat["state"] = flat.get("state", "").capitalize()
    return flat


def group_of(consumer_id: str) -> str:
    """The group of a consumerID: the same name where it may be one, else a name made from it."""
    if limits.NAME_PATTERN.match(consumer_id) and consumer_id not in (".", ".."):
        return consumer_id
    return f"consumer-{hashlib.sha256(consumer_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def first_not_shown(starts: Mapping[int, int], messages: Iterable[Message]) -> int:
    """The first offset, from each partition's start on, that is not among the messages; the lowest of the partitions.

    What a reply shows is ordered by priority, so its last or highest offset says nothing about what it left out.
    """
    shown: dict[int, set[int]] = {}
    for message in messages:
        shown.setdefault(message.partition, set()).add(message.offset)
    lowest = []
    for partition, start in starts.items():
        offset = start
        while offset in shown.get(partition, ()):
            offset += 1
        lowest.append(offset)
    return min(lowest)


def _chosen(topic: str, ids: list[int], partition_id: int | UnsetType) -> list[int]:
    if isinstance(partition_id, UnsetType):
        return ids
    if partition_id not in ids:
        raise PartitionNotFound(
            f"topic {topic} has no partition {partition_id}: it has {len(ids)}, counted from 0",
            field="partitionID",
        )
    return [partition_id]


async def _next_offset(
    call: Call[NoBody, ConsumeQuery], group: str, partitions: Sequence[int], messages: Sequence[Message]
) -> int:
    """The lowest offset that is not consumed. For information: what was taken goes out whether it is known or not."""
    try:
        async with asyncio.timeout(_INFORMATION_SECONDS):
            return min((await _floors(call, group, partitions)).values())
    except (LannerError, TimeoutError):
        first: dict[int, int] = {}
        for message in messages:
            first[message.partition] = min(message.offset, first.get(message.partition, message.offset))
        return first_not_shown(first or dict.fromkeys(partitions, 0), messages)


async def _floors(call: Call[NoBody, ConsumeQuery], group: str, partitions: Sequence[int]) -> dict[int, int]:
    try:
        states = (await call.ask(DescribeGroup(call.topic, group, list(partitions)))).control.partitions
    except GroupNotFound:
        states = []  # nothing was ever delivered to it, and an empty poll writes nothing
    floors = {state.partition: state.offset for state in states}
    if len(floors) < len(partitions):
        known = (await call.ask(Offsets(call.topic, -1, list(partitions)))).control.partitions
        floors = {state.partition: state.first_offset for state in known} | floors
    return floors


def _size(messages: Sequence[Message]) -> int:
    return sum([len(message.value) for message in messages]) + MESSAGE_BYTES * len(messages)


def _shown(message: Message) -> FalconMessage:
    value, encoding = text_of(message.value)
    return FalconMessage(
        v=value,
        p=priority_name(message.priority),
        Offset=message.offset,
        partitionID=message.partition,
        id=message.id,
        encoding=encoding,
    )


def _flat(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(item) for item in value)
    return str(value)
