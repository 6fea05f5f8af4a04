"""What one decision leased to one group: segments, a live bit for each message, and who holds which part until when.

Bits are numbered in the order of the leases. Segments are looked up both by bit (facts name masks) and by offset
(settles name offsets). A *part* is what one poll got; extending some of it splits it. A settle clears bits, and costs
as much for a thousand messages of a segment as for one. Which bits a holder settled, and how, is noted: one who asks
the same again gets the same answer (`memory` keeps it when the lease has ended).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from lanner.partition.records import Segment, mask_bytes, mask_of

EXTEND: Final = 3  # of the kinds of settles the one that settles nothing


class Part(NamedTuple):
    mask: int
    deadline_ms: int
    member: str
    sequence: int


class Held(NamedTuple):
    """What one member holds of one group."""

    messages: int
    until_ms: int  # when the last of its leases ends
    parts: int  # in so many parts


NOTHING_HELD: Final = Held(0, 0, 0)


class Run(NamedTuple):
    """Live messages that follow each other: where they are and how often they were delivered, this time included."""

    lane: int
    place: int
    count: int  # type: ignore[assignment]
    first_offset: int
    attempt: int


class _Row(msgspec.Struct, array_like=True):
    segments: list[Segment]
    live: bytes
    parts: list[tuple[bytes, int, str, int]]
    answered: dict[int, bytes] = {}  # written only when there is something: brokers of level 1 read three fields


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Row)


def runs_of(mask: int) -> Iterator[tuple[int, int]]:
    """(first bit, count) of each run of set bits."""
    at = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        at += zeros
        ones = (~mask & (mask + 1)).bit_length() - 1
        yield at, ones
        mask >>= ones
        at += ones


class LeaseRecord:
    __slots__ = ("_bits", "_numbers", "_offsets", "answered", "live", "parts", "segments", "size", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.segments: list[Segment] = []
        self.size = 0  # bits given out
        self.live = 0
        self.parts: list[Part] = []
        self.answered: dict[int, int] = {}  # kind of settle → what holders were told has taken effect
        self._bits: list[int] = []  # of each segment, the first bit
        self._offsets: list[int] = []  # first offsets of the segments, in order
        self._numbers: list[int] = []  # and which segments these are

    def add(self, segments: Sequence[Segment]) -> int:
        """More messages; gives back their mask."""
        first = bit = self.size
        bits, offsets = self._bits, self._offsets
        highest = offsets[-1] if offsets else -1
        for number, segment in enumerate(segments, len(self.segments)):
            offset = segment[0]
            bits.append(bit)
            bit += segment[3]
            if offset > highest:
                offsets.append(offset)
                self._numbers.append(number)
                highest = offset
            else:
                at = bisect_right(offsets, offset)
                offsets.insert(at, offset)
                self._numbers.insert(at, number)
        self.segments += segments
        self.size = bit
        mask = ((1 << (bit - first)) - 1) << first
        self.live |= mask
        return mask

    def mask_between(self, first_offset: int, count: int) -> int:
        """The bits of the messages with these offsets, live or not."""
        offsets, numbers = self._offsets, self._numbers
        at = bisect_right(offsets, first_offset) - 1
        if at >= 0:
            number = numbers[at]
            skip = first_offset - offsets[at]
            if skip + count <= self.segments[number][3]:
                return ((1 << count) - 1) << (self._bits[number] + skip)
        else:
            at = 0
        end = first_offset + count
        mask = 0
        while at < len(offsets) and offsets[at] < end:
            offset, number = offsets[at], numbers[at]
            low = max(offset, first_offset)
            high = min(offset + self.segments[number][3], end)
            if low < high:
                mask |= ((1 << (high - low)) - 1) << (self._bits[number] + low - offset)
            at += 1
        return mask

    def touched(self, mask: int) -> Iterator[tuple[Segment, int]]:
        """Each segment with messages in the mask, and which of its own they are."""
        for number, own in self._numbered(mask):
            yield self.segments[number], own

    def _numbered(self, mask: int) -> Iterator[tuple[int, int]]:
        if not mask:
            return
        end = mask.bit_length()
        lowest = (mask & -mask).bit_length() - 1
        bits = self._bits
        number = bisect_right(bits, lowest) - 1
        while number < len(bits) and bits[number] < end:
            own = (mask >> bits[number]) & ((1 << self.segments[number][3]) - 1)
            if own:
                yield number, own
            number += 1

    def by_attempt(self, mask: int) -> dict[int, int]:
        """The mask, divided by how often the messages were delivered."""
        if len(self.segments) == 1:
            return {self.segments[0].attempt: mask} if mask else {}
        found: dict[int, int] = {}
        for number, own in self._numbered(mask):
            attempt = self.segments[number].attempt
            found[attempt] = found.get(attempt, 0) | own << self._bits[number]
        return found

    def runs(self, mask: int) -> Iterator[Run]:
        for segment, own in self.touched(mask):
            first_offset, lane, place, _, attempt = segment
            for at, count in runs_of(own):
                yield Run(lane, place + at, count, first_offset + at, attempt)

    def settle(self, mask: int) -> list[Part]:
        """These messages are no longer leased; gives back the parts that are over."""
        self.live &= ~mask
        live = self.live
        over = [part for part in self.parts if not part.mask & live]
        if over:
            self.parts = [part for part in self.parts if part.mask & live]
        return over

    def extend(self, mask: int, deadline_ms: int) -> None:
        parts: list[Part] = []
        for part in self.parts:
            inside = part.mask & mask
            if not inside:
                parts.append(part)
                continue
            if part.mask & ~mask & self.live:
                parts.append(part._replace(mask=part.mask & ~mask))
            parts.append(part._replace(mask=inside, deadline_ms=deadline_ms))
        self.parts = parts

    # ------------------------------------------------------------------ what was answered

    def note_answer(self, kind: int, mask: int) -> None:
        self.answered[kind] = self.answered.get(kind, 0) | mask

    def answered_mask(self, kind: int) -> int:
        """What a settle of this kind took effect on before. An extension counts where its holder has settled since:
        of what is still leased it is made anew, and of what ran out it could not be kept."""
        answered = self.answered
        mask = answered.get(kind, 0)
        if kind == EXTEND and mask:
            settled = 0
            for other, part in answered.items():
                settled |= part if other != EXTEND else 0
            mask &= settled
        return mask

    def answered_ranges(self) -> dict[int, tuple[list[int], list[int]]]:
        """The same for every kind: first offsets and counts, in the order of the offsets."""
        found = {}
        for kind in sorted(self.answered):
            mask = self.answered_mask(kind)
            if mask:
                found[kind] = self._ranges_of(mask)
        return found

    def _ranges_of(self, mask: int) -> tuple[list[int], list[int]]:
        firsts: list[int] = []
        counts: list[int] = []
        end = -1
        whole = mask.bit_count() == self.size
        for first, number in zip(self._offsets, self._numbers, strict=True):
            size = self.segments[number][3]
            own = 0 if whole else (mask >> self._bits[number]) & ((1 << size) - 1)
            for at, count in ((0, size),) if whole else runs_of(own):
                if first + at == end:
                    counts[-1] += count
                else:
                    firsts.append(first + at)
                    counts.append(count)
                end = first + at + count
        return firsts, counts

    # ------------------------------------------------------------------ rows

    def first_deadline_ms(self) -> int:
        return min(part.deadline_ms for part in self.parts)

    def encode(self) -> bytes:
        parts = [(mask_bytes(part.mask), *part[1:]) for part in self.parts]
        row = (self.segments, mask_bytes(self.live), parts)
        if not self.answered:
            return _encoder.encode(row)
        return _encoder.encode((*row, {kind: mask_bytes(self.answered[kind]) for kind in sorted(self.answered)}))

    @classmethod
    def decode(cls, token: int, data: bytes) -> LeaseRecord:
        row = _decoder.decode(data)
        lease = cls(token)
        lease.add(row.segments)
        lease.live = mask_of(row.live)
        lease.parts = [Part(mask_of(mask), *rest) for mask, *rest in row.parts]  # type: ignore[arg-type]
        lease.answered = {kind: mask_of(mask) for kind, mask in row.answered.items()}
        return lease
