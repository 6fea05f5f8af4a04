"""Leased batches as single messages, or as extracts of just what was leased. Runs where it may take a while."""

from __future__ import annotations

from collections.abc import Sequence

from lanner import batch
from lanner.broker.calls import Delivered, LeasedBatch
from lanner.errors import MalformedBatch
from lanner.model import Message


def slice_for(leased: LeasedBatch) -> bytes | memoryview:
    """An extract of the leased messages; the batch as it is when it does not decode, so that its consumer sees why."""
    positions = [
        offset - leased.base_offset
        for item in leased.ranges
        for offset in range(item.first_offset, item.first_offset + item.count)
    ]
    try:
        return batch.extract(leased.data, sorted(positions))
    except MalformedBatch:
        return leased.data


def messages_of(topic: str, batches: Sequence[LeasedBatch]) -> list[Delivered]:
    """Every leased message of these batches, decoded, in the order leased."""
    delivered: list[Delivered] = []
    for leased in batches:
        decoded = batch.decode(leased.data)
        header = decoded.header
        positions = decoded.positions
        place_of = None if positions is None else {position: place for place, position in enumerate(positions)}
        values, keys, headers, timestamps = decoded.values(), decoded.keys(), decoded.headers(), decoded.timestamps()
        for item in leased.ranges:
            for offset in range(item.first_offset, item.first_offset + item.count):
                position = offset - leased.base_offset
                place = position if place_of is None else place_of.get(position, -1)
                if place < 0:
                    continue  # retention kept only some messages of this batch, and this is not one of them
                message = Message(
                    topic=topic,
                    partition=leased.partition,
                    offset=offset,
                    value=values[place],
                    key=keys[place],
                    headers=headers[place],
                    priority=header.priority,
                    timestamp_ms=leased.append_ms,
                    producer_timestamp_ms=None if timestamps is None else timestamps[place],
                    deliver_at_ms=header.deliver_at_ms,
                    expires_at_ms=header.expires_at_ms,
                    attempt=item.attempt,
                )
                delivered.append(Delivered(message, leased.token, leased.deadline_ms))
    return delivered
