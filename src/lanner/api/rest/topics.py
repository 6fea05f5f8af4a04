"""`/v1/topics`: the topics themselves, their offsets, and their partitions read as streams."""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import UNSET, UnsetType, structs

from lanner.api.following import seen_by
from lanner.api.reading import FETCH_BYTES, page_of
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
from lanner.api.rest.values import given, text_of, texts_of
from lanner.calls import Answer
from lanner.errors import ValidationError
from lanner.forwarding.delivery import raw_bytes
from lanner.model import FLAG_DELAYED, FLAG_EXPIRED, Message, check_name, parse_priority
from lanner.wire import administration as wire
from lanner.wire.messages import Fetch, Fetched, Offsets

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
    fetch = Fetch(
        call.topic, call.partition, query.offset, FETCH_BYTES, query.wait_ms, lanes=lanes_of(query.priorities)
    )
    if query.member_id is not UNSET or query.group is not UNSET:
        fetch = await _of_member(call, fetch)
    fetched = await call.ask(fetch)
    return Prepared(lambda: _read(fetch, fetched, query.limit), sum([raw_bytes(data) for data in fetched.bulk]))


async def _of_member(call: Call[NoBody, ReadQuery], fetch: Fetch) -> Fetch:
    query = call.query
    group, member_id = check_name(given(query.group), "group"), given(query.member_id)
    if not member_id:
        raise ValidationError("only a member reads for a group: give its member_id too", field="member_id")
    number, generation = await seen_by(call.service, call.identity, group, member_id, query.number, query.generation)
    return structs.replace(fetch, group=group, member_id=member_id, number=number, generation=generation)


def lanes_of(priorities: str | UnsetType) -> int:
    """The lanes that a list of priorities names, as a mask; 0: all."""
    lanes = 0
    if not isinstance(priorities, UnsetType):
        for priority in priorities.split(","):
            lanes |= 1 << parse_priority(priority)
    return lanes


def _read(asked: Fetch, answer: Answer[Fetched], limit: int) -> ReadReply:
    page = page_of(asked, answer, limit)
    return ReadReply(
        topic=asked.topic,
        partition=asked.partition,
        first_offset=answer.control.first_offset,
        end_offset=answer.control.end_offset,
        next_offset=page.next_offset,
        messages=[shown(message) for message in page.messages],
        holes=[HoleOut(**hole._asdict()) for hole in page.holes] or UNSET,
    )


def shown(message: Message) -> MessageOut:
    return MessageOut(**fields_of(message))


def fields_of(message: Message) -> dict[str, Any]:
    """What MessageOut, and what extends it, says of a message; without what it does not have."""
    value, encoding = text_of(message.value)
    fields: dict[str, Any] = {
        "id": message.id,
        "partition": message.partition,
        "offset": message.offset,
        "value": value,
        "encoding": encoding,
        "priority": message.priority,
        "timestamp_ms": message.timestamp_ms,
    }
    if message.key is not None:
        fields["key"], fields["key_encoding"] = text_of(message.key)
    if message.headers:
        fields["headers"], fields["headers_encoding"] = texts_of(message.headers)
    if message.deliver_at_ms:
        fields["deliver_at_ms"] = message.deliver_at_ms
    if message.expires_at_ms:
        fields["expires_at_ms"] = message.expires_at_ms
    if message.flags:
        fields["flags"] = [name for flag, name in _FLAGS if message.flags & flag] or UNSET
    return fields


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
