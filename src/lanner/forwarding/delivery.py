"""Leased batches as single messages, or as extracts of just what was leased. Runs where it may take a while."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from lanner import batch, limits
from lanner.errors import MalformedBatch
from lanner.forwarding.values import Delivered, LeasedBatch
from lanner.model import Message


class DecodedBatches:
    """The batches that extracts were made from lately: a poll of one message must not decode six hundred each time.

    Shared by the loop and the reader threads. A batch leaves when its last message was taken; what is left behind, such
    as by consumers that went away, is bounded by the bytes of the batches.
    """

    def __init__(self, bytes_max: int = 16 * limits.MIB) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._batches: OrderedDict[tuple[int, int], batch.Batch] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[int, int]) -> batch.Batch | None:
        with self._lock:
            found = self._batches.get(key)
            if found is not None:
                self._batches.move_to_end(key)
            return found

    def put(self, key: tuple[int, int], decoded: batch.Batch) -> None:
        with self._lock:
            if key not in self._batches:
                self._bytes += decoded.header.length
            self._batches[key] = decoded
            while self._bytes > self._bytes_max and len(self._batches) > 1:
                _, oldest = self._batches.popitem(last=False)
                self._bytes -= oldest.header.length

    def drop(self, key: tuple[int, int]) -> None:
        with self._lock:
            gone = self._batches.pop(key, None)
            if gone is not None:
                self._bytes -= gone.header.length

    def extract(self, key: tuple[int, int], leased: LeasedBatch) -> bytes | memoryview:
        """An extract of the leased messages; the batch as it is when it does not decode: its consumer sees why."""
        try:
            decoded = self.get(key)
            if decoded is None:
                decoded = batch.decode(leased.data, headers=False)
                self.put(key, decoded)
            data = decoded.extract(positions_of(leased))
        except MalformedBatch:
            return leased.data
        return data if len(data) < len(leased.data) else leased.data  # what compresses well together may not alone


def positions_of(leased: LeasedBatch) -> list[int]:
    """The places of the leased messages in their batch, rising."""
    return sorted(
        offset - leased.base_offset
        for item in leased.ranges
        for offset in range(item.first_offset, item.first_offset + item.count)
    )


def messages_of(topic: str, leased: LeasedBatch, decoded: batch.Batch) -> list[Delivered]:
    """Every leased message of this batch, in the order leased."""
    delivered: list[Delivered] = []
    header = decoded.header
    place_of = places_of(decoded)
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


def places_of(decoded: batch.Batch) -> dict[int, int] | None:
    """Where the message of each original position is in an extract; None: everything is where it was."""
    positions = decoded.positions
    return None if positions is None else {position: place for place, position in enumerate(positions)}


def raw_bytes(data: bytes | memoryview) -> int:
    """How many bytes a batch unfolds into, as far as its header can be believed: what decoding it costs."""
    try:
        return batch.read_header(data).raw_length
    except MalformedBatch:
        return len(data)
