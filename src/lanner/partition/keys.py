"""The keys of a partition's rows: a letter for the table, then big-endian numbers, so that ranges scan in order."""

from __future__ import annotations

from typing import Final

HEADER: Final = b"h"
BATCHES: Final = b"b"
LANES: Final = b"l"
KEPT: Final = b"k"
GROUPS: Final = b"g"
LEASES: Final = b"t"
PLACES: Final = b"p"
PRODUCERS: Final = b"i"
DEDUP: Final = b"d"
FLOOR: Final = b"f"
SETTLES: Final = b"s"
ATTEMPTS: Final = b"a"
PREPARED: Final = b"x"

_INTEGER_BYTES: Final = 8


def integer_key(prefix: bytes, number: int) -> bytes:
    return prefix + number.to_bytes(_INTEGER_BYTES, "big")


def integer_of(prefix: bytes, key: bytes) -> int:
    return int.from_bytes(key[len(prefix) :], "big")


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with the prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def group_key(group_id: int) -> bytes:
    return integer_key(GROUPS, group_id)


def lease_key(group_id: int, token: int) -> bytes:
    return integer_key(integer_key(LEASES, group_id), token)


def settles_key(group_id: int, row: int) -> bytes:
    return integer_key(integer_key(SETTLES, group_id), row)


def places_key(group_id: int, lane: int, row: int) -> bytes:
    return integer_key(integer_key(PLACES, group_id) + bytes((lane,)), row)
