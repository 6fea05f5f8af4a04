"""What a stream reader is handed: stored batches in offset order, and the holes between them.

A hole is what retention took before it was read, a batch whose producer sent bytes that do not decode, or one that is
damaged on the disk of the only broker that had it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from lanner.batch import Batch, decode, never_decodes
from lanner.errors import MalformedBatch
from lanner.model import FLAG_DELAYED, FLAG_EXPIRED, Message, message_flags
from lanner.wire.messages import Fetched, FetchedBatch

RETENTION: Final = "retention"
MALFORMED: Final = "malformed"
DAMAGED: Final = "damaged"


class Hole(NamedTuple):
    """Offsets first_offset .. next_offset - 1 cannot be read: `reason` says why."""

    partition: int
    first_offset: int
    next_offset: int
    reason: str = RETENTION  # or malformed, or damaged

    @property
    def size(self) -> int:
        return self.next_offset - self.first_offset


class ReadBatch:
    """Messages of one stored batch as columns. The values are as the producer sent them: checksums are verified."""

    __slots__ = (
        "_start",
        "batch",
        "count",
        "first_offset",
        "flags",
        "next_offset",
        "offsets",
        "partition",
        "timestamp_ms",
        "topic",
    )

    def __init__(
        self, topic: str, partition: int, stored: FetchedBatch, data: memoryview, from_offset: int, read_ms: int = 0
    ) -> None:
        batch = decode(data)
        if batch.header.is_extract:
            batch.verify_messages()
        self.topic = topic
        self.partition = partition
        self.timestamp_ms = stored.append_ms
        self.flags = message_flags(batch.header.deliver_at_ms, batch.header.expires_at_ms, read_ms)
        self.batch: Batch = batch
        self.first_offset = max(stored.base_offset, from_offset)
        self.next_offset = stored.base_offset + stored.count
        self._start = 0  # rows before it lie before the offset asked for
        base = stored.base_offset
        self.offsets: Sequence[int]
        if batch.positions is None:
            if batch.count != stored.count:
                raise MalformedBatch(
                    f"{topic}/{partition} at {base}: {batch.count} messages where {stored.count} are announced",
                    field="count",
                )
            self._start = min(self.first_offset - base, batch.count)
            self.offsets = range(self.first_offset, self.next_offset)
        else:
            offsets = [base + position for position in batch.positions]
            if offsets[-1] >= self.next_offset:
                raise MalformedBatch(f"{topic}/{partition} at {base}: a position lies outside", field="positions")
            self._start = sum(1 for offset in offsets if offset < from_offset)
            self.offsets = offsets[self._start :]
        self.count = len(self.offsets)

    @property
    def priority(self) -> int:
        return self.batch.header.priority

    @property
    def deliver_at_ms(self) -> int:
        """Queue groups get these messages from this moment on; 0: at once."""
        return self.batch.header.deliver_at_ms

    @property
    def expires_at_ms(self) -> int:
        """Queue groups no longer get these messages from this moment on; 0: never."""
        return self.batch.header.expires_at_ms

    @property
    def is_delayed(self) -> bool:
        """Queue groups did not get these messages yet when they were read."""
        return bool(self.flags & FLAG_DELAYED)

    @property
    def is_expired(self) -> bool:
        """Queue groups no longer got these messages when they were read."""
        return bool(self.flags & FLAG_EXPIRED)

    def __len__(self) -> int:
        return self.count

    def values(self) -> list[bytes]:
        values = self.batch.values()
        return values[self._start :] if self._start else values

    def keys(self) -> list[bytes | None]:
        return self.batch.keys()[self._start :]

    def headers(self) -> list[dict[str, bytes]]:
        return self.batch.headers()[self._start :]

    def timestamps(self) -> list[int] | None:
        """The producers' own times, where they gave them."""
        found = self.batch.timestamps()
        return None if found is None else found[self._start :]

    def messages(self) -> Iterator[Message]:
        """Every message as an object, each made when it is asked for."""
        header, timestamps = self.batch.header, self.timestamps()
        columns = zip(
            repeat(self.topic),
            repeat(self.partition),
            self.offsets,
            self.values(),
            self.keys(),
            self.headers(),
            repeat(header.priority),
            repeat(self.timestamp_ms),
            repeat(None) if timestamps is None else timestamps,
            repeat(header.deliver_at_ms),
            repeat(header.expires_at_ms),
            repeat(0),  # no attempt: it is read, not delivered
            repeat(self.flags),
            strict=False,  # some have no end
        )
        return map(Message._make, columns)

    def __repr__(self) -> str:
        return f"<ReadBatch {self.topic}/{self.partition} offsets {self.first_offset}..{self.next_offset - 1}>"


class Page(NamedTuple):
    """What one fetch brought for one partition."""

    fetched: Fetched
    bulk: memoryview


def read_page(topic: str, partition: int, page: Page, position: int) -> tuple[list[ReadBatch], list[Hole], int]:
    """The batches of a page from `position` on, the holes before, between and in them, and where to go on."""
    begun = position
    read_ms = page.fetched.time_ms or int(time.time() * 1_000)
    batches: list[ReadBatch] = []
    holes: list[Hole] = []
    start = 0
    for stored in page.fetched.batches:
        data = page.bulk[start : start + stored.size]
        start += stored.size
        if stored.base_offset + stored.count <= position:
            continue
        try:
            batch = ReadBatch(topic, partition, stored, data, position, read_ms)
        except MalformedBatch:
            if not never_decodes(data):
                raise
            _pass_by(partition, position, stored, holes)
            position = stored.base_offset + stored.count
            continue
        if not isinstance(batch.offsets, range) or batch.first_offset > position:
            _note_holes(partition, position, batch, holes)
        position = batch.next_offset
        if batch.count:
            batches.append(batch)
    if page.fetched.next_offset > position:
        holes.append(Hole(partition, position, page.fetched.next_offset))
        position = page.fetched.next_offset
    if page.fetched.lanes:
        holes = [part for hole in holes for part in _without_other_lanes(hole, page.fetched)]
    for first, end in page.fetched.damaged:
        holes = [part for hole in holes for part in _parts(hole, max(first, begun), end)]
    return batches, holes, position


def _without_other_lanes(hole: Hole, fetched: Fetched) -> list[Hole]:
    """Between batches of some priorities lie those of others: of such a gap, what the broker says is missing."""
    if hole.reason != RETENTION:
        return [hole]
    missing = [*fetched.holes, *fetched.damaged]
    missing += [(batch.base_offset, batch.base_offset + batch.count) for batch in fetched.batches]  # of extracts
    found = []
    for first, end in sorted(missing):
        first, end = max(first, hole.first_offset), min(end, hole.next_offset)
        if first < end:
            found.append(hole._replace(first_offset=first, next_offset=end))
    return found


def _parts(hole: Hole, first: int, end: int) -> list[Hole]:
    """A hole, with what lies in first .. end - 1 called damaged."""
    first, end = max(first, hole.first_offset), min(end, hole.next_offset)
    if first >= end:
        return [hole]
    parts = (
        hole._replace(next_offset=first),
        Hole(hole.partition, first, end, DAMAGED),
        hole._replace(first_offset=end),
    )
    return [part for part in parts if part.size]


def _pass_by(partition: int, position: int, stored: FetchedBatch, holes: list[Hole]) -> None:
    """A batch that nobody can read, and what retention took before it."""
    if stored.base_offset > position:
        holes.append(Hole(partition, position, stored.base_offset))
    first_offset = max(position, stored.base_offset)
    holes.append(Hole(partition, first_offset, stored.base_offset + stored.count, MALFORMED))


def _note_holes(partition: int, position: int, batch: ReadBatch, holes: list[Hole]) -> None:
    for offset in batch.offsets if not isinstance(batch.offsets, range) else batch.offsets[:1]:
        if offset > position:
            holes.append(Hole(partition, position, offset))
        position = offset + 1
    if not isinstance(batch.offsets, range) and position < batch.next_offset:
        holes.append(Hole(partition, position, batch.next_offset))
