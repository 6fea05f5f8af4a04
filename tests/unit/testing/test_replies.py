"""Simulated replies: what they hold, and what they leave out."""

from __future__ import annotations

from random import Random

from lanner.partition import BatchRef, Lease
from lanner.testing.replies import cut

REF = BatchRef(0, 100, 1, 10_000, 4, 0, 1, 0, 0)
LEASES = [Lease(REF, 0, 10, 1), Lease(REF, 20, 5, 2)]
VALUES = dict.fromkeys(range(100), b"v" * 100)


def test_every_lease_is_either_in_the_reply_or_left_out_and_each_happens() -> None:
    met = set()
    for seed in range(200):
        kept, left_out = cut(Random(seed), LEASES, VALUES)
        whole = [lease.first_offset + at for lease in [*kept, *left_out] for at in range(lease.count)]
        assert whole == [*range(10), *range(20, 25)]
        met.add(sum(lease.count for lease in kept))
    assert met == {0, 5, 15}, "lost, cut in the middle of a lease, and whole"


def test_one_message_always_fits() -> None:
    for seed in range(200):
        kept, left_out = cut(Random(seed), LEASES[:1], dict.fromkeys(range(10), b"v" * 3000))
        assert not left_out or sum(lease.count for lease in kept) <= 1
