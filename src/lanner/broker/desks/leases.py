"""The bytes behind leases: read from the journal, whole or cut to what was leased, as far as they fit into the reply.

A batch goes out as its producer encoded it, unless so little of it was leased that an extract is cheaper for both ends.
No more is read than the reply may need. When it is full, what is left over is handed back to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

from lanner import batch, limits
from lanner.broker.ports import PayloadReader
from lanner.broker.replicas.replica import Replica
from lanner.calls.merging import Room
from lanner.errors import MalformedBatch
from lanner.forwarding.delivery import DecodedBatches
from lanner.forwarding.values import LeasedBatch, Range
from lanner.partition import BatchRef, Lease, PollAnswer, batch_start

_INLINE_MESSAGES_MAX: Final = 16  # so few are cut out of a decoded batch faster than a thread can be asked to
_INLINE_BYTES_MAX: Final = 256 * limits.KIB  # unless the batch is so large that some of them may be, too
_WASTED_BYTES_MAX: Final = 64 * limits.KIB  # sending so much in vain costs less than cutting more than a few out
_CHUNK_BYTES: Final = limits.POLL_BYTES_MAX  # read at a time
_BESIDES_BYTES: Final = 40  # of an extract for each message, at most: offsets, position, checksum, key hash, time
_HEADER_BYTES: Final = 512  # at most, with the dedup id and padding


class Leased(NamedTuple):
    """What one partition's decision gave to a poll."""

    partition: int
    replica: Replica
    token: int
    answer: PollAnswer


class _Portion(NamedTuple):
    """Leases of one batch that stand together in one decision."""

    source: Leased
    ref: BatchRef
    leases: list[Lease]

    @property
    def key(self) -> tuple[int, int]:
        return self.source.replica.set_id, self.ref.index


class LeaseReader:
    """Reads what was leased."""

    def __init__(self, reader: PayloadReader) -> None:
        self._reader = reader
        self._decoded = DecodedBatches()

    async def read(self, leased: Sequence[Leased], bytes_max: int) -> tuple[list[LeasedBatch], list[Leased]]:
        """The bytes behind leases, batch by batch, in the order of urgency in which they were leased; and the leases
        for which the reply has no room. One message always fits."""
        portions = _portions(leased)
        room = Room(bytes_max)
        batches: list[LeasedBatch] = []
        read_bytes = place = 0
        while place < len(portions) and read_bytes < limits.READ_BYTES_MAX:
            end = _chunk_end(portions, place)
            for portion, found in zip(portions[place:end], await self._read(portions[place:end], room), strict=True):
                if found is not None and room.has(len(found.data)):
                    room.take(len(found.data))
                    batches.append(found)
                elif found is not None:
                    if room.is_empty:
                        first, rest = await self._reader.in_reader(partial(_cut, portion, found, bytes_max))
                        batches.append(first)
                        portions[place] = portion._replace(leases=rest)
                    return batches, _grouped(portions[place:])
                place += 1
                read_bytes += portion.ref.size
        return batches, _grouped(portions[place:])

    async def _read(self, portions: Sequence[_Portion], room: Room) -> list[LeasedBatch | None]:
        """Each portion as it would go out; None: retention took it between the decision and the read."""
        payloads = await self._reader.payloads([portion.key for portion in portions])
        found: list[LeasedBatch | None] = []
        cold: list[tuple[int, LeasedBatch]] = []
        waste_left = room.left_bytes // 4
        for portion, payload in zip(portions, payloads, strict=True):
            ref = portion.ref
            if payload is None:
                found.append(None)
                continue
            whole = _leased_batch(portion, memoryview(payload)[batch_start(payload) :])
            count = sum([lease.count for lease in portion.leases])
            wasted = ref.size * (ref.count - count) // ref.count
            if count * 2 >= ref.count or (
                count > _INLINE_MESSAGES_MAX and wasted <= min(waste_left, _WASTED_BYTES_MAX)
            ):
                waste_left -= wasted
            elif (
                count <= _INLINE_MESSAGES_MAX
                and ref.size <= _INLINE_BYTES_MAX
                and self._decoded.get(portion.key) is not None
            ):
                whole = whole._replace(data=self._decoded.extract(portion.key, whole))
            else:
                cold.append((len(found), whole))
            found.append(whole)
        if cold:
            parts = await self._reader.in_reader(
                lambda: [self._decoded.extract(portions[place].key, whole) for place, whole in cold]
            )
            for (place, whole), data in zip(cold, parts, strict=True):
                found[place] = whole._replace(data=data)
        for portion, payload in zip(portions, payloads, strict=True):
            if payload is not None and _is_last(portion):
                self._decoded.drop(portion.key)
        return found


def _portions(leased: Sequence[Leased]) -> list[_Portion]:
    portions: list[_Portion] = []
    for source in leased:
        last_base = -1
        for lease in source.answer.leases:
            if lease.ref.base_offset == last_base:
                portions[-1].leases.append(lease)
            else:
                last_base = lease.ref.base_offset
                portions.append(_Portion(source, lease.ref, [lease]))
    return portions


def _grouped(portions: Sequence[_Portion]) -> list[Leased]:
    """The leases of these portions, as the decisions gave them."""
    rest: list[Leased] = []
    for source, _, leases in portions:
        if rest and rest[-1].token == source.token and rest[-1].replica is source.replica:
            rest[-1].answer.leases.extend(leases)
        elif leases:
            rest.append(source._replace(answer=source.answer._replace(leases=list(leases))))
    return rest


def _chunk_end(portions: Sequence[_Portion], start: int) -> int:
    """Behind the portions that are read together; at least one is."""
    left_bytes = _CHUNK_BYTES
    for place in range(start, len(portions)):
        left_bytes -= portions[place].ref.size
        if left_bytes < 0:
            return max(place, start + 1)
    return len(portions)


def _leased_batch(portion: _Portion, data: bytes | memoryview) -> LeasedBatch:
    source, ref, leases = portion
    return LeasedBatch(
        source.partition,
        source.token,
        ref.base_offset,
        ref.append_ms,
        source.answer.deadline_ms,
        ref.lane,
        data,
        [Range(lease.first_offset, lease.count, lease.attempt) for lease in leases],
    )


def _is_last(portion: _Portion) -> bool:
    """Whether nothing of the batch is left to lease behind these."""
    ref = portion.ref
    return any(lease.first_offset + lease.count == ref.base_offset + ref.count for lease in portion.leases)


def _cut(portion: _Portion, found: LeasedBatch, bytes_max: int) -> tuple[LeasedBatch, list[Lease]]:
    """As many of the first messages as fit, at least one, as an extract; and the leases of the others."""
    base = portion.ref.base_offset
    offsets = [
        offset for lease in portion.leases for offset in range(lease.first_offset, lease.first_offset + lease.count)
    ]
    try:
        decoded = batch.decode(found.data, headers=False)
    except MalformedBatch:
        return found, []  # a batch always fits alone, and its reader sees what is wrong with it
    positions = decoded.positions or range(decoded.count)
    size_at = dict(zip(positions, decoded.sizes(), strict=True))
    sizes = accumulate((size_at.get(offset - base, 0) + _BESIDES_BYTES for offset in offsets), initial=_HEADER_BYTES)
    fitting = max(1, sum(size <= bytes_max for size in sizes) - 1)
    kept, rest = _split(portion.leases, fitting)
    wanted = sorted(offset - base for offset in offsets[:fitting] if offset - base in size_at)
    data = decoded.extract(wanted) if wanted else found.data
    return _leased_batch(portion._replace(leases=kept), data), rest


def _split(leases: Sequence[Lease], count: int) -> tuple[list[Lease], list[Lease]]:
    """The leases of the first so many messages, and of the others."""
    kept: list[Lease] = []
    rest: list[Lease] = []
    for lease in leases:
        mine = min(count, lease.count)
        count -= mine
        if mine:
            kept.append(lease._replace(count=mine))
        if mine < lease.count:
            rest.append(lease._replace(first_offset=lease.first_offset + mine, count=lease.count - mine))
    return kept, rest
