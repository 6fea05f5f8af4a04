"""What a stream reads: batches in offset order, whatever their lane, or those of some lanes only.

A read covers a stretch of offsets without a gap: each of them lies in a batch of the stretch, in a batch of a lane that
was not asked for, or in a hole, which is what retention took. So a reader always knows why it was not given an offset.
Nothing here reads a payload, and each look is bounded: one that found nothing says up to where it looked.
"""

from __future__ import annotations

from typing import NamedTuple

from lanner.limits import FETCH_BATCHES_LOOKED_AT
from lanner.partition.batches import BatchRef
from lanner.partition.state import State


class Stretch(NamedTuple):
    """What lies at an offset and after it, up to next_offset."""

    refs: list[BatchRef]
    holes: list[tuple[int, int]]  # first and next offset
    next_offset: int


def stretch(state: State, offset: int, bytes_max: int, lanes: int = 0) -> Stretch:
    """From the batch that holds the offset on; with at least one batch, if there is one near enough.

    Bit n of `lanes` stands for lane n; 0: every lane.
    """
    refs: list[BatchRef] = []
    holes: list[tuple[int, int]] = []
    if offset >= state.end_offset:
        return Stretch(refs, holes, offset)
    for looked_at, ref in enumerate(state.batches.walk(offset)):
        wanted = not lanes or lanes >> ref.lane & 1
        if wanted:
            bytes_max -= ref.size
            if bytes_max < 0 and refs:
                return Stretch(refs, holes, offset)
        elif looked_at >= FETCH_BATCHES_LOOKED_AT:
            return Stretch(refs, holes, offset)
        if ref.base_offset > offset:
            holes.append((offset, ref.base_offset))
        if wanted:
            refs.append(ref)
        offset = ref.base_offset + ref.count
    if offset < state.end_offset:
        holes.append((offset, state.end_offset))
    return Stretch(refs, holes, state.end_offset)


def offset_after_bytes(state: State, offset: int, bytes_max: int, lanes: int = 0) -> int:
    """Up to where batches of these lanes from the offset on have so many bytes at most; one always fits."""
    counted = False
    for looked_at, ref in enumerate(state.batches.walk(offset)):
        if not lanes or lanes >> ref.lane & 1:
            bytes_max -= ref.size
            if bytes_max < 0 and counted:
                return offset
            counted = True
        offset = ref.base_offset + ref.count
        if looked_at + 1 >= FETCH_BATCHES_LOOKED_AT:
            return offset
    return max(offset, state.end_offset)
