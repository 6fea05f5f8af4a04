"""Where the batches are: by offset, and by place in each lane.

Both indexes are chunks of at most 256 entries, each chunk one row. Only the keys of the chunks stay in memory; a chunk
is loaded when something in it is wanted, and let go again once it is clean and others have been wanted since. So a
backlog of millions costs a few thousand integers, and finding a batch costs two bisections whatever the backlog.

A delayed batch has offsets but no places: its lane_base is -1 until a decision moves it into its lane. Because of
that, offsets inside a lane do not strictly rise; each lane chunk notes the highest offset before it, which does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from lanner.limits import OFFSET_MAX
from lanner.partition.keys import BATCHES, LANES, integer_key, integer_of, prefix_end

CHUNK_ENTRIES_MAX: Final = 256
CLEAN_CHUNKS_MAX: Final = 48
NOT_PLACED: Final = -1


class BatchRef(NamedTuple):
    """One stored batch: where it is in the partition, in its lane, and in the log."""

    base_offset: int
    count: int  # type: ignore[assignment]
    index: int  # type: ignore[assignment]
    size: int
    lane: int
    lane_base: int
    append_ms: int
    deliver_at_ms: int
    expires_at_ms: int
    kept: tuple[int, ...] | None = None


class Rows(Protocol):
    """Where saved rows are read from."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]: ...


class BatchChunk:
    """Batches in offset order; `keys` are their base offsets."""

    __slots__ = ("keys", "refs")

    def __init__(self, refs: list[BatchRef]) -> None:
        self.refs = refs
        self.keys = [ref.base_offset for ref in refs]


class LaneChunk:
    """Batches in place order; `keys` are their first places."""

    __slots__ = ("before", "keys", "offsets")

    def __init__(self, before: int, keys: list[int], offsets: list[int]) -> None:
        self.before = before
        self.keys = keys
        self.offsets = offsets


Chunk = TypeVar("Chunk", BatchChunk, LaneChunk)


class _Chunks(Generic[Chunk]):
    """The chunks of one index: which there are, which are in memory, which have changed."""

    def __init__(self, rows: Rows, prefix: bytes) -> None:
        self.prefix = prefix
        self.starts: list[int] = []
        self._rows = rows
        self._clean: dict[int, Chunk] = {}
        self._dirty: dict[int, Chunk | None] = {}

    def encode(self, chunk: Chunk) -> bytes:
        raise NotImplementedError

    def decode(self, row: bytes) -> Chunk:
        raise NotImplementedError

    def chunk(self, number: int) -> Chunk:
        """The number-th chunk, from memory or from its row."""
        start = self.starts[number]
        found = self._dirty.get(start) or self._clean.get(start)
        if found is not None:
            return found
        row = self._rows.get(integer_key(self.prefix, start))
        assert row is not None, f"chunk {start} of {self.prefix!r} has no row"
        chunk = self.decode(row)
        self._clean[start] = chunk
        if len(self._clean) > CLEAN_CHUNKS_MAX:
            del self._clean[next(iter(self._clean))]
        return chunk

    def begin(self, start: int, chunk: Chunk) -> None:
        self.starts.append(start)
        self._dirty[start] = chunk

    def changed(self, number: int, chunk: Chunk) -> None:
        start = self.starts[number]
        if start not in self._dirty:
            self._clean.pop(start, None)
            self._dirty[start] = chunk

    def remove(self, number: int) -> None:
        start = self.starts.pop(number)
        self._clean.pop(start, None)
        self._dirty[start] = None

    def take_dirty(self, into: dict[bytes, bytes | None]) -> None:
        for start, chunk in self._dirty.items():
            key = integer_key(self.prefix, start)
            if chunk is None:
                into[key] = None
            else:
                into[key] = self.encode(chunk)
                self._clean[start] = chunk
        self._dirty = {}
        while len(self._clean) > CLEAN_CHUNKS_MAX:
            del self._clean[next(iter(self._clean))]

    def all_rows(self, into: dict[bytes, bytes]) -> None:
        for number, start in enumerate(self.starts):
            into[integer_key(self.prefix, start)] = self.encode(self.chunk(number))

    def stored(self) -> Iterator[tuple[int, bytes]]:
        for key, row in self._rows.scan(self.prefix, prefix_end(self.prefix)):
            yield integer_of(self.prefix, key), row

    @property
    def in_memory(self) -> int:
        """How many chunks are loaded now."""
        return len(self._clean) + len(self._dirty)


_encoder: Final = msgspec.msgpack.Encoder()
_refs_decoder: Final = msgspec.msgpack.Decoder(list[BatchRef])
_lane_decoder: Final = msgspec.msgpack.Decoder(tuple[int, list[int], list[int]])


class BatchIndex(_Chunks[BatchChunk]):
    """Batches by offset. A row begins with a byte that says whether a delayed batch is in it."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows, BATCHES)

    def load(self) -> list[BatchRef]:
        """Learn which chunks there are; gives back the batches that still wait for their time."""
        delayed: list[BatchRef] = []
        for start, row in self.stored():
            self.starts.append(start)
            if row[0]:
                delayed += [ref for ref in self.decode(row).refs if ref.lane_base == NOT_PLACED]
        return delayed

    def encode(self, chunk: BatchChunk) -> bytes:
        has_delayed = any(ref.lane_base == NOT_PLACED for ref in chunk.refs)
        return (b"\x01" if has_delayed else b"\x00") + _encoder.encode(chunk.refs)

    def decode(self, row: bytes) -> BatchChunk:
        return BatchChunk(_refs_decoder.decode(memoryview(row)[1:]))

    def append(self, ref: BatchRef) -> None:
        if self.starts:
            number = len(self.starts) - 1
            chunk = self.chunk(number)
            if len(chunk.refs) < CHUNK_ENTRIES_MAX:
                chunk.refs.append(ref)
                chunk.keys.append(ref.base_offset)
                self.changed(number, chunk)
                return
        self.begin(ref.base_offset, BatchChunk([ref]))

    def get(self, offset: int) -> BatchRef | None:
        """The batch that holds this offset."""
        starts = self.starts
        number = bisect_right(starts, offset) - 1
        if number < 0:
            return None
        start = starts[number]
        chunk = self._dirty.get(start) or self._clean.get(start) or self.chunk(number)
        at = bisect_right(chunk.keys, offset) - 1
        if at < 0:
            return None
        ref = chunk.refs[at]
        return ref if offset < ref.base_offset + ref.count else None

    def window(self, offset: int) -> tuple[int, int, list[int], list[BatchRef]]:
        """The chunk that an offset belongs to: from which offset, up to which, its base offsets, its batches. For
        callers who look up many neighbours; to be used before anything changes."""
        number = bisect_right(self.starts, offset) - 1
        chunk = self.chunk(number)
        high = self.starts[number + 1] if number + 1 < len(self.starts) else OFFSET_MAX
        return self.starts[number], high, chunk.keys, chunk.refs

    def replace(self, ref: BatchRef) -> None:
        """The same batch with other facts about it."""
        number = bisect_right(self.starts, ref.base_offset) - 1
        chunk = self.chunk(number)
        chunk.refs[bisect_left(chunk.keys, ref.base_offset)] = ref
        self.changed(number, chunk)

    def discard(self, base_offset: int) -> None:
        number = bisect_right(self.starts, base_offset) - 1
        chunk = self.chunk(number)
        at = bisect_left(chunk.keys, base_offset)
        del chunk.keys[at], chunk.refs[at]
        if chunk.refs:
            self.changed(number, chunk)
        else:
            self.remove(number)

    def walk(self, offset: int) -> Iterator[BatchRef]:
        """Batches in offset order, from the one that holds the offset, or the first after it."""
        number = max(0, bisect_right(self.starts, offset) - 1)
        while number < len(self.starts):
            chunk = self.chunk(number)
            at = max(0, bisect_right(chunk.keys, offset) - 1)
            if at < len(chunk.refs) and offset >= chunk.keys[at] + chunk.refs[at].count:
                at += 1
            yield from chunk.refs[at:]
            number += 1

    def first(self) -> BatchRef | None:
        return self.chunk(0).refs[0] if self.starts else None

    def first_at_time(self, time_ms: int) -> BatchRef | None:
        """The first batch appended at or after this time. Append times never fall as offsets rise."""
        low, high = 0, len(self.starts)
        while low < high:
            middle = (low + high) // 2
            if self.chunk(middle).refs[-1].append_ms < time_ms:
                low = middle + 1
            else:
                high = middle
        if low == len(self.starts):
            return None
        return next(ref for ref in self.chunk(low).refs if ref.append_ms >= time_ms)


class LaneIndex(_Chunks[LaneChunk]):
    """The batches of one lane by place. `first` is the first place that retention has left, `end` the next new one."""

    def __init__(self, rows: Rows, lane: int) -> None:
        super().__init__(rows, LANES + bytes((lane,)))
        self.first = 0
        self.end = 0
        self.highest_offset = -1
        self._befores: list[int] = []

    def load(self) -> None:
        for start, row in self.stored():
            self.starts.append(start)
            self._befores.append(_lane_decoder.decode(row)[0])

    def encode(self, chunk: LaneChunk) -> bytes:
        return _encoder.encode((chunk.before, chunk.keys, chunk.offsets))

    def decode(self, row: bytes) -> LaneChunk:
        return LaneChunk(*_lane_decoder.decode(row))

    def append(self, base_offset: int, count: int) -> int:
        """The places of a batch: where they begin."""
        place = self.end
        self.end = place + count
        chunk = self.chunk(len(self.starts) - 1) if self.starts else None
        if chunk is not None and len(chunk.keys) < CHUNK_ENTRIES_MAX:
            chunk.keys.append(place)
            chunk.offsets.append(base_offset)
            self.changed(len(self.starts) - 1, chunk)
        else:
            self.begin(place, LaneChunk(self.highest_offset, [place], [base_offset]))
            self._befores.append(self.highest_offset)
        if base_offset > self.highest_offset:
            self.highest_offset = base_offset
        return place

    def walk(self, place: int) -> Iterator[tuple[int, int]]:
        """(first place, base offset) of each batch from the one that holds the place on."""
        number = max(0, bisect_right(self.starts, place) - 1)
        while number < len(self.starts):
            chunk = self.chunk(number)
            at = max(0, bisect_right(chunk.keys, place) - 1)
            yield from zip(chunk.keys[at:], chunk.offsets[at:], strict=True)
            number += 1

    def base_offset_at(self, place: int) -> int:
        """The batch that holds the place, which is not the end."""
        chunk = self.chunk(max(0, bisect_right(self.starts, place) - 1))
        return chunk.offsets[max(0, bisect_right(chunk.keys, place) - 1)]

    def first_end(self) -> int:
        """Where the lane's first batch ends; the end when there is none."""
        if not self.starts:
            return self.end
        keys = self.chunk(0).keys
        if len(keys) > 1:
            return keys[1]
        return self.starts[1] if len(self.starts) > 1 else self.end

    def place_from(self, base_offset: int) -> tuple[int, int]:
        """The first place whose batch begins at or after the offset, and that batch; or the end, and -1."""
        number = max(0, bisect_left(self._befores, base_offset) - 1)
        while number < len(self.starts):
            chunk = self.chunk(number)
            for place, offset in zip(chunk.keys, chunk.offsets, strict=True):
                if offset >= base_offset:
                    return place, offset
            number += 1
        return self.end, -1

    def trim(self, place: int) -> list[int]:
        """Forget the batches below the place, which is where a batch begins; gives back their base offsets."""
        gone: list[int] = []
        while self.starts:
            chunk = self.chunk(0)
            at = bisect_left(chunk.keys, place)
            gone += chunk.offsets[:at]
            if at == len(chunk.keys):
                self.remove(0)
                del self._befores[0]
                continue
            if at:
                del chunk.keys[:at], chunk.offsets[:at]
                self.changed(0, chunk)
            break
        self.first = max(self.first, place)
        return gone
