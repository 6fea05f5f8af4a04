"""`/v1/topics`: the topics themselves, their offsets, and their partitions read as streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from msgspec import UNSET, UnsetType

from lanner import limits
from lanner.api.rest.operations import Call, Prepared
from lanner.api.rest.shapes import (
    AlterTopicRequest,
    CreateTopicRequest,
    HoldOut,
    HoleOut,
    MessageOut,
    NoBody,
    NoQuery,
    OffsetsReply,
    PartitionOffsets,
    ReadQuery,
    ReadReply,
    TimeQuery,
    TopicPartitionState,
    TopicReply,
    TopicsReply,
)
from lanner.api.rest.values import text_of, texts_of
from lanner.batch import decode
from lanner.broker.desks.calls import FetchedBatch, FetchResult, TopicResult
from lanner.broker.desks.delivery import raw_bytes
from lanner.broker.desks.fitting import Room
from lanner.errors import MalformedBatch
from lanner.model import FLAG_DELAYED, FLAG_EXPIRED, Message, check_name, message_flags, parse_priority
from lanner.net.clock import now_ms

_READ_BYTES_MAX = limits.MIB
_FLAGS: Final[tuple[tuple[int, Literal["delayed", "expired"]], ...]] = (
    (FLAG_DELAYED, "delayed"),
    (FLAG_EXPIRED, "expired"),
)


async def list_topics_v1(call: Call[NoBody, NoQuery]) -> TopicsReply:
    return TopicsReply(topics=await call.service.topics(call.identity))


async def create_topic(call: Call[CreateTopicRequest, NoQuery]) -> TopicReply:
    name = check_name(call.body.name, "name")
    return _described(await call.service.create_topic(call.identity, name, call.body.settings, call.body.create_id))


async def describe_topic(call: Call[NoBody, NoQuery]) -> TopicReply:
    return _described(await call.service.topic(call.identity, call.topic))


async def alter_topic(call: Call[AlterTopicRequest, NoQuery]) -> TopicReply:
    return _described(await call.service.alter_topic(call.identity, call.topic, call.body.settings))


async def delete_topic(call: Call[NoBody, NoQuery]) -> None:
    await call.service.delete_topic(call.identity, call.topic)


async def topic_offsets(call: Call[NoBody, TimeQuery]) -> OffsetsReply:
    time_ms = -1 if isinstance(call.query.time_ms, UnsetType) else call.query.time_ms
    incarnation, partitions = await call.service.offsets(call.identity, call.topic, time_ms)
    return OffsetsReply(
        topic=call.topic,
        incarnation=incarnation,
        partitions=[
            PartitionOffsets(
                partition=item.partition,
                first_offset=item.first_offset,
                end_offset=item.end_offset,
                at_time=UNSET if time_ms < 0 else item.at_time,
            )
            for item in partitions
        ],
    )


async def read_partition(call: Call[NoBody, ReadQuery]) -> Prepared:
    query = call.query
    lanes = 0
    if not isinstance(query.priorities, UnsetType):
        for priority in query.priorities.split(","):
            lanes |= 1 << parse_priority(priority)
    fetched = await call.service.fetch(
        call.identity, call.topic, call.partition, query.offset, _READ_BYTES_MAX, query.wait_ms, lanes=lanes
    )
    return Prepared(lambda: _read(call, fetched), sum([raw_bytes(one.data) for one in fetched.batches]))


def _read(call: Call[NoBody, ReadQuery], fetched: FetchResult) -> ReadReply:
    """Message by message, as far as the page has room; one always fits."""
    query, room = call.query, Room(limits.LIST_BYTES_MAX)
    messages: list[MessageOut] = []
    holes: list[HoleOut] = []
    next_offset = fetched.next_offset
    for batch in fetched.batches:
        end_offset = batch.base_offset + batch.count
        try:
            found = messages_of(call.topic, call.partition, batch, fetched.time_ms or now_ms())
        except MalformedBatch:
            holes.append(_hole(max(batch.base_offset, query.offset), end_offset, "malformed"))
            continue
        fitting = _fitting(
            [message for message in found if message.offset >= query.offset], room, query.limit - len(messages)
        )
        messages += [shown(message) for message in fitting.shown]
        if fitting.next_offset is not None:
            next_offset = fitting.next_offset
            break
    holes += [_hole(first, end, "retention") for first, end in fetched.holes if first < next_offset]
    holes += [_hole(first, end, "damaged") for first, end in fetched.damaged if first < next_offset]
    return ReadReply(
        topic=call.topic,
        partition=call.partition,
        first_offset=fetched.first_offset,
        end_offset=fetched.end_offset,
        next_offset=next_offset,
        messages=messages,
        holes=sorted(holes, key=lambda hole: hole.first_offset) or UNSET,
    )


def _hole(first_offset: int, next_offset: int, reason: Literal["retention", "malformed", "damaged"]) -> HoleOut:
    return HoleOut(first_offset=first_offset, next_offset=next_offset, reason=reason)


class _Fitting(NamedTuple):
    shown: Sequence[Message]
    next_offset: int | None  # None: all of them


def _fitting(messages: Sequence[Message], room: Room, limit: int) -> _Fitting:
    for place, message in enumerate(messages):
        size = len(message.value) + len(message.key or b"")
        if place >= limit or (not room.has(size) and not room.is_empty):
            return _Fitting(messages[:place], message.offset)
        room.take(size)
    return _Fitting(messages, None)


def messages_of(topic: str, partition: int, fetched: FetchedBatch, read_ms: int) -> list[Message]:
    """The messages of a fetched batch, in offset order."""
    batch = decode(fetched.data)
    values, keys, headers = batch.values(), batch.keys(), batch.headers()
    positions = batch.positions if batch.positions is not None else range(batch.count)
    flags = message_flags(batch.header.deliver_at_ms, batch.header.expires_at_ms, read_ms)
    return [
        Message(
            topic=topic,
            partition=partition,
            offset=fetched.base_offset + position,
            value=values[place],
            key=keys[place],
            headers=headers[place],
            priority=batch.header.priority,
            timestamp_ms=fetched.append_ms,
            deliver_at_ms=batch.header.deliver_at_ms,
            expires_at_ms=batch.header.expires_at_ms,
            flags=flags,
        )
        for place, position in enumerate(positions)
    ]


def shown(message: Message) -> MessageOut:
    value, encoding = text_of(message.value)
    key, key_encoding = text_of(message.key) if message.key is not None else (UNSET, UNSET)
    headers, headers_encoding = texts_of(message.headers) if message.headers else (UNSET, UNSET)
    return MessageOut(
        id=message.id,
        partition=message.partition,
        offset=message.offset,
        value=value,
        encoding=encoding,
        key=key,
        key_encoding=key_encoding,
        headers=headers,
        headers_encoding=headers_encoding,
        priority=message.priority,
        timestamp_ms=message.timestamp_ms,
        deliver_at_ms=message.deliver_at_ms or UNSET,
        expires_at_ms=message.expires_at_ms or UNSET,
        flags=[name for flag, name in _FLAGS if message.flags & flag] or UNSET,
    )


def _described(known: TopicResult) -> TopicReply:
    return TopicReply(
        name=known.name,
        incarnation=known.incarnation,
        settings=dict(known.settings),
        partitions=[
            TopicPartitionState(
                id=state.id,
                leader=state.leader,
                first_offset=state.first_offset,
                end_offset=state.end_offset,
                bytes=state.bytes,
                batches=state.batches,
                pinned_bytes=state.pinned_bytes,
                depth={str(priority): count for priority, count in state.depth.items()},
                holds=[HoldOut(**hold._asdict()) for hold in state.holds] or UNSET,
            )
            for state in known.partitions
        ],
    )
