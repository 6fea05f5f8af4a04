"""Batches that retention has passed, but in which some group still holds messages.

Of such a batch only the held positions matter; the storage may drop the others. It leaves when the last one is
settled. Its size is estimated by the share of its messages that are kept: good enough for a bound.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Final

import msgspec

from lanner.partition.batches import BatchRef, Rows
from lanner.partition.keys import KEPT, integer_key, prefix_end

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(BatchRef)


def kept_size(ref: BatchRef) -> int:
    return ref.size * len(ref.kept or ()) // ref.count


class KeptBatches:
    def __init__(self) -> None:
        self.pinned_bytes = 0
        self._bases: list[int] = []
        self._refs: dict[int, BatchRef] = {}
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return len(self._bases)

    def __iter__(self) -> Iterator[BatchRef]:
        return (self._refs[base] for base in self._bases)

    def get(self, offset: int) -> BatchRef | None:
        """The kept batch that covers this offset, whether the offset itself is kept or not."""
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            return None
        ref = self._refs[self._bases[at]]
        return ref if offset < ref.base_offset + ref.count else None

    def between(self, first_offset: int, count: int) -> list[BatchRef]:
        """Kept batches that overlap these offsets."""
        at = max(0, bisect_right(self._bases, first_offset) - 1)
        found: list[BatchRef] = []
        while at < len(self._bases) and self._bases[at] < first_offset + count:
            ref = self._refs[self._bases[at]]
            if ref.base_offset + ref.count > first_offset:
                found.append(ref)
            at += 1
        return found

    def put(self, ref: BatchRef) -> None:
        """Keep a batch, or keep less of it."""
        known = self._refs.get(ref.base_offset)
        if known is None:
            insort(self._bases, ref.base_offset)
        else:
            self.pinned_bytes -= kept_size(known)
        self._refs[ref.base_offset] = ref
        self.pinned_bytes += kept_size(ref)
        self._dirty.add(ref.base_offset)

    def remove(self, ref: BatchRef) -> None:
        base = ref.base_offset
        self.pinned_bytes -= kept_size(self._refs.pop(base))
        del self._bases[bisect_left(self._bases, base)]
        self._dirty.add(base)

    def load(self, rows: Rows) -> None:
        for _, data in rows.scan(KEPT, prefix_end(KEPT)):
            self.put(_decoder.decode(data))
        self._dirty = set()

    def take_dirty(self, into: dict[bytes, bytes | None]) -> None:
        for base in self._dirty:
            ref = self._refs.get(base)
            into[integer_key(KEPT, base)] = None if ref is None else _encoder.encode(ref)
        self._dirty = set()

    def all_rows(self, into: dict[bytes, bytes]) -> None:
        for base, ref in self._refs.items():
            into[integer_key(KEPT, base)] = _encoder.encode(ref)
