"""Replies of simulated brokers: cut to what fits, or lost with their connection.

A simulated poll ends where the engine has decided it. What a broker does after that, to read the bytes and to send
them, is imitated here with the broker's own rules: the reply holds what fits, one message always does, and what is left
out is given back uncounted. The messages are small here, so the bounds are too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from lanner.calls.merging import Room
from lanner.partition import Lease

_BOUNDS: Final = (1 << 20, 1 << 20, 1 << 20, 2_000, 500)
_LOST: Final = 0.03  # of the replies cannot be sent at all


def cut(rng: Random, leases: Sequence[Lease], values: Mapping[int, bytes]) -> tuple[list[Lease], list[Lease]]:
    """The leases whose messages a reply holds, and those of which nobody hears."""
    if rng.random() < _LOST:
        return [], list(leases)
    room = Room(rng.choice(_BOUNDS))
    kept: list[Lease] = []
    for place, lease in enumerate(leases):
        fitting = 0
        while fitting < lease.count:
            size = len(values[lease.first_offset + fitting])
            if not room.has(size) and not room.is_empty:
                break
            room.take(size)
            fitting += 1
        if fitting:
            kept.append(lease._replace(count=fitting))
        if fitting < lease.count:
            rest = lease._replace(first_offset=lease.first_offset + fitting, count=lease.count - fitting)
            return kept, [rest, *leases[place + 1 :]]
    return kept, []
