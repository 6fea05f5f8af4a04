"""What the metadata machine remembers of staged publish: transactions, tries, and ids of which only a hash is left.

A *transaction* is a name that one owner may use at a time; it remembers which sequences of its work are committed.
A *try* is one commit on its way. Its token is the index of the entry that began it, so tokens are unique and rise. A
try that is PREPARING may still come to either end; one that is COMMITTED stays until every partition has published. An
aborted try has no row: what is in no row is aborted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

import msgspec
import xxhash

from lanner import limits
from lanner.errors import ValidationError
from lanner.model import check_name

HASH_BYTES: Final = 8
COMMIT_ID_BYTES: Final = 16

Ranges = tuple[tuple[int, int], ...]
"""Numbers as (first, last), in order, with a gap between any two."""

Participants = tuple[tuple[str, int, tuple[int, ...]], ...]
"""The partitions that have stages of a commit, as (topic, incarnation, partitions)."""


class TryState(StrEnum):
    PREPARING = "preparing"
    COMMITTED = "committed"


class AbortReason(StrEnum):
    DEADLINE = "deadline"  # not everybody was prepared in time
    REFUSED = "refused"  # a partition has not what the commit names, or no room for it
    SUPERSEDED = "superseded"  # the same work is committed anew
    FENCED = "fenced"  # another owner has taken the transaction over
    DELETED = "deleted"  # one of its topics is gone
    OPERATOR = "operator"  # its caller, or an operator of the cluster, gave it up


class Ended(msgspec.Struct, array_like=True, frozen=True):
    """How one commit ended."""

    commit_id: bytes
    token: int  # 0: it was given up before it began
    reason: AbortReason | None  # None: it was committed

    @property
    def committed(self) -> bool:
        return self.reason is None


class Transaction(msgspec.Struct, array_like=True, frozen=True):
    name: str
    owner: str
    era: int  # the index of the entry that made or restarted it
    done: Ranges  # the sequences that are committed
    ended: tuple[Ended, ...]  # the latest ones, oldest first
    open_token: int  # of its try, until that is aborted or confirmed by all; 0: none
    once: bool  # the name is random and used once: forgotten after a day, without a trace
    used_ms: int

    @property
    def latest(self) -> int:
        """The highest committed sequence; -1: none."""
        return self.done[-1][1] if self.done else -1

    def has_done(self, sequence: int) -> bool:
        return holds(self.done, sequence)

    def ended_as(self, commit_id: bytes) -> Ended | None:
        for one in self.ended:
            if one.commit_id == commit_id:
                return one
        return None


class Try(msgspec.Struct, array_like=True, frozen=True):
    token: int
    transaction: str
    owner: str
    era: int
    sequence: int
    commit_id: bytes
    set_ids: tuple[int, ...]  # its participants, in order, without those whose topics were deleted since it committed
    state: TryState
    begun_ms: int
    deadline_ms: int
    decided_ms: int = 0
    decided_index: int = 0  # of the entry that committed it; a partition that has published has acted on that, or later

    @property
    def committed(self) -> bool:
        return self.state is TryState.COMMITTED


# ------------------------------------------------------------------ what commands about them come to


class Begun(msgspec.Struct, frozen=True):
    """There is a try of this commit, and it is not decided."""

    token: int


class Repeated(msgspec.Struct, frozen=True):
    """The sequence was committed before, by this commit or another one: nothing is to be done."""

    token: int  # of that try, while some partition has yet to publish it; 0: all have


class CommitEnded(msgspec.Struct, frozen=True):
    """This commit has ended."""

    token: int  # 0: it never began
    reason: AbortReason | None  # None: it was committed

    @property
    def committed(self) -> bool:
        return self.reason is None


class Claimed(msgspec.Struct, frozen=True):
    """The owner has the transaction, and `latest` is the highest sequence that it knows to be committed."""

    owner_before: str  # empty: the name was new; the same owner: nothing has changed
    latest: int  # -1: none


# ------------------------------------------------------------------ what callers give, checked before and after the log


def check_parties(transaction: str, owner: str) -> None:
    check_name(transaction, "transaction")
    check_name(owner, "owner")


def check_commit_id(commit_id: bytes) -> None:
    if len(commit_id) != COMMIT_ID_BYTES:
        raise ValidationError(
            f"a commit id has {COMMIT_ID_BYTES} bytes, and this one {len(commit_id)}", field="commit_id"
        )


def check_commit(sequence: int, participants: Participants, timeout_ms: int) -> None:
    if not 0 <= sequence <= limits.OFFSET_MAX:
        raise ValidationError(f"sequence {sequence} lies outside 0 to {limits.OFFSET_MAX}", field="sequence")
    low, high = limits.COMMIT_TIMEOUT_MS_MIN, limits.COMMIT_TIMEOUT_MS_MAX
    if not low <= timeout_ms <= high:
        raise ValidationError(f"a timeout of {timeout_ms} ms lies outside {low} to {high}", field="timeout_ms")
    named = [(topic, partition) for topic, _, partitions in participants for partition in partitions]
    for count, most, what in (
        (len(participants), limits.TRANSACTION_TOPICS_MAX, "topics"),
        (len(named), limits.PARTICIPANTS_MAX, "partitions"),
    ):
        if count > most:
            raise ValidationError(
                f"{count} {what} in one commit are more than {most}: commit less at a time", field="participants"
            )
    if len(set(named)) != len(named):
        raise ValidationError("the commit names a partition twice", field="participants")


# ------------------------------------------------------------------ ranges


def holds(ranges: Ranges, number: int) -> bool:
    place = bisect_right(ranges, number, key=_first)
    return place > 0 and number <= ranges[place - 1][1]


def added(ranges: Ranges, number: int, most: int) -> Ranges:
    """With one number more; of more than so many ranges the lowest is dropped."""
    if holds(ranges, number):
        return ranges
    place = bisect_right(ranges, number, key=_first)
    first = last = number
    start = stop = place
    if place > 0 and ranges[place - 1][1] == number - 1:
        start, first = place - 1, ranges[place - 1][0]
    if place < len(ranges) and ranges[place][0] == number + 1:
        stop, last = place + 1, ranges[place][1]
    return (*ranges[:start], (first, last), *ranges[stop:])[-most:]


def _first(one: tuple[int, int]) -> int:
    return one[0]


# ------------------------------------------------------------------ hashes


class Hashes:
    """The hashes of forgotten names, sorted, in 256 strings by their first byte: 8 bytes each and nothing more."""

    def __init__(self, rows: Iterable[tuple[int, bytes]] = ()) -> None:
        self._packed = {first: bytearray(packed) for first, packed in rows}
        self._count = sum(map(len, self._packed.values())) // HASH_BYTES

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return self._find(hash_of(name))[1]

    def __iter__(self) -> Iterator[int]:
        """The first bytes of which there are any."""
        return iter(self._packed)

    @property
    def full(self) -> bool:
        return self._count >= limits.TRANSACTIONS_FORGOTTEN_MAX

    def packed(self, first: int) -> bytes | None:
        found = self._packed.get(first)
        return None if found is None else bytes(found)

    def add(self, name: str) -> int:
        """Remember a name; the first byte, under which its row is."""
        hashed = hash_of(name)
        place, there = self._find(hashed)
        if not there:
            self._packed.setdefault(hashed[0], bytearray())[place:place] = hashed
            self._count += 1
        return hashed[0]

    def discard(self, name: str) -> int:
        hashed = hash_of(name)
        place, there = self._find(hashed)
        if there:
            packed = self._packed[hashed[0]]
            del packed[place : place + HASH_BYTES]
            self._count -= 1
            if not packed:
                del self._packed[hashed[0]]
        return hashed[0]

    def clear(self) -> list[int]:
        """Forget all; the first bytes of what there was."""
        gone = list(self._packed)
        self._packed, self._count = {}, 0
        return gone

    def _find(self, hashed: bytes) -> tuple[int, bool]:
        """Where a hash is, or would be put."""
        packed = self._packed.get(hashed[0], b"")
        low, high = 0, len(packed) // HASH_BYTES
        while low < high:
            middle = (low + high) // 2
            if packed[middle * HASH_BYTES : (middle + 1) * HASH_BYTES] < hashed:
                low = middle + 1
            else:
                high = middle
        place = low * HASH_BYTES
        return place, packed[place : place + HASH_BYTES] == hashed


def hash_of(name: str) -> bytes:
    return xxhash.xxh64_digest(name.encode())
