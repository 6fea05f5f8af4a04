"""The reply of a poll as JSON, written batch by batch.

Between two messages of a leased range only the offset and the value change. So where messages are values that are
text, which most are, the rest is written once for a range; the others go through their shape, one by one. The tests
hold both ways against each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from lanner import batch
from lanner.api.rest.group_shapes import LeasedMessage
from lanner.api.rest.operations import MESSAGE_BYTES
from lanner.api.rest.topics import fields_of
from lanner.forwarding.delivery import DeliveredBatches, Opened, messages_of
from lanner.forwarding.values import Delivered

_WRITTEN_COST: Final = 8  # a message that is written goes so many times as fast as one that has a shape made of it
_encoder: Final = msgspec.json.Encoder()


def polled_reply(topic: str, group: str, delivered: Sequence[Delivered]) -> bytes:
    """PollReply. Names are such that JSON writes them as they are."""
    if isinstance(delivered, DeliveredBatches):
        written = [piece for one in delivered.batches for piece in _written(topic, one)]
    else:
        written = _shaped(delivered)
    head = f'{{"topic":"{topic}","group":"{group}","count":{len(delivered)},"messages":['
    return f"{head}{','.join(written)}]}}".encode()


def cost_of(delivered: Sequence[Delivered]) -> int:
    """What it takes to make the reply, as bytes of messages that go through their shape."""
    if isinstance(delivered, DeliveredBatches):
        return sum([_cost_of(one) for one in delivered.batches])
    return sum([len(one.message.value) for one in delivered]) + MESSAGE_BYTES * len(delivered)


def _cost_of(opened: Opened) -> int:
    size = opened.decoded.header.raw_length + MESSAGE_BYTES * sum([item.count for item in opened.leased.ranges])
    return size // _WRITTEN_COST if _is_plain(opened.decoded) else size


def _is_plain(decoded: batch.Batch) -> bool:
    return decoded.key_column() is None and decoded.headers_column() is None


def _written(topic: str, opened: Opened) -> Iterator[str]:
    leased, decoded = opened
    values = _texts(decoded) if _is_plain(decoded) else None
    if values is None:
        yield from _shaped(messages_of(topic, leased, decoded))
        return
    header = decoded.header
    head = f'{{"id":"{topic}/{leased.partition}/'
    middle = f'","partition":{leased.partition},"offset":'
    times = f',"priority":{header.priority},"timestamp_ms":{leased.append_ms}'
    if header.deliver_at_ms:
        times += f',"deliver_at_ms":{header.deliver_at_ms}'
    if header.expires_at_ms:
        times += f',"expires_at_ms":{header.expires_at_ms}'
    for attempt, offsets, places in opened.pieces():
        tail = f'{times},"attempt":{attempt},"token":{leased.token},"lease_until_ms":{leased.deadline_ms}}}'
        chosen = values[places.start : places.stop] if isinstance(places, range) else [values[at] for at in places]
        if chosen:
            rows = [f'{offset}{middle}{offset},"value":{value}' for offset, value in zip(offsets, chosen, strict=True)]
            yield head + f"{tail},{head}".join(rows) + tail


def _texts(decoded: batch.Batch) -> list[str] | None:
    """The values as JSON writes them; None: some are no text."""
    column, data = decoded.value_column()
    try:
        whole = str(data, "utf-8")
        if len(whole) == len(data):  # one byte a character
            texts = [whole[start:end] for start, end in pairwise(column.tolist())]
        else:
            texts = [str(value, "utf-8") for value in decoded.values()]
    except UnicodeDecodeError:
        return None
    return _encoder.encode_lines(texts).decode().split("\n")[:-1]


def _shaped(delivered: Sequence[Delivered]) -> list[str]:
    return [_encoder.encode(_leased(item)).decode() for item in delivered]


def _leased(item: Delivered) -> LeasedMessage:
    fields = fields_of(item.message)
    return LeasedMessage(**fields, attempt=item.message.attempt, token=item.token, lease_until_ms=item.deadline_ms)
