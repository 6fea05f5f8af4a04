"""The bytes behind leases: read from the journal, whole or cut to what was leased.

A batch goes out as its producer encoded it, unless so little of it was leased that an extract is cheaper for both ends.
"""

from __future__ import annotations

from typing import Any, Final

from lanner import limits
from lanner.broker.desks.calls import LeasedBatch, Range
from lanner.broker.desks.delivery import DecodedBatches
from lanner.broker.node import Node
from lanner.partition import APPEND_PREFIX_BYTES, BatchRef

_INLINE_MESSAGES_MAX: Final = 16  # so few are cut out of a decoded batch faster than a thread can be asked to
_WASTED_BYTES_MAX: Final = 64 * limits.KIB  # sending so much in vain costs less than cutting more than a few out


class LeaseReader:
    """Reads what was leased."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._decoded = DecodedBatches()

    async def read(self, leased: list[Any]) -> list[LeasedBatch]:
        """The bytes behind leases, batch by batch, in the order of urgency in which they were leased."""
        grouped: list[tuple[int, int, int, Any, list[Range]]] = []
        wanted: list[tuple[int, int]] = []
        for partition, replica, token, answer in leased:
            last_base = -1
            for lease in answer.leases:
                item = Range(lease.first_offset, lease.count, lease.attempt)
                if lease.ref.base_offset == last_base:
                    grouped[-1][4].append(item)
                    continue
                last_base = lease.ref.base_offset
                grouped.append((partition, token, answer.deadline_ms, lease.ref, [item]))
                wanted.append((replica.set_id, lease.ref.index))
        payloads = await self._node.payloads(wanted)
        batches: list[LeasedBatch] = []
        cold: list[tuple[int, tuple[int, int]]] = []
        finished: list[tuple[int, int]] = []
        for (partition, token, deadline_ms, ref, ranges), payload, key in zip(grouped, payloads, wanted, strict=True):
            if payload is None:
                continue  # retention took it between the decision and the read
            data: bytes | memoryview = memoryview(payload)[APPEND_PREFIX_BYTES:]
            leased_batch = LeasedBatch(
                partition, token, ref.base_offset, ref.append_ms, deadline_ms, ref.lane, data, ranges
            )
            count = sum(item.count for item in ranges)
            if _is_small_part(count, ref):
                if count <= _INLINE_MESSAGES_MAX and self._decoded.get(key) is not None:
                    leased_batch = leased_batch._replace(data=self._decoded.extract(key, leased_batch))
                else:
                    cold.append((len(batches), key))
            batches.append(leased_batch)
            if any(item.first_offset + item.count == ref.base_offset + ref.count for item in ranges):
                finished.append(key)
        if cold:
            parts = await self._node.in_reader(
                lambda: [self._decoded.extract(key, batches[place]) for place, key in cold]
            )
            for (place, _), data in zip(cold, parts, strict=True):
                batches[place] = batches[place]._replace(data=data)
        for key in finished:
            self._decoded.drop(key)
        return batches


def _is_small_part(count: int, ref: BatchRef) -> bool:
    """Whether an extract of so many messages is cheaper, for both ends, than the whole batch."""
    if count * 2 >= ref.count:
        return False
    return count <= _INLINE_MESSAGES_MAX or ref.size * (ref.count - count) // ref.count > _WASTED_BYTES_MAX
