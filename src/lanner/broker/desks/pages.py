"""Looks and listings, page by page: bounded in messages and in bytes, with the place where the next page begins.

What is read for a page is bounded too, because a batch of which one message is wanted is read whole. Batches are
decoded one at a time in a reader thread, as far as the page has room, so memory holds one of them and the loop goes on.
One message always fits. A batch that does not decode shows nothing.

A look goes through the lanes from the most urgent down, in each through the partitions, in each in the order of the
lane; it goes on at (priority, partition, offset). Dead letters come by partition and offset, and go on there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lanner import batch, limits
from lanner.broker.ports import PayloadReader
from lanner.broker.replicas.replica import Replica
from lanner.calls.merging import Room
from lanner.errors import LannerError, MalformedBatch
from lanner.forwarding.delivery import messages_of
from lanner.forwarding.values import LeasedBatch, Range
from lanner.model import LANES, Looked, LookPlace, Message
from lanner.partition import BatchRef, DeadEntry, batch_start
from lanner.wire.administration import DeadLetter

_CHUNK_BYTES: Final = limits.MIB  # of stored batches that are read together
_LETTER_BYTES: Final = 200  # of a dead letter besides its message: reason, times, numbers

Replicas = Sequence[tuple[int, Replica]]
Letter = tuple[DeadLetter, bytes]  # and its message as an extract, empty when it cannot be read
DeadPlace = tuple[int, int]  # partition, offset


class _Stop(NamedTuple):
    """The first offset that a page no longer holds."""

    offset: int


class Pages:
    """Reads pages for one broker."""

    def __init__(self, reader: PayloadReader) -> None:
        self._reader = reader

    async def look(
        self, topic: str, replicas: Replicas, offset: int, max_messages: int, max_bytes: int, after: LookPlace | None
    ) -> Looked:
        """The most urgent first among what is at or after the offset, from `after` on."""
        room, page = Room(max_bytes), Looked()
        read_bytes = 0
        for lane, number, replica, resume in _in_order(replicas, after):
            refs = replica.partition.lane_batches(lane, offset, max_messages - len(page) + 1, resume)
            first_offset = max(offset, resume)
            for chunk in _chunks(refs):
                if len(page) >= max_messages or read_bytes >= limits.READ_BYTES_MAX:
                    page.next = (lane, number, max(chunk[0].base_offset, first_offset))
                    return page
                read_bytes += sum(ref.size for ref in chunk)
                payloads = await self._reader.payloads([(replica.set_id, ref.index) for ref in chunk])
                wanted = max_messages - len(page)

                def show(
                    chunk: Sequence[BatchRef] = chunk,
                    payloads: Sequence[bytes | None] = payloads,
                    first_offset: int = first_offset,
                    wanted: int = wanted,
                    number: int = number,
                ) -> tuple[list[Message], _Stop | None]:
                    return _shown(topic, number, chunk, payloads, first_offset, wanted, room)

                messages, stop = await self._reader.in_reader(show)
                page.extend(messages)
                if stop is not None:
                    page.next = (lane, number, stop.offset)
                    return page
        return page

    async def dead_letters(
        self, replicas: Replicas, group: str, start_offset: int, limit: int, after: DeadPlace | None
    ) -> tuple[list[Letter], DeadPlace | None]:
        """By partition and offset, with the messages themselves; and where the next page begins."""
        room = Room(limits.LIST_BYTES_MAX)
        letters: list[Letter] = []
        read_bytes = 0
        for number, replica in sorted(replicas, key=lambda one: one[0]):
            if after is not None and number < after[0]:
                continue
            first_offset = max(start_offset, after[1]) if after is not None and number == after[0] else start_offset
            entries = replica.partition.dead_letters(group, first_offset, limit - len(letters) + 1)
            for chunk in _dead_chunks(entries):
                if len(letters) >= limit or read_bytes >= limits.READ_BYTES_MAX:
                    return letters, (number, chunk[0].offset)
                read_bytes += chunk[0].ref.size
                wanted = limit - len(letters)
                (payload,) = await self._reader.payloads([(replica.set_id, chunk[0].ref.index)])

                def extracts(
                    chunk: Sequence[DeadEntry] = chunk[:wanted], payload: bytes | None = payload, number: int = number
                ) -> list[Letter]:
                    return _letters(number, chunk, payload, room)

                made = await self._reader.in_reader(extracts)
                letters += made
                if len(made) < len(chunk):
                    return letters, (number, chunk[len(made)].offset)
        return letters, None


def _in_order(replicas: Replicas, after: LookPlace | None) -> Iterator[tuple[int, int, Replica, int]]:
    """(lane, partition, replica, the offset to resume at or -1) in the order of a look, from a place on."""
    first_lane, first_number, first_offset = after if after is not None else (LANES - 1, 0, -1)
    for lane in range(first_lane, -1, -1):
        for number, replica in sorted(replicas, key=lambda one: one[0]):
            if lane == first_lane and number < first_number:
                continue
            yield lane, number, replica, first_offset if (lane, number) == (first_lane, first_number) else -1


def _chunks(refs: Sequence[BatchRef]) -> Iterator[Sequence[BatchRef]]:
    """As many batches together as are worth one read; at least one."""
    start = size = 0
    for place, ref in enumerate(refs):
        if place > start and size + ref.size > _CHUNK_BYTES:
            yield refs[start:place]
            start, size = place, 0
        size += ref.size
    if start < len(refs):
        yield refs[start:]


def _dead_chunks(entries: Sequence[DeadEntry]) -> Iterator[Sequence[DeadEntry]]:
    """The dead letters of one batch together."""
    start = 0
    for place in range(1, len(entries) + 1):
        if place == len(entries) or entries[place].ref.index != entries[start].ref.index:
            yield entries[start:place]
            start = place


def _shown(
    topic: str,
    partition: int,
    refs: Sequence[BatchRef],
    payloads: Sequence[bytes | None],
    first_offset: int,
    wanted: int,
    room: Room,
) -> tuple[list[Message], _Stop | None]:
    """The messages of some batches, as far as there is room; and where it ended before them."""
    messages: list[Message] = []
    for ref, payload in zip(refs, payloads, strict=True):
        if len(messages) >= wanted:
            return messages, _Stop(max(ref.base_offset, first_offset))
        if payload is None:
            continue  # retention took it since the look at the lane
        data = memoryview(payload)[batch_start(payload) :]
        try:
            decoded = batch.decode(data)
        except MalformedBatch:
            continue
        span = [Range(ref.base_offset, ref.count, 0)]
        whole = LeasedBatch(partition, 0, ref.base_offset, ref.append_ms, 0, ref.lane, data, span)
        for delivered, size in zip(messages_of(topic, whole, decoded), decoded.sizes(), strict=True):
            message = delivered.message
            if message.offset < first_offset:
                continue
            if len(messages) >= wanted or (not room.has(size) and not room.is_empty):
                return messages, _Stop(message.offset)
            room.take(size)
            messages.append(message)
    return messages, None


def _letters(partition: int, entries: Sequence[DeadEntry], payload: bytes | None, room: Room) -> list[Letter]:
    """The dead letters of one batch, each with its message as an extract; fewer when the page is full."""
    decoded: batch.Batch | None = None
    if payload is not None:
        try:
            decoded = batch.decode(memoryview(payload)[batch_start(payload) :])
        except MalformedBatch:
            decoded = None  # it is listed without its message
    letters: list[Letter] = []
    for entry in entries:
        data = b""
        if decoded is not None:
            try:
                data = decoded.extract([entry.offset - entry.ref.base_offset])
            except LannerError:
                data = b""
        # Compressed, a message may be small and unfold into a megabyte where it is shown.
        size = (max(len(data), batch.read_header(data).raw_length) if data else 0) + _LETTER_BYTES
        if not room.has(size) and not room.is_empty:
            break
        room.take(size)
        told = (entry.offset, entry.lane, entry.attempts, entry.reason, entry.died_ms, entry.ref.append_ms)
        letters.append((DeadLetter(partition, *told, len(data)), data))
    return letters
