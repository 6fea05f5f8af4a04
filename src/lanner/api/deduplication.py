"""One key for a whole request of messages, as dedup ids of the batches that it becomes.

A dedup id belongs to a batch, and a partition answers a known one with the first result. One request may become several
batches of the same partition (different priorities, different delays, or simply too large for one), so the key alone
would make the second batch look like a repetition of the first. Therefore each slice of the request has its own id:
the key, a zero byte that no key can hold, and the slice's number. Slices follow from the request's content alone,
so the same request again makes the same ids.

A key that was used before is a repetition only if the messages are the same. They are held against what the partition
stored under the key, which every broker can read; only repetitions cost that. What retention took is not compared.
Delays and TTLs are stored as times. How long they were when they were asked is known but for what the first request
waited and what the clocks of brokers differ by, so they are compared within a tolerance.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from lanner import limits
from lanner.batch import decode
from lanner.calls import Answer
from lanner.errors import IdempotencyConflict, MalformedBatch, ValidationError
from lanner.forwarding.values import NewMessage, Stored
from lanner.wire.messages import Fetch, Fetched, FetchedBatch

KEY_BYTES_MAX: Final = limits.DEDUP_ID_BYTES_MAX - 12
_KEY_PATTERN: Final = re.compile(rb"[!-~]{1,%d}" % KEY_BYTES_MAX)
_SLICE_BYTES_MAX: Final = limits.MIB
_SLICE_MESSAGES_MAX: Final = 4_096
_SPAN_TOLERANCE_MS: Final = 60_000  # between a delay or TTL and the same one of the request that was stored


def check_key(key: bytes, what: str) -> bytes:
    """The key of a request, if it may be one."""
    if not _KEY_PATTERN.fullmatch(key):
        raise ValidationError(
            f"the {what} of {len(key)} bytes is not valid: use 1 to {KEY_BYTES_MAX} visible ASCII characters",
            field=what,
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
        size = message.size
        number = numbers.setdefault(kind, len(sizes))
        size_before, count_before = sizes.get(number, (0, 0))
        if count_before and (size_before + size > _SLICE_BYTES_MAX or count_before >= _SLICE_MESSAGES_MAX):
            number = numbers[kind] = len(sizes)
            size_before = count_before = 0
        sizes[number] = (size_before + size, count_before + 1)
        marked.append(replace(message, dedup_id=key + b"\0%d" % number))
    return marked


async def refuse_other_messages(
    ask: Callable[[Fetch], Awaitable[Answer[Fetched]]],
    topic: str,
    messages: Sequence[NewMessage],
    stored: Sequence[Stored],
    asked_ms: int = 0,
) -> None:
    """Raise IdempotencyConflict when a known key came with other messages than those that were stored under it.

    Times of delivery and of expiry are compared by how far they lie behind `asked_ms`.
    """
    slices: defaultdict[tuple[bytes, int], list[tuple[int, NewMessage]]] = defaultdict(list)
    for message, one in zip(messages, stored, strict=True):
        if one.duplicate:
            slices[message.dedup_id, one.partition].append((one.offset, message))
    for (_, partition), found in slices.items():
        first = min(offset for offset, _ in found)
        answer = await ask(Fetch(topic, partition, first, 1))  # of however many bytes: one batch always comes
        for fetched, data in zip(answer.control.batches, answer.bulk, strict=True):
            same = [message for _, message in found]
            if fetched.base_offset == first and not _is_same(fetched, data, same, asked_ms):
                raise IdempotencyConflict(partition=partition, offset=first)


def _is_same(fetched: FetchedBatch, data: bytes | memoryview, messages: Sequence[NewMessage], asked_ms: int) -> bool:
    try:
        batch = decode(data)
    except MalformedBatch:
        return True
    if batch.positions is not None:  # retention kept some of its messages only
        return True
    header, one = batch.header, messages[0]  # all messages of a slice have the same times
    asked = (one.deliver_at_ms, one.expires_at_ms)
    if not _has_same_spans((header.deliver_at_ms, header.expires_at_ms), fetched.append_ms, asked, asked_ms):
        return False
    return fetched.count == len(messages) and all(
        (value, key, headers, batch.header.priority) == (one.value, one.key, dict(one.headers or {}), one.priority)
        for one, value, key, headers in zip(messages, batch.values(), batch.keys(), batch.headers(), strict=True)
    )


def _has_same_spans(stored: tuple[int, int], append_ms: int, asked: tuple[int, int], asked_ms: int) -> bool:
    """Whether a delivery and an expiry, 0 where there is none, are as far away as they were."""
    if [bool(one) for one in stored] != [bool(one) for one in asked]:
        return False
    if all(stored) and stored[1] - stored[0] != asked[1] - asked[0]:  # no clock lies between these
        return False
    return all(
        abs((one - append_ms) - (other - asked_ms)) <= _SPAN_TOLERANCE_MS
        for one, other in zip(stored, asked, strict=True)
        if one
    )
