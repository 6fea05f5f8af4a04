"""Which partition a key belongs to. Every client must agree on this for ever."""

from __future__ import annotations

from xxhash import xxh64_intdigest

from lanner import limits
from lanner.errors import ValidationError


def partition_for_key(key: bytes, partitions: int) -> int:
    """Where messages of this key go: jump consistent hash (Lamping and Veach, 2014) of xxh64(key).

    When a topic grows from n to m partitions a key stays or moves to one of the new ones; (m - n) / m of them move.
    """
    return partition_for_hash(xxh64_intdigest(key), partitions)


def partition_for_hash(key_hash: int, partitions: int) -> int:
    """The same from a hash that is known already, such as the batch's own column of them."""
    if not 1 <= partitions <= limits.PARTITIONS_MAX:
        raise ValidationError(
            f"a topic has 1 to {limits.PARTITIONS_MAX} partitions, not {partitions}", field="partitions"
        )
    state = key_hash
    chosen = candidate = 0
    while candidate < partitions:
        chosen = candidate
        state = (state * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        candidate = int((chosen + 1) * (2**31 / ((state >> 33) + 1)))
    return chosen
