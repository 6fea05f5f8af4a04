"""Leased batches as single messages, or as extracts of just what was leased. Runs where it may take a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple, overload

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


class Opened(NamedTuple):
    """A leased batch that was decoded."""

    leased: LeasedBatch
    decoded: batch.Batch

    def pieces(self) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
        """Of each range its attempt, its offsets, and where in the batch they are."""
        place_of, base = places_of(self.decoded), self.leased.base_offset
        for first, count, attempt in self.leased.ranges:
            offsets: Sequence[int] = range(first, first + count)
            if place_of is None:
                yield attempt, offsets, range(first - base, first - base + count)
            else:
                # Retention may have kept only some messages of this batch.
                offsets = [offset for offset in offsets if offset - base in place_of]
                yield attempt, offsets, [place_of[offset - base] for offset in offsets]


class DeliveredBatches(Sequence[Delivered]):
    """The messages of leased batches. Who writes them batch by batch need not make one of each."""

    __slots__ = ("_each", "batches", "topic")

    def __init__(self, topic: str, batches: Sequence[Opened]) -> None:
        self.topic = topic
        self.batches = batches
        self._each: list[Delivered] | None = None

    @property
    def each(self) -> list[Delivered]:
        if self._each is None:
            self._each = [message for one in self.batches for message in messages_of(self.topic, *one)]
        return self._each

    def __len__(self) -> int:
        return sum([len(offsets) for one in self.batches for _, offsets, _ in one.pieces()])

    def __iter__(self) -> Iterator[Delivered]:
        return iter(self.each)

    @overload
    def __getitem__(self, place: int) -> Delivered: ...
    @overload
    def __getitem__(self, place: slice) -> list[Delivered]: ...
    def __getitem__(self, place: int | slice) -> Delivered | list[Delivered]:
        return self.each[place]


def messages_of(topic: str, leased: LeasedBatch, decoded: batch.Batch) -> list[Delivered]:
    """Every leased message of this batch, in the order leased."""
    delivered: list[Delivered] = []
    header = decoded.header
    values, keys, headers, timestamps = decoded.values(), decoded.keys(), decoded.headers(), decoded.timestamps()
    for attempt, offsets, places in Opened(leased, decoded).pieces():
        for offset, place in zip(offsets, places, strict=True):
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
                attempt=attempt,
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
