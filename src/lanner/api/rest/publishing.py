"""Publishing through HTTP: messages from their shapes, and an Idempotency-Key as dedup ids.

A dedup id belongs to a batch, and a partition answers a known one with the first result. One request may become several
batches of the same partition (different priorities, different delays, or simply too large for one), so the key alone
would make the second batch look like a repetition of the first. Therefore each slice of the request has its own id:
the key, a zero byte that no header can hold, and the slice's number. Slices follow from the request's content alone,
so the same request again makes the same ids.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from msgspec import UNSET

from lanner import limits
from lanner.api.rest.operations import Call
from lanner.api.rest.shapes import MessageIn, NoQuery, PublishManyReply, PublishManyRequest, StoredMessage
from lanner.api.rest.values import bytes_of
from lanner.broker.desks.calls import NewMessage
from lanner.errors import MessageTooLarge, ValidationError
from lanner.model import parse_priority

IDEMPOTENCY_KEY: Final = b"idempotency-key"
IDEMPOTENCY_KEY_BYTES_MAX: Final = limits.DEDUP_ID_BYTES_MAX - 12
_KEY_PATTERN: Final = re.compile(rb"[!-~]{1,%d}" % IDEMPOTENCY_KEY_BYTES_MAX)
_SLICE_BYTES_MAX: Final = limits.MIB
_SLICE_MESSAGES_MAX: Final = 4_096


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
    if key is None:
        return b""
    if not _KEY_PATTERN.fullmatch(key):
        raise ValidationError(
            f"the Idempotency-Key of {len(key)} bytes is not valid: use 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible "
            "ASCII characters",
            field="Idempotency-Key",
        )
    return key


def dedup_ids(
    key: bytes, messages: Sequence[NewMessage], kinds: Sequence[object] | None = None
) -> Sequence[NewMessage]:
    """The messages with a dedup id each, one per slice; as they are without a key.

    `kinds` tells apart messages that cannot share a batch for a reason that is not visible in them in the same way each
    time: a delay is a different time of delivery in every repetition of the request.
    """
    if not key:
        return messages
    numbers: dict[object, int] = {}
    sizes: dict[int, tuple[int, int]] = {}
    marked = []
    for place, message in enumerate(messages):
        kind = (message.priority, kinds[place] if kinds else None)
        size = len(message.value) + len(message.key or b"")
        number = numbers.setdefault(kind, len(sizes))
        size_before, count_before = sizes.get(number, (0, 0))
        if count_before and (size_before + size > _SLICE_BYTES_MAX or count_before >= _SLICE_MESSAGES_MAX):
            number = numbers[kind] = len(sizes)
            size_before = count_before = 0
        sizes[number] = (size_before + size, count_before + 1)
        marked.append(replace(message, dedup_id=key + b"\0%d" % number))
    return marked


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
