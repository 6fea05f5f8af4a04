"""Dead letters of a group: list, redrive, discard. They are states of messages in place, not copies."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from lanner.api.rest.operations import MESSAGE_BYTES, Call, Prepared
from lanner.api.rest.shapes import CountReply, DeadChoice, DeadMessage, DeadQuery, DeadReply, NoBody, NoQuery
from lanner.api.rest.values import text_of, texts_of
from lanner.batch import decode
from lanner.errors import ValidationError
from lanner.wire.administration import DeadLetter, DiscardDead, ListDead, RedriveDead


async def list_dead(call: Call[NoBody, DeadQuery]) -> Prepared:
    query = call.query
    number = None if isinstance(query.partition, UnsetType) else query.partition
    after = None
    if not isinstance(query.after, UnsetType):
        partition, offset = map(int, query.after.split("/"))
        after = (partition, offset)
    asked = ListDead(call.topic, call.group, number, query.start_offset, query.limit, after=after)
    found, bulk, _ = await call.ask(asked)
    return Prepared(
        lambda: DeadReply(
            topic=call.topic,
            group=call.group,
            total=found.total,
            messages=[_shown(call.topic, *one) for one in zip(found.letters, bulk, strict=True)],
            next=UNSET if found.next is None else "{}/{}".format(*found.next),
        ),
        sum([len(data) + MESSAGE_BYTES for data in bulk]),
    )


async def redrive_dead(call: Call[DeadChoice, NoQuery]) -> CountReply:
    answer = await call.ask(RedriveDead(call.topic, call.group, *_choice(call.body)))
    return CountReply(count=answer.control.count)


async def discard_dead(call: Call[DeadChoice, NoQuery]) -> CountReply:
    answer = await call.ask(DiscardDead(call.topic, call.group, *_choice(call.body)))
    return CountReply(count=answer.control.count)


def _choice(body: DeadChoice) -> tuple[int | None, list[int] | None]:
    partition = None if isinstance(body.partition, UnsetType) else body.partition
    offsets = None if isinstance(body.offsets, UnsetType) else body.offsets
    if offsets is not None and partition is None:
        raise ValidationError("offsets need their partition: give it too", field="partition")
    return partition, offsets


def _shown(topic: str, letter: DeadLetter, data: bytes | memoryview) -> DeadMessage:
    shape = DeadMessage(
        id=f"{topic}/{letter.partition}/{letter.offset}",
        partition=letter.partition,
        offset=letter.offset,
        priority=letter.priority,
        attempts=letter.attempts,
        reason=letter.reason,
        died_ms=letter.died_ms,
        timestamp_ms=letter.append_ms,
    )
    if not data:
        return shape
    batch = decode(data)
    shape.value, shape.encoding = text_of(batch.values()[0])
    key, headers = batch.keys()[0], batch.headers()[0]
    shape.key, shape.key_encoding = text_of(key) if key is not None else (UNSET, UNSET)
    shape.headers, shape.headers_encoding = texts_of(headers) if headers else (UNSET, UNSET)
    return shape
