"""Messages of `lanner.v1` from the broker's values, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from google.protobuf.message import Message as Shape

from lanner import batch, limits
from lanner.api.grpc.generated.lanner.v1 import queue_pb2 as shapes
from lanner.api.reading import page_of
from lanner.calls import Answer
from lanner.errors import MalformedBatch, MessageTooLarge, ValidationError, from_wire
from lanner.forwarding.values import Delivered, NewMessage
from lanner.model import Message, TopicSettings, parse_priority
from lanner.wire.administration import DeadLetter
from lanner.wire.messages import Control, Fetch, Fetched, SettledItem

CallT = TypeVar("CallT", bound=Control)
ShapeT = TypeVar("ShapeT", bound=Shape)
_DEFAULTS: Final = TopicSettings()


def new_message(shape: shapes.NewMessage, place: int, now_ms: int) -> NewMessage:
    """A message as it is published; `place` is where it stands in its request."""
    if len(shape.ListFields()) == 1 and (value := shape.value):
        return NewMessage(value)  # nothing but a value, as most are: asking for each field costs more than all else
    field, headers = f"messages[{place}]", dict(shape.headers)
    if len(headers) > limits.HEADER_COUNT_MAX:
        raise MessageTooLarge(f"{field} has {len(headers)} headers; {limits.HEADER_COUNT_MAX} are allowed", field=field)
    if sum(len(name.encode()) + len(value) for name, value in headers.items()) > limits.HEADERS_BYTES_MAX:
        raise MessageTooLarge(f"{field}.headers exceed {limits.HEADERS_BYTES_MAX} bytes", field=f"{field}.headers")
    if len(shape.key) > limits.KEY_BYTES_MAX:
        raise MessageTooLarge(f"{field}.key exceeds {limits.KEY_BYTES_MAX} bytes", field=f"{field}.key")
    for name, span in (("delay_ms", shape.delay_ms), ("ttl_ms", shape.ttl_ms)):
        if span > limits.DELAY_MS_MAX:
            raise ValidationError(f"{field}.{name} is {span}: at most {limits.DELAY_MS_MAX}", field=f"{field}.{name}")
    urgency = shape.WhichOneof("urgency")
    return NewMessage(
        value=shape.value,
        key=shape.key if shape.HasField("key") else None,
        headers=headers,
        priority=parse_priority(None if urgency is None else getattr(shape, urgency)),
        partition=shape.partition if shape.HasField("partition") else None,
        deliver_at_ms=now_ms + shape.delay_ms if shape.delay_ms else 0,
        expires_at_ms=now_ms + shape.ttl_ms if shape.ttl_ms else 0,
    )


def shaped(kind: type[ShapeT], found: Control, **others: object) -> ShapeT:
    """A message of the proto from a struct: `others` as they are given, every other field from the one of its name."""
    names = [name for name in kind.DESCRIPTOR.fields_by_name if name not in others]
    return kind(**{name: getattr(found, name) for name in names}, **others)


def message(found: Message) -> shapes.Message:
    return shapes.Message(
        id=found.id,
        topic=found.topic,
        partition=found.partition,
        offset=found.offset,
        value=found.value,
        key=found.key,
        headers=found.headers,
        priority=found.priority,
        timestamp_ms=found.timestamp_ms,
        producer_timestamp_ms=found.producer_timestamp_ms,
        deliver_at_ms=found.deliver_at_ms,
        expires_at_ms=found.expires_at_ms,
    )


def leased(delivered: Sequence[Delivered]) -> shapes.ReceiveMessagesResponse:
    """Messages with their leases, made in place: a list of them would be copied one by one."""
    response = shapes.ReceiveMessagesResponse()
    add = response.messages.add
    for found, token, deadline_ms in delivered:
        shape = add(token=token, attempt=found.attempt, lease_until_ms=deadline_ms).message
        shape.id, shape.topic, shape.partition, shape.offset = found.id, found.topic, found.partition, found.offset
        shape.value, shape.priority, shape.timestamp_ms = found.value, found.priority, found.timestamp_ms
        if found.key is not None:
            shape.key = found.key
        if found.headers:
            shape.headers.update(found.headers)
        if found.producer_timestamp_ms is not None:
            shape.producer_timestamp_ms = found.producer_timestamp_ms
        if found.deliver_at_ms or found.expires_at_ms:
            shape.deliver_at_ms, shape.expires_at_ms = found.deliver_at_ms, found.expires_at_ms
    return response


def fetched(asked: Fetch, answer: Answer[Fetched], messages_max: int) -> shapes.FetchResponse:
    page = page_of(asked, answer, messages_max)
    return shapes.FetchResponse(
        messages=[message(one) for one in page.messages],
        first_offset=answer.control.first_offset,
        end_offset=answer.control.end_offset,
        next_offset=page.next_offset,
        holes=[shapes.Hole(**hole._asdict()) for hole in page.holes],
    )


def settle_response(leases: Sequence[shapes.Lease], results: Sequence[SettledItem]) -> shapes.SettleResponse:
    return shapes.SettleResponse(
        settled=sum(result.count for result in results),
        failed=sum(result.code != 0 for result in results),
        leases=[
            shapes.Settled(
                partition=lease.partition,
                offset=lease.offset,
                count=result.count,
                error=from_wire(result.code, "").name if result.code else "",
            )
            for lease, result in zip(leases, results, strict=True)
        ],
    )


def dead_letter(topic: str, letter: DeadLetter, data: bytes | memoryview) -> shapes.DeadLetter:
    shape = shapes.DeadLetter(
        partition=letter.partition,
        offset=letter.offset,
        priority=letter.priority,
        attempts=letter.attempts,
        reason=letter.reason,
        died_at_ms=letter.died_ms,
    )
    if not data:
        return shape
    try:
        found = batch.decode(data)
    except MalformedBatch:
        return shape
    inner = Message(
        topic,
        letter.partition,
        letter.offset,
        found.values()[0],
        found.keys()[0],
        found.headers()[0],
        letter.priority,
        letter.append_ms,
    )
    shape.message.CopyFrom(message(inner))
    return shape


def topic_settings(given: Mapping[str, str]) -> dict[str, int | str | list[str]]:
    """Settings of a topic from text: numbers where the setting is one, names with commas between where it is a list."""
    found: dict[str, int | str | list[str]] = {}
    for name, value in given.items():
        default = getattr(_DEFAULTS, name, "")
        if isinstance(default, tuple):
            found[name] = [part.strip() for part in value.split(",") if part.strip()]
        elif isinstance(default, int):
            found[name] = _number(name, value)
        else:
            found[name] = value
    return found


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 16):
        raise ValidationError(f"{name} is {value[:80]!r}: it must be a whole number", field=name)
    return int(value)


def text_settings(given: Mapping[str, object]) -> dict[str, str]:
    """The same as text again."""
    return {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in given.items()}


def start_of(text: str) -> str:
    """Where a new group begins."""
    if text not in ("", "earliest", "latest"):
        raise ValidationError(f"start is {text[:80]!r}: give earliest or latest", field="start")
    return text or "earliest"


def bounded(call: CallT) -> CallT:
    """A call whose fields are within the bounds that its struct declares; only decoding looks at these."""
    kind = type(call)
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(call), type=kind)
    except (msgspec.ValidationError, OverflowError) as error:
        what, _, path = str(error).partition(" - at `$")
        place = path.strip("[]`.").split("]", 1)[0]
        field = kind.__struct_fields__[int(place)] if place.isdigit() else ""
        raise ValidationError(f"{field or 'the request'}: {what.replace('`', '')}", field=field) from None
