"""Publishing through HTTP: messages from their shapes, and an Idempotency-Key as dedup ids."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import UNSET

from lanner import limits
from lanner.api.deduplication import check_key, dedup_ids, refuse_other_messages
from lanner.api.rest.operations import JSON, Call, Raw
from lanner.api.rest.shapes import MessageIn, NoQuery, PlainPublishRequest, PublishManyRequest
from lanner.api.rest.values import bytes_of
from lanner.errors import MessageTooLarge
from lanner.forwarding.values import NewMessage, Placed, PlainMessages, Run
from lanner.model import parse_priority

IDEMPOTENCY_KEY: Final = b"idempotency-key"


async def publish_messages(call: Call[PublishManyRequest | PlainPublishRequest, NoQuery]) -> Raw:
    key = idempotency_key(call.headers)
    messages: Sequence[NewMessage]
    kinds: list[object] | None = None
    now_ms = time.time_ns() // 1_000_000
    if isinstance(call.body, PlainPublishRequest):
        messages = PlainMessages([one.value.encode() for one in call.body.messages])
    else:
        messages = [_message(shape, place, now_ms) for place, shape in enumerate(call.body.messages)]
        kinds = [(shape.delay_ms, shape.ttl_ms) for shape in call.body.messages]
    await call.service.ensure_topic(call.identity, call.topic)
    marked = dedup_ids(key, messages, kinds)
    stored = await call.service.publish_messages(call.identity, call.topic, marked)
    if key:
        await refuse_other_messages(call.ask, call.topic, marked, stored, now_ms)
    return Raw(JSON, stored_reply(call.topic, stored))


def stored_reply(topic: str, placed: Placed) -> bytes:
    """PublishManyReply as JSON. In a run only the offsets differ, so all that is between them is written once."""
    written = [_written(topic, run) for run in placed.runs]
    return f'{{"topic":"{topic}","count":{len(placed)},"messages":[{",".join(written)}]}}'.encode("ascii")


def _written(topic: str, run: Run) -> str:
    """StoredMessage after StoredMessage. Names are such that JSON writes them as they are."""
    head = f'{{"id":"{topic}/{run.partition}/'
    middle = f'","partition":{run.partition},"offset":'
    tail = f',"timestamp_ms":{run.append_ms},"duplicate":{"true" if run.duplicate else "false"}}}'
    return head + f"{tail},{head}".join([f"{offset}{middle}{offset}" for offset in run.offsets]) + tail


def idempotency_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The request's Idempotency-Key, checked; empty without one."""
    key = headers.get(IDEMPOTENCY_KEY)
    return b"" if key is None else check_key(key, "Idempotency-Key")


def _message(shape: MessageIn, place: int, now_ms: int) -> NewMessage:
    field = f"messages[{place}]"
    headers = {}
    if shape.headers:
        headers = {
            name: bytes_of(text, shape.headers_encoding, f"{field}.headers.{name}")
            for name, text in shape.headers.items()
        }
        if sum(len(name.encode("utf-8")) + len(value) for name, value in headers.items()) > limits.HEADERS_BYTES_MAX:
            raise MessageTooLarge(f"{field}.headers exceed {limits.HEADERS_BYTES_MAX} bytes", field=f"{field}.headers")
    return NewMessage(
        bytes_of(shape.value, shape.encoding, f"{field}.value"),
        None if shape.key is UNSET else bytes_of(shape.key, shape.key_encoding, f"{field}.key"),
        headers,
        parse_priority(None if shape.priority is UNSET else shape.priority),
        None if shape.partition is UNSET else shape.partition,
        0 if shape.delay_ms is UNSET or shape.delay_ms == 0 else now_ms + shape.delay_ms,
        0 if shape.ttl_ms is UNSET else now_ms + shape.ttl_ms,
    )
