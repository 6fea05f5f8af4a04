"""Publishing through HTTP: messages from their shapes, and an Idempotency-Key as dedup ids."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from msgspec import UNSET

from lanner import limits
from lanner.api.deduplication import check_key, dedup_ids
from lanner.api.rest.operations import Call
from lanner.api.rest.shapes import MessageIn, NoQuery, PublishManyReply, PublishManyRequest, StoredMessage
from lanner.api.rest.values import bytes_of
from lanner.broker.desks.calls import NewMessage
from lanner.errors import MessageTooLarge
from lanner.model import parse_priority

IDEMPOTENCY_KEY: Final = b"idempotency-key"


async def publish_messages(call: Call[PublishManyRequest, NoQuery]) -> PublishManyReply:
    now_ms = time.time_ns() // 1_000_000
    key = idempotency_key(call.headers)
    messages = [_message(shape, f"messages[{place}]", now_ms) for place, shape in enumerate(call.body.messages)]
    kinds = [(shape.delay_ms, shape.ttl_ms) for shape in call.body.messages]
    await call.service.ensure_topic(call.identity, call.topic)
    stored = await call.service.publish_messages(call.identity, call.topic, dedup_ids(key, messages, kinds))
    return PublishManyReply(
        topic=call.topic,
        count=len(stored),
        messages=[
            StoredMessage(
                id=f"{call.topic}/{item.partition}/{item.offset}",
                partition=item.partition,
                offset=item.offset,
                timestamp_ms=item.append_ms,
                duplicate=item.duplicate,
            )
            for item in stored
        ],
    )


def idempotency_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The request's Idempotency-Key, checked; empty without one."""
    key = headers.get(IDEMPOTENCY_KEY)
    return b"" if key is None else check_key(key, "Idempotency-Key")


def _message(shape: MessageIn, field: str, now_ms: int) -> NewMessage:
    headers = {
        name: bytes_of(text, shape.headers_encoding, f"{field}.headers.{name}") for name, text in shape.headers.items()
    }
    if sum(len(name.encode("utf-8")) + len(value) for name, value in headers.items()) > limits.HEADERS_BYTES_MAX:
        raise MessageTooLarge(f"{field}.headers exceed {limits.HEADERS_BYTES_MAX} bytes", field=f"{field}.headers")
    return NewMessage(
        value=bytes_of(shape.value, shape.encoding, f"{field}.value"),
        key=None if shape.key is UNSET else bytes_of(shape.key, shape.key_encoding, f"{field}.key"),
        headers=headers,
        priority=parse_priority(None if shape.priority is UNSET else shape.priority),
        partition=None if shape.partition is UNSET else shape.partition,
        deliver_at_ms=0 if shape.delay_ms is UNSET or shape.delay_ms == 0 else now_ms + shape.delay_ms,
        expires_at_ms=0 if shape.ttl_ms is UNSET else now_ms + shape.ttl_ms,
        dedup_id=b"",
    )
