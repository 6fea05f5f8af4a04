"""Fetched batches as a page of single messages, for doors whose callers cannot read batches.

A page is bounded by messages and by bytes as they are decoded; one message always fits. What cannot be read is a hole
with its reason, so that a reader who counts offsets knows that nothing was skipped silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from lanner import limits
from lanner.batch import decode
from lanner.calls import Answer
from lanner.calls.merging import Room
from lanner.errors import MalformedBatch
from lanner.model import Message, message_flags
from lanner.net.clock import now_ms
from lanner.wire.messages import Fetch, Fetched, FetchedBatch

FETCH_BYTES: Final = limits.MIB  # of stored batches, for one page

Reason = Literal["retention", "malformed", "damaged"]


class Hole(NamedTuple):
    """Offsets that cannot be read."""

    first_offset: int
    next_offset: int
    reason: Reason


class Page(NamedTuple):
    """Messages in offset order, and where to go on."""

    messages: list[Message]
    holes: list[Hole]
    next_offset: int


def page_of(asked: Fetch, answer: Answer[Fetched], messages_max: int) -> Page:
    """Message by message, as far as the page has room."""
    room, fetched = Room(limits.LIST_BYTES_MAX), answer.control
    messages: list[Message] = []
    holes: list[Hole] = []
    next_offset = fetched.next_offset
    for batch, data in zip(fetched.batches, answer.bulk, strict=True):
        try:
            found = _messages_of(asked, batch, data, fetched.time_ms or now_ms())
        except MalformedBatch:
            first = max(batch.base_offset, asked.offset)
            holes.append(Hole(first, batch.base_offset + batch.count, "malformed"))
            continue
        fitting = _fitting(found, room, messages_max - len(messages))
        messages += fitting.messages
        if fitting.next_offset is not None:
            next_offset = fitting.next_offset
            break
    holes += [Hole(first, end, "retention") for first, end in fetched.holes if first < next_offset]
    holes += [Hole(first, end, "damaged") for first, end in fetched.damaged if first < next_offset]
    return Page(messages, sorted(holes), next_offset)


class _Fitting(NamedTuple):
    messages: Sequence[Message]
    next_offset: int | None  # None: all of them


def _fitting(messages: Sequence[Message], room: Room, limit: int) -> _Fitting:
    for place, message in enumerate(messages):
        size = len(message.value) + len(message.key or b"") + sum(map(len, message.headers.values()))
        if place >= limit or (not room.has(size) and not room.is_empty):
            return _Fitting(messages[:place], message.offset)
        room.take(size)
    return _Fitting(messages, None)


def _messages_of(asked: Fetch, fetched: FetchedBatch, data: bytes | memoryview, read_ms: int) -> list[Message]:
    """The messages of a fetched batch at or after the offset asked for, in offset order."""
    batch = decode(data)
    values, keys, headers = batch.values(), batch.keys(), batch.headers()
    positions = batch.positions if batch.positions is not None else range(batch.count)
    flags = message_flags(batch.header.deliver_at_ms, batch.header.expires_at_ms, read_ms)
    return [
        Message(
            topic=asked.topic,
            partition=asked.partition,
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
        if fetched.base_offset + position >= asked.offset
    ]
