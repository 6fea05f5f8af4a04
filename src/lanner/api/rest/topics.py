"""`/v1/topics`: the topics themselves, their offsets, and their partitions read as streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from msgspec import UNSET, UnsetType, structs

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
from lanner.broker.desks.delivery import raw_bytes
from lanner.calls import Answer
from lanner.calls.merging import Room
from lanner.errors import MalformedBatch
from lanner.model import FLAG_DELAYED, FLAG_EXPIRED, Message, check_name, message_flags, parse_priority
from lanner.net.clock import now_ms
from lanner.wire import administration as wire
from lanner.wire.messages import Fetch, Fetched, FetchedBatch, Offsets

_READ_BYTES_MAX = limits.MIB
_FLAGS: Final[tuple[tuple[int, Literal["delayed", "expired"]], ...]] = (
    (FLAG_DELAYED, "delayed"),
    (FLAG_EXPIRED, "expired"),
)


async def list_topics_v1(call: Call[NoBody, NoQuery]) -> TopicsReply:
    return TopicsReply(topics=(await call.ask(wire.ListTopics())).control.names)


async def create_topic(call: Call[CreateTopicRequest, NoQuery]) -> TopicReply:
    name = check_name(call.body.name, "name")
    made = await call.ask(wire.CreateTopic(name, call.body.settings, call.body.create_id))
    return _described(made.control)


async def describe_topic(call: Call[NoBody, NoQuery]) -> TopicReply:
    return _described((await call.ask(wire.DescribeTopic(call.topic))).control)


async def alter_topic(call: Call[AlterTopicRequest, NoQuery]) -> TopicReply:
    return _described((await call.ask(wire.AlterTopic(call.topic, call.body.settings))).control)


async def delete_topic(call: Call[NoBody, NoQuery]) -> None:
    await call.ask(wire.DeleteTopic(call.topic))


async def topic_offsets(call: Call[NoBody, TimeQuery]) -> OffsetsReply:
    time_ms = -1 if isinstance(call.query.time_ms, UnsetType) else call.query.time_ms
    found = (await call.ask(Offsets(call.topic, time_ms))).control
    return OffsetsReply(
        topic=call.topic,
        incarnation=found.incarnation,
        partitions=[
            PartitionOffsets(
                partition=item.partition,
                first_offset=item.first_offset,
                end_offset=item.end_offset,
                at_time=UNSET if time_ms < 0 else item.at_time,
            )
            for item in found.partitions
        ],
    )


async def read_partition(call: Call[NoBody, ReadQuery]) -> Prepared:
    query = call.query
    lanes = 0
    if not isinstance(query.priorities, UnsetType):
        for priority in query.priorities.split(","):
            lanes |= 1 << parse_priority(priority)
    fetch = Fetch(call.topic, call.partition, query.offset, _READ_BYTES_MAX, query.wait_ms, lanes=lanes)
    fetched = await call.ask(fetch)
    return Prepared(lambda: _read(call, fetched), sum([raw_bytes(data) for data in fetched.bulk]))


def _read(call: Call[NoBody, ReadQuery], answer: Answer[Fetched]) -> ReadReply:
    """Message by message, as far as the page has room; one always fits."""
    query, room, fetched = call.query, Room(limits.LIST_BYTES_MAX), answer.control
    messages: list[MessageOut] = []
    holes: list[HoleOut] = []
    next_offset = fetched.next_offset
    for batch, data in zip(fetched.batches, answer.bulk, strict=True):
        end_offset = batch.base_offset + batch.count
        try:
            found = messages_of(call.topic, call.partition, batch, data, fetched.time_ms or now_ms())
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


def messages_of(
    topic: str, partition: int, fetched: FetchedBatch, data: bytes | memoryview, read_ms: int
) -> list[Message]:
    """The messages of a fetched batch, in offset order."""
    batch = decode(data)
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


def _described(known: wire.TopicDescription) -> TopicReply:
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
                holds=[HoldOut(**structs.asdict(hold)) for hold in state.holds] or UNSET,
            )
            for state in known.partitions
        ],
    )
