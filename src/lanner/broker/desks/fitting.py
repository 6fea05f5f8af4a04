"""Leases that nobody heard of go back uncounted. A message must never die of deliveries that were none."""

from __future__ import annotations

from collections.abc import Iterable

from lanner.partition import Lease, Release


def release_of(group: str, token: int, leases: Iterable[Lease]) -> Release | None:
    """The request that gives back leases nobody heard of, without counting a delivery; None: there are none."""
    items = [(token, lease.first_offset, lease.count, 0, -1, "") for lease in leases]
    return Release(group, items) if items else None
